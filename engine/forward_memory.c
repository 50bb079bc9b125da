/* forward_memory.c - the forward pass's memory: weights, scratch and descriptors, all of it there
 * from creation on. */
#include "engine/forward_internal.h"

#include <stdlib.h>

/* Scores of selecting sequences that a GPU keeps at a time: 46 of 32k tokens and 32 heads. */
#define SELECT_BYTES_MAX ((size_t)256 << 20)

/* Partial results of splits that are computed while answers of other instances are awaited: all of
 * 14 sequences of 8k tokens and 32 heads of 128. */
#define APART_BYTES_MAX ((size_t)8 << 20)

/* --- weights --------------------------------------------------------------------------------- */

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
                                  struct kva_layer_weights *w, struct kva_err *err)
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

/* --- scratch and descriptors ----------------------------------------------------------------- */

/* A GPU selects for many sequences side by side; a CPU's caches want a KV head per thread. */
static size_t select_bytes(const struct kva_forward *fw)
{
    const struct kva_device_info *info = kva_device_get_info(fw->device);
    const struct kva_model_config *c = fw->config;
    uint32_t pages = kva_kv_pages(fw->params.context_max);
    /* With partial queries (ops_sketch.h), which are no longer than queries. */
    size_t one = kva_attend_select_bytes(c->heads, c->kv_heads, pages) +
                 kva_align_up((size_t)c->heads * c->head_dim * sizeof(float), 64) + 128;
    size_t own = kva_attend_fused_bytes(c->heads / c->kv_heads, c->head_dim, pages);
    if (info->host_readable)
        return kva_max_size(one, kva_max_u32(c->kv_heads, info->threads) * own);
    size_t all = one * fw->params.sequences_max;
    return kva_max_size(one, kva_min_size(all, SELECT_BYTES_MAX));
}

/* Nothing without instances to wait for, or on a device that can only wait. */
static size_t apart_bytes(const struct kva_forward *fw)
{
    const struct kva_model_config *c = fw->config;
    if (!fw->params.kv->remote || !fw->ops->attend_apart)
        return 0;
    size_t one =
        kva_attend_apart_bytes(c->heads, c->head_dim, kva_kv_pages(fw->params.context_max));
    return kva_min_size(one * fw->params.sequences_max, APART_BYTES_MAX);
}

/* Bytes of a partial result's a, and of its m or e. */
static size_t partial_a_bytes(const struct kva_forward *fw)
{
    size_t pairs = (size_t)fw->params.rows_max * fw->config->heads;
    return kva_align_up(pairs * fw->config->head_dim * sizeof(float), 64);
}

static size_t partial_m_bytes(const struct kva_forward *fw)
{
    return kva_align_up((size_t)fw->params.rows_max * fw->config->heads * sizeof(float), 64);
}

static void cut_partials(struct kva_forward *fw)
{
    unsigned char *at = fw->scratch[KVA_SCRATCH_PARTIALS].data;
    for (int kind = 0; kind < KVA_RANGE_PARTIAL; kind++) {
        unsigned char *m = at + partial_a_bytes(fw), *e = m + partial_m_bytes(fw);
        fw->partials[kind] = (struct kva_partial){(void *)at, (void *)m, (void *)e};
        at = e + partial_m_bytes(fw);
    }
}

