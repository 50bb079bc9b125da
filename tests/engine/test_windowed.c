/* A fifth policy, of one file and known to this test alone: what docs/policies.md promises. Its
 * attention is held against a plain computation. */
#include "tests/cmocka.h"

#include "engine/forward.h"
#include "engine/model_engine.h"
#include "kernels/convert.h"
#include "tests/engine/policy_windowed.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <string.h>

#define LLAMA "tests/golden/families/llama3_gqa_bf16"

enum { PROMPT = 200 };

static struct kva_kv_spec spec_of(uint32_t sinks, uint32_t window)
{
    struct kva_kv_spec spec = kva_kv_spec_own(&policy_windowed);
    spec.sinks = sinks;
    spec.window = window;
    return spec;
}

static struct trace run_under(struct fixture *f, struct kva_kv_spec kv, uint32_t suspend_every,
                              uint32_t quota)
{
    return trace_run(f, &(struct run){.prompt_tokens = PROMPT,
                                      .prompt_seed = 5,
                                      .kv = kv,
                                      .suspend_every = suspend_every,
                                      .quota = quota});
}

/* --- attention, plainly ---------------------------------------------------------------------- */

struct probe {
    struct fixture *f;
    const struct kva_kv_spec *spec;
    uint32_t seen, dropped; /* rows looked at, and tokens that were left out */
    double worst;
};

static bool attends(const struct probe *p, const struct kva_kv_seq *seq, uint32_t token)
{
    return token < p->spec->sinks || token >= seq->offloaded * KVA_PAGE_TOKENS;
}

static void check_head(struct probe *p, const struct kva_forward_view *view, uint32_t head)
{
    const struct kva_model_config *c = &p->f->model->config;
    uint32_t d = c->head_dim, kv_head = head / (c->heads / c->kv_heads);
    const float *q = (const float *)view->q + (size_t)head * d;
    const float *out = (const float *)view->out + (size_t)head * d;
    double want[KVA_PAGE_TOKENS * 4] = {0}, sum = 0;
    for (uint32_t t = 0; t <= view->rows->position_first; t++) {
        const uint16_t *row = fixture_kv_row(p->f, view, kv_head, t);
        double score = 0;
        if (!attends(p, view->rows->seq, t)) {
            p->dropped++;
            continue;
        }
        for (uint32_t i = 0; i < d; i++)
            score += q[i] * fixture_kv_number(p->f, row + i);
        double weight = exp(score * (double)c->attend_scale);
        sum += weight;
        for (uint32_t i = 0; i < d; i++)
            want[i] += weight * fixture_kv_number(p->f, row + d + i);
    }
    for (uint32_t i = 0; i < d; i++)
        p->worst = fmax(p->worst, fabs(want[i] / sum - (double)out[i]));
}

static void check_attention(void *opaque, const struct kva_forward_view *view)
{
    struct probe *p = opaque;
    kva_device_sync(p->f->device, KVA_QUEUE_COPY);
    for (uint32_t head = 0; head < p->f->model->config.heads; head++)
        check_head(p, view, head);
    p->seen++;
}

static void test_windowed__attends_to_sinks_and_window(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA,
                                              .cpu_level_mask = fixture_unrounded_levels()});
    for (uint32_t sinks = 0; sinks < 9; sinks += 4) {
        const struct kva_kv_spec spec = spec_of(sinks, 64);
        struct probe probe = {.f = &f, .spec = &spec};
        const struct kva_forward_observer observer = {.attended = check_attention,
                                                      .opaque = &probe};
        kva_model_engine_observe(f.engine, &observer);
        run_under(&f, spec, 0, 0);
        kva_model_engine_observe(f.engine, NULL);
        assert_int_equal(probe.seen, (OUTPUT - 1) * f.model->config.layer_count);
        assert_true(probe.dropped > 0);
        if (!(probe.worst < 2e-6))
            fail_msg("%u sinks: attention is off by %g", sinks, probe.worst);
    }
    fixture_close(&f);
}

/* --- what the machinery promises every policy ------------------------------------------------- */

