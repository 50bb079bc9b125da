#include "engine/forward.h"

#include "base/clock.h"
#include "engine/kv/lowbit.h"

#include <stdlib.h>

/* Scores of selecting sequences that a GPU keeps at a time: 64 of 32k tokens and 32 heads. */
#define SELECT_BYTES_MAX ((size_t)256 << 20)

struct layer_weights {
    struct kva_weight attn_norm, attn_norm_bias;
    struct kva_weight q, q_bias, k, k_bias, v, v_bias, o, o_bias;
    struct kva_weight q_norm, k_norm;
    struct kva_weight mlp_norm, mlp_norm_bias;
    struct kva_weight gate, gate_bias, up, up_bias, down, down_bias;
};

struct scratch_piece {
    void *data;
    size_t bytes;
};

enum scratch_name {
    SCRATCH_HIDDEN, /* [rows, hidden] */
    SCRATCH_NORMED, /* [rows, hidden] */
    SCRATCH_Q,      /* [rows, heads * head_dim] */
    SCRATCH_K,      /* [rows, kv_heads * head_dim] */
    SCRATCH_V,      /* the same */
    SCRATCH_ATTN,   /* [rows, heads * head_dim] */
    SCRATCH_GATE,   /* [rows, intermediate]; without a gate, nothing */
    SCRATCH_UP,     /* [rows, intermediate] */
    SCRATCH_PARTIAL_A,
    SCRATCH_PARTIAL_M,
    SCRATCH_PARTIAL_E,
    SCRATCH_LOWBIT_A, /* the partial result over low-bit pages */
    SCRATCH_LOWBIT_M,
    SCRATCH_LOWBIT_E,
    SCRATCH_SELECT,     /* scores of one sequence at a time; on a GPU of many */
    SCRATCH_LOGIT_ROWS, /* [logit_rows, hidden] */
    SCRATCH_LOGITS,     /* fp32 [logit_rows, vocab] */
    SCRATCH_COUNT,
};

struct kva_forward {
    struct kva_forward_params params;
    const struct kva_model_config *config;
    const struct kva_ops *ops;
    struct kva_device *device;
    size_t act_bytes;

    struct kva_weight embed, positions_table, lm_head, final_norm, final_norm_bias;
    struct layer_weights *layers;

    struct scratch_piece scratch[SCRATCH_COUNT];
    struct scratch_piece host_logits; /* where the host cannot read the device's */
    bool *brought;                    /* [logit_rows]: the row is there */
    /* Of the host tier: what is known of the rows of a pick. */
    struct scratch_piece summaries;      /* kva_shortlist [logit_rows] */
    struct scratch_piece listed;         /* kva_candidate [logit_rows][KVA_SHORTLIST_MAX] */
    struct scratch_piece watched_logits; /* float [watched_max] */
    struct kva_shortlist_want *wants;    /* [logit_rows]: of rows with a list */

    /* Descriptors of the current call, on the host. */
    uint32_t *ids;       /* [rows_max] */
    uint32_t *positions; /* [rows_max] */
    void **row_blocks;   /* [rows_max] */
    const void **blocks; /* [blocks_max]: the sequences' tables, one after the other */
    size_t blocks_max;
    struct kva_attend_seq *attend_seqs;     /* [sequences_max] */
    struct kva_attend_range *attend_ranges; /* [sequences_max] */
    const void **low_blocks;                /* [blocks_max] */
    struct kva_lowbit_seq *low_seqs;        /* [sequences_max] */
    struct kva_hot_now *low_now;            /* [sequences_max] */
    struct kva_kv_rows *kv_rows;            /* [sequences_max] */
};

/* --- creation -------------------------------------------------------------------------------- */

static enum kva_status load_weight(struct kva_forward *fw, const struct kva_tensor *tensor,
                                   struct kva_weight *weight, struct kva_err *err)
{
    if (!tensor->data) {
        *weight = (struct kva_weight){0};
        return KVA_OK;
    }
    return kva_device_weight(fw->device, tensor->data, tensor->dtype, tensor->rows, tensor->cols,
                             weight, err);
}

