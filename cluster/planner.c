/* planner.c - Algorithm 1: debtors by rows, their requests by length, creditors by free memory, and
 * for each the number of pages that wins most within the horizon. */
#include "cluster/planner_sides.h"

#include <math.h>
#include <stdlib.h>

/* Numbers of pages that are tried over the whole range; around the best, each is. */
#define SCAN_POINTS 32u

struct planner {
    struct kva_plan_sides sides;
    const struct kva_plan_params *params;
    const struct kva_plan_state *state;
    struct kva_plan_move *moves;
    uint32_t move_count;
    uint32_t moves_max;
    const struct kva_plan_request **requests; /* by instance, then length */
    uint32_t *first;                          /* [instance_count + 1]: of each instance */
    uint32_t *order;                          /* debtors, then scratch */
    uint8_t *role;
    bool *tried;     /* creditors, for one request */
    bool gathers;    /* for a request that fits nowhere */
    bool long_waits; /* such a one waits somewhere */
};

enum role {
    ROLE_NONE,
    ROLE_DEBTOR,
    ROLE_CREDITOR,
    ROLE_CLOSED,
};

/* What a choice is worth: tokens within the horizon. */
struct choice {
    uint32_t pages;
    double tokens;
    double gain;
};

/* --- values ----------------------------------------------------------------------------------- */

/* Tokens that `pages` win within the horizon, once they are copied, less what copying costs; or
 * -INFINITY where the gain is not worth a move, or a step would take too long. */
static double worth(const struct planner *p, uint32_t debtor, struct kva_plan_outcome outcome,
                    uint32_t copied_pages)
{
    const struct kva_plan_params *params = p->params;
    if (!outcome.within_slo || outcome.gain <= 0 ||
        outcome.gain < params->gain_min_share * outcome.before)
        return -INFINITY;
    const struct kva_plan_side *side = &p->sides.sides[debtor];
    const struct kva_cost_params *cost = side->instance->cost;
    double copy_s = copied_pages * (double)cost->page_bytes / params->copy_bytes_per_s;
    if (params->copy_step_pages > 0)
        copy_s =
            fmax(copy_s, copied_pages / params->copy_step_pages * cost->layers * side->layer_s);
    double tokens = outcome.gain * (params->horizon_s - copy_s) -
                    params->copy_loss_share * outcome.before * copy_s;
    return tokens > 0 ? tokens : -INFINITY;
}

static void consider(const struct planner *p, uint32_t debtor, uint32_t creditor, uint32_t pages,
                     struct choice *best)
{
    struct kva_plan_outcome outcome = kva_plan_sides_try(&p->sides, debtor, creditor, pages);
    double tokens = worth(p, debtor, outcome, pages);
    if (tokens > best->tokens)
        *best = (struct choice){.pages = pages, .tokens = tokens, .gain = outcome.gain};
}

/* Lines 9 to 12: the best number of pages up to `max`. The gain is a staircase, one step for each
 * request that comes to fit, and smooth between them: some points over the whole range, the one
 * with which the first request fits, then all around the best. */
static struct choice best_pages(const struct planner *p, uint32_t debtor, uint32_t creditor,
                                uint32_t max)
{
    uint32_t grain = p->params->grain_pages;
    struct choice best = {.tokens = 0};
    uint32_t grains = max / grain, stride = (uint32_t)kva_div_up(grains, SCAN_POINTS);
    if (grains == 0)
        return best;
    for (uint32_t n = stride; n <= grains; n += stride)
        consider(p, debtor, creditor, n * grain, &best);
    uint32_t fits = (uint32_t)kva_div_up(kva_plan_sides_deficit(&p->sides, debtor), grain);
    if (fits > 0 && fits <= grains)
        consider(p, debtor, creditor, fits * grain, &best);
    uint32_t middle = best.pages / grain, from = middle > stride ? middle - stride + 1 : 1;
    for (uint32_t n = from; n < middle + stride && n <= grains && middle > 0; n++)
        consider(p, debtor, creditor, n * grain, &best);
    return best;
}

/* --- roles and order -------------------------------------------------------------------------- */

static void take_roles(struct planner *p)
{
    for (uint32_t i = 0; i < p->state->instance_count; i++) {
        const struct kva_plan_side *side = &p->sides.sides[i];
        bool both = side->borrowed_pages > 0 && side->lent_pages > 0;
        p->role[i] = side->instance->closed || both ? ROLE_CLOSED
                     : side->borrowed_pages > 0     ? ROLE_DEBTOR
                     : side->lent_pages > 0         ? ROLE_CREDITOR
                                                    : ROLE_NONE;
    }
}

