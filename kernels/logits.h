/* logits.h - the order of candidates and the normaliser of a row of logits, as the operator
 * `shortlist` of a CPU and whoever is given all logits have them: the same token and the same
 * log-probabilities, to the bit, whether a list was enough or not.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_KERNELS_LOGITS_H
#define KVA_KERNELS_LOGITS_H

#include "kernels/ops.h"

#include <math.h>

/* Whether `a` is the better of two: the larger logit, of equal ones the lower token, so that
 * results do not depend on the method of selection. */
static inline bool kva_candidate_is_better(struct kva_candidate a, struct kva_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/* log(sum of exp(logit)) over logits [count]. What is not a number counts as -inf. */
static inline double kva_log_sum_exp(const float *logits, uint32_t count)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < count; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += logits[i] > -INFINITY ? (double)expf(logits[i] - max) : 0;
    return (double)max + log(sum);
}

#endif
