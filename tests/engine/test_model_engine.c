/* The engine through the scheduler's contract. What is compared is tokens and the bits of their
 * log-probabilities: results must not depend on policy, chunks, batch, suspension or the prefix
 * cache. */
#include "tests/cmocka.h"

#include "kernels/backend.h"
#include "tests/alloc_guard.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA   "tests/golden/families/llama3_gqa_bf16"
#define MISTRAL "tests/golden/families/mistral_window"
#define NEOX    "tests/golden/families/neox_parallel"

/* Two layers of two KV heads of 16. */
#define LLAMA_PAGE_BYTES (2 * kva_kv_block_bytes(2, 16))

static void expect_nothing_used(struct fixture *f)
{
    struct kva_engine_usage usage;
    f->engine->ops->usage(f->engine->self, &usage);
    assert_int_equal(usage.used.host, usage.cached.host);
    assert_int_equal(usage.used.device, usage.cached.device);
}

static const uint32_t lengths[] = {1, 2, 63, 64, 65, 127, 128, 129, 200};

static void test_model_engine__chunks_do_not_matter(void **state KVA_UNUSED)
{
    static const char *const models[] = {LLAMA, MISTRAL, NEOX};
    static const uint32_t quotas[] = {1, 7, 50, 63, 64, 129};
    static const enum variant variants[] = {FULL, KIVI, SPEC, AHEAD};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = models[m], .step_tokens_max = 48});
        for (size_t i = 0; i < KVA_COUNT_OF(lengths) * KVA_COUNT_OF(variants); i++) {
            if ((i + m) % FIXTURE_EVERY != 0)
                continue;
            struct run run = {.prompt_tokens = lengths[i / KVA_COUNT_OF(variants)],
                              .prompt_seed = i,
                              .kv = trace_variant(variants[i % KVA_COUNT_OF(variants)])};
            struct trace want = trace_run(&f, &run);
            for (size_t q = 0; q < KVA_COUNT_OF(quotas); q++) {
                run.quota = quotas[q];
                struct trace got = trace_run(&f, &run);
                trace_expect_same(&got, &want, "chunked prefill");
            }
        }
        expect_nothing_used(&f);
        fixture_close(&f);
    }
}

static void test_model_engine__offload_equals_full(void **state KVA_UNUSED)
{
    static const char *const models[] = {LLAMA, MISTRAL, NEOX};
    static const uint32_t quotas[] = {0, 7, 64};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = models[m],
                                                  .step_tokens_max = 48,
                                                  .copy_delay_max_us = 50,
                                                  .seed = m});
        for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
            if (FIXTURE_QUICK && (i + m) % 3 != 0)
                continue;
            struct run run = {.prompt_tokens = lengths[i], .prompt_seed = i};
            struct trace want = trace_run(&f, &run);
            for (size_t q = 0; q < KVA_COUNT_OF(quotas); q++) {
                run.kv = trace_variant(OFFLOAD);
                run.quota = quotas[q];
                struct trace got = trace_run(&f, &run);
                trace_expect_same(&got, &want, "offload");
            }
        }
        struct kva_engine_usage usage;
        f.engine->ops->usage(f.engine->self, &usage);
        assert_true(kva_counts_named(&usage.counts, "fetched_bytes") > 0);
        expect_nothing_used(&f);
        fixture_close(&f);
    }
}

static void check_suspension(const char *model_path)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = model_path,
                                              .step_tokens_max = 48,
                                              .copy_delay_max_us = 50,
                                              .seed = 5});
    for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
        for (uint32_t v = 0; v < VARIANTS; v++) {
            if ((v + i) % FIXTURE_EVERY != 0)
                continue;
            struct run run = {.prompt_tokens = lengths[i],
                              .prompt_seed = 30 + i,
                              .kv = trace_variant((enum variant)v)};
            struct trace want = trace_run(&f, &run);
            /* Each suspension costs a long prefill; after every step once is enough. */
            for (uint32_t every = lengths[i] == 65 || lengths[i] == 128 ? 1 : 4; every <= 9;
                 every += 4) {
                run.suspend_every = every;
                run.quota = 3 * every;
                struct trace got = trace_run(&f, &run);
                trace_expect_same(&got, &want, "suspended");
            }
        }
    }
    expect_nothing_used(&f);
    fixture_close(&f);
}

static void test_model_engine__suspension_changes_nothing(void **state KVA_UNUSED)
{
    check_suspension(LLAMA);
    check_suspension(NEOX);
}

