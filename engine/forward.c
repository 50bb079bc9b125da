/* forward.c - the rows of a call through the layers. */
#include "engine/forward_internal.h"

#include "base/clock.h"

/* What the pass's sequences have dropped. */
static void describe_gap(const struct kva_kv_seq *seq, struct kva_kv_rows *rows)
{
    const struct kva_kv_policy *policy = seq->policy;
    const bool drops = kva_kv_drops(&seq->spec);
    rows->rolled = seq->prefilled && policy->rolled ? policy->rolled(seq) : 0;
    rows->page_first = seq->prefilled && drops ? seq->offloaded - kva_kv_stored(seq) : 0;
}

/* Token ids and positions of all rows, and where each sequence's block table lies. Returns the
 * number of rows. */
static uint32_t describe_rows(struct kva_forward *fw, const struct kva_kv_pass *pass)
{
    uint32_t row = 0;
    size_t block = 0;
    fw->rolls = false;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        rows->row_first = row;
        rows->blocks = fw->blocks + block;
        describe_gap(rows->seq, rows);
        fw->rolls |= rows->rolled > 0;
        block += kva_kv_pages(rows->position_first + rows->row_count) - rows->page_first;
        for (uint32_t j = 0; j < rows->row_count; j++, row++) {
            fw->ids[row] = rows->ids[j];
            fw->positions[row] = rows->position_first + j;
            fw->rolled_positions[row] = fw->positions[row] - rows->rolled;
        }
    }
    return row;
}

static void embed(struct kva_forward *fw, void *hidden, uint32_t rows)
{
    fw->ops->embed(fw->device, &(struct kva_embed_args){
                                   .out = hidden,
                                   .table = fw->embed,
                                   .positions_table = fw->positions_table,
                                   .ids = fw->ids,
                                   .positions = fw->rolled_positions,
                                   .rows = rows,
                                   .scale = fw->config->embed_scale,
                               });
}

void kva_forward_norm(struct kva_forward *fw, void *out, const void *x, struct kva_weight weight,
                      struct kva_weight bias, uint32_t rows)
{
    fw->ops->norm(fw->device, &(struct kva_norm_args){
                                  .out = out,
                                  .x = x,
                                  .weight = weight,
                                  .bias = bias,
                                  .rows = rows,
                                  .dim = fw->config->hidden_size,
                                  .kind = fw->config->norm,
                                  .eps = fw->config->norm_eps,
                                  .weight_offset = fw->config->norm_weight_offset,
                              });
}

/* Of rows that lie one behind the other, in scratch of rows_max. */
static struct kva_linear_args product_of(const struct kva_forward *fw, void *out, const void *x,
                                         struct kva_weight weight, struct kva_weight bias,
                                         uint32_t rows)
{
    return (struct kva_linear_args){
        .out = out,
        .x = x,
        .weight = weight,
        .bias = bias,
        .rows = rows,
        .room = fw->params.rows_max,
        .x_stride = weight.cols,
        .out_stride = weight.rows,
    };
}

/* hidden += the product: the residual stream. */
static void add_product(struct kva_forward *fw, void *hidden, const void *x,
                        struct kva_weight weight, struct kva_weight bias, uint32_t rows)
{
    struct kva_linear_args args = product_of(fw, hidden, x, weight, bias, rows);
    args.accumulate = true;
    fw->ops->linear(fw->device, &args);
}

/* Q, K and V of what KVA_SCRATCH_NORMED holds. */
static void project(struct kva_forward *fw, const struct kva_layer_weights *w, uint32_t rows)
{
    const struct kva_scratch_piece *s = fw->scratch;
    const void *normed = s[KVA_SCRATCH_NORMED].data;
    const struct kva_linear_args products[] = {
        product_of(fw, s[KVA_SCRATCH_Q].data, normed, w->q, w->q_bias, rows),
        product_of(fw, s[KVA_SCRATCH_K].data, normed, w->k, w->k_bias, rows),
        product_of(fw, s[KVA_SCRATCH_V].data, normed, w->v, w->v_bias, rows),
    };
    fw->ops->linear_group(fw->device,
                          &(struct kva_linear_group_args){products, KVA_COUNT_OF(products)});
}

/* QK norm of one of q and k, if the model has it. */
static void norm_heads(struct kva_forward *fw, void *x, struct kva_weight norm_weight,
                       uint32_t rows, uint32_t heads)
{
    const struct kva_model_config *c = fw->config;
    if (norm_weight.data)
        fw->ops->norm(fw->device, &(struct kva_norm_args){
                                      .out = x,
                                      .x = x,
                                      .weight = norm_weight,
                                      .rows = rows * heads,
                                      .dim = c->head_dim,
                                      .kind = KVA_NORM_RMS,
                                      .eps = c->norm_eps,
                                      .weight_offset = c->norm_weight_offset,
                                  });
}

