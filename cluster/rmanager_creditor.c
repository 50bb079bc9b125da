/* rmanager_creditor.c - pages that this instance holds for others: reserved, leased, recalled. */
#include "cluster/rmanager_internal.h"

static struct kva_guest *find(struct kva_rmanager *r, uint64_t loan,
                              const struct kva_message *message)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        struct kva_guest *guest = &r->guests[i];
        if (guest->loan.pages > 0 && guest->loan.id == loan &&
            guest->loan.debtor == message->source && guest->debtor_life == message->source_life)
            return guest;
    }
    return NULL;
}

static void drop(struct kva_rmanager *r, struct kva_guest *guest)
{
    r->ops.guest_free(r->ops.opaque, &guest->loan);
    *guest = (struct kva_guest){0};
}

/* --- reserving -------------------------------------------------------------------------------- */

static void send_accept(struct kva_rmanager *r, const struct kva_message *reserve)
{
    struct kva_message message = {
        .type = KVA_MESSAGE_ACCEPT,
        .accept = {.loan = reserve->reserve.loan, .sent_ns = reserve->reserve.sent_ns},
    };
    kva_rmanager_send(r, &message, reserve->source, reserve->source_life);
}

static void refuse(struct kva_rmanager *r, const struct kva_message *reserve,
                   enum kva_refusal reason)
{
    struct kva_message message = {
        .type = KVA_MESSAGE_REFUSE,
        .refuse = {.loan = reserve->reserve.loan, .reason = (uint8_t)reason},
    };
    r->stats.guests_refused++;
    kva_rmanager_send(r, &message, reserve->source, reserve->source_life);
}

/* Who comes first is served first (section 6.2). */
static void reserve(struct kva_rmanager *r, const struct kva_message *message, uint64_t now_ns)
{
    struct kva_guest *slot = NULL;
    uint64_t lent_pages = 0;
    bool debtor = false;
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        debtor |= r->debts[i].state != KVA_DEBT_NONE;
        lent_pages += r->guests[i].loan.pages;
        if (r->guests[i].loan.pages == 0 && !slot)
            slot = &r->guests[i];
    }
    struct kva_loan loan = {
        .id = message->reserve.loan,
        .request = message->reserve.request,
        .generation = message->reserve.generation,
        .debtor = message->source,
        .creditor = r->params.node,
        .first_page = message->reserve.first_page,
        .pages = message->reserve.pages,
    };
    if (r->draining) {
        refuse(r, message, KVA_REFUSAL_DRAINING);
    } else if (debtor) {
        refuse(r, message, KVA_REFUSAL_ROLE);
    } else if (!slot) {
        refuse(r, message, KVA_REFUSAL_LOANS);
    } else if (lent_pages + loan.pages > r->params.lend_pages_max ||
               !r->ops.guest_reserve(r->ops.opaque, &loan)) {
        refuse(r, message, KVA_REFUSAL_MEMORY);
    } else {
        *slot = (struct kva_guest){
            .loan = loan,
            .debtor_life = message->source_life,
            .ttl_ns = message->reserve.ttl_ns,
            .expires_ns = now_ns + message->reserve.ttl_ns,
            .number = ++r->guest_number,
        };
        r->stats.guests_accepted++;
        send_accept(r, message);
    }
}

/* --- what debtors say ------------------------------------------------------------------------- */

static bool renewable(const struct kva_guest *guest, uint64_t now_ns)
{
    return guest->recall_end_ns == 0 || now_ns < guest->recall_end_ns;
}

static void receive_pages(struct kva_rmanager *r, struct kva_guest *guest,
                          const struct kva_message *message)
{
    uint32_t first = message->pages.first_page, count = message->pages.pages;
    if (!guest->switched && first == guest->received &&
        count <= guest->loan.pages - guest->received) {
        r->ops.take(r->ops.opaque, &guest->loan, first, count);
        guest->received += count;
    }
    struct kva_message ack = {
        .type = KVA_MESSAGE_ACK,
        .ack = {.loan = guest->loan.id, .pages = guest->received},
    };
    kva_rmanager_send(r, &ack, message->source, message->source_life);
}

static void receive_renew(struct kva_rmanager *r, struct kva_guest *guest,
                          const struct kva_message *message, uint64_t now_ns)
{
    if (!renewable(guest, now_ns))
        return;
    guest->expires_ns = now_ns + guest->ttl_ns;
    guest->switched |= message->renew.switched && guest->received == guest->loan.pages;
    struct kva_message answer = {
        .type = KVA_MESSAGE_RENEWED,
        .accept = {.loan = guest->loan.id, .sent_ns = message->renew.sent_ns},
    };
    kva_rmanager_send(r, &answer, message->source, message->source_life);
}

/* No more goes at once than there is room for, whatever is asked for: the debtor asks again for the
 * rest. */
