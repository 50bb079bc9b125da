/* model_engine.c - sequences, memory and usage behind the scheduler's contract. */
#include "engine/model_engine.h"

#include "base/buf.h"
#include "base/log.h"
#include "engine/kv/placement.h"
#include "engine/kv/stream.h"
#include "engine/model/packed.h"
#include "engine/model/skew.h"
#include "engine/model_engine_internal.h"
#include "engine/planes.h"

#include <stdlib.h>
#include <string.h>

/* Prompts in the middle of their prefill at the same time: each holds the residual stream of all of
 * its tokens in the device tier. */
#define PARTIAL_PREFILLS_MAX 2u

/* --- sequences ------------------------------------------------------------------------------- */

static void sequence_free(struct model_engine *e, struct kva_sequence *seq)
{
    if (seq->constraint)
        seq->params.sampling->constraint->ops->end(seq->constraint);
    kva_pooling_end(e, seq);
    kva_kv_seq_finish(e->kv, &seq->kv);
    free(seq->prompt_logprobs);
    free(seq->ids);
    free(seq);
}

static uint32_t engine_tokens_max(void *self, const struct kva_kv_spec *spec)
{
    const struct model_engine *e = self;
    return kva_kv_tokens_max(spec, e->engine.limits.context_max);
}

static enum kva_status check_params(const struct model_engine *e,
                                    const struct kva_sequence_params *p, struct kva_err *err)
{
    if (p->prompt_tokens == 0)
        return kva_fail(err, KVA_EINVAL, "the prompt has no tokens");
    uint32_t tokens_max = kva_kv_tokens_max(&p->kv, e->engine.limits.context_max);
    if (p->tokens_max <= p->prompt_tokens || p->tokens_max > tokens_max)
        return kva_fail(err, KVA_EINVAL,
                        "prompt and output would have %u tokens; more than the prompt's %u and at "
                        "most %u are possible",
                        p->tokens_max, p->prompt_tokens, tokens_max);
    for (uint32_t i = 0; i < p->prompt_tokens; i++) {
        if (p->prompt[i] >= e->config->vocab_size)
            return kva_fail(err, KVA_EINVAL, "prompt token %u is %u, the vocabulary has %u", i,
                            p->prompt[i], e->config->vocab_size);
    }
    return KVA_OK;
}

/* So much of a prompt is computed exactly: all of it, or of one that exceeds the context less than
 * a page, which is for nobody else. What follows is fed piece by piece (prefill.c). */
static uint32_t exact_tokens(const struct model_engine *e, uint32_t prompt_tokens)
{
    bool exceeds = prompt_tokens > e->engine.limits.context_max;
    return exceeds ? KVA_PAGE_TOKENS - 1 : prompt_tokens;
}

/* Amounts in percent are of the whole prompt, of which the plan has less when it exceeds the context. */
static struct kva_kv_spec spec_of(const struct model_engine *e, const struct kva_sequence_params *p,
                                  uint32_t prefill_tokens)
{
    bool exceeds = prefill_tokens > e->engine.limits.context_max;
    return exceeds ? kva_kv_spec_resolve(&p->kv, p->prompt_tokens, p->tokens_max) : p->kv;
}

/* The sequence's storage in the cache, with its first `prefill_tokens` tokens for a prompt; `again`:
 * once more. */