/* `shift`: which member runs under which policy. */
static void check_batch(const char *model_path, uint32_t shift, bool unfused)
{
    enum { COUNT = KVA_COUNT_OF(lengths) };
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = model_path,
                                              .step_tokens_max = 64,
                                              .copy_delay_max_us = 20,
                                              .unfused = unfused});
    struct trace want[COUNT], got[COUNT] = {0};
    uint32_t prompts[COUNT][CONTEXT];
    uint32_t done[COUNT] = {0};
    struct kva_sequence *seqs[COUNT];
    struct kva_err err;
    const struct kva_sampling_params sampling = trace_sampling();
    for (uint32_t i = 0; i < COUNT; i++) {
        struct kva_kv_spec kv = trace_variant((enum variant)((i + shift) % VARIANTS));
        want[i] = trace_run(
            &f, &(struct run){.prompt_tokens = lengths[i], .prompt_seed = 60 + i, .kv = kv});
        fixture_prompt(prompts[i], lengths[i], VOCAB, 60 + i);
        seqs[i] = fixture_start(&f, &(struct kva_sequence_params){
                                        .prompt = prompts[i],
                                        .prompt_tokens = lengths[i],
                                        .tokens_max = lengths[i] + OUTPUT,
                                        .sampling = &sampling,
                                        .kv = kv,
                                    });
    }
    for (uint32_t left = COUNT, step = 0; left > 0; step++) {
        struct kva_step_item items[COUNT];
        uint32_t members[COUNT], count = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            /* Everybody pauses now and then, at different times. */
            if (done[i] == OUTPUT || (step + i) % 5 == 0)
                continue;
            if (done[i] > 0)
                assert_int_equal(f.engine->ops->grow(f.engine->self, seqs[i], &err), KVA_OK);
            members[count] = i;
            items[count++] =
                (struct kva_step_item){.seq = seqs[i], .prefill_tokens = done[i] ? 0 : 6 + 5 * i};
        }
        assert_int_equal(f.engine->ops->step(f.engine->self, items, count, &err), KVA_OK);
        for (uint32_t j = 0; j < count; j++) {
            uint32_t i = members[j];
            if (!items[j].emitted)
                continue;
            got[i].tokens[done[i]] = items[j].token.token;
            got[i].logprobs[done[i]++] = items[j].token.chosen.logprob;
            left -= done[i] == OUTPUT;
        }
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        trace_expect_same(&got[i], &want[i], "in a batch");
        f.engine->ops->destroy(f.engine->self, seqs[i]);
    }
    expect_nothing_used(&f);
    fixture_close(&f);
}

enum member_state { WAITING, RUNNING, SUSPENDED, DONE };

struct member {
    struct kva_sequence *seq;
    struct trace want, got;
    uint32_t done;
    enum member_state state;
};

/* One more step of a member alone, or less if the tier is full: then it or its neighbour steps
 * back. */
static void advance(struct fixture *f, struct member *members, uint32_t count, uint32_t index,
                    uint64_t *dice)
{
    struct member *m = &members[index];
    const struct kva_engine_ops *ops = f->engine->ops;
    void *self = f->engine->self;
    struct kva_err err;
    uint32_t cached;
    enum kva_status status = KVA_OK;
    if (m->state == WAITING)
        status = ops->admit(self, m->seq, &cached, NULL, &err);
    else if (m->state == SUSPENDED)
        status = ops->resume(self, m->seq, &err);
    if (status == KVA_OK)
        m->state = RUNNING;
    if (status == KVA_OK && m->done > 0)
        status = ops->grow(self, m->seq, &err);
    if (status == KVA_ELIMIT) {
        *dice = *dice * 6364136223846793005ull + 1442695040888963407ull;
        struct member *victim = &members[(index + (*dice >> 40) % count) % count];
        if (victim->state == RUNNING) {
            ops->suspend(self, victim->seq);
            victim->state = SUSPENDED;
        }
        return;
    }
    assert_int_equal(status, KVA_OK);
    struct kva_step_item item = {.seq = m->seq, .prefill_tokens = m->done ? 0 : 30};
    assert_int_equal(ops->step(self, &item, 1, &err), KVA_OK);
    assert_int_equal(item.status, KVA_OK);
    if (!item.emitted)
        return;
    m->got.tokens[m->done] = item.token.token;
    m->got.logprobs[m->done++] = item.token.chosen.logprob;
    if (m->done == OUTPUT) {
        ops->destroy(self, m->seq);
        m->state = DONE;
    }
}

