/* packed_table.h - the packed formats, one row each: for kva_packed_format, and for kernels that are
 * compiled for each of them.
 *
 * Thread rule: constant data. */
#ifndef KVA_KERNELS_PACKED_TABLE_H
#define KVA_KERNELS_PACKED_TABLE_H

#include "kernels/packed.h"

#ifdef __cplusplus
#define KVA_PACKED_TABLE static constexpr struct kva_packed_format
#else
#define KVA_PACKED_TABLE static const struct kva_packed_format
#endif

/* In the order of enum kva_dtype, from KVA_INT8 on. Of int8's groups of 32, 64, 128 inputs and whole
 * rows, 128 is the largest that keeps the error of logits where bf16 activations have it
 * (docs/results/cpu.md). */
KVA_PACKED_TABLE kva_packed_table[KVA_DTYPE_END - KVA_INT8] = {
    /* gguf_id, head, head_bytes, block_inputs, scale_inputs, low_bits, high_bits, zero, has_min */
    {KVA_PACKED_NO_GGUF, KVA_HEAD_F32, 64, 128, 128, 8, 0, 128, false}, /* int8 */
    {2, KVA_HEAD_F16, 64, 64, 32, 4, 0, 8, false},                      /* q4_0 */
    {3, KVA_HEAD_F16_MIN, 64, 32, 32, 4, 0, 0, true},                   /* q4_1 */
    {6, KVA_HEAD_F16, 64, 64, 32, 4, 1, 16, false},                     /* q5_0 */
    {7, KVA_HEAD_F16_MIN, 64, 32, 32, 4, 1, 0, true},                   /* q5_1 */
    {8, KVA_HEAD_F16, 64, 64, 32, 8, 0, 128, false},                    /* q8_0 */
    {10, KVA_HEAD_K_MIN_4BIT, 320, 256, 16, 2, 0, 0, true},             /* q2_k */
    {11, KVA_HEAD_K_SIGNED, 320, 256, 16, 2, 1, 4, false},              /* q3_k */
    {12, KVA_HEAD_K_MIN, 320, 256, 32, 4, 0, 0, true},                  /* q4_k */
    {13, KVA_HEAD_K_MIN, 320, 256, 32, 4, 1, 0, true},                  /* q5_k */
    {14, KVA_HEAD_K_SIGNED, 320, 256, 16, 4, 2, 32, false},             /* q6_k */
};

#endif
