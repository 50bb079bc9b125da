/* pool.h - a fixed set of threads that share loops.
 *
 * Thread rule: one thread at a time calls kva_pool_run; the caller takes part in the loop. Items
 * are handed out one by one from a counter, so which thread runs an item is not defined: items must
 * not depend on each other. A loop ends when its items have run, not when every thread has seen it:
 * a thread that is scheduled late is never waited for unless it holds an item. Threads without work
 * spin for a few microseconds and then sleep. */
#ifndef KVA_BASE_POOL_H
#define KVA_BASE_POOL_H

#include "base/err.h"

struct kva_pool;

/* Run item `index`; `worker` < thread count names the scratch memory that is this thread's alone
 * for the length of the call. */
typedef void kva_pool_fn(void *opaque, uint32_t index, uint32_t worker);

/* Threads beyond this are refused. */
#define KVA_POOL_THREADS_MAX 256u

/* A pool of `threads` threads, the caller included: 1 creates none. Fails: KVA_EINVAL (0 or more
 * than the maximum), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_pool_create(uint32_t threads, struct kva_pool **ret,
                                               struct kva_err *err);

/* NULL is allowed. */
void kva_pool_destroy(struct kva_pool *pool);

uint32_t kva_pool_threads(const struct kva_pool *pool);

/* Run items [0, count) and return when all of them have. */
void kva_pool_run(struct kva_pool *pool, uint32_t count, kva_pool_fn *fn, void *opaque);

/* Cores that this process may use: its affinity mask, and its cgroup's CPU quota rounded up. */
uint32_t kva_pool_usable_cores(void);

#endif
