/* Sinks and a window, everything else gone for good: its attention against a plain computation, its
 * memory against its length, and what it must not disturb. */
#include "tests/cmocka.h"

#include "engine/forward.h"
#include "engine/kv/policy.h"
#include "kernels/convert.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <string.h>

#define FAMILIES "tests/golden/families/"
#define LLAMA    FAMILIES "llama3_gqa_bf16"
#define OPT      FAMILIES "opt_relu_tied"

enum { PROMPT = 200, STREAM = 900 };

static struct kva_kv_spec spec_of(uint32_t sinks, enum kva_kv_positions positions)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_STREAMING);
    spec.window = 64;
    spec.sinks = sinks;
    spec.positions = positions;
    return spec;
}

static uint32_t offloaded_at(uint32_t tokens)
{
    return tokens < 64 ? 0 : (tokens - 64) / KVA_PAGE_TOKENS;
}

/* --- driving --------------------------------------------------------------------------------- */

static const uint32_t *text(void)
{
    static uint32_t ids[STREAM + 1];
    if (ids[0] == 0)
        fixture_prompt(ids, STREAM + 1, VOCAB, 11);
    return ids;
}

static struct kva_sequence *begin(struct fixture *f, const struct kva_kv_spec *spec,
                                  uint32_t prompt, uint32_t tokens_max)
{
    static struct kva_sampling_params sampling;
    sampling = trace_sampling();
    struct kva_sequence *seq =
        fixture_start(f, &(struct kva_sequence_params){.prompt = text(),
                                                       .prompt_tokens = prompt,
                                                       .tokens_max = tokens_max,
                                                       .sampling = &sampling,
                                                       .kv = *spec});
    return seq;
}

enum { LOGITS_MAX = 1024 };

/* The log-probability of a token. */
static float logprob_of(const struct fixture *f, const float *logits, uint32_t token)
{
    double sum = 0;
    for (uint32_t i = 0; i < f->model->config.vocab_size; i++)
        sum += exp((double)logits[i]);
    return (float)((double)logits[token] - log(sum));
}

/* One step, after which the token `next` follows whatever comes out; its log-probability. */
static float feed(struct fixture *f, struct kva_sequence *seq, uint32_t quota, uint32_t next)
{
    struct kva_err err;
    float logits[LOGITS_MAX];
    struct kva_step_item item = {.seq = seq,
                                 .prefill_tokens = quota,
                                 .forced = true,
                                 .forced_token = next,
                                 .logits = logits};
    assert_true(f->model->config.vocab_size <= LOGITS_MAX);
    do {
        if (quota == 0)
            assert_int_equal(f->engine->ops->grow(f->engine->self, seq, &err), KVA_OK);
        assert_int_equal(f->engine->ops->step(f->engine->self, &item, 1, &err), KVA_OK);
        assert_int_equal(item.status, KVA_OK);
    } while (!item.emitted);
    return logprob_of(f, logits, next);
}

/* The text from its beginning to STREAM, of which `prompt` tokens are the prompt. */
static void run_stream(struct fixture *f, const struct kva_kv_spec *spec, uint32_t prompt,
                       uint32_t suspend_every, float *logprobs)
{
    struct kva_err err;
    struct kva_sequence *seq = begin(f, spec, prompt, STREAM + 1);
    for (uint32_t t = prompt; t < STREAM; t++) {
        logprobs[t] = feed(f, seq, t == prompt ? 64 : 0, text()[t]);
        if (suspend_every == 0 || t % suspend_every != 0)
            continue;
        f->engine->ops->suspend(f->engine->self, seq);
        assert_int_equal(f->engine->ops->resume(f->engine->self, seq, &err), KVA_OK);
    }
    f->engine->ops->destroy(f->engine->self, seq);
}

/* --- attention, plainly ---------------------------------------------------------------------- */

struct probe {
    struct fixture *f;
    const struct kva_kv_spec *spec;
    uint32_t seen, gaps; /* rows looked at, and of them those behind a gap */
    double worst;
};

/* out = q as it would be `back` positions earlier. */
static void turn_back(const struct kva_model_config *c, const float *q, uint32_t back, double *out)
{
    uint32_t half = c->rope.rotary_dim / 2;
    for (uint32_t i = 0; i < c->head_dim; i++)
        out[i] = q[i];
    for (uint32_t i = 0; i < half; i++) {
        double angle = -(double)back * (double)c->rope.inv_freq[i];
        out[i] = q[i] * cos(angle) - q[i + half] * sin(angle);
        out[i + half] = q[i + half] * cos(angle) + q[i] * sin(angle);
    }
}

