/* scheduler.h - requests -> sequences -> steps.
 *
 * Iteration-level continuous batching: at every step the scheduler decides which sequences decode
 * one token and how many prompt tokens of which sequences are prefilled, within the engine's token
 * limit and both byte budgets. It sees token counts, bytes and a clock, never a tensor or a string,
 * so that the real engine and a scripted one run the same code.
 *
 * Invariants, tested by simulation: no token is lost, repeated or reordered; no budget is exceeded;
 * every accepted request ends with exactly one KVA_OUTPUT_END per choice; waiting is bounded by
 * priority aging within a tenant and by shares between tenants; one tenant alone has everything.
 *
 * Thread rule: one thread (the engine thread, see service.h). */
#ifndef KVA_SCHEDULER_SCHEDULER_H
#define KVA_SCHEDULER_SCHEDULER_H

#include "base/arena.h"
#include "base/clock.h"
#include "base/histogram.h"
#include "engine/engine.h"

struct kva_scheduler;

/* One prompt and how to continue it. Lives in its own arena; submitting moves ownership to the
 * scheduler. */
struct kva_request {
    struct kva_arena arena; /* holds everything below, the request itself included */
    uint64_t id;            /* unique among live requests; chosen by the submitter */
    const uint32_t *prompt;
    uint32_t prompt_tokens;
    uint32_t output_tokens_max; /* prompt_tokens + output_tokens_max <= context_max */
    uint32_t choices;           /* n (or best_of) continuations of the same prompt, >= 1 */
    int32_t priority;           /* smaller runs first; aging prevents starvation */
    /* Whose it is. Tenants share slots, memory and steps by weight; tenant 0 is everybody who has
     * no other. */
    uint64_t tenant;
    uint32_t tenant_weight;      /* 1 to KVA_TENANT_WEIGHT_MAX; 0: 1 */
    uint32_t tenant_running_max; /* of its choices, suspended ones included; 0: no limit */
    bool patient;                /* waiting_time_ns does not hold for it */
    uint64_t deadline_ns;        /* on the scheduler's clock; 0: none */
    uint64_t submitted_ns;
    uint64_t cache_scope[2];
    bool cache_disabled;
    enum kva_pooling pooling; /* if any: one choice, no tokens, and output_tokens_max is 1 */
    struct kva_sampling_params sampling;
    struct kva_kv_spec kv;
};

#define KVA_TENANT_WEIGHT_MAX 1000u

/* A zeroed request in an arena of its own with this limit; NULL: out of memory. What is destroyed
 * releases its sampling.constraint. */
struct kva_request *kva_request_create(size_t arena_limit_bytes) KVA_MUST_CHECK;
void kva_request_destroy(struct kva_request *request);

enum kva_finish_reason {
    KVA_FINISH_STOP,   /* a stop id was sampled: the model's EOS or one of the request's; or the
                          prompt's vector is there */
    KVA_FINISH_LENGTH, /* output_tokens_max reached */
    KVA_FINISH_CANCELLED,
    KVA_FINISH_DEADLINE,
    KVA_FINISH_ERROR,
    KVA_FINISH_COUNT,
};

enum kva_output_kind {
    KVA_OUTPUT_PROGRESS,        /* prefill progress */
    KVA_OUTPUT_PROMPT_LOGPROBS, /* once, before the first token of choice 0, if asked for */
    KVA_OUTPUT_TOKEN,
    KVA_OUTPUT_POOLED, /* once, if a vector was asked for */
    KVA_OUTPUT_END,    /* the last event of a choice */
};

/* Points in a choice's life on the scheduler's clock; 0: not reached. */
struct kva_choice_times {
    uint64_t submitted_ns;
    uint64_t admitted_ns;
    uint64_t first_token_ns;
    uint64_t last_token_ns;
    uint64_t ended_ns;
};

