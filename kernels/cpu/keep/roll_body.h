/* roll_body.h - keys of a store's page, rotated, for every level: plain C on one channel of all the
 * page's tokens at a time, which compilers make vectors of. A number has the one formula that
 * token_row.h and rows/angles.h have for it, so levels give the same bits. */
#ifndef KVA_KERNELS_CPU_KEEP_ROLL_BODY_H
#define KVA_KERNELS_CPU_KEEP_ROLL_BODY_H

#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows/angles.h"
#include "kernels/turn.h"

#define ROLL_TOKENS KVA_PAGE_TOKENS

/* --- the page as floats, x [head_dim][ROLL_TOKENS] --------------------------------------------- */

static void roll_load_16(const struct kva_cpu_roll_keys *args, float *x)
{
    const uint16_t *rows = args->from;
    for (uint32_t t = 0; t < ROLL_TOKENS; t++) {
        const uint16_t *row = rows + (size_t)t * 2 * args->head_dim;
        if (args->slots >> t & 1u) {
            for (uint32_t c = 0; c < args->head_dim; c++)
                x[(size_t)c * ROLL_TOKENS + t] = kva_f32_of_16(row[c], args->kv_dtype);
        }
    }
}

static void roll_halves(float *x, const unsigned char *from)
{
    for (uint32_t t = 0; t < ROLL_TOKENS; t++) {
        uint16_t half;
        memcpy(&half, from + (size_t)t * 2, 2);
        x[t] = kva_f32_of_f16(half);
    }
}

/* A byte of a plane has a nibble of each of two tokens: of their channels 4 g to 4 g + 3. */
static void roll_load_coded(const struct kva_cpu_roll_keys *args, float *x)
{
    const unsigned char *from = args->from;
    float scale[ROLL_TOKENS], zero[ROLL_TOKENS];
    roll_halves(scale, from + args->layout->k_scale);
    roll_halves(zero, from + args->layout->k_zero);
    for (uint32_t c = 0; c < args->head_dim; c++, x += ROLL_TOKENS) {
        const unsigned char *nibbles =
            from + args->layout->k_codes + kva_lowbit_k_bit(0, c / 4 * 4) / 8;
        uint8_t codes[ROLL_TOKENS] = {0};
        for (uint32_t b = 0; b < args->format.bits; b++, nibbles += args->layout->plane_bytes) {
            for (uint32_t i = 0; i < ROLL_TOKENS / 2; i++) {
                codes[2 * i] |= (uint8_t)((nibbles[i] >> c % 4 & 1u) << b);
                codes[2 * i + 1] |= (uint8_t)((nibbles[i] >> (c % 4 + 4) & 1u) << b);
            }
        }
        for (uint32_t t = 0; t < ROLL_TOKENS; t++) {
            const float y = scale[t] * (float)codes[t];
            x[t] = zero[t] + y;
        }
    }
}

/* --- what is done to it ----------------------------------------------------------------------- */

static void roll_turn_back(float *x, uint32_t dim)
{
    const uint32_t block = KVA_TURN_BLOCK(dim);
    const float factor = kva_turn_factor(block);
    for (uint32_t half = 1; half < block; half *= 2) {
        for (uint32_t i = 0; i < dim * ROLL_TOKENS; i += 2 * half * ROLL_TOKENS) {
            float *restrict low = x + i, *restrict high = low + half * ROLL_TOKENS;
            for (uint32_t j = 0; j < half * ROLL_TOKENS; j++) {
                const float a = low[j], b = high[j];
                low[j] = a + b;
                high[j] = a - b;
            }
        }
    }
    for (uint32_t c = 0; c < dim; c++) {
        const float sign = kva_turn_flips(c) ? -factor : factor;
        for (uint32_t t = 0; t < ROLL_TOKENS; t++)
            x[(size_t)c * ROLL_TOKENS + t] *= sign;
    }
}

static void roll_add_mean(float *x, const float *mean, uint32_t dim)
{
    for (uint32_t c = 0; c < dim; c++) {
        for (uint32_t t = 0; t < ROLL_TOKENS; t++)
            x[(size_t)c * ROLL_TOKENS + t] += mean[c];
    }
}

static void roll_rotate(const struct kva_cpu_roll_keys *args, float *x)
{
    const uint32_t half = args->rotary->rotary_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        float *restrict low = x + (size_t)i * ROLL_TOKENS;
        float *restrict high = low + (size_t)half * ROLL_TOKENS;
        for (uint32_t t = 0; t < ROLL_TOKENS; t++) {
            float cosine, sine;
            kva_angle(args->positions[t], args->rotary->inv_freq[i], &cosine, &sine);
            const float a = low[t], b = high[t];
            low[t] = a * cosine - b * sine;
            high[t] = b * cosine + a * sine;
        }
    }
}

static void roll_narrow(const struct kva_cpu_roll_keys *args, const float *restrict x,
                        uint16_t *restrict rows)
{
    const uint32_t count = args->head_dim * ROLL_TOKENS;
    for (uint32_t i = 0; args->kv_dtype == KVA_BF16 && i < count; i++)
        rows[i] = kva_bf16_of_f32(x[i]);
    for (uint32_t i = 0; args->kv_dtype != KVA_BF16 && i < count; i++)
        rows[i] = kva_f16_of_f32(x[i]);
    for (uint32_t t = 0; t < ROLL_TOKENS; t++) {
        uint16_t *to = args->to + (size_t)t * 2 * args->head_dim;
        for (uint32_t c = 0; args->slots >> t & 1u && c < args->head_dim; c++)
            to[c] = rows[(size_t)c * ROLL_TOKENS + t];
    }
}

static void roll_keys(const struct kva_cpu_roll_keys *args)
{
    float *x = args->scratch;
    if (args->format.bits == 0)
        roll_load_16(args, x);
    else
        roll_load_coded(args, x);
    if (args->format.bits > 0 && args->format.coding == KVA_CODING_TURNED)
        roll_turn_back(x, args->head_dim);
    if (args->mean)
        roll_add_mean(x, args->mean, args->head_dim);
    roll_rotate(args, x);
    roll_narrow(args, x, (uint16_t *)(x + (size_t)args->head_dim * ROLL_TOKENS));
}

#endif
