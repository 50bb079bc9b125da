/* A store of the tokens that were attended to most: mass, what is kept and attention against a plain
 * computation in double, its limits, its memory, and what it must not depend on. */
#include "tests/cmocka.h"

#include "engine/kv/parts/kept_internal.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FAMILIES "tests/golden/families/"
#define LLAMA    FAMILIES "llama3_gqa_bf16"
#define MHA      FAMILIES "llama2_mha_f16"
#define NEOX     FAMILIES "neox_parallel"
#define OPT      FAMILIES "opt_relu_tied"
#define MISTRAL  FAMILIES "mistral_window"

static const char *const models[] = {LLAMA, MHA, NEOX, OPT};

static struct kva_kv_spec spec_of(uint32_t heavy, uint32_t recent, enum kva_kv_mass mass)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_H2O);
    spec.heavy = heavy;
    spec.recent = recent;
    spec.mass = mass;
    return spec;
}

/* A store of one page. */
static struct kva_kv_spec small(enum kva_kv_mass mass)
{
    return spec_of(30, 64, mass);
}

/* The same in few bits, by mass and error. */
static struct kva_kv_spec coded(uint32_t bits, enum kva_kv_mass mass)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_QHITTER);
    spec.bits = bits;
    spec.heavy = 30;
    spec.pure = 10;
    spec.recent = 64;
    spec.mass = mass;
    return spec;
}

static struct trace run_under(const struct fixture_params *params, struct run run)
{
    struct fixture f;
    fixture_open(&f, params);
    struct trace trace = trace_run(&f, &run);
    fixture_close(&f);
    return trace;
}

/* --- limits ---------------------------------------------------------------------------------- */

/* Nothing is dropped from a store that holds all: its slots are the tokens, in their order. */
static void test_kept__a_store_that_holds_all_is_full(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        const struct fixture_params params = {.model_path = models[m]};
        struct run run = {.prompt_tokens = 200, .prompt_seed = 5};
        const struct trace full = run_under(&params, run);
        for (uint32_t mass = 0; mass < KVA_MASS_COUNT; mass++) {
            run.kv = spec_of(CONTEXT, 64, (enum kva_kv_mass)mass);
            const struct trace all = run_under(&params, run);
            trace_expect_same(&all, &full, models[m]);
        }
        run.kv = small(KVA_MASS_LAST);
        const struct trace some = run_under(&params, run);
        assert_int_equal(some.tokens[0], full.tokens[0]); /* the prefill is exact */
        assert_true(some.logprobs[0] == full.logprobs[0]);
        assert_memory_not_equal(some.logprobs, full.logprobs, sizeof(some.logprobs));
    }
}

/* --- what must not matter -------------------------------------------------------------------- */

static void test_kept__chunks_suspension_and_delays(void **state KVA_UNUSED)
{
    static const uint32_t prompts[] = {1, 50, 127, 128, 195, 216};
    static const struct {
        uint32_t quota, suspend_every, delay;
    } ways[] = {{29, 0, 0}, {200, 1, 300}, {7, 3, 300}, {64, 1, 0}};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        for (size_t i = 0; i < 2 * KVA_COUNT_OF(prompts); i++) {
            static const uint32_t bits[] = {2, 3, 4, 8};
            struct fixture_params params = {.model_path = models[m], .step_tokens_max = 256};
            enum kva_kv_mass mass = i % 2 ? KVA_MASS_ALL : KVA_MASS_LAST;
            struct run run = {.prompt_tokens = prompts[i / 2],
                              .prompt_seed = 9,
                              .kv = i < KVA_COUNT_OF(prompts) ? small(mass)
                                                              : coded(bits[i % 4], mass)};
            const struct trace want = run_under(&params, run);
            for (size_t w = 0; w < KVA_COUNT_OF(ways); w++) {
                params.step_tokens_max = 64;
                params.copy_delay_max_us = ways[w].delay;
                params.seed = 3;
                run.quota = ways[w].quota;
                run.suspend_every = ways[w].suspend_every;
                const struct trace got = run_under(&params, run);
                trace_expect_same(&got, &want, models[m]);
            }
        }
    }
}

/* Sequences side by side that began alike, and the prefix cache, change nothing: the last tokens of a
 * prompt, which say what its tokens are worth, are computed in any case. */
