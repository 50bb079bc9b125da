/* bf16_tile.h - products of some queries with the keys of a page in pairs of bf16 (bf16_pairs.h), of level
 * avx512bf16. A score is one chain over the pairs of dimensions. */
#ifndef KVA_KERNELS_CPU_ATTEND_BF16_TILE_H
#define KVA_KERNELS_CPU_ATTEND_BF16_TILE_H

#include "kernels/cpu/attend/bf16_pairs.h"

/* Queries of a tile, and vectors of tokens (scores) or of dimensions (values): 16 sums, chains
 * enough for two instructions a cycle. */
#define TILE_QUERIES 8u
#define TILE_VECTORS 2u

#define TILE_TOKENS  (TILE_VECTORS * VL)

INLINE __m512bh broadcast(const void *pair)
{
    int bits;
    memcpy(&bits, pair, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

/* `few`: these are all queries there are, so that reading takes time and what comes next is
 * prefetched; with many queries, only where rows are rearranged. */
INLINE void score_tile(const int queries, const bool few, const uint32_t *q, uint32_t dims,
                       const uint32_t *k, struct ahead *ahead, float *scores)
{
    struct ahead next = *ahead;
    vf sums[TILE_QUERIES][TILE_VECTORS];
    for (int j = 0; j < queries; j++) {
        for (uint32_t n = 0; n < TILE_VECTORS; n++)
            sums[j][n] = v_zero();
    }
    for (uint32_t i = 0; i < dims; i++) {
        if (few)
            prefetch(&next, 1);
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
    static void score_few_##n(const uint32_t *q, uint32_t dims, const uint32_t *k,                 \
                              struct ahead *ahead, float *scores)                                  \
    {                                                                                              \
        score_tile(n, true, q, dims, k, ahead, scores);                                            \
    }                                                                                              \
    static void score_many_##n(const uint32_t *q, uint32_t dims, const uint32_t *k,                \
                               struct ahead *ahead, float *scores)                                 \
    {                                                                                              \
        score_tile(n, false, q, dims, k, ahead, scores);                                           \
    }
FOR_QUERIES(SCORE)

#define SCORE_FEW(n)  score_few_##n,
#define SCORE_MANY(n) score_many_##n,
static score_fn *const score_tiles[2][TILE_QUERIES] = {{FOR_QUERIES(SCORE_MANY)},
                                                       {FOR_QUERIES(SCORE_FEW)}};

/* Queries of a tile: as even a division as there is, since a small tile is a slow one. */
static uint32_t group_queries(uint32_t q_count)
{
    return (uint32_t)kva_div_up(q_count, kva_div_up(q_count, TILE_QUERIES));
}

#endif
