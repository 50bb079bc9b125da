/* thread.c - see thread.h. Linux lets a thread choose how long its turns are (sched(7), since 6.12);
 * one that is woken and asks for less than the one that runs goes first. */
#include "base/thread.h"

#include "base/clock.h"

#include <sys/syscall.h>
#include <unistd.h>

#define TURN_NS (100 * KVA_NS_PER_US) /* the shortest that there is */

/* As the kernel has it; the C library of Debian 12 does not know it. */
struct scheduling {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns;
    uint64_t deadline_ns;
    uint64_t period_ns;
};

void kva_thread_be_prompt(void)
{
    struct scheduling wanted = {.size = sizeof(wanted)};
    if (syscall(SYS_sched_getattr, 0, &wanted, sizeof(wanted), 0) != 0)
        return;
    wanted.runtime_ns = TURN_NS;
    (void)syscall(SYS_sched_setattr, 0, &wanted, 0);
}
