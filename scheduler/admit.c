/* admit.c - who gets device memory: suspended choices again, then waiting ones for the first time.
 *
 * The tenant whose next slot is the cheapest comes first (tenant.c), and within a tenant the order
 * is (aged priority, arrival). A choice that does not fit may be passed by later ones, but only
 * KVA_BYPASS_MAX times; from then on the freed memory is left to add up until it fits. One that
 * waits for its turn to prefill is passed without limit by those that take no such turn, since they
 * take nothing that it waits for; once it has its turn, it may still be one that does not fit.
 *
 * Watermark: while anything runs, what each running sequence grows by next stays free, so that what
 * is let in now need not be thrown out a few steps later. */
#include "scheduler/internal.h"

/* Of one tenant, where there are several. */
#define BYPASS_DEPTH_SHARED         2u
#define BYPASS_PREFILL_DEPTH_SHARED 16u

/* A prompt that is too long for a step with all that the cache had of it is looked up again after so
 * many: that takes time with its length. */
#define LOOK_STEPS 16u

/* What the prefix cache has is given up on demand. */
static uint64_t device_free(const struct kva_engine_usage *usage)
{
    uint64_t there = usage->budget.device + usage->cached.device;
    return there > usage->used.device ? there - usage->used.device : 0;
}

static void refresh_usage(struct kva_scheduler *s)
{
    s->ops->usage(s->engine_self, &s->usage);
}

/* Device bytes that are missing to admit or resume a choice that needs `bytes`, with the growth of
 * all that run and its own. */
static uint64_t missing_bytes(const struct kva_scheduler *s, const struct kva_choice *c,
                              uint64_t bytes)
{
    if (kva_running_count(s) == 0)
        return 0;
    uint64_t wanted = bytes + s->running_growth_bytes + c->growth_bytes;
    uint64_t there = device_free(&s->usage);
    return wanted > there ? wanted - there : 0;
}

/* A slot and memory for one more of a tenant, taken from others where they are its by right. */
static bool make_way(struct kva_scheduler *s, struct kva_step_plan *plan, struct kva_choice *c,
                     uint64_t bytes, uint32_t slots, uint64_t now_ns)
{
    for (;;) {
        uint64_t missing = missing_bytes(s, c, bytes);
        if (missing == 0 && kva_running_count(s) < slots)
            return true;
        if (!kva_tenant_take(s, plan, c->tenant, missing, now_ns))
            return false;
        refresh_usage(s);
    }
}

static void clear_reserved(struct kva_scheduler *s)
{
    for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next) {
        struct kva_tenant *t = KVA_CONTAINER_OF(at, struct kva_tenant, link);
        t->reserved = t->passed = t->passed_prefills = 0;
    }
}

/* False: the cheapest tenant's does not fit, and others come behind it. */
static bool resume_one(struct kva_scheduler *s, struct kva_step_plan *plan, struct kva_tenant *t,
                       bool leftover, uint64_t now_ns)
{
    struct kva_choice *c = KVA_CONTAINER_OF(kva_heap_peek(&t->suspended), struct kva_choice, order);
    uint32_t slots = s->params.running_max - plan->reserved;
    if (kva_choice_outgrew(s, c)) {
        kva_choice_strand(s, c);
        return true;
    }
    uint64_t bytes = kva_choice_resume_bytes(s, c);
    if (leftover ? missing_bytes(s, c, bytes) > 0 : !make_way(s, plan, c, bytes, slots, now_ns))
        return false;
    enum kva_status status = s->ops->resume(s->engine_self, c->seq, NULL);
    if (status == KVA_ELIMIT)
        return false;
    if (status != KVA_OK) {
        kva_choice_end(s, c, KVA_FINISH_ERROR, status, 0, now_ns);
        return true;
    }
    kva_choice_leave_suspended(s, c);
    kva_choice_enter_running(s, c, !c->prefill_resumes);
    refresh_usage(s);
    return true;
}

void kva_scheduler_resume_suspended(struct kva_scheduler *s, struct kva_step_plan *plan,
                                    bool leftover, uint64_t now_ns)
{
    clear_reserved(s);
    plan->reserved = 0;
    kva_scheduler_unstrand(s, now_ns);
    if (s->suspended_count == 0)
        return;
    refresh_usage(s);
    struct kva_tenant *t;
    while (s->suspended_count > 0 && (t = kva_tenant_cheapest(s, !leftover))) {
        bool slot = kva_running_count(s) + plan->reserved < s->params.running_max;
        if (t->suspended.count > 0) {
            if ((leftover && !slot) || !resume_one(s, plan, t, leftover, now_ns))
                return;
        } else if (slot) {
            t->reserved++;
            plan->reserved++;
        } else {
            return;
        }
    }
}

