/* What coverage.h measures, against a second computation from the views that the forward pass gives
 * out: plain loops in double precision, every token sorted. */
#include "tests/cmocka.h"

#include "engine/eval/coverage.h"
#include "tests/engine/fixture.h"

#include <math.h>
#include <stdlib.h>

enum { CONTEXT = 256, PROMPT = 150, STEPS = 70, VOCAB = 300 };

static const char *const models[] = {
    "tests/golden/families/llama3_gqa_bf16",
    "tests/golden/families/mistral_window", /* layers with a sliding window */
    "tests/golden/families/llama2_mha_f16",
};

struct probe {
    struct kva_forward_observer observer;
    struct kva_coverage *coverage;
    const struct kva_model_config *config;
    enum kva_dtype dtype;
    struct kva_coverage_head *heads; /* [layers][kv_heads] */
    uint64_t views;
};

/* The value of a 16-bit element, from its fields. */
static double value_of(uint16_t bits, enum kva_dtype dtype)
{
    int exponent_bits = dtype == KVA_BF16 ? 8 : 5, fraction_bits = 15 - exponent_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    double fraction = (double)(bits & ((1 << fraction_bits) - 1)) / (1 << fraction_bits);
    double size = exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias);
    return bits & 0x8000 ? -size : size;
}

struct token {
    double weight;
    uint32_t position;
    bool sixteen;
    bool fetchable;
};

static int by_weight(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return (x->position > y->position) - (x->position < y->position);
}

/* Rows alone stand for pages that are away. */
static bool is_ahead(const struct kva_kv_rows *rows)
{
    return kva_kv_find_range(rows, KVA_RANGE_ROWS) != NULL;
}

static uint32_t away_pages(const struct kva_kv_rows *rows)
{
    return is_ahead(rows) ? rows->seq->offloaded : kva_kv_lowbit_pages(rows);
}

static double score_of(const struct probe *p, const struct kva_forward_view *view, uint32_t query,
                       uint32_t head, uint32_t token)
{
    const struct kva_kv_rows *rows = view->rows;
    uint32_t d = p->config->head_dim, page = token / 64;
    const uint16_t *block = (const void *)rows->blocks[page];
    if (page < away_pages(rows))
        block = (const void *)(rows->seq->pages[page]->host +
                               view->layer * (size_t)p->config->kv_heads * 64 * 2 * d * 2);
    const float *q = (const float *)view->q + (size_t)query * d;
    double sum = 0;
    for (uint32_t i = 0; i < d; i++)
        sum +=
            (double)q[i] * value_of(block[((size_t)head * 64 + token % 64) * 2 * d + i], p->dtype);
    return sum * (double)p->config->attend_scale;
}

static void add_weights(const struct probe *p, const struct kva_forward_view *view, uint32_t head,
                        struct token *tokens, uint32_t count)
{
    uint32_t group = p->config->heads / p->config->kv_heads;
    uint32_t window = p->config->layer_window[view->layer];
    for (uint32_t i = 0; i < group; i++) {
        double sum = 0, terms[CONTEXT];
        for (uint32_t t = 0; t < count; t++) {
            bool seen = window == 0 || count - t <= window;
            terms[t] = seen ? exp(score_of(p, view, head * group + i, head, t)) : 0;
            sum += terms[t];
        }
        for (uint32_t t = 0; t < count; t++)
            tokens[t].weight += terms[t] / sum / group;
    }
}

static bool in_hot(const struct kva_row_cache *hot, uint32_t head, uint32_t token)
{
    for (uint32_t i = 0; hot && i < hot->count[head]; i++) {
        uint32_t slot = hot->order[(size_t)head * hot->slots + i];
        if (hot->tokens[(size_t)head * hot->slots + slot] == token)
            return true;
    }
    return false;
}

static void second_opinion(const struct probe *p, const struct kva_forward_view *view,
                           uint32_t head)
{
    static struct token tokens[CONTEXT];
    const struct kva_kv_rows *rows = view->rows;
    const struct kva_row_cache *hot = kva_kv_find_rows(rows);
    struct kva_coverage_head *sums = &p->heads[view->layer * p->config->kv_heads + head];
    uint32_t count = rows->position_first + 1, away = away_pages(rows) * 64;
    uint32_t window = p->config->layer_window[view->layer], pinned = hot ? hot->pinned : 0;
    bool ahead = is_ahead(rows);
    pinned = ahead ? rows->seq->spec.sinks : pinned;
    for (uint32_t t = 0; t < count; t++)
        tokens[t] = (struct token){0, t, t >= away || in_hot(hot, head, t),
                                   t >= pinned && t < away && (window == 0 || count - t <= window)};
    add_weights(p, view, head, tokens, count);
    for (uint32_t i = 0; view->selection && i < hot->k; i++) {
        uint32_t wanted = view->selection[(size_t)head * hot->k + i];
        if (wanted == KVA_NO_TOKEN)
            continue;
        assert_true(tokens[wanted].fetchable);
        sums->wanted++;
        sums->hit += tokens[wanted].sixteen;
    }
    qsort(tokens, count, sizeof(*tokens), by_weight);
    uint32_t k = hot && !ahead ? hot->k : 0;
    for (uint32_t t = 0; t < count && ahead; t++)
        k += tokens[t].fetchable && tokens[t].sixteen;
    sums->steps++;
    sums->waited += kva_kv_select_now_holds(rows);
    for (uint32_t t = 0; t < count; t++) {
        bool best = tokens[t].fetchable && k > 0;
        k -= best;
        sums->covered += tokens[t].sixteen ? tokens[t].weight : 0;
        sums->ceiling += best || tokens[t].position < pinned || tokens[t].position >= away
                             ? tokens[t].weight
                             : 0;
        sums->best += best;
        sums->best_hit += best && tokens[t].sixteen;
        sums->wanted += ahead && best;
        sums->hit += ahead && best && tokens[t].sixteen;
    }
}

