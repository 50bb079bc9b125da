/* Attention over one split of level amx: bf16 keys and values against queries and weights rounded
 * to bf16, in tiles. f16 KV is level avx512's.
 *
 * Scores are products of a tile of queries, 32 dimensions a row, and of a page's transposed keys,
 * whose rows are pairs of dimensions of 16 tokens; `a` is made of a tile of weights, 32 tokens a
 * row, and of the page's values, whose rows are pairs of tokens. A score is a sum over blocks of 32
 * dimensions, an element of `a` one over blocks of 32 tokens, ascending; amx.h says how a block is
 * summed.
 *
 * All queries of a tile meet all tokens of a page: what one does not see has the weight 0. So that
 * this is nothing whatever lies there, values that are no finite numbers are left out of the tiles
 * and added one by one, page by page, for queries that see them. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/attend_bf16.h"
#include "kernels/cpu/kernels_amx.h"
#include "kernels/cpu/kernels_avx512.h"

/* Tiles 0 to 3 are sums; 4 holds queries or weights, 5 to 7 hold keys or values. */
#define LEFT 4

/* Pairs of inputs that one product takes, and about how many cycles it does. */
#define STEP         (KVA_TILE_BYTES / 4)
#define COST_PRODUCT 16u

/* Queries of a tile: as even a division as there is. Rows behind the last query hold anything. */
static uint32_t tile_queries(uint32_t q_count)
{
    return (uint32_t)kva_div_up(q_count, kva_div_up(q_count, KVA_TILE_ROWS));
}

static void configure(uint32_t queries)
{
    struct kva_tile_config config = {.palette = 1};
    for (uint32_t i = 0; i < KVA_TILES; i++) {
        config.row_bytes[i] = KVA_TILE_BYTES;
        config.rows[i] = (uint8_t)(i <= LEFT ? queries : KVA_TILE_ROWS);
    }
    kva_tiles_configure(&config);
}

/* The tile of queries from `query` on, and whether any of them sees a slot of a page. */
struct tile {
    const struct kva_cpu_attend_split *split;
    const struct pairs *pairs;
    uint32_t query;
    uint32_t base; /* the page's first slot */
    struct ahead *ahead;
};

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
    const ptrdiff_t q_stride = pairs->dims * (ptrdiff_t)sizeof *pairs->q;
    const ptrdiff_t k_stride = KVA_PAGE_TOKENS * sizeof *pairs->k;
    const ptrdiff_t stride = KVA_ATTEND_SPLIT_TOKENS * sizeof(float);
    const uint32_t *q = pairs->q + (size_t)tile->query * pairs->dims;
    float *scores =
        tile->split->scores + (size_t)tile->query * KVA_ATTEND_SPLIT_TOKENS + tile->base;
    KVA_TILE_ZERO(0);
    KVA_TILE_ZERO(1);
    KVA_TILE_ZERO(2);
    KVA_TILE_ZERO(3);
    for (uint32_t i = 0; i < pairs->dims; i += STEP) {
        const uint32_t *k = pairs->k + (size_t)i * KVA_PAGE_TOKENS;
        KVA_TILE_LOAD(4, q + i, q_stride);
        KVA_TILE_LOAD(5, k, k_stride);
        KVA_TILE_DOT_BF16(0, 4, 5);
        KVA_TILE_LOAD(6, k + VL, k_stride);
        KVA_TILE_DOT_BF16(1, 4, 6);
        KVA_TILE_LOAD(7, k + 2 * VL, k_stride);
        KVA_TILE_DOT_BF16(2, 4, 7);
        KVA_TILE_LOAD(5, k + 3 * VL, k_stride);
        KVA_TILE_DOT_BF16(3, 4, 5);
        prefetch(tile->ahead, 4 * COST_PRODUCT);
    }
    KVA_TILE_STORE(0, scores, stride);
    KVA_TILE_STORE(1, scores + VL, stride);
    KVA_TILE_STORE(2, scores + 2 * VL, stride);
    KVA_TILE_STORE(3, scores + 3 * VL, stride);
}

/* --- values ----------------------------------------------------------------------------------- */

/* Bit i: element i is infinite or no number. */
INLINE __mmask32 not_finite(__m512i halves)
{
    return _mm512_cmpge_epu16_mask(_mm512_slli_epi16(halves, 1), _mm512_set1_epi16((short)0xFF00u));
}

