/* Columns of partial keys that are a prompt's own (InfiniGen 4.2): which ones they are, against a
 * plain computation; what must not matter; and that nobody else's partial keys are taken for
 * them. */
#include "tests/cmocka.h"

#include "engine/kv/parts/ahead_internal.h"
#include "engine/kv/parts/columns.h"
#include "engine/model/skew.h"
#include "tests/data.h"
#include "tests/engine/family_models.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, MODELS = 3, DIM_MAX = 64, KV_HEADS_MAX = 8 };

static const char *const families[MODELS] = {"llama3_gqa_bf16", "opt_relu_tied",
                                             "qwen2_mixed_window"};

static char paths[MODELS][FIXTURE_PATH_BYTES];

static int make_models(void **state KVA_UNUSED)
{
    family_models_make(
        &(struct family_models){
            .families = families, .count = MODELS, .layers = LAYERS, .seed = 70},
        paths);
    return 0;
}

static int remove_models(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < MODELS; i++)
        fixture_remove_model(paths[i]);
    return 0;
}

static struct kva_kv_spec own_columns(enum kva_kv_skew_mode skew)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_INFINIGEN);
    spec.alpha = 1;
    spec.cap = KVA_KV_PERCENT | 30;
    spec.partial = 40;
    spec.columns = KVA_COLUMNS_PROMPT;
    spec.skew = skew;
    spec.min_tokens = 0;
    spec.skip_layers = 1;
    return spec;
}

/* Each matrix turns the planes of columns i and d - 1 - i, by an angle of its own. */
static struct kva_skew *make_turned(const struct kva_model *model)
{
    const struct kva_model_config *c = &model->config;
    const uint32_t d = c->head_dim;
    struct kva_skew *skew;
    struct kva_err err;
    assert_int_equal(kva_skew_create(c->layer_count, c->kv_heads, d, &skew, &err), KVA_OK);
    for (uint32_t m = 0; m < c->layer_count * c->kv_heads; m++) {
        float *basis = skew->basis + (size_t)m * d * d;
        for (uint32_t i = 0; i < d / 2; i++) {
            const float angle = (float)(m * 7 + i * 3 % 11);
            const uint32_t j = d - 1 - i;
            basis[i * d + i] = basis[j * d + j] = cosf(angle);
            basis[i * d + j] = -sinf(angle);
            basis[j * d + i] = sinf(angle);
        }
    }
    return skew;
}

static struct trace run_one(const struct fixture_params *params, struct run run)
{
    struct fixture f;
    struct kva_engine_usage usage;
    fixture_open(&f, params);
    const struct trace trace = trace_run(&f, &run);
    f.engine->ops->usage(f.engine->self, &usage);
    assert_int_equal(usage.used.host, usage.cached.host);
    assert_int_equal(usage.used.device, usage.cached.device);
    fixture_close(&f);
    return trace;
}

/* --- which ones ------------------------------------------------------------------------------ */

/* The policy itself, but for a hook that shows the cache. */
static struct kva_kv_policy watched;

static struct {
    struct fixture *f;
    const struct kva_kv *kv;
    bool skewed;
    double sums[LAYERS][KV_HEADS_MAX][DIM_MAX];
    uint32_t prompt_tokens, checked, others; /* columns that are not the first ones */
} probe;

static void watch_cache(struct kva_kv *kv, struct kva_kv_pass *pass KVA_UNUSED,
                        uint32_t layer KVA_UNUSED, const void *hidden KVA_UNUSED)
{
    probe.kv = kv;
}

static void add_plainly(uint32_t layer, uint32_t kv_head, const double *x)
{
    const uint32_t d = probe.f->model->config.head_dim;
    const struct kva_skew *skew = probe.f->model->skew;
    for (uint32_t c = 0; c < d; c++) {
        double sum = probe.skewed ? 0 : x[c];
        for (uint32_t i = 0; i < d && probe.skewed; i++)
            sum += x[i] * (double)skew->basis[kva_skew_basis_at(skew, layer, kv_head) + i * d + c];
        probe.sums[layer][kv_head][c] += fabs(sum);
    }
}

static void add_prompt_queries(void *opaque KVA_UNUSED, const struct kva_forward_layer_view *view)
{
    const struct kva_model_config *c = &probe.f->model->config;
    double x[DIM_MAX];
    if (view->point != KVA_POINT_QUERIES || view->sequences[0].seq->prefilled)
        return;
    for (uint32_t row = 0; row < view->rows * c->heads; row++) {
        const float *q = (const float *)view->q + (size_t)row * c->head_dim;
        for (uint32_t i = 0; i < c->head_dim; i++)
            x[i] = (double)q[i];
        add_plainly(view->layer, row % c->heads / (c->heads / c->kv_heads), x);
    }
}

