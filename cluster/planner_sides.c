/* planner_sides.c - the model of cost.h over a debtor and a creditor: who can join when pages go,
 * and what steps then take. */
#include "cluster/planner_sides.h"

#include <math.h>

/* One side as it would be. */
struct view {
    double layer_s;
    double step_s;
    double tokens_per_s;
};

/* Requests that wait and fit into `free_pages`: the first with what it needs, the others with
 * their mean. Their pages, in *ret_pages. */
static uint32_t joining(const struct kva_plan_instance *instance, int64_t free_pages,
                        uint64_t *ret_pages)
{
    *ret_pages = 0;
    uint32_t room = instance->batch_max - kva_min_u32(instance->batch, instance->batch_max);
    if (instance->waiting == 0 || room == 0 || free_pages < (int64_t)instance->head_pages)
        return 0;
    uint32_t count = 1;
    *ret_pages = instance->head_pages;
    if (instance->waiting == 1)
        return count;
    uint64_t others = instance->waiting_pages - instance->head_pages;
    double mean = fmax(1, (double)others / (instance->waiting - 1));
    double fit = floor((double)(free_pages - (int64_t)instance->head_pages) / mean);
    uint32_t more = (uint32_t)fmin(fit, kva_min_u32(instance->waiting, room) - 1);
    *ret_pages += (uint64_t)(more * mean);
    return count + more;
}

/* Of a debtor's pages at creditors, those at the one that then holds most. */
static uint32_t most_at_one(const struct kva_plan_sides *sides, uint32_t debtor, uint32_t creditor,
                            int64_t extra)
{
    uint32_t count = sides->state->instance_count, most = 0;
    const uint32_t *pairs = &sides->pair_pages[(size_t)debtor * count];
    if (extra == 0)
        return sides->sides[debtor].borrowed_most;
    uint32_t there = (uint32_t)(pairs[creditor] + extra);
    if (extra > 0)
        return kva_max_u32(sides->sides[debtor].borrowed_most, there);
    for (uint32_t i = 0; i < count; i++)
        most = kva_max_u32(most, i == creditor ? there : pairs[i]);
    return most;
}

/* The debtor that has `extra` pages more at `creditor`. */
static struct view view_debtor(const struct kva_plan_sides *sides, uint32_t index,
                               uint32_t creditor, int64_t extra)
{
    const struct kva_plan_side *side = &sides->sides[index];
    const struct kva_plan_instance *instance = side->instance;
    uint32_t most = most_at_one(sides, index, creditor, extra);
    uint64_t page_tokens = sides->params->page_tokens, joined_pages;
    uint32_t joined = joining(instance, (int64_t)side->free_pages + extra, &joined_pages);
    struct kva_cost_load load = {
        .batch = instance->batch + joined,
        .tokens = instance->tokens + joined_pages * page_tokens,
        .borrowed_tokens = (uint64_t)((int64_t)side->borrowed_pages + extra) * page_tokens,
        .borrowed_tokens_most = most * page_tokens,
        .borrowed_rows = side->borrowed_rows + (extra > 0),
        .guest_share = side->guest_share,
        .prompt_s = instance->prompt_s,
        .loan_pace = instance->loan_pace,
    };
    /* What waits for its first step is not among the tokens that decode. */
    load.tokens = kva_max_u64(load.tokens, load.borrowed_tokens);
    load.batch = kva_max_u32(load.batch, 1);
    struct view view = {.layer_s = kva_cost_layer_s(instance->cost, &load)};
    view.step_s = instance->cost->layers * view.layer_s;
    view.tokens_per_s = (instance->batch + joined) / view.step_s;
    return view;
}

static struct view view_creditor(const struct kva_plan_sides *sides, uint32_t index,
                                 double guest_share)
{
    const struct kva_plan_instance *instance = sides->sides[index].instance;
    uint64_t joined_pages;
    uint32_t joined = joining(instance, sides->sides[index].free_pages, &joined_pages);
    struct kva_cost_load load = {
        .batch = instance->batch + joined,
        .tokens = instance->tokens + joined_pages * sides->params->page_tokens,
        .guest_share = guest_share,
        .prompt_s = instance->prompt_s,
        .loan_pace = instance->loan_pace,
    };
    struct view view = {.step_s = kva_cost_step_s(instance->cost, &load)};
    view.tokens_per_s = kva_cost_tokens_per_s(instance->cost, &load);
    return view;
}

