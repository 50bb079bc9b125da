/* amx.c - attention over one split of level amx: bf16 keys and values against queries and weights
 * rounded to bf16, in tiles. f16 KV is level avx512's.
 *
 * Scores of many queries are products of a tile of queries, 32 dimensions a row, and of a page's
 * transposed keys, whose rows are pairs of dimensions of 16 tokens. Those of few, one tile, are
 * made the other way round: keys lie as the rows of a tile already, so that it is the queries that
 * are transposed, and then the scores. Their bits are the same. `a` is made of a tile of weights,
 * 32 tokens a row, and of the page's values, whose rows are pairs of tokens. A score is a sum over
 * blocks of 32 dimensions, an element of `a` one over blocks of 32 tokens, ascending; amx.h says
 * how a block is summed.
 *
 * All queries of a tile meet all tokens of a page: what one does not see has the weight 0, and is
 * nothing unless there lies what is no finite number. Then some sum is not finite either, and the
 * split is done again: such values are left out of the tiles and added one by one, page by page,
 * for queries that see them. Where a query sees none, its bits are those of the first attempt. */
#include "kernels/cpu/attend/amx_tile.h"
#include "kernels/cpu/attend/bf16.h"
#include "kernels/cpu/cpu.h"

/* Tokens of a tile, and tiles of a page. */
#define TILE_TOKENS KVA_TILE_ROWS
#define PAGE_TILES  (KVA_PAGE_TOKENS / TILE_TOKENS)

static bool few_queries(const struct kva_cpu_attend_split *split)
{
    return split->q_count <= KVA_TILE_ROWS;
}

/* Few queries: whole tiles, since they are rows of one and columns of another. */
static void configure(const struct kva_cpu_attend_split *split)
{
    configure_tiles(few_queries(split) ? KVA_TILE_ROWS : tile_queries(split->q_count));
}

/* The queries from `query` on, with a page. */
struct tile {
    const struct kva_cpu_attend_split *split;
    const struct pairs *pairs;
    uint32_t query;
    uint32_t base; /* the page's first slot */
    struct ahead *ahead;
};

/* Whether any of the tile's queries sees the page. */
static bool sees_page(const struct tile *tile, uint32_t queries)
{
    /* Later queries see from later on, and further. */
    uint32_t last = kva_min_u32(tile->query + queries, tile->split->q_count) - 1;
    return tile->split->slot_first[tile->query] < tile->base + KVA_PAGE_TOKENS &&
           tile->split->slot_end[last] > tile->base;
}

/* --- scores ----------------------------------------------------------------------------------- */

/* Scores of a tile's queries with a page, whose keys are in pairs->k. */
static void score_tile(const struct tile *tile)
{
    const struct pairs *pairs = tile->pairs;
    score_page_tile(
        pairs->q + (size_t)tile->query * pairs->dims, pairs->k, pairs->dims, tile->ahead,
        tile->split->scores + (size_t)tile->query * KVA_ATTEND_SPLIT_TOKENS + tile->base);
}

/* --- scores of few queries -------------------------------------------------------------------- */

/* What is used of the scratch of keys and queries beside pairs->q. */
struct few {
    uint32_t *q;      /* [dims][TILE_ROWS]: queries transposed, 0 behind the last */
    uint32_t *copies; /* [KVA_PAGE_TOKENS][dims]: keys that do not lie as a tile wants them */
    float *scores;    /* [KVA_PAGE_TOKENS][TILE_ROWS] */
};

static struct few few_of(const struct pairs *pairs)
{
    return (struct few){.q = pairs->q + (size_t)KVA_TILE_ROWS * pairs->dims,
                        .copies = pairs->k,
                        .scores = (float *)(void *)pairs->v};
}

static void transpose_queries(const struct kva_cpu_attend_split *split, const struct pairs *pairs)
{
    const struct few few = few_of(pairs);
    for (uint32_t i = 0; i < pairs->dims; i += STEP) {
        __m512i rows[16];
        for (uint32_t j = 0; j < 16; j++)
            rows[j] = j < split->q_count
                          ? _mm512_loadu_si512(pairs->q + (size_t)j * pairs->dims + i)
                          : _mm512_setzero_si512();
        kva_transpose_512(rows);
        for (uint32_t n = 0; n < STEP; n++)
            _mm512_storeu_si512(few.q + (size_t)(i + n) * KVA_TILE_ROWS, rows[n]);
    }
}

