/* submit.c - what comes in: a request is checked, made into sequences and queued. */
#include "scheduler/internal.h"

#include <stdlib.h>

enum kva_status kva_request_check(const struct kva_scheduler_params *params,
                                  const struct kva_request *request, struct kva_err *err)
{
    const struct kva_engine *engine = params->engine;
    if (request->prompt_tokens == 0 || !request->prompt)
        return kva_fail_param(err, KVA_EINVAL, "prompt", "the prompt has no tokens");
    if (request->output_tokens_max == 0)
        return kva_fail_param(err, KVA_EINVAL, "max_tokens", "at least 1 output token is needed");
    if (request->choices == 0)
        return kva_fail_param(err, KVA_EINVAL, "n", "at least 1 choice is needed");
    if (request->pooling != KVA_POOLING_NONE && request->choices > 1)
        return kva_fail_param(err, KVA_EINVAL, "n", "a prompt has one vector, not %u",
                              request->choices);
    if (request->choices > params->waiting_max)
        return kva_fail_param(err, KVA_EINVAL, "n",
                              "the request has %u choices, the queue takes at most %u",
                              request->choices, params->waiting_max);
    uint64_t total = (uint64_t)request->prompt_tokens + request->output_tokens_max;
    uint32_t limit = engine->limits.context_max;
    if (engine->ops->tokens_max)
        limit = engine->ops->tokens_max(engine->self, &request->kv);
    if (total > limit)
        return kva_fail_param(err, KVA_ECONTEXT, "prompt",
                              "the prompt has %u tokens and up to %u are to follow, %llu in all; "
                              "the context limit is %u tokens",
                              request->prompt_tokens, request->output_tokens_max,
                              (unsigned long long)total, limit);
    if (!engine->ops->check)
        return KVA_OK;
    const struct kva_sequence_params sequence = {
        .prompt = request->prompt,
        .prompt_tokens = request->prompt_tokens,
        .tokens_max = (uint32_t)total,
        .sampling = &request->sampling,
        .kv = request->kv,
        .cache_scope = {request->cache_scope[0], request->cache_scope[1]},
        .cache_disabled = request->cache_disabled,
        .pooling = request->pooling,
    };
    return engine->ops->check(engine->self, &sequence, err);
}

/* (priority, age) as one number, saturating: see internal.h. */
static int64_t order_key(const struct kva_scheduler *s, const struct kva_request *request)
{
    if (s->params.aging_ns == 0)
        return request->priority;
    int64_t aging = s->params.aging_ns > INT64_MAX ? INT64_MAX : (int64_t)s->params.aging_ns;
    int64_t since = request->submitted_ns > INT64_MAX ? INT64_MAX : (int64_t)request->submitted_ns;
    int64_t key;
    if (__builtin_mul_overflow(aging, (int64_t)request->priority, &key) ||
        __builtin_add_overflow(key, since, &key))
        key = request->priority < 0 ? -INT64_MAX : INT64_MAX;
    /* The reversed order needs -key. */
    return key == INT64_MIN ? -INT64_MAX : key;
}

static enum kva_status create_sequences(struct kva_scheduler *s, struct kva_group *group,
                                        struct kva_err *err)
{
    const struct kva_request *request = group->request;
    for (uint32_t i = 0; i < request->choices; i++) {
        const struct kva_sequence_params params = {
            .prompt = request->prompt,
            .prompt_tokens = request->prompt_tokens,
            .tokens_max = request->prompt_tokens + request->output_tokens_max,
            .choice = i,
            .sampling = i == 0 ? &request->sampling : &group->sibling_sampling,
            .kv = request->kv,
            .cache_scope = {request->cache_scope[0], request->cache_scope[1]},
            .cache_disabled = request->cache_disabled,
            .pooling = request->pooling,
        };
        enum kva_status status =
            s->ops->create(s->engine_self, &params, &group->choices[i].seq, err);
        if (status != KVA_OK)
            return status;
    }
    return KVA_OK;
}

static void queue_choice(struct kva_scheduler *s, struct kva_group *group,
                         struct kva_tenant *tenant, uint32_t index, int64_t key)
{
    const struct kva_request *request = group->request;
    struct kva_choice *c = &group->choices[index];
    c->group = group;
    c->tenant = tenant;
    c->growth_bytes = s->ops->growth_bytes(s->engine_self, c->seq);
    c->request_id = request->id;
    c->index = index;
    c->item_index = UINT32_MAX;
    c->prompt_tokens = c->prefill_tokens = request->prompt_tokens;
    c->output_tokens_max = request->output_tokens_max;
    c->stop_ids = request->sampling.stop_ids;
    c->stop_id_count = request->sampling.stop_id_count;
    c->times.submitted_ns = request->submitted_ns;
    c->key = key;
    c->arrival = s->arrivals++;
    kva_list_init(&c->run);
    kva_list_append(&s->live, &c->age);
    if (index > 0 && !request->cache_disabled) {
        c->state = KVA_CHOICE_SIBLING;
        group->siblings++;
        s->sibling_count++;
    } else {
        kva_choice_enter_waiting(s, c);
    }
}