/* Rotary embedding of queries, and of k with them unless it is NULL, if the model has it. */
static void rotate_heads(struct kva_forward *fw, void *q, void *k, const uint32_t *positions,
                         uint32_t rows)
{
    const struct kva_model_config *c = fw->config;
    if (c->rope.rotary_dim > 0)
        fw->ops->rope(fw->device, &(struct kva_rope_args){
                                      .x = q,
                                      .positions = positions,
                                      .inv_freq = c->rope.inv_freq,
                                      .rows = rows,
                                      .heads = c->heads,
                                      .head_dim = c->head_dim,
                                      .rotary_dim = c->rope.rotary_dim,
                                      .x_stride = c->heads * c->head_dim,
                                      .factor = c->rope.factor,
                                      .second = k,
                                      .second_heads = c->kv_heads,
                                      .second_stride = c->kv_heads * c->head_dim,
                                  });
}

/* QK norm, then rotary embedding. Where sequences roll, the queries are also there as the rows
 * before the gap are to see them. */
static void position_rows(struct kva_forward *fw, const struct kva_layer_weights *w, uint32_t rows)
{
    const struct kva_model_config *c = fw->config;
    void *q = fw->scratch[KVA_SCRATCH_Q].data, *k = fw->scratch[KVA_SCRATCH_K].data;
    norm_heads(fw, q, w->q_norm, rows, c->heads);
    norm_heads(fw, k, w->k_norm, rows, c->kv_heads);
    if (fw->rolls) {
        void *rolled = fw->scratch[KVA_SCRATCH_Q_ROLLED].data;
        /* A copy that a graph of the step can have. */
        fw->ops->gather(fw->device, &(struct kva_gather_args){.out = rolled,
                                                              .x = q,
                                                              .rows = fw->row_numbers,
                                                              .count = rows,
                                                              .dim = c->heads * c->head_dim});
        rotate_heads(fw, rolled, NULL, fw->rolled_positions, rows);
    }
    rotate_heads(fw, q, k, fw->positions, rows);
}

/* The rows' K and V go to their pages, wherever the policies want those now. */
static void append(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t rows)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *kv_rows = &pass->rows[i];
        for (uint32_t j = 0; j < kv_rows->row_count; j++, row++)
            fw->row_blocks[row] =
                (void *)(uintptr_t)*kva_kv_block_at(kv_rows, fw->positions[row] / KVA_PAGE_TOKENS);
    }
    fw->ops->kv_append(fw->device, &(struct kva_kv_append_args){
                                       .k = fw->scratch[KVA_SCRATCH_K].data,
                                       .v = fw->scratch[KVA_SCRATCH_V].data,
                                       .blocks = fw->row_blocks,
                                       .positions = fw->positions,
                                       .rows = rows,
                                       .kv_heads = fw->config->kv_heads,
                                       .head_dim = fw->config->head_dim,
                                       .kv_dtype = fw->params.kv->shape.dtype,
                                   });
}

/* hidden += MLP of what KVA_SCRATCH_NORMED holds. */
static void mlp(struct kva_forward *fw, const struct kva_layer_weights *w, void *hidden,
                uint32_t rows)
{
    const struct kva_model_config *c = fw->config;
    const void *normed = fw->scratch[KVA_SCRATCH_NORMED].data;
    void *gate = fw->scratch[KVA_SCRATCH_GATE].data;
    void *up = fw->scratch[KVA_SCRATCH_UP].data;
    const struct kva_linear_args product = product_of(fw, up, normed, w->up, w->up_bias, rows);
    if (c->gated_mlp) {
        fw->ops->linear_glu(
            fw->device,
            &(struct kva_linear_glu_args){product_of(fw, gate, normed, w->gate, w->gate_bias, rows),
                                          product, c->activation});
    } else {
        fw->ops->linear(fw->device, &product);
        fw->ops->glu(fw->device, &(struct kva_glu_args){
                                     .out = up,
                                     .gate = up,
                                     .rows = rows,
                                     .dim = c->intermediate_size,
                                     .activation = c->activation,
                                 });
    }
    add_product(fw, hidden, c->gated_mlp ? gate : up, w->down, w->down_bias, rows);
}

