/* bring.h - what a forward pass shows (forward.h), as fp32 where the host can read it: as it is on
 * the CPU device, else copied from the device, which is waited for.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_CALIBRATE_BRING_H
#define KVA_ENGINE_CALIBRATE_BRING_H

#include "engine/forward.h"
#include "kernels/device.h"

struct kva_bring;

/* Whether operators may be given the host's memory and the host may read the device's. */
bool kva_bring_needs_none(const struct kva_device *device);

/* For passes of up to `rows_max` rows. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_bring_create(struct kva_device *device,
                                                const struct kva_model_config *config,
                                                uint32_t rows_max, struct kva_bring **ret,
                                                struct kva_err *err);

/* NULL is allowed. */
void kva_bring_destroy(struct kva_bring *bring);

/* The view with numbers that the host can read until the next call: hidden, or at QUERIES q and k
 * alone. */
struct kva_forward_layer_view kva_bring_view(struct kva_bring *bring,
                                             const struct kva_forward_layer_view *view);

#endif
