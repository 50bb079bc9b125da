/* Rows chosen a layer ahead (InfiniGen): the limits in which they are full attention, what is
 * chosen and attended to against a plain computation, and what must not matter. On models of five
 * layers, so that both buffers are used again. */
#include "tests/cmocka.h"

#include "engine/kv/parts/ahead_internal.h"
#include "engine/kv/parts/sketch.h"
#include "engine/model/skew.h"
#include "kernels/convert.h"
#include "tests/data.h"
#include "tests/engine/family_models.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 5, MODELS = 7 };

/* Groups of heads and none, rotary positions, partly rotary ones and learned ones, biases, norms of
 * heads, parallel residuals, sliding windows. */
static const char *const families[MODELS] = {
    "llama3_gqa_bf16", "qwen3_qk_norm",      "neox_parallel", "opt_relu_tied",
    "gemma_tied",      "qwen2_mixed_window", "llama_yarn",
};

static char paths[MODELS][FIXTURE_PATH_BYTES];

static int make_models(void **state KVA_UNUSED)
{
    family_models_make(
        &(struct family_models){
            .families = families, .count = MODELS, .layers = LAYERS, .seed = 40},
        paths);
    return 0;
}

static int remove_models(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < MODELS; i++)
        fixture_remove_model(paths[i]);
    return 0;
}

static struct kva_kv_spec spec_of(uint32_t alpha, uint32_t cap, uint32_t partial)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_INFINIGEN);
    spec.alpha = alpha;
    spec.cap = cap;
    spec.partial = partial;
    spec.partial_bits = 16;
    spec.skew = KVA_SKEW_NONE;
    spec.min_tokens = 0;
    spec.skip_layers = 1;
    return spec;
}

/* What it is about: some rows of some tokens, by half of the columns. */
static struct kva_kv_spec some(void)
{
    return spec_of(1, KVA_KV_PERCENT | 30, 50);
}

static struct trace run_one(const struct fixture_params *params, struct run run)
{
    struct fixture f;
    fixture_open(&f, params);
    const struct trace trace = trace_run(&f, &run);
    struct kva_engine_usage usage;
    f.engine->ops->usage(f.engine->self, &usage);
    assert_int_equal(usage.used.host, usage.cached.host);
    assert_int_equal(usage.used.device, usage.cached.device);
    fixture_close(&f);
    return trace;
}

static double distance(const struct trace *a, const struct trace *b)
{
    double worst = 0;
    for (uint32_t i = 0; i < OUTPUT; i++) {
        if (a->tokens[i] != b->tokens[i])
            return INFINITY;
        worst = fmax(worst, fabs((double)a->logprobs[i] - (double)b->logprobs[i]));
    }
    return worst;
}

/* --- limits ---------------------------------------------------------------------------------- */

static void test_ahead__all_rows_are_full_attention(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < MODELS; m++) {
        const struct fixture_params params = {.model_path = paths[m],
                                              .cpu_level_mask = fixture_unrounded_levels()};
        struct run run = {.prompt_tokens = 200, .prompt_seed = 5};
        const struct trace full = run_one(&params, run);
        run.kv = spec_of(1000, KVA_KV_PERCENT | 100, 100);
        const struct trace all = run_one(&params, run);
        if (!(distance(&all, &full) < 1e-4))
            fail_msg("%s: all rows are %g off", families[m], distance(&all, &full));
        run.kv.partial = 10; /* however they were found */
        run.kv.partial_bits = 8;
        const struct trace still = run_one(&params, run);
        trace_expect_same(&still, &all, families[m]);
        run.kv.skip_layers = 99;
        const struct trace skipped = run_one(&params, run);
        trace_expect_same(&skipped, &full, families[m]);
        run.kv = some();
        const struct trace few = run_one(&params, run);
        assert_int_equal(few.tokens[0], full.tokens[0]); /* the prompt is exact */
        assert_true(few.logprobs[0] == full.logprobs[0]);
        if (!(distance(&few, &full) > 0))
            fail_msg("%s: some rows are all", families[m]);
    }
}

/* --- skews ----------------------------------------------------------------------------------- */

/* One with its columns in a random order, in the basis and in the list; turned: in the basis pairs
 * of them are turned besides, which is orthogonal still. */