/* Whether a query sees a token, and from which distance: dropped tokens count or do not. */
static bool sees(const struct probe *p, const struct kva_forward_view *view, uint32_t token,
                 uint32_t back)
{
    uint32_t window = p->f->model->config.layer_window[view->layer];
    uint32_t position = view->rows->position_first, first = offloaded_at(position) * 64;
    if (token >= p->spec->sinks && token < first)
        return false;
    uint32_t distance = position - token - (token < first ? back : 0);
    return window == 0 || distance < window;
}

static void check_head(struct probe *p, const struct kva_forward_view *view, uint32_t head)
{
    const struct kva_model_config *c = &p->f->model->config;
    uint32_t d = c->head_dim, position = view->rows->position_first;
    uint32_t first = offloaded_at(position) * 64;
    bool rolls = first > 0 && p->spec->positions == KVA_POSITIONS_INDEX;
    uint32_t back = rolls ? first - p->spec->sinks : 0;
    const float *q = (const float *)view->q + (size_t)head * d;
    const float *out = (const float *)view->out + (size_t)head * d;
    double near[128], far[128], want[128] = {0}, sum = 0;
    turn_back(c, q, back, near);
    turn_back(c, q, 0, far);
    for (uint32_t t = 0; t <= position; t++) {
        if (!sees(p, view, t, back))
            continue;
        const uint16_t *row = fixture_kv_row(p->f, view, head / (c->heads / c->kv_heads), t);
        double score = 0;
        for (uint32_t i = 0; i < d; i++)
            score += (t < first ? near : far)[i] * fixture_kv_number(p->f, row + i);
        double weight = exp(score * (double)c->attend_scale);
        sum += weight;
        for (uint32_t i = 0; i < d; i++)
            want[i] += weight * fixture_kv_number(p->f, row + d + i);
    }
    for (uint32_t i = 0; i < d; i++)
        p->worst = fmax(p->worst, fabs(want[i] / sum - (double)out[i]));
    p->gaps += first > 0;
}

static void check_attention(void *opaque, const struct kva_forward_view *view)
{
    struct probe *p = opaque;
    kva_device_sync(p->f->device, KVA_QUEUE_COPY);
    for (uint32_t head = 0; head < p->f->model->config.heads; head++)
        check_head(p, view, head);
    p->seen++;
}

/* Up to `tokens` tokens, every attention looked at. */
static double worst_of(struct fixture *f, const struct kva_kv_spec *spec, uint32_t tokens)
{
    struct probe probe = {.f = f, .spec = spec};
    const struct kva_forward_observer observer = {.attended = check_attention, .opaque = &probe};
    struct kva_sequence *seq = begin(f, spec, PROMPT, tokens + 1);
    kva_model_engine_observe(f->engine, &observer);
    for (uint32_t t = PROMPT; t < tokens; t++)
        feed(f, seq, t == PROMPT ? 64 : 0, text()[t]);
    kva_model_engine_observe(f->engine, NULL);
    f->engine->ops->destroy(f->engine->self, seq);
    assert_int_equal(probe.seen, (tokens - PROMPT - 1) * f->model->config.layer_count);
    assert_int_equal(probe.gaps, probe.seen * f->model->config.heads);
    return probe.worst;
}

/* Rotary positions, whole and partial, scaled and normed, sliding windows, and learned ones; past
 * the context of 256 where positions are rolled. */
static void test_streaming__attends_as_a_plain_computation(void **state KVA_UNUSED)
{
    static const char *const models[] = {LLAMA,
                                         OPT,
                                         FAMILIES "neox_parallel",
                                         FAMILIES "llama_yarn",
                                         FAMILIES "qwen3_qk_norm",
                                         FAMILIES "qwen2_mixed_window"};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = models[m],
                                                  .cpu_level_mask = fixture_unrounded_levels()});
        for (uint32_t i = 0; i < 4; i++) {
            const struct kva_kv_spec spec =
                spec_of(i % 2 ? 4 : 0, i < 2 ? KVA_POSITIONS_INDEX : KVA_POSITIONS_ORIGINAL);
            double worst = worst_of(&f, &spec, i < 2 ? 420 : 250);
            if (!(worst < 2e-5))
                fail_msg("%s, variant %u: attention is off by %g", models[m], i, worst);
        }
        fixture_close(&f);
    }
}

