/* turn.c - see turn.h. */
#include "cluster/remote/turn.h"

#include "base/clock.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

#define SPIN_NS      (50 * KVA_NS_PER_US)
#define YIELD_NS_MAX (200 * KVA_NS_PER_US) /* another side's turn takes less */
#define SLEEPS_MIN   256u
#define SLEEPS_MAX   8192u
#define SLEEP_NS     (100 * KVA_NS_PER_MS) /* a link wants progress now and then (link.h) */

static void begin_wait(struct kva_remote_waiter *w, uint64_t now_ns)
{
    w->since_ns = now_ns;
    w->sleeps -= w->sleeps > 0;
}

static void yield(struct kva_remote_waiter *w, uint64_t now_ns)
{
    sched_yield();
    if (kva_time_ns() - now_ns < YIELD_NS_MAX)
        return;
    w->crowded = kva_min_u32(kva_max_u32(2 * w->crowded, SLEEPS_MIN), SLEEPS_MAX);
    w->sleeps = w->crowded;
}

void kva_remote_turn(struct kva_link *link, struct kva_remote_waiter *w, uint64_t until_ns)
{
    uint64_t now_ns = kva_time_ns();
    if (kva_link_progress(link, now_ns)) {
        w->since_ns = 0;
        return;
    }
    if (w->since_ns == 0)
        begin_wait(w, now_ns);
    if (w->sleeps == 0 && now_ns - w->since_ns < SPIN_NS) {
        yield(w, now_ns);
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