static struct kva_skew *make_skew(const struct kva_model *model, bool turned)
{
    const struct kva_model_config *c = &model->config;
    struct kva_skew *skew;
    struct kva_err err;
    uint64_t random = 88172645463325252u;
    assert_int_equal(kva_skew_create(c->layer_count, c->kv_heads, c->head_dim, &skew, &err),
                     KVA_OK);
    for (uint32_t i = 0; i < c->layer_count * c->kv_heads; i++) {
        float *basis = skew->basis + kva_skew_basis_at(skew, i / c->kv_heads, i % c->kv_heads);
        uint32_t *own = skew->columns + kva_skew_columns_at(skew, i / c->kv_heads, i % c->kv_heads);
        for (uint32_t j = 0; j < c->head_dim; j++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            const uint32_t other = (uint32_t)(random % (j + 1));
            own[j] = own[other];
            own[other] = j;
        }
        for (uint32_t j = 0; j < c->head_dim; j++) {
            basis[(size_t)own[j] * c->head_dim + j] = 1;
            skew->energy[kva_skew_columns_at(skew, i / c->kv_heads, i % c->kv_heads) + own[j]] =
                (float)(c->head_dim - j);
        }
        for (uint32_t j = 0; turned && j < c->head_dim * c->head_dim; j += 2) {
            const float a = basis[j], b = basis[j + 1];
            basis[j] = 0.6f * a - 0.8f * b;
            basis[j + 1] = 0.8f * a + 0.6f * b;
        }
    }
    return skew;
}

static struct kva_skew *make_permuted(const struct kva_model *model)
{
    return make_skew(model, false);
}

static struct kva_skew *make_turned(const struct kva_model *model)
{
    return make_skew(model, true);
}

/* --- against a plain computation ------------------------------------------------------------- */

enum { DIM_MAX = 512, TOKENS_MAX = 320, HEADS_MAX = 16 };

/* The policy itself, but for a hook that sees what layers begin with. */
static struct kva_kv_policy watched;

struct probe {
    struct fixture *f;
    struct kva_kv_spec spec;
    float hidden[LAYERS][DIM_MAX]; /* of the row at hand */
    uint32_t layers;
    uint64_t chosen, weighed, borderline;
    double worst;
};

static struct probe *probe;

static void watch_input(struct kva_kv *kv KVA_UNUSED, struct kva_kv_pass *pass, uint32_t layer,
                        const void *hidden)
{
    const struct kva_kv_rows *rows = &pass->rows[0];
    const uint32_t dim = probe->f->model->config.hidden_size;
    memcpy(probe->hidden[layer],
           (const float *)hidden + (size_t)(rows->row_first + rows->row_count - 1) * dim,
           dim * sizeof(float));
}

static double at(const struct kva_tensor *tensor, size_t index)
{
    return (double)kva_f32_at(tensor->data, tensor->dtype, index);
}

/* The norms of heads, and of rows. */
static void plain_norm(const struct kva_model_config *c, bool root, const struct kva_tensor *weight,
                       const struct kva_tensor *bias, double *x, uint32_t dim)
{
    double mean = 0, square = 0;
    for (uint32_t i = 0; i < dim && !root; i++)
        mean += x[i] / dim;
    for (uint32_t i = 0; i < dim; i++)
        square += (x[i] - mean) * (x[i] - mean) / dim;
    for (uint32_t i = 0; i < dim; i++) {
        x[i] = (x[i] - mean) / sqrt(square + (double)c->norm_eps) *
               (at(weight, i) + (double)c->norm_weight_offset);
        if (!root && bias && bias->data)
            x[i] += at(bias, i);
    }
}

/* The query that a head of a layer would have, were the layer's input that of the one before. */
static void plain_query(uint32_t layer, uint32_t head, uint32_t position, double *q)
{
    const struct kva_model_config *c = &probe->f->model->config;
    const struct kva_layer_tensors *w = &probe->f->model->layers[layer];
    double x[DIM_MAX];
    for (uint32_t i = 0; i < c->hidden_size; i++)
        x[i] = (double)probe->hidden[layer - 1][i];
    plain_norm(c, c->norm == KVA_NORM_RMS, &w->attn_norm, &w->attn_norm_bias, x, c->hidden_size);
    for (uint32_t i = 0; i < c->head_dim; i++) {
        const size_t row = (size_t)head * c->head_dim + i;
        q[i] = w->q_bias.data ? at(&w->q_bias, row) : 0;
        for (uint32_t j = 0; j < c->hidden_size; j++)
            q[i] += x[j] * at(&w->q, row * c->hidden_size + j);
    }
    if (w->q_norm.data)
        plain_norm(c, true, &w->q_norm, NULL, q, c->head_dim);
    const uint32_t half = c->rope.rotary_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        const double angle = (double)position * (double)c->rope.inv_freq[i], a = q[i],
                     b = q[half + i];
        q[i] = (a * cos(angle) - b * sin(angle)) * (double)c->rope.factor;
        q[half + i] = (b * cos(angle) + a * sin(angle)) * (double)c->rope.factor;
    }
}

