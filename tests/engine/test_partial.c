/* Attention whose partial results come from elsewhere (KVA_RANGE_PARTIAL): the bits of full
 * attention where it goes on from one result of a sequence's beginning, the same numbers where
 * results are merged. */
#include "tests/cmocka.h"

#include "tests/engine/policy_lent.h"
#include "tests/engine/policy_windowed.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 700, ROWS = 64, STEPS = 60, COMPANY = 5 };

static char folder[FIXTURE_PATH_BYTES];

static int make_model(void **state KVA_UNUSED)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,"
        "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"vocab_size\":300,\"max_position_embeddings\":1024,"
        "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
        "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";
    fixture_make_model(config, 4, 1024, folder);
    return 0;
}

static int remove_model(void **state KVA_UNUSED)
{
    fixture_remove_model(folder);
    return 0;
}

static void open_engine(struct fixture *f)
{
    fixture_open(f, &(struct fixture_params){.model_path = folder,
                                             .context_max = 1024,
                                             .step_tokens_max = ROWS,
                                             .copy_delay_max_us = 100,
                                             .seed = 9,
                                             .cpu_level_mask = fixture_unrounded_levels()});
}

/* --- sequences that say the same, whatever their policy --------------------------------------- */

struct logs {
    uint32_t tokens[STEPS];
    float logprobs[STEPS];
};

static struct kva_sequence *start(struct fixture *f, struct kva_kv_spec spec,
                                  uint32_t prompt_tokens)
{
    static uint32_t prompt[TOKENS];
    static struct kva_sampling_params sampling;
    sampling = trace_sampling();
    spec.min_tokens = 0;
    fixture_prompt(prompt, prompt_tokens, VOCAB, prompt_tokens);
    return fixture_start(f, &(struct kva_sequence_params){.prompt = prompt,
                                                          .prompt_tokens = prompt_tokens,
                                                          .tokens_max = prompt_tokens + STEPS,
                                                          .sampling = &sampling,
                                                          .kv = spec});
}

/* All of them in the same steps. */
static void run(struct fixture *f, struct kva_sequence *const *seqs, uint32_t count,
                struct logs *logs)
{
    uint32_t done[COMPANY] = {0}, left = count;
    struct kva_err err;
    while (left > 0) {
        struct kva_step_item items[COMPANY];
        uint32_t which[COMPANY], n = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (done[i] == STEPS)
                continue;
            if (done[i] > 0)
                assert_int_equal(f->engine->ops->grow(f->engine->self, seqs[i], &err), KVA_OK);
            which[n] = i;
            items[n++] = (struct kva_step_item){.seq = seqs[i], .prefill_tokens = done[i] ? 0 : 50};
        }
        assert_int_equal(f->engine->ops->step(f->engine->self, items, n, &err), KVA_OK);
        for (uint32_t j = 0; j < n; j++) {
            uint32_t i = which[j];
            if (!items[j].emitted)
                continue;
            logs[i].tokens[done[i]] = items[j].token.token;
            logs[i].logprobs[done[i]++] = items[j].token.chosen.logprob;
            left -= done[i] == STEPS;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        f->engine->ops->destroy(f->engine->self, seqs[i]);
}

static struct logs run_alone(struct fixture *f, struct kva_kv_spec spec, uint32_t prompt_tokens)
{
    struct logs logs = {0};
    struct kva_sequence *seq = start(f, spec, prompt_tokens);
    run(f, &seq, 1, &logs);
    return logs;
}

/* Prompts of which nothing is lent at first, and one and two pieces. */
static const uint32_t lengths[] = {230, 300, 520, 600};

static void test_partial__a_prefix_gives_the_bits_of_full(void **state KVA_UNUSED)
{
    struct fixture f;
    open_engine(&f);
    policy_lent_open(f.device, f.model, LENT_PREFIX, 2 * ROWS);
    for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
        uint64_t before = policy_lent_count();
        struct logs want = run_alone(&f, kva_kv_spec_default(KVA_KV_FULL), lengths[i]);
        assert_int_equal(policy_lent_count(), before);
        struct logs got = run_alone(&f, kva_kv_spec_own(&policy_lent), lengths[i]);
        assert_true(policy_lent_count() > before);
        assert_memory_equal(&got, &want, sizeof(want));
    }
    policy_lent_close();
    fixture_close(&f);
}

static void test_partial__merged_results_give_the_numbers_of_full(void **state KVA_UNUSED)
{
    for (enum lent_how how = LENT_ONE; how <= LENT_TWO; how++) {
        struct fixture f;
        double worst = 0;
        open_engine(&f);
        policy_lent_open(f.device, f.model, how, 2 * ROWS);
        for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
            struct logs want = run_alone(&f, kva_kv_spec_default(KVA_KV_FULL), lengths[i]);
            struct logs got = run_alone(&f, kva_kv_spec_own(&policy_lent), lengths[i]);
            assert_memory_equal(got.tokens, want.tokens, sizeof(want.tokens));
            for (uint32_t j = 0; j < STEPS; j++)
                worst = fmax(worst, fabs((double)got.logprobs[j] - (double)want.logprobs[j]));
        }
        assert_true(policy_lent_count() > 0);
        /* Each partial result is of f32: a few units in the last place of numbers of about 10. */
        if (!(worst < 2e-5))
            fail_msg("log-probabilities are off by %g", worst);
        policy_lent_close();
        fixture_close(&f);
    }
}

/* Ranges of all kinds in one pass, and sequences between which a partial result belongs to one. */
static void test_partial__company_changes_nothing(void **state KVA_UNUSED)
{
    const struct kva_kv_spec specs[COMPANY] = {
        kva_kv_spec_default(KVA_KV_SPECACHE), kva_kv_spec_own(&policy_lent),
        kva_kv_spec_default(KVA_KV_FULL), kva_kv_spec_own(&policy_windowed),
        kva_kv_spec_own(&policy_lent)};
    for (enum lent_how how = LENT_PREFIX; how <= LENT_TWO; how++) {
        struct fixture f;
        struct kva_sequence *seqs[COMPANY];
        struct logs want[COMPANY], got[COMPANY] = {0};
        open_engine(&f);
        policy_lent_open(f.device, f.model, how, 2 * ROWS);
        for (uint32_t i = 0; i < COMPANY; i++)
            want[i] = run_alone(&f, specs[i], 240 + 70 * i);
        for (uint32_t i = 0; i < COMPANY; i++)
            seqs[i] = start(&f, specs[i], 240 + 70 * i);
        run(&f, seqs, COMPANY, got);
        for (uint32_t i = 0; i < COMPANY; i++)
            assert_memory_equal(&got[i], &want[i], sizeof(want[i]));
        policy_lent_close();
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partial__a_prefix_gives_the_bits_of_full),
        cmocka_unit_test(test_partial__merged_results_give_the_numbers_of_full),
        cmocka_unit_test(test_partial__company_changes_nothing),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
