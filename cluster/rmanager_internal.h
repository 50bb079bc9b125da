/* rmanager_internal.h - the tables of an rManager. For its own files, and for tests that break it.
 *
 * Thread rule: as rmanager.h. */
#ifndef KVA_CLUSTER_RMANAGER_INTERNAL_H
#define KVA_CLUSTER_RMANAGER_INTERNAL_H

#include "cluster/rmanager.h"
#include "cluster/window.h"

enum kva_debt_state {
    KVA_DEBT_NONE, /* a free slot */
    KVA_DEBT_RESERVING,
    KVA_DEBT_COPYING,
    KVA_DEBT_READY,
    KVA_DEBT_LENT,
    KVA_DEBT_RETURNING,
    KVA_DEBT_RELEASING,
};

/* A loan, at the debtor. */
struct kva_debt {
    struct kva_loan loan;
    enum kva_debt_state state;
    uint64_t creditor_life;
    uint64_t ttl_ns;
    uint64_t lease_end_ns; /* until which the creditor is relied on */
    uint64_t renew_ns;     /* when it is renewed next */
    uint64_t retry_ns;     /* when what is unanswered is sent again */
    uint64_t give_up_ns;   /* RESERVING, RELEASING: when nobody can answer any more; READY: when it
                              is over if the creditor could not be asked for attention until then */
    uint64_t recall_ns;    /* by when it has to be home; 0: not recalled */
    uint32_t sent;         /* COPYING: pages from the first on */
    uint32_t acked;
    uint32_t returned; /* RETURNING: the same */
    uint32_t pulled;   /* asked for and not yet here */
};

/* A loan, at the creditor. */
struct kva_guest {
    struct kva_loan loan; /* pages 0: a free slot */
    uint64_t debtor_life;
    uint64_t ttl_ns;
    uint64_t expires_ns;
    uint64_t recall_end_ns; /* after which it is not renewed; 0: not recalled */
    uint64_t retry_ns;      /* when the recall is repeated */
    uint64_t number;        /* in order of reserving */
    uint32_t received;      /* pages from the first on */
    bool switched;
};

/* A creditor to which an order could not be carried out: reports say so until it is otherwise. */
struct kva_apart {
    uint32_t node;
    uint64_t until_ns; /* until then at least, whether it may be asked or not */
};

struct kva_rmanager {
    struct kva_rmanager_params params;
    struct kva_rmanager_ops ops;
    struct kva_rmanager_stats stats;
    struct kva_peers peers;
    struct kva_debt *debts;   /* [loans_max] */
    struct kva_guest *guests; /* [loans_max] */
    struct kva_apart *aparts; /* [peers_max] */
    uint32_t apart_count;
    uint64_t sequence;
    uint64_t guest_number;
    uint64_t revision; /* the highest seen */
    uint64_t round;    /* of it */
    uint32_t leader;
    bool draining; /* about to leave */
    /* What the leader was told last, and what it is told now, by request and loan. */
    struct kva_message_entry *reported;
    struct kva_message_entry *current;
    struct kva_message_entry *changes; /* [2 * entries_max] */
    uint32_t reported_count;
    uint64_t report_index;
    uint64_t report_revision; /* to whom */
};

/* Send: the header is filled in. */
void kva_rmanager_send(struct kva_rmanager *r, struct kva_message *message, uint32_t target,
                       uint64_t target_life);

/* A message with nothing but a loan. */
void kva_rmanager_send_loan(struct kva_rmanager *r, enum kva_message_type type, uint64_t loan,
                            uint32_t target, uint64_t target_life);

/* rmanager_debtor.c */
struct kva_debt *kva_debt_find(struct kva_rmanager *r, uint64_t loan);
void kva_debt_move(struct kva_rmanager *r, const struct kva_message *message, uint64_t now_ns);
void kva_debt_return(struct kva_rmanager *r, uint64_t loan);
void kva_debt_receive(struct kva_rmanager *r, const struct kva_message *message, uint64_t now_ns);
void kva_debt_tick(struct kva_rmanager *r, uint64_t now_ns);
void kva_debt_step(struct kva_rmanager *r, uint32_t pages, uint64_t now_ns);
void kva_debt_peer_gone(struct kva_rmanager *r, uint32_t node, uint64_t new_life, uint64_t now_ns);

/* rmanager_creditor.c */
void kva_guest_receive(struct kva_rmanager *r, const struct kva_message *message, uint64_t now_ns);
void kva_guest_tick(struct kva_rmanager *r, uint64_t now_ns);
void kva_guest_peer_new(struct kva_rmanager *r, uint32_t node, uint64_t life);

/* rmanager_report.c */
void kva_report_send(struct kva_rmanager *r, uint64_t round, bool full, uint64_t now_ns);
/* Nothing goes to that creditor, until then at least, and until it may be asked. */
void kva_report_apart(struct kva_rmanager *r, uint32_t creditor, uint64_t until_ns);

#endif
