/* lowbit.h - low-bit copies of pages that are offloaded, in all layers (kernels/ops.h: low-bit KV
 * block), taken, shared and made again as copies.h says.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_LOWBIT_H
#define KVA_ENGINE_KV_LOWBIT_H

#include "engine/kv/policy.h"

/* Layers that stay in 16 bits. */
uint32_t kva_kv_lowbit_skip_layers(const struct kva_kv *kv, const struct kva_kv_spec *spec);

#endif