static enum kva_status load_layer(struct kva_forward *fw, const struct kva_layer_tensors *t,
                                  struct layer_weights *w, struct kva_err *err)
{
    const struct {
        const struct kva_tensor *tensor;
        struct kva_weight *weight;
    } pairs[] = {
        {&t->attn_norm, &w->attn_norm},
        {&t->attn_norm_bias, &w->attn_norm_bias},
        {&t->q, &w->q},
        {&t->q_bias, &w->q_bias},
        {&t->k, &w->k},
        {&t->k_bias, &w->k_bias},
        {&t->v, &w->v},
        {&t->v_bias, &w->v_bias},
        {&t->o, &w->o},
        {&t->o_bias, &w->o_bias},
        {&t->q_norm, &w->q_norm},
        {&t->k_norm, &w->k_norm},
        {&t->mlp_norm, &w->mlp_norm},
        {&t->mlp_norm_bias, &w->mlp_norm_bias},
        {&t->gate, &w->gate},
        {&t->gate_bias, &w->gate_bias},
        {&t->up, &w->up},
        {&t->up_bias, &w->up_bias},
        {&t->down, &w->down},
        {&t->down_bias, &w->down_bias},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(pairs); i++) {
        enum kva_status status = load_weight(fw, pairs[i].tensor, pairs[i].weight, err);
        if (status)
            return status;
    }
    return KVA_OK;
}

static enum kva_status load_weights(struct kva_forward *fw, struct kva_err *err)
{
    const struct kva_model *model = fw->params.model;
    enum kva_status status = load_weight(fw, &model->embed, &fw->embed, err);
    if (!status)
        status = load_weight(fw, &model->positions, &fw->positions_table, err);
    if (!status)
        status = load_weight(fw, &model->lm_head, &fw->lm_head, err);
    if (!status)
        status = load_weight(fw, &model->final_norm, &fw->final_norm, err);
    if (!status)
        status = load_weight(fw, &model->final_norm_bias, &fw->final_norm_bias, err);
    fw->layers = calloc(fw->config->layer_count, sizeof(*fw->layers));
    if (!fw->layers)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u layers", fw->config->layer_count);
    for (uint32_t i = 0; i < fw->config->layer_count && !status; i++)
        status = load_layer(fw, &model->layers[i], &fw->layers[i], err);
    return status;
}

/* A GPU selects for many sequences side by side; a CPU's caches want a KV head per thread. */
static size_t select_bytes(const struct kva_forward *fw)
{
    const struct kva_device_info *info = kva_device_get_info(fw->device);
    const struct kva_model_config *c = fw->config;
    uint32_t pages = kva_kv_pages(fw->params.context_max);
    if (info->host_readable)
        return kva_max_u32(c->kv_heads, info->threads) *
               kva_attend_lowbit_now_bytes(c->heads / c->kv_heads, c->head_dim, pages);
    size_t one = kva_attend_lowbit_scratch_bytes(c->heads, pages);
    size_t all = one * fw->params.sequences_max;
    return kva_max_size(one, kva_min_size(all, SELECT_BYTES_MAX));
}

static enum kva_status alloc_scratch(struct kva_forward *fw, struct kva_err *err)
{
    const struct kva_model_config *c = fw->config;
    size_t rows = fw->params.rows_max;
    size_t act = fw->act_bytes;
    size_t q_dim = (size_t)c->heads * c->head_dim;
    size_t kv_dim = (size_t)c->kv_heads * c->head_dim;
    const size_t bytes[SCRATCH_COUNT] = {
        [SCRATCH_HIDDEN] = rows * c->hidden_size * act,
        [SCRATCH_NORMED] = rows * c->hidden_size * act,
        [SCRATCH_Q] = rows * q_dim * act,
        [SCRATCH_K] = rows * kv_dim * act,
        [SCRATCH_V] = rows * kv_dim * act,
        [SCRATCH_ATTN] = rows * q_dim * act,
        [SCRATCH_GATE] = c->gated_mlp ? rows * c->intermediate_size * act : 0,
        [SCRATCH_UP] = rows * c->intermediate_size * act,
        [SCRATCH_PARTIAL_A] = rows * q_dim * sizeof(float),
        [SCRATCH_PARTIAL_M] = rows * c->heads * sizeof(float),
        [SCRATCH_PARTIAL_E] = rows * c->heads * sizeof(float),
        [SCRATCH_LOWBIT_A] = rows * q_dim * sizeof(float),
        [SCRATCH_LOWBIT_M] = rows * c->heads * sizeof(float),
        [SCRATCH_LOWBIT_E] = rows * c->heads * sizeof(float),
        [SCRATCH_SELECT] = select_bytes(fw),
        [SCRATCH_LOGIT_ROWS] = (size_t)fw->params.logit_rows_max * c->hidden_size * act,
        [SCRATCH_LOGITS] = (size_t)fw->params.logit_rows_max * c->vocab_size * sizeof(float),
    };
    for (int i = 0; i < SCRATCH_COUNT; i++) {
        if (bytes[i] == 0)
            continue;
        enum kva_status status =
            kva_device_alloc(fw->device, KVA_MEM_DEVICE, bytes[i], &fw->scratch[i].data, err);
        if (status)
            return status;
        fw->scratch[i].bytes = bytes[i];
    }
    size_t logit_rows = fw->params.logit_rows_max;
    const struct {
        struct scratch_piece *piece;
        size_t bytes;
    } host[] = {
        {&fw->summaries, logit_rows * sizeof(struct kva_shortlist)},
        {&fw->listed, logit_rows * KVA_SHORTLIST_MAX * sizeof(struct kva_candidate)},
        {&fw->watched_logits, kva_max_size(fw->params.watched_max, 1) * sizeof(float)},
        {&fw->host_logits, fw->scratch[SCRATCH_LOGITS].bytes},
    };
    bool readable = kva_device_get_info(fw->device)->host_readable;
    for (size_t i = 0; i < KVA_COUNT_OF(host) - readable; i++) {
        enum kva_status status =
            kva_device_alloc(fw->device, KVA_MEM_HOST, host[i].bytes, &host[i].piece->data, err);
        if (status)
            return status;
        host[i].piece->bytes = host[i].bytes;
    }
    return KVA_OK;
}

