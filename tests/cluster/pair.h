/* pair.h - two rManagers on a wire that the test holds: it sees every message, and delivers those
 * that it wants to. */
#ifndef KVA_TESTS_CLUSTER_PAIR_H
#define KVA_TESTS_CLUSTER_PAIR_H

#include "tests/cmocka.h"

#include "base/clock.h"
#include "cluster/rmanager.h"

#define PAIR_LEADER   9u
#define PAIR_TTL_NS   (1000 * KVA_NS_PER_MS)
#define PAIR_SENT_MAX 256u

struct pair_node {
    struct pair *pair;
    struct kva_rmanager *rmanager;
    uint32_t free_pages;
    uint32_t guest_pages;
    bool refuses;          /* nothing of it is lendable */
    uint32_t shared_pages; /* at the request's beginning */
    bool apart;            /* nobody may be asked, as far as is known */
    bool unreached;        /* nobody can be asked for attention */
    uint32_t closed_pages; /* the request's first so many are; 0: as many as are asked for */
    uint32_t request_count;
    struct kva_message_entry requests[1200];
    /* What it was told to do. */
    uint32_t lent, home, lost, taken, freed;
};

struct pair {
    struct pair_node nodes[2]; /* numbers 1 and 2, lives 11 and 12 */
    struct kva_message sent[PAIR_SENT_MAX];
    struct kva_message_entry entries[PAIR_SENT_MAX * 8];
    uint32_t entry_count;
    uint32_t sent_count;
    uint32_t delivered;
    uint64_t now_ns;
    uint32_t step_pages; /* 4, if a test does not change it */
    uint64_t leader_sequence;
};

void pair_init(struct pair *pair);
void pair_finish(struct pair *pair);

/* Deliver what was sent until nothing is left; all of it if `only` is 0, else only that type. */
void pair_settle(struct pair *pair, enum kva_message_type only);
/* Let time pass, without a message being delivered. */
void pair_wait(struct pair *pair, uint64_t ns);
void pair_step(struct pair *pair);

/* How many messages of a type were sent since pair_forget. */
uint32_t pair_sent(const struct pair *pair, enum kva_message_type type);
const struct kva_message *pair_last(const struct pair *pair, enum kva_message_type type);
void pair_forget(struct pair *pair);

/* The leader orders node 1 to lend `pages` of request 5 to node 2, as loan `loan`. */
void pair_move(struct pair *pair, uint64_t loan, uint32_t pages, uint64_t revision, uint64_t round);
/* A message of the leader's to a node. */
void pair_order(struct pair *pair, struct kva_message message, uint32_t target);
/* Loan 100 of 8 pages is lent by node 1 to node 2. */
void pair_lend(struct pair *pair);

struct kva_rmanager_stats pair_stats(const struct pair *pair, uint32_t node);

#endif
