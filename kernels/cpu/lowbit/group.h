/* group.h - quantisation of one group, one number at a time. The reference is this; the
 * vector levels do the same to whole vectors and leave to it what is rare. */
#ifndef KVA_KERNELS_CPU_LOWBIT_GROUP_H
#define KVA_KERNELS_CPU_LOWBIT_GROUP_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/scalar.h"

#include <string.h>

/* --- quantisation -----------------------------------------------------------------------------
 *
 * One formula per number, in one order, so that every level gives the same bits. A group has up to
 * 64 elements, which may lie apart; those before `counted` do not count for its levels. Sums go by
 * KVA_LOWBIT_GROUP_LANES lanes (element % lanes), added by halves. */

#define KVA_LOWBIT_GROUP_MAX   64u
#define KVA_LOWBIT_GROUP_LANES 16u

struct kva_lowbit_group {
    float x[KVA_LOWBIT_GROUP_MAX];
    uint8_t codes[KVA_LOWBIT_GROUP_MAX];
    uint32_t count;
    uint32_t counted; /* elements [counted, count) count */
    uint16_t scale;   /* f16 */
    uint16_t zero;
};

static inline float kva_lowbit_lanes_total(float *lanes)
{
    for (uint32_t half = KVA_LOWBIT_GROUP_LANES / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

/* sum y[i] * codes[i] over what counts; without codes, sum y[i]. */
static inline float kva_lowbit_group_sum(const struct kva_lowbit_group *group, const float *y,
                                         const uint8_t *codes)
{
    float lanes[KVA_LOWBIT_GROUP_LANES] = {0};
    for (uint32_t i = group->counted; i < group->count; i++)
        lanes[i % KVA_LOWBIT_GROUP_LANES] += codes ? y[i] * (float)codes[i] : y[i];
    return kva_lowbit_lanes_total(lanes);
}

static inline void kva_lowbit_group_constant(struct kva_lowbit_group *group, float value)
{
    group->scale = 0;
    group->zero = kva_f16_of_f32(value);
    memset(group->codes, 0, sizeof group->codes);
}

/* codes = the nearest level, clamped; what is not a number gets 0. */
static inline void kva_lowbit_group_code(struct kva_lowbit_group *group, uint32_t code_max)
{
    float zero = kva_f32_of_f16(group->zero);
    float inverse = 1.0f / kva_f32_of_f16(group->scale);
    for (uint32_t i = 0; i < group->count; i++) {
        float level = (group->x[i] - zero) * inverse;
        level = level > 0.0f ? level : 0.0f;
        level = level < (float)code_max ? level : (float)code_max;
        group->codes[i] = (uint8_t)rintf(level);
    }
}

/* Levels by least squares over the codes, relative to `low`: with y = x - low,
 * scale = (n S(yc) - S(y) S(c)) / (n S(cc) - S(c)^2), zero = low + (S(y) - scale S(c)) / n. */
static inline void kva_lowbit_group_fit(struct kva_lowbit_group *group, const float *y, float low,
                                        float mean)
{
    uint32_t sum_c = 0, sum_cc = 0;
    for (uint32_t i = group->counted; i < group->count; i++) {
        sum_c += group->codes[i];
        sum_cc += (uint32_t)group->codes[i] * group->codes[i];
    }
    uint32_t n = group->count - group->counted;
    float sum_y = kva_lowbit_group_sum(group, y, NULL),
          sum_yc = kva_lowbit_group_sum(group, y, group->codes);
    float spread = (float)(n * sum_cc - sum_c * sum_c);
    float scale = ((float)n * sum_yc - sum_y * (float)sum_c) / spread;
    group->scale = kva_f16_of_f32(scale);
    if (!(spread > 0.0f) || group->scale == 0) {
        kva_lowbit_group_constant(group, low + mean);
        return;
    }
    group->zero = kva_f16_of_f32(low + (sum_y - scale * (float)sum_c) / (float)n);
}

static inline void kva_lowbit_quantise_group(struct kva_lowbit_group *group, uint32_t bits,
                                             enum kva_lowbit_levels levels)
{
    float low = INFINITY, high = -INFINITY, y[KVA_LOWBIT_GROUP_MAX];
    for (uint32_t i = group->counted; i < group->count; i++) {
        low = group->x[i] < low ? group->x[i] : low;
        high = group->x[i] > high ? group->x[i] : high;
    }
    if (!(low < high)) {
        /* Constant, or nothing counts, or nothing is a number. */
        kva_lowbit_group_constant(group, low == high ? low : 0.0f);
        return;
    }
    for (uint32_t i = 0; i < group->count; i++)
        y[i] = group->x[i] - low;
    float n = (float)(group->count - group->counted);
    float mean = kva_lowbit_group_sum(group, y, NULL) / n;
    uint32_t code_max = (1u << bits) - 1;
    if (bits == 1) {
        /* Products by 3/4, 1/4 and 1/2 do not overflow where sums would. */
        float threshold = 0.5f * low + 0.5f * high;
        group->zero = kva_f16_of_f32(0.75f * low + 0.25f * high);
        group->scale = kva_f16_of_f32(0.5f * high - 0.5f * low);
        if (levels == KVA_LEVELS_EXTREMES) {
            group->zero = kva_f16_of_f32(low);
            group->scale = kva_f16_of_f32(high - low < 65504.0f ? high - low : 65504.0f);
        }
        for (uint32_t i = 0; i < group->count; i++)
            group->codes[i] = group->x[i] >= threshold;
    } else {
        group->zero = kva_f16_of_f32(low);
        group->scale = kva_f16_of_f32((high - low) / (float)code_max);
        if (group->scale != 0)
            kva_lowbit_group_code(group, code_max);
    }
    if (group->scale == 0)
        kva_lowbit_group_constant(group, low + mean);
    else if (levels == KVA_LEVELS_FIT)
        kva_lowbit_group_fit(group, y, low, mean);
}

/* What is beyond the range of f16 counts as its end, and -0 as 0: which of two zeros is the least
 * would depend on the order. */
static inline float kva_lowbit_number(uint16_t bits, enum kva_dtype dtype)
{
    float x = kva_f32_of_16(bits, dtype) + 0.0f;
    x = x > 65504.0f ? 65504.0f : x;
    return x < -65504.0f ? -65504.0f : x;
}

/* --- one group of a block ----------------------------------------------------------------------
 */

static inline void kva_lowbit_put_bits(unsigned char *planes, size_t plane_bytes, size_t bit,
                                       uint32_t bits, uint32_t code)
{
    for (uint32_t plane = 0; plane < bits; plane++)
        planes[plane * plane_bytes + bit / 8] |= (unsigned char)((code >> plane & 1u) << bit % 8);
}

/* Channel `c` of token group `g`; its bits of the codes must be 0. */
static inline void kva_lowbit_quantise_key(const struct kva_cpu_quantise *args,
                                           const struct kva_lowbit_layout *layout, uint32_t g,
                                           uint32_t c)
{
    uint32_t dim = args->head_dim, size = args->format.group, first = g * size;
    unsigned char *to = args->to;
    struct kva_lowbit_group group = {.count = size};
    group.counted = kva_min_u32(args->exempt > first ? args->exempt - first : 0, size);
    for (uint32_t i = 0; i < size; i++)
        group.x[i] =
            kva_lowbit_number(args->from[(size_t)(first + i) * 2 * dim + c], args->kv_dtype);
    kva_lowbit_quantise_group(&group, args->format.bits, args->format.key_levels);
    memcpy(to + layout->k_scale + (size_t)(g * dim + c) * 2, &group.scale, 2);
    memcpy(to + layout->k_zero + (size_t)(g * dim + c) * 2, &group.zero, 2);
    for (uint32_t i = 0; i < size; i++)
        kva_lowbit_put_bits(to + layout->k_codes, layout->plane_bytes,
                            kva_lowbit_k_bit(first + i, c), args->format.bits, group.codes[i]);
}

/* Token `t` of channel group `g`; its bits of the codes must be 0. */
static inline void kva_lowbit_quantise_value(const struct kva_cpu_quantise *args,
                                             const struct kva_lowbit_layout *layout, uint32_t g,
                                             uint32_t t)
{
    uint32_t dim = args->head_dim, first = g * args->format.group;
    const uint32_t bits = kva_lowbit_value_bits(args->format);
    const uint16_t *from = args->from + (size_t)(t * 2 + 1) * dim + first;
    unsigned char *to = args->to;
    struct kva_lowbit_group group = {.count = kva_min_u32(args->format.group, dim - first)};
    for (uint32_t i = 0; i < group.count; i++)
        group.x[i] = kva_lowbit_number(from[i], args->kv_dtype);
    kva_lowbit_quantise_group(&group, bits, args->format.value_levels);
    memcpy(to + layout->v_scale + (size_t)(g * KVA_PAGE_TOKENS + t) * 2, &group.scale, 2);
    memcpy(to + layout->v_zero + (size_t)(g * KVA_PAGE_TOKENS + t) * 2, &group.zero, 2);
    for (uint32_t i = 0; i < group.count; i++)
        kva_lowbit_put_bits(to + layout->v_codes, layout->plane_bytes,
                            kva_lowbit_v_bit(t, first + i, dim), bits, group.codes[i]);
}

#endif
