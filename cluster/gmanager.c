/* gmanager.c - who is there, who leads, and when a round begins and is planned. */
#include "cluster/gmanager_internal.h"
#include "cluster/needed.h"

#include <stdlib.h>

static enum kva_status check_params(const struct kva_gmanager_params *params, struct kva_err *err)
{
    const struct kva_needed needed[] = {
        {"node", params->node},
        {"life", params->life},
        {"instances_max", params->instances_max},
        {"entries_max", params->entries_max},
        {"moves_max", params->moves_max},
        {"round_ns", params->round_ns},
        {"loan_ttl_ns", params->loan_ttl_ns},
        {"lease_ttl_ns", params->lease_ttl_ns},
    };
    enum kva_status status = kva_needed_check(needed, KVA_COUNT_OF(needed), err);
    if (status)
        return status;
    if (params->instances_max > KVA_PLAN_INSTANCES_MAX)
        return kva_fail_param(err, KVA_EINVAL, "instances_max", "%u instances, at most %u",
                              params->instances_max, KVA_PLAN_INSTANCES_MAX);
    if (params->gather_ns >= params->round_ns)
        return kva_fail_param(
            err, KVA_EINVAL, "gather_ns", "reports have %llu ns of a round of %llu",
            (unsigned long long)params->gather_ns, (unsigned long long)params->round_ns);
    if (params->lease_margin_ns >= params->lease_ttl_ns)
        return kva_fail_param(err, KVA_EINVAL, "lease_margin_ns", "%llu ns of a lease of %llu",
                              (unsigned long long)params->lease_margin_ns,
                              (unsigned long long)params->lease_ttl_ns);
    if (params->loan_ttl_ns > KVA_MESSAGE_TTL_MAX_NS)
        return kva_fail_param(err, KVA_EINVAL, "loan_ttl_ns", "%llu ns, at most %llu",
                              (unsigned long long)params->loan_ttl_ns,
                              (unsigned long long)KVA_MESSAGE_TTL_MAX_NS);
    return kva_cost_check(&params->cost, err);
}

enum kva_status kva_gmanager_create(const struct kva_gmanager_params *params,
                                    const struct kva_gmanager_ops *ops,
                                    struct kva_gmanager **ret_gmanager, struct kva_err *err)
{
    enum kva_status status = check_params(params, err);
    if (status)
        return status;
    struct kva_gmanager *g = calloc(1, sizeof(*g));
    if (!g)
        return kva_fail(err, KVA_ENOMEM, "no memory for a gManager");
    g->params = *params;
    g->ops = *ops;
    g->members = calloc(params->instances_max, sizeof(*g->members));
    /* One more: looking for a place may look behind the last. */
    size_t entries = (size_t)params->instances_max * params->entries_max + 1;
    g->entries = calloc(entries, sizeof(*g->entries));
    if (kva_peers_init(&g->peers, params->instances_max) || !g->members || !g->entries) {
        kva_gmanager_destroy(g);
        return kva_fail(err, KVA_ENOMEM, "no memory for a map of %u instances with %u entries",
                        params->instances_max, params->entries_max);
    }
    for (uint32_t i = 0; i < params->instances_max; i++)
        g->members[i].entries = g->entries + (size_t)i * params->entries_max;
    *ret_gmanager = g;
    return KVA_OK;
}

void kva_gmanager_destroy(struct kva_gmanager *g)
{
    if (!g)
        return;
    kva_peers_finish(&g->peers);
    free(g->members);
    free(g->entries);
    free(g);
}

/* --- members ---------------------------------------------------------------------------------- */

static struct kva_gmanager_member *find(struct kva_gmanager *g, uint32_t node)
{
    for (uint32_t i = 0; i < g->member_count; i++)
        if (g->members[i].node == node)
            return &g->members[i];
    return NULL;
}

enum kva_status kva_gmanager_member(struct kva_gmanager *g, uint32_t node, uint64_t life)
{
    struct kva_gmanager_member *member = find(g, node);
    if (!member && g->member_count == g->params.instances_max)
        return KVA_ELIMIT;
    if (!member) {
        member = &g->members[g->member_count++];
        member->node = node;
        member->life = 0;
    }
    if (member->life != life) {
        struct kva_message_entry *entries = member->entries;
        *member = (struct kva_gmanager_member){.node = node, .life = life, .entries = entries};
    }
    return KVA_OK;
}

