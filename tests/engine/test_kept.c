/* A store of the tokens that were attended to most: its limits, what it must not depend on, and its
 * memory. */
#include "tests/cmocka.h"

#include "engine/kv/parts/kept_internal.h"
#include "tests/engine/kept_specs.h"

#include <stdlib.h>
#include <string.h>

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
            if ((i + m) % FIXTURE_EVERY != 0)
                continue;
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
    enum { COUNT = 11 };
    const struct kva_kv_spec specs[COUNT] = {
        coded(4, KVA_MASS_LAST),
        coded_plainly(4, KVA_MASS_LAST),
        coded_plainly(2, KVA_MASS_ALL),
        coded(2, KVA_MASS_ALL),
        small(KVA_MASS_LAST),
        trace_variant(SYNC),
        trace_variant(FULL),
        trace_variant(KIVI),
        coded(16, KVA_MASS_ALL),
        coded(4, KVA_MASS_ALL),
        trace_variant(STREAMING_ORIGINAL),
    };
    struct fixture f;
    struct kva_err err;
    uint32_t prompts[COUNT][CONTEXT];
    struct trace want[COUNT];
    struct kva_step_item items[COUNT] = {0};
    const struct kva_sampling_params sampling = trace_sampling();
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct run run = {
            .prompt_tokens = 216 - 16 * i, .prompt_seed = 30 + i, .kv = specs[i]};
        want[i] = run_under(&(struct fixture_params){.model_path = LLAMA}, run);
    }
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .step_tokens_max = 100});
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t count = 216 - 16 * i;
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

/* LOGITS: at least as many as any of the models has. */
enum { STREAM = 900, LOGITS = 320 };

static void see_seq(void *opaque, const struct kva_forward_view *view)
{
    *(const struct kva_kv_seq **)opaque = view->rows->seq;
}

/* Suspends and resumes the sequence. The pages that are made of the store are not saved: here nothing
 * is left of them for certain, whoever had their memory in between. */
static void suspend_without_rolled(struct fixture *f, struct kva_sequence *seq,
                                   const struct kva_kv_seq *kv_seq)
{
    enum { PAGES_MAX = 4 };
    const struct kva_kept_state *s = kva_kept_state_of(kv_seq);
    const struct kva_model_config *c = &f->model->config;
    const size_t bytes = c->layer_count * kva_kv_block_bytes(c->kv_heads, c->head_dim);
    const uint32_t count = s->rolled ? s->page_count : 0;
    struct kva_err err;
    void *rolled[PAGES_MAX];
    assert_true(count <= PAGES_MAX);
    for (uint32_t i = 0; i < count; i++)
        rolled[i] = s->rolled[i];
    f->engine->ops->suspend(f->engine->self, seq);
    for (uint32_t i = 0; i < count; i++)
        memset(rolled[i], 0x3D, bytes);
    assert_int_equal(f->engine->ops->resume(f->engine->self, seq, &err), KVA_OK);
}

/* The text, of which `prompt` tokens are the prompt: logits of what comes behind it, [STREAM]
 * [LOGITS]. */
