/* Sequences that are longer than the device tier: they say what they say where there is memory
 * enough, whoever has the rest, whatever is lost and whenever they are suspended or end. */
#include "tests/cmocka.h"

#include "tests/engine/lent_world.h"

#include <math.h>
#include <string.h>

enum {
    TIER_PAGES = 4,
    TWICE = 470,       /* with STEPS tokens that follow: 8 pages */
    FIVE_TIMES = 1240, /* 20 pages */
};

/* What they say alone, with memory enough. */
static struct talk want_of(uint32_t prompt, uint32_t levels)
{
    struct lent_world w;
    lent_open(&w, lent_deep_model(), levels);
    struct talk talk = talk_alone(&w, prompt, full());
    lent_close(&w);
    return talk;
}

static void open_small(struct lent_world *w, uint32_t levels)
{
    lent_open_small(w, lent_deep_model(), levels, TIER_PAGES * 163840u);
    assert_int_equal(kva_lending_page_bytes(w->debtor.engine), 163840);
}

/* Lend `pages` more of it, from the first on that is not lent, to `creditors` in turn. */
static void lend(struct talker *t, uint32_t pages, uint32_t creditors, bool keeps_home)
{
    struct lent_world *w = t->world;
    struct kva_kv_loan loans[KVA_KV_LOANS_MAX];
    uint32_t count = kva_lending_loans(t->seq, loans), first = 0;
    if (count > 0)
        first = loans[count - 1].first_page + loans[count - 1].page_count;
    for (uint32_t i = 0; i < creditors; i++) {
        uint32_t part = pages / creditors + (i < pages % creditors);
        loopback_lend(&w->net, &w->debtor, t->seq, (count + i) % LOOPBACK_CREDITORS, first, part,
                      keeps_home);
        first += part;
    }
}

static void expect_parked(const struct talker *t)
{
    struct kva_err err;
    const struct kva_engine *e = t->world->debtor.engine;
    assert_true(t->parked);
    assert_int_equal(talker_bytes(t).device, 0);
    assert_int_equal(e->ops->resume(e->self, t->seq, &err), KVA_ELIMIT);
}

static void end(struct talker *t)
{
    talker_end(t);
    loopback_release(&t->world->net);
    lent_expect_empty(t->world);
}

/* --- the same as with memory enough ------------------------------------------------------------ */

/* One creditor with its beginning: bit for bit. Prompts in chunks of any size. */
static void check_bits(uint32_t prompt, uint32_t lent_pages)
{
    static const uint32_t quotas[] = {64, 1, 63, 7};
    struct lent_world w;
    struct talk want = want_of(prompt, 0);
    open_small(&w, 0);
    for (uint32_t i = 0; i < (FIXTURE_QUICK ? 2 : 4); i++) {
        struct talker t;
        talker_begin(&t, &w, prompt, full());
        t.quota = quotas[i];
        talker_speak(&t, STEPS);
        assert_int_equal(t.done, 1);
        expect_parked(&t);
        lend(&t, lent_pages, 1, i % 2);
        talker_resume(&t);
        talker_speak(&t, STEPS);
        talk_expect_bits(&t.talk, &want);
        end(&t);
    }
    lent_close(&w);
}

static void test_long__twice_the_tier_gives_the_same_bits(void **state KVA_UNUSED)
{
    check_bits(TWICE, 4);
}

static void test_long__five_times_the_tier_gives_the_same_bits(void **state KVA_UNUSED)
{
    check_bits(FIVE_TIMES, 16);
}

static void test_long__several_creditors_give_the_same_numbers(void **state KVA_UNUSED)
{
    struct lent_world w;
    double worst = 0;
    struct talk want = want_of(FIVE_TIMES, fixture_unrounded_levels());
    open_small(&w, fixture_unrounded_levels());
    for (uint32_t creditors = 2; creditors <= 4; creditors += 2) {
        struct talker t;
        talker_begin(&t, &w, FIVE_TIMES, full());
        talker_speak(&t, 1);
        expect_parked(&t);
        lend(&t, 17, creditors, creditors == 2);
        talker_resume(&t);
        talker_speak(&t, STEPS);
        assert_int_equal(t.done, STEPS);
        assert_memory_equal(t.talk.tokens, want.tokens, sizeof(want.tokens));
        for (uint32_t i = 0; i < STEPS; i++)
            worst = fmax(worst, fabs((double)t.talk.logprobs[i] - (double)want.logprobs[i]));
        end(&t);
    }
    if (!(worst < 2e-5))
        fail_msg("log-probabilities are off by %g", worst);
    lent_close(&w);
}

