/* eval.c - full KV once, then each policy along its tokens, and what differs. */
#include "engine/eval/eval.h"

#include "engine/eval/divergence.h"
#include "engine/kv/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Prompt tokens of one step, and how many of them take as long as one decode step, roughly: only
 * for the progress. */
#define PREFILL_QUOTA 1024u
#define PREFILL_SPEED 8u

/* One sample's tokens, and what the reference says behind each. */
struct reference {
    uint32_t *ids; /* [prompt + 1 + steps_max] */
    uint32_t steps;
    float *logits; /* [steps_max, vocab] */
    struct kva_tier_bytes bytes;
};

struct run {
    const struct kva_eval_params *params;
    const struct kva_model_config *config;
    struct kva_eval *eval;
    const struct kva_engine *engine; /* of the sequence at hand */
    struct reference reference;
    float *logits;         /* [vocab], of the policy */
    double *sorted;        /* [steps_max] */
    double *logit_squares; /* [policy]: of the reference's, as long as policies have sums */
    uint64_t steps_max;
    uint64_t steps_before; /* of the samples that are done */
    uint32_t samples_used; /* those with a step */
    struct kva_coverage coverage;
    struct kva_sampling_params sampling;
    uint64_t done, total;
};

/* --- checks ---------------------------------------------------------------------------------- */

static uint32_t sample_steps_max(const struct kva_eval_sample *sample)
{
    return sample->count > sample->prompt ? sample->count - sample->prompt - 1
                                          : sample->continuation;
}

static enum kva_status check_sample(const struct kva_eval_params *p, uint32_t index,
                                    struct kva_err *err)
{
    const struct kva_eval_sample *s = &p->samples[index];
    uint32_t context = p->engine->limits.context_max;
    if (s->prompt == 0 || s->prompt > s->count || sample_steps_max(s) == 0)
        return kva_fail(err, KVA_EINVAL,
                        "sample %u: %u tokens of prompt and %u behind it leave nothing to measure; "
                        "at least 1 and 2 are needed",
                        index + 1, s->prompt, s->count - kva_min_u32(s->prompt, s->count));
    if (s->count > context || (uint64_t)s->prompt + 1 + sample_steps_max(s) > context)
        return kva_fail(err, KVA_ECONTEXT,
                        "sample %u: %u tokens of prompt and %llu behind it exceed the context of "
                        "%u",
                        index + 1, s->prompt, 1ull + sample_steps_max(s), context);
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ids[i] >= p->model->config.vocab_size)
            return kva_fail(err, KVA_EINVAL, "sample %u: token %u is %u, the vocabulary has %u",
                            index + 1, i, s->ids[i], p->model->config.vocab_size);
    }
    return KVA_OK;
}

static enum kva_status check(const struct kva_eval_params *p, struct kva_err *err)
{
    uint32_t context = p->engine->limits.context_max;
    enum kva_status status = KVA_OK;
    if (p->sample_count == 0 || p->spec_count == 0)
        return kva_fail(err, KVA_EINVAL, "there is nothing to compare");
    for (uint32_t i = 0; i < p->spec_count && !status; i++) {
        const struct kva_kv_spec *c = &p->specs[i];
        status = kva_kv_spec_check(c, err);
        if (!status && kva_kv_spec_k_max(c) >= context)
            status = kva_fail_param(err, KVA_EINVAL, "topk",
                                    "topk is %u, the model's context only has %u tokens",
                                    kva_kv_spec_k_max(c), context);
        /* It would make the result depend on a measurement of time. */
        if (!status && kva_kv_spec_has_setting(c, KVA_SETTING_PREDICTOR) &&
            c->predictor == KVA_PREDICT_AUTO)
            status = kva_fail_param(err, KVA_EINVAL, "predictor",
                                    "predictor is auto, which is another one on another machine: "
                                    "name the one to be compared");
    }
    for (uint32_t i = 0; i < p->sample_count && !status; i++)
        status = check_sample(p, i, err);
    return status;
}

/* --- one sequence ---------------------------------------------------------------------------- */

static void advance(struct run *run, uint64_t units)
{
    run->done += units;
    if (run->params->progress)
        run->params->progress(run->params->opaque, run->done, run->total);
}

static enum kva_status start(struct run *run, const struct kva_kv_spec *spec, uint32_t prompt,
                             uint32_t tokens, struct kva_sequence **ret, struct kva_err *err)
{
    const struct kva_engine *engine = run->engine;
    const struct kva_sequence_params params = {
        .prompt = run->reference.ids,
        .prompt_tokens = prompt,
        /* Room for one more, so that the last step looks ahead as the others do. */
        .tokens_max = kva_min_u32(tokens + 1, kva_kv_tokens_max(spec, engine->limits.context_max)),
        .sampling = &run->sampling,
        .kv = *spec,
    };
    uint32_t cached;
    struct kva_sequence *seq;
    enum kva_status status = engine->ops->create(engine->self, &params, &seq, err);
    if (status)
        return status;
    status = engine->ops->admit(engine->self, seq, &cached, NULL, err);
    if (status) {
        engine->ops->destroy(engine->self, seq);
        return status;
    }
    *ret = seq;
    return KVA_OK;
}

