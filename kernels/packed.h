/* packed.h - matrices of linear and embed in 2 to 8 bits: their formats, how they lie in memory, and
 * how they are made: of GGUF's blocks, exactly, or of numbers in 16 and 32 bits.
 *
 * A weight is scale * (code - zero) + min: `scale` belongs to a group of 16, 32 or 128 inputs of an
 * output, `zero` to the format, `min` to the group where the format has one, else it is 0. One
 * layout for every level and device, in the order in which a kernel reads it, so that a file of it
 * can be mapped and read as it lies:
 *
 *   panel 0 (outputs 0 .. 15)                       panel 1 ...
 *   block 0                       block 1 ...
 *  [head][piece 0][piece 1]...   [head][piece 0]...
 *
 *   head     scales and mins of the block for 16 outputs (enum kva_packed_head)
 *   piece    32 inputs: 8 steps of [16 outputs][4 inputs], a byte each if they were unpacked. Of a
 *            code the low bits lie in `low_bits` lines of 64 bytes, the others in `high_bits`
 *            lines behind them; a line holds 8 / bits steps, the first in its lowest bits.
 *
 * So a line unpacks to steps by shifts and masks alone, and a step is what an instruction wants that
 * multiplies unsigned by signed bytes and adds up four products. A block has block_inputs inputs;
 * the last one has no more pieces than the row needs. What is behind the last output weighs 0;
 * activations behind the last input are 0.
 *
 * Products run over integers: a row of activations is rounded to 8 bits in groups of 128 inputs
 * (scale_x = largest / 127), sums of a group of weights are exact, and an output is
 *
 *   sum over groups of 128 of  scale_x * (sum over groups of weights of
 *                                         scale * sum x (code - zero)  +  min * sum x)
 *
 * in fp32, ascending; of a group of weights first the scale's term, then the min's; every addition
 * is a fused multiply-add. Every level gives the same bits.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_KERNELS_PACKED_H
#define KVA_KERNELS_PACKED_H

#include "kernels/device.h"

#define KVA_PACKED_PANEL        16u /* outputs side by side */
#define KVA_PACKED_LINE_BYTES   64u /* blocks and their parts are multiples of it */
#define KVA_PACKED_STEP_INPUTS  4u
#define KVA_PACKED_PIECE_INPUTS 32u
#define KVA_PACKED_PIECE_STEPS  (KVA_PACKED_PIECE_INPUTS / KVA_PACKED_STEP_INPUTS)
#define KVA_PACKED_ROW_GROUP    128u /* activations that share a scale */

/* Matrices begin at multiples of this. */
#define KVA_PACKED_ALIGN KVA_PACKED_LINE_BYTES

/* What --weights int8 and int4 make (docs/results/cpu.md says why these). */
#define KVA_PACKED_INT8 KVA_INT8
#define KVA_PACKED_INT4 KVA_Q4_1

/* Scales and mins of a block, 16 outputs side by side in each array; 64-byte lines. */
enum kva_packed_head {
    KVA_HEAD_F32,      /* scale f32 */
    KVA_HEAD_F16,      /* scale f16 of each group */
    KVA_HEAD_F16_MIN,  /* scale f16 of each group, then min f16 of each */
    KVA_HEAD_K_SIGNED, /* d f16, 32 bytes of 0, s i8 of each group: scale = d s */
    KVA_HEAD_K_MIN,    /* d f16, e f16, s u8 of each group, m u8 of each: scale = d s, min = -e m */
    KVA_HEAD_K_MIN_4BIT /* d f16, e f16, one byte of each group: s in its low four bits, m above */
};

struct kva_packed_format {
    uint32_t gguf_id; /* GGUF's number of the same format; KVA_PACKED_NO_GGUF: none */
    enum kva_packed_head head;
    uint16_t head_bytes;
    uint16_t block_inputs; /* 32 to 256 */
    uint8_t scale_inputs;  /* that share a scale: 16, 32 or 128 */
    uint8_t low_bits;      /* 2, 4 or 8 */
    uint8_t high_bits;     /* 0, 1 or 2 */
    uint8_t zero;          /* the code of weight 0, where there is no min */
    bool has_min;
};

