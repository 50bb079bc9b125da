/* admit.c - who gets device memory: suspended choices again, then waiting ones for the first time.
 *
 * Order: (aged priority, arrival). A choice that does not fit may be passed by later ones, but only
 * KVA_BYPASS_MAX times; from then on the freed memory is left to add up until it fits.
 *
 * Watermark: while anything runs, about one page per running sequence stays free, so that what is
 * let in now need not be thrown out a few steps later. */
#include "scheduler/internal.h"

#include <string.h>

/* Choices that may overtake one that does not fit, and how far behind it they are looked for. */
#define BYPASS_MAX   32u
#define BYPASS_DEPTH 8u

static uint64_t device_held(const struct kva_engine_usage *usage)
{
    uint64_t used = usage->used.device;
    return used - (usage->cached.device < used ? usage->cached.device : used);
}

static uint64_t device_free(const struct kva_engine_usage *usage)
{
    uint64_t held = device_held(usage);
    return usage->budget.device > held ? usage->budget.device - held : 0;
}

static void refresh_usage(struct kva_scheduler *s)
{
    s->ops->usage(s->engine_self, &s->usage);
}

/* A page for each running sequence and for the one that is to join them. */
static uint64_t watermark(const struct kva_scheduler *s, enum kva_kv_policy_id joining)
{
    uint64_t bytes = s->page_bytes[joining];
    for (uint32_t p = 0; p < KVA_KV_POLICY_COUNT; p++)
        bytes += s->stats.running_by_policy[p] * s->page_bytes[p];
    return bytes;
}

static bool leaves_room(const struct kva_scheduler *s, const struct kva_choice *c, uint64_t bytes)
{
    if (kva_running_count(s) == 0)
        return true;
    return device_free(&s->usage) >= bytes + watermark(s, c->group->request->kv.policy);
}

void kva_scheduler_resume_suspended(struct kva_scheduler *s, uint64_t now_ns)
{
    if (s->suspended.count == 0)
        return;
    refresh_usage(s);
    while (s->suspended.count > 0 && kva_running_count(s) < s->params.running_max) {
        struct kva_choice *c =
            KVA_CONTAINER_OF(kva_heap_peek(&s->suspended), struct kva_choice, order);
        if (!leaves_room(s, c, c->device_bytes))
            return;
        enum kva_status status = s->ops->resume(s->engine_self, c->seq, NULL);
        if (status == KVA_ELIMIT)
            return;
        if (status != KVA_OK) {
            kva_choice_end(s, c, KVA_FINISH_ERROR, status, 0, now_ns);
            continue;
        }
        kva_heap_remove(&s->suspended, &c->order);
        s->suspended_prefills -= c->prefill_resumes;
        kva_choice_enter_running(s, c, !c->prefill_resumes);
        refresh_usage(s);
    }
}

/* Pages that the prompt and one page of output take. */
static uint64_t pages_at_admission(const struct kva_scheduler *s, const struct kva_choice *c)
{
    uint32_t page_tokens = kva_max_u32(s->params.engine->limits.page_tokens, 1);
    return kva_div_up(c->prompt_tokens, page_tokens) + 1;
}

static uint64_t device_bytes_wanted(const struct kva_scheduler *s, const struct kva_choice *c)
{
    if (s->ops->admit_bytes) {
        struct kva_tier_bytes bytes = {0};
        s->ops->admit_bytes(s->engine_self, c->seq, &bytes);
        return bytes.device;
    }
    return pages_at_admission(s, c) * s->page_bytes[c->group->request->kv.policy];
}

/* The largest price of a page seen is the honest one: shared prompts make the others cheaper. */
static void learn_page_bytes(struct kva_scheduler *s, const struct kva_choice *c,
                             uint64_t held_before)
{
    uint64_t held = device_held(&s->usage);
    if (held <= held_before)
        return;
    uint64_t bytes = (held - held_before) / pages_at_admission(s, c);
    uint64_t *known = &s->page_bytes[c->group->request->kv.policy];
    if (bytes > *known)
        *known = bytes;
}

/* Whether this step can do any of the choice's prefill; a start of a few tokens is not worth a
 * place among the partial prefills. */
