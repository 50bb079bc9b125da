/* Attention over one split of low-bit pages, level avx512vnni.
 *
 * Codes are small integers, so that inner products run over integers: four products of bytes and
 * their sum are one instruction.
 *
 *   scores   sum_c q[c] (zero[c] + scale[c] code[c]): the first part is one number per query, page
 *            and token group. q[c] scale[c] is rounded to int8 by a step of its own for each of
 *            these; lanes are tokens.
 *   values   sum_t w[t] (zero[t] + scale[t] code[t]) per channel group: the first part is one
 *            number per query. w[t] scale[t] is rounded to 7 bits by a step per query and channel
 *            group; lanes are channels. It is rounded up with a probability that is its fraction,
 *            the dice being a fixed sequence of slots: the many small weights of a long context
 *            would otherwise all be rounded to nothing.
 *
 * With 4 bits the codes are so exact that these roundings would show: there both are rounded to
 * two digits of 7 bits. A page is expanded to bytes once for QUERIES queries. */
#include "kernels/cpu/kernels_avx512vnni.h"
#include "kernels/cpu/lowbit.h"
#include "kernels/cpu/simd_avx512.h"

#include <string.h>

/* Queries that share the expanded codes of a page. */
#define QUERIES 16u

/* Queries of a register tile of 4 vectors: 24 sums, the codes and the broadcast factor. */
#define TILE_QUERIES 6

/* Channel groups at most. */
#define GROUPS_MAX (KVA_CPU_HEAD_DIM_MAX / 32)

/* Factors that are all less are taken for 0: their step's inverse might not be a number. */
#define FACTOR_MIN 0x1p-100f

/* Digits of the rounded factors, lowest first: x = step * (d[0] + DIGIT d[1]). */
#define DIGITS_MAX 2
#define DIGIT      128

struct work {
    _Alignas(64) uint8_t k[KVA_CPU_HEAD_DIM_MAX * KVA_PAGE_TOKENS]; /* [dim / 4][64 tokens][4] */
    _Alignas(64) uint8_t v[KVA_ATTEND_SPLIT_TOKENS * KVA_CPU_HEAD_DIM_MAX]; /* [64][dim][4] */
    _Alignas(64) int8_t q[QUERIES][DIGITS_MAX][KVA_CPU_HEAD_DIM_MAX];
    /* Dwords of four tokens, in the order of pack_tokens. */
    _Alignas(64) int8_t p[QUERIES][DIGITS_MAX][KVA_ATTEND_SPLIT_TOKENS];
    _Alignas(64) int32_t sums[QUERIES][DIGITS_MAX][KVA_PAGE_TOKENS];
    /* Levels of a token group, 0 behind the last channel. */
    _Alignas(64) float k_scale[KVA_CPU_HEAD_DIM_MAX];
    _Alignas(64) float k_zero[KVA_CPU_HEAD_DIM_MAX];
    float step[QUERIES];
    float zero[QUERIES];
};

_Static_assert(sizeof(struct work) <= KVA_CPU_LOWBIT_SCRATCH_BYTES,
               "the kernel outgrew its scratch");

/* --- codes to bytes --------------------------------------------------------------------------- */

INLINE __m512i expand_64(const uint32_t bits, const uint64_t *plane)
{
    __m512i codes = _mm512_maskz_mov_epi8(_cvtu64_mask64(plane[0]), _mm512_set1_epi8(1));
    for (uint32_t b = 1; b < bits; b++)
        codes = _mm512_mask_add_epi8(codes, _cvtu64_mask64(plane[b]), codes,
                                     _mm512_set1_epi8((char)(1 << b)));
    return codes;
}

