#include "tests/cmocka.h"

#include "base/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ITEMS_MAX = 3000, THREADS_MAX = 8 };

struct tally {
    _Atomic uint32_t runs[ITEMS_MAX];
    _Atomic uint32_t in_use[THREADS_MAX]; /* a worker's scratch is its own */
    _Atomic uint32_t clashes;
    uint32_t threads;
    uint32_t plain[ITEMS_MAX]; /* not atomic: the pool orders it */
};

static void count(void *opaque, uint32_t index, uint32_t worker)
{
    struct tally *tally = opaque;
    if (worker >= tally->threads || atomic_fetch_add(&tally->in_use[worker], 1) != 0)
        atomic_fetch_add(&tally->clashes, 1);
    atomic_fetch_add(&tally->runs[index], 1);
    tally->plain[index]++;
    if (worker < THREADS_MAX)
        atomic_fetch_sub(&tally->in_use[worker], 1);
}

static void run_loops(uint32_t threads, uint32_t loops)
{
    struct kva_pool *pool = NULL;
    assert_int_equal(kva_pool_create(threads, &pool, NULL), KVA_OK);
    assert_int_equal(kva_pool_threads(pool), threads);
    struct tally *tally = calloc(1, sizeof *tally);
    tally->threads = threads;
    uint32_t want[ITEMS_MAX] = {0};
    for (uint32_t loop = 0; loop < loops; loop++) {
        uint32_t items = loop % 7 == 0 ? loop % 3 : loop * 37 % 150;
        kva_pool_run(pool, items, count, tally);
        for (uint32_t i = 0; i < items; i++)
            want[i]++;
        /* Everything has run, and what it wrote is visible here. */
        assert_memory_equal(want, tally->plain, 200 * sizeof *want);
        /* Now and then long enough for the threads to fall asleep. */
        if (loop % 50 == 49)
            usleep(500);
    }
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        assert_int_equal(atomic_load(&tally->runs[i]), want[i]);
    assert_int_equal(atomic_load(&tally->clashes), 0);
    free(tally);
    kva_pool_destroy(pool);
}

static void test_pool__every_item_runs_once(void **state KVA_UNUSED)
{
    run_loops(1, 100);
    run_loops(2, 600);
    run_loops(5, 600);
}

static void test_pool__long_loops_right_after_short_ones(void **state KVA_UNUSED)
{
    /* A late thread of the short loop meets the longer one while it is being set up: it must not
     * take an item of either twice. */
    struct kva_pool *pool = NULL;
    assert_int_equal(kva_pool_create(4, &pool, NULL), KVA_OK);
    struct tally *tally = calloc(1, sizeof *tally);
    tally->threads = 4;
    const uint32_t loops = 4000;
    for (uint32_t loop = 0; loop < loops; loop++)
        kva_pool_run(pool, loop % 2 ? 40 : 2, count, tally);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(tally->plain[i], i < 2 ? loops : loops / 2);
    assert_int_equal(tally->plain[40], 0);
    assert_int_equal(atomic_load(&tally->clashes), 0);
    free(tally);
    kva_pool_destroy(pool);
}

static void test_pool__large_loops(void **state KVA_UNUSED)
{
    struct kva_pool *pool = NULL;
    assert_int_equal(kva_pool_create(4, &pool, NULL), KVA_OK);
    struct tally *tally = calloc(1, sizeof *tally);
    tally->threads = 4;
    kva_pool_run(pool, ITEMS_MAX, count, tally);
    kva_pool_run(pool, ITEMS_MAX, count, tally);
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        assert_int_equal(tally->plain[i], 2);
    free(tally);
    kva_pool_destroy(pool);
}

static void slow(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    _Atomic uint32_t *done = opaque;
    if (index == 0)
        usleep(20000);
    atomic_fetch_add(done, 1);
}

static void test_pool__waits_for_the_slowest_item(void **state KVA_UNUSED)
{
    struct kva_pool *pool = NULL;
    assert_int_equal(kva_pool_create(3, &pool, NULL), KVA_OK);
    for (uint32_t i = 0; i < 5; i++) {
        _Atomic uint32_t done = 0;
        kva_pool_run(pool, 16, slow, &done);
        assert_int_equal(atomic_load(&done), 16);
    }
    kva_pool_destroy(pool);
}

static void test_pool__comes_and_goes(void **state KVA_UNUSED)
{
    for (uint32_t i = 0; i < 50; i++) {
        struct kva_pool *pool = NULL;
        assert_int_equal(kva_pool_create(1 + i % 4, &pool, NULL), KVA_OK);
        _Atomic uint32_t done = 0;
        if (i % 3)
            kva_pool_run(pool, 2, slow, &done);
        kva_pool_destroy(pool);
    }
    kva_pool_destroy(NULL);
}

static void test_pool__refuses_absurd_sizes(void **state KVA_UNUSED)
{
    struct kva_pool *pool = NULL;
    struct kva_err err;
    assert_int_equal(kva_pool_create(0, &pool, &err), KVA_EINVAL);
    assert_int_equal(kva_pool_create(KVA_POOL_THREADS_MAX + 1, &pool, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "257"));
    assert_null(pool);
    assert_true(kva_pool_usable_cores() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool__every_item_runs_once),
        cmocka_unit_test(test_pool__long_loops_right_after_short_ones),
        cmocka_unit_test(test_pool__large_loops),
        cmocka_unit_test(test_pool__waits_for_the_slowest_item),
        cmocka_unit_test(test_pool__comes_and_goes),
        cmocka_unit_test(test_pool__refuses_absurd_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
