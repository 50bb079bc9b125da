/* Vectors of prompts: what they are, and that they depend on nothing else. */
#include "tests/cmocka.h"

#include "kernels/convert.h"
#include "tests/alloc_guard.h"
#include "tests/engine/trace.h"
#include "tests/golden/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA "tests/golden/families/llama3_gqa_bf16"

enum { WIDTH_MAX = 512, LENGTH_MAX = CONTEXT - 1 };

struct vector {
    float at[WIDTH_MAX];
};

struct wish {
    const uint32_t *prompt;
    uint32_t count;
    enum kva_pooling pooling;
    uint32_t quota; /* 0: all at once */
    struct kva_kv_spec kv;
    bool suspended;  /* after each step */
    uint32_t cached; /* out: prompt tokens that were not computed */
};

static struct vector read_vector(struct fixture *f, struct kva_sequence *seq)
{
    struct vector vector = {0};
    for (int twice = 0; twice < 2; twice++) {
        uint32_t width;
        const float *values = f->engine->ops->pooled(f->engine->self, seq, &width);
        assert_int_equal(width, f->model->config.hidden_size);
        assert_true(width <= WIDTH_MAX);
        memcpy(vector.at, values, width * sizeof(float));
    }
    return vector;
}

static struct kva_sequence *start(struct fixture *f, struct wish *wish)
{
    static struct kva_sampling_params sampling;
    struct kva_sequence_info info;
    sampling = fixture_greedy();
    struct kva_sequence *seq = fixture_start(f, &(struct kva_sequence_params){
                                                    .prompt = wish->prompt,
                                                    .prompt_tokens = wish->count,
                                                    .tokens_max = wish->count + 1,
                                                    .sampling = &sampling,
                                                    .kv = wish->kv,
                                                    .pooling = wish->pooling,
                                                });
    f->engine->ops->sequence_info(f->engine->self, seq, &info);
    wish->cached = info.cached_tokens;
    return seq;
}

static struct vector vector_of(struct fixture *f, struct wish *wish)
{
    struct kva_err err;
    struct kva_sequence *seq = start(f, wish);
    struct kva_step_item item = {.seq = seq, .prefill_tokens = wish->quota ? wish->quota : CONTEXT};
    while (!item.pooled) {
        assert_int_equal(f->engine->ops->step(f->engine->self, &item, 1, &err), KVA_OK);
        assert_int_equal(item.status, KVA_OK);
        assert_false(item.emitted);
        if (wish->suspended && !item.pooled)
            trace_suspend(f, seq);
    }
    struct vector vector = read_vector(f, seq);
    f->engine->ops->destroy(f->engine->self, seq);
    return vector;
}

static void expect_same(const struct vector *a, const struct vector *b, const char *what)
{
    if (memcmp(a, b, sizeof(*a)) != 0)
        fail_msg("%s: other bits in the vector", what);
}

/* What the model's head makes of the last token's vector is what transformers has for logits. */
static void test_pooling__last_tokens_are_what_logits_are_made_of(void **state KVA_UNUSED)
{
    for (size_t i = 0; kva_golden_families[i]; i++) {
        const char *family = kva_golden_families[i];
        struct kva_golden golden;
        struct fixture f;
        char path[1024];
        double worst = 0;
        assert_true(kva_golden_load(family, &golden));
        kva_golden_path(family, NULL, path, sizeof(path));
        fixture_open(&f, &(struct fixture_params){.model_path = path,
                                                  .cpu_level_mask = fixture_unrounded_levels()});
        const struct kva_tensor *head = &f.model->lm_head;
        for (uint32_t p = 0; p < golden.position_count; p++) {
            struct wish wish = {.prompt = golden.prompt,
                                .count = golden.positions[p] + 1,
                                .pooling = KVA_POOLING_LAST};
            const struct vector vector = vector_of(&f, &wish);
            for (size_t t = 0; t < golden.vocab; t++) {
                double logit = 0;
                for (size_t c = 0; c < head->cols; c++)
                    logit += (double)vector.at[c] *
                             (double)kva_f32_at(head->data, head->dtype, t * head->cols + c);
                worst = fmax(worst, fabs(logit - (double)golden.logits[p * golden.vocab + t]));
            }
        }
        printf("%-20s %.2e\n", family, worst);
        assert_true(worst < 0.15); /* rounded K and V: test_forward.c */
        fixture_close(&f);
        kva_golden_finish(&golden);
    }
}

/* A row of the last layer is the vector of the prompt that ends there: of those the mean is made. */
static void test_pooling__the_mean_is_that_of_all_tokens(void **state KVA_UNUSED)
{
    struct fixture f;
    uint32_t prompt[LENGTH_MAX];
    struct vector sum = {0};
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .step_tokens_max = 48});
    fixture_prompt(prompt, LENGTH_MAX, VOCAB, 11);
    for (uint32_t count = 1; count <= 130; count++) {
        struct wish wish = {.prompt = prompt, .count = count, .pooling = KVA_POOLING_LAST};
        const struct vector last = vector_of(&f, &wish);
        for (uint32_t i = 0; i < WIDTH_MAX; i++)
            sum.at[i] += last.at[i];
        struct vector mean = sum;
        for (uint32_t i = 0; i < WIDTH_MAX; i++)
            mean.at[i] /= (float)count;
        if (FIXTURE_QUICK && count % 9 != 1)
            continue;
        wish.pooling = KVA_POOLING_MEAN;
        const struct vector got = vector_of(&f, &wish);
        expect_same(&got, &mean, "the mean of last tokens");
    }
    fixture_close(&f);
}

