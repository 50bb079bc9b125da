/* rows.h - the 16-bit rows of pages that are offloaded which the next step is expected to need
 * (struct kva_row_cache, kernels/ops.h): memory, and what survives a suspension.
 *
 * A layer's rows are chosen by one step and due in the same layer of the next: a whole step for the
 * fetch. Which rows are where is decided on the device (resolve), so the host never waits for it.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PARTS_ROWS_H
#define KVA_ENGINE_KV_PARTS_ROWS_H

#include "engine/kv/pass.h"

/* One layer: the item that is taken from the tier; 0: the layer needs none. */
size_t kva_kv_rowcache_layer_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                   uint32_t layer);

/* All layers in an empty tier. */
uint64_t kva_kv_rowcache_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec);

/* Make the tier ready for the items (kva_tier_prepare). */
bool kva_kv_rowcache_prepare(struct kva_kv *kv, const struct kva_kv_spec *spec);

/* Host memory for a sequence's life. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_kv_rowcache_init(struct kva_kv *kv, struct kva_kv_seq *seq,
                                                    struct kva_err *err);
void kva_kv_rowcache_finish(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Device memory of all layers. All or nothing; false: the tier is full. */
bool kva_kv_rowcache_alloc(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Give it back. With `save`, queue copies of what restore needs. */
void kva_kv_rowcache_free(struct kva_kv *kv, struct kva_kv_seq *seq, bool save);

/* First content: the sinks. */
void kva_kv_rowcache_start(struct kva_kv *kv, struct kva_kv_seq *seq);

/* The content at the last give with save. */
void kva_kv_rowcache_restore(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Rows of one layer were chosen by the sequences of the pass that choose before they attend (`now`)
 * or that do not: queue their fetch. Those that choose at once have theirs. */
void kva_kv_rowcache_resolve(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, bool now);

/* The same as one description, for attention that fetches what it chooses. */
struct kva_fused_fetch kva_kv_rowcache_now(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                           uint32_t layer);

/* Whether there are such sequences. */
bool kva_kv_rowcache_chosen(const struct kva_kv_pass *pass, bool now);

/* Rows whose query has moved away from the one that selected for the layer set select_now
 * (KVA_SETTING_RESELECT_BELOW). Waits for the device. */
void kva_kv_rowcache_reselect(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                              const void *q);

/* Bring the counters up to date. */
void kva_kv_rowcache_count(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Compute waits for the layer's rows. */
void kva_kv_rowcache_await(struct kva_kv *kv, uint32_t layer);

#endif