static enum kva_status alloc_descriptors(struct kva_forward *fw, struct kva_err *err)
{
    const struct kva_forward_params *p = &fw->params;
    fw->blocks_max = (size_t)p->sequences_max * kva_kv_pages(p->context_max);
    fw->ids = calloc(p->rows_max, sizeof(*fw->ids));
    fw->positions = calloc(p->rows_max, sizeof(*fw->positions));
    fw->brought = calloc(p->logit_rows_max, sizeof(*fw->brought));
    fw->wants = calloc(p->logit_rows_max, sizeof(*fw->wants));
    fw->row_blocks = calloc(p->rows_max, sizeof(*fw->row_blocks));
    fw->blocks = calloc(fw->blocks_max, sizeof(*fw->blocks));
    fw->attend_seqs = calloc(p->sequences_max, sizeof(*fw->attend_seqs));
    fw->attend_ranges = calloc(p->sequences_max, sizeof(*fw->attend_ranges));
    fw->low_blocks = calloc(fw->blocks_max, sizeof(*fw->low_blocks));
    fw->low_seqs = calloc(p->sequences_max, sizeof(*fw->low_seqs));
    fw->low_now = calloc(p->sequences_max, sizeof(*fw->low_now));
    fw->kv_rows = calloc(p->sequences_max, sizeof(*fw->kv_rows));
    if (!fw->ids || !fw->positions || !fw->brought || !fw->wants || !fw->row_blocks ||
        !fw->blocks || !fw->attend_seqs || !fw->attend_ranges || !fw->low_blocks || !fw->low_seqs ||
        !fw->low_now || !fw->kv_rows)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u rows of %u sequences", p->rows_max,
                        p->sequences_max);
    return KVA_OK;
}

enum kva_status kva_forward_create(const struct kva_forward_params *params,
                                   struct kva_forward **ret, struct kva_err *err)
{
    struct kva_forward *fw = calloc(1, sizeof(*fw));
    if (!fw)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the forward pass");
    fw->params = *params;
    fw->config = &params->model->config;
    fw->device = params->device;
    fw->ops = kva_device_ops(params->device);
    fw->act_bytes = kva_dtype_bytes(kva_device_get_info(params->device)->act);
    enum kva_status status = load_weights(fw, err);
    if (!status)
        status = alloc_scratch(fw, err);
    if (!status)
        status = alloc_descriptors(fw, err);
    if (status) {
        kva_forward_destroy(fw);
        return status;
    }
    *ret = fw;
    return KVA_OK;
}

void kva_forward_destroy(struct kva_forward *fw)
{
    if (!fw)
        return;
    for (int i = 0; i < SCRATCH_COUNT; i++) {
        if (fw->scratch[i].data)
            kva_device_free(fw->device, KVA_MEM_DEVICE, fw->scratch[i].data, fw->scratch[i].bytes);
    }
    kva_device_free(fw->device, KVA_MEM_HOST, fw->host_logits.data, fw->host_logits.bytes);
    kva_device_free(fw->device, KVA_MEM_HOST, fw->summaries.data, fw->summaries.bytes);
    kva_device_free(fw->device, KVA_MEM_HOST, fw->listed.data, fw->listed.bytes);
    kva_device_free(fw->device, KVA_MEM_HOST, fw->watched_logits.data, fw->watched_logits.bytes);
    free(fw->brought);
    free(fw->wants);
    free(fw->layers);
    free(fw->ids);
    free(fw->positions);
    free(fw->row_blocks);
    free(fw->blocks);
    free(fw->attend_seqs);
    free(fw->attend_ranges);
    free(fw->low_blocks);
    free(fw->low_seqs);
    free(fw->low_now);
    free(fw->kv_rows);
    free(fw);
}