static bool prefill_possible(const struct kva_scheduler *s, const struct kva_step_plan *plan,
                             const struct kva_choice *c)
{
    uint32_t left = plan->prefill_quota - plan->prefill_used;
    if (left == 0)
        return false;
    if (c->prompt_tokens <= left)
        return true;
    uint32_t page_tokens = s->params.engine->limits.page_tokens;
    return plan->unfinished < s->params.engine->limits.partial_prefills_max &&
           (left >= page_tokens || left == plan->prefill_quota);
}

enum verdict {
    ADMITTED,
    BLOCKED,
    ENDED,
};

static enum verdict try_admit(struct kva_scheduler *s, struct kva_step_plan *plan,
                              struct kva_choice *c, uint64_t now_ns,
                              enum kva_wait_reason *ret_reason)
{
    if (!prefill_possible(s, plan, c)) {
        *ret_reason = KVA_WAIT_PREFILL;
        return BLOCKED;
    }
    *ret_reason = KVA_WAIT_DEVICE_BYTES;
    if (!leaves_room(s, c, device_bytes_wanted(s, c)))
        return BLOCKED;
    uint64_t held_before = device_held(&s->usage);
    struct kva_err err = {.param = ""};
    uint32_t cached_tokens = 0;
    enum kva_status status = s->ops->admit(s->engine_self, c->seq, &cached_tokens, &err);
    if (status == KVA_ELIMIT) {
        if (strcmp(err.param, "host") == 0)
            *ret_reason = KVA_WAIT_HOST_BYTES;
        return BLOCKED;
    }
    if (status != KVA_OK) {
        kva_choice_end(s, c, KVA_FINISH_ERROR, status, 0, now_ns);
        return ENDED;
    }
    kva_heap_remove(&s->waiting, &c->order);
    c->cached_tokens = kva_min_u32(cached_tokens, c->prompt_tokens);
    c->times.admitted_ns = now_ns;
    c->group->admitted = true;
    s->stats.prompt_tokens_cached += c->cached_tokens;
    kva_choice_enter_running(s, c, false);
    refresh_usage(s);
    learn_page_bytes(s, c, held_before);

    uint32_t left = kva_prefill_left(c);
    c->prefill_quota = kva_min_u32(left, plan->prefill_quota - plan->prefill_used);
    plan->prefill_used += c->prefill_quota;
    plan->unfinished += c->prefill_quota < left;
    return ADMITTED;
}

/* Suspended choices come before waiting ones that are not ahead of them. */
static bool behind_suspended(const struct kva_scheduler *s, const struct kva_choice *c)
{
    const struct kva_heap_node *first = kva_heap_peek(&s->suspended);
    return first && kva_heap_before(first, &c->order);
}

void kva_scheduler_admit_waiting(struct kva_scheduler *s, struct kva_step_plan *plan,
                                 uint64_t now_ns)
{
    struct kva_choice *passed[BYPASS_DEPTH];
    uint32_t passed_count = 0;
    if (s->waiting.count > 0)
        refresh_usage(s);
    while (s->waiting.count > 0) {
        struct kva_choice *c =
            KVA_CONTAINER_OF(kva_heap_peek(&s->waiting), struct kva_choice, order);
        enum kva_wait_reason reason = KVA_WAIT_BATCH_FULL;
        bool full = kva_running_count(s) >= s->params.running_max ||
                    kva_running_count(s) + s->suspended.count >= s->sequences_max;
        bool stop = full || behind_suspended(s, c);
        if (!full && stop)
            reason = KVA_WAIT_DEVICE_BYTES;
        if (!stop) {
            enum verdict verdict = try_admit(s, plan, c, now_ns, &reason);
            if (verdict == ADMITTED && passed_count > 0)
                passed[0]->bypassed++;
            if (verdict != BLOCKED)
                continue;
        }
        if (passed_count == 0)
            s->wait_reason = reason;
        if (stop || passed_count == BYPASS_DEPTH)
            break;
        if (passed_count > 0 ? passed[0]->bypassed >= BYPASS_MAX : c->bypassed >= BYPASS_MAX)
            break;
        kva_heap_remove(&s->waiting, &c->order);
        passed[passed_count++] = c;
    }
    for (uint32_t i = 0; i < passed_count; i++)
        kva_choice_enter_waiting(s, passed[i]);
}
