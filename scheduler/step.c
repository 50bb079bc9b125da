/* step.c - one iteration: who decodes, who prefills how much, and what became of it. */
#include "scheduler/internal.h"

/* While prefill waits, decoding leaves it at least this part of the step. */
#define PREFILL_FLOOR_DIVISOR 16u

/* When nothing runs and nothing can be admitted, memory may still be on its way back (a copy in
 * flight): look again after this long, and give up on the first choice after that long, unless other
 * instances have memory here, which is recalled from them, or a choice is stranded, which goes on or
 * ends. */
#define STUCK_RETRY_NS KVA_NS_PER_MS
#define STUCK_LIMIT_NS KVA_NS_PER_S

/* Of a step among those before it, in what steps take. */
#define DECODE_WEIGHT  0.1
#define PREFILL_WEIGHT 0.3

/* When all that there is waits to be lent: look again after this long. */
#define STRANDED_RETRY_NS (10 * KVA_NS_PER_MS)

static bool is_planned(const struct kva_scheduler *s, const struct kva_choice *c)
{
    return c->planned_step == s->step_serial && c->item_index != UINT32_MAX;
}

static void plan_item(struct kva_scheduler *s, struct kva_choice *c, uint32_t prefill_tokens)
{
    struct kva_step_item *item = &s->items[s->item_count];
    item->seq = c->seq;
    item->prefill_tokens = prefill_tokens;
    item->status = KVA_OK;
    item->prefill_done = 0;
    item->emitted = false;
    item->pooled = false;
    item->parked = false;
    item->lost = false;
    item->token.top_count = 0;
    s->owners[s->item_count] = c;
    c->planned_step = s->step_serial;
    c->item_index = s->item_count++;
    c->tenant->step_tokens += kva_max_u32(prefill_tokens, 1);
}

/* Take a decode row out again: its choice is preempted while the step is being planned. */
static void unplan_item(struct kva_scheduler *s, struct kva_choice *c)
{
    uint32_t index = c->item_index;
    c->item_index = UINT32_MAX;
    c->tenant->step_tokens--;
    s->item_count--;
    if (index == s->item_count)
        return;
    struct kva_choice *moved = s->owners[s->item_count];
    s->owners[index] = moved;
    s->items[index].seq = moved->seq;
    moved->item_index = index;
}

void kva_step_preempt(struct kva_scheduler *s, struct kva_step_plan *plan, struct kva_choice *c)
{
    if (is_planned(s, c)) {
        unplan_item(s, c);
        plan->rows--;
    }
    if (c->state == KVA_CHOICE_PREFILL && plan->prefill_quota > 0) {
        plan->prefill_used -= c->prefill_quota;
        c->prefill_quota = 0;
    }
    kva_choice_suspend(s, c);
    plan->preempted = true;
}

/* Whether other instances have device memory here: it is recalled from them where it is short. */
static bool is_lender(struct kva_scheduler *s)
{
    s->ops->usage(s->engine_self, &s->usage);
    return s->usage.guests.device > 0;
}

/* What is free of the device may lie in pieces between what one that is alone has there: all of it is
 * taken anew, one behind the other. */
static bool take_anew(struct kva_scheduler *s, const struct kva_choice *c)
{
    s->ops->suspend(s->engine_self, c->seq);
    return s->ops->resume(s->engine_self, c->seq, NULL) == KVA_OK &&
           s->ops->grow(s->engine_self, c->seq, NULL) == KVA_OK;
}

/* Make room for one more token of `c`, at the cost of those behind it if need be. False: it is not
 * in the step. */
static bool make_room(struct kva_scheduler *s, struct kva_step_plan *plan, struct kva_choice *c,
                      uint64_t now_ns)
{
    for (;;) {
        enum kva_status status = s->ops->grow(s->engine_self, c->seq, NULL);
        if (status == KVA_OK)
            return true;
        if (status == KVA_ELIMIT && kva_choice_outgrew(s, c)) {
            kva_step_preempt(s, plan, c); /* no memory of others here would do */
            return false;
        }
        struct kva_choice *victim = kva_tenants_victim(s);
        bool alone = victim == c && kva_running_count(s) == 1;
        if (status == KVA_ELIMIT && alone && !is_lender(s) && take_anew(s, c))
            return true;
        if (status != KVA_ELIMIT || (alone && !is_lender(s))) {
            kva_choice_end(s, c, KVA_FINISH_ERROR, status, 0, now_ns);
            return false;
        }
        kva_step_preempt(s, plan, victim);
        if (victim == c)
            return false;
    }
}

