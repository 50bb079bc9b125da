/* transpose_512.h - 16 x 16 elements of 32 bits in 16 vectors, rows to columns. */
#ifndef KVA_KERNELS_CPU_SIMD_TRANSPOSE_512_H
#define KVA_KERNELS_CPU_SIMD_TRANSPOSE_512_H

#include <immintrin.h>

/* Element j of row i becomes element i of row j. */
static inline __attribute__((always_inline)) void kva_transpose_512(__m512i rows[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    /* rows[4 g + j], lane group l = rows 4 g .. 4 g + 3 of column 4 l + j. */
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xDD);
    }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
        rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
}

#endif
