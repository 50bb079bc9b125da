/* forward_rehearse.c - queries of a layer, made before the layer in front of it has run: its norm
 * and query weights on the residual stream as it is now, at the rows' own positions (InfiniGen
 * 4.3). Only for the last rows of sequences whose policies ask, which are gathered for it. */
#include "engine/forward_internal.h"

/* The rows that are rehearsed: their numbers in the pass, and positions. Returns how many. */
static uint32_t list_rows(struct kva_forward *fw, struct kva_kv_pass *pass, uint32_t layer)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        rows->rehearsed = KVA_NO_ROW;
        if (!kva_kv_layer_rehearses(fw->params.kv, rows, layer))
            continue;
        uint32_t row = rows->row_first + rows->row_count - 1;
        fw->rehearsed_rows[count] = row;
        fw->rehearsed_positions[count] = fw->positions[row];
        rows->rehearsed = count++;
    }
    return count;
}

void kva_forward_rehearse(struct kva_forward *fw, struct kva_kv_pass *pass, uint32_t layer,
                          const void *hidden)
{
    const struct kva_model_config *c = fw->config;
    const struct kva_layer_weights *w = &fw->layers[layer];
    void *normed = fw->scratch[KVA_SCRATCH_NORMED].data, *q = fw->scratch[KVA_SCRATCH_Q].data;
    uint32_t count = list_rows(fw, pass, layer);
    if (count == 0)
        return;
    fw->ops->gather(fw->device, &(struct kva_gather_args){.out = normed,
                                                          .x = hidden,
                                                          .rows = fw->rehearsed_rows,
                                                          .count = count,
                                                          .dim = c->hidden_size});
    kva_forward_norm(fw, normed, normed, w->attn_norm, w->attn_norm_bias, count);
    kva_forward_queries(fw, q, normed, w, fw->rehearsed_positions, count);
    const struct kva_kv_rehearsal rehearsal = {
        .layer = layer,
        .window = c->layer_window[layer],
        .q = q,
        .scale = c->attend_scale,
        .scratch = fw->scratch[KVA_SCRATCH_SELECT].data,
        .scratch_bytes = fw->scratch[KVA_SCRATCH_SELECT].bytes,
    };
    kva_kv_layer_rehearsed(fw->params.kv, pass, &rehearsal);
}