static void add_prompt_keys(const struct kva_forward_view *view, uint32_t kv_head)
{
    double x[DIM_MAX];
    for (uint32_t t = 0; t < probe.prompt_tokens; t++) {
        const uint16_t *k = fixture_kv_row(probe.f, view, kv_head, t);
        for (uint32_t i = 0; i < probe.f->model->config.head_dim; i++)
            x[i] = fixture_kv_number(probe.f, k + i);
        add_plainly(view->layer, kv_head, x);
    }
}

/* Ascending, and none that is left out has a larger sum than one that is there. */
static void check_columns(uint32_t layer, uint32_t kv_head, const uint32_t *columns)
{
    const uint32_t d = probe.f->model->config.head_dim, count = (d * 40 + 99) / 100;
    const double *sums = probe.sums[layer][kv_head];
    double least = INFINITY, most = 0;
    bool there[DIM_MAX] = {false};
    for (uint32_t i = 0; i < count; i++) {
        assert_true(columns[i] < d && (i == 0 || columns[i] > columns[i - 1]));
        there[columns[i]] = true;
        least = fmin(least, sums[columns[i]]);
        probe.others += columns[i] != i;
    }
    for (uint32_t c = 0; c < d; c++)
        most = there[c] ? most : fmax(most, sums[c]);
    if (!(least > most * (1 - 1e-5)))
        fail_msg("layer %u, KV head %u: a column with %g of %g is there", layer, kv_head, least,
                 most);
    probe.checked++;
}

static void check_layer(void *opaque KVA_UNUSED, const struct kva_forward_view *view)
{
    const struct kva_model_config *c = &probe.f->model->config;
    if (view->layer == 0)
        return;
    kva_device_sync(probe.f->device, KVA_QUEUE_COPY);
    for (uint32_t head = 0; head < c->kv_heads; head++) {
        const uint32_t *columns = kva_columns_of(probe.kv, view->rows->seq, view->layer);
        if (view->rows->position_first == probe.prompt_tokens)
            add_prompt_keys(view, head);
        check_columns(view->layer, head, columns + (size_t)head * c->head_dim);
    }
}

static void test_columns__are_the_largest_of_the_prompt(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < 2 * MODELS; i++) {
        struct fixture f;
        memset(&probe, 0, sizeof probe);
        fixture_open(&f, &(struct fixture_params){.model_path = paths[i / 2],
                                                  .cpu_level_mask = fixture_unrounded_levels(),
                                                  .make_skew = make_turned});
        probe.f = &f;
        probe.skewed = i % 2;
        probe.prompt_tokens = 150;
        watched = kva_kv_policy_infinigen;
        watched.layer_input = watch_cache;
        const struct kva_forward_observer observer = {.layer = add_prompt_queries,
                                                      .attended = check_layer};
        kva_model_engine_observe(f.engine, &observer);
        struct run run = {.prompt_tokens = probe.prompt_tokens,
                          .prompt_seed = i,
                          .quota = i % 3 ? 0 : 37,
                          .outputs = 4,
                          .kv = own_columns(probe.skewed ? KVA_SKEW_AFTER : KVA_SKEW_NONE)};
        run.kv.own = &watched;
        trace_run(&f, &run);
        assert_int_equal(probe.checked, 3 * (LAYERS - 1) * f.model->config.kv_heads);
        assert_true(probe.others > 0);
        fixture_close(&f);
    }
}

/* All of them are the same columns, whoever chose them; few of them are not. */
static void test_columns__all_are_all(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < MODELS; m++) {
        const struct fixture_params params = {.model_path = paths[m], .make_skew = make_turned};
        struct run run = {
            .prompt_tokens = 200, .prompt_seed = 3, .kv = own_columns(KVA_SKEW_AFTER)};
        const struct trace few = run_one(&params, run);
        run.kv.columns = KVA_COLUMNS_STATIC;
        const struct trace few_static = run_one(&params, run);
        run.kv.partial = 100;
        const struct trace all_static = run_one(&params, run);
        run.kv.columns = KVA_COLUMNS_PROMPT;
        const struct trace all = run_one(&params, run);
        trace_expect_same(&all, &all_static, families[m]);
        assert_memory_not_equal(few.logprobs, few_static.logprobs, sizeof(few.logprobs));
    }
}

/* --- what must not matter -------------------------------------------------------------------- */

