/* workers.c - the queue of jobs and its threads. */
#include "server/worker/workers.h"

#include <pthread.h>
#include <stdlib.h>

/* Who has jobs waiting, or had and is ahead of those who have. */
struct owner {
    struct kva_list link; /* of `owners` */
    struct kva_list jobs; /* oldest first */
    uint64_t id;
    uint64_t served; /* bytes of the jobs that were begun */
    uint32_t waiting;
};

struct kva_workers {
    struct kva_workers_params params;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct kva_list owners;
    struct kva_list finished;
    struct kva_workers_counts counts;
    uint64_t served; /* of the owner whose turn was last */
    bool stopping;
    uint32_t started;
    pthread_t threads[];
};

static struct owner *owner_at(struct kva_list *at)
{
    return KVA_CONTAINER_OF(at, struct owner, link);
}

static struct kva_job *job_at(struct kva_list *at)
{
    return KVA_CONTAINER_OF(at, struct kva_job, link);
}

/* Under the lock. Forgets those whose past does not count any more on the way. */
static struct owner *find_owner(struct kva_workers *pool, uint64_t id)
{
    struct owner *found = NULL;
    for (struct kva_list *at = pool->owners.next, *next; at != &pool->owners; at = next) {
        struct owner *owner = owner_at(at);
        next = at->next;
        if (owner->id == id) {
            found = owner;
        } else if (owner->waiting == 0 && owner->served <= pool->served) {
            kva_list_remove(&owner->link);
            free(owner);
        }
    }
    if (found)
        return found;
    found = calloc(1, sizeof(*found));
    if (!found)
        return NULL;
    found->id = id;
    kva_list_init(&found->link);
    kva_list_init(&found->jobs);
    kva_list_append(&pool->owners, &found->link);
    return found;
}

/* Under the lock: the oldest job of the owner who was served least. NULL: none waits. */
static struct kva_job *take(struct kva_workers *pool)
{
    struct owner *best = NULL;
    for (struct kva_list *at = pool->owners.next; at != &pool->owners; at = at->next) {
        struct owner *owner = owner_at(at);
        if (owner->waiting > 0 && (!best || owner->served < best->served))
            best = owner;
    }
    if (!best)
        return NULL;
    struct kva_job *job = job_at(best->jobs.next);
    kva_list_remove(&job->link);
    job->waiting = false;
    pool->served = best->served > pool->served ? best->served : pool->served;
    best->served += job->bytes + 1;
    best->waiting--;
    pool->counts.waiting--;
    return job;
}

static void *work(void *opaque)
{
    struct kva_workers *pool = opaque;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->counts.waiting == 0 && !pool->stopping)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stopping)
            break;
        struct kva_job *job = take(pool);
        pool->counts.run++;
        pthread_mutex_unlock(&pool->lock);
        job->run(job);
        pthread_mutex_lock(&pool->lock);
        kva_list_append(&pool->finished, &job->link);
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
    kva_list_init(&pool->owners);
    kva_list_init(&pool->finished);
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

/* Under the lock. */
static enum kva_status enqueue(struct kva_workers *pool, struct kva_job *job, struct kva_err *err)
{
    uint32_t limit = pool->params.jobs_max, waiting = pool->counts.waiting;
    if (waiting >= limit)
        return kva_fail(err, KVA_EBUSY,
                        "%u requests are waiting to be tokenised, limit is %u; retry later.",
                        waiting, limit);
    struct owner *owner = find_owner(pool, job->owner);
    if (!owner)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for a request.");
    if (owner->id != 0 && owner->waiting > 0 && owner->waiting >= limit - waiting)
        return kva_fail(err, KVA_EBUSY,
                        "%u requests of this key are waiting to be tokenised, and %u places are "
                        "left to others; retry later.",
                        owner->waiting, limit - waiting);
    if (owner->waiting == 0 && owner->served < pool->served)
        owner->served = pool->served;
    job->waiting = true;
    kva_list_append(&owner->jobs, &job->link);
    owner->waiting++;
    pool->counts.waiting++;
    pthread_cond_signal(&pool->work);
    return KVA_OK;
}

enum kva_status kva_workers_submit(struct kva_workers *pool, struct kva_job *job,
                                   struct kva_err *err)
{
    kva_list_init(&job->link);
    pthread_mutex_lock(&pool->lock);
    enum kva_status status = enqueue(pool, job, err);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

bool kva_workers_abandon(struct kva_workers *pool, struct kva_job *job)
{
    pthread_mutex_lock(&pool->lock);
    bool waiting = job->waiting;
    if (waiting) {
        struct owner *owner = find_owner(pool, job->owner);
        kva_list_remove(&job->link);
        job->waiting = false;
        owner->waiting--;
        pool->counts.waiting--;
        pool->counts.abandoned++;
    }
    pthread_mutex_unlock(&pool->lock);
    return waiting;
}

void kva_workers_collect(struct kva_workers *pool)
{
    struct kva_list ready;
    kva_list_init(&ready);
    pthread_mutex_lock(&pool->lock);
    kva_list_splice(&ready, &pool->finished);
    pthread_mutex_unlock(&pool->lock);
    while (!kva_list_empty(&ready)) {
        struct kva_job *job = job_at(ready.next);
        kva_list_remove(&job->link);
        job->done(job);
    }
}

void kva_workers_get_counts(struct kva_workers *pool, struct kva_workers_counts *ret)
{
    pthread_mutex_lock(&pool->lock);
    *ret = pool->counts;
    pthread_mutex_unlock(&pool->lock);
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
    while ((job = take(pool)))
        kva_list_append(&pool->finished, &job->link);
    kva_workers_collect(pool);
    while (!kva_list_empty(&pool->owners)) {
        struct owner *owner = owner_at(pool->owners.next);
        kva_list_remove(&owner->link);
        free(owner);
    }
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
