/* The engine with packed weights: tokens depend on the request alone. */
#include "tests/cmocka.h"

#include "engine/model/packed.h"
#include "tests/engine/fixture.h"

#include <string.h>

#define DEMO "models/demo"

enum { VOCAB = 3500, PROMPT = 150, STEPS = 12, SEQUENCES = 5 };

/* What sequence `index` of SEQUENCES says, decoded alone or beside the others. */
static void say(const struct fixture_params *params, bool together,
                uint32_t tokens[SEQUENCES][STEPS])
{
    struct fixture fixture;
    struct kva_sequence *seqs[SEQUENCES];
    uint32_t ids[SEQUENCES][PROMPT], column[SEQUENCES];
    const struct kva_sampling_params sampling = fixture_greedy();
    fixture_open(&fixture, params);
    assert_int_equal(fixture.model->layers[0].q.dtype, KVA_INT8);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        fixture_prompt(ids[i], PROMPT, VOCAB, 100 + i);
        const struct kva_sequence_params sequence = {
            .prompt = ids[i],
            .prompt_tokens = PROMPT - i,
            .tokens_max = PROMPT + STEPS + 1,
            .sampling = &sampling,
            .kv = kva_kv_spec_default(KVA_KV_FULL),
        };
        seqs[i] = fixture_start(&fixture, &sequence);
        tokens[i][0] = fixture_prefill(&fixture, seqs[i], together ? 64 : 17);
        for (uint32_t step = 1; step < STEPS && !together; step++)
            fixture_decode(&fixture, &seqs[i], 1, &tokens[i][step]);
    }
    for (uint32_t step = 1; step < STEPS && together; step++) {
        fixture_decode(&fixture, seqs, SEQUENCES, column);
        for (uint32_t i = 0; i < SEQUENCES; i++)
            tokens[i][step] = column[i];
    }
    for (uint32_t i = 0; i < SEQUENCES; i++)
        fixture.engine->ops->destroy(fixture.engine->self, seqs[i]);
    fixture_close(&fixture);
}

static void test_packed__tokens_depend_on_the_request_alone(void **state KVA_UNUSED)
{
    uint32_t want[SEQUENCES][STEPS], got[SEQUENCES][STEPS];
    struct fixture_params params = {.model_path = DEMO, .threads = 1, .weights = KVA_WEIGHTS_INT8};
    say(&params, false, want);
    say(&params, true, got);
    assert_memory_equal(got, want, sizeof(want));
    params.threads = 3;
    say(&params, true, got);
    assert_memory_equal(got, want, sizeof(want));
    say(&params, false, got);
    assert_memory_equal(got, want, sizeof(want));
    /* They do say different things. */
    assert_memory_not_equal(want[0], want[1], sizeof(want[0]));
}

static void test_packed__the_plan_says_so(void **state KVA_UNUSED)
{
    struct fixture fixture;
    struct kva_buf text;
    struct kva_kv_spec specs[KVA_KV_POLICY_COUNT];
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        specs[id] = kva_kv_spec_default((enum kva_kv_policy_id)id);
    fixture_open(&fixture, &(struct fixture_params){
                               .model_path = DEMO, .threads = 1, .weights = KVA_WEIGHTS_INT8});
    kva_buf_init(&text, 1 << 16);
    kva_model_engine_describe(fixture.engine, specs, &text);
    assert_non_null(strstr(text.data, "matrices in int8, in memory of this process"));
    kva_buf_finish(&text);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed__tokens_depend_on_the_request_alone),
        cmocka_unit_test(test_packed__the_plan_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