void *kva_forward_hidden(struct kva_forward *fw)
{
    return fw->scratch[SCRATCH_HIDDEN].data;
}

size_t kva_forward_scratch_bytes(const struct kva_forward *fw)
{
    size_t bytes = 0;
    for (int i = 0; i < SCRATCH_COUNT; i++)
        bytes += fw->scratch[i].bytes;
    return bytes;
}

/* --- a call ---------------------------------------------------------------------------------- */

/* Token ids and positions of all rows, and where each sequence's block table lies. Returns the
 * number of rows. */
static uint32_t describe_rows(struct kva_forward *fw, const struct kva_forward_call *call)
{
    uint32_t row = 0;
    size_t block = 0;
    for (uint32_t i = 0; i < call->rows_count; i++) {
        const struct kva_forward_rows *rows = &call->rows[i];
        uint32_t end = rows->position_first + rows->row_count;
        fw->attend_seqs[i] = (struct kva_attend_seq){
            .row_first = row,
            .row_count = rows->row_count,
            .position_first = rows->position_first,
            .range_first = i,
            .range_count = 1,
        };
        fw->kv_rows[i] = (struct kva_kv_rows){
            .seq = rows->seq,
            .position_first = rows->position_first,
            .row_count = rows->row_count,
            .select_row = rows->select_row,
            .choose_now = rows->choose_now,
            .choose_next = rows->choose_next,
            .blocks = fw->blocks + block,
        };
        block += kva_kv_pages(end);
        for (uint32_t j = 0; j < rows->row_count; j++, row++) {
            fw->ids[row] = rows->ids[j];
            fw->positions[row] = rows->position_first + j;
        }
    }
    return row;
}

void kva_forward_embed(struct kva_forward *fw, const struct kva_forward_call *call)
{
    uint32_t rows = describe_rows(fw, call);
    fw->ops->embed(fw->device, &(struct kva_embed_args){
                                   .out = call->hidden,
                                   .table = fw->embed,
                                   .positions_table = fw->positions_table,
                                   .ids = fw->ids,
                                   .positions = fw->positions,
                                   .rows = rows,
                                   .scale = fw->config->embed_scale,
                               });
}

static void norm(struct kva_forward *fw, void *out, const void *x, struct kva_weight weight,
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

static void linear(struct kva_forward *fw, void *out, const void *x, struct kva_weight weight,
                   struct kva_weight bias, uint32_t rows, bool accumulate)
{
    fw->ops->linear(fw->device, &(struct kva_linear_args){
                                    .out = out,
                                    .x = x,
                                    .weight = weight,
                                    .bias = bias,
                                    .rows = rows,
                                    .x_stride = weight.cols,
                                    .out_stride = weight.rows,
                                    .accumulate = accumulate,
                                });
}

/* QK norm, then rotary embedding, of one of q and k. */
static void position_heads(struct kva_forward *fw, void *x, struct kva_weight norm_weight,
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
    if (c->rope.rotary_dim > 0)
        fw->ops->rope(fw->device, &(struct kva_rope_args){
                                      .x = x,
                                      .positions = fw->positions,
                                      .inv_freq = c->rope.inv_freq,
                                      .rows = rows,
                                      .heads = heads,
                                      .head_dim = c->head_dim,
                                      .rotary_dim = c->rope.rotary_dim,
                                      .x_stride = heads * c->head_dim,
                                      .factor = c->rope.factor,
                                  });
}

/* The rows' K and V go to their pages, wherever the policies want those now. */
static void append(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t rows)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *kv_rows = &pass->rows[i];
        for (uint32_t j = 0; j < kv_rows->row_count; j++, row++)
            fw->row_blocks[row] =
                (void *)(uintptr_t)kv_rows->blocks[fw->positions[row] / KVA_PAGE_TOKENS];
    }
    fw->ops->kv_append(fw->device, &(struct kva_kv_append_args){
                                       .k = fw->scratch[SCRATCH_K].data,
                                       .v = fw->scratch[SCRATCH_V].data,
                                       .blocks = fw->row_blocks,
                                       .positions = fw->positions,
                                       .rows = rows,
                                       .kv_heads = fw->config->kv_heads,
                                       .head_dim = fw->config->head_dim,
                                       .kv_dtype = fw->params.kv->shape.dtype,
                                   });
}

