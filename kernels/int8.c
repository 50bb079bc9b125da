/* int8.c - weights to int8: scales and codes of a panel. */
#include "kernels/int8.h"

#include "kernels/convert.h"

#include <math.h>
#include <string.h>

/* Panels are made from this many inputs of 16 outputs, widened. */
struct group {
    float w[KVA_INT8_PANEL][KVA_INT8_GROUP];
    float scale[KVA_INT8_PANEL];
};

/* Sizes of floats without sign order as their bits do, and what is no number is above them all. */
static uint32_t largest_bits(const float *w)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < KVA_INT8_GROUP; i++) {
        uint32_t bits = kva_bits_of_float(w[i]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* What is to be multiplied by to get whole numbers. */
static float inverse_of(float largest)
{
    return largest > 0 ? 127.0f / largest : 0;
}

/* To the nearest whole number, ties to even, for sizes up to 2^22: the sum has no room for
 * fractions. Written so that compilers vectorise it. */
static uint8_t code_of(float w, float inverse)
{
    const float shift = 0x1.8p23f;
    return (uint8_t)((kva_bits_of_float(w * inverse + shift) + 128) & 0xFFu);
}

static void write_group(const struct group *group, const float *inverse, uint32_t steps,
                        uint8_t *to)
{
    memcpy(to, group->scale, KVA_INT8_LINE_BYTES);
    to += KVA_INT8_LINE_BYTES;
    for (uint32_t n = 0; n < KVA_INT8_PANEL; n++) {
        uint8_t codes[KVA_INT8_GROUP];
        for (uint32_t i = 0; i < KVA_INT8_GROUP; i++)
            codes[i] = code_of(group->w[n][i], inverse[n]);
        for (uint32_t i = 0; i < steps; i++)
            memcpy(to + (size_t)i * KVA_INT8_LINE_BYTES + (size_t)n * KVA_INT8_STEP_INPUTS,
                   codes + (size_t)i * KVA_INT8_STEP_INPUTS, KVA_INT8_STEP_INPUTS);
    }
}

bool kva_int8_quantise(const void *from, enum kva_dtype dtype, uint32_t rows, uint32_t cols,
                       uint32_t panel_first, uint32_t panel_end, void *to)
{
    uint8_t *out = to;
    for (uint32_t panel = panel_first; panel < panel_end; panel++) {
        for (uint32_t col = 0; col < cols; col += KVA_INT8_GROUP) {
            const uint32_t count = kva_min_u32(KVA_INT8_GROUP, cols - col);
            const uint32_t steps = (count + KVA_INT8_STEP_INPUTS - 1) / KVA_INT8_STEP_INPUTS;
            struct group group;
            float inverse[KVA_INT8_PANEL];
            if (count < KVA_INT8_GROUP || rows - panel * KVA_INT8_PANEL < KVA_INT8_PANEL)
                memset(&group, 0, sizeof(group));
            for (uint32_t n = 0; n < KVA_INT8_PANEL; n++) {
                size_t row = (size_t)panel * KVA_INT8_PANEL + n;
                if (row < rows)
                    kva_f32_array(kva_element(from, dtype, row * cols + col), dtype, count,
                                  group.w[n]);
                float largest = kva_float_of_bits(largest_bits(group.w[n]));
                if (!isfinite(largest))
                    return false;
                /* Below this its inverse might not be a number: weights of no effect. */
                largest = largest < 0x1p-100f ? 0 : largest;
                group.scale[n] = largest / 127.0f;
                inverse[n] = inverse_of(largest);
            }
            write_group(&group, inverse, steps, out);
            out += (size_t)(1 + steps) * KVA_INT8_LINE_BYTES;
        }
    }
    return true;
}

float kva_int8_at(const void *data, uint32_t cols, uint32_t row, uint32_t col)
{
    const uint8_t *panel =
        (const uint8_t *)data + row / KVA_INT8_PANEL * kva_int8_panel_bytes(cols);
    const size_t group_bytes =
        (1 + KVA_INT8_GROUP / KVA_INT8_STEP_INPUTS) * (size_t)KVA_INT8_LINE_BYTES;
    const uint8_t *group = panel + col / KVA_INT8_GROUP * group_bytes;
    const uint32_t n = row % KVA_INT8_PANEL, i = col % KVA_INT8_GROUP;
    const uint8_t *step = group + (1 + i / KVA_INT8_STEP_INPUTS) * (size_t)KVA_INT8_LINE_BYTES;
    float scale;
    memcpy(&scale, group + n * sizeof(scale), sizeof(scale));
    return scale * (float)(step[n * KVA_INT8_STEP_INPUTS + i % KVA_INT8_STEP_INPUTS] - 128);
}
