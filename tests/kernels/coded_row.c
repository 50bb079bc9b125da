/* coded_row.c - a model of a key or value in few bits, coded by itself. */
#include "tests/kernels/coded_row.h"

#include "kernels/convert.h"
#include "kernels/turn.h"

#include <math.h>
#include <string.h>

/* Times a Hadamard matrix of 2^n rows, by its definition from the half. */
static void mix(float *x, uint32_t n)
{
    if (n == 1)
        return;
    mix(x, n / 2);
    mix(x + n / 2, n / 2);
    for (uint32_t i = 0; i < n / 2; i++) {
        const float a = x[i], b = x[n / 2 + i];
        x[i] = a + b;
        x[n / 2 + i] = a - b;
    }
}

void coded_row_turn(float *x, uint32_t dim)
{
    const uint32_t block = dim & -dim;
    for (uint32_t i = 0; i < dim; i++)
        x[i] = kva_turn_flips(i) ? -x[i] : x[i];
    for (uint32_t i = 0; i < dim; i += block)
        mix(x + i, block);
    for (uint32_t i = 0; i < dim; i++) {
        x[i] = x[i] * kva_turn_factor(block) + 0.0f;
        x[i] = isnan(x[i]) ? x[i] : fminf(fmaxf(x[i], -65504.0f), 65504.0f);
    }
}

void coded_row_turn_back(double *x, uint32_t dim)
{
    const uint32_t block = dim & -dim;
    double out[512];
    for (uint32_t i = 0; i < dim; i++) {
        out[i] = 0;
        for (uint32_t j = i / block * block; j < i / block * block + block; j++)
            out[i] += __builtin_popcount(i & j & (block - 1)) % 2 ? -x[j] : x[j];
        out[i] *= (kva_turn_flips(i) ? -1 : 1) / sqrt((double)block);
    }
    memcpy(x, out, dim * sizeof *x);
}

static float lanes_total(const float *lanes, uint32_t count)
{
    float sums[8] = {0};
    if (count == 1)
        return lanes[0];
    for (uint32_t i = 0; i < count / 2; i++)
        sums[i] = lanes[i] + lanes[i + count / 2];
    return lanes_total(sums, count / 2);
}

/* The levels of a normal distribution, where they are nearer together than those of the range. */
static void normal_levels(const float *x, uint32_t dim, uint32_t bits, float *low, float *step)
{
    float sums[16] = {0}, squares[16] = {0};
    for (uint32_t i = 0; i < dim; i++) {
        sums[i % 16] += x[i] - *low;
        squares[i % 16] += (x[i] - *low) * (x[i] - *low);
    }
    const float mean = lanes_total(sums, 16) / (float)dim;
    const float square = lanes_total(squares, 16) / (float)dim - mean * mean;
    const float best = kva_turn_step(bits) * sqrtf(fmaxf(square, 0.0f));
    if (best > 0 && best < *step) {
        *low += mean - 0.5f * (float)((1u << bits) - 1) * best;
        *step = best;
    }
}

void coded_row_make(struct coded_row *coded, const float *x, uint32_t dim, uint32_t bits,
                    enum kva_lowbit_coding coding)
{
    float low = NAN, high = NAN;
    const float most = (float)((1u << bits) - 1);
    for (uint32_t i = 0; i < dim; i++) {
        low = isnan(low) || x[i] < low ? x[i] : low;
        high = isnan(high) || x[i] > high ? x[i] : high;
    }
    *coded = (struct coded_row){0};
    if (isnan(low))
        return;
    float step = (high - low) / most;
    if (coding == KVA_CODING_TURNED)
        normal_levels(x, dim, bits, &low, &step);
    coded->scale = kva_f32_of_f16(kva_f16_of_f32(step));
    coded->zero =
        kva_f32_of_f16(kva_f16_of_f32(coded->scale == 0 ? 0.5f * low + 0.5f * high : low));
    for (uint32_t i = 0; i < dim && coded->scale > 0; i++) {
        const float level = (x[i] - coded->zero) * (1.0f / coded->scale);
        coded->codes[i] = isnan(level) ? 0 : (uint32_t)rintf(fminf(fmaxf(level, 0.0f), most));
    }
}
