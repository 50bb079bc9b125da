/* service_internal.h - what service.c (any thread) and service_thread.c (the engine thread) share.
 * Not for other modules.
 *
 * One mutex guards what both sides touch; it is held for a few pointer moves and copies, never
 * while a step runs or a callback is called. A request's entry carries the memory for its
 * cancellation and for its END events, so that neither can be lost when memory is short. */
#ifndef KVA_SCHEDULER_SERVICE_INTERNAL_H
#define KVA_SCHEDULER_SERVICE_INTERNAL_H

#include "base/id_table.h"
#include "base/list.h"
#include "scheduler/internal.h"
#include "scheduler/outbox.h"
#include "scheduler/service.h"

#include <pthread.h>

/* One live request. */
struct kva_service_entry {
    uint64_t id;
    uint32_t choices;

    /* Under the lock. */
    struct kva_id_node shared_node;
    struct kva_list submit_link;
    struct kva_list cancel_link;
    uint32_t ends_lent; /* END events in its own storage, not read yet */
    bool closed;        /* every choice has ended */

    /* Engine thread; `request` and `submit_link` pass to it with the command. */
    struct kva_request *request;
    struct kva_id_node engine_node;
    struct kva_list engine_link; /* of applying cancels, failing or ended ones */
    uint32_t live;

    unsigned char *cancel; /* [choices], under the lock: finish reason + 1 */
    unsigned char *apply;  /* [choices], engine thread's copy */
    unsigned char *failed; /* [choices], engine thread: 1 + tokens dropped; 0: nothing was lost */
    unsigned char *ends;   /* [choices][kva_service_end_bytes()] */
};

/* Whose an END in an entry's own storage is. */
struct kva_service_lent_end {
    struct kva_service *service;
    struct kva_service_entry *entry;
};

/* Storage of one END: its block, then the note of whose it is. */
static inline size_t kva_service_end_bytes(void)
{
    return kva_outbox_reserve_bytes() + kva_align_up(sizeof(struct kva_service_lent_end), 16);
}

struct kva_service {
    struct kva_service_params params;
    size_t output_bytes_max;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t work; /* commands, room in the outbox, or the end */
    struct kva_id_table entries;
    struct kva_list submits;
    struct kva_list cancels;
    uint32_t queued_choices;  /* in `submits` */
    uint32_t waiting_choices; /* in the scheduler, not fewer than there are */
    bool draining;
    bool left; /* draining, and needed by nobody beside */
    bool stopping;
    bool nudged;
    bool paused; /* the engine waits for the outbox to be polled */
    struct kva_outbox outbox;
    size_t polling_count; /* taken from the outbox, being handed over */
    bool wake_sent;       /* and not followed by a poll yet */
    enum kva_status status;
    struct kva_err err;
    struct kva_scheduler_stats stats;
    uint64_t rejected_queue_full;
    uint64_t rejected_budget;
    struct kva_choice_view *views;
    uint32_t view_count;

    /* Engine thread only. */
    struct kva_scheduler *scheduler;
    struct kva_id_table engine_entries;
    struct kva_list failing;
    struct kva_list ended;
    struct kva_outbox fresh; /* outputs of the current step */
    struct kva_scheduler_stats next_stats;
    struct kva_choice_view *next_views;
    uint32_t next_view_count;
    uint64_t view_ns;
    bool view_fresh;
};

/* The scheduler's callback; opaque is the service. */
void kva_service_on_output(void *opaque, const struct kva_output *output);

/* The engine thread; takes the service. */
void *kva_service_main(void *opaque);

void kva_service_entry_free(struct kva_service_entry *entry);

#endif
