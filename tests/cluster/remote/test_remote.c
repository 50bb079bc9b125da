/* Sequences whose pages others hold, asked over real links: what they say is, bit for bit, what they
 * say alone or over a network of memory (tests/engine/lent); and creditors that go away. */
#include "tests/cmocka.h"

#include "tests/cluster/remote/distance.h"

#include <stdlib.h>
#include <string.h>

/* --- bits -------------------------------------------------------------------------------------- */

static void check_prefix(const char *model, bool keeps_home)
{
    static const uint32_t lengths[] = {330, 1000};
    struct distance d;
    distance_open(&d, model, 0, 0);
    for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
        struct talk want = talk_alone(&d.lent, lengths[i], full());
        for (uint32_t pages = 4; pages < lengths[i] / PAGE; pages += 4) {
            struct talker t;
            talker_begin(&t, &d.lent, lengths[i], full());
            talker_speak(&t, 1 + pages);
            uint64_t questions = distance_stats(&d).questions;
            loopback_lend(&d.lent.net, &d.lent.debtor, t.seq, i % 2, 0, pages, keeps_home);
            talker_speak(&t, STEPS);
            assert_int_equal(distance_stats(&d).questions - questions, (STEPS - 1 - pages) * 3);
            talk_expect_bits(&t.talk, &want);
            assert_int_equal(t.restarts + t.retries, 0);
            talker_end(&t);
            loopback_release(&d.lent.net);
        }
    }
    lent_expect_empty(&d.lent);
    distance_close(&d);
}

static void test_remote__a_beginning_at_one_creditor_gives_the_same_bits(void **state KVA_UNUSED)
{
    check_prefix(lent_model(false), false);
}

static void test_remote__and_with_sliding_windows(void **state KVA_UNUSED)
{
    check_prefix(lent_model(true), true);
}

static const struct kva_kv_loan cases[][3] = {
    {{.first_page = 0, .page_count = 4}, {.creditor = 1, .first_page = 4, .page_count = 5}},
    {{.first_page = 3, .page_count = 4}},
    {{.first_page = 9, .page_count = 2},
     {.creditor = 1, .first_page = 1, .page_count = 3},
     {.first_page = 5, .page_count = 1}},
};

static struct talk talk_with_loans(struct lent_world *w, const struct kva_kv_loan loans[3])
{
    struct talker t;
    talker_begin(&t, w, 900, full());
    for (uint32_t j = 0; j < 3 && loans[j].page_count > 0; j++) {
        talker_speak(&t, 2 + 3 * j);
        loopback_lend(&w->net, &w->debtor, t.seq, loans[j].creditor, loans[j].first_page,
                      loans[j].page_count, false);
    }
    talker_speak(&t, STEPS);
    assert_int_equal(t.restarts, 0);
    talker_end(&t);
    loopback_release(&w->net);
    return t.talk;
}

/* Several loans, several creditors: the bits of the same loans without a network between. */
static void test_remote__several_loans_give_the_bits_of_no_network(void **state KVA_UNUSED)
{
    struct talk want[KVA_COUNT_OF(cases)];
    struct lent_world w;
    struct distance d;
    lent_open(&w, lent_model(false), 0);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++)
        want[i] = talk_with_loans(&w, cases[i]);
    lent_close(&w);
    distance_open(&d, lent_model(false), 0, 0);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct talk got = talk_with_loans(&d.lent, cases[i]);
        talk_expect_bits(&got, &want[i]);
    }
    lent_expect_empty(&d.lent);
    distance_close(&d);
}