/* The partial result of some rows, from the named pieces of scratch. */
static struct kva_partial partial_at(const struct kva_forward *fw, enum scratch_name a)
{
    return (struct kva_partial){
        .a = fw->scratch[a].data,
        .m = fw->scratch[a + 1].data,
        .e = fw->scratch[a + 2].data,
    };
}

/* Attention over what is in 16-bit blocks. */
static void attend_blocks(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer)
{
    const struct kva_model_config *c = fw->config;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        uint32_t first = rows->page_first * KVA_PAGE_TOKENS;
        fw->attend_ranges[i] = (struct kva_attend_range){
            .format = KVA_KV_16BIT,
            .token_first = first,
            .token_count = rows->position_first + rows->row_count - first,
            .block_first = (uint32_t)(rows->blocks - fw->blocks) + rows->page_first,
        };
    }
    fw->ops->attend(fw->device, &(struct kva_attend_args){
                                    .q = fw->scratch[SCRATCH_Q].data,
                                    .out = partial_at(fw, SCRATCH_PARTIAL_A),
                                    .seqs = fw->attend_seqs,
                                    .ranges = fw->attend_ranges,
                                    .blocks = fw->blocks,
                                    .seq_count = pass->rows_count,
                                    .q_stride = c->heads * c->head_dim,
                                    .heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .head_dim = c->head_dim,
                                    .window = c->layer_window[layer],
                                    .kv_dtype = fw->params.kv->shape.dtype,
                                    .scale = c->attend_scale,
                                });
}

/* Whether low-bit pages under both choices can be read by one call. */
static bool same_format(const struct kva_kv_choice *a, const struct kva_kv_choice *b)
{
    return a->bits == b->bits && a->group == b->group && a->exempt == b->exempt;
}

/* The two times at which low-bit pages are read in a layer. */
enum lowbit_time {
    TO_CHOOSE, /* by rows that choose before they attend: only the choice is wanted */
    TO_ATTEND, /* by all rows; some choose for the next step along the way */
};

/* Whether the rows' sequence has rows fetched for this layer. */
static bool fetches_rows(const struct kva_kv_rows *rows)
{
    return rows->hot && rows->hot->k > 0;
}

static bool takes_part(const struct kva_kv_rows *rows, enum lowbit_time time)
{
    return rows->low &&
           (time == TO_ATTEND || (rows->choose_now && !rows->at_once && fetches_rows(rows)));
}

/* Whether choosing, fetching and attending are one for these rows: where the device reaches the
 * host tier by itself, and nothing is wanted in between. */
static bool acts_at_once(const struct kva_forward *fw, const struct kva_kv_rows *rows,
                         const struct kva_forward_observer *observer)
{
    return kva_device_get_info(fw->device)->host_readable && !observer && rows->choose_now &&
           !rows->choose_next && fetches_rows(rows);
}

/* Whether an entry before `index` has low-bit pages of the same format. */
static bool format_seen(const struct kva_kv_pass *pass, uint32_t index, enum lowbit_time time)
{
    for (uint32_t i = 0; i < index; i++) {
        if (takes_part(&pass->rows[i], time) &&
            same_format(&pass->rows[i].seq->choice, &pass->rows[index].seq->choice))
            return true;
    }
    return false;
}

/* Describe the sequences whose low-bit pages have the format of entry `like`; with `others`, those
 * without low-bit pages too. Returns their number. */
static uint32_t list_lowbit(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer,
                            uint32_t like, bool others, enum lowbit_time time)
{
    uint32_t count = 0, block = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        bool chooses = time == TO_CHOOSE ? rows->choose_now : rows->choose_next || rows->at_once;
        bool listed = takes_part(rows, time) &&
                      same_format(&rows->seq->choice, &pass->rows[like].seq->choice);
        if (!listed && (rows->low || !others))
            continue;
        if (rows->at_once)
            fw->low_now[count] = kva_kv_layer_now(fw->params.kv, rows, layer);
        fw->low_seqs[count] = (struct kva_lowbit_seq){
            .row_first = fw->attend_seqs[i].row_first,
            .row_count = rows->row_count,
            .position_first = rows->position_first,
            .block_first = block,
            .page_count = rows->page_first,
            .hot = rows->hot,
            .select_row = chooses && fetches_rows(rows) ? rows->select_row : KVA_NO_ROW,
            .now = rows->at_once ? &fw->low_now[count] : NULL,
        };
        count++;
        for (uint32_t j = 0; j < rows->page_first; j++)
            fw->low_blocks[block++] = rows->low[j];
    }
    return count;
}

