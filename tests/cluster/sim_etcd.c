/* sim_etcd.c - gManagers: their life, their election by etcd's rules, and orders that no planner
 * would give. */
#include "tests/cluster/sim.h"

#include <stdlib.h>

#include "cluster/gmanager_internal.h"
#include "cluster/rmanager_internal.h"

#define MANAGER_STEP_NS (40 * KVA_NS_PER_MS)

static void manager_send(void *opaque, const struct kva_message *message)
{
    struct sim_manager *manager = opaque;
    sim_send(manager->sim, message, NULL, 0);
}

/* Rows are free up to 64, links are slow enough for pages to come home. */
static struct kva_cost_params cost(void)
{
    return (struct kva_cost_params){
        .layers = 1,
        .point_count = 2,
        .points = {{1, 1e-3}, {64, 2e-3}},
        .attend_token_s = 1e-6,
        .link_latency_s = 2e-5,
        .link_bytes_per_s = 1e9,
        .query_bytes = 16,
        .partial_bytes = 16,
        .page_bytes = 4096,
    };
}

static struct kva_gmanager_params params_of(const struct sim_manager *manager, uint32_t index)
{
    struct kva_gmanager_params params = {
        .node = SIM_MANAGER_ID + index,
        .life = manager->life,
        .instances_max = SIM_NODES_MAX,
        .entries_max = SIM_REQUESTS_MAX + SIM_STORES_MAX,
        .moves_max = 16,
        .round_ns = SIM_ROUND_NS,
        .gather_ns = SIM_ROUND_NS / 4,
        .loan_ttl_ns = SIM_TTL_NS,
        .lease_ttl_ns = SIM_ETCD_TTL_NS,
        .lease_margin_ns = SIM_ETCD_TTL_NS / 5,
        .cost = cost(),
    };
    params.plan = kva_plan_defaults(&params.cost);
    params.plan.page_tokens = SIM_PAGE_TOKENS;
    params.plan.grain_pages = 1;
    params.plan.home_pages_min = 1;
    params.plan.batch_threshold = 64;
    params.plan.usage_threshold = 0.95;
    params.plan.gain_min_share = 0.01;
    return params;
}

void sim_manager_start(struct sim *sim, uint32_t index)
{
    struct sim_manager *manager = &sim->managers[index];
    struct kva_gmanager_ops ops = {.opaque = manager, .send = manager_send};
    struct kva_err err = {0};
    manager->life++;
    manager->clock = (struct sim_clock){
        .offset_ns = sim_below(sim, 1000) * KVA_NS_PER_S,
        .drift_ppm = (int32_t)sim_below(sim, 2 * SIM_DRIFT_MAX_PPM) - SIM_DRIFT_MAX_PPM,
    };
    manager->stopped_ns = manager->zombie_revision = 0;
    struct kva_gmanager_params params = params_of(manager, index);
    if (kva_gmanager_create(&params, &ops, &manager->gmanager, &err)) {
        sim_fail(sim, "no gManager: %s", err.message);
        return;
    }
    for (uint32_t i = 0; i < sim->node_count; i++)
        if (sim->nodes[i].rmanager &&
            kva_gmanager_member(manager->gmanager, i + 1, sim->nodes[i].life))
            sim_fail(sim, "no room for a member");
    sim_at(sim, sim->now_ns, SIM_EVENT_MANAGER, index)->life = manager->life;
}

void sim_manager_stop(struct sim *sim, uint32_t index)
{
    kva_gmanager_destroy(sim->managers[index].gmanager);
    sim->managers[index].gmanager = NULL;
}

/* --- election --------------------------------------------------------------------------------- */

/* What asks for election, or keeps alive, arrives: whoever has the lease keeps it, and nobody else
 * gets it before its end. */
void sim_etcd_ask(struct sim *sim, const struct sim_event *event)
{
    struct sim_etcd *etcd = &sim->etcd;
    bool has = etcd->leader == event->index && etcd->leader_life == event->life &&
               sim->now_ns < etcd->lease_end_ns;
    bool free_now = etcd->leader == UINT32_MAX || sim->now_ns >= etcd->lease_end_ns;
    if (etcd->down)
        return;
    if (!has && free_now && sim->managers[event->index].life == event->life) {
        etcd->leader = event->index;
        etcd->leader_life = event->life;
        etcd->revision += 1 + sim_below(sim, 5);
        sim->stats.elections++;
        has = true;
    }
    if (has)
        etcd->lease_end_ns = sim->now_ns + SIM_ETCD_TTL_NS;
    uint32_t etcd_place = sim->node_count + sim->manager_count;
    if (!sim_reaches(sim, etcd_place, sim->node_count + event->index) ||
        sim_chance(sim, sim->loss_pct))
        return;
    struct sim_event *answer =
        sim_at(sim, sim->now_ns + sim_delay_ns(sim), SIM_EVENT_ETCD_ANSWER, event->index);
    answer->life = event->life;
    answer->sent_ns = event->sent_ns;
    answer->revision = has ? etcd->revision : 0;
}

