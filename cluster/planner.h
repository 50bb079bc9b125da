/* planner.h - which pages of which requests go to which instance: Algorithm 1 of Infinite-LLM, and
 * what it leaves open.
 *
 * Instances with few rows in a step (debtors) give pages of their longest requests to instances
 * with free memory (creditors), as many as the model of cost.h finds best. Where the paper is
 * silent:
 *
 *   longest request   when all of its pages have gone, the next longest follows
 *   roles             an instance that holds pages for others borrows none, and the reverse
 *   capacity          no more than is free, less a share that a creditor keeps to grow
 *   waiting           memory that is freed gains rows only if somebody waits for it; an instance
 *                     whose own requests wait lends what they cannot use yet, until it says that
 *                     it keeps it, or while a request waits that fits nowhere: then for that alone
 *   first in line     a request that its instance can never hold is spread over several before
 *                     it decodes, all that it lacks, or when it has waited for long (`keeps`) so much
 *                     that its instance can hold the rest one day; or nothing, whatever the tokens a
 *                     second
 *   latency           no move lets a step take longer than a bound, or than it took before
 *   hysteresis        what a plan wins within a horizon has to exceed what moving costs
 *   return            pages come home when there is room for them and it gains as much
 *   ties              by id: the same state gives the same plan
 *
 * A pure function of its input. Thread rule: none; no state. */
#ifndef KVA_CLUSTER_PLANNER_H
#define KVA_CLUSTER_PLANNER_H

#include "base/arena.h"
#include "cluster/cost.h"

#define KVA_PLAN_INSTANCES_MAX 1024u

struct kva_plan_instance {
    uint32_t id;                        /* unique; breaks ties */
    const struct kva_cost_params *cost; /* checked by kva_cost_check */
    uint32_t pages;                     /* its memory for KV */
    uint32_t free_pages;                /* of them */
    uint32_t unlendable_pages;          /* of those: what it may not lend */
    uint32_t batch;                     /* requests that decode */
    uint32_t batch_max;                 /* at most */
    uint64_t tokens;                    /* of those that decode, wherever they lie */
    uint32_t waiting;                   /* requests that wait for memory, in order */
    uint32_t head_pages;    /* which the first of them needs here, beside what is lent */
    uint64_t waiting_pages; /* which all of them need */
    double prompt_s;        /* what prompts take of its time for each token that it says */
    double loan_pace;       /* cost.h; 0: nothing is known */
    bool keeps;             /* its free memory is for those that wait here */
    bool closed;            /* takes no part: it moves pages, drains, or is not heard */
};

struct kva_plan_request {
    uint64_t id;
    uint32_t generation;
    uint32_t instance; /* index; its debtor, if it has pages elsewhere */
    uint32_t pages;    /* that may go: closed ones here, or on its host */
    bool head;         /* its prompt is in, and it is the one that head_pages speaks of */
};

/* Pages that lie elsewhere now. */
struct kva_plan_loan {
    uint64_t id;
    uint64_t request;
    uint32_t debtor; /* indices */
    uint32_t creditor;
    uint32_t pages;
};

struct kva_plan_state {
    const struct kva_plan_instance *instances;
    const struct kva_plan_request *requests;
    const struct kva_plan_loan *loans;
    const bool *apart; /* [instance_count ^ 2], of debtors: nothing goes there; NULL: to all */
    uint32_t instance_count;
    uint32_t request_count;
    uint32_t loan_count;
};

struct kva_plan_params {
    uint32_t page_tokens;
    uint32_t grain_pages;         /* pages move in multiples of it: attention sums 256 tokens */
    uint32_t home_pages_min;      /* of a request that stays where it decodes */
    uint32_t batch_threshold;     /* a debtor has at most so many rows: kva_cost_knee_rows */
    double usage_threshold;       /* a creditor's memory is used to at most this share */
    double keep_share;            /* of its memory that a creditor keeps free for its own */
    double step_max_s;            /* 0: no bound */
    double horizon_s;             /* for which a plan is expected to hold */
    double copy_bytes_per_s;      /* at which pages are copied, at most */
    double copy_step_pages;       /* the same in each of the debtor's steps; 0: no bound */
    double copy_loss_share;       /* of both instances' tokens that copying costs */
    double gain_min_share;        /* of both instances' tokens that a move has to gain */
    uint32_t requests_per_debtor; /* of which pages may move in one plan */
    uint32_t request_loans_max;   /* that a request has at a time; 0: any number */
};

enum kva_plan_kind {
    KVA_PLAN_LEND,
    KVA_PLAN_RETURN, /* the whole loan */
};

struct kva_plan_move {
    enum kva_plan_kind kind;
    uint64_t request;
    uint64_t loan; /* KVA_PLAN_RETURN */
    uint32_t generation;
    uint32_t debtor; /* indices */
    uint32_t creditor;
    uint32_t pages;
    double gain; /* tokens a second of both, as the model has it */
};

struct kva_plan {
    struct kva_plan_move *moves; /* in the arena */
    uint32_t move_count;
    double tokens_per_s_before; /* of all instances, as the model has it */
    double tokens_per_s_after;
};

/* The paper's rules with thresholds from `cost`, a horizon of 10 s and moves that gain 2%. */
struct kva_plan_params kva_plan_defaults(const struct kva_cost_params *cost);

/* What is to be moved now. At most `moves_max` moves. Scratch memory and the result are the
 * arena's. Fails: KVA_EINVAL (an index or an amount that cannot be), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_plan_make(const struct kva_plan_params *params,
                                             const struct kva_plan_state *state, uint32_t moves_max,
                                             struct kva_arena *arena, struct kva_plan *ret_plan,
                                             struct kva_err *err);

/* What the model says of a plan's moves in a state with other constants than those it was made with:
 * its tokens_per_s_*. Fails: as above. */
KVA_MUST_CHECK enum kva_status kva_plan_value(const struct kva_plan_params *params,
                                              const struct kva_plan_state *state,
                                              struct kva_arena *arena, struct kva_plan *plan,
                                              struct kva_err *err);

/* What the model says of lending `pages` more of one request to one creditor: tokens a second that
 * both together gain (Eq. 7), in a state without plan. For tests and reports. Fails: as above. */
KVA_MUST_CHECK enum kva_status kva_plan_gain(const struct kva_plan_params *params,
                                             const struct kva_plan_state *state, uint32_t debtor,
                                             uint32_t creditor, uint32_t pages,
                                             struct kva_arena *arena, double *ret_gain,
                                             struct kva_err *err);

#endif