/* NULL: columns are those of keys as they are. */
static const float *basis_of(uint32_t layer, uint32_t kv_head)
{
    const struct kva_skew *skew = probe->f->model->skew;
    return probe->spec.skew == KVA_SKEW_AFTER
               ? skew->basis + kva_skew_basis_at(skew, layer, kv_head)
               : NULL;
}

/* Columns of planes, in the order in which they are computed; else as they come. */
static void list_columns(uint32_t layer, uint32_t kv_head, uint32_t count, uint32_t *list)
{
    const struct kva_model *model = probe->f->model;
    for (uint32_t c = 0; c < count; c++)
        list[c] = c;
    if (probe->spec.skew == KVA_SKEW_PLANES)
        kva_skew_planes(model->skew, model->config.rope.rotary_dim, layer, kv_head, list, count / 2,
                        list + count / 2);
}

static double column(const float *basis, const double *x, uint32_t c)
{
    const uint32_t dim = probe->f->model->config.head_dim;
    double sum = 0;
    for (uint32_t i = 0; i < dim && basis; i++)
        sum += x[i] * (double)basis[(size_t)i * dim + c];
    return basis ? sum : x[c];
}

/* The columns of keys [first, end). */
static void plain_keys(const struct kva_forward_view *view, const float *basis, uint32_t kv_head,
                       uint32_t columns, uint32_t first, uint32_t end, double (*keys)[DIM_MAX])
{
    uint32_t list[DIM_MAX];
    list_columns(view->layer, kv_head, columns, list);
    for (uint32_t t = first; t < end; t++) {
        const uint16_t *k = fixture_kv_row(probe->f, view, kv_head, t);
        double x[DIM_MAX] = {0};
        for (uint32_t i = 0; i < probe->f->model->config.head_dim; i++)
            x[i] = fixture_kv_number(probe->f, k + i);
        for (uint32_t c = 0; c < columns; c++)
            keys[t][c] = column(basis, x, list[c]);
    }
}

/* How far below the largest each token is, for the nearest of the heads that share the KV head. */
static void plain_distances(const struct kva_forward_view *view, uint32_t kv_head, uint32_t first,
                            uint32_t end, double *below)
{
    const struct kva_model_config *c = &probe->f->model->config;
    const uint32_t group = c->heads / c->kv_heads;
    uint32_t columns = (c->head_dim * probe->spec.partial + 99) / 100;
    columns += probe->spec.skew == KVA_SKEW_PLANES ? columns % 2 : 0;
    const uint32_t from = kva_max_u32(first, probe->spec.sinks);
    const float *basis = basis_of(view->layer, kv_head);
    static double keys[TOKENS_MAX][DIM_MAX];
    for (uint32_t t = 0; t < end; t++)
        below[t] = INFINITY;
    uint32_t list[DIM_MAX];
    list_columns(view->layer, kv_head, columns, list);
    plain_keys(view, basis, kv_head, columns, from, end, keys);
    for (uint32_t h = 0; h < group; h++) {
        double q[DIM_MAX], q_columns[DIM_MAX], scores[TOKENS_MAX], most = -INFINITY;
        plain_query(view->layer, kv_head * group + h, view->rows->position_first, q);
        for (uint32_t i = 0; i < columns; i++)
            q_columns[i] = column(basis, q, list[i]);
        for (uint32_t t = from; t < end; t++) {
            scores[t] = 0;
            for (uint32_t i = 0; i < columns; i++)
                scores[t] += q_columns[i] * keys[t][i] * (double)c->attend_scale;
            most = fmax(most, scores[t]);
        }
        for (uint32_t t = from; t < end; t++)
            below[t] = fmin(below[t], most - scores[t]);
    }
    for (uint32_t t = first; t < from && t < end; t++)
        below[t] = -1; /* sinks */
}

