/* clock.c - the system's clock. */
#include "base/clock.h"

#include <time.h>

static uint64_t read_ns(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * KVA_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t kva_time_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t kva_cpu_time_ns(void)
{
    return read_ns(CLOCK_PROCESS_CPUTIME_ID);
}

int64_t kva_time_unix_s(void)
{
    return (int64_t)time(NULL);
}

static uint64_t real_now(void *opaque KVA_UNUSED)
{
    return kva_time_ns();
}

const struct kva_clock *kva_clock_real(void)
{
    static const struct kva_clock clock = {real_now, NULL};
    return &clock;
}
