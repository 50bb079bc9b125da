/* Sequences whose pages other instances hold: the bits of the same sequence alone where one creditor
 * has its beginning, the same numbers elsewhere; loans come and go between any steps. */
#include "tests/cmocka.h"

#include "kernels/backend.h"
#include "tests/engine/lent_world.h"

#include <math.h>
#include <string.h>

/* --- bits ------------------------------------------------------------------------------------- */

static void check_prefix(const char *model, bool keeps_home)
{
    static const uint32_t lengths[] = {330, 600, 1000};
    struct lent_world w;
    lent_open(&w, model, 0);
    for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
        struct talk want = talk_alone(&w, lengths[i], full());
        for (uint32_t pages = 4; pages < lengths[i] / PAGE; pages += 4) {
            struct talker t;
            talker_begin(&t, &w, lengths[i], full());
            talker_speak(&t, 1 + pages);
            uint64_t posts = w.net.posts;
            loopback_lend(&w.net, &w.debtor, t.seq, 0, 0, pages, keeps_home);
            talker_speak(&t, STEPS);
            assert_int_equal(w.net.posts - posts, (STEPS - 1 - pages) * 3);
            talk_expect_bits(&t.talk, &want);
            talker_end(&t);
            loopback_release(&w.net);
        }
    }
    lent_expect_empty(&w);
    lent_close(&w);
}

static void test_lent__a_beginning_at_one_creditor_gives_the_same_bits(void **state KVA_UNUSED)
{
    check_prefix(lent_model(false), false);
    check_prefix(lent_model(false), true);
}

static void test_lent__and_with_sliding_windows(void **state KVA_UNUSED)
{
    check_prefix(lent_model(true), false);
}

/* What the debtor's device was asked for. */
static struct watch {
    const struct kva_ops *inner;
    struct kva_ops outer;
    uint32_t apart, joined, awaited;
} watch;

static void watched_apart(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    uint32_t tokens = 0;
    assert_int_equal(watch.apart, watch.awaited);
    for (uint32_t i = 0; i < args->attend.seqs[0].range_count; i++)
        tokens += args->attend.ranges[args->attend.seqs[0].range_first + i].token_count;
    assert_int_equal(args->attend.seq_count, 1);
    assert_true(tokens > 0 &&
                args->bytes >= kva_attend_apart_bytes(args->attend.heads, args->attend.head_dim,
                                                      kva_kv_pages(tokens)));
    watch.inner->attend_apart(device, args);
    watch.apart++;
}

static void watched_join(struct kva_device *device, const struct kva_attend_apart_args *args)
{
    assert_int_equal(watch.awaited, watch.joined + 1);
    watch.inner->attend_join(device, args);
    watch.joined++;
}

static void watch_answer(void *opaque KVA_UNUSED, const struct kva_remote_rows *rows KVA_UNUSED)
{
    watch.awaited++;
    assert_int_equal(watch.apart, watch.awaited);
}

/* The local splits are computed before the answer is waited for. */
static void test_lent__local_attention_does_not_wait(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct talker t;
    lent_open(&w, lent_model(false), 0);
    struct talk want = talk_alone(&w, 1000, full());
    struct kva_device_base *base = (struct kva_device_base *)w.debtor.device;
    watch = (struct watch){.inner = base->ops, .outer = *base->ops};
    watch.outer.attend_apart = watched_apart;
    watch.outer.attend_join = watched_join;
    base->ops = &watch.outer;
    w.net.collects = watch_answer;
    talker_begin(&t, &w, 1000, full());
    talker_speak(&t, 5);
    loopback_lend(&w.net, &w.debtor, t.seq, 0, 0, 4, false);
    talker_speak(&t, STEPS);
    assert_int_equal(watch.joined, (STEPS - 5) * 3);
    assert_int_equal(watch.apart, watch.joined);
    talk_expect_bits(&t.talk, &want);
    talker_end(&t);
    loopback_release(&w.net);
    lent_close(&w);
}

