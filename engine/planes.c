/* planes.c - rows of query weights, gathered by planes. */
#include "engine/planes.h"

#include "engine/kv/kv.h"
#include "engine/model/skew.h"

#include <stdlib.h>
#include <string.h>

static uint32_t *list_of(const struct kva_planes *planes, const struct kva_model_config *c,
                         uint32_t layer, uint32_t kv_head)
{
    return planes->lists + ((size_t)layer * c->kv_heads + kv_head) * c->head_dim;
}

const float *kva_planes_inv_freq(const struct kva_planes *planes, const struct kva_model_config *c,
                                 uint32_t layer, uint32_t kv_head)
{
    return planes->inv_freq + ((size_t)layer * c->kv_heads + kv_head) * (planes->columns / 2);
}

/* First columns of all planes, then the second ones, and how fast each is turned. */
static void choose(struct kva_planes *planes, const struct kva_model *model, uint32_t layer,
                   uint32_t kv_head)
{
    const struct kva_model_config *c = &model->config;
    const uint32_t count = planes->columns / 2;
    uint32_t *list = list_of(planes, c, layer, kv_head);
    float *inv_freq =
        planes->inv_freq + ((size_t)layer * c->kv_heads + kv_head) * (planes->columns / 2);
    kva_skew_planes(model->skew, c->rope.rotary_dim, layer, kv_head, list, count, list + count);
    for (uint32_t i = 0; i < count; i++)
        inv_freq[i] = list[i] < c->rope.rotary_dim / 2 ? c->rope.inv_freq[list[i]] : 0;
}

/* Rows of `from` by the planes of their heads. */
static void gather(const struct kva_planes *planes, const struct kva_model_config *c,
                   uint32_t layer, const struct kva_tensor *from, size_t row_bytes,
                   unsigned char *to)
{
    for (uint32_t head = 0; head < c->heads; head++) {
        const uint32_t *list = list_of(planes, c, layer, head / (c->heads / c->kv_heads));
        for (uint32_t i = 0; i < planes->columns; i++, to += row_bytes)
            memcpy(to,
                   (const unsigned char *)from->data +
                       ((size_t)head * c->head_dim + list[i]) * row_bytes,
                   row_bytes);
    }
}

static size_t layer_bytes(const struct kva_model *model, uint32_t columns, uint32_t layer)
{
    const struct kva_layer_tensors *t = &model->layers[layer];
    const size_t rows = (size_t)model->config.heads * columns;
    const size_t q = rows * t->q.cols * kva_dtype_bytes(t->q.dtype);
    return kva_align_up(q, 64) +
           (t->q_bias.data ? kva_align_up(rows * kva_dtype_bytes(t->q_bias.dtype), 64) : 0);
}

static size_t all_bytes(const struct kva_model *model, uint32_t columns)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < model->config.layer_count; i++)
        bytes += layer_bytes(model, columns, i);
    return bytes;
}

static enum kva_status fill_layer(struct kva_planes *planes, struct kva_device *device,
                                  const struct kva_model *model, uint32_t layer, unsigned char *at,
                                  struct kva_err *err)
{
    const struct kva_model_config *c = &model->config;
    const struct kva_layer_tensors *t = &model->layers[layer];
    const uint32_t rows = c->heads * planes->columns;
    const size_t row_bytes = t->q.cols * kva_dtype_bytes(t->q.dtype);
    for (uint32_t head = 0; head < c->kv_heads; head++)
        choose(planes, model, layer, head);
    gather(planes, c, layer, &t->q, row_bytes, at);
    enum kva_status status =
        kva_device_weight(device, at, t->q.dtype, rows, t->q.cols, &planes->q[layer], err);
    if (status || !t->q_bias.data)
        return status;
    at += kva_align_up(rows * row_bytes, 64);
    gather(planes, c, layer, &t->q_bias, kva_dtype_bytes(t->q_bias.dtype), at);
    return kva_device_weight(device, at, t->q_bias.dtype, 1, rows, &planes->biases[layer], err);
}

static enum kva_status fill(struct kva_planes *planes, struct kva_device *device,
                            const struct kva_model *model, struct kva_err *err)
{
    const struct kva_model_config *c = &model->config;
    const uint32_t heads = c->layer_count * c->kv_heads;
    struct kva_weight lists;
    const size_t bytes = all_bytes(model, planes->columns);
    size_t at = 0;
    planes->q = calloc(c->layer_count, sizeof(*planes->q));
    planes->biases = calloc(c->layer_count, sizeof(*planes->biases));
    planes->inv_freq = calloc((size_t)heads * planes->columns / 2, sizeof(float));
    planes->lists = calloc((size_t)heads * c->head_dim, sizeof(uint32_t));
    planes->numbers = malloc(bytes);
    if (!planes->q || !planes->biases || !planes->inv_freq || !planes->lists || !planes->numbers)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %zu bytes of query weights", bytes);
    for (uint32_t i = 0; i < c->layer_count; i++) {
        enum kva_status status = fill_layer(planes, device, model, i, planes->numbers + at, err);
        if (status)
            return status;
        at += layer_bytes(model, planes->columns, i);
    }
    /* Numbers of 32 bits keep theirs. */
    enum kva_status status =
        kva_device_weight(device, planes->lists, KVA_F32, 1, heads * c->head_dim, &lists, err);
    planes->placed = status ? NULL : lists.data;
    return status;
}

static enum kva_status check(const struct kva_model *model, struct kva_err *err)
{
    const struct kva_model_config *c = &model->config;
    const struct kva_layer_tensors *first = &model->layers[0];
    const char *why = NULL;
    if (!model->skew)
        why = "the model has no skew, which says which planes matter ('kvahead skew')";
    else if (first->q_norm.data)
        why = "the model has norms of heads, for which a part of a query is not enough";
    else if (c->rope.rotary_dim > 0 && c->rope.rotary_dim < c->head_dim && c->rope.factor != 1)
        why = "the model scales some of the columns only";
    for (uint32_t i = 0; i < c->layer_count && !why; i++) {
        if (kva_dtype_is_packed(model->layers[i].q.dtype))
            why = "its query weights are of few bits, of which rows are not apart (--weights bf16)";
    }
    return why ? kva_fail(err, KVA_EUNSUPPORTED, "no rotation planes: %s", why) : KVA_OK;
}

uint64_t kva_planes_bytes(const struct kva_model *model, uint32_t percent)
{
    struct kva_err err;
    if (percent == 0 || check(model, &err))
        return 0;
    return all_bytes(model, kva_kv_plane_columns(model->config.head_dim, percent));
}

enum kva_status kva_planes_create(struct kva_device *device, const struct kva_model *model,
                                  uint32_t percent, struct kva_planes **ret, struct kva_err *err)
{
    enum kva_status status = check(model, err);
    if (status)
        return status;
    struct kva_planes *planes = calloc(1, sizeof(*planes));
    if (!planes)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    planes->columns = kva_kv_plane_columns(model->config.head_dim, percent);
    status = fill(planes, device, model, err);
    if (status) {
        kva_planes_destroy(planes);
        return status;
    }
    *ret = planes;
    return KVA_OK;
}

void kva_planes_destroy(struct kva_planes *planes)
{
    if (!planes)
        return;
    free(planes->q);
    free(planes->biases);
    free(planes->inv_freq);
    free(planes->lists);
    free(planes->numbers);
    free(planes);
}
