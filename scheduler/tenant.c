/* tenant.c - whose turn it is: tenants share slots, memory and steps by weight.
 *
 * Every tenant has a virtual time: the tokens that were computed for it, over its weight. A slot is
 * worth KVA_TENANT_QUANTUM tokens, so the price of a tenant's next slot is its virtual time with
 * the slots that it has and one more. The cheapest comes first, and where a tenant waits whose next
 * slot is cheaper than the last one of another, by more than half a slot, the other gives it up:
 * slots are shared by weight at once, and what cannot be shared - one slot for two tenants, places
 * of prefill, memory - by weight over time.
 *
 * Nobody saves up: a tenant that has all it asks for is brought up to one slot's worth behind the
 * others, and none is further ahead of the one that is behind than AHEAD_SLOTS. */
#include "scheduler/internal.h"

#include <stdlib.h>

#define SCALE       (1u << 16) /* of virtual time: a token of weight 1 */
#define AHEAD_SLOTS 8u
/* Steps without another attempt, after one in which what could be taken from others was not enough.
 */
#define BACKOFF_STEPS 16u
/* Tenants that are remembered although nothing of theirs is live. */
#define IDLE_MAX 16384u

static uint64_t slot_price(const struct kva_tenant *t)
{
    return (uint64_t)KVA_TENANT_QUANTUM * SCALE / t->weight;
}

static uint64_t price_of(const struct kva_tenant *t, uint32_t slots)
{
    return t->served + slot_price(t) * slots;
}

static struct kva_tenant *tenant_at(struct kva_list *at)
{
    return KVA_CONTAINER_OF(at, struct kva_tenant, link);
}

/* --- life ---------------------------------------------------------------------------------- */

static void tenant_free(struct kva_scheduler *s, struct kva_tenant *t)
{
    kva_id_table_remove(&s->tenants_by_id, &t->id_node);
    kva_list_remove(&t->link);
    kva_heap_finish(&t->waiting);
    kva_heap_finish(&t->suspended);
    kva_heap_finish(&t->victims);
    free(t);
}

/* Forget those whose past does not count any more, and the oldest if there are too many. */
static void sweep(struct kva_scheduler *s)
{
    for (struct kva_list *at = s->idle_tenants.next, *next; at != &s->idle_tenants; at = next) {
        struct kva_tenant *t = tenant_at(at);
        next = at->next;
        if (t->served <= s->virtual_time || s->tenants_by_id.count > IDLE_MAX)
            tenant_free(s, t);
    }
}

struct kva_tenant *kva_tenant_enter(struct kva_scheduler *s, const struct kva_request *request)
{
    struct kva_id_node *node = kva_id_table_find(&s->tenants_by_id, request->tenant);
    struct kva_tenant *t = node ? KVA_CONTAINER_OF(node, struct kva_tenant, id_node) : NULL;
    if (!t) {
        sweep(s);
        t = calloc(1, sizeof(*t));
        if (!t)
            return NULL;
        t->served = s->virtual_time;
        kva_list_init(&t->link);
        kva_list_append(&s->idle_tenants, &t->link);
        kva_id_table_insert(&s->tenants_by_id, &t->id_node, request->tenant);
    }
    /* The newest word on what it may use counts. */
    t->weight = kva_max_u32(kva_min_u32(request->tenant_weight, KVA_TENANT_WEIGHT_MAX), 1);
    t->running_max = request->tenant_running_max;
    uint32_t room = t->choices + request->choices;
    if (kva_heap_reserve(&t->waiting, room) != KVA_OK ||
        kva_heap_reserve(&t->suspended, room) != KVA_OK ||
        kva_heap_reserve(&t->victims, room) != KVA_OK)
        return NULL;
    if (t->choices == 0) {
        t->served = t->served > s->virtual_time ? t->served : s->virtual_time;
        kva_list_remove(&t->link);
        kva_list_append(&s->tenants, &t->link);
    }
    t->choices += request->choices;
    return t;
}

void kva_tenant_leave(struct kva_scheduler *s, struct kva_tenant *t, uint32_t choices)
{
    t->choices -= choices;
    if (t->choices > 0)
        return;
    kva_list_remove(&t->link);
    kva_list_append(&s->idle_tenants, &t->link);
}

void kva_tenants_finish(struct kva_scheduler *s)
{
    while (!kva_list_empty(&s->tenants))
        tenant_free(s, tenant_at(s->tenants.next));
    while (!kva_list_empty(&s->idle_tenants))
        tenant_free(s, tenant_at(s->idle_tenants.next));
}

/* --- whose turn it is ------------------------------------------------------------------------ */

bool kva_tenant_capped(const struct kva_tenant *t)
{
    return t->running_max > 0 && t->running + t->suspended.count + t->stranded >= t->running_max;
}

struct kva_tenant *kva_tenant_cheapest(struct kva_scheduler *s, bool waiting_too)
{
    struct kva_tenant *best = NULL;
    uint64_t best_price = 0;
    for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next) {
        struct kva_tenant *t = tenant_at(at);
        bool waits = waiting_too && t->waiting.count > t->reserved && !kva_tenant_capped(t);
        if (t->suspended.count == 0 && !waits)
            continue;
        uint64_t price = price_of(t, t->running + t->reserved + 1);
        if (!best || price < best_price) {
            best = t;
            best_price = price;
        }
    }
    return best;
}

/* The one whose last slot is the dearest; NULL: nothing runs. */
static struct kva_tenant *dearest(const struct kva_scheduler *s, const struct kva_tenant *but)
{
    struct kva_tenant *worst = NULL;
    for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next) {
        struct kva_tenant *t = tenant_at(at);
        if (t->running > 0 && t != but &&
            (!worst || price_of(t, t->running) >= price_of(worst, worst->running)))
            worst = t;
    }
    return worst;
}