static void run_stream(const char *model, struct kva_kv_spec spec, uint32_t prompt, uint32_t quota,
                       uint32_t suspend_every, float *logits)
{
    struct fixture f;
    struct kva_err err;
    uint32_t ids[STREAM + 1];
    const struct kva_sampling_params sampling = trace_sampling();
    spec.positions = KVA_POSITIONS_INDEX;
    fixture_prompt(ids, STREAM + 1, VOCAB, 11);
    const struct kva_kv_seq *kv_seq = NULL; /* from the first decoded token on */
    const struct kva_forward_observer observer = {.attends = see_seq, .opaque = &kv_seq};
    fixture_open(
        &f, &(struct fixture_params){.model_path = model, .copy_delay_max_us = 300, .seed = 3});
    assert_true(f.model->config.vocab_size <= LOGITS);
    kva_model_engine_observe(f.engine, &observer);
    struct kva_sequence *seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = ids,
                                                        .prompt_tokens = prompt,
                                                        .tokens_max = STREAM + 1,
                                                        .sampling = &sampling,
                                                        .kv = spec});
    struct kva_step_item item = {.seq = seq, .prefill_tokens = quota, .forced = true};
    for (uint32_t at = prompt, step = 1; at < STREAM; step++) {
        item.forced_token = ids[at];
        item.logits = logits + (size_t)at * LOGITS;
        assert_int_equal(f.engine->ops->grow(f.engine->self, seq, &err), KVA_OK);
        assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, &err), KVA_OK);
        assert_int_equal(item.status, KVA_OK);
        at += item.emitted;
        item.prefill_tokens = item.emitted ? 0 : item.prefill_tokens;
        if (suspend_every > 0 && step % suspend_every == 0)
            trace_suspend(&f, seq);
        if (suspend_every > 0 && step % suspend_every == 1 && kv_seq)
            suspend_without_rolled(&f, seq, kv_seq);
    }
    f.engine->ops->destroy(f.engine->self, seq);
    fixture_close(&f);
}

/* The same whether tokens come in pieces of a prompt, in whatever quotas, or are decoded one by one,
 * and whoever had the memory in between. */
static void test_kept__past_the_context(void **state KVA_UNUSED)
{
    static float want[STREAM * LOGITS], got[STREAM * LOGITS];
    static const struct {
        uint32_t prompt, quota, suspend_every;
    } ways[] = {{63, 29, 7}, {300, 200, 0}, {641, 29, 5}, {STREAM - 1, 64, 3}};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        const struct kva_kv_spec spec = m % 2 ? coded(4, KVA_MASS_LAST) : small(KVA_MASS_LAST);
        run_stream(models[m], spec, 63, 200, 0, want);
        assert_memory_not_equal(want + 63 * LOGITS, want + (STREAM - 1) * LOGITS,
                                VOCAB * sizeof(*want)); /* there are logits */
        for (size_t i = 0; i < KVA_COUNT_OF(ways); i++) {
            if (FIXTURE_QUICK && (i + m) % KVA_COUNT_OF(ways) != 0)
                continue;
            run_stream(models[m], spec, ways[i].prompt, ways[i].quota, ways[i].suspend_every, got);
            const size_t first = (size_t)ways[i].prompt * LOGITS;
            assert_memory_equal(got + first, want + first, sizeof(want) - first * sizeof(*want));
        }
    }
}

enum { PLACED = 216, DECODED = 24 };

/* The sequence is suspended, and resumed when another one has had its memory. */
static void lend_memory(struct fixture *f, struct kva_sequence *seq,
                        const struct kva_sequence_params *params)
{
    struct kva_err err;
    uint32_t ids[PLACED];
    struct kva_sequence_params others = *params;
    fixture_prompt(ids, PLACED, VOCAB, 23);
    others.prompt = ids;
    f->engine->ops->suspend(f->engine->self, seq);
    struct kva_step_item item = {.seq = fixture_start(f, &others), .prefill_tokens = 64};
    while (!item.emitted) {
        assert_int_equal(f->engine->ops->grow(f->engine->self, item.seq, &err), KVA_OK);
        assert_int_equal(f->engine->ops->step(f->engine->self, &item, 1, &err), KVA_OK);
    }
    f->engine->ops->destroy(f->engine->self, item.seq);
    assert_int_equal(f->engine->ops->resume(f->engine->self, seq, &err), KVA_OK);
}

