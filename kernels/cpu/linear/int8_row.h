/* int8_row.h - a row of activations in 8 bits, as the kernels of weights in int8 want it.
 *
 *   [code: int8, inputs rounded up to groups][scale, offset: of each group][padding]
 *
 * code = x 127 / largest to the nearest whole number, ties to even, scale = largest / 127; behind
 * the last input codes are 0. `offset` is -128 times the sum of the codes: what the 128 that is in
 * every code of a weight adds to a sum of products. A group with something in it that is not finite
 * has the scale NaN, so that it cannot go by unnoticed; one of nothing but numbers below 2^-100 has
 * scale 0. */
#ifndef KVA_KERNELS_CPU_LINEAR_INT8_ROW_H
#define KVA_KERNELS_CPU_LINEAR_INT8_ROW_H

#include "kernels/convert.h"
#include "kernels/int8.h"

struct kva_int8_x_group {
    float scale;
    int32_t offset;
};

static inline size_t kva_int8_x_bytes(uint32_t inputs)
{
    size_t groups = kva_int8_groups(inputs);
    /* A cache line more than there is, or rows a multiple of 4 KiB apart would compete for the same
     * few lines of the first-level cache. */
    return kva_align_up(groups * (KVA_INT8_GROUP + sizeof(struct kva_int8_x_group)),
                        KVA_CACHE_LINE) +
           KVA_CACHE_LINE;
}

static inline const struct kva_int8_x_group *kva_int8_x_groups(const int8_t *row, uint32_t inputs)
{
    return (const void *)(row + (size_t)kva_int8_groups(inputs) * KVA_INT8_GROUP);
}

/* A group's scale, and in *ret_inverse what its numbers are to be multiplied by; `largest_bits`:
 * the largest of its numbers' bits without sign, which order as their sizes do. */
static inline float kva_int8_x_scale(uint32_t largest_bits, float *ret_inverse)
{
    float largest = kva_float_of_bits(largest_bits);
    *ret_inverse = 0;
    if (largest_bits >= 0x7F800000u)
        return kva_float_of_bits(0x7FC00000u);
    if (largest < 0x1p-100f)
        return 0;
    *ret_inverse = 127.0f / largest;
    return largest / 127.0f;
}

#endif
