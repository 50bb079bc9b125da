/* amx.c - attention over one split of low-bit pages, level amx: products of factors, as the rows of
 * one tile, and codes, whose bytes lie as the rows of another want them: four channels of 16
 * tokens, or four tokens of 16 channels. Sums of integers are exact, so the bits are those of level
 * avx512vnni. */
#include "kernels/cpu/simd/amx.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lowbit/bytes_body.h"

/* Tiles 0 to 3 are sums, one for each vector of lanes; 4 holds factors, 5 to 7 hold codes. */
#define FACTORS  4
#define STEP     (KVA_TILE_BYTES / 4) /* dwords of a row that one product takes */
#define ROWS_MAX (2 * KVA_TILE_ROWS)

_Static_assert(QUERIES *LIMBS_MAX <= ROWS_MAX, "rows come in two tiles at most");

/* Rows of a tile of factors: one tile, or two that are alike. */
INLINE uint32_t tile_rows(uint32_t rows)
{
    return rows <= KVA_TILE_ROWS ? rows : rows / 2;
}

static void tiles_begin(uint32_t rows)
{
    struct kva_tile_config config = {.palette = 1};
    for (uint32_t i = 0; i < KVA_TILES; i++) {
        config.row_bytes[i] = KVA_TILE_BYTES;
        config.rows[i] = (uint8_t)(i <= FACTORS ? tile_rows(rows) : KVA_TILE_ROWS);
    }
    kva_tiles_configure(&config);
}

static void tiles_end(void)
{
    kva_tiles_release();
}

/* Behind the last channel factors are 0, whatever lies where its codes would be. */
INLINE void int_tiles(const int vectors, const bool scores, const uint32_t limbs,
                      const struct tiles *t)
{
    const uint32_t rows = t->queries * limbs, tile = tile_rows(rows);
    for (uint32_t first = 0; first < rows; first += tile) {
        const int8_t *factors = t->factors + first * t->factors_stride;
        const uint8_t *codes = t->codes;
        KVA_TILE_ZERO(0);
        KVA_TILE_ZERO(1);
        KVA_TILE_ZERO(2);
        KVA_TILE_ZERO(3);
        for (uint32_t i = 0; i < t->count; i += STEP, codes += STEP * t->codes_stride) {
            KVA_TILE_LOAD(4, factors + (size_t)i * 4, t->factors_stride);
            KVA_TILE_LOAD(5, codes, t->codes_stride);
            KVA_TILE_DOT_SU(0, 4, 5);
            if (vectors > 1) {
                KVA_TILE_LOAD(6, codes + 64, t->codes_stride);
                KVA_TILE_DOT_SU(1, 4, 6);
            }
            if (vectors > 2) {
                KVA_TILE_LOAD(7, codes + 128, t->codes_stride);
                KVA_TILE_DOT_SU(2, 4, 7);
                KVA_TILE_LOAD(5, codes + 192, t->codes_stride);
                KVA_TILE_DOT_SU(3, 4, 5);
            }
        }
        KVA_TILE_STORE(0, t->sums[first], sizeof t->sums[first]);
        if (vectors > 1)
            KVA_TILE_STORE(1, t->sums[first] + VL, sizeof t->sums[first]);
        if (vectors > 2) {
            KVA_TILE_STORE(2, t->sums[first] + 2 * VL, sizeof t->sums[first]);
            KVA_TILE_STORE(3, t->sums[first] + 3 * VL, sizeof t->sums[first]);
        }
    }
    finish_all(vectors, scores, limbs, t);
}

LOWBIT_BYTES_TILES

void kva_lowbit_split_amx(const struct kva_cpu_lowbit_split *split)
{
    attend(split);
}