/* Whether the rows that attend are those that are nearer than alpha, or, of too many, the nearest;
 * `has` says which do. */
static void check_choice(const struct kva_forward_view *view, uint32_t kv_head, uint32_t first,
                         uint32_t end, const bool *has)
{
    const double margin = 0.02; /* partial keys have 8 bits of a fraction */
    const uint32_t k = kva_ahead_rows(view->rows->seq);
    double below[TOKENS_MAX];
    uint32_t count = 0;
    plain_distances(view, kv_head, first, end, below);
    for (uint32_t t = 0; t < end; t++)
        count += has[t];
    assert_true(count <= k);
    for (uint32_t t = 0; t < end; t++) {
        uint32_t nearer = 0;
        if (fabs(below[t] - probe->spec.alpha) < margin) {
            probe->borderline++;
            continue;
        }
        for (uint32_t other = 0; other < end; other++)
            nearer += below[other] < below[t] - margin;
        if (has[t] && (below[t] > probe->spec.alpha || nearer >= k))
            fail_msg("layer %u, token %u attends, %g below the largest", view->layer, t, below[t]);
        if (!has[t] && below[t] < probe->spec.alpha && count < k)
            fail_msg("layer %u, token %u does not attend, %g below", view->layer, t, below[t]);
    }
    probe->chosen += count;
    probe->weighed += end;
}

/* The tokens of a KV head's rows. */
static void list_tokens(const struct kva_row_cache *cache, uint32_t kv_head, bool *has)
{
    memset(has, 0, TOKENS_MAX * sizeof *has);
    for (uint32_t i = 0; i < cache->count[kv_head]; i++) {
        const size_t at_head = (size_t)kv_head * cache->slots;
        const uint32_t token = cache->tokens[at_head + cache->order[at_head + i]];
        assert_true(token < TOKENS_MAX && !has[token]);
        has[token] = true;
    }
}

static void check_head(const struct kva_forward_view *view, uint32_t head, const bool *has)
{
    const struct kva_model_config *c = &probe->f->model->config;
    const uint32_t d = c->head_dim, kv_head = head / (c->heads / c->kv_heads);
    const uint32_t position = view->rows->position_first, window = c->layer_window[view->layer];
    const float *q = (const float *)view->q + (size_t)head * d;
    const float *out = (const float *)view->out + (size_t)head * d;
    double want[DIM_MAX] = {0}, sum = 0;
    for (uint32_t t = 0; t <= position; t++) {
        const bool far = t < view->rows->seq->offloaded * KVA_PAGE_TOKENS;
        const uint16_t *row = fixture_kv_row(probe->f, view, kv_head, t);
        double score = 0;
        if ((window > 0 && t + window <= position) || (far && has && !has[t]))
            continue;
        for (uint32_t i = 0; i < d; i++)
            score += (double)q[i] * fixture_kv_number(probe->f, row + i);
        const double weight = exp(score * (double)c->attend_scale);
        sum += weight;
        for (uint32_t i = 0; i < d; i++)
            want[i] += weight * fixture_kv_number(probe->f, row + d + i);
    }
    for (uint32_t i = 0; i < d; i++)
        probe->worst = fmax(probe->worst, fabs(want[i] / sum - (double)out[i]));
}

static void check_layer(void *opaque KVA_UNUSED, const struct kva_forward_view *view)
{
    const struct kva_model_config *c = &probe->f->model->config;
    const struct kva_kv_range *range = kva_kv_find_range(view->rows, KVA_RANGE_ROWS);
    const uint32_t end = view->rows->seq->offloaded * KVA_PAGE_TOKENS;
    const uint32_t position = view->rows->position_first, window = c->layer_window[view->layer];
    const uint32_t first =
        window > 0 && position >= window ? kva_min_u32(position - window + 1, end) : 0;
    bool has[TOKENS_MAX];
    assert_int_equal(range != NULL, view->layer >= 1);
    kva_device_sync(probe->f->device, KVA_QUEUE_COPY);
    for (uint32_t head = 0; head < c->heads; head++) {
        const uint32_t kv_head = head / (c->heads / c->kv_heads);
        if (range)
            list_tokens(range->rows, kv_head, has);
        if (range && head % (c->heads / c->kv_heads) == 0)
            check_choice(view, kv_head, first, end, has);
        check_head(view, head, range ? has : NULL);
    }
    probe->layers++;
}

