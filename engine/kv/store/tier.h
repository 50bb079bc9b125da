/* tier.h - the device tier's memory: one reservation, cut into chunks, chunks cut into items of one
 * size.
 *
 *     |  chunk 0: one page of all layers  |  chunk 1: layer blocks  |  chunk 2: free  | ...
 *                                          [ ][ ][ ][ ]
 *
 * A chunk belongs to one item size while any item of it is taken, and to nobody afterwards. Items
 * of a size that chunks are no multiple of also lie across the borders of neighbouring chunks, so
 * that no more is lost than an item per run of chunks; one larger than a chunk has some to itself.
 * Taking is allocation and reservation in one: what was taken cannot be lost to somebody else's
 * growth.
 *
 * Thread rule: engine thread. Invariant: taken chunks * chunk_bytes <= budget. */
#ifndef KVA_ENGINE_KV_TIER_H
#define KVA_ENGINE_KV_TIER_H

#include "kernels/device.h"

struct kva_tier;

/* Reserve floor(budget_bytes / chunk_bytes) chunks of device memory. Fails: KVA_EINVAL (budget
 * under one chunk; err has both), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_tier_create(struct kva_device *device, uint64_t budget_bytes,
                                               size_t chunk_bytes, struct kva_tier **ret,
                                               struct kva_err *err);
void kva_tier_destroy(struct kva_tier *tier);

/* Make ready for items of a size, so that taking one allocates nothing; unless more sizes are taken
 * at once than ever before. False: out of memory. */
bool kva_tier_prepare(struct kva_tier *tier, size_t item_bytes);

/* An item of `item_bytes`; NULL: the tier is full. Content is undefined. */
void *kva_tier_alloc(struct kva_tier *tier, size_t item_bytes);

/* Give an item back; `item_bytes` as taken. NULL is allowed. */
void kva_tier_free(struct kva_tier *tier, void *item, size_t item_bytes);

/* Bytes that `count` items of `item_bytes` take of an empty tier at most: whole chunks, as if no
 * item lay across a border. */
uint64_t kva_tier_footprint(const struct kva_tier *tier, size_t item_bytes, uint64_t count);

uint64_t kva_tier_budget_bytes(const struct kva_tier *tier);

/* Bytes of chunks in use. */
uint64_t kva_tier_used_bytes(const struct kva_tier *tier);

#endif
