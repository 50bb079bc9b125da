/* rmanager.h - one instance's part in lending: its loans, in both roles (Infinite-LLM, section 6).
 *
 * A loan is a run of closed pages of one request that another instance holds and attends to:
 *
 *   debtor     RESERVING -> COPYING -> READY -> LENT -> RETURNING -> RELEASING
 *                 RESERVE    PAGES    at a step  |         PULL       RELEASE
 *                                      border    +-> lost: the request is computed again
 *   creditor       held ------------------------------------------> expired or released
 *
 * Until a step border at which all pages are acknowledged and the creditor can be asked for attention
 * to them, the debtor's are the ones that count, and a loan that fails costs nothing: one whose creditor
 * cannot be asked for a ttl is over. From then on the creditor's are.
 *
 * What holds, whatever the network does, and is tested by simulation (tests/cluster/sim.h):
 *
 *   - A creditor keeps a loan for `ttl` after the last renewal that it *received*; a debtor relies on
 *     it for `ttl` less a margin after the last one that it *sent* and that was answered. So who
 *     relies on pages is always the first to know that they are gone, without a common clock. Clocks
 *     may drift apart by the margin within a ttl.
 *   - Nobody is debtor and creditor at once: reserving is refused by whoever has loans of its own,
 *     and orders by whoever holds pages for others.
 *   - An order counts only from the leader with the highest revision seen, in its newest round.
 *   - Every handler may run twice, late or never. A node that starts again has a new life; what is
 *     meant for another life is not done.
 *   - A creditor gets memory back within the recall's deadline and one ttl, whatever its debtors do.
 *   - An instance that drains takes part in nothing new. What it holds for others is recalled at once,
 *     so that nobody relies on it when it leaves; what it has lent stays lent until its requests end.
 *
 * Nothing here knows a socket, a thread or a clock: messages, step borders and the time are handed
 * in, and what is to be done goes out by `struct kva_rmanager_ops`. Times are nanoseconds of the
 * node's own monotonic clock. Memory is allocated by create alone.
 *
 * Thread rule: one thread at a time. */
#ifndef KVA_CLUSTER_RMANAGER_H
#define KVA_CLUSTER_RMANAGER_H

#include "cluster/message.h"

struct kva_rmanager;

struct kva_loan {
    uint64_t id;
    uint64_t request;
    uint32_t generation; /* of the request: grows whenever it is computed again */
    uint32_t debtor;     /* nodes */
    uint32_t creditor;
    uint32_t first_page; /* of the request */
    uint32_t pages;
};

/* What a node does for its rManager. No callback may call the rManager, but to ask (find_loan, lent,
 * get_stats). */
struct kva_rmanager_ops {
    void *opaque;
    /* PAGES goes out with the content of its pages as they are now: unacked_pages at most. */
    void (*send)(void *opaque, const struct kva_message *message);
    /* What the instance is doing; what is lent and borrowed is filled in by the rManager. */
    void (*load)(void *opaque, struct kva_message_load *ret_load);
    /* Requests with pages that may be moved, flags KVA_ENTRY_LOCAL and perhaps KVA_ENTRY_HEAD; the
     * longest, if there are more than `max`. How many. */
    uint32_t (*requests)(void *opaque, struct kva_message_entry *ret_entries, uint32_t max);
    /* The content that came with the PAGES being received: pages [first, first + count) of the
     * loan, to the creditor's memory or home. */
    void (*take)(void *opaque, const struct kva_loan *loan, uint32_t first, uint32_t count);

    /* As creditor. Memory for a loan, or false; given back, it is wiped before others use it. */
    bool (*guest_reserve)(void *opaque, const struct kva_loan *loan);
    void (*guest_free)(void *opaque, const struct kva_loan *loan);

    /* As debtor. The first page of a loan's request whose memory lending would free; NULL: 0. */
    uint32_t (*lendable_from)(void *opaque, const struct kva_loan *loan);
    /* Whether the request is alive in this generation and the pages are closed and here. */
    bool (*lendable)(void *opaque, const struct kva_loan *loan);
    /* Whether pages may go to a creditor, as far as is known: not to one that cannot be asked for
     * attention to them. It is called again then. */
    bool (*may_ask)(void *opaque, uint32_t creditor);
    /* Whether a creditor can be asked now for attention to what it has; if not, it is called. */
    bool (*reaches)(void *opaque, uint32_t creditor);
    /* From the coming step on the creditor's pages are the ones: those here are to be freed. */
    void (*lent)(void *opaque, const struct kva_loan *loan);
    /* Memory here for all pages of the loan, or false. It is the request's, whatever follows. */
    bool (*home_reserve)(void *opaque, const struct kva_loan *loan);
    /* From the coming step on the pages here are the ones. */
    void (*came_home)(void *opaque, const struct kva_loan *loan);
    /* Pages that were lent are gone: the request has to be computed again, as a new generation. Its
     * other loans are being released. */
    void (*lost)(void *opaque, uint64_t request, uint32_t generation);
};