struct kva_output {
    uint64_t request_id;
    uint32_t choice;
    enum kva_output_kind kind;
    uint64_t time_ns;
    union {
        struct {
            uint32_t done_tokens; /* of the prompt, cached ones included */
            uint32_t total_tokens;
        } progress;
        struct kva_token_output token;
        struct {
            const struct kva_prompt_logprob *entries; /* valid during the callback */
            uint32_t count;                           /* prompt_tokens - 1 */
        } prompt_logprobs;
        struct {
            const float *values; /* valid during the callback */
            uint32_t count;
        } pooled;
        struct {
            enum kva_finish_reason reason;
            enum kva_status status; /* KVA_FINISH_ERROR: why */
            uint32_t
                stop_token; /* KVA_FINISH_STOP: the id that ended it, also its last token event */
            uint32_t output_tokens;
            uint32_t preemptions;
            struct kva_choice_times times;
            struct kva_sequence_info info; /* at the end, before its memory was given back */
        } end;
    };
};

typedef void (*kva_output_fn)(void *opaque, const struct kva_output *output);

/* Tokens that prompts may have in any step, whatever it costs. */
#define KVA_PREFILL_TOKENS_MIN 16u

/* Choices that may overtake one for which there is no memory, and how far behind it they are looked
 * for. Prompts that a step has room for overtake any number of times those that wait for
 * partial_prefills_max, and are looked for behind so many of them (of a tenant, if it is alone). */
#define KVA_BYPASS_MAX           32u
#define KVA_BYPASS_DEPTH         8u
#define KVA_BYPASS_PREFILL_DEPTH 64u

struct kva_scheduler_params {
    struct kva_engine *engine;
    const struct kva_clock *clock;
    uint32_t running_max;       /* sequences in a step, <= engine's sequences_max */
    uint32_t waiting_max;       /* choices waiting for their first admission; more are refused */
    uint32_t step_tokens_max;   /* decode rows + prefill tokens of a step, <= engine's */
    uint32_t prefill_share_pct; /* of the step's tokens that prefill may take while others decode:
                                   running streams keep their rhythm; 1..100 */
    /* A step in which streams decode should take no longer: prompts get the rest, estimated from
     * the cost of recent steps, and at least KVA_PREFILL_TOKENS_MIN tokens. 0: no such aim. */
    uint64_t step_time_ns;
    /* A request none of whose choices has been admitted so long after it was submitted ends with
     * KVA_FINISH_ERROR and KVA_EQUEUETIME: under more load than there is capacity for, those that
     * are served are served in time. 0: they wait as long as it takes. */
    uint64_t waiting_time_ns;
    /* A choice that is longer than the device tier waits, once its prompt is in, for other instances
     * to hold the rest of it; where that takes so long, in all since its last token, it ends with
     * KVA_FINISH_ERROR and KVA_ELIMIT. 0: it waits as long as it takes. */
    uint64_t lending_time_ns;
    uint64_t aging_ns;       /* one priority level is gained per this long in the queue; 0: none,
                                strict priorities */
    kva_output_fn on_output; /* called within cancel and step; must not call the scheduler */
    void *opaque;
};

enum kva_wait_reason {
    KVA_WAIT_BATCH_FULL, /* running_max */
    KVA_WAIT_DEVICE_BYTES,
    KVA_WAIT_HOST_BYTES,
    KVA_WAIT_PREFILL, /* partial_prefills_max */
    KVA_WAIT_SIBLING, /* for the prompt that another choice is prefilling */
    KVA_WAIT_TENANT,  /* tenant_running_max of all that wait */
    KVA_WAIT_REASON_COUNT,
};

struct kva_scheduler_stats {
    uint32_t running;                                  /* choices with device memory */
    uint32_t suspended;                                /* waiting to resume, or to be lent */
    uint32_t waiting;                                  /* not admitted yet */
    uint32_t waiting_by_reason[KVA_WAIT_REASON_COUNT]; /* why each waits, as of the last step */
    uint64_t preemptions;                              /* counters since start */
    uint64_t restarts; /* choices whose KV was lost, and computed again */
    uint64_t rejected_queue_full;
    uint64_t rejected_budget;
    uint64_t rejected_queue_time; /* requests that were not admitted in waiting_time_ns */
    uint64_t finished[KVA_FINISH_COUNT];
    uint64_t prompt_tokens_computed;
    uint64_t prompt_tokens_cached; /* what a choice finds that is computed again apart */
    uint64_t output_tokens;
    uint64_t steps;
    uint64_t step_rows;                /* sum over steps of decode rows + prefill tokens */
    struct kva_histogram step_seconds; /* time of a step */
    struct kva_histogram rows_per_step;
    struct kva_engine_usage engine;
};

