/* Policies compared with full KV: what must come out by definition, and in which direction. */
#include "tests/cmocka.h"

#include "engine/eval/eval.h"
#include "tests/engine/fixture.h"

#include <math.h>

#include <string.h>

#define LLAMA "tests/golden/families/llama3_gqa_bf16"

enum { VOCAB = 300, POLICIES_MAX = 8, IDS = 480 };

struct setup {
    struct fixture fixture;
    uint32_t ids[IDS];
    struct kva_kv_spec specs[POLICIES_MAX];
    uint32_t spec_count;
    struct kva_eval_sample samples[2];
    uint32_t sample_count;
};

static void add(struct setup *s, const char *text)
{
    struct kva_err err = {0};
    if (kva_kv_spec_parse(text, NULL, &s->specs[s->spec_count++], &err))
        fail_msg("%s", err.message);
}

static void open(struct setup *s, bool prefix_cache)
{
    *s = (struct setup){.sample_count = 2};
    fixture_open(&s->fixture, &(struct fixture_params){.model_path = LLAMA,
                                                       .cpu_level_mask = fixture_unrounded_levels(),
                                                       .prefix_cache = prefix_cache});
    fixture_prompt(s->ids, IDS, VOCAB, 11);
    s->samples[0] = (struct kva_eval_sample){.ids = s->ids, .count = 230, .prompt = 170};
    s->samples[1] = (struct kva_eval_sample){
        .ids = s->ids + 230, .count = 200, .prompt = 200, .continuation = 20};
}

static struct kva_eval_params params_of(const struct setup *s)
{
    return (struct kva_eval_params){
        .engine = s->fixture.engine,
        .device = s->fixture.device,
        .model = s->fixture.model,
        .kv_dtype = kva_model_engine_kv_dtype(s->fixture.model),
        .samples = s->samples,
        .sample_count = s->sample_count,
        .specs = s->specs,
        .spec_count = s->spec_count,
        .look_every = 1,
    };
}

static struct kva_eval *run(const struct setup *s)
{
    struct kva_err err = {0};
    struct kva_eval *eval = NULL;
    const struct kva_eval_params params = params_of(s);
    if (kva_eval_run(&params, &eval, &err))
        fail_msg("%s", err.message);
    return eval;
}

static void test_eval__exact_policies_are_exact(void **state KVA_UNUSED)
{
    struct setup s;
    open(&s, true);
    add(&s, "full");
    add(&s, "offload");
    struct kva_eval *eval = run(&s);
    assert_true(eval->steps > 59); /* 59 of the first sample */
    for (uint32_t i = 0; i < eval->policy_count; i++) {
        const struct kva_eval_policy *p = &eval->policies[i];
        assert_int_equal(p->steps, eval->steps);
        assert_true(p->kl_max == 0 && p->kl_mean == 0 && p->kl_p99 == 0);
        assert_true(p->agreement == 1);
        assert_true(p->nll == p->nll_reference);
        struct kva_coverage_head sum = kva_eval_sum(eval, p, KVA_NO_LAYER);
        assert_true(sum.covered == (double)sum.steps);
        assert_int_equal(sum.wanted, 0);
        assert_int_equal(p->spec_tokens, 0);
    }
    assert_int_equal(eval->policies[0].bytes.device, eval->policies[0].bytes_reference.device);
    assert_int_equal(kva_counts_named(&eval->policies[0].counts, "fetched_bytes"), 0);
    assert_true(kva_counts_named(&eval->policies[1].counts, "fetched_bytes") > 0);
    kva_eval_destroy(eval);
    fixture_close(&s.fixture);
}