/* Whether 16 tokens' rows lie one behind the other. */
static bool in_line(const void *const *tokens, uint32_t row_bytes)
{
    const __m512i count = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    __m512i at = _mm512_add_epi64(_mm512_set1_epi64((long long)(uintptr_t)tokens[0]),
                                  _mm512_mullo_epi64(count, _mm512_set1_epi64(row_bytes)));
    __mmask8 low = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(tokens), at);
    at = _mm512_add_epi64(at, _mm512_set1_epi64((long long)row_bytes * 8));
    __mmask8 high = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(tokens + 8), at);
    return tokens[0] && low == 0xFF && high == 0xFF;
}

/* Keys of a tile's tokens, and how far they are apart; in `copy` where they have holes among them
 * or behind them. */
static const char *key_rows(const struct kva_cpu_attend_split *split, const void *const *tokens,
                            uint32_t dims, uint32_t *copy, ptrdiff_t *ret_stride)
{
    const uint32_t dim = split->head_dim;
    if (dim % CHUNK_DIM == 0 && in_line(tokens, dim * 4)) {
        *ret_stride = (ptrdiff_t)dim * 4;
        return tokens[0];
    }
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        for (uint32_t i = 0; i < dim; i += CHUNK_DIM)
            _mm512_storeu_si512(copy + (size_t)t * dims + i / 2,
                                load_row(tokens[t], i, kva_min_u32(CHUNK_DIM, dim - i)));
    }
    *ret_stride = dims * (ptrdiff_t)sizeof *copy;
    return (const char *)copy;
}

/* scores of `queries` at least, from [16 tokens][16 queries]. */
INLINE void turn_scores(const float *from, const uint32_t queries, float *scores)
{
    __m512i rows[16];
    for (uint32_t t = 0; t < 16; t++)
        rows[t] = _mm512_loadu_si512(from + (size_t)t * KVA_TILE_ROWS);
    kva_transpose_512(rows);
    for (uint32_t j = 0; j < queries; j++)
        _mm512_storeu_si512(scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS, rows[j]);
}

/* Scores of all queries with a page. */
static void score_few(const struct tile *tile)
{
    const struct kva_cpu_attend_split *split = tile->split;
    const uint32_t dims = tile->pairs->dims;
    const struct few few = few_of(tile->pairs);
    const char *k[PAGE_TILES];
    ptrdiff_t strides[PAGE_TILES];
    for (uint32_t n = 0; n < PAGE_TILES; n++)
        k[n] = key_rows(split, split->tokens + tile->base + n * TILE_TOKENS, dims,
                        few.copies + (size_t)n * TILE_TOKENS * dims, &strides[n]);
    KVA_TILE_ZERO(0);
    KVA_TILE_ZERO(1);
    KVA_TILE_ZERO(2);
    KVA_TILE_ZERO(3);
    for (uint32_t i = 0; i < dims; i += STEP) {
        KVA_TILE_LOAD(4, few.q + (size_t)i * KVA_TILE_ROWS, KVA_TILE_BYTES);
        KVA_TILE_LOAD(5, k[0] + (size_t)i * 4, strides[0]);
        KVA_TILE_DOT_BF16(0, 5, 4);
        KVA_TILE_LOAD(6, k[1] + (size_t)i * 4, strides[1]);
        KVA_TILE_DOT_BF16(1, 6, 4);
        KVA_TILE_LOAD(7, k[2] + (size_t)i * 4, strides[2]);
        KVA_TILE_DOT_BF16(2, 7, 4);
        KVA_TILE_LOAD(5, k[3] + (size_t)i * 4, strides[3]);
        KVA_TILE_DOT_BF16(3, 5, 4);
        prefetch(tile->ahead, STEP_LINES);
    }
    const size_t step = (size_t)TILE_TOKENS * KVA_TILE_ROWS;
    KVA_TILE_STORE(0, few.scores, KVA_TILE_BYTES);
    KVA_TILE_STORE(1, few.scores + step, KVA_TILE_BYTES);
    KVA_TILE_STORE(2, few.scores + 2 * step, KVA_TILE_BYTES);
    KVA_TILE_STORE(3, few.scores + 3 * step, KVA_TILE_BYTES);
    for (uint32_t n = 0; n < PAGE_TILES; n++) {
        float *scores = split->scores + tile->base + n * TILE_TOKENS;
        if (split->q_count <= 8)
            turn_scores(few.scores + n * step, 8, scores);
        else
            turn_scores(few.scores + n * step, 16, scores);
        prefetch(tile->ahead, STEP_LINES);
    }
}