/* Host memory comes back only when somebody ends: whoever is preempted keeps his. */
static bool host_has(const struct kva_scheduler *s, uint64_t bytes)
{
    const struct kva_engine_usage *usage = &s->usage;
    return usage->used.host - usage->cached.host + bytes <= usage->budget.host;
}

/* Fewer are not worth a place among the partial prefills; but what prompts that go on leave to those
 * that wait is, where all of the quota is small. */
static uint32_t start_tokens_min(const struct kva_scheduler *s, const struct kva_step_plan *plan)
{
    return kva_min_u32(s->params.engine->limits.prefill_tokens_min,
                       plan->prefill_quota / KVA_SHORT_PROMPT_DIVISOR);
}

/* Whether no more than `left` tokens are to be computed of a choice's prefill. */
static bool fits_whole(const struct kva_scheduler *s, struct kva_choice *c, uint32_t left)
{
    if (c->prefill_tokens <= left)
        return true;
    if (s->step_serial < c->look_step && c->prefill_tokens - c->found_tokens > left)
        return false;
    struct kva_tier_bytes bytes;
    s->ops->admit_bytes(s->engine_self, c->seq, &bytes, &c->found_tokens);
    c->look_step = s->step_serial + LOOK_STEPS;
    return c->prefill_tokens - c->found_tokens <= left;
}

/* Whether this step can do any of the choice's prefill. */
static bool prefill_possible(const struct kva_scheduler *s, struct kva_step_plan *plan,
                             struct kva_choice *c)
{
    uint32_t left = plan->prefill_quota - plan->prefill_used;
    if (left == 0)
        return false;
    if (fits_whole(s, c, left))
        return true;
    uint32_t places = s->params.engine->limits.partial_prefills_max;
    /* One place is left to others: a long prompt is not preempted out of it. */
    if (c->group->request->tenant != 0 && places > 1 && c->tenant->unfinished >= places - 1)
        return false;
    if (plan->unfinished >= places || left < start_tokens_min(s, plan))
        plan->places_closed = true;
    return !plan->places_closed;
}

enum verdict {
    ADMITTED,
    UNFIT, /* there is no memory for it, or no slot */
    LATER, /* others prefill */
    ENDED,
};

/* Whether there is room for a choice that waits to prefill, as far as it is known to be large. */
static bool has_room(const struct kva_scheduler *s, const struct kva_choice *c)
{
    if (c->bypassed == 0)
        return true;
    struct kva_tier_bytes wanted = {0};
    uint32_t cached;
    s->ops->admit_bytes(s->engine_self, c->seq, &wanted, &cached);
    return host_has(s, wanted.host) && missing_bytes(s, c, wanted.device) == 0;
}

static enum verdict try_admit(struct kva_scheduler *s, struct kva_step_plan *plan,
                              struct kva_choice *c, uint64_t now_ns,
                              enum kva_wait_reason *ret_reason)
{
    if (!prefill_possible(s, plan, c)) {
        *ret_reason = KVA_WAIT_PREFILL;
        return has_room(s, c) ? LATER : UNFIT;
    }
    struct kva_tier_bytes wanted = {0};
    uint32_t cached_tokens = 0;
    s->ops->admit_bytes(s->engine_self, c->seq, &wanted, &cached_tokens);
    *ret_reason = KVA_WAIT_HOST_BYTES;
    if (!host_has(s, wanted.host))
        return UNFIT; /* and nobody gives way for nothing */
    bool full = kva_running_count(s) >= s->params.running_max;
    *ret_reason = full ? KVA_WAIT_BATCH_FULL : KVA_WAIT_DEVICE_BYTES;
    if (!make_way(s, plan, c, wanted.device, s->params.running_max, now_ns))
        return UNFIT;
    *ret_reason = KVA_WAIT_DEVICE_BYTES;
    enum kva_tier_id short_of = KVA_TIER_DEVICE;
    enum kva_status status = s->ops->admit(s->engine_self, c->seq, &cached_tokens, &short_of, NULL);
    if (status == KVA_ELIMIT) {
        if (short_of == KVA_TIER_HOST)
            *ret_reason = KVA_WAIT_HOST_BYTES;
        return UNFIT;
    }
    if (status != KVA_OK) {
        kva_choice_end(s, c, KVA_FINISH_ERROR, status, 0, now_ns);
        return ENDED;
    }
    kva_choice_leave_waiting(s, c);
    c->cached_tokens = kva_min_u32(cached_tokens, c->prefill_tokens);
    c->entered_ns = now_ns;
    if (c->times.admitted_ns == 0)
        c->times.admitted_ns = now_ns;
    c->group->admitted = true;
    s->stats.prompt_tokens_cached += c->restarts == 0 ? c->cached_tokens : 0;
    kva_choice_enter_running(s, c, false);
    refresh_usage(s);

