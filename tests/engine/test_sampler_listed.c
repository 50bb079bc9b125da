/* Drawing by a shortlist of the logits gives what drawing by all of them gives. */
#include "engine/sampler.h"
#include "tests/cmocka.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 6000, IDS = 400 };

struct bench {
    struct kva_device *device;
    struct kva_sampler *sampler;
    float logits[VOCAB], work[VOCAB];
    uint32_t ids[IDS];
    uint32_t tracked[KVA_SAMPLER_TRACKED_MAX];
    float tracked_logits[KVA_SAMPLER_TRACKED_MAX];
    struct kva_shortlist summary;
    struct kva_candidate listed[KVA_SHORTLIST_MAX];
    uint64_t draws; /* of random numbers */
};

static double uniform(struct bench *b)
{
    return kva_sampler_uniform(17, b->draws++);
}

static uint32_t below(struct bench *b, uint32_t limit)
{
    return (uint32_t)(uniform(b) * limit);
}

static void open_bench(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    struct kva_err err;
    const struct kva_device_params params = {.threads = 1};
    assert_non_null(b);
    assert_int_equal(kva_device_open_cpu(&params, &b->device, &err), KVA_OK);
    assert_int_equal(kva_sampler_create(VOCAB, &b->sampler, &err), KVA_OK);
    *state = b;
}

static int setup(void **state)
{
    open_bench(state);
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    kva_sampler_destroy(b->sampler);
    kva_device_close(b->device);
    free(b);
    return 0;
}

/* Logits whose spread is `size`, some equal, some that are no number or -inf. */
static void fill(struct bench *b, float size)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        double x = uniform(b) + uniform(b) + uniform(b) - 1.5;
        b->logits[i] = below(b, 50) == 0   ? NAN
                       : below(b, 50) == 0 ? -INFINITY
                       : i % 3 == 0        ? rintf((float)x * size)
                                           : (float)x * size;
    }
    for (uint32_t i = 0; i < IDS; i++)
        b->ids[i] = below(b, VOCAB);
}

static struct kva_sampler_list make_list(struct bench *b,
                                         const struct kva_shortlist_request *request)
{
    kva_device_ops(b->device)->shortlist(b->device, &(struct kva_shortlist_args){
                                                        .out = &b->summary,
                                                        .listed = b->listed,
                                                        .tracked_logits = b->tracked_logits,
                                                        .logits = b->logits,
                                                        .requests = request,
                                                        .tracked = b->tracked,
                                                        .count = 1,
                                                        .tracked_count = request->tracked_count,
                                                        .vocab = VOCAB,
                                                    });
    kva_device_sync(b->device, KVA_QUEUE_COMPUTE);
    return (struct kva_sampler_list){request, b->tracked, b->tracked_logits, &b->summary,
                                     b->listed};
}

static void expect_logprob(const struct kva_logprob *got, const struct kva_logprob *want)
{
    assert_int_equal(got->token, want->token);
    assert_int_equal(got->rank, want->rank);
    assert_true(fabsf(got->logprob - want->logprob) <= 1e-6f * (1 + fabsf(want->logprob)));
}

/* Draws both ways; false: the list was not enough. */
static bool compare(struct bench *b, const struct kva_sampler_context *context)
{
    struct kva_shortlist_request request;
    struct kva_token_output listed = {0}, all = {0};
    bool enough = true;
    kva_sampler_request(b->sampler, context, b->tracked, &request);
    if (request.k == 0)
        return false;
    const struct kva_sampler_list list = make_list(b, &request);
    enum kva_status got = kva_sampler_draw_listed(b->sampler, &list, context, &enough, &listed);
    memcpy(b->work, b->logits, sizeof(b->work));
    enum kva_status expected = kva_sampler_draw(b->sampler, b->work, context, &all);
    if (!got && !enough)
        return false;
    assert_int_equal(got, expected);
    if (got)
        return true;
    assert_int_equal(listed.token, all.token);
    assert_int_equal(listed.top_count, all.top_count);
    if (context->params->logprobs >= 0)
        expect_logprob(&listed.chosen, &all.chosen);
    for (uint32_t i = 0; i < all.top_count; i++)
        expect_logprob(&listed.top[i], &all.top[i]);
    return true;
}