/* A sliding window counts what is kept: sinks are in it that were dropped from it long ago. */
static void test_streaming__sliding_windows_reach_sinks(void **state KVA_UNUSED)
{
    struct fixture f;
    const struct kva_kv_spec spec = spec_of(4, KVA_POSITIONS_INDEX);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA,
                                              .cpu_level_mask = fixture_unrounded_levels()});
    f.model->config.layer_window[0] = 100;
    double worst = worst_of(&f, &spec, 420);
    if (!(worst < 2e-5))
        fail_msg("attention is off by %g", worst);
    fixture_close(&f);
}

/* --- learned positions ----------------------------------------------------------------------- */

/* The residual stream that went into the first layer, of the last row of a pass. */
static float spied[STREAM][64];

static void spy(struct kva_kv *kv KVA_UNUSED, struct kva_kv_pass *pass, uint32_t layer,
                const void *hidden)
{
    uint32_t first = pass->rows[0].position_first;
    for (uint32_t i = 0; layer == 0 && i < pass->rows[0].row_count; i++)
        memcpy(spied[first + i], (const float *)hidden + (size_t)i * 64, sizeof(spied[0]));
}

/* A token gets the learned position of its index among those kept when it comes: with one token all
 * along, that is the row that has this position in a prompt. */
static void test_streaming__learned_positions_are_indices(void **state KVA_UNUSED)
{
    static struct kva_kv_policy policy;
    struct fixture f;
    uint32_t same[STREAM + 1];
    const struct kva_sampling_params sampling = trace_sampling();
    policy = kva_kv_policy_streaming;
    policy.layer_input = spy;
    struct kva_kv_spec spec = kva_kv_spec_own(&policy);
    spec.window = 64;
    for (uint32_t i = 0; i <= STREAM; i++)
        same[i] = 7;
    fixture_open(&f, &(struct fixture_params){.model_path = OPT});
    struct kva_sequence *seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = same,
                                                        .prompt_tokens = PROMPT,
                                                        .tokens_max = STREAM + 1,
                                                        .sampling = &sampling,
                                                        .kv = spec});
    for (uint32_t t = PROMPT; t < STREAM; t++)
        feed(&f, seq, t == PROMPT ? 64 : 0, 7);
    assert_memory_not_equal(spied[0], spied[1], sizeof(spied[0]));
    for (uint32_t t = PROMPT; t + 1 < STREAM; t++) {
        uint32_t index = t - offloaded_at(t) * 64 + spec.sinks;
        assert_true(index < PROMPT);
        assert_memory_equal(spied[t], spied[index], sizeof(spied[0]));
    }
    f.engine->ops->destroy(f.engine->self, seq);
    fixture_close(&f);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void test_streaming__memory_is_flat(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_sequence_info info;
    struct kva_engine_usage usage, first = {0};
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    const struct kva_kv_spec spec = spec_of(4, KVA_POSITIONS_INDEX);
    uint64_t page = f.model->config.layer_count *
                    kva_kv_block_bytes(f.model->config.kv_heads, f.model->config.head_dim);
    struct kva_sequence *seq = begin(&f, &spec, PROMPT, STREAM + 1);
    for (uint32_t t = PROMPT; t < STREAM; t++) {
        feed(&f, seq, t == PROMPT ? 64 : 0, text()[t]);
        if (t % 64 != 9)
            continue;
        f.engine->ops->usage(f.engine->self, &usage);
        f.engine->ops->sequence_info(f.engine->self, seq, &info);
        if (first.used.host == 0 && t > PROMPT + 128)
            first = usage;
        /* Near the end fewer pages are left to promise. */
        if (first.used.host > 0 && t + 256 < STREAM) {
            assert_int_equal(usage.used.device, first.used.device);
            assert_int_equal(usage.used.host, first.used.host);
        }
        /* The first page, and a window of two; promised: as many as may come at once. */
        assert_true(info.bytes.host <= 8 * page);
        assert_int_equal(info.kept_tokens + kva_counts_named(&info.counts, "evicted_tokens"), t);
        assert_int_equal(info.kept_tokens, t - offloaded_at(t) * 64 + 4);
    }
    f.engine->ops->destroy(f.engine->self, seq);
    f.engine->ops->usage(f.engine->self, &usage);
    assert_int_equal(usage.used.host, 0);
    fixture_close(&f);
}

/* Prompts of four pages, of which three stay, and one for what a suspension saves: once one is in,
 * its host memory is for the next. */