/* One question to a creditor in a layer, for all sequences and loans. */
static void test_remote__company_shares_a_question(void **state KVA_UNUSED)
{
    static const uint32_t lengths[] = {330, 700, 520};
    struct distance d;
    struct talker talkers[3], *all[3];
    struct talk want[3];
    distance_open(&d, lent_model(false), 0, 0);
    for (uint32_t i = 0; i < 3; i++)
        want[i] = talk_alone(&d.lent, lengths[i], full());
    for (uint32_t i = 0; i < 3; i++) {
        talker_begin(&talkers[i], &d.lent, lengths[i], full());
        all[i] = &talkers[i];
        talker_speak(all[i], 3 + i);
        loopback_lend(&d.lent.net, &d.lent.debtor, all[i]->seq, 0, 0, 4, false);
    }
    talkers_run(all, 3, 20);
    struct kva_debtor_stats before = distance_stats(&d);
    talkers_run(all, 3, 21);
    struct kva_debtor_stats after = distance_stats(&d);
    assert_int_equal(after.questions - before.questions, 3);
    assert_int_equal(after.rows - before.rows, 9);
    talkers_run(all, 3, STEPS);
    for (uint32_t i = 0; i < 3; i++) {
        talk_expect_bits(&all[i]->talk, &want[i]);
        talker_end(all[i]);
    }
    struct kva_creditor_stats stats;
    kva_creditor_get_stats(d.creditors[0], &stats);
    assert_int_equal(stats.answers, distance_stats(&d).questions);
    assert_int_equal(stats.rows, distance_stats(&d).rows);
    assert_int_equal(stats.connections, 1);
    loopback_release(&d.lent.net);
    lent_expect_empty(&d.lent);
    distance_close(&d);
}

/* --- loss -------------------------------------------------------------------------------------- */

/* A creditor dies at any layer of any step, before or after it was asked, and is there again when
 * the next sequence lends. */
static void check_loss(bool keeps_home, bool after)
{
    struct distance d;
    distance_open(&d, lent_model(false), 0, 0);
    struct talk want = talk_alone(&d.lent, 600, full());
    for (uint64_t question = 1; question <= 7; question++) {
        struct talker t;
        uint32_t lost[4];
        talker_begin(&t, &d.lent, 600, full());
        talker_speak(&t, 4);
        loopback_lend(&d.lent.net, &d.lent.debtor, t.seq, 0, 0, 8, keeps_home);
        d.dies_at = d.posts + question;
        d.dies_after = after;
        talker_speak(&t, STEPS);
        assert_int_equal(t.restarts, keeps_home ? 0 : 1);
        assert_int_equal(t.retries, keeps_home ? 1 : 0);
        talk_expect_bits(&t.talk, &want);
        talker_end(&t);
        loopback_release(&d.lent.net);
        assert_int_equal(kva_debtor_take_lost(d.debtor, lost, 4), 1);
        assert_int_equal(lost[0], 1);
        assert_int_equal(kva_debtor_take_lost(d.debtor, lost, 4), 0);
        distance_revive(&d, 0);
    }
    assert_int_equal(distance_stats(&d).broken, 7);
    assert_int_equal(distance_stats(&d).late, 0);
    lent_expect_empty(&d.lent);
    distance_close(&d);
}

static void test_remote__a_creditor_may_die_at_any_layer(void **state KVA_UNUSED)
{
    check_loss(false, false);
    check_loss(true, true);
}

/* It is there, and has no such loan. */
static void test_remote__what_is_not_held_is_lost(void **state KVA_UNUSED)
{
    struct distance d;
    struct talker t;
    distance_open(&d, lent_model(false), 0, 0);
    struct talk want = talk_alone(&d.lent, 600, full());
    talker_begin(&t, &d.lent, 600, full());
    talker_speak(&t, 4);
    uint64_t loan = loopback_lend(&d.lent.net, &d.lent.debtor, t.seq, 0, 0, 8, false);
    talker_speak(&t, 8);
    kva_guests_free(d.lent.net.creditors[0].guests, loan);
    talker_speak(&t, STEPS);
    assert_int_equal(t.restarts, 1);
    assert_int_equal(distance_stats(&d).not_found, 3);
    talk_expect_bits(&t.talk, &want);
    talker_end(&t);
    lent_expect_empty(&d.lent);
    distance_close(&d);
}

/* Its worker is taken away: whoever asks is told, and the worker is free. */
static void test_remote__a_creditor_that_has_stopped_answers_nobody(void **state KVA_UNUSED)
{
    struct distance d;
    struct talker t;
    distance_open(&d, lent_model(false), 0, 0);
    struct talk want = talk_alone(&d.lent, 600, full());
    talker_begin(&t, &d.lent, 600, full());
    talker_speak(&t, 4);
    loopback_lend(&d.lent.net, &d.lent.debtor, t.seq, 0, 0, 8, false);
    talker_speak(&t, 8);
    kva_creditor_stop(d.creditors[0]);
    kva_guest_worker_destroy(d.workers[0]);
    d.workers[0] = NULL;
    talker_speak(&t, STEPS);
    assert_int_equal(t.restarts, 1);
    assert_int_equal(distance_stats(&d).broken, 1);
    talk_expect_bits(&t.talk, &want);
    talker_end(&t);
    loopback_release(&d.lent.net);
    lent_expect_empty(&d.lent);
    distance_close(&d);
}

