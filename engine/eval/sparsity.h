/* sparsity.h - how few tokens attention needs, and whether they can be known beforehand (SpeCache,
 * section 3.1 and figure 2, left).
 *
 * An observer of a text that goes through full KV token by token (stream.h). Of each query's exact
 * attention it adds up what so many tokens have, beside the query's own,
 *
 *     best      if they are those with the most of it, which another query would choose anew
 *     greedy    if they are what greedy eviction has kept for the KV head until then (H2O): half of
 *               them the newest, half those with the most attention so far, among those that were
 *               there; what is gone is gone
 *
 * as the mean over the query heads that share a KV head, over KV heads, layers and steps.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_EVAL_SPARSITY_H
#define KVA_ENGINE_EVAL_SPARSITY_H

#include "engine/eval/coverage.h"

struct kva_sparsity_params {
    struct kva_coverage_params look; /* k_max 0 */
    const uint32_t *kept;            /* [count]: tokens, at least 2 */
    uint32_t count;
    uint32_t from; /* queries at positions before it are not added up */
};

/* Sums over `queries`. */
struct kva_sparsity_sums {
    double best;
    double greedy;
};

struct kva_sparsity {
    struct kva_forward_observer observer; /* for kva_model_engine_observe */
    struct kva_sparsity_sums *sums;       /* [count] */
    uint64_t queries;                     /* of KV heads, layers and steps */

    /* --- private --- */
    struct kva_coverage coverage;
    struct kva_sparsity_kept *stores; /* [count][layers][kv_heads] */
    uint32_t *kept;
    uint32_t count;
    uint32_t from;
};

/* Fails: KVA_EUNSUPPORTED (a sliding window), as kva_coverage_init. */
KVA_MUST_CHECK enum kva_status kva_sparsity_init(struct kva_sparsity *sparsity,
                                                 const struct kva_sparsity_params *params,
                                                 struct kva_err *err);
void kva_sparsity_finish(struct kva_sparsity *sparsity);

#endif