static void test_kept__company_and_the_prefix_cache(void **state KVA_UNUSED)
{
    enum { PROMPT = 200, MORE = 30, COUNT = 3 };
    struct fixture f;
    uint32_t prompt[PROMPT], tokens[COUNT];
    const struct kva_sampling_params sampling = trace_sampling();
    fixture_prompt(prompt, PROMPT, VOCAB, 4);
    for (uint32_t mass = 0; mass < KVA_MASS_COUNT; mass++) {
        struct run run = {.prompt_tokens = PROMPT, .prompt_seed = 4};
        run.kv = small((enum kva_kv_mass)mass);
        const struct trace want = run_under(&(struct fixture_params){.model_path = LLAMA}, run);
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .prefix_cache = true});
        struct kva_sequence *seqs[COUNT];
        for (uint32_t i = 0; i < COUNT; i++) {
            struct kva_sequence_info info;
            seqs[i] = fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                                      .prompt_tokens = PROMPT,
                                                                      .tokens_max = PROMPT + OUTPUT,
                                                                      .sampling = &sampling,
                                                                      .kv = run.kv});
            f.engine->ops->sequence_info(f.engine->self, seqs[i], &info);
            /* 200 - 64 tokens are two pages. */
            assert_int_equal(info.cached_tokens, i > 0 && mass == KVA_MASS_LAST ? 128 : 0);
            assert_int_equal(fixture_prefill(&f, seqs[i], 64), want.tokens[0]);
        }
        for (uint32_t t = 1; t < MORE; t++) {
            fixture_decode(&f, seqs, COUNT, tokens);
            for (uint32_t i = 0; i < COUNT; i++)
                assert_int_equal(tokens[i], want.tokens[t]);
        }
        for (uint32_t i = 0; i < COUNT; i++)
            f.engine->ops->destroy(f.engine->self, seqs[i]);
        struct kva_engine_usage usage;
        f.engine->ops->usage(f.engine->self, &usage);
        assert_int_equal(usage.used.host, usage.cached.host);
        assert_int_equal(usage.used.device, usage.cached.device);
        fixture_close(&f);
    }
}

/* All kinds of policies in one pass, with their own lengths: each says what it says alone. */
static void test_kept__in_company_of_other_policies(void **state KVA_UNUSED)
{
    enum { COUNT = 9 };
    const struct kva_kv_spec specs[COUNT] = {
        small(KVA_MASS_LAST),    coded(4, KVA_MASS_LAST), trace_variant(SYNC),
        coded(2, KVA_MASS_ALL),  trace_variant(FULL),     trace_variant(KIVI),
        coded(16, KVA_MASS_ALL), coded(4, KVA_MASS_ALL),  trace_variant(STREAMING_ORIGINAL),
    };
    struct fixture f;
    struct kva_err err;
    uint32_t prompts[COUNT][CONTEXT];
    struct trace want[COUNT];
    struct kva_step_item items[COUNT] = {0};
    const struct kva_sampling_params sampling = trace_sampling();
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct run run = {
            .prompt_tokens = 216 - 20 * i, .prompt_seed = 30 + i, .kv = specs[i]};
        want[i] = run_under(&(struct fixture_params){.model_path = LLAMA}, run);
    }
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .step_tokens_max = 100});
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t count = 216 - 20 * i;
        fixture_prompt(prompts[i], count, VOCAB, 30 + i);
        items[i].seq = fixture_start(&f, &(struct kva_sequence_params){.prompt = prompts[i],
                                                                       .prompt_tokens = count,
                                                                       .tokens_max = count + OUTPUT,
                                                                       .sampling = &sampling,
                                                                       .kv = specs[i]});
        assert_int_equal(fixture_prefill(&f, items[i].seq, 33), want[i].tokens[0]);
    }
    for (uint32_t t = 1; t < OUTPUT; t++) {
        for (uint32_t i = 0; i < COUNT; i++)
            assert_int_equal(f.engine->ops->grow(f.engine->self, items[i].seq, &err), KVA_OK);
        assert_int_equal(f.engine->ops->step(f.engine->self, items, COUNT, &err), KVA_OK);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_true(items[i].emitted);
            if (items[i].token.token != want[i].tokens[t] ||
                items[i].token.chosen.logprob != want[i].logprobs[t])
                fail_msg("sequence %u: token %u is another", i, t);
        }
    }
    for (uint32_t i = 0; i < COUNT; i++)
        f.engine->ops->destroy(f.engine->self, items[i].seq);
    fixture_close(&f);
}

/* --- past the context ------------------------------------------------------------------------ */

enum { STREAM = 900 };

