/* nodes.h - members of a cluster in one process, each with a thread of its own, and what they were
 * told. */
#ifndef KVA_TESTS_CLUSTER_MEMBERS_NODES_H
#define KVA_TESTS_CLUSTER_MEMBERS_NODES_H

#include "base/clock.h"
#include "cluster/members/members.h"

#include <pthread.h>

#define NODES_MARGIN_NS (NODES_TTL_NS / 5)
#define NODES_MAX       8u
#define NODES_TTL_NS    (2 * KVA_NS_PER_S)
#define NODES_WAIT_S    40u /* that anything may take, on a machine that is busy */

struct node {
    struct kva_members *members;
    struct kva_members_params params;
    const char *endpoint;
    pthread_t thread;
    pthread_mutex_t lock;
    int wake; /* eventfd */
    bool runs;

    /* Wishes, under the lock. */
    bool ends;
    bool stands;
    bool paused;
    uint64_t end_wait_ns;

    /* What it was told, under the lock. */
    uint32_t joins;
    uint32_t node;
    uint64_t life;
    uint64_t lives[KVA_MEMBERS_NODES_MAX + 1]; /* of others that are there; 0: not there */
    uint32_t tells;                            /* of members, and of their end */
    uint32_t gones;
    uint32_t elections, depositions;
    bool leads;
    uint64_t revision, sent_ns;
    uint32_t keeps;
    uint32_t leaves;
    uint32_t order_bad; /* callbacks that do not fit what was said before */
    struct kva_members_view view;
    uint64_t runs_count;
    bool rests; /* paused, and between two turns */
};

/* Fill in parameters that a test may change, then start the thread. */
void node_init(struct node *node, const char *endpoint, uint32_t index);
void node_start(struct node *node);

/* End it; with 0 as a process that dies, its lease left to end by itself. */
void node_end(struct node *node, uint64_t wait_ns);

void node_stand(struct node *node, bool stands);

/* Stop to give it turns, as where a process is stopped; returns when its last turn is over. */
void node_pause(struct node *node, bool paused);

/* A copy of what it was told. */
struct node_told {
    uint32_t joins, node, members, strangers, leader, tells, gones, elections, depositions, keeps;
    uint32_t leaves, order_bad;
    uint64_t life, revision, sent_ns, failures, records_bad, runs;
    bool leads;
    enum kva_members_state state;
    char why[256];
};
struct node_told node_told(struct node *node);

/* The life under which it knows the other one; 0: it does not. */
uint64_t node_knows(struct node *node, uint32_t other);

/* Wait until `is` holds for all nodes together; fails the test where it does not within NODES_WAIT_S,
 * or where two lead at once by gManager's rule, for a margin of a fifth of the ttl. */
typedef bool nodes_check(struct node *nodes, uint32_t count);
void nodes_wait(struct node *nodes, uint32_t count, nodes_check *is, const char *what);
/* The same, after a lease or the leader's key was taken away by hand: then another node may lead before
 * the one that led has heard of it, by a later election, whose revision instances go by. */
void nodes_wait_taken(struct node *nodes, uint32_t count, nodes_check *is, const char *what);

/* All have joined, know each other's lives and nobody else, and the same one leads. */
bool nodes_are_whole(struct node *nodes, uint32_t count);

#endif