/* Every decoding choice once, the one that waited longest first: those taken go to the list's end,
 * so that more of them than a step holds take turns. */
static void plan_decodes(struct kva_scheduler *s, struct kva_step_plan *plan, uint32_t rows_max,
                         uint64_t now_ns)
{
    uint64_t visit = s->step_serial;
    while (plan->rows < rows_max && !kva_list_empty(&s->decode)) {
        struct kva_choice *c = KVA_CONTAINER_OF(s->decode.next, struct kva_choice, run);
        if (c->planned_step == visit)
            break;
        if (!make_room(s, plan, c, now_ns))
            continue;
        kva_list_remove(&c->run);
        kva_list_append(&s->decode, &c->run);
        plan_item(s, c, 0);
        plan->rows++;
    }
}

/* What is left of its tenant's share to a prefill; `behind` others, it leaves them a part. */
static void share_one(struct kva_step_plan *plan, struct kva_choice *c, bool behind)
{
    struct kva_tenant *t = c->tenant;
    uint32_t want = kva_prefill_left(c) - c->prefill_quota;
    uint32_t kept = behind ? t->prefill_share / KVA_SHORT_PROMPT_DIVISOR : 0;
    uint32_t more = kva_min_u32(want, t->prefill_share - kept);
    if (more == 0)
        return;
    c->prefill_quota += more;
    t->prefill_share -= more;
    plan->prefill_used += more;
    plan->unfinished -= more == want;
    t->unfinished -= more == want;
}

/* Give unfinished prefills up to `limit` tokens in all: to tenants by weight, within one to the
 * oldest first, each of which leaves a part to those behind it. */
static void share_quota(struct kva_scheduler *s, struct kva_step_plan *plan, uint32_t limit)
{
    if (s->prefill_count == 0 || plan->prefill_used >= limit)
        return;
    for (struct kva_list *at = s->prefill.next; at != &s->prefill; at = at->next)
        KVA_CONTAINER_OF(at, struct kva_choice, run)->tenant->prefill_wanted = 0;
    for (struct kva_list *at = s->prefill.next; at != &s->prefill; at = at->next) {
        const struct kva_choice *c = KVA_CONTAINER_OF(at, struct kva_choice, run);
        c->tenant->prefill_wanted += kva_prefill_left(c) - c->prefill_quota;
    }
    kva_tenants_share(s, limit - plan->prefill_used);
    for (struct kva_list *at = s->prefill.next; at != &s->prefill; at = at->next) {
        struct kva_choice *c = KVA_CONTAINER_OF(at, struct kva_choice, run);
        c->tenant->prefill_wanted -= kva_prefill_left(c) - c->prefill_quota;
        share_one(plan, c, c->tenant->prefill_wanted > 0);
    }
    for (struct kva_list *at = s->prefill.next; at != &s->prefill; at = at->next)
        share_one(plan, KVA_CONTAINER_OF(at, struct kva_choice, run), false);
}

/* Prompt tokens that fit beside decoding rows into the time that a step should take. */
static uint32_t tokens_in_time(const struct kva_scheduler *s)
{
    double aim = (double)s->params.step_time_ns;
    if (aim == 0 || s->pace.prefill_token_ns == 0)
        return UINT32_MAX;
    double tokens = (aim - s->pace.decode_step_ns) / s->pace.prefill_token_ns;
    if (tokens <= KVA_PREFILL_TOKENS_MIN)
        return KVA_PREFILL_TOKENS_MIN;
    return tokens < s->step_tokens_max ? (uint32_t)tokens : s->step_tokens_max;
}

