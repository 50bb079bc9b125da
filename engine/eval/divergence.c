/* divergence.c - KL, agreement and perplexity, summed over steps. */
#include "engine/eval/divergence.h"

#include <math.h>

struct softmax {
    uint32_t best;
    double mean;    /* of the logits */
    double log_sum; /* log of the sum of exp(logit) */
};

static struct softmax softmax_of(const float *logits, uint32_t vocab)
{
    struct softmax s = {0};
    double sum = 0;
    for (uint32_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[s.best])
            s.best = i;
    }
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - (double)logits[s.best]);
    for (uint32_t i = 0; i < vocab; i++)
        s.mean += (double)logits[i] / vocab;
    s.log_sum = (double)logits[s.best] + log(sum);
    return s;
}

struct kva_divergence kva_divergence_of(const float *reference, const float *logits, uint32_t vocab,
                                        uint32_t token)
{
    struct softmax p = softmax_of(reference, vocab), q = softmax_of(logits, vocab);
    double kl = 0, error_squares = 0, logit_squares = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double logit = (double)reference[i] - p.mean;
        double error = (double)logits[i] - q.mean - logit;
        logit_squares += logit * logit;
        error_squares += error * error;
        double log_p = (double)reference[i] - p.log_sum;
        kl += exp(log_p) * (log_p - ((double)logits[i] - q.log_sum));
    }
    return (struct kva_divergence){
        .kl = kl > 0 ? kl : 0, /* the sum of a tiny one can round below */
        .nll_reference = p.log_sum - (double)reference[token],
        .nll = q.log_sum - (double)logits[token],
        .best = p.best,
        .agrees = p.best == q.best,
        .error_squares = error_squares,
        .logit_squares = logit_squares,
    };
}

double kva_quantile(const double *ascending, size_t count, double q)
{
    size_t rank = (size_t)ceil(q * (double)count);
    return ascending[rank > 0 ? rank - 1 : 0];
}