/* `count` bits of each plane to bytes; the planes' bits go on behind them. */
INLINE void expand_row(const uint32_t bits, const unsigned char *from, size_t plane_bytes,
                       size_t count, uint8_t *to)
{
    uint64_t plane[4];
    for (size_t i = 0; i < count; i += 64) {
        size_t bytes = kva_min_size(8, (count - i) / 8);
        for (uint32_t b = 0; b < bits; b++) {
            const unsigned char *at = from + b * plane_bytes + i / 8;
            plane[b] = 0;
            if (bytes == 8)
                memcpy(&plane[b], at, 8);
            else
                memcpy(&plane[b], at, bytes);
        }
        _mm512_store_si512(to + i, expand_64(bits, plane));
    }
}

/* --- factors to integers ---------------------------------------------------------------------- */

/* Largest whole number that `digits` digits hold. */
INLINE float whole_max(const uint32_t digits)
{
    return digits == 1 ? 127.0f : 127.0f * DIGIT + 63.0f;
}

/* Sixteen whole numbers as digits. */
INLINE void split_digits(const uint32_t digits, __m512i whole, __m512i digit[DIGITS_MAX])
{
    digit[0] = whole;
    if (digits == 2) {
        digit[1] = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(DIGIT / 2)), 7);
        digit[0] = _mm512_sub_epi32(whole, _mm512_slli_epi32(digit[1], 7));
    }
}

/* The query's products with the scales of one token group as digits, their step, and the product
 * with the zeros. */
INLINE void round_query(const uint32_t digits, const float *q, uint32_t dim, struct work *work,
                        uint32_t j)
{
    vf largest = v_zero(), zeros = v_zero(), last = v_zero();
    uint32_t whole = dim / VL * VL;
    for (uint32_t i = 0; i < whole; i += VL) {
        vf x = v_load(q + i);
        largest = v_max(largest, v_abs(v_mul(x, v_load(work->k_scale + i))));
        zeros = v_fma(x, v_load(work->k_zero + i), zeros);
    }
    if (whole < dim) {
        last = v_load_n(q + whole, dim - whole);
        largest = v_max(largest, v_abs(v_mul(last, v_load(work->k_scale + whole))));
        zeros = v_fma(last, v_load(work->k_zero + whole), zeros);
    }
    float top = v_largest(largest), step = top > FACTOR_MIN ? top / whole_max(digits) : 0.0f;
    vf inverse = v_set(top > FACTOR_MIN ? whole_max(digits) / top : 0.0f);
    for (uint32_t i = 0; i < dim; i += VL) {
        vf x = v_mul(i < whole ? v_load(q + i) : last, v_load(work->k_scale + i));
        __m512i digit[DIGITS_MAX];
        split_digits(digits, _mm512_cvtps_epi32(v_mul(x, inverse)), digit);
        for (uint32_t d = 0; d < digits; d++)
            _mm_storeu_si128((__m128i *)(void *)(work->q[j][d] + i),
                             _mm512_cvtepi32_epi8(digit[d]));
    }
    work->step[j] = step;
    work->zero[j] = v_sum(zeros);
}

/* The levels of a token group, from f16. */
INLINE void widen_levels(const uint16_t *scale, const uint16_t *zero, uint32_t dim,
                         struct work *work)
{
    for (uint32_t i = 0; i < dim; i += VL) {
        uint32_t n = kva_min_u32(VL, dim - i);
        v_store(work->k_scale + i, v_load_16_n(scale + i, KVA_F16, n));
        v_store(work->k_zero + i, v_load_16_n(zero + i, KVA_F16, n));
    }
}

/* --- integer tiles ---------------------------------------------------------------------------- */

/* Dwords: sums that are kept as __m512i are moved about by gcc 12, as that is a type of qwords. */
typedef int32_t vi __attribute__((vector_size(64)));

INLINE vi dot(vi sums, vi x, vi y)
{
    return (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)x, (__m512i)y);
}

INLINE vi load_codes(const uint8_t *from)
{
    return (vi)_mm512_load_si512(from);
}

/* The vectors of a tile that belong to one query. Members with names, and no array: compilers keep
 * an array of this size in memory. */
