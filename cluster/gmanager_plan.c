/* gmanager_plan.c - from the placement map to the planner's state, and from its moves to orders. */
#include "cluster/gmanager_internal.h"

#include <math.h>

#define PLAN_BYTES_MAX (256u << 20)

/* By how much an instance may be slower, or faster, than the constants; and what a round counts for
 * among those before it. */
#define PACE_MAX    8.0
#define PACE_WEIGHT 0.2

/* What the planner is given, in its arena. */
struct picture {
    struct kva_plan_state state;
    struct kva_cost_params *costs; /* of each instance */
    struct kva_plan_instance *instances;
    struct kva_plan_request *requests;
    struct kva_plan_loan *loans;
};

static uint32_t index_of(const struct kva_gmanager *g, uint32_t node)
{
    for (uint32_t i = 0; i < g->member_count; i++)
        if (g->members[i].node == node)
            return i;
    return UINT32_MAX;
}

/* How fast a member steps, by what the last of its steps took and should have taken. A report that
 * says the same as before is of the same steps: while there are loans, nothing is learnt. */
static void learn_pace(const struct kva_gmanager *g, struct kva_gmanager_member *member)
{
    const struct kva_message_load *load = &member->load;
    const struct kva_cost_params *cost = &g->params.cost;
    if (load->step_ns == 0 || load->step_millirows == 0 || load->step_ns == member->pace_step_ns)
        return;
    member->pace_step_ns = load->step_ns;
    double layer_s = kva_cost_linear_s(cost, load->step_millirows / 1e3) +
                     (double)load->step_tokens * cost->attend_token_s;
    double pace = (double)load->step_ns / 1e9 / (cost->layers * layer_s);
    pace = fmin(fmax(pace, 1 / PACE_MAX), PACE_MAX);
    member->pace = member->pace == 0 ? pace : member->pace + (pace - member->pace) * PACE_WEIGHT;
}

/* Of an instance that has not told yet: as the others on average, or as the constants. */
static double usual_pace(const struct kva_gmanager *g)
{
    double sum = 0;
    uint32_t known = 0;
    for (uint32_t i = 0; i < g->member_count; i++) {
        sum += g->members[i].pace;
        known += g->members[i].pace > 0;
    }
    return known > 0 ? sum / known : 1;
}

static struct kva_plan_instance instance_of(const struct kva_gmanager *g,
                                            const struct kva_gmanager_member *member,
                                            const struct kva_cost_params *cost)
{
    const struct kva_message_load *load = &member->load;
    bool heard = member->fresh && member->round == g->round;
    return (struct kva_plan_instance){
        .id = member->node,
        .cost = cost,
        .pages = load->pages,
        .free_pages = load->free_pages,
        .batch = load->batch,
        .batch_max = load->batch_max,
        .tokens = load->tokens,
        .waiting = load->waiting,
        .head_pages = load->waiting > 0 ? load->head_pages : 0,
        .waiting_pages = load->waiting > 0 ? load->waiting_pages : 0,
        .prompt_s = (double)load->prompt_ns / 1e9,
        .keeps = load->keeps,
        .closed = !heard || load->moving,
    };
}

static void add_entry(const struct kva_gmanager *g, struct picture *picture, uint32_t instance,
                      const struct kva_message_entry *entry)
{
    if (entry->flags & KVA_ENTRY_LOCAL) {
        picture->requests[picture->state.request_count++] = (struct kva_plan_request){
            .id = entry->request,
            .generation = entry->generation,
            .instance = instance,
            .pages = entry->pages,
            .head = entry->flags & KVA_ENTRY_HEAD,
        };
        return;
    }
    uint32_t creditor = index_of(g, entry->instance);
    if (creditor == UINT32_MAX || creditor == instance)
        return; /* gone: its debtor will find out */
    picture->loans[picture->state.loan_count++] = (struct kva_plan_loan){
        .id = entry->loan,
        .request = entry->request,
        .debtor = instance,
        .creditor = creditor,
        .pages = entry->pages,
    };
}