/* The text, of which `prompt` tokens are the prompt: log-probabilities of what comes behind it. */
static void run_stream(const char *model, struct kva_kv_spec spec, uint32_t prompt, uint32_t quota,
                       uint32_t suspend_every, float *logprobs)
{
    struct fixture f;
    struct kva_err err;
    uint32_t ids[STREAM + 1];
    const struct kva_sampling_params sampling = trace_sampling();
    spec.positions = KVA_POSITIONS_INDEX;
    fixture_prompt(ids, STREAM + 1, VOCAB, 11);
    fixture_open(
        &f, &(struct fixture_params){.model_path = model, .copy_delay_max_us = 300, .seed = 3});
    struct kva_sequence *seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = ids,
                                                        .prompt_tokens = prompt,
                                                        .tokens_max = STREAM + 1,
                                                        .sampling = &sampling,
                                                        .kv = spec});
    struct kva_step_item item = {.seq = seq, .prefill_tokens = quota, .forced = true};
    for (uint32_t at = prompt, step = 1; at < STREAM; step++) {
        item.forced_token = ids[at];
        assert_int_equal(f.engine->ops->grow(f.engine->self, seq, &err), KVA_OK);
        assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, &err), KVA_OK);
        assert_int_equal(item.status, KVA_OK);
        if (item.emitted)
            logprobs[at++] = item.token.chosen.logprob;
        item.prefill_tokens = item.emitted ? 0 : item.prefill_tokens;
        if (suspend_every == 0 || step % suspend_every != 0)
            continue;
        f.engine->ops->suspend(f.engine->self, seq);
        assert_int_equal(f.engine->ops->resume(f.engine->self, seq, &err), KVA_OK);
    }
    f.engine->ops->destroy(f.engine->self, seq);
    fixture_close(&f);
}

/* The same whether tokens come in pieces of a prompt, in whatever quotas, or are decoded one by one,
 * and whoever had the memory in between. */
static void test_kept__past_the_context(void **state KVA_UNUSED)
{
    static float want[STREAM], got[STREAM];
    static const struct {
        uint32_t prompt, quota, suspend_every;
    } ways[] = {{63, 29, 7}, {300, 200, 0}, {641, 29, 1}, {STREAM - 1, 64, 3}};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        const struct kva_kv_spec spec = m % 2 ? coded(4, KVA_MASS_LAST) : small(KVA_MASS_LAST);
        run_stream(models[m], spec, 63, 200, 0, want);
        for (size_t i = 0; i < KVA_COUNT_OF(ways); i++) {
            run_stream(models[m], spec, ways[i].prompt, ways[i].quota, ways[i].suspend_every, got);
            size_t bytes = (STREAM - ways[i].prompt) * sizeof(float);
            assert_memory_equal(got + ways[i].prompt, want + ways[i].prompt, bytes);
        }
    }
}

static void test_kept__how_far_a_sequence_may_go(void **state KVA_UNUSED)
{
    struct kva_kv_spec spec = spec_of(60, 64, KVA_MASS_LAST);
    assert_int_equal(kva_kv_tokens_max(&spec, 256), 256);
    spec.positions = KVA_POSITIONS_INDEX;
    assert_int_equal(kva_kv_tokens_max(&spec, 256), KVA_KV_TOKENS_MAX);
    assert_int_equal(kva_kv_tokens_max(&spec, 192), KVA_KV_TOKENS_MAX);
    assert_int_equal(kva_kv_tokens_max(&spec, 191), 191);
    /* Of a prompt that nobody knows. */
    spec.recent = KVA_KV_PERCENT | 1;
    assert_int_equal(kva_kv_tokens_max(&spec, 256), 256);
    assert_true(kva_kv_policy_drops(KVA_KV_H2O));
    assert_false(kva_kv_policy_exact(KVA_KV_H2O));
}

/* --- a plain computation --------------------------------------------------------------------- */

enum { TEXT = 440, LAYERS = 3, HEADS = 8, DIM = 64 };

/* What a model with few heads has said so far, and what became of it. */
struct plain {
    struct fixture *f;
    const struct kva_kv_spec *spec; /* resolved */
    struct kva_kv_seq *seq;
    uint32_t prompt;
    float q[LAYERS][TEXT][HEADS][DIM];
    double kv[LAYERS][TEXT][HEADS][2][DIM]; /* by KV head */
    double mass[LAYERS][HEADS][TEXT];       /* by KV head */
    bool kept[LAYERS][HEADS][TEXT];         /* in the store, or in the window */
    uint32_t seen;
    double worst, worst_mass;
};

static struct plain *plain;

