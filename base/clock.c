#include "base/clock.h"

#include <time.h>

uint64_t kva_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * KVA_NS_PER_S + (uint64_t)now.tv_nsec;
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
