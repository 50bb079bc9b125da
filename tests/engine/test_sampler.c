#include "tests/cmocka.h"

#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 50 };

static const struct kva_sampling_params greedy = {
    .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};

static void fill_logits(float *logits, uint64_t seed)
{
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = (float)(kva_sampler_uniform(seed, i) * 12 - 6);
}

static struct kva_token_output draw_at(const struct kva_sampling_params *params,
                                       const float *logits, const uint32_t *ids, uint32_t prompt,
                                       uint32_t count)
{
    struct kva_sampler *sampler;
    struct kva_err err;
    float work[VOCAB];
    struct kva_token_output out = {0};
    memcpy(work, logits, sizeof(work));
    assert_int_equal(kva_sampler_create(VOCAB, &sampler, &err), KVA_OK);
    const struct kva_sampler_context context = {params, 0, ids, prompt, count, NULL};
    assert_int_equal(kva_sampler_draw(sampler, work, &context, &out), KVA_OK);
    kva_sampler_destroy(sampler);
    return out;
}

static const uint32_t no_ids[1] = {0};

/* Frequencies over many seeds. */
static void frequencies(const struct kva_sampling_params *params, const float *logits,
                        double *ret_share)
{
    enum { DRAWS = 40000 };
    struct kva_sampler *sampler;
    struct kva_err err;
    struct kva_sampling_params p = *params;
    memset(ret_share, 0, VOCAB * sizeof(*ret_share));
    assert_int_equal(kva_sampler_create(VOCAB, &sampler, &err), KVA_OK);
    for (uint32_t i = 0; i < DRAWS; i++) {
        float work[VOCAB];
        struct kva_token_output out;
        memcpy(work, logits, sizeof(work));
        p.seed = i;
        const struct kva_sampler_context context = {&p, 0, no_ids, 1, 1, NULL};
        assert_int_equal(kva_sampler_draw(sampler, work, &context, &out), KVA_OK);
        ret_share[out.token] += 1.0 / DRAWS;
    }
    kva_sampler_destroy(sampler);
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The distribution that the parameters describe, computed the plain way. */
static void expected(const struct kva_sampling_params *p, const float *logits, double *ret_share)
{
    float sorted[VOCAB];
    double probability[VOCAB], total = 0, kept = 0, sum = 0;
    memcpy(sorted, logits, sizeof(sorted));
    qsort(sorted, VOCAB, sizeof(*sorted), descending);
    for (int i = 0; i < VOCAB; i++) {
        bool in = p->min_p <= 0 ||
                  exp((double)(logits[i] - sorted[0]) / (double)p->temperature) >= (double)p->min_p;
        in = in && (p->top_k == 0 || p->top_k >= VOCAB || logits[i] >= sorted[p->top_k - 1]);
        probability[i] = in ? exp((double)logits[i] / (double)p->temperature) : 0;
        total += probability[i];
    }
    float threshold = -INFINITY;
    for (int i = 0; i < VOCAB && p->top_p < 1; i++) {
        for (int j = 0; j < VOCAB; j++)
            sum += logits[j] == sorted[i] ? probability[j] : 0;
        threshold = sorted[i];
        if (sum >= (double)p->top_p * total)
            break;
    }
    for (int i = 0; i < VOCAB; i++)
        kept += logits[i] >= threshold ? probability[i] : 0;
    for (int i = 0; i < VOCAB; i++)
        ret_share[i] = logits[i] >= threshold ? probability[i] / kept : 0;
}

static void test_sampler__draws_from_the_described_distribution(void **state KVA_UNUSED)
{
    static const struct {
        float temperature, top_p, min_p;
        uint32_t top_k;
    } cases[] = {
        {1, 1, 0, 0},       {0.5f, 1, 0, 0}, {2, 1, 0, 0},     {1, 0.7f, 0, 0},
        {1, 1, 0, 5},       {1, 1, 0.1f, 0}, {1, 0.8f, 0, 10}, {0.7f, 0.9f, 0.05f, 20},
        {1, 0.0001f, 0, 0}, {1, 1, 1, 0},    {1, 1, 0, 1},     {1, 0.999f, 0, 1000},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        float logits[VOCAB];
        double want[VOCAB], got[VOCAB];
        struct kva_sampling_params p = greedy;
        p.temperature = cases[i].temperature;
        p.top_p = cases[i].top_p;
        p.min_p = cases[i].min_p;
        p.top_k = cases[i].top_k;
        fill_logits(logits, 7 + i);
        expected(&p, logits, want);
        frequencies(&p, logits, got);
        for (int j = 0; j < VOCAB; j++) {
            /* Five standard deviations of a share over 40,000 draws. */
            double bound = 5 * sqrt(want[j] * (1 - want[j]) / 40000) + 1e-9;
            if (fabs(got[j] - want[j]) > bound)
                fail_msg("case %zu token %d: share %.5f, expected %.5f", i, j, got[j], want[j]);
        }
    }
}

static void test_sampler__a_draw_depends_on_seed_choice_and_index_only(void **state KVA_UNUSED)
{
    float logits[VOCAB];
    fill_logits(logits, 3);
    struct kva_sampling_params p = greedy;
    p.temperature = 1;
    p.seed = 42;
    uint32_t ids_a[4] = {1, 2, 3, 4}, ids_b[4] = {9, 8, 7, 6};
    uint32_t same = draw_at(&p, logits, ids_a, 2, 4).token;
    assert_int_equal(draw_at(&p, logits, ids_b, 2, 4).token, same);
    int differs = 0;
    for (uint64_t seed = 43; seed < 60; seed++) {
        p.seed = seed;
        differs += draw_at(&p, logits, ids_a, 2, 4).token != same;
    }
    assert_true(differs > 5);
}

static void test_sampler__greedy_takes_the_lowest_id_of_equals(void **state KVA_UNUSED)
{
    float logits[VOCAB] = {0};
    logits[17] = logits[31] = 2;
    assert_int_equal(draw_at(&greedy, logits, no_ids, 1, 1).token, 17);
    logits[3] = NAN;
    assert_int_equal(draw_at(&greedy, logits, no_ids, 1, 1).token, 17);
}

static void test_sampler__penalties_follow_their_formulas(void **state KVA_UNUSED)
{
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -5;
    logits[1] = 4.0f;
    logits[2] = 3.9f;
    logits[3] = 3.0f;
    /* Prompt: 1; output: 2 2 3. */
    uint32_t ids[4] = {1, 2, 2, 3};
    struct kva_sampling_params p = greedy;
    assert_int_equal(draw_at(&p, logits, ids, 1, 4).token, 1);
    p.presence_penalty = 2; /* 2 and 3 lose 2; 1 is in the prompt only and stays */
    assert_int_equal(draw_at(&p, logits, ids, 1, 4).token, 1);
    p = greedy;
    p.repetition_penalty = 2; /* 1: 2.0, 2: 1.95, 3: 1.5; the negative ones are untouched */
    logits[4] = 1.99f;
    assert_int_equal(draw_at(&p, logits, ids, 1, 4).token, 1);
    logits[4] = 2.01f;
    assert_int_equal(draw_at(&p, logits, ids, 1, 4).token, 4);
    p = greedy;
    p.frequency_penalty = 0.5f; /* 2: 3.9 - 2 * 0.5 = 2.9, 3: 2.5 */
    logits[1] = -5;
    logits[4] = 2.91f;
    assert_int_equal(draw_at(&p, logits, ids, 1, 4).token, 4);
    logits[4] = 2.89f;
    assert_int_equal(draw_at(&p, logits, ids, 1, 4).token, 2);
    p.repetition_penalty = 2; /* before the others, 2: 3.9 / 2 - 2 * 0.5 = 0.95, 3: 3 / 2 - 0.5 */
    logits[4] = 1.01f;
    assert_int_equal(draw_at(&p, logits, ids, 1, 4).token, 4);
    logits[4] = 0.99f;
    assert_int_equal(draw_at(&p, logits, ids, 1, 4).token, 3);
}

static void test_sampler__constraints(void **state KVA_UNUSED)
{
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)-i;
    struct kva_sampling_params p = greedy;
    const uint32_t allowed[] = {9, 6};
    p.allowed_ids = allowed;
    p.allowed_id_count = 2;
    assert_int_equal(draw_at(&p, logits, no_ids, 1, 1).token, 6);
    p.logprobs = 3;
    struct kva_token_output out = draw_at(&p, logits, no_ids, 1, 1);
    assert_int_equal(out.token, 6);
    assert_int_equal(out.chosen.rank, 7);
    assert_int_equal(out.top_count, 3);
    assert_int_equal(out.top[0].token, 0);

    p = greedy;
    const uint32_t stop[] = {0, 1};
    p.stop_ids = stop;
    p.stop_id_count = 2;
    p.min_tokens = 2;
    uint32_t ids[4] = {5, 6, 7, 8};
    assert_int_equal(draw_at(&p, logits, ids, 2, 3).token, 2);
    assert_int_equal(draw_at(&p, logits, ids, 2, 4).token, 0);

    p = greedy;
    const uint32_t phrase[] = {7, 8, 0};
    const uint32_t single[] = {1};
    const struct kva_bad_word words[] = {{phrase, 3}, {single, 1}};
    p.bad_words = words;
    p.bad_word_count = 2;
    assert_int_equal(draw_at(&p, logits, ids, 2, 4).token, 2);
    assert_int_equal(draw_at(&p, logits, ids, 2, 3).token, 0);

    p = greedy;
    const struct kva_logit_bias bias[] = {{40, 100}, {0, -100}};
    p.logit_bias = bias;
    p.logit_bias_count = 2;
    assert_int_equal(draw_at(&p, logits, no_ids, 1, 1).token, 40);
}

