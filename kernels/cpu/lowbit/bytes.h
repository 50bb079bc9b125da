/* bytes.h - attention over low-bit pages by products of bytes: the memory, the codes' bytes
 * and the tiles of products of lowbit_bytes_body.h, which says what is computed.
 *
 * A level includes the body, says in int_tiles, tiles_begin and tiles_end how products are made,
 * and has LOWBIT_BYTES_TILES behind them. */
#ifndef KVA_KERNELS_CPU_LOWBIT_BYTES_H
#define KVA_KERNELS_CPU_LOWBIT_BYTES_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/avx512.h"

#include <string.h>

/* Queries that share the expanded codes of a page. */
#define QUERIES 16u

/* Channel groups at most. */
#define V_GROUPS_MAX (KVA_CPU_HEAD_DIM_MAX / 32)

/* Factors that are all less are taken for 0: their step's inverse might not be a number. */
#define FACTOR_MIN 0x1p-100f

/* Digits of the rounded factors, lowest first: x = step * (d[0] + LIMB d[1]). */
#define LIMBS_MAX 2
#define LIMB      128

/* Token groups of a split at most. */
#define K_GROUPS_MAX (KVA_ATTEND_SPLIT_TOKENS / 32)

/* Vectors are read and written in fours: numbers behind the last channel are 0. */
#define DIM_MAX KVA_CPU_HEAD_DIM_MAX
_Static_assert(DIM_MAX % (4 * VL) == 0, "channels come in fours of vectors");

/* Rows of channels are `width` apart: whole fours of vectors, with 0 behind the last channel. */
struct work {
    _Alignas(64) uint8_t k[DIM_MAX * KVA_PAGE_TOKENS];         /* [dim / 4][64 tokens][4] */
    _Alignas(64) uint8_t v[KVA_ATTEND_SPLIT_TOKENS * DIM_MAX]; /* [64][dim][4] */
    _Alignas(64) int8_t q[QUERIES * LIMBS_MAX * DIM_MAX];      /* [queries][limbs][width] */
    _Alignas(64) int8_t p[QUERIES * LIMBS_MAX][KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) int32_t sums[QUERIES * LIMBS_MAX][KVA_PAGE_TOKENS];
    _Alignas(64) float q_steps[QUERIES * DIM_MAX];      /* [queries][width] in steps */
    _Alignas(64) float k_scale[K_GROUPS_MAX * DIM_MAX]; /* [token groups][width] */
    _Alignas(64) float k_zero[K_GROUPS_MAX * DIM_MAX];
    _Alignas(64) float k_top[DIM_MAX]; /* largest scale of each channel */
    _Alignas(64) float v_scale[V_GROUPS_MAX][KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) float v_zero[V_GROUPS_MAX][KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) float tops[QUERIES][VL];                /* largest scores so far, lane by lane */
    _Alignas(64) float t_scale[KVA_ATTEND_SPLIT_TOKENS]; /* of keys per token */
    _Alignas(64) float t_zero[KVA_ATTEND_SPLIT_TOKENS];
    float k_steps[QUERIES];
    float q_zero[K_GROUPS_MAX][QUERIES]; /* queries times the zeros of a token group */
    float v_steps[QUERIES];
    float v_inverses[QUERIES];
    float p_zero[QUERIES]; /* weights times the zeros of a channel group */
    uint32_t dim;
    uint32_t width;
};

_Static_assert(sizeof(struct work) <= KVA_CPU_LOWBIT_SCRATCH_BYTES,
               "the kernel outgrew its scratch");

/* --- codes to bytes --------------------------------------------------------------------------- */

/* The codes of 64 numbers; plane b's bits are at from + b * plane_bytes. */
INLINE __m512i expand_64(const uint32_t bits, const unsigned char *from, size_t plane_bytes,
                         size_t bytes)
{
    __m512i codes = _mm512_setzero_si512();
    for (uint32_t b = 0; b < bits; b++) {
        uint64_t plane = 0;
        if (bytes == 8)
            memcpy(&plane, from + b * plane_bytes, 8);
        else
            memcpy(&plane, from + b * plane_bytes, bytes);
        codes = _mm512_mask_add_epi8(codes, _cvtu64_mask64(plane), codes,
                                     _mm512_set1_epi8((char)(1 << b)));
    }
    return codes;
}

#ifdef __GFNI__
/* 16-bit words in the order in which unpacking them byte by byte, lane by lane, three times leaves 64
 * consecutive codes in each vector: word v of lane l is word 4 v + l. */