static void test_model_engine__a_full_tier_changes_nothing(void **state KVA_UNUSED)
{
    enum { COUNT = 5 };
    static const uint32_t prompts_tokens[COUNT] = {150, 64, 100, 128, 30};
    for (uint64_t round = 0; round < 2 * VARIANTS; round += FIXTURE_EVERY) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA,
                                                  .step_tokens_max = 48,
                                                  .device_bytes = 10 * LLAMA_PAGE_BYTES,
                                                  .prefix_cache = round % 2 == 1,
                                                  .copy_delay_max_us = 20,
                                                  .seed = round});
        struct member members[COUNT] = {0};
        uint32_t prompts[COUNT][CONTEXT];
        const struct kva_sampling_params sampling = trace_sampling();
        struct kva_err err;
        for (uint32_t i = 0; i < COUNT; i++) {
            struct kva_kv_spec kv = trace_variant((enum variant)((i + round / 2) % VARIANTS));
            members[i].want = trace_run(&f, &(struct run){.prompt_tokens = prompts_tokens[i],
                                                          .prompt_seed = 300 + i,
                                                          .kv = kv});
            fixture_prompt(prompts[i], prompts_tokens[i], VOCAB, 300 + i);
            const struct kva_sequence_params params = {
                .prompt = prompts[i],
                .prompt_tokens = prompts_tokens[i],
                .tokens_max = prompts_tokens[i] + OUTPUT,
                .sampling = &sampling,
                .kv = kv,
            };
            assert_int_equal(f.engine->ops->create(f.engine->self, &params, &members[i].seq, &err),
                             KVA_OK);
        }
        uint64_t dice = round;
        uint32_t left = COUNT;
        for (uint32_t turn = 0; left > 0; turn++) {
            assert_true(turn < 100000);
            dice = dice * 6364136223846793005ull + 1442695040888963407ull;
            uint32_t index = (uint32_t)(dice >> 33) % COUNT;
            if (members[index].state == DONE)
                continue;
            advance(&f, members, COUNT, index, &dice);
            left -= members[index].state == DONE;
        }
        for (uint32_t i = 0; i < COUNT; i++)
            trace_expect_same(&members[i].got, &members[i].want, "in a full tier");
        expect_nothing_used(&f);
        fixture_close(&f);
    }
}

static void test_model_engine__a_batch_equals_its_members_alone(void **state KVA_UNUSED)
{
    for (uint32_t shift = 0; shift < VARIANTS; shift += FIXTURE_EVERY)
        check_batch(LLAMA, shift, false);
    check_batch(LLAMA, 6, true);
    check_batch(NEOX, 0, false);
    check_batch(MISTRAL, 1, false);
    check_batch(NEOX, 4, false);
}

static void check_cached_prefixes(const char *model_path)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){
                         .model_path = model_path, .step_tokens_max = 48, .prefix_cache = true});
    for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
        for (uint32_t v = 0; v < VARIANTS; v++) {
            if (v > 0 && (v + i) % FIXTURE_EVERY != 0)
                continue;
            struct run run = {.prompt_tokens = lengths[i],
                              .prompt_seed = 90 + i,
                              .kv = trace_variant((enum variant)v),
                              .scope = 10 + v};
            struct trace first = trace_run(&f, &run);
            struct trace again = trace_run(&f, &run);
            run.quota = 9;
            struct trace chunked = trace_run(&f, &run);
            run.scope = 1000 + i;
            struct trace elsewhere = trace_run(&f, &run);
            assert_int_equal(first.cached, 0);
            assert_int_equal(again.cached, (lengths[i] - 1) / 64 * 64);
            assert_int_equal(elsewhere.cached, v == 0 ? 0 : again.cached);
            trace_expect_same(&again, &first, "with a cached prefix");
            trace_expect_same(&chunked, &first, "with a cached prefix, in chunks");
            trace_expect_same(&elsewhere, &first, "in another scope");
        }
    }
    expect_nothing_used(&f);
    fixture_close(&f);
}

static void test_model_engine__cached_prefixes_change_nothing_but_the_work(void **state KVA_UNUSED)
{
    check_cached_prefixes(LLAMA);
    check_cached_prefixes(NEOX);
}

/* A sequence that is put back finds its own pages, answer and all: a request is told what it found when
 * it came. */