/* --- values ----------------------------------------------------------------------------------- */

/* Bit i: element i is infinite or no number. */
INLINE __mmask32 not_finite(__m512i halves)
{
    return _mm512_cmpge_epu16_mask(_mm512_slli_epi16(halves, 1), _mm512_set1_epi16((short)0xFF00u));
}

/* What is not finite in pairs->v becomes 0. Returns whose it was: bit t is token t of the page. */
static uint64_t clean_values(const struct kva_cpu_attend_split *split, const struct pairs *pairs)
{
    const uint32_t chunks = (uint32_t)kva_div_up(split->head_dim, CHUNK_DIM);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < chunks * PAGE_PAIRS * 2; i++) {
        uint32_t *at = pairs->v + (size_t)i * VL, pair = i / 2 % PAGE_PAIRS;
        __m512i x = _mm512_loadu_si512(at);
        __mmask32 bad = not_finite(x);
        _mm512_storeu_si512(at, _mm512_maskz_mov_epi16(~bad, x));
        tokens |= (uint64_t)((bad & 0x55555555u) != 0) << 2 * pair;
        tokens |= (uint64_t)((bad & 0xAAAAAAAAu) != 0) << (2 * pair + 1);
    }
    return tokens;
}

/* Dimensions [i, i + 64) of `a`, or [i, i + 32). */
INLINE void value_tiles(const int vectors, const struct tile *tile, uint32_t i)
{
    const struct pairs *pairs = tile->pairs;
    const size_t width = kva_align_up(tile->split->head_dim, CHUNK_DIM);
    const ptrdiff_t stride = (ptrdiff_t)(width * sizeof *pairs->sums);
    const ptrdiff_t p_stride = KVA_ATTEND_SPLIT_TOKENS * sizeof(float);
    const ptrdiff_t v_stride = CHUNK_DIM * sizeof *pairs->v;
    const uint16_t *p = weights_of(tile->split, tile->query) + tile->base;
    float *sums = pairs->sums + tile->query * width + i;
    KVA_TILE_LOAD(0, sums, stride);
    KVA_TILE_LOAD(1, sums + VL, stride);
    if (vectors > 2) {
        KVA_TILE_LOAD(2, sums + 2 * VL, stride);
        KVA_TILE_LOAD(3, sums + 3 * VL, stride);
    }
    for (uint32_t pair = 0; pair < PAGE_PAIRS; pair += STEP) {
        const uint32_t *v = pairs->v + (size_t)i * PAGE_PAIRS + (size_t)pair * CHUNK_DIM;
        KVA_TILE_LOAD(4, p + (size_t)2 * pair, p_stride);
        KVA_TILE_LOAD(5, v, v_stride);
        KVA_TILE_DOT_BF16(0, 4, 5);
        KVA_TILE_LOAD(6, v + VL, v_stride);
        KVA_TILE_DOT_BF16(1, 4, 6);
        if (vectors > 2) {
            v += CHUNK_DIM * PAGE_PAIRS;
            KVA_TILE_LOAD(7, v, v_stride);
            KVA_TILE_DOT_BF16(2, 4, 7);
            KVA_TILE_LOAD(5, v + VL, v_stride);
            KVA_TILE_DOT_BF16(3, 4, 5);
        }
        prefetch(tile->ahead, STEP_LINES);
    }
    KVA_TILE_STORE(0, sums, stride);
    KVA_TILE_STORE(1, sums + VL, stride);
    if (vectors > 2) {
        KVA_TILE_STORE(2, sums + 2 * VL, stride);
        KVA_TILE_STORE(3, sums + 3 * VL, stride);
    }
}

static void value_tile(const struct tile *tile)
{
    uint32_t dim = tile->split->head_dim, i = 0;
    for (; i + CHUNK_DIM < dim; i += 2 * CHUNK_DIM)
        value_tiles(4, tile, i);
    if (i < dim)
        value_tiles(2, tile, i);
}

/* sums += weight * what is not finite of one vector of values, the even tokens or the odd ones. */
INLINE void add_not_finite(__m512i pairs, bool odd, float weight, float *sums)
{
    __m512i x = odd ? _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xFFFF0000u))
                    : _mm512_slli_epi32(pairs, 16);
    __mmask16 bad =
        _mm512_cmpge_epu32_mask(_mm512_slli_epi32(x, 1), _mm512_set1_epi32((int)0xFF000000u));
    v_store(sums, _mm512_mask3_fmadd_ps(_mm512_castsi512_ps(x), v_set(weight), v_load(sums), bad));
}