/* Recent steps count for more: costs follow the depth of the contexts and the machine's other work.
 */
static void mean_add(double *mean, double value, double weight)
{
    *mean = *mean == 0 ? value : *mean + (value - *mean) * weight;
}

static void learn_step_cost(struct kva_scheduler *s, const struct kva_step_plan *plan,
                            uint64_t step_ns)
{
    struct kva_scheduler_pace *pace = &s->pace;
    if (plan->prefill_used == 0) {
        uint64_t tokens = 0;
        for (uint32_t i = 0; i < s->item_count; i++)
            tokens += s->owners[i]->prompt_tokens + s->owners[i]->output_tokens;
        /* The first is often slow, and one of many like the others. */
        double share = 1.0 / (double)++pace->decode_steps;
        double weight = share > DECODE_WEIGHT ? share : DECODE_WEIGHT;
        mean_add(&pace->decode_step_ns, (double)step_ns, weight);
        mean_add(&pace->decode_rows, plan->rows, weight);
        mean_add(&pace->decode_tokens, (double)tokens, weight);
        return;
    }
    bool decodes = plan->rows > plan->prefill_used;
    double extra = (double)step_ns - (decodes ? pace->decode_step_ns : 0);
    double least = (double)step_ns / 16;
    mean_add(&pace->prefill_token_ns, (extra > least ? extra : least) / plan->prefill_used,
             PREFILL_WEIGHT);
}

/* Prompts that exceed the context take memory as they go. */
static void make_room_for_prefills(struct kva_scheduler *s, struct kva_step_plan *plan,
                                   uint64_t now_ns)
{
    struct kva_list *at = s->prefill.next;
    while (at != &s->prefill) {
        struct kva_choice *c = KVA_CONTAINER_OF(at, struct kva_choice, run);
        /* Without room it has left the list, and others perhaps with it. */
        at = make_room(s, plan, c, now_ns) ? at->next : s->prefill.next;
    }
}

static void plan_prefills(struct kva_scheduler *s, struct kva_step_plan *plan, uint64_t now_ns)
{
    uint32_t quota = s->step_tokens_max - plan->rows;
    if (plan->rows > 0) {
        uint64_t share = (uint64_t)s->step_tokens_max * s->params.prefill_share_pct / 100;
        quota = kva_min_u32(quota, kva_max_u32((uint32_t)share, 1));
        quota = kva_min_u32(quota, tokens_in_time(s));
    }
    plan->prefill_quota = quota;
    plan->unfinished = s->prefill_count + s->suspended_prefills;
    for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next) {
        struct kva_tenant *t = KVA_CONTAINER_OF(at, struct kva_tenant, link);
        t->unfinished = t->suspended_prefills;
        t->prefill_wanted = 0;
    }
    for (struct kva_list *at = s->prefill.next; at != &s->prefill; at = at->next) {
        struct kva_choice *c = KVA_CONTAINER_OF(at, struct kva_choice, run);
        c->prefill_quota = 0;
        c->tenant->unfinished++;
    }
    share_quota(s, plan, s->waiting_count > 0 ? quota - quota / KVA_SHORT_PROMPT_DIVISOR : quota);
    if (!plan->preempted)
        kva_scheduler_admit_waiting(s, plan, now_ns);
    share_quota(s, plan, quota);
    for (struct kva_list *at = s->prefill.next; at != &s->prefill; at = at->next) {
        struct kva_choice *c = KVA_CONTAINER_OF(at, struct kva_choice, run);
        if (c->prefill_quota > 0 && s->item_count < s->item_max)
            plan_item(s, c, c->prefill_quota);
    }
    plan->rows += plan->prefill_used;
}

