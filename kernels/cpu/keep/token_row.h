/* token_row.h - one key or value in few bits, KVA_KEYS_PER_TOKEN: coded, decoded, put into a block
 * and read from it. One formula per number and sums by fixed lanes, so that every level, and a GPU,
 * gives the same bits. */
#ifndef KVA_KERNELS_CPU_KEEP_TOKEN_ROW_H
#define KVA_KERNELS_CPU_KEEP_TOKEN_ROW_H

#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/turn.h"

#include <math.h>
#include <string.h>

#define KVA_TOKEN_ROW_LANES 16u

/* Adding and subtracting this rounds a float of 0 to 2^22 to the nearest whole number. */
#define KVA_TOKEN_ROW_ROUND 0x1p23f

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

/* H x, in place (turn.h). */
static inline void kva_token_row_mix(float *x, uint32_t dim)
{
    const uint32_t block = KVA_TURN_BLOCK(dim);
    const float factor = kva_turn_factor(block);
    for (uint32_t half = 1; half < block; half *= 2) {
        for (uint32_t i = 0; i < dim; i += 2 * half) {
            for (uint32_t j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
        }
    }
    for (uint32_t i = 0; i < dim; i++)
        x[i] *= factor;
}

static inline void kva_token_row_flip(float *x, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        x[i] = kva_turn_flips(i) ? -x[i] : x[i];
}

/* x = a row, or sums of rows, turned; and turned back. */
static inline void kva_token_row_turn(float *x, uint32_t dim)
{
    kva_token_row_flip(x, dim);
    kva_token_row_mix(x, dim);
}

static inline void kva_token_row_turn_back(float *x, uint32_t dim)
{
    kva_token_row_mix(x, dim);
    kva_token_row_flip(x, dim);
}

/* Sum of a lane's numbers, halves added to halves. */
static inline float kva_token_row_total(float *lanes)
{
    for (uint32_t half = KVA_TOKEN_ROW_LANES / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

/* Of turned numbers between `low` and `high`: the step, and the first level. */
static inline void kva_token_row_levels(const float *x, uint32_t dim, uint32_t bits, float *low,
                                        float *step)
{
    float sums[KVA_TOKEN_ROW_LANES] = {0}, squares[KVA_TOKEN_ROW_LANES] = {0};
    const float from = *low, n = (float)dim, code_max = (float)((1u << bits) - 1);
    for (uint32_t i = 0; i < dim; i++) {
        const float y = x[i] - from;
        sums[i % KVA_TOKEN_ROW_LANES] += y;
        squares[i % KVA_TOKEN_ROW_LANES] += y * y;
    }
    const float mean = kva_token_row_total(sums) / n;
    float square = mean * mean;
    square = kva_token_row_total(squares) / n - square;
    const float best = square > 0.0f ? kva_turn_step(bits) * sqrtf(square) : 0.0f;
    if (!(best < *step) || best == 0.0f)
        return;
    float reach = 0.5f * code_max;
    reach *= best;
    *low = from + (mean - reach);
    *step = best;
}

/* Code a row of such numbers, turned or not as `coding` says. What is not a number does not count
 * and has code 0. */
static inline void kva_token_row_code(struct kva_token_row *row, const float *x, uint32_t dim,
                                      uint32_t bits, enum kva_lowbit_coding coding)
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
    float step = (high - low) / code_max;
    if (coding == KVA_CODING_TURNED)
        kva_token_row_levels(x, dim, bits, &low, &step);
    row->scale = kva_f16_of_f32(step);
    row->zero = kva_f16_of_f32(row->scale == 0 ? 0.5f * low + 0.5f * high : low);
    if (row->scale == 0)
        return;
    const float zero = kva_f32_of_f16(row->zero), inverse = 1.0f / kva_f32_of_f16(row->scale);
    for (uint32_t i = 0; i < dim; i++) {
        float level = (x[i] - zero) * inverse;
        level = level > 0.0f ? level : 0.0f;
        level = level < code_max ? level : code_max;
        level += KVA_TOKEN_ROW_ROUND;
        row->codes[i] = (uint8_t)(level - KVA_TOKEN_ROW_ROUND);
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
    const float size = kva_token_row_total(all);
    return size > 0.0f ? kva_token_row_total(off) / size : 0.0f;
}

/* Code a row of any numbers, which `x` has as they are coded when it returns: within f16, and
 * turned where `coding` says so. */
static inline void kva_token_row_take(struct kva_token_row *row, float *x, uint32_t dim,
                                      uint32_t bits, enum kva_lowbit_coding coding)
{
    kva_token_row_clamp(x, dim);
    if (coding == KVA_CODING_TURNED) {
        kva_token_row_turn(x, dim);
        kva_token_row_clamp(x, dim);
    }
    kva_token_row_code(row, x, dim, bits, coding);
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

/* Nibble `i` of a plane, and whether it is the high half of its byte. A key's nibble has four
 * channels of its token; a value's has one channel of four tokens. */
static inline uint8_t kva_token_nibble(const unsigned char *plane, size_t i)
{
    return (uint8_t)(plane[i / 2] >> i % 2 * 4 & 15);
}

static inline void kva_token_nibble_put(unsigned char *plane, size_t i, uint32_t mask,
                                        uint32_t nibble)
{
    const uint32_t shift = i % 2 * 4;
    plane[i / 2] = (unsigned char)((plane[i / 2] & ~(mask << shift)) | nibble << shift);
}

/* Over whatever was in the slot. */
static inline void kva_token_row_put(const struct kva_token_row *row, unsigned char *head,
                                     const struct kva_lowbit_layout *layout,
                                     struct kva_token_place place, uint32_t token, uint32_t dim,
                                     uint32_t bits)
{
    const uint8_t *codes = row->codes;
    memcpy(head + place.scale + (size_t)token * 2, &row->scale, 2);
    memcpy(head + place.zero + (size_t)token * 2, &row->zero, 2);
    for (uint32_t b = 0; b < bits; b++) {
        unsigned char *plane = head + place.codes + (size_t)b * layout->plane_bytes;
        for (uint32_t i = 0; place.values && i < dim; i++)
            kva_token_nibble_put(plane, kva_lowbit_v_bit(token, i, dim) / 4, 1u << token % 4,
                                 (codes[i] >> b & 1u) << token % 4);
        for (uint32_t i = 0; !place.values && i < dim; i += 4)
            kva_token_nibble_put(plane, kva_lowbit_k_bit(token, i) / 4, 15,
                                 (codes[i] >> b & 1u) | (codes[i + 1] >> b & 1u) << 1 |
                                     (codes[i + 2] >> b & 1u) << 2 | (codes[i + 3] >> b & 1u) << 3);
    }
}

static inline void kva_token_row_get(float *x, const unsigned char *head,
                                     const struct kva_lowbit_layout *layout,
                                     struct kva_token_place place, uint32_t token, uint32_t dim,
                                     uint32_t bits)
{
    uint16_t scale, zero;
    uint8_t codes[KVA_CPU_HEAD_DIM_MAX] = {0};
    memcpy(&scale, head + place.scale + (size_t)token * 2, 2);
    memcpy(&zero, head + place.zero + (size_t)token * 2, 2);
    const float step = kva_f32_of_f16(scale), first = kva_f32_of_f16(zero);
    for (uint32_t b = 0; b < bits; b++) {
        const unsigned char *plane = head + place.codes + (size_t)b * layout->plane_bytes;
        for (uint32_t i = 0; place.values && i < dim; i++)
            codes[i] |= (uint8_t)((kva_token_nibble(plane, kva_lowbit_v_bit(token, i, dim) / 4) >>
                                       token % 4 &
                                   1u)
                                  << b);
        for (uint32_t i = 0; !place.values && i < dim; i += 4) {
            const uint32_t nibble = kva_token_nibble(plane, kva_lowbit_k_bit(token, i) / 4);
            for (uint32_t j = 0; j < 4; j++)
                codes[i + j] |= (uint8_t)((nibble >> j & 1u) << b);
        }
    }
    for (uint32_t i = 0; i < dim; i++) {
        const float y = step * (float)codes[i];
        x[i] = first + y;
    }
}

#endif
