/* window.h - which messages of which peers have come: lives, and repetitions within a life.
 *
 * A message that is older than KVA_WINDOW_MESSAGES before the newest counts as repeated: it is then
 * lost, which every protocol here survives. Where there is no room for another peer, the one that was
 * heard of longest ago is forgotten, with its life and what it has said: numbers of nodes that have
 * gone are never used up. Thread rule: one thread at a time. */
#ifndef KVA_CLUSTER_WINDOW_H
#define KVA_CLUSTER_WINDOW_H

#include "base/err.h"

#include <stdbool.h>

#define KVA_WINDOW_MESSAGES 64u

struct kva_peer {
    uint32_t node;
    uint64_t life;
    uint64_t newest; /* sequence */
    uint64_t seen;   /* bit n: newest - n */
    uint64_t heard;  /* when it was last heard of: the count of all messages */
};

struct kva_peers {
    struct kva_peer *peers; /* [capacity] */
    uint32_t count;
    uint32_t capacity;
    uint64_t messages;
};

enum kva_arrival {
    KVA_ARRIVAL_NEW,
    KVA_ARRIVAL_NEW_LIFE, /* the same, and the first of a later life */
    KVA_ARRIVAL_REPEATED,
    KVA_ARRIVAL_PAST_LIFE,
};

KVA_MUST_CHECK enum kva_status kva_peers_init(struct kva_peers *peers, uint32_t capacity);
void kva_peers_finish(struct kva_peers *peers);

/* A node that will not come back. */
void kva_peers_forget(struct kva_peers *peers, uint32_t node);

/* Note a message. */
enum kva_arrival kva_peers_arrive(struct kva_peers *peers, uint32_t node, uint64_t life,
                                  uint64_t sequence);

#endif
