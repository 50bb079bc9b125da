/* choice.c - how a choice changes place, and the events that it leaves behind. */
#include "scheduler/internal.h"

#include <stdlib.h>
#include <string.h>

#define ENDED_WEIGHT (1.0 / 16) /* of a choice among those before it, in what they bring */

static void place(struct kva_heap *heap, struct kva_choice *c)
{
    c->order.key = c->key;
    c->order.seq = c->arrival;
    kva_heap_push(heap, &c->order);
}

void kva_choice_enter_waiting(struct kva_scheduler *s, struct kva_choice *c)
{
    c->state = KVA_CHOICE_WAITING;
    place(&c->tenant->waiting, c);
    s->waiting_count++;
}

void kva_choice_leave_waiting(struct kva_scheduler *s, struct kva_choice *c)
{
    kva_heap_remove(&c->tenant->waiting, &c->order);
    s->waiting_count--;
}

void kva_choice_leave_suspended(struct kva_scheduler *s, struct kva_choice *c)
{
    kva_heap_remove(&c->tenant->suspended, &c->order);
    s->suspended_count--;
    s->suspended_prefills -= c->prefill_resumes;
    c->tenant->suspended_prefills -= c->prefill_resumes;
}

void kva_choice_enter_running(struct kva_scheduler *s, struct kva_choice *c, bool decode)
{
    c->state = decode ? KVA_CHOICE_DECODE : KVA_CHOICE_PREFILL;
    c->order.key = -c->key;
    c->order.seq = ~c->arrival;
    kva_heap_push(&c->tenant->victims, &c->order);
    c->tenant->running++;
    kva_list_append(decode ? &s->decode : &s->prefill, &c->run);
    if (decode)
        s->decode_count++;
    else
        s->prefill_count++;
    s->running_growth_bytes += c->growth_bytes;
}

struct kva_shared_bytes kva_choice_shared_bytes(const struct kva_scheduler *s,
                                                const struct kva_choice *c)
{
    struct kva_shared_bytes shared = {0};
    if (s->ops->shared_bytes)
        s->ops->shared_bytes(s->engine_self, c->seq, &shared);
    return shared;
}

uint64_t kva_choice_resume_bytes(const struct kva_scheduler *s, const struct kva_choice *c)
{
    uint64_t all =
        s->ops->resume_bytes ? s->ops->resume_bytes(s->engine_self, c->seq) : c->device_bytes;
    uint64_t shared = kva_choice_shared_bytes(s, c).bytes;
    return all > shared ? all - shared : 0;
}

bool kva_choice_outgrew(const struct kva_scheduler *s, const struct kva_choice *c)
{
    return s->ops->resume_bytes &&
           s->ops->resume_bytes(s->engine_self, c->seq) > s->params.engine->limits.budget.device;
}

static void enter_stranded(struct kva_scheduler *s, struct kva_choice *c)
{
    c->state = KVA_CHOICE_STRANDED;
    c->stranded_ns = kva_clock_now(s->params.clock) - c->waited_ns;
    kva_list_append(&s->stranded, &c->run);
    s->stranded_count++;
    c->tenant->stranded++;
}

static void leave_stranded(struct kva_scheduler *s, struct kva_choice *c)
{
    kva_list_remove(&c->run);
    c->waited_ns = kva_clock_now(s->params.clock) - c->stranded_ns;
    s->stranded_count--;
    c->tenant->stranded--;
}

static void enter_suspended(struct kva_scheduler *s, struct kva_choice *c)
{
    s->suspended_prefills += c->prefill_resumes;
    c->tenant->suspended_prefills += c->prefill_resumes;
    c->state = KVA_CHOICE_SUSPENDED;
    place(&c->tenant->suspended, c);
    s->suspended_count++;
}

void kva_choice_strand(struct kva_scheduler *s, struct kva_choice *c)
{
    kva_choice_leave_suspended(s, c);
    enter_stranded(s, c);
}

void kva_scheduler_unstrand(struct kva_scheduler *s, uint64_t now_ns)
{
    uint64_t time_ns = s->params.lending_time_ns;
    for (struct kva_list *at = s->stranded.next, *next; at != &s->stranded; at = next) {
        struct kva_choice *c = KVA_CONTAINER_OF(at, struct kva_choice, run);
        next = at->next;
        if (!kva_choice_outgrew(s, c)) {
            leave_stranded(s, c);
            enter_suspended(s, c);
        } else if (time_ns > 0 && now_ns >= c->stranded_ns + time_ns) {
            kva_choice_end(s, c, KVA_FINISH_ERROR, KVA_ELIMIT, 0, now_ns);
        }
    }
}