static enum kva_status step(struct run *run, struct kva_step_item *item, struct kva_err *err)
{
    const struct kva_engine *engine = run->engine;
    if (item->prefill_tokens == 0) {
        enum kva_status status = engine->ops->grow(engine->self, item->seq, err);
        if (status)
            return status;
    }
    enum kva_status status = engine->ops->step(engine->self, item, 1, err);
    if (!status && item->status)
        status = kva_fail(err, item->status, "the model's logits are not numbers");
    return status;
}

/* The whole prompt; the token behind it is item->forced_token, or what comes out. */
static enum kva_status prefill(struct run *run, struct kva_step_item *item, bool counted,
                               struct kva_err *err)
{
    item->prefill_tokens = PREFILL_QUOTA;
    enum kva_status status = KVA_OK;
    for (item->emitted = false; !item->emitted && !status;) {
        status = step(run, item, err);
        advance(run, counted ? item->prefill_done / PREFILL_SPEED : 0);
    }
    item->prefill_tokens = 0;
    return status;
}

/* --- the reference --------------------------------------------------------------------------- */

static bool ends(const struct kva_model_config *config, uint32_t token)
{
    for (uint32_t i = 0; i < config->eos_count; i++) {
        if (config->eos_ids[i] == token)
            return true;
    }
    return false;
}

/* Tokens behind the prompt as `full` sees them. Own continuations are written down. */
static enum kva_status follow(struct run *run, const struct kva_eval_sample *sample,
                              struct kva_step_item *item, struct kva_err *err)
{
    struct reference *r = &run->reference;
    bool given = sample->count > sample->prompt;
    uint32_t steps_max = sample_steps_max(sample);
    item->forced = given;
    item->forced_token = given ? r->ids[sample->prompt] : 0;
    enum kva_status status = prefill(run, item, true, err);
    r->ids[sample->prompt] = status ? 0 : item->token.token;
    bool end = !given && ends(run->config, r->ids[sample->prompt]);
    for (; r->steps < steps_max && !end && !status; r->steps++) {
        uint32_t at = sample->prompt + 1 + r->steps;
        item->forced_token = given ? r->ids[at] : 0;
        item->logits = r->logits + (size_t)r->steps * run->config->vocab_size;
        status = step(run, item, err);
        r->ids[at] = status ? 0 : item->token.token;
        end = !given && ends(run->config, r->ids[at]);
        advance(run, 1);
    }
    return status;
}

static void drop_reference(struct run *run)
{
    free(run->reference.ids);
    free(run->reference.logits);
    run->reference = (struct reference){0};
}

static enum kva_status make_reference(struct run *run, const struct kva_eval_sample *sample,
                                      struct kva_err *err)
{
    struct reference *r = &run->reference;
    const struct kva_eval_params *p = run->params;
    const struct kva_engine *engine = run->engine = p->reference ? p->reference : p->engine;
    uint32_t steps_max = sample_steps_max(sample), tokens = sample->prompt + 1 + steps_max;
    size_t vocab = run->config->vocab_size;
    r->ids = calloc(tokens, sizeof(*r->ids));
    r->logits = calloc(steps_max, vocab * sizeof(*r->logits));
    if (!r->ids || !r->logits)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u distributions over %zu tokens",
                        steps_max, vocab);
    memcpy(r->ids, sample->ids, sample->count * sizeof(*r->ids));
    const struct kva_kv_spec full = kva_kv_spec_default(KVA_KV_FULL);
    struct kva_step_item item = {0};
    enum kva_status status = start(run, &full, sample->prompt, tokens, &item.seq, err);
    if (status)
        return kva_err_prefix(err, status, "full KV, which others are held against");
    status = follow(run, sample, &item, err);
    struct kva_sequence_info info;
    engine->ops->sequence_info(engine->self, item.seq, &info);
    r->bytes = info.bytes;
    engine->ops->destroy(engine->self, item.seq);
    advance(run, steps_max - r->steps);
    return status;
}

/* --- a policy -------------------------------------------------------------------------------- */

