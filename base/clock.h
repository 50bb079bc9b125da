/* clock.h - time as nanoseconds, from a source that tests can replace.
 *
 * Thread rule: kva_clock_now may be called from any thread for the real clock; a virtual clock
 * belongs to its test. */
#ifndef KVA_BASE_CLOCK_H
#define KVA_BASE_CLOCK_H

#include "base/kva.h"

#define KVA_NS_PER_US 1000ull
#define KVA_NS_PER_MS 1000000ull
#define KVA_NS_PER_S  1000000000ull

struct kva_clock {
    uint64_t (*now_ns)(void *opaque); /* monotonic, never 0 */
    void *opaque;
};

static inline uint64_t kva_clock_now(const struct kva_clock *clock)
{
    return clock->now_ns(clock->opaque);
}

/* CLOCK_MONOTONIC. */
const struct kva_clock *kva_clock_real(void);

/* CLOCK_MONOTONIC directly, for measurements. */
uint64_t kva_time_ns(void);

/* Processor time that all threads of this process have taken, for measurements on a machine that
 * has other work. */
uint64_t kva_cpu_time_ns(void);

/* Seconds since 1970, for `created` fields and logs. */
int64_t kva_time_unix_s(void);

#endif
