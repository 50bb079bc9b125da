/* What relates the policies to each other: where two of them must give the same bits, where the
 * same numbers, and that what is between them costs what it should. */
#include "tests/cmocka.h"

#include "tests/engine/trace.h"
#include "tests/kernels/amx_emulator.h"

#include <math.h>
#include <string.h>

#define LLAMA   "tests/golden/families/llama3_gqa_bf16"
#define MHA     "tests/golden/families/llama2_mha_f16"
#define MISTRAL "tests/golden/families/mistral_window"
#define NEOX    "tests/golden/families/neox_parallel"
#define OPT     "tests/golden/families/opt_relu_tied"

static const char *const models[] = {LLAMA, MHA, MISTRAL, NEOX, OPT};

/* Prompts of which one page, and two, are away from the first output token on. */
static const uint32_t lengths[] = {130, 195};

static struct trace run_under(struct fixture *f, uint32_t prompt_tokens, struct kva_kv_spec kv)
{
    return trace_run(f, &(struct run){.prompt_tokens = prompt_tokens, .prompt_seed = 7, .kv = kv});
}

/* Largest difference of log-probabilities, up to the first token that differs. */
static double distance(const struct trace *a, const struct trace *b, uint32_t *ret_same)
{
    double worst = 0;
    uint32_t i = 0;
    for (; i < OUTPUT && a->tokens[i] == b->tokens[i]; i++)
        worst = fmax(worst, fabs((double)a->logprobs[i] - (double)b->logprobs[i]));
    *ret_same = i;
    return worst;
}

static void test_policies__fetching_every_row_is_full_attention(void **state KVA_UNUSED)
{
    /* 64 rows of one page, none of the prompt's sinks apart: the low-bit pass has nothing left. */
    struct kva_kv_spec all = trace_variant(SPEC_ALL);
    all.k = 64;
    all.min_tokens = 0;
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = models[m],
                                                  .cpu_level_mask = fixture_unrounded_levels()});
        for (uint32_t predictor = 0; predictor < KVA_PREDICT_AUTO; predictor++) {
            all.predictor = (enum kva_kv_predictor)predictor;
            struct trace want = run_under(&f, 130, trace_variant(FULL));
            struct trace got = run_under(&f, 130, all);
            uint32_t same;
            double worst = distance(&got, &want, &same);
            if (same < OUTPUT || worst > 1e-4)
                fail_msg("%s: %u tokens are the same, log-probabilities differ by %g", models[m],
                         same, worst);
        }
        fixture_close(&f);
    }
}

static void test_policies__exempting_every_layer_is_full_attention(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = models[m]});
        for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
            struct kva_kv_spec all = trace_variant(SPEC);
            all.skip_layers = 99;
            struct trace want = run_under(&f, lengths[i], trace_variant(FULL));
            struct trace got = run_under(&f, lengths[i], all);
            trace_expect_same(&got, &want, models[m]);
        }
        fixture_close(&f);
    }
}

/* Mean squared error of the log-probabilities while the tokens are the same, over some prompts. */
static double error_of(struct fixture *f, struct kva_kv_spec kv)
{
    double sum = 0;
    uint32_t count = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct run run = {
            .prompt_tokens = 195, .prompt_seed = 1000 + seed, .kv = trace_variant(FULL)};
        struct trace want = trace_run(f, &run);
        run.kv = kv;
        struct trace got = trace_run(f, &run);
        assert_int_equal(got.tokens[0], want.tokens[0]); /* the prefill is exact */
        assert_true(got.logprobs[0] == want.logprobs[0]);
        for (uint32_t i = 1; i < OUTPUT && got.tokens[i - 1] == want.tokens[i - 1]; i++)
            sum += pow((double)got.logprobs[i] - (double)want.logprobs[i], 2), count++;
    }
    return sum / count;
}

