/* forward_logits.c - logits of the rows that need them, on the device, and what of them the host is
 * given: lists where those are enough, all of them where not. And sums of rows, for those that want
 * no logits. */
#include "engine/forward_internal.h"

/* Logits of some rows, on the device. */
static float *make_logits(struct kva_forward *fw, const void *hidden, const uint32_t *rows,
                          uint32_t count)
{
    const struct kva_model_config *c = fw->config;
    void *picked = fw->scratch[KVA_SCRATCH_LOGIT_ROWS].data;
    float *logits = fw->scratch[KVA_SCRATCH_LOGITS].data;
    fw->ops->gather(fw->device, &(struct kva_gather_args){
                                    .out = picked,
                                    .x = hidden,
                                    .rows = rows,
                                    .count = count,
                                    .dim = c->hidden_size,
                                });
    kva_forward_norm(fw, picked, picked, fw->final_norm, fw->final_norm_bias, count);
    fw->ops->linear(fw->device, &(struct kva_linear_args){
                                    .out = logits,
                                    .x = picked,
                                    .weight = fw->lm_head,
                                    .rows = count,
                                    .room = fw->params.logit_rows_max,
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
                        (float *)fw->scratch[KVA_SCRATCH_LOGITS].data + row * vocab,
                        vocab * sizeof(float));
}

void kva_forward_pick(struct kva_forward *fw, const struct kva_forward_pick *pick,
                      struct kva_forward_picked *ret)
{
    const float *logits = make_logits(fw, pick->hidden, pick->rows, pick->count);
    uint32_t lists = 0;
    for (uint32_t i = 0; i < pick->count; i++) {
        const struct kva_shortlist_request *request = &pick->requests[i];
        ret[i] = (struct kva_forward_picked){0};
        fw->brought[i] = false;
        if (request->k == 0) {
            bring_row(fw, i);
            continue;
        }
        ret[i].summary = (const struct kva_shortlist *)fw->summaries.data + lists;
        ret[i].listed =
            (const struct kva_candidate *)fw->listed.data + (size_t)lists * KVA_SHORTLIST_MAX;
        ret[i].tracked_logits = (const float *)fw->tracked_logits.data + request->tracked_first;
        fw->requests[lists] = *request;
        fw->requests[lists++].row = i;
    }
    if (lists > 0)
        fw->ops->shortlist(fw->device, &(struct kva_shortlist_args){
                                           .out = fw->summaries.data,
                                           .listed = fw->listed.data,
                                           .tracked_logits = fw->tracked_logits.data,
                                           .logits = logits,
                                           .requests = fw->requests,
                                           .tracked = pick->tracked,
                                           .count = lists,
                                           .tracked_count = pick->tracked_count,
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
    float *logits =
        fw->host_logits.data ? fw->host_logits.data : fw->scratch[KVA_SCRATCH_LOGITS].data;
    return logits + (size_t)index * fw->config->vocab_size;
}

void kva_forward_pool(struct kva_forward *fw, const struct kva_forward_pool *pool)
{
    const struct kva_model_config *c = fw->config;
    void *normed = fw->scratch[KVA_SCRATCH_NORMED].data;
    const void *rows = (const char *)pool->hidden + pool->first * c->hidden_size * fw->act_bytes;
    kva_forward_norm(fw, normed, rows, fw->final_norm, fw->final_norm_bias, pool->rows);
    fw->ops->sum_rows(fw->device,
                      &(struct kva_sum_rows_args){
                          .out = (float *)fw->pooled.data + (size_t)pool->slot * c->hidden_size,
                          .x = normed,
                          .rows = pool->rows,
                          .dim = c->hidden_size,
                          .accumulate = pool->accumulate,
                      });
}

float *kva_forward_pooled(struct kva_forward *fw, uint32_t slot)
{
    kva_device_sync(fw->device, KVA_QUEUE_COMPUTE);
    return (float *)fw->pooled.data + (size_t)slot * fw->config->hidden_size;
}