/* sums += what is not finite of slot `slot`, for the queries that see it. */
static void add_bad_values(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                           uint32_t slot)
{
    const size_t width = kva_align_up(split->head_dim, CHUNK_DIM);
    for (uint32_t j = 0; j < split->q_count; j++) {
        if (slot < split->slot_first[j] || slot >= split->slot_end[j])
            continue;
        float weight = kva_f32_of_16(weights_of(split, j)[slot], KVA_BF16);
        float *sums = pairs->sums + j * width;
        for (uint32_t i = 0; i < split->head_dim; i += CHUNK_DIM) {
            __m512i low, high;
            load_values(split, slot / 2, i, kva_min_u32(CHUNK_DIM, split->head_dim - i), &low,
                        &high);
            add_not_finite(low, slot % 2, weight, sums + i);
            add_not_finite(high, slot % 2, weight, sums + i + VL);
        }
    }
}

/* --- the split -------------------------------------------------------------------------------- */

/* Scores of all queries with the page of `tile`. */
static void score_page(struct tile tile)
{
    const uint32_t queries = tile_queries(tile.split->q_count);
    if (few_queries(tile.split)) {
        score_few(&tile);
        return;
    }
    pair_keys(tile.split, tile.pairs, tile.base, tile.ahead);
    for (; tile.query < tile.split->q_count; tile.query += queries) {
        if (sees_page(&tile, queries))
            score_tile(&tile);
    }
}

/* sums += the values of the page of `tile`. `clean`: those that are not finite are kept out of the
 * tiles. */
static void add_values(struct tile tile, bool clean)
{
    const uint32_t queries = tile_queries(tile.split->q_count);
    pair_values(tile.split, tile.pairs, tile.base, tile.ahead);
    uint64_t bad = clean ? clean_values(tile.split, tile.pairs) : 0;
    for (; tile.query < tile.split->q_count; tile.query += queries) {
        if (sees_page(&tile, queries))
            value_tile(&tile);
    }
    for (; bad; bad &= bad - 1)
        add_bad_values(tile.split, tile.pairs, tile.base + (uint32_t)__builtin_ctzll(bad));
}

static void attend(const struct kva_cpu_attend_split *split, const struct pairs *pairs, bool clean)
{
    const uint32_t first = split->slot_first[0], end = split->slot_end[split->q_count - 1];
    const uint32_t base = first / KVA_PAGE_TOKENS * KVA_PAGE_TOKENS;
    const uint32_t stop = (uint32_t)kva_align_up(end, KVA_PAGE_TOKENS);
    const bool holes = has_holes(split, first, end);
    struct ahead ahead = plan_ahead(split);
    struct tile tile = {.split = split, .pairs = pairs, .ahead = &ahead};
    begin(split, pairs);
    if (few_queries(split))
        transpose_queries(split, pairs);
    configure(split);
    for (tile.base = base; tile.base < stop; tile.base += KVA_PAGE_TOKENS)
        score_page(tile);
    for (uint32_t j = 0; j < split->q_count; j++)
        softmax_split(split, pairs, j, base, stop, holes, &ahead);
    for (tile.base = base; tile.base < stop; tile.base += KVA_PAGE_TOKENS)
        add_values(tile, clean);
    kva_tiles_release();
}

static bool sums_finite(const struct kva_cpu_attend_split *split, const struct pairs *pairs)
{
    const __m512i limit = _mm512_set1_epi32((int)0xFF000000u);
    size_t count = split->q_count * kva_align_up(split->head_dim, CHUNK_DIM);
    __mmask16 bad = 0;
    for (size_t i = 0; i < count; i += VL) {
        __m512i x = _mm512_slli_epi32(_mm512_loadu_si512(pairs->sums + i), 1);
        bad |= _mm512_cmpge_epu32_mask(x, limit);
    }
    return bad == 0;
}

void kva_attend_split_amx(const struct kva_cpu_attend_split *split)
{
    if (split->kv_dtype != KVA_BF16) {
        kva_attend_split_avx512(split);
        return;
    }
    const uint32_t dims = (uint32_t)kva_align_up(split->head_dim, CHUNK_DIM) / 2;
    const struct pairs pairs = pairs_of(split, dims);
    attend(split, &pairs, false);
    if (!sums_finite(split, &pairs))
        attend(split, &pairs, true);
    for (uint32_t j = 0; j < split->q_count; j++)
        finish_query(split, &pairs, j);
}
