/* internal.h - what the scheduler's own files share. Not for other modules.
 *
 * Terms: a request has one or more choices, each of them one sequence of the engine. The group is
 * the scheduler's record of a request. A choice is at any time in exactly one place:
 *
 *     siblings of its group      SIBLING    waits until another choice of the group has prefilled
 *     heap `waiting`             WAITING    no memory yet
 *     list `prefill`   \  heap   PREFILL    has device memory, prompt unfinished
 *     list `decode`    / victims DECODE     has device memory, one token per step
 *     heap `suspended`           SUSPENDED  device memory given back, host memory kept
 *     list `stranded`            STRANDED   the same, and the device could not hold it even alone:
 *                                           it waits for other instances to hold a part
 *
 * The heaps are the tenant's. Between tenants the price of a slot decides (tenant.c); within one, a
 * total order rules admission, resumption and (reversed) preemption: (aged priority, arrival). Two
 * priorities age at the same rate, so that the order of two choices never changes: the key
 * priority * aging_ns + submitted_ns is computed once.
 *
 * Why everything ends. No step is empty while something runs: preemption needs two that run and
 * leaves one, which is in the step or ends with an error. A preemption undoes no work, so every
 * step brings what is live nearer to its end. Why nobody is forgotten: of a tenant that waits the
 * virtual time stands still while that of the others grows, and none is ahead of it by more than a
 * few slots, so that its next slot becomes cheaper than any other's last; within the tenant its
 * turn goes to the first of its live choices, which is never preempted for another of the tenant,
 * and only finitely many choices ever come before one in the order. With one tenant, the first of
 * all live choices is never preempted.
 *
 * Who is stranded holds up nobody, and loses no place: once enough of it is lent it is among the
 * suspended ones, in the order that it always had, and others come behind it. */
#ifndef KVA_SCHEDULER_INTERNAL_H
#define KVA_SCHEDULER_INTERNAL_H

#include "base/heap.h"
#include "base/id_table.h"
#include "base/list.h"
#include "scheduler/scheduler.h"

#define KVA_SCHEDULER_QUEUE_MAX (1u << 20) /* of waiting_max and sequences_max */

enum kva_choice_state {
    KVA_CHOICE_SIBLING,
    KVA_CHOICE_WAITING,
    KVA_CHOICE_PREFILL,
    KVA_CHOICE_DECODE,
    KVA_CHOICE_SUSPENDED,
    KVA_CHOICE_STRANDED,
    KVA_CHOICE_ENDED,
};

struct kva_group;

/* Tokens that a slot is worth: two tenants that share one slot take turns of about this many. */
#define KVA_TENANT_QUANTUM 512u

/* While prompts wait, prefills under way leave them this part of the quota, so that short ones need
 * not wait for a long one's end. */
#define KVA_SHORT_PROMPT_DIVISOR 4u

/* Whoever has live choices; remembered for a while after. */
struct kva_tenant {
    struct kva_id_node id_node;
    struct kva_list link;      /* of `tenants` or `idle_tenants` */
    struct kva_heap waiting;   /* choices without memory, first on top */
    struct kva_heap suspended; /* preempted ones, first on top */
    struct kva_heap victims;   /* running ones, reversed: the last on top */
    uint64_t served;           /* virtual time: tokens computed over weight, scaled */
    uint64_t take_step;        /* nothing is taken from others for it before this step */
    uint32_t weight;
    uint32_t running_max; /* 0: none */
    uint32_t choices;     /* live */
    uint32_t running;
    uint32_t suspended_prefills;
    uint32_t stranded;
    bool wants_more; /* after the last step */
    /* In the step being planned. */
    uint32_t step_tokens;
    uint32_t reserved;        /* slots that are left to its waiting choices */
    uint32_t passed;          /* waiting choices that did not fit */
    uint32_t passed_prefills; /* others that wait for their turn to prefill */
    uint32_t unfinished;      /* prefills that will be unfinished after the step */
    uint32_t prefill_wanted;
    uint32_t prefill_share;
};

/* Members that every decode step touches come first. */
struct kva_choice {
    struct kva_list run; /* of `prefill`, `decode` or `stranded`; WAITING: of admit.c */
    struct kva_sequence *seq;
    uint64_t planned_step; /* the step that it was last planned for */
    uint32_t item_index;   /* its item in that step; UINT32_MAX: none */
    enum kva_choice_state state;
    uint32_t output_tokens;
    uint32_t output_tokens_max;
    uint32_t prompt_tokens;
    uint32_t prefill_tokens; /* the prompt, or all that there was when it was put back to waiting */
    uint32_t stop_id_count;
    const uint32_t *stop_ids;
    uint64_t request_id;
    uint32_t index; /* within the request */
    uint32_t preemptions;
    uint32_t restarts;
    uint64_t entered_ns;  /* when it was admitted last */
    uint64_t stranded_ns; /* STRANDED: since when, less the following */
    uint64_t waited_ns;   /* as STRANDED before, since its last token */
    struct kva_choice_times times;