static enum kva_status begin_kv(struct model_engine *e, struct kva_sequence *seq,
                                uint32_t prefill_tokens, bool again, struct kva_err *err)
{
    const struct kva_sequence_params *p = &seq->params;
    const struct kva_kv_spec spec = spec_of(e, p, prefill_tokens);
    const struct kva_kv_plan plan = {.spec = &spec,
                                     .prompt_tokens = exact_tokens(e, prefill_tokens),
                                     .tokens_max = p->tokens_max,
                                     .again = again};
    enum kva_status status = kva_kv_seq_init(e->kv, &seq->kv, &plan, err);
    if (status)
        return status;
    /* Log-probabilities of the prompt, and the mean of its tokens, need every row computed; what those
     * of a prompt have computed its other choices find. */
    const bool is_mean = p->pooling == KVA_POOLING_MEAN;
    seq->kv.scope[0] = p->cache_scope[0];
    seq->kv.scope[1] = p->cache_scope[1];
    seq->kv.share = e->params.prefix_cache && !p->cache_disabled && !is_mean;
    seq->kv.anew = p->sampling->prompt_logprobs >= 0 && p->prompt_tokens > 1;
    seq->prefill_tokens = prefill_tokens;
    return KVA_OK;
}

static enum kva_status engine_check(void *self, const struct kva_sequence_params *params,
                                    struct kva_err *err)
{
    struct model_engine *e = self;
    enum kva_status status = check_params(e, params, err);
    if (status)
        return status;
    const struct kva_kv_spec spec = spec_of(e, params, params->prompt_tokens);
    const struct kva_kv_plan plan = {.spec = &spec,
                                     .prompt_tokens = exact_tokens(e, params->prompt_tokens),
                                     .tokens_max = params->tokens_max};
    return kva_kv_check_fits(e->kv, &plan, err);
}

static enum kva_status engine_create(void *self, const struct kva_sequence_params *params,
                                     struct kva_sequence **ret, struct kva_err *err)
{
    struct model_engine *e = self;
    enum kva_status status = check_params(e, params, err);
    if (status)
        return status;
    struct kva_sequence *seq = calloc(1, sizeof(*seq));
    if (!seq)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a sequence");
    seq->params = *params;
    seq->pool_slot = KVA_NO_SLOT;
    if (kva_kv_spec_has_setting(&params->kv, KVA_SETTING_PREDICTOR))
        seq->params.kv.predictor =
            kva_kv_predictor_of(&params->kv, kva_device_get_info(e->device)->host_readable);
    status = begin_kv(e, seq, params->prompt_tokens, false, err);
    if (status) {
        free(seq);
        return status;
    }
    bool want_prompt_logprobs = params->sampling->prompt_logprobs >= 0 && params->prompt_tokens > 1;
    seq->ids = malloc(params->tokens_max * sizeof(*seq->ids));
    if (want_prompt_logprobs)
        seq->prompt_logprobs = calloc(params->prompt_tokens - 1, sizeof(*seq->prompt_logprobs));
    if (!seq->ids || (want_prompt_logprobs && !seq->prompt_logprobs)) {
        sequence_free(e, seq);
        return kva_fail(err, KVA_ENOMEM, "out of memory for a sequence of %u tokens",
                        params->tokens_max);
    }
    struct kva_constraint *constraint = params->sampling->constraint;
    status = constraint ? constraint->ops->begin(constraint, &seq->constraint, err) : KVA_OK;
    if (status) {
        sequence_free(e, seq);
        return status;
    }
    memcpy(seq->ids, params->prompt, params->prompt_tokens * sizeof(*seq->ids));
    seq->token_count = params->prompt_tokens;
    *ret = seq;
    return KVA_OK;
}

static void engine_destroy(void *self, struct kva_sequence *seq)
{
    if (seq)
        sequence_free(self, seq);
}

static enum kva_status engine_admit(void *self, struct kva_sequence *seq, uint32_t *ret_cached,
                                    enum kva_tier_id *short_of, struct kva_err *err)
{
    struct model_engine *e = self;
    uint32_t cached;
    enum kva_status status = kva_kv_seq_admit(e->kv, &seq->kv, seq->ids, &cached, short_of, err);
    if (status)
        return status;
    if (!seq->was_admitted)
        seq->cached_tokens = cached;
    seq->was_admitted = true;
    seq->prefill_first = cached;
    seq->prefill_position = cached;
    kva_pooling_begin(e, seq);
    *ret_cached = cached;
    return KVA_OK;
}