/* A policy's layer_query: the queries of all rows, and what their K and V are. */
static void note(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q)
{
    const struct kva_kv_rows *rows = &pass->rows[0];
    const struct kva_model_config *c = &plain->f->model->config;
    plain->seq = rows->seq;
    assert_true(c->head_dim <= DIM && c->heads <= HEADS && c->layer_count <= LAYERS);
    for (uint32_t i = 0; i < rows->row_count; i++) {
        uint32_t t = rows->position_first + i;
        const uint16_t *block = *kva_kv_block_at(rows, t / KVA_PAGE_TOKENS);
        for (uint32_t head = 0; head < c->heads; head++)
            memcpy(plain->q[layer][t][head], (const float *)q + (i * c->heads + head) * c->head_dim,
                   c->head_dim * sizeof(float));
        for (uint32_t head = 0; head < kv->shape.kv_heads; head++) {
            const uint16_t *row =
                block + (size_t)(head * KVA_PAGE_TOKENS + t % KVA_PAGE_TOKENS) * 2 * c->head_dim;
            for (uint32_t d = 0; d < 2 * c->head_dim; d++)
                plain->kv[layer][t][head][d / c->head_dim][d % c->head_dim] =
                    fixture_kv_number(plain->f, row + d);
        }
    }
}

/* Attention of a row's head over what its KV head has of tokens [0, t], added to the mass if `count`;
 * out[head_dim]. */
static void attend(uint32_t layer, uint32_t t, uint32_t head, bool count, double *out)
{
    const struct kva_model_config *c = &plain->f->model->config;
    uint32_t kv_head = head / (c->heads / c->kv_heads);
    double weights[TEXT], sum = 0;
    memset(out, 0, c->head_dim * sizeof(*out));
    for (uint32_t i = 0; i <= t; i++) {
        double score = 0;
        for (uint32_t d = 0; d < c->head_dim; d++)
            score += (double)plain->q[layer][t][head][d] * plain->kv[layer][i][kv_head][0][d];
        weights[i] = plain->kept[layer][kv_head][i] ? exp(score * (double)c->attend_scale) : 0;
        sum += weights[i];
    }
    for (uint32_t i = 0; i <= t; i++) {
        for (uint32_t d = 0; d < c->head_dim; d++)
            out[d] += weights[i] / sum * plain->kv[layer][i][kv_head][1][d];
        plain->mass[layer][kv_head][i] += count ? weights[i] / sum : 0;
    }
}

/* What attention gave is what it should give. */
static void check_attention(void *opaque KVA_UNUSED, const struct kva_forward_view *view)
{
    const struct kva_model_config *c = &plain->f->model->config;
    double want[DIM];
    for (uint32_t i = 0; i < view->rows->row_count; i++) {
        uint32_t t = view->rows->position_first + i;
        for (uint32_t head = 0; head < c->heads; head++) {
            const float *out =
                (const float *)view->out + ((size_t)i * c->heads + head) * c->head_dim;
            attend(view->layer, t, head, true, want);
            for (uint32_t d = 0; d < c->head_dim; d++)
                plain->worst = fmax(plain->worst, fabs(want[d] - (double)out[d]));
        }
        plain->seen++;
    }
}

/* The store of a layer's KV head is what mass says, up to rounding; from here on it is believed.
 * Tokens before `end` are in the store or nowhere. */
static void check_store(struct kva_kv *kv, uint32_t layer, uint32_t head, uint32_t end,
                        uint32_t before)
{
    const struct kva_kept_state *s = kva_kept_state_of(plain->seq);
    struct kva_kept_layout l = kva_kept_layout_of(kv, &plain->seq->spec);
    uint32_t slots = kva_kept_slots(&plain->seq->spec), filled = slots < end ? slots : end;
    const unsigned char *marks = s->marks + layer * l.layer_bytes;
    const uint32_t *positions =
        (const uint32_t *)(const void *)(marks + l.positions) + head * slots;
    const float *masses = (const float *)(const void *)(marks + l.mass) + head * slots;
    double *mass = plain->mass[layer][head], least = INFINITY, most = -INFINITY;
    bool in[TEXT] = {false}, *kept = plain->kept[layer][head];
    for (uint32_t i = 0; i < filled; i++) {
        uint32_t t = positions[i];
        assert_true(t < end && !in[t]);
        in[t] = true;
        assert_true(kept[t]); /* what is gone does not come back */
        plain->worst_mass =
            fmax(plain->worst_mass, fabs(mass[t] - (double)masses[i]) / fmax(mass[t], 1));
    }
    for (uint32_t t = 0; t < end; t++) {
        bool held = t < plain->spec->sinks || t + (plain->spec->recent - 64) >= end;
        assert_true(in[t] || !held);
        if (!held && in[t])
            least = fmin(least, mass[t]);
        if (kept[t] && !in[t])
            most = fmax(most, mass[t]);
        kept[t] = in[t];
    }
    assert_true(before <= end && least >= most - 1e-4 * fmax(most, 1));
}

