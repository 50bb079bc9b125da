/* avx512bf16.c - attention over one split of level avx512bf16: bf16 keys and values against queries
 * and weights rounded to bf16, two products an instruction (vdpbf16ps), sums in fp32. f16 KV is
 * level avx512's.
 *
 * A score is one chain over the pairs of dimensions, an element of `a` one over pairs of tokens,
 * whose values lie side by side in registers for a few queries, in scratch for many.
 *
 * A query touches only values of tokens that it sees: of a pair it sees half of, the other half is
 * cleared, as what lies there may be no number. */
#include "kernels/cpu/attend/bf16.h"
#include "kernels/cpu/attend/bf16_tile.h"
#include "kernels/cpu/cpu.h"

/* --- scores ----------------------------------------------------------------------------------- */

static bool few_queries(const struct kva_cpu_attend_split *split)
{
    return split->q_count <= TILE_QUERIES;
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
            score_tiles[few_queries(split)][queries - 1](
                pairs->q + (size_t)j * pairs->dims, pairs->dims, pairs->k + t, ahead,
                split->scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + base + t);
        }
    }
}

/* --- values -------------------------------------------------------------------------------------
 */

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
        if (direct)
            prefetch(&next, 2);
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

/* sums += the values of the slots [base, stop): with few queries of any pages, straight from their
 * rows, with many of one page, in scratch. What all queries of a tile see whole is done at once;
 * what only some see, at either end of it, one by one. */
static void add_values(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                       uint32_t base, uint32_t stop, struct ahead *ahead)
{
    const bool direct = few_queries(split);
    const uint32_t group = group_queries(split->q_count), dim = split->head_dim;
    const uint32_t stride = (uint32_t)kva_align_up(dim, CHUNK_DIM);
    const uint32_t first = base / 2, end = stop / 2;
    if (!direct)
        pair_values(split, pairs, base, ahead);
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

/* --- the split ----------------------------------------------------------------------------------
 */

void kva_attend_split_avx512bf16(const struct kva_cpu_attend_split *split)
{
    if (split->kv_dtype != KVA_BF16) {
        kva_attend_split_avx512(split);
        return;
    }
    const struct pairs pairs = pairs_of(split, (split->head_dim + 1) / 2);
    const uint32_t first = split->slot_first[0], end = split->slot_end[split->q_count - 1];
    const bool holes = has_holes(split, first, end);
    const uint32_t base = first / KVA_PAGE_TOKENS * KVA_PAGE_TOKENS;
    const uint32_t stop = (uint32_t)kva_align_up(end, KVA_PAGE_TOKENS);
    struct ahead ahead = plan_ahead(split);
    begin(split, &pairs);
    for (uint32_t page = base; page < stop; page += KVA_PAGE_TOKENS) {
        pair_keys(split, &pairs, page, &ahead);
        score_page(split, &pairs, page, &ahead);
    }
    for (uint32_t j = 0; j < split->q_count; j++)
        softmax_split(split, &pairs, j, base, stop, holes, few_queries(split) ? &ahead : NULL);
    const uint32_t step = few_queries(split) ? stop - base : KVA_PAGE_TOKENS;
    for (uint32_t page = base; page < stop; page += step)
        add_values(split, &pairs, page, page + step, &ahead);
    for (uint32_t j = 0; j < split->q_count; j++)
        finish_query(split, &pairs, j);
}
