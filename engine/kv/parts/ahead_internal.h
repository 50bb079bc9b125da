/* ahead_internal.h - what the files of the part share:
 *
 *     ahead.c         memory, between steps
 *     ahead_pass.c    what is weighed, chosen and fetched within a pass
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PARTS_AHEAD_INTERNAL_H
#define KVA_ENGINE_KV_PARTS_AHEAD_INTERNAL_H

#include "engine/kv/part.h"
#include "engine/kv/parts/homes.h"

/* One for the layer that attends, one for that behind it. */
#define KVA_AHEAD_BUFFERS 2u

/* Of a sequence. */
struct kva_ahead_state {
    struct kva_row_cache buffers[KVA_AHEAD_BUFFERS]; /* by parity of the layer */
    bool allocated;                                  /* they have device memory */
    struct kva_homes homes;
    bool pool_listed;    /* in homes are pages that nobody else has (pool.h) */
    uint64_t counted;    /* of the rows that were fetched, homes.hits[1], in the counters */
    uint64_t choices;    /* not in the counters yet: of layers and KV heads, ... */
    uint64_t candidates; /* ... and the tokens among which they were */
};

/* Of the cache: the lists are descriptors of one call, [sequences_max]. */
struct kva_ahead_cache {
    struct kva_event *ready[KVA_AHEAD_BUFFERS]; /* the rows of a layer of that parity are in */
    uint32_t stamp;                             /* of the pass */
    uint32_t late;                              /* layers of the current step that waited */
    const struct kva_row_cache **buffers;
    struct kva_rows_fetch *fetches;
    const struct kva_kv_rows **rows; /* those whose queries were rehearsed */
    const struct kva_kv_rows **turn; /* of them those of one call */
    uint32_t *numbers;               /* their rows of the rehearsed queries */
    struct kva_sketch_seq *weighed;
    struct kva_choose_seq *chosen;
    struct kva_use_seq *uses; /* of those whose host memory is limited */
};

static inline struct kva_ahead_state *kva_ahead_state_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, &kva_kv_part_ahead);
}

/* Rows that a KV head may choose now, the sinks among them. */
uint32_t kva_ahead_rows(const struct kva_kv_seq *seq);

/* --- ahead_pass.c ----------------------------------------------------------------------------- */

void kva_ahead_pass_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                          struct kva_kv_pass *pass);
void kva_ahead_rehearsed(const struct kva_kv_part *self, struct kva_kv *kv,
                         struct kva_kv_pass *pass, const struct kva_kv_rehearsal *rehearsal);
void kva_ahead_locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer);
void kva_ahead_layer_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                           struct kva_kv_pass *pass, uint32_t layer);

#endif