/* --- many rows --------------------------------------------------------------------------------- */

static float *make_floats(size_t count, uint32_t seed)
{
    float *all = malloc(count * sizeof(*all));
    assert_non_null(all);
    for (size_t i = 0; i < count; i++)
        all[i] = (float)((int)((i * 2654435761u + seed * 977u) >> 16 & 1023) - 512) / 256.0f;
    return all;
}

static struct kva_partial partial_at(const struct distance *d, float *at, uint32_t rows)
{
    size_t pairs = (size_t)rows * d->lent.net.heads;
    return (struct kva_partial){at, at + pairs * d->lent.net.head_dim,
                                at + pairs * (d->lent.net.head_dim + 1)};
}

/* As a prompt's chunk has: rows at consecutive positions, of several loans in one question. */
static void test_remote__an_entry_may_have_many_rows(void **state KVA_UNUSED)
{
    struct distance d;
    struct talker t;
    struct kva_err err;
    bool found[2];
    distance_open(&d, lent_model(false), 0, 0);
    const size_t row = (size_t)d.lent.net.heads * d.lent.net.head_dim;
    const size_t result = (size_t)d.lent.net.heads * (d.lent.net.head_dim + 2);
    talker_begin(&t, &d.lent, 600, full());
    talker_speak(&t, 4);
    uint64_t loans[] = {loopback_lend(&d.lent.net, &d.lent.debtor, t.seq, 0, 0, 4, true),
                        loopback_lend(&d.lent.net, &d.lent.debtor, t.seq, 0, 5, 3, true)};
    float *q = make_floats(LOOPBACK_ROWS * row, 1);
    float *want = make_floats(LOOPBACK_ROWS * result, 2),
          *got = make_floats(LOOPBACK_ROWS * result, 3);
    const struct kva_remote *remote = kva_debtor_remote(d.debtor);
    for (uint32_t first = 1; first < LOOPBACK_ROWS; first += 3) {
        uint32_t second = LOOPBACK_ROWS - first;
        struct kva_remote_rows rows[] = {{.loan = loans[0],
                                          .creditor = 1,
                                          .row_count = first,
                                          .position_first = 580,
                                          .q = q,
                                          .out = partial_at(&d, want, first)},
                                         {.loan = loans[1],
                                          .creditor = 1,
                                          .row_count = second,
                                          .position_first = 570,
                                          .q = q + first * row,
                                          .out = partial_at(&d, want + first * result, second)}};
        assert_int_equal(
            kva_guests_attend(d.lent.net.creditors[0].worker, first % 3, rows, 2, found, &err),
            KVA_OK);
        rows[0].out = partial_at(&d, got, first);
        rows[1].out = partial_at(&d, got + first * result, second);
        remote->ops->post(remote->self, first % 3, rows, 2);
        assert_true(remote->ops->collect(remote->self, 1));
        assert_true(remote->ops->collect(remote->self, 0));
        assert_memory_equal(got, want, LOOPBACK_ROWS * result * sizeof(float));
    }
    struct kva_remote_rows many = {.loan = loans[0],
                                   .creditor = 1,
                                   .row_count = LOOPBACK_ROWS + 1,
                                   .q = q,
                                   .out = partial_at(&d, got, 1)};
    remote->ops->post(remote->self, 0, &many, 1);
    assert_false(remote->ops->collect(remote->self, 0));
    free(q);
    free(want);
    free(got);
    talker_end(&t);
    loopback_release(&d.lent.net);
    distance_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remote__a_beginning_at_one_creditor_gives_the_same_bits),
        cmocka_unit_test(test_remote__and_with_sliding_windows),
        cmocka_unit_test(test_remote__several_loans_give_the_bits_of_no_network),
        cmocka_unit_test(test_remote__company_shares_a_question),
        cmocka_unit_test(test_remote__a_creditor_may_die_at_any_layer),
        cmocka_unit_test(test_remote__what_is_not_held_is_lost),
        cmocka_unit_test(test_remote__a_creditor_that_has_stopped_answers_nobody),
        cmocka_unit_test(test_remote__an_entry_may_have_many_rows),
    };
    return cmocka_run_group_tests(tests, lent_make_models, lent_remove_models);
}