/* A device that has one operator for it selects, fetches and attends as one that has not. */
static void test_policies__the_fused_operator_changes_nothing(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture fused, unfused;
        fixture_open(&fused, &(struct fixture_params){.model_path = models[m]});
        fixture_open(&unfused, &(struct fixture_params){.model_path = models[m], .unfused = true});
        assert_non_null(kva_device_ops(fused.device)->attend_select_fetch);
        assert_null(kva_device_ops(unfused.device)->attend_select_fetch);
        for (enum variant v = KIVI; v < VARIANTS; v++) {
            struct trace want = run_under(&fused, 195, trace_variant(v));
            struct trace got = run_under(&unfused, 195, trace_variant(v));
            trace_expect_same(&got, &want, models[m]);
        }
        fixture_close(&fused);
        fixture_close(&unfused);
    }
}

/* Nor does one that weighs and chooses in one. */
static void test_policies__choosing_at_once_changes_nothing(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture apart, once;
        fixture_open(&apart, &(struct fixture_params){.model_path = models[m], .unfused = true});
        fixture_open(&once, &(struct fixture_params){
                                .model_path = models[m], .unfused = true, .at_once = true});
        assert_null(kva_device_ops(apart.device)->weigh_choose);
        uint32_t before = fixture_chosen_at_once();
        for (enum variant v = KIVI; v < VARIANTS; v++) {
            struct trace want = run_under(&apart, 195, trace_variant(v));
            struct trace got = run_under(&once, 195, trace_variant(v));
            trace_expect_same(&got, &want, models[m]);
        }
        assert_true(fixture_chosen_at_once() > before);
        fixture_close(&apart);
        fixture_close(&once);
    }
}

/* What a step gives does not depend on whether others may follow. */
static void test_policies__the_last_token_is_like_any_other(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    for (enum variant v = FULL; v < VARIANTS; v++) {
        struct run run = {.prompt_tokens = 205, .prompt_seed = 7, .kv = trace_variant(v)};
        const struct trace all = trace_run(&f, &run);
        for (run.outputs = 2; run.outputs <= 12; run.outputs += FIXTURE_EVERY) {
            const struct trace cut = trace_run(&f, &run);
            for (uint32_t i = 0; i < run.outputs; i++) {
                if (cut.tokens[i] != all.tokens[i] || cut.logprobs[i] != all.logprobs[i])
                    fail_msg("variant %d: token %u of %u is another", (int)v, i, run.outputs);
            }
        }
    }
    fixture_close(&f);
}

/* KIVI's own levels are minmax's but at 1 bit, where they are further from full KV. */
static void test_policies__extremes_differ_at_one_bit(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    for (uint32_t bits = 1; bits <= 4; bits *= 2) {
        struct kva_kv_spec minmax = trace_variant(KIVI), extremes;
        minmax.bits = bits;
        minmax.levels = KVA_KV_LEVELS_MINMAX;
        extremes = minmax;
        extremes.levels = KVA_KV_LEVELS_EXTREMES;
        struct trace want = run_under(&f, 195, minmax), got = run_under(&f, 195, extremes);
        if (bits > 1)
            trace_expect_same(&got, &want, "levels");
        double worse = error_of(&f, extremes), better = error_of(&f, minmax);
        print_message("%u bits: squared error %g with extremes, %g\n", bits, worse, better);
        assert_true(bits > 1 ? worse == better : worse > better);
    }
    fixture_close(&f);
}

static void test_policies__fetching_no_row_is_kivi(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = models[m]});
        for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
            struct kva_kv_spec kivi = trace_variant(KIVI), none = kivi;
            none.policy = KVA_KV_SPECACHE;
            struct trace want = run_under(&f, lengths[i], kivi);
            struct trace got = run_under(&f, lengths[i], none);
            trace_expect_same(&got, &want, models[m]);
        }
        fixture_close(&f);
    }
}