static void plan_step(struct kva_scheduler *s, struct kva_step_plan *plan, uint64_t now_ns)
{
    s->item_count = 0;
    s->step_serial++;
    kva_scheduler_resume_suspended(s, plan, false, now_ns);
    bool prefill_waits = s->prefill_count > 0 ||
                         (s->waiting_count > 0 && kva_running_count(s) < s->params.running_max);
    uint32_t rows_max = s->step_tokens_max;
    if (prefill_waits)
        rows_max -= kva_min_u32(rows_max - 1, kva_max_u32(rows_max / PREFILL_FLOOR_DIVISOR, 1));
    plan_decodes(s, plan, rows_max, now_ns);
    make_room_for_prefills(s, plan, now_ns);
    plan_prefills(s, plan, now_ns);
    if (plan->reserved > 0 && !plan->preempted)
        kva_scheduler_resume_suspended(s, plan, true, now_ns);
}

/* True: the token ends its choice. */
static bool is_stop_id(const struct kva_choice *c, uint32_t token)
{
    for (uint32_t i = 0; i < c->stop_id_count; i++)
        if (c->stop_ids[i] == token)
            return true;
    return false;
}

static void take_token(struct kva_scheduler *s, struct kva_choice *c,
                       const struct kva_token_output *token, uint64_t now_ns)
{
    if (c->output_tokens == 0)
        c->times.first_token_ns = now_ns;
    c->times.last_token_ns = now_ns;
    c->output_tokens++;
    s->stats.output_tokens++;
    kva_choice_emit_token(s, c, token, now_ns);
    if (is_stop_id(c, token->token))
        kva_choice_end(s, c, KVA_FINISH_STOP, KVA_OK, token->token, now_ns);
    else if (c->output_tokens >= c->output_tokens_max)
        kva_choice_end(s, c, KVA_FINISH_LENGTH, KVA_OK, 0, now_ns);
}

static void take_prefill(struct kva_scheduler *s, struct kva_choice *c,
                         const struct kva_step_item *item, uint64_t now_ns)
{
    c->prefill_done += item->prefill_done;
    s->stats.prompt_tokens_computed += item->prefill_done;
    /* What was computed again has been told once. */
    bool told = c->output_tokens > 0;
    if (!told && (!item->emitted || c->progress_sent))
        kva_choice_emit_progress(s, c, now_ns);
    if (!item->emitted)
        return;
    if (!told && c->index == 0 && c->group->request->sampling.prompt_logprobs >= 0)
        kva_choice_emit_prompt_logprobs(s, c, now_ns);
    kva_choice_prefill_finished(s, c);
}

/* The prompt is in, and was all that there is. */
static void take_pooled(struct kva_scheduler *s, struct kva_choice *c,
                        const struct kva_step_item *item, uint64_t now_ns)
{
    c->prefill_done += item->prefill_done;
    s->stats.prompt_tokens_computed += item->prefill_done;
    kva_choice_emit_pooled(s, c, now_ns);
    kva_choice_end(s, c, KVA_FINISH_STOP, KVA_OK, 0, now_ns);
}

static void take_results(struct kva_scheduler *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->item_count; i++) {
        const struct kva_step_item *item = &s->items[i];
        struct kva_choice *c = s->owners[i];
        if (item->status != KVA_OK) {
            kva_choice_end(s, c, KVA_FINISH_ERROR, item->status, 0, now_ns);
            continue;
        }
        if (item->lost) {
            kva_choice_restart(s, c, now_ns);
            continue;
        }
        if (item->pooled)
            take_pooled(s, c, item, now_ns);
        else if (item->prefill_tokens > 0)
            take_prefill(s, c, item, now_ns);
        if (item->emitted)
            c->waited_ns = 0; /* what was lent was of use */
        if (item->emitted && item->parked)
            kva_choice_park(s, c);
        if (item->emitted)
            take_token(s, c, &item->token, now_ns);
    }
}

static void expire(struct kva_scheduler *s, uint64_t now_ns)
{
    struct kva_heap_node *first;
    while ((first = kva_heap_peek(&s->deadlines)) && (uint64_t)first->key <= now_ns) {
        struct kva_group *group = KVA_CONTAINER_OF(first, struct kva_group, deadline);
        uint64_t due_ns = kva_group_deadline_ns(s, group),
                 deadline_ns = group->request->deadline_ns;
        if (due_ns == 0 || due_ns > now_ns) {
            /* It was admitted while it waited: its deadline is another one, or none. */
            kva_heap_remove(&s->deadlines, first);
            kva_group_arm_deadline(s, group);
        } else if (due_ns == deadline_ns) {
            kva_group_end(s, group, KVA_FINISH_DEADLINE, KVA_ETIMEOUT, now_ns);
        } else {
            s->stats.rejected_queue_time++;
            kva_group_end(s, group, KVA_FINISH_ERROR, KVA_EQUEUETIME, now_ns);
        }
    }
}