static void test_streaming__prompts_give_host_memory_back(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_err err;
    struct kva_sequence *seqs[3];
    uint32_t count[2] = {0};
    for (int i = 0; i < 2; i++) {
        const struct kva_kv_spec spec =
            i ? spec_of(4, KVA_POSITIONS_INDEX) : kva_kv_spec_default(KVA_KV_OFFLOAD);
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
        uint64_t page = f.model->config.layer_count *
                        kva_kv_block_bytes(f.model->config.kv_heads, f.model->config.head_dim);
        /* A prompt's residual stream is promised until it is in. */
        uint64_t stream = kva_model_engine_stream_bytes(f.engine, 255);
        fixture_close(&f);
        uint64_t room = (i ? 13 : 10) * page + stream;
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .host_bytes = room});
        const struct kva_sampling_params sampling = trace_sampling();
        const struct kva_sequence_params params = {.prompt = text(),
                                                   .prompt_tokens = 255,
                                                   .tokens_max = 256,
                                                   .sampling = &sampling,
                                                   .kv = spec};
        for (; count[i] < 3; count[i]++) {
            uint32_t cached;
            struct kva_sequence **seq = &seqs[count[i]];
            assert_int_equal(f.engine->ops->create(f.engine->self, &params, seq, &err), KVA_OK);
            enum kva_status status =
                f.engine->ops->admit(f.engine->self, *seq, &cached, NULL, &err);
            if (status) {
                f.engine->ops->destroy(f.engine->self, *seq);
                break;
            }
            feed(&f, *seq, 64, 1);
        }
        struct kva_engine_usage usage;
        f.engine->ops->usage(f.engine->self, &usage);
        assert_int_equal(usage.used.host, (i ? 12 : 8) * page);
        for (uint32_t j = 0; j < count[i]; j++)
            f.engine->ops->destroy(f.engine->self, seqs[j]);
        fixture_close(&f);
    }
    assert_int_equal(count[0], 2);
    assert_int_equal(count[1], 3);
}

/* Prompts are found in the prefix cache and feed it; sequences that share pages drop them apart. */
static void test_streaming__shares_prompts(void **state KVA_UNUSED)
{
    struct fixture f;
    float want[STREAM], alone[STREAM];
    struct kva_sequence *seqs[3];
    const struct kva_kv_spec spec = spec_of(4, KVA_POSITIONS_INDEX);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    run_stream(&f, &spec, PROMPT, 0, want);
    fixture_close(&f);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .prefix_cache = true});
    run_stream(&f, &spec, PROMPT, 0, alone);
    assert_memory_equal(alone + PROMPT, want + PROMPT, (STREAM - PROMPT) * sizeof(float));
    for (uint32_t i = 0; i < 3; i++) {
        struct kva_sequence_info info;
        seqs[i] = begin(&f, &spec, PROMPT, STREAM + 1);
        f.engine->ops->sequence_info(f.engine->self, seqs[i], &info);
        assert_int_equal(info.cached_tokens, PROMPT / 64 * 64);
    }
    for (uint32_t t = PROMPT; t < STREAM; t++) {
        for (uint32_t i = 0; i < 3; i++) {
            float got = feed(&f, seqs[i], t == PROMPT ? 64 : 0, text()[t]);
            assert_memory_equal(&got, &want[t], sizeof(got));
        }
    }
    for (uint32_t i = 0; i < 3; i++)
        f.engine->ops->destroy(f.engine->self, seqs[i]);
    struct kva_engine_usage usage;
    f.engine->ops->usage(f.engine->self, &usage);
    assert_int_equal(usage.used.host, usage.cached.host);
    fixture_close(&f);
}

/* --- what must not matter -------------------------------------------------------------------- */

static void test_streaming__a_window_that_holds_all_is_full(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_kv_spec spec = spec_of(4, KVA_POSITIONS_ORIGINAL);
    spec.window = CONTEXT;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    struct run run = {.prompt_tokens = PROMPT, .prompt_seed = 5};
    const struct trace full = trace_run(&f, &run);
    run.kv = spec;
    const struct trace all = trace_run(&f, &run);
    trace_expect_same(&all, &full, "a window that holds all");
    run.kv.window = 64;
    const struct trace some = trace_run(&f, &run);
    assert_int_equal(some.tokens[0], full.tokens[0]);
    assert_memory_not_equal(some.logprobs, full.logprobs, sizeof(some.logprobs));
    fixture_close(&f);
}