static void test_policies__rows_by_layer_are_the_rows_of_each_layer(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = models[m],
                                                  .cpu_level_mask = fixture_unrounded_levels()});
        uint32_t layers = f.model->config.layer_count, same;
        for (enum variant v = SPEC; v <= SYNC; v++) {
            /* The same number in other words. */
            struct kva_kv_spec plain = trace_variant(v), named = plain;
            if (v == AUTO)
                continue;
            named.k = 3;
            named.k_ranges[0] = (struct kva_kv_k_range){0, layers, 0};
            named.k_ranges[1] = (struct kva_kv_k_range){0, layers, plain.k};
            named.k_range_count = 2;
            struct trace want = run_under(&f, 195, plain);
            struct trace got = run_under(&f, 195, named);
            trace_expect_same(&got, &want, models[m]);
        }
        /* Every row of the first layer: as if only it were exempt. To rounding, which may move a
         * code of the layers behind it. */
        struct kva_kv_spec first = trace_variant(SPEC_ALL), exempt = trace_variant(KIVI_PAPER);
        first.bits = exempt.bits;
        first.group = exempt.group;
        first.k = 0;
        first.k_ranges[0] = (struct kva_kv_k_range){0, 1, 64};
        first.k_range_count = 1;
        exempt.skip_layers = 1;
        struct trace want = run_under(&f, 130, exempt);
        struct trace got = run_under(&f, 130, first);
        double worst = distance(&got, &want, &same);
        if (same < OUTPUT || worst > 1e-3)
            fail_msg("%s: %u tokens are the same, log-probabilities differ by %g", models[m], same,
                     worst);
        fixture_close(&f);
    }
}

/* Also where a step selects twice, for itself and for the next one. */
static void test_policies__fetching_the_difference_is_fetching_all(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){
                             .model_path = models[m], .copy_delay_max_us = 30, .seed = m});
        for (size_t i = 0; i < 2 * KVA_COUNT_OF(lengths); i++) {
            struct kva_kv_spec delta = trace_variant(i % 2 ? CORRECTED : SPEC_DELTA), all;
            delta.fetch = KVA_FETCH_DELTA;
            delta.reselect_below = i % 2 ? 100 : delta.reselect_below;
            all = delta;
            all.fetch = KVA_FETCH_ALL;
            struct trace want = run_under(&f, lengths[i / 2], all);
            struct trace got = run_under(&f, lengths[i / 2], delta);
            trace_expect_same(&got, &want, models[m]);
        }
        fixture_close(&f);
    }
}

static void test_policies__more_bits_and_more_rows_are_closer_to_full(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    struct kva_kv_spec kv = trace_variant(KIVI);
    double by_bits[3];
    for (uint32_t i = 0; i < 3; i++) {
        kv.bits = 1u << i;
        by_bits[i] = error_of(&f, kv);
    }
    print_message("squared error by bits: %g %g %g\n", by_bits[0], by_bits[1], by_bits[2]);
    assert_true(by_bits[0] > 0 && by_bits[1] < by_bits[0] && by_bits[2] < by_bits[1]);
    kv.bits = 1;
    kv.value_bits = 2;
    const double between = error_of(&f, kv);
    print_message("one of keys and two of values: %g\n", between);
    assert_true(between > by_bits[1] && between < by_bits[0]);
    kv = trace_variant(SYNC);
    double by_rows[3];
    for (uint32_t i = 0; i < 3; i++) {
        kv.k = 1u << (2 * i);
        by_rows[i] = error_of(&f, kv);
    }
    print_message("squared error by rows: %g %g %g\n", by_rows[0], by_rows[1], by_rows[2]);
    assert_true(by_rows[1] < by_rows[0] && by_rows[2] < by_rows[1]);
    fixture_close(&f);
}

/* The settings that a request names reach the cache, and what is told of it is what it took. */
/* Level amx: the roundings of the levels below it, in another order of additions, and as little
 * as there does it matter how a prompt is cut. */