static void test_ahead__against_a_plain_computation(void **state KVA_UNUSED)
{
    const struct kva_kv_spec specs[] = {some(), spec_of(0, KVA_KV_PERCENT | 100, 100),
                                        spec_of(2, 12, 100), spec_of(3, 1, 25)};
    for (size_t i = 0; i < MODELS * KVA_COUNT_OF(specs); i++) {
        struct fixture f;
        struct probe own = {.f = &f, .spec = specs[i % KVA_COUNT_OF(specs)]};
        if (i % FIXTURE_EVERY != 0)
            continue;
        const bool planes = i % 4 == 2 && i / 4 != 1; /* of one spec, where heads have no norms */
        own.spec.partial = planes ? 40 : own.spec.partial;
        fixture_open(&f, &(struct fixture_params){.model_path = paths[i / KVA_COUNT_OF(specs)],
                                                  .planes_percent = planes ? 40 : 0,
                                                  .cpu_level_mask = fixture_unrounded_levels(),
                                                  .copy_delay_max_us = 100,
                                                  .make_skew = make_turned,
                                                  .seed = i});
        probe = &own;
        watched = kva_kv_policy_infinigen;
        watched.layer_input = watch_input;
        own.spec.own = &watched;
        own.spec.sinks = i % 2 ? 4 : 0;
        own.spec.skew = i % 3 ? KVA_SKEW_AFTER : KVA_SKEW_FOLD; /* else the leading columns */
        if (own.spec.skew == KVA_SKEW_FOLD && f.model->config.rope.rotary_dim > 0)
            own.spec.skew = KVA_SKEW_AFTER;
        if (planes)
            own.spec.skew = KVA_SKEW_PLANES;
        const struct kva_forward_observer observer = {.attended = check_layer};
        kva_model_engine_observe(f.engine, &observer);
        trace_run(&f, &(struct run){
                          .prompt_tokens = 200, .prompt_seed = 6, .outputs = 9, .kv = own.spec});
        assert_int_equal(own.layers, 8 * LAYERS);
        assert_true(own.chosen > 0 && own.borderline < own.weighed / 4);
        if (!(own.worst < 5e-6))
            fail_msg("%s: attention is off by %g", families[i / KVA_COUNT_OF(specs)], own.worst);
        fixture_close(&f);
    }
}

/* --- the skew -------------------------------------------------------------------------------- */

static void test_ahead__columns_of_a_skew(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < MODELS; m++) {
        struct fixture_params params = {.model_path = paths[m],
                                        .cpu_level_mask = fixture_unrounded_levels()};
        struct run run = {.prompt_tokens = 200, .prompt_seed = 8, .kv = some()};
        const struct trace leading = run_one(&params, run);
        params.make_skew = make_permuted;
        const struct trace listed = run_one(&params, run);
        run.kv.skew = KVA_SKEW_AFTER;
        const struct trace based = run_one(&params, run);
        trace_expect_same(&based, &listed, families[m]);
        assert_memory_not_equal(listed.logprobs, leading.logprobs, sizeof(leading.logprobs));
    }
}

/* Without a skew file, and with a skew in weights that have none. */
static void test_ahead__refused(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_err err;
    const uint32_t prompt = 1;
    struct kva_sequence_params params = {.prompt = &prompt, .prompt_tokens = 1, .tokens_max = 2};
    fixture_open(&f, &(struct fixture_params){.model_path = paths[0]});
    params.kv = some();
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_OK);
    params.kv.skew = KVA_SKEW_AFTER;
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_EUNSUPPORTED);
    assert_string_equal(err.param, "skew");
    assert_non_null(strstr(err.message, "kvahead skew --model"));
    params.kv.skew = KVA_SKEW_FOLD;
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "rotary"));
    params.kv.skew = KVA_SKEW_PLANES;
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "--skew-planes"));
    fixture_close(&f);
    fixture_open(&f, &(struct fixture_params){
                         .model_path = paths[0], .make_skew = make_turned, .planes_percent = 50});
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_OK);
    params.kv.partial = 20;
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_EUNSUPPORTED);
    params.kv.partial = 50;
    params.kv.columns = KVA_COLUMNS_PROMPT;
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_EUNSUPPORTED);
    params.kv.columns = KVA_COLUMNS_STATIC;
    params.kv.skew = KVA_SKEW_FOLD;
    fixture_close(&f);
    fixture_open(&f, &(struct fixture_params){.model_path = paths[3]}); /* learned positions */
    assert_int_equal(f.engine->ops->check(f.engine->self, &params, &err), KVA_OK);
    fixture_close(&f);
}

