/* int8.h - matrices of linear in 8 bits (KVA_INT8): their layout, and how they are made.
 *
 * A weight is scale * code, code a whole number from -127 to 127, one scale for KVA_INT8_GROUP
 * inputs of an output: scale = max |w| / 127 in fp32, code = w / scale rounded to nearest, ties to
 * even. One layout for every level, in the order in which a kernel reads it, so that a file of it
 * can be mapped and read as it lies:
 *
 *   panel 0 (outputs 0 .. 15)                              panel 1 ...
 *   group 0 (inputs 0 .. 127)   group 1 ...
 *  [scales][step 0][step 1]... [scales][step 0]...        [scales] ...     64 bytes each
 *
 *   scales   f32 [16 outputs]
 *   step i   u8 [16 outputs][4 inputs 4 i .. 4 i + 3]: code + 128, as the instruction that
 *            multiplies unsigned by signed bytes wants it
 *
 * The last group has as many steps as inputs are left, by fours; what is behind the last input and
 * the last output has code 0.
 *
 * Products run over integers: a row of activations is rounded to 8 bits group by group in the same
 * way, sums of a group are exact, and an output is sum_g scale_w[g] scale_x[g] (whole number),
 * groups ascending, one fused multiply-add each. Every level gives the same bits.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_KERNELS_INT8_H
#define KVA_KERNELS_INT8_H

#include "kernels/device.h"

/* Inputs that share a scale. Of groups of 32, 64, 128 and whole rows, the largest that keeps the
 * error of logits where bf16 activations have it (docs/results/cpu.md). */
#define KVA_INT8_GROUP       128u

#define KVA_INT8_PANEL       16u /* outputs side by side */
#define KVA_INT8_LINE_BYTES  64u /* of a panel: scales of a group, or a step */
#define KVA_INT8_STEP_INPUTS 4u

/* Matrices begin at multiples of this. */
#define KVA_INT8_ALIGN KVA_INT8_LINE_BYTES

static inline uint32_t kva_int8_groups(uint32_t cols)
{
    return (cols + KVA_INT8_GROUP - 1) / KVA_INT8_GROUP;
}

/* Bytes of 16 outputs: scales of each group, and the steps. */
static inline size_t kva_int8_panel_bytes(uint32_t cols)
{
    size_t steps = ((size_t)cols + KVA_INT8_STEP_INPUTS - 1) / KVA_INT8_STEP_INPUTS;
    return (kva_int8_groups(cols) + steps) * KVA_INT8_LINE_BYTES;
}

static inline size_t kva_int8_bytes(uint32_t rows, uint32_t cols)
{
    return ((size_t)rows + KVA_INT8_PANEL - 1) / KVA_INT8_PANEL * kva_int8_panel_bytes(cols);
}

/* Bytes of a weight in any format. */
static inline size_t kva_weight_bytes(const struct kva_weight *weight)
{
    if (!weight->data)
        return 0;
    if (weight->dtype == KVA_INT8)
        return kva_int8_bytes(weight->rows, weight->cols);
    return (size_t)weight->rows * weight->cols * kva_dtype_bytes(weight->dtype);
}

/* to = panels [panel_first, panel_end) of the matrix [rows, cols] of F32, F16 or BF16 at `from`;
 * `to` is where panel_first goes. Numbers that are not finite are left to the caller to refuse:
 * false says that there was one, and that `to` is of no use. */
KVA_MUST_CHECK bool kva_int8_quantise(const void *from, enum kva_dtype dtype, uint32_t rows,
                                      uint32_t cols, uint32_t panel_first, uint32_t panel_end,
                                      void *to);

/* The number at [row, col]: for tests and tools. */
float kva_int8_at(const void *data, uint32_t cols, uint32_t row, uint32_t col);

#endif
