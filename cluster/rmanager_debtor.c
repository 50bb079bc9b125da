/* rmanager_debtor.c - loans of this instance's requests: from an order to pages that others hold,
 * and home. */
#include "cluster/rmanager_internal.h"

/* In a ttl: a step, here or at the creditor, may begin when the next renewal is due, and takes what
 * is left of the lease. */
#define RENEWALS 16u

struct kva_debt *kva_debt_find(struct kva_rmanager *r, uint64_t loan)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++)
        if (r->debts[i].state != KVA_DEBT_NONE && r->debts[i].loan.id == loan)
            return &r->debts[i];
    return NULL;
}

static bool relies(const struct kva_debt *debt)
{
    return debt->state == KVA_DEBT_LENT || debt->state == KVA_DEBT_RETURNING;
}

static uint64_t lease_end(const struct kva_rmanager *r, const struct kva_debt *debt,
                          uint64_t sent_ns)
{
    uint64_t margin = r->params.lease_margin_ns;
    return sent_ns + (debt->ttl_ns > margin ? debt->ttl_ns - margin : 0);
}

/* --- ends ------------------------------------------------------------------------------------- */

static void send_release(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    kva_rmanager_send_loan(r, KVA_MESSAGE_RELEASE, debt->loan.id, debt->loan.creditor,
                           debt->creditor_life);
    debt->retry_ns = now_ns + r->params.retry_ns;
}

/* The creditor is asked to forget the loan until it says so, or until it must have by itself. */
static void release(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    if (debt->state == KVA_DEBT_RELEASING)
        return;
    debt->state = KVA_DEBT_RELEASING;
    debt->give_up_ns = now_ns + 2 * debt->ttl_ns;
    send_release(r, debt, now_ns);
}

void kva_rmanager_request_end(struct kva_rmanager *r, uint64_t request, uint32_t generation,
                              uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        struct kva_debt *debt = &r->debts[i];
        if (debt->state != KVA_DEBT_NONE && debt->loan.request == request &&
            debt->loan.generation == generation)
            release(r, debt, now_ns);
    }
}

/* The creditor has the pages no more. Those of its loans that were relied on take their request
 * along, with all its other loans. */
static void fail(struct kva_rmanager *r, struct kva_debt *debt, bool gone, uint64_t now_ns)
{
    struct kva_loan loan = debt->loan;
    bool lost = relies(debt);
    if (gone)
        debt->state = KVA_DEBT_NONE;
    else
        release(r, debt, now_ns);
    if (!lost)
        return;
    r->stats.loans_lost++;
    kva_rmanager_request_end(r, loan.request, loan.generation, now_ns);
    r->ops.lost(r->ops.opaque, loan.request, loan.generation);
}

void kva_debt_peer_gone(struct kva_rmanager *r, uint32_t node, uint64_t new_life, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        struct kva_debt *debt = &r->debts[i];
        if (debt->state != KVA_DEBT_NONE && debt->loan.creditor == node &&
            debt->creditor_life < new_life)
            fail(r, debt, true, now_ns);
    }
}

void kva_rmanager_peer_lost(struct kva_rmanager *r, uint32_t node, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        struct kva_debt *debt = &r->debts[i];
        if (debt->state != KVA_DEBT_NONE && debt->state != KVA_DEBT_RELEASING &&
            debt->loan.creditor == node)
            fail(r, debt, false, now_ns);
    }
}

/* --- orders ----------------------------------------------------------------------------------- */

/* The first page, of those that lending frees, from which on no loan has any of the next `pages`. */
static uint32_t first_free_page(const struct kva_rmanager *r, const struct kva_loan *loan)
{
    uint32_t first = r->ops.lendable_from ? r->ops.lendable_from(r->ops.opaque, loan) : 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < r->params.loans_max; i++) {
            const struct kva_debt *debt = &r->debts[i];
            if (debt->state == KVA_DEBT_NONE || debt->state == KVA_DEBT_RELEASING ||
                debt->loan.request != loan->request || debt->loan.generation != loan->generation)
                continue;
            uint32_t begin = debt->loan.first_page, end = begin + debt->loan.pages;
            if (first < end && begin < first + loan->pages) {
                first = end;
                moved = true;
            }
        }
    }
    return first;
}

/* Where `loan` may begin, and what of its pages may go from there: all of them, or a part where
 * loans that came home have left gaps between others. False: nothing may. */
