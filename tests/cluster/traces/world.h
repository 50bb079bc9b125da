/* world.h - instances that decode requests of a trace on a virtual clock, alone or as a cluster with
 * the real planner, gManager and rManagers.
 *
 * An engine is its memory in pages and the time of its steps (cost.h); a request takes memory for all
 * of its tokens before it starts, in order of arrival, and a row until it has its answer; its prompt
 * makes its first step longer, on a machine whose prompts take time. Requests are drawn and go where
 * most memory is free, less what waits there, or are given. The network delivers everything; nobody
 * fails.
 *
 * Thread rule: none; a world is one thread's. */
#ifndef KVA_TESTS_CLUSTER_TRACES_WORLD_H
#define KVA_TESTS_CLUSTER_TRACES_WORLD_H

#include "cluster/gmanager.h"
#include "cluster/rmanager.h"
#include "tests/cluster/traces/trace.h"

#define WORLD_INSTANCES_MAX 32u

/* What an instance runs on. */
struct world_machine {
    struct kva_cost_params cost;
    uint32_t pages;       /* for KV */
    uint32_t rows_max;    /* in a step */
    double prompt_s;      /* that a prompt's token takes, all layers */
    double prompt_pair_s; /* and with each token of its prompt that it attends to, counted twice */
    double step_pages;    /* that are copied in a step */
    double lend_share;    /* of its pages that others may have */
    double patience_s;    /* for which its first in line waits before it keeps what is free */
};

/* An A100 with LLaMA2-7B, on which prompts take no time. */
struct world_machine world_a100(void);

/* A request that is given. */
struct world_arrival {
    double at_s;
    uint32_t instance, prompt, outputs; /* outputs > 0 */
};

struct world_params {
    const struct world_machine *machine;
    const struct world_arrival *arrivals; /* in their order; NULL: drawn from the trace */
    uint32_t arrival_count;
    const struct trace *trace;
    uint32_t instances;
    uint32_t devices; /* of each: weights and KV are split over them */
    bool pooled; /* of several: all memory and all attention are everybody's, nothing travels */
    bool lends;  /* a cluster */
    uint64_t seed;
    double load; /* of what its devices could do at best, were all requests of average length */
    double warm_s;
    double measured_s;
};

struct world_result {
    double tokens_per_s;
    double prompts_per_s; /* tokens of prompts that were computed, those again, too */
    double halves[2];     /* of the measured time: equal where it is steady */
    double rows;          /* per step, average */
    double used;          /* of all memory, average */
    uint32_t refused;     /* requests that fit nowhere */
    uint32_t ended;
    double wait_s; /* of a request, until it has its memory; average */
    uint32_t computed_again;
    uint64_t loans; /* that were lent */
    uint64_t home;  /* and came home */
};

/* Tokens of a request that so many instances of one device can hold together. */
double world_tokens_max(uint32_t instances);

/* Run one. Stops the program where the code under it refuses its parameters. */
struct world_result world_run(const struct world_params *params);

#endif
