/* queue.c - the copy queue: a ring of entries that one thread runs in order, each after its seeded
 * delay. */
#include "kernels/cpu/device/queue.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum entry_kind {
    ENTRY_COPY,
    ENTRY_CALL,
    ENTRY_MARK,
};

struct entry {
    enum entry_kind kind;
    union {
        struct {
            void *to;
            const void *from;
            size_t bytes;
        } copy;
        struct {
            kva_copy_queue_fn *fn;
            _Alignas(max_align_t) unsigned char args[KVA_COPY_QUEUE_ARGS_BYTES];
        } call;
        struct {
            _Atomic uint64_t *reached;
            uint64_t value;
        } mark;
    };
};

struct kva_copy_queue {
    pthread_mutex_t mutex; /* guards everything below but `delay_state` */
    pthread_cond_t filled; /* an entry was put in, or stop */
    pthread_cond_t ran;    /* entries have run */
    pthread_t thread;
    bool started;
    bool stop;
    uint64_t put; /* entries ever put in; entry i lies in entries[i % KVA_COPY_QUEUE_MAX] */
    uint64_t run; /* entries that have run */
    uint32_t delay_max_us;
    uint64_t delay_state; /* copy thread only */
    struct entry entries[KVA_COPY_QUEUE_MAX];
};

/* xorshift64*: uniform enough to shake an order. */
static uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1Dull;
}

static void delay(struct kva_copy_queue *queue)
{
    uint64_t us = (random_next(&queue->delay_state) >> 16) % (queue->delay_max_us + 1ull);
    struct timespec time = {.tv_sec = (time_t)(us / 1000000),
                            .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&time, NULL);
}

static void raise_mark(_Atomic uint64_t *reached, uint64_t value)
{
    /* A newer record on the compute queue may have raised it already: never lower it. */
    uint64_t old = atomic_load_explicit(reached, memory_order_relaxed);
    while (old < value && !atomic_compare_exchange_weak_explicit(
                              reached, &old, value, memory_order_release, memory_order_relaxed))
        continue;
}

static void run_entry(struct kva_copy_queue *queue, const struct entry *entry)
{
    if (queue->delay_max_us > 0 && entry->kind != ENTRY_MARK)
        delay(queue);
    switch (entry->kind) {
    case ENTRY_COPY:
        memcpy(entry->copy.to, entry->copy.from, entry->copy.bytes);
        break;
    case ENTRY_CALL:
        entry->call.fn(entry->call.args);
        break;
    case ENTRY_MARK:
        raise_mark(entry->mark.reached, entry->mark.value);
        break;
    }
}

static void *copy_main(void *opaque)
{
    struct kva_copy_queue *queue = opaque;
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        while (queue->run == queue->put && !queue->stop)
            pthread_cond_wait(&queue->filled, &queue->mutex);
        if (queue->run == queue->put)
            break;
        struct entry entry = queue->entries[queue->run % KVA_COPY_QUEUE_MAX];
        pthread_mutex_unlock(&queue->mutex);
        run_entry(queue, &entry);
        pthread_mutex_lock(&queue->mutex);
        queue->run++;
        /* Waiters wait for marks, for the end, or for room in a full queue. */
        if (entry.kind == ENTRY_MARK || queue->run == queue->put ||
            queue->put - queue->run >= KVA_COPY_QUEUE_MAX / 2)
            pthread_cond_broadcast(&queue->ran);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static void put(struct kva_copy_queue *queue, const struct entry *entry)
{
    pthread_mutex_lock(&queue->mutex);
    while (queue->put - queue->run == KVA_COPY_QUEUE_MAX)
        pthread_cond_wait(&queue->ran, &queue->mutex);
    queue->entries[queue->put % KVA_COPY_QUEUE_MAX] = *entry;
    if (queue->put++ == queue->run)
        pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->mutex);
}

void kva_copy_queue_copy(struct kva_copy_queue *queue, void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        put(queue, &(struct entry){.kind = ENTRY_COPY, .copy = {to, from, bytes}});
}

void kva_copy_queue_call(struct kva_copy_queue *queue, kva_copy_queue_fn *fn, const void *args,
                         size_t bytes)
{
    struct entry entry = {.kind = ENTRY_CALL, .call = {.fn = fn}};
    memcpy(entry.call.args, args, bytes);
    put(queue, &entry);
}

void kva_copy_queue_mark(struct kva_copy_queue *queue, _Atomic uint64_t *reached, uint64_t value)
{
    put(queue, &(struct entry){.kind = ENTRY_MARK, .mark = {reached, value}});
}

void kva_copy_queue_await(struct kva_copy_queue *queue, const _Atomic uint64_t *reached,
                          uint64_t value)
{
    if (atomic_load_explicit(reached, memory_order_acquire) >= value)
        return;
    pthread_mutex_lock(&queue->mutex);
    while (atomic_load_explicit(reached, memory_order_acquire) < value)
        pthread_cond_wait(&queue->ran, &queue->mutex);
    pthread_mutex_unlock(&queue->mutex);
}

void kva_copy_queue_drain(struct kva_copy_queue *queue)
{
    pthread_mutex_lock(&queue->mutex);
    while (queue->run != queue->put)
        pthread_cond_wait(&queue->ran, &queue->mutex);
    pthread_mutex_unlock(&queue->mutex);
}

enum kva_status kva_copy_queue_create(uint32_t delay_max_us, uint64_t delay_seed,
                                      struct kva_copy_queue **ret, struct kva_err *err)
{
    struct kva_copy_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return kva_fail(err, KVA_ENOMEM, "no memory for the copy queue (%zu bytes)", sizeof *queue);
    queue->delay_max_us = delay_max_us;
    queue->delay_state = delay_seed ? delay_seed : 0x9E3779B97F4A7C15ull;
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->filled, NULL);
    pthread_cond_init(&queue->ran, NULL);
    if (pthread_create(&queue->thread, NULL, copy_main, queue) != 0) {
        kva_copy_queue_destroy(queue);
        return kva_fail(err, KVA_ENOMEM, "cannot start the copy thread");
    }
    queue->started = true;
    *ret = queue;
    return KVA_OK;
}

void kva_copy_queue_destroy(struct kva_copy_queue *queue)
{
    if (!queue)
        return;
    if (queue->started) {
        pthread_mutex_lock(&queue->mutex);
        queue->stop = true;
        pthread_cond_signal(&queue->filled);
        pthread_mutex_unlock(&queue->mutex);
        pthread_join(queue->thread, NULL);
    }
    pthread_cond_destroy(&queue->ran);
    pthread_cond_destroy(&queue->filled);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
}
