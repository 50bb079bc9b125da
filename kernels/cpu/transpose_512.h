/* transpose_512.h - 16 x 16 elements of 32 bits in 16 vectors, rows to columns. */
#ifndef KVA_KERNELS_CPU_TRANSPOSE_512_H
#define KVA_KERNELS_CPU_TRANSPOSE_512_H

#include <immintrin.h>

/* Element j of row i becomes element i of row j. */
static inline __attribute__((always_inline)) void kva_transpose_512(__m512i rows[16])
{
    __m512i t[16];
    /* Pairs of rows, then quads: each 128-bit lane then holds 4 rows' elements of one column. */
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
    /* Lane l of rows[4 q + c] has column 4 l + c of rows 4 q .. 4 q + 3: the 4 x 4 lanes of each c
     * change places. */
    for (int c = 0; c < 4; c++) {
        __m512i a = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);
        __m512i b = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
        __m512i d = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xDD);
        __m512i e = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xDD);
        t[c] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(a, b, 0xDD);
        t[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
        t[12 + c] = _mm512_shuffle_i32x4(d, e, 0xDD);
    }
    for (int i = 0; i < 16; i++)
        rows[i] = t[i];
}

#endif