static bool draw(struct kva_gmanager *g, struct kva_arena *arena, struct picture *picture)
{
    size_t entries = 1;
    for (uint32_t i = 0; i < g->member_count; i++)
        entries += g->members[i].entry_count;
    picture->costs = kva_arena_calloc(arena, g->member_count, sizeof(*picture->costs));
    picture->instances = kva_arena_calloc(arena, g->member_count, sizeof(*picture->instances));
    picture->requests = kva_arena_calloc(arena, entries, sizeof(*picture->requests));
    picture->loans = kva_arena_calloc(arena, entries, sizeof(*picture->loans));
    if (!picture->costs || !picture->instances || !picture->requests || !picture->loans)
        return false;
    for (uint32_t i = 0; i < g->member_count; i++)
        learn_pace(g, &g->members[i]);
    const double usual = usual_pace(g);
    for (uint32_t i = 0; i < g->member_count; i++) {
        const struct kva_gmanager_member *member = &g->members[i];
        picture->costs[i] = g->params.cost;
        kva_cost_scale(&picture->costs[i], member->pace > 0 ? member->pace : usual);
        picture->instances[i] = instance_of(g, member, &picture->costs[i]);
        for (uint32_t n = 0; n < member->entry_count; n++)
            add_entry(g, picture, i, &member->entries[n]);
    }
    picture->state.instances = picture->instances;
    picture->state.requests = picture->requests;
    picture->state.loans = picture->loans;
    picture->state.instance_count = g->member_count;
    return true;
}

static void order(struct kva_gmanager *g, const struct kva_plan_move *move)
{
    const struct kva_gmanager_member *debtor = &g->members[move->debtor];
    const struct kva_gmanager_member *creditor = &g->members[move->creditor];
    if (move->kind == KVA_PLAN_RETURN) {
        struct kva_message message = {
            .type = KVA_MESSAGE_RETURN,
            .home = {.revision = g->revision, .round = g->round, .loan = move->loan},
        };
        g->stats.returns++;
        kva_gmanager_send(g, &message, debtor);
        return;
    }
    if (g->loan_number + 1 >= 1ull << KVA_GMANAGER_LOAN_BITS)
        return; /* 16 million in one election: the next leader has numbers again */
    struct kva_message message = {
        .type = KVA_MESSAGE_MOVE,
        .move = {.revision = g->revision,
                 .round = g->round,
                 .loan = g->revision << KVA_GMANAGER_LOAN_BITS | ++g->loan_number,
                 .request = move->request,
                 .generation = move->generation,
                 .creditor = creditor->node,
                 .creditor_life = creditor->life,
                 .pages = move->pages,
                 .ttl_ns = g->params.loan_ttl_ns},
    };
    g->stats.moves++;
    kva_gmanager_send(g, &message, debtor);
}

/* As if nothing took time, for a plan by who waits alone. */
static void disregard(const struct kva_gmanager *g, struct kva_cost_params *cost,
                      struct picture *picture)
{
    *cost = g->params.cost;
    kva_cost_disregard(cost);
    for (uint32_t i = 0; i < g->member_count; i++) {
        picture->instances[i].cost = cost;
        picture->instances[i].prompt_s = 0;
    }
}

static void regard(const struct kva_gmanager *g, struct picture *picture)
{
    for (uint32_t i = 0; i < g->member_count; i++)
        picture->instances[i] = instance_of(g, &g->members[i], &picture->costs[i]);
}

/* Plan, and say what it is worth. False: without memory, or with reports that cannot be, there is no
 * plan in this round. */
static bool make(struct kva_gmanager *g, struct kva_arena *arena, struct kva_plan *ret_plan)
{
    struct picture picture = {0};
    struct kva_cost_params nothing;
    if (!draw(g, arena, &picture))
        return false;
    if (g->params.disregard)
        disregard(g, &nothing, &picture);
    if (kva_plan_make(&g->params.plan, &picture.state, g->params.moves_max, arena, ret_plan, NULL))
        return false;
    if (!g->params.disregard)
        return true;
    regard(g, &picture);
    return kva_plan_value(&g->params.plan, &picture.state, arena, ret_plan, NULL) == KVA_OK;
}

void kva_gmanager_plan(struct kva_gmanager *g)
{
    struct kva_arena arena;
    struct kva_plan plan = {0};
    kva_arena_init(&arena, PLAN_BYTES_MAX);
    if (make(g, &arena, &plan)) {
        g->stats.plans++;
        g->stats.tokens_per_s_before = plan.tokens_per_s_before;
        g->stats.tokens_per_s_after = plan.tokens_per_s_after;
        for (uint32_t i = 0; i < plan.move_count; i++)
            order(g, &plan.moves[i]);
    }
    kva_arena_finish(&arena);
}