/* With what was lent at first there is no room for its next page: more is. */
static void test_long__what_grows_is_lent_again(void **state KVA_UNUSED)
{
    enum { PROMPT = 500 };
    struct lent_world w;
    struct talker t;
    struct talk want = want_of(PROMPT, fixture_unrounded_levels());
    open_small(&w, fixture_unrounded_levels());
    talker_begin(&t, &w, PROMPT, full());
    talker_speak(&t, 1);
    lend(&t, 4, 1, false);
    talker_resume(&t);
    talker_speak(&t, STEPS);
    assert_int_equal(t.done, 8 * PAGE - PROMPT + 1);
    expect_parked(&t);
    lend(&t, 1, 1, true);
    talker_resume(&t);
    talker_speak(&t, STEPS);
    assert_memory_equal(t.talk.tokens, want.tokens, sizeof(want.tokens));
    end(&t);
    lent_close(&w);
}

/* Others decode while the prompt is computed, and while it waits. */
static void test_long__company_changes_nothing(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct talker a, b, *both[] = {&a, &b};
    struct talk want_a = want_of(TWICE, 0), want_b = want_of(20, 0);
    open_small(&w, 0);
    talker_begin(&b, &w, 20, full());
    talker_speak(&b, 2);
    talker_begin(&a, &w, TWICE, full());
    talkers_run(both, 2, 12);
    expect_parked(&a);
    assert_int_equal(b.done, 12);
    lend(&a, 5, 1, false);
    talker_speak(&b, 30);
    talker_end(&b);
    loopback_return(&w.net, &w.debtor, a.seq, w.net.loans);
    lend(&a, 4, 1, false);
    talker_resume(&a);
    talker_speak(&a, STEPS);
    talk_expect_bits(&a.talk, &want_a);
    assert_memory_equal(b.talk.tokens, want_b.tokens, 30 * sizeof(want_b.tokens[0]));
    end(&a);
    lent_close(&w);
}

/* --- at any moment ------------------------------------------------------------------------------ */

static void suspend(struct talker *t)
{
    const struct kva_engine *e = t->world->debtor.engine;
    e->ops->suspend(e->self, t->seq);
    assert_int_equal(talker_bytes(t).device, 0);
    talker_resume(t);
}

/* One step of its prompt. */
static bool prefill_step(struct talker *t, uint32_t quota)
{
    struct kva_err err;
    const struct kva_engine *e = t->world->debtor.engine;
    struct kva_step_item item = {.seq = t->seq, .prefill_tokens = quota};
    assert_int_equal(e->ops->step(e->self, &item, 1, &err), KVA_OK);
    assert_int_equal(item.emitted, item.parked);
    if (item.emitted) {
        t->talk.tokens[t->done] = item.token.token;
        t->talk.logprobs[t->done++] = item.token.chosen.logprob;
    }
    t->parked = item.parked;
    return !item.parked;
}

static void test_long__suspension_changes_nothing(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct talk want = want_of(TWICE, 0);
    open_small(&w, 0);
    for (uint32_t every = 1; every < 4; every++) {
        struct talker t;
        uint32_t step = 0;
        talker_begin(&t, &w, TWICE, full());
        while (prefill_step(&t, 11)) {
            if (++step % every == 0)
                suspend(&t);
        }
        lend(&t, 4, 1, every == 2);
        talker_resume(&t);
        for (uint32_t done = 2; done <= STEPS; done++) {
            talker_speak(&t, done);
            if (done % every == 0)
                suspend(&t);
        }
        talk_expect_bits(&t.talk, &want);
        end(&t);
    }
    lent_close(&w);
}

static void test_long__it_may_end_at_any_moment(void **state KVA_UNUSED)
{
    struct lent_world w;
    open_small(&w, 0);
    for (uint32_t steps = 0; steps < 60; steps += FIXTURE_QUICK ? 7 : 1) {
        struct talker t;
        uint32_t step = 0;
        talker_begin(&t, &w, TWICE, full());
        while (step++ < steps && prefill_step(&t, 9)) {
        }
        if (t.parked && steps % 3 > 0)
            lend(&t, 4, 1, steps % 2);
        if (t.parked && steps % 3 > 1) {
            talker_resume(&t);
            talker_speak(&t, 3);
        }
        end(&t);
        struct kva_engine_usage usage;
        w.debtor.engine->ops->usage(w.debtor.engine->self, &usage);
        assert_int_equal(usage.used.device, usage.cached.device);
    }
    lent_close(&w);
}

/* --- loss ---------------------------------------------------------------------------------------- */

