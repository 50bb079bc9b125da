/* packed_row.h - a row of activations in 8 bits, as the kernels of packed weights want it.
 *
 *   [code: int8, inputs rounded up to groups][scale f32 of each group][terms][padding]
 *
 * code = x 127 / largest to the nearest whole number, ties to even, scale = largest / 127; behind
 * the last input codes are 0. A group of activations (128) has a term for each group of weights
 * (16, 32 or 128) in it: what their format adds to products besides codes times codes. A group with
 * something in it that is not finite has the scale NaN, so that it cannot go by unnoticed; one of
 * nothing but numbers below 2^-100 has scale 0. */
#ifndef KVA_KERNELS_CPU_LINEAR_PACKED_ROW_H
#define KVA_KERNELS_CPU_LINEAR_PACKED_ROW_H

#include "kernels/packed_read.h"

union kva_packed_term {
    int32_t offset; /* formats with a zero: -zero times the sum of the codes */
    float sum;      /* formats with mins: the sum of the codes */
};

static inline uint32_t kva_packed_x_groups(uint32_t inputs)
{
    return (uint32_t)kva_div_up(inputs, KVA_PACKED_ROW_GROUP);
}

/* Terms of a group of activations. */
static inline uint32_t kva_packed_x_parts(const struct kva_packed_format *format)
{
    return KVA_PACKED_ROW_GROUP / format->scale_inputs;
}

static inline size_t kva_packed_x_bytes(const struct kva_packed_format *format, uint32_t inputs)
{
    size_t group_bytes = KVA_PACKED_ROW_GROUP + sizeof(float) +
                         kva_packed_x_parts(format) * sizeof(union kva_packed_term);
    /* A cache line more than there is, or rows a multiple of 4 KiB apart would compete for the same
     * few lines of the first-level cache. */
    return kva_align_up(kva_packed_x_groups(inputs) * group_bytes, KVA_CACHE_LINE) + KVA_CACHE_LINE;
}

static inline const float *kva_packed_x_scales(const int8_t *row, uint32_t inputs)
{
    return (const void *)(row + (size_t)kva_packed_x_groups(inputs) * KVA_PACKED_ROW_GROUP);
}

static inline const union kva_packed_term *kva_packed_x_terms(const int8_t *row, uint32_t inputs)
{
    return (const void *)(kva_packed_x_scales(row, inputs) + kva_packed_x_groups(inputs));
}

/* A group's scale, and in *ret_inverse what its numbers are to be multiplied by; `largest_bits`:
 * the largest of its numbers' bits without sign, which order as their sizes do. */
static inline float kva_packed_x_scale(uint32_t largest_bits, float *ret_inverse)
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
