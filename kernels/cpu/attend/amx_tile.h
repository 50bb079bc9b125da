/* amx_tile.h - scores of a tile of queries with a page in pairs of bf16 (bf16_pairs.h), of level
 * amx: what attention and the mass of tokens (keep) share, so that a score is the same number. It is
 * a sum over blocks of 32 dimensions, ascending; amx.h says how a block is summed. */
#ifndef KVA_KERNELS_CPU_ATTEND_AMX_TILE_H
#define KVA_KERNELS_CPU_ATTEND_AMX_TILE_H

#include "kernels/cpu/attend/bf16_pairs.h"
#include "kernels/cpu/simd/amx.h"

/* Tiles 0 to 3 are sums; 4 holds queries or weights, 5 to 7 hold keys or values. */
#define LEFT 4

/* Pairs of inputs that one product takes. */
#define STEP (KVA_TILE_BYTES / 4)

/* Cache lines prefetched by four products. */
#define STEP_LINES 8

/* Queries of a tile: as even a division as there is. Rows behind the last query hold anything. */
static uint32_t tile_queries(uint32_t q_count)
{
    return (uint32_t)kva_div_up(q_count, kva_div_up(q_count, KVA_TILE_ROWS));
}

static void configure_tiles(uint32_t queries)
{
    struct kva_tile_config config = {.palette = 1};
    for (uint32_t i = 0; i < KVA_TILES; i++) {
        config.row_bytes[i] = KVA_TILE_BYTES;
        config.rows[i] = (uint8_t)(i <= LEFT ? queries : KVA_TILE_ROWS);
    }
    kva_tiles_configure(&config);
}

/* scores [queries][KVA_ATTEND_SPLIT_TOKENS] of the queries q [queries][dims] with a page's keys k
 * [dims][KVA_PAGE_TOKENS], as many as the tiles are configured for; dims are whole steps. */
INLINE void score_page_tile(const uint32_t *q, const uint32_t *k, uint32_t dims,
                            struct ahead *ahead, float *scores)
{
    const ptrdiff_t q_stride = dims * (ptrdiff_t)sizeof *q;
    const ptrdiff_t k_stride = KVA_PAGE_TOKENS * sizeof *k;
    const ptrdiff_t stride = KVA_ATTEND_SPLIT_TOKENS * sizeof(float);
    KVA_TILE_ZERO(0);
    KVA_TILE_ZERO(1);
    KVA_TILE_ZERO(2);
    KVA_TILE_ZERO(3);
    for (uint32_t i = 0; i < dims; i += STEP, k += STEP * KVA_PAGE_TOKENS) {
        KVA_TILE_LOAD(4, q + i, q_stride);
        KVA_TILE_LOAD(5, k, k_stride);
        KVA_TILE_DOT_BF16(0, 4, 5);
        KVA_TILE_LOAD(6, k + VL, k_stride);
        KVA_TILE_DOT_BF16(1, 4, 6);
        KVA_TILE_LOAD(7, k + 2 * VL, k_stride);
        KVA_TILE_DOT_BF16(2, 4, 7);
        KVA_TILE_LOAD(5, k + 3 * VL, k_stride);
        KVA_TILE_DOT_BF16(3, 4, 5);
        prefetch(ahead, STEP_LINES);
    }
    KVA_TILE_STORE(0, scores, stride);
    KVA_TILE_STORE(1, scores + VL, stride);
    KVA_TILE_STORE(2, scores + 2 * VL, stride);
    KVA_TILE_STORE(3, scores + 3 * VL, stride);
}

#endif