static void test_sampler__logprobs_are_those_of_the_model(void **state KVA_UNUSED)
{
    float logits[VOCAB];
    fill_logits(logits, 11);
    struct kva_sampling_params p = greedy;
    p.logprobs = KVA_LOGPROBS_MAX;
    p.temperature = 0.3f;
    struct kva_token_output out = draw_at(&p, logits, no_ids, 1, 1);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    assert_true(fabs((double)out.chosen.logprob - ((double)logits[out.token] - log(sum))) < 1e-5);
    for (uint32_t i = 0; i < out.top_count; i++) {
        assert_int_equal(out.top[i].rank, i + 1);
        assert_true(fabs((double)out.top[i].logprob -
                         ((double)logits[out.top[i].token] - log(sum))) < 1e-5);
        if (i > 0)
            assert_true(out.top[i].logprob <= out.top[i - 1].logprob);
    }
}

static void test_sampler__no_token_left_is_an_error(void **state KVA_UNUSED)
{
    struct kva_sampler *sampler;
    struct kva_err err;
    struct kva_token_output out;
    float logits[VOCAB];
    assert_int_equal(kva_sampler_create(VOCAB, &sampler, &err), KVA_OK);
    const struct kva_sampler_context context = {&greedy, 0, no_ids, 1, 1, NULL};
    for (int i = 0; i < VOCAB; i++)
        logits[i] = NAN;
    assert_int_equal(kva_sampler_draw(sampler, logits, &context, &out), KVA_EINTERNAL);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = INFINITY;
    assert_int_equal(kva_sampler_draw(sampler, logits, &context, &out), KVA_EINTERNAL);
    kva_sampler_destroy(sampler);
}