static bool place(struct kva_rmanager *r, struct kva_loan *loan)
{
    for (; loan->pages > 0; loan->pages /= 2) {
        loan->first_page = first_free_page(r, loan);
        if (loan->first_page < KVA_MESSAGE_PAGES_MAX - loan->pages &&
            r->ops.lendable(r->ops.opaque, loan))
            return true;
    }
    return false;
}

static void send_reserve(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    struct kva_message message = {
        .type = KVA_MESSAGE_RESERVE,
        .reserve = {.loan = debt->loan.id,
                    .sent_ns = now_ns,
                    .request = debt->loan.request,
                    .generation = debt->loan.generation,
                    .first_page = debt->loan.first_page,
                    .pages = debt->loan.pages,
                    .ttl_ns = debt->ttl_ns},
    };
    debt->retry_ns = now_ns + r->params.retry_ns;
    kva_rmanager_send(r, &message, debt->loan.creditor, debt->creditor_life);
}

void kva_debt_move(struct kva_rmanager *r, const struct kva_message *message, uint64_t now_ns)
{
    struct kva_debt *slot = NULL;
    bool creditor = false;
    uint32_t of_request = 0;
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        creditor |= r->guests[i].loan.pages > 0;
        if (r->debts[i].state == KVA_DEBT_NONE && !slot)
            slot = &r->debts[i];
        of_request += r->debts[i].state != KVA_DEBT_NONE &&
                      r->debts[i].state != KVA_DEBT_RELEASING &&
                      r->debts[i].loan.request == message->move.request;
    }
    bool too_many = r->params.request_loans_max > 0 && of_request >= r->params.request_loans_max;
    struct kva_loan loan = {
        .id = message->move.loan,
        .request = message->move.request,
        .generation = message->move.generation,
        .debtor = r->params.node,
        .creditor = message->move.creditor,
        .pages = message->move.pages,
    };
    if (kva_debt_find(r, loan.id))
        return;
    const bool apart = !r->ops.may_ask(r->ops.opaque, loan.creditor);
    if (apart)
        kva_report_apart(r, loan.creditor, now_ns);
    if (r->draining || creditor || !slot || too_many || apart || !place(r, &loan)) {
        r->stats.orders_refused++;
        return;
    }
    *slot = (struct kva_debt){
        .loan = loan,
        .state = KVA_DEBT_RESERVING,
        .creditor_life = message->move.creditor_life,
        .ttl_ns = message->move.ttl_ns,
        .give_up_ns = now_ns + message->move.ttl_ns,
    };
    r->stats.loans_begun++;
    send_reserve(r, slot, now_ns);
}

static void bring_home(struct kva_rmanager *r, struct kva_debt *debt)
{
    if (debt->state != KVA_DEBT_LENT || !r->ops.home_reserve(r->ops.opaque, &debt->loan))
        return;
    debt->state = KVA_DEBT_RETURNING;
    debt->returned = debt->pulled = 0;
}

void kva_debt_return(struct kva_rmanager *r, uint64_t loan)
{
    struct kva_debt *debt = kva_debt_find(r, loan);
    if (debt)
        bring_home(r, debt);
}

/* --- what creditors say ----------------------------------------------------------------------- */

/* ACCEPT or RENEWED: the creditor keeps the loan for a ttl from a time after `sent_ns`. */
static void extend(struct kva_rmanager *r, struct kva_debt *debt, uint64_t sent_ns)
{
    debt->lease_end_ns = kva_max_u64(debt->lease_end_ns, lease_end(r, debt, sent_ns));
}

static void receive_accept(struct kva_rmanager *r, struct kva_debt *debt,
                           const struct kva_message *message, uint64_t now_ns)
{
    extend(r, debt, message->accept.sent_ns);
    if (debt->state != KVA_DEBT_RESERVING)
        return;
    debt->state = KVA_DEBT_COPYING;
    debt->renew_ns = now_ns + debt->ttl_ns / RENEWALS;
}

static void receive_ack(struct kva_rmanager *r, struct kva_debt *debt, uint32_t pages,
                        uint64_t now_ns)
{
    if (debt->state != KVA_DEBT_COPYING || pages <= debt->acked || pages > debt->loan.pages)
        return;
    debt->acked = pages;
    debt->sent = kva_max_u32(debt->sent, pages);
    debt->retry_ns = now_ns + r->params.retry_ns;
    if (debt->acked < debt->loan.pages)
        return;
    debt->state = KVA_DEBT_READY;
    debt->give_up_ns = now_ns + debt->ttl_ns;
}

