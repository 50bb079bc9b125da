/* rows_internal.h - what the files of the part share:
 *
 *     rows.c         memory and layout, between steps
 *     rows_pass.c    what is selected, assigned and fetched within a pass
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PARTS_ROWS_INTERNAL_H
#define KVA_ENGINE_KV_PARTS_ROWS_INTERNAL_H

#include "engine/kv/part.h"
#include "engine/kv/parts/homes.h"

/* Of a sequence. */
struct kva_rows_state {
    struct kva_row_cache *caches; /* [layers]; NULL: the settings ask for no rows */
    bool allocated;               /* they have device memory */
    bool started;                 /* and content */
    struct kva_homes homes;
    uint64_t counted[2]; /* of homes.hits in the counters */
};

/* Of the cache: the lists are descriptors of one call, [sequences_max]. */
struct kva_rows_cache {
    struct kva_event **ready; /* [layers]: the rows of a layer are in */
    uint32_t stamp;           /* of the pass: of what is selected for the next step; what is
                                 selected for this one has the number before */
    bool late;                /* a layer of the current step waited for its rows */
    const struct kva_row_cache **caches;
    const uint32_t **gates; /* of the caches */
    struct kva_rows_fetch *fetches;
    uint32_t *query_rows;
    void **query_before;
    float *query_percents;
    float *query_cosines;  /* device */
    uint32_t *query_gates; /* device: open for those whose query has turned too far */
};

static inline struct kva_rows_state *kva_rows_state_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, &kva_kv_part_rows);
}

static inline struct kva_rows_cache *kva_rows_cache_of(const struct kva_kv *kv)
{
    return kva_kv_part_cache(kv, &kva_kv_part_rows);
}

/* Whether queries are held against those that selected (KVA_SETTING_RESELECT_BELOW). */
bool kva_rows_corrects(const struct kva_kv_spec *spec);

/* Where the query that selected last for the layer is. */
void *kva_rows_query(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer);

/* Queue the fetch of the first `count` of the cache's fetches. */
void kva_rows_fetch_layer(struct kva_kv *kv, uint32_t count, uint32_t layer);

/* --- rows_pass.c ------------------------------------------------------------------------------ */

void kva_rows_pass_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                         struct kva_kv_pass *pass);
void kva_rows_layer_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                          struct kva_kv_pass *pass, uint32_t layer);
void kva_rows_selected(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                       uint32_t layer);
struct kva_fused_fetch kva_rows_fused(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                      uint32_t layer);
void kva_rows_layer_end(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                        uint32_t layer);

#endif
