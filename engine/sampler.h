/* sampler.h - from logits to a token, as a request wants it.
 *
 * The order is fixed and documented, because it is visible in results:
 *
 *     log-probabilities of the model's own logits, if asked for
 *     allowed ids -> bad words -> stop ids before min_tokens -> logit bias -> penalties
 *     greedy, or temperature -> min_p -> top_k -> top_p -> draw
 *
 * The draw depends on the seed, the choice and the token's index in the output alone, so that a
 * request gets the same tokens whatever else is in its batch, and after a suspension.
 *
 * Thread rule: engine thread. A draw allocates nothing. */
#ifndef KVA_ENGINE_SAMPLER_H
#define KVA_ENGINE_SAMPLER_H

#include "base/err.h"
#include "engine/sampling.h"

struct kva_sampler; /* scratch for one vocabulary size */

KVA_MUST_CHECK enum kva_status kva_sampler_create(uint32_t vocab_size, struct kva_sampler **ret,
                                                  struct kva_err *err);
void kva_sampler_destroy(struct kva_sampler *sampler);

/* What a sequence's draws depend on besides logits. */
struct kva_sampler_context {
    const struct kva_sampling_params *params;
    uint32_t choice;
    const uint32_t *ids; /* prompt and output so far */
    uint32_t prompt_tokens;
    uint32_t token_count; /* of ids */
};

/* Whether the token is the model's own best, whatever the logits are: nothing has to be drawn or
 * told about them. */
bool kva_sampler_takes_best(const struct kva_sampler_context *context);

/* Choose the next token. `logits` [vocab_size] is overwritten. Fails: KVA_EINTERNAL if no token is
 * left with a finite logit. */
KVA_MUST_CHECK enum kva_status kva_sampler_draw(struct kva_sampler *sampler, float *logits,
                                                const struct kva_sampler_context *context,
                                                struct kva_token_output *ret);

/* The log-probability of `token` and of the `top_count` best. `logits` is not changed. */
void kva_sampler_logprobs(struct kva_sampler *sampler, const float *logits, uint32_t token,
                          uint32_t top_count, struct kva_logprob *ret_chosen,
                          struct kva_logprob *ret_top);

/* The uniform number in [0, 1) of draw `index` for this seed: counter-based, no state. */
double kva_sampler_uniform(uint64_t seed, uint64_t index);

#endif
