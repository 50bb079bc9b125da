/* planes.h - the part of a model's query weights that a choice of rotation planes needs (InfiniGen
 * 4.3: partial query weights).
 *
 * Rotary embedding turns the two columns of a plane into each other and leaves the others alone, so
 * a skew that is to commute with it can only choose whole planes. Of the rows of W_q those of the
 * chosen columns are enough then, and rehearsing a layer reads them instead of all:
 *
 *     columns of a head    [first of plane 0, 1, ...] [second of plane 0, 1, ...]
 *
 * Planes are those of a KV head, with the largest energy by the model's skew; columns behind the
 * rotated ones go in pairs that are turned by nothing. Made once, for one number of columns.
 *
 * Thread rule: engine thread; immutable. */
#ifndef KVA_ENGINE_PLANES_H
#define KVA_ENGINE_PLANES_H

#include "engine/model/model.h"
#include "kernels/device.h"

struct kva_planes {
    uint32_t columns;          /* of a head: kva_kv_plane_columns */
    struct kva_weight *q;      /* [layers]: [heads * columns] rows */
    struct kva_weight *biases; /* [layers], or absent */
    float *inv_freq;           /* [layers][kv_heads][columns / 2]; host */
    uint32_t *lists;           /* [layers][kv_heads][head_dim], of which `columns` count; host */
    const uint32_t *placed;    /* the same, where the device has it */
    unsigned char *numbers;    /* of q and biases */
};

/* Memory that the weights of `percent` of the columns take on the device; any thread. */
uint64_t kva_planes_bytes(const struct kva_model *model, uint32_t percent);

/* Of a model with a skew. The planes outlive the device's use of them. Fails: KVA_EUNSUPPORTED (no
 * skew, norms of heads, query weights of few bits, a factor on some columns only), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_planes_create(struct kva_device *device,
                                                 const struct kva_model *model, uint32_t percent,
                                                 struct kva_planes **ret, struct kva_err *err);

/* NULL is allowed. */
void kva_planes_destroy(struct kva_planes *planes);

/* Frequencies of a KV head's planes. */
const float *kva_planes_inv_freq(const struct kva_planes *planes,
                                 const struct kva_model_config *config, uint32_t layer,
                                 uint32_t kv_head);

#endif