void kva_gmanager_member_gone(struct kva_gmanager *g, uint32_t node)
{
    struct kva_gmanager_member *member = find(g, node);
    if (!member)
        return;
    struct kva_gmanager_member gone = *member;
    *member = g->members[--g->member_count];
    g->members[g->member_count] = gone; /* its entries stay with the slots */
    kva_peers_forget(&g->peers, node);
}

enum kva_status kva_gmanager_set_cost(struct kva_gmanager *g, const struct kva_cost_params *cost,
                                      const struct kva_plan_params *plan, struct kva_err *err)
{
    enum kva_status status = kva_cost_check(cost, err);
    if (status)
        return status;
    g->params.cost = *cost;
    g->params.plan = *plan;
    return KVA_OK;
}

/* --- leading ---------------------------------------------------------------------------------- */

void kva_gmanager_elected(struct kva_gmanager *g, uint64_t revision, uint64_t sent_ns)
{
    bool again = revision == g->revision; /* answers came out of order: it never lost it */
    g->elected = true;
    g->revision = revision;
    g->keepalive_ns = sent_ns;
    g->round = again ? g->round : 0;
    g->loan_number = again ? g->loan_number : 0;
    g->round_due_ns = 0;
    g->plan_due_ns = 0;
    for (uint32_t i = 0; i < g->member_count; i++)
        g->members[i].fresh = false;
}

void kva_gmanager_kept_alive(struct kva_gmanager *g, uint64_t sent_ns)
{
    g->keepalive_ns = kva_max_u64(g->keepalive_ns, sent_ns);
}

void kva_gmanager_deposed(struct kva_gmanager *g)
{
    g->elected = false;
}

bool kva_gmanager_leads(const struct kva_gmanager *g, uint64_t now_ns)
{
    uint64_t held_ns = g->params.lease_ttl_ns - g->params.lease_margin_ns;
    return g->elected && now_ns < g->keepalive_ns + held_ns;
}

/* --- messages and rounds ---------------------------------------------------------------------- */

void kva_gmanager_send(struct kva_gmanager *g, struct kva_message *message,
                       const struct kva_gmanager_member *member)
{
    message->source = g->params.node;
    message->source_life = g->params.life;
    message->target = member->node;
    message->target_life = member->life;
    message->sequence = ++g->sequence;
    g->ops.send(g->ops.opaque, message);
}

void kva_gmanager_receive(struct kva_gmanager *g, const struct kva_message *message)
{
    if (message->target != g->params.node || message->type != KVA_MESSAGE_HEARTBEAT)
        return;
    struct kva_gmanager_member *member = find(g, message->source);
    if (!member || member->life != message->source_life) {
        g->stats.strangers++; /* membership will tell, or has told */
        return;
    }
    enum kva_arrival arrival =
        kva_peers_arrive(&g->peers, message->source, message->source_life, message->sequence);
    if (arrival != KVA_ARRIVAL_NEW && arrival != KVA_ARRIVAL_NEW_LIFE) {
        g->stats.strangers++;
        return;
    }
    g->stats.reports++;
    if (!g->elected || message->heartbeat.revision != g->revision ||
        !kva_gmanager_member_report(member, message, g->params.entries_max))
        g->stats.reports_unfit++;
}

static void begin_round(struct kva_gmanager *g, uint64_t now_ns)
{
    g->round++;
    g->round_due_ns = now_ns + g->params.round_ns;
    g->plan_due_ns = now_ns + g->params.gather_ns;
    g->stats.rounds++;
    for (uint32_t i = 0; i < g->member_count; i++) {
        struct kva_message message = {
            .type = KVA_MESSAGE_LEAD,
            .lead = {.revision = g->revision, .round = g->round, .full = !g->members[i].fresh},
        };
        kva_gmanager_send(g, &message, &g->members[i]);
    }
}

void kva_gmanager_tick(struct kva_gmanager *g, uint64_t now_ns)
{
    if (!kva_gmanager_leads(g, now_ns))
        return;
    if (g->plan_due_ns != 0 && now_ns >= g->plan_due_ns) {
        g->plan_due_ns = 0;
        kva_gmanager_plan(g);
    }
    if (now_ns >= g->round_due_ns)
        begin_round(g, now_ns);
}

void kva_gmanager_get_stats(const struct kva_gmanager *g, struct kva_gmanager_stats *ret_stats)
{
    *ret_stats = g->stats;
    ret_stats->members = g->member_count;
    ret_stats->fresh = 0;
    for (uint32_t i = 0; i < g->member_count; i++)
        ret_stats->fresh += g->members[i].fresh;
}
