/* turn.h - waiting on a link: for a few microseconds by asking again and again, and then asleep.
 *
 * The other side may be waiting for this very core, so who asks yields it in between. Where somebody
 * else has it then, who computes, it comes back milliseconds later (to Linux's EEVDF a thread that
 * yields has had its turn), while a thread that sleeps would have it at once (base/thread.h). So when
 * that has happened nobody asks for a while, and the longer the more often it has.
 *
 * Thread rule: the link's. */
#ifndef KVA_CLUSTER_REMOTE_TURN_H
#define KVA_CLUSTER_REMOTE_TURN_H

#include "cluster/link/link.h"

/* How somebody waits. All zero at first. */
struct kva_remote_waiter {
    uint64_t since_ns; /* there is nothing to do; 0: there is */
    uint32_t sleeps;   /* that many waits begin asleep */
    uint32_t crowded;  /* so many the next time that somebody else had the core */
};

/* Progress, or rest until there is something to do or `until_ns` (kva_time_ns) has come. */
void kva_remote_turn(struct kva_link *link, struct kva_remote_waiter *waiter, uint64_t until_ns);

#endif
