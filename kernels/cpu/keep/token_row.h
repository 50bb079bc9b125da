/* token_row.h - one key or value in few bits, KVA_KEYS_PER_TOKEN: coded, decoded, put into a block
 * and read from it. One formula per number and sums by fixed lanes, so that every level, and a GPU,
 * gives the same bits. */
#ifndef KVA_KERNELS_CPU_KEEP_TOKEN_ROW_H
#define KVA_KERNELS_CPU_KEEP_TOKEN_ROW_H

#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define KVA_TOKEN_ROW_LANES 16u

/* zero + scale * code, as f16 has them. */
struct kva_token_row {
    uint16_t scale;
    uint16_t zero;
    uint8_t codes[KVA_CPU_HEAD_DIM_MAX];
};

/* x = a row's numbers: what is beyond f16 counts as its end, -0 as 0. */
static inline void kva_token_row_clamp(float *x, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++) {
        float y = x[i] + 0.0f;
        y = y > 65504.0f ? 65504.0f : y;
        x[i] = y < -65504.0f ? -65504.0f : y;
    }
}

/* Code a row of such numbers. What is not a number does not count and has code 0. */
static inline void kva_token_row_code(struct kva_token_row *row, const float *x, uint32_t dim,
                                      uint32_t bits)
{
    float low = INFINITY, high = -INFINITY;
    const float code_max = (float)((1u << bits) - 1);
    for (uint32_t i = 0; i < dim; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    row->scale = 0;
    row->zero = 0;
    memset(row->codes, 0, dim);
    if (!(low <= high))
        return;
    row->scale = kva_f16_of_f32((high - low) / code_max);
    row->zero = kva_f16_of_f32(row->scale == 0 ? 0.5f * low + 0.5f * high : low);
    if (row->scale == 0)
        return;
    const float zero = kva_f32_of_f16(row->zero), inverse = 1.0f / kva_f32_of_f16(row->scale);
    for (uint32_t i = 0; i < dim; i++) {
        float level = (x[i] - zero) * inverse;
        level = level > 0.0f ? level : 0.0f;
        level = level < code_max ? level : code_max;
        row->codes[i] = (uint8_t)rintf(level);
    }
}

/* |x - x'|^2 / |x|^2 of a row and what it was coded as; 0 for zeros. */
static inline float kva_token_row_error(const struct kva_token_row *row, const float *x,
                                        uint32_t dim)
{
    const float scale = kva_f32_of_f16(row->scale), zero = kva_f32_of_f16(row->zero);
    float off[KVA_TOKEN_ROW_LANES] = {0}, all[KVA_TOKEN_ROW_LANES] = {0};
    for (uint32_t i = 0; i < dim; i++) {
        float y = scale * (float)row->codes[i];
        y = x[i] - (zero + y);
        off[i % KVA_TOKEN_ROW_LANES] += y * y;
        all[i % KVA_TOKEN_ROW_LANES] += x[i] * x[i];
    }
    for (uint32_t half = KVA_TOKEN_ROW_LANES / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            off[i] += off[i + half];
            all[i] += all[i + half];
        }
    }
    return all[0] > 0.0f ? off[0] / all[0] : 0.0f;
}

/* --- in a block ------------------------------------------------------------------------------- */

/* Where keys, or values, of a KV head lie in its part of a block. */
struct kva_token_place {
    uint32_t scale, zero, codes;
    bool values;
};

static inline struct kva_token_place kva_token_keys(const struct kva_lowbit_layout *layout)
{
    return (struct kva_token_place){layout->k_scale, layout->k_zero, layout->k_codes, false};
}

static inline struct kva_token_place kva_token_values(const struct kva_lowbit_layout *layout)
{
    return (struct kva_token_place){layout->v_scale, layout->v_zero, layout->v_codes, true};
}

static inline size_t kva_token_bit(struct kva_token_place place, uint32_t token, uint32_t i,
                                   uint32_t dim)
{
    return place.values ? kva_lowbit_v_bit(token, i, dim) : kva_lowbit_k_bit(token, i);
}

/* Over whatever was in the slot. */
static inline void kva_token_row_put(const struct kva_token_row *row, unsigned char *head,
                                     const struct kva_lowbit_layout *layout,
                                     struct kva_token_place place, uint32_t token, uint32_t dim,
                                     uint32_t bits)
{
    memcpy(head + place.scale + (size_t)token * 2, &row->scale, 2);
    memcpy(head + place.zero + (size_t)token * 2, &row->zero, 2);
    for (uint32_t b = 0; b < bits; b++) {
        unsigned char *plane = head + place.codes + (size_t)b * layout->plane_bytes;
        for (uint32_t i = 0; i < dim; i++) {
            const size_t bit = kva_token_bit(place, token, i, dim);
            const unsigned char mask = (unsigned char)(1u << bit % 8);
            const bool set = row->codes[i] >> b & 1u;
            plane[bit / 8] = (unsigned char)((plane[bit / 8] & ~mask) | (set ? mask : 0));
        }
    }
}

static inline void kva_token_row_get(float *x, const unsigned char *head,
                                     const struct kva_lowbit_layout *layout,
                                     struct kva_token_place place, uint32_t token, uint32_t dim,
                                     uint32_t bits)
{
    uint16_t scale, zero;
    memcpy(&scale, head + place.scale + (size_t)token * 2, 2);
    memcpy(&zero, head + place.zero + (size_t)token * 2, 2);
    for (uint32_t i = 0; i < dim; i++) {
        const size_t bit = kva_token_bit(place, token, i, dim);
        uint32_t code = 0;
        for (uint32_t b = 0; b < bits; b++)
            code |= (head[place.codes + (size_t)b * layout->plane_bytes + bit / 8] >> bit % 8 & 1u)
                    << b;
        const float y = kva_f32_of_f16(scale) * (float)code;
        x[i] = kva_f32_of_f16(zero) + y;
    }
}

#endif
