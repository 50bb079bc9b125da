#include "server/worker/workers.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct list {
    struct kva_job *head, *tail;
    uint32_t count;
};

struct kva_workers {
    struct kva_workers_params params;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct list waiting;
    struct list finished;
    bool stopping;
    uint32_t started;
    pthread_t threads[];
};

static void push(struct list *list, struct kva_job *job)
{
    job->next = NULL;
    if (list->tail)
        list->tail->next = job;
    else
        list->head = job;
    list->tail = job;
    list->count++;
}

static struct kva_job *pop(struct list *list)
{
    struct kva_job *job = list->head;
    if (!job)
        return NULL;
    list->head = job->next;
    if (!list->head)
        list->tail = NULL;
    list->count--;
    return job;
}

static void *work(void *opaque)
{
    struct kva_workers *pool = opaque;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->waiting.head && !pool->stopping)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stopping)
            break;
        struct kva_job *job = pop(&pool->waiting);
        pthread_mutex_unlock(&pool->lock);
        job->run(job);
        pthread_mutex_lock(&pool->lock);
        push(&pool->finished, job);
        pthread_mutex_unlock(&pool->lock);
        pool->params.wake(pool->params.wake_opaque);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum kva_status kva_workers_create(const struct kva_workers_params *params,
                                   struct kva_workers **ret, struct kva_err *err)
{
    struct kva_workers *pool = calloc(1, sizeof(*pool) + params->threads * sizeof(pthread_t));
    if (!pool)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for workers.");
    pool->params = *params;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, params->stack_bytes);
    while (pool->started < params->threads &&
           pthread_create(&pool->threads[pool->started], &attr, work, pool) == 0)
        pool->started++;
    pthread_attr_destroy(&attr);
    if (pool->started < params->threads) {
        kva_workers_destroy(pool);
        return kva_fail(err, KVA_EIO, "Cannot start %u worker threads.", params->threads);
    }
    *ret = pool;
    return KVA_OK;
}

enum kva_status kva_workers_submit(struct kva_workers *pool, struct kva_job *job,
                                   struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    pthread_mutex_lock(&pool->lock);
    if (pool->waiting.count >= pool->params.jobs_max) {
        status = kva_fail(err, KVA_EBUSY,
                          "%u requests are waiting to be tokenised, limit is %u; retry later.",
                          pool->waiting.count, pool->params.jobs_max);
    } else {
        push(&pool->waiting, job);
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void kva_workers_collect(struct kva_workers *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct list ready = pool->finished;
    pool->finished = (struct list){NULL, NULL, 0};
    pthread_mutex_unlock(&pool->lock);
    struct kva_job *job;
    while ((job = pop(&ready)))
        job->done(job);
}

void kva_workers_destroy(struct kva_workers *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->started; i++)
        pthread_join(pool->threads[i], NULL);
    struct kva_job *job;
    while ((job = pop(&pool->waiting)))
        push(&pool->finished, job);
    kva_workers_collect(pool);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
