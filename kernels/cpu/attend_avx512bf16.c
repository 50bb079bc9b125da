/* Attention over one split of level avx512bf16: bf16 keys and values against queries and weights
 * rounded to bf16, two products an instruction (vdpbf16ps), sums in fp32. f16 KV is level avx512's.
 *
 * A split is folded page by page, so that a page's keys and values are in a cache together: the
 * sums are scaled down when a page has a new maximum. A page's keys are transposed to dwords of two
 * dimensions [head_dim / 2][64 tokens]: a vector holds one pair of dimensions of 16 tokens, and a
 * score is one chain over the pairs. Values of two neighbouring tokens, at an even slot and the odd
 * one behind it, are laid side by side, in registers for a few queries, in scratch for many: an
 * element of `a` is one chain over pairs of tokens. Weights are rounded to bf16 before they are
 * summed, so that what is divided by fits what is divided.
 *
 * A query touches only values of tokens that it sees: of a pair it sees half of, the other half is
 * cleared, as what lies there may be no number. */
#include "kernels/cpu/kernels_avx512.h"
#include "kernels/cpu/kernels_avx512bf16.h"
#include "kernels/cpu/simd_avx512.h"

/* Queries of a tile, and vectors of tokens (scores) or of dimensions (values): 16 sums, chains
 * enough for two instructions a cycle. */
#define TILE_QUERIES 8u
#define TILE_VECTORS 2u

#define TILE_TOKENS  (TILE_VECTORS * VL)

/* Dimensions whose values lie together, as TILE_VECTORS vectors for each pair of tokens. */
#define CHUNK_DIM   32u
#define SPLIT_PAIRS (KVA_ATTEND_SPLIT_TOKENS / 2)
#define PAGE_PAIRS  (KVA_PAGE_TOKENS / 2)

/* --- prefetching ------------------------------------------------------------------------------ */

/* About how many cycles things take, for the pace of prefetching alone. */
#define COST_TRANSPOSE   60u /* CHUNK_DIM dimensions of 16 keys */
#define COST_UNPACK      3u  /* CHUNK_DIM dimensions of a pair of values */
#define COST_SOFTEN      10u /* a vector of exponentials */
#define COST_PRODUCTS(n) (n) /* products of n queries with TILE_VECTORS vectors */

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

/* The page behind the one from `base` on, in the time that this one will take. */
static struct ahead plan_ahead(const struct kva_cpu_attend_split *split, uint32_t base)
{
    struct ahead ahead = {.row_bytes = split->head_dim * 4, .pace = 1u << 16};
    if (base + KVA_PAGE_TOKENS < KVA_ATTEND_SPLIT_TOKENS)
        ahead.tokens = split->tokens + base + KVA_PAGE_TOKENS;
    else
        ahead.tokens = split->next;
    if (!ahead.tokens)
        return ahead;
    const uint32_t chunks = (uint32_t)kva_div_up(split->head_dim, CHUNK_DIM);
    uint32_t cycles =
        KVA_PAGE_TOKENS / VL * (chunks * COST_TRANSPOSE + split->q_count * COST_SOFTEN);
    cycles += PAGE_PAIRS * chunks * (COST_UNPACK + split->q_count);
    cycles += split->q_count * (KVA_PAGE_TOKENS / TILE_TOKENS) * chunks * CHUNK_DIM / 2;
    ahead.count = KVA_PAGE_TOKENS;
    ahead.pace = cycles / (KVA_PAGE_TOKENS * (uint32_t)kva_div_up(ahead.row_bytes, KVA_CACHE_LINE));
    ahead.pace = kva_max_u32(1, ahead.pace);
    return ahead;
}

/* --- keys and values as pairs ----------------------------------------------------------------- */

/* What is used of the caller's scratch. */
struct pairs {
    uint32_t dims; /* pairs of dimensions, the last one padded with 0 */
    uint32_t *q;   /* [q_count][dims] */
    uint32_t *k;   /* [dims][KVA_PAGE_TOKENS] */
    uint32_t *v; /* [chunks][PAGE_PAIRS][CHUNK_DIM]: values of a page, in the order of unpacking */
    float *sums; /* [q_count][chunks][CHUNK_DIM]: of `a`, in the same order */
    float *e;    /* [q_count][VL]: sums of weights by lanes */
};

