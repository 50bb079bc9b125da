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
 * The last group has as many steps as inputs are left, by 32s; what is behind the last input and
 * the last output has code 0.
 *
 * Products run over integers: a row of activations is rounded to 8 bits group by group in the same
 * way, sums of a group are exact, and an output is sum_g scale_w[g] scale_x[g] (whole number),
 * groups ascending, one fused multiply-add each. Every level gives the same bits.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_KERNELS_INT8_H
#define KVA_KERNELS_INT8_H

#include "kernels/packed.h"

/* Inputs that share a scale. Of groups of 32, 64, 128 and whole rows, the largest that keeps the
 * error of logits where bf16 activations have it (docs/results/cpu.md). */
#define KVA_INT8_GROUP       128u

#define KVA_INT8_PANEL       KVA_PACKED_PANEL      /* outputs side by side */
#define KVA_INT8_LINE_BYTES  KVA_PACKED_LINE_BYTES /* of a panel: scales of a group, or a step */
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
    return kva_packed_panel_bytes(kva_packed_format(KVA_INT8), cols);
}

static inline size_t kva_int8_bytes(uint32_t rows, uint32_t cols)
{
    return kva_packed_bytes(kva_packed_format(KVA_INT8), rows, cols);
}

/* kva_packed_quantise of KVA_INT8. */
KVA_MUST_CHECK static inline bool kva_int8_quantise(const void *from, enum kva_dtype dtype,
                                                    uint32_t rows, uint32_t cols,
                                                    uint32_t panel_first, uint32_t panel_end,
                                                    void *to)
{
    return kva_packed_quantise(KVA_INT8, from, dtype, rows, cols, panel_first, panel_end, to);
}

static inline float kva_int8_at(const void *data, uint32_t cols, uint32_t row, uint32_t col)
{
    return kva_packed_at(KVA_INT8, data, cols, row, col);
}

#endif