static enum kva_status check_queue(struct kva_scheduler *s, const struct kva_request *request,
                                   struct kva_err *err)
{
    if (kva_id_table_find(&s->groups, request->id))
        return kva_fail(err, KVA_EINVAL, "a request with id %llu is live already",
                        (unsigned long long)request->id);
    uint32_t waiting = kva_waiting_count(s);
    if (waiting + request->choices > s->params.waiting_max) {
        s->stats.rejected_queue_full++;
        return kva_fail(err, KVA_EBUSY,
                        "the queue is full: %u choices wait and the request has %u more, "
                        "the limit is %u",
                        waiting, request->choices, s->params.waiting_max);
    }
    return KVA_OK;
}

uint64_t kva_group_deadline_ns(const struct kva_scheduler *s, const struct kva_group *group)
{
    uint64_t deadline_ns = group->request->deadline_ns;
    if (group->admitted || group->request->patient || s->params.waiting_time_ns == 0)
        return deadline_ns;
    uint64_t waited_ns = group->request->submitted_ns + s->params.waiting_time_ns;
    return deadline_ns != 0 && deadline_ns <= waited_ns ? deadline_ns : waited_ns;
}

void kva_group_arm_deadline(struct kva_scheduler *s, struct kva_group *group)
{
    uint64_t due_ns = kva_group_deadline_ns(s, group);
    group->has_deadline = due_ns != 0;
    if (!group->has_deadline)
        return;
    group->deadline.key = (int64_t)(due_ns & INT64_MAX);
    group->deadline.seq = group->choices[0].arrival;
    kva_heap_push(&s->deadlines, &group->deadline);
}

enum kva_status kva_scheduler_submit(struct kva_scheduler *s, struct kva_request *request,
                                     struct kva_err *err)
{
    if (s->device_status != KVA_OK) {
        if (err)
            *err = s->device_err;
        return s->device_status;
    }
    enum kva_status status = kva_request_check(&s->params, request, err);
    if (status == KVA_OK)
        status = check_queue(s, request, err);
    if (status != KVA_OK) {
        s->stats.rejected_budget += status == KVA_ELIMIT;
        return status;
    }

    struct kva_group *group =
        calloc(1, sizeof(*group) + request->choices * sizeof(struct kva_choice));
    if (!group)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a request of %u choices",
                        request->choices);
    group->request = request;
    group->sibling_sampling = request->sampling;
    group->sibling_sampling.prompt_logprobs = -1;
    status = create_sequences(s, group, err);
    struct kva_tenant *tenant = status == KVA_OK ? kva_tenant_enter(s, request) : NULL;
    if (status == KVA_OK && !tenant)
        status = kva_fail(err, KVA_ENOMEM, "out of memory for a request of %u choices",
                          request->choices);
    if (status != KVA_OK) {
        for (uint32_t i = 0; i < request->choices; i++)
            s->ops->destroy(s->engine_self, group->choices[i].seq);
        free(group);
        s->stats.rejected_budget += status == KVA_ELIMIT;
        return status;
    }

    if (request->submitted_ns == 0)
        request->submitted_ns = kva_clock_now(s->params.clock);
    int64_t key = order_key(s, request);
    group->live = request->choices;
    for (uint32_t i = 0; i < request->choices; i++)
        queue_choice(s, group, tenant, i, key);
    kva_id_table_insert(&s->groups, &group->id_node, request->id);
    kva_group_arm_deadline(s, group);
    return KVA_OK;
}

void kva_scheduler_cancel(struct kva_scheduler *s, uint64_t request_id, uint32_t choice,
                          enum kva_finish_reason reason)
{
    struct kva_id_node *node = kva_id_table_find(&s->groups, request_id);
    if (!node)
        return;
    struct kva_group *group = KVA_CONTAINER_OF(node, struct kva_group, id_node);
    enum kva_status status = reason == KVA_FINISH_ERROR ? KVA_EINTERNAL : KVA_OK;
    uint64_t now_ns = kva_clock_now(s->params.clock);
    if (choice == KVA_ALL_CHOICES)
        kva_group_end(s, group, reason, status, now_ns);
    else if (choice < group->request->choices && group->choices[choice].state != KVA_CHOICE_ENDED)
        kva_choice_end(s, &group->choices[choice], reason, status, 0, now_ns);
}