static void test_policies__tiles_say_what_registers_say(void **state KVA_UNUSED)
{
    static const enum variant variants[] = {FULL, KIVI, SPEC, SYNC};
    const uint32_t emulated = amx_emulated_levels(), quotas[] = {0, 37};
    struct kva_device *device;
    const struct kva_device_params probe = {.threads = 1, .cpu_levels_emulated = emulated};
    assert_int_equal(kva_device_open_cpu(&probe, &device, NULL), KVA_OK);
    const uint32_t levels = kva_device_get_info(device)->cpu_levels;
    kva_device_close(device);
    if (!(levels & KVA_CPU_AMX))
        skip();
    struct fixture below, tiles;
    fixture_open(&below,
                 &(struct fixture_params){.model_path = LLAMA,
                                          .cpu_level_mask = levels & ~(uint32_t)KVA_CPU_AMX});
    fixture_open(&tiles, &(struct fixture_params){.model_path = LLAMA,
                                                  .cpu_level_mask = levels,
                                                  .cpu_levels_emulated = emulated});
    for (size_t i = 0; i < KVA_COUNT_OF(variants); i++) {
        struct trace want = run_under(&below, 195, trace_variant(variants[i])), got[2];
        for (size_t j = 0; j < KVA_COUNT_OF(quotas); j++)
            got[j] = trace_run(&tiles, &(struct run){.prompt_tokens = 195,
                                                     .prompt_seed = 7,
                                                     .quota = quotas[j],
                                                     .kv = trace_variant(variants[i])});
        trace_expect_same(&got[0], &got[1], "chunks at level amx");
        uint32_t same;
        double worst = distance(&got[0], &want, &same);
        print_message("variant %d: %u tokens are the same, log-probabilities differ by %.2g\n",
                      (int)variants[i], same, worst);
        assert_true(same > 0 && worst < 0.05);
    }
    fixture_close(&tiles);
    fixture_close(&below);
}

static void test_policies__bytes_told_are_bytes_taken(void **state KVA_UNUSED)
{
    for (uint32_t v = KIVI; v <= BY_LAYER; v++) {
        struct fixture f;
        uint32_t prompt[CONTEXT], token;
        const struct kva_sampling_params sampling = trace_sampling();
        struct kva_kv_spec kv = trace_variant((enum variant)v);
        fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
        fixture_prompt(prompt, CONTEXT, 300, 3);
        struct kva_sequence *seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = 200,
                                                            .tokens_max = 256,
                                                            .sampling = &sampling,
                                                            .kv = kv});
        fixture_prefill(&f, seq, 256);
        fixture_decode(&f, &seq, 1, &token);
        struct kva_sequence_info info;
        struct kva_engine_usage usage;
        f.engine->ops->sequence_info(f.engine->self, seq, &info);
        f.engine->ops->usage(f.engine->self, &usage);
        /* Two of four pages are away: two layers of two heads of 16. */
        struct kva_lowbit_format format = {
            .bits = kv.bits, .group = kv.group, .value_bits = kv.value_bits};
        uint32_t coded = 2 - kv.skip_layers; /* layers */
        uint64_t low = 2 * (coded * kva_lowbit_block_bytes(format, 2, 16) +
                            kv.skip_layers * kva_kv_block_bytes(2, 16));
        uint64_t window = 2 * 2 * kva_kv_block_bytes(2, 16);
        uint64_t slots = 0;
        for (uint32_t layer = kv.skip_layers; layer < 2; layer++) {
            uint32_t k = kv.policy == KVA_KV_KIVI ? 0 : kva_kv_spec_k(&kv, layer);
            slots += kv.sinks + (kv.fetch == KVA_FETCH_ALL ? k : 2 * k);
        }
        uint64_t rows = slots * 2 * 2 * 16 * 2;
        assert_true(info.bytes.device >= low + window + rows);
        /* The state of the fetched rows is small next to them, and rounded to cache lines. */
        assert_true(info.bytes.device <= low + window + rows + rows / 2 + 2 * (7 + 4) * 64);
        assert_true(usage.used.device - usage.cached.device >= info.bytes.device);
        /* What a suspension saves of the rows: four numbers a slot, and what else there is. */
        const uint64_t page = 2 * kva_kv_block_bytes(2, 16), saved = info.bytes.host - 4 * page;
        assert_true(saved >= 2 * 4 * sizeof(uint32_t) * slots);
        assert_true(saved < 2 * 5 * sizeof(uint32_t) * slots + 2 * (7 + 6) * 64 + page);
        assert_int_equal(info.bytes.host, usage.used.host);
        assert_int_equal(info.bytes.host, kva_model_engine_footprint(f.engine, &kv, 200, 256).host);
        assert_int_equal(kva_model_engine_footprint(f.engine, &kv, 50, 64).host, page);
        if (kv.policy == KVA_KV_SPECACHE) {
            assert_true(kva_counts_named(&info.counts, "fetch_rows_hit") +
                            kva_counts_named(&info.counts, "fetch_rows_missed") >
                        0);
            if (kv.predictor != KVA_PREDICT_AUTO)
                assert_int_equal(kva_counts_named(&info.counts, "speculative_tokens"),
                                 kv.predictor == KVA_PREDICT_SPEC_TOKEN);
        }
        f.engine->ops->destroy(f.engine->self, seq);
        fixture_close(&f);
    }
}

