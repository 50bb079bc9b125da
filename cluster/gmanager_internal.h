/* gmanager_internal.h - the placement map. For gmanager's own files, and for tests that break it.
 *
 * Thread rule: as gmanager.h. */
#ifndef KVA_CLUSTER_GMANAGER_INTERNAL_H
#define KVA_CLUSTER_GMANAGER_INTERNAL_H

#include "cluster/gmanager.h"
#include "cluster/window.h"

/* Of the numbers of loans, those that one leader can give. */
#define KVA_GMANAGER_LOAN_BITS 24u

struct kva_gmanager_member {
    uint32_t node;
    uint64_t life;
    bool fresh;     /* its state is what it reported, all of it */
    uint64_t round; /* that it has answered */
    uint64_t index; /* of its last report */
    struct kva_message_load load;
    double pace;                       /* its steps without loans to those of the constants */
    double loan_pace;                  /* with loans, to those of the model; both 0: not known */
    uint64_t pace_step_ns;             /* step_ns of the last report that was learnt from */
    struct kva_message_entry *entries; /* [entries_max], by request and loan */
    uint32_t entry_count;
};

struct kva_gmanager {
    struct kva_gmanager_params params;
    struct kva_gmanager_ops ops;
    struct kva_gmanager_stats stats;
    struct kva_gmanager_member *members; /* [instances_max], by node */
    uint32_t member_count;
    struct kva_message_entry *entries; /* of all of them */
    struct kva_peers peers;
    uint64_t sequence;
    bool elected;
    uint64_t revision;
    uint64_t keepalive_ns; /* when the last one was sent that was answered */
    uint64_t round;
    uint64_t loan_number;
    uint64_t round_due_ns;
    uint64_t plan_due_ns; /* 0: planned */
};

/* gmanager_map.c: a report; false: it does not follow. */
bool kva_gmanager_member_report(struct kva_gmanager_member *member,
                                const struct kva_message *message, uint32_t entries_max);

/* gmanager_plan.c: plan and order. */
void kva_gmanager_plan(struct kva_gmanager *g);

void kva_gmanager_send(struct kva_gmanager *g, struct kva_message *message,
                       const struct kva_gmanager_member *member);

#endif