static void check_stores(struct kva_kv *kv, uint32_t end, uint32_t before)
{
    const struct kva_model_config *c = &plain->f->model->config;
    for (uint32_t layer = 0; layer < c->layer_count; layer++) {
        for (uint32_t head = 0; head < c->kv_heads; head++)
            check_store(kv, layer, head, end, before);
    }
}

/* The mass that the prompt's rows give. */
static void weigh_prompt(void)
{
    const struct kva_model_config *c = &plain->f->model->config;
    uint32_t first = plain->spec->mass == KVA_MASS_ALL ? 0 : plain->prompt - KVA_KV_OBSERVED;
    double out[DIM];
    for (uint32_t layer = 0; layer < c->layer_count; layer++) {
        for (uint32_t t = first; t < plain->prompt; t++) {
            for (uint32_t head = 0; head < c->heads; head++)
                attend(layer, t, head, true, out);
        }
    }
}

static struct kva_kv *noted_kv;

static void note_all(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q)
{
    noted_kv = kv;
    note(kv, pass, layer, q);
}

static void run_plain(const char *model, const struct kva_kv_spec *settings, uint32_t prompt,
                      uint32_t tokens, uint32_t quota)
{
    static struct kva_kv_policy policy;
    struct fixture f;
    uint32_t ids[TEXT + 1], token;
    const struct kva_sampling_params sampling = trace_sampling();
    const struct kva_forward_observer observer = {.attended = check_attention};
    plain = calloc(1, sizeof(*plain));
    policy = kva_kv_policy_h2o;
    policy.layer_query = note_all;
    struct kva_kv_spec own = *settings, resolved = kva_kv_spec_resolve(settings, prompt);
    own.own = &policy;
    fixture_open(&f, &(struct fixture_params){.model_path = model,
                                              .cpu_level_mask = fixture_unrounded_levels()});
    plain->f = &f;
    plain->spec = &resolved;
    plain->prompt = prompt;
    memset(plain->kept, true, sizeof(plain->kept));
    fixture_prompt(ids, prompt, VOCAB, 21);
    struct kva_sequence *seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = ids,
                                                        .prompt_tokens = prompt,
                                                        .tokens_max = tokens + 1,
                                                        .sampling = &sampling,
                                                        .kv = own});
    fixture_prefill(&f, seq, quota);
    weigh_prompt();
    uint32_t end = plain->seq->offloaded * KVA_PAGE_TOKENS;
    if (end > 0)
        check_stores(noted_kv, end, 0);
    kva_model_engine_observe(f.engine, &observer);
    for (uint32_t t = prompt; t < tokens; t++) {
        fixture_decode(&f, &seq, 1, &token);
        uint32_t now = plain->seq->offloaded * KVA_PAGE_TOKENS;
        if (now > end)
            check_stores(noted_kv, now, end);
        end = now;
    }
    kva_model_engine_observe(f.engine, NULL);
    f.engine->ops->destroy(f.engine->self, seq);
    assert_int_equal(plain->seen, (tokens - prompt) * f.model->config.layer_count);
    if (!(plain->worst < 2e-5 && plain->worst_mass < 2e-5))
        fail_msg("%s: attention is off by %g, mass by %g", model, plain->worst, plain->worst_mass);
    fixture_close(&f);
    free(plain);
}

static void test_kept__attends_as_a_plain_computation(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct kva_kv_spec spec = small(KVA_MASS_LAST);
        run_plain(models[m], &spec, 200, 250, 64);
        spec = small(KVA_MASS_ALL);
        run_plain(models[m], &spec, 200, 250, 37);
        /* Percent, recent tokens in the store, and no sinks. */
        spec = spec_of(KVA_KV_PERCENT | 5, KVA_KV_PERCENT | 50, KVA_MASS_LAST);
        spec.sinks = 0;
        run_plain(models[m], &spec, 190, 250, 64);
        /* A store that fills while decoding, then overflows. */
        spec = spec_of(50, 64, KVA_MASS_LAST);
        run_plain(models[m], &spec, 100, 255, 64);
    }
}

/* --- few bits -------------------------------------------------------------------------------- */

