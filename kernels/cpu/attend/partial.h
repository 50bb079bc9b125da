/* partial.h - partial results of attention, one (row, head) pair at a time (struct kva_partial). */
#ifndef KVA_KERNELS_CPU_ATTEND_PARTIAL_H
#define KVA_KERNELS_CPU_ATTEND_PARTIAL_H

#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Nothing has been seen. */
static inline void kva_cpu_partial_clear(const struct kva_partial *out, size_t pair,
                                         uint32_t head_dim)
{
    memset(out->a + pair * head_dim, 0, head_dim * sizeof(float));
    out->m[pair] = -INFINITY;
    out->e[pair] = 0.0f;
}

/* out += (a, m, e). */
static inline void kva_cpu_partial_fold(const struct kva_cpu_kernels *kernels,
                                        const struct kva_partial *out, size_t pair,
                                        uint32_t head_dim, const float *a, float m, float e)
{
    kernels->attend_fold(out->a + pair * head_dim, &out->m[pair], &out->e[pair], a, m, e, head_dim);
}

#endif
