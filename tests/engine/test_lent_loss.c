/* Loans that are lost, at any layer of any step or between steps; and what creditors hold. */
#include "tests/cmocka.h"

#include "tests/engine/lent_world.h"

#include <stdlib.h>
#include <string.h>

/* --- loss -------------------------------------------------------------------------------------- */

/* A creditor dies at any layer of any step. */
static void check_loss(bool keeps_home)
{
    struct lent_world w;
    lent_open(&w, lent_model(false), 0);
    struct talk want = talk_alone(&w, 600, full());
    for (uint64_t message = 1; message <= (FIXTURE_QUICK ? 5 : 30); message++) {
        struct talker t;
        talker_begin(&t, &w, 600, full());
        talker_speak(&t, 4);
        loopback_lend(&w.net, &w.debtor, t.seq, 0, 0, 8, keeps_home);
        w.net.creditors[0].dies_at = w.net.creditors[0].messages + message;
        talker_speak(&t, STEPS);
        assert_int_equal(t.restarts, keeps_home ? 0 : 1);
        assert_int_equal(t.retries, keeps_home ? 1 : 0);
        talk_expect_bits(&t.talk, &want);
        talker_end(&t);
        w.net.creditors[0].dies_at = 0;
        loopback_release(&w.net);
    }
    lent_expect_empty(&w);
    lent_close(&w);
}

static void test_lent__a_lost_sequence_is_computed_again(void **state KVA_UNUSED)
{
    check_loss(false);
}

static void test_lent__with_homes_a_step_is_run_again(void **state KVA_UNUSED)
{
    check_loss(true);
}

/* The other's answers count; so does what the lost one's company says. */
static void test_lent__loss_is_one_sequences_own(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct talker a, b, *both[] = {&a, &b};
    lent_open(&w, lent_model(false), 0);
    struct talk want_a = talk_alone(&w, 600, full()), want_b = talk_alone(&w, 500, full());
    talker_begin(&a, &w, 600, full());
    talker_begin(&b, &w, 500, full());
    talkers_run(both, 2, 5);
    loopback_lend(&w.net, &w.debtor, a.seq, 0, 0, 8, false);
    loopback_lend(&w.net, &w.debtor, b.seq, 1, 0, 4, false);
    w.net.creditors[0].dies_at = w.net.creditors[0].messages + 8;
    talkers_run(both, 2, STEPS);
    assert_int_equal(a.restarts, 1);
    assert_int_equal(b.restarts, 0);
    talk_expect_bits(&a.talk, &want_a);
    talk_expect_bits(&b.talk, &want_b);
    talker_end(&a);
    talker_end(&b);
    loopback_release(&w.net);
    lent_expect_empty(&w);
    lent_close(&w);
}

/* Known between steps, as when a lease ends; and of a suspended sequence. */
static void test_lent__loss_may_be_told(void **state KVA_UNUSED)
{
    struct lent_world w;
    lent_open(&w, lent_model(false), 0);
    struct talk want = talk_alone(&w, 600, full());
    for (uint32_t how = 0; how < 4; how++) {
        struct talker t;
        struct kva_err err;
        bool keeps_home = how % 2, suspended = how / 2;
        const struct kva_engine *e = w.debtor.engine;
        talker_begin(&t, &w, 600, full());
        talker_speak(&t, 4);
        loopback_lend(&w.net, &w.debtor, t.seq, 0, 0, 4, keeps_home);
        talker_speak(&t, 9);
        if (suspended)
            e->ops->suspend(e->self, t.seq);
        kva_lending_lose(w.debtor.engine, t.seq);
        loopback_release(&w.net);
        if (suspended)
            assert_int_equal(e->ops->resume(e->self, t.seq, &err), KVA_OK);
        assert_false(kva_lending_lendable(w.debtor.engine, t.seq, 0, 4) && !keeps_home);
        talker_speak(&t, STEPS);
        assert_int_equal(t.restarts, !keeps_home);
        talk_expect_bits(&t.talk, &want);
        talker_end(&t);
    }
    lent_expect_empty(&w);
    lent_close(&w);
}

/* --- guests ------------------------------------------------------------------------------------ */

