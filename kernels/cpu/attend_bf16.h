/* attend_bf16.h - attention over one split in products of bf16 with sums in fp32: what levels
 * avx512bf16 and amx share.
 *
 * A split is folded page by page, so that a page's keys and values are in a cache together: the
 * sums are scaled down when a page has a new maximum. A page's keys are transposed to dwords of two
 * dimensions [head_dim / 2][64 tokens]: a vector holds one pair of dimensions of 16 tokens. Values
 * of two neighbouring tokens, at an even slot and the odd one behind it, are laid side by side.
 * Weights are rounded to bf16 before they are summed, so that what is divided by fits what is
 * divided. */
#ifndef KVA_KERNELS_CPU_ATTEND_BF16_H
#define KVA_KERNELS_CPU_ATTEND_BF16_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_avx512.h"

#include <string.h>

/* Dimensions whose values lie together, as two vectors for each pair of tokens. */
#define CHUNK_DIM  32u
#define PAGE_PAIRS (KVA_PAGE_TOKENS / 2)

/* --- prefetching ------------------------------------------------------------------------------ */

/* About how many cycles things take, for the pace of prefetching alone. */
#define COST_TRANSPOSE 60u /* CHUNK_DIM dimensions of 16 keys */
#define COST_UNPACK    3u  /* CHUNK_DIM dimensions of a pair of values */
#define COST_SOFTEN    10u /* a vector of exponentials */

/* Cache lines of tokens' rows to be prefetched in the order in which they lie, one every `pace`
 * cycles: sooner than memory gives them, prefetches are dropped; in the order of addresses, the
 * hardware's own prefetching helps. */
struct ahead {
    const void *const *tokens;
    uint32_t count; /* tokens left */
    uint32_t at;    /* bytes of the first that are done */
    uint32_t row_bytes;
    uint32_t pace;
    uint32_t waited;
};

/* `cycles` go by. */
INLINE void prefetch(struct ahead *ahead, uint32_t cycles)
{
    if (ahead->count == 0)
        return;
    for (ahead->waited += cycles; ahead->waited >= ahead->pace; ahead->waited -= ahead->pace) {
        if (*ahead->tokens)
            _mm_prefetch((const char *)*ahead->tokens + ahead->at, _MM_HINT_T0);
        ahead->at += KVA_CACHE_LINE;
        if (ahead->at < ahead->row_bytes)
            continue;
        ahead->at = 0;
        ahead->tokens++;
        if (--ahead->count == 0)
            return;
    }
}

/* The page behind the one from `base` on, in the `cycles` that this one will take. */
static struct ahead plan_ahead(const struct kva_cpu_attend_split *split, uint32_t base,
                               uint32_t cycles)
{
    struct ahead ahead = {.row_bytes = split->head_dim * 4, .pace = 1u << 16};
    if (base + KVA_PAGE_TOKENS < KVA_ATTEND_SPLIT_TOKENS)
        ahead.tokens = split->tokens + base + KVA_PAGE_TOKENS;
    else
        ahead.tokens = split->next;
    if (!ahead.tokens)
        return ahead;
    ahead.count = KVA_PAGE_TOKENS;
    ahead.pace = cycles / (KVA_PAGE_TOKENS * (uint32_t)kva_div_up(ahead.row_bytes, KVA_CACHE_LINE));
    ahead.pace = kva_max_u32(1, ahead.pace);
    return ahead;
}

/* --- keys and values as pairs ----------------------------------------------------------------- */

/* What is used of the caller's scratch. */
struct pairs {
    uint32_t dims; /* pairs of dimensions, padded with 0 */
    uint32_t *q;   /* [q_count][dims] */
    uint32_t *k;   /* [dims][KVA_PAGE_TOKENS] */
    uint32_t *v; /* [chunks][PAGE_PAIRS][CHUNK_DIM]: values of a page, in the order of unpacking */
    float *e;    /* [q_count][VL]: sums of weights by lanes */
    float *sums; /* [q_count][chunks][CHUNK_DIM]: of `a`, in the same order; then room for
                    KVA_CPU_ATTEND_QUERIES in all */
};

/* `dims`: as many as the level's products take, 16 chunks of dimensions at most. */
static struct pairs pairs_of(const struct kva_cpu_attend_split *split, uint32_t dims)
{
    uint32_t chunks = (uint32_t)kva_div_up(split->head_dim, CHUNK_DIM);
    uint32_t *k = (uint32_t *)(void *)split->k;
    float *e = split->v + (size_t)chunks * PAGE_PAIRS * CHUNK_DIM;
    return (struct pairs){.dims = dims,
                          .q = k + (size_t)dims * KVA_PAGE_TOKENS,
                          .k = k,
                          .v = (uint32_t *)(void *)split->v,
                          .e = e,
                          .sums = e + (size_t)split->q_count * VL};
}