INLINE __m512i plane_words(const unsigned char *from)
{
    uint16_t order[32];
    for (uint16_t i = 0; i < 32; i++)
        order[i] = (uint16_t)(i % 8 * 4 + i / 8);
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), _mm512_loadu_si512(from));
}

/* Bytes of two planes, or of one and zeros, side by side. */
struct byte_pairs {
    __m512i low, high;
};

INLINE struct byte_pairs pair_planes(const uint32_t bits, uint32_t plane, const unsigned char *from,
                                     size_t plane_bytes)
{
    const __m512i none = _mm512_setzero_si512();
    const __m512i a = plane < bits ? plane_words(from + plane * plane_bytes) : none;
    const __m512i b = plane + 1 < bits ? plane_words(from + (plane + 1) * plane_bytes) : none;
    return (struct byte_pairs){_mm512_unpacklo_epi8(b, a), _mm512_unpackhi_epi8(b, a)};
}

/* The codes of 64 numbers of which each qword has eight: byte 7 - b those of plane b. A product with
 * the columns of the unit matrix transposes them: byte j then has bit j of every plane. */
INLINE void store_codes(__m512i planes, uint8_t *to)
{
    const __m512i columns = _mm512_set1_epi64((long long)0x8040201008040201ull);
    _mm512_store_si512(to, _mm512_gf2p8affine_epi64_epi8(columns, planes, 0));
}

/* 512 numbers as bytes, of 64 bytes of each plane. */
INLINE void expand_512(const uint32_t bits, const unsigned char *from, size_t plane_bytes,
                       uint8_t *to)
{
    const struct byte_pairs p01 = pair_planes(bits, 0, from, plane_bytes);
    const struct byte_pairs p23 = pair_planes(bits, 2, from, plane_bytes);
    const struct byte_pairs p45 = pair_planes(bits, 4, from, plane_bytes);
    const struct byte_pairs p67 = pair_planes(bits, 6, from, plane_bytes);
    const __m512i quads[4] = {
        _mm512_unpacklo_epi16(p23.low, p01.low), _mm512_unpackhi_epi16(p23.low, p01.low),
        _mm512_unpacklo_epi16(p23.high, p01.high), _mm512_unpackhi_epi16(p23.high, p01.high)};
    const __m512i rest[4] = {
        _mm512_unpacklo_epi16(p67.low, p45.low), _mm512_unpackhi_epi16(p67.low, p45.low),
        _mm512_unpacklo_epi16(p67.high, p45.high), _mm512_unpackhi_epi16(p67.high, p45.high)};
    for (uint32_t i = 0; i < 4; i++) {
        store_codes(_mm512_unpacklo_epi32(rest[i], quads[i]), to + (size_t)i * 128);
        store_codes(_mm512_unpackhi_epi32(rest[i], quads[i]), to + (size_t)i * 128 + 64);
    }
}
#endif

/* `count` numbers as bytes; the planes' bits go on behind them. */
INLINE void expand(const uint32_t bits, const unsigned char *from, size_t plane_bytes, size_t count,
                   uint8_t *to)
{
    size_t i = 0;
#ifdef __GFNI__
    for (; bits > 1 && i + 512 <= count; i += 512)
        expand_512(bits, from + i / 8, plane_bytes, to + i);
#endif
    for (; i + 64 <= count; i += 64)
        _mm512_store_si512(to + i, expand_64(bits, from + i / 8, plane_bytes, 8));
    if (i < count)
        _mm512_store_si512(to + i, expand_64(bits, from + i / 8, plane_bytes, (count - i) / 8));
}

INLINE void expand_keys(const uint32_t bits, const unsigned char *codes, size_t plane_bytes,
                        uint32_t dim, uint8_t *to)
{
    if (bits == 1)
        expand(1, codes, plane_bytes, (size_t)dim * KVA_PAGE_TOKENS, to);
    else if (bits == 2)
        expand(2, codes, plane_bytes, (size_t)dim * KVA_PAGE_TOKENS, to);
    else if (bits == 3)
        expand(3, codes, plane_bytes, (size_t)dim * KVA_PAGE_TOKENS, to);
    else if (bits == 8)
        expand(8, codes, plane_bytes, (size_t)dim * KVA_PAGE_TOKENS, to);
    else
        expand(4, codes, plane_bytes, (size_t)dim * KVA_PAGE_TOKENS, to);
}