/* What `debtor`, whose layers take `layer_s`, takes of the creditor's time with `pages` there. */
static double share_of(const struct kva_plan_sides *sides, uint32_t creditor, int64_t pages,
                       double layer_s)
{
    const struct kva_cost_params *cost = sides->sides[creditor].instance->cost;
    return kva_cost_guest_share(cost, (uint64_t)pages * sides->params->page_tokens, layer_s);
}

struct kva_plan_outcome kva_plan_sides_try(const struct kva_plan_sides *sides, uint32_t debtor,
                                           uint32_t creditor, int64_t pages)
{
    const struct kva_plan_side *d = &sides->sides[debtor], *c = &sides->sides[creditor];
    uint32_t count = sides->state->instance_count;
    int64_t there = sides->pair_pages[(size_t)debtor * count + creditor];
    struct view owes = view_debtor(sides, debtor, creditor, pages);
    double share = c->guest_share - share_of(sides, creditor, there, d->layer_s) +
                   share_of(sides, creditor, there + pages, owes.layer_s);
    struct view lends = view_creditor(sides, creditor, fmax(share, 0));
    double owed_s = d->layer_s * d->instance->cost->layers;
    double lent_s = view_creditor(sides, creditor, c->guest_share).step_s;
    double max_s = sides->params->step_max_s > 0 ? sides->params->step_max_s : INFINITY;
    return (struct kva_plan_outcome){
        .before = d->tokens_per_s + c->tokens_per_s,
        .gain = owes.tokens_per_s + lends.tokens_per_s - d->tokens_per_s - c->tokens_per_s,
        .within_slo = owes.step_s <= fmax(max_s, owed_s) && lends.step_s <= fmax(max_s, lent_s) &&
                      share < KVA_COST_GUEST_SHARE_MAX,
    };
}

/* Shares of all debtors of a creditor, then its rate. */
static void refresh_creditor(struct kva_plan_sides *sides, uint32_t creditor)
{
    uint32_t count = sides->state->instance_count;
    struct kva_plan_side *side = &sides->sides[creditor];
    side->guest_share = 0;
    for (uint32_t d = 0; d < count; d++) {
        uint32_t pages = sides->pair_pages[(size_t)d * count + creditor];
        if (pages > 0)
            side->guest_share += share_of(sides, creditor, pages, sides->sides[d].layer_s);
    }
    side->tokens_per_s = view_creditor(sides, creditor, side->guest_share).tokens_per_s;
}

static void refresh_debtor(struct kva_plan_sides *sides, uint32_t debtor)
{
    struct view view = view_debtor(sides, debtor, debtor, 0);
    sides->sides[debtor].layer_s = view.layer_s;
    sides->sides[debtor].tokens_per_s = view.tokens_per_s;
}

void kva_plan_sides_apply(struct kva_plan_sides *sides, uint32_t debtor, uint32_t creditor,
                          int64_t pages)
{
    struct kva_plan_side *d = &sides->sides[debtor], *c = &sides->sides[creditor];
    uint32_t count = sides->state->instance_count;
    uint32_t *pair = &sides->pair_pages[(size_t)debtor * count + creditor];
    d->borrowed_most = most_at_one(sides, debtor, creditor, pages);
    *pair = (uint32_t)(*pair + pages);
    d->free_pages = (uint32_t)(d->free_pages + pages);
    d->borrowed_pages = (uint32_t)(d->borrowed_pages + pages);
    d->borrowed_rows = d->borrowed_rows + (pages > 0) - (pages < 0 && d->borrowed_rows > 0);
    c->free_pages = (uint32_t)(c->free_pages - pages);
    c->lent_pages = (uint32_t)(c->lent_pages + pages);
    refresh_debtor(sides, debtor);
    refresh_creditor(sides, creditor);
}

uint32_t kva_plan_sides_spare(const struct kva_plan_sides *sides, uint32_t creditor)
{
    const struct kva_plan_side *side = &sides->sides[creditor];
    uint32_t keep = (uint32_t)ceil(side->instance->pages * sides->params->keep_share);
    keep = kva_max_u32(keep, side->instance->unlendable_pages);
    return side->free_pages > keep ? side->free_pages - keep : 0;
}