void sim_etcd_answer(struct sim *sim, const struct sim_event *event)
{
    struct sim_manager *manager = &sim->managers[event->index];
    struct kva_gmanager *g = manager->gmanager;
    if (!g || manager->life != event->life)
        return;
    if (event->revision == 0) {
        if (g->elected && sim_chance(sim, 30))
            manager->zombie_revision = g->revision;
        kva_gmanager_deposed(g);
    } else if (!g->elected || event->revision > g->revision) {
        kva_gmanager_elected(g, event->revision, event->sent_ns);
    } else if (event->revision == g->revision) {
        kva_gmanager_kept_alive(g, event->sent_ns);
    }
}

void sim_member_gone(struct sim *sim, const struct sim_event *event)
{
    if (sim->nodes[event->index].life != event->life || sim->nodes[event->index].rmanager)
        return;
    for (uint32_t i = 0; i < sim->manager_count; i++)
        if (sim->managers[i].gmanager)
            kva_gmanager_member_gone(sim->managers[i].gmanager, event->index + 1);
}

/* --- what a manager does ---------------------------------------------------------------------- */

/* Any order that a leader could give, sensible or not. */
static void random_order(struct sim *sim, struct sim_manager *manager, uint64_t revision)
{
    struct kva_gmanager *g = manager->gmanager;
    struct sim_request *request = &sim->requests[sim_below(sim, sim->request_count)];
    uint32_t creditor = sim_below(sim, sim->node_count);
    struct kva_gmanager_member target = {.node = request->node + 1,
                                         .life = sim->nodes[request->node].life};
    if (creditor == request->node || request->state == SIM_ENDED)
        return;
    bool wrong = sim_chance(sim, 5);
    uint64_t number = revision == g->revision && g->elected ? ++g->loan_number
                                                            : 1u << 20 | ++manager->zombie_loans;
    struct kva_message message = {
        .type = KVA_MESSAGE_MOVE,
        .move = {.revision = revision,
                 .round = g->round,
                 .loan = revision << KVA_GMANAGER_LOAN_BITS | number,
                 .request = request->id,
                 .generation = request->generation + wrong,
                 .creditor = creditor + 1,
                 .creditor_life = kva_max_u64(1, sim->nodes[creditor].life - sim_chance(sim, 5)),
                 .pages = 1 + sim_below(sim, sim_request_closed(request) + 3),
                 .ttl_ns = SIM_TTL_NS},
    };
    if (g->round == 0)
        message.move.round = 1;
    kva_gmanager_send(g, &message, &target);
}

/* Bring some loan home, whether that is wise or not. */
static void random_return(struct sim *sim, struct sim_manager *manager)
{
    uint32_t index = sim_below(sim, sim->node_count);
    struct sim_node *node = &sim->nodes[index];
    struct kva_gmanager_member target = {.node = index + 1, .life = node->life};
    if (!node->rmanager)
        return;
    const struct kva_debt *debt = &node->rmanager->debts[sim_below(sim, SIM_STORES_MAX)];
    if (debt->state != KVA_DEBT_LENT)
        return;
    struct kva_message message = {
        .type = KVA_MESSAGE_RETURN,
        .home = {.revision = manager->gmanager->revision,
                 .round = manager->gmanager->round,
                 .loan = debt->loan.id},
    };
    kva_gmanager_send(manager->gmanager, &message, &target);
}

void sim_manager_step(struct sim *sim, uint32_t index)
{
    struct sim_manager *manager = &sim->managers[index];
    struct kva_gmanager *g = manager->gmanager;
    if (!g)
        return;
    uint64_t local_ns = sim_local_ns(sim, &manager->clock);
    sim_at(sim, sim->now_ns + MANAGER_STEP_NS, SIM_EVENT_MANAGER, index)->life = manager->life;
    if (g->elected && !kva_gmanager_leads(g, local_ns) && sim_chance(sim, 20))
        manager->zombie_revision = g->revision;
    kva_gmanager_tick(g, local_ns);
    uint32_t etcd_place = sim->node_count + sim->manager_count;
    if (sim_reaches(sim, sim->node_count + index, etcd_place) && !sim_chance(sim, sim->loss_pct)) {
        struct sim_event *ask =
            sim_at(sim, sim->now_ns + sim_delay_ns(sim), SIM_EVENT_ETCD_ASK, index);
        ask->life = manager->life;
        ask->sent_ns = local_ns;
    }
    if (sim->request_count == 0 || sim->now_ns >= sim->faults_end_ns)
        return;
    if (kva_gmanager_leads(g, local_ns) && g->round > 0 && sim_chance(sim, 30))
        random_order(sim, manager, g->revision);
    if (kva_gmanager_leads(g, local_ns) && g->round > 0 && sim_chance(sim, 10))
        random_return(sim, manager);
    if (manager->zombie_revision != 0 && sim_chance(sim, 50))
        random_order(sim, manager, manager->zombie_revision);
}
