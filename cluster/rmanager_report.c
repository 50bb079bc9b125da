/* rmanager_report.c - heartbeats: the load, and what has changed in the placement map since the last
 * one; everything to a leader that is new or asks for it. */
#include "cluster/rmanager_internal.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const struct kva_message_entry *x = a, *y = b;
    if (x->request != y->request)
        return x->request < y->request ? -1 : 1;
    return x->loan < y->loan ? -1 : x->loan > y->loan;
}

static bool same(const struct kva_message_entry *a, const struct kva_message_entry *b)
{
    return a->generation == b->generation && a->instance == b->instance && a->pages == b->pages &&
           a->flags == b->flags;
}

/* --- who cannot be lent to --------------------------------------------------------------------- */

/* Where there is no place, it has that of the one which is over first. */
void kva_report_apart(struct kva_rmanager *r, uint32_t creditor, uint64_t until_ns)
{
    struct kva_apart *place = &r->aparts[0];
    uint32_t i = 0;
    for (; i < r->apart_count && r->aparts[i].node != creditor; i++)
        if (r->aparts[i].until_ns < place->until_ns)
            place = &r->aparts[i];
    if (i < r->apart_count)
        place = &r->aparts[i];
    else if (r->apart_count < r->params.peers_max)
        place = &r->aparts[r->apart_count++];
    *place = (struct kva_apart){creditor, until_ns};
}

/* To whom nothing can go yet, of those to whom something should have gone. How many, at most `max`. */
static uint32_t list_aparts(struct kva_rmanager *r, struct kva_message_entry *ret, uint32_t max,
                            uint64_t now_ns)
{
    uint32_t kept = 0, listed = 0;
    for (uint32_t i = 0; i < r->apart_count; i++) {
        const struct kva_apart apart = r->aparts[i];
        if (r->ops.may_ask(r->ops.opaque, apart.node) && now_ns >= apart.until_ns)
            continue;
        r->aparts[kept++] = apart;
        if (listed < max)
            ret[listed++] = (struct kva_message_entry){.request = UINT64_MAX, /* of none */
                                                       .loan = apart.node,
                                                       .instance = apart.node,
                                                       .flags = KVA_ENTRY_APART};
    }
    r->apart_count = kept;
    return listed;
}

/* --- everything, and what is new of it --------------------------------------------------------- */

/* Requests and loans as they are now, and creditors that are apart, sorted. How many. */
static uint32_t collect(struct kva_rmanager *r, struct kva_message_load *ret_load, uint64_t now_ns)
{
    struct kva_message_load load = {0};
    uint32_t max = r->params.entries_max, count = 0, guests = 0, lent_pages = 0;
    r->ops.load(r->ops.opaque, &load);
    load.moving |= r->draining;
    for (uint32_t i = 0; i < r->params.loans_max; i++) {
        const struct kva_debt *debt = &r->debts[i];
        guests += r->guests[i].loan.pages > 0;
        lent_pages += r->guests[i].loan.pages;
        load.moving |= r->guests[i].recall_end_ns != 0;
        if (debt->state == KVA_DEBT_NONE)
            continue;
        /* Nothing relies on a loan that is over, and its creditor may never answer. */
        if (debt->state == KVA_DEBT_RELEASING)
            continue;
        load.moving |= debt->state != KVA_DEBT_LENT;
        if (count == max)
            continue;
        load.borrowed_pages += debt->loan.pages;
        r->current[count++] = (struct kva_message_entry){
            .request = debt->loan.request,
            .loan = debt->loan.id,
            .generation = debt->loan.generation,
            .instance = debt->loan.creditor,
            .pages = debt->loan.pages,
        };
    }
    if (guests < r->params.loans_max && lent_pages < r->params.lend_pages_max)
        load.lendable_pages = r->params.lend_pages_max - lent_pages;
    count += list_aparts(r, r->current + count, max - count, now_ns);
    uint32_t requests = r->ops.requests(r->ops.opaque, r->current + count, max - count);
    for (uint32_t i = count; i < count + requests; i++)
        r->current[i].instance = r->params.node;
    count += requests;
    qsort(r->current, count, sizeof(*r->current), compare);
    *ret_load = load;
    return count;
}

/* What differs between what was reported and what is. How many. */
static uint32_t list_changes(struct kva_rmanager *r, uint32_t count)
{
    uint32_t old = 0, now = 0, changes = 0;
    while (old < r->reported_count || now < count) {
        int order = old == r->reported_count ? 1
                    : now == count           ? -1
                                             : compare(&r->reported[old], &r->current[now]);
        if (order < 0) {
            r->changes[changes] = r->reported[old++];
            r->changes[changes++].flags |= KVA_ENTRY_REMOVED;
            continue;
        }
        if (order > 0 || !same(&r->reported[old], &r->current[now]))
            r->changes[changes++] = r->current[now];
        now++;
        old += order == 0;
    }
    return changes;
}

/* In as many messages as it takes; one, if there is nothing to say. */
void kva_report_send(struct kva_rmanager *r, uint64_t round, bool full, uint64_t now_ns)
{
    struct kva_message_load load;
    uint32_t count = collect(r, &load, now_ns), at = 0;
    if (full || r->report_revision != r->revision) {
        r->reported_count = 0;
        full = true;
    }
    uint32_t changes = list_changes(r, count);
    do {
        uint32_t part = kva_min_u32(changes - at, KVA_MESSAGE_ENTRIES_MAX);
        struct kva_message message = {
            .type = KVA_MESSAGE_HEARTBEAT,
            .heartbeat = {.revision = r->revision,
                          .round = round,
                          .index = r->report_index + 1,
                          .base = full && at == 0 ? 0 : r->report_index,
                          .load = load,
                          .entry_count = (uint16_t)part,
                          .entries = r->changes + at},
        };
        r->report_index++;
        kva_rmanager_send(r, &message, r->leader, 0);
        at += part;
    } while (at < changes);
    memcpy(r->reported, r->current, count * sizeof(*r->current));
    r->reported_count = count;
    r->report_revision = r->revision;
}
