/* queue.h - the copy queue of the CPU device: a thread of its own that runs copies, and calls that
 * copy, in order.
 *
 * Thread rule: one thread, the engine's, puts work in; kva_copy_queue_reached and
 * kva_copy_queue_await may be called from any thread. A full queue blocks the caller: nothing is
 * allocated per copy. */
#ifndef KVA_KERNELS_CPU_DEVICE_QUEUE_H
#define KVA_KERNELS_CPU_DEVICE_QUEUE_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>

struct kva_copy_queue;

/* Copies, calls and marks that wait at most; one more blocks until one has run. */
#define KVA_COPY_QUEUE_MAX 4096u

/* `delay_max_us` > 0: before each copy or call, sleep a random time up to this. */
KVA_MUST_CHECK enum kva_status kva_copy_queue_create(uint32_t delay_max_us, uint64_t delay_seed,
                                                     struct kva_copy_queue **ret,
                                                     struct kva_err *err);

/* Runs what is left, then frees. NULL is allowed. */
void kva_copy_queue_destroy(struct kva_copy_queue *queue);

void kva_copy_queue_copy(struct kva_copy_queue *queue, void *to, const void *from, size_t bytes);

/* Arguments of a call at most. */
#define KVA_COPY_QUEUE_ARGS_BYTES 128u

typedef void kva_copy_queue_fn(const void *args);

/* Call fn with a copy of `args`; bytes <= KVA_COPY_QUEUE_ARGS_BYTES. */
void kva_copy_queue_call(struct kva_copy_queue *queue, kva_copy_queue_fn *fn, const void *args,
                         size_t bytes);

/* Once everything put in so far has run, *reached becomes `value` if it is smaller. */
void kva_copy_queue_mark(struct kva_copy_queue *queue, _Atomic uint64_t *reached, uint64_t value);

/* Block until *reached, which a mark of this queue raises, is at least `value`. */
void kva_copy_queue_await(struct kva_copy_queue *queue, const _Atomic uint64_t *reached,
                          uint64_t value);

/* Block until everything put in so far has run. */
void kva_copy_queue_drain(struct kva_copy_queue *queue);

#endif