/* --- what must not matter -------------------------------------------------------------------- */

static void test_ahead__chunks_suspension_and_delays(void **state KVA_UNUSED)
{
    static const uint32_t prompts[] = {50, 127, 195};
    static const struct {
        uint32_t quota, suspend_every, delay;
    } ways[] = {{29, 0, 300}, {200, 1, 300}, {7, 3, 0}};
    for (size_t i = 0; i < MODELS * KVA_COUNT_OF(prompts); i++) {
        if (i % FIXTURE_EVERY != 0)
            continue;
        struct fixture_params params = {.model_path = paths[i / KVA_COUNT_OF(prompts)],
                                        .step_tokens_max = 256};
        struct run run = {
            .prompt_tokens = prompts[i % KVA_COUNT_OF(prompts)], .prompt_seed = 9, .kv = some()};
        run.kv.partial_bits = i % 2 ? 8 : 16;
        run.kv.min_tokens = i % 3 ? 0 : 128;
        if (i % 3 == 1 && i / KVA_COUNT_OF(prompts) != 1) { /* which has norms of heads */
            run.kv.skew = KVA_SKEW_PLANES;
            params.planes_percent = run.kv.partial;
            params.make_skew = make_turned;
        }
        const struct trace want = run_one(&params, run);
        for (size_t w = 0; w < KVA_COUNT_OF(ways); w++) {
            params.step_tokens_max = 64;
            params.copy_delay_max_us = ways[w].delay;
            params.seed = w;
            run.quota = ways[w].quota;
            run.suspend_every = ways[w].suspend_every;
            const struct trace got = run_one(&params, run);
            trace_expect_same(&got, &want, families[i / KVA_COUNT_OF(prompts)]);
        }
    }
}

/* Sequences of several settings and policies in one pass, some of which began alike: each says what
 * it says alone, and pages that came from the prefix cache are sketched as others are. */
static void test_ahead__company_and_the_prefix_cache(void **state KVA_UNUSED)
{
    enum { COUNT = 7 };
    struct kva_kv_spec specs[COUNT] = {
        some(), some(), some(), trace_variant(SPEC), some(), trace_variant(FULL), some()};
    struct fixture f;
    struct kva_err err;
    uint32_t prompt[CONTEXT];
    struct trace want[COUNT];
    struct kva_step_item items[COUNT] = {0};
    const struct kva_sampling_params sampling = trace_sampling();
    specs[2].alpha = 3;
    specs[4].partial_bits = 8;
    specs[6].skip_layers = 3;
    for (uint32_t i = 0; i < COUNT; i++)
        want[i] = run_one(&(struct fixture_params){.model_path = paths[0]},
                          (struct run){.prompt_tokens = 200, .prompt_seed = 4, .kv = specs[i]});
    fixture_open(&f, &(struct fixture_params){
                         .model_path = paths[0], .step_tokens_max = 100, .prefix_cache = true});
    fixture_prompt(prompt, 200, VOCAB, 4);
    for (uint32_t i = 0; i < COUNT; i++) {
        struct kva_sequence_info info;
        items[i].seq = fixture_start(&f, &(struct kva_sequence_params){.prompt = prompt,
                                                                       .prompt_tokens = 200,
                                                                       .tokens_max = 200 + OUTPUT,
                                                                       .sampling = &sampling,
                                                                       .kv = specs[i]});
        f.engine->ops->sequence_info(f.engine->self, items[i].seq, &info);
        assert_int_equal(info.cached_tokens, i > 0 ? 192 : 0);
        assert_int_equal(fixture_prefill(&f, items[i].seq, 33), want[i].tokens[0]);
    }
    for (uint32_t t = 1; t < OUTPUT; t++) {
        for (uint32_t i = 0; i < COUNT; i++)
            assert_int_equal(f.engine->ops->grow(f.engine->self, items[i].seq, &err), KVA_OK);
        assert_int_equal(f.engine->ops->step(f.engine->self, items, COUNT, &err), KVA_OK);
        for (uint32_t i = 0; i < COUNT; i++) {
            if (!items[i].emitted)
                continue; /* a wrong guess runs again first */
            const uint32_t at_token = t;
            if (specs[i].policy == KVA_KV_INFINIGEN) {
                assert_int_equal(items[i].token.token, want[i].tokens[at_token]);
                assert_true(items[i].token.chosen.logprob == want[i].logprobs[at_token]);
            }
        }
    }
    for (uint32_t i = 0; i < COUNT; i++)
        f.engine->ops->destroy(f.engine->self, items[i].seq);
    fixture_close(&f);
}

