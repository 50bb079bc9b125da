/* sim_broken.c - the same code with one plausible defect each, put in by what it is told, by its
 * tables, or by what its node does for it. */
#include "tests/cluster/sim.h"

#include "cluster/gmanager_internal.h"
#include "cluster/rmanager_internal.h"

/* --- debtors ---------------------------------------------------------------------------------- */

static bool forget_revision(struct sim_node *node, struct kva_message *message KVA_UNUSED)
{
    node->rmanager->revision = 0;
    return true;
}

static void trust_leases(struct sim_node *node)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        if (node->rmanager->debts[i].state != KVA_DEBT_NONE)
            node->rmanager->debts[i].lease_end_ns = UINT64_MAX;
}

/* The lease counts from the answer, not from the question. */
static bool count_from_answer(struct sim_node *node, struct kva_message *message)
{
    if (message->type == KVA_MESSAGE_ACCEPT || message->type == KVA_MESSAGE_RENEWED)
        message->accept.sent_ns = sim_local_ns(node->sim, &node->clock) + SIM_MARGIN_NS;
    return true;
}

static void switch_unacknowledged(struct sim_node *node)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++) {
        struct kva_debt *debt = &node->rmanager->debts[i];
        if (debt->state == KVA_DEBT_COPYING && debt->sent == debt->loan.pages)
            debt->state = KVA_DEBT_READY;
    }
}

/* Pages that were asked for count as come. */
static bool count_pulled(struct sim_node *node, struct kva_message *message)
{
    if (message->type == KVA_MESSAGE_PAGES && message->pages.home) {
        struct kva_debt *debt = kva_debt_find(node->rmanager, message->pages.loan);
        if (debt && debt->state == KVA_DEBT_RETURNING && message->pages.first_page > debt->returned)
            debt->returned = message->pages.first_page;
    }
    return true;
}

/* Whoever answers is the one, at both ends, and a loan that is not known is renewed. */
static bool ignore_lives(struct sim_node *node, struct kva_message *message)
{
    struct kva_rmanager *r = node->rmanager;
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        if (r->debts[i].loan.creditor == message->source)
            r->debts[i].creditor_life = message->source_life;
    if (message->type == KVA_MESSAGE_RENEW && message->target_life != node->life) {
        struct kva_message answer = {
            .type = KVA_MESSAGE_RENEWED,
            .accept = {.loan = message->renew.loan, .sent_ns = message->renew.sent_ns},
        };
        kva_rmanager_send(r, &answer, message->source, message->source_life);
        return false;
    }
    return true;
}

/* --- creditors -------------------------------------------------------------------------------- */

static void never_expire(struct sim_node *node)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        node->rmanager->guests[i].expires_ns = UINT64_MAX;
}

static bool expire_early(struct sim_node *node, struct kva_message *message KVA_UNUSED)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        node->rmanager->guests[i].ttl_ns = SIM_TTL_NS / 2;
    return true;
}

/* A page behind a gap is counted with those before it. */
static bool acknowledge_gaps(struct sim_node *node, struct kva_message *message)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX && message->type == KVA_MESSAGE_PAGES; i++) {
        struct kva_guest *guest = &node->rmanager->guests[i];
        if (!message->pages.home && guest->loan.pages > 0 &&
            guest->loan.id == message->pages.loan && message->pages.first_page > guest->received)
            guest->received = message->pages.first_page;
    }
    return true;
}

/* Loans of its own do not keep it from lending. */
static bool lend_while_owing(struct sim_node *node, struct kva_message *message)
{
    struct kva_rmanager *r = node->rmanager;
    struct kva_debt debts[SIM_STORES_MAX];
    if (message->type != KVA_MESSAGE_RESERVE)
        return true;
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++) {
        debts[i] = r->debts[i];
        r->debts[i].state = KVA_DEBT_NONE;
    }
    kva_rmanager_receive(r, message, sim_local_ns(node->sim, &node->clock));
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        r->debts[i] = debts[i];
    return false;
}

