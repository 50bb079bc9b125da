/* columns.h - which columns partial keys have, where they are the prompt's own (InfiniGen 4.2): those
 * in which its queries and keys, after the skew, are largest, in each layer and KV head.
 *
 *     a layer of the prompt    queries of each chunk, as they attend    sums += |q A|
 *     all rows are through     keys                                     sums += |k A|
 *                              the largest sums                         columns
 *
 * They are found before the layer's pages are coded. Queries of a prompt that is found in the prefix
 * cache are not there, so such a sequence computes all of it; and its partial keys are nobody
 * else's.
 *
 * Thread rule: engine thread; what gets no sequence reads constants only. */
#ifndef KVA_ENGINE_KV_PARTS_COLUMNS_H
#define KVA_ENGINE_KV_PARTS_COLUMNS_H

#include "engine/kv/policy.h"

/* Last tokens of a prompt that are computed: policy.h, `computed`. */
uint32_t kva_columns_computed(const struct kva_kv_spec *spec);

/* The layer's columns, device [kv_heads][head_dim] of which the first ones count; NULL: they are not
 * the prompt's own. */
const uint32_t *kva_columns_of(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                               uint32_t layer);

#endif