/* A device without the operators for that. */
static void test_lent__a_device_that_waits_gives_the_same_bits(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct talker t;
    lent_open_waiting(&w, lent_model(false));
    assert_null(kva_device_ops(w.debtor.device)->attend_apart);
    struct talk want = talk_alone(&w, 600, full());
    talker_begin(&t, &w, 600, full());
    talker_speak(&t, 5);
    loopback_lend(&w.net, &w.debtor, t.seq, 0, 0, 8, false);
    talker_speak(&t, STEPS);
    talk_expect_bits(&t.talk, &want);
    talker_end(&t);
    loopback_release(&w.net);
    lent_close(&w);
}

/* Two creditors, a loan that does not begin the sequence, one that ends within a split. */
static void test_lent__anything_else_gives_the_same_numbers(void **state KVA_UNUSED)
{
    static const struct kva_kv_loan cases[][3] = {
        {{.first_page = 0, .page_count = 4}, {.creditor = 1, .first_page = 4, .page_count = 5}},
        {{.first_page = 3, .page_count = 4}},
        {{.first_page = 0, .page_count = 5}},
        {{.first_page = 9, .page_count = 2},
         {.creditor = 1, .first_page = 1, .page_count = 3},
         {.first_page = 5, .page_count = 1}},
    };
    struct lent_world w;
    double worst = 0;
    lent_open(&w, lent_model(false), fixture_unrounded_levels());
    struct talk want = talk_alone(&w, 900, full());
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct talker t;
        talker_begin(&t, &w, 900, full());
        for (size_t j = 0; j < 3 && cases[i][j].page_count > 0; j++) {
            talker_speak(&t, 2 + 3 * (uint32_t)j);
            loopback_lend(&w.net, &w.debtor, t.seq, cases[i][j].creditor, cases[i][j].first_page,
                          cases[i][j].page_count, false);
        }
        talker_speak(&t, STEPS);
        assert_memory_equal(t.talk.tokens, want.tokens, sizeof(want.tokens));
        for (uint32_t j = 0; j < STEPS; j++)
            worst = fmax(worst, fabs((double)t.talk.logprobs[j] - (double)want.logprobs[j]));
        talker_end(&t);
        loopback_release(&w.net);
    }
    if (!(worst < 2e-5))
        fail_msg("log-probabilities are off by %g", worst);
    lent_expect_empty(&w);
    lent_close(&w);
}

/* What is equal only up to rounding is for nobody else: a page that was filled with one loan which
 * begins the sequence is found by others, one that was with two is not. */
static void test_lent__what_is_rounded_is_not_cached(void **state KVA_UNUSED)
{
    enum { PROMPT = 630 };
    for (uint32_t loans = 1; loans <= 2; loans++) {
        struct lent_world w;
        struct talker t;
        uint32_t ids[PROMPT + STEPS];
        lent_open_cached(&w, lent_model(false));
        const struct kva_engine *e = w.debtor.engine;
        talker_begin(&t, &w, PROMPT, full());
        talker_speak(&t, 2);
        for (uint32_t i = 0; i < loans; i++)
            loopback_lend(&w.net, &w.debtor, t.seq, 0, 4 * i, 4, false);
        talker_speak(&t, STEPS);
        memcpy(ids, t.prompt, PROMPT * sizeof(*ids));
        memcpy(ids + PROMPT, t.talk.tokens, STEPS * sizeof(*ids));
        talker_end(&t);
        loopback_release(&w.net);
        struct kva_sequence *seq =
            fixture_start(&w.debtor, &(struct kva_sequence_params){.prompt = ids,
                                                                   .prompt_tokens = PROMPT + STEPS,
                                                                   .tokens_max = PROMPT + STEPS + 1,
                                                                   .sampling = &t.sampling,
                                                                   .kv = full()});
        struct kva_sequence_info info;
        e->ops->sequence_info(e->self, seq, &info);
        e->ops->destroy(e->self, seq);
        assert_int_equal(info.cached_tokens, loans == 1 ? 10 * PAGE : 9 * PAGE);
        lent_expect_empty(&w);
        lent_close(&w);
    }
}

