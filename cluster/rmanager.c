/* rmanager.c - whom a message is for and of, which orders count, and who handles what. */
#include "cluster/needed.h"
#include "cluster/rmanager_internal.h"

#include <stdlib.h>

/* --- life ------------------------------------------------------------------------------------- */

static enum kva_status check_params(const struct kva_rmanager_params *params, struct kva_err *err)
{
    const struct kva_needed needed[] = {
        {"node", params->node},
        {"life", params->life},
        {"loans_max", params->loans_max},
        {"peers_max", params->peers_max},
        {"entries_max", params->entries_max},
        {"unacked_pages", params->unacked_pages},
        {"retry_ns", params->retry_ns},
        {"recall_within_ns", params->recall_within_ns},
    };
    enum kva_status status = kva_needed_check(needed, KVA_COUNT_OF(needed), err);
    if (status)
        return status;
    if (params->recall_within_ns > KVA_MESSAGE_TTL_MAX_NS)
        return kva_fail_param(err, KVA_EINVAL, "recall_within_ns",
                              "%llu ns to recall, at most %llu",
                              (unsigned long long)params->recall_within_ns,
                              (unsigned long long)KVA_MESSAGE_TTL_MAX_NS);
    return KVA_OK;
}

enum kva_status kva_rmanager_create(const struct kva_rmanager_params *params,
                                    const struct kva_rmanager_ops *ops,
                                    struct kva_rmanager **ret_rmanager, struct kva_err *err)
{
    enum kva_status status = check_params(params, err);
    if (status)
        return status;
    struct kva_rmanager *r = calloc(1, sizeof(*r));
    if (!r)
        return kva_fail(err, KVA_ENOMEM, "no memory for an rManager");
    r->params = *params;
    r->ops = *ops;
    r->debts = calloc(params->loans_max, sizeof(*r->debts));
    r->guests = calloc(params->loans_max, sizeof(*r->guests));
    r->aparts = calloc(params->peers_max, sizeof(*r->aparts));
    r->reported = calloc(params->entries_max, sizeof(*r->reported));
    r->current = calloc(params->entries_max, sizeof(*r->current));
    r->changes = calloc(params->entries_max, 2 * sizeof(*r->changes));
    if (kva_peers_init(&r->peers, params->peers_max) || !r->debts || !r->guests || !r->aparts ||
        !r->reported || !r->current || !r->changes) {
        kva_rmanager_destroy(r);
        return kva_fail(err, KVA_ENOMEM, "no memory for an rManager of %u loans and %u entries",
                        params->loans_max, params->entries_max);
    }
    *ret_rmanager = r;
    return KVA_OK;
}

void kva_rmanager_destroy(struct kva_rmanager *r)
{
    if (!r)
        return;
    kva_peers_finish(&r->peers);
    free(r->debts);
    free(r->guests);
    free(r->aparts);
    free(r->reported);
    free(r->current);
    free(r->changes);
    free(r);
}

/* --- sending ---------------------------------------------------------------------------------- */

void kva_rmanager_send(struct kva_rmanager *r, struct kva_message *message, uint32_t target,
                       uint64_t target_life)
{
    message->source = r->params.node;
    message->source_life = r->params.life;
    message->target = target;
    message->target_life = target_life;
    message->sequence = ++r->sequence;
    r->ops.send(r->ops.opaque, message);
}

void kva_rmanager_send_loan(struct kva_rmanager *r, enum kva_message_type type, uint64_t loan,
                            uint32_t target, uint64_t target_life)
{
    struct kva_message message = {.type = type, .loan = {.loan = loan}};
    kva_rmanager_send(r, &message, target, target_life);
}

/* --- orders ----------------------------------------------------------------------------------- */

/* Whether an order counts: of the highest revision, and of its newest round. A newer one of either
 * becomes the newest; the first of a leader may be any order, since its LEAD may be late. */
static bool heed(struct kva_rmanager *r, uint32_t source, uint64_t revision, uint64_t round)
{
    bool newer = revision > r->revision;
    bool same = revision == r->revision && source == r->leader && round >= r->round;
    if (!newer && !same) {
        r->stats.orders_stale++;
        return false;
    }
    r->revision = revision;
    r->leader = source;
    r->round = round;
    return true;
}

