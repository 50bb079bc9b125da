/* bytes_vnni.h - tiles of bytes_body.h by AVX512-VNNI: four products of bytes and their sum are one
 * instruction, for 16 lanes of codes and a broadcast factor. Whoever includes it has LOWBIT_BYTES_TILES
 * and `attend`. */
#ifndef KVA_KERNELS_CPU_LOWBIT_BYTES_VNNI_H
#define KVA_KERNELS_CPU_LOWBIT_BYTES_VNNI_H

#include "kernels/cpu/lowbit/bytes_body.h"

/* Queries of a register tile of 4 vectors: 24 sums, the codes and the broadcast factor. */
#define TILE_QUERIES 6

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

/* The sums of query `j`, or of the limb of one. */
INLINE void strip_end(const int vectors, const bool scores, const uint32_t limbs,
                      const struct tiles *t, uint32_t j, const struct strip *sums)
{
    const vi all[4] = {sums->a, sums->b, sums->c, sums->d};
    vf top = scores && limbs == 1 ? v_load(t->tops[j]) : v_zero();
    for (uint32_t v = 0; v < (uint32_t)vectors; v++) {
        if (limbs == 1)
            finish(t, scores, j, v, (__m512i)all[v], &top);
        else
            _mm512_store_si512(t->sums[j] + v * VL, (__m512i)all[v]);
    }
    if (scores && limbs == 1)
        v_store(t->tops[j], top);
}

/* Rows of factors from `first` on. */
INLINE void int_tile(const int queries, const int vectors, const bool scores, const uint32_t limbs,
                     const struct tiles *t, uint32_t first)
{
    struct strip s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, x = {0};
    const uint8_t *codes = t->codes;
    const size_t stride = t->factors_stride;
    const int8_t *factor = t->factors + first * stride;
    for (uint32_t i = 0; i < t->count; i++, codes += t->codes_stride, factor += 4) {
        x.a = load_codes(codes);
        if (vectors > 1)
            x.b = load_codes(codes + 64);
        if (vectors > 2) {
            x.c = load_codes(codes + 128);
            x.d = load_codes(codes + 192);
        }
        strip_add(vectors, &s0, &x, factor);
        if (queries > 1)
            strip_add(vectors, &s1, &x, factor + stride);
        if (queries > 2)
            strip_add(vectors, &s2, &x, factor + 2 * stride);
        if (queries > 3)
            strip_add(vectors, &s3, &x, factor + 3 * stride);
        if (queries > 4)
            strip_add(vectors, &s4, &x, factor + 4 * stride);
        if (queries > 5)
            strip_add(vectors, &s5, &x, factor + 5 * stride);
    }
    const struct strip all[TILE_QUERIES] = {s0, s1, s2, s3, s4, s5};
    for (uint32_t j = 0; j < (uint32_t)queries; j++)
        strip_end(vectors, scores, limbs, t, first + j, &all[j]);
}

/* Any number of queries, in tiles as even as can be. */
INLINE void int_tiles(const int vectors, const bool scores, const uint32_t limbs,
                      const struct tiles *t)
{
    const uint32_t rows = t->queries * limbs;
    const uint32_t tile = (uint32_t)kva_div_up(rows, kva_div_up(rows, TILE_QUERIES));
    for (uint32_t j = 0; j < rows; j += tile) {
#define TILE(q) int_tile(q, vectors, scores, limbs, t, j)
        switch (kva_min_u32(tile, rows - j)) {
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
    if (limbs == 2)
        finish_all(vectors, scores, 2, t);
}

static void tiles_begin(uint32_t rows KVA_UNUSED)
{
}

static void tiles_end(void)
{
}

LOWBIT_BYTES_TILES

#endif