static void receive_pull(struct kva_rmanager *r, struct kva_guest *guest,
                         const struct kva_message *message)
{
    uint32_t first = message->pull.first_page, count = message->pull.pages;
    if (first > guest->received || count > guest->received - first)
        return;
    count = kva_min_u32(count, r->params.unacked_pages);
    struct kva_message pages = {
        .type = KVA_MESSAGE_PAGES,
        .pages = {.loan = guest->loan.id, .first_page = first, .pages = count, .home = 1},
    };
    kva_rmanager_send(r, &pages, message->source, message->source_life);
}

static void receive_reserve(struct kva_rmanager *r, struct kva_guest *guest,
                            const struct kva_message *message, uint64_t now_ns)
{
    if (!guest) {
        reserve(r, message, now_ns);
        return;
    }
    if (!renewable(guest, now_ns))
        return;
    guest->expires_ns = now_ns + guest->ttl_ns; /* its answer was lost, or is on the way */
    send_accept(r, message);
}

void kva_guest_receive(struct kva_rmanager *r, const struct kva_message *message, uint64_t now_ns)
{
    /* Every type that comes here begins with the loan. */
    uint64_t loan = message->loan.loan;
    struct kva_guest *guest = find(r, loan, message);
    if (message->type == KVA_MESSAGE_RESERVE) {
        receive_reserve(r, guest, message, now_ns);
        return;
    }
    if (guest && message->type == KVA_MESSAGE_RELEASE) {
        drop(r, guest);
        guest = NULL;
    }
    if (!guest) {
        kva_rmanager_send_loan(r, KVA_MESSAGE_RELEASED, loan, message->source,
                               message->source_life);
        return;
    }
    switch (message->type) {
    case KVA_MESSAGE_PAGES:
        receive_pages(r, guest, message);
        break;
    case KVA_MESSAGE_RENEW:
        receive_renew(r, guest, message, now_ns);
        break;
    case KVA_MESSAGE_PULL:
        receive_pull(r, guest, message);
        break;
    default: /* SWITCH */
        guest->switched |= guest->received == guest->loan.pages;
        break;
    }
}

void kva_guest_peer_new(struct kva_rmanager *r, uint32_t node, uint64_t life)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        struct kva_guest *guest = &r->guests[i];
        if (guest->loan.pages > 0 && guest->loan.debtor == node && guest->debtor_life < life)
            drop(r, guest);
    }
}

/* --- recall ----------------------------------------------------------------------------------- */

static void send_recall(struct kva_rmanager *r, struct kva_guest *guest, uint64_t now_ns)
{
    uint64_t left_ns = guest->recall_end_ns > now_ns ? guest->recall_end_ns - now_ns : 1;
    struct kva_message message = {
        .type = KVA_MESSAGE_RECALL,
        .recall = {.loan = guest->loan.id, .within_ns = left_ns},
    };
    guest->retry_ns = now_ns + r->params.retry_ns;
    kva_rmanager_send(r, &message, guest->loan.debtor, guest->debtor_life);
}

/* Who is recalled next: those that are not relied on yet, then the youngest. */
static struct kva_guest *next_to_recall(struct kva_rmanager *r)
{
    struct kva_guest *best = NULL;
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        struct kva_guest *guest = &r->guests[i];
        if (guest->loan.pages == 0 || guest->recall_end_ns != 0)
            continue;
        if (!best || guest->switched < best->switched ||
            (guest->switched == best->switched && guest->number > best->number))
            best = guest;
    }
    return best;
}

void kva_rmanager_reclaim(struct kva_rmanager *r, uint32_t pages, uint64_t now_ns)
{
    uint64_t coming = 0;
    for (uint32_t i = 0; i < r->params.loans_max; i++)
        if (r->guests[i].loan.pages > 0 && r->guests[i].recall_end_ns != 0)
            coming += r->guests[i].loan.pages;
    while (coming < pages) {
        struct kva_guest *guest = next_to_recall(r);
        if (!guest)
            return;
        guest->recall_end_ns = now_ns + r->params.recall_within_ns;
        coming += guest->loan.pages;
        send_recall(r, guest, now_ns);
    }
}

void kva_rmanager_drain(struct kva_rmanager *r, uint64_t now_ns)
{
    r->draining = true;
    kva_rmanager_reclaim(r, UINT32_MAX, now_ns);
}

void kva_guest_tick(struct kva_rmanager *r, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        struct kva_guest *guest = &r->guests[i];
        if (guest->loan.pages == 0)
            continue;
        if (now_ns >= guest->expires_ns) {
            r->stats.guests_expired++;
            drop(r, guest);
        } else if (guest->recall_end_ns != 0 && now_ns >= guest->retry_ns) {
            send_recall(r, guest, now_ns);
        }
    }
}