/* What a running sequence has of another is not needed for that: neither for its prompt, nor when it
 * is suspended. */
static void test_lent__what_others_have_is_not_needed(void **state KVA_UNUSED)
{
    enum { PROMPT = 600, SHARED = PROMPT / PAGE };
    struct lent_world w;
    struct talker first, second;
    lent_open_cached(&w, lent_model(false));
    const struct kva_engine *e = w.debtor.engine;
    struct kva_sequence *waits;
    struct kva_err err;
    talker_begin(&first, &w, PROMPT, full());
    talker_speak(&first, 2);
    const struct kva_sequence_params params = {.prompt = first.prompt,
                                               .prompt_tokens = PROMPT,
                                               .tokens_max = PROMPT + STEPS,
                                               .sampling = &first.sampling,
                                               .kv = full()};
    assert_int_equal(e->ops->create(e->self, &params, &waits, &err), KVA_OK);
    /* And its residual stream is not. */
    assert_true(kva_lending_need_of(e, waits, true).pages + SHARED <=
                kva_lending_need_of(e, waits, false).pages);
    e->ops->destroy(e->self, waits);
    talker_begin(&second, &w, PROMPT, full());
    talker_speak(&second, 2);
    e->ops->suspend(e->self, second.seq);
    assert_int_equal(kva_lending_need_of(e, second.seq, false).pages -
                         kva_lending_need_of(e, second.seq, true).pages,
                     SHARED);
    e->ops->suspend(e->self, first.seq);
    assert_int_equal(kva_lending_need_of(e, second.seq, false).pages,
                     kva_lending_need_of(e, second.seq, true).pages);
    talker_end(&first);
    talker_end(&second);
    lent_expect_empty(&w);
    lent_close(&w);
}

static uint64_t device_in_use(const struct kva_engine *e)
{
    struct kva_engine_usage usage;
    e->ops->usage(e->self, &usage);
    return usage.used.device - usage.cached.device;
}

/* The beginning that another one has stays, for as long as that runs: only what frees memory goes. */
static void test_lent__what_others_have_is_not_lent(void **state KVA_UNUSED)
{
    enum { PROMPT = 600, LONGER = 900, SHARED = PROMPT / PAGE };
    struct lent_world w;
    struct talker first;
    uint32_t prompt[LONGER];
    lent_open_cached(&w, lent_model(false));
    const struct kva_engine *e = w.debtor.engine;
    talker_begin(&first, &w, PROMPT, full());
    talker_speak(&first, 2);
    assert_int_equal(kva_lending_lendable_from(e, first.seq), 0);
    fixture_prompt(prompt, LONGER, VOCAB, 5);
    memcpy(prompt, first.prompt, PROMPT * sizeof(*prompt));
    struct kva_sequence *seq =
        fixture_start(&w.debtor, &(struct kva_sequence_params){.prompt = prompt,
                                                               .prompt_tokens = LONGER,
                                                               .tokens_max = LONGER + STEPS,
                                                               .sampling = &first.sampling,
                                                               .kv = full()});
    fixture_prefill(&w.debtor, seq, LONGER);
    assert_int_equal(kva_lending_lendable_from(e, seq), SHARED);
    assert_int_equal(kva_lending_lendable_pages(e, seq), LONGER / PAGE - SHARED - 1);
    assert_false(kva_lending_lendable(e, seq, 0, 4));
    assert_true(kva_lending_lendable(e, seq, SHARED, 4));
    const uint64_t before = device_in_use(e);
    loopback_lend(&w.net, &w.debtor, seq, 0, SHARED, 4, false);
    assert_int_equal(before - device_in_use(e), 4 * kva_lending_page_bytes(e));
    e->ops->suspend(e->self, first.seq);
    assert_int_equal(kva_lending_lendable_from(e, seq), 0);
    assert_true(kva_lending_lendable(e, seq, 0, SHARED));
    talker_end(&first);
    e->ops->destroy(e->self, seq);
    loopback_release(&w.net);
    lent_expect_empty(&w);
    lent_close(&w);
}