static void test_pooling__chunks_policies_and_suspensions_do_not_matter(void **state KVA_UNUSED)
{
    static const uint32_t quotas[] = {1, 7, 50, 64, 129}, lengths[] = {1, 63, 64, 65, 200};
    struct fixture f;
    uint32_t prompt[LENGTH_MAX];
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .step_tokens_max = 48});
    for (uint32_t l = 0; l < KVA_COUNT_OF(lengths); l++) {
        fixture_prompt(prompt, lengths[l], VOCAB, l);
        for (int p = KVA_POOLING_MEAN; p <= KVA_POOLING_LAST; p++) {
            struct wish wish = {
                .prompt = prompt, .count = lengths[l], .pooling = (enum kva_pooling)p};
            const struct vector want = vector_of(&f, &wish);
            for (uint32_t v = 0; v < VARIANTS; v++) {
                if ((v + l) % FIXTURE_EVERY != 0)
                    continue;
                wish.kv = trace_variant((enum variant)v);
                wish.quota = quotas[(v + l) % KVA_COUNT_OF(quotas)];
                wish.suspended = v % 2 == 0;
                const struct vector got = vector_of(&f, &wish);
                expect_same(&got, &want, wish.suspended ? "suspended" : "in chunks");
            }
        }
    }
    fixture_close(&f);
}

/* Vectors beside each other, and beside sequences that decode. */
static void test_pooling__company_does_not_matter(void **state KVA_UNUSED)
{
    enum { COUNT = 5 };
    struct fixture f;
    struct kva_err err;
    uint32_t prompts[COUNT][LENGTH_MAX], token;
    struct kva_sequence *seqs[COUNT];
    struct vector want[COUNT];
    struct wish wishes[COUNT];
    struct kva_step_item items[COUNT + 1];
    const struct kva_sampling_params sampling = fixture_greedy();
    fixture_open(&f, &(struct fixture_params){
                         .model_path = LLAMA, .step_tokens_max = 256, .prefix_cache = true});
    for (uint32_t i = 0; i < COUNT; i++) {
        fixture_prompt(prompts[i], LENGTH_MAX, VOCAB, 30 + i);
        wishes[i] = (struct wish){.prompt = prompts[i],
                                  .count = 10 + 17 * i,
                                  .pooling = i % 2 ? KVA_POOLING_LAST : KVA_POOLING_MEAN};
        want[i] = vector_of(&f, &wishes[i]);
        seqs[i] = start(&f, &wishes[i]);
    }
    struct kva_sequence *other = fixture_start(
        &f,
        &(struct kva_sequence_params){
            .prompt = prompts[0], .prompt_tokens = 90, .tokens_max = 95, .sampling = &sampling});
    token = fixture_prefill(&f, other, CONTEXT);
    assert_true(token < VOCAB);
    memset(items, 0, sizeof(items));
    for (uint32_t i = 0; i < COUNT; i++)
        items[i] = (struct kva_step_item){.seq = seqs[i], .prefill_tokens = wishes[i].count};
    items[COUNT] = items[1];
    items[1] = (struct kva_step_item){.seq = other};
    assert_int_equal(f.engine->ops->grow(f.engine->self, other, &err), KVA_OK);
    alloc_guard_arm();
    assert_int_equal(f.engine->ops->step(f.engine->self, items, COUNT + 1, &err), KVA_OK);
    alloc_guard_disarm();
    assert_true(items[1].emitted && !items[1].pooled);
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct kva_step_item *item = &items[i == 1 ? COUNT : i];
        assert_true(item->pooled && !item->emitted);
        assert_int_equal(item->prefill_done, wishes[i].count - wishes[i].cached);
        const struct vector got = read_vector(&f, seqs[i]);
        expect_same(&got, &want[i], "among others");
        f.engine->ops->destroy(f.engine->self, seqs[i]);
    }
    f.engine->ops->destroy(f.engine->self, other);
    fixture_close(&f);
}

/* The last token's may begin with what is cached; the mean wants all rows. */
static void test_pooling__cached_prefixes_change_nothing(void **state KVA_UNUSED)
{
    struct fixture f;
    uint32_t prompt[LENGTH_MAX];
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .prefix_cache = true});
    fixture_prompt(prompt, LENGTH_MAX, VOCAB, 5);
    for (int p = KVA_POOLING_MEAN; p <= KVA_POOLING_LAST; p++) {
        struct wish wish = {.prompt = prompt, .count = 200, .pooling = (enum kva_pooling)p};
        const struct vector want = vector_of(&f, &wish);
        assert_int_equal(wish.cached, 0);
        const struct vector got = vector_of(&f, &wish);
        assert_int_equal(wish.cached, p == KVA_POOLING_LAST ? 192 : 0);
        expect_same(&got, &want, "cached");
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pooling__last_tokens_are_what_logits_are_made_of),
        cmocka_unit_test(test_pooling__the_mean_is_that_of_all_tokens),
        cmocka_unit_test(test_pooling__chunks_policies_and_suspensions_do_not_matter),
        cmocka_unit_test(test_pooling__company_does_not_matter),
        cmocka_unit_test(test_pooling__cached_prefixes_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