/* One that a request forbids itself is its own mistake, where there are numbers to go by. */
static void test_sampler__contradictions_are_told_from_bad_logits(void **state KVA_UNUSED)
{
    static const uint32_t word[] = {7}, allowed[] = {7}, mask[] = {1u << 7, 0};
    static const struct kva_bad_word bad_word = {word, 1};
    struct kva_sampler *sampler;
    struct kva_err err;
    struct kva_token_output out;
    float logits[VOCAB], work[VOCAB];
    assert_int_equal(kva_sampler_create(VOCAB, &sampler, &err), KVA_OK);
    fill_logits(logits, 3);
    for (int i = 0; i < 3; i++) {
        struct kva_sampling_params p = greedy;
        p.bad_words = &bad_word;
        p.bad_word_count = 1;
        p.allowed_ids = allowed;
        p.allowed_id_count = i != 1;
        const struct kva_sampler_context context = {&p, 0, no_ids, 1, 1, i ? mask : NULL};
        memcpy(work, logits, sizeof(work));
        assert_int_equal(kva_sampler_draw(sampler, work, &context, &out), KVA_EINVAL);
        for (int j = 0; j < VOCAB; j++)
            work[j] = NAN;
        assert_int_equal(kva_sampler_draw(sampler, work, &context, &out), KVA_EINTERNAL);
    }
    const uint32_t nothing[] = {0, 0};
    const struct kva_sampler_context alone = {&greedy, 0, no_ids, 1, 1, nothing};
    memcpy(work, logits, sizeof(work));
    assert_int_equal(kva_sampler_draw(sampler, work, &alone, &out), KVA_EINTERNAL);
    kva_sampler_destroy(sampler);
}

