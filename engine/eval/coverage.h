/* coverage.h - what decoding under an approximating policy attends to in 16 bits, measured against
 * the exact attention of the same query.
 *
 * An observer of the forward pass (engine/forward.h). In every layer of a step, for every KV head,
 * it takes the step's own query and all keys in their 16 bits, those of pages that are offloaded
 * from the host tier, and computes the exact attention probability of each token, as the mean over
 * the query heads that share the KV head. Then
 *
 *     covered   probability of the tokens that attend in 16 bits: sinks, fetched rows, window
 *     ceiling   the same if the fetched rows were the k of the largest probability
 *     wanted    the rows that the query itself would choose (KVA_PREDICT_SYNC): the oracle's
 *     hit       those of them that attend in 16 bits
 *     waited    the query did choose for itself, so that the step waited for its rows
 *
 * Where rows were chosen before the query was known (policy.h: rehearses), `wanted` are as many rows
 * as were fetched, those of the largest probability.
 *
 * With fetch = resident more than k rows may attend, so that `covered` can exceed `ceiling`.
 *
 * Thread rule: engine thread. It waits for the copy queue before it reads a page's home. */
#ifndef KVA_ENGINE_EVAL_COVERAGE_H
#define KVA_ENGINE_EVAL_COVERAGE_H

#include "engine/forward.h"

/* One KV head of one layer: sums over the steps that were looked at. */
struct kva_coverage_head {
    uint64_t steps;
    uint64_t waited;
    double covered;
    double ceiling;
    uint64_t wanted;
    uint64_t hit;
    uint64_t best;     /* rows of the largest exact probability, k a step */
    uint64_t best_hit; /* those of them that attend in 16 bits */
};

/* to += from. */
void kva_coverage_add(struct kva_coverage_head *to, const struct kva_coverage_head *from);

struct kva_coverage {
    struct kva_forward_observer observer; /* for kva_model_engine_observe */
    struct kva_coverage_head *heads;      /* [layers][kv_heads] */
    uint64_t steps;

    /* --- private; weights are those that kva_coverage_weigh made last --- */
    struct kva_device *device;
    const struct kva_model_config *config;
    enum kva_dtype kv_dtype;
    size_t selection_bytes;
    float *scores;   /* [heads / kv_heads][context_max] */
    double *weights; /* [context_max] */
    bool *attended;  /* [context_max]: in 16 bits */
    uint32_t *order; /* [context_max]: positions that could be fetched */
    uint32_t context_max;
};

struct kva_coverage_params {
    struct kva_device *device;
    const struct kva_model_config *config; /* outlives the coverage */
    enum kva_dtype kv_dtype;               /* of 16-bit pages */
    uint32_t context_max;
    uint32_t k_max; /* the largest k of all specs */
};

/* Fails: KVA_EUNSUPPORTED (the host cannot read this device's memory), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_coverage_init(struct kva_coverage *coverage,
                                                 const struct kva_coverage_params *params,
                                                 struct kva_err *err);
void kva_coverage_finish(struct kva_coverage *coverage);

/* c->weights[first, end) = exact attention probabilities of the step's query, as the mean over the
 * query heads that share the KV head. */
void kva_coverage_weigh(struct kva_coverage *c, const struct kva_forward_view *view, uint32_t head,
                        uint32_t first, uint32_t end);

/* Reorders `order` [count], positions, so that its first k have the largest weights; ties go to the
 * lower position. */
void kva_coverage_best(const double *weights, uint32_t *order, uint32_t count, uint32_t k);

/* Forget the sums. */
void kva_coverage_clear(struct kva_coverage *coverage);

#endif