/* Pages that it holds do not keep it from borrowing. */
static bool owe_while_lending(struct sim_node *node, struct kva_message *message)
{
    struct kva_rmanager *r = node->rmanager;
    uint32_t pages[SIM_STORES_MAX];
    if (message->type != KVA_MESSAGE_MOVE)
        return true;
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++) {
        pages[i] = r->guests[i].loan.pages;
        r->guests[i].loan.pages = 0;
    }
    kva_rmanager_receive(r, message, sim_local_ns(node->sim, &node->clock));
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        r->guests[i].loan.pages = pages[i];
    return false;
}

/* The deadline moves on with the time. */
static void renew_recalled(struct sim_node *node)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        if (node->rmanager->guests[i].recall_end_ns != 0)
            node->rmanager->guests[i].recall_end_ns =
                sim_local_ns(node->sim, &node->clock) + SIM_RECALL_NS;
}

/* What was recalled is dropped at the deadline, while its debtor may have a lease. */
static void drop_recalled(struct sim_node *node)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++) {
        struct kva_guest *guest = &node->rmanager->guests[i];
        if (guest->recall_end_ns != 0)
            guest->expires_ns = guest->recall_end_ns - SIM_RECALL_NS;
    }
}

/* --- who drains ------------------------------------------------------------------------------- */

static void forget_drain(struct sim_node *node)
{
    node->rmanager->draining = false;
}

static void never_recall(struct sim_node *node)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX && node->drains; i++)
        node->rmanager->guests[i].recall_end_ns = 0;
}

/* --- leaders ---------------------------------------------------------------------------------- */

static void lead_on(struct sim_manager *manager)
{
    struct kva_gmanager *g = manager->gmanager;
    g->keepalive_ns = sim_local_ns(manager->sim, &manager->clock);
}

static void lead_to_the_end(struct sim_manager *manager)
{
    manager->gmanager->params.lease_margin_ns = 0;
    manager->gmanager->params.lease_ttl_ns = SIM_ETCD_TTL_NS + SIM_ETCD_TTL_NS / 4;
}

const struct sim_broken sim_broken[] = {
    {.name = "fences are forgotten", .noticed = "stale", .before = forget_revision},
    {.name = "a debtor trusts a lease for ever", .noticed = "does not hold", .after = trust_leases},
    {.name = "a lease counts from its answer",
     .noticed = "does not hold",
     .before = count_from_answer},
    {.name = "pages are switched unacknowledged",
     .noticed = "wrong",
     .after = switch_unacknowledged},
    {.name = "pages that were asked for count as come",
     .noticed = "came home wrong",
     .before = count_pulled},
    {.name = "lives are not looked at", .noticed = "does not hold", .before = ignore_lives},
    {.name = "loss is not told", .noticed = "is wrong", .forgets_lost = true},
    {.name = "a request ends and its loans do not",
     .noticed = "does not have",
     .forgets_end = true},
    {.name = "an order is obeyed, whatever its request is",
     .noticed = "not here",
     .lends_anything = true},
    {.name = "guests never expire", .noticed = "overdue", .after = never_expire},
    {.name = "guests expire early", .noticed = "does not hold", .before = expire_early},
    {.name = "gaps are acknowledged", .noticed = "is wrong", .before = acknowledge_gaps},
    {.name = "a debtor lends", .noticed = "both roles", .before = lend_while_owing},
    {.name = "a creditor borrows", .noticed = "both roles", .before = owe_while_lending},
    {.name = "what is recalled is renewed", .noticed = "overdue", .after = renew_recalled},
    {.name = "what is recalled is dropped", .noticed = "does not hold", .after = drop_recalled},
    {.name = "who drains takes part", .noticed = "begins a loan", .after = forget_drain},
    {.name = "who drains keeps its guests", .noticed = "drains and keeps", .after = never_recall},
    {.name = "who drains leaves its guests", .noticed = "leaves while", .leaves_guests = true},
    {.name = "there is always room", .noticed = "over capacity", .has_room = true},
    {.name = "a leader never steps down", .noticed = "leads with", .manager = lead_on},
    {.name = "a leader stays longer than its lease",
     .noticed = "leads with",
     .manager = lead_to_the_end},
};
const uint32_t sim_broken_count = KVA_COUNT_OF(sim_broken);
