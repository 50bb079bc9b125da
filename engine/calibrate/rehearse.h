/* rehearse.h - a layer's queries made of what the layer before it gets: its norm, its query matrix,
 * the norm of heads and rotary embedding, on the residual stream one layer early (InfiniGen, 4.3).
 *
 * This is for looking, where the host reads the device's memory. Thread rule: engine thread. */
#ifndef KVA_ENGINE_CALIBRATE_REHEARSE_H
#define KVA_ENGINE_CALIBRATE_REHEARSE_H

#include "engine/model/model.h"
#include "kernels/device.h"

struct kva_rehearsal;

/* Up to `rows_max` rows at a time. Fails: KVA_ENOMEM, KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_rehearsal_create(struct kva_device *device,
                                                    const struct kva_model *model,
                                                    uint32_t rows_max, struct kva_rehearsal **ret,
                                                    struct kva_err *err);

/* NULL is allowed. */
void kva_rehearsal_destroy(struct kva_rehearsal *rehearsal);

/* out fp32 [rows][heads][head_dim]: queries of `layer` for rows [rows][hidden_size] of a residual
 * stream at `positions`. */
void kva_rehearse(struct kva_rehearsal *rehearsal, uint32_t layer, const float *hidden,
                  const uint32_t *positions, uint32_t rows, float *out);

#endif
