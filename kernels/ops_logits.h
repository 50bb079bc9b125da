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

/* What of a row of logits is wanted. What is not a number counts as -inf. Of two tokens the one
 * with the larger logit is the better one, of equal ones the lower. */
struct kva_shortlist_want {
    uint32_t row;         /* of the logits */
    uint32_t best;        /* so many of the best tokens above -inf, 1 to KVA_SHORTLIST_MAX */
    uint32_t watch_first; /* in `watched`: tokens whose logits are wanted whatever they are */
    uint32_t watch_count;
    float temperature; /* > 0: `rest` is wanted */
    bool log_sum;      /* is wanted */
    bool rank;         /* of the first of the watched tokens is wanted */
};

/* What there is besides the lists; what was not asked for is 0. */
struct kva_shortlist {
    double rest; /* over the tokens that are not listed, exp((logit - l) / temperature), where l is
                    the least logit listed; 0 if everything above -inf is listed */
    double log_sum; /* of exp(logit) over all tokens, its logarithm */
    uint32_t count; /* listed; fewer than wanted: no other token is above -inf */
    uint32_t rank;  /* 1: the best */
};

/* Everything that choosing a token needs to know of some rows of logits, so that they need not
 * leave the device. The caller reads the results after waiting for the queue. */
struct kva_shortlist_args {
    struct kva_shortlist *out;    /* host tier [count] */
    struct kva_candidate *listed; /* host tier [count][KVA_SHORTLIST_MAX], by ascending token */
    float *watched_logits;        /* host tier [watched_count], as they are in the row */
    const float *logits;          /* fp32 [.., vocab] */
    const struct kva_shortlist_want *wants; /* host [count] */
    const uint32_t *watched;                /* host [watched_count], each < vocab */
    uint32_t count;
    uint32_t watched_count;
    uint32_t vocab;
};

#endif
