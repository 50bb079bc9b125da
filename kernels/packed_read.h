/* packed_read.h - one number of a packed matrix after the other: the layout of packed.h in code, for
 * reference kernels, tools and tests.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_KERNELS_PACKED_READ_H
#define KVA_KERNELS_PACKED_READ_H

#include "kernels/convert.h"
#include "kernels/packed.h"

/* Where a column of an output lies: block, group of weights in it, and what of its codes. */
struct kva_packed_place {
    const uint8_t *head;
    const uint8_t *piece;
    uint32_t group; /* of the block */
    uint32_t lane;  /* output in the panel */
    uint32_t input; /* of the piece */
};

static inline struct kva_packed_place kva_packed_find(const struct kva_packed_format *format,
                                                      const void *data, uint32_t cols, uint32_t row,
                                                      uint32_t col)
{
    const uint8_t *head = (const uint8_t *)data +
                          row / KVA_PACKED_PANEL * kva_packed_panel_bytes(format, cols) +
                          col / format->block_inputs * kva_packed_block_bytes(format);
    const uint32_t in_block = col % format->block_inputs;
    return (struct kva_packed_place){
        .head = head,
        .piece = head + format->head_bytes +
                 in_block / KVA_PACKED_PIECE_INPUTS * kva_packed_piece_bytes(format),
        .group = in_block / format->scale_inputs,
        .lane = row % KVA_PACKED_PANEL,
        .input = in_block % KVA_PACKED_PIECE_INPUTS,
    };
}

/* `bits` bits of step `step` at byte `at` of lines that hold 8 / bits steps each. */
static inline uint32_t kva_packed_bits(const uint8_t *lines, uint32_t bits, uint32_t step,
                                       uint32_t at)
{
    if (bits == 0)
        return 0;
    const uint32_t steps = 8 / bits;
    return (uint32_t)lines[step / steps * KVA_PACKED_LINE_BYTES + at] >> step % steps * bits &
           ((1u << bits) - 1);
}

static inline uint32_t kva_packed_code(const struct kva_packed_format *format, const uint8_t *piece,
                                       uint32_t lane, uint32_t input)
{
    const uint32_t step = input / KVA_PACKED_STEP_INPUTS;
    const uint32_t at = lane * KVA_PACKED_STEP_INPUTS + input % KVA_PACKED_STEP_INPUTS;
    const uint8_t *high = piece + (size_t)format->low_bits * KVA_PACKED_LINE_BYTES;
    return kva_packed_bits(piece, format->low_bits, step, at) |
           kva_packed_bits(high, format->high_bits, step, at) << format->low_bits;
}

static inline float kva_packed_half(const uint8_t *from, uint32_t index)
{
    uint16_t half;
    memcpy(&half, from + (size_t)index * 2, sizeof(half));
    return kva_f32_of_f16(half);
}

/* Scale and min of a group of a block: exact, products of numbers of 11 and 8 bits. */
static inline float kva_packed_scale(const struct kva_packed_format *format, const uint8_t *head,
                                     uint32_t group, uint32_t lane, float *ret_min)
{
    const uint32_t at = group * KVA_PACKED_PANEL + lane;
    const uint32_t groups = format->block_inputs / format->scale_inputs;
    const uint8_t *parts = head + KVA_PACKED_LINE_BYTES; /* of K: behind d and e */
    float scale;
    *ret_min = 0;
    switch (format->head) {
    case KVA_HEAD_F32:
        memcpy(&scale, head + (size_t)at * sizeof(scale), sizeof(scale));
        return scale;
    case KVA_HEAD_F16:
        return kva_packed_half(head, at);
    case KVA_HEAD_F16_MIN:
        *ret_min = kva_packed_half(head, groups * KVA_PACKED_PANEL + at);
        return kva_packed_half(head, at);
    case KVA_HEAD_K_SIGNED:
        return kva_packed_half(head, lane) * (float)(int8_t)parts[at];
    case KVA_HEAD_K_MIN:
        *ret_min = -(kva_packed_half(head, KVA_PACKED_PANEL + lane) *
                     (float)parts[groups * KVA_PACKED_PANEL + at]);
        return kva_packed_half(head, lane) * (float)parts[at];
    case KVA_HEAD_K_MIN_4BIT:
        *ret_min = -(kva_packed_half(head, KVA_PACKED_PANEL + lane) * (float)(parts[at] >> 4));
        return kva_packed_half(head, lane) * (float)(parts[at] & 15);
    }
    return 0;
}

#endif
