/* eval.h - KV policies compared with full KV, teacher-forced, on the caller's own tokens.
 *
 * Every sample is a prompt and the tokens behind it. The prompt is prefilled, exactly under every
 * policy; then the tokens behind it are fed one by one through the decode path, whatever the model
 * would rather say, and each step's next-token distribution is held against the one that the policy
 * `full` (the reference) gives at the same place. The distribution at the end of the prompt is
 * equal by construction and does not count.
 *
 * The result depends on model, tokens and specs alone: not on threads, nor on the prefix cache,
 * which saves the prefills of one prompt under several policies.
 *
 * Thread rule: engine thread; nothing else uses the engine meanwhile. */
#ifndef KVA_ENGINE_EVAL_EVAL_H
#define KVA_ENGINE_EVAL_EVAL_H

#include "engine/eval/coverage.h"
#include "engine/model_engine.h"

struct kva_eval_sample {
    const uint32_t *ids; /* [count] */
    uint32_t count;
    uint32_t prompt; /* tokens of it that are prefilled; >= 1 */
    /* Tokens behind the prompt: count - prompt >= 2, or none: then the reference's own greedy
     * continuation, up to `continuation` steps or an end token. */
    uint32_t continuation;
};

struct kva_eval_params {
    struct kva_engine *engine; /* a kva_model_engine */
    /* Another engine of the same model, with other weights, from which the reference is taken;
     * NULL: `engine` itself. */
    struct kva_engine *reference;
    struct kva_device *device; /* and what it was made of */
    const struct kva_model *model;
    enum kva_dtype kv_dtype; /* F16 or BF16 */
    const struct kva_eval_sample *samples;
    uint32_t sample_count;
    const struct kva_kv_spec *specs;
    uint32_t spec_count;
    uint32_t look_every; /* steps from one look at attention (coverage.h) to the next; 0: none */
    /* Work done so far, in units that take about the same time; or NULL. */
    void (*progress)(void *opaque, uint64_t done, uint64_t total);
    void *opaque;
};

/* What one policy did, over all samples. */
struct kva_eval_policy {
    struct kva_kv_spec spec;
    uint64_t steps;
    const double *kl; /* [steps] of each step, in their order */
    double kl_mean;   /* nats, KL(full || policy) of the next-token distributions */
    double kl_p99;    /* the 99th percentile over the steps */
    double kl_max;
    double agreement;     /* share of steps with the same most probable token */
    double nll_reference; /* mean -log p of the token that comes, nats */
    double nll;
    double logit_error; /* root mean square of the logits' errors, as a share of their spread */

    uint64_t spec_tokens;      /* speculative tokens decoded along */
    uint64_t spec_as_full;     /* of them: what full would have picked there */
    uint64_t spec_as_followed; /* what came there */

    struct kva_tier_bytes bytes; /* allocated at the ends of the samples: the mean */
    struct kva_tier_bytes bytes_reference;
    struct kva_counts counts; /* of the policy's sequences, while decoding */

    uint64_t looks;                  /* steps whose attention was looked at */
    struct kva_coverage_head *heads; /* [layers][kv_heads]; NULL: none was, as of policies that
                                        drop tokens for good */
};

struct kva_eval {
    uint32_t layers;
    uint32_t kv_heads;
    uint64_t steps;                   /* of each policy */
    double *kl;                       /* [policy_count][steps at most], the policies' own */
    struct kva_eval_policy *policies; /* [policy_count], as the specs */
    uint32_t policy_count;
};

/* All heads of a layer, or of all layers (`layer` = KVA_NO_LAYER), added up. */
struct kva_coverage_head kva_eval_sum(const struct kva_eval *eval,
                                      const struct kva_eval_policy *policy, uint32_t layer);

/* Fails: KVA_EINVAL (a sample or spec; the spec's setting is err->param), KVA_ELIMIT (a sample
 * does not fit the budgets under some policy; err names the tier), KVA_EUNSUPPORTED, KVA_ENOMEM,
 * KVA_EDEVICE. */
KVA_MUST_CHECK enum kva_status kva_eval_run(const struct kva_eval_params *params,
                                            struct kva_eval **ret, struct kva_err *err);
void kva_eval_destroy(struct kva_eval *eval);

#endif