/* Speculative tokens of a sequence, and how many of them were right. */
static struct kva_sequence_info speculate(struct fixture *f, enum kva_kv_mispredict mispredict,
                                          const struct kva_sampling_params *sampling)
{
    uint32_t prompt[CONTEXT], token;
    struct kva_sequence_info info;
    struct kva_kv_spec kv = trace_variant(SPEC);
    kv.on_mispredict = mispredict;
    fixture_prompt(prompt, 200, 300, 3);
    struct kva_sequence *seq = fixture_start(f, &(struct kva_sequence_params){.prompt = prompt,
                                                                              .prompt_tokens = 200,
                                                                              .tokens_max = 240,
                                                                              .sampling = sampling,
                                                                              .kv = kv});
    fixture_prefill(f, seq, CONTEXT);
    for (uint32_t i = 0; i < 36; i++)
        fixture_decode(f, &seq, 1, &token);
    f->engine->ops->sequence_info(f->engine->self, seq, &info);
    f->engine->ops->destroy(f->engine->self, seq);
    assert_int_equal(kva_counts_named(&info.counts, "speculative_tokens"), 36);
    return info;
}

/* A request that may say one thing only is predicted without fail: a guess that does not know what
 * the request allows says another. */
static void test_policies__a_draft_token_obeys_the_request(void **state KVA_UNUSED)
{
    static const uint32_t allowed[] = {7};
    static const struct kva_logit_bias bias[] = {{.token = 9, .bias = 100}};
    struct kva_sampling_params only = fixture_greedy(), most = fixture_greedy(),
                               hot = fixture_greedy();
    only.allowed_ids = allowed;
    only.allowed_id_count = 1;
    most.logit_bias = bias;
    most.logit_bias_count = 1;
    hot.allowed_ids = allowed;
    hot.allowed_id_count = 1;
    hot.temperature = 1;
    const struct kva_sampling_params *const requests[] = {&only, &most, &hot};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct fixture f;
        fixture_open(&f, &(struct fixture_params){.model_path = models[m]});
        for (size_t i = 0; i < KVA_COUNT_OF(requests); i++) {
            for (uint32_t way = 0; way < KVA_MISPREDICT_COUNT; way++) {
                const struct kva_sequence_info info =
                    speculate(&f, (enum kva_kv_mispredict)way, requests[i]);
                assert_int_equal(kva_counts_named(&info.counts, "speculative_tokens_matched"),
                                 kva_counts_named(&info.counts, "speculative_tokens"));
            }
        }
        fixture_close(&f);
    }
}