static void test_model_engine__a_restart_finds_nothing_new(void **state KVA_UNUSED)
{
    enum { PROMPT = 70, DECODES = 80 };
    struct fixture f;
    struct kva_err err;
    uint32_t prompt[PROMPT], token, cached = 0;
    const struct kva_sampling_params sampling = fixture_greedy();
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .prefix_cache = true});
    const struct kva_engine_ops *ops = f.engine->ops;
    void *self = f.engine->self;
    fixture_prompt(prompt, PROMPT, VOCAB, 8);
    for (uint32_t round = 0; round < 2; round++) {
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = PROMPT,
                                                   .tokens_max = PROMPT + DECODES + 10,
                                                   .sampling = &sampling};
        struct kva_sequence *seq = fixture_start(&f, &params);
        struct kva_sequence_info info;
        fixture_prefill(&f, seq, PROMPT);
        for (uint32_t i = 0; i < DECODES; i++)
            fixture_decode(&f, &seq, 1, &token);
        assert_int_equal(ops->restart(self, seq, &err), KVA_OK);
        assert_int_equal(ops->admit(self, seq, &cached, NULL, &err), KVA_OK);
        assert_int_equal(cached, 128);
        ops->sequence_info(self, seq, &info);
        assert_int_equal(info.cached_tokens, round == 0 ? 0 : 64);
        ops->destroy(self, seq);
    }
    expect_nothing_used(&f);
    fixture_close(&f);
}

static void test_model_engine__budgets_hold_and_refusals_name_both_numbers(void **state KVA_UNUSED)
{
    /* Room for six pages on the device and twenty on the host. A page of the tier holds the
     * residual stream of 42 prompt tokens. */
    struct fixture f;
    struct kva_err err = {0};
    uint32_t prompt[CONTEXT], cached;
    const struct kva_sampling_params sampling = trace_sampling();
    size_t page = LLAMA_PAGE_BYTES;
    fixture_open(&f, &(struct fixture_params){
                         .model_path = LLAMA, .device_bytes = 6 * page, .host_bytes = 20 * page});
    const struct kva_engine_ops *ops = f.engine->ops;
    void *self = f.engine->self;
    fixture_prompt(prompt, CONTEXT, VOCAB, 1);
    struct kva_sequence_params params = {.prompt = prompt, .sampling = &sampling};
    struct kva_sequence *a, *b, *c;

    params.prompt_tokens = 200;
    params.tokens_max = 210;
    assert_int_equal(ops->create(self, &params, &a, &err), KVA_ELIMIT);
    assert_non_null(strstr(err.message, "device"));
    char number[32];
    snprintf(number, sizeof(number), "%zu", 9 * page);
    assert_non_null(strstr(err.message, number));
    snprintf(number, sizeof(number), "%zu", 6 * page);
    assert_non_null(strstr(err.message, number));
    params.kv.policy = KVA_KV_OFFLOAD;
    params.tokens_max = 1000;
    assert_int_equal(ops->create(self, &params, &a, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "1000"));

    params.kv.policy = KVA_KV_FULL;
    params.prompt_tokens = 100;
    params.tokens_max = 180;
    assert_int_equal(ops->create(self, &params, &a, &err), KVA_OK);
    assert_int_equal(ops->create(self, &params, &b, &err), KVA_OK);
    assert_int_equal(ops->create(self, &params, &c, &err), KVA_OK);
    assert_int_equal(ops->admit(self, a, &cached, NULL, &err), KVA_OK);
    enum kva_tier_id short_of = KVA_TIER_HOST;
    assert_int_equal(ops->admit(self, b, &cached, &short_of, &err), KVA_ELIMIT);
    assert_int_equal(short_of, KVA_TIER_DEVICE);
    assert_non_null(strstr(err.message, "device"));
    ops->suspend(self, a);
    assert_int_equal(ops->admit(self, b, &cached, NULL, &err), KVA_OK);
    assert_int_equal(ops->resume(self, a, &err), KVA_ELIMIT);
    ops->suspend(self, b);
    assert_int_equal(ops->admit(self, c, &cached, NULL, &err), KVA_OK);
    struct kva_engine_usage usage;
    ops->usage(self, &usage);
    assert_int_equal(usage.sequences[KVA_KV_FULL], 1);
    assert_int_equal(ops->growth_bytes(self, c), page);
    assert_int_equal(usage.budget.host, 20 * page);
    assert_int_equal(usage.used.host, 18 * page);
    assert_int_equal(usage.used.device, 5 * page);
    ops->destroy(self, a);
    ops->destroy(self, b);
    ops->destroy(self, c);
    expect_nothing_used(&f);
    fixture_close(&f);
}