static void leave_running(struct kva_scheduler *s, struct kva_choice *c)
{
    kva_heap_remove(&c->tenant->victims, &c->order);
    c->tenant->running--;
    kva_list_remove(&c->run);
    if (c->state == KVA_CHOICE_DECODE)
        s->decode_count--;
    else
        s->prefill_count--;
    s->running_growth_bytes -= c->growth_bytes;
}

/* Siblings wait for the prompt's KV: it is computed, or its choice has ended. */
static void release_siblings(struct kva_scheduler *s, struct kva_group *group, bool all)
{
    for (uint32_t i = 0; group->siblings > 0 && i < group->request->choices; i++) {
        struct kva_choice *c = &group->choices[i];
        if (c->state != KVA_CHOICE_SIBLING)
            continue;
        group->siblings--;
        s->sibling_count--;
        kva_choice_enter_waiting(s, c);
        if (!all)
            return;
    }
}

void kva_choice_prefill_finished(struct kva_scheduler *s, struct kva_choice *c)
{
    kva_list_remove(&c->run);
    s->prefill_count--;
    s->decode_count++;
    c->state = KVA_CHOICE_DECODE;
    kva_list_append(&s->decode, &c->run);
    release_siblings(s, c->group, true);
}

void kva_choice_park(struct kva_scheduler *s, struct kva_choice *c)
{
    leave_running(s, c);
    c->prefill_resumes = c->state == KVA_CHOICE_PREFILL;
    if (kva_choice_outgrew(s, c))
        enter_stranded(s, c);
    else
        enter_suspended(s, c);
}

void kva_choice_suspend(struct kva_scheduler *s, struct kva_choice *c)
{
    struct kva_sequence_info info = {0};
    s->ops->sequence_info(s->engine_self, c->seq, &info);
    s->ops->suspend(s->engine_self, c->seq);
    c->device_bytes = info.bytes.device;
    kva_choice_park(s, c);
    c->preemptions++;
    s->stats.preemptions++;
}

void kva_choice_restart(struct kva_scheduler *s, struct kva_choice *c, uint64_t now_ns)
{
    enum kva_status status = s->ops->restart(s->engine_self, c->seq, NULL);
    s->stats.restarts++;
    c->restarts++;
    if (status != KVA_OK) {
        kva_choice_end(s, c, KVA_FINISH_ERROR, status, 0, now_ns);
        return;
    }
    leave_running(s, c);
    c->prefill_tokens = c->prompt_tokens + c->output_tokens;
    c->cached_tokens = c->prefill_done = 0;
    kva_choice_enter_waiting(s, c);
}

/* A group whose leader is gone before its prompt was finished needs another. */
static void replace_leader(struct kva_scheduler *s, struct kva_group *group)
{
    if (group->siblings == 0)
        return;
    for (uint32_t i = 0; i < group->request->choices; i++) {
        enum kva_choice_state state = group->choices[i].state;
        if (state != KVA_CHOICE_SIBLING && state != KVA_CHOICE_ENDED)
            return;
    }
    release_siblings(s, group, false);
}

static void leave_place(struct kva_scheduler *s, struct kva_choice *c)
{
    switch (c->state) {
    case KVA_CHOICE_SIBLING:
        c->group->siblings--;
        s->sibling_count--;
        break;
    case KVA_CHOICE_WAITING:
        kva_choice_leave_waiting(s, c);
        break;
    case KVA_CHOICE_PREFILL:
    case KVA_CHOICE_DECODE:
        leave_running(s, c);
        break;
    case KVA_CHOICE_SUSPENDED:
        kva_choice_leave_suspended(s, c);
        break;
    case KVA_CHOICE_STRANDED:
        leave_stranded(s, c);
        break;
    case KVA_CHOICE_ENDED:
        break;
    }
}

void kva_group_free(struct kva_scheduler *s, struct kva_group *group)
{
    for (uint32_t i = 0; i < group->request->choices; i++)
        s->ops->destroy(s->engine_self, group->choices[i].seq);
    kva_request_destroy(group->request);
    free(group);
}

static void close_group(struct kva_scheduler *s, struct kva_group *group)
{
    kva_id_table_remove(&s->groups, &group->id_node);
    if (group->has_deadline)
        kva_heap_remove(&s->deadlines, &group->deadline);
    kva_group_free(s, group);
}

/* All of an output but what its kind has. */
static void address(struct kva_output *output, const struct kva_choice *c,
                    enum kva_output_kind kind, uint64_t now_ns)
{
    output->request_id = c->request_id;
    output->choice = c->index;
    output->kind = kind;
    output->time_ns = now_ns;
}

