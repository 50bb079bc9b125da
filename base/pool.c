/* pool.c - the threads: items are claimed from one counter; idle threads spin for a few
 * microseconds, then sleep. */
#include "base/pool.h"

#include "base/cgroup.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Pauses before a thread sleeps: 4 us where a pause takes 40 cycles, 18 us on a Zen 5, where it
 * takes 45 ns. Enough for the gap between two operators of a step; more of them only slow a
 * machine down that has other work. */
#define SPIN_PAUSES 400u

struct worker {
    struct kva_pool *pool;
    pthread_t thread;
    uint32_t index;
};

/* The loop that runs now. `ticket` holds the loop's number in its upper half and the count of items
 * that nobody has taken yet in its lower half. An item is taken by lowering that count, with an
 * exchange that fails when anything has moved on. The other fields change only between loops, that
 * is, while the count is 0: so a thread that took an item has read the fields that belong to it.
 * They are atomic because a late thread may read them while the next loop is being set up; it then
 * takes nothing. (What is left must be told by the ticket alone. A late thread that compared the
 * next item's index with a count of its own reading could mix two loops.) */
struct loop {
    _Atomic uint64_t ticket;
    _Atomic uint32_t count;
    _Atomic(kva_pool_fn *) fn;
    _Atomic(void *) opaque;
};

struct kva_pool {
    _Alignas(KVA_CACHE_LINE) struct loop loop;
    _Alignas(KVA_CACHE_LINE) _Atomic uint32_t done; /* items of this loop that have run */
    _Alignas(KVA_CACHE_LINE) _Atomic uint32_t sleepers;
    _Atomic bool caller_sleeps;
    _Atomic bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t work; /* a loop was started, or stop */
    pthread_cond_t idle; /* the last item of a loop has run */
    uint32_t threads;
    uint32_t spin_pauses;
    struct worker *workers; /* [threads - 1] */
    uint32_t worker_count;  /* workers that were started */
};

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static uint32_t loop_number(uint64_t ticket)
{
    return (uint32_t)(ticket >> 32);
}

/* Take and run items of the current loop until none is left. */
static void run_items(struct kva_pool *pool, uint32_t worker)
{
    struct loop *loop = &pool->loop;
    uint64_t ticket = atomic_load_explicit(&loop->ticket, memory_order_acquire);
    bool last = false;
    while (!last && (uint32_t)ticket > 0) {
        uint32_t count = atomic_load_explicit(&loop->count, memory_order_relaxed);
        kva_pool_fn *fn = atomic_load_explicit(&loop->fn, memory_order_relaxed);
        void *opaque = atomic_load_explicit(&loop->opaque, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&loop->ticket, &ticket, ticket - 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        fn(opaque, count - (uint32_t)ticket, worker);
        /* Count each item at once: a loop must not wait for this thread to come back here. */
        last = atomic_fetch_add(&pool->done, 1) + 1 == count;
        ticket = atomic_load_explicit(&loop->ticket, memory_order_acquire);
    }
    if (last && atomic_load(&pool->caller_sleeps)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_signal(&pool->idle);
        pthread_mutex_unlock(&pool->mutex);
    }
}

/* Wait until the loop's number differs from `seen`; false: the pool stops. */
static bool await_loop(struct kva_pool *pool, uint32_t seen)
{
    for (uint32_t i = 0; i < pool->spin_pauses; i++) {
        if (loop_number(atomic_load_explicit(&pool->loop.ticket, memory_order_acquire)) != seen)
            return true;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (loop_number(atomic_load(&pool->loop.ticket)) == seen && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->work, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
    return !atomic_load(&pool->stop);
}

static void *worker_main(void *opaque)
{
    struct worker *worker = opaque;
    struct kva_pool *pool = worker->pool;
    uint32_t seen = 0;
    while (await_loop(pool, seen)) {
        seen = loop_number(atomic_load_explicit(&pool->loop.ticket, memory_order_acquire));
        run_items(pool, worker->index);
    }
    return NULL;
}

static void await_done(struct kva_pool *pool, uint32_t count)
{
    for (uint32_t i = 0; i < pool->spin_pauses; i++) {
        if (atomic_load_explicit(&pool->done, memory_order_acquire) == count)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, true);
    while (atomic_load(&pool->done) != count)
        pthread_cond_wait(&pool->idle, &pool->mutex);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->mutex);
}

void kva_pool_run(struct kva_pool *pool, uint32_t count, kva_pool_fn *fn, void *opaque)
{
    if (pool->worker_count == 0 || count <= 1) {
        for (uint32_t i = 0; i < count; i++)
            fn(opaque, i, 0);
        return;
    }
    uint64_t last = atomic_load_explicit(&pool->loop.ticket, memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->loop.fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->loop.opaque, opaque, memory_order_relaxed);
    atomic_store_explicit(&pool->loop.count, count, memory_order_relaxed);
    /* Number 0 is what a worker has seen before its first loop, so it is passed over. */
    uint32_t number = loop_number(last) + 1;
    atomic_store(&pool->loop.ticket, (uint64_t)(number ? number : 1) << 32 | count);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->mutex);
    }
    run_items(pool, 0);
    await_done(pool, count);
}

enum kva_status kva_pool_create(uint32_t threads, struct kva_pool **ret, struct kva_err *err)
{
    if (threads == 0 || threads > KVA_POOL_THREADS_MAX)
        return kva_fail_param(err, KVA_EINVAL, "threads",
                              "%u compute threads: must be between 1 and %u", threads,
                              KVA_POOL_THREADS_MAX);
    struct kva_pool *pool = aligned_alloc(KVA_CACHE_LINE, sizeof *pool);
    if (!pool)
        return kva_fail(err, KVA_ENOMEM, "no memory for a thread pool");
    *pool = (struct kva_pool){.threads = threads};
    pool->spin_pauses = threads <= kva_pool_usable_cores() ? SPIN_PAUSES : 0;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->idle, NULL);
    pool->workers = calloc(threads, sizeof *pool->workers);
    if (!pool->workers)
        goto fail;
    for (uint32_t i = 0; i + 1 < threads; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i + 1;
        if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0)
            goto fail;
        pool->worker_count++;
    }
    *ret = pool;
    return KVA_OK;

fail:
    kva_pool_destroy(pool);
    return kva_fail(err, KVA_ENOMEM, "cannot start %u compute threads", threads);
}

void kva_pool_destroy(struct kva_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    /* Ends the spinning of workers that are not asleep. No item is left in the loop. */
    uint64_t last = atomic_load(&pool->loop.ticket);
    atomic_store(&pool->loop.ticket, (uint64_t)(loop_number(last) + 1) << 32);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->worker_count; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->idle);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->workers);
    free(pool);
}

uint32_t kva_pool_threads(const struct kva_pool *pool)
{
    return pool->threads;
}

uint32_t kva_pool_usable_cores(void)
{
    cpu_set_t set;
    uint32_t cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = kva_max_u32(1, (uint32_t)CPU_COUNT(&set));
    struct kva_cgroup cgroup;
    kva_cgroup_read("", &cgroup);
    if (cgroup.cores > 0 && cgroup.cores < cores)
        cores = (uint32_t)cgroup.cores + (cgroup.cores > (uint32_t)cgroup.cores);
    return kva_min_u32(cores, KVA_POOL_THREADS_MAX);
}
