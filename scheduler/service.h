/* service.h - a scheduler on a thread of its own: the only thing the server talks to.
 *
 * Requests and cancellations go in through one bounded queue, outputs come back through another,
 * and the receiver is woken at most once per step. No lock is held while a step runs.
 *
 * Thread rule: submit, cancel, nudge, get_stats, get_view: any thread. poll: one thread (the event loop).
 * `wake` is called on the engine thread and must only signal (write an eventfd). The scheduler's
 * clock is read on any thread. */
#ifndef KVA_SCHEDULER_SERVICE_H
#define KVA_SCHEDULER_SERVICE_H

#include "scheduler/scheduler.h"

struct kva_service;

/* What goes on beside requests on the engine thread: loans of a cluster. */
struct kva_service_beside {
    void *opaque;
    /* Before every step, and before every rest; returns when it wants to be called again at the
     * latest, on the scheduler's clock; 0: it does not mind. */
    uint64_t (*between_steps)(void *opaque, struct kva_scheduler *scheduler);
    /* While the service drains, behind every between_steps: others are told that it will be gone.
     * True: none of them needs it any more. NULL: nobody does. */
    bool (*leave)(void *opaque);
    /* After the last step, before the scheduler is destroyed. */
    void (*end)(void *opaque);
};

struct kva_service_params {
    struct kva_scheduler_params scheduler; /* on_output and opaque are the service's own */
    void (*wake)(void *opaque);            /* outputs are ready to be polled */
    void *wake_opaque;
    /* Called on the engine thread with wake_opaque, before its first step and after its last:
     * per-thread set-up. May be NULL. */
    void (*thread_begin)(void *opaque);
    void (*thread_end)(void *opaque);
    const struct kva_service_beside *beside; /* borrowed; NULL: nothing */
    /* The engine pauses while more than this waits to be polled; 0: KVA_SERVICE_OUTPUT_BYTES. */
    size_t output_bytes_max;
};

#define KVA_SERVICE_OUTPUT_BYTES (64u << 20)

/* Entries of the live view. */
#define KVA_SERVICE_VIEWS_MAX 1024u

KVA_MUST_CHECK enum kva_status kva_service_start(const struct kva_service_params *params,
                                                 struct kva_service **ret, struct kva_err *err);

/* Queue requests, all or none: the prompts of one batch. Fails as kva_scheduler_submit does, and
 * with KVA_EBUSY while draining, KVA_EDEVICE after the device failed; on failure all stay the
 * caller's. */
KVA_MUST_CHECK enum kva_status kva_service_submit(struct kva_service *service,
                                                  struct kva_request *const *requests,
                                                  uint32_t count, struct kva_err *err);

void kva_service_cancel(struct kva_service *service, uint64_t request_id, uint32_t choice,
                        enum kva_finish_reason reason);

/* Call between_steps soon, also if nothing runs. Any thread. */
void kva_service_nudge(struct kva_service *service);

/* Hand over everything that is ready, in order, through `fn`, on the caller's thread; returns how
 * many. */
size_t kva_service_poll(struct kva_service *service, kva_output_fn fn, void *opaque);

/* Stats: as of the end of the last step, and submissions since. The view costs more to make, so it
 * is as of some step of the last KVA_SERVICE_VIEW_NS, or the last one if nothing runs; at most
 * KVA_SERVICE_VIEWS_MAX choices. */
#define KVA_SERVICE_VIEW_NS (100u * 1000 * 1000)
uint32_t kva_service_waiting_max(const struct kva_service *service); /* constant */
void kva_service_get_stats(struct kva_service *service, struct kva_scheduler_stats *ret);
uint32_t kva_service_get_view(struct kva_service *service, struct kva_choice_view *views,
                              uint32_t max);

/* Refuse new requests; running and queued ones go on. What goes on beside them is told. */
void kva_service_drain(struct kva_service *service);

/* It drains, and what goes on beside requests is needed by nobody any more, of which `wake` tells; or
 * the engine has failed, and is of no use to anybody. */
bool kva_service_left(struct kva_service *service);

/* Nothing queued, running or unpolled. */
bool kva_service_idle(struct kva_service *service);

/* KVA_OK, or what failed the engine. */
enum kva_status kva_service_error(struct kva_service *service, struct kva_err *err);

/* Stop after the current step, end everything, join the thread, free. NULL is allowed. */
void kva_service_stop(struct kva_service *service);

#endif
