/* sim_check.c - what has to hold after every event, and in the end. */
#include "tests/cluster/sim.h"

#include "cluster/gmanager_internal.h"
#include "cluster/rmanager_internal.h"

/* By how much steps and clocks may delay what is due. */
#define SLACK_NS (4 * SIM_STEP_NS + SIM_TTL_NS / 50)

static bool relied_on(const struct kva_debt *debt)
{
    return debt->state == KVA_DEBT_LENT || debt->state == KVA_DEBT_RETURNING;
}

/* What a debtor relies on while its lease lasts is at the creditor, if that is alive. */
static void check_debt(struct sim *sim, struct sim_node *node, const struct kva_debt *debt)
{
    struct sim_node *creditor = &sim->nodes[debt->loan.creditor - 1];
    const struct sim_request *request = sim_request_find(sim, debt->loan.request);
    bool leased = sim_local_ns(sim, &node->clock) < debt->lease_end_ns;
    if (!relied_on(debt) || !leased || !creditor->rmanager || creditor->life != debt->creditor_life)
        return;
    const struct sim_store *store = sim_store_find(creditor, debt->loan.id);
    if (!store || store->loan.pages != debt->loan.pages) {
        sim_fail(sim, "node %u relies on loan %llx, which node %u does not hold", debt->loan.debtor,
                 (unsigned long long)debt->loan.id, debt->loan.creditor);
        return;
    }
    for (uint32_t i = 0; i < debt->loan.pages; i++)
        if (store->content[i] != sim_content(request->id, debt->loan.first_page + i))
            sim_fail(sim, "loan %llx: page %u at node %u is not what was lent",
                     (unsigned long long)debt->loan.id, i, debt->loan.creditor);
}

/* Every page of a running request has one owner. */
static void check_request(struct sim *sim, const struct sim_request *request)
{
    const struct kva_rmanager *r = sim->nodes[request->node].rmanager;
    uint32_t owners[SIM_PAGES_MAX] = {0};
    if (request->ends > (request->state == SIM_ENDED))
        sim_fail(sim, "request %llu ended %u times", (unsigned long long)request->id,
                 request->ends);
    if (request->state != SIM_RUNNING)
        return;
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++) {
        const struct kva_debt *debt = &r->debts[i];
        if (!relied_on(debt) || debt->loan.request != request->id)
            continue;
        if (debt->loan.generation != request->generation)
            sim_fail(sim, "request %llu has a loan of generation %u in generation %u",
                     (unsigned long long)request->id, debt->loan.generation, request->generation);
        for (uint32_t p = 0; p < debt->loan.pages; p++)
            owners[debt->loan.first_page + p]++;
    }
    for (uint32_t p = 0; p < sim_request_closed(request); p++) {
        uint32_t count = owners[p] + request->local[p];
        if (count != 1)
            sim_fail(sim, "page %u of request %llu has %u owners", p,
                     (unsigned long long)request->id, count);
        if (request->local[p] && request->content[p] != sim_content(request->id, p))
            sim_fail(sim, "page %u of request %llu came home wrong", p,
                     (unsigned long long)request->id);
    }
}

/* When the memory of a guest has to be back at the latest; UINT64_MAX: it is in use. */
static uint64_t due_ns(const struct sim *sim, const struct sim_node *node,
                       const struct kva_guest *guest, const struct sim_store *store)
{
    const struct sim_node *debtor = &sim->nodes[guest->loan.debtor - 1];
    uint64_t due = UINT64_MAX;
    if (!debtor->rmanager || debtor->life != guest->debtor_life)
        due = kva_max_u64(debtor->died_ns + SIM_DELAY_MAX_NS, node->stop_end_ns) + SIM_TTL_NS +
              SLACK_NS; /* what came while it was stopped is read at its end */
    if (store->recalled_ns != 0 && store->recalled_ns + SIM_RECALL_NS + SIM_TTL_NS + SLACK_NS < due)
        due = store->recalled_ns + SIM_RECALL_NS + SIM_TTL_NS + SLACK_NS;
    /* Who was stopped has the rest of its work before it. */
    return due == UINT64_MAX ? due : kva_max_u64(due, node->stop_end_ns + SLACK_NS);
}

/* Who drains lends and borrows nothing more, and has all guests recalled. */
static void check_drains(struct sim *sim, const struct sim_node *node)
{
    const struct kva_rmanager *r = node->rmanager;
    uint32_t number = (uint32_t)(node - sim->nodes) + 1;
    if (r->stats.loans_begun != node->loans_begun || r->guest_number != node->guests_begun)
        sim_fail(sim, "node %u drains and begins a loan", number);
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        if (r->guests[i].loan.pages > 0 && r->guests[i].recall_end_ns == 0)
            sim_fail(sim, "node %u drains and keeps what it holds for node %u", number,
                     r->guests[i].loan.debtor);
}

