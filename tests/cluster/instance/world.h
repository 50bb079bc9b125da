/* world.h - a cluster of real engines, schedulers, rManagers and a gManager in one process, on a
 * virtual clock: messages go through their encoding and a network that loses, doubles and delays
 * them; queries are attended to where they are posted; instances die and start again. */
#ifndef KVA_TESTS_CLUSTER_WORLD_H
#define KVA_TESTS_CLUSTER_WORLD_H

#include "cluster/gmanager.h"
#include "cluster/instance/instance.h"
#include "tests/engine/fixture.h"

enum {
    WORLD_NODES = 3,
    WORLD_MANAGER = 101, /* node id */
    WORLD_REQUESTS = 40,
    WORLD_TOKENS = 400, /* of an answer */
    WORLD_POSTED = 64,
    WORLD_PACKETS = 4096,
    WORLD_TICK_NS = 10 * 1000000,
};

struct world;

/* Id: index + 1. */
struct world_node {
    struct world *world;
    bool up;
    uint64_t life;
    struct fixture fixture;
    struct kva_remote remote;
    struct kva_scheduler *scheduler;
    struct kva_instance *instance;
    struct kva_device *device; /* the worker's */
    struct kva_guest_worker *worker;
    struct kva_remote_rows posted[WORLD_POSTED];
    uint32_t layer;
};

struct world_request {
    uint32_t node; /* index */
    uint32_t prompt_tokens, output_tokens;
    uint32_t tokens[WORLD_TOKENS];
    uint32_t count;
    bool ended;
    enum kva_finish_reason reason;
};

struct world_packet {
    uint64_t due_ns; /* 0: none */
    uint32_t target;
    uint8_t bytes[KVA_MESSAGE_BYTES_MAX];
    size_t size;
    unsigned char *content;
    size_t content_bytes;
};

struct world {
    struct kva_clock clock;
    uint64_t now_ns;
    uint64_t rng;
    bool keeps_homes;
    uint64_t patience_ns;
    uint32_t loss_pct, double_pct, late_pct;
    uint32_t device_pages; /* of each instance */
    uint32_t lend_pages;   /* of them, those that others may have; 0: all */
    uint32_t layers;       /* of the model; 0: 3 */
    size_t page_bytes;
    char model[FIXTURE_PATH_BYTES];
    struct world_node nodes[WORLD_NODES];
    struct kva_gmanager *gmanager;
    struct world_packet *packets; /* [WORLD_PACKETS] */
    struct world_request requests[WORLD_REQUESTS];
    uint32_t request_count;
    uint64_t attended;                /* rows before loans, in all layers */
    struct kva_rmanager_stats before; /* of lives that are over */
    uint64_t restarts;                /* the same */
};

/* What is set of `world` before: keeps_homes, patience_ns,
 * the network's percentages, device_pages, lend_pages, layers, rng. */
void world_open(struct world *world);
void world_close(struct world *world);

uint32_t world_below(struct world *world, uint32_t limit);

/* A request to an instance; its number. */
uint32_t world_submit(struct world *world, uint32_t node, uint32_t prompt_tokens,
                      uint32_t output_tokens);

void world_tick(struct world *world);

/* Until all requests have ended, or so many ticks are over. False: some have not. */
bool world_run(struct world *world, uint32_t ticks);

/* It is gone with all that it had, and with its requests; and is there again, in a new life. */
void world_kill(struct world *world, uint32_t node);
void world_start(struct world *world, uint32_t node);

/* Sums over all instances and lives. */
struct kva_rmanager_stats world_loans(const struct world *world);
uint64_t world_restarts(const struct world *world);

/* Every request of a living instance has said what it says alone. */
void world_expect_answers(struct world *world);

/* After ticks enough for every lease to end: nobody has anything of anybody. */
void world_expect_rest(struct world *world);

#endif
