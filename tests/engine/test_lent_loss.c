/* Loans that are lost, at any layer of any step or between steps; and what creditors hold. */
#include "tests/cmocka.h"

#include "base/clock.h"
#include "kernels/backend.h"
#include "tests/engine/lent_world.h"

#include <pthread.h>
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
    /* Which copies nothing to the host. */
    const struct kva_engine *creditor = w.net.creditors[0].fixture.engine;
    struct kva_engine_usage usage;
    creditor->ops->usage(creditor->self, &usage);
    assert_int_equal(kva_counts_named(&usage.counts, "offloaded_bytes"), 0);
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

/* A worker attends to a loan, which is freed meanwhile. */
static struct freeing {
    const struct kva_ops *inner;
    struct kva_guests *guests;
    struct kva_guest_worker *second; /* who attends to it again and again */
    uint64_t loan;
    pthread_t thread;
    bool begun, found;
} freeing;

static void *free_it(void *opaque KVA_UNUSED)
{
    kva_guests_free(freeing.guests, freeing.loan);
    return NULL;
}

static bool attend_with(struct kva_guest_worker *worker)
{
    static float q[64], a[64], m[4], e[4];
    const struct kva_remote_rows rows = {
        .loan = freeing.loan, .row_count = 1, .position_first = 2 * PAGE, .q = q, .out = {a, m, e}};
    struct kva_err err;
    bool found;
    assert_int_equal(kva_guests_attend(worker, 0, &rows, 1, &found, &err), KVA_OK);
    return found;
}

/* The loan is held until this returns, so it cannot have been freed when it is not found. */
static void attend_while_it_goes(struct kva_device *device, const struct kva_attend_args *args)
{
    const uint64_t limit_ns = kva_time_ns() + 60 * KVA_NS_PER_S;
    freeing.begun = pthread_create(&freeing.thread, NULL, free_it, NULL) == 0;
    do
        freeing.found = attend_with(freeing.second);
    while (freeing.found && kva_time_ns() < limit_ns);
    freeing.inner->attend(device, args);
}

static void test_lent__a_loan_that_goes_is_not_held_again(void **state KVA_UNUSED)
{
    struct lent_world w;
    struct kva_err err;
    struct kva_device *device;
    const struct kva_device_params params = {.threads = 1};
    const struct kva_kv_loan loan = {.id = 7, .page_count = 2};
    lent_open(&w, lent_model(false), 0);
    struct loopback_creditor *creditor = &w.net.creditors[0];
    freeing = (struct freeing){.guests = creditor->guests, .loan = loan.id};
    assert_int_equal(kva_device_open_cpu(&params, &device, &err), KVA_OK);
    assert_int_equal(kva_guest_worker_create(creditor->guests, device, 1, &freeing.second, &err),
                     KVA_OK);
    assert_int_equal(kva_guests_reserve(creditor->guests, &loan, &err), KVA_OK);
    struct kva_device_base *base = (struct kva_device_base *)creditor->device;
    freeing.inner = base->ops;
    struct kva_ops outer = *base->ops;
    outer.attend = attend_while_it_goes;
    base->ops = &outer;
    assert_true(attend_with(creditor->worker));
    base->ops = freeing.inner;
    assert_true(freeing.begun);
    pthread_join(freeing.thread, NULL);
    assert_false(freeing.found);
    assert_int_equal(kva_guests_pages(creditor->guests), 0);
    kva_guest_worker_destroy(freeing.second);
    kva_device_close(device);
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
        cmocka_unit_test(test_lent__a_loan_that_goes_is_not_held_again),
    };
    return cmocka_run_group_tests(tests, lent_make_models, lent_remove_models);
}