static void test_model_engine__admission_takes_what_was_announced(void **state KVA_UNUSED)
{
    struct fixture f;
    uint32_t prompt[CONTEXT], cached;
    const struct kva_sampling_params sampling = trace_sampling();
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .prefix_cache = true});
    const struct kva_engine_ops *ops = f.engine->ops;
    void *self = f.engine->self;
    fixture_prompt(prompt, CONTEXT, VOCAB, 8);
    struct kva_sequence *seqs[6];
    for (uint32_t i = 0; i < 6; i++) {
        const struct kva_sequence_params params = {
            .prompt = prompt,
            .prompt_tokens = 180,
            .tokens_max = 200,
            .sampling = &sampling,
            .kv = {i % 3 == 2 ? KVA_KV_OFFLOAD : KVA_KV_FULL},
        };
        struct kva_engine_usage before, after;
        struct kva_tier_bytes want;
        struct kva_err err;
        assert_int_equal(ops->check(self, &params, &err), KVA_OK);
        assert_int_equal(ops->create(self, &params, &seqs[i], &err), KVA_OK);
        ops->usage(self, &before);
        uint32_t found;
        ops->admit_bytes(self, seqs[i], &want, &found);
        assert_int_equal(ops->admit(self, seqs[i], &cached, NULL, &err), KVA_OK);
        ops->usage(self, &after);
        assert_int_equal(after.used.host - before.used.host, want.host);
        /* Items of other sizes may find room in chunks that are open already. */
        if (i % 3 == 2)
            assert_true(after.used.device - before.used.device <= want.device);
        else
            assert_int_equal(after.used.device - before.used.device, want.device);
        assert_int_equal(cached, i == 0 ? 0 : 128);
        assert_int_equal(found, cached);
        fixture_prefill(&f, seqs[i], 180);
    }
    for (uint32_t i = 0; i < 6; i++)
        ops->destroy(self, seqs[i]);
    expect_nothing_used(&f);
    fixture_close(&f);
}

static uint64_t device_in_use(const struct fixture *f)
{
    struct kva_engine_usage usage;
    f->engine->ops->usage(f->engine->self, &usage);
    return usage.used.device - usage.cached.device;
}

static struct kva_shared_bytes shared_bytes(const struct fixture *f, const struct kva_sequence *seq)
{
    struct kva_shared_bytes shared = {.bytes = UINT64_MAX};
    f->engine->ops->shared_bytes(f->engine->self, seq, &shared);
    return shared;
}

/* What others have of a sequence is neither freed by suspending it nor taken by resuming it. */
static void test_model_engine__what_is_shared_is_neither_freed_nor_taken(void **state KVA_UNUSED)
{
    enum { SEQS = 3, PROMPT = 200 };
    static const enum variant variants[] = {FULL, KIVI};
    for (size_t v = 0; v < KVA_COUNT_OF(variants); v++) {
        struct fixture f;
        struct kva_err err;
        uint32_t prompt[PROMPT];
        const struct kva_sampling_params sampling = trace_sampling();
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .prefix_cache = true});
        const struct kva_engine_ops *ops = f.engine->ops;
        void *self = f.engine->self;
        fixture_prompt(prompt, PROMPT, VOCAB, 8);
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = PROMPT,
                                                   .tokens_max = PROMPT + 10,
                                                   .sampling = &sampling,
                                                   .kv = trace_variant(variants[v])};
        struct kva_sequence *seqs[SEQS];
        struct kva_sequence_info info[SEQS];
        uint64_t sum = 0;
        for (uint32_t i = 0; i < SEQS; i++) {
            seqs[i] = fixture_start(&f, &params);
            fixture_prefill(&f, seqs[i], PROMPT);
            assert_true((shared_bytes(&f, seqs[0]).bytes > 0) == (i > 0));
        }
        for (uint32_t i = 0; i < SEQS; i++) {
            const struct kva_shared_bytes shared = shared_bytes(&f, seqs[i]);
            ops->sequence_info(self, seqs[i], &info[i]);
            assert_int_equal(ops->resume_bytes(self, seqs[i]), info[i].bytes.device);
            assert_true(shared.bytes < info[i].bytes.device);
            assert_in_range(shared.portion, shared.bytes / SEQS, shared.bytes / SEQS + 8);
            /* KIVI's: a page of the window, and others' copies in few bits. */
            if (variants[v] == FULL)
                assert_int_equal(shared.bytes, 3 * LLAMA_PAGE_BYTES);
            else
                assert_in_range(shared.bytes, LLAMA_PAGE_BYTES + 1, 2 * LLAMA_PAGE_BYTES);
            sum += info[i].bytes.device - shared.bytes + shared.portion;
        }
        /* The tier gives out chunks that hold several items of other sizes than a page's. */
        uint64_t slack = variants[v] == FULL ? 3 * 8 : 2 * LLAMA_PAGE_BYTES;
        assert_in_range(device_in_use(&f), sum - 3 * 8, sum + slack);

        const uint64_t others = shared_bytes(&f, seqs[2]).bytes, before = device_in_use(&f);
        ops->suspend(self, seqs[2]);
        assert_int_equal(shared_bytes(&f, seqs[2]).bytes, others);
        assert_int_equal(ops->resume_bytes(self, seqs[2]), info[2].bytes.device);
        const uint64_t without = device_in_use(&f);
        assert_true(before - without <= info[2].bytes.device - others);
        if (variants[v] == FULL)
            assert_int_equal(before - without, info[2].bytes.device - others);
        assert_int_equal(ops->resume(self, seqs[2], &err), KVA_OK);
        assert_int_equal(device_in_use(&f), before);

        for (uint32_t i = 0; i < SEQS; i++)
            ops->suspend(self, seqs[i]);
        assert_int_equal(shared_bytes(&f, seqs[2]).bytes, 0);
        for (uint32_t i = 0; i < SEQS; i++)
            ops->destroy(self, seqs[i]);
        expect_nothing_used(&f);
        fixture_close(&f);
    }
}