    uint32_t left = kva_prefill_left(c);
    c->prefill_quota = kva_min_u32(left, plan->prefill_quota - plan->prefill_used);
    plan->prefill_used += c->prefill_quota;
    plan->unfinished += c->prefill_quota < left;
    c->tenant->unfinished += c->prefill_quota < left;
    return ADMITTED;
}

/* Suspended choices come before waiting ones of the tenant that are not ahead of them. */
static bool behind_suspended(const struct kva_tenant *t)
{
    const struct kva_heap_node *suspended = kva_heap_peek(&t->suspended);
    const struct kva_heap_node *waiting = kva_heap_peek(&t->waiting);
    return suspended && (!waiting || kva_tenant_capped(t) || kva_heap_before(suspended, waiting));
}

/* Whether nobody can be admitted: the cheapest tenant cannot, and others come behind it. */
static bool nobody_fits(struct kva_scheduler *s, const struct kva_step_plan *plan,
                        const struct kva_tenant *t, enum kva_wait_reason *ret_reason)
{
    *ret_reason = KVA_WAIT_BATCH_FULL;
    if (kva_running_count(s) + s->suspended_count + s->stranded_count >= s->sequences_max)
        return true;
    if (kva_running_count(s) >= s->params.running_max && !kva_tenant_may_take(s, t))
        return true;
    *ret_reason = KVA_WAIT_DEVICE_BYTES;
    if (behind_suspended(t))
        return true;
    *ret_reason = KVA_WAIT_PREFILL;
    return plan->prefill_used >= plan->prefill_quota;
}

/* Who has been looked at and stays: out of the heaps while others are looked at. */
struct passed {
    struct kva_list choices;        /* by `run` */
    uint32_t unfit;                 /* of them: that do not fit */
    struct kva_choice *first_unfit; /* NULL: there is none */
};

/* The next is another tenant's if it is the `last`. */
static void pass(struct kva_scheduler *s, struct passed *passed, struct kva_choice *c, bool last)
{
    kva_choice_leave_waiting(s, c);
    kva_list_append(&passed->choices, &c->run);
    if (last)
        c->tenant->reserved = c->tenant->waiting.count;
}

static bool is_shared(const struct kva_scheduler *s)
{
    return s->tenants.next != s->tenants.prev;
}

/* False: nobody else is to be looked at. */
static bool pass_unfit(struct kva_scheduler *s, struct passed *passed, struct kva_choice *c)
{
    if (!passed->first_unfit)
        passed->first_unfit = c;
    if (passed->unfit == KVA_BYPASS_DEPTH || passed->first_unfit->bypassed >= KVA_BYPASS_MAX)
        return false;
    passed->unfit++;
    pass(s, passed, c, ++c->tenant->passed >= BYPASS_DEPTH_SHARED && is_shared(s));
    return true;
}

static bool pass_later(struct kva_scheduler *s, struct passed *passed, struct kva_choice *c)
{
    uint32_t depth = is_shared(s) ? BYPASS_PREFILL_DEPTH_SHARED : KVA_BYPASS_PREFILL_DEPTH;
    if (c->tenant->passed_prefills == depth)
        return false; /* its turn came again for those that are suspended */
    pass(s, passed, c, ++c->tenant->passed_prefills == depth);
    return true;
}

void kva_scheduler_admit_waiting(struct kva_scheduler *s, struct kva_step_plan *plan,
                                 uint64_t now_ns)
{
    struct passed passed = {.unfit = 0};
    kva_list_init(&passed.choices);
    clear_reserved(s);
    plan->places_closed = false;
    if (s->waiting_count > 0)
        refresh_usage(s);
    while (s->waiting_count > 0) {
        struct kva_tenant *t = kva_tenant_cheapest(s, true);
        if (!t) {
            s->wait_reason = kva_list_empty(&passed.choices) ? KVA_WAIT_TENANT : s->wait_reason;
            break;
        }
        enum kva_wait_reason reason;
        struct kva_choice *c = NULL;
        enum verdict verdict = UNFIT;
        bool stop = nobody_fits(s, plan, t, &reason);
        if (!stop) {
            c = KVA_CONTAINER_OF(kva_heap_peek(&t->waiting), struct kva_choice, order);
            verdict = try_admit(s, plan, c, now_ns, &reason);
            if (verdict == ADMITTED && passed.first_unfit)
                passed.first_unfit->bypassed++;
            if (verdict == ADMITTED || verdict == ENDED)
                continue;
        }
        if (kva_list_empty(&passed.choices))
            s->wait_reason = reason;
        if (stop || !(verdict == LATER ? pass_later : pass_unfit)(s, &passed, c))
            break;
    }
    while (!kva_list_empty(&passed.choices)) {
        struct kva_choice *c = KVA_CONTAINER_OF(passed.choices.next, struct kva_choice, run);
        kva_list_remove(&c->run);
        kva_choice_enter_waiting(s, c);
    }
}