/* Shows a point of the layer to an observer that wants to see it. */
static void show_layer(const struct kva_forward *fw, const struct kva_forward_call *call,
                       const struct kva_kv_pass *pass, struct kva_forward_layer_view view)
{
    const struct kva_forward_observer *observer = call->observer;
    const bool has_queries = view.point == KVA_POINT_QUERIES || view.point == KVA_POINT_ATTENDED;
    if (!observer || !observer->layer)
        return;
    view.sequences = pass->rows;
    view.sequence_count = pass->rows_count;
    view.hidden = call->hidden;
    view.q = has_queries ? fw->scratch[KVA_SCRATCH_Q].data : NULL;
    view.k = has_queries ? fw->scratch[KVA_SCRATCH_K].data : NULL;
    observer->layer(observer->opaque, &view);
}

void kva_forward_queries(struct kva_forward *fw, void *q, const void *normed,
                         const struct kva_layer_weights *w, const uint32_t *positions,
                         uint32_t rows)
{
    const struct kva_linear_args product = product_of(fw, q, normed, w->q, w->q_bias, rows);
    fw->ops->linear(fw->device, &product);
    norm_heads(fw, q, w->q_norm, rows, fw->config->heads);
    rotate_heads(fw, q, NULL, positions, rows);
}

static void run_layer(struct kva_forward *fw, const struct kva_forward_call *call,
                      struct kva_kv_pass *pass, uint32_t layer, uint32_t rows)
{
    const struct kva_layer_weights *w = &fw->layers[layer];
    const struct kva_model_config *c = fw->config;
    void *normed = fw->scratch[KVA_SCRATCH_NORMED].data;
    struct kva_forward_layer_view view = {KVA_POINT_INPUT, .layer = layer, .rows = rows};
    show_layer(fw, call, pass, view);
    kva_kv_layer_input(fw->params.kv, pass, layer, call->hidden);
    if (layer + 1 < pass->layer_first + pass->layer_count)
        kva_forward_rehearse(fw, pass, layer + 1, call->hidden);
    kva_forward_norm(fw, normed, call->hidden, w->attn_norm, w->attn_norm_bias, rows);
    project(fw, w, rows);
    if (c->parallel_residual)
        kva_forward_norm(fw, normed, call->hidden, w->mlp_norm, w->mlp_norm_bias, rows);
    position_rows(fw, w, rows);
    view.point = KVA_POINT_QUERIES;
    show_layer(fw, call, pass, view);
    kva_kv_layer_begin(fw->params.kv, pass, layer);
    append(fw, pass, rows);
    kva_forward_attend(fw, pass, call->observer, layer, rows);
    kva_kv_layer_end(fw->params.kv, pass, layer);
    add_product(fw, call->hidden, fw->scratch[KVA_SCRATCH_ATTN].data, w->o, w->o_bias, rows);
    view.point = KVA_POINT_ATTENDED;
    show_layer(fw, call, pass, view);
    if (!c->parallel_residual)
        kva_forward_norm(fw, normed, call->hidden, w->mlp_norm, w->mlp_norm_bias, rows);
    mlp(fw, w, call->hidden, rows);
    kva_kv_join_aside(fw->params.kv);
    view.point = KVA_POINT_OUTPUT;
    show_layer(fw, call, pass, view);
}

void kva_forward_run(struct kva_forward *fw, const struct kva_forward_call *call)
{
    struct kva_kv_pass pass = call->pass;
    kva_kv_pass_begin(fw->params.kv, &pass);
    uint32_t rows = describe_rows(fw, &pass);
    if (pass.layer_first == 0)
        embed(fw, call->hidden, rows);
    for (uint32_t i = 0; i < pass.layer_count; i++) {
        run_layer(fw, call, &pass, pass.layer_first + i, rows);
        kva_device_step_part(fw->device);
    }
}

void kva_forward_fill(struct kva_forward *fw, const struct kva_forward_call *call, const void *k,
                      const void *v)
{
    struct kva_kv_pass pass = call->pass;
    uint32_t rows = describe_rows(fw, &pass);
    size_t bytes = (size_t)rows * fw->config->kv_heads * fw->config->head_dim * fw->act_bytes;
    kva_device_copy(fw->device, KVA_QUEUE_COMPUTE, fw->scratch[KVA_SCRATCH_K].data, k, bytes);
    kva_device_copy(fw->device, KVA_QUEUE_COMPUTE, fw->scratch[KVA_SCRATCH_V].data, v, bytes);
    kva_kv_pass_begin(fw->params.kv, &pass);
    for (uint32_t layer = pass.layer_first; layer < pass.layer_first + pass.layer_count; layer++) {
        kva_kv_layer_begin(fw->params.kv, &pass, layer);
        append(fw, &pass, rows);
        kva_kv_layer_end(fw->params.kv, &pass, layer);
    }
}