/* --- memory and counts ----------------------------------------------------------------------- */

static void test_ahead__bytes_told_are_bytes_taken(void **state KVA_UNUSED)
{
    for (uint32_t bits = 8; bits <= 16; bits += 8) {
        struct fixture f;
        uint32_t prompt[CONTEXT], token;
        const struct kva_sampling_params sampling = trace_sampling();
        struct kva_kv_spec kv = some();
        struct kva_sequence_info info;
        struct kva_engine_usage usage;
        kv.partial_bits = bits;
        kv.skip_layers = 2;
        fixture_open(&f, &(struct fixture_params){.model_path = paths[0], .prefix_cache = true});
        fixture_prompt(prompt, CONTEXT, VOCAB, 3);
        const struct kva_sequence_params params = {.prompt = prompt,
                                                   .prompt_tokens = 200,
                                                   .tokens_max = 256,
                                                   .sampling = &sampling,
                                                   .kv = kv};
        struct kva_sequence *seqs[2] = {fixture_start(&f, &params), NULL};
        fixture_prefill(&f, seqs[0], 256);
        fixture_decode(&f, seqs, 1, &token);
        f.engine->ops->sequence_info(f.engine->self, seqs[0], &info);
        f.engine->ops->usage(f.engine->self, &usage);
        /* Two of four pages are away. 30% of 256 tokens, and the sinks, are 81 rows: in 128 slots. */
        const struct kva_sketch_format format = {8, bits};
        const uint64_t sketch =
            2 * (2 * kva_kv_block_bytes(2, 16) + 3 * kva_sketch_block_bytes(format, 2));
        const uint64_t window = 2 * LAYERS * kva_kv_block_bytes(2, 16);
        const uint64_t rows = 2 * 128 * 2 * (2 * 16 * 2 + 5 * 4) + 2 * 64;
        assert_int_equal(info.bytes.device, sketch + window + rows);
        assert_true(usage.used.device - usage.cached.device >= info.bytes.device);
        assert_int_equal(info.bytes.host, 4 * LAYERS * kva_kv_block_bytes(2, 16));
        /* Three layers of two heads, of 128 tokens each; all rows come. */
        const uint64_t fetched = kva_counts_named(&info.counts, "rehearsed_rows");
        assert_int_equal(kva_counts_named(&info.counts, "rehearsed_layers"), 3 * 2);
        assert_int_equal(fetched + kva_counts_named(&info.counts, "rehearsed_rows_left"),
                         3 * 2 * 128);
        assert_true(fetched >= 6 * 5 && fetched <= 6 * 43);
        /* Another one shares the partial keys of the pages that both have. */
        const uint64_t before = usage.used.device;
        seqs[1] = fixture_start(&f, &params);
        fixture_prefill(&f, seqs[1], 256);
        fixture_decode(&f, seqs, 2, (uint32_t[2]){0});
        f.engine->ops->usage(f.engine->self, &usage);
        const uint64_t footprint = kva_model_engine_footprint(f.engine, &kv, 200, 256).device;
        assert_true(usage.used.device - before < footprint - sketch / 2);
        assert_true(footprint >= info.bytes.device);
        for (uint32_t i = 0; i < 2; i++)
            f.engine->ops->destroy(f.engine->self, seqs[i]);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ahead__all_rows_are_full_attention),
        cmocka_unit_test(test_ahead__against_a_plain_computation),
        cmocka_unit_test(test_ahead__columns_of_a_skew),
        cmocka_unit_test(test_ahead__refused),
        cmocka_unit_test(test_ahead__chunks_suspension_and_delays),
        cmocka_unit_test(test_ahead__company_and_the_prefix_cache),
        cmocka_unit_test(test_ahead__bytes_told_are_bytes_taken),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