/* Nothing could be planned. *ret_wake_ns: when to look again; 0: when something is submitted. */
static void plan_wakeup(struct kva_scheduler *s, uint64_t now_ns, uint64_t *ret_wake_ns)
{
    const struct kva_heap_node *deadline = kva_heap_peek(&s->deadlines);
    uint64_t wake_ns = deadline ? (uint64_t)deadline->key : 0;
    uint64_t stranded_ns = s->stranded_count > 0 ? now_ns + STRANDED_RETRY_NS : 0;
    if (stranded_ns > 0 && (wake_ns == 0 || stranded_ns < wake_ns))
        wake_ns = stranded_ns;
    const struct kva_tenant *t = kva_tenant_cheapest(s, true);
    if (!t) {
        s->stuck_since_ns = 0;
        *ret_wake_ns = wake_ns;
        return;
    }
    if (s->stuck_since_ns == 0)
        s->stuck_since_ns = now_ns;
    /* What others have here goes home, and who is stranded goes on or ends: there is room then. */
    if (s->usage.guests.device > 0 || s->stranded_count > 0)
        s->stuck_since_ns = now_ns;
    if (now_ns - s->stuck_since_ns >= STUCK_LIMIT_NS) {
        const struct kva_heap_node *first =
            kva_heap_peek(t->suspended.count > 0 ? &t->suspended : &t->waiting);
        struct kva_choice *c = KVA_CONTAINER_OF(first, struct kva_choice, order);
        kva_choice_end(s, c, KVA_FINISH_ERROR, KVA_ELIMIT, 0, now_ns);
        s->stuck_since_ns = 0;
    }
    uint64_t retry_ns = stranded_ns > 0 ? stranded_ns : now_ns + STUCK_RETRY_NS;
    *ret_wake_ns = wake_ns != 0 && wake_ns < retry_ns ? wake_ns : retry_ns;
}

enum kva_status kva_scheduler_step(struct kva_scheduler *s, bool *ret_idle, uint64_t *ret_wake_ns,
                                   struct kva_err *err)
{
    if (s->device_status != KVA_OK) {
        if (err)
            *err = s->device_err;
        return s->device_status;
    }
    uint64_t now_ns = kva_clock_now(s->params.clock);
    expire(s, now_ns);
    struct kva_step_plan plan = {0};
    plan_step(s, &plan, now_ns);
    *ret_wake_ns = 0;
    *ret_idle = s->item_count == 0;
    if (s->item_count == 0) {
        plan_wakeup(s, now_ns, ret_wake_ns);
        return KVA_OK;
    }
    s->stuck_since_ns = 0;

    uint64_t begun_ns = now_ns;
    enum kva_status status = s->ops->step(s->engine_self, s->items, s->item_count, &s->device_err);
    now_ns = kva_clock_now(s->params.clock);
    if (status != KVA_OK) {
        /* Whatever the engine calls it: a step that failed as a whole leaves no state to trust. */
        s->device_status = KVA_EDEVICE;
        kva_err_prefix(&s->device_err, KVA_EDEVICE, "the engine failed");
        kva_scheduler_end_all(s, KVA_EDEVICE, now_ns);
        if (err)
            *err = s->device_err;
        return KVA_EDEVICE;
    }
    s->stats.steps++;
    s->stats.step_rows += plan.rows;
    kva_histogram_observe(&s->stats.step_seconds, (double)(now_ns - begun_ns) / 1e9);
    kva_histogram_observe(&s->stats.rows_per_step, plan.rows);
    learn_step_cost(s, &plan, now_ns - begun_ns);
    kva_tenants_charge(s);
    take_results(s, now_ns);
    return KVA_OK;
}
