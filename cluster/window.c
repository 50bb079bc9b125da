/* window.c - a bit for each of the last messages of a peer. */
#include "cluster/window.h"

#include <stdlib.h>

enum kva_status kva_peers_init(struct kva_peers *peers, uint32_t capacity)
{
    *peers = (struct kva_peers){.capacity = kva_max_u32(capacity, 1)};
    peers->peers = calloc(peers->capacity, sizeof(*peers->peers));
    return peers->peers ? KVA_OK : KVA_ENOMEM;
}

void kva_peers_finish(struct kva_peers *peers)
{
    free(peers->peers);
    *peers = (struct kva_peers){0};
}

void kva_peers_forget(struct kva_peers *peers, uint32_t node)
{
    for (uint32_t i = 0; i < peers->count; i++)
        if (peers->peers[i].node == node)
            peers->peers[i] = peers->peers[--peers->count];
}

/* A place for one more: a free one, or of who was heard of longest ago. */
static struct kva_peer *make_room(struct kva_peers *peers)
{
    if (peers->count < peers->capacity)
        return &peers->peers[peers->count++];
    struct kva_peer *oldest = &peers->peers[0];
    for (uint32_t i = 1; i < peers->count; i++)
        if (peers->peers[i].heard < oldest->heard)
            oldest = &peers->peers[i];
    return oldest;
}

enum kva_arrival kva_peers_arrive(struct kva_peers *peers, uint32_t node, uint64_t life,
                                  uint64_t sequence)
{
    struct kva_peer *peer = NULL;
    for (uint32_t i = 0; i < peers->count && !peer; i++)
        if (peers->peers[i].node == node)
            peer = &peers->peers[i];
    if (peer && life < peer->life)
        return KVA_ARRIVAL_PAST_LIFE;
    peers->messages++;
    if (!peer || life > peer->life) {
        bool known = peer != NULL;
        if (!known)
            peer = make_room(peers);
        *peer = (struct kva_peer){
            .node = node, .life = life, .newest = sequence, .seen = 1, .heard = peers->messages};
        return known ? KVA_ARRIVAL_NEW_LIFE : KVA_ARRIVAL_NEW;
    }
    peer->heard = peers->messages;
    if (sequence > peer->newest) {
        uint64_t by = sequence - peer->newest;
        peer->seen = (by < KVA_WINDOW_MESSAGES ? peer->seen << by : 0) | 1;
        peer->newest = sequence;
        return KVA_ARRIVAL_NEW;
    }
    uint64_t behind = peer->newest - sequence;
    if (behind >= KVA_WINDOW_MESSAGES || (peer->seen >> behind & 1))
        return KVA_ARRIVAL_REPEATED;
    peer->seen |= 1ull << behind;
    return KVA_ARRIVAL_NEW;
}
