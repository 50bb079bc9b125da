/* internal.h - a world's inside, for the files that it is made of. */
#ifndef KVA_TESTS_CLUSTER_TRACES_INTERNAL_H
#define KVA_TESTS_CLUSTER_TRACES_INTERNAL_H

#include "base/clock.h"
#include "tests/cluster/traces/world.h"

#define WORLD_PAGE_TOKENS   64u
#define WORLD_LOANS_MAX     256u
#define WORLD_REQUEST_LOANS 32u /* at a time */
#define WORLD_REPORTED_MIN  8u  /* pages of a request that could be lent */
#define WORLD_MANAGER       1000u

enum world_state { WORLD_WAITING, WORLD_RUNNING, WORLD_ENDED };

struct world_request {
    uint64_t id; /* index + 1 */
    uint32_t instance;
    uint32_t prompt, outputs, emitted;
    uint32_t pages; /* of all its tokens */
    uint32_t away;  /* of them, lent */
    uint32_t home;  /* of them, on their way home: memory is taken */
    uint32_t generation;
    uint32_t bypassed; /* by how many, as the first in line */
    bool computed;     /* its prompt, and what it has said */
    enum world_state state;
    uint64_t since_ns;        /* it waits, or waits again */
    uint64_t spread_since_ns; /* its last loan began, meanwhile */
};

struct world_guest {
    uint64_t loan; /* 0: none */
    uint32_t pages;
    uint32_t debtor; /* index */
};

struct world_instance {
    struct world *world;
    struct kva_rmanager *rmanager; /* NULL: it lends nothing */
    uint32_t pages, local, guests;
    uint32_t rows_max;
    uint64_t step_ns; /* when the next one begins */
    double step_s;    /* that the last one took */
    double due_pages; /* of loans, to be copied */
    double prompts_s; /* that those who have just been let in take */
    uint32_t *rows;   /* requests that run, by index */
    uint32_t row_count;
    uint32_t *queue; /* that wait, by index, in order */
    uint32_t queue_first, queue_end, queue_max;
    uint64_t queue_pages;
    uint64_t short_of; /* the first in line, since it lacks memory as such; 0: it does not */
    uint64_t short_since_ns;
    struct world_guest lent[WORLD_LOANS_MAX];
    uint64_t
        asked[WORLD_INSTANCES_MAX]; /* tokens to which it attends in each step of that debtor */
};

struct world_packet {
    uint64_t due_ns;
    struct kva_message message;
    struct kva_message_entry *entries;
};

struct world {
    struct world_params params;
    struct world_machine machine;
    uint64_t now_ns, random;
    uint32_t given; /* arrivals that have come */
    struct world_instance instances[WORLD_INSTANCES_MAX];
    struct kva_gmanager *gmanager;
    uint64_t manager_ns; /* its next turn */
    uint64_t arrival_ns;
    double rate; /* requests a second */
    struct world_request *requests;
    uint32_t request_count, request_max;
    struct world_packet *packets; /* a ring */
    uint32_t packet_first, packet_count, packet_max;
    struct world_result result;
    uint64_t measured[2]; /* tokens */
    uint64_t prompt_tokens;
    double row_steps, steps, used_sum;
    double wait_sum_s, begun;
};

/* world_lend.c */
void world_lend_begin(struct world *world);
void world_lend_end(struct world *world);
void world_send(struct world *world, const struct kva_message *message);
void world_deliver(struct world *world);

/* Pages of a request that others hold for it, and its loans there. */
uint32_t world_loans(const struct world_instance *at, const struct world_request *request,
                     struct kva_loan *ret);

/* world.c */
uint32_t world_free(const struct world_instance *at);
double world_prompt_s(const struct world *world, uint32_t tokens);
struct world_request *world_head(const struct world_instance *at);
bool world_is_short(const struct world_instance *at);
bool world_keeps(const struct world_instance *at, const struct world_request *head);
uint32_t world_closed(const struct world_request *request);
/* It is computed again, as the first in line. */
void world_again(struct world_instance *at, struct world_request *request);

#endif