/* What choices bring and say; those that were broken off say nothing of it. */
static void learn_lengths(struct kva_scheduler *s, const struct kva_choice *c,
                          enum kva_finish_reason reason)
{
    struct kva_scheduler_pace *pace = &s->pace;
    if ((reason != KVA_FINISH_STOP && reason != KVA_FINISH_LENGTH) || c->output_tokens == 0)
        return;
    double weight = pace->output_tokens == 0 ? 1 : ENDED_WEIGHT;
    pace->prompt_tokens += (c->prefill_done - pace->prompt_tokens) * weight;
    pace->output_tokens += (c->output_tokens - pace->output_tokens) * weight;
}

void kva_choice_end(struct kva_scheduler *s, struct kva_choice *c, enum kva_finish_reason reason,
                    enum kva_status status, uint32_t stop_token, uint64_t now_ns)
{
    struct kva_output output;
    address(&output, c, KVA_OUTPUT_END, now_ns);
    memset(&output.end, 0, sizeof(output.end));
    output.end.reason = reason;
    output.end.status = status;
    output.end.stop_token = stop_token;
    output.end.output_tokens = c->output_tokens;
    output.end.preemptions = c->preemptions;
    c->times.ended_ns = now_ns;
    output.end.times = c->times;
    if (c->times.admitted_ns != 0)
        s->ops->sequence_info(s->engine_self, c->seq, &output.end.info);

    leave_place(s, c);
    c->state = KVA_CHOICE_ENDED;
    kva_list_remove(&c->age);
    s->ops->destroy(s->engine_self, c->seq);
    c->seq = NULL;
    s->stats.finished[reason]++;
    learn_lengths(s, c, reason);
    s->params.on_output(s->params.opaque, &output);

    struct kva_group *group = c->group;
    kva_tenant_leave(s, c->tenant, 1);
    group->live--;
    if (group->live == 0)
        close_group(s, group);
    else
        replace_leader(s, group);
}

void kva_group_end(struct kva_scheduler *s, struct kva_group *group, enum kva_finish_reason reason,
                   enum kva_status status, uint64_t now_ns)
{
    /* Siblings first: the leader's end must not send one of them to the queue. */
    uint32_t live = group->live;
    for (uint32_t i = group->request->choices; live > 0; i--) {
        struct kva_choice *c = &group->choices[i - 1];
        if (c->state == KVA_CHOICE_ENDED)
            continue;
        live--; /* with the last one the group is gone */
        kva_choice_end(s, c, reason, status, 0, now_ns);
    }
}

void kva_scheduler_end_all(struct kva_scheduler *s, enum kva_status status, uint64_t now_ns)
{
    while (!kva_list_empty(&s->live)) {
        struct kva_choice *c = KVA_CONTAINER_OF(s->live.next, struct kva_choice, age);
        kva_group_end(s, c->group, KVA_FINISH_ERROR, status, now_ns);
    }
}

void kva_choice_emit_token(struct kva_scheduler *s, struct kva_choice *c,
                           const struct kva_token_output *token, uint64_t now_ns)
{
    /* Only the entries of `top` that are there are copied: most requests want none. */
    struct kva_output output;
    address(&output, c, KVA_OUTPUT_TOKEN, now_ns);
    uint32_t top_count = kva_min_u32(token->top_count, KVA_LOGPROBS_MAX);
    output.token.token = token->token;
    output.token.top_count = top_count;
    output.token.chosen = token->chosen;
    memcpy(output.token.top, token->top, top_count * sizeof(token->top[0]));
    s->params.on_output(s->params.opaque, &output);
}

void kva_choice_emit_progress(struct kva_scheduler *s, struct kva_choice *c, uint64_t now_ns)
{
    struct kva_output output;
    address(&output, c, KVA_OUTPUT_PROGRESS, now_ns);
    output.progress.done_tokens = kva_min_u32(c->cached_tokens + c->prefill_done, c->prompt_tokens);
    output.progress.total_tokens = c->prompt_tokens;
    c->progress_sent = true;
    s->params.on_output(s->params.opaque, &output);
}

void kva_choice_emit_prompt_logprobs(struct kva_scheduler *s, struct kva_choice *c, uint64_t now_ns)
{
    struct kva_output output;
    address(&output, c, KVA_OUTPUT_PROMPT_LOGPROBS, now_ns);
    output.prompt_logprobs.entries = s->ops->prompt_logprobs(s->engine_self, c->seq);
    output.prompt_logprobs.count =
        output.prompt_logprobs.entries != NULL ? c->prompt_tokens - 1 : 0;
    s->params.on_output(s->params.opaque, &output);
}

void kva_choice_emit_pooled(struct kva_scheduler *s, struct kva_choice *c, uint64_t now_ns)
{
    struct kva_output output;
    address(&output, c, KVA_OUTPUT_POOLED, now_ns);
    output.pooled.values = s->ops->pooled(s->engine_self, c->seq, &output.pooled.count);
    s->params.on_output(s->params.opaque, &output);
}