struct kva_rmanager_params {
    uint32_t node; /* not 0; a gManager on the same machine has a number of its own */
    uint64_t life; /* larger than any life that this node had: of its lease in etcd, for instance */
    uint32_t loans_max;         /* in each role */
    uint32_t peers_max;         /* nodes, gManagers included */
    uint32_t entries_max;       /* requests and loans in a report */
    uint32_t request_loans_max; /* of one request at a time, as debtor; 0: any number */
    uint32_t lend_pages_max;
    uint32_t unacked_pages;    /* of a loan, on their way */
    uint64_t retry_ns;         /* until what was not answered is sent again */
    uint64_t lease_margin_ns;  /* by which a debtor gives up before its creditor */
    uint64_t recall_within_ns; /* that debtors have to bring pages home */
};

struct kva_rmanager_stats {
    uint64_t orders_stale;   /* of an older leader or round */
    uint64_t orders_refused; /* for role, room, whom nobody can ask, a request that is not so now */
    uint64_t duplicates;
    uint64_t strangers; /* messages of past lives, or of more peers than there is room for */
    uint64_t loans_begun;
    uint64_t loans_lent;
    uint64_t loans_home;
    uint64_t loans_lost;
    uint64_t guests_accepted;
    uint64_t guests_refused;
    uint64_t guests_expired;
    uint64_t pages_copied; /* sent, repetitions included */
    uint32_t loans;        /* now */
    uint32_t borrowed_pages;
    uint32_t guests;
    uint32_t lent_pages;
};

/* `ops` is copied. Fails: KVA_EINVAL (a parameter, named), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_rmanager_create(const struct kva_rmanager_params *params,
                                                   const struct kva_rmanager_ops *ops,
                                                   struct kva_rmanager **ret_rmanager,
                                                   struct kva_err *err);
void kva_rmanager_destroy(struct kva_rmanager *r);

/* A decoded message for this node. */
void kva_rmanager_receive(struct kva_rmanager *r, const struct kva_message *message,
                          uint64_t now_ns);

/* What is due: to be called before every step, and when nothing steps. */
void kva_rmanager_tick(struct kva_rmanager *r, uint64_t now_ns);

/* Between two steps: pages change hands, and the next ones are copied, `pages` of all loans at most,
 * which is the rate; of loans that are recalled one at least, since they are lost otherwise. */
void kva_rmanager_step(struct kva_rmanager *r, uint32_t pages, uint64_t now_ns);

/* A request is over, or is being computed again: its loans are released. */
void kva_rmanager_request_end(struct kva_rmanager *r, uint64_t request, uint32_t generation,
                              uint64_t now_ns);

/* This instance needs `pages` of what it has lent, those that are recalled already included. */
void kva_rmanager_reclaim(struct kva_rmanager *r, uint32_t pages, uint64_t now_ns);

/* This instance is about to leave, and there is no way back: from now on its reports keep it out of
 * plans, it refuses to hold pages and to lend any more, and all guests are recalled. It may leave when
 * there are none (stats.guests), at the latest after recall_within_ns and the longest ttl. */
void kva_rmanager_drain(struct kva_rmanager *r, uint64_t now_ns);

/* The link to a creditor is broken for good, says the transport: what lies there is lost. */
void kva_rmanager_peer_lost(struct kva_rmanager *r, uint32_t node, uint64_t now_ns);

/* Loans of a request that are LENT or RETURNING, to which a step attends by DistAttention; at most
 * `max`. How many there are. */
uint32_t kva_rmanager_lent(const struct kva_rmanager *r, uint64_t request, struct kva_loan *ret,
                           uint32_t max);

/* A loan of this instance's requests, by its id. False: there is none. */
bool kva_rmanager_find_loan(const struct kva_rmanager *r, uint64_t loan, struct kva_loan *ret);

void kva_rmanager_get_stats(const struct kva_rmanager *r, struct kva_rmanager_stats *ret_stats);

#endif
