/* Pages that leave the device while a sequence grows: with every row fetched the result is that of
 * full KV to rounding in every step, also where rows are selected a step ahead and could not yet
 * have been of the page that has just left. */
#include "tests/cmocka.h"

#include "tests/data.h"
#include "tests/engine/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 512, VOCAB_MAX = 512 };

struct model {
    const char *name;
    const char *family; /* in tests/golden/families, with a context of 256 */
    const char *config; /* or made for the test */
};

#define LLAMA(hidden, heads, kv_heads)                                                             \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":" #hidden  \
    ",\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":" #heads            \
    ",\"num_key_value_heads\":" #kv_heads ",\"vocab_size\":300,\"max_position_embeddings\":512,"   \
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","                        \
    "\"tie_word_embeddings\":false,\"torch_dtype\":\"float32\"}"

#define NEOX                                                                                       \
    "{\"architectures\":[\"GPTNeoXForCausalLM\"],\"model_type\":\"gpt_neox\",\"hidden_size\":160," \
    "\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":2,"                  \
    "\"vocab_size\":300,\"max_position_embeddings\":512,\"layer_norm_eps\":1e-5,"                  \
    "\"rotary_pct\":0.25,\"rotary_emb_base\":10000,\"hidden_act\":\"gelu\","                       \
    "\"use_parallel_residual\":true,\"tie_word_embeddings\":false,\"torch_dtype\":\"float32\"}"

static const struct model models[] = {
    {"llama, 2 KV heads of 192", NULL, LLAMA(384, 2, 2)},
    {"llama, 3 KV heads of 80", NULL, LLAMA(240, 3, 3)},
    {"llama, 1 KV head of 64", NULL, LLAMA(128, 2, 1)},
    {"neox, 2 heads of 80", NULL, NEOX},
    {"llama3", "llama3_gqa_bf16", NULL},
    {"neox", "neox_sequential", NULL},
    {"opt", "opt_relu_tied", NULL},
    {"qwen3", "qwen3_qk_norm", NULL},
};

/* A sequence is run by full KV, whose tokens all others are made to say. */
struct world {
    struct fixture f;
    uint32_t prompt_tokens, tokens_max, vocab;
    uint32_t ids[LONGEST];
    float *logits; /* of full KV [tokens_max][vocab] */
};

/* While the sequence is suspended another one writes all over the device tier. */
static void suspend_and_resume(struct world *w, struct kva_sequence *seq)
{
    uint32_t prompt[LONGEST];
    struct kva_err err;
    const struct kva_sampling_params sampling = fixture_greedy();
    const struct kva_engine *engine = w->f.engine;
    engine->ops->suspend(engine->self, seq);
    fixture_prompt(prompt, w->tokens_max - 1, w->vocab, 777);
    struct kva_sequence *other =
        fixture_start(&w->f, &(struct kva_sequence_params){.prompt = prompt,
                                                           .prompt_tokens = w->tokens_max - 1,
                                                           .tokens_max = w->tokens_max,
                                                           .sampling = &sampling});
    fixture_prefill(&w->f, other, LONGEST);
    engine->ops->destroy(engine->self, other);
    assert_int_equal(engine->ops->resume(engine->self, seq, &err), KVA_OK);
}

/* The device bytes that are reported are those that the tier gave. */
static void check_bytes(const struct world *w, const struct kva_sequence *seq,
                        const struct kva_kv_spec *kv)
{
    const struct kva_engine *engine = w->f.engine;
    struct kva_sequence_info info;
    struct kva_engine_usage usage;
    engine->ops->sequence_info(engine->self, seq, &info);
    engine->ops->usage(engine->self, &usage);
    assert_true(info.bytes.device <= usage.used.device - usage.cached.device);
    assert_true(usage.used.device - usage.cached.device <=
                kva_model_engine_footprint(engine, kv, w->prompt_tokens, w->tokens_max).device);
}