static void engine_admit_bytes(void *self, const struct kva_sequence *seq,
                               struct kva_tier_bytes *ret, uint32_t *ret_cached)
{
    struct model_engine *e = self;
    *ret = kva_kv_seq_admit_bytes(e->kv, &seq->kv, seq->ids, ret_cached);
}

static uint64_t engine_growth_bytes(void *self, const struct kva_sequence *seq)
{
    struct model_engine *e = self;
    return kva_kv_growth_bytes(e->kv, &seq->kv.spec, seq->kv.prompt_tokens);
}

static enum kva_status engine_grow(void *self, struct kva_sequence *seq, struct kva_err *err)
{
    struct model_engine *e = self;
    uint32_t tokens = seq->kv.tokens + kva_model_engine_rows(seq);
    if (!seq->prefilled)
        tokens = kva_model_engine_piece_end(seq);
    return kva_kv_seq_grow(e->kv, &seq->kv, tokens, err);
}

static void engine_suspend(void *self, struct kva_sequence *seq)
{
    struct model_engine *e = self;
    kva_kv_seq_suspend(e->kv, &seq->kv);
}

static enum kva_status engine_resume(void *self, struct kva_sequence *seq, struct kva_err *err)
{
    struct model_engine *e = self;
    return kva_kv_seq_resume(e->kv, &seq->kv, err);
}

static uint64_t engine_resume_bytes(void *self, const struct kva_sequence *seq)
{
    struct model_engine *e = self;
    return kva_kv_seq_resume_bytes(e->kv, &seq->kv);
}

static void engine_shared_bytes(void *self, const struct kva_sequence *seq,
                                struct kva_shared_bytes *ret)
{
    const struct model_engine *e = self;
    *ret = kva_kv_seq_shared_bytes(e->kv, &seq->kv);
}

/* Determinism makes it the same sequence: K and V of a token do not depend on whether it came in a
 * prompt or was decoded. */
static enum kva_status engine_restart(void *self, struct kva_sequence *seq, struct kva_err *err)
{
    struct model_engine *e = self;
    kva_kv_seq_finish(e->kv, &seq->kv);
    kva_pooling_end(e, seq);
    seq->prefill_first = seq->prefill_layer = seq->prefill_position = 0;
    seq->prefill_reported = 0;
    seq->prefilled = seq->silent = false;
    return begin_kv(e, seq, seq->token_count, true, err);
}

static void engine_sequence_info(void *self, const struct kva_sequence *seq,
                                 struct kva_sequence_info *ret)
{
    struct model_engine *e = self;
    *ret = (struct kva_sequence_info){
        .policy = kva_kv_spec_policy_name(&seq->params.kv),
        .bytes = kva_kv_seq_bytes(e->kv, &seq->kv),
        .cached_tokens = seq->cached_tokens,
        .kept_tokens =
            seq->kv.tokens - kva_counts_of(&seq->kv.counts, &kva_kv_counter_evicted_tokens),
        .counts = seq->kv.counts,
    };
}

static const struct kva_prompt_logprob *engine_prompt_logprobs(void *self KVA_UNUSED,
                                                               const struct kva_sequence *seq)
{
    return seq->prompt_logprobs;
}

static const float *engine_pooled(void *self, struct kva_sequence *seq, uint32_t *ret_count)
{
    struct model_engine *e = self;
    *ret_count = e->config->hidden_size;
    return kva_pooling_vector(e, seq);
}

static void engine_usage(void *self, struct kva_engine_usage *ret)
{
    struct model_engine *e = self;
    struct kva_kv_usage kv;
    kva_kv_usage(e->kv, &kv);
    *ret = (struct kva_engine_usage){
        .used = kv.used,
        .cached = kv.cached,
        .guests = {.device = e->kv->guest_bytes},
        .budget = kv.budget,
        .prefix_lookup_tokens = kv.prefix_lookup_tokens,
        .prefix_hit_tokens = kv.prefix_hit_tokens,
        .counts = kv.counts,
        .steps = e->steps,
    };
    memcpy(ret->sequences, kv.sequences, sizeof(ret->sequences));
}