/* A request that wants many things at once. */
struct request {
    struct kva_sampling_params params;
    struct kva_logit_bias bias[20];
    uint32_t bad_tokens[20], allowed[30], stop_ids[4];
    struct kva_bad_word bad_words[10];
};

static float pick(struct bench *b, const float *choices, uint32_t count)
{
    return choices[below(b, count)];
}

static void fill_request(struct bench *b, struct request *r)
{
    static const float temperatures[] = {0, 0.3f, 0.7f, 1, 1.5f}, top_ps[] = {1, 1, 0.95f, 0.5f};
    static const float min_ps[] = {0, 0, 0, 0.05f}, repetitions[] = {1, 1, 1.2f, 0.8f};
    static const uint32_t top_ks[] = {0, 0, 0, 1, 40, 1000, KVA_SHORTLIST_MAX};
    struct kva_sampling_params *p = &r->params;
    *p = (struct kva_sampling_params){.prompt_logprobs = -1, .seed = b->draws};
    p->temperature = pick(b, temperatures, 5);
    p->top_p = pick(b, top_ps, 4);
    p->min_p = pick(b, min_ps, 4);
    p->top_k = top_ks[below(b, 7)];
    p->repetition_penalty = pick(b, repetitions, 4);
    p->presence_penalty = below(b, 3) ? 0 : 0.7f;
    p->frequency_penalty = below(b, 3) ? 0 : -0.4f;
    p->logprobs = below(b, 2) ? -1 : (int32_t)below(b, KVA_LOGPROBS_MAX + 1);
    p->min_tokens = below(b, 2) * IDS;
    for (uint32_t i = 0; i < 20; i++) {
        r->bias[i] = (struct kva_logit_bias){below(b, VOCAB), (float)(uniform(b) * 12 - 6)};
        r->bad_tokens[i] = below(b, VOCAB);
        r->allowed[i] = below(b, VOCAB);
    }
    for (uint32_t i = 0; i < 10; i++)
        r->bad_words[i] = (struct kva_bad_word){&r->bad_tokens[i], 1 + i % 2};
    for (uint32_t i = 0; i < 4; i++)
        r->stop_ids[i] = below(b, VOCAB);
    /* What is most probable is what is forbidden, too. */
    for (uint32_t i = 0; i < VOCAB; i++) {
        if (b->logits[i] > b->logits[r->stop_ids[0]])
            r->stop_ids[0] = i;
    }
    p->stop_ids = r->stop_ids, p->stop_id_count = 4;
    p->logit_bias = r->bias, p->logit_bias_count = below(b, 2) * 20;
    p->bad_words = r->bad_words, p->bad_word_count = below(b, 2) * 10;
    p->allowed_ids = r->allowed, p->allowed_id_count = below(b, 8) ? 0 : 20;
}

static void test_sampler_listed__draws_what_all_logits_give(void **state)
{
    struct bench *b = *state;
    uint32_t enough = 0, drawn = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        struct request r;
        if (i % 10 == 0)
            fill(b, i % 20 ? 20 : 6);
        fill_request(b, &r);
        const struct kva_sampler_context context = {&r.params, i % 3, b->ids, IDS / 2, IDS, NULL};
        enough += compare(b, &context);
        drawn++;
    }
    printf("%u of %u lists were enough\n", enough, drawn);
    assert_true(enough > drawn / 2 && enough < drawn);
}

static void expect_enough(struct bench *b, const struct kva_sampling_params *p, uint32_t least)
{
    uint32_t enough = 0;
    struct kva_sampling_params seeded = *p;
    for (uint32_t i = 0; i < 200; i++) {
        seeded.seed = i;
        const struct kva_sampler_context context = {&seeded, 0, b->ids, IDS / 2, IDS, NULL};
        enough += compare(b, &context);
    }
    assert_true(enough >= least);
}

