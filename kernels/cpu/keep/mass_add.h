/* mass_add.h - scores become probabilities and are added up, for the vector levels; included after a
 * simd header. */
#ifndef KVA_KERNELS_CPU_KEEP_MASS_ADD_H
#define KVA_KERNELS_CPU_KEEP_MASS_ADD_H

#include "kernels/cpu/cpu.h"

/* Vectors of tokens that are added to side by side: the chain of one waits for its sum. */
#define MASS_VECTORS 4u

/* Scores of the vector from `slot` on become -inf from `end` on. */
INLINE vf seen_scores(const float *scores, uint32_t slot, uint32_t end)
{
    float seen[VL];
    if (slot + VL <= end)
        return v_load(scores + slot);
    for (uint32_t i = 0; i < VL; i++)
        seen[i] = slot + i < end ? scores[slot + i] : -INFINITY;
    return v_load(seen);
}

/* mass += exp(scores - m) * inverse, query by query, of the slots that each sees. */
static void add_queries(const struct kva_cpu_mass_split *split)
{
    for (uint32_t slot = 0; slot < split->slots; slot += MASS_VECTORS * VL) {
        vf sums[MASS_VECTORS];
        for (uint32_t n = 0; n < MASS_VECTORS; n++)
            sums[n] = v_load(split->mass + slot + n * VL);
        for (uint32_t j = 0; j < split->q_count; j++) {
            const float *scores = split->scored
                                      ? split->scored[j]
                                      : split->scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS;
            const uint32_t end = split->slot_end[j];
            const vf m = v_set(split->m[j]), inverse = v_set(split->inverse[j]);
            if (end <= slot)
                continue;
            for (uint32_t n = 0; n < MASS_VECTORS; n++) {
                const vf x = seen_scores(scores, slot + n * VL, end);
                sums[n] = v_fma(v_exp(v_sub(x, m)), inverse, sums[n]);
            }
        }
        for (uint32_t n = 0; n < MASS_VECTORS; n++)
            v_store(split->mass + slot + n * VL, sums[n]);
    }
}

#endif
