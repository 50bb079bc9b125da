/* The pool of workers: owners take turns, what nobody waits for is not run, and nobody fills all
 * places. One thread, which a first job holds until the others are queued. */
#include "server/worker/workers.h"
#include "tests/cmocka.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct test_job {
    struct kva_job job;
    char letter;
};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool open_gate, is_held;
static char order[256];
static size_t order_count, done_count;
static struct kva_workers *pool;

static struct test_job *test_job(struct kva_job *job)
{
    return (struct test_job *)(void *)((char *)job - offsetof(struct test_job, job));
}

static void hold(struct kva_job *job)
{
    (void)job;
    pthread_mutex_lock(&gate);
    is_held = true;
    pthread_cond_broadcast(&changed);
    while (!open_gate)
        pthread_cond_wait(&changed, &gate);
    pthread_mutex_unlock(&gate);
}

static void note(struct kva_job *job)
{
    pthread_mutex_lock(&gate);
    order[order_count++] = test_job(job)->letter;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&gate);
}

static void done(struct kva_job *job)
{
    done_count++;
    free(test_job(job));
}

static void wake(void *opaque)
{
    (void)opaque;
}

static enum kva_status submit(uint64_t owner, char letter, size_t bytes, struct kva_job **ret)
{
    struct test_job *job = calloc(1, sizeof(*job));
    struct kva_err err;
    job->letter = letter;
    job->job =
        (struct kva_job){.run = letter ? note : hold, .done = done, .owner = owner, .bytes = bytes};
    enum kva_status status = kva_workers_submit(pool, &job->job, &err);
    if (status != KVA_OK)
        free(job);
    if (ret)
        *ret = &job->job;
    return status;
}

static void begin(uint32_t jobs_max)
{
    const struct kva_workers_params params = {
        .threads = 1, .jobs_max = jobs_max, .stack_bytes = 1 << 20, .wake = wake};
    struct kva_err err;
    open_gate = is_held = false;
    order_count = done_count = 0;
    memset(order, 0, sizeof(order));
    assert_int_equal(kva_workers_create(&params, &pool, &err), KVA_OK);
    assert_int_equal(submit(99, 0, 0, NULL), KVA_OK);
    pthread_mutex_lock(&gate);
    while (!is_held)
        pthread_cond_wait(&changed, &gate);
    pthread_mutex_unlock(&gate);
}

/* Let `count` jobs run and end the pool. */
static void finish(size_t count)
{
    pthread_mutex_lock(&gate);
    open_gate = true;
    pthread_cond_broadcast(&changed);
    while (order_count < count)
        pthread_cond_wait(&changed, &gate);
    pthread_mutex_unlock(&gate);
    kva_workers_destroy(pool);
    assert_int_equal(done_count, count + 1);
}

static void test_workers__owners_take_turns(void **state KVA_UNUSED)
{
    begin(64);
    for (int i = 0; i < 6; i++)
        assert_int_equal(submit(1, 'a', 100, NULL), KVA_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(submit(2, 'b', 100, NULL), KVA_OK);
    assert_int_equal(submit(3, 'c', 100, NULL), KVA_OK);
    finish(10);
    assert_string_equal(order, "abcababaaa");

    /* By bytes: who has large ones waits for who has small ones. */
    begin(64);
    for (int i = 0; i < 3; i++)
        assert_int_equal(submit(1, 'a', 999, NULL), KVA_OK);
    for (int i = 0; i < 12; i++)
        assert_int_equal(submit(2, 'b', 249, NULL), KVA_OK);
    finish(15);
    assert_string_equal(order, "abbbbabbbbabbbb");
}

static void test_workers__what_is_abandoned_is_not_run(void **state KVA_UNUSED)
{
    struct kva_job *jobs[40];
    struct kva_workers_counts counts;
    begin(128);
    for (size_t i = 0; i < 40; i++)
        assert_int_equal(submit(1, 'a', 14 << 20, &jobs[i]), KVA_OK);
    assert_int_equal(submit(2, 'b', 6000, NULL), KVA_OK);
    for (size_t i = 0; i < 40; i++) {
        assert_true(kva_workers_abandon(pool, jobs[i]));
        free(test_job(jobs[i]));
    }
    kva_workers_get_counts(pool, &counts);
    assert_int_equal(counts.abandoned, 40);
    assert_int_equal(counts.waiting, 1);
    assert_int_equal(counts.run, 1);
    finish(1);
    assert_string_equal(order, "b");
}

static void test_workers__what_runs_comes_back(void **state KVA_UNUSED)
{
    struct kva_job *job;
    begin(8);
    assert_int_equal(submit(1, 'a', 1, &job), KVA_OK);
    pthread_mutex_lock(&gate);
    open_gate = true;
    pthread_cond_broadcast(&changed);
    while (order_count < 1)
        pthread_cond_wait(&changed, &gate);
    pthread_mutex_unlock(&gate);
    assert_false(kva_workers_abandon(pool, job));
    finish(1);
}

static void test_workers__nobody_fills_all_places(void **state KVA_UNUSED)
{
    int count[3] = {0};
    begin(12);
    for (int i = 0; i < 3; i++)
        while (submit((uint64_t)i + 1, 'a', 1, NULL) == KVA_OK)
            count[i]++;
    assert_int_equal(count[0], 6);
    assert_int_equal(count[1], 3);
    assert_int_equal(count[2], 2);
    assert_int_equal(submit(4, 'a', 1, NULL), KVA_OK);
    assert_int_equal(submit(5, 'a', 1, NULL), KVA_EBUSY);
    finish(12);

    begin(5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(submit(0, 'a', 1, NULL), KVA_OK);
    assert_int_equal(submit(0, 'a', 1, NULL), KVA_EBUSY);
    finish(5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers__owners_take_turns),
        cmocka_unit_test(test_workers__what_is_abandoned_is_not_run),
        cmocka_unit_test(test_workers__what_runs_comes_back),
        cmocka_unit_test(test_workers__nobody_fills_all_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
