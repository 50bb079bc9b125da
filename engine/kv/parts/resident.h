/* resident.h - whole pages on the device: pages [offloaded, resident_end) of a sequence, in all
 * layers.
 *
 * Device copies of pages belong to the page and are shared by all running sequences that hold it.
 * Closed pages are also in their host slots, so that a copy which nobody uses may be dropped at any
 * time.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_RESIDENT_H
#define KVA_ENGINE_KV_RESIDENT_H

#include "engine/kv/policy.h"

/* Use pages up to `end`, fetching what the host has. All or nothing; false: the tier is full. */
bool kva_kv_resident_extend(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t end);

/* Stop using pages from `end` on. With `save`, queue copies to the host of those that only the
 * device has. */
void kva_kv_resident_retract(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t end, bool save);

/* Pages [offloaded, first) leave; they are closed. */
void kva_kv_resident_leave(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first);

#endif