static void take_step(struct run *run, struct kva_eval_policy *policy, double *ret_kl,
                      const struct kva_step_item *item, uint32_t index)
{
    const struct reference *r = &run->reference;
    size_t vocab = run->config->vocab_size;
    struct kva_divergence d = kva_divergence_of(r->logits + index * vocab, run->logits,
                                                (uint32_t)vocab, item->token.token);
    *ret_kl = d.kl;
    policy->steps++;
    policy->agreement += d.agrees;
    policy->nll += d.nll;
    policy->nll_reference += d.nll_reference;
    policy->logit_error += d.error_squares;
    run->logit_squares[policy - run->eval->policies] += d.logit_squares;
    if (!item->speculated)
        return;
    policy->spec_tokens++;
    policy->spec_as_full += item->spec_token == d.best;
    policy->spec_as_followed += item->spec_token == item->token.token;
}

static void add_bytes(struct kva_tier_bytes *to, struct kva_tier_bytes bytes)
{
    to->device += bytes.device;
    to->host += bytes.host;
}

static void add_looks(struct run *run, struct kva_eval_policy *policy)
{
    const struct kva_coverage *coverage = &run->coverage;
    for (uint32_t i = 0; policy->heads && i < run->eval->layers * run->eval->kv_heads; i++)
        kva_coverage_add(&policy->heads[i], &coverage->heads[i]);
    policy->looks += policy->heads ? coverage->steps : 0;
}

static enum kva_status decode(struct run *run, const struct kva_eval_sample *sample,
                              struct kva_eval_policy *policy, struct kva_step_item *item,
                              struct kva_err *err)
{
    const struct kva_eval_params *p = run->params;
    const struct reference *r = &run->reference;
    double *kl = run->eval->kl + (size_t)(policy - run->eval->policies) * run->steps_max;
    enum kva_status status = KVA_OK;
    item->logits = run->logits;
    for (uint32_t i = 0; i < r->steps && !status; i++) {
        bool look = policy->heads && i % p->look_every == 0;
        kva_model_engine_observe(p->engine, look ? &run->coverage.observer : NULL);
        item->forced_token = r->ids[sample->prompt + 1 + i];
        status = step(run, item, err);
        if (!status)
            take_step(run, policy, &kl[run->steps_before + i], item, i);
        advance(run, 1);
    }
    kva_model_engine_observe(p->engine, NULL);
    return status;
}

static enum kva_status run_policy(struct run *run, const struct kva_eval_sample *sample,
                                  struct kva_eval_policy *policy, struct kva_err *err)
{
    const struct reference *r = &run->reference;
    const struct kva_engine *engine = run->engine = run->params->engine;
    uint32_t tokens = sample->prompt + 1 + r->steps;
    struct kva_step_item item = {.forced = true, .forced_token = r->ids[sample->prompt]};
    enum kva_status status = start(run, &policy->spec, sample->prompt, tokens, &item.seq, err);
    if (status)
        return kva_err_prefix(err, status, "%s", kva_kv_spec_policy_name(&policy->spec));
    struct kva_sequence_info before = {0}, after;
    if (policy->heads)
        kva_coverage_clear(&run->coverage);
    status = prefill(run, &item, false, err);
    engine->ops->sequence_info(engine->self, item.seq, &before);
    if (!status)
        status = decode(run, sample, policy, &item, err);
    engine->ops->sequence_info(engine->self, item.seq, &after);
    engine->ops->destroy(engine->self, item.seq);
    if (status)
        return status;
    add_bytes(&policy->bytes, after.bytes);
    add_bytes(&policy->bytes_reference, r->bytes);
    kva_counts_since(&after.counts, &before.counts);
    kva_counts_add_all(&policy->counts, &after.counts);
    add_looks(run, policy);
    return KVA_OK;
}

/* --- all of it ------------------------------------------------------------------------------- */