/* One message a layer and creditor for all of them. */
static void test_lent__company_changes_nothing(void **state KVA_UNUSED)
{
    static const uint32_t lengths[] = {330, 700, 520, 600};
    const struct kva_kv_spec specs[] = {full(), full(), kva_kv_spec_default(KVA_KV_SPECACHE),
                                        full()};
    struct lent_world w;
    struct talker talkers[4], *all[4];
    struct talk want[4];
    lent_open(&w, lent_model(false), 0);
    for (uint32_t i = 0; i < 4; i++)
        want[i] = talk_alone(&w, lengths[i], specs[i]);
    for (uint32_t i = 0; i < 4; i++) {
        talker_begin(&talkers[i], &w, lengths[i], specs[i]);
        all[i] = &talkers[i];
    }
    for (uint32_t i = 0; i < 2; i++) {
        talker_speak(all[i], 3 + i);
        loopback_lend(&w.net, &w.debtor, all[i]->seq, 0, 0, 4, false);
    }
    talkers_run(all, 4, 20);
    uint64_t messages = w.net.creditors[0].messages;
    talkers_run(all, 4, 21);
    assert_int_equal(w.net.creditors[0].messages - messages, 3);
    talkers_run(all, 4, STEPS);
    for (uint32_t i = 0; i < 4; i++) {
        talk_expect_bits(&all[i]->talk, &want[i]);
        talker_end(all[i]);
    }
    loopback_release(&w.net);
    lent_expect_empty(&w);
    lent_close(&w);
}

/* --- memory, leaving and coming home ----------------------------------------------------------- */

static void check_bytes(bool keeps_home)
{
    struct lent_world w;
    struct talker t;
    lent_open(&w, lent_model(false), 0);
    struct talk want = talk_alone(&w, 660, full());
    const uint64_t page = kva_lending_page_bytes(w.debtor.engine);
    talker_begin(&t, &w, 660, full()); /* all that is compared is of 11 pages */
    talker_speak(&t, 5);
    struct kva_tier_bytes before = talker_bytes(&t);
    uint64_t loan = loopback_lend(&w.net, &w.debtor, t.seq, 1, 0, 8, keeps_home);
    struct kva_tier_bytes after = talker_bytes(&t);
    assert_int_equal(before.device - after.device, 8 * page);
    assert_int_equal(before.host - after.host, keeps_home ? 0 : 8 * page);
    talker_speak(&t, 10);
    loopback_return(&w.net, &w.debtor, t.seq, loan);
    talker_speak(&t, 11);
    assert_int_equal(talker_bytes(&t).device, before.device);
    assert_int_equal(talker_bytes(&t).host, before.host);
    uint64_t posts = w.net.posts;
    talker_speak(&t, STEPS);
    assert_int_equal(w.net.posts, posts);
    talk_expect_bits(&t.talk, &want);
    talker_end(&t);
    lent_expect_empty(&w);
    lent_close(&w);
}

static void test_lent__memory_is_free_while_pages_are_away(void **state KVA_UNUSED)
{
    check_bytes(false);
    check_bytes(true);
}

static void suspend(struct talker *t)
{
    trace_suspend(&t->world->debtor, t->seq);
}

