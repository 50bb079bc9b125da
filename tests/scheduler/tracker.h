/* tracker.h - makes requests for tests and checks every output against what it must be.
 *
 * The tracker knows each request that was submitted; an output that is lost, repeated, out of order
 * or wrong fails the test at once. Thread rule: one thread at a time. */
#ifndef KVA_TESTS_SCHEDULER_TRACKER_H
#define KVA_TESTS_SCHEDULER_TRACKER_H

#include "base/id_table.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/scripted_engine.h"

struct tracked_choice {
    uint32_t tokens;
    uint32_t progress_tokens; /* done_tokens of the last progress event */
    uint32_t progress_events;
    uint32_t logprob_events;
    uint32_t vectors;
    uint64_t first_token_ns;
    bool ended;
    bool stop_requested; /* cancelled with KVA_FINISH_STOP */
    bool cancel_requested;
    struct kva_output end;
};

struct tracked_request {
    struct kva_id_node node;
    uint32_t choices;
    uint32_t prompt_tokens;
    uint32_t output_tokens_max;
    uint64_t prompt_hash;
    enum kva_pooling pooling;
    uint64_t deadline_ns;
    uint64_t submitted_ns;
    bool accepted;
    uint32_t ended;
    uint32_t stop_ids[2];
    struct kva_sampling_params sampling;
    struct tracked_choice *choice; /* [choices] */
};

struct tracker {
    struct kva_id_table requests;
    uint32_t vocab;
    bool expect_errors;       /* failures are injected: KVA_FINISH_ERROR is in order */
    uint64_t waiting_time_ns; /* the scheduler's */
    bool foreign_tokens;      /* the engine has another token source: only counts are checked */
    uint64_t outputs;
    uint64_t tokens;
    uint64_t ends;
    uint64_t live; /* choices accepted and not ended */
    uint64_t by_reason[KVA_FINISH_COUNT];
};

struct request_spec {
    uint64_t id;
    uint32_t prompt_tokens;
    uint32_t prefix_tokens; /* of them: the same for every request with this prefix_seed */
    uint32_t prefix_seed;
    uint32_t output_tokens_max;
    uint32_t choices;
    int32_t priority;
    uint64_t tenant;
    uint32_t tenant_weight; /* 0: 1 */
    uint32_t tenant_running_max;
    bool patient;
    uint64_t deadline_ns;
    uint64_t submitted_ns;
    uint32_t min_tokens;
    uint32_t stop_id_count; /* ids 0, 1 */
    int32_t logprobs;       /* -1: none */
    int32_t prompt_logprobs;
    enum kva_pooling pooling;
    enum kva_kv_policy_id policy;
    bool cache_disabled;
};

/* 100 prompt tokens, 10 output tokens, 1 choice, no stop ids, no log-probabilities. */
struct request_spec tracker_spec(uint64_t id);

void tracker_init(struct tracker *tracker, uint32_t vocab);
void tracker_finish(struct tracker *tracker);

/* A request of that shape, known to the tracker; call tracker_accept or tracker_refuse next. */
struct kva_request *tracker_request(struct tracker *tracker, const struct request_spec *spec);
void tracker_accept(struct tracker *tracker, uint64_t id);
void tracker_refuse(struct tracker *tracker, struct kva_request *request);

/* Both in one; the status is the scheduler's. */
enum kva_status tracker_submit(struct tracker *tracker, struct kva_scheduler *scheduler,
                               const struct request_spec *spec, struct kva_err *err);

/* Note that choices are about to be cancelled; KVA_ALL_CHOICES: all. */
void tracker_cancels(struct tracker *tracker, uint64_t id, uint32_t choice,
                     enum kva_finish_reason reason);

/* A kva_output_fn; opaque is the tracker. */
void tracker_output(void *opaque, const struct kva_output *output);

struct tracked_request *tracker_find(const struct tracker *tracker, uint64_t id);
struct tracked_choice *tracker_choice(const struct tracker *tracker, uint64_t id, uint32_t choice);

#endif
