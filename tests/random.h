/* random.h - random numbers for tests: SplitMix64, for which any seed is a good one. The same seed
 * gives the same numbers everywhere. */
#ifndef KVA_TESTS_RANDOM_H
#define KVA_TESTS_RANDOM_H

#include <stdint.h>

static inline uint64_t kva_test_random(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* 0 .. limit - 1. */
static inline uint32_t kva_test_below(uint64_t *state, uint32_t limit)
{
    return (uint32_t)((kva_test_random(state) >> 32) * limit >> 32);
}

/* Mean 0, variance 1: the sum of four uniform numbers, near enough. */
static inline float kva_test_normal(uint64_t *state)
{
    uint64_t bits = kva_test_random(state);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++, bits >>= 16)
        sum += (int32_t)(bits & 0xFFFF) - 32768;
    return (float)sum * (1.0f / 37837.0f);
}

#endif
