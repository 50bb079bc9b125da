/* ahead.h - 16-bit rows that a layer will attend to, chosen while the layer before it runs
 * (InfiniGen 4.3) and fetched meanwhile.
 *
 *     layer i - 1   its input: queries of layer i are rehearsed      compute
 *                   -> partial queries, scores by partial keys       compute
 *                   -> what is near each head's maximum, to slots    compute
 *                   -> rows from the host into the slots                       copy
 *     layer i       waits for them, and attends to them              compute
 *
 * Two buffers of rows, by parity of the layer, are all the memory: nothing persists from step to
 * step, so nothing is saved when a sequence is suspended. How many rows there are is known on the
 * device alone.
 *
 * Thread rule: engine thread; what gets no sequence reads constants only. */
#ifndef KVA_ENGINE_KV_PARTS_AHEAD_H
#define KVA_ENGINE_KV_PARTS_AHEAD_H

#include "engine/kv/policy.h"

/* Rows of a layer and KV head at most, besides the sinks. */
#define KVA_AHEAD_ROWS_MAX 8192u

/* Whether the rows' queries of a layer are rehearsed (policy.h). */
bool kva_ahead_rehearses(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer);

#endif