/* A node has drained in time: nobody loses anything by it. */
void sim_check_left(struct sim *sim, const struct sim_node *node)
{
    uint32_t number = (uint32_t)(node - sim->nodes) + 1;
    for (uint32_t i = 0; i < sim->node_count; i++) {
        const struct kva_rmanager *r = sim->nodes[i].rmanager;
        for (uint32_t n = 0; r && n < SIM_STORES_MAX; n++) {
            const struct kva_debt *debt = &r->debts[n];
            bool leased = sim_local_ns(sim, &sim->nodes[i].clock) < debt->lease_end_ns;
            if (relied_on(debt) && leased && debt->loan.creditor == number &&
                debt->creditor_life == node->life)
                sim_fail(sim, "node %u leaves while node %u relies on it", number, i + 1);
        }
    }
}

static void check_node(struct sim *sim, struct sim_node *node)
{
    const struct kva_rmanager *r = node->rmanager;
    uint32_t debts = 0, guests = 0, guest_pages = 0, index = (uint32_t)(node - sim->nodes);
    if (!r)
        return;
    if (node->drains)
        check_drains(sim, node);
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++) {
        const struct kva_guest *guest = &r->guests[i];
        if (r->debts[i].state != KVA_DEBT_NONE) {
            debts++;
            check_debt(sim, node, &r->debts[i]);
        }
        if (guest->loan.pages == 0)
            continue;
        guests++;
        guest_pages += guest->loan.pages;
        const struct sim_store *store = sim_store_find(node, guest->loan.id);
        if (!store)
            sim_fail(sim, "node %u keeps a loan without memory", index + 1);
        else if (sim->now_ns > due_ns(sim, node, guest, store))
            sim_fail(sim, "node %u has its memory not back from node %u: overdue", index + 1,
                     guest->loan.debtor);
    }
    if (debts > 0 && guests > 0)
        sim_fail(sim, "node %u has both roles", index + 1);
    if (guest_pages != node->guest_pages || node->local_pages + node->guest_pages > node->pages)
        sim_fail(sim, "node %u: %u pages here and %u for guests, of %u: over capacity", index + 1,
                 node->local_pages, node->guest_pages, node->pages);
}

/* Two that may give orders, or one that etcd has not elected. */
static void check_leaders(struct sim *sim)
{
    uint32_t leaders = 0;
    for (uint32_t i = 0; i < sim->manager_count; i++) {
        const struct sim_manager *manager = &sim->managers[i];
        const struct kva_gmanager *g = manager->gmanager;
        if (!g || !kva_gmanager_leads(g, sim_local_ns(sim, &manager->clock)))
            continue;
        leaders++;
        if (sim->etcd.leader != i || sim->etcd.revision != g->revision)
            sim_fail(sim, "manager %u leads with revision %llu, etcd has %llu", SIM_MANAGER_ID + i,
                     (unsigned long long)g->revision, (unsigned long long)sim->etcd.revision);
    }
    if (leaders > 1)
        sim_fail(sim, "%u managers lead", leaders);
}

/* Local pages, counted. */
static void check_count(struct sim *sim, const struct sim_node *node)
{
    uint32_t pages = 0;
    for (uint32_t i = 0; i < sim->request_count; i++) {
        const struct sim_request *request = &sim->requests[i];
        if (request->node != node - sim->nodes)
            continue;
        for (uint32_t p = 0; p < SIM_PAGES_MAX; p++)
            pages += request->local[p];
        pages += request->home_pages + (request->state == SIM_RUNNING);
    }
    if (pages != node->local_pages)
        sim_fail(sim, "node %u counts %u pages and has %u", (uint32_t)(node - sim->nodes) + 1,
                 node->local_pages, pages);
}

void sim_check(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->node_count; i++)
        check_node(sim, &sim->nodes[i]);
    for (uint32_t i = 0; i < sim->request_count; i++)
        check_request(sim, &sim->requests[i]);
    check_leaders(sim);
}

void sim_check_end(struct sim *sim)
{
    sim_check(sim);
    for (uint32_t i = 0; i < sim->request_count; i++) {
        const struct sim_request *request = &sim->requests[i];
        if (request->ends != 1)
            sim_fail(sim, "request %llu ended %u times", (unsigned long long)request->id,
                     request->ends);
    }
    for (uint32_t i = 0; i < sim->node_count; i++) {
        const struct sim_node *node = &sim->nodes[i];
        struct kva_rmanager_stats stats = {0};
        if (node->rmanager)
            kva_rmanager_get_stats(node->rmanager, &stats);
        check_count(sim, node);
        if (node->local_pages + node->guest_pages + stats.loans + stats.guests > 0)
            sim_fail(sim,
                     "node %u in the end: %u pages, %u for guests, %u loans, %u guests: a leak",
                     i + 1, node->local_pages, node->guest_pages, stats.loans, stats.guests);
    }
}
