/* scheduler.c - creation, statistics and the live view. */
#include "scheduler/internal.h"

#include <stdlib.h>
#include <string.h>

static enum kva_status check_params(const struct kva_scheduler_params *params, struct kva_err *err)
{
    const struct kva_engine_limits *limits = &params->engine->limits;
    if (params->running_max == 0 || params->running_max > limits->sequences_max)
        return kva_fail_param(err, KVA_EINVAL, "running_max",
                              "running_max is %u, it must be 1 to %u, the engine's sequences_max",
                              params->running_max, limits->sequences_max);
    if (limits->sequences_max > KVA_SCHEDULER_QUEUE_MAX)
        return kva_fail_param(err, KVA_EINVAL, "sequences_max",
                              "sequences_max is %u, the scheduler takes at most %u",
                              limits->sequences_max, KVA_SCHEDULER_QUEUE_MAX);
    if (params->waiting_max == 0 || params->waiting_max > KVA_SCHEDULER_QUEUE_MAX)
        return kva_fail_param(err, KVA_EINVAL, "waiting_max",
                              "waiting_max is %u, it must be 1 to %u", params->waiting_max,
                              KVA_SCHEDULER_QUEUE_MAX);
    if (params->step_tokens_max == 0 || params->step_tokens_max > limits->step_tokens_max)
        return kva_fail_param(
            err, KVA_EINVAL, "step_tokens_max",
            "step_tokens_max is %u, it must be 1 to %u, the engine's step_tokens_max",
            params->step_tokens_max, limits->step_tokens_max);
    if (params->prefill_share_pct == 0 || params->prefill_share_pct > 100)
        return kva_fail_param(err, KVA_EINVAL, "prefill_share_pct",
                              "prefill_share_pct is %u, it must be 1 to 100",
                              params->prefill_share_pct);
    if (limits->partial_prefills_max == 0)
        return kva_fail_param(err, KVA_EINVAL, "partial_prefills_max",
                              "partial_prefills_max is 0, long prompts need at least 1");
    return KVA_OK;
}

/* From a step of a small model alone to one that a long prompt holds up. */
static const double step_bounds_s[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                       0.25,   0.5,   1,      2.5,   5,    10,    25};