/* Suspended before it lends, while it has lent, while pages come home, and when they have. */
static void test_lent__suspension_changes_nothing(void **state KVA_UNUSED)
{
    struct lent_world w;
    lent_open(&w, lent_model(false), 0);
    struct talk want = talk_alone(&w, 700, full());
    for (uint32_t at = 0; at < 6; at++) {
        struct talker t;
        struct kva_err err;
        talker_begin(&t, &w, 700, full());
        talker_speak(&t, 5);
        if (at == 0)
            suspend(&t);
        if (at == 1)
            w.debtor.engine->ops->suspend(w.debtor.engine->self, t.seq);
        uint64_t loan = loopback_lend(&w.net, &w.debtor, t.seq, 0, 0, 8, false);
        if (at == 1)
            assert_int_equal(w.debtor.engine->ops->resume(w.debtor.engine->self, t.seq, &err),
                             KVA_OK);
        if (at == 2)
            suspend(&t);
        talker_speak(&t, 10);
        if (at == 3)
            w.debtor.engine->ops->suspend(w.debtor.engine->self, t.seq);
        loopback_return(&w.net, &w.debtor, t.seq, loan);
        if (at == 3)
            assert_int_equal(w.debtor.engine->ops->resume(w.debtor.engine->self, t.seq, &err),
                             KVA_OK);
        if (at == 4)
            suspend(&t);
        talker_speak(&t, 15);
        if (at == 5)
            suspend(&t);
        talker_speak(&t, STEPS);
        talk_expect_bits(&t.talk, &want);
        talker_end(&t);
    }
    lent_expect_empty(&w);
    lent_close(&w);
}

/* Loans come and go, in all orders that a few seeds give, and between any steps. */
static void test_lent__loans_may_come_and_go(void **state KVA_UNUSED)
{
    struct lent_world w;
    lent_open(&w, lent_model(false), fixture_unrounded_levels());
    struct talk want = talk_alone(&w, 1000, full());
    for (uint64_t seed = 0; seed < (FIXTURE_QUICK ? 4 : 25); seed++) {
        struct talker t;
        uint32_t at = 0;
        talker_begin(&t, &w, 1000, full());
        for (uint32_t step = 1; step <= STEPS; step++) {
            talker_speak(&t, step);
            uint32_t draw[3];
            for (uint32_t i = 0; i < 3; i++)
                fixture_prompt(&draw[i], 1, 14, seed * 1000 + at++);
            struct kva_kv_loan loans[KVA_KV_LOANS_MAX];
            uint32_t count = kva_lending_loans(t.seq, loans);
            if (draw[0] < 4 && count > 0)
                loopback_return(&w.net, &w.debtor, t.seq, loans[draw[1] % count].id);
            else if (draw[0] < 9 &&
                     kva_lending_lendable(w.debtor.engine, t.seq, draw[1], 1 + draw[2] / 3))
                loopback_lend(&w.net, &w.debtor, t.seq, draw[0] % 2, draw[1], 1 + draw[2] / 3,
                              draw[0] % 3 == 0);
            else if (draw[0] == 9)
                suspend(&t);
        }
        assert_memory_equal(t.talk.tokens, want.tokens, sizeof(want.tokens));
        talker_end(&t);
        loopback_release(&w.net);
    }
    lent_expect_empty(&w);
    lent_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lent__a_beginning_at_one_creditor_gives_the_same_bits),
        cmocka_unit_test(test_lent__and_with_sliding_windows),
        cmocka_unit_test(test_lent__local_attention_does_not_wait),
        cmocka_unit_test(test_lent__a_device_that_waits_gives_the_same_bits),
        cmocka_unit_test(test_lent__anything_else_gives_the_same_numbers),
        cmocka_unit_test(test_lent__what_is_rounded_is_not_cached),
        cmocka_unit_test(test_lent__what_others_have_is_not_needed),
        cmocka_unit_test(test_lent__what_others_have_is_not_lent),
        cmocka_unit_test(test_lent__company_changes_nothing),
        cmocka_unit_test(test_lent__memory_is_free_while_pages_are_away),
        cmocka_unit_test(test_lent__suspension_changes_nothing),
        cmocka_unit_test(test_lent__loans_may_come_and_go),
    };
    return cmocka_run_group_tests(tests, lent_make_models, lent_remove_models);
}
