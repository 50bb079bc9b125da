/* pool.h - a limit on what a sequence has in host memory (InfiniGen 4.4): so many slots per layer
 * and KV head, in whole pages, before the window. Once they are full, what leaves the window takes
 * the slots of victims, 64 tokens at a time, others in each layer and KV head: those that were
 * chosen least often (counter), longest ago (lru), or that came first (fifo). Sinks stay.
 *
 *     sequence   s s s s . x . x x . . . x . | w w w w | q
 *                `---- slots: `x` are gone --' window
 *
 * Rows never move, and a slot stands where a position stands otherwise: partial keys, what is
 * chosen, and rows that are fetched. Until the first victim the slots are the sequence's own pages;
 * of a prompt that is too long for them they are the first page and the last ones. Then they are
 * pages that nobody else has: those which the prefix cache or others have are copied first, so that
 * a page that is shared is never written.
 *
 * What is not limited (kva_kv_pool_limits) has as many slots as there are offloaded tokens.
 *
 * Thread rule: engine thread; what gets no sequence reads constants only. */
#ifndef KVA_ENGINE_KV_PARTS_POOL_H
#define KVA_ENGINE_KV_PARTS_POOL_H

#include "engine/kv/policy.h"

/* Whether the spec, which is resolved, has fewer slots than its sequence may need; false of others.
 */
bool kva_kv_pool_limits(const struct kva_kv_spec *spec);

/* Pages of slots that stand for so many offloaded pages: policy.h, `stored`. */
uint32_t kva_kv_pool_stored(const struct kva_kv_spec *spec, uint32_t offloaded);

/* Pages [1, so many) of the sequence are not among its slots: policy.h, `gone`. */
uint32_t kva_kv_pool_gone(const struct kva_kv_seq *seq);

/* Host pages for its life: policy.h, `host_pages`. */
uint32_t kva_kv_pool_host_pages(const struct kva_kv_spec *spec, uint32_t prompt, uint32_t tokens);

/* The sequence's page whose tokens are in page `index` of slots, until there are victims. */
uint32_t kva_kv_pool_source(const struct kva_kv_seq *seq, uint32_t index);

/* Where page `index` of slots is in host memory. */
unsigned char *kva_kv_pool_home(const struct kva_kv_seq *seq, uint32_t index);

/* Whether there have been victims. */
bool kva_kv_pool_is_full(const struct kva_kv_seq *seq);

/* What `use_rows` needs to note what a row at `position` has chosen; false: nobody asks. */
struct kva_use_seq;
bool kva_kv_pool_use(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                     uint32_t position, struct kva_use_seq *ret);

#endif