static struct kva_choice *last_of(const struct kva_tenant *t)
{
    return KVA_CONTAINER_OF(kva_heap_peek(&t->victims), struct kva_choice, order);
}

struct kva_choice *kva_tenants_victim(const struct kva_scheduler *s)
{
    return last_of(dearest(s, NULL));
}

/* Whether the last slot of `from` is worth taking for the next one of `to`. Half a slot of the
 * greater weight lies between giving and taking back. */
static bool is_dearer(const struct kva_tenant *from, uint32_t slots, const struct kva_tenant *to)
{
    uint64_t margin = slot_price(from) < slot_price(to) ? slot_price(from) : slot_price(to);
    return slots > 0 && price_of(from, slots) > price_of(to, to->running + 1) + margin / 2;
}

bool kva_tenant_may_take(const struct kva_scheduler *s, const struct kva_tenant *t)
{
    const struct kva_tenant *from = dearest(s, t);
    return from && s->step_serial >= t->take_step && is_dearer(from, from->running, t);
}

/* Device bytes that are free when `from` has given up all but `keep` of its slots, about. What its
 * choices share with one another is, once none of them is left. */
static uint64_t bytes_given_up(const struct kva_scheduler *s, const struct kva_tenant *from,
                               uint32_t keep)
{
    uint64_t alone = 0, portions = 0;
    for (uint32_t i = 0; i < from->victims.count; i++) {
        const struct kva_choice *c =
            KVA_CONTAINER_OF(from->victims.nodes[i], struct kva_choice, order);
        struct kva_sequence_info info = {0};
        struct kva_shared_bytes shared = kva_choice_shared_bytes(s, c);
        s->ops->sequence_info(s->engine_self, c->seq, &info);
        alone += info.bytes.device > shared.bytes ? info.bytes.device - shared.bytes : 0;
        portions += shared.portion;
    }
    return keep == 0 ? alone + portions : alone / from->running * (from->running - keep);
}

/* Device bytes that others would give up for `t`, about. */
static uint64_t bytes_to_take(const struct kva_scheduler *s, const struct kva_tenant *t)
{
    uint64_t sum = 0;
    for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next) {
        const struct kva_tenant *from = tenant_at(at);
        uint32_t keep = from->running;
        while (from != t && is_dearer(from, keep, t))
            keep--;
        if (keep < from->running)
            sum += bytes_given_up(s, from, keep);
    }
    return sum;
}

bool kva_tenant_take(struct kva_scheduler *s, struct kva_step_plan *plan, struct kva_tenant *t,
                     uint64_t missing_bytes, uint64_t now_ns)
{
    struct kva_tenant *from = dearest(s, t);
    if (!kva_tenant_may_take(s, t))
        return false;
    /* What came in with this step has done nothing yet, and on a prompt that this step finishes
     * others count already: both in the next step. */
    struct kva_choice *c = last_of(from);
    bool planned = c->state == KVA_CHOICE_PREFILL && plan->prefill_quota > 0;
    if ((c->entered_ns == now_ns && c->prefill_done == 0) ||
        (planned && c->prefill_quota >= kva_prefill_left(c)))
        return false;
    if (missing_bytes > 0 && bytes_to_take(s, t) < missing_bytes) {
        t->take_step = s->step_serial + BACKOFF_STEPS;
        return false;
    }
    kva_step_preempt(s, plan, c);
    return true;
}

/* --- time ------------------------------------------------------------------------------------ */

void kva_tenants_charge(struct kva_scheduler *s)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next) {
        struct kva_tenant *t = tenant_at(at);
        t->served += (uint64_t)t->step_tokens * SCALE / t->weight;
        t->step_tokens = 0;
        most = t->served > most ? t->served : most;
        t->wants_more = t->suspended.count > 0 || (t->waiting.count > 0 && !kva_tenant_capped(t));
        if (t->wants_more && t->served < least)
            least = t->served;
    }
    uint64_t now = least == UINT64_MAX ? most : least;
    if (now > s->virtual_time)
        s->virtual_time = now;
    uint64_t ahead = s->virtual_time + (uint64_t)AHEAD_SLOTS * KVA_TENANT_QUANTUM * SCALE;
    for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next) {
        struct kva_tenant *t = tenant_at(at);
        uint64_t behind = s->virtual_time > slot_price(t) ? s->virtual_time - slot_price(t) : 0;
        if (!t->wants_more && t->served < behind)
            t->served = behind;
        if (t->served > ahead)
            t->served = ahead;
    }
}

/* --- prompts of a step ----------------------------------------------------------------------- */

/* By weight among those whose prompts want tokens; what one does not want goes to the others. */
void kva_tenants_share(struct kva_scheduler *s, uint32_t tokens)
{
    for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next)
        tenant_at(at)->prefill_share = 0;
    while (tokens > 0) {
        uint64_t weights = 0;
        uint32_t given = 0;
        for (struct kva_list *at = s->tenants.next; at != &s->tenants; at = at->next) {
            const struct kva_tenant *t = tenant_at(at);
            weights += t->prefill_wanted > t->prefill_share ? t->weight : 0;
        }
        if (weights == 0)
            return;
        for (struct kva_list *at = s->tenants.next; at != &s->tenants && given < tokens;
             at = at->next) {
            struct kva_tenant *t = tenant_at(at);
            uint32_t part = kva_max_u32((uint32_t)((uint64_t)tokens * t->weight / weights), 1);
            part = kva_min_u32(part, t->prefill_wanted - t->prefill_share);
            part = kva_min_u32(part, tokens - given);
            t->prefill_share += part;
            given += part;
        }
        tokens -= given;
    }
}
