/* world.h - instances that decode requests of a trace on a virtual clock, alone or as a cluster with
 * the real planner, gManager and rManagers.
 *
 * An engine is its memory in pages and the time of its steps (cost.h); a request takes memory for all
 * of its tokens before it starts, in order of arrival, and a row until it has its answer. Prompts cost
 * nothing, in any of the worlds: cost.h has no term for them. Requests go where most memory is free,
 * less what waits there. The network delivers everything; nobody fails.
 *
 * Thread rule: none; a world is one thread's. */
#ifndef KVA_TESTS_CLUSTER_TRACES_WORLD_H
#define KVA_TESTS_CLUSTER_TRACES_WORLD_H

#include "cluster/gmanager.h"
#include "cluster/rmanager.h"
#include "tests/cluster/traces/trace.h"

#define WORLD_INSTANCES_MAX   32u
#define WORLD_ROWS_PER_DEVICE 256u /* vLLM's limit of rows in a step */

struct world_params {
    const struct trace *trace;
    uint32_t instances;
    uint32_t devices; /* of each: weights and KV are split over them */
    bool lends;       /* a cluster */
    uint64_t seed;
    double load; /* of what its devices could do at best, were all requests of average length */
    double warm_s;
    double measured_s;
};

struct world_result {
    double tokens_per_s;
    double halves[2]; /* of the measured time: equal where it is steady */
    double rows;      /* per step, average */
    double used;      /* of all memory, average */
    uint32_t refused; /* requests that fit nowhere */
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