static double usage(const struct planner *p, uint32_t index)
{
    const struct kva_plan_side *side = &p->sides.sides[index];
    return side->instance->pages > 0 ? 1 - (double)side->free_pages / side->instance->pages : 1;
}

/* Who keeps its memory is no creditor, except for a request that fits nowhere: somebody has to give
 * way. While such a one waits, whose need is all or nothing, nobody who waits lends to others: it
 * would never find enough. */
static bool keeps(const struct planner *p, const struct kva_plan_instance *instance)
{
    return !p->gathers && (instance->keeps || (p->long_waits && instance->waiting > 0));
}

/* Whether it may hold pages for others: lines 3, 4. */
static bool may_lend(const struct planner *p, uint32_t index)
{
    return (p->role[index] == ROLE_NONE || p->role[index] == ROLE_CREDITOR) &&
           !keeps(p, p->sides.sides[index].instance) &&
           usage(p, index) <= p->params->usage_threshold &&
           kva_plan_sides_spare(&p->sides, index) >= p->params->grain_pages;
}

static bool creditor_before(const struct planner *p, uint32_t a, uint32_t b)
{
    const struct kva_plan_instance *x = &p->state->instances[a], *y = &p->state->instances[b];
    uint32_t spare_x = kva_plan_sides_spare(&p->sides, a);
    uint32_t spare_y = kva_plan_sides_spare(&p->sides, b);
    if (!p->gathers && (x->waiting > 0) != (y->waiting > 0))
        return y->waiting > 0;
    return spare_x != spare_y ? spare_x > spare_y : x->id < y->id;
}

static bool is_apart(const struct planner *p, uint32_t debtor, uint32_t creditor)
{
    const bool *apart = p->state->apart;
    return apart && apart[(size_t)debtor * p->state->instance_count + creditor];
}

/* The creditor with the most free memory among those not yet tried to which pages can go, one with
 * nobody who waits before others; UINT32_MAX: none. */
static uint32_t next_creditor(const struct planner *p, uint32_t debtor)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < p->state->instance_count; i++) {
        if (i != debtor && !p->tried[i] && !is_apart(p, debtor, i) && may_lend(p, i) &&
            (best == UINT32_MAX || creditor_before(p, i, best)))
            best = i;
    }
    return best;
}

static bool debtor_before(const struct planner *p, uint32_t a, uint32_t b)
{
    const struct kva_plan_instance *x = &p->state->instances[a], *y = &p->state->instances[b];
    return x->batch != y->batch ? x->batch < y->batch : x->id < y->id;
}

/* The first that waits needs more than its instance will ever have. */
static bool is_outgrown(const struct kva_plan_instance *instance)
{
    return instance->head_pages > instance->pages;
}

/* Nothing more is lent to it so that it has more. */
static bool has_enough_rows(const struct planner *p, uint32_t index)
{
    return p->state->instances[index].batch > p->params->batch_threshold;
}

/* Lines 1, 2; and who has a request that is longer than itself, however many rows it has. */
static uint32_t list_debtors(struct planner *p)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->state->instance_count; i++) {
        const struct kva_plan_instance *instance = &p->state->instances[i];
        bool may = p->role[i] == ROLE_NONE || p->role[i] == ROLE_DEBTOR;
        if (!may || (has_enough_rows(p, i) && !is_outgrown(instance)))
            continue;
        uint32_t at = count++;
        for (; at > 0 && debtor_before(p, i, p->order[at - 1]); at--)
            p->order[at] = p->order[at - 1];
        p->order[at] = i;
    }
    return count;
}