static void pair_queries(const struct kva_cpu_attend_split *split, const struct pairs *pairs)
{
    uint32_t dim = split->head_dim;
    for (uint32_t j = 0; j < split->q_count; j++) {
        const float *q = split->q + (size_t)j * dim;
        uint32_t *to = pairs->q + (size_t)j * pairs->dims;
        for (uint32_t i = 0; i < dim; i += VL) {
            uint32_t n = kva_min_u32(dim - i, VL);
            __m256i half = (__m256i)_mm512_cvtneps_pbh(v_load_n(q + i, n));
            _mm256_mask_storeu_epi32(to + i / 2, (__mmask8)((1u << (n + 1) / 2) - 1u), half);
        }
        memset(to + (dim + 1) / 2, 0, (pairs->dims - (dim + 1) / 2) * sizeof *to);
    }
}

/* `count` elements of a row, the rest 0; no row: 0. */
INLINE __m512i load_row(const uint16_t *row, uint32_t first, uint32_t count)
{
    if (!row)
        return _mm512_setzero_si512();
    if (count == CHUNK_DIM)
        return _mm512_loadu_si512(row + first);
    return _mm512_maskz_loadu_epi16((1u << count) - 1u, row + first);
}

/* `count` dimensions of 16 tokens from `i` on, to k [dims][KVA_PAGE_TOKENS]. */
INLINE void transpose_keys(const void *const *tokens, uint32_t i, const uint32_t count,
                           uint32_t dims, uint32_t *k)
{
    __m512i rows[16];
    for (int t = 0; t < 16; t++)
        rows[t] = load_row(tokens[t], i, count);
    kva_transpose_512(rows);
    if (count == CHUNK_DIM) {
        for (int n = 0; n < 16; n++)
            _mm512_storeu_si512(k + (size_t)n * KVA_PAGE_TOKENS, rows[n]);
    } else {
        for (uint32_t n = 0; n < dims; n++)
            _mm512_storeu_si512(k + (size_t)n * KVA_PAGE_TOKENS, rows[n]);
    }
}

/* pairs->k = the keys of the page from slot `base` on. */
static void pair_keys(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                      uint32_t base, struct ahead *ahead)
{
    struct ahead next = *ahead;
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += VL) {
        for (uint32_t i = 0; i < split->head_dim; i += CHUNK_DIM) {
            const void *const *tokens = split->tokens + base + t;
            uint32_t count = kva_min_u32(CHUNK_DIM, split->head_dim - i);
            uint32_t *k = pairs->k + (size_t)i / 2 * KVA_PAGE_TOKENS + t;
            if (count == CHUNK_DIM)
                transpose_keys(tokens, i, CHUNK_DIM, CHUNK_DIM / 2, k);
            else
                transpose_keys(tokens, i, count, pairs->dims - i / 2, k);
            prefetch(&next, COST_TRANSPOSE);
        }
    }
    *ahead = next;
}

/* Dimensions [i, i + count) of the values of a pair of tokens: of every eight of them the lower
 * four in `low`, the upper four in `high`. */
INLINE void load_values(const struct kva_cpu_attend_split *split, uint32_t pair, uint32_t i,
                        const uint32_t count, __m512i *low, __m512i *high)
{
    __m512i even = load_row(split->tokens[2 * pair], split->head_dim + i, count);
    __m512i odd = load_row(split->tokens[2 * pair + 1], split->head_dim + i, count);
    *low = _mm512_unpacklo_epi16(even, odd);
    *high = _mm512_unpackhi_epi16(even, odd);
}

/* pairs->v = the values of the page from slot `base` on. */
INLINE void pair_values(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                        uint32_t base, struct ahead *ahead)
{
    uint32_t *v = pairs->v;
    for (uint32_t i = 0; i < split->head_dim; i += CHUNK_DIM) {
        uint32_t count = kva_min_u32(CHUNK_DIM, split->head_dim - i);
        for (uint32_t pair = base / 2; pair < base / 2 + PAGE_PAIRS; pair++, v += CHUNK_DIM) {
            __m512i low, high;
            load_values(split, pair, i, count, &low, &high);
            _mm512_storeu_si512(v, low);
            _mm512_storeu_si512(v + VL, high);
            if (ahead && pair % 4 == 0)
                prefetch(ahead, 4 * COST_UNPACK);
        }
    }
}

/* --- weights of the tokens -------------------------------------------------------------------- */

/* A query's weights in bf16, by slot: over its scores, which they replace. */
static uint16_t *weights_of(const struct kva_cpu_attend_split *split, uint32_t query)
{
    return (uint16_t *)(void *)(split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS);
}

/* Weights = exp(score - m) of a page, rounded; `nothing`: 0. Returns what lanes sum to beyond
 * `sum`. */
INLINE vf weigh(const float *scores, float m, const bool nothing, vf sum, uint16_t *weights)
{
    const vf offset = v_set(-m * KVA_LOG2E);
    for (uint32_t slot = 0; slot < KVA_PAGE_TOKENS; slot += VL) {
        vf p = nothing ? v_zero() : v_exp2(v_fma(v_load(scores + slot), v_set(KVA_LOG2E), offset));
        __m256i rounded = (__m256i)_mm512_cvtneps_pbh(p);
        _mm256_storeu_si256((__m256i *)(void *)(weights + slot), rounded);
        sum = v_add(sum, v_of_bf16(rounded));
    }
    return sum;
}

