/* manager.c - a gManager that is there while this node leads, and no longer: it owns nothing that it
 * could not ask for. */
#include "base/clock.h"
#include "base/log.h"
#include "cluster/node/node_internal.h"

#define LEASE_MARGIN_OF 4u /* of a lease's ttl, the part by which its holder gives up before */

/* Until a link is measured: Ethernet at 1 Gbit/s. */
#define LINK_LATENCY_S   100e-6
#define LINK_BYTES_PER_S 117e6

static void send(void *opaque, const struct kva_message *message)
{
    struct kva_node *node = opaque;
    size_t size;
    if (kva_message_encode(message, node->bytes, sizeof(node->bytes), &size, NULL) == KVA_OK)
        kva_node_route(node, node->bytes, size, NULL, 0);
}

/* The slowest link that is known: plans are made for all alike. */
static struct kva_cost_params cost_now(const struct kva_node *node)
{
    struct kva_cost_params cost = node->cost;
    cost.link_latency_s = 0;
    cost.link_bytes_per_s = 0;
    for (uint32_t i = 0; i < node->peer_count; i++) {
        const struct kva_probe *probe = &node->peers[i].probe;
        if (probe->latency_s > cost.link_latency_s)
            cost.link_latency_s = probe->latency_s;
        if (probe->bytes_per_s > 0 &&
            (cost.link_bytes_per_s == 0 || probe->bytes_per_s < cost.link_bytes_per_s))
            cost.link_bytes_per_s = probe->bytes_per_s;
    }
    if (cost.link_latency_s == 0)
        cost.link_latency_s = LINK_LATENCY_S;
    if (cost.link_bytes_per_s == 0)
        cost.link_bytes_per_s = LINK_BYTES_PER_S;
    return cost;
}

/* Others copy at the rate that this one does. */
static struct kva_plan_params plan_now(const struct kva_node *node,
                                       const struct kva_cost_params *cost)
{
    struct kva_plan_params plan = kva_plan_defaults(cost);
    plan.page_tokens = KVA_PAGE_TOKENS;
    plan.copy_step_pages = kva_node_step_pages(node);
    plan.copy_loss_share = node->params.copy_percent / 100.0;
    plan.request_loans_max = KVA_KV_LOANS_MAX;
    return plan;
}

static enum kva_status create(struct kva_node *node, uint64_t revision, struct kva_err *err)
{
    const struct kva_gmanager_ops ops = {.opaque = node, .send = send};
    const struct kva_node_params *p = &node->params;
    struct kva_gmanager_params params = {
        .node = kva_node_manager_of(node->self),
        .life = revision,
        .instances_max = p->nodes_max + 1,
        .entries_max = KVA_MESSAGE_ENTRIES_MAX,
        .moves_max = KVA_NODE_MOVES_MAX,
        .round_ns = p->round_ns,
        .gather_ns = p->round_ns / 4,
        .loan_ttl_ns = p->loan_ttl_ns,
        .lease_ttl_ns = p->lease_ttl_ns,
        .lease_margin_ns = p->lease_ttl_ns / LEASE_MARGIN_OF,
        .cost = cost_now(node),
        .disregard = p->plan == KVA_CLUSTER_PLAN_WAITING,
    };
    params.plan = plan_now(node, &params.cost);
    return kva_gmanager_create(&params, &ops, &node->gmanager, err);
}

void kva_node_elected(void *opaque, uint64_t revision, uint64_t sent_ns)
{
    struct kva_node *node = opaque;
    struct kva_err err;
    kva_node_deposed(node);
    if (create(node, revision, &err)) {
        kva_log(KVA_LOG_ERROR, "cluster       this node was elected and cannot lead: %s",
                err.message);
        return;
    }
    kva_log(KVA_LOG_INFO, "cluster       this node leads (revision %llu)",
            (unsigned long long)revision);
    /* There is room for all: the table is as large as this one, and one more. */
    (void)!kva_gmanager_member(node->gmanager, node->self, node->self_life);
    for (uint32_t i = 0; i < node->peer_count; i++)
        (void)!kva_gmanager_member(node->gmanager, node->peers[i].member.node,
                                   node->peers[i].member.life);
    kva_gmanager_elected(node->gmanager, revision, sent_ns);
}

void kva_node_kept_alive(void *opaque, uint64_t sent_ns)
{
    struct kva_node *node = opaque;
    if (node->gmanager)
        kva_gmanager_kept_alive(node->gmanager, sent_ns);
}

void kva_node_deposed(void *opaque)
{
    struct kva_node *node = opaque;
    if (!node->gmanager)
        return;
    kva_node_manager_stats(node, &node->led);
    kva_log(KVA_LOG_INFO, "cluster       this node leads no more");
    kva_gmanager_destroy(node->gmanager);
    node->gmanager = NULL;
}

void kva_node_manager_stats(const struct kva_node *node, struct kva_gmanager_stats *ret)
{
    struct kva_gmanager_stats stats = {0};
    if (node->gmanager)
        kva_gmanager_get_stats(node->gmanager, &stats);
    stats.rounds += node->led.rounds;
    stats.plans += node->led.plans;
    stats.moves += node->led.moves;
    stats.returns += node->led.returns;
    stats.reports += node->led.reports;
    stats.reports_unfit += node->led.reports_unfit;
    stats.strangers += node->led.strangers;
    *ret = stats;
}

/* Links come up, and are measured, when others are there, which may be long after the election. */
void kva_node_manager_link_measured(struct kva_node *node)
{
    struct kva_err err;
    if (!node->gmanager)
        return;
    const struct kva_cost_params cost = cost_now(node);
    const struct kva_plan_params plan = plan_now(node, &cost);
    if (kva_gmanager_set_cost(node->gmanager, &cost, &plan, &err))
        kva_log(KVA_LOG_ERROR, "cluster       plans keep their constants: %s", err.message);
}

void kva_node_manager_tick(struct kva_node *node, uint64_t now_ns)
{
    if (node->gmanager)
        kva_gmanager_tick(node->gmanager, now_ns);
}
