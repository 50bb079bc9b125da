/* workers.h - threads for what would hold up the event loop: templates, tokenisation, JSON of large
 * bodies.
 *
 * Thread rule: submit and collect on the event loop; `run` of a job on a worker; `wake` is called
 * on a worker and must only signal. */
#ifndef KVA_SERVER_WORKER_WORKERS_H
#define KVA_SERVER_WORKER_WORKERS_H

#include "base/err.h"

struct kva_workers;

struct kva_job {
    void (*run)(struct kva_job *job);  /* on a worker */
    void (*done)(struct kva_job *job); /* on the thread that collects; may free the job */
    struct kva_job *next;              /* the pool's */
};

struct kva_workers_params {
    uint32_t threads;
    uint32_t jobs_max; /* waiting; more are refused */
    size_t stack_bytes;
    void (*wake)(void *opaque); /* jobs are ready to be collected */
    void *wake_opaque;
};

KVA_MUST_CHECK enum kva_status kva_workers_create(const struct kva_workers_params *params,
                                                  struct kva_workers **ret, struct kva_err *err);

/* Fails: KVA_EBUSY (err has both counts); the job stays the caller's. */
KVA_MUST_CHECK enum kva_status kva_workers_submit(struct kva_workers *pool, struct kva_job *job,
                                                  struct kva_err *err);

/* Call `done` of every finished job, in the order they finished. */
void kva_workers_collect(struct kva_workers *pool);

/* Lets running jobs end, then calls `done` of every job, run or not. NULL is allowed. */
void kva_workers_destroy(struct kva_workers *pool);

#endif