static void receive_home(struct kva_rmanager *r, struct kva_debt *debt,
                         const struct kva_message *message, uint64_t now_ns)
{
    uint32_t first = message->pages.first_page, count = message->pages.pages;
    if (debt->state != KVA_DEBT_RETURNING || first != debt->returned ||
        count > debt->loan.pages - debt->returned)
        return;
    r->ops.take(r->ops.opaque, &debt->loan, first, count);
    debt->returned += count;
    debt->pulled -= kva_min_u32(debt->pulled, count);
    debt->retry_ns = now_ns + r->params.retry_ns;
    if (debt->returned < debt->loan.pages)
        return;
    r->stats.loans_home++;
    r->ops.came_home(r->ops.opaque, &debt->loan);
    release(r, debt, now_ns);
}

static void receive_recall(struct kva_rmanager *r, struct kva_debt *debt, uint64_t within_ns,
                           uint64_t now_ns)
{
    if (debt->state == KVA_DEBT_RELEASING)
        return;
    if (!relies(debt)) {
        release(r, debt, now_ns);
        return;
    }
    if (debt->recall_ns == 0)
        debt->recall_ns = now_ns + within_ns;
    bring_home(r, debt);
}

/* The creditor holds no such loan. While it is being reserved, that is said of something older. */
static void receive_released(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    if (debt->state != KVA_DEBT_RESERVING)
        fail(r, debt, true, now_ns);
}

void kva_debt_receive(struct kva_rmanager *r, const struct kva_message *message, uint64_t now_ns)
{
    /* Every type that comes here begins with the loan. */
    uint64_t loan = message->loan.loan;
    struct kva_debt *debt = kva_debt_find(r, loan);
    /* It was given up, and its RESERVE has come after its RELEASE. */
    if ((!debt || debt->state == KVA_DEBT_RELEASING) && message->type == KVA_MESSAGE_ACCEPT)
        kva_rmanager_send_loan(r, KVA_MESSAGE_RELEASE, loan, message->source, message->source_life);
    if (!debt || debt->loan.creditor != message->source ||
        debt->creditor_life != message->source_life)
        return;
    switch (message->type) {
    case KVA_MESSAGE_ACCEPT:
        receive_accept(r, debt, message, now_ns);
        break;
    case KVA_MESSAGE_REFUSE:
        if (debt->state == KVA_DEBT_RESERVING)
            debt->state = KVA_DEBT_NONE;
        break;
    case KVA_MESSAGE_ACK:
        receive_ack(r, debt, message->ack.pages, now_ns);
        break;
    case KVA_MESSAGE_RENEWED:
        extend(r, debt, message->accept.sent_ns);
        break;
    case KVA_MESSAGE_RECALL:
        receive_recall(r, debt, message->recall.within_ns, now_ns);
        break;
    case KVA_MESSAGE_PAGES:
        receive_home(r, debt, message, now_ns);
        break;
    default: /* RELEASED */
        receive_released(r, debt, now_ns);
        break;
    }
}

/* --- time ------------------------------------------------------------------------------------- */

static void renew(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    struct kva_message message = {
        .type = KVA_MESSAGE_RENEW,
        .renew = {.loan = debt->loan.id, .sent_ns = now_ns, .switched = relies(debt)},
    };
    debt->renew_ns = now_ns + debt->ttl_ns / RENEWALS;
    kva_rmanager_send(r, &message, debt->loan.creditor, debt->creditor_life);
}

/* The creditor has not been heard of, or could not be asked, for a ttl: others are to be tried for as
 * long. */
static void give_up(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    kva_report_apart(r, debt->loan.creditor, now_ns + debt->ttl_ns);
    release(r, debt, now_ns);
}

/* What is sent again, or given up. */
static void retry(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    bool due = now_ns >= debt->retry_ns;
    switch (debt->state) {
    case KVA_DEBT_RESERVING:
        if (now_ns >= debt->give_up_ns)
            give_up(r, debt, now_ns);
        else if (due)
            send_reserve(r, debt, now_ns);
        break;
    case KVA_DEBT_COPYING:
        if (due && debt->sent > debt->acked)
            debt->sent = debt->acked; /* the next step sends from there */
        break;
    case KVA_DEBT_READY:
        if (now_ns >= debt->give_up_ns)
            give_up(r, debt, now_ns);
        break;
    case KVA_DEBT_RETURNING:
        if (due)
            debt->pulled = 0;
        break;
    case KVA_DEBT_RELEASING:
        if (now_ns >= debt->give_up_ns)
            debt->state = KVA_DEBT_NONE;
        else if (due)
            send_release(r, debt, now_ns);
        break;
    default:
        break;
    }
}