/* vLLM's buckets of tokens per iteration. */
static const double row_bounds[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

static enum kva_status allocate(struct kva_scheduler *s)
{
    uint32_t running_max = s->params.running_max;
    uint32_t live_max = s->params.waiting_max + s->sequences_max;
    s->item_max = kva_min_u32(running_max, s->step_tokens_max);
    s->items = calloc(s->item_max, sizeof(s->items[0]));
    s->owners = calloc(s->item_max, sizeof(struct kva_choice *));
    if (!s->items || !s->owners)
        return KVA_ENOMEM;
    if (kva_heap_init(&s->deadlines, live_max) != KVA_OK ||
        kva_id_table_init(&s->tenants_by_id, 256) != KVA_OK)
        return KVA_ENOMEM;
    return kva_id_table_init(&s->groups, live_max);
}

enum kva_status kva_scheduler_create(const struct kva_scheduler_params *params,
                                     struct kva_scheduler **ret, struct kva_err *err)
{
    enum kva_status status = check_params(params, err);
    if (status != KVA_OK)
        return status;
    struct kva_scheduler *s = calloc(1, sizeof(*s));
    if (!s)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a scheduler");
    kva_histogram_init(&s->stats.step_seconds, step_bounds_s, KVA_COUNT_OF(step_bounds_s));
    kva_histogram_init(&s->stats.rows_per_step, row_bounds, KVA_COUNT_OF(row_bounds));
    s->params = *params;
    s->ops = params->engine->ops;
    s->engine_self = params->engine->self;
    s->step_tokens_max = params->step_tokens_max;
    s->sequences_max = params->engine->limits.sequences_max;
    kva_list_init(&s->live);
    kva_list_init(&s->prefill);
    kva_list_init(&s->decode);
    kva_list_init(&s->stranded);
    kva_list_init(&s->tenants);
    kva_list_init(&s->idle_tenants);
    if (allocate(s) != KVA_OK) {
        kva_scheduler_destroy(s);
        return kva_fail(err, KVA_ENOMEM,
                        "out of memory for a scheduler of %u waiting and %u running choices",
                        params->waiting_max, params->running_max);
    }
    *ret = s;
    return KVA_OK;
}

void kva_scheduler_destroy(struct kva_scheduler *s)
{
    if (!s)
        return;
    while (!kva_list_empty(&s->live)) {
        struct kva_group *group = KVA_CONTAINER_OF(s->live.next, struct kva_choice, age)->group;
        for (uint32_t i = 0; i < group->request->choices; i++)
            kva_list_remove(&group->choices[i].age);
        kva_group_free(s, group);
    }
    kva_tenants_finish(s);
    kva_id_table_finish(&s->tenants_by_id);
    kva_heap_finish(&s->deadlines);
    kva_id_table_finish(&s->groups);
    free(s->items);
    free(s->owners);
    free(s);
}

void kva_scheduler_get_stats(const struct kva_scheduler *s, struct kva_scheduler_stats *ret)
{
    *ret = s->stats;
    ret->running = kva_running_count(s);
    ret->suspended = s->suspended_count + s->stranded_count;
    ret->waiting = kva_waiting_count(s);
    ret->waiting_by_reason[KVA_WAIT_SIBLING] = s->sibling_count;
    ret->waiting_by_reason[s->wait_reason] += s->waiting_count;
    s->ops->usage(s->engine_self, &ret->engine);
}

static const char *state_name(enum kva_choice_state state)
{
    switch (state) {
    case KVA_CHOICE_PREFILL:
        return "prefill";
    case KVA_CHOICE_DECODE:
        return "decode";
    case KVA_CHOICE_SUSPENDED:
    case KVA_CHOICE_STRANDED:
        return "suspended";
    case KVA_CHOICE_SIBLING:
    case KVA_CHOICE_WAITING:
    case KVA_CHOICE_ENDED:
        break;
    }
    return "waiting";
}

uint32_t kva_scheduler_get_view(const struct kva_scheduler *s, struct kva_choice_view *views,
                                uint32_t max)
{
    uint64_t now_ns = kva_clock_now(s->params.clock);
    uint32_t count = 0;
    for (const struct kva_list *at = s->live.next; at != &s->live && count < max; at = at->next) {
        const struct kva_choice *c = KVA_CONTAINER_OF(at, const struct kva_choice, age);
        struct kva_choice_view *view = &views[count++];
        uint64_t since_ns = c->times.submitted_ns;
        *view = (struct kva_choice_view){
            .request_id = c->request_id,
            .choice = c->index,
            .state = state_name(c->state),
            .priority = c->group->request->priority,
            .prompt_tokens = c->prompt_tokens,
            .prefilled_tokens = kva_min_u32(c->cached_tokens + c->prefill_done, c->prompt_tokens),
            .output_tokens = c->output_tokens,
            .preemptions = c->preemptions,
            .age_ns = now_ns > since_ns ? now_ns - since_ns : 0,
        };
        if (c->times.admitted_ns != 0)
            s->ops->sequence_info(s->engine_self, c->seq, &view->info);
    }
    return count;
}

static bool place_of(const struct kva_choice *c, struct kva_choice_place *ret)
{
    bool stranded = c->state == KVA_CHOICE_STRANDED;
    bool suspended = c->state == KVA_CHOICE_SUSPENDED || stranded;
    bool decodes = c->state == KVA_CHOICE_DECODE || (suspended && !c->prefill_resumes);
    if (c->state == KVA_CHOICE_SIBLING || c->state == KVA_CHOICE_ENDED)
        return false;
    *ret = (struct kva_choice_place){
        .id = c->arrival + 1, /* never 0 */
        .generation = c->restarts,
        .stage = decodes                          ? KVA_STAGE_DECODE
                 : c->state == KVA_CHOICE_WAITING ? KVA_STAGE_WAITING
                                                  : KVA_STAGE_PREFILL,
        .tokens = c->prompt_tokens + c->output_tokens,
        .suspended = suspended,
        .stranded = stranded,
        .seq = c->seq,
    };
    return true;
}

void kva_scheduler_get_pace(const struct kva_scheduler *s, struct kva_scheduler_pace *ret)
{
    *ret = s->pace;
}

uint32_t kva_scheduler_get_places(const struct kva_scheduler *s, struct kva_choice_place *ret,
                                  uint32_t max)
{
    uint32_t count = 0;
    for (const struct kva_list *at = s->live.next; at != &s->live && count < max; at = at->next)
        count += place_of(KVA_CONTAINER_OF(at, const struct kva_choice, age), &ret[count]);
    return count;
}

bool kva_scheduler_find_place(const struct kva_scheduler *s, uint64_t id,
                              struct kva_choice_place *ret)
{
    for (const struct kva_list *at = s->live.next; at != &s->live; at = at->next) {
        const struct kva_choice *c = KVA_CONTAINER_OF(at, const struct kva_choice, age);
        if (c->arrival + 1 == id)
            return place_of(c, ret);
    }
    return false;
}