/* At 16 bits there is nothing to tell tokens apart but mass. */
static void test_kept__sixteen_bits_are_h2o(void **state KVA_UNUSED)
{
    const struct fixture_params params = {.model_path = LLAMA};
    struct run run = {.prompt_tokens = 200, .prompt_seed = 5, .kv = small(KVA_MASS_LAST)};
    const struct trace want = run_under(&params, run);
    run.kv = coded(16, KVA_MASS_LAST);
    const struct trace got = run_under(&params, run);
    trace_expect_same(&got, &want, "16 bits");
}

/* Positions in the stores of all layers and heads, sorted, once the prompt is in. */
static void stored_after(struct kva_kv_spec spec, uint32_t prompt, uint32_t *ret,
                         uint32_t *ret_count)
{
    static struct kva_kv_policy policy;
    struct fixture f;
    uint32_t ids[TEXT];
    const struct kva_sampling_params sampling = trace_sampling();
    policy = *kva_kv_policy_of(&spec);
    policy.layer_query = note_all;
    spec.own = &policy;
    plain = calloc(1, sizeof(*plain));
    fixture_prompt(ids, prompt, VOCAB, 21);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    plain->f = &f;
    struct kva_sequence *seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = ids,
                                                        .prompt_tokens = prompt,
                                                        .tokens_max = prompt + 2,
                                                        .sampling = &sampling,
                                                        .kv = spec});
    fixture_prefill(&f, seq, 64);
    const struct kva_kept_layout l = kva_kept_layout_of(noted_kv, &plain->seq->spec);
    uint32_t slots = kva_kept_slots(&plain->seq->spec), at = 0;
    assert_int_equal(slots, 64);
    for (uint32_t layer = 0; layer < f.model->config.layer_count; layer++) {
        const uint32_t *positions = (const void *)(kva_kept_state_of(plain->seq)->marks +
                                                   layer * l.layer_bytes + l.positions);
        for (uint32_t head = 0; head < f.model->config.kv_heads; head++) {
            bool in[TEXT] = {false};
            for (uint32_t i = 0; i < slots; i++)
                in[positions[head * slots + i]] = true;
            for (uint32_t t = 0; t < prompt; t++) {
                if (in[t])
                    ret[at++] = t;
            }
        }
    }
    *ret_count = at;
    f.engine->ops->destroy(f.engine->self, seq);
    fixture_close(&f);
    free(plain);
}

/* Error does not count at lambda 100, and alone at 0; `pure` tokens are chosen as if it were 100. */
static void test_kept__lambda(void **state KVA_UNUSED)
{
    enum { PROMPT = 250, MOST = 1024 };
    uint32_t want[MOST], got[MOST], want_count, count;
    stored_after(small(KVA_MASS_ALL), PROMPT, want, &want_count);
    assert_int_equal(want_count, 2 * 2 * 64);
    for (uint32_t i = 0; i < 8; i++) {
        struct kva_kv_spec spec = coded(i < 4 ? 3 : 2, KVA_MASS_ALL);
        bool same = i % 4 == 0 || i % 4 == 3;
        spec.lambda = i % 4 == 0 ? 100 : 0;
        spec.pure = i % 4 == 3 ? 60 : 0;
        spec.norm = i % 4 == 2 ? KVA_NORM_MINMAX : KVA_NORM_RANK;
        stored_after(spec, PROMPT, got, &count);
        assert_int_equal(count, want_count);
        assert_int_equal(memcmp(got, want, count * sizeof(*got)) == 0, same);
    }
}

/* More bits are closer to full KV, from a store that holds all. */
static void test_kept__more_bits_are_closer_to_full(void **state KVA_UNUSED)
{
    static const uint32_t bits[] = {2, 3, 4, 8, 16};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        double before = INFINITY;
        for (size_t i = 0; i < KVA_COUNT_OF(bits); i++) {
            double sum = 0;
            uint32_t count = 0;
            for (uint64_t seed = 0; seed < 12; seed++) {
                const struct fixture_params params = {.model_path = models[m]};
                struct run run = {.prompt_tokens = 200, .prompt_seed = 100 + seed};
                const struct trace want = run_under(&params, run);
                run.kv = coded(bits[i], KVA_MASS_LAST);
                run.kv.heavy = CONTEXT;
                const struct trace got = run_under(&params, run);
                assert_true(got.logprobs[0] == want.logprobs[0]);
                for (uint32_t t = 1; t < OUTPUT && got.tokens[t - 1] == want.tokens[t - 1]; t++)
                    sum += pow((double)got.logprobs[t] - (double)want.logprobs[t], 2), count++;
            }
            print_message("%s, %u bits: squared error %g\n", models[m], bits[i], sum / count);
            assert_true(bits[i] < 16 ? sum / count < before : sum == 0);
            before = sum / count;
        }
    }
}