static void test_streaming__suspension_past_the_context(void **state KVA_UNUSED)
{
    struct fixture f;
    static float want[STREAM], got[STREAM];
    static const char *const models[] = {LLAMA, OPT};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        fixture_open(&f, &(struct fixture_params){
                             .model_path = models[m], .copy_delay_max_us = 100, .seed = 3});
        const struct kva_kv_spec spec = spec_of(4, KVA_POSITIONS_INDEX);
        run_stream(&f, &spec, 100, 0, want);
        run_stream(&f, &spec, 100, 7, got);
        assert_memory_equal(got + 100, want + 100, (STREAM - 100) * sizeof(float));
        fixture_close(&f);
    }
}

/* --- prompts that exceed the context --------------------------------------------------------- */

/* A prompt of `prompt` tokens, in quotas, then the text up to STREAM: log-probabilities of what
 * comes after it, and of the prompt itself if it exceeds the context. */
static void run_prompt(struct fixture *f, uint32_t prompt, uint32_t quota, bool suspend,
                       float *logprobs)
{
    struct kva_err err;
    struct kva_sampling_params sampling = trace_sampling();
    const struct kva_sequence_params params = {.prompt = text(),
                                               .prompt_tokens = prompt,
                                               .tokens_max = STREAM + 1,
                                               .sampling = &sampling,
                                               .kv = spec_of(4, KVA_POSITIONS_INDEX)};
    sampling.prompt_logprobs = 0;
    struct kva_sequence *seq = fixture_start(f, &params);
    float logits[LOGITS_MAX];
    struct kva_step_item item = {
        .seq = seq, .prefill_tokens = quota, .forced = true, .logits = logits};
    for (uint32_t at = 0; at < STREAM;) {
        item.forced_token = text()[prompt > at ? prompt : at];
        assert_int_equal(f->engine->ops->grow(f->engine->self, seq, &err), KVA_OK);
        assert_int_equal(f->engine->ops->step(f->engine->self, &item, 1, &err), KVA_OK);
        assert_true(item.prefill_done <= quota);
        at += at < prompt ? item.prefill_done : 0;
        if (item.emitted)
            logprobs[at++] = logprob_of(f, logits, item.forced_token);
        item.prefill_tokens = item.emitted ? 0 : item.prefill_tokens;
        if (!suspend)
            continue;
        f->engine->ops->suspend(f->engine->self, seq);
        assert_int_equal(f->engine->ops->resume(f->engine->self, seq, &err), KVA_OK);
    }
    const struct kva_prompt_logprob *of = f->engine->ops->prompt_logprobs(f->engine->self, seq);
    for (uint32_t i = 1; prompt > CONTEXT && i < prompt; i++)
        logprobs[i] = of[i - 1].actual.logprob;
    f->engine->ops->destroy(f->engine->self, seq);
}

/* The same whether tokens come in pieces of a prompt, in whatever quotas, or are decoded one by
 * one. */
static void test_streaming__prompts_past_the_context(void **state KVA_UNUSED)
{
    static float want[STREAM], got[STREAM];
    static const char *const models[] = {LLAMA, OPT, FAMILIES "neox_parallel"};
    static const uint32_t prompts[] = {63, 257, 640, 701, STREAM - 1};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        for (uint32_t i = 0; i < KVA_COUNT_OF(prompts); i++) {
            /* Each on a device of its own: nothing is there that another one left. */
            struct fixture f;
            uint32_t prompt = prompts[i];
            fixture_open(&f, &(struct fixture_params){
                                 .model_path = models[m], .copy_delay_max_us = 3000, .seed = 3});
            run_prompt(&f, prompt, i % 2 ? 200 : 29, i == 4, i ? got : want);
            fixture_close(&f);
            if (i == 0)
                continue;
            assert_memory_equal(got + prompt, want + prompt, (STREAM - prompt) * sizeof(float));
            for (uint32_t t = 64; t < prompt; t++) /* another sum of the same logits */
                assert_true(fabsf(got[t] - want[t]) < 1e-4f);
        }
    }
}

/* Its memory is a stream's from the beginning on, and what a lone one needs is what it is held
 * against; where another has the room, it waits for it. */
