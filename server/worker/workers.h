/* workers.h - threads for what would hold up the event loop: templates, tokenisation, JSON of large
 * bodies.
 *
 * Jobs have owners, and owners take turns: the next job is of the owner whose jobs have had the
 * fewest bytes so far, whoever came first. An owner may have as many jobs waiting as there are
 * places free, so that others find room.
 *
 * Thread rule: submit, abandon and collect on the event loop; `run` of a job on a worker; `wake` is
 * called on a worker and must only signal. */
#ifndef KVA_SERVER_WORKER_WORKERS_H
#define KVA_SERVER_WORKER_WORKERS_H

#include "base/err.h"
#include "base/list.h"

#include <stdbool.h>

struct kva_workers;

struct kva_job {
    void (*run)(struct kva_job *job);  /* on a worker */
    void (*done)(struct kva_job *job); /* on the thread that collects; may free the job */
    uint64_t owner;                    /* 0: nobody in particular, who may fill all places */
    size_t bytes;                      /* what it is about, for the turns of owners */
    struct kva_list link;              /* the pool's, as is the next */
    bool waiting;
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

/* Fails: KVA_EBUSY (err has both counts), KVA_ENOMEM; the job stays the caller's. */
KVA_MUST_CHECK enum kva_status kva_workers_submit(struct kva_workers *pool, struct kva_job *job,
                                                  struct kva_err *err);

/* Nobody wants its result any more. True: it had not begun and never will, `done` is not called and
 * the job is the caller's. False: it runs or has run, and `done` will be called. */
bool kva_workers_abandon(struct kva_workers *pool, struct kva_job *job);

/* Call `done` of every finished job, in the order they finished. */
void kva_workers_collect(struct kva_workers *pool);

struct kva_workers_counts {
    uint64_t run;       /* jobs, begun since start */
    uint64_t abandoned; /* before they began */
    uint32_t waiting;
};
void kva_workers_get_counts(struct kva_workers *pool, struct kva_workers_counts *ret);

/* Lets running jobs end, then calls `done` of every job, run or not. NULL is allowed. */
void kva_workers_destroy(struct kva_workers *pool);

#endif
