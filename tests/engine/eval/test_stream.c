/* A text through one policy: likelihoods are those of the teacher-forced comparison, and what a
 * policy that keeps so much takes does not grow. */
#include "tests/cmocka.h"

#include "engine/eval/eval.h"
#include "engine/eval/stream.h"
#include "tests/engine/fixture.h"

#include <math.h>

#define LLAMA "tests/golden/families/llama3_gqa_bf16"

enum { VOCAB = 300, WINDOW = 60, WINDOWS = 10 };

struct setup {
    struct fixture fixture;
    uint32_t ids[1 + WINDOW * WINDOWS];
    struct kva_stream_window windows[WINDOWS];
    uint32_t done; /* windows that were told */
};

static void count(void *opaque)
{
    ((struct setup *)opaque)->done++;
}

static void open(struct setup *s)
{
    *s = (struct setup){0};
    fixture_open(&s->fixture, &(struct fixture_params){.model_path = LLAMA});
    fixture_prompt(s->ids, KVA_COUNT_OF(s->ids), VOCAB, 11);
}

static enum kva_status run(struct setup *s, const char *spec, struct kva_err *err)
{
    struct kva_stream_params params = {
        .engine = s->fixture.engine,
        .model = s->fixture.model,
        .ids = s->ids,
        .window_tokens = WINDOW,
        .window_count = WINDOWS,
        .progress = count,
        .opaque = s,
    };
    s->done = 0;
    if (kva_kv_spec_parse(spec, NULL, &params.spec, err))
        fail_msg("%s", err->message);
    return kva_eval_stream(&params, s->windows, err);
}

static void run_well(struct setup *s, const char *spec)
{
    struct kva_err err;
    if (run(s, spec, &err))
        fail_msg("%s: %s", spec, err.message);
    assert_int_equal(s->done, WINDOWS);
}

/* The context of 256 holds four windows of 60 and the token before them. */
static void test_stream__ends_where_the_policy_does(void **state KVA_UNUSED)
{
    struct setup s;
    open(&s);
    static const char *const specs[] = {"full", "streaming:window=64:positions=original"};
    for (size_t i = 0; i < KVA_COUNT_OF(specs); i++) {
        run_well(&s, specs[i]);
        for (uint32_t w = 0; w < WINDOWS; w++)
            assert_int_equal(s.windows[w].tokens, w < 4 ? WINDOW : 0);
    }
    run_well(&s, "streaming:window=64");
    for (uint32_t w = 0; w < WINDOWS; w++)
        assert_int_equal(s.windows[w].tokens, WINDOW);
    fixture_close(&s.fixture);
}

/* The first token is the comparison's prompt, and the second one comes out of its prefill. */
static void test_stream__likelihoods_are_the_comparisons(void **state KVA_UNUSED)
{
    struct setup s;
    struct kva_err err;
    struct kva_eval *eval;
    open(&s);
    run_well(&s, "full");
    const struct kva_stream_window first = s.windows[0];
    struct kva_kv_spec full = kva_kv_spec_default(KVA_KV_FULL);
    const struct kva_eval_sample sample = {.ids = s.ids, .count = 1 + 4 * WINDOW, .prompt = 1};
    const struct kva_eval_params params = {
        .engine = s.fixture.engine,
        .device = s.fixture.device,
        .model = s.fixture.model,
        .kv_dtype = kva_model_engine_kv_dtype(s.fixture.model),
        .samples = &sample,
        .sample_count = 1,
        .specs = &full,
        .spec_count = 1,
    };
    double nll = 0;
    for (uint32_t w = 0; w < 4; w++)
        nll += s.windows[w].nll / 4;
    assert_int_equal(kva_eval_run(&params, &eval, &err), KVA_OK);
    /* The comparison does not count the first of 240 tokens, which both predict from one. */
    assert_true(fabs(eval->policies[0].nll - nll) < 0.05);
    kva_eval_destroy(eval);
    /* While nothing has been dropped the two are the same, and again the same. */
    run_well(&s, "streaming:window=64");
    assert_true(s.windows[0].nll == first.nll);
    double last = s.windows[WINDOWS - 1].nll;
    run_well(&s, "streaming:window=64");
    assert_true(s.windows[WINDOWS - 1].nll == last);
    run_well(&s, "streaming:window=64:sinks=0");
    assert_true(s.windows[0].nll == first.nll && s.windows[WINDOWS - 1].nll != last);
    fixture_close(&s.fixture);
}

static void test_stream__memory_is_flat(void **state KVA_UNUSED)
{
    struct setup s;
    open(&s);
    run_well(&s, "streaming:window=64");
    for (uint32_t w = 3; w < WINDOWS; w++) {
        uint32_t tokens = (w + 1) * WINDOW; /* the last one has not been fed yet */
        uint32_t dropped = (tokens - 64) / 64 * 64 - 4;
        assert_int_equal(s.windows[w].kept_tokens, tokens - dropped);
        assert_int_equal(s.windows[w].bytes.device, s.windows[2].bytes.device);
        assert_true(s.windows[w].bytes.host <= s.windows[2].bytes.host);
        assert_true(s.windows[w].step_ns > 0);
    }
    run_well(&s, "full");
    assert_true(s.windows[3].bytes.device > s.windows[0].bytes.device);
    assert_int_equal(s.windows[3].kept_tokens, 4 * WINDOW);
    fixture_close(&s.fixture);
}

static void test_stream__refuses(void **state KVA_UNUSED)
{
    struct setup s;
    struct kva_err err;
    open(&s);
    fixture_close(&s.fixture);
    fixture_open(&s.fixture,
                 &(struct fixture_params){.model_path = LLAMA, .device_bytes = 3 << 14});
    assert_int_equal(run(&s, "full", &err), KVA_ELIMIT);
    assert_string_equal(err.param, "device");
    fixture_close(&s.fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream__ends_where_the_policy_does),
        cmocka_unit_test(test_stream__likelihoods_are_the_comparisons),
        cmocka_unit_test(test_stream__memory_is_flat),
        cmocka_unit_test(test_stream__refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