/* Attention of the first `count` of low_seqs, all in the format of `choice`. */
static void call_lowbit(struct kva_forward *fw, const struct kva_kv_choice *choice, uint32_t count,
                        uint32_t layer)
{
    const struct kva_model_config *c = fw->config;
    const struct kva_kv *kv = fw->params.kv;
    const struct kva_partial rest = partial_at(fw, SCRATCH_PARTIAL_A);
    fw->ops->attend_lowbit(fw->device,
                           &(struct kva_attend_lowbit_args){
                               .q = fw->scratch[SCRATCH_Q].data,
                               .out = partial_at(fw, SCRATCH_LOWBIT_A),
                               .rest = &rest,
                               .seqs = fw->low_seqs,
                               .blocks = fw->low_blocks,
                               .block_offset_bytes = kva_kv_lowbit_offset(kv, choice, layer),
                               .scratch = fw->scratch[SCRATCH_SELECT].data,
                               .scratch_bytes = fw->scratch[SCRATCH_SELECT].bytes,
                               .seq_count = count,
                               .q_stride = c->heads * c->head_dim,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_dim = c->head_dim,
                               .window = c->layer_window[layer],
                               .kv_dtype = kv->shape.dtype,
                               .format = kva_kv_lowbit_format(choice),
                               .scale = c->attend_scale,
                           });
}

/* Attention over low-bit pages and hot rows, one call per format. TO_ATTEND gives every row of the
 * pass a result. False: no sequence takes part. */
static bool attend_lowbit(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer,
                          enum lowbit_time time)
{
    bool any = false;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (!takes_part(&pass->rows[i], time) || format_seen(pass, i, time))
            continue;
        uint32_t count = list_lowbit(fw, pass, layer, i, time == TO_ATTEND && !any, time);
        any = true;
        call_lowbit(fw, &pass->rows[i].seq->choice, count, layer);
    }
    return any;
}

/* The rows that a sequence's own query chooses, into the observer's memory. What attention writes
 * on the way is overwritten by TO_ATTEND. */
static const uint32_t *observe_choice(struct kva_forward *fw, uint32_t index,
                                      const struct kva_kv_rows *rows, uint32_t *into,
                                      uint32_t layer)
{
    if (!fetches_rows(rows))
        return NULL;
    if (rows->choose_now) /* it has just done so */
        return rows->hot->chosen;
    struct kva_hot hot = *rows->hot;
    hot.chosen = into;
    fw->low_seqs[0] = (struct kva_lowbit_seq){
        .row_first = fw->attend_seqs[index].row_first,
        .row_count = 1,
        .position_first = rows->position_first,
        .page_count = rows->page_first,
        .hot = &hot,
        .select_row = 0,
    };
    for (uint32_t i = 0; i < rows->page_first; i++)
        fw->low_blocks[i] = rows->low[i];
    call_lowbit(fw, &rows->seq->choice, 1, layer);
    return into;
}

static void observe(struct kva_forward *fw, const struct kva_forward_observer *observer,
                    const struct kva_kv_pass *pass, uint32_t layer)
{
    const struct kva_model_config *c = fw->config;
    size_t row_bytes = (size_t)c->heads * c->head_dim * fw->act_bytes;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (!rows->seq->prefilled)
            continue;
        const struct kva_forward_view view = {
            .layer = layer,
            .rows = rows,
            .q = (const unsigned char *)fw->scratch[SCRATCH_Q].data +
                 fw->attend_seqs[i].row_first * row_bytes,
            .choice = observe_choice(fw, i, rows, observer->choice, layer),
        };
        observer->attends(observer->opaque, &view);
    }
}

static void attend(struct kva_forward *fw, struct kva_kv_pass *pass,
                   const struct kva_forward_observer *observer, uint32_t layer, uint32_t rows)
{
    const struct kva_model_config *c = fw->config;
    attend_blocks(fw, pass, layer);
    kva_kv_layer_correct(fw->params.kv, pass, layer, fw->scratch[SCRATCH_Q].data);
    for (uint32_t i = 0; i < pass->rows_count; i++)
        pass->rows[i].at_once = acts_at_once(fw, &pass->rows[i], observer);
    if (attend_lowbit(fw, pass, layer, TO_CHOOSE))
        kva_kv_layer_choose(fw->params.kv, pass, layer);
    if (observer)
        observe(fw, observer, pass, layer);
    bool lowbit = attend_lowbit(fw, pass, layer, TO_ATTEND);
    const struct kva_partial partials[2] = {partial_at(fw, SCRATCH_PARTIAL_A),
                                            partial_at(fw, SCRATCH_LOWBIT_A)};
    fw->ops->merge(fw->device, &(struct kva_merge_args){
                                   .out = fw->scratch[SCRATCH_ATTN].data,
                                   .partials = partials,
                                   .partial_count = lowbit ? 2 : 1,
                                   .rows = rows,
                                   .heads = c->heads,
                                   .head_dim = c->head_dim,
                               });
}