/* A prompt whose layers go through one after the other, and what is decoded behind it. */
static void run_placed(const char *model, struct kva_kv_spec spec, uint32_t lend_every,
                       float *logits)
{
    struct fixture f;
    struct kva_err err;
    uint32_t ids[PLACED + DECODED];
    const struct kva_sampling_params sampling = trace_sampling();
    spec.positions = KVA_POSITIONS_INDEX;
    fixture_prompt(ids, PLACED + DECODED, VOCAB, 11);
    fixture_open(&f, &(struct fixture_params){.model_path = model, .step_tokens_max = 64});
    assert_true(f.model->config.vocab_size <= LOGITS);
    const struct kva_sequence_params params = {.prompt = ids,
                                               .prompt_tokens = PLACED,
                                               .tokens_max = PLACED + DECODED + 1,
                                               .sampling = &sampling,
                                               .kv = spec};
    struct kva_step_item item = {
        .seq = fixture_start(&f, &params), .prefill_tokens = 60, .forced = true};
    for (uint32_t at = 0, step = 1; at < DECODED; step++) {
        item.forced_token = ids[PLACED + at];
        item.logits = logits + (size_t)at * LOGITS;
        assert_int_equal(f.engine->ops->grow(f.engine->self, item.seq, &err), KVA_OK);
        assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, &err), KVA_OK);
        assert_int_equal(item.status, KVA_OK);
        at += item.emitted;
        item.prefill_tokens = item.emitted ? 0 : item.prefill_tokens;
        if (lend_every > 0 && step % lend_every == 0 && at == 0)
            lend_memory(&f, item.seq, &params);
    }
    f.engine->ops->destroy(f.engine->self, item.seq);
    fixture_close(&f);
}

/* Pages that are made of a layer's store are made again when the prompt was suspended behind it. */
static void test_kept__positions_of_a_suspended_prompt(void **state KVA_UNUSED)
{
    static float want[DECODED * LOGITS], got[DECODED * LOGITS];
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        const struct kva_kv_spec spec = m % 2 ? coded(4, KVA_MASS_LAST) : small(KVA_MASS_LAST);
        run_placed(models[m], spec, 0, want);
        for (uint32_t every = 1; every <= 3; every += 2) {
            run_placed(models[m], spec, every, got);
            assert_memory_equal(got, want, sizeof(want));
        }
    }
}

