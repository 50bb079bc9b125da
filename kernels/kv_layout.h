/* kv_layout.h - the bytes of a KV block, at 16 bits and at few, for C and for CUDA.
 *
 * Blocks lie in either tier, move between them and outlive the step that made them: their layout is
 * a format, and this is all that says what it is. */
#ifndef KVA_KERNELS_KV_LAYOUT_H
#define KVA_KERNELS_KV_LAYOUT_H

#include "base/kva.h"

/* What kernels call, too. */
#ifdef __CUDACC__
#define KVA_ON_DEVICE __host__ __device__
#else
#define KVA_ON_DEVICE
#endif

/* Tokens in a KV block and in a page: the quantisation group, the prefix-cache unit and the unit
 * that moves. */
#define KVA_PAGE_TOKENS 64u

/* A 16-bit KV block: one layer of one page.
 *
 *      kv_head 0                                 kv_head 1 ...
 *      token 0          token 1       token 63
 *     [K d | V d]      [K d | V d]...[K d | V d]  [K d | V d] ...      16 bits an element
 *
 * element(head, token, i) = ((head * KVA_PAGE_TOKENS + token) * 2 + (0: K, 1: V)) * head_dim + i
 * The slot of a token in its block is its position % KVA_PAGE_TOKENS. */
static inline size_t kva_kv_block_bytes(uint32_t kv_heads, uint32_t head_dim)
{
    return (size_t)kv_heads * KVA_PAGE_TOKENS * 2 * head_dim * 2;
}

/* KIVI quantisation of one page: x = zero + scale * code, keys per channel over `group` tokens,
 * values per token over `group` channels, after RoPE. */
enum kva_lowbit_levels {
    /* The papers' levels. 2 and 4 bits: zero = min, scale = (max - min) / (2^bits - 1). 1 bit
     * (SpeCache eq. 3 and 4): levels (3 min + max) / 4 and (min + 3 max) / 4, code = x >=
     * (min + max) / 2. */
    KVA_LEVELS_PAPER,
    /* The same codes, then zero and scale by least squares: at 1 bit the means of the two halves of
     * the range. The same bytes, less error. */
    KVA_LEVELS_FIT,
    /* KIVI's own at every number of bits. 1 bit: min and max themselves (KIVI eq. 2; SpeCache's
     * table 5 holds its own against them), codes as PAPER's; else PAPER. */
    KVA_LEVELS_EXTREMES,
};

enum kva_lowbit_keys {
    KVA_KEYS_PER_CHANNEL, /* KIVI's */
    /* Keys as values are: one scale and zero per token over all of head_dim, so that a token can be
     * coded alone. bits 2, 3, 4 or 8, group = head_dim, levels PAPER's or those of its coding; a
     * token whose scale is below f16 has zero = (min + max) / 2. */
    KVA_KEYS_PER_TOKEN,
};

/* What is coded of a key or value with KVA_KEYS_PER_TOKEN. */
enum kva_lowbit_coding {
    KVA_CODING_PLAIN, /* its numbers (Q-Hitter, KIVI's values) */
    /* Its numbers turned by kva_turn's rotation, which makes of a few large channels, as keys have
     * them, many of middling size. Scores do not change if queries are turned too, and sums of
     * values are turned back. scale = min((max - min) / (2^bits - 1), step * sigma), where step is
     * that of the best uniform levels of a normal distribution (Max 1960); levels lie around the
     * mean, or from the minimum on. */
    KVA_CODING_TURNED,
};

struct kva_lowbit_format {
    uint32_t bits;       /* 1, 2 or 4 */
    uint32_t group;      /* 32 or 64 */
    uint32_t value_bits; /* of values: 2, with keys of 1; 0: as many as of keys */
    enum kva_lowbit_levels key_levels;
    enum kva_lowbit_levels value_levels;
    enum kva_lowbit_keys keys;
    enum kva_lowbit_coding coding; /* PLAIN with KVA_KEYS_PER_CHANNEL */
};

/* The format with KVA_KEYS_PER_TOKEN. */
static inline struct kva_lowbit_format kva_lowbit_per_token(uint32_t bits, uint32_t head_dim,
                                                            enum kva_lowbit_coding coding)
{
    struct kva_lowbit_format format = {
        bits, head_dim, 0, KVA_LEVELS_PAPER, KVA_LEVELS_PAPER, KVA_KEYS_PER_TOKEN, coding};
    return format;
}

static inline uint32_t kva_lowbit_value_bits(struct kva_lowbit_format format)
{
    return format.value_bits > 0 ? format.value_bits : format.bits;
}

