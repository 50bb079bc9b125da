/* rehearse.c - the operators of the forward pass, on rows of their own. */
#include "engine/calibrate/rehearse.h"

#include "engine/calibrate/bring.h"
#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

struct layer {
    struct kva_weight norm, norm_bias, q, q_bias, q_norm;
};

struct kva_rehearsal {
    struct kva_device *device;
    const struct kva_model_config *config;
    struct layer *layers; /* [layer_count] */
    uint32_t rows_max;
    float *normed; /* [rows_max][hidden_size] */
    float *q;      /* [rows_max][heads][head_dim] */
};

static size_t normed_bytes(const struct kva_rehearsal *r)
{
    return (size_t)r->rows_max * r->config->hidden_size * sizeof(float);
}

static size_t q_bytes(const struct kva_rehearsal *r)
{
    return (size_t)r->rows_max * r->config->heads * r->config->head_dim * sizeof(float);
}

static enum kva_status refer(struct kva_rehearsal *r, const struct kva_tensor *tensor,
                             struct kva_weight *ret, struct kva_err *err)
{
    if (!tensor->data)
        return KVA_OK;
    return kva_device_weight(r->device, tensor->data, tensor->dtype, tensor->rows, tensor->cols,
                             ret, err);
}

static enum kva_status refer_layers(struct kva_rehearsal *r, const struct kva_model *model,
                                    struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; i < r->config->layer_count && !status; i++) {
        const struct kva_layer_tensors *t = &model->layers[i];
        const struct kva_tensor *const from[] = {&t->attn_norm, &t->attn_norm_bias, &t->q,
                                                 &t->q_bias, &t->q_norm};
        struct kva_weight *const to[] = {&r->layers[i].norm, &r->layers[i].norm_bias,
                                         &r->layers[i].q, &r->layers[i].q_bias,
                                         &r->layers[i].q_norm};
        for (size_t j = 0; j < KVA_COUNT_OF(from) && !status; j++)
            status = refer(r, from[j], to[j], err);
    }
    return status;
}

enum kva_status kva_rehearsal_create(struct kva_device *device, const struct kva_model *model,
                                     uint32_t rows_max, struct kva_rehearsal **ret,
                                     struct kva_err *err)
{
    if (!kva_bring_needs_none(device))
        return kva_fail(err, KVA_EUNSUPPORTED, "the host cannot read the memory of %s",
                        kva_device_get_info(device)->name);
    struct kva_rehearsal *r = calloc(1, sizeof(*r));
    if (!r)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    *r = (struct kva_rehearsal){.device = device, .config = &model->config, .rows_max = rows_max};
    void *normed = NULL, *q = NULL;
    r->layers = calloc(model->config.layer_count, sizeof(*r->layers));
    enum kva_status status =
        r->layers ? refer_layers(r, model, err) : kva_fail(err, KVA_ENOMEM, "out of memory");
    if (!status)
        status = kva_device_alloc(device, KVA_MEM_DEVICE, normed_bytes(r), &normed, err);
    r->normed = normed;
    if (!status)
        status = kva_device_alloc(device, KVA_MEM_DEVICE, q_bytes(r), &q, err);
    r->q = q;
    if (status) {
        kva_rehearsal_destroy(r);
        return status;
    }
    *ret = r;
    return KVA_OK;
}

void kva_rehearsal_destroy(struct kva_rehearsal *r)
{
    if (!r)
        return;
    if (r->normed)
        kva_device_free(r->device, KVA_MEM_DEVICE, r->normed, normed_bytes(r));
    if (r->q)
        kva_device_free(r->device, KVA_MEM_DEVICE, r->q, q_bytes(r));
    free(r->layers);
    free(r);
}

static void normalise(struct kva_rehearsal *r, const struct layer *w, uint32_t rows)
{
    const struct kva_model_config *c = r->config;
    kva_device_ops(r->device)->norm(
        r->device, &(struct kva_norm_args){.out = r->normed,
                                           .x = r->normed,
                                           .weight = w->norm,
                                           .bias = w->norm_bias,
                                           .rows = rows,
                                           .dim = c->hidden_size,
                                           .kind = c->norm,
                                           .eps = c->norm_eps,
                                           .weight_offset = c->norm_weight_offset});
}

static void normalise_heads(struct kva_rehearsal *r, const struct layer *w, uint32_t rows)
{
    const struct kva_model_config *c = r->config;
    if (!w->q_norm.data)
        return;
    kva_device_ops(r->device)->norm(
        r->device, &(struct kva_norm_args){.out = r->q,
                                           .x = r->q,
                                           .weight = w->q_norm,
                                           .rows = rows * c->heads,
                                           .dim = c->head_dim,
                                           .kind = KVA_NORM_RMS,
                                           .eps = c->norm_eps,
                                           .weight_offset = c->norm_weight_offset});
}

static void rotate(struct kva_rehearsal *r, const uint32_t *positions, uint32_t rows)
{
    const struct kva_model_config *c = r->config;
    if (c->rope.rotary_dim == 0)
        return;
    kva_device_ops(r->device)->rope(r->device,
                                    &(struct kva_rope_args){.x = r->q,
                                                            .positions = positions,
                                                            .inv_freq = c->rope.inv_freq,
                                                            .rows = rows,
                                                            .heads = c->heads,
                                                            .head_dim = c->head_dim,
                                                            .rotary_dim = c->rope.rotary_dim,
                                                            .x_stride = c->heads * c->head_dim,
                                                            .factor = c->rope.factor});
}

void kva_rehearse(struct kva_rehearsal *r, uint32_t layer, const float *hidden,
                  const uint32_t *positions, uint32_t rows, float *out)
{
    const struct layer *w = &r->layers[layer];
    const struct kva_model_config *c = r->config;
    memcpy(r->normed, hidden, (size_t)rows * c->hidden_size * sizeof(float));
    normalise(r, w, rows);
    kva_device_ops(r->device)->linear(
        r->device, &(struct kva_linear_args){.out = r->q,
                                             .x = r->normed,
                                             .weight = w->q,
                                             .bias = w->q_bias,
                                             .rows = rows,
                                             .x_stride = c->hidden_size,
                                             .out_stride = c->heads * c->head_dim});
    normalise_heads(r, w, rows);
    rotate(r, positions, rows);
    memcpy(out, r->q, (size_t)rows * c->heads * c->head_dim * sizeof(float));
}