static void look_twice(void *opaque, const struct kva_forward_view *view)
{
    struct probe *p = opaque;
    p->views++;
    p->coverage->observer.attends(p->coverage->observer.opaque, view);
    for (uint32_t head = 0; head < p->config->kv_heads; head++)
        second_opinion(p, view, head);
}

static void decode(struct fixture *f, const struct kva_kv_spec *spec, uint32_t *ret_tokens,
                   const struct kva_forward_observer *observer)
{
    uint32_t prompt[PROMPT];
    const struct kva_sampling_params sampling = fixture_greedy();
    fixture_prompt(prompt, PROMPT, VOCAB, 4);
    struct kva_sequence *seq =
        fixture_start(f, &(struct kva_sequence_params){.prompt = prompt,
                                                       .prompt_tokens = PROMPT,
                                                       .tokens_max = PROMPT + STEPS + 1,
                                                       .sampling = &sampling,
                                                       .kv = *spec});
    fixture_prefill(f, seq, PROMPT);
    kva_model_engine_observe(f->engine, observer);
    for (uint32_t i = 0; i < STEPS; i++)
        fixture_decode(f, &seq, 1, &ret_tokens[i]);
    kva_model_engine_observe(f->engine, NULL);
    f->engine->ops->destroy(f->engine->self, seq);
}

static void compare(const struct kva_coverage_head *got, const struct kva_coverage_head *want)
{
    assert_int_equal(got->steps, want->steps);
    assert_int_equal(got->waited, want->waited);
    assert_int_equal(got->wanted, want->wanted);
    assert_int_equal(got->best, want->best);
    /* Probabilities that fp32 scores all but tie may change places. */
    if (got->best != got->wanted || got->best_hit != got->hit)
        assert_int_equal(got->hit, want->hit);
    assert_true(fabs((double)got->best_hit - (double)want->best_hit) <= 2);
    assert_true(fabs(got->covered - want->covered) < 1e-4 * STEPS);
    assert_true(fabs(got->ceiling - want->ceiling) < 1e-4 * STEPS);
}

static void check_choice(const char *model, const char *text)
{
    struct fixture f;
    struct kva_err err = {0};
    struct kva_kv_spec spec;
    struct kva_coverage coverage;
    uint32_t plain[STEPS], observed[STEPS];
    fixture_open(&f, &(struct fixture_params){
                         .model_path = model, .context_max = CONTEXT, .copy_delay_max_us = 200});
    assert_int_equal(kva_kv_spec_parse(text, NULL, &spec, &err), KVA_OK);
    const struct kva_model_config *config = &f.model->config;
    enum kva_dtype dtype = kva_model_engine_kv_dtype(f.model);
    const struct kva_coverage_params params = {f.device, config, dtype, CONTEXT, spec.k};
    assert_int_equal(kva_coverage_init(&coverage, &params, &err), KVA_OK);
    uint32_t heads = config->layer_count * config->kv_heads;
    struct probe probe = {
        .coverage = &coverage,
        .config = config,
        .dtype = dtype,
        .heads = calloc(heads, sizeof(*probe.heads)),
    };
    probe.observer = (struct kva_forward_observer){
        .attends = look_twice, .opaque = &probe, .selection = coverage.observer.selection};
    decode(&f, &spec, plain, NULL);
    decode(&f, &spec, observed, &probe.observer);
    assert_memory_equal(plain, observed, sizeof(plain)); /* looking changes nothing */
    assert_int_equal(probe.views, STEPS * config->layer_count);
    assert_int_equal(coverage.steps, STEPS);
    for (uint32_t i = 0; i < heads; i++) {
        compare(&coverage.heads[i], &probe.heads[i]);
        assert_int_equal(coverage.heads[i].steps, STEPS);
        if (spec.predictor == KVA_PREDICT_SYNC && spec.policy == KVA_KV_SPECACHE) {
            assert_int_equal(coverage.heads[i].hit, coverage.heads[i].wanted);
            assert_int_equal(coverage.heads[i].waited, STEPS);
        }
        if (spec.policy == KVA_KV_FULL)
            assert_true(coverage.heads[i].covered == STEPS);
    }
    kva_coverage_clear(&coverage);
    assert_int_equal(coverage.heads[0].steps, 0);
    kva_coverage_finish(&coverage);
    free(probe.heads);
    fixture_close(&f);
}

static void test_coverage__equals_a_second_computation(void **state KVA_UNUSED)
{
    static const char *const specs[] = {
        "full",
        "kivi:2:min_tokens=0",
        "kivi:1:min_tokens=0:sinks=0",
        "specache:1:16:min_tokens=0:predictor=spec-token",
        "specache:1:16:min_tokens=0:predictor=spec-token:fetch=all:sinks=0:levels=minmax",
        "specache:2:5:min_tokens=0:predictor=prev-query:fetch=delta",
        "specache:2:5:min_tokens=0:predictor=prev-query:reselect_below=0",
        "specache:2:16:min_tokens=0:predictor=sync",
        "specache:2:16:min_tokens=0:predictor=sync:fetch=all",
        "specache:1:16:min_tokens=0:predictor=spec-token:skip_layers=1",
        "infinigen:skew=none:min_tokens=0:alpha=1:skip_layers=1",
        "infinigen:skew=none:min_tokens=0:alpha=2:skip_layers=1:sinks=0:cap=9",
    };
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        for (size_t i = 0; i < KVA_COUNT_OF(specs); i++)
            check_choice(models[m], specs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coverage__equals_a_second_computation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
