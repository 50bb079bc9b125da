/* table.h - instances, requests and loans on a table, for tests of plans. */
#ifndef KVA_TESTS_CLUSTER_TABLE_H
#define KVA_TESTS_CLUSTER_TABLE_H

#include "tests/cmocka.h"

#include "cluster/planner.h"
#include "tests/cluster/a100.h"

#define INSTANCES_MAX 24u
#define REQUESTS_MAX  200u
#define LOANS_MAX     64u
#define MOVES_MAX     64u

struct table {
    struct kva_cost_params cost;
    struct kva_plan_params params;
    struct kva_plan_instance instances[INSTANCES_MAX];
    struct kva_plan_request requests[REQUESTS_MAX];
    struct kva_plan_loan loans[LOANS_MAX];
    bool apart[INSTANCES_MAX * INSTANCES_MAX]; /* the state's, where it has one */
    struct kva_plan_state state;
    struct kva_plan_move moves[MOVES_MAX];
    struct kva_plan plan; /* its moves are those above */
};

void table_init(struct table *t);

/* An instance whose requests are `count` of `pages` each; `waiting` of 8 pages wait. Its index. */
uint32_t table_add(struct table *t, uint32_t count, uint32_t pages, uint32_t waiting);

enum kva_status table_try(struct table *t, struct kva_err *err);

/* A plan, in t->plan; fails the test if there is none. */
void table_plan(struct table *t);

/* What the state is once the plan has been carried out. */
void table_carry_out(struct table *t);

/* Who waits comes in, as long as there is room. */
void table_let_in(struct table *t);

#endif
