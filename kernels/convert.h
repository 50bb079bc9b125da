/* convert.h - 16-bit formats to and from fp32, one element at a time.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even, and saturates: what is beyond the
 * largest finite value, infinities included, becomes the largest finite value of its sign, so that
 * one outlier cannot put an infinity into a KV cache. NaN stays NaN. Every level gives these bits.
 */
#ifndef KVA_KERNELS_CONVERT_H
#define KVA_KERNELS_CONVERT_H

#include "kernels/dtype.h"

#include <string.h>

#define KVA_F16_MAX_BITS  0x7BFFu
#define KVA_BF16_MAX_BITS 0x7F7Fu

static inline float kva_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t kva_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float kva_f32_of_bf16(uint16_t half)
{
    return kva_float_of_bits((uint32_t)half << 16);
}

static inline float kva_f32_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = half & 0x7FFFu;
    if (rest >= 0x7C00u) /* infinity, NaN */
        return kva_float_of_bits(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
    if (rest < 0x400u) { /* a multiple of 2^-24: exact in fp32 */
        float value = (float)rest * 0x1p-24f;
        return sign ? -value : value;
    }
    return kva_float_of_bits(sign | ((rest << 13) + (112u << 23)));
}

static inline uint16_t kva_bf16_of_f32(float value)
{
    uint32_t bits = kva_bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t rest = bits & 0x7FFFFFFFu;
    if (rest > 0x7F800000u)
        return (uint16_t)(sign | rest >> 16 | 0x40u);
    rest = (rest + 0x7FFFu + (rest >> 16 & 1u)) >> 16;
    return (uint16_t)(sign | (rest > KVA_BF16_MAX_BITS ? KVA_BF16_MAX_BITS : rest));
}

static inline uint16_t kva_f16_of_f32(float value)
{
    uint32_t bits = kva_bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t rest = bits & 0x7FFFFFFFu;
    if (rest > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | (rest >> 13 & 0x3FFu));
    if (rest >= 0x477FF000u) /* 65520 and more round past the largest finite value */
        return (uint16_t)(sign | KVA_F16_MAX_BITS);
    if (rest < 0x38800000u) {
        /* Below 2^-14 the result counts in steps of 2^-24. Adding 0.5, whose last place is 2^-24,
         * rounds to those steps in hardware; the count is then the low end of the sum. */
        float sum = kva_float_of_bits(rest) + 0.5f;
        return (uint16_t)(sign | (kva_bits_of_float(sum) - 0x3F000000u));
    }
    rest = rest - (112u << 23);
    return (uint16_t)(sign | (rest + 0xFFFu + (rest >> 13 & 1u)) >> 13);
}

static inline float kva_f32_of_16(uint16_t half, enum kva_dtype dtype)
{
    return dtype == KVA_F16 ? kva_f32_of_f16(half) : kva_f32_of_bf16(half);
}

static inline uint16_t kva_16_of_f32(float value, enum kva_dtype dtype)
{
    return dtype == KVA_F16 ? kva_f16_of_f32(value) : kva_bf16_of_f32(value);
}

/* Element `index` of an array of `dtype`. */
static inline float kva_f32_at(const void *data, enum kva_dtype dtype, size_t index)
{
    if (dtype == KVA_F32)
        return ((const float *)data)[index];
    return kva_f32_of_16(((const uint16_t *)data)[index], dtype);
}

/* Elements [0, count) of an array of `dtype`. */
static inline void kva_f32_array(const void *from, enum kva_dtype dtype, uint32_t count, float *to)
{
    switch (dtype) {
    case KVA_F32:
        memcpy(to, from, count * sizeof(*to));
        break;
    case KVA_BF16:
        for (uint32_t i = 0; i < count; i++)
            to[i] = kva_f32_of_bf16(((const uint16_t *)from)[i]);
        break;
    default:
        for (uint32_t i = 0; i < count; i++)
            to[i] = kva_f32_of_f16(((const uint16_t *)from)[i]);
        break;
    }
}

/* Address of element `index`. */
static inline const void *kva_element(const void *data, enum kva_dtype dtype, size_t index)
{
    return (const unsigned char *)data + index * kva_dtype_bytes(dtype);
}

#endif