/* hidden += MLP of what SCRATCH_NORMED holds. */
static void mlp(struct kva_forward *fw, const struct layer_weights *w, void *hidden, uint32_t rows)
{
    const struct kva_model_config *c = fw->config;
    const void *normed = fw->scratch[SCRATCH_NORMED].data;
    void *gate = fw->scratch[SCRATCH_GATE].data;
    void *up = fw->scratch[SCRATCH_UP].data;
    linear(fw, up, normed, w->up, w->up_bias, rows, false);
    if (c->gated_mlp)
        linear(fw, gate, normed, w->gate, w->gate_bias, rows, false);
    void *activated = c->gated_mlp ? gate : up;
    fw->ops->glu(fw->device, &(struct kva_glu_args){
                                 .out = activated,
                                 .gate = activated,
                                 .up = c->gated_mlp ? up : NULL,
                                 .rows = rows,
                                 .dim = c->intermediate_size,
                                 .activation = c->activation,
                             });
    linear(fw, hidden, activated, w->down, w->down_bias, rows, true);
}

static void run_layer(struct kva_forward *fw, const struct kva_forward_call *call,
                      struct kva_kv_pass *pass, uint32_t layer, uint32_t rows)
{
    const struct layer_weights *w = &fw->layers[layer];
    const struct kva_model_config *c = fw->config;
    void *normed = fw->scratch[SCRATCH_NORMED].data;
    void *q = fw->scratch[SCRATCH_Q].data;
    void *k = fw->scratch[SCRATCH_K].data;
    norm(fw, normed, call->hidden, w->attn_norm, w->attn_norm_bias, rows);
    linear(fw, q, normed, w->q, w->q_bias, rows, false);
    linear(fw, k, normed, w->k, w->k_bias, rows, false);
    linear(fw, fw->scratch[SCRATCH_V].data, normed, w->v, w->v_bias, rows, false);
    if (c->parallel_residual)
        norm(fw, normed, call->hidden, w->mlp_norm, w->mlp_norm_bias, rows);
    position_heads(fw, q, w->q_norm, rows, c->heads);
    position_heads(fw, k, w->k_norm, rows, c->kv_heads);
    kva_kv_layer_begin(fw->params.kv, pass, layer);
    append(fw, pass, rows);
    attend(fw, pass, call->observer, layer, rows);
    kva_kv_layer_end(fw->params.kv, pass, layer);
    linear(fw, call->hidden, fw->scratch[SCRATCH_ATTN].data, w->o, w->o_bias, rows, true);
    if (!c->parallel_residual)
        norm(fw, normed, call->hidden, w->mlp_norm, w->mlp_norm_bias, rows);
    mlp(fw, w, call->hidden, rows);
}

void kva_forward_layers(struct kva_forward *fw, const struct kva_forward_call *call)
{
    uint32_t rows = describe_rows(fw, call);
    struct kva_kv_pass pass = {
        .rows = fw->kv_rows,
        .rows_count = call->rows_count,
        .layer_first = call->layer_first,
        .layer_count = call->layer_count,
        .restart = call->restart,
    };
    kva_kv_pass_begin(fw->params.kv, &pass);
    for (uint32_t i = 0; i < call->layer_count; i++)
        run_layer(fw, call, &pass, call->layer_first + i, rows);
}

uint64_t kva_forward_time_rows(struct kva_forward *fw, uint32_t rows)
{
    const struct layer_weights *w = &fw->layers[0];
    void *normed = fw->scratch[SCRATCH_NORMED].data;
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 4; i++) {
        uint64_t start_ns = kva_time_ns();
        linear(fw, fw->scratch[SCRATCH_Q].data, normed, w->q, w->q_bias, rows, false);
        linear(fw, fw->scratch[SCRATCH_K].data, normed, w->k, w->k_bias, rows, false);
        linear(fw, fw->scratch[SCRATCH_V].data, normed, w->v, w->v_bias, rows, false);
        linear(fw, normed, fw->scratch[SCRATCH_ATTN].data, w->o, w->o_bias, rows, false);
        mlp(fw, w, fw->scratch[SCRATCH_HIDDEN].data, rows);
        kva_device_sync(fw->device, KVA_QUEUE_COMPUTE);
        uint64_t took_ns = kva_time_ns() - start_ns;
        best = took_ns < best ? took_ns : best;
    }
    return best;
}