/* By instance, the first that waits before all, then the longest; ties by id. */
static int compare_requests(const void *a, const void *b)
{
    const struct kva_plan_request *x = *(const struct kva_plan_request *const *)a;
    const struct kva_plan_request *y = *(const struct kva_plan_request *const *)b;
    if (x->instance != y->instance)
        return x->instance < y->instance ? -1 : 1;
    if (x->head != y->head)
        return x->head ? -1 : 1;
    if (x->pages != y->pages)
        return x->pages > y->pages ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static enum kva_status sort_requests(struct planner *p, struct kva_err *err)
{
    uint32_t count = p->state->request_count, instances = p->state->instance_count, at = 0;
    for (uint32_t i = 0; i < count; i++) {
        p->requests[i] = &p->state->requests[i];
        if (p->requests[i]->instance >= instances)
            return kva_fail(err, KVA_EINVAL, "request %llu is on instance %u, of %u",
                            (unsigned long long)p->requests[i]->id, p->requests[i]->instance,
                            instances);
    }
    if (count > 0)
        qsort(p->requests, count, sizeof(const struct kva_plan_request *), compare_requests);
    for (uint32_t i = 0; i <= instances; i++) {
        while (at < count && p->requests[at]->instance < i)
            at++;
        p->first[i] = at;
    }
    return KVA_OK;
}

/* --- moves ------------------------------------------------------------------------------------ */

static bool add_move(struct planner *p, struct kva_plan_move move)
{
    if (p->move_count == p->moves_max)
        return false;
    p->moves[p->move_count++] = move;
    bool lends = move.kind == KVA_PLAN_LEND;
    kva_plan_sides_apply(&p->sides, move.debtor, move.creditor,
                         lends ? (int64_t)move.pages : -(int64_t)move.pages);
    if (lends) {
        p->role[move.debtor] = ROLE_DEBTOR;
        p->role[move.creditor] = ROLE_CREDITOR;
    }
    return true;
}

static struct kva_plan_move lend(const struct kva_plan_request *request, uint32_t creditor,
                                 uint32_t pages, double gain)
{
    return (struct kva_plan_move){
        .kind = KVA_PLAN_LEND,
        .request = request->id,
        .generation = request->generation,
        .debtor = request->instance,
        .creditor = creditor,
        .pages = pages,
        .gain = gain,
    };
}

/* Pages of a request that may go. */
static uint32_t movable(const struct planner *p, const struct kva_plan_request *request)
{
    uint32_t home = p->params->home_pages_min;
    return request->pages > home ? request->pages - home : 0;
}

static void forget_tried(struct planner *p)
{
    for (uint32_t i = 0; i < p->state->instance_count; i++)
        p->tried[i] = false;
}

/* Loans that a request may have yet. */
static uint32_t loans_left(const struct planner *p, const struct kva_plan_request *request)
{
    uint32_t max = p->params->request_loans_max, count = 0;
    for (uint32_t i = 0; i < p->state->loan_count && max > 0; i++)
        count += p->state->loans[i].debtor == request->instance &&
                 p->state->loans[i].request == request->id;
    return max == 0 ? UINT32_MAX : max - kva_min_u32(max, count);
}

/* Lines 8 to 19 for one request: false where no creditor gains anything. */
static bool spread_request(struct planner *p, const struct kva_plan_request *request)
{
    uint32_t left = movable(p, request), debtor = request->instance;
    uint32_t loans = loans_left(p, request);
    bool moved = false;
    forget_tried(p);
    for (; left >= p->params->grain_pages && loans > 0; loans--) {
        uint32_t creditor = next_creditor(p, debtor);
        if (creditor == UINT32_MAX)
            break;
        uint32_t max = kva_min_u32(left, kva_plan_sides_spare(&p->sides, creditor));
        struct choice best = best_pages(p, debtor, creditor, max);
        if (best.pages == 0 || !add_move(p, lend(request, creditor, best.pages, best.gain)))
            break;
        p->tried[creditor] = true;
        left -= best.pages;
        moved = true;
    }
    return moved;
}

static bool is_too_long(const struct planner *p, const struct kva_plan_request *request)
{
    return request->head && is_outgrown(&p->state->instances[request->instance]);
}

/* Such a request gets pages of several instances: all that it lacks now, or none. When it has waited
 * for long, all of its pages that may go, if that is enough for its instance to hold the rest one day:
 * until then they lie idle. Tokens a second do not decide: one long request costs its creditors more
 * than it brings, and would never be served. */
static bool gather(struct planner *p, const struct kva_plan_request *request,
                   struct kva_arena *arena)
{
    uint32_t debtor = request->instance, grain = p->params->grain_pages;
    uint32_t instances = p->state->instance_count, begin = p->move_count;
    const struct kva_plan_instance *instance = &p->state->instances[debtor];
    uint32_t lacks = kva_plan_sides_deficit(&p->sides, debtor);
    uint32_t deficit = kva_min_u32(lacks, movable(p, request) / grain * grain);
    if (deficit == 0 || (deficit < lacks && !instance->keeps) ||
        instance->head_pages - deficit > instance->pages)
        return false;
    double before = kva_plan_sides_total(&p->sides);
    struct kva_plan_side *sides = kva_arena_calloc(arena, instances, sizeof(*sides));
    uint8_t *roles = kva_arena_calloc(arena, instances, 1);
    if (!sides || !roles)
        return false;
    for (uint32_t i = 0; i < instances; i++) {
        sides[i] = p->sides.sides[i];
        roles[i] = p->role[i];
    }
    forget_tried(p);
    p->gathers = true;
    for (uint32_t loans = loans_left(p, request); deficit > 0 && loans > 0; loans--) {
        uint32_t creditor = next_creditor(p, debtor);
        if (creditor == UINT32_MAX)
            break;
        uint32_t spare = kva_plan_sides_spare(&p->sides, creditor) / grain * grain;
        uint32_t pages = kva_min_u32((uint32_t)kva_div_up(deficit, grain) * grain, spare);
        if (!add_move(p, lend(request, creditor, pages, 0)))
            break;
        p->tried[creditor] = true;
        deficit -= kva_min_u32(deficit, pages);
    }
    p->gathers = false;
    if (deficit == 0) {
        p->moves[p->move_count - 1].gain = kva_plan_sides_total(&p->sides) - before;
        return true;
    }
    for (; p->move_count > begin; p->move_count--) {
        const struct kva_plan_move *move = &p->moves[p->move_count - 1];
        p->sides.pair_pages[(size_t)debtor * instances + move->creditor] -= move->pages;
    }
    for (uint32_t i = 0; i < instances; i++) {
        p->sides.sides[i] = sides[i];
        p->role[i] = roles[i];
    }
    return false;
}

/* Lines 5 to 20 for one debtor. */
static void plan_debtor(struct planner *p, uint32_t debtor, struct kva_arena *arena)
{
    uint32_t moved = 0;
    for (uint32_t i = p->first[debtor]; i < p->first[debtor + 1]; i++) {
        const struct kva_plan_request *request = p->requests[i];
        if (loans_left(p, request) == 0)
            continue;
        bool went = is_too_long(p, request)
                        ? gather(p, request, arena)
                        : !has_enough_rows(p, debtor) && spread_request(p, request);
        moved += went;
        /* Shorter ones gain no more than the longest did; the head is of another kind. */
        if ((!went && !request->head) || moved >= p->params->requests_per_debtor)
            return;
    }
}

/* A loan whose debtor has room for it, with nobody waiting, and gains by it. */
static void plan_return(struct planner *p, const struct kva_plan_loan *loan)
{
    const struct kva_plan_side *side = &p->sides.sides[loan->debtor];
    bool open = p->role[loan->debtor] == ROLE_DEBTOR && p->role[loan->creditor] == ROLE_CREDITOR;
    uint32_t keep = (uint32_t)ceil(side->instance->pages * p->params->keep_share);
    if (!open || side->instance->waiting > 0 || side->free_pages < (uint64_t)loan->pages + keep)
        return;
    struct kva_plan_outcome outcome =
        kva_plan_sides_try(&p->sides, loan->debtor, loan->creditor, -(int64_t)loan->pages);
    if (worth(p, loan->debtor, outcome, loan->pages) <= 0)
        return;
    struct kva_plan_move move = {
        .kind = KVA_PLAN_RETURN,
        .request = loan->request,
        .loan = loan->id,
        .debtor = loan->debtor,
        .creditor = loan->creditor,
        .pages = loan->pages,
        .gain = outcome.gain,
    };
    (void)add_move(p, move);
}

static bool lends_in_plan(const struct planner *p, uint32_t debtor)
{
    for (uint32_t i = 0; i < p->move_count; i++)
        if (p->moves[i].debtor == debtor && p->moves[i].kind == KVA_PLAN_LEND)
            return true;
    return false;
}

static enum kva_status planner_init(struct planner *p, struct kva_arena *arena, struct kva_err *err)
{
    uint32_t count = p->state->instance_count;
    enum kva_status status = kva_plan_sides_init(&p->sides, p->params, p->state, arena, err);
    if (status)
        return status;
    p->moves = kva_arena_calloc(arena, p->moves_max, sizeof(*p->moves));
    p->requests = kva_arena_calloc(arena, p->state->request_count + 1u, sizeof(*p->requests));
    p->first = kva_arena_calloc(arena, count + 1u, sizeof(*p->first));
    p->order = kva_arena_calloc(arena, count + 1u, sizeof(*p->order));
    p->role = kva_arena_calloc(arena, count + 1u, sizeof(*p->role));
    p->tried = kva_arena_calloc(arena, count + 1u, sizeof(*p->tried));
    if (!p->moves || !p->requests || !p->first || !p->order || !p->role || !p->tried)
        return kva_fail(err, KVA_ENOMEM, "no memory for a plan of %u requests",
                        p->state->request_count);
    take_roles(p);
    return sort_requests(p, err);
}

struct kva_plan_params kva_plan_defaults(const struct kva_cost_params *cost)
{
    return (struct kva_plan_params){
        .page_tokens = 64,
        .grain_pages = 4,
        .home_pages_min = 4,
        .batch_threshold = kva_cost_knee_rows(cost, 0.8),
        .usage_threshold = 0.9,
        .keep_share = 0.05,
        .horizon_s = 10,
        .copy_bytes_per_s = cost->link_bytes_per_s,
        .copy_loss_share = 0.01,
        .gain_min_share = 0.02,
        .requests_per_debtor = 8,
    };
}

enum kva_status kva_plan_make(const struct kva_plan_params *params,
                              const struct kva_plan_state *state, uint32_t moves_max,
                              struct kva_arena *arena, struct kva_plan *ret_plan,
                              struct kva_err *err)
{
    struct planner p = {.params = params, .state = state, .moves_max = moves_max};
    if (params->page_tokens == 0 || params->grain_pages == 0 || moves_max == 0 ||
        !(params->copy_bytes_per_s > 0) || !(params->copy_step_pages >= 0))
        return kva_fail(err, KVA_EINVAL,
                        "a plan of pages of %u tokens, %u at a time, %u moves, %g "
                        "bytes a second, %g pages a step",
                        params->page_tokens, params->grain_pages, moves_max,
                        params->copy_bytes_per_s, params->copy_step_pages);
    enum kva_status status = planner_init(&p, arena, err);
    if (status)
        return status;
    double before = kva_plan_sides_total(&p.sides);
    for (uint32_t i = 0; i < state->request_count; i++)
        p.long_waits |= is_too_long(&p, &state->requests[i]);
    uint32_t debtors = list_debtors(&p);
    for (uint32_t i = 0; i < debtors; i++) {
        uint8_t role = p.role[p.order[i]]; /* an earlier debtor may have made it a creditor */
        if (role == ROLE_NONE || role == ROLE_DEBTOR)
            plan_debtor(&p, p.order[i], arena);
    }
    for (uint32_t i = 0; i < state->loan_count; i++)
        if (!lends_in_plan(&p, state->loans[i].debtor))
            plan_return(&p, &state->loans[i]);
    *ret_plan = (struct kva_plan){
        .moves = p.moves,
        .move_count = p.move_count,
        .tokens_per_s_before = before,
        .tokens_per_s_after = kva_plan_sides_total(&p.sides),
    };
    return KVA_OK;
}

enum kva_status kva_plan_value(const struct kva_plan_params *params,
                               const struct kva_plan_state *state, struct kva_arena *arena,
                               struct kva_plan *plan, struct kva_err *err)
{
    struct kva_plan_sides sides;
    enum kva_status status = kva_plan_sides_init(&sides, params, state, arena, err);
    if (status)
        return status;
    plan->tokens_per_s_before = kva_plan_sides_total(&sides);
    for (uint32_t i = 0; i < plan->move_count; i++) {
        const struct kva_plan_move *move = &plan->moves[i];
        int64_t pages = move->kind == KVA_PLAN_LEND ? move->pages : -(int64_t)move->pages;
        kva_plan_sides_apply(&sides, move->debtor, move->creditor, pages);
    }
    plan->tokens_per_s_after = kva_plan_sides_total(&sides);
    return KVA_OK;
}

enum kva_status kva_plan_gain(const struct kva_plan_params *params,
                              const struct kva_plan_state *state, uint32_t debtor,
                              uint32_t creditor, uint32_t pages, struct kva_arena *arena,
                              double *ret_gain, struct kva_err *err)
{
    struct kva_plan_sides sides;
    if (debtor >= state->instance_count || creditor >= state->instance_count || debtor == creditor)
        return kva_fail(err, KVA_EINVAL, "instance %u owes instance %u, of %u", debtor, creditor,
                        state->instance_count);
    enum kva_status status = kva_plan_sides_init(&sides, params, state, arena, err);
    if (!status)
        *ret_gain = kva_plan_sides_try(&sides, debtor, creditor, pages).gain;
    return status;
}
