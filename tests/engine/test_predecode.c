/* Sequences that pre-decode beside others sit out a step: the weights are read once a step, and
 * nobody's tokens change. The models are noise, so that nearly every speculative token is wrong. */
#include "tests/cmocka.h"

#include "kernels/profile.h"
#include "tests/engine/trace.h"

#include <string.h>

#define LLAMA "tests/golden/families/llama3_gqa_bf16"
#define NEOX  "tests/golden/families/neox_parallel"

enum { MEMBERS_MAX = 6 };

struct member {
    enum variant variant;
    uint32_t prompt_tokens;
    struct kva_sequence *seq;
    struct trace want, got;
    uint32_t done;
    uint32_t steps;    /* since its first token */
    uint32_t sat_out;  /* of these: that gave no token */
    uint32_t in_a_row; /* of these: up to now */
    uint32_t prompt[CONTEXT];
};

struct company {
    struct fixture f;
    struct kva_profile profile;
    struct kva_sampling_params sampling;
    struct member members[MEMBERS_MAX];
    uint32_t count;
};

static uint64_t now_ns(void)
{
    return 0;
}

/* Everybody's prompt is in, and what each says alone is known. */
static void open_company(struct company *c, const char *model, const enum variant *variants,
                         uint32_t count)
{
    memset(c, 0, sizeof(*c));
    c->sampling = trace_sampling();
    c->profile.now_ns = now_ns;
    fixture_open(&c->f, &(struct fixture_params){.model_path = model,
                                                 .step_tokens_max = CONTEXT,
                                                 .copy_delay_max_us = 20,
                                                 .profile = &c->profile});
    c->count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct member *m = &c->members[i];
        *m = (struct member){.variant = variants[i], .prompt_tokens = 140 + 15 * i};
        struct run run = {.prompt_tokens = m->prompt_tokens,
                          .prompt_seed = 20 + i,
                          .kv = trace_variant(m->variant)};
        m->want = trace_run(&c->f, &run);
        fixture_prompt(m->prompt, m->prompt_tokens, VOCAB, run.prompt_seed);
        m->seq = fixture_start(&c->f, &(struct kva_sequence_params){
                                          .prompt = m->prompt,
                                          .prompt_tokens = m->prompt_tokens,
                                          .tokens_max = m->prompt_tokens + OUTPUT,
                                          .sampling = &c->sampling,
                                          .kv = run.kv,
                                      });
        m->got.tokens[0] = fixture_prefill(&c->f, m->seq, CONTEXT);
        m->got.logprobs[0] = m->want.logprobs[0];
        m->done = 1;
    }
}

static void close_company(struct company *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        c->f.engine->ops->destroy(c->f.engine->self, c->members[i].seq);
    fixture_close(&c->f);
}

static void take(struct member *m, const struct kva_step_item *item)
{
    m->steps++;
    m->sat_out += !item->emitted;
    m->in_a_row = item->emitted ? 0 : m->in_a_row + 1;
    assert_true(m->in_a_row <= 1);
    if (!item->emitted) {
        assert_false(item->speculated);
        return;
    }
    m->got.tokens[m->done] = item->token.token;
    m->got.logprobs[m->done++] = item->token.chosen.logprob;
}

/* One step of all that are not done; `left_out` is in none. Returns how many there were. */
static uint32_t step(struct company *c, uint32_t left_out)
{
    struct kva_step_item items[MEMBERS_MAX] = {0};
    struct member *whose[MEMBERS_MAX];
    struct kva_err err;
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->members[i].done == OUTPUT || i == left_out)
            continue;
        whose[count] = &c->members[i];
        items[count++].seq = c->members[i].seq;
        assert_int_equal(c->f.engine->ops->grow(c->f.engine->self, c->members[i].seq, &err),
                         KVA_OK);
    }
    if (count > 0)
        assert_int_equal(c->f.engine->ops->step(c->f.engine->self, items, count, &err), KVA_OK);
    for (uint32_t i = 0; i < count; i++)
        take(whose[i], &items[i]);
    return count;
}

