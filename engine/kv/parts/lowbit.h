/* lowbit.h - low-bit copies of pages that are offloaded, in all layers (kernels/ops.h: low-bit KV
 * block); exempt layers are in 16 bits there too:
 *
 *     copy of a page:  [16-bit block] x exempt  [low-bit block] x (layers - exempt)
 *
 * During a prefill a layer is coded from its staged pages as soon as all of the prompt's rows have
 * gone through it; later a page is coded when it leaves the window. Copies of closed pages belong
 * to the page and are shared by running sequences with the same format.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_LOWBIT_H
#define KVA_ENGINE_KV_LOWBIT_H

#include "engine/kv/policy.h"

/* Layers that stay in 16 bits. */
uint32_t kva_kv_lowbit_skip_layers(const struct kva_kv *kv, const struct kva_kv_spec *spec);

#endif