uint32_t kva_plan_sides_deficit(const struct kva_plan_sides *sides, uint32_t debtor)
{
    const struct kva_plan_side *side = &sides->sides[debtor];
    uint32_t need = side->instance->waiting > 0 ? side->instance->head_pages : 0;
    return need > side->free_pages ? need - side->free_pages : 0;
}

double kva_plan_sides_step_s(const struct kva_plan_sides *sides, uint32_t index, uint32_t rows,
                             uint64_t tokens)
{
    const struct kva_plan_side *side = &sides->sides[index];
    uint64_t page_tokens = sides->params->page_tokens;
    struct kva_cost_load load = {
        .batch = rows,
        .tokens = kva_max_u64(tokens, side->borrowed_pages * page_tokens),
        .borrowed_tokens = side->borrowed_pages * page_tokens,
        .borrowed_tokens_most = side->borrowed_most * page_tokens,
        .borrowed_rows = side->borrowed_rows,
        .guest_share = side->guest_share,
    };
    return kva_cost_step_s(side->instance->cost, &load);
}

double kva_plan_sides_total(const struct kva_plan_sides *sides)
{
    double total = 0;
    for (uint32_t i = 0; i < sides->state->instance_count; i++)
        total += sides->sides[i].tokens_per_s;
    return total;
}

static enum kva_status check_instance(const struct kva_plan_instance *instance, struct kva_err *err)
{
    if (instance->free_pages > instance->pages)
        return kva_fail(err, KVA_EINVAL, "instance %u: %u of %u pages are free", instance->id,
                        instance->free_pages, instance->pages);
    if (instance->unlendable_pages > instance->free_pages)
        return kva_fail(err, KVA_EINVAL, "instance %u: %u pages are free, and %u may not be lent",
                        instance->id, instance->free_pages, instance->unlendable_pages);
    if (instance->waiting > 0 && instance->waiting_pages < instance->head_pages)
        return kva_fail(
            err, KVA_EINVAL, "instance %u: all that wait need %llu pages, the first of them %u",
            instance->id, (unsigned long long)instance->waiting_pages, instance->head_pages);
    return KVA_OK;
}

enum kva_status kva_plan_sides_init(struct kva_plan_sides *sides,
                                    const struct kva_plan_params *params,
                                    const struct kva_plan_state *state, struct kva_arena *arena,
                                    struct kva_err *err)
{
    uint32_t count = state->instance_count;
    if (count > KVA_PLAN_INSTANCES_MAX)
        return kva_fail(err, KVA_EINVAL, "%u instances, at most %u can be planned", count,
                        KVA_PLAN_INSTANCES_MAX);
    *sides = (struct kva_plan_sides){.params = params, .state = state};
    sides->sides = kva_arena_calloc(arena, count, sizeof(*sides->sides));
    sides->pair_pages = kva_arena_calloc(arena, (size_t)count * count, sizeof(uint32_t));
    if (count > 0 && (!sides->sides || !sides->pair_pages))
        return kva_fail(err, KVA_ENOMEM, "no memory for a plan of %u instances", count);
    for (uint32_t i = 0; i < count; i++) {
        enum kva_status status = check_instance(&state->instances[i], err);
        if (status)
            return status;
        sides->sides[i].instance = &state->instances[i];
        sides->sides[i].free_pages = state->instances[i].free_pages;
    }
    for (uint32_t i = 0; i < state->loan_count; i++) {
        const struct kva_plan_loan *loan = &state->loans[i];
        if (loan->debtor >= count || loan->creditor >= count || loan->debtor == loan->creditor)
            return kva_fail(err, KVA_EINVAL, "loan %llu: instance %u owes instance %u, of %u",
                            (unsigned long long)loan->id, loan->debtor, loan->creditor, count);
        uint32_t *pair = &sides->pair_pages[(size_t)loan->debtor * count + loan->creditor];
        *pair += loan->pages;
        uint32_t *most = &sides->sides[loan->debtor].borrowed_most;
        *most = kva_max_u32(*most, *pair);
        sides->sides[loan->debtor].borrowed_pages += loan->pages;
        sides->sides[loan->debtor].borrowed_rows++;
        sides->sides[loan->creditor].lent_pages += loan->pages;
    }
    for (uint32_t i = 0; i < count; i++)
        refresh_debtor(sides, i);
    for (uint32_t i = 0; i < count; i++)
        if (sides->sides[i].lent_pages > 0)
            refresh_creditor(sides, i);
    return KVA_OK;
}
