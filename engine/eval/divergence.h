/* divergence.h - how far a next-token distribution is from the one it approximates.
 *
 * Thread rule: pure functions. */
#ifndef KVA_ENGINE_EVAL_DIVERGENCE_H
#define KVA_ENGINE_EVAL_DIVERGENCE_H

#include "base/kva.h"

#include <stdbool.h>

/* One position. P: softmax of the reference's logits, Q: of the others. */
struct kva_divergence {
    double kl;            /* KL(P || Q) in nats, >= 0 */
    double nll_reference; /* -log P(token) in nats */
    double nll;           /* -log Q(token) */
    uint32_t best;        /* the most probable token of P, and the lowest of equals */
    bool agrees;          /* Q has the same */
    /* Sums over the vocabulary of squares of what counts in a logit, which is its distance from
     * their mean: of the difference of the two, and of the reference's. */
    double error_squares;
    double logit_squares;
};

/* `token` is the one that follows. Sums in double precision; equal logits give kl 0. */
struct kva_divergence kva_divergence_of(const float *reference, const float *logits, uint32_t vocab,
                                        uint32_t token);

/* The q-quantile, 0 <= q <= 1, of `count` > 0 ascending values: the least of them that is not
 * under a share q of all (nearest rank). */
double kva_quantile(const double *ascending, size_t count, double q);

#endif