    struct kva_group *group;
    struct kva_tenant *tenant;
    struct kva_heap_node order; /* of the tenant's `waiting`, `suspended` or `victims` */
    struct kva_list age;        /* of `live` */
    int64_t key;
    uint64_t arrival;
    uint32_t cached_tokens;
    uint32_t found_tokens;  /* WAITING: of its prefill in the cache, when that was looked at last */
    uint64_t look_step;     /* from when on it is looked at again; 0: it was not */
    uint32_t prefill_done;  /* tokens' worth, cached ones not included */
    uint32_t prefill_quota; /* in the step being planned */
    uint32_t bypassed; /* choices admitted ahead of it while it was the first that did not fit */
    uint64_t device_bytes; /* held when it was suspended */
    uint64_t growth_bytes; /* by which it grows (engine.h) */
    bool progress_sent;
    bool prefill_resumes; /* SUSPENDED: prefill is unfinished */
};

struct kva_group {
    struct kva_id_node id_node;
    struct kva_heap_node deadline;
    struct kva_request *request;
    struct kva_sampling_params sibling_sampling; /* without prompt_logprobs: choice 0 has them */
    uint32_t live;                               /* choices that have not ended */
    uint32_t siblings;                           /* of them: in state SIBLING */
    bool has_deadline;
    bool admitted; /* one of its choices was, once */
    struct kva_choice choices[];
};

/* What a step is being made of. */
struct kva_step_plan {
    uint32_t rows;          /* decode rows + prefill tokens so far */
    uint32_t prefill_quota; /* prefill tokens that this step may have */
    uint32_t prefill_used;
    uint32_t unfinished; /* prefills that will be unfinished after the step */
    uint32_t reserved;   /* slots, of all tenants */
    bool places_closed;  /* somebody waits to prefill: nobody later takes a place */
    bool preempted;
};

struct kva_scheduler {
    struct kva_scheduler_params params;
    const struct kva_engine_ops *ops;
    void *engine_self;
    uint32_t step_tokens_max;
    uint32_t sequences_max;

    struct kva_id_table groups;
    struct kva_list live; /* all choices, oldest first */
    struct kva_heap deadlines;
    struct kva_id_table tenants_by_id;
    struct kva_list tenants; /* with live choices */
    struct kva_list idle_tenants;
    uint64_t virtual_time;    /* of the tenant that is behind, as of the last step */
    uint32_t waiting_count;   /* choices in the tenants' heaps */
    uint32_t suspended_count; /* likewise */
    struct kva_list prefill;
    struct kva_list decode;
    struct kva_list stranded;
    uint32_t stranded_count;
    uint32_t prefill_count;
    uint32_t decode_count;
    uint32_t sibling_count;
    uint32_t suspended_prefills; /* suspended choices whose prefill is unfinished */
    uint64_t arrivals;
    uint64_t step_serial;

    struct kva_step_item *items;
    struct kva_choice **owners; /* of items */
    uint32_t item_count;
    uint32_t item_max;

    struct kva_scheduler_pace pace;

    uint64_t running_growth_bytes;    /* sum of running choices */
    struct kva_engine_usage usage;    /* as of the last refresh */
    enum kva_wait_reason wait_reason; /* why the first waiting choice waits */
    uint64_t stuck_since_ns;          /* nothing runs, nothing can be admitted; 0: not so */
    enum kva_status device_status;
    struct kva_err device_err;
    struct kva_scheduler_stats stats; /* counters only */
};

/* --- choice.c: how a choice changes place ------------------------------------------------- */

void kva_choice_enter_waiting(struct kva_scheduler *s, struct kva_choice *c);
void kva_choice_leave_waiting(struct kva_scheduler *s, struct kva_choice *c);
void kva_choice_leave_suspended(struct kva_scheduler *s, struct kva_choice *c);
void kva_choice_enter_running(struct kva_scheduler *s, struct kva_choice *c, bool decode);
void kva_choice_prefill_finished(struct kva_scheduler *s, struct kva_choice *c);
void kva_choice_suspend(struct kva_scheduler *s, struct kva_choice *c);

/* A running choice whose sequence is as after suspend (engine.h: parked). */
void kva_choice_park(struct kva_scheduler *s, struct kva_choice *c);

/* Device bytes that a suspended choice takes to go on, less those that others have of them now;
 * whether all with which a choice that has a sequence goes on is more than the device will ever
 * have. */
struct kva_shared_bytes kva_choice_shared_bytes(const struct kva_scheduler *s,
                                                const struct kva_choice *c);
uint64_t kva_choice_resume_bytes(const struct kva_scheduler *s, const struct kva_choice *c);
bool kva_choice_outgrew(const struct kva_scheduler *s, const struct kva_choice *c);

/* Of a suspended one that has outgrown the device, and of those of which enough is lent by now. Ends
 * those that have waited for too long. */
void kva_choice_strand(struct kva_scheduler *s, struct kva_choice *c);
void kva_scheduler_unstrand(struct kva_scheduler *s, uint64_t now_ns);

/* A running choice whose KV is lost waits again, in the place that it had in the order. It ends with
 * an error if the engine cannot put it back. */
void kva_choice_restart(struct kva_scheduler *s, struct kva_choice *c, uint64_t now_ns);