/* Rows of four tokens, `stride` dwords apart. */
INLINE void expand_values(const uint32_t bits, const unsigned char *codes, size_t plane_bytes,
                          uint32_t dim, uint32_t stride, uint8_t *to)
{
    if (dim == stride) {
        expand_keys(bits, codes, plane_bytes, dim, to);
        return;
    }
    for (uint32_t row = 0; row < KVA_PAGE_TOKENS / 4; row++)
        expand(bits, codes + (size_t)row * dim / 2, plane_bytes, (size_t)dim * 4,
               to + (size_t)row * stride * 4);
}

/* --- tiles of products ----------------------------------------------------------------------- */

/* A tile's operands and what becomes of its sums. The limbs of a query are rows of their own. */
struct tiles {
    uint32_t queries;
    uint32_t count; /* dwords of a query's factors */
    const uint8_t *codes;
    size_t codes_stride;
    const int8_t *factors;
    size_t factors_stride;
    const float *steps; /* [queries] */
    const float *zeros; /* [queries] */
    uint64_t keep;      /* lanes that count, of all vectors */
    float *out;         /* sums * step + zero; of lanes that do not count: scores -inf, values as
                           they were */
    size_t out_stride;
    float (*tops)[VL];                /* scores: raised to `out`; else NULL */
    int32_t (*sums)[KVA_PAGE_TOKENS]; /* two limbs: their sums */
};

/* One vector of a query's sums, the `v`th; `top`: of scores. */
INLINE void finish(const struct tiles *t, const bool scores, uint32_t j, uint32_t v, __m512i sums,
                   vf *top)
{
    float *to = t->out + j * t->out_stride + v * VL;
    __mmask16 keep = (__mmask16)(t->keep >> v * VL);
    vf x = v_fma(_mm512_cvtepi32_ps(sums), v_set(t->steps[j]), v_set(t->zeros[j]));
    if (scores) {
        x = _mm512_mask_mov_ps(v_set(-INFINITY), keep, x);
        *top = v_max(x, *top);
        v_store(to, x);
    } else {
        _mm512_mask_storeu_ps(to, keep, x);
    }
}

/* The sums of every query lie in t->sums, its limbs one behind the other. */
INLINE void finish_all(const int vectors, const bool scores, const uint32_t limbs,
                       const struct tiles *t)
{
    for (uint32_t j = 0; j < t->queries; j++) {
        vf top = scores ? v_load(t->tops[j]) : v_zero();
        for (uint32_t v = 0; v < (uint32_t)vectors; v++) {
            __m512i sums = _mm512_load_si512(t->sums[j * limbs] + v * VL);
            if (limbs == 2) {
                __m512i high = _mm512_load_si512(t->sums[2 * j + 1] + v * VL);
                sums = _mm512_add_epi32(sums, _mm512_slli_epi32(high, 7));
            }
            finish(t, scores, j, v, sums, &top);
        }
        if (scores)
            v_store(t->tops[j], top);
    }
}

/* --- what a level defines --------------------------------------------------------------------- */

/* sums[j][n] = sum over i < count of codes[i][n] . factors[j][i], dwords; 1, 2 or 4 vectors; and
 * what `finish` makes of them. `vectors`, `scores` and `limbs` are constants. */
INLINE void int_tiles(const int vectors, const bool scores, const uint32_t limbs,
                      const struct tiles *t);

/* Before the tiles of a number of rows of factors, and after the last tile of all. */
static void tiles_begin(uint32_t rows);
static void tiles_end(void);

/* What a function holds beside a tile takes its registers: tiles are functions of their own. */
#define TILES(name, vectors, scores, limbs)                                                        \
    __attribute__((noinline)) static void name##_##limbs(const struct tiles *t)                    \
    {                                                                                              \
        int_tiles(vectors, scores, limbs, t);                                                      \
    }

#define LOWBIT_BYTES_TILES                                                                         \
    TILES(score_4, 4, true, 1)                                                                     \
    TILES(score_4, 4, true, 2)                                                                     \
    TILES(score_2, 2, true, 1)                                                                     \
    TILES(score_2, 2, true, 2)                                                                     \
    TILES(value_4, 4, false, 1)                                                                    \
    TILES(value_4, 4, false, 2)                                                                    \
    TILES(value_2, 2, false, 1)                                                                    \
    TILES(value_2, 2, false, 2)                                                                    \
    TILES(value_1, 1, false, 1)                                                                    \
    TILES(value_1, 1, false, 2)

typedef void tiles_fn(const struct tiles *t);

static tiles_fn score_4_1, score_4_2, score_2_1, score_2_2;
static tiles_fn value_4_1, value_4_2, value_2_1, value_2_2, value_1_1, value_1_2;

#endif
