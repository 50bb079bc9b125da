/* score_tile.h - products of some queries with the keys of a page, transposed to floats
 * [head_dim, 64], of the vector levels; included after a simd header. A score is one chain over
 * head_dim. */
#ifndef KVA_KERNELS_CPU_ATTEND_SCORE_TILE_H
#define KVA_KERNELS_CPU_ATTEND_SCORE_TILE_H

#include "kernels/cpu/cpu.h"

/* Tokens of a tile. */
#define TILE_TOKENS (ATTEND_TILE_VECTORS * VL)

INLINE void score_tile(const int queries, const float *q, uint32_t head_dim, const float *k,
                       float *scores)
{
    vf sums[ATTEND_TILE_QUERIES][ATTEND_TILE_VECTORS];
    for (int j = 0; j < queries; j++) {
        for (int n = 0; n < ATTEND_TILE_VECTORS; n++)
            sums[j][n] = v_zero();
    }
    for (uint32_t i = 0; i < head_dim; i++) {
        vf keys[ATTEND_TILE_VECTORS];
        for (int n = 0; n < ATTEND_TILE_VECTORS; n++)
            keys[n] = v_load(k + (size_t)i * KVA_PAGE_TOKENS + (uint32_t)n * VL);
        for (int j = 0; j < queries; j++) {
            vf x = v_set(q[(size_t)j * head_dim + i]);
            for (int n = 0; n < ATTEND_TILE_VECTORS; n++)
                sums[j][n] = v_fma(x, keys[n], sums[j][n]);
        }
    }
    for (int j = 0; j < queries; j++) {
        for (int n = 0; n < ATTEND_TILE_VECTORS; n++)
            v_store(scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + (uint32_t)n * VL, sums[j][n]);
    }
}

static void score_queries(uint32_t queries, const float *q, uint32_t head_dim, const float *k,
                          float *scores)
{
    switch (queries) {
    case 1:
        score_tile(1, q, head_dim, k, scores);
        break;
    case 2:
        score_tile(2, q, head_dim, k, scores);
        break;
    case 3:
        score_tile(3, q, head_dim, k, scores);
        break;
    case 4:
        score_tile(4, q, head_dim, k, scores);
        break;
    case 5:
        score_tile(5, q, head_dim, k, scores);
        break;
    default:
        score_tile(6, q, head_dim, k, scores);
        break;
    }
}

/* Queries of a tile: as even a division as there is, since a small tile is a slow one. */
INLINE uint32_t group_queries(uint32_t q_count)
{
    return (uint32_t)kva_div_up(q_count, kva_div_up(q_count, ATTEND_TILE_QUERIES));
}

#endif
