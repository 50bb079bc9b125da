/* sampler.h - from logits to a token, as a request wants it.
 *
 * The order is fixed and documented, because it is visible in results:
 *
 *     log-probabilities of the model's own logits, if asked for
 *     constraint, allowed ids -> bad words -> stop ids before min_tokens -> logit bias -> penalties
 *     (repetition, then presence and frequency)
 *     greedy, or temperature -> min_p -> top_k -> top_p -> draw
 *
 * The draw depends on the seed, the choice and the token's index in the output alone, so that a
 * request gets the same tokens whatever else is in its batch, and after a suspension.
 *
 * What a constraint forbids is no candidate, whatever bias and penalties say of it. Stop ids before
 * min_tokens are forbidden as ever, but where the constraint allows nothing else: its text has ended.
 *
 * The logits themselves need not come to the host: kva_sampler_request says what of a row is to be
 * found out where it lies (kva_shortlist_args), and kva_sampler_draw_listed draws by that, with the
 * same arithmetic. Only the mass of what is not listed, and the sum under the log-probabilities,
 * are added up elsewhere, in double precision and another order. Where the list does not decide,
 * all logits are asked for.
 *
 * Thread rule: engine thread. A draw allocates nothing. */
#ifndef KVA_ENGINE_SAMPLER_H
#define KVA_ENGINE_SAMPLER_H

#include "base/err.h"
#include "engine/sampling.h"
#include "kernels/ops.h"

/* Tokens of a row that may be tracked: a request that prefers, forbids or penalises more of them
 * has all logits sent. */
#define KVA_SAMPLER_TRACKED_MAX 4096u

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
    /* What the constraint allows, for a draw; NULL: there is none (constraint.h). */
    const uint32_t *mask;
};

/* Choose the next token. `logits` [vocab_size] is overwritten. Fails: KVA_EINVAL if no token is left
 * that bad words, allowed ids and constraint allow, KVA_EINTERNAL if none has a finite logit. */
KVA_MUST_CHECK enum kva_status kva_sampler_draw(struct kva_sampler *sampler, float *logits,
                                                const struct kva_sampler_context *context,
                                                struct kva_token_output *ret);

/* What has to be known of the logits to choose the next token: *request, but for `row` and
 * `tracked_first`, and the tokens to be tracked [KVA_SAMPLER_TRACKED_MAX]. request->k 0: all. */
void kva_sampler_request(struct kva_sampler *sampler, const struct kva_sampler_context *context,
                         uint32_t *tracked, struct kva_shortlist_request *request);

/* A row's shortlist. */
struct kva_sampler_list {
    const struct kva_shortlist_request *request;
    const uint32_t *tracked; /* these two: [request->tracked_count] */
    const float *tracked_logits;
    const struct kva_shortlist *summary;
    const struct kva_candidate *listed; /* [summary->count] */
};

/* As kva_sampler_draw, by what kva_sampler_request asked for in the same context. *ret_enough
 * false: that does not decide, nothing is chosen. */
KVA_MUST_CHECK enum kva_status kva_sampler_draw_listed(struct kva_sampler *sampler,
                                                       const struct kva_sampler_list *list,
                                                       const struct kva_sampler_context *context,
                                                       bool *ret_enough,
                                                       struct kva_token_output *ret);

/* The log-probability of `token` and of the `top_count` best. `logits` is not changed. */
void kva_sampler_logprobs(struct kva_sampler *sampler, const float *logits, uint32_t token,
                          uint32_t top_count, struct kva_logprob *ret_chosen,
                          struct kva_logprob *ret_top);

/* The same by a list with `log_sum`; false: `token` is neither listed nor ranked, or there are
 * fewer than top_count. */
KVA_MUST_CHECK bool kva_sampler_listed_logprobs(const struct kva_sampler_list *list, uint32_t token,
                                                uint32_t top_count, struct kva_logprob *ret_chosen,
                                                struct kva_logprob *ret_top);

/* The uniform number in [0, 1) of draw `index` for this seed: counter-based, no state. */
double kva_sampler_uniform(uint64_t seed, uint64_t index);

#endif
