/* gmanager.h - the global view and its rounds (Infinite-LLM, section 6).
 *
 * One of several gManagers leads, whoever etcd's election says; the others know nothing and cost
 * nothing. In each round the leader asks all instances for reports, waits a while, plans with those
 * that have answered (planner.h), and gives orders. It owns no state that is not in the reports: a
 * new leader asks for everything, and loans go on without one.
 *
 *   - An order carries the election's revision, which grows with every leader, and the round.
 *   - A leader stops to lead when the keep-alive of its lease that was sent last and answered is
 *     older than the lease's ttl less a margin, on its own monotonic clock. etcd elects nobody else
 *     before the ttl has passed since it received it: two never plan at once.
 *   - Reports are deltas. One that does not follow the last one makes its instance unknown until
 *     it has reported everything.
 *
 * As in rmanager.h, messages and times are handed in. Memory: tables by create, plans in an arena.
 * Thread rule: one thread at a time. */
#ifndef KVA_CLUSTER_GMANAGER_H
#define KVA_CLUSTER_GMANAGER_H

#include "cluster/message.h"
#include "cluster/planner.h"

struct kva_gmanager;

struct kva_gmanager_ops {
    void *opaque;
    void (*send)(void *opaque, const struct kva_message *message); /* does not call back */
};

struct kva_gmanager_params {
    uint32_t node; /* its own, not the one of the instance beside it */
    uint64_t life;
    uint32_t instances_max;
    uint32_t entries_max; /* of the placement map, for each instance */
    uint32_t moves_max;   /* in a plan */
    uint64_t round_ns;
    uint64_t gather_ns;       /* that reports have, of a round */
    uint64_t loan_ttl_ns;     /* of the loans it orders */
    uint64_t lease_ttl_ns;    /* of its own lease in etcd */
    uint64_t lease_margin_ns; /* by which it stops before */
    struct kva_plan_params plan;
    struct kva_cost_params cost; /* of a device; others may be faster or slower: by their steps */
    bool disregard;              /* plan by who waits for memory: kva_cost_disregard */
};

struct kva_gmanager_stats {
    uint64_t rounds;
    uint64_t plans;
    uint64_t moves;
    uint64_t returns;
    uint64_t reports;
    uint64_t reports_unfit; /* that do not follow the last one, or are of the past */
    uint64_t strangers;     /* messages of no member, past lives, or repeated */
    uint32_t members;
    uint32_t fresh; /* of them, those whose state is known */
    double tokens_per_s_before;
    double tokens_per_s_after; /* of the last plan, as the model has it */
    /* Steps by what the model says of them, of those that have told, on average; 1: nobody has. */
    double pace;
    double loan_pace; /* the same of steps with loans, beside that */
};

/* Fails: KVA_EINVAL (a parameter, named), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_gmanager_create(const struct kva_gmanager_params *params,
                                                   const struct kva_gmanager_ops *ops,
                                                   struct kva_gmanager **ret_gmanager,
                                                   struct kva_err *err);
void kva_gmanager_destroy(struct kva_gmanager *g);

/* What membership says: a node is there, in this life; or is no more. Fails: KVA_ELIMIT. */
KVA_MUST_CHECK enum kva_status kva_gmanager_member(struct kva_gmanager *g, uint32_t node,
                                                   uint64_t life);
void kva_gmanager_member_gone(struct kva_gmanager *g, uint32_t node);

/* Constants are known better: of a link that has been measured. Fails: as create. */
KVA_MUST_CHECK enum kva_status kva_gmanager_set_cost(struct kva_gmanager *g,
                                                     const struct kva_cost_params *cost,
                                                     const struct kva_plan_params *plan,
                                                     struct kva_err *err);

/* It was elected, with a lease whose keep-alive was sent at `sent_ns`. Told once more of the same
 * election, it goes on in it: rounds and numbers of loans are used once. */
void kva_gmanager_elected(struct kva_gmanager *g, uint64_t revision, uint64_t sent_ns);
/* A keep-alive that was sent at `sent_ns` was answered. */
void kva_gmanager_kept_alive(struct kva_gmanager *g, uint64_t sent_ns);
/* It leads no more: by etcd's word, or its own. */
void kva_gmanager_deposed(struct kva_gmanager *g);

/* Whether it may give orders now. */
bool kva_gmanager_leads(const struct kva_gmanager *g, uint64_t now_ns);

void kva_gmanager_receive(struct kva_gmanager *g, const struct kva_message *message);

/* Begin a round, or plan, if it is time. */
void kva_gmanager_tick(struct kva_gmanager *g, uint64_t now_ns);

void kva_gmanager_get_stats(const struct kva_gmanager *g, struct kva_gmanager_stats *ret_stats);

#endif