/* The greatest score of a page. */
INLINE float greatest(const float *scores)
{
    vf top = v_set(-INFINITY);
    for (uint32_t slot = 0; slot < KVA_PAGE_TOKENS; slot += VL)
        top = v_max(top, v_load(scores + slot));
    return v_largest(top);
}

/* Scores of a page that a query does not see become -inf; it sees [first, end), and no holes. */
static void hide(const void *const *tokens, uint32_t first, uint32_t end, bool holes, float *scores)
{
    for (uint32_t slot = 0; slot < KVA_PAGE_TOKENS; slot += VL) {
        uint32_t before = first > slot ? kva_min_u32(first - slot, VL) : 0;
        uint32_t seen = end > slot ? kva_min_u32(end - slot, VL) : 0;
        __mmask16 keep = (__mmask16)(v_mask(seen) & ~v_mask(before));
        v_store(scores + slot, _mm512_mask_mov_ps(v_set(-INFINITY), keep, v_load(scores + slot)));
    }
    for (uint32_t slot = first; holes && slot < end; slot++) {
        if (!tokens[slot])
            scores[slot] = -INFINITY;
    }
}

/* A query's weights of the page from slot `base` on, 0 where it sees nothing. m, e and the sums go
 * on from the pages before. Lane i of e takes the slots i, i + VL, ... whatever the query sees. */
static void soften(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                   uint32_t query, uint32_t base, bool holes, struct ahead *ahead)
{
    float *scores = split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS + base;
    uint16_t *weights = weights_of(split, query) + base;
    uint32_t first = kva_max_u32(split->slot_first[query], base) - base;
    uint32_t end = kva_max_u32(split->slot_end[query], base) - base;
    end = kva_min_u32(end, KVA_PAGE_TOKENS);
    if (first >= end) {
        memset(weights, 0, KVA_PAGE_TOKENS * sizeof *weights);
        return;
    }
    if (holes || end - first < KVA_PAGE_TOKENS)
        hide(split->tokens + base, first, end, holes, scores);
    float before = split->m[query];
    float m = greatest(scores);
    /* A maximum may pass over what is not a number. Where that is all there is, it must not be
     * taken for nothing. */
    for (uint32_t slot = first; m == -INFINITY && slot < end; slot++)
        m = scores[slot] != scores[slot] ? scores[slot] : m;
    m = before > m ? before : m;
    vf sum = v_load(pairs->e + (size_t)query * VL);
    if (m != before && before != -INFINITY) {
        uint32_t stride = (uint32_t)kva_align_up(split->head_dim, CHUNK_DIM);
        float *sums = pairs->sums + (size_t)query * stride;
        vf scale = v_exp2(v_set((before - m) * KVA_LOG2E));
        sum = v_mul(sum, scale);
        for (uint32_t i = 0; i < stride; i += VL)
            v_store(sums + i, v_mul(v_load(sums + i), scale));
    }
    if (m != -INFINITY)
        sum = weigh(scores, m, false, sum, weights);
    else
        sum = weigh(scores, m, true, sum, weights);
    v_store(pairs->e + (size_t)query * VL, sum);
    split->m[query] = m;
    prefetch(ahead, KVA_PAGE_TOKENS / VL * COST_SOFTEN);
}

/* --- the split ----------------------------------------------------------------------------------
 */

/* Everything before the first page. */
static void begin(const struct kva_cpu_attend_split *split, const struct pairs *pairs)
{
    size_t width = kva_align_up(split->head_dim, CHUNK_DIM);
    pair_queries(split, pairs);
    memset(pairs->e, 0, split->q_count * (VL + width) * sizeof *pairs->e);
    for (uint32_t j = 0; j < split->q_count; j++)
        split->m[j] = -INFINITY;
}

/* a = a query's sums in the order of the dimensions, none of them -0; e. */
static void finish_query(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                         uint32_t query)
{
    const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const uint32_t dim = split->head_dim;
    const float *sums = pairs->sums + query * kva_align_up(dim, CHUNK_DIM);
    float *a = split->a + (size_t)query * dim;
    for (uint32_t i = 0; i < dim; i += CHUNK_DIM) {
        vf x = v_add(v_load(sums + i), v_zero()), y = v_add(v_load(sums + i + VL), v_zero());
        v_store_n(a + i, _mm512_permutex2var_ps(x, low, y), kva_min_u32(dim - i, VL));
        if (dim - i > VL)
            v_store_n(a + i + VL, _mm512_permutex2var_ps(x, high, y),
                      kva_min_u32(dim - i - VL, VL));
    }
    split->e[query] = v_sum(v_load(pairs->e + (size_t)query * VL));
}

static bool has_holes(const struct kva_cpu_attend_split *split, uint32_t first, uint32_t end)
{
    for (uint32_t slot = first; slot < end; slot++) {
        if (!split->tokens[slot])
            return true;
    }
    return false;
}

#endif