void kva_forward_fill(struct kva_forward *fw, const struct kva_forward_call *call, const void *k,
                      const void *v)
{
    uint32_t rows = describe_rows(fw, call);
    size_t bytes = (size_t)rows * fw->config->kv_heads * fw->config->head_dim * fw->act_bytes;
    struct kva_kv_pass pass = {
        .rows = fw->kv_rows,
        .rows_count = call->rows_count,
        .layer_first = call->layer_first,
        .layer_count = call->layer_count,
        .restart = call->restart,
    };
    kva_device_copy(fw->device, KVA_QUEUE_COMPUTE, fw->scratch[SCRATCH_K].data, k, bytes);
    kva_device_copy(fw->device, KVA_QUEUE_COMPUTE, fw->scratch[SCRATCH_V].data, v, bytes);
    kva_kv_pass_begin(fw->params.kv, &pass);
    for (uint32_t layer = call->layer_first; layer < call->layer_first + call->layer_count;
         layer++) {
        kva_kv_layer_begin(fw->params.kv, &pass, layer);
        append(fw, &pass, rows);
        kva_kv_layer_end(fw->params.kv, &pass, layer);
    }
}

/* Logits of some rows, on the device. */
static float *make_logits(struct kva_forward *fw, const void *hidden, const uint32_t *rows,
                          uint32_t count)
{
    const struct kva_model_config *c = fw->config;
    void *picked = fw->scratch[SCRATCH_LOGIT_ROWS].data;
    float *logits = fw->scratch[SCRATCH_LOGITS].data;
    fw->ops->gather(fw->device, &(struct kva_gather_args){
                                    .out = picked,
                                    .x = hidden,
                                    .rows = rows,
                                    .count = count,
                                    .dim = c->hidden_size,
                                });
    norm(fw, picked, picked, fw->final_norm, fw->final_norm_bias, count);
    fw->ops->linear(fw->device, &(struct kva_linear_args){
                                    .out = logits,
                                    .x = picked,
                                    .weight = fw->lm_head,
                                    .rows = count,
                                    .x_stride = c->hidden_size,
                                    .out_stride = c->vocab_size,
                                    .out_f32 = true,
                                });
    return logits;
}

/* A row of the last pick's logits, to where the host reads it once the queue is empty. */
static void bring_row(struct kva_forward *fw, uint32_t row)
{
    size_t vocab = fw->config->vocab_size;
    fw->brought[row] = true;
    if (fw->host_logits.data)
        kva_device_copy(fw->device, KVA_QUEUE_COMPUTE, (float *)fw->host_logits.data + row * vocab,
                        (float *)fw->scratch[SCRATCH_LOGITS].data + row * vocab,
                        vocab * sizeof(float));
}

void kva_forward_pick(struct kva_forward *fw, const struct kva_forward_pick *pick,
                      struct kva_forward_picked *ret)
{
    const float *logits = make_logits(fw, pick->hidden, pick->rows, pick->count);
    uint32_t lists = 0;
    for (uint32_t i = 0; i < pick->count; i++) {
        const struct kva_shortlist_want *want = &pick->wants[i];
        ret[i] = (struct kva_forward_picked){0};
        fw->brought[i] = false;
        if (want->best == 0) {
            bring_row(fw, i);
            continue;
        }
        ret[i].summary = (const struct kva_shortlist *)fw->summaries.data + lists;
        ret[i].listed =
            (const struct kva_candidate *)fw->listed.data + (size_t)lists * KVA_SHORTLIST_MAX;
        ret[i].watched_logits = (const float *)fw->watched_logits.data + want->watch_first;
        fw->wants[lists] = *want;
        fw->wants[lists++].row = i;
    }
    if (lists > 0)
        fw->ops->shortlist(fw->device, &(struct kva_shortlist_args){
                                           .out = fw->summaries.data,
                                           .listed = fw->listed.data,
                                           .watched_logits = fw->watched_logits.data,
                                           .logits = logits,
                                           .wants = fw->wants,
                                           .watched = pick->watched,
                                           .count = lists,
                                           .watched_count = pick->watched_count,
                                           .vocab = fw->config->vocab_size,
                                       });
    kva_device_sync(fw->device, KVA_QUEUE_COMPUTE);
}

float *kva_forward_logits(struct kva_forward *fw, uint32_t index)
{
    if (!fw->brought[index]) {
        bring_row(fw, index);
        if (fw->host_logits.data)
            kva_device_sync(fw->device, KVA_QUEUE_COMPUTE);
    }
    float *logits = fw->host_logits.data ? fw->host_logits.data : fw->scratch[SCRATCH_LOGITS].data;
    return logits + (size_t)index * fw->config->vocab_size;
}