static void receive_order(struct kva_rmanager *r, const struct kva_message *message,
                          uint64_t now_ns)
{
    switch (message->type) {
    case KVA_MESSAGE_LEAD:
        if (heed(r, message->source, message->lead.revision, message->lead.round))
            kva_report_send(r, message->lead.round, message->lead.full, now_ns);
        break;
    case KVA_MESSAGE_MOVE:
        if (heed(r, message->source, message->move.revision, message->move.round))
            kva_debt_move(r, message, now_ns);
        break;
    default:
        if (heed(r, message->source, message->home.revision, message->home.round))
            kva_debt_return(r, message->home.loan);
        break;
    }
}

/* --- messages --------------------------------------------------------------------------------- */

/* The loan of a message to a creditor that its debtor would otherwise wait for; 0: none. */
static uint64_t loan_to_disown(const struct kva_message *message)
{
    switch (message->type) {
    case KVA_MESSAGE_RENEW:
        return message->renew.loan;
    case KVA_MESSAGE_PULL:
        return message->pull.loan;
    case KVA_MESSAGE_PAGES:
        return message->pages.home ? 0 : message->pages.loan;
    case KVA_MESSAGE_RELEASE:
        return message->loan.loan;
    default:
        return 0;
    }
}

/* Whether a message is new, of a life that goes on, and for this one. */
static bool arrive(struct kva_rmanager *r, const struct kva_message *message, uint64_t now_ns)
{
    switch (kva_peers_arrive(&r->peers, message->source, message->source_life, message->sequence)) {
    case KVA_ARRIVAL_NEW:
        break;
    case KVA_ARRIVAL_NEW_LIFE:
        kva_guest_peer_new(r, message->source, message->source_life);
        kva_debt_peer_gone(r, message->source, message->source_life, now_ns);
        break;
    case KVA_ARRIVAL_REPEATED:
        r->stats.duplicates++;
        return false;
    default:
        r->stats.strangers++;
        return false;
    }
    if (message->target_life == 0 || message->target_life == r->params.life)
        return true;
    /* Meant for an earlier life, which held what this one does not. */
    uint64_t loan = loan_to_disown(message);
    if (loan != 0 && message->target_life < r->params.life)
        kva_rmanager_send_loan(r, KVA_MESSAGE_RELEASED, loan, message->source,
                               message->source_life);
    r->stats.strangers++;
    return false;
}

void kva_rmanager_receive(struct kva_rmanager *r, const struct kva_message *message,
                          uint64_t now_ns)
{
    if (message->target != r->params.node || message->source == r->params.node ||
        !arrive(r, message, now_ns))
        return;
    switch (message->type) {
    case KVA_MESSAGE_LEAD:
    case KVA_MESSAGE_MOVE:
    case KVA_MESSAGE_RETURN:
        receive_order(r, message, now_ns);
        break;
    case KVA_MESSAGE_RESERVE:
    case KVA_MESSAGE_SWITCH:
    case KVA_MESSAGE_RENEW:
    case KVA_MESSAGE_PULL:
    case KVA_MESSAGE_RELEASE:
        kva_guest_receive(r, message, now_ns);
        break;
    case KVA_MESSAGE_PAGES:
        if (message->pages.home)
            kva_debt_receive(r, message, now_ns);
        else
            kva_guest_receive(r, message, now_ns);
        break;
    case KVA_MESSAGE_ACCEPT:
    case KVA_MESSAGE_REFUSE:
    case KVA_MESSAGE_ACK:
    case KVA_MESSAGE_RENEWED:
    case KVA_MESSAGE_RECALL:
    case KVA_MESSAGE_RELEASED:
        kva_debt_receive(r, message, now_ns);
        break;
    default: /* HELLO is the transport's, HEARTBEAT a gManager's */
        break;
    }
}

void kva_rmanager_tick(struct kva_rmanager *r, uint64_t now_ns)
{
    kva_debt_tick(r, now_ns);
    kva_guest_tick(r, now_ns);
}

void kva_rmanager_step(struct kva_rmanager *r, uint32_t pages, uint64_t now_ns)
{
    kva_debt_step(r, pages, now_ns);
}

void kva_rmanager_get_stats(const struct kva_rmanager *r, struct kva_rmanager_stats *ret_stats)
{
    struct kva_rmanager_stats stats = r->stats;
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        const struct kva_debt *debt = &r->debts[i];
        const struct kva_guest *guest = &r->guests[i];
        stats.loans += debt->state != KVA_DEBT_NONE;
        if (debt->state == KVA_DEBT_LENT || debt->state == KVA_DEBT_RETURNING)
            stats.borrowed_pages += debt->loan.pages;
        stats.guests += guest->loan.pages > 0;
        stats.lent_pages += guest->loan.pages;
    }
    *ret_stats = stats;
}
