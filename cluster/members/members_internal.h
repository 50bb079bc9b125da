/* members_internal.h - what a node knows of its cluster, for the files that it is made of.
 *
 * The table has one writer, the reading of all keys and the watch behind it: answers of transactions
 * never change it, so that nothing older comes over something newer. What the node itself holds, its
 * lease, its number and the leader's key, is known by the answers of its own transactions alone. */
#ifndef KVA_CLUSTER_MEMBERS_MEMBERS_INTERNAL_H
#define KVA_CLUSTER_MEMBERS_MEMBERS_INTERNAL_H

#include "cluster/members/etcd.h"
#include "cluster/members/record.h"

#define KVA_MEMBERS_TXN_MAX       ((size_t)16 << 10)
#define KVA_MEMBERS_ENDPOINTS_MAX 16u

/* What is under one number. */
struct kva_members_entry {
    bool present;
    bool visible;     /* a record of the same model */
    bool stranger;    /* a record of another one */
    bool said;        /* that a record of it was bad */
    uint64_t created; /* revision */
    uint64_t lease;
    struct kva_member member; /* if visible */
};

struct kva_members {
    struct kva_members_params params;
    char *endpoints[KVA_MEMBERS_ENDPOINTS_MAX]; /* params' texts, its own */
    char *user;
    char *ca;
    char *name;
    char nodes_key[128]; /* "kvahead/NAME/nodes/" */
    char leader_key[128];
    char end_key[128]; /* behind all of them */
    struct kva_etcd *etcd;
    bool called; /* something was called back */

    /* The table, as of a revision. */
    bool read; /* false: to be read anew */
    uint64_t revision;
    struct kva_members_entry entries[KVA_MEMBERS_NODES_MAX + 1];
    uint64_t leader_created; /* 0: no key */
    uint64_t leader_lease;
    uint32_t leader_node; /* 0: not known */
    uint64_t records_bad;
    bool key_said;

    /* This node. */
    uint64_t lease;   /* 0: none */
    uint64_t sent_ns; /* of the last keep-alive that was answered */
    uint64_t lease_due_ns;
    bool joined;     /* it has a number and a life, for good */
    bool registered; /* its key is there, with `lease` */
    bool left;
    bool revoking;       /* the lease's end is asked for */
    uint32_t asked_node; /* by the transaction that is under way */
    uint64_t own_created;
    uint64_t self_after; /* the table has to know this revision before a number is chosen */

    /* Election. */
    bool stands;
    uint64_t elected;      /* the revision; 0: it does not lead */
    uint64_t resigned;     /* whose key is still to be removed; 0: none */
    bool resigning;        /* that is asked for */
    uint64_t leader_after; /* as self_after */
};

/* --- members_table.c -------------------------------------------------------------------------- */

/* Ask for all keys, or for what changes in them. */
void kva_members_table_step(struct kva_members *members, uint64_t now_ns);
void kva_members_table_answer(struct kva_members *members, enum kva_etcd_end end,
                              const struct cJSON *answer, uint64_t now_ns);
void kva_members_watch_answer(struct kva_members *members, enum kva_etcd_end end,
                              const struct cJSON *answer, uint64_t now_ns);

/* Tell of everybody who is there; once, when this node has joined. */
void kva_members_table_tell(struct kva_members *members);

/* --- members_self.c --------------------------------------------------------------------------- */

/* The lease, and the number. */
void kva_members_self_step(struct kva_members *members, uint64_t now_ns);
void kva_members_lease_answer(struct kva_members *members, enum kva_etcd_end end,
                              const struct cJSON *answer, uint64_t sent_ns, uint64_t now_ns);
void kva_members_self_answer(struct kva_members *members, enum kva_etcd_end end,
                             const struct cJSON *answer, uint64_t now_ns);

/* The lease is no more, and so nothing that had it. */
void kva_members_lease_lost(struct kva_members *members, const char *why);

/* The body of a transaction that creates `key`, or else reads what is there. */
void kva_members_put_create(struct kva_buf *out, const char *key, const char *value,
                            uint64_t lease);

/* What such a transaction came to. False: the answer is no good. */
bool kva_members_get_created(const struct cJSON *answer, bool *ret_created, uint64_t *ret_revision,
                             struct kva_etcd_kv *ret_there);

/* --- members_leader.c ------------------------------------------------------------------------- */

void kva_members_leader_step(struct kva_members *members, uint64_t now_ns);
void kva_members_leader_answer(struct kva_members *members, enum kva_etcd_end end,
                               const struct cJSON *answer, uint64_t now_ns);

/* It leads no more. */
void kva_members_depose(struct kva_members *members);

/* The table has changed: whether the key is still the one that this node made. */
void kva_members_leader_check(struct kva_members *members);

#endif