static void test_model_engine__prompt_logprobs_are_those_of_decoding(void **state KVA_UNUSED)
{
    enum { PROMPT = 150 };
    struct fixture f;
    uint32_t prompt[PROMPT];
    fixture_open(&f, &(struct fixture_params){
                         .model_path = LLAMA, .step_tokens_max = 48, .prefix_cache = true});
    fixture_prompt(prompt, PROMPT, VOCAB, 4);
    struct kva_sampling_params sampling = fixture_greedy();
    sampling.prompt_logprobs = 2;
    struct kva_sequence_params params = {
        .prompt = prompt, .prompt_tokens = PROMPT, .tokens_max = PROMPT + 1, .sampling = &sampling};
    struct kva_sequence *seq = fixture_start(&f, &params);
    fixture_prefill(&f, seq, 31);
    const struct kva_prompt_logprob *entries = f.engine->ops->prompt_logprobs(f.engine->self, seq);
    assert_non_null(entries);
    for (uint32_t i = 0; i < PROMPT - 1; i += 13) {
        struct kva_sampling_params one = fixture_greedy();
        one.logprobs = 2;
        one.allowed_ids = &prompt[i + 1];
        one.allowed_id_count = 1;
        struct kva_sequence *other = fixture_start(
            &f,
            &(struct kva_sequence_params){
                .prompt = prompt, .prompt_tokens = i + 1, .tokens_max = i + 2, .sampling = &one});
        struct kva_err err;
        struct kva_step_item item = {.seq = other, .prefill_tokens = PROMPT};
        assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, &err), KVA_OK);
        assert_memory_equal(&item.token.chosen, &entries[i].actual, sizeof(item.token.chosen));
        assert_int_equal(entries[i].top_count, 2);
        assert_memory_equal(item.token.top, entries[i].top, 2 * sizeof(item.token.top[0]));
        f.engine->ops->destroy(f.engine->self, other);
    }
    f.engine->ops->destroy(f.engine->self, seq);
    fixture_close(&f);
}

/* Who wants them computes all of the prompt, each time; others find it, its other choices first. */
static void test_model_engine__prompt_logprobs_are_computed_for_all(void **state KVA_UNUSED)
{
    enum { PROMPT = 150 };
    struct fixture f;
    uint32_t prompt[PROMPT];
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .prefix_cache = true});
    fixture_prompt(prompt, PROMPT, VOCAB, 4);
    for (uint32_t i = 0; i < 4; i++) {
        struct kva_sampling_params sampling = fixture_greedy();
        sampling.prompt_logprobs = i % 2 ? -1 : 2;
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = PROMPT,
                                                   .tokens_max = PROMPT + 1,
                                                   .sampling = &sampling};
        struct kva_sequence *seq = fixture_start(&f, &params);
        struct kva_sequence_info info;
        f.engine->ops->sequence_info(f.engine->self, seq, &info);
        assert_int_equal(info.cached_tokens, i % 2 ? 128 : 0);
        fixture_prefill(&f, seq, PROMPT);
        f.engine->ops->destroy(f.engine->self, seq);
    }
    fixture_close(&f);
}

