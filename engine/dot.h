/* dot.h - a scalar product on the host, for looking at what a device computes.
 *
 * Thread rule: a function of its arguments. */
#ifndef KVA_ENGINE_DOT_H
#define KVA_ENGINE_DOT_H

#include <stdint.h>

/* Sums by lanes, so that compilers make vectors of it. */
static inline float kva_dot(const float *a, const float *b, uint32_t count)
{
    enum { LANES = 16 };
    float lanes[LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++)
            lanes[j] += a[i + j] * b[i + j];
    }
    for (; i < count; i++)
        sum += a[i] * b[i];
    for (uint32_t j = 0; j < LANES; j++)
        sum += lanes[j];
    return sum;
}

#endif