struct strip {
    vi a, b, c, d;
};

INLINE void strip_add(const int vectors, struct strip *sums, const struct strip *x,
                      const int8_t *factor)
{
    int32_t four;
    memcpy(&four, factor, sizeof four);
    vi y = (vi)_mm512_set1_epi32(four);
    sums->a = dot(sums->a, x->a, y);
    if (vectors > 1)
        sums->b = dot(sums->b, x->b, y);
    if (vectors > 2) {
        sums->c = dot(sums->c, x->c, y);
        sums->d = dot(sums->d, x->d, y);
    }
}

INLINE void strip_store(const int vectors, const struct strip *sums, int32_t *to)
{
    _mm512_storeu_si512(to, (__m512i)sums->a);
    if (vectors > 1)
        _mm512_storeu_si512(to + VL, (__m512i)sums->b);
    if (vectors > 2) {
        _mm512_storeu_si512(to + 2 * VL, (__m512i)sums->c);
        _mm512_storeu_si512(to + 3 * VL, (__m512i)sums->d);
    }
}

/* sums[j][n] = sum over i < count of codes[i][n] . factors[j][i], dwords; 1, 2 or 4 vectors. */
INLINE void int_tile(const int queries, const int vectors, const uint8_t *codes,
                     size_t codes_stride, const int8_t *factors, size_t factors_stride,
                     uint32_t count, const bool shuffled, int32_t *sums, size_t sums_stride)
{
    struct strip s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, x = {0};
    for (uint32_t i = 0; i < count; i++, codes += codes_stride) {
        /* pack_tokens puts dword 4 k + l of a page into place 4 l + k. */
        uint32_t at = shuffled ? (i & ~15u) + (i % 4) * 4 + i / 4 % 4 : i;
        const int8_t *factor = factors + (size_t)at * 4;
        x.a = load_codes(codes);
        if (vectors > 1)
            x.b = load_codes(codes + 64);
        if (vectors > 2) {
            x.c = load_codes(codes + 128);
            x.d = load_codes(codes + 192);
        }
        strip_add(vectors, &s0, &x, factor);
        if (queries > 1)
            strip_add(vectors, &s1, &x, factor + factors_stride);
        if (queries > 2)
            strip_add(vectors, &s2, &x, factor + 2 * factors_stride);
        if (queries > 3)
            strip_add(vectors, &s3, &x, factor + 3 * factors_stride);
        if (queries > 4)
            strip_add(vectors, &s4, &x, factor + 4 * factors_stride);
        if (queries > 5)
            strip_add(vectors, &s5, &x, factor + 5 * factors_stride);
    }
    const struct strip all[TILE_QUERIES] = {s0, s1, s2, s3, s4, s5};
    for (int j = 0; j < queries; j++)
        strip_store(vectors, &all[j], sums + (size_t)j * sums_stride);
}

INLINE void int_tiles_of(const int vectors, uint32_t queries, const uint8_t *codes,
                         size_t codes_stride, const int8_t *factors, size_t factors_stride,
                         uint32_t count, const bool shuffled, int32_t *sums, size_t sums_stride)
{
#define TILE(q)                                                                                    \
    int_tile(q, vectors, codes, codes_stride, factors, factors_stride, count, shuffled, sums,      \
             sums_stride)
    switch (queries) {
    case 1:
        TILE(1);
        break;
    case 2:
        TILE(2);
        break;
    case 3:
        TILE(3);
        break;
    case 4:
        TILE(4);
        break;
    case 5:
        TILE(5);
        break;
    default:
        TILE(6);
        break;
    }
#undef TILE
}

