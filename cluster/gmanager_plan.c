/* gmanager_plan.c - from the placement map to the planner's state, and from its moves to orders. */
#include "cluster/gmanager_internal.h"
#include "cluster/planner_sides.h"

#include <math.h>

#define PLAN_BYTES_MAX (256u << 20)

/* By how much an instance may be slower, or faster, than the constants; and what a round counts for
 * among those before it. */
#define PACE_MAX    8.0
#define PACE_WEIGHT 0.2

/* Of what was seen of loans, so much is forgotten in a round without any: else a time at which they did
 * not pay would be the last that there were some. */
#define FORGOTTEN 0.02

/* What the planner is given, in its arena. */
struct picture {
    struct kva_plan_state state;
    struct kva_cost_params *costs; /* of each instance */
    double usual_loan_pace;
    struct kva_plan_instance *instances;
    struct kva_plan_request *requests;
    struct kva_plan_loan *loans;
    bool *apart; /* [members ^ 2] */
};

static uint32_t index_of(const struct kva_gmanager *g, uint32_t node)
{
    for (uint32_t i = 0; i < g->member_count; i++)
        if (g->members[i].node == node)
            return i;
    return UINT32_MAX;
}

/* A report that says the same as before is of the same steps. */
static bool says_more(struct kva_gmanager_member *member, bool loans)
{
    const struct kva_message_load *load = &member->load;
    if (load->step_ns == 0 || load->step_millirows == 0 || load->step_loans != loans ||
        load->step_ns == member->pace_step_ns)
        return false;
    member->pace_step_ns = load->step_ns;
    return true;
}

static void learn(double *pace, uint64_t step_ns, double model_s)
{
    double now = (double)step_ns / 1e9 / model_s;
    now = fmin(fmax(now, 1 / PACE_MAX), PACE_MAX);
    *pace = *pace == 0 ? now : *pace + (now - *pace) * PACE_WEIGHT;
}

/* How fast a member steps, by what the last of its steps took and should have taken. */
static void learn_pace(const struct kva_gmanager *g, struct kva_gmanager_member *member)
{
    const struct kva_message_load *load = &member->load;
    const struct kva_cost_params *cost = &g->params.cost;
    if (!says_more(member, false))
        return;
    double layer_s = kva_cost_linear_s(cost, load->step_millirows / 1e3) +
                     (double)load->step_tokens * cost->attend_token_s;
    learn(&member->pace, load->step_ns, cost->layers * layer_s);
}

/* The same of steps with loans, of which the model may say too little: a core that is shared, answers
 * that wait for their turn. */
static void learn_loan_pace(const struct kva_gmanager *g, struct kva_gmanager_member *member,
                            const struct kva_plan_sides *sides)
{
    const uint32_t index = (uint32_t)(member - g->members);
    const struct kva_plan_side *side = &sides->sides[index];
    const struct kva_message_load *load = &member->load;
    if (side->borrowed_pages + side->lent_pages == 0) {
        member->loan_pace += member->loan_pace > 0 ? (1 - member->loan_pace) * FORGOTTEN : 0;
        return;
    }
    if (!says_more(member, true))
        return;
    uint32_t rows = kva_max_u32((load->step_millirows + 500) / 1000, 1);
    learn(&member->loan_pace, load->step_ns,
          kva_plan_sides_step_s(sides, index, rows, load->step_tokens));
}

/* Of an instance that has not told yet: as the others on average, or as the model. */
static double usual_pace(const struct kva_gmanager *g, bool loans)
{
    double sum = 0;
    uint32_t known = 0;
    for (uint32_t i = 0; i < g->member_count; i++) {
        double pace = loans ? g->members[i].loan_pace : g->members[i].pace;
        sum += pace;
        known += pace > 0;
    }
    return known > 0 ? sum / known : 1;
}