#define KVA_PACKED_NO_GGUF UINT32_MAX

/* NULL: not a packed format. */
const struct kva_packed_format *kva_packed_format(enum kva_dtype dtype);

/* The packed format that GGUF's number stands for; false: there is none. */
KVA_MUST_CHECK bool kva_packed_of_gguf(uint32_t gguf_id, enum kva_dtype *ret);

static inline size_t kva_packed_piece_bytes(const struct kva_packed_format *format)
{
    return (size_t)(format->low_bits + format->high_bits) * KVA_PACKED_LINE_BYTES;
}

/* Of a block with all its pieces. */
static inline size_t kva_packed_block_bytes(const struct kva_packed_format *format)
{
    return format->head_bytes +
           format->block_inputs / KVA_PACKED_PIECE_INPUTS * kva_packed_piece_bytes(format);
}

/* Bytes of 16 outputs. */
static inline size_t kva_packed_panel_bytes(const struct kva_packed_format *format, uint32_t cols)
{
    size_t blocks = kva_div_up(cols, format->block_inputs);
    size_t pieces = kva_div_up(cols, KVA_PACKED_PIECE_INPUTS);
    return blocks * format->head_bytes + pieces * kva_packed_piece_bytes(format);
}

static inline size_t kva_packed_panels(uint32_t rows)
{
    return kva_div_up(rows, KVA_PACKED_PANEL);
}

static inline size_t kva_packed_bytes(const struct kva_packed_format *format, uint32_t rows,
                                      uint32_t cols)
{
    return kva_packed_panels(rows) * kva_packed_panel_bytes(format, cols);
}

/* Bytes of a weight in any format. */
size_t kva_weight_bytes(const struct kva_weight *weight);

/* A matrix in blocks as GGUF has them, row by row, of a format that kva_packed_of_gguf knows. */
struct kva_packed_source {
    const void *blocks;    /* need not be aligned */
    const uint32_t *order; /* [rows]: which of the source's rows row i is; NULL: row i */
    uint32_t rows;
    uint32_t cols; /* a multiple of GGUF's block: 32 or 256 */
};

/* to = panels [panel_first, panel_end) of the same weights, bit by bit; `to` is where panel_first
 * goes. False: a scale is not finite, and `to` is of no use. */
KVA_MUST_CHECK bool kva_packed_repack(enum kva_dtype dtype, const struct kva_packed_source *source,
                                      uint32_t panel_first, uint32_t panel_end, void *to);

/* Formats that kva_packed_quantise makes: KVA_INT8, KVA_Q4_0, KVA_Q4_1, KVA_Q5_0, KVA_Q5_1,
 * KVA_Q8_0. */
bool kva_packed_is_made(enum kva_dtype dtype);

/* to = panels [panel_first, panel_end) of the matrix [rows, cols] of F32, F16 or BF16 at `from`, in
 * the packed format `dtype`; `to` is where panel_first goes. False: there is a number that is not
 * finite, or too large for the format's scales, and `to` is of no use. */
KVA_MUST_CHECK bool kva_packed_quantise(enum kva_dtype dtype, const void *from,
                                        enum kva_dtype from_dtype, uint32_t rows, uint32_t cols,
                                        uint32_t panel_first, uint32_t panel_end, void *to);

/* The number at [row, col]: the definition of the layout; for tests and tools. */
float kva_packed_at(enum kva_dtype dtype, const void *data, uint32_t cols, uint32_t row,
                    uint32_t col);

/* out[0 .. cols) = the row's numbers. */
void kva_packed_row(enum kva_dtype dtype, const void *data, uint32_t cols, uint32_t row,
                    float *out);

#endif