static enum kva_status run_sample(struct run *run, const struct kva_eval_sample *sample,
                                  struct kva_err *err)
{
    enum kva_status status = make_reference(run, sample, err);
    for (uint32_t i = 0; i < run->eval->policy_count && !status; i++) {
        if (run->reference.steps > 0)
            status = run_policy(run, sample, &run->eval->policies[i], err);
        advance(run, sample_steps_max(sample) - run->reference.steps);
    }
    run->steps_before += run->reference.steps;
    run->samples_used += run->reference.steps > 0;
    drop_reference(run);
    return status;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sums to means. */
static void finish_policy(struct run *run, struct kva_eval_policy *policy)
{
    double steps = (double)policy->steps, *sorted = run->sorted;
    policy->kl = run->eval->kl + (size_t)(policy - run->eval->policies) * run->steps_max;
    for (uint64_t i = 0; i < policy->steps; i++)
        policy->kl_mean += policy->kl[i];
    memcpy(sorted, policy->kl, policy->steps * sizeof(*sorted));
    qsort(sorted, policy->steps, sizeof(*sorted), compare_doubles);
    policy->kl_mean /= steps;
    policy->kl_p99 = kva_quantile(sorted, policy->steps, 0.99);
    policy->kl_max = sorted[policy->steps - 1];
    policy->agreement /= steps;
    policy->nll /= steps;
    policy->nll_reference /= steps;
    double logit_squares = run->logit_squares[policy - run->eval->policies];
    policy->logit_error = logit_squares > 0 ? sqrt(policy->logit_error / logit_squares) : 0;
    uint32_t samples = run->samples_used;
    policy->bytes.device /= samples;
    policy->bytes.host /= samples;
    policy->bytes_reference.device /= samples;
    policy->bytes_reference.host /= samples;
}

static enum kva_status init(struct run *run, struct kva_err *err)
{
    const struct kva_eval_params *p = run->params;
    struct kva_eval *eval = run->eval;
    uint32_t heads = run->config->layer_count * run->config->kv_heads, k_max = 0;
    uint64_t prompts = 0;
    eval->layers = run->config->layer_count;
    eval->kv_heads = run->config->kv_heads;
    for (uint32_t i = 0; i < p->sample_count; i++) {
        run->steps_max += sample_steps_max(&p->samples[i]);
        prompts += p->samples[i].prompt;
    }
    run->total = prompts / PREFILL_SPEED + run->steps_max * (p->spec_count + 1);
    eval->policies = calloc(p->spec_count, sizeof(*eval->policies));
    eval->kl = calloc(run->steps_max, p->spec_count * sizeof(*eval->kl));
    run->sorted = calloc(run->steps_max, sizeof(*run->sorted));
    run->logits = calloc(run->config->vocab_size, sizeof(*run->logits));
    run->logit_squares = calloc(p->spec_count, sizeof(*run->logit_squares));
    bool ok = eval->policies && eval->kl && run->sorted && run->logits && run->logit_squares;
    for (uint32_t i = 0; i < p->spec_count && ok; i++) {
        struct kva_eval_policy *policy = &eval->policies[eval->policy_count++];
        policy->spec = p->specs[i];
        k_max = kva_max_u32(k_max, kva_kv_spec_k_max(&policy->spec));
        /* Attention to tokens that are gone cannot be looked at. */
        const struct kva_kv_spec resolved =
            kva_kv_spec_resolve(&policy->spec, p->samples[0].prompt, KVA_KV_TOKENS_MAX);
        bool looks = p->look_every > 0 && !kva_kv_drops(&resolved);
        if (looks)
            policy->heads = calloc(heads, sizeof(*policy->heads));
        ok = !looks || policy->heads;
    }
    if (!ok)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u policies and %llu steps",
                        p->spec_count, (unsigned long long)run->steps_max);
    const struct kva_coverage_params coverage = {
        .device = p->device,
        .config = run->config,
        .kv_dtype = p->kv_dtype,
        .context_max = p->engine->limits.context_max,
        .k_max = k_max,
    };
    return p->look_every > 0 ? kva_coverage_init(&run->coverage, &coverage, err) : KVA_OK;
}

enum kva_status kva_eval_run(const struct kva_eval_params *params, struct kva_eval **ret,
                             struct kva_err *err)
{
    enum kva_status status = check(params, err);
    if (status)
        return status;
    struct run run = {
        .params = params,
        .config = &params->model->config,
        .eval = calloc(1, sizeof(*run.eval)),
        .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1},
    };
    if (!run.eval)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    status = init(&run, err);
    for (uint32_t i = 0; i < params->sample_count && !status; i++)
        status = run_sample(&run, &params->samples[i], err);
    run.eval->steps = run.steps_before;
    if (!status && run.steps_before == 0)
        status = kva_fail(err, KVA_EINVAL, "every continuation ends at once: nothing to measure");
    for (uint32_t i = 0; i < run.eval->policy_count && !status; i++)
        finish_policy(&run, &run.eval->policies[i]);
    kva_coverage_finish(&run.coverage);
    drop_reference(&run);
    free(run.logits);
    free(run.logit_squares);
    free(run.sorted);
    if (status) {
        kva_eval_destroy(run.eval);
        return status;
    }
    *ret = run.eval;
    return KVA_OK;
}

struct kva_coverage_head kva_eval_sum(const struct kva_eval *eval,
                                      const struct kva_eval_policy *policy, uint32_t layer)
{
    struct kva_coverage_head sum = {0};
    for (uint32_t i = 0; policy->heads && i < eval->layers * eval->kv_heads; i++) {
        if (layer == KVA_NO_LAYER || layer == i / eval->kv_heads)
            kva_coverage_add(&sum, &policy->heads[i]);
    }
    return sum;
}

void kva_eval_destroy(struct kva_eval *eval)
{
    if (!eval)
        return;
    for (uint32_t i = 0; i < eval->policy_count; i++)
        free(eval->policies[i].heads);
    free(eval->policies);
    free(eval->kl);
    free(eval);
}
