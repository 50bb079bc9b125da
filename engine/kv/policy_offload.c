/* policy_offload.c - every closed page lives on the host in 16 bits and is staged layer by layer,
 * all of it, in every step.
 *
 * The baseline that offloading servers are (FlexGen and the like): exact, and bound by the link.
 * Device memory per sequence is two layers of its pages, by parity of the layer, and its last page
 * in all layers:
 *
 *     stage[0]  layer 0, 2, 4, ... of pages 0 .. n-2        copy queue fills stage[(l + 1) % 2] and
 * beyond stage[1]  layer 1, 3, 5, ...                          while compute attends over stage[l %
 * 2] open      all layers of page n-1, while it is written
 *
 * During a long prefill the rows of a layer are written into stage[l % 2] and sent home when a page
 * of it is full. */
#include "engine/kv/policy.h"

#define NO_LAYER UINT32_MAX

static uint64_t offload_footprint(const struct kva_kv *kv, uint32_t tokens)
{
    return kva_tier_footprint(kv->tier, kv->shape.page_bytes, 1) +
           kva_tier_footprint(kv->tier, kv->shape.block_bytes, 2ull * kva_kv_pages(tokens));
}

static void give_stage(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    while (seq->stage_count > count) {
        uint32_t index = --seq->stage_count;
        for (int parity = 0; parity < 2; parity++) {
            kva_kv_give_device(kv, seq->stage[parity][index], kv->shape.block_bytes);
            seq->stage[parity][index] = NULL;
            seq->device_bytes -= kv->shape.block_bytes;
        }
    }
}

static bool take_stage(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    while (seq->stage_count < count) {
        void *even = kva_kv_take_device(kv, kv->shape.block_bytes);
        void *odd = even ? kva_kv_take_device(kv, kv->shape.block_bytes) : NULL;
        if (!odd) {
            kva_kv_give_device(kv, even, kv->shape.block_bytes);
            return false;
        }
        seq->stage[0][seq->stage_count] = even;
        seq->stage[1][seq->stage_count] = odd;
        seq->stage_count++;
        seq->device_bytes += 2 * kv->shape.block_bytes;
    }
    return true;
}

static void give_open(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (seq->open_page == KVA_NO_PAGE)
        return;
    kva_kv_give_device(kv, seq->open_device, kv->shape.page_bytes);
    seq->device_bytes -= kv->shape.page_bytes;
    seq->open_device = NULL;
    seq->open_page = KVA_NO_PAGE;
}

static bool offload_reserve(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t tokens)
{
    uint32_t before = seq->stage_count;
    uint32_t want = kva_kv_pages(tokens);
    if (!take_stage(kv, seq, want)) {
        give_stage(kv, seq, before);
        return false;
    }
    if (seq->open_page == want - 1 || want <= seq->closed_count)
        return true;
    seq->open_device = kva_kv_take_device(kv, kv->shape.page_bytes);
    if (!seq->open_device) {
        give_stage(kv, seq, before);
        return false;
    }
    seq->open_page = want - 1;
    seq->device_bytes += kv->shape.page_bytes;
    return true;
}

/* Pages of an unfinished prefill are on the device alone: the staged layers of those not closed,
 * and the open page. A page that could not be given device memory (growing failed, which is why
 * the sequence is suspended) is beyond stage_count and has no content yet. */
static void save_unfinished(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    uint32_t pages = kva_min_u32(seq->page_count, seq->stage_count);
    kva_kv_order_copies(kv);
    for (int parity = 0; parity < 2; parity++) {
        uint32_t layer = seq->staged_layer[parity];
        for (uint32_t i = seq->closed_count; layer != NO_LAYER && i < pages; i++) {
            if (i != seq->open_page)
                kva_kv_offload(kv, seq->pages[i]->host + layer * kv->shape.block_bytes,
                               seq->stage[parity][i], kv->shape.block_bytes);
        }
    }
    if (seq->open_page == KVA_NO_PAGE)
        return;
    kva_kv_offload(kv, seq->pages[seq->open_page]->host, seq->open_device, kv->shape.page_bytes);
    seq->open_saved = true;
}