/* --- memory ---------------------------------------------------------------------------------- */

static void test_kept__bytes_told_are_bytes_taken(void **state KVA_UNUSED)
{
    enum { PROMPT = 210 };
    struct fixture f;
    uint32_t prompt[PROMPT], token;
    struct kva_sequence_info info;
    struct kva_engine_usage usage;
    const struct kva_sampling_params sampling = trace_sampling();
    fixture_prompt(prompt, PROMPT, VOCAB, 4);
    for (uint32_t heavy = 20; heavy <= 140; heavy += 60) {
        const struct kva_kv_spec spec = spec_of(heavy, 64, KVA_MASS_LAST);
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
        struct kva_tier_bytes most = kva_model_engine_footprint(f.engine, &spec, PROMPT, 250);
        most.device += kva_model_engine_stream_bytes(f.engine, PROMPT);
        most.host += kva_model_engine_stream_bytes(f.engine, PROMPT);
        struct kva_sequence *seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = PROMPT,
                                                            .tokens_max = 250,
                                                            .sampling = &sampling,
                                                            .kv = spec});
        for (uint32_t t = PROMPT - 1; t + 1 < 250; t++) {
            if (t >= PROMPT)
                fixture_decode(&f, &seq, 1, &token);
            f.engine->ops->sequence_info(f.engine->self, seq, &info);
            f.engine->ops->usage(f.engine->self, &usage);
            assert_int_equal(info.bytes.host, usage.used.host);
            /* Pages that left the window are droppable copies no more. */
            assert_int_equal(info.bytes.device, usage.used.device - usage.cached.device);
            assert_true(info.bytes.device <= most.device && info.bytes.host <= most.host);
            if (t + 1 == PROMPT) {
                assert_true(info.bytes.device * 100 >= most.device * 99);
                assert_true(info.bytes.host * 100 >= most.host * 99);
                fixture_prefill(&f, seq, 64);
            }
        }
        uint32_t slots = (4 + heavy + 63) / 64 * 64;
        uint32_t kept = slots < 128 ? slots : 128; /* two pages have left */
        assert_int_equal(info.kept_tokens, 249 - 128 + kept);
        assert_int_equal(kva_counts_named(&info.counts, "evicted_tokens"), 128 - kept);
        f.engine->ops->suspend(f.engine->self, seq);
        struct kva_sequence_info suspended;
        f.engine->ops->sequence_info(f.engine->self, seq, &suspended);
        assert_int_equal(suspended.bytes.device, 0);
        assert_int_equal(suspended.bytes.host, info.bytes.host);
        f.engine->ops->destroy(f.engine->self, seq);
        f.engine->ops->usage(f.engine->self, &usage);
        assert_int_equal(usage.used.host, 0);
        fixture_close(&f);
    }
}

/* Prompts that fit the host one at a time: once one is in, its memory is for the next. */
static void test_kept__prompts_give_host_memory_back(void **state KVA_UNUSED)
{
    enum { PROMPT = 250, COUNT = 6 };
    struct fixture f;
    struct kva_err err;
    uint32_t prompt[PROMPT];
    const struct kva_sampling_params sampling = trace_sampling();
    const struct kva_kv_spec spec = small(KVA_MASS_LAST);
    struct kva_sequence_params params = {.prompt = prompt,
                                         .prompt_tokens = PROMPT,
                                         .tokens_max = PROMPT + 1,
                                         .sampling = &sampling,
                                         .kv = spec};
    struct kva_sequence *seqs[COUNT];
    fixture_prompt(prompt, PROMPT, VOCAB, 4);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    uint64_t most = kva_model_engine_footprint(f.engine, &spec, PROMPT, PROMPT + 1).host +
                    kva_model_engine_stream_bytes(f.engine, PROMPT);
    struct kva_sequence_info info;
    struct kva_sequence *seq = fixture_start(&f, &params);
    fixture_prefill(&f, seq, 64);
    f.engine->ops->sequence_info(f.engine->self, seq, &info);
    f.engine->ops->destroy(f.engine->self, seq);
    fixture_close(&f);
    assert_true(info.bytes.host < most);
    uint64_t budget = most + (COUNT - 1) * info.bytes.host;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .host_bytes = budget});
    for (uint32_t i = 0; i < COUNT; i++) {
        seqs[i] = fixture_start(&f, &params);
        /* While one is read there is no room for another. */
        struct kva_sequence *other;
        uint32_t cached;
        assert_int_equal(f.engine->ops->create(f.engine->self, &params, &other, &err), KVA_OK);
        if (i + 1 == COUNT)
            assert_int_equal(f.engine->ops->admit(f.engine->self, other, &cached, NULL, &err),
                             KVA_ELIMIT);
        f.engine->ops->destroy(f.engine->self, other);
        fixture_prefill(&f, seqs[i], 64);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        f.engine->ops->destroy(f.engine->self, seqs[i]);
    fixture_close(&f);
}