/* What people ask for as a rule needs no more than the list. */
static void test_sampler_listed__is_enough_as_a_rule(void **state)
{
    struct bench *b = *state;
    const struct kva_sampling_params greedy = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};
    struct kva_sampling_params p = greedy;
    fill(b, 25);
    expect_enough(b, &p, 200);
    p.logprobs = 20;
    expect_enough(b, &p, 200);
    p.repetition_penalty = 1.3f;
    p.presence_penalty = 1;
    expect_enough(b, &p, 200);
    p.temperature = 1;
    expect_enough(b, &p, 195); /* plain sampling: the drawn point lies among the listed */
    p.top_p = 0.95f;
    expect_enough(b, &p, 200);
    p.top_p = 1;
    p.min_p = 0.02f;
    expect_enough(b, &p, 200);
    p.min_p = 0;
    p.top_k = 50;
    fill(b, 1); /* flat: but fifty are fifty */
    p.repetition_penalty = 1;
    expect_enough(b, &p, 200);
}

/* What contradicts itself does so both ways. */
static void test_sampler_listed__says_that_nothing_is_left(void **state)
{
    struct bench *b = *state;
    static const uint32_t tokens[] = {5, 6};
    static const struct kva_bad_word words[] = {{tokens, 1}, {tokens + 1, 1}};
    struct kva_sampling_params p = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    p.allowed_ids = tokens, p.allowed_id_count = 2;
    p.bad_words = words, p.bad_word_count = 2;
    const struct kva_sampler_context context = {&p, 0, b->ids, IDS / 2, IDS, NULL};
    struct kva_shortlist_request request;
    struct kva_token_output out;
    bool enough;
    for (int i = 0; i < 2; i++) {
        fill(b, 6);
        b->logits[9] = 1;
        for (uint32_t j = 0; i == 1 && j < VOCAB; j++)
            b->logits[j] = NAN;
        kva_sampler_request(b->sampler, &context, b->tracked, &request);
        const struct kva_sampler_list list = make_list(b, &request);
        assert_int_equal(kva_sampler_draw_listed(b->sampler, &list, &context, &enough, &out),
                         i ? KVA_EINTERNAL : KVA_EINVAL);
        assert_true(compare(b, &context));
    }
}

/* Flat logits: the nucleus is longer than any list, and that is said. */
static void test_sampler_listed__says_when_it_is_not_enough(void **state)
{
    struct bench *b = *state;
    struct kva_sampling_params p = {
        .temperature = 1, .top_p = 0.9f, .repetition_penalty = 1, .logprobs = -1};
    fill(b, 0.5f);
    const struct kva_sampler_context context = {&p, 0, b->ids, IDS / 2, IDS, NULL};
    assert_false(compare(b, &context));
    p.top_k = KVA_SHORTLIST_MAX + 1;
    assert_false(compare(b, &context));
    p.top_k = 0;
    p.min_p = 0.001f;
    assert_false(compare(b, &context));
}

/* More tokens tracked than there is room for: all logits are wanted. */
static void test_sampler_listed__watches_so_many_tokens(void **state)
{
    struct bench *b = *state;
    struct kva_shortlist_request request;
    static uint32_t allowed[KVA_SAMPLER_TRACKED_MAX + 2];
    struct kva_sampling_params p = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    for (uint32_t i = 0; i < KVA_COUNT_OF(allowed); i++)
        allowed[i] = i % (KVA_SAMPLER_TRACKED_MAX + 1);
    p.allowed_ids = allowed;
    p.allowed_id_count = KVA_COUNT_OF(allowed);
    const struct kva_sampler_context context = {&p, 0, b->ids, IDS / 2, IDS, NULL};
    kva_sampler_request(b->sampler, &context, b->tracked, &request);
    assert_int_equal(request.k, 0);
    assert_int_equal(request.tracked_count, 0);
    allowed[KVA_SAMPLER_TRACKED_MAX] = 5; /* twice now */
    kva_sampler_request(b->sampler, &context, b->tracked, &request);
    assert_int_equal(request.k, KVA_SHORTLIST_MAX);
    assert_int_equal(request.tracked_count, KVA_SAMPLER_TRACKED_MAX);
    fill(b, 5);
    assert_true(compare(b, &context));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sampler_listed__draws_what_all_logits_give, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_sampler_listed__is_enough_as_a_rule, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sampler_listed__says_that_nothing_is_left, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_sampler_listed__says_when_it_is_not_enough, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_sampler_listed__watches_so_many_tokens, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