/* What is not finite in pairs->v becomes 0. Returns whose it was: bit t is token t of the page. */
static uint64_t clean_values(const struct pairs *pairs, uint32_t chunks)
{
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

/* pairs->v = the finite values of the page from slot `base` on, 0 in place of others. Returns the
 * tokens that have others, as bits. */
static uint64_t pair_values(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                            uint32_t base, struct ahead *ahead)
{
    uint32_t *v = pairs->v, chunks = 0;
    __m512i most = _mm512_setzero_si512();
    struct ahead next = *ahead;
    for (uint32_t i = 0; i < split->head_dim; i += CHUNK_DIM, chunks++) {
        uint32_t count = kva_min_u32(CHUNK_DIM, split->head_dim - i);
        for (uint32_t pair = base / 2; pair < base / 2 + PAGE_PAIRS; pair++, v += CHUNK_DIM) {
            __m512i low, high;
            load_values(split, pair, i, count, &low, &high);
            _mm512_storeu_si512(v, low);
            _mm512_storeu_si512(v + VL, high);
            most = _mm512_max_epu16(most, _mm512_slli_epi16(low, 1));
            most = _mm512_max_epu16(most, _mm512_slli_epi16(high, 1));
            prefetch(&next, COST_UNPACK);
        }
    }
    *ahead = next;
    if (_mm512_cmpge_epu16_mask(most, _mm512_set1_epi16((short)0xFF00u)) == 0)
        return 0;
    return clean_values(pairs, chunks);
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
        prefetch(tile->ahead, (uint32_t)vectors * COST_PRODUCT);
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

/* About how many cycles a page takes. */
static uint32_t page_cycles(const struct kva_cpu_attend_split *split)
{
    const uint32_t chunks = (uint32_t)kva_div_up(split->head_dim, CHUNK_DIM);
    uint32_t products = (uint32_t)kva_div_up(split->q_count, KVA_TILE_ROWS) * chunks * 8;
    uint32_t cycles =
        KVA_PAGE_TOKENS / VL * (chunks * COST_TRANSPOSE + split->q_count * COST_SOFTEN);
    return cycles + PAGE_PAIRS * chunks * COST_UNPACK + products * COST_PRODUCT;
}

static void fold_page(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                      uint32_t base, bool holes)
{
    const uint32_t queries = tile_queries(split->q_count);
    struct ahead ahead = plan_ahead(split, base, page_cycles(split));
    struct tile tile = {.split = split, .pairs = pairs, .base = base, .ahead = &ahead};
    pair_keys(split, pairs, base, &ahead);
    for (tile.query = 0; tile.query < split->q_count; tile.query += queries) {
        if (sees_page(&tile, queries))
            score_tile(&tile);
    }
    for (uint32_t j = 0; j < split->q_count; j++)
        soften(split, pairs, j, base, holes, &ahead);
    uint64_t bad = pair_values(split, pairs, base, &ahead);
    for (tile.query = 0; tile.query < split->q_count; tile.query += queries) {
        if (sees_page(&tile, queries))
            value_tile(&tile);
    }
    for (; bad; bad &= bad - 1)
        add_bad_values(split, pairs, base + (uint32_t)__builtin_ctzll(bad));
}

void kva_attend_split_amx(const struct kva_cpu_attend_split *split)
{
    if (split->kv_dtype != KVA_BF16) {
        kva_attend_split_avx512(split);
        return;
    }
    const uint32_t dims = (uint32_t)kva_align_up(split->head_dim, CHUNK_DIM) / 2;
    const struct pairs pairs = pairs_of(split, dims);
    const uint32_t first = split->slot_first[0], end = split->slot_end[split->q_count - 1];
    const bool holes = has_holes(split, first, end);
    begin(split, &pairs);
    configure(tile_queries(split->q_count));
    for (uint32_t base = first / KVA_PAGE_TOKENS * KVA_PAGE_TOKENS; base < end;
         base += KVA_PAGE_TOKENS)
        fold_page(split, &pairs, base, holes);
    kva_tiles_release();
    for (uint32_t j = 0; j < split->q_count; j++)
        finish_query(split, &pairs, j);
}