/* However little device memory there is: a sequence is admitted whole, or nothing is taken. */
static void test_kept__a_device_tier_that_is_full(void **state KVA_UNUSED)
{
    enum { PROMPT = 200 };
    uint32_t prompt[PROMPT], admitted = 0, refused = 0;
    const struct kva_sampling_params sampling = trace_sampling();
    const struct kva_kv_spec spec = spec_of(60, 64, KVA_MASS_LAST);
    const struct kva_sequence_params params = {.prompt = prompt,
                                               .prompt_tokens = PROMPT,
                                               .tokens_max = PROMPT + 2,
                                               .sampling = &sampling,
                                               .kv = spec};
    fixture_prompt(prompt, PROMPT, VOCAB, 4);
    for (uint64_t chunks = 1; chunks < 48; chunks++) {
        struct fixture f;
        struct kva_err err;
        struct kva_sequence *seqs[2] = {NULL, NULL};
        struct kva_engine_usage usage;
        uint64_t page = 2 * kva_kv_block_bytes(2, 16);
        fixture_open(&f,
                     &(struct fixture_params){.model_path = LLAMA, .device_bytes = chunks * page});
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t cached;
            if (f.engine->ops->create(f.engine->self, &params, &seqs[i], &err)) {
                assert_string_equal(err.param, "device");
                seqs[i] = NULL;
                continue;
            }
            f.engine->ops->usage(f.engine->self, &usage);
            uint64_t before = usage.used.device - usage.cached.device;
            if (f.engine->ops->admit(f.engine->self, seqs[i], &cached, NULL, &err) == KVA_OK) {
                assert_int_equal(cached, 0);
                admitted++;
                continue;
            }
            f.engine->ops->usage(f.engine->self, &usage);
            assert_int_equal(usage.used.device - usage.cached.device, before);
            assert_true(i > 0); /* what can be made fits alone */
            refused++;
        }
        for (uint32_t i = 0; i < 2; i++)
            f.engine->ops->destroy(f.engine->self, seqs[i]);
        f.engine->ops->usage(f.engine->self, &usage);
        assert_int_equal(usage.used.device, 0);
        assert_int_equal(usage.used.host, 0);
        fixture_close(&f);
    }
    assert_true(admitted > 20 && refused > 5);
}

/* --- what is refused ------------------------------------------------------------------------- */

static void test_kept__refuses_sliding_windows(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_err err;
    uint32_t prompt[100];
    struct kva_sequence *seq;
    const struct kva_sampling_params sampling = trace_sampling();
    const struct kva_sequence_params params = {.prompt = prompt,
                                               .prompt_tokens = 100,
                                               .tokens_max = 110,
                                               .sampling = &sampling,
                                               .kv = small(KVA_MASS_LAST)};
    fixture_prompt(prompt, 100, VOCAB, 4);
    fixture_open(&f, &(struct fixture_params){.model_path = MISTRAL});
    assert_int_equal(f.engine->ops->create(f.engine->self, &params, &seq, &err), KVA_EUNSUPPORTED);
    assert_string_equal(err.param, "policy");
    assert_non_null(strstr(err.message, "sliding windows"));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept__a_store_that_holds_all_is_full),
        cmocka_unit_test(test_kept__chunks_suspension_and_delays),
        cmocka_unit_test(test_kept__company_and_the_prefix_cache),
        cmocka_unit_test(test_kept__in_company_of_other_policies),
        cmocka_unit_test(test_kept__past_the_context),
        cmocka_unit_test(test_kept__how_far_a_sequence_may_go),
        cmocka_unit_test(test_kept__attends_as_a_plain_computation),
        cmocka_unit_test(test_kept__sixteen_bits_are_h2o),
        cmocka_unit_test(test_kept__lambda),
        cmocka_unit_test(test_kept__more_bits_are_closer_to_full),
        cmocka_unit_test(test_kept__bytes_told_are_bytes_taken),
        cmocka_unit_test(test_kept__prompts_give_host_memory_back),
        cmocka_unit_test(test_kept__a_device_tier_that_is_full),
        cmocka_unit_test(test_kept__refuses_sliding_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
