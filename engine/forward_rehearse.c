/* forward_rehearse.c - queries of a layer, made before the layer in front of it has run: its norm
 * and query weights on the residual stream as it is now, at the rows' own positions (InfiniGen
 * 4.3). Only for the last rows of sequences whose policies ask, which are gathered for it. */
#include "engine/forward_internal.h"
#include "engine/planes.h"

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

/* Whether any of the rows that are rehearsed goes by planes, or, not `planes`, by whole queries. */
static bool any_by(const struct kva_kv_pass *pass, bool planes)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (rows->rehearsed != KVA_NO_ROW && (rows->seq->spec.skew == KVA_SKEW_PLANES) == planes)
            return true;
    }
    return false;
}

/* Queries of the chosen planes alone: a KV head's are turned as fast as its planes are. */
static void rehearse_planes(struct kva_forward *fw, unsigned char *q, const void *normed,
                            uint32_t layer, uint32_t count)
{
    const struct kva_planes *planes = fw->params.planes;
    const struct kva_model_config *c = fw->config;
    const uint32_t group = c->heads / c->kv_heads;
    const struct kva_weight weight = planes->q[layer];
    fw->ops->linear(fw->device, &(struct kva_linear_args){.out = q,
                                                          .x = normed,
                                                          .weight = weight,
                                                          .bias = planes->biases[layer],
                                                          .rows = count,
                                                          .room = fw->params.rows_max,
                                                          .x_stride = weight.cols,
                                                          .out_stride = weight.rows});
    for (uint32_t head = 0; head < c->kv_heads && c->rope.rotary_dim > 0; head++)
        fw->ops->rope(fw->device,
                      &(struct kva_rope_args){
                          .x = q + (size_t)head * group * planes->columns * fw->act_bytes,
                          .positions = fw->rehearsed_positions,
                          .inv_freq = kva_planes_inv_freq(planes, c, layer, head),
                          .rows = count,
                          .heads = group,
                          .head_dim = planes->columns,
                          .rotary_dim = planes->columns,
                          .x_stride = weight.rows,
                          .factor = c->rope.factor,
                      });
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
    void *q_planes = fw->scratch[KVA_SCRATCH_ATTN].data;
    if (any_by(pass, false))
        kva_forward_queries(fw, q, normed, w, fw->rehearsed_positions, count);
    if (any_by(pass, true))
        rehearse_planes(fw, q_planes, normed, layer, count);
    const struct kva_kv_rehearsal rehearsal = {
        .layer = layer,
        .window = c->layer_window[layer],
        .q = q,
        .q_planes = q_planes,
        .scale = c->attend_scale,
        .scratch = fw->scratch[KVA_SCRATCH_SELECT].data,
        .scratch_bytes = fw->scratch[KVA_SCRATCH_SELECT].bytes,
    };
    kva_kv_layer_rehearsed(fw->params.kv, pass, &rehearsal);
}
