/* ops_logits.h - the operator that reads logits where they are made, so that they need not leave
 * the device. What ops.h promises holds here. */
#ifndef KVA_KERNELS_OPS_LOGITS_H
#define KVA_KERNELS_OPS_LOGITS_H

#include "kernels/device.h"

/* Candidates of a row that are listed at most. */
#define KVA_SHORTLIST_MAX 1024u

struct kva_candidate {
    float logit;
    uint32_t token;
};

/* What is asked of a row of logits. What is not a number counts as -inf. Of two tokens the one with
 * the larger logit is the better one, of equal ones the lower. */
struct kva_shortlist_request {
    uint32_t row;           /* of the logits */
    uint32_t k;             /* top-k: the k best tokens above -inf, 1 to KVA_SHORTLIST_MAX */
    uint32_t tracked_first; /* in `tracked`: tokens whose logits are reported whatever they are */
    uint32_t tracked_count;
    float temperature; /* > 0: with tail_sum */
    bool log_sum;      /* with log_sum */
    bool rank;         /* with the rank of the first of the tracked tokens */
};

/* What there is besides the lists; what was not asked for is 0. */
struct kva_shortlist {
    double tail_sum; /* over the tokens that are not listed, exp((logit - l) / temperature), where l
                        is the least logit listed; 0 if everything above -inf is listed */
    double log_sum;  /* of exp(logit) over all tokens, its logarithm */
    uint32_t count;  /* listed; fewer than k: no other token is above -inf */
    uint32_t rank;   /* 1: the best */
};

/* Everything that choosing a token needs to know of some rows of logits, so that they need not
 * leave the device. The caller reads the results after waiting for the queue. */
struct kva_shortlist_args {
    struct kva_shortlist *out;    /* host tier [count] */
    struct kva_candidate *listed; /* host tier [count][KVA_SHORTLIST_MAX], by ascending token */
    float *tracked_logits;        /* host tier [tracked_count], as they are in the row */
    const float *logits;          /* fp32 [.., vocab] */
    const struct kva_shortlist_request *requests; /* host [count] */
    const uint32_t *tracked;                      /* host [tracked_count], each < vocab */
    uint32_t count;
    uint32_t tracked_count;
    uint32_t vocab;
};

#endif
