/* gmanager_plan.c - from the placement map to the planner's state, and from its moves to orders. */
#include "cluster/gmanager_internal.h"

#define PLAN_BYTES_MAX (256u << 20)

/* What the planner is given, in its arena. */
struct picture {
    struct kva_plan_state state;
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

static struct kva_plan_instance instance_of(const struct kva_gmanager *g,
                                            const struct kva_gmanager_member *member)
{
    const struct kva_message_load *load = &member->load;
    bool heard = member->fresh && member->round == g->round;
    return (struct kva_plan_instance){
        .id = member->node,
        .cost = &g->params.cost,
        .pages = load->pages,
        .free_pages = load->free_pages,
        .batch = load->batch,
        .batch_max = load->batch_max,
        .tokens = load->tokens,
        .waiting = load->waiting,
        .head_pages = load->waiting > 0 ? load->head_pages : 0,
        .waiting_pages = load->waiting > 0 ? load->waiting_pages : 0,
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

static bool draw(const struct kva_gmanager *g, struct kva_arena *arena, struct picture *picture)
{
    size_t entries = 1;
    for (uint32_t i = 0; i < g->member_count; i++)
        entries += g->members[i].entry_count;
    picture->instances = kva_arena_calloc(arena, g->member_count, sizeof(*picture->instances));
    picture->requests = kva_arena_calloc(arena, entries, sizeof(*picture->requests));
    picture->loans = kva_arena_calloc(arena, entries, sizeof(*picture->loans));
    if (!picture->instances || !picture->requests || !picture->loans)
        return false;
    for (uint32_t i = 0; i < g->member_count; i++) {
        const struct kva_gmanager_member *member = &g->members[i];
        picture->instances[i] = instance_of(g, member);
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

void kva_gmanager_plan(struct kva_gmanager *g)
{
    struct kva_arena arena;
    struct picture picture = {0};
    struct kva_plan plan = {0};
    kva_arena_init(&arena, PLAN_BYTES_MAX);
    /* Without memory, or with reports that cannot be, there is no plan in this round. */
    if (draw(g, &arena, &picture) &&
        !kva_plan_make(&g->params.plan, &picture.state, g->params.moves_max, &arena, &plan, NULL)) {
        g->stats.plans++;
        g->stats.tokens_per_s_before = plan.tokens_per_s_before;
        g->stats.tokens_per_s_after = plan.tokens_per_s_after;
        for (uint32_t i = 0; i < plan.move_count; i++)
            order(g, &plan.moves[i]);
    }
    kva_arena_finish(&arena);
}