/* More bits: closer. Every row fetched: all but exact. The oracle: hits by definition. */
static void test_eval__order_of_policies(void **state KVA_UNUSED)
{
    enum { KIVI1, KIVI2, KIVI4, ALL_ROWS, SYNC, SPEC, PREVIOUS };
    struct setup s;
    open(&s, true);
    add(&s, "kivi:1:min_tokens=0");
    add(&s, "kivi:2:min_tokens=0");
    add(&s, "kivi:4:min_tokens=0");
    add(&s, "specache:1:220:min_tokens=0:predictor=sync");
    add(&s, "specache:1:16:min_tokens=0:predictor=sync:fetch=all");
    add(&s, "specache:1:16:min_tokens=0:predictor=spec-token");
    add(&s, "specache:1:16:min_tokens=0:predictor=prev-query:reselect_below=0");
    struct kva_eval *eval = run(&s);
    const struct kva_eval_policy *p = eval->policies;
    assert_true(p[KIVI1].kl_mean > p[KIVI2].kl_mean && p[KIVI2].kl_mean > p[KIVI4].kl_mean);
    assert_true(p[KIVI4].kl_mean > 0);
    double total = 0, max = 0;
    for (uint64_t i = 0; i < p[KIVI1].steps; i++) {
        total += p[KIVI1].kl[i];
        max = fmax(max, p[KIVI1].kl[i]);
    }
    assert_true(max == p[KIVI1].kl_max);
    assert_true(total / (double)p[KIVI1].steps == p[KIVI1].kl_mean);
    assert_true(p[ALL_ROWS].kl_mean < 1e-5);
    assert_true(p[ALL_ROWS].agreement == 1);
    for (int i = SYNC; i <= PREVIOUS; i++) {
        struct kva_coverage_head sum = kva_eval_sum(eval, &p[i], KVA_NO_LAYER);
        assert_true(sum.wanted > 0 && sum.best == sum.wanted);
        assert_int_equal(sum.hit == sum.wanted, i == SYNC);
        assert_true(sum.hit > 0);
        assert_true(p[i].kl_mean < p[KIVI1].kl_mean);
        assert_int_equal(p[i].spec_tokens, i == SPEC ? eval->steps : 0);
        assert_true(kva_counts_named(&p[i].counts, "fetch_rows_hit") +
                        kva_counts_named(&p[i].counts, "fetch_rows_missed") >
                    0);
    }
    struct kva_coverage_head all = {0}, sum = kva_eval_sum(eval, &p[SPEC], KVA_NO_LAYER);
    for (uint32_t layer = 0; layer < eval->layers; layer++) {
        struct kva_coverage_head of_layer = kva_eval_sum(eval, &p[SPEC], layer);
        kva_coverage_add(&all, &of_layer);
    }
    assert_int_equal(all.hit, sum.hit);
    assert_true(p[KIVI1].bytes.device < p[KIVI4].bytes.device);
    assert_true(p[KIVI4].bytes.device < p[KIVI4].bytes_reference.device);
    kva_eval_destroy(eval);
    fixture_close(&s.fixture);
}

/* With every row fetched, all that can be wrong with a speculative token is what it follows: forced
 * tokens are not those that the model would pick, so that nearly every one is wrong, and the next
 * one made from it too; from the token that came, it is what full picks. */
static void test_eval__a_wrong_speculative_token_need_not_breed(void **state KVA_UNUSED)
{
    struct setup s;
    open(&s, true);
    s.sample_count = 1;
    add(&s, "specache:4:220:min_tokens=0:predictor=spec-token:on_mispredict=chain");
    add(&s, "specache:4:220:min_tokens=0:predictor=spec-token:on_mispredict=predecode");
    struct kva_eval *eval = run(&s);
    const struct kva_eval_policy *chain = &eval->policies[0], *predecode = &eval->policies[1];
    assert_int_equal(chain->spec_tokens, eval->steps);
    assert_int_equal(predecode->spec_tokens, eval->steps);
    assert_true(predecode->spec_as_followed * 4 < eval->steps);
    assert_true(chain->spec_as_full * 2 < eval->steps);
    /* The first one is made before any row is there, others when a page has just left. */
    assert_true(predecode->spec_as_full + 3 >= eval->steps);
    kva_eval_destroy(eval);
    fixture_close(&s.fixture);
}

static void expect_equal(const struct kva_eval *a, const struct kva_eval *b)
{
    assert_int_equal(a->policy_count, b->policy_count);
    for (uint32_t i = 0; i < a->policy_count; i++) {
        struct kva_eval_policy p = a->policies[i], q = b->policies[i];
        assert_memory_equal(p.heads, q.heads, a->layers * a->kv_heads * sizeof(*p.heads));
        assert_memory_equal(p.kl, q.kl, p.steps * sizeof(*p.kl));
        p.heads = q.heads = NULL;
        p.kl = q.kl = NULL;
        assert_memory_equal(&p, &q, sizeof(p));
    }
}

/* Neither the prefix cache, nor how often attention is looked at, nor the other policies of the run
 * change a bit. */
static void test_eval__repeats(void **state KVA_UNUSED)
{
    struct setup s, t;
    open(&s, true);
    open(&t, false);
    const char *const specs[] = {"specache:1:16:min_tokens=0:predictor=sync",
                                 "kivi:2:min_tokens=0:levels=mse"};
    for (size_t i = 0; i < KVA_COUNT_OF(specs); i++) {
        add(&s, specs[i]);
        add(&t, specs[i]);
    }
    struct kva_eval *first = run(&s), *second = run(&s), *third = run(&t);
    expect_equal(first, second);
    expect_equal(first, third);
    struct kva_err err;
    struct kva_eval *unseen, *alone;
    struct kva_eval_params params = params_of(&t);
    params.look_every = 0;
    assert_int_equal(kva_eval_run(&params, &unseen, &err), KVA_OK);
    assert_null(unseen->policies[0].heads);
    assert_true(unseen->policies[0].kl_mean == first->policies[0].kl_mean);
    params.specs++;
    params.spec_count--;
    assert_int_equal(kva_eval_run(&params, &alone, &err), KVA_OK);
    assert_true(alone->policies[0].kl_mean == first->policies[1].kl_mean);
    kva_eval_destroy(first);
    kva_eval_destroy(second);
    kva_eval_destroy(third);
    kva_eval_destroy(unseen);
    kva_eval_destroy(alone);
    fixture_close(&s.fixture);
    fixture_close(&t.fixture);
}

