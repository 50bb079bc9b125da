#include "tests/scheduler/tracker.h"

#include "tests/cmocka.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

struct request_spec tracker_spec(uint64_t id)
{
    return (struct request_spec){
        .id = id,
        .prompt_tokens = 100,
        .output_tokens_max = 10,
        .choices = 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
}

void tracker_init(struct tracker *tracker, uint32_t vocab)
{
    *tracker = (struct tracker){.vocab = vocab};
    assert_int_equal(kva_id_table_init(&tracker->requests, 1u << 14), KVA_OK);
}

static void forget(struct tracker *tracker, struct tracked_request *tracked)
{
    kva_id_table_remove(&tracker->requests, &tracked->node);
    free(tracked->choice);
    free(tracked);
}

void tracker_finish(struct tracker *tracker)
{
    for (uint32_t i = 0; i <= tracker->requests.mask; i++)
        while (tracker->requests.buckets[i])
            forget(tracker,
                   KVA_CONTAINER_OF(tracker->requests.buckets[i], struct tracked_request, node));
    kva_id_table_finish(&tracker->requests);
}

static void fill_prompt(const struct tracker *tracker, const struct request_spec *spec,
                        uint32_t *prompt)
{
    for (uint32_t i = 0; i < spec->prompt_tokens; i++) {
        bool prefix = i < spec->prefix_tokens;
        uint64_t x = prefix ? spec->prefix_seed : spec->id + 0x1234567ull;
        x = (x * 0x9E3779B97F4A7C15ull) ^ ((uint64_t)i * 0xC2B2AE3D27D4EB4Full);
        prompt[i] = (uint32_t)((x ^ (x >> 29)) % tracker->vocab);
    }
}

struct kva_request *tracker_request(struct tracker *tracker, const struct request_spec *spec)
{
    assert_null(kva_id_table_find(&tracker->requests, spec->id));
    struct tracked_request *tracked = calloc(1, sizeof(*tracked));
    assert_non_null(tracked);
    tracked->choice = calloc(spec->choices, sizeof(struct tracked_choice));
    assert_non_null(tracked->choice);
    struct kva_request *request = kva_request_create(1u << 20);
    assert_non_null(request);
    uint32_t *prompt = kva_arena_calloc(&request->arena, spec->prompt_tokens, sizeof(uint32_t));
    uint32_t *stop_ids = kva_arena_calloc(&request->arena, 2, sizeof(uint32_t));
    assert_non_null(prompt);
    assert_non_null(stop_ids);
    fill_prompt(tracker, spec, prompt);
    stop_ids[1] = 1;
    request->id = spec->id;
    request->prompt = prompt;
    request->prompt_tokens = spec->prompt_tokens;
    request->output_tokens_max = spec->output_tokens_max;
    request->choices = spec->choices;
    request->priority = spec->priority;
    request->tenant = spec->tenant;
    request->tenant_weight = spec->tenant_weight;
    request->tenant_running_max = spec->tenant_running_max;
    request->patient = spec->patient;
    request->deadline_ns = spec->deadline_ns;
    request->submitted_ns = spec->submitted_ns;
    request->cache_scope[0] = 7;
    request->cache_disabled = spec->cache_disabled;
    request->pooling = spec->pooling;
    request->kv.policy = spec->policy;
    request->sampling = (struct kva_sampling_params){
        .top_p = 1,
        .repetition_penalty = 1,
        .seed = spec->id * 31,
        .stop_ids = stop_ids,
        .stop_id_count = spec->stop_id_count,
        .min_tokens = spec->min_tokens,
        .logprobs = spec->logprobs,
        .prompt_logprobs = spec->prompt_logprobs,
    };
    tracked->choices = spec->choices;
    tracked->prompt_tokens = spec->prompt_tokens;
    tracked->output_tokens_max = spec->output_tokens_max;
    tracked->prompt_hash = kva_scripted_hash(prompt, spec->prompt_tokens);
    tracked->pooling = spec->pooling;
    tracked->deadline_ns = spec->deadline_ns;
    tracked->submitted_ns = spec->submitted_ns;
    tracked->stop_ids[1] = 1;
    tracked->sampling = request->sampling;
    tracked->sampling.stop_ids = tracked->stop_ids;
    kva_id_table_insert(&tracker->requests, &tracked->node, spec->id);
    return request;
}

void tracker_accept(struct tracker *tracker, uint64_t id)
{
    struct tracked_request *tracked = tracker_find(tracker, id);
    tracked->accepted = true;
    tracker->live += tracked->choices;
}

void tracker_refuse(struct tracker *tracker, struct kva_request *request)
{
    forget(tracker, tracker_find(tracker, request->id));
    kva_request_destroy(request);
}

enum kva_status tracker_submit(struct tracker *tracker, struct kva_scheduler *scheduler,
                               const struct request_spec *spec, struct kva_err *err)
{
    struct kva_request *request = tracker_request(tracker, spec);
    enum kva_status status = kva_scheduler_submit(scheduler, request, err);
    if (status == KVA_OK)
        tracker_accept(tracker, spec->id);
    else
        tracker_refuse(tracker, request);
    return status;
}

struct tracked_request *tracker_find(const struct tracker *tracker, uint64_t id)
{
    struct kva_id_node *node = kva_id_table_find(&tracker->requests, id);
    assert_non_null(node);
    return KVA_CONTAINER_OF(node, struct tracked_request, node);
}

struct tracked_choice *tracker_choice(const struct tracker *tracker, uint64_t id, uint32_t choice)
{
    struct tracked_request *tracked = tracker_find(tracker, id);
    assert_true(choice < tracked->choices);
    return &tracked->choice[choice];
}

void tracker_cancels(struct tracker *tracker, uint64_t id, uint32_t choice,
                     enum kva_finish_reason reason)
{
    struct tracked_request *tracked = tracker_find(tracker, id);
    for (uint32_t i = 0; i < tracked->choices; i++) {
        if (choice != KVA_ALL_CHOICES && choice != i)
            continue;
        tracked->choice[i].cancel_requested |= reason == KVA_FINISH_CANCELLED;
        tracked->choice[i].stop_requested |= reason == KVA_FINISH_STOP;
    }
}

static bool is_stop_id(const struct tracked_request *tracked, uint32_t token)
{
    for (uint32_t i = 0; i < tracked->sampling.stop_id_count; i++)
        if (tracked->stop_ids[i] == token)
            return true;
    return false;
}

static uint32_t expected_token(const struct tracker *tracker, const struct tracked_request *tracked,
                               uint32_t choice, uint32_t index)
{
    return kva_scripted_token(tracked->prompt_hash, &tracked->sampling, choice, index,
                              tracker->vocab);
}

static void check_token(struct tracker *tracker, const struct tracked_request *tracked,
                        struct tracked_choice *choice, const struct kva_output *output)
{
    assert_int_equal(tracked->pooling, KVA_POOLING_NONE);
    tracker->tokens++;
    assert_true(choice->tokens < tracked->output_tokens_max);
    if (choice->tokens == 0) {
        choice->first_token_ns = output->time_ns;
        if (output->choice == 0)
            assert_int_equal(choice->logprob_events, tracked->sampling.prompt_logprobs >= 0);
    }
    if (!tracker->foreign_tokens) {
        uint32_t expected = expected_token(tracker, tracked, output->choice, choice->tokens);
        assert_int_equal(output->token.token, expected);
    }
    uint32_t top = tracked->sampling.logprobs < 0 ? 0 : (uint32_t)tracked->sampling.logprobs;
    assert_int_equal(output->token.top_count, top);
    if (tracked->sampling.logprobs >= 0)
        assert_int_equal(output->token.chosen.token, output->token.token);
    for (uint32_t i = 0; i < top; i++) {
        assert_int_equal(output->token.top[i].token, (output->token.token + i) % tracker->vocab);
        assert_int_equal(output->token.top[i].rank, i + 1);
    }
    choice->tokens++;
}

static void check_logprobs(const struct tracked_request *tracked, struct tracked_choice *choice,
                           const struct kva_output *output)
{
    assert_int_equal(output->choice, 0);
    assert_int_equal(choice->tokens, 0);
    assert_int_equal(output->prompt_logprobs.count, tracked->prompt_tokens - 1);
    for (uint32_t i = 0; i < output->prompt_logprobs.count; i++) {
        const struct kva_prompt_logprob *entry = &output->prompt_logprobs.entries[i];
        assert_true(entry->actual.logprob == -1.0f - (float)(i % 7));
        assert_int_equal(entry->top_count, tracked->sampling.prompt_logprobs);
    }
    choice->logprob_events++;
}

static void check_vector(const struct tracked_request *tracked, struct tracked_choice *choice,
                         const struct kva_output *output)
{
    float expected[KVA_SCRIPTED_WIDTH];
    kva_scripted_vector(tracked->prompt_hash, tracked->pooling, expected);
    assert_int_not_equal(tracked->pooling, KVA_POOLING_NONE);
    assert_int_equal(choice->vectors, 0);
    assert_int_equal(output->pooled.count, KVA_SCRIPTED_WIDTH);
    assert_memory_equal(output->pooled.values, expected, sizeof(expected));
    choice->vectors++;
}

/* It waited as long as it may, and nothing of its request was begun. */
static void check_waited(const struct tracker *tracker, const struct tracked_request *tracked,
                         const struct kva_output *output)
{
    const struct kva_choice_times *times = &output->end.times;
    assert_int_not_equal(tracker->waiting_time_ns, 0);
    assert_true(output->time_ns - times->submitted_ns >= tracker->waiting_time_ns);
    assert_int_equal(times->admitted_ns, 0);
    for (uint32_t i = 0; i < tracked->choices; i++)
        assert_int_equal(tracked->choice[i].tokens, 0);
}

static void check_end(struct tracker *tracker, struct tracked_request *tracked,
                      struct tracked_choice *choice, const struct kva_output *output)
{
    choice->ended = true;
    choice->end = *output;
    tracked->ended++;
    tracker->ends++;
    tracker->live--;
    tracker->by_reason[output->end.reason]++;
    assert_int_equal(output->end.output_tokens, choice->tokens);
    const struct kva_choice_times *times = &output->end.times;
    assert_true(times->ended_ns >= times->last_token_ns);
    assert_true(times->last_token_ns >= times->first_token_ns);
    assert_true(times->first_token_ns == 0 || times->first_token_ns >= times->admitted_ns);
    assert_int_equal(times->first_token_ns, choice->first_token_ns);
    switch (output->end.reason) {
    case KVA_FINISH_STOP:
        if (tracker->foreign_tokens || choice->stop_requested)
            break;
        if (tracked->pooling != KVA_POOLING_NONE) {
            assert_int_equal(choice->vectors, 1);
            break;
        }
        assert_true(choice->tokens > 0);
        assert_true(is_stop_id(tracked, output->end.stop_token));
        assert_int_equal(output->end.stop_token,
                         expected_token(tracker, tracked, output->choice, choice->tokens - 1));
        break;
    case KVA_FINISH_LENGTH:
        assert_int_equal(choice->tokens, tracked->output_tokens_max);
        break;
    case KVA_FINISH_CANCELLED:
        assert_true(choice->cancel_requested);
        break;
    case KVA_FINISH_DEADLINE:
        assert_true(tracked->deadline_ns != 0 && output->time_ns >= tracked->deadline_ns);
        break;
    case KVA_FINISH_ERROR:
        if (output->end.status == KVA_EQUEUETIME) {
            check_waited(tracker, tracked, output);
            break;
        }
        assert_true(tracker->expect_errors);
        assert_int_not_equal(output->end.status, KVA_OK);
        break;
    case KVA_FINISH_COUNT:
        fail();
    }
}

void tracker_output(void *opaque, const struct kva_output *output)
{
    struct tracker *tracker = opaque;
    struct tracked_request *tracked = tracker_find(tracker, output->request_id);
    assert_true(output->choice < tracked->choices);
    struct tracked_choice *choice = &tracked->choice[output->choice];
    assert_false(choice->ended);
    tracker->outputs++;
    switch (output->kind) {
    case KVA_OUTPUT_PROGRESS:
        assert_int_equal(choice->tokens, 0);
        assert_int_equal(output->progress.total_tokens, tracked->prompt_tokens);
        assert_true(output->progress.done_tokens >= choice->progress_tokens);
        assert_true(output->progress.done_tokens <= tracked->prompt_tokens);
        choice->progress_tokens = output->progress.done_tokens;
        choice->progress_events++;
        break;
    case KVA_OUTPUT_PROMPT_LOGPROBS:
        check_logprobs(tracked, choice, output);
        break;
    case KVA_OUTPUT_TOKEN:
        if (choice->tokens > 0)
            assert_false(!tracker->foreign_tokens &&
                         is_stop_id(tracked, expected_token(tracker, tracked, output->choice,
                                                            choice->tokens - 1)));
        check_token(tracker, tracked, choice, output);
        break;
    case KVA_OUTPUT_POOLED:
        check_vector(tracked, choice, output);
        break;
    case KVA_OUTPUT_END:
        check_end(tracker, tracked, choice, output);
        break;
    }
}