/* Any number of queries, in tiles as even as can be. */
INLINE void int_tiles(const int vectors, uint32_t queries, const uint8_t *codes,
                      size_t codes_stride, const int8_t *factors, size_t factors_stride,
                      uint32_t count, const bool shuffled, int32_t *sums, size_t sums_stride)
{
    uint32_t tile = (uint32_t)kva_div_up(queries, kva_div_up(queries, TILE_QUERIES));
    for (uint32_t j = 0; j < queries; j += tile)
        int_tiles_of(vectors, kva_min_u32(tile, queries - j), codes, codes_stride,
                     factors + j * factors_stride, factors_stride, count, shuffled,
                     sums + j * sums_stride, sums_stride);
}

/* What a function holds beside a tile takes its registers: tiles are functions of their own. */
struct tiles {
    uint32_t queries;
    uint32_t count;
    const uint8_t *codes;
    size_t codes_stride;
    const int8_t *factors;
    size_t factors_stride;
    int32_t *sums;
    size_t sums_stride;
};

#define TILES(name, vectors, shuffled)                                                             \
    __attribute__((noinline)) static void name(const struct tiles *t)                              \
    {                                                                                              \
        int_tiles(vectors, t->queries, t->codes, t->codes_stride, t->factors, t->factors_stride,   \
                  t->count, shuffled, t->sums, t->sums_stride);                                    \
    }

TILES(tiles_4, 4, false)
TILES(tiles_2, 2, false)
TILES(shuffled_tiles_4, 4, true)
TILES(shuffled_tiles_2, 2, true)
TILES(shuffled_tiles_1, 1, true)
#undef TILES

/* --- scores ----------------------------------------------------------------------------------- */

/* Scores of queries [first, first + count) with tokens [token, token + group) of page `page`. */
INLINE void score_group(const uint32_t bits, const struct kva_cpu_lowbit_split *split,
                        const struct kva_lowbit_layout *layout, struct work *work, uint32_t page,
                        uint32_t token, uint32_t first, uint32_t count)
{
    const uint32_t digits = bits == 4 ? 2 : 1;
    const unsigned char *head = split->pages[page];
    uint32_t dim = split->head_dim, group = split->format.group;
    size_t level = (size_t)(token / group) * dim * 2;
    widen_levels((const uint16_t *)(const void *)(head + layout->k_scale + level),
                 (const uint16_t *)(const void *)(head + layout->k_zero + level), dim, work);
    for (uint32_t j = 0; j < count; j++)
        round_query(digits, split->q + (size_t)(first + j) * dim, dim, work, j);
    /* The digits of a query are taken for queries. */
    struct tiles tiles = {.queries = digits * count,
                          .count = dim / 4,
                          .codes = work->k + (size_t)token * 4,
                          .codes_stride = KVA_PAGE_TOKENS * 4,
                          .factors = work->q[0][0],
                          .factors_stride = sizeof work->q[0] / (digits == 1 ? 1 : DIGITS_MAX),
                          .sums = work->sums[0][0],
                          .sums_stride = KVA_PAGE_TOKENS * (digits == 1 ? DIGITS_MAX : 1)};
    if (group == 64)
        tiles_4(&tiles);
    else
        tiles_2(&tiles);
    for (uint32_t j = 0; j < count; j++) {
        float *scores = split->weights + (size_t)(first + j) * KVA_ATTEND_SPLIT_TOKENS +
                        page * KVA_PAGE_TOKENS + token;
        for (uint32_t t = 0; t < group; t += VL) {
            __m512i sum = _mm512_load_si512(work->sums[j][0] + t);
            if (digits == 2)
                sum = _mm512_add_epi32(
                    sum, _mm512_slli_epi32(_mm512_load_si512(work->sums[j][1] + t), 7));
            v_store(scores + t,
                    v_fma(_mm512_cvtepi32_ps(sum), v_set(work->step[j]), v_set(work->zero[j])));
        }
    }
}

/* --- weights ---------------------------------------------------------------------------------- */