static void test_model_engine__steps_allocate_nothing(void **state KVA_UNUSED)
{
    for (uint32_t v = 0; v < VARIANTS; v++) {
        struct fixture f;
        uint32_t prompt[CONTEXT], token;
        struct kva_sampling_params sampling = trace_sampling();
        sampling.temperature = 1;
        sampling.top_p = 0.9f;
        sampling.repetition_penalty = 1.1f;
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .threads = 2});
        fixture_prompt(prompt, CONTEXT, VOCAB, 2);
        struct kva_sequence *seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = 120,
                                                            .tokens_max = 220,
                                                            .sampling = &sampling,
                                                            .kv = trace_variant((enum variant)v)});
        alloc_guard_arm();
        fixture_prefill(&f, seq, 50);
        for (int i = 0; i < 90; i++)
            fixture_decode(&f, &seq, 1, &token);
        assert_int_equal(alloc_guard_disarm(), 0);
        f.engine->ops->destroy(f.engine->self, seq);
        fixture_close(&f);
    }
}

static enum kva_status alloc_nothing(struct kva_device *device KVA_UNUSED,
                                     enum kva_mem mem KVA_UNUSED, size_t bytes KVA_UNUSED,
                                     void **ret KVA_UNUSED, struct kva_err *err)
{
    return kva_fail(err, KVA_ENOMEM, "no memory of the device");
}

/* All memory of the device that a sequence needs from its admission to its end is of the tiers. */
static void test_model_engine__suspensions_allocate_nothing(void **state KVA_UNUSED)
{
    for (uint32_t v = 0; v < VARIANTS; v++) {
        struct fixture f;
        struct kva_err err;
        uint32_t prompt[CONTEXT], cached, token;
        const struct kva_sampling_params sampling = trace_sampling();
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
        fixture_prompt(prompt, CONTEXT, VOCAB, 2);
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = 150,
                                                   .tokens_max = 200,
                                                   .sampling = &sampling,
                                                   .kv = trace_variant((enum variant)v)};
        const struct kva_engine_ops *ops = f.engine->ops;
        void *self = f.engine->self;
        struct kva_sequence *seq;
        assert_int_equal(ops->create(self, &params, &seq, &err), KVA_OK);
        struct kva_device_base *base = (struct kva_device_base *)f.device;
        const struct kva_backend *own = base->backend;
        struct kva_backend full = *own;
        full.alloc = alloc_nothing;
        base->backend = &full;
        alloc_guard_arm();
        assert_int_equal(ops->admit(self, seq, &cached, NULL, &err), KVA_OK);
        fixture_prefill(&f, seq, 60);
        for (int i = 0; i < 3; i++) {
            ops->suspend(self, seq);
            assert_int_equal(ops->resume(self, seq, &err), KVA_OK);
            fixture_decode(&f, &seq, 1, &token);
        }
        assert_int_equal(alloc_guard_disarm(), 0);
        base->backend = own;
        ops->destroy(self, seq);
        fixture_close(&f);
    }
}

/* So many sequences are said to fit as do: with what they save and copy on the host. */
static void test_model_engine__as_many_fit_as_are_said_to(void **state KVA_UNUSED)
{
    enum { TOKENS = 256, COUNT = 3 };
    const struct kva_sampling_params sampling = trace_sampling();
    uint32_t prompt[TOKENS];
    struct kva_kv_spec specs[4] = {trace_variant(FULL), trace_variant(SPEC), trace_variant(AHEAD),
                                   kva_kv_spec_default(KVA_KV_H2O)};
    specs[2].pool = 64;
    fixture_prompt(prompt, TOKENS, VOCAB, 2);
    for (size_t i = 0; i < KVA_COUNT_OF(specs); i++) {
        struct fixture f;
        struct kva_err err;
        uint32_t cached, fit = 0;
        struct kva_sequence *seqs[COUNT + 1] = {0};
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
        uint64_t stream = kva_model_engine_stream_bytes(f.engine, TOKENS);
        uint64_t each = kva_model_engine_footprint(f.engine, &specs[i], TOKENS, TOKENS).host;
        fixture_close(&f);
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA,
                                                  .host_bytes = (COUNT + 1) * each + stream -
                                                                LLAMA_PAGE_BYTES});
        /* While prompts are read they have all that they are promised. */
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = TOKENS - 1,
                                                   .tokens_max = TOKENS,
                                                   .sampling = &sampling,
                                                   .kv = specs[i]};
        for (; fit <= COUNT; fit++) {
            assert_int_equal(f.engine->ops->create(f.engine->self, &params, &seqs[fit], &err),
                             KVA_OK);
            if (f.engine->ops->admit(f.engine->self, seqs[fit], &cached, NULL, &err))
                break;
        }
        assert_int_equal(kva_model_engine_fit(f.engine, &specs[i], TOKENS), COUNT);
        assert_true(fit <= COUNT);
        for (uint32_t s = 0; s <= COUNT; s++)
            f.engine->ops->destroy(f.engine->self, seqs[s]);
        fixture_close(&f);
    }
}