static const struct kva_engine_ops engine_ops = {
    .create = engine_create,
    .admit = engine_admit,
    .admit_bytes = engine_admit_bytes,
    .growth_bytes = engine_growth_bytes,
    .grow = engine_grow,
    .suspend = engine_suspend,
    .resume = engine_resume,
    .resume_bytes = engine_resume_bytes,
    .shared_bytes = engine_shared_bytes,
    .restart = engine_restart,
    .step = kva_model_engine_step,
    .destroy = engine_destroy,
    .sequence_info = engine_sequence_info,
    .prompt_logprobs = engine_prompt_logprobs,
    .pooled = engine_pooled,
    .usage = engine_usage,
    .check = engine_check,
    .tokens_max = engine_tokens_max,
};

/* --- creation -------------------------------------------------------------------------------- */

enum kva_dtype kva_model_engine_kv_dtype(const struct kva_model *model)
{
    return model->config.dtype == KVA_BF16 ? KVA_BF16 : KVA_F16;
}

static void set_limits(struct model_engine *e)
{
    const struct kva_model_engine_params *p = &e->params;
    struct kva_kv_usage usage;
    kva_kv_usage(e->kv, &usage);
    e->engine.limits = (struct kva_engine_limits){
        .context_max = p->context_max,
        .sequences_max = p->sequences_max,
        .step_tokens_max = p->step_tokens_max,
        .partial_prefills_max = PARTIAL_PREFILLS_MAX,
        .prefill_tokens_min = KVA_PAGE_TOKENS,
        .budget = usage.budget,
    };
}

static bool has_windows(const struct kva_model_config *config)
{
    for (uint32_t i = 0; i < config->layer_count; i++) {
        if (config->layer_window[i] > 0)
            return true;
    }
    return false;
}

/* The model's skew where the device has it; without one, why. Vectors keep their bits there. */
static enum kva_status place_skew(const struct model_engine *e, struct kva_kv_skew *ret,
                                  struct kva_err *err)
{
    const struct kva_model *model = e->params.model;
    const struct kva_skew *skew = model->skew;
    struct kva_weight basis, columns;
    *ret = (struct kva_kv_skew){.unusable = model->skew_err.status == KVA_EFORMAT};
    if (!skew)
        return KVA_OK;
    const uint32_t count = skew->layers * skew->kv_heads * skew->head_dim;
    enum kva_status status =
        kva_device_weight(e->device, skew->basis, KVA_F32, 1, count * skew->head_dim, &basis, err);
    if (!status)
        status = kva_device_weight(e->device, skew->columns, KVA_F32, 1, count, &columns, err);
    if (!status)
        *ret = (struct kva_kv_skew){.basis = basis.data, .columns = columns.data};
    return status;
}

/* Rows whose logits are made together. Every such call reads the output matrix, which on a GPU is
 * what it costs: there all rows of a step are one, unless they are very many. On a CPU products
 * cost more than that with PICK_ROWS_MIN already. */
#define PICK_ROWS_MIN 64u
#define PICK_ROWS_MAX 320u

static uint32_t pick_rows(const struct model_engine *e)
{
    if (kva_device_get_info(e->device)->host_readable)
        return PICK_ROWS_MIN;
    return kva_max_u32(PICK_ROWS_MIN, kva_min_u32(2 * e->params.sequences_max, PICK_ROWS_MAX));
}

