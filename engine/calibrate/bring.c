/* bring.c - copies through memory of the host tier. */
#include "engine/calibrate/bring.h"

#include "kernels/convert.h"

#include <stdlib.h>

struct kva_bring {
    struct kva_device *device;
    enum kva_dtype act;
    bool none_needed;
    size_t hidden, q, k; /* numbers of a row */
    uint32_t rows_max;
    void *copy;     /* host tier, act [rows_max][the longest row] */
    float *numbers; /* [rows_max][the longest row] */
    float *more;    /* the same, of k */
};

bool kva_bring_needs_none(const struct kva_device *device)
{
    const struct kva_device_info *info = kva_device_get_info(device);
    return info->host_readable && info->act == KVA_F32;
}

static size_t most(const struct kva_bring *bring)
{
    return bring->rows_max * kva_max_size(bring->hidden, kva_max_size(bring->q, bring->k));
}

enum kva_status kva_bring_create(struct kva_device *device, const struct kva_model_config *config,
                                 uint32_t rows_max, struct kva_bring **ret, struct kva_err *err)
{
    struct kva_bring *bring = calloc(1, sizeof(*bring));
    if (!bring)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    *bring = (struct kva_bring){
        .device = device,
        .act = kva_device_get_info(device)->act,
        .none_needed = kva_bring_needs_none(device),
        .hidden = config->hidden_size,
        .q = (size_t)config->heads * config->head_dim,
        .k = (size_t)config->kv_heads * config->head_dim,
        .rows_max = rows_max,
    };
    enum kva_status status = KVA_OK;
    if (!bring->none_needed) {
        bring->numbers = malloc(most(bring) * sizeof(*bring->numbers));
        bring->more = malloc(most(bring) * sizeof(*bring->more));
        if (!bring->numbers || !bring->more)
            status = kva_fail(err, KVA_ENOMEM, "out of memory for %u rows", rows_max);
        else
            status = kva_device_alloc(device, KVA_MEM_HOST,
                                      most(bring) * kva_dtype_bytes(bring->act), &bring->copy, err);
    }
    if (status) {
        kva_bring_destroy(bring);
        return status;
    }
    *ret = bring;
    return KVA_OK;
}

void kva_bring_destroy(struct kva_bring *bring)
{
    if (!bring)
        return;
    if (bring->copy)
        kva_device_free(bring->device, KVA_MEM_HOST, bring->copy,
                        most(bring) * kva_dtype_bytes(bring->act));
    free(bring->numbers);
    free(bring->more);
    free(bring);
}

static const float *fetch(struct kva_bring *bring, const void *from, size_t count, float *to)
{
    kva_device_copy(bring->device, KVA_QUEUE_COMPUTE, bring->copy, from,
                    count * kva_dtype_bytes(bring->act));
    kva_device_sync(bring->device, KVA_QUEUE_COMPUTE);
    kva_f32_array(bring->copy, bring->act, (uint32_t)count, to);
    return to;
}

struct kva_forward_layer_view kva_bring_view(struct kva_bring *bring,
                                             const struct kva_forward_layer_view *view)
{
    struct kva_forward_layer_view own = *view;
    if (bring->none_needed)
        return own;
    own.hidden = own.q = own.k = NULL;
    if (view->point == KVA_POINT_QUERIES) {
        own.q = fetch(bring, view->q, view->rows * bring->q, bring->numbers);
        own.k = fetch(bring, view->k, view->rows * bring->k, bring->more);
    } else {
        own.hidden = fetch(bring, view->hidden, view->rows * bring->hidden, bring->numbers);
    }
    return own;
}