static struct kva_plan_instance instance_of(const struct kva_gmanager *g,
                                            const struct picture *picture, uint32_t index)
{
    const struct kva_gmanager_member *member = &g->members[index];
    const struct kva_message_load *load = &member->load;
    bool heard = member->fresh && member->round == g->round;
    return (struct kva_plan_instance){
        .id = member->node,
        .cost = &picture->costs[index],
        .pages = load->pages,
        .free_pages = load->free_pages,
        .unlendable_pages = load->free_pages - kva_min_u32(load->free_pages, load->lendable_pages),
        .batch = load->batch,
        .batch_max = load->batch_max,
        .tokens = load->tokens,
        .waiting = load->waiting,
        .head_pages = load->waiting > 0 ? load->head_pages : 0,
        .waiting_pages = load->waiting > 0 ? load->waiting_pages : 0,
        .prompt_s = (double)load->prompt_ns / 1e9,
        .loan_pace = member->loan_pace > 0 ? member->loan_pace : picture->usual_loan_pace,
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
    if (entry->flags & KVA_ENTRY_APART) {
        picture->apart[(size_t)instance * g->member_count + creditor] = true;
        return;
    }
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
    picture->apart = kva_arena_calloc(arena, (size_t)g->member_count * g->member_count, 1);
    if (!picture->costs || !picture->instances || !picture->requests || !picture->loans ||
        !picture->apart)
        return false;
    for (uint32_t i = 0; i < g->member_count; i++)
        learn_pace(g, &g->members[i]);
    const double usual = usual_pace(g, false);
    picture->usual_loan_pace = usual_pace(g, true);
    for (uint32_t i = 0; i < g->member_count; i++) {
        const struct kva_gmanager_member *member = &g->members[i];
        picture->costs[i] = g->params.cost;
        kva_cost_scale(&picture->costs[i], member->pace > 0 ? member->pace : usual);
        picture->instances[i] = instance_of(g, picture, i);
        for (uint32_t n = 0; n < member->entry_count; n++)
            add_entry(g, picture, i, &member->entries[n]);
    }
    picture->state.instances = picture->instances;
    picture->state.requests = picture->requests;
    picture->state.loans = picture->loans;
    picture->state.apart = picture->apart;
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

/* By what is known of each. */
static void regard(const struct kva_gmanager *g, struct picture *picture)
{
    for (uint32_t i = 0; i < g->member_count; i++)
        picture->instances[i] = instance_of(g, picture, i);
}

/* Steps with loans, of which reports speak, in the picture that was drawn. */
static bool learn_loans(struct kva_gmanager *g, struct kva_arena *arena, struct picture *picture)
{
    struct kva_plan_sides sides;
    if (kva_plan_sides_init(&sides, &g->params.plan, &picture->state, arena, NULL))
        return false;
    for (uint32_t i = 0; i < g->member_count; i++)
        learn_loan_pace(g, &g->members[i], &sides);
    picture->usual_loan_pace = usual_pace(g, true);
    regard(g, picture);
    return true;
}

/* Plan, and say what it is worth. False: without memory, or with reports that cannot be, there is no
 * plan in this round. */
static bool make(struct kva_gmanager *g, struct kva_arena *arena, struct kva_plan *ret_plan)
{
    struct picture picture = {0};
    struct kva_cost_params nothing;
    struct kva_plan_params plan = g->params.plan;
    if (!draw(g, arena, &picture) || !learn_loans(g, arena, &picture))
        return false;
    if (g->params.disregard) {
        disregard(g, &nothing, &picture);
        plan.batch_threshold = UINT32_MAX; /* which rows enough are, the constants say */
        plan.copy_step_pages = 0;
    }
    if (kva_plan_make(&plan, &picture.state, g->params.moves_max, arena, ret_plan, NULL))
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
        g->stats.pace = usual_pace(g, false);
        g->stats.loan_pace = usual_pace(g, true);
        g->stats.tokens_per_s_before = plan.tokens_per_s_before;
        g->stats.tokens_per_s_after = plan.tokens_per_s_after;
        for (uint32_t i = 0; i < plan.move_count; i++)
            order(g, &plan.moves[i]);
    }
    kva_arena_finish(&arena);
}