/* Percent are of a prompt's tokens, not of the few that are computed before the others are fed. */
static void test_kept__percent_of_a_prompt_past_the_context(void **state KVA_UNUSED)
{
    enum { PROMPT = STREAM - 1, FED = PROMPT * LOGITS };
    static float want[STREAM * LOGITS], got[STREAM * LOGITS];
    struct kva_kv_spec spec = coded(2, KVA_MASS_LAST);
    spec.pure = (PROMPT * 2 + 99) / 100;
    run_stream(LLAMA, spec, PROMPT, 200, 0, want);
    spec.pure = KVA_KV_PERCENT | 2;
    run_stream(LLAMA, spec, PROMPT, 200, 0, got);
    assert_memory_equal(got + FED, want + FED, VOCAB * sizeof(*want));
    spec.pure = 2; /* percent of a page */
    run_stream(LLAMA, spec, PROMPT, 200, 0, got);
    assert_memory_not_equal(got + FED, want + FED, VOCAB * sizeof(*want));
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
    struct kva_kv_spec specs[6];
    for (uint32_t i = 0; i < 6; i++) {
        specs[i] = i < 3 ? spec_of(20 + 60 * i, 64, KVA_MASS_LAST) : coded(i + 1, KVA_MASS_LAST);
        specs[i].positions = i == 2 || i == 5 ? KVA_POSITIONS_INDEX : KVA_POSITIONS_ORIGINAL;
    }
    specs[4].bits = 8;
    specs[5].bits = 3;
    for (uint32_t i = 0; i < KVA_COUNT_OF(specs); i++) {
        const struct kva_kv_spec spec = specs[i];
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
        struct kva_tier_bytes most = kva_model_engine_footprint(f.engine, &spec, PROMPT, 250);
        most.device += kva_model_engine_stream_bytes(f.engine, PROMPT);
        most.host += kva_model_engine_stream_bytes(f.engine, PROMPT);
        const struct kva_model_config *c = &f.model->config;
        uint64_t page = c->layer_count * kva_kv_block_bytes(c->kv_heads, c->head_dim);
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
            /* Pages in few bits lie in whole chunks of the tier. */
            uint64_t used = usage.used.device - usage.cached.device;
            assert_true(info.bytes.device <= used && used - info.bytes.device < page);
            assert_true(kva_kept_codes(&spec) || info.bytes.device == used);
            assert_true(info.bytes.device <= most.device && info.bytes.host <= most.host);
            if (t + 1 == PROMPT) {
                assert_true(used * 100 >= most.device * 99);
                assert_true(info.bytes.host * 100 >= most.host * 99);
                fixture_prefill(&f, seq, 64);
            }
        }
        uint32_t slots = (4 + spec.heavy + 63) / 64 * 64;
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

/* Of a store that a sequence cannot fill nothing is taken or promised but what it can: 190 tokens
 * give it one page. What it says is what it said. */
static void test_kept__a_store_is_no_larger_than_its_sequence(void **state KVA_UNUSED)
{
    enum { PROMPT = 150 };
    const struct kva_sampling_params sampling = trace_sampling();
    uint32_t prompt[PROMPT];
    fixture_prompt(prompt, PROMPT, VOCAB, 4);
    for (uint32_t i = 0; i < 6; i++) {
        struct fixture f;
        struct kva_engine_usage usage;
        struct kva_kv_spec enough = i < 2 ? small(KVA_MASS_LAST) : coded(4, KVA_MASS_LAST);
        enough.heavy = 60;
        enough.bits = i >= 4 ? 16 : enough.bits;
        enough.positions = i % 2 ? KVA_POSITIONS_INDEX : KVA_POSITIONS_ORIGINAL;
        struct kva_kv_spec wide = enough;
        wide.heavy = 5000;
        wide.recent = 3000;
        const struct fixture_params params = {.model_path = LLAMA};
        struct run run = {
            .prompt_tokens = PROMPT, .prompt_seed = 4, .kv = enough, .suspend_every = 5};
        const struct trace want = run_under(&params, run);
        run.kv = wide;
        const struct trace got = run_under(&params, run);
        trace_expect_same(&got, &want, "a store with room");
        fixture_open(&f, &params);
        const struct kva_tier_bytes most =
            kva_model_engine_footprint(f.engine, &wide, PROMPT, PROMPT + OUTPUT);
        const struct kva_tier_bytes least =
            kva_model_engine_footprint(f.engine, &enough, PROMPT, PROMPT + OUTPUT);
        assert_int_equal(most.device, least.device);
        assert_int_equal(most.host, least.host);
        struct kva_sequence *seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = PROMPT,
                                                            .tokens_max = PROMPT + OUTPUT,
                                                            .sampling = &sampling,
                                                            .kv = wide});
        f.engine->ops->usage(f.engine->self, &usage);
        assert_int_equal(usage.used.host,
                         most.host + kva_model_engine_stream_bytes(f.engine, PROMPT));
        f.engine->ops->destroy(f.engine->self, seq);
        fixture_close(&f);
    }
}

/* A store that the prompt does not fill grows until it is full, and then no more. */
static void test_kept__grows_while_there_is_a_store_to_fill(void **state KVA_UNUSED)
{
    const struct kva_sampling_params sampling = trace_sampling();
    const struct {
        struct kva_kv_spec spec;
        uint32_t prompt;
        bool grows;
    } cases[] = {{spec_of(100, 100, KVA_MASS_LAST), 100, true},
                 {spec_of(100, 100, KVA_MASS_LAST), 200, true},
                 {spec_of(5000, 100, KVA_MASS_LAST), 100, true},
                 {spec_of(30, 64, KVA_MASS_LAST), 127, true},
                 {spec_of(30, 64, KVA_MASS_LAST), 128, false},
                 {coded(4, KVA_MASS_LAST), 100, true},
                 {coded(4, KVA_MASS_LAST), 200, false}};
    uint32_t prompt[CONTEXT];
    struct fixture f;
    struct kva_err err;
    fixture_prompt(prompt, CONTEXT, VOCAB, 4);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    const struct kva_model_config *c = &f.model->config;
    const uint64_t page = c->layer_count * kva_kv_block_bytes(c->kv_heads, c->head_dim);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_sequence *seq;
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = cases[i].prompt,
                                                   .tokens_max = CONTEXT,
                                                   .sampling = &sampling,
                                                   .kv = cases[i].spec};
        assert_int_equal(f.engine->ops->create(f.engine->self, &params, &seq, &err), KVA_OK);
        const uint64_t growth = f.engine->ops->growth_bytes(f.engine->self, seq);
        assert_int_equal(growth, cases[i].grows ? page : 0);
        f.engine->ops->destroy(f.engine->self, seq);
    }
    fixture_close(&f);
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

