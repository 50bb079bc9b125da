/* packed_repack.c - packed matrices of GGUF's blocks: the same codes and scales in another order.
 *
 * A row of the source is blocks of 32 or 256 weights, each with its scales; here 16 rows of a block
 * become one block of a panel. */
#include "kernels/packed_write.h"

#include <string.h>

#define PANEL  KVA_PACKED_PANEL
#define BLOCK  KVA_PACKED_BLOCK_MAX
#define GROUPS 16u /* of a block at most */

/* What a block of a panel is made of; K formats have one d and e an output, others one a group. */
struct block {
    struct kva_packed_codes codes;
    uint16_t d[GROUPS][PANEL]; /* f16 */
    uint16_t e[GROUPS][PANEL]; /* f16: min, or what its factor multiplies */
    uint8_t s[GROUPS][PANEL];  /* K: the scales' factors */
    uint8_t m[GROUPS][PANEL];  /* K: the mins' factors */
};

/* Where one of GGUF's blocks goes: output n, from group `group` and its first input on. */
struct target {
    struct block *block;
    uint32_t n;
    uint32_t group;
    uint8_t *codes;
};

static uint16_t load_u16(const uint8_t *from)
{
    return (uint16_t)(from[0] | from[1] << 8);
}

static uint32_t load_u32(const uint8_t *from)
{
    return (uint32_t)load_u16(from) | (uint32_t)load_u16(from + 2) << 16;
}

/* --- blocks of 32 ------------------------------------------------------------------------------ */

/* 16 bytes: low halves are weights 0 to 15, high halves 16 to 31; `high` has a fifth bit of each. */
static void read_halves(const uint8_t *from, uint32_t high, uint8_t *codes)
{
    for (uint32_t i = 0; i < 16; i++) {
        codes[i] = (uint8_t)((from[i] & 15u) | (high >> i & 1u) << 4);
        codes[i + 16] = (uint8_t)(from[i] >> 4 | (high >> (i + 16) & 1u) << 4);
    }
}

static void read_q4_0(const uint8_t *from, const struct target *to)
{
    to->block->d[to->group][to->n] = load_u16(from);
    read_halves(from + 2, 0, to->codes);
}

static void read_q4_1(const uint8_t *from, const struct target *to)
{
    to->block->d[to->group][to->n] = load_u16(from);
    to->block->e[to->group][to->n] = load_u16(from + 2);
    read_halves(from + 4, 0, to->codes);
}

static void read_q5_0(const uint8_t *from, const struct target *to)
{
    to->block->d[to->group][to->n] = load_u16(from);
    read_halves(from + 6, load_u32(from + 2), to->codes);
}

static void read_q5_1(const uint8_t *from, const struct target *to)
{
    to->block->d[to->group][to->n] = load_u16(from);
    to->block->e[to->group][to->n] = load_u16(from + 2);
    read_halves(from + 8, load_u32(from + 4), to->codes);
}

static void read_q8_0(const uint8_t *from, const struct target *to)
{
    to->block->d[to->group][to->n] = load_u16(from);
    for (uint32_t i = 0; i < 32; i++)
        to->codes[i] = (uint8_t)(from[2 + i] ^ 0x80u); /* + 128 */
}

/* --- blocks of 256 ----------------------------------------------------------------------------- */

static void put_factors(const struct target *to, const uint8_t *s, const uint8_t *m,
                        uint32_t groups)
{
    for (uint32_t g = 0; g < groups; g++) {
        to->block->s[g][to->n] = s[g];
        to->block->m[g][to->n] = m ? m[g] : 0;
    }
}

static void put_halves(const struct target *to, const uint8_t *d, const uint8_t *e)
{
    to->block->d[0][to->n] = load_u16(d);
    to->block->e[0][to->n] = e ? load_u16(e) : 0;
}

/* 32 codes of 32 bytes: `mask` of each from bit `down` on, to be or'ed in from bit `up` on. */
static void take_bits(const uint8_t *from, uint32_t down, uint32_t mask, uint32_t up,
                      uint8_t *codes)
{
    for (uint32_t i = 0; i < 32; i++)
        codes[i] |= (uint8_t)((from[i] >> down & mask) << up);
}

