#include "engine/kv/pass.h"

#include "engine/kv/hot.h"
#include "engine/kv/lowbit.h"
#include "engine/kv/stage.h"

void kva_kv_pass_begin(struct kva_kv *kv, struct kva_kv_pass *pass)
{
    kv->resolve_stamp++;
    for (uint32_t i = 0; pass->restart && i < pass->rows_count; i++) {
        struct kva_kv_seq *seq = pass->rows[i].seq;
        seq->staged_layer[0] = seq->staged_layer[1] = KVA_NO_LAYER;
    }
    if (!kva_kv_stage_wanted(pass))
        return;
    kva_kv_stage_layer(kv, pass, pass->layer_first);
    kva_kv_stage_layer(kv, pass, pass->layer_first + 1);
}

/* Where the sequence's tokens are in this layer. */
static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    bool copied = seq->prefilled && seq->policy->coded && seq->away > 0;
    bool coded = copied && layer >= kva_kv_lowbit_skip_layers(kv, &seq->spec);
    rows->page_first = coded ? seq->away : 0;
    rows->low = coded ? seq->low : NULL;
    rows->hot = coded && seq->hots && seq->hots[layer].slots > 0 ? &seq->hots[layer] : NULL;
    size_t offset = layer * kv->shape.block_bytes;
    uint32_t end = kva_kv_pages(rows->position_first + rows->row_count);
    for (uint32_t i = rows->page_first; i < end; i++) {
        if (i >= seq->away)
            rows->blocks[i] = (unsigned char *)seq->pages[i]->device + offset;
        else if (copied) /* an exempt layer: its blocks come first in the copy */
            rows->blocks[i] = (unsigned char *)seq->low[i] + offset;
        else
            rows->blocks[i] = seq->stage[layer % 2][i];
    }
}

void kva_kv_layer_begin(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    bool any_hot = false;
    if (kva_kv_stage_wanted(pass))
        kva_event_wait(kv->staged_event[layer % 2], KVA_QUEUE_COMPUTE);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        locate(kv, &pass->rows[i], layer);
        any_hot |= pass->rows[i].hot != NULL;
    }
    if (any_hot)
        kva_kv_hot_await(kv, layer);
}

void kva_kv_layer_correct(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                          const void *q)
{
    kva_kv_hot_correct(kv, pass, layer, q);
}

struct kva_hot_now kva_kv_layer_now(const struct kva_kv *kv, const struct kva_kv_rows *rows,
                                    uint32_t layer)
{
    return kva_kv_hot_now(kv, rows->seq, layer);
}

void kva_kv_layer_choose(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    if (!kva_kv_hot_chosen(pass, true))
        return;
    kva_kv_hot_resolve(kv, pass, layer, true);
    kva_event_wait(kv->hot_events[layer], KVA_QUEUE_COMPUTE);
}

/* All of a prompt's rows have gone through the layer: its staged pages can be coded. */
static void code_prompts(struct kva_kv *kv, const struct kva_kv_pass *pass, uint32_t layer)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        struct kva_kv_seq *seq = rows->seq;
        if (seq->prefilled || !seq->policy->coded || seq->away == 0 ||
            rows->position_first + rows->row_count < seq->prompt_tokens)
            continue;
        kva_kv_lowbit_code_staged(kv, seq, layer);
        seq->low_layers = layer + 1;
    }
}

void kva_kv_layer_end(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    code_prompts(kv, pass, layer);
    if (kva_kv_stage_wanted(pass)) {
        kva_kv_stage_send(kv, pass, layer);
        kva_kv_stage_layer(kv, pass, layer + 2);
    }
    if (kva_kv_hot_chosen(pass, false))
        kva_kv_hot_resolve(kv, pass, layer, false);
}