static void test_streaming__prompts_past_the_context_in_little_memory(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_err err;
    const struct kva_kv_spec spec = spec_of(4, KVA_POSITIONS_INDEX);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    uint64_t bytes = kva_model_engine_footprint(f.engine, &spec, 63, STREAM).device;
    uint64_t page = f.model->config.layer_count *
                    kva_kv_block_bytes(f.model->config.kv_heads, f.model->config.head_dim);
    fixture_close(&f);
    assert_true(bytes <= 5 * page);
    fixture_open(&f, &(struct fixture_params){
                         .model_path = LLAMA, .device_bytes = bytes, .host_bytes = 16 * page});
    struct kva_sequence *seq = begin(&f, &spec, 800, STREAM + 1), *other;
    struct kva_step_item item = {.seq = seq, .prefill_tokens = 500};
    assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, &err), KVA_OK);
    assert_int_equal(item.prefill_done, 500);
    f.engine->ops->suspend(f.engine->self, seq);
    /* The other one comes as far as the memory that there is beside the first. */
    other = begin(&f, &spec, 800, STREAM + 1);
    item.seq = other;
    assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, &err), KVA_OK);
    assert_int_equal(item.prefill_done, 500);
    assert_int_equal(f.engine->ops->resume(f.engine->self, seq, &err), KVA_ELIMIT);
    f.engine->ops->destroy(f.engine->self, other);
    other = begin(&f, &spec, 40, 100);
    feed(&f, other, 40, 0);
    assert_int_equal(f.engine->ops->resume(f.engine->self, seq, &err), KVA_OK);
    item.seq = seq;
    while (!item.emitted) {
        enum kva_status status = f.engine->ops->grow(f.engine->self, seq, &err);
        if (status) {
            assert_int_equal(status, KVA_ELIMIT);
            assert_non_null(other);
            f.engine->ops->destroy(f.engine->self, other);
            other = NULL;
            continue;
        }
        assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, &err), KVA_OK);
        assert_int_equal(item.status, KVA_OK);
        assert_true(item.prefill_done > 0);
    }
    f.engine->ops->destroy(f.engine->self, other);
    f.engine->ops->destroy(f.engine->self, seq);
    struct kva_engine_usage usage;
    f.engine->ops->usage(f.engine->self, &usage);
    assert_int_equal(usage.used.device + usage.used.host, 0);
    fixture_close(&f);
}

/* --- how far --------------------------------------------------------------------------------- */

static void test_streaming__how_far_a_sequence_may_go(void **state KVA_UNUSED)
{
    struct kva_kv_spec spec = spec_of(4, KVA_POSITIONS_INDEX);
    assert_int_equal(kva_kv_tokens_max(&spec, 256), KVA_KV_TOKENS_MAX);
    assert_int_equal(kva_kv_tokens_max(&spec, 132), KVA_KV_TOKENS_MAX);
    assert_int_equal(kva_kv_tokens_max(&spec, 131), 131);
    spec.positions = KVA_POSITIONS_ORIGINAL;
    assert_int_equal(kva_kv_tokens_max(&spec, 256), 256);
    spec = kva_kv_spec_default(KVA_KV_FULL);
    assert_int_equal(kva_kv_tokens_max(&spec, 256), 256);
    assert_true(kva_kv_policy_drops(KVA_KV_STREAMING));
    assert_false(kva_kv_policy_drops(KVA_KV_SPECACHE));

    struct fixture f;
    struct kva_err err;
    const struct kva_sampling_params sampling = trace_sampling();
    struct kva_sequence_params params = {.prompt = text(),
                                         .prompt_tokens = 100,
                                         .tokens_max = 257,
                                         .sampling = &sampling,
                                         .kv = spec_of(4, KVA_POSITIONS_ORIGINAL)};
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_EINVAL);
    params.kv.positions = KVA_POSITIONS_INDEX;
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_OK);
    params.tokens_max = KVA_KV_TOKENS_MAX;
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_OK);
    params.tokens_max++;
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_EINVAL);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streaming__attends_as_a_plain_computation),
        cmocka_unit_test(test_streaming__sliding_windows_reach_sinks),
        cmocka_unit_test(test_streaming__learned_positions_are_indices),
        cmocka_unit_test(test_streaming__memory_is_flat),
        cmocka_unit_test(test_streaming__prompts_give_host_memory_back),
        cmocka_unit_test(test_streaming__shares_prompts),
        cmocka_unit_test(test_streaming__a_window_that_holds_all_is_full),
        cmocka_unit_test(test_streaming__suspension_past_the_context),
        cmocka_unit_test(test_streaming__prompts_past_the_context),
        cmocka_unit_test(test_streaming__prompts_past_the_context_in_little_memory),
        cmocka_unit_test(test_streaming__how_far_a_sequence_may_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