/* Settings of which one cannot be. */
#define KIVI_OF(...)                                                                               \
    {                                                                                              \
        .policy = KVA_KV_KIVI, .levels = KVA_KV_LEVELS_MSE, __VA_ARGS__                            \
    }
#define SPECACHE_OF(...)                                                                           \
    {                                                                                              \
        .policy = KVA_KV_SPECACHE, .levels = KVA_KV_LEVELS_MSE, .bits = 2, .group = 64,            \
        .window = 64, .sinks = 4, __VA_ARGS__                                                      \
    }

static void test_policies__settings_that_cannot_be_are_named(void **state KVA_UNUSED)
{
    static const struct {
        struct kva_kv_spec spec;
        const char *param;
    } cases[] = {
        {KIVI_OF(.bits = 3, .group = 64, .window = 64, .sinks = 4), "bits"},
        {KIVI_OF(.bits = 4, .value_bits = 1, .group = 64, .window = 64, .sinks = 4), "value_bits"},
        {KIVI_OF(.bits = 2, .value_bits = 2, .group = 64, .window = 64, .sinks = 4), "value_bits"},
        {KIVI_OF(.bits = 2, .group = 48, .window = 64, .sinks = 4), "group"},
        {KIVI_OF(.bits = 2, .group = 64, .window = 0, .sinks = 4), "window"},
        {KIVI_OF(.bits = 2, .group = 64, .window = 65, .sinks = 4), "window"},
        {KIVI_OF(.bits = 2, .group = 64, .window = 64, .sinks = 33), "sinks"},
        {KIVI_OF(.bits = 2, .group = 64, .window = 64, .sinks = 4, .min_tokens = 1), "min_tokens"},
        {SPECACHE_OF(.k = 65537), "topk"},
        {SPECACHE_OF(.k = 1, .k_ranges = {{0, 1, 65537}}, .k_range_count = 1), "topk"},
        {SPECACHE_OF(.k = 1, .k_ranges = {{2, 3, 1}}, .k_range_count = 1), "topk"},
        {{.policy = KVA_KV_STREAMING, .window = 64, .positions = KVA_POSITIONS_COUNT}, "positions"},
    };
    struct fixture f;
    uint32_t prompt[CONTEXT];
    const struct kva_sampling_params sampling = trace_sampling();
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    fixture_prompt(prompt, CONTEXT, 300, 3);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_err err = {0};
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = 200,
                                                   .tokens_max = 256,
                                                   .sampling = &sampling,
                                                   .kv = cases[i].spec};
        struct kva_sequence *seq;
        assert_int_equal(f.engine->ops->create(f.engine->self, &params, &seq, &err), KVA_EINVAL);
        assert_string_equal(err.param, cases[i].param);
        assert_non_null(strstr(err.message, cases[i].param));
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policies__fetching_every_row_is_full_attention),
        cmocka_unit_test(test_policies__exempting_every_layer_is_full_attention),
        cmocka_unit_test(test_policies__the_last_token_is_like_any_other),
        cmocka_unit_test(test_policies__extremes_differ_at_one_bit),
        cmocka_unit_test(test_policies__fetching_no_row_is_kivi),
        cmocka_unit_test(test_policies__rows_by_layer_are_the_rows_of_each_layer),
        cmocka_unit_test(test_policies__fetching_the_difference_is_fetching_all),
        cmocka_unit_test(test_policies__the_fused_operator_changes_nothing),
        cmocka_unit_test(test_policies__choosing_at_once_changes_nothing),
        cmocka_unit_test(test_policies__more_bits_and_more_rows_are_closer_to_full),
        cmocka_unit_test(test_policies__tiles_say_what_registers_say),
        cmocka_unit_test(test_policies__bytes_told_are_bytes_taken),
        cmocka_unit_test(test_policies__a_draft_token_obeys_the_request),
        cmocka_unit_test(test_policies__settings_that_cannot_be_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