/* Emit END, give everything back; frees the group with its last choice. */
void kva_choice_end(struct kva_scheduler *s, struct kva_choice *c, enum kva_finish_reason reason,
                    enum kva_status status, uint32_t stop_token, uint64_t now_ns);
void kva_group_end(struct kva_scheduler *s, struct kva_group *group, enum kva_finish_reason reason,
                   enum kva_status status, uint64_t now_ns);
void kva_scheduler_end_all(struct kva_scheduler *s, enum kva_status status, uint64_t now_ns);

/* Free a group that is in no table, its sequences and its request. */
void kva_group_free(struct kva_scheduler *s, struct kva_group *group);

/* Put an event of `c` together and hand it out. */
void kva_choice_emit_token(struct kva_scheduler *s, struct kva_choice *c,
                           const struct kva_token_output *token, uint64_t now_ns);
void kva_choice_emit_progress(struct kva_scheduler *s, struct kva_choice *c, uint64_t now_ns);
void kva_choice_emit_pooled(struct kva_scheduler *s, struct kva_choice *c, uint64_t now_ns);
void kva_choice_emit_prompt_logprobs(struct kva_scheduler *s, struct kva_choice *c,
                                     uint64_t now_ns);

/* --- tenant.c ------------------------------------------------------------------------------ */

/* The request's tenant, with room for its choices. NULL: out of memory. */
struct kva_tenant *kva_tenant_enter(struct kva_scheduler *s,
                                    const struct kva_request *request) KVA_MUST_CHECK;
/* `choices` of them have ended. */
void kva_tenant_leave(struct kva_scheduler *s, struct kva_tenant *t, uint32_t choices);
void kva_tenants_finish(struct kva_scheduler *s);

/* Whether no further choice of it may be admitted. */
bool kva_tenant_capped(const struct kva_tenant *t);

/* Whose next slot is the cheapest, of those with suspended choices, and with waiting ones that may
 * be admitted if `waiting_too`. NULL: there is none. */
struct kva_tenant *kva_tenant_cheapest(struct kva_scheduler *s, bool waiting_too);

/* Who goes when memory runs out; something runs. */
struct kva_choice *kva_tenants_victim(const struct kva_scheduler *s);

/* Whether another tenant has a slot that is this one's by right. */
bool kva_tenant_may_take(const struct kva_scheduler *s, const struct kva_tenant *t);

/* Take one slot from the tenant that has the dearest: its last choice is suspended. `missing_bytes`
 * of device memory are wanted, 0: only the slot is. False: there is none to be taken, or all of
 * them together would not do. */
bool kva_tenant_take(struct kva_scheduler *s, struct kva_step_plan *plan, struct kva_tenant *t,
                     uint64_t missing_bytes, uint64_t now_ns);

/* After a step: what it has computed is charged. */
void kva_tenants_charge(struct kva_scheduler *s);

/* Share a step's prompt tokens among tenants, as prefill_wanted says into prefill_share. */
void kva_tenants_share(struct kva_scheduler *s, uint32_t tokens);

/* --- step.c -------------------------------------------------------------------------------- */

/* Suspend a running choice, and take it out of the step if it is in it. */
void kva_step_preempt(struct kva_scheduler *s, struct kva_step_plan *plan, struct kva_choice *c);

/* --- submit.c ------------------------------------------------------------------------------ */

/* Everything that can be said of a request from constants alone; any thread. */
KVA_MUST_CHECK enum kva_status kva_request_check(const struct kva_scheduler_params *params,
                                                 const struct kva_request *request,
                                                 struct kva_err *err);

/* When the group ends unless something happens before; 0: never. That is its deadline, or, as long
 * as none of its choices was admitted, the end of the time that it may wait. */
uint64_t kva_group_deadline_ns(const struct kva_scheduler *s, const struct kva_group *group);

/* Put the group into `deadlines`, if it has one. */
void kva_group_arm_deadline(struct kva_scheduler *s, struct kva_group *group);

/* --- admit.c ------------------------------------------------------------------------------- */

/* Slots that are a waiting choice's by right are left free and counted in `reserved`; with
 * `leftover`, they are not. */
void kva_scheduler_resume_suspended(struct kva_scheduler *s, struct kva_step_plan *plan,
                                    bool leftover, uint64_t now_ns);
void kva_scheduler_admit_waiting(struct kva_scheduler *s, struct kva_step_plan *plan,
                                 uint64_t now_ns);

/* --- helpers ------------------------------------------------------------------------------- */

static inline uint32_t kva_running_count(const struct kva_scheduler *s)
{
    return s->prefill_count + s->decode_count;
}

static inline uint32_t kva_waiting_count(const struct kva_scheduler *s)
{
    return s->waiting_count + s->sibling_count;
}

/* Tokens of its prefill whose work is still to be done: at least 1 until the engine has emitted a token. */
static inline uint32_t kva_prefill_left(const struct kva_choice *c)
{
    uint32_t done = c->cached_tokens + c->prefill_done;
    return done < c->prefill_tokens ? c->prefill_tokens - done : 1;
}

#endif