static void offload_release(struct kva_kv *kv, struct kva_kv_seq *seq, bool save)
{
    if (save)
        save_unfinished(kv, seq);
    give_open(kv, seq);
    give_stage(kv, seq, 0);
    seq->staged_layer[0] = seq->staged_layer[1] = NO_LAYER;
}

static bool offload_restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!offload_reserve(kv, seq, seq->page_count * KVA_PAGE_TOKENS))
        return false;
    if (seq->open_saved) {
        kva_kv_order_copies(kv);
        kva_kv_fetch(kv, seq, seq->open_device, seq->pages[seq->open_page]->host,
                     kv->shape.page_bytes);
    }
    seq->open_saved = false;
    return true;
}

static void offload_close_page(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index)
{
    /* Staged pages went home layer by layer; the open page goes now. */
    if (index != seq->open_page)
        return;
    kva_kv_order_copies(kv);
    kva_kv_offload(kv, seq->pages[index]->host, seq->open_device, kv->shape.page_bytes);
    give_open(kv, seq);
}

/* Queue the fetch of one layer of the pages that already have content: those before the row at
 * position_first. */
static void stage_seq(struct kva_kv *kv, const struct kva_kv_rows *rows, uint32_t layer)
{
    struct kva_kv_seq *seq = rows->seq;
    uint32_t parity = layer % 2;
    if (seq->staged_layer[parity] == layer)
        return;
    uint32_t pages = kva_kv_pages(rows->position_first);
    for (uint32_t i = 0; i < pages; i++) {
        if (i != seq->open_page)
            kva_kv_fetch(kv, seq, seq->stage[parity][i],
                         seq->pages[i]->host + layer * kv->shape.block_bytes,
                         kv->shape.block_bytes);
    }
    seq->staged_layer[parity] = layer;
}

static void stage_layer(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    if (layer >= pass->layer_first + pass->layer_count)
        return;
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (pass->rows[i].seq->policy == &kva_kv_policy_offload)
            stage_seq(kv, &pass->rows[i], layer);
    }
    kva_event_record(kv->staged_event[layer % 2], KVA_QUEUE_COPY);
}

static void offload_pass_begin(struct kva_kv *kv, struct kva_kv_pass *pass)
{
    for (uint32_t i = 0; pass->restart && i < pass->rows_count; i++) {
        struct kva_kv_seq *seq = pass->rows[i].seq;
        seq->staged_layer[0] = seq->staged_layer[1] = NO_LAYER;
    }
    stage_layer(kv, pass, pass->layer_first);
    stage_layer(kv, pass, pass->layer_first + 1);
}

static void offload_layer_begin(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    size_t offset = layer * kv->shape.block_bytes;
    kva_event_wait(kv->staged_event[layer % 2], KVA_QUEUE_COMPUTE);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        struct kva_kv_seq *seq = rows->seq;
        if (seq->policy != &kva_kv_policy_offload)
            continue;
        uint32_t pages = kva_kv_pages(rows->position_first + rows->row_count);
        for (uint32_t j = 0; j < pages; j++)
            rows->blocks[j] = j == seq->open_page ? (unsigned char *)seq->open_device + offset
                                                  : seq->stage[layer % 2][j];
    }
}

/* Pages that these rows completed in this layer go home; then the buffers of this parity take the
 * layer after next. */
static void offload_layer_end(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        struct kva_kv_seq *seq = rows->seq;
        if (seq->policy != &kva_kv_policy_offload)
            continue;
        uint32_t full_pages = (rows->position_first + rows->row_count) / KVA_PAGE_TOKENS;
        for (uint32_t j = rows->position_first / KVA_PAGE_TOKENS; j < full_pages; j++) {
            if (j != seq->open_page)
                kva_kv_offload(kv, seq->pages[j]->host + layer * kv->shape.block_bytes,
                               seq->stage[layer % 2][j], kv->shape.block_bytes);
        }
    }
    stage_layer(kv, pass, layer + 2);
}

const struct kva_kv_policy kva_kv_policy_offload = {
    .id = KVA_KV_OFFLOAD,
    .name = "offload",
    .footprint = offload_footprint,
    .reserve = offload_reserve,
    .release = offload_release,
    .restore = offload_restore,
    .close_page = offload_close_page,
    .pass_begin = offload_pass_begin,
    .layer_begin = offload_layer_begin,
    .layer_end = offload_layer_end,
};
