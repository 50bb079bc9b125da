/* planner_sides.h - the instances as a plan changes them, and what the model says of each change.
 *
 * A side is an instance with what the plan has given and taken so far. Thread rule: none. */
#ifndef KVA_CLUSTER_PLANNER_SIDES_H
#define KVA_CLUSTER_PLANNER_SIDES_H

#include "cluster/planner.h"

struct kva_plan_side {
    const struct kva_plan_instance *instance;
    uint32_t free_pages;
    uint32_t borrowed_pages;
    uint32_t borrowed_most; /* at the creditor that holds most of them */
    uint32_t lent_pages;
    uint32_t borrowed_rows; /* (request, creditor) pairs */
    double guest_share;
    double layer_s;      /* with those that fit now */
    double tokens_per_s; /* the same */
};

struct kva_plan_sides {
    const struct kva_plan_params *params;
    const struct kva_plan_state *state;
    struct kva_plan_side *sides; /* [instance_count] */
    uint32_t *pair_pages;        /* [debtor * instance_count + creditor] */
};

/* What a change of `pages` between two would do. */
struct kva_plan_outcome {
    double gain;     /* tokens a second of both */
    double before;   /* the same, as they are */
    bool within_slo; /* steps stay within the bound, or get no longer */
};

/* Fails: KVA_EINVAL, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_plan_sides_init(struct kva_plan_sides *sides,
                                                   const struct kva_plan_params *params,
                                                   const struct kva_plan_state *state,
                                                   struct kva_arena *arena, struct kva_err *err);

/* `pages` from debtor to creditor; negative: back. */
struct kva_plan_outcome kva_plan_sides_try(const struct kva_plan_sides *sides, uint32_t debtor,
                                           uint32_t creditor, int64_t pages);
void kva_plan_sides_apply(struct kva_plan_sides *sides, uint32_t debtor, uint32_t creditor,
                          int64_t pages);

/* Pages that a creditor can still give away. */
uint32_t kva_plan_sides_spare(const struct kva_plan_sides *sides, uint32_t creditor);

/* Pages that are missing here for the first request that waits; 0: it fits, or none waits. */
uint32_t kva_plan_sides_deficit(const struct kva_plan_sides *sides, uint32_t debtor);

/* What the model says of a step of `rows` that attend to `tokens`, without prompts, with the loans that
 * there are and whatever was seen of them before. */
double kva_plan_sides_step_s(const struct kva_plan_sides *sides, uint32_t index, uint32_t rows,
                             uint64_t tokens);

double kva_plan_sides_total(const struct kva_plan_sides *sides);

#endif
