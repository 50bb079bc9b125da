/* sampler_internal.h - what the files of the sampler share:
 *
 *     sampler.c            the draw
 *     sampler_processors.c logit processors: forbidden, biased and penalised tokens
 *     sampler_logprobs.c   log-probabilities and ranks
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_SAMPLER_INTERNAL_H
#define KVA_ENGINE_SAMPLER_INTERNAL_H

#include "engine/sampler.h"

struct kva_sampler {
    uint32_t vocab_size;
    struct kva_candidate *candidates; /* [vocab_size] */
    uint32_t *counts;                 /* [vocab_size], zero between draws */
    float *saved;  /* [vocab_size] the model's logits, while logit processors run */
    float *listed; /* [vocab_size] those of a list, at their tokens; the others mean nothing */
};

/* Bad words, stop ids before min_tokens, logit bias, repetition, and the other penalties, in this
 * order. Nothing but the tokens of kva_sampler_affected_tokens changes. */
void kva_sampler_process_logits(struct kva_sampler *s, float *logits,
                                const struct kva_sampler_context *context);

/* All tokens that kva_sampler_process_logits may change, and the allowed ones, each once, in
 * tracked [KVA_SAMPLER_TRACKED_MAX]. False: they are more. */
KVA_MUST_CHECK bool kva_sampler_affected_tokens(struct kva_sampler *s,
                                                const struct kva_sampler_context *context,
                                                uint32_t *tracked, uint32_t *ret_count);

/* counts of these tokens are zero again. */
static inline void kva_sampler_forget(struct kva_sampler *s, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        s->counts[tokens[i]] = 0;
}

#endif
