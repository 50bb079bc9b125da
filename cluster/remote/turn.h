/* turn.h - waiting on a link: for a few microseconds by asking again and again, since most answers
 * come soon, and then asleep, so that two processes on one core do not starve each other.
 *
 * Thread rule: the link's. */
#ifndef KVA_CLUSTER_REMOTE_TURN_H
#define KVA_CLUSTER_REMOTE_TURN_H

#include "cluster/link/link.h"

/* Progress, or rest until there is something to do or `until_ns` (kva_time_ns) has come.
 * `*idle_ns`, at first 0, is since when nothing has happened. */
void kva_remote_turn(struct kva_link *link, uint64_t *idle_ns, uint64_t until_ns);

#endif