/* What steps take and requests bring, as running means over the last of them; 0: none yet. */
struct kva_scheduler_pace {
    uint64_t decode_steps;   /* steps without prompts, all there were */
    double decode_step_ns;   /* such a step */
    double decode_rows;      /* of it */
    double decode_tokens;    /* that its rows attended to, all together */
    double prefill_token_ns; /* what each token of a prompt adds to a step */
    double prompt_tokens;    /* computed for a choice that has ended */
    double output_tokens;    /* of it */
};

/* One choice in the live view. */
struct kva_choice_view {
    uint64_t request_id;
    uint32_t choice;
    const char *state; /* "waiting", "prefill", "decode", "suspended" */
    int32_t priority;
    uint32_t prompt_tokens;
    uint32_t prefilled_tokens;
    uint32_t output_tokens;
    uint32_t preemptions;
    uint64_t age_ns;
    struct kva_sequence_info info; /* zeros while waiting */
};

KVA_MUST_CHECK enum kva_status kva_scheduler_create(const struct kva_scheduler_params *params,
                                                    struct kva_scheduler **ret,
                                                    struct kva_err *err);

/* Destroys all requests without further events. NULL is allowed. */
void kva_scheduler_destroy(struct kva_scheduler *scheduler);

/* Queue a request; on success it is the scheduler's. Fails: KVA_EBUSY (queue full: err names both
 * counts), KVA_ELIMIT (could never fit the budgets), KVA_ECONTEXT (over context_max), KVA_EINVAL,
 * KVA_ENOMEM; the request stays the caller's. */
KVA_MUST_CHECK enum kva_status kva_scheduler_submit(struct kva_scheduler *scheduler,
                                                    struct kva_request *request,
                                                    struct kva_err *err);

#define KVA_ALL_CHOICES UINT32_MAX

/* End a request's choice (or all of them) now; unknown ids are ignored (it may just have ended).
 * `reason` is what its END event says: KVA_FINISH_CANCELLED, or KVA_FINISH_STOP where the server
 * found a stop string. */
void kva_scheduler_cancel(struct kva_scheduler *scheduler, uint64_t request_id, uint32_t choice,
                          enum kva_finish_reason reason);

/* Run one step if there is work. *ret_idle: nothing to do until something is submitted or until
 * *ret_wake_ns (the earliest deadline; 0: none). Fails: KVA_EDEVICE; every request has then ended
 * with an error. */
KVA_MUST_CHECK enum kva_status kva_scheduler_step(struct kva_scheduler *scheduler, bool *ret_idle,
                                                  uint64_t *ret_wake_ns, struct kva_err *err);

void kva_scheduler_get_stats(const struct kva_scheduler *scheduler,
                             struct kva_scheduler_stats *ret);

void kva_scheduler_get_pace(const struct kva_scheduler *scheduler, struct kva_scheduler_pace *ret);

/* What whoever places KV elsewhere wants to know of a choice. */
enum kva_choice_stage {
    KVA_STAGE_WAITING, /* without memory, siblings apart */
    KVA_STAGE_PREFILL,
    KVA_STAGE_DECODE, /* perhaps preempted */
};

struct kva_choice_place {
    uint64_t id;         /* of the choice: no other one of this scheduler has it, ever */
    uint32_t generation; /* grows whenever it is computed again */
    enum kva_choice_stage stage;
    uint32_t tokens; /* prompt and output */
    bool suspended;
    bool stranded;            /* likewise, and it goes on when enough of it is lent */
    struct kva_sequence *seq; /* the engine's own, until the next call of the scheduler */
};

/* Up to `max` live choices but siblings, oldest first; returns how many. */
uint32_t kva_scheduler_get_places(const struct kva_scheduler *scheduler,
                                  struct kva_choice_place *ret, uint32_t max);

/* False: it has ended, or is a sibling. */
bool kva_scheduler_find_place(const struct kva_scheduler *scheduler, uint64_t id,
                              struct kva_choice_place *ret);

/* Up to `max` live choices, oldest first; returns how many. */
uint32_t kva_scheduler_get_view(const struct kva_scheduler *scheduler,
                                struct kva_choice_view *views, uint32_t max);

#endif