/* 128 weights lie in 32 bytes, two bits of each at a time. */
static void read_two_bits(const uint8_t *from, uint8_t *codes)
{
    for (uint32_t i = 0; i < BLOCK; i += 32)
        take_bits(from + i / 128 * 32, i % 128 / 32 * 2, 3, 0, codes + i);
}

static void read_q2_k(const uint8_t *from, const struct target *to)
{
    uint8_t s[16], m[16];
    for (uint32_t g = 0; g < 16; g++) {
        s[g] = from[g] & 15;
        m[g] = from[g] >> 4;
    }
    put_factors(to, s, m, 16);
    put_halves(to, from + 80, from + 82);
    read_two_bits(from + 16, to->codes);
}

static void read_q3_k(const uint8_t *from, const struct target *to)
{
    const uint8_t *packed = from + 96;
    uint8_t s[16];
    for (uint32_t g = 0; g < 16; g++) {
        /* Of 16 factors the low four bits lie in eight bytes, the high two in four. */
        uint32_t low = g < 8 ? packed[g] & 15u : packed[g - 8] >> 4;
        uint32_t high = packed[8 + g % 4] >> g / 4 * 2 & 3u;
        s[g] = (uint8_t)((low | high << 4) - 32);
    }
    put_factors(to, s, NULL, 16);
    put_halves(to, from + 108, NULL);
    read_two_bits(from + 32, to->codes);
    for (uint32_t i = 0; i < BLOCK; i += 32)
        take_bits(from, i / 32, 1, 2, to->codes + i);
}

/* Factors of eight scales and mins, six bits each in twelve bytes. */
static void read_six_bits(const uint8_t *packed, uint8_t s[8], uint8_t m[8])
{
    for (uint32_t g = 0; g < 4; g++) {
        s[g] = packed[g] & 63;
        m[g] = packed[g + 4] & 63;
        s[g + 4] = (uint8_t)((packed[g + 8] & 15) | packed[g] >> 6 << 4);
        m[g + 4] = (uint8_t)(packed[g + 8] >> 4 | packed[g + 4] >> 6 << 4);
    }
}

/* 64 weights lie in 32 bytes, four bits of each at a time. */
static void read_four_bits(const uint8_t *from, uint8_t *codes)
{
    for (uint32_t i = 0; i < BLOCK; i += 32)
        take_bits(from + i / 64 * 32, i % 64 / 32 * 4, 15, 0, codes + i);
}

/* What q4_k and q5_k have in common; four bits of each code lie at `codes`. */
static void read_k_min(const uint8_t *from, const uint8_t *codes, const struct target *to)
{
    uint8_t s[8], m[8];
    read_six_bits(from + 4, s, m);
    put_factors(to, s, m, 8);
    put_halves(to, from, from + 2);
    read_four_bits(codes, to->codes);
}

static void read_q4_k(const uint8_t *from, const struct target *to)
{
    read_k_min(from, from + 16, to);
}

static void read_q5_k(const uint8_t *from, const struct target *to)
{
    read_k_min(from, from + 48, to);
    for (uint32_t i = 0; i < BLOCK; i += 32)
        take_bits(from + 16, i / 32, 1, 4, to->codes + i);
}

/* 128 weights: four low bits in 64 bytes, two high ones in 32. */
static void read_q6_k(const uint8_t *from, const struct target *to)
{
    put_factors(to, from + 192, NULL, 16);
    put_halves(to, from + 208, NULL);
    for (uint32_t i = 0; i < BLOCK; i += 32) {
        take_bits(from + i / 128 * 64 + i % 64, i % 128 / 64 * 4, 15, 0, to->codes + i);
        take_bits(from + 128 + i / 128 * 32, i % 128 / 32 * 2, 3, 4, to->codes + i);
    }
}

/* --- panels ------------------------------------------------------------------------------------ */

struct reader {
    uint32_t values; /* of one of GGUF's blocks */
    uint32_t bytes;
    void (*read)(const uint8_t *from, const struct target *to);
};

