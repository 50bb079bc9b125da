/* sampling.h - how a request wants its tokens chosen, and what a chosen token looks like.
 *
 * Plain data, shared by server, scheduler and engine. Arrays are borrowed from the request's arena
 * and live as long as the request. Ranges are enforced where a request is parsed (server/api); the
 * sampler relies on them. */
#ifndef KVA_ENGINE_SAMPLING_H
#define KVA_ENGINE_SAMPLING_H

#include "engine/constraint.h"

#include <stdbool.h>

#define KVA_LOGPROBS_MAX 20u

struct kva_logit_bias {
    uint32_t token;
    float bias; /* added to the logit, -100..100 */
};

/* A token sequence that must not be completed; a single token must not occur. */
struct kva_bad_word {
    const uint32_t *tokens;
    uint32_t count;
};

struct kva_sampling_params {
    float temperature;        /* 0: greedy; else 0 < t <= 2 */
    float top_p;              /* (0, 1]; 1: off */
    float min_p;              /* [0, 1]; 0: off */
    uint32_t top_k;           /* 0: off */
    float repetition_penalty; /* > 0; 1: off; over prompt and output */
    float presence_penalty;   /* -2..2; 0: off; over the output */
    float frequency_penalty;  /* -2..2; 0: off; over the output */
    uint64_t seed; /* choice i of a request draws from seed + i; always set (random if the client
                      gave none) */

    const uint32_t
        *stop_ids; /* end the sequence when sampled; the model's EOS ids included unless ignored */
    uint32_t stop_id_count;
    uint32_t min_tokens; /* stop ids cannot be sampled before this many output tokens */

    const struct kva_logit_bias *logit_bias;
    uint32_t logit_bias_count;
    const uint32_t *allowed_ids; /* if any: nothing else can be sampled */
    uint32_t allowed_id_count;
    const struct kva_bad_word *bad_words;
    uint32_t bad_word_count;
    struct kva_constraint *constraint; /* NULL: none; the request's own reference */

    int32_t
        logprobs; /* -1: none; 0..KVA_LOGPROBS_MAX: the chosen token's and this many of the best */
    int32_t prompt_logprobs; /* the same for every prompt token but the first */
};

struct kva_logprob {
    uint32_t token;
    float logprob; /* log softmax of the model's logits, before penalties, bias and temperature */
    uint32_t rank; /* 1: the most probable */
};

struct kva_token_output {
    uint32_t token;
    uint32_t top_count;                       /* entries of top; 0 unless logprobs were asked for */
    struct kva_logprob chosen;                /* valid if logprobs >= 0 */
    struct kva_logprob top[KVA_LOGPROBS_MAX]; /* best first */
};

/* Log-probabilities of one prompt position: of the token that stands there given those before it.
 */
struct kva_prompt_logprob {
    struct kva_logprob actual;
    uint32_t top_count;
    struct kva_logprob top[KVA_LOGPROBS_MAX];
};

#endif
