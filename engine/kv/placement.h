/* placement.h - the device memory of a sequence between steps: who holds what, taken and given as
 * the policy (policy.h) prescribes.
 *
 * Device memory is taken in reserve and restore, all or nothing, and given back in commit and
 * release; within a pass data only moves.
 *
 * Thread rule: engine thread; the footprint and growth read constants only. */
#ifndef KVA_ENGINE_KV_PLACEMENT_H
#define KVA_ENGINE_KV_PLACEMENT_H

#include "engine/kv/policy.h"

/* Device bytes, at most, of a sequence with a prompt of `prompt` tokens until it has `tokens`
 * tokens, in an empty tier. */
uint64_t kva_kv_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t prompt,
                          uint32_t tokens);

/* The same of a prompt whose pages are staged but for the last one, its residual stream apart. */
uint64_t kva_kv_staged_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             uint32_t prompt);

/* Of it: what a sequence need not take for a page of its beginning, because a running one has it.
 * NULL: for a page that a running sequence of the same settings has. */
uint64_t kva_kv_shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page);

/* Of the sequence's pages, what other running sequences have too. */
struct kva_shared_bytes kva_kv_seq_shared_bytes(const struct kva_kv *kv,
                                                const struct kva_kv_seq *seq);

/* Host pages, at most, of the same: of the prompt until it is in, and of what comes behind it as
 * many as are there at once. */
uint32_t kva_kv_host_pages(const struct kva_kv_spec *spec, uint32_t prompt, uint32_t tokens);

/* Device bytes by which a sequence with such a prompt grows with each further page: as long as it has
 * a store to fill, or else when it is long. `spec` is resolved. */
uint64_t kva_kv_growth_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             uint32_t prompt);

/* Device memory for the step that brings the sequence to `tokens` tokens; its pages exist. All or
 * nothing; false: the tier is full. */
bool kva_kv_reserve(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t tokens);

/* Give all device memory back. With `save`, first queue copies to the host of what only the device
 * has. */
void kva_kv_release(struct kva_kv *kv, struct kva_kv_seq *seq, bool save);

/* After a release with save: the same memory with the same content. All or nothing; false: the tier
 * is full. */
bool kva_kv_restore(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Page `index` has just become full in all layers: see that the host gets it. */
void kva_kv_send_closed(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index);

/* Pages that the last selection had among its candidates leave. */
void kva_kv_leave_considered(struct kva_kv *kv, struct kva_kv_seq *seq);

/* seq->tokens has grown and full pages are closed: pages are offloaded as it says. */
void kva_kv_apply_policy(struct kva_kv *kv, struct kva_kv_seq *seq);

#endif
