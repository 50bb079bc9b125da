/* Constraints: nothing comes that they forbid, and guesses know them. */
#include "tests/cmocka.h"

#include "engine/sampler.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA "tests/golden/families/llama3_gqa_bf16"
#define WORDS ((VOCAB + 31) / 32)

/* A script: at index i only token 13 i + 5 may come, or the one behind it where there is `room`. */
struct scripted {
    struct kva_constraint constraint;
    bool room;
    uint32_t late; /* so many times in a row a state says that it is late */
    uint32_t held, states, waits;
};

struct kva_constraint_state {
    struct scripted *script;
    uint32_t index, late;
    bool expected, right; /* something is expected, and it may come */
    uint32_t mask[WORDS], behind[WORDS];
};

static uint32_t scripted_token(uint32_t index)
{
    return (13 * index + 5) % VOCAB;
}

static void put_mask(const struct scripted *script, uint32_t index, uint32_t *mask)
{
    memset(mask, 0, WORDS * sizeof(*mask));
    for (uint32_t i = 0; i <= script->room; i++) {
        uint32_t token = (scripted_token(index) + i) % VOCAB;
        mask[token / 32] |= 1u << token % 32;
    }
}

static void hold(struct kva_constraint *constraint)
{
    ((struct scripted *)constraint)->held++;
}

static void release(struct kva_constraint *constraint)
{
    ((struct scripted *)constraint)->held--;
}

static enum kva_status begin(struct kva_constraint *constraint, struct kva_constraint_state **ret,
                             struct kva_err *err KVA_UNUSED)
{
    struct scripted *script = (struct scripted *)constraint;
    struct kva_constraint_state *state = calloc(1, sizeof(*state));
    assert_non_null(state);
    state->script = script;
    put_mask(script, 0, state->mask);
    script->states++;
    *ret = state;
    return KVA_OK;
}

static void end(struct kva_constraint_state *state)
{
    state->script->states--;
    free(state);
}

static void take(struct kva_constraint_state *state, uint32_t token)
{
    assert_true(kva_constraint_allows(state->mask, token));
    put_mask(state->script, ++state->index, state->mask);
    state->expected = false;
    state->late = state->script->late;
}

static void expect(struct kva_constraint_state *state, uint32_t token)
{
    state->expected = true;
    state->right = kva_constraint_allows(state->mask, token);
    put_mask(state->script, state->index + 1, state->behind);
}

static enum kva_status mask(struct kva_constraint_state *state, bool behind_expected,
                            const uint32_t **ret)
{
    assert_true(!behind_expected || state->expected);
    if (behind_expected && !state->right)
        return KVA_EINVAL;
    *ret = behind_expected ? state->behind : state->mask;
    return KVA_OK;
}

static bool is_late(struct kva_constraint_state *state)
{
    return state->late > 0 && state->late-- > 0;
}

static void wait_late(struct kva_constraint_state *state)
{
    state->script->waits++;
}

static const struct kva_constraint_ops ops = {hold,   release, begin,   end,      take,
                                              expect, mask,    is_late, wait_late};

/* The output, of `count` tokens, follows the script. */
static void expect_script(const struct scripted *script, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t over = (tokens[i] + VOCAB - scripted_token(i)) % VOCAB;
        if (over > script->room)
            fail_msg("token %u is %u, the script has %u", i, tokens[i], scripted_token(i));
    }
}

static void run_scripted(struct fixture *f, struct scripted *script, struct kva_kv_spec kv,
                         float temperature, uint32_t *tokens, struct kva_sequence_info *info)
{
    struct kva_sampling_params sampling = fixture_greedy();
    uint32_t prompt[CONTEXT];
    sampling.constraint = &script->constraint;
    sampling.temperature = temperature;
    sampling.repetition_penalty = 1.5f;
    fixture_prompt(prompt, 130, VOCAB, 3);
    struct kva_sequence *seq = fixture_start(f, &(struct kva_sequence_params){.prompt = prompt,
                                                                              .prompt_tokens = 130,
                                                                              .tokens_max = 200,
                                                                              .sampling = &sampling,
                                                                              .kv = kv});
    tokens[0] = fixture_prefill(f, seq, CONTEXT);
    for (uint32_t i = 1; i < OUTPUT; i++) {
        /* A suspended sequence keeps its place in the script. */
        if (i % 7 == 3) {
            f->engine->ops->suspend(f->engine->self, seq);
            assert_int_equal(f->engine->ops->resume(f->engine->self, seq, NULL), KVA_OK);
        }
        fixture_decode(f, &seq, 1, &tokens[i]);
    }
    f->engine->ops->sequence_info(f->engine->self, seq, info);
    f->engine->ops->destroy(f->engine->self, seq);
    assert_int_equal(script->states, 0);
}

static void test_constraint__holds_under_every_policy(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    for (uint32_t v = 0; v < VARIANTS; v++) {
        for (uint32_t i = 0; i < 4; i++) {
            struct scripted script = {.constraint = {&ops}, .room = i % 2};
            uint32_t tokens[OUTPUT];
            struct kva_sequence_info info;
            run_scripted(&f, &script, trace_variant((enum variant)v), i < 2 ? 0 : 1, tokens, &info);
            expect_script(&script, tokens, OUTPUT);
        }
    }
    fixture_close(&f);
}

/* Where only one token may come, the guess is it: one that did not know the constraint would be the
 * model's favourite. */