static bool takes_best(const struct kva_sampler_context *context)
{
    struct kva_sampler *sampler;
    struct kva_err err;
    struct kva_shortlist_request request;
    uint32_t tracked[KVA_SAMPLER_TRACKED_MAX];
    assert_int_equal(kva_sampler_create(VOCAB, &sampler, &err), KVA_OK);
    kva_sampler_request(sampler, context, tracked, &request);
    kva_sampler_destroy(sampler);
    return request.k == 1;
}

/* Where only the best token counts, and where anything else is wanted. */
static void test_sampler__says_when_the_best_is_taken(void **state KVA_UNUSED)
{
    static const uint32_t ids[] = {3};
    static const struct kva_bad_word bad = {ids, 1};
    static const struct kva_logit_bias bias = {3, 1};
    struct kva_sampling_params others[10];
    for (size_t i = 0; i < KVA_COUNT_OF(others); i++)
        others[i] = greedy;
    others[0].temperature = 0.5f;
    others[1].logprobs = 0;
    others[2].allowed_ids = ids, others[2].allowed_id_count = 1;
    others[3].bad_words = &bad, others[3].bad_word_count = 1;
    others[4].logit_bias = &bias, others[4].logit_bias_count = 1;
    others[5].presence_penalty = 0.1f;
    others[6].frequency_penalty = 0.1f;
    others[7].repetition_penalty = 1.1f;
    others[8].stop_ids = ids, others[8].stop_id_count = 1, others[8].min_tokens = 1;
    others[9] = others[8];
    for (size_t i = 0; i < KVA_COUNT_OF(others); i++) {
        /* Some penalties are for tokens of the output; it may stop after the first. */
        const uint32_t output = i == 5 || i == 6 || i == 9;
        const uint32_t two[] = {0, 4};
        struct kva_sampler_context context = {&others[i], 0, two, 1, 1 + output, NULL};
        assert_int_equal(takes_best(&context), i == 9);
    }
    const struct kva_sampler_context context = {&greedy, 0, no_ids, 1, 1, NULL};
    assert_true(takes_best(&context));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler__draws_from_the_described_distribution),
        cmocka_unit_test(test_sampler__a_draw_depends_on_seed_choice_and_index_only),
        cmocka_unit_test(test_sampler__greedy_takes_the_lowest_id_of_equals),
        cmocka_unit_test(test_sampler__penalties_follow_their_formulas),
        cmocka_unit_test(test_sampler__constraints),
        cmocka_unit_test(test_sampler__logprobs_are_those_of_the_model),
        cmocka_unit_test(test_sampler__no_token_left_is_an_error),
        cmocka_unit_test(test_sampler__contradictions_are_told_from_bad_logits),
        cmocka_unit_test(test_sampler__says_when_the_best_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