static enum kva_status alloc_scratch(struct kva_forward *fw, struct kva_err *err)
{
    const struct kva_model_config *c = fw->config;
    size_t rows = fw->params.rows_max;
    size_t act = fw->act_bytes;
    size_t q_dim = (size_t)c->heads * c->head_dim;
    size_t kv_dim = (size_t)c->kv_heads * c->head_dim;
    const size_t bytes[KVA_SCRATCH_COUNT] = {
        [KVA_SCRATCH_HIDDEN] = rows * c->hidden_size * act,
        [KVA_SCRATCH_NORMED] = rows * c->hidden_size * act,
        [KVA_SCRATCH_Q] = rows * q_dim * act,
        [KVA_SCRATCH_Q_ROLLED] = rows * q_dim * act,
        [KVA_SCRATCH_K] = rows * kv_dim * act,
        [KVA_SCRATCH_V] = rows * kv_dim * act,
        [KVA_SCRATCH_ATTN] = rows * q_dim * act,
        [KVA_SCRATCH_GATE] = c->gated_mlp ? rows * c->intermediate_size * act : 0,
        [KVA_SCRATCH_UP] = rows * c->intermediate_size * act,
        [KVA_SCRATCH_PARTIALS] =
            KVA_RANGE_PARTIAL * (partial_a_bytes(fw) + 2 * partial_m_bytes(fw)),
        [KVA_SCRATCH_SELECT] = select_bytes(fw),
        [KVA_SCRATCH_APART] = apart_bytes(fw),
        [KVA_SCRATCH_LOGIT_ROWS] = (size_t)fw->params.logit_rows_max * c->hidden_size * act,
        [KVA_SCRATCH_LOGITS] = (size_t)fw->params.logit_rows_max * c->vocab_size * sizeof(float),
    };
    for (int i = 0; i < KVA_SCRATCH_COUNT; i++) {
        if (bytes[i] == 0)
            continue;
        enum kva_status status =
            kva_device_alloc(fw->device, KVA_MEM_DEVICE, bytes[i], &fw->scratch[i].data, err);
        if (status)
            return status;
        fw->scratch[i].bytes = bytes[i];
    }
    cut_partials(fw);
    size_t logit_rows = fw->params.logit_rows_max;
    const struct {
        struct kva_scratch_piece *piece;
        size_t bytes;
    } host[] = {
        {&fw->summaries, logit_rows * sizeof(struct kva_shortlist)},
        {&fw->listed, logit_rows * KVA_SHORTLIST_MAX * sizeof(struct kva_candidate)},
        {&fw->tracked_logits, kva_max_size(fw->params.tracked_max, 1) * sizeof(float)},
        {&fw->pooled, (size_t)fw->params.sequences_max * c->hidden_size * sizeof(float)},
        {&fw->host_logits, fw->scratch[KVA_SCRATCH_LOGITS].bytes},
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
    fw->rolled_positions = calloc(p->rows_max, sizeof(*fw->rolled_positions));
    fw->rehearsed_rows = calloc(p->sequences_max, sizeof(*fw->rehearsed_rows));
    fw->rehearsed_positions = calloc(p->sequences_max, sizeof(*fw->rehearsed_positions));
    fw->row_numbers = calloc(p->rows_max, sizeof(*fw->row_numbers));
    fw->brought = calloc(p->logit_rows_max, sizeof(*fw->brought));
    fw->requests = calloc(p->logit_rows_max, sizeof(*fw->requests));
    fw->row_blocks = calloc(p->rows_max, sizeof(*fw->row_blocks));
    fw->blocks = calloc(fw->blocks_max, sizeof(*fw->blocks));
    fw->attend_seqs = calloc(p->sequences_max, sizeof(*fw->attend_seqs));
    fw->attend_ranges =
        calloc((size_t)p->sequences_max * KVA_KV_RANGES_MAX, sizeof(*fw->attend_ranges));
    fw->low_blocks = calloc(fw->blocks_max, sizeof(*fw->low_blocks));
    fw->low_seqs = calloc(p->sequences_max, sizeof(*fw->low_seqs));
    fw->low_rows = calloc(p->sequences_max, sizeof(*fw->low_rows));
    fw->rows_seqs = calloc(p->sequences_max, sizeof(*fw->rows_seqs));
    struct kva_select_turn *turn = &fw->turn;
    turn->low = calloc(p->sequences_max, sizeof(*turn->low));
    turn->rows = calloc(p->sequences_max, sizeof(*turn->rows));
    turn->weigh = calloc(p->sequences_max, sizeof(*turn->weigh));
    turn->choose = calloc(p->sequences_max, sizeof(*turn->choose));
    turn->selecting = calloc(p->sequences_max, sizeof(*turn->selecting));
    turn->weighed = calloc(p->sequences_max, sizeof(struct kva_kv_rows *));
    if (!fw->ids || !fw->positions || !fw->rolled_positions || !fw->row_numbers || !fw->brought ||
        !fw->rehearsed_rows || !fw->rehearsed_positions || !fw->requests || !fw->row_blocks ||
        !fw->blocks || !fw->attend_seqs || !fw->attend_ranges || !fw->low_blocks || !fw->low_seqs ||
        !fw->low_rows || !fw->rows_seqs || !turn->low || !turn->rows || !turn->weigh ||
        !turn->choose || !turn->selecting || !turn->weighed)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u rows of %u sequences", p->rows_max,
                        p->sequences_max);
    for (uint32_t i = 0; i < p->rows_max; i++)
        fw->row_numbers[i] = i;
    return KVA_OK;
}

/* --- creation -------------------------------------------------------------------------------- */

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
    for (int i = 0; i < KVA_SCRATCH_COUNT; i++) {
        if (fw->scratch[i].data)
            kva_device_free(fw->device, KVA_MEM_DEVICE, fw->scratch[i].data, fw->scratch[i].bytes);
    }
    kva_device_free(fw->device, KVA_MEM_HOST, fw->host_logits.data, fw->host_logits.bytes);
    kva_device_free(fw->device, KVA_MEM_HOST, fw->summaries.data, fw->summaries.bytes);
    kva_device_free(fw->device, KVA_MEM_HOST, fw->listed.data, fw->listed.bytes);
    kva_device_free(fw->device, KVA_MEM_HOST, fw->tracked_logits.data, fw->tracked_logits.bytes);
    kva_device_free(fw->device, KVA_MEM_HOST, fw->pooled.data, fw->pooled.bytes);
    free(fw->brought);
    free(fw->requests);
    free(fw->layers);
    free(fw->ids);
    free(fw->positions);
    free(fw->rolled_positions);
    free(fw->rehearsed_rows);
    free(fw->rehearsed_positions);
    free(fw->row_numbers);
    free(fw->row_blocks);
    free(fw->blocks);
    free(fw->attend_seqs);
    free(fw->attend_ranges);
    free(fw->low_blocks);
    free(fw->low_seqs);
    free(fw->low_rows);
    free(fw->rows_seqs);
    free(fw->turn.low);
    free(fw->turn.rows);
    free(fw->turn.weigh);
    free(fw->turn.choose);
    free(fw->turn.selecting);
    free(fw->turn.weighed);
    free(fw);
}

void *kva_forward_hidden(struct kva_forward *fw)
{
    return fw->scratch[KVA_SCRATCH_HIDDEN].data;
}

size_t kva_forward_scratch_bytes(const struct kva_forward *fw)
{
    size_t bytes = 0;
    for (int i = 0; i < KVA_SCRATCH_COUNT; i++)
        bytes += fw->scratch[i].bytes;
    return bytes;
}

size_t kva_forward_row_bytes(const struct kva_model_config *c, size_t act_bytes)
{
    const size_t q_dim = (size_t)c->heads * c->head_dim, kv_dim = (size_t)c->kv_heads * c->head_dim;
    const size_t mlp = (c->gated_mlp ? 2 : 1) * (size_t)c->intermediate_size;
    const size_t partial = (q_dim + 2 * c->heads) * sizeof(float);
    return (2 * c->hidden_size + 3 * q_dim + 2 * kv_dim + mlp) * act_bytes +
           KVA_RANGE_PARTIAL * partial;
}