/* The same model with its matrices in int8, held against what the file has: they differ, and by no
 * more than half a step of 127 gives. A product's error is 0.6% for the weight and as much for the
 * activation, where 128 of either are normal numbers; a few layers of that make percents. */
static void test_eval__int8_against_the_file(void **state KVA_UNUSED)
{
    struct setup s;
    struct fixture int8;
    open(&s, false);
    add(&s, "full");
    fixture_open(&int8, &(struct fixture_params){.model_path = LLAMA,
                                                 .cpu_level_mask = fixture_unrounded_levels(),
                                                 .weights = KVA_WEIGHTS_INT8});
    struct kva_err err = {0};
    struct kva_eval *eval = NULL;
    struct kva_eval_params params = params_of(&s);
    params.reference = s.fixture.engine;
    params.engine = int8.engine;
    params.device = int8.device;
    params.model = int8.model;
    if (kva_eval_run(&params, &eval, &err))
        fail_msg("%s", err.message);
    const struct kva_eval_policy *p = &eval->policies[0];
    assert_true(p->logit_error > 0.001 && p->logit_error < 0.04);
    assert_true(p->kl_mean > 0 && p->kl_mean < 0.01);
    assert_true(p->agreement > 0.9);
    assert_true(fabs(p->nll - p->nll_reference) < 0.05);
    kva_eval_destroy(eval);
    fixture_close(&int8);
    fixture_close(&s.fixture);
}

struct seen {
    uint64_t done, total;
};

static void on_progress(void *opaque, uint64_t done, uint64_t total)
{
    struct seen *seen = opaque;
    assert_true(done >= seen->done);
    *seen = (struct seen){done, total};
}

static void test_eval__progress_reaches_its_end(void **state KVA_UNUSED)
{
    struct setup s;
    struct kva_err err;
    struct kva_eval *eval;
    struct seen seen = {0};
    open(&s, true);
    add(&s, "kivi:2:min_tokens=0");
    struct kva_eval_params params = params_of(&s);
    params.progress = on_progress;
    params.opaque = &seen;
    assert_int_equal(kva_eval_run(&params, &eval, &err), KVA_OK);
    /* Units of a prefill are rounded down, step by step. */
    assert_true(seen.done <= seen.total && seen.done + 20 > seen.total);
    kva_eval_destroy(eval);
    fixture_close(&s.fixture);
}

static void expect_failure(const struct setup *s, enum kva_status status, const char *says)
{
    struct kva_err err = {0};
    struct kva_eval *eval = NULL;
    const struct kva_eval_params params = params_of(s);
    assert_int_equal(kva_eval_run(&params, &eval, &err), status);
    assert_null(eval);
    if (!strstr(err.message, says))
        fail_msg("'%s' does not say '%s'", err.message, says);
}

static void test_eval__refuses(void **state KVA_UNUSED)
{
    struct setup s;
    open(&s, true);
    expect_failure(&s, KVA_EINVAL, "nothing to compare");
    add(&s, "specache:1:16000");
    expect_failure(&s, KVA_EINVAL, "topk is 16000");
    s.specs[0].k = 16;
    s.specs[0].bits = 3;
    expect_failure(&s, KVA_EINVAL, "bits is '3'");
    s.specs[0].bits = 1;
    s.specs[0].predictor = KVA_PREDICT_AUTO;
    expect_failure(&s, KVA_EINVAL, "predictor is auto");
    s.specs[0].predictor = KVA_PREDICT_SYNC;
    s.samples[0].prompt = 0;
    expect_failure(&s, KVA_EINVAL, "sample 1: 0 tokens of prompt");
    s.samples[0].prompt = 229; /* one token is left, which full prefills exactly */
    expect_failure(&s, KVA_EINVAL, "nothing to measure");
    s.samples[0].prompt = 170;
    s.samples[1].continuation = 1u << 20;
    expect_failure(&s, KVA_ECONTEXT, "sample 2");
    s.samples[1].continuation = 20;
    s.ids[3] = 1u << 30;
    expect_failure(&s, KVA_EINVAL, "token 3 is 1073741824");
    fixture_close(&s.fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eval__exact_policies_are_exact),
        cmocka_unit_test(test_eval__order_of_policies),
        cmocka_unit_test(test_eval__a_wrong_speculative_token_need_not_breed),
        cmocka_unit_test(test_eval__repeats),
        cmocka_unit_test(test_eval__int8_against_the_file),
        cmocka_unit_test(test_eval__progress_reaches_its_end),
        cmocka_unit_test(test_eval__refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