static enum kva_status create_parts(struct model_engine *e, struct kva_err *err)
{
    const struct kva_model_engine_params *p = &e->params;
    struct kva_kv_params kv = {
        .device = p->device,
        .layers = e->config->layer_count,
        .kv_heads = e->config->kv_heads,
        .head_dim = e->config->head_dim,
        .dtype = p->kv_dtype,
        .budget = p->budget,
        .prefix_cache = p->prefix_cache,
        .windowed = has_windows(e->config),
        .rotary = {e->config->rope.rotary_dim > 0 ? e->config->rope.inv_freq : NULL,
                   e->config->rope.rotary_dim},
        .sequences_max = p->sequences_max,
        .heads = e->config->heads,
        .stream_row_bytes = e->config->hidden_size * e->act_bytes,
        .remote = p->remote,
    };
    enum kva_status status = place_skew(e, &kv.skew, err);
    if (!status && p->planes_percent > 0)
        status = kva_planes_create(p->device, p->model, p->planes_percent, &e->planes, err);
    if (!status && e->planes) {
        kv.skew.planes = e->planes->placed;
        kv.skew.plane_columns = e->planes->columns;
    }
    if (!status)
        status = kva_kv_create(&kv, &e->kv, err);
    if (status)
        return status;
    const uint32_t rows_max = pick_rows(e);
    const struct kva_forward_params forward = {
        .device = p->device,
        .model = p->model,
        .kv = e->kv,
        .rows_max = p->step_tokens_max + p->sequences_max, /* speculative rows come on top */
        .sequences_max = p->sequences_max,
        .context_max = p->context_max,
        .logit_rows_max = rows_max,
        .tracked_max = rows_max * KVA_SAMPLER_TRACKED_MAX,
        .planes = e->planes,
    };
    status = kva_forward_create(&forward, &e->forward, err);
    if (!status)
        status = kva_sampler_create(e->config->vocab_size, &e->sampler, err);
    if (status)
        return status;
    status = kva_pick_create(&e->pick, rows_max, err);
    if (status)
        return status;
    e->batch_rows = calloc(p->sequences_max, sizeof(*e->batch_rows));
    e->batch_items = calloc(p->sequences_max, sizeof(struct kva_step_item *));
    e->pool_slots = calloc(p->sequences_max, sizeof(*e->pool_slots));
    if (!e->batch_rows || !e->batch_items || !e->pool_slots)
        return kva_fail(err, KVA_ENOMEM, "out of memory for steps of %u sequences",
                        p->sequences_max);
    for (uint32_t i = 0; i < p->sequences_max; i++)
        e->pool_slots[e->pool_slot_count++] = i;
    return KVA_OK;
}

enum kva_status kva_model_engine_check(const struct kva_device *device,
                                       const struct kva_model *model, struct kva_err *err)
{
    const uint32_t most = kva_device_head_dim_max(device);
    if (model->config.head_dim <= most)
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "head_dim",
                          "the model's heads have %u numbers (head_dim), attention takes at most "
                          "%u on the device '%s'",
                          model->config.head_dim, most, kva_device_get_info(device)->name);
}

enum kva_status kva_model_engine_create(const struct kva_model_engine_params *params,
                                        struct kva_engine **ret, struct kva_err *err)
{
    const struct kva_model_config *config = &params->model->config;
    if (params->context_max > config->context_max)
        return kva_fail_param(err, KVA_EINVAL, "context_max",
                              "context is %u tokens, the model was made for %u",
                              params->context_max, config->context_max);
    if (params->sequences_max == 0 || params->step_tokens_max < params->sequences_max)
        return kva_fail_param(err, KVA_EINVAL, "step_tokens_max",
                              "step-tokens is %u, it must be at least the %u of sequences: each "
                              "decodes a token in a step",
                              params->step_tokens_max, params->sequences_max);
    enum kva_status status = kva_model_engine_check(params->device, params->model, err);
    if (status)
        return status;
    struct model_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the engine");
    e->params = *params;
    e->config = config;
    e->device = params->device;
    e->act_bytes = kva_dtype_bytes(kva_device_get_info(params->device)->act);
    if (params->context_max == 0)
        e->params.context_max = config->context_max;
    if (params->kv_dtype == KVA_F32)
        e->params.kv_dtype = kva_model_engine_kv_dtype(params->model);
    e->engine.ops = &engine_ops;
    e->engine.self = e;
    status = create_parts(e, err);
    if (status) {
        kva_model_engine_destroy(&e->engine);
        return status;
    }
    set_limits(e);
    *ret = &e->engine;
    return KVA_OK;
}