/* Keys are turned so many at once: what counts is what a sequence can keep, be it said in percent.
 */
static void test_kept__refuses_more_than_are_turned_at_once(void **state KVA_UNUSED)
{
    enum { POSITIONS = 131072 };
    static const char config[] =
        "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,"
        "\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":1,\"vocab_size\":300,\"max_position_embeddings\":131072}";
    static const struct {
        const char *spec;
        uint32_t prompt;
        bool fits;
    } cases[] = {
        {"h2o:positions=index:heavy=512", 1000, true},
        {"h2o:positions=index:heavy=50%:recent=50%", 1000, true},
        {"h2o:positions=index:heavy=50%:recent=50%", 65000, true},
        {"h2o:positions=index:heavy=50%:recent=50%", 70000, false},
        {"q-hitter:positions=index:heavy=70%:recent=30%", 70000, false},
        {"h2o:positions=original:heavy=50%:recent=50%", 70000, true},
        {"h2o:positions=index:heavy=70000:recent=64", 80000, false},
    };
    char path[FIXTURE_PATH_BYTES];
    struct fixture f;
    struct kva_err err;
    uint32_t *prompt = calloc(POSITIONS, sizeof *prompt);
    const struct kva_sampling_params sampling = trace_sampling();
    fixture_make_model(config, 1, 0, path);
    fixture_open(&f, &(struct fixture_params){.model_path = path,
                                              .context_max = POSITIONS,
                                              .device_bytes = 100 << 20,
                                              .host_bytes = 100 << 20});
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_sequence_params params = {.prompt = prompt,
                                             .prompt_tokens = cases[i].prompt,
                                             .tokens_max = cases[i].prompt + 100,
                                             .sampling = &sampling};
        assert_int_equal(kva_kv_spec_parse(cases[i].spec, NULL, &params.kv, &err), KVA_OK);
        const enum kva_status status = f.engine->ops->check(f.engine->self, &params, &err);
        if (status != (cases[i].fits ? KVA_OK : KVA_EUNSUPPORTED))
            fail_msg("%s, %u tokens: %d, '%s'", cases[i].spec, cases[i].prompt, status,
                     status ? err.message : "");
        if (!cases[i].fits)
            assert_string_equal(err.param, "positions");
    }
    fixture_close(&f);
    fixture_remove_model(path);
    free(prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept__a_store_that_holds_all_is_full),
        cmocka_unit_test(test_kept__chunks_suspension_and_delays),
        cmocka_unit_test(test_kept__company_and_the_prefix_cache),
        cmocka_unit_test(test_kept__in_company_of_other_policies),
        cmocka_unit_test(test_kept__past_the_context),
        cmocka_unit_test(test_kept__positions_of_a_suspended_prompt),
        cmocka_unit_test(test_kept__percent_of_a_prompt_past_the_context),
        cmocka_unit_test(test_kept__how_far_a_sequence_may_go),
        cmocka_unit_test(test_kept__bytes_told_are_bytes_taken),
        cmocka_unit_test(test_kept__a_store_is_no_larger_than_its_sequence),
        cmocka_unit_test(test_kept__grows_while_there_is_a_store_to_fill),
        cmocka_unit_test(test_kept__prompts_give_host_memory_back),
        cmocka_unit_test(test_kept__a_device_tier_that_is_full),
        cmocka_unit_test(test_kept__refuses_sliding_windows),
        cmocka_unit_test(test_kept__refuses_more_than_are_turned_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