static void test_constraint__guesses_obey_it(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    for (uint32_t way = 0; way < KVA_MISPREDICT_COUNT; way++) {
        struct scripted script = {.constraint = {&ops}};
        struct kva_kv_spec kv = trace_variant(SPEC);
        uint32_t tokens[OUTPUT];
        struct kva_sequence_info info;
        kv.on_mispredict = (enum kva_kv_mispredict)way;
        run_scripted(&f, &script, kv, 0, tokens, &info);
        uint64_t guesses = kva_counts_named(&info.counts, "speculative_tokens");
        assert_true(guesses > OUTPUT / 2);
        assert_int_equal(kva_counts_named(&info.counts, "speculative_tokens_matched"), guesses);
    }
    fixture_close(&f);
}

/* A late sequence sits steps out, in which others go on; it loses nothing by it. */
static void test_constraint__who_is_late_keeps_nobody_waiting(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    struct scripted script = {.constraint = {&ops}, .late = 2};
    struct kva_sampling_params free_one = fixture_greedy(), bound = fixture_greedy();
    uint32_t prompt[CONTEXT], tokens[OUTPUT], count = 1, free_count = 0;
    bound.constraint = &script.constraint;
    fixture_prompt(prompt, 20, VOCAB, 3);
    struct kva_sequence_params params = {
        .prompt = prompt, .prompt_tokens = 20, .tokens_max = 200, .sampling = &bound};
    struct kva_sequence *late = fixture_start(&f, &params);
    params.sampling = &free_one;
    struct kva_sequence *other = fixture_start(&f, &params);
    tokens[0] = fixture_prefill(&f, late, CONTEXT);
    fixture_prefill(&f, other, CONTEXT);
    for (uint32_t step = 0; step < 60 && count < 12; step++) {
        struct kva_step_item items[] = {{.seq = late}, {.seq = other}};
        assert_int_equal(f.engine->ops->grow(f.engine->self, late, NULL), KVA_OK);
        assert_int_equal(f.engine->ops->grow(f.engine->self, other, NULL), KVA_OK);
        assert_int_equal(f.engine->ops->step(f.engine->self, items, 2, NULL), KVA_OK);
        assert_int_equal(items[0].status, KVA_OK);
        if (items[0].emitted)
            tokens[count++] = items[0].token.token;
        free_count += items[1].emitted;
    }
    assert_int_equal(count, 12);
    assert_true(free_count > 2 * count - 3);
    expect_script(&script, tokens, count);
    f.engine->ops->destroy(f.engine->self, other);
    /* Alone it waits, and a step gives nothing or its token. */
    script.waits = 0;
    for (uint32_t step = 0; step < 10; step++) {
        struct kva_step_item item = {.seq = late};
        assert_int_equal(f.engine->ops->grow(f.engine->self, late, NULL), KVA_OK);
        assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, NULL), KVA_OK);
    }
    assert_true(script.waits > 0);
    f.engine->ops->destroy(f.engine->self, late);
    fixture_close(&f);
}

/* --- the sampler ----------------------------------------------------------------------------- */

static const uint32_t no_ids[] = {0};

static uint32_t draw(const struct kva_sampling_params *params, const uint32_t *allowed,
                     struct kva_token_output *ret)
{
    struct kva_sampler *sampler;
    float logits[VOCAB];
    assert_int_equal(kva_sampler_create(VOCAB, &sampler, NULL), KVA_OK);
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = -(float)i / 8; /* the first is the best */
    const struct kva_sampler_context context = {params, 0, no_ids, 1, 1, allowed};
    assert_int_equal(kva_sampler_draw(sampler, logits, &context, ret), KVA_OK);
    kva_sampler_destroy(sampler);
    return ret->token;
}

static void test_constraint__sampler_takes_what_is_allowed(void **state KVA_UNUSED)
{
    struct kva_sampling_params p = fixture_greedy();
    struct kva_token_output out;
    const struct kva_logit_bias bias = {2, 100};
    uint32_t allowed[WORDS] = {0};
    allowed[1] = 1u << 9 | 1u << 10; /* 41 and 42 */
    assert_int_equal(draw(&p, allowed, &out), 41);
    p.logit_bias = &bias; /* on what is forbidden */
    p.logit_bias_count = 1;
    assert_int_equal(draw(&p, allowed, &out), 41);
    p.temperature = 1;
    uint32_t seen = 0;
    for (p.seed = 0; p.seed < 200; p.seed++) {
        uint32_t token = draw(&p, allowed, &out);
        assert_true(token == 41 || token == 42);
        seen |= 1u << (token - 41);
    }
    assert_int_equal(seen, 3);
    /* Log-probabilities are the model's own. */
    p.logprobs = 1;
    assert_true(draw(&p, allowed, &out) >= 41);
    assert_int_equal(out.chosen.rank, out.token + 1);
    assert_int_equal(out.top[0].token, 0);
}

/* min_tokens gives way where the text has ended; of stop ids one may be there twice. */
static void test_constraint__nothing_but_the_end_comes_before_min_tokens(void **state KVA_UNUSED)
{
    static const uint32_t stops[] = {200, 201, 200};
    struct kva_sampling_params p = fixture_greedy();
    struct kva_token_output out;
    uint32_t allowed[WORDS] = {0};
    p.stop_ids = stops;
    p.stop_id_count = 3;
    p.min_tokens = 10;
    allowed[200 / 32] = 1u << 200 % 32;
    assert_int_equal(draw(&p, allowed, &out), 200);
    allowed[250 / 32] |= 1u << 250 % 32;
    assert_int_equal(draw(&p, allowed, &out), 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constraint__holds_under_every_policy),
        cmocka_unit_test(test_constraint__guesses_obey_it),
        cmocka_unit_test(test_constraint__who_is_late_keeps_nobody_waiting),
        cmocka_unit_test(test_constraint__sampler_takes_what_is_allowed),
        cmocka_unit_test(test_constraint__nothing_but_the_end_comes_before_min_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