/* What the sequence says step by step; with `want`, its largest distance to that, and where. */
static double run(struct world *w, const struct kva_kv_spec *kv, bool suspend, const float *want,
                  float *logits, uint32_t *ret_worst)
{
    const struct kva_sampling_params sampling = fixture_greedy();
    const struct kva_engine *engine = w->f.engine;
    struct kva_err err;
    double worst = 0;
    struct kva_sequence *seq =
        fixture_start(&w->f, &(struct kva_sequence_params){.prompt = w->ids,
                                                           .prompt_tokens = w->prompt_tokens,
                                                           .tokens_max = w->tokens_max,
                                                           .sampling = &sampling,
                                                           .cache_disabled = true,
                                                           .kv = *kv});
    for (uint32_t at = w->prompt_tokens; at < w->tokens_max; at++) {
        float *row = logits + (size_t)at * w->vocab;
        struct kva_step_item item = {.seq = seq,
                                     .logits = row,
                                     .forced = want != NULL,
                                     .forced_token = w->ids[at],
                                     .prefill_tokens = at == w->prompt_tokens ? LONGEST : 0};
        if (at > w->prompt_tokens)
            assert_int_equal(engine->ops->grow(engine->self, seq, &err), KVA_OK);
        assert_int_equal(engine->ops->step(engine->self, &item, 1, &err), KVA_OK);
        assert_true(item.emitted);
        w->ids[at] = item.token.token;
        check_bytes(w, seq, kv);
        for (uint32_t i = 0; want && i < w->vocab; i++) {
            double distance = fabs((double)row[i] - (double)want[(size_t)at * w->vocab + i]);
            *ret_worst = distance > worst ? at : *ret_worst;
            worst = fmax(worst, distance);
        }
        if (suspend && at + 1 < w->tokens_max)
            suspend_and_resume(w, seq);
    }
    engine->ops->destroy(engine->self, seq);
    return worst;
}

static void expect_full(struct world *w, const char *model, const char *text, bool suspend)
{
    struct kva_kv_spec kv;
    struct kva_err err = {0};
    uint32_t at = 0;
    float *logits = calloc((size_t)w->tokens_max * w->vocab, sizeof(float));
    if (kva_kv_spec_parse(text, NULL, &kv, &err))
        fail_msg("%s", err.message);
    double worst = run(w, &kv, suspend, w->logits, logits, &at);
    free(logits);
    if (!(worst < 5e-4))
        fail_msg("%s, %s%s: logits differ by %g at token %u", model, text,
                 suspend ? ", suspended at every step" : "", worst, at);
}

static void check_model(const struct model *model, bool unfused)
{
    static const char *const predictors[] = {
        "predictor=spec-token:on_mispredict=chain", "predictor=spec-token:on_mispredict=predecode",
        "predictor=prev-query:reselect_below=0", "predictor=prev-query:reselect_below=90",
        "predictor=sync"};
    char path[FIXTURE_PATH_BYTES];
    struct world w = {.prompt_tokens = 140, .tokens_max = model->config ? 460 : 256};
    if (model->config)
        fixture_make_model(model->config, 11, 0, path);
    else
        snprintf(path, sizeof(path), "tests/golden/families/%s", model->family);
    fixture_open(&w.f, &(struct fixture_params){.model_path = path,
                                                .cpu_level_mask = fixture_unrounded_levels(),
                                                .copy_delay_max_us = 20,
                                                .seed = 5,
                                                .unfused = unfused});
    w.vocab = w.f.model->config.vocab_size;
    w.logits = calloc((size_t)w.tokens_max * w.vocab, sizeof(float));
    fixture_prompt(w.ids, w.prompt_tokens, w.vocab, 3);
    const struct kva_kv_spec full = kva_kv_spec_default(KVA_KV_FULL);
    run(&w, &full, false, NULL, w.logits, NULL);
    static uint32_t cases; /* of all models: every seventh is another one of a model's 20 */
    for (uint32_t bits = 1; bits <= 2; bits++) {
        for (size_t i = 0; i < KVA_COUNT_OF(predictors); i++) {
            for (int all = 0; all < 2; all++) {
                if (FIXTURE_QUICK && cases++ % 7 != 0)
                    continue;
                char text[160];
                snprintf(text, sizeof(text), "specache:%u:512:min_tokens=%u:fetch=%s:%s", bits,
                         all ? 0 : 192, all ? "all" : "resident", predictors[i]);
                expect_full(&w, model->name, text, false);
                if (!unfused && bits == 1 && !model->config && !all)
                    expect_full(&w, model->name, text, true);
            }
        }
    }
    free(w.logits);
    fixture_close(&w.f);
    if (model->config)
        fixture_remove_model(path);
}

static void test_borders__every_row_fetched_is_full(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < KVA_COUNT_OF(models); i++)
        check_model(&models[i], false);
}

/* The operators one after the other, as on a GPU. */
static void test_borders__and_so_it_is_operator_by_operator(void **state KVA_UNUSED)
{
    check_model(&models[1], true);
    check_model(&models[4], true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_borders__every_row_fetched_is_full),
        cmocka_unit_test(test_borders__and_so_it_is_operator_by_operator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