/* Heads that no operator of the device takes are refused when the engine is made, not at the first
 * request, on a CPU and where a device takes less. */
static void
test_model_engine__heads_that_the_device_cannot_take_are_refused(void **state KVA_UNUSED)
{
    static const struct {
        uint32_t head_dim, most;
    } cases[] = {{512, 512}, {514, 512}, {1024, 512}, {256, 256}, {264, 256}};
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char config[512], path[FIXTURE_PATH_BYTES], part[96];
        struct kva_err err = {0};
        struct kva_device *device;
        struct kva_model *model;
        struct kva_engine *engine = NULL;
        snprintf(config, sizeof(config),
                 "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":300,\"hidden_size\":32,"
                 "\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":1,"
                 "\"head_dim\":%u}",
                 cases[i].head_dim);
        fixture_make_model(config, 1, 128, path);
        assert_int_equal(
            kva_device_open_cpu(&(struct kva_device_params){.threads = 1}, &device, &err), KVA_OK);
        assert_int_equal(kva_device_head_dim_max(device), 512);
        struct kva_device_base *base = (struct kva_device_base *)device;
        const struct kva_backend *own = base->backend;
        struct kva_backend fewer = *own;
        fewer.limits.head_dim_max = cases[i].most;
        base->backend = &fewer;
        assert_int_equal(
            kva_model_open(&(struct kva_model_open_params){.path = path}, &model, &err), KVA_OK);
        const struct kva_model_engine_params params = {.device = device,
                                                       .model = model,
                                                       .budget = {8 << 20, 8 << 20},
                                                       .sequences_max = 1,
                                                       .step_tokens_max = 64};
        const bool fits = cases[i].head_dim <= cases[i].most;
        assert_int_equal(kva_model_engine_create(&params, &engine, &err),
                         fits ? KVA_OK : KVA_EUNSUPPORTED);
        snprintf(part, sizeof(part),
                 "%u numbers (head_dim), attention takes at most %u on the "
                 "device 'cpu",
                 cases[i].head_dim, cases[i].most);
        if (!fits && !strstr(err.message, part))
            fail_msg("'%s' does not say '%s'", err.message, part);
        kva_model_engine_destroy(engine);
        kva_model_close(model);
        base->backend = own;
        kva_device_close(device);
        fixture_remove_model(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_engine__chunks_do_not_matter),
        cmocka_unit_test(test_model_engine__offload_equals_full),
        cmocka_unit_test(test_model_engine__suspension_changes_nothing),
        cmocka_unit_test(test_model_engine__a_batch_equals_its_members_alone),
        cmocka_unit_test(test_model_engine__a_full_tier_changes_nothing),
        cmocka_unit_test(test_model_engine__cached_prefixes_change_nothing_but_the_work),
        cmocka_unit_test(test_model_engine__a_restart_finds_nothing_new),
        cmocka_unit_test(test_model_engine__budgets_hold_and_refusals_name_both_numbers),
        cmocka_unit_test(test_model_engine__heads_that_the_device_cannot_take_are_refused),
        cmocka_unit_test(test_model_engine__admission_takes_what_was_announced),
        cmocka_unit_test(test_model_engine__what_is_shared_is_neither_freed_nor_taken),
        cmocka_unit_test(test_model_engine__prompt_logprobs_are_those_of_decoding),
        cmocka_unit_test(test_model_engine__prompt_logprobs_are_computed_for_all),
        cmocka_unit_test(test_model_engine__as_many_fit_as_are_said_to),
        cmocka_unit_test(test_model_engine__steps_allocate_nothing),
        cmocka_unit_test(test_model_engine__suspensions_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