static void test_columns__chunks_suspension_and_delays(void **state KVA_UNUSED)
{
    static const struct {
        uint32_t quota, suspend_every, delay;
    } ways[] = {{29, 0, 300}, {64, 1, 0}, {7, 3, 100}};
    static const uint32_t prompts[] = {40, 195};
    for (size_t i = 0; i < 2 * MODELS * KVA_COUNT_OF(prompts); i++) {
        if (i % FIXTURE_EVERY != 0)
            continue;
        struct fixture_params params = {
            .model_path = paths[i / 4], .step_tokens_max = 256, .make_skew = make_turned};
        struct run run = {.prompt_tokens = prompts[i % 2],
                          .prompt_seed = 9,
                          .kv = own_columns(i % 3 ? KVA_SKEW_AFTER : KVA_SKEW_NONE)};
        run.kv.min_tokens = i % 3 ? 0 : 128;
        run.kv.pool = i / 2 % 2 && i / 4 < 2 ? 64 : 0; /* a window forbids it */
        const struct trace want = run_one(&params, run);
        for (size_t w = 0; w < KVA_COUNT_OF(ways); w++) {
            params.step_tokens_max = 64;
            params.copy_delay_max_us = ways[w].delay;
            params.seed = w;
            run.quota = ways[w].quota;
            run.suspend_every = ways[w].suspend_every;
            const struct trace got = run_one(&params, run);
            trace_expect_same(&got, &want, families[i / 4]);
        }
    }
}

/* Prompts that begin alike, in one pass, after one that fed the prefix cache: of the cache is taken
 * nothing where columns are the prompt's own, and each says what it says alone. */
static void test_columns__company_and_the_prefix_cache(void **state KVA_UNUSED)
{
    enum { COUNT = 5 };
    static const uint32_t lengths[COUNT] = {200, 200, 150, 200, 200};
    struct kva_kv_spec specs[COUNT];
    struct trace want[COUNT];
    struct kva_step_item items[COUNT] = {0};
    struct fixture f;
    uint32_t prompt[CONTEXT];
    const struct kva_sampling_params sampling = trace_sampling();
    for (uint32_t i = 0; i < COUNT; i++) {
        specs[i] = own_columns(KVA_SKEW_NONE);
        if (i % 2)
            specs[i].columns = KVA_COLUMNS_STATIC;
        want[i] =
            run_one(&(struct fixture_params){.model_path = paths[0]},
                    (struct run){.prompt_tokens = lengths[i], .prompt_seed = 4, .kv = specs[i]});
    }
    fixture_open(&f, &(struct fixture_params){
                         .model_path = paths[0], .step_tokens_max = 100, .prefix_cache = true});
    fixture_prompt(prompt, 200, VOCAB, 4);
    for (uint32_t i = 0; i < COUNT; i++) {
        struct kva_sequence_info info;
        items[i].seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = lengths[i],
                                                            .tokens_max = lengths[i] + OUTPUT,
                                                            .sampling = &sampling,
                                                            .kv = specs[i]});
        f.engine->ops->sequence_info(f.engine->self, items[i].seq, &info);
        assert_int_equal(info.cached_tokens, i % 2 ? 192 : 0);
        assert_int_equal(fixture_prefill(&f, items[i].seq, 33), want[i].tokens[0]);
    }
    trace_expect_together(&f, items, want, COUNT, OUTPUT);
    fixture_close(&f);
}

/* What columns take is told, and taken for no longer than the sequence is there. */
static void test_columns__bytes_told_are_bytes_taken(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_sequence_info info[2];
    uint32_t prompt[CONTEXT];
    const struct kva_sampling_params sampling = trace_sampling();
    fixture_open(&f, &(struct fixture_params){.model_path = paths[0]});
    const struct kva_model_config *c = &f.model->config;
    fixture_prompt(prompt, 200, VOCAB, 4);
    for (uint32_t i = 0; i < 2; i++) {
        struct kva_kv_spec spec = own_columns(KVA_SKEW_NONE);
        spec.columns = i ? KVA_COLUMNS_PROMPT : KVA_COLUMNS_STATIC;
        struct kva_sequence *seq =
            fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                            .prompt_tokens = 200,
                                                            .tokens_max = 240,
                                                            .sampling = &sampling,
                                                            .kv = spec});
        fixture_prefill(&f, seq, CONTEXT);
        f.engine->ops->sequence_info(f.engine->self, seq, &info[i]);
        assert_true(kva_model_engine_footprint(f.engine, &spec, 200, 240).device >=
                    info[i].bytes.device);
        f.engine->ops->destroy(f.engine->self, seq);
    }
    /* Those of every layer, and sums of one. */
    assert_int_equal(info[1].bytes.device - info[0].bytes.device,
                     (LAYERS + 1) * c->kv_heads * c->head_dim * 4);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns__are_the_largest_of_the_prompt),
        cmocka_unit_test(test_columns__all_are_all),
        cmocka_unit_test(test_columns__chunks_suspension_and_delays),
        cmocka_unit_test(test_columns__company_and_the_prefix_cache),
        cmocka_unit_test(test_columns__bytes_told_are_bytes_taken),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