/* 2^x for x <= 0, relative error 7e-6; -inf gives 0. */
INLINE vf v_exp2(vf x)
{
    x = v_max(v_set(-200.0f), x); /* keeps what is not a number */
    vf n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf r = v_sub(x, n);
    vf p = v_fma(v_set(0.009656710288f), r, v_set(0.05583828295f));
    p = v_fma(p, r, v_set(0.2402253010f));
    p = v_fma(p, r, v_set(0.6931367339f));
    p = v_fma(p, r, v_set(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* Slots that the query sees of 16 from `slot` on. */
INLINE __mmask16 seen_16(const struct kva_cpu_lowbit_split *split, uint32_t query, uint32_t slot)
{
    uint32_t first = split->slot_first[query];
    uint64_t present = split->present[slot / KVA_PAGE_TOKENS] >> slot % KVA_PAGE_TOKENS;
    uint32_t hidden = first > slot ? kva_min_u32(first - slot, VL) : 0;
    return (__mmask16)((uint32_t)present & 0xFFFFu & (0xFFFFu << hidden));
}

/* Scores that are not seen become -inf. */
static void hide(const struct kva_cpu_lowbit_split *split, uint32_t query, float *scores,
                 uint32_t slots)
{
    uint64_t all = UINT64_MAX;
    for (uint32_t page = 0; page < split->page_count; page++)
        all &= split->present[page];
    if (all == UINT64_MAX && split->slot_first[query] == 0)
        return;
    for (uint32_t slot = 0; slot < slots; slot += VL) {
        vf x = v_load(scores + slot);
        v_store(scores + slot,
                _mm512_mask_mov_ps(v_set(-INFINITY), seen_16(split, query, slot), x));
    }
}

/* m and e of a query; its scores become weights. */
static void soften(const struct kva_cpu_lowbit_split *split, uint32_t query)
{
    float *scores = split->weights + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
    uint32_t slots = split->page_count * KVA_PAGE_TOKENS;
    hide(split, query, scores, slots);
    vf top[4];
    for (uint32_t i = 0; i < 4; i++)
        top[i] = v_load(scores + i * VL);
    for (uint32_t slot = KVA_PAGE_TOKENS; slot < slots; slot += KVA_PAGE_TOKENS) {
        for (uint32_t i = 0; i < 4; i++)
            top[i] = v_max(top[i], v_load(scores + slot + i * VL));
    }
    float m = v_largest(v_max(v_max(top[0], top[1]), v_max(top[2], top[3])));
    split->m[query] = m;
    split->e[query] = 0.0f;
    if (m == -INFINITY) {
        memset(scores, 0, slots * sizeof *scores);
        return;
    }
    vf offset = v_set(-m * KVA_LOG2E), sum[2] = {v_zero(), v_zero()};
    for (uint32_t slot = 0; slot < slots; slot += 2 * VL) {
        for (uint32_t i = 0; i < 2; i++) {
            vf p = v_exp2(v_fma(v_load(scores + slot + i * VL), v_set(KVA_LOG2E), offset));
            v_store(scores + slot + i * VL, p);
            sum[i] = v_add(sum[i], p);
        }
    }
    split->e[query] = v_sum(v_add(sum[0], sum[1]));
}

/* --- values ----------------------------------------------------------------------------------- */

/* Four vectors of whole numbers, 64 tokens, as bytes: lane l of the result holds the dwords of
 * tokens 4 l, 16 + 4 l, 32 + 4 l, 48 + 4 l and their next three. */
INLINE __m512i pack_tokens(const __m512i x[4])
{
    return _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
}

/* Where a fraction is rounded up: frac(i * golden ratio), so that any run of slots is even. */
static const float dither[KVA_PAGE_TOKENS] = {
#define D(i)  ((float)((uint32_t)((i)*2654435769u) >> 8) * 0x1p-24f)
#define D4(i) D(i), D((i) + 1u), D((i) + 2u), D((i) + 3u)
    D4(0u),  D4(4u),  D4(8u),  D4(12u), D4(16u), D4(20u), D4(24u), D4(28u),
    D4(32u), D4(36u), D4(40u), D4(44u), D4(48u), D4(52u), D4(56u), D4(60u),
#undef D4
#undef D
};

/* Weights of a query times the scales of channel group `group` as digits, their step, and the
 * product with the zeros. */
INLINE void round_weights(const uint32_t digits, const struct kva_cpu_lowbit_split *split,
                          const struct kva_lowbit_layout *layout, uint32_t query, uint32_t group,
                          struct work *work, uint32_t j)
{
    const float *weights = split->weights + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
    vf largest = v_zero(), zeros = v_zero();
    vf x[KVA_ATTEND_SPLIT_TOKENS / VL];
    for (uint32_t page = 0; page < split->page_count; page++) {
        const unsigned char *head = (const unsigned char *)split->pages[page] + group * 128;
        const uint16_t *scale = (const uint16_t *)(const void *)(head + layout->v_scale);
        const uint16_t *zero = (const uint16_t *)(const void *)(head + layout->v_zero);
        for (uint32_t i = 0; i < 4; i++) {
            vf w = v_load(weights + page * KVA_PAGE_TOKENS + i * VL);
            zeros = v_fma(w, v_load_16(zero + i * VL, KVA_F16), zeros);
            x[page * 4 + i] = v_mul(w, v_load_16(scale + i * VL, KVA_F16));
            largest = v_max(largest, x[page * 4 + i]);
        }
    }
    float top = v_largest(largest), step = top > FACTOR_MIN ? top / whole_max(digits) : 0.0f;
    vf inverse = v_set(top > FACTOR_MIN ? whole_max(digits) / top : 0.0f);
    for (uint32_t page = 0; page < split->page_count; page++) {
        __m512i digit[4][DIGITS_MAX], one[4];
        for (uint32_t i = 0; i < 4; i++)
            split_digits(
                digits,
                _mm512_cvttps_epi32(v_fma(x[page * 4 + i], inverse, v_load(dither + i * VL))),
                digit[i]);
        for (uint32_t d = 0; d < digits; d++) {
            for (uint32_t i = 0; i < 4; i++)
                one[i] = digit[i][d];
            _mm512_store_si512(work->p[j][d] + page * KVA_PAGE_TOKENS, pack_tokens(one));
        }
    }
    work->step[j] = step;
    work->zero[j] = v_sum(zeros);
}

/* a of channels [c, c + VL * vectors) within a group. */
INLINE void value_tiles(const int vectors, const uint32_t digits,
                        const struct kva_cpu_lowbit_split *split, struct work *work, uint32_t c,
                        uint32_t first, uint32_t count)
{
    uint32_t dim = split->head_dim, stride = (uint32_t)kva_align_up(dim, VL);
    struct tiles tiles = {.queries = digits * count,
                          .count = split->page_count * KVA_PAGE_TOKENS / 4,
                          .codes = work->v + (size_t)c * 4,
                          .codes_stride = (size_t)stride * 4,
                          .factors = work->p[0][0],
                          .factors_stride = sizeof work->p[0] / (digits == 1 ? 1 : DIGITS_MAX),
                          .sums = work->sums[0][0],
                          .sums_stride = KVA_PAGE_TOKENS * (digits == 1 ? DIGITS_MAX : 1)};
    if (vectors == 4)
        shuffled_tiles_4(&tiles);
    else if (vectors == 2)
        shuffled_tiles_2(&tiles);
    else
        shuffled_tiles_1(&tiles);
    for (uint32_t j = 0; j < count; j++) {
        float *a = split->a + (size_t)(first + j) * dim + c;
        for (uint32_t i = 0; i < (uint32_t)vectors * VL && c + i < dim; i += VL) {
            __m512i sum = _mm512_load_si512(work->sums[j][0] + i);
            if (digits == 2)
                sum = _mm512_add_epi32(
                    sum, _mm512_slli_epi32(_mm512_load_si512(work->sums[j][1] + i), 7));
            v_store_n(a + i,
                      v_fma(_mm512_cvtepi32_ps(sum), v_set(work->step[j]), v_set(work->zero[j])),
                      kva_min_u32(VL, dim - c - i));
        }
    }
}

INLINE void value_group(const uint32_t bits, const struct kva_cpu_lowbit_split *split,
                        const struct kva_lowbit_layout *layout, struct work *work, uint32_t group,
                        uint32_t first, uint32_t count)
{
    const uint32_t digits = bits == 4 ? 2 : 1;
    for (uint32_t j = 0; j < count; j++)
        round_weights(digits, split, layout, first + j, group, work, j);
    uint32_t c = group * split->format.group;
    uint32_t end =
        (uint32_t)kva_align_up(kva_min_u32(split->head_dim, c + split->format.group), VL);
    for (; c + 4 * VL <= end; c += 4 * VL)
        value_tiles(4, digits, split, work, c, first, count);
    for (; c + 2 * VL <= end; c += 2 * VL)
        value_tiles(2, digits, split, work, c, first, count);
    for (; c < end; c += VL)
        value_tiles(1, digits, split, work, c, first, count);
}

/* --- the split -------------------------------------------------------------------------------- */

/* Prefetch part `part` of `parts` of the next split's pages. */
INLINE void prefetch_part(const struct kva_cpu_lowbit_split *split, uint32_t part, uint32_t parts)
{
    size_t bytes = kva_lowbit_head_bytes(split->format, split->head_dim);
    for (uint32_t page = 0; page < split->next_count; page++) {
        const char *at = split->next[page];
        for (size_t i = bytes * part / parts; i < bytes * (part + 1) / parts; i += KVA_CACHE_LINE)
            _mm_prefetch(at + i, _MM_HINT_T1);
    }
}

INLINE void attend(const uint32_t bits, const struct kva_cpu_lowbit_split *split)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout(split->format, split->head_dim);
    struct work *work = split->scratch;
    uint32_t dim = split->head_dim, stride = (uint32_t)kva_align_up(dim, VL);
    for (uint32_t first = 0; first < split->q_count; first += QUERIES) {
        uint32_t count = kva_min_u32(QUERIES, split->q_count - first);
        for (uint32_t page = 0; page < split->page_count; page++) {
            const unsigned char *codes = (const unsigned char *)split->pages[page];
            expand_row(bits, codes + layout.k_codes, layout.plane_bytes, (size_t)dim * 64, work->k);
            if (first == 0)
                prefetch_part(split, page, split->page_count);
            for (uint32_t token = 0; token < KVA_PAGE_TOKENS; token += split->format.group)
                score_group(bits, split, &layout, work, page, token, first, count);
        }
        for (uint32_t j = 0; j < count; j++)
            soften(split, first + j);
        for (uint32_t quad = 0; quad < split->page_count * KVA_PAGE_TOKENS / 4; quad++) {
            const unsigned char *codes = split->pages[quad * 4 / KVA_PAGE_TOKENS];
            size_t row = quad % (KVA_PAGE_TOKENS / 4);
            expand_row(bits, codes + layout.v_codes + row * dim / 2, layout.plane_bytes,
                       (size_t)dim * 4, work->v + (size_t)quad * stride * 4);
        }
        for (uint32_t group = 0; group < layout.v_groups; group++)
            value_group(bits, split, &layout, work, group, first, count);
    }
}

void kva_lowbit_split_avx512vnni(const struct kva_cpu_lowbit_split *split)
{
    switch (split->format.bits) {
    case 1:
        attend(1, split);
        break;
    case 2:
        attend(2, split);
        break;
    default:
        attend(4, split);
        break;
    }
}

void kva_cpu_kernels_avx512vnni(struct kva_cpu_kernels *kernels)
{
    kernels->lowbit_split = kva_lowbit_split_avx512vnni;
}