static void tick(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    bool leased = debt->state >= KVA_DEBT_COPYING && debt->state <= KVA_DEBT_RETURNING;
    if (leased && now_ns >= debt->lease_end_ns) {
        fail(r, debt, false, now_ns);
        return;
    }
    if (leased && now_ns >= debt->renew_ns)
        renew(r, debt, now_ns);
    if (relies(debt) && debt->recall_ns != 0) {
        bring_home(r, debt);
        if (now_ns >= debt->recall_ns) {
            fail(r, debt, false, now_ns);
            return;
        }
    }
    retry(r, debt, now_ns);
}

void kva_debt_tick(struct kva_rmanager *r, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++)
        if (r->debts[i].state != KVA_DEBT_NONE)
            tick(r, &r->debts[i], now_ns);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Up to `budget` pages of a loan, one way or the other. How many. */
static uint32_t copy(struct kva_rmanager *r, struct kva_debt *debt, uint32_t budget,
                     uint64_t now_ns)
{
    bool home = debt->state == KVA_DEBT_RETURNING;
    uint32_t on_way = home ? debt->pulled : debt->sent - debt->acked;
    uint32_t begin = home ? debt->returned + debt->pulled : debt->sent;
    uint32_t room = r->params.unacked_pages - kva_min_u32(on_way, r->params.unacked_pages);
    uint32_t count = kva_min_u32(kva_min_u32(budget, room), debt->loan.pages - begin);
    if (count == 0)
        return 0;
    struct kva_message message = {.type = home ? KVA_MESSAGE_PULL : KVA_MESSAGE_PAGES};
    if (home)
        message.pull.loan = debt->loan.id, message.pull.first_page = begin,
        message.pull.pages = count;
    else
        message.pages.loan = debt->loan.id, message.pages.first_page = begin,
        message.pages.pages = count;
    if (on_way == 0)
        debt->retry_ns = now_ns + r->params.retry_ns;
    *(home ? &debt->pulled : &debt->sent) += count;
    r->stats.pages_copied += count;
    kva_rmanager_send(r, &message, debt->loan.creditor, debt->creditor_life);
    return count;
}

/* Its pages would be lost in the next step if nobody could be asked for attention to them. */
static void switch_over(struct kva_rmanager *r, struct kva_debt *debt, uint64_t now_ns)
{
    if (now_ns >= debt->lease_end_ns || !r->ops.reaches(r->ops.opaque, debt->loan.creditor))
        return;
    debt->state = KVA_DEBT_LENT;
    r->stats.loans_lent++;
    r->ops.lent(r->ops.opaque, &debt->loan);
    kva_rmanager_send_loan(r, KVA_MESSAGE_SWITCH, debt->loan.id, debt->loan.creditor,
                           debt->creditor_life);
}

void kva_debt_step(struct kva_rmanager *r, uint32_t pages, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        struct kva_debt *debt = &r->debts[i];
        if (debt->state == KVA_DEBT_READY)
            switch_over(r, debt, now_ns);
        if (debt->state == KVA_DEBT_COPYING || debt->state == KVA_DEBT_RETURNING) {
            const uint32_t least = debt->recall_ns != 0;
            pages -= kva_min_u32(pages, copy(r, debt, kva_max_u32(pages, least), now_ns));
        }
    }
}

uint32_t kva_rmanager_lent(const struct kva_rmanager *r, uint64_t request, struct kva_loan *ret,
                           uint32_t max)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        const struct kva_debt *debt = &r->debts[i];
        if (!relies(debt) || debt->loan.request != request)
            continue;
        if (count < max)
            ret[count] = debt->loan;
        count++;
    }
    return count;
}

bool kva_rmanager_find_loan(const struct kva_rmanager *r, uint64_t loan, struct kva_loan *ret)
{
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        if (r->debts[i].state == KVA_DEBT_NONE || r->debts[i].loan.id != loan)
            continue;
        *ret = r->debts[i].loan;
        return true;
    }
    return false;
}
