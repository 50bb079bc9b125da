/* kept.h - a store of tokens that were worth keeping, for policies that drop the others
 * (kernels/ops_keep.h).
 *
 *     store page   slots 64 i .. 64 i + 63 in all layers, laid out as a page is
 *     state        of each layer: position and mass of every slot, mass of the window's tokens
 *
 * The store attends in the place of the pages before the window (policy.h: stored), as 16-bit
 * blocks or as low-bit ones that are coded token by token, once, when the token comes. While nothing
 * has been dropped a store in 16 bits is those pages, slot by slot.
 *
 * Where kept tokens attend at their indices (position rolling), the store has its keys un-rotated,
 * and pages that are made of it whenever it changes attend in its place: their keys are rotated to
 * the positions right before the window, one after the other. So nothing drifts, queries are what
 * they are, and what attends is always one run of positions.
 *
 * While a prompt is read a layer at a time, the mass of its tokens lies apart; when the layer is
 * through, its store is built. Later every row adds to the mass of what it attended to, and a page
 * that leaves the window competes with what is stored. All of that is decided on the device: the
 * host waits for nothing.
 *
 * Thread rule: engine thread; what gets no sequence reads constants only. */
#ifndef KVA_ENGINE_KV_PARTS_KEPT_H
#define KVA_ENGINE_KV_PARTS_KEPT_H

#include "engine/kv/policy.h"

/* Store pages of a sequence at most: of what it keeps, and no more than its tokens can fill; `spec`
 * is resolved, or the latter is left out. */
uint32_t kva_kept_pages_max(const struct kva_kv_spec *spec);

/* A policy's answers (policy.h). */
uint32_t kva_kept_computed(const struct kva_kv_spec *spec);
void kva_kept_resolved(struct kva_kv_spec *spec);
uint32_t kva_kept_offloaded(const struct kva_kv_spec *spec, uint32_t tokens);
uint32_t kva_kept_stored(const struct kva_kv_spec *spec, uint32_t offloaded);
uint32_t kva_kept_positions_used(const struct kva_kv_spec *spec, uint32_t tokens);
uint32_t kva_kept_rolled(const struct kva_kv_seq *seq);

#endif
