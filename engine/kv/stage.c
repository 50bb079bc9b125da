#include "engine/kv/stage.h"

bool kva_kv_stage_take(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    uint32_t before = seq->stage_count;
    while (seq->stage_count < count) {
        void *even = kva_kv_take_device(kv, kv->shape.block_bytes);
        void *odd = even ? kva_kv_take_device(kv, kv->shape.block_bytes) : NULL;
        if (!odd) {
            kva_kv_give_device(kv, even, kv->shape.block_bytes);
            kva_kv_stage_give(kv, seq, before, false);
            return false;
        }
        seq->stage[0][seq->stage_count] = even;
        seq->stage[1][seq->stage_count] = odd;
        seq->stage_count++;
        seq->device_bytes += 2 * kv->shape.block_bytes;
    }
    return true;
}

/* Pages of an unfinished prefill that are not closed. A buffer beyond the pages that are away has
 * been taken ahead and holds nothing. */
static void save_unfinished(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    uint32_t end = kva_min_u32(seq->stage_count, seq->away);
    kva_kv_order_copies(kv);
    for (int parity = 0; parity < 2; parity++) {
        uint32_t layer = seq->staged_layer[parity];
        for (uint32_t i = seq->closed_count; layer != KVA_NO_LAYER && i < end; i++)
            kva_kv_offload(kv, seq->pages[i]->host + layer * kv->shape.block_bytes,
                           seq->stage[parity][i], kv->shape.block_bytes);
    }
}

void kva_kv_stage_give(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save)
{
    if (save)
        save_unfinished(kv, seq);
    while (seq->stage_count > count) {
        uint32_t index = --seq->stage_count;
        for (int parity = 0; parity < 2; parity++) {
            kva_kv_give_device(kv, seq->stage[parity][index], kv->shape.block_bytes);
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
    uint32_t pages = kva_min_u32(kva_kv_pages(rows->position_first), seq->away);
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
        uint32_t end = kva_min_u32(full_pages, seq->away);
        for (uint32_t j = rows->position_first / KVA_PAGE_TOKENS; j < end; j++)
            kva_kv_offload(kv, seq->pages[j]->host + layer * kv->shape.block_bytes,
                           seq->stage[layer % 2][j], kv->shape.block_bytes);
    }
}