/* At any layer of a step. With homes it waits until it is lent anew; without it is computed again. */
static void check_loss(bool keeps_home)
{
    struct lent_world w;
    struct talk want = want_of(TWICE, 0);
    open_small(&w, 0);
    for (uint64_t message = 1; message <= 60; message += FIXTURE_QUICK ? 13 : 3) {
        struct talker t;
        talker_begin(&t, &w, TWICE, full());
        talker_speak(&t, 1);
        lend(&t, 4, 1, keeps_home);
        talker_resume(&t);
        talker_speak(&t, 4);
        w.net.creditors[0].dies_at = w.net.creditors[0].messages + message;
        talker_speak(&t, STEPS);
        w.net.creditors[0].dies_at = 0;
        loopback_release(&w.net);
        /* As if nothing had ever been lent, without an attempt to resume. */
        assert_int_equal(kva_lending_lendable_pages(w.debtor.engine, t.seq), 6);
        expect_parked(&t);
        assert_int_equal(t.restarts, !keeps_home);
        assert_int_equal(t.retries, keeps_home);
        lend(&t, 4, 1, keeps_home);
        talker_resume(&t);
        talker_speak(&t, STEPS);
        talk_expect_bits(&t.talk, &want);
        end(&t);
    }
    lent_close(&w);
}

static void test_long__a_lost_creditor_costs_a_step_or_the_prompt(void **state KVA_UNUSED)
{
    check_loss(true);
    check_loss(false);
}

/* Told while it waits: with homes all of it is there again, without it says so in its next step,
 * for which it needs no memory. */
static void test_long__loss_may_be_told_while_it_waits(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct talk want = want_of(TWICE, 0);
    open_small(&w, 0);
    for (uint32_t keeps = 0; keeps < 2; keeps++) {
        struct talker t;
        talker_begin(&t, &w, TWICE, full());
        talker_speak(&t, 1);
        lend(&t, 2, 1, keeps);
        kva_lending_lose(w.debtor.engine, t.seq);
        loopback_release(&w.net);
        if (!keeps) {
            talker_resume(&t);
            talker_speak(&t, STEPS);
        }
        expect_parked(&t);
        assert_int_equal(t.restarts, !keeps);
        lend(&t, 4, 1, keeps);
        talker_resume(&t);
        talker_speak(&t, STEPS);
        talk_expect_bits(&t.talk, &want);
        end(&t);
    }
    lent_close(&w);
}

/* --- refusals ------------------------------------------------------------------------------------ */

static void refused(struct lent_world *w, uint32_t prompt_tokens, struct kva_kv_spec spec,
                    const char *words)
{
    static uint32_t prompt[CONTEXT_MAX];
    const struct kva_engine *e = w->debtor.engine;
    const struct kva_sampling_params sampling = fixture_greedy();
    struct kva_sequence *seq;
    struct kva_err err = {0};
    const struct kva_sequence_params params = {.prompt = prompt,
                                               .prompt_tokens = prompt_tokens,
                                               .tokens_max = prompt_tokens + STEPS,
                                               .sampling = &sampling,
                                               .kv = spec};
    assert_int_equal(e->ops->check(e->self, &params, &err), KVA_ELIMIT);
    if (!strstr(err.message, words))
        fail_msg("'%s' does not say '%s'", err.message, words);
    assert_string_equal(err.param, "device");
    assert_int_equal(e->ops->create(e->self, &params, &seq, &err), KVA_ELIMIT);
}

static void test_long__what_nobody_can_hold_is_refused(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct kva_kv_spec alone = full();
    alone.spread = KVA_SPREAD_NEVER;
    open_small(&w, 0);
    refused(&w, TWICE, alone, "its budget is 655360 bytes");
    refused(&w, CONTEXT_MAX - STEPS, full(), "is computed in 983040 bytes");
    kva_lending_set_others(w.debtor.engine, 4 * 163840 - 1);
    refused(&w, TWICE, full(),
            "need 1310720 bytes of device memory under policy 'full', the budget is 655360 bytes, "
            "and other instances can lend 655359");
    kva_lending_set_others(w.debtor.engine, 4 * 163840);
    struct talker t;
    talker_begin(&t, &w, TWICE, full());
    assert_false(kva_lending_lendable(w.debtor.engine, t.seq, 0, 4)); /* its prompt is not in */
    end(&t);
    lent_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long__twice_the_tier_gives_the_same_bits),
        cmocka_unit_test(test_long__five_times_the_tier_gives_the_same_bits),
        cmocka_unit_test(test_long__several_creditors_give_the_same_numbers),
        cmocka_unit_test(test_long__what_grows_is_lent_again),
        cmocka_unit_test(test_long__company_changes_nothing),
        cmocka_unit_test(test_long__suspension_changes_nothing),
        cmocka_unit_test(test_long__it_may_end_at_any_moment),
        cmocka_unit_test(test_long__a_lost_creditor_costs_a_step_or_the_prompt),
        cmocka_unit_test(test_long__loss_may_be_told_while_it_waits),
        cmocka_unit_test(test_long__what_nobody_can_hold_is_refused),
    };
    return cmocka_run_group_tests(tests, lent_make_models, lent_remove_models);
}