static void test_lent__guest_pages_are_wiped(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct talker t;
    struct kva_err err;
    struct kva_kv_loan loan = {.id = 1000, .page_count = 200};
    lent_open(&w, lent_model(false), 0);
    struct kva_guests *guests = w.net.creditors[0].guests;
    const size_t page = kva_lending_page_bytes(w.debtor.engine);
    unsigned char *got = malloc(page);
    assert_non_null(got);
    talker_begin(&t, &w, 600, full());
    talker_speak(&t, 2);
    uint64_t first = loopback_lend(&w.net, &w.debtor, t.seq, 0, 0, 8, false);
    assert_int_equal(kva_guests_read(guests, first, 7, got, &err), KVA_OK);
    assert_true(memchr(got, 0x3f, page) != NULL || memchr(got, 0xbf, page) != NULL);
    talker_end(&t);
    loopback_release(&w.net);
    while (kva_guests_reserve(guests, &loan, &err) == KVA_ELIMIT)
        loan.page_count--;
    for (uint32_t i = 0; i < loan.page_count; i++) {
        assert_int_equal(kva_guests_read(guests, loan.id, i, got, &err), KVA_OK);
        for (size_t j = 0; j < page; j++)
            assert_int_equal(got[j], 0);
    }
    kva_guests_free(guests, loan.id);
    free(got);
    lent_close(&w);
}

static void test_lent__what_cannot_be_is_refused(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct talker t, other;
    struct kva_err err;
    bool found[LOOPBACK_ROWS + 1];
    struct kva_remote_rows rows[LOOPBACK_ROWS + 1] = {0};
    const struct kva_kv_loan none = {.id = 5}, huge = {.id = 6, .page_count = 1u << 20};
    const struct kva_kv_loan fine = {.id = 7, .page_count = 2};
    lent_open(&w, lent_model(false), 0);
    const struct kva_engine *e = w.debtor.engine;
    struct kva_guests *guests = w.net.creditors[0].guests;

    talker_begin(&t, &w, 600, full());
    assert_false(kva_lending_lendable(e, t.seq, 0, 4)); /* its prompt is not in */
    talker_speak(&t, 2);
    assert_int_equal(kva_lending_lendable_pages(e, t.seq), 8);
    assert_true(kva_lending_lendable(e, t.seq, 0, 8));
    assert_false(kva_lending_lendable(e, t.seq, 0, 9)); /* the last closed page stays */
    assert_false(kva_lending_lendable(e, t.seq, 0, 0));
    assert_false(kva_lending_lendable(e, t.seq, UINT32_MAX, 2));
    loopback_lend(&w.net, &w.debtor, t.seq, 0, 2, 2, false);
    assert_false(kva_lending_lendable(e, t.seq, 3, 2)); /* it has been lent */
    assert_int_equal(kva_lending_home_reserve(w.debtor.engine, t.seq, 99, &err), KVA_ENOTFOUND);
    assert_null(kva_lending_home_of(w.debtor.engine, t.seq, 2));
    talker_begin(&other, &w, 600, kva_kv_spec_default(KVA_KV_SPECACHE));
    talker_speak(&other, 2);
    assert_false(kva_lending_lendable(e, other.seq, 0, 4));
    talker_end(&other);
    talker_end(&t);
    loopback_release(&w.net);

    assert_int_equal(kva_guests_reserve(guests, &none, &err), KVA_EINVAL);
    assert_int_equal(kva_guests_reserve(guests, &huge, &err), KVA_ELIMIT);
    assert_int_equal(kva_guests_reserve(guests, &fine, &err), KVA_OK);
    assert_int_equal(kva_guests_reserve(guests, &fine, &err), KVA_EINVAL);
    assert_int_equal(kva_guests_write(guests, 7, 2, &err, &err), KVA_ENOTFOUND);
    assert_int_equal(kva_guests_read(guests, 8, 0, &err, &err), KVA_ENOTFOUND);
    rows[0].row_count = 1;
    struct kva_guest_worker *worker = w.net.creditors[0].worker;
    assert_int_equal(kva_guests_attend(worker, 3, rows, 1, found, &err), KVA_EINVAL);
    assert_int_equal(kva_guests_attend(worker, 0, rows, LOOPBACK_ROWS + 1, found, &err),
                     KVA_EINVAL);
    assert_int_equal(kva_guests_attend(worker, 0, rows, 2, found, &err), KVA_EINVAL);
    assert_int_equal(kva_guests_attend(worker, 0, rows, 1, found, &err), KVA_OK);
    assert_false(found[0]); /* loan 0 is not held */
    kva_guests_free(guests, 7);
    kva_guests_free(guests, 7);
    lent_expect_empty(&w);
    lent_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lent__a_lost_sequence_is_computed_again),
        cmocka_unit_test(test_lent__with_homes_a_step_is_run_again),
        cmocka_unit_test(test_lent__loss_is_one_sequences_own),
        cmocka_unit_test(test_lent__loss_may_be_told),
        cmocka_unit_test(test_lent__guest_pages_are_wiped),
        cmocka_unit_test(test_lent__what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, lent_make_models, lent_remove_models);
}
