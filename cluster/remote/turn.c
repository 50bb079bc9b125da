/* turn.c - see turn.h. */
#include "cluster/remote/turn.h"

#include "base/clock.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

#define SPIN_NS  (50 * KVA_NS_PER_US)
#define SLEEP_NS (100 * KVA_NS_PER_MS) /* a link wants progress now and then (link.h) */

void kva_remote_turn(struct kva_link *link, uint64_t *idle_ns, uint64_t until_ns)
{
    uint64_t now_ns = kva_time_ns();
    if (kva_link_progress(link, now_ns)) {
        *idle_ns = 0;
        return;
    }
    if (*idle_ns == 0)
        *idle_ns = now_ns;
    if (now_ns - *idle_ns < SPIN_NS) {
        sched_yield(); /* the other side may be waiting for this very core */
        return;
    }
    if (now_ns >= until_ns || !kva_link_arm(link))
        return;
    uint64_t left_ns = until_ns - now_ns < SLEEP_NS ? until_ns - now_ns : SLEEP_NS;
    struct pollfd ready = {.fd = kva_link_fd(link), .events = POLLIN};
    const struct timespec left = {.tv_sec = (time_t)(left_ns / KVA_NS_PER_S),
                                  .tv_nsec = (long)(left_ns % KVA_NS_PER_S)};
    (void)ppoll(&ready, 1, &left, NULL);
}