static const struct reader readers[KVA_DTYPE_END] = {
    [KVA_Q4_0] = {32, 18, read_q4_0},   [KVA_Q4_1] = {32, 20, read_q4_1},
    [KVA_Q5_0] = {32, 22, read_q5_0},   [KVA_Q5_1] = {32, 24, read_q5_1},
    [KVA_Q8_0] = {32, 34, read_q8_0},   [KVA_Q2_K] = {256, 84, read_q2_k},
    [KVA_Q3_K] = {256, 110, read_q3_k}, [KVA_Q4_K] = {256, 144, read_q4_k},
    [KVA_Q5_K] = {256, 176, read_q5_k}, [KVA_Q6_K] = {256, 210, read_q6_k},
};

static bool are_finite(const uint16_t halves[][PANEL], uint32_t groups)
{
    uint32_t bad = 0;
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t n = 0; n < PANEL; n++)
            bad |= (halves[g][n] & 0x7C00u) == 0x7C00u;
    return !bad;
}

static void write_head(const struct kva_packed_format *format, const struct block *block,
                       uint8_t *to)
{
    const uint32_t groups = format->block_inputs / format->scale_inputs;
    const size_t halves = sizeof(block->d[0]), bytes = (size_t)groups * PANEL;
    memset(to, 0, format->head_bytes);
    switch (format->head) {
    case KVA_HEAD_F32: /* none of GGUF's */
        break;
    case KVA_HEAD_F16:
        memcpy(to, block->d, groups * halves);
        break;
    case KVA_HEAD_F16_MIN:
        memcpy(to, block->d, groups * halves);
        memcpy(to + groups * halves, block->e, groups * halves);
        break;
    case KVA_HEAD_K_SIGNED:
    case KVA_HEAD_K_MIN:
        memcpy(to, block->d, halves);
        memcpy(to + halves, block->e, halves);
        memcpy(to + 2 * halves, block->s, bytes);
        if (format->has_min)
            memcpy(to + 2 * halves + bytes, block->m, bytes);
        break;
    case KVA_HEAD_K_MIN_4BIT:
        memcpy(to, block->d, halves);
        memcpy(to + halves, block->e, halves);
        for (size_t i = 0; i < bytes; i++)
            to[2 * halves + i] =
                (uint8_t)(block->s[i / PANEL][i % PANEL] | block->m[i / PANEL][i % PANEL] << 4);
        break;
    }
}

/* One block of a panel: inputs [col, col + inputs). */
static bool repack_block(enum kva_dtype dtype, const struct kva_packed_source *source,
                         uint32_t panel, uint32_t col, uint32_t inputs, uint8_t *to)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    const struct reader *reader = &readers[dtype];
    const size_t row_bytes = (size_t)(source->cols / reader->values) * reader->bytes;
    struct block block;
    memset(&block, 0, sizeof(block));
    for (uint32_t n = 0; n < PANEL; n++) {
        const size_t row = (size_t)panel * PANEL + n;
        if (row >= source->rows) {
            memset(block.codes.at[n], format->zero, BLOCK);
            continue;
        }
        const uint8_t *from = (const uint8_t *)source->blocks +
                              (source->order ? source->order[row] : row) * row_bytes +
                              (size_t)(col / reader->values) * reader->bytes;
        for (uint32_t at = 0; at < inputs; at += reader->values, from += reader->bytes)
            reader->read(from, &(struct target){&block, n, at / format->scale_inputs,
                                                block.codes.at[n] + at});
    }
    write_head(format, &block, to);
    kva_packed_write_pieces(format, &block.codes, inputs, to + format->head_bytes);
    return are_finite(block.d, GROUPS) && are_finite(block.e, GROUPS);
}

bool kva_packed_repack(enum kva_dtype dtype, const struct kva_packed_source *source,
                       uint32_t panel_first, uint32_t panel_end, void *to)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    uint8_t *out = to;
    for (uint32_t panel = panel_first; panel < panel_end; panel++) {
        for (uint32_t col = 0; col < source->cols; col += format->block_inputs) {
            const uint32_t inputs = kva_min_u32(format->block_inputs, source->cols - col);
            if (!repack_block(dtype, source, panel, col, inputs, out))
                return false;
            out += format->head_bytes +
                   inputs / KVA_PACKED_PIECE_INPUTS * kva_packed_piece_bytes(format);
        }
    }
    return true;
}