static void test_windowed__suspended_or_in_chunks(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(
        &f, &(struct fixture_params){.model_path = LLAMA, .copy_delay_max_us = 200, .seed = 3});
    const struct trace want = run_under(&f, spec_of(4, 64), 0, 0);
    const struct trace suspended = run_under(&f, spec_of(4, 64), 1, 0);
    const struct trace chunks = run_under(&f, spec_of(4, 64), 3, 17);
    trace_expect_same(&suspended, &want, "suspended at every step");
    trace_expect_same(&chunks, &want, "in chunks");
    /* It does drop something, and with room for all it is full. */
    const struct trace full = run_under(&f, kva_kv_spec_default(KVA_KV_FULL), 0, 0);
    const struct trace all = run_under(&f, spec_of(4, CONTEXT), 0, 0);
    trace_expect_same(&all, &full, "a window that holds all");
    assert_int_equal(want.tokens[0], full.tokens[0]);
    assert_memory_not_equal(want.logprobs, full.logprobs, sizeof(want.logprobs));
    fixture_close(&f);
}

/* Its pages are for nobody: not even its prompts', of which others' may be found. */
static void test_windowed__feeds_no_prefix_cache(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .prefix_cache = true});
    assert_int_equal(run_under(&f, spec_of(4, 64), 0, 0).cached, 0);
    assert_int_equal(run_under(&f, spec_of(4, 64), 0, 0).cached, 0);
    run_under(&f, kva_kv_spec_default(KVA_KV_FULL), 0, 0);
    assert_int_equal(run_under(&f, spec_of(4, 64), 0, 0).cached, PROMPT / 64 * 64);
    fixture_close(&f);
}

/* Dropped tokens take no device memory: it is the same for any length. */
static void test_windowed__device_bytes(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    const struct kva_kv_spec spec = spec_of(4, 64), full = kva_kv_spec_default(KVA_KV_FULL);
    uint64_t page = kva_model_engine_footprint(f.engine, &full, 1, 1).device;
    uint64_t kept = kva_model_engine_footprint(f.engine, &spec, 1, 1000).device;
    assert_int_equal(kva_model_engine_footprint(f.engine, &spec, 1, 100000).device, kept);
    assert_int_equal(kva_model_engine_footprint(f.engine, &full, 1, 640).device, 10 * page);
    assert_true(kept <= 5 * page);
    fixture_close(&f);
}

/* A part that nobody has heard of: its state, and its counters in every sequence's account and the
 * engine's. */
static void test_windowed__a_part_of_its_own(void **state KVA_UNUSED)
{
    struct fixture f;
    uint32_t prompt[CONTEXT], token;
    struct kva_sequence_info info;
    struct kva_engine_usage usage;
    const struct kva_sampling_params sampling = trace_sampling();
    const struct kva_kv_spec spec = spec_of(4, 64);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    fixture_prompt(prompt, CONTEXT, VOCAB, 5);
    f.engine->ops->usage(f.engine->self, &usage);
    assert_int_equal(kva_counts_named(&usage.counts, "fetched_bytes"), 0);
    const uint32_t known = usage.counts.count;
    for (uint32_t round = 1; round <= 2; round++) {
        struct kva_sequence *seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = 126,
                                                            .tokens_max = 200,
                                                            .sampling = &sampling,
                                                            .kv = spec});
        fixture_prefill(&f, seq, CONTEXT);
        for (uint32_t i = 0; i < 70; i++) { /* past 128 and 192 tokens */
            struct kva_err err;
            assert_int_equal(f.engine->ops->grow(f.engine->self, seq, &err), KVA_OK);
            fixture_decode(&f, &seq, 1, &token);
            f.engine->ops->suspend(f.engine->self, seq);
            assert_int_equal(f.engine->ops->resume(f.engine->self, seq, &err), KVA_OK);
        }
        f.engine->ops->sequence_info(f.engine->self, seq, &info);
        f.engine->ops->usage(f.engine->self, &usage);
        assert_int_equal(kva_counts_named(&info.counts, "dropped_pages"), 2);
        assert_int_equal(kva_counts_named(&info.counts, "dropped_passes"), 0);
        assert_int_equal(kva_counts_named(&usage.counts, "dropped_pages"), 2 * round);
        /* The prompt's and those of the decoded tokens, all but the last step's. */
        assert_true(kva_counts_named(&usage.counts, "dropped_passes") >= 70 * round);
        assert_int_equal(usage.counts.count, known + 2);
        f.engine->ops->destroy(f.engine->self, seq);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windowed__attends_to_sinks_and_window),
        cmocka_unit_test(test_windowed__suspended_or_in_chunks),
        cmocka_unit_test(test_windowed__feeds_no_prefix_cache),
        cmocka_unit_test(test_windowed__device_bytes),
        cmocka_unit_test(test_windowed__a_part_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