static void expect_tokens_of_their_own(const struct company *c, uint32_t least)
{
    uint32_t sat_out = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct member *m = &c->members[i];
        trace_expect_same(&m->got, &m->want, "in company");
        if (m->variant == FULL || m->variant == KIVI)
            assert_int_equal(m->sat_out, 0);
        else
            assert_true(m->sat_out > 0);
        sat_out += m->sat_out;
    }
    /* Not only when they came to fetch rows. */
    assert_true(sat_out >= least);
}

/* Calls for matrix products of one pass with one pick: of a layer q, k and v; o; gate and up; down;
 * and of the logits. */
static uint64_t products_of_pass(const struct fixture *f)
{
    return (uint64_t)f->model->config.layer_count * 4 + 1;
}

static void check_one_pass_a_step(const char *model, uint32_t least)
{
    static const enum variant variants[] = {FULL, SPEC, SPEC_DELTA, KIVI, EXEMPT, PREVIOUS};
    struct company c;
    open_company(&c, model, variants, KVA_COUNT_OF(variants));
    for (;;) {
        bool full_decodes = c.members[0].done < OUTPUT;
        kva_profile_clear(&c.profile);
        if (step(&c, UINT32_MAX) == 0)
            break;
        if (full_decodes) /* somebody else's token comes in any case */
            assert_int_equal(c.profile.counts.calls[KVA_PROFILE_LINEAR], products_of_pass(&c.f));
    }
    expect_tokens_of_their_own(&c, least);
    close_company(&c);
}

static void test_predecode__beside_others_costs_no_pass(void **state KVA_UNUSED)
{
    check_one_pass_a_step(LLAMA, 30);
    check_one_pass_a_step(NEOX, 6);
}

/* Where all would sit out, the step has both passes, and everybody's token. */
static void test_predecode__of_all_is_a_pass_before_the_step(void **state KVA_UNUSED)
{
    static const enum variant variants[] = {SPEC, SPEC_DELTA};
    struct company c;
    open_company(&c, LLAMA, variants, KVA_COUNT_OF(variants));
    kva_profile_clear(&c.profile);
    assert_int_equal(step(&c, UINT32_MAX), 2);
    assert_int_equal(c.profile.counts.calls[KVA_PROFILE_LINEAR], 2 * products_of_pass(&c.f));
    assert_int_equal(c.members[0].sat_out + c.members[1].sat_out, 0);
    while (step(&c, UINT32_MAX) > 0)
        ;
    trace_expect_same(&c.members[0].got, &c.members[0].want, "in company");
    trace_expect_same(&c.members[1].got, &c.members[1].want, "in company");
    close_company(&c);
}

/* Between the step in which a sequence sits out and the one in which it goes on, it may lose its
 * device memory, or be left out of steps. */
static void test_predecode__survives_preemption(void **state KVA_UNUSED)
{
    static const enum variant variants[] = {FULL, SPEC, SPEC_DELTA, SPEC, EXEMPT, PREVIOUS};
    struct company c;
    struct kva_err err;
    open_company(&c, LLAMA, variants, KVA_COUNT_OF(variants));
    for (uint32_t turn = 0;; turn++) {
        uint32_t preempted = 1 + turn % (KVA_COUNT_OF(variants) - 1);
        if (step(&c, turn % 3 ? UINT32_MAX : preempted) == 0 && turn % 3)
            break;
        c.f.engine->ops->suspend(c.f.engine->self, c.members[preempted].seq);
        assert_int_equal(c.f.engine->ops->resume(c.f.engine->self, c.members[preempted].seq, &err),
                         KVA_OK);
    }
    for (uint32_t i = 0; i < c.count; i++)
        trace_expect_same(&c.members[i].got, &c.members[i].want, "preempted");
    close_company(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predecode__beside_others_costs_no_pass),
        cmocka_unit_test(test_predecode__of_all_is_a_pass_before_the_step),
        cmocka_unit_test(test_predecode__survives_preemption),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