/* A low-bit KV block: one layer of one page, KVA_PAGE_TOKENS tokens. Per KV head, one behind the
 * other, d = head_dim (a multiple of 4), g = group:
 *
 *   K scale  f16 [64 / g][d]          K zero  f16 [64 / g][d]
 *   V scale  f16 [ceil(d / g)][64]    V zero  f16 [ceil(d / g)][64]
 *   K codes  [bits][d / 4][64]        nibbles: of plane b, channels 4 i .. 4 i + 3 of a token
 *   V codes  [value bits][64 / 4][d]  nibbles: of plane b, tokens 4 i .. 4 i + 3 of a channel
 *
 * With KVA_KEYS_PER_TOKEN: K scale and K zero f16 [64] each.
 *
 * Bit j of a nibble belongs to channel (token) 4 i + j; even nibbles are the low halves of their
 * bytes. Plane b holds bit b of the code. Both matrices thus lie as four-wide integer dot products
 * want them: 64 consecutive bits expand to 16 lanes of 4 bytes. */
struct kva_lowbit_layout {
    uint32_t k_scale, k_zero; /* offsets in bytes from the head's part of the block */
    uint32_t v_scale, v_zero;
    uint32_t k_codes, v_codes;
    uint32_t plane_bytes; /* of one bit of all codes, keys or values */
    uint32_t head_bytes;
    uint32_t k_groups; /* of tokens */
    uint32_t v_groups; /* of channels; the last may be short */
};

static inline struct kva_lowbit_layout kva_lowbit_layout_of(struct kva_lowbit_format format,
                                                            uint32_t head_dim)
{
    struct kva_lowbit_layout layout;
    layout.k_groups = format.keys == KVA_KEYS_PER_TOKEN ? 1 : KVA_PAGE_TOKENS / format.group;
    layout.v_groups = (head_dim + format.group - 1) / format.group;
    uint32_t k_bytes = layout.k_groups * head_dim * 2;
    if (format.keys == KVA_KEYS_PER_TOKEN)
        k_bytes = KVA_PAGE_TOKENS * 2;
    uint32_t v_bytes = layout.v_groups * KVA_PAGE_TOKENS * 2;
    layout.plane_bytes = KVA_PAGE_TOKENS * head_dim / 8;
    layout.k_scale = 0;
    layout.k_zero = k_bytes;
    layout.v_scale = 2 * k_bytes;
    layout.v_zero = 2 * k_bytes + v_bytes;
    layout.k_codes = 2 * (k_bytes + v_bytes);
    layout.v_codes = layout.k_codes + format.bits * layout.plane_bytes;
    layout.head_bytes = layout.v_codes + kva_lowbit_value_bits(format) * layout.plane_bytes;
    return layout;
}

/* Bits of a plane before that of a channel of a token, by the drawing above. */
KVA_ON_DEVICE static inline uint32_t kva_lowbit_k_bit(uint32_t token, uint32_t channel)
{
    return (channel / 4 * KVA_PAGE_TOKENS + token) * 4 + channel % 4;
}

KVA_ON_DEVICE static inline uint32_t kva_lowbit_v_bit(uint32_t token, uint32_t channel,
                                                      uint32_t head_dim)
{
    return (token / 4 * head_dim + channel) * 4 + token % 4;
}

static inline size_t kva_lowbit_head_bytes(struct kva_lowbit_format format, uint32_t head_dim)
{
    return kva_lowbit_layout_of(format, head_dim).head_bytes;
}

static inline size_t kva_lowbit_block_bytes(struct kva_lowbit_format format, uint32_t kv_heads,
                                            uint32_t head_dim)
{
    return kva_lowbit_head_bytes(format, head_dim) * kv_heads;
}

/* A sketch of a block: partial keys, `columns` numbers of each token's key in place of head_dim, as
 * ops_sketch.h makes them. Per KV head, one behind the other:
 *
 *   16 bits   numbers [columns][64], of the KV's format
 *    8 bits   codes   [columns][64], signed, -127 to 127; scales f16 [64], one per token
 *
 * A token's numbers lie apart, so that tokens are the lanes of whoever reads them. */
struct kva_sketch_format {
    uint32_t columns; /* 1 to head_dim */
    uint32_t bits;    /* 8 or 16 */
};

static inline size_t kva_sketch_head_bytes(struct kva_sketch_format format)
{
    size_t numbers = (size_t)format.columns * KVA_PAGE_TOKENS;
    return format.bits == 16 ? numbers * 2 : numbers + (size_t)KVA_PAGE_TOKENS * 2;
}

static inline size_t kva_sketch_block_bytes(struct kva_sketch_format format, uint32_t kv_heads)
{
    return kva_sketch_head_bytes(format) * kv_heads;
}

#endif