static struct pairs pairs_of(const struct kva_cpu_attend_split *split)
{
    uint32_t dims = (split->head_dim + 1) / 2;
    uint32_t chunks = (uint32_t)kva_div_up(split->head_dim, CHUNK_DIM);
    uint32_t *k = (uint32_t *)(void *)split->k;
    float *sums = split->v + (size_t)chunks * PAGE_PAIRS * CHUNK_DIM;
    return (struct pairs){.dims = dims,
                          .q = k + (size_t)dims * KVA_PAGE_TOKENS,
                          .k = k,
                          .v = (uint32_t *)(void *)split->v,
                          .sums = sums,
                          .e = sums + (size_t)split->q_count * chunks * CHUNK_DIM};
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

/* `count` dimensions of 16 tokens from `i` on, to k [count / 2][KVA_PAGE_TOKENS]. */
INLINE void transpose_keys(const void *const *tokens, uint32_t i, const uint32_t count, uint32_t *k)
{
    __m512i rows[16];
    for (int t = 0; t < 16; t++)
        rows[t] = load_row(tokens[t], i, count);
    transpose(rows);
    if (count == CHUNK_DIM) {
        for (int n = 0; n < 16; n++)
            _mm512_storeu_si512(k + (size_t)n * KVA_PAGE_TOKENS, rows[n]);
    } else {
        for (uint32_t n = 0; 2 * n < count; n++)
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
                transpose_keys(tokens, i, CHUNK_DIM, k);
            else
                transpose_keys(tokens, i, count, k);
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
static void pair_values(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                        uint32_t base)
{
    uint32_t *v = pairs->v;
    for (uint32_t i = 0; i < split->head_dim; i += CHUNK_DIM) {
        uint32_t count = kva_min_u32(CHUNK_DIM, split->head_dim - i);
        for (uint32_t pair = base / 2; pair < base / 2 + PAGE_PAIRS; pair++, v += CHUNK_DIM) {
            __m512i low, high;
            load_values(split, pair, i, count, &low, &high);
            _mm512_storeu_si512(v, low);
            _mm512_storeu_si512(v + VL, high);
        }
    }
}

INLINE __m512bh broadcast(const void *pair)
{
    int bits;
    memcpy(&bits, pair, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

/* --- scores ----------------------------------------------------------------------------------- */

INLINE void score_tile(const int queries, const uint32_t *q, uint32_t dims, const uint32_t *k,
                       struct ahead *ahead, float *scores)
{
    struct ahead next = *ahead;
    vf sums[TILE_QUERIES][TILE_VECTORS];
    for (int j = 0; j < queries; j++) {
        for (uint32_t n = 0; n < TILE_VECTORS; n++)
            sums[j][n] = v_zero();
    }
    for (uint32_t i = 0; i < dims; i++) {
        prefetch(&next, COST_PRODUCTS((uint32_t)queries));
        __m512bh keys[TILE_VECTORS];
        for (uint32_t n = 0; n < TILE_VECTORS; n++)
            keys[n] = (__m512bh)_mm512_loadu_si512(k + (size_t)i * KVA_PAGE_TOKENS + n * VL);
        for (int j = 0; j < queries; j++) {
            __m512bh x = broadcast(q + (size_t)j * dims + i);
            for (uint32_t n = 0; n < TILE_VECTORS; n++)
                sums[j][n] = _mm512_dpbf16_ps(sums[j][n], x, keys[n]);
        }
    }
    for (int j = 0; j < queries; j++) {
        for (uint32_t n = 0; n < TILE_VECTORS; n++)
            v_store(scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + n * VL, sums[j][n]);
    }
    *ahead = next;
}

/* A function for each number of queries. */
#define FOR_QUERIES(x) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8)

typedef void score_fn(const uint32_t *q, uint32_t dims, const uint32_t *k, struct ahead *ahead,
                      float *scores);

#define SCORE(n)                                                                                   \
    static void score_##n(const uint32_t *q, uint32_t dims, const uint32_t *k,                     \
                          struct ahead *ahead, float *scores)                                      \
    {                                                                                              \
        score_tile(n, q, dims, k, ahead, scores);                                                  \
    }
FOR_QUERIES(SCORE)

static score_fn *const score_tiles[TILE_QUERIES] = {score_1, score_2, score_3, score_4,
                                                    score_5, score_6, score_7, score_8};

/* Queries of a tile: as even a division as there is, since a small tile is a slow one. */
static uint32_t group_queries(uint32_t q_count)
{
    return (uint32_t)kva_div_up(q_count, kva_div_up(q_count, TILE_QUERIES));
}

/* Scores of every query with the slots [base, base + KVA_PAGE_TOKENS), whose keys are in pairs->k.
 * Scores of slots that a query does not see may be left as they are. */
static void score_page(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                       uint32_t base, struct ahead *ahead)
{
    uint32_t group = group_queries(split->q_count);
    for (uint32_t j = 0; j < split->q_count; j += group) {
        uint32_t queries = kva_min_u32(group, split->q_count - j);
        /* Later queries see from later on, and further. */
        uint32_t first = split->slot_first[j], end = split->slot_end[j + queries - 1];
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += TILE_TOKENS) {
            if (base + t >= end || base + t + TILE_TOKENS <= first)
                continue;
            score_tiles[queries - 1](
                pairs->q + (size_t)j * pairs->dims, pairs->dims, pairs->k + t, ahead,
                split->scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + base + t);
        }
    }
}

/* --- weights of the tokens -------------------------------------------------------------------- */

/* A query's weights in bf16, by slot: over its scores, which they replace. */
static uint16_t *weights_of(const struct kva_cpu_attend_split *split, uint32_t query)
{
    return (uint16_t *)(void *)(split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS);
}

/* Slots [low, high) of a query, multiples of VL: weights = exp(score - m), rounded; `nothing`: 0.
 * Returns what lanes sum to beyond `sum`. */
INLINE vf weigh(const float *scores, uint32_t low, uint32_t high, float m, bool nothing, vf sum,
                uint16_t *weights)
{
    const vf offset = v_set(-m * KVA_LOG2E);
    for (uint32_t slot = low; slot < high; slot += VL) {
        vf p = nothing ? v_zero() : v_exp2(v_fma(v_load(scores + slot), v_set(KVA_LOG2E), offset));
        __m256i rounded = (__m256i)_mm512_cvtneps_pbh(p);
        _mm256_storeu_si256((__m256i *)(void *)(weights + slot), rounded);
        sum = v_add(sum, v_of_bf16(rounded));
    }
    return sum;
}

/* The greatest score of slots [low, high), multiples of VL. */
INLINE float greatest(const float *scores, uint32_t low, uint32_t high)
{
    vf top = v_set(-INFINITY);
    for (uint32_t slot = low; slot < high; slot += VL)
        top = v_max(top, v_load(scores + slot));
    return v_largest(top);
}

/* Scores that a query does not see, in the vectors of [first, end), become -inf. */
static void hide(const struct kva_cpu_attend_split *split, uint32_t first, uint32_t end, bool holes,
                 float *scores)
{
    for (uint32_t slot = first / VL * VL; slot < first; slot++)
        scores[slot] = -INFINITY;
    for (uint32_t slot = end; slot < kva_align_up(end, VL); slot++)
        scores[slot] = -INFINITY;
    for (uint32_t slot = first; holes && slot < end; slot++) {
        if (!split->tokens[slot])
            scores[slot] = -INFINITY;
    }
}

/* A query's weights of the page from slot `base` on, 0 where it sees nothing. m, e and the sums go
 * on from the pages before. Lane i of e takes the slots i, i + VL, ... whatever the query sees. */
static void soften(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                   uint32_t query, uint32_t base, bool holes, struct ahead *ahead)
{
    float *scores = split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
    uint16_t *weights = weights_of(split, query);
    uint32_t first = kva_max_u32(split->slot_first[query], base);
    uint32_t end = kva_min_u32(split->slot_end[query], base + KVA_PAGE_TOKENS);
    if (first >= end)
        return;
    const bool whole = end - first == KVA_PAGE_TOKENS && !holes;
    const uint32_t low = first / VL * VL, high = (uint32_t)kva_align_up(end, VL);
    if (!whole)
        hide(split, first, end, holes, scores);
    float before = split->m[query];
    float m = whole ? greatest(scores + base, 0, KVA_PAGE_TOKENS) : greatest(scores, low, high);
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
    if (whole && m != -INFINITY)
        sum = weigh(scores + base, 0, KVA_PAGE_TOKENS, m, false, sum, weights + base);
    else
        sum = weigh(scores, low, high, m, m == -INFINITY, sum, weights);
    v_store(pairs->e + (size_t)query * VL, sum);
    split->m[query] = m;
    prefetch(ahead, KVA_PAGE_TOKENS / VL * COST_SOFTEN);
}

/* --- values ----------------------------------------------------------------------------------- */

/* What a tile of values is made of. */
struct values {
    const struct kva_cpu_attend_split *split;
    const uint32_t *v; /* [PAGE_PAIRS][CHUNK_DIM]; NULL: from the rows themselves */
    uint32_t v_first;  /* pair that v begins with */
    uint32_t i;        /* first dimension */
    uint32_t count;    /* of them, at most CHUNK_DIM */
    uint32_t query;    /* first of the tile */
    uint32_t first;    /* pairs [first, end), which all queries see whole */
    uint32_t end;
    float *sums; /* of the first query and dimension */
    uint32_t stride;
    struct ahead *ahead;
};

INLINE void value_tile(const int queries, const bool direct, const uint32_t count,
                       const struct values *values)
{
    const struct kva_cpu_attend_split *split = values->split;
    const uint16_t *weights = weights_of(split, values->query);
    struct ahead next = *values->ahead;
    vf sums[TILE_QUERIES][TILE_VECTORS];
    for (int j = 0; j < queries; j++) {
        for (uint32_t n = 0; n < TILE_VECTORS; n++)
            sums[j][n] = v_load(values->sums + (size_t)j * values->stride + n * VL);
    }
    for (uint32_t pair = values->first; pair < values->end; pair++) {
        prefetch(&next, COST_PRODUCTS((uint32_t)queries) + (direct ? COST_UNPACK : 0));
        __m512i v[TILE_VECTORS];
        if (direct) {
            load_values(split, pair, values->i, count, &v[0], &v[1]);
        } else {
            const uint32_t *from = values->v + (size_t)(pair - values->v_first) * CHUNK_DIM;
            v[0] = _mm512_loadu_si512(from);
            v[1] = _mm512_loadu_si512(from + VL);
        }
        for (int j = 0; j < queries; j++) {
            __m512bh p = broadcast(weights + (size_t)j * 2 * KVA_ATTEND_SPLIT_TOKENS + 2 * pair);
            for (uint32_t n = 0; n < TILE_VECTORS; n++)
                sums[j][n] = _mm512_dpbf16_ps(sums[j][n], p, (__m512bh)v[n]);
        }
    }
    for (int j = 0; j < queries; j++) {
        for (uint32_t n = 0; n < TILE_VECTORS; n++)
            v_store(values->sums + (size_t)j * values->stride + n * VL, sums[j][n]);
    }
    *values->ahead = next;
}

typedef void value_fn(const struct values *values);

#define VALUE(n)                                                                                   \
    static void value_##n(const struct values *values)                                             \
    {                                                                                              \
        if (values->v)                                                                             \
            value_tile(n, false, CHUNK_DIM, values);                                               \
        else if (values->count == CHUNK_DIM)                                                       \
            value_tile(n, true, CHUNK_DIM, values);                                                \
        else                                                                                       \
            value_tile(n, true, values->count, values);                                            \
    }
FOR_QUERIES(VALUE)

static value_fn *const value_tiles[TILE_QUERIES] = {value_1, value_2, value_3, value_4,
                                                    value_5, value_6, value_7, value_8};

/* Pairs [first, end) of one query, of which it may see only half. */
static void value_edge(const struct values *values, uint32_t query, uint32_t first, uint32_t end)
{
    const struct kva_cpu_attend_split *split = values->split;
    const uint16_t *weights = weights_of(split, query);
    float *sums = values->sums + (size_t)(query - values->query) * values->stride;
    for (uint32_t pair = first; pair < end; pair++) {
        bool even = 2 * pair >= split->slot_first[query];
        bool odd = 2 * pair + 1 < split->slot_end[query];
        __m512i seen = _mm512_set1_epi32((int)((even ? 0xFFFFu : 0) | (odd ? 0xFFFF0000u : 0)));
        __m512i v[TILE_VECTORS];
        load_values(split, pair, values->i, values->count, &v[0], &v[1]);
        for (uint32_t n = 0; n < TILE_VECTORS; n++)
            v_store(sums + n * VL,
                    _mm512_dpbf16_ps(v_load(sums + n * VL), broadcast(weights + 2 * pair),
                                     (__m512bh)_mm512_and_si512(v[n], seen)));
    }
}

/* What queries of a tile see of pairs [first, end) before, or behind, what all of them see. */
static void value_edges(const struct values *values, uint32_t queries, bool before, uint32_t first,
                        uint32_t end)
{
    for (uint32_t query = values->query; query < values->query + queries; query++) {
        uint32_t slot_first = values->split->slot_first[query];
        uint32_t slot_end = values->split->slot_end[query];
        if (slot_first >= slot_end)
            continue;
        uint32_t own_first = kva_max_u32(first, slot_first / 2);
        uint32_t own_end = kva_min_u32(end, (slot_end + 1) / 2);
        if (before)
            value_edge(values, query, own_first, kva_min_u32(own_end, values->first));
        else
            value_edge(values, query, kva_max_u32(own_first, values->end), own_end);
    }
}

/* sums += the values of the page from slot `base` on. What all queries of a tile see whole is done
 * at once; what only some see, at either end of it, one by one. */
static void value_page(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                       uint32_t base, struct ahead *ahead)
{
    const uint32_t group = group_queries(split->q_count), dim = split->head_dim;
    const uint32_t stride = (uint32_t)kva_align_up(dim, CHUNK_DIM);
    const uint32_t first = base / 2, end = first + PAGE_PAIRS;
    const bool direct = split->q_count <= TILE_QUERIES;
    if (!direct)
        pair_values(split, pairs, base);
    for (uint32_t j = 0; j < split->q_count; j += group) {
        const uint32_t queries = kva_min_u32(group, split->q_count - j);
        struct values values = {
            .split = split, .v_first = first, .query = j, .stride = stride, .ahead = ahead};
        /* Later queries see from later on, and further. */
        uint32_t whole_first = (split->slot_first[j + queries - 1] + 1) / 2;
        values.first = kva_min_u32(kva_max_u32(whole_first, first), end);
        values.end = kva_max_u32(values.first, kva_min_u32(split->slot_end[j] / 2, end));
        const bool edges = values.first > first || values.end < end;
        for (uint32_t i = 0; i < dim; i += CHUNK_DIM) {
            values.i = i;
            values.count = kva_min_u32(CHUNK_DIM, dim - i);
            values.v = direct ? NULL : pairs->v + (size_t)i * PAGE_PAIRS;
            values.sums = pairs->sums + (size_t)j * stride + i;
            if (edges)
                value_edges(&values, queries, true, first, end);
            if (values.first < values.end)
                value_tiles[queries - 1](&values);
            if (edges)
                value_edges(&values, queries, false, first, end);
        }
    }
}

/* a = a query's sums in the order of the dimensions; e. */
static void finish_query(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                         uint32_t query)
{
    const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const uint32_t dim = split->head_dim;
    const float *sums = pairs->sums + query * kva_align_up(dim, CHUNK_DIM);
    float *a = split->a + (size_t)query * dim;
    for (uint32_t i = 0; i < dim; i += CHUNK_DIM) {
        vf x = v_load(sums + i), y = v_load(sums + i + VL);
        v_store_n(a + i, _mm512_permutex2var_ps(x, low, y), kva_min_u32(dim - i, VL));
        if (dim - i > VL)
            v_store_n(a + i + VL, _mm512_permutex2var_ps(x, high, y),
                      kva_min_u32(dim - i - VL, VL));
    }
    split->e[query] = v_sum(v_load(pairs->e + (size_t)query * VL));
}

/* --- the split -------------------------------------------------------------------------------- */

static bool has_holes(const struct kva_cpu_attend_split *split, uint32_t first, uint32_t end)
{
    for (uint32_t slot = first; slot < end; slot++) {
        if (!split->tokens[slot])
            return true;
    }
    return false;
}

void kva_attend_split_avx512bf16(const struct kva_cpu_attend_split *split)
{
    if (split->kv_dtype != KVA_BF16) {
        kva_attend_split_avx512(split);
        return;
    }
    const struct pairs pairs = pairs_of(split);
    const uint32_t first = split->slot_first[0], end = split->slot_end[split->q_count - 1];
    const bool holes = has_holes(split, first, end);
    pair_queries(split, &pairs);
    memset(pairs.sums, 0, (size_t)((char *)(pairs.e + split->q_count * VL) - (char *)pairs.sums));
    for (uint32_t j = 0; j < split->q_count; j++)
        split->m[j] = -INFINITY;
    for (uint32_t base = first / KVA_PAGE_TOKENS * KVA_PAGE_TOKENS; base < end;
         base += KVA_PAGE_TOKENS) {
        struct ahead ahead = plan_ahead(split, base);
        pair_keys(split, &pairs, base, &ahead);
        score_page(split, &pairs, base, &ahead);
        for (uint32_t j = 0; j < split->q_count; j++)
            soften(split, &pairs, j, base, holes, &ahead);
        value_page(split, &pairs, base, &ahead);
    }
    for (uint32_t j = 0; j < split->q_count; j++)
        finish_query(split, &pairs, j);
}
