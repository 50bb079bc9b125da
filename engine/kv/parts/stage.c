/* stage.c - offloaded pages on the device, two layers at a time. */
#include "engine/kv/parts/stage.h"

#include "engine/kv/part.h"

#include <stdlib.h>

bool kva_kv_stage_alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    uint32_t before = seq->stage_count;
    while (seq->stage_count < count) {
        void *even = kva_kv_alloc_device(kv, kv->shape.block_bytes);
        void *odd = even ? kva_kv_alloc_device(kv, kv->shape.block_bytes) : NULL;
        if (!odd) {
            kva_kv_free_device(kv, even, kv->shape.block_bytes);
            kva_kv_stage_free(kv, seq, before, false);
            return false;
        }
        seq->stage[0][seq->stage_count] = even;
        seq->stage[1][seq->stage_count] = odd;
        seq->stage_count++;
        seq->device_bytes += 2 * kv->shape.block_bytes;
    }
    return true;
}

/* Pages of an unfinished prefill that are not closed. A buffer beyond the pages that are offloaded
 * has been taken ahead and holds nothing. */
static void save_unfinished(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    uint32_t end = kva_min_u32(seq->stage_count, seq->offloaded);
    kva_kv_order_copies(kv);
    for (int parity = 0; parity < 2; parity++) {
        uint32_t layer = seq->staged_layer[parity];
        for (uint32_t i = seq->closed_count; layer != KVA_NO_LAYER && i < end; i++)
            kva_kv_offload(kv, seq->pages[i]->host + layer * kv->shape.block_bytes,
                           seq->stage[parity][i], kv->shape.block_bytes);
    }
}

void kva_kv_stage_free(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save)
{
    if (save)
        save_unfinished(kv, seq);
    while (seq->stage_count > count) {
        uint32_t index = --seq->stage_count;
        for (int parity = 0; parity < 2; parity++) {
            kva_kv_free_device(kv, seq->stage[parity][index], kv->shape.block_bytes);
            seq->stage[parity][index] = NULL;
            seq->device_bytes -= kv->shape.block_bytes;
        }
    }
    if (count == 0)
        seq->staged_layer[0] = seq->staged_layer[1] = KVA_NO_LAYER;
}

bool kva_kv_stage_wanted(const struct kva_kv_pass *pass)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (pass->rows[i].seq->stage_count > 0)
            return true;
    }
    return false;
}

static void stage_seq(struct kva_kv *kv, const struct kva_kv_rows *rows, uint32_t layer)
{
    struct kva_kv_seq *seq = rows->seq;
    uint32_t parity = layer % 2;
    if (seq->staged_layer[parity] == layer)
        return;
    uint32_t pages = kva_min_u32(kva_kv_pages(rows->position_first), seq->offloaded);
    for (uint32_t i = 0; i < pages; i++)
        kva_kv_fetch(kv, seq, seq->stage[parity][i],
                     seq->pages[i]->host + layer * kv->shape.block_bytes, kv->shape.block_bytes);
    seq->staged_layer[parity] = layer;
}

void kva_kv_stage_layer(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    if (layer >= pass->layer_first + pass->layer_count)
        return;
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (pass->rows[i].seq->stage_count > 0)
            stage_seq(kv, &pass->rows[i], layer);
    }
    kva_event_record(kv->staged_event[layer % 2], KVA_QUEUE_COPY);
}

void kva_kv_stage_send(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        struct kva_kv_seq *seq = rows->seq;
        if (seq->stage_count == 0)
            continue;
        uint32_t full_pages = (rows->position_first + rows->row_count) / KVA_PAGE_TOKENS;
        uint32_t end = kva_min_u32(full_pages, seq->offloaded);
        for (uint32_t j = rows->position_first / KVA_PAGE_TOKENS; j < end; j++)
            kva_kv_offload(kv, seq->pages[j]->host + layer * kv->shape.block_bytes,
                           seq->stage[layer % 2][j], kv->shape.block_bytes);
    }
}

/* --- the part -------------------------------------------------------------------------------- */

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    seq->stage[0] = calloc(seq->pages_max, sizeof(void *));
    seq->stage[1] = calloc(seq->pages_max, sizeof(void *));
    if (!seq->stage[0] || !seq->stage[1] || !kva_tier_prepare(kv->tier, kv->shape.block_bytes))
        return kva_fail(err, KVA_ENOMEM, "out of memory for the page table of %u tokens",
                        seq->tokens_max);
    return KVA_OK;
}

static void finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    free(seq->stage[0]);
    free(seq->stage[1]);
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec KVA_UNUSED,
                          const struct kva_kv_extent *extent)
{
    return kva_tier_footprint(kv->tier, kv->shape.block_bytes, 2ull * extent->offloaded);
}

static uint64_t prompt_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                 const struct kva_kv_extent *extent)
{
    return extent->prefilled ? 0 : footprint(kv, spec, extent);
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    return kva_kv_stage_alloc(kv, seq, offloaded);
}

static bool prompt_alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                         uint32_t end KVA_UNUSED)
{
    return seq->prefilled || kva_kv_stage_alloc(kv, seq, offloaded);
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return seq->stage_count;
}

static void prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    kva_kv_stage_free(kv, seq, 0, false);
}

static void locate(const struct kva_kv *kv KVA_UNUSED, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    uint32_t end =
        kva_min_u32(kva_kv_pages(rows->position_first + rows->row_count), seq->offloaded);
    if (seq->stage_count == 0 || end == 0)
        return;
    for (uint32_t i = 0; i < end; i++)
        rows->blocks[i] = seq->stage[layer % 2][i];
    kva_kv_add_range(rows, (struct kva_kv_range){.kind = KVA_RANGE_BLOCKS, .page_end = end});
}

const struct kva_kv_part kva_kv_part_stage = {
    .init = init,
    .finish = finish,
    .footprint = footprint,
    .alloc = alloc,
    .held = held,
    .cut = kva_kv_stage_free,
    .locate = locate,
};

const struct kva_kv_part kva_kv_part_prompt_stage = {
    .init = init,
    .finish = finish,
    .footprint = prompt_footprint,
    .alloc = prompt_alloc,
    .held = held,
    .cut = kva_kv_stage_free,
    .prompt_end = prompt_end,
    .locate = locate,
};
