/* packed.cuh - packed weights (kernels/packed.h) number by number, on the device. */
#ifndef KVA_KERNELS_CUDA_PACKED_CUH
#define KVA_KERNELS_CUDA_PACKED_CUH

#include "kernels/cuda/number.cuh"
#include "kernels/packed_table.h"

/* A matrix and what of its format a kernel computes with; passed by value. */
struct kva_cuda_packed {
    const unsigned char *data;
    struct kva_packed_format format;
    uint32_t rows, cols;
    uint32_t piece_bytes, block_bytes;
    size_t panel_bytes;
};

struct kva_cuda_scales {
    float scale, min;
};

static inline kva_cuda_packed kva_cuda_packed_of(const struct kva_weight *weight)
{
    const struct kva_packed_format format = kva_packed_table[weight->dtype - KVA_INT8];
    return {static_cast<const unsigned char *>(weight->data),
            format,
            weight->rows,
            weight->cols,
            static_cast<uint32_t>(kva_packed_piece_bytes(&format)),
            static_cast<uint32_t>(kva_packed_block_bytes(&format)),
            kva_packed_panel_bytes(&format, weight->cols)};
}

__device__ __forceinline__ float kva_packed_half(const unsigned char *from, uint32_t index)
{
    return kva_to_f32(reinterpret_cast<const kva_f16 *>(from)[index]);
}

/* Of group `group` of a block and output `lane` of the panel. */
__device__ __forceinline__ kva_cuda_scales kva_packed_scales(const struct kva_packed_format &format,
                                                             const unsigned char *head,
                                                             uint32_t group, uint32_t lane)
{
    const uint32_t panel = KVA_PACKED_PANEL, at = group * panel + lane;
    const uint32_t groups = format.block_inputs / format.scale_inputs;
    const unsigned char *parts = head + KVA_PACKED_LINE_BYTES; /* of K formats: behind d and e */
    switch (format.head) {
    case KVA_HEAD_F32:
        return {reinterpret_cast<const float *>(head)[at], 0};
    case KVA_HEAD_F16:
        return {kva_packed_half(head, at), 0};
    case KVA_HEAD_F16_MIN:
        return {kva_packed_half(head, at), kva_packed_half(head, groups * panel + at)};
    case KVA_HEAD_K_SIGNED:
        return {kva_packed_half(head, lane) *
                    static_cast<float>(static_cast<signed char>(parts[at])),
                0};
    case KVA_HEAD_K_MIN:
        return {kva_packed_half(head, lane) * static_cast<float>(parts[at]),
                -kva_packed_half(head, panel + lane) *
                    static_cast<float>(parts[groups * panel + at])};
    default: /* KVA_HEAD_K_MIN_4BIT */
        return {kva_packed_half(head, lane) * static_cast<float>(parts[at] & 15),
                -kva_packed_half(head, panel + lane) * static_cast<float>(parts[at] >> 4)};
    }
}

/* `bits` bits of step `step` of four codes side by side, from byte `at` of the lines on: each in a
 * byte of its own. */
__device__ __forceinline__ uint32_t kva_packed_four_bits(const unsigned char *lines, uint32_t bits,
                                                         uint32_t step, uint32_t at)
{
    const uint32_t steps = 8 / bits, mask = (1u << bits) - 1;
    const uint32_t word =
        *reinterpret_cast<const uint32_t *>(lines + step / steps * KVA_PACKED_LINE_BYTES + at);
    return word >> step % steps * bits & mask * 0x01010101u;
}

/* The codes of inputs 4 step .. 4 step + 3 of a piece and one output. */
__device__ __forceinline__ uint32_t kva_packed_four(const unsigned char *piece, uint32_t low,
                                                    uint32_t high, uint32_t step, uint32_t lane)
{
    const uint32_t at = lane * KVA_PACKED_STEP_INPUTS;
    uint32_t codes = kva_packed_four_bits(piece, low, step, at);
    if (high > 0)
        codes |= kva_packed_four_bits(piece + low * KVA_PACKED_LINE_BYTES, high, step, at) << low;
    return codes;
}

/* Input i of four: as the CPU's kva_packed_at rounds it. */
__device__ __forceinline__ float kva_packed_weight(const struct kva_packed_format &format,
                                                   kva_cuda_scales scales, uint32_t codes,
                                                   uint32_t i)
{
    const int code = static_cast<int>(codes >> 8 * i & 0xFFu) - format.zero;
    const float scaled = __fmul_rn(scales.scale, static_cast<float>(code));
    return format.has_min ? __fadd_rn(scaled, scales.min) : scaled;
}

/* The four weights from column `col` on, a multiple of 4, of a row. */
__device__ __forceinline__ void kva_packed_load_four(const kva_cuda_packed &w, uint32_t row,
                                                     uint32_t col, float out[4])
{
    const uint32_t in_block = col % w.format.block_inputs, lane = row % KVA_PACKED_PANEL;
    const unsigned char *head = w.data + row / KVA_PACKED_PANEL * w.panel_bytes +
                                static_cast<size_t>(col / w.format.block_inputs) * w.block_bytes;
    const unsigned char *piece =
        head + w.format.head_bytes + in_block / KVA_PACKED_PIECE_INPUTS * w.piece_bytes;
    const uint32_t step = in_block % KVA_PACKED_PIECE_INPUTS / KVA_PACKED_STEP_INPUTS;
    const kva_cuda_scales scales =
        kva_packed_scales(w.format, head, in_block / w.format.scale_inputs, lane);
    const uint32_t codes =
        kva_packed_four(piece, w.format.low_bits, w.format.high_bits, step, lane);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        out[i] = kva_packed_weight(w.format, scales, codes, i);
}

#endif