void kva_model_engine_destroy(struct kva_engine *engine)
{
    if (!engine)
        return;
    struct model_engine *e = engine->self;
    kva_sampler_destroy(e->sampler);
    kva_forward_destroy(e->forward);
    kva_kv_destroy(e->kv);
    kva_planes_destroy(e->planes);
    free(e->batch_rows);
    free(e->batch_items);
    free(e->pool_slots);
    kva_pick_destroy(&e->pick);
    free(e);
}

void kva_model_engine_observe(struct kva_engine *engine,
                              const struct kva_forward_observer *observer)
{
    struct model_engine *e = engine->self;
    e->observer = observer;
}

/* --- the memory plan ------------------------------------------------------------------------- */

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

uint64_t kva_model_engine_fit(const struct kva_engine *engine, const struct kva_kv_spec *spec,
                              uint32_t tokens)
{
    const struct model_engine *e = engine->self;
    const struct kva_tier_bytes *budget = &e->engine.limits.budget;
    uint64_t stream = kva_kv_stream_bytes(e->kv, tokens);
    if (stream > budget->device || stream > budget->host)
        return 0;
    const struct kva_tier_bytes each = kva_model_engine_footprint(engine, spec, tokens, tokens);
    uint64_t device = (budget->device - stream) / each.device;
    uint64_t host = (budget->host - stream) / each.host;
    return device < host ? device : host;
}

static void put_packed(const struct kva_model_packed *packed, struct kva_buf *out)
{
    if (packed)
        kva_buf_printf(
            out, " (matrices %s%s, %s)",
            packed->weights == KVA_WEIGHTS_AUTO ? "as the file has them" : "in ",
            packed->weights == KVA_WEIGHTS_AUTO ? "" : kva_model_weights_name(packed->weights),
            packed->shared ? "shared with other processes" : "in memory of this process");
    kva_buf_putc(out, '\n');
}

void kva_model_engine_describe(const struct kva_engine *engine, const struct kva_kv_spec *specs,
                               struct kva_buf *out)
{
    const struct model_engine *e = engine->self;
    const struct kva_kv_shape *shape = &e->kv->shape;
    kva_buf_printf(out, "weights       %10.1f MiB", mib(e->params.model->weight_bytes));
    put_packed(e->params.model->packed, out);
    kva_buf_printf(out, "scratch       %10.1f MiB (steps of %u tokens)\n",
                   mib(kva_forward_scratch_bytes(e->forward)), e->engine.limits.step_tokens_max);
    kva_buf_printf(out, "device tier   %10.1f MiB of KV\n", mib(engine->limits.budget.device));
    kva_buf_printf(out, "host tier     %10.1f MiB of KV\n", mib(engine->limits.budget.host));
    kva_buf_printf(out, "KV per token  %10.1f KiB (%s, %u layers, %u heads of %u)\n",
                   (double)shape->page_bytes / KVA_PAGE_TOKENS / 1024, kva_dtype_name(shape->dtype),
                   shape->layers, shape->kv_heads, shape->head_dim);
    kva_buf_puts(out, "sequences that fit, by length in tokens:\n");
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++) {
        kva_buf_printf(out, "  %-9s", kva_kv_policy_name((enum kva_kv_policy_id)id));
        for (uint32_t tokens = engine->limits.context_max, i = 0; i < 4 && tokens >= 64;
             i++, tokens /= 4)
            kva_buf_printf(out, "  %u: %llu", tokens,
                           (unsigned long long)kva_model_engine_fit(engine, &specs[id], tokens));
        kva_buf_putc(out, '\n');
    }
}
