/* quads.h - codes of low-bit KV as bytes, for the levels that compute with floats; included after a
 * simd header. A nibble of each plane holds four codes (kv_layout.h): they become the four bytes of a
 * dword, from which each number of a lane is shifted out. */
#ifndef KVA_KERNELS_CPU_LOWBIT_QUADS_H
#define KVA_KERNELS_CPU_LOWBIT_QUADS_H

#include <stdint.h>
#include <string.h>

/* Nibbles of one step: 64 codes, 8 bytes of every plane. */
#define QUADS 16u

/* The 8 bytes of a plane at `from`, or the first `bytes` of them and zeros. */
INLINE uint64_t plane_bits(const unsigned char *from, size_t bytes)
{
    uint64_t plane = 0;
    if (bytes == 8)
        memcpy(&plane, from, 8);
    else
        memcpy(&plane, from, bytes);
    return plane;
}

/* quads[i] = the four codes of nibble i; plane b's nibbles are at from + b * plane_bytes. */
#ifdef __AVX512F__
INLINE void expand_quads(const uint32_t bits, const unsigned char *from, size_t plane_bytes,
                         size_t bytes, uint32_t *quads)
{
    __m512i codes = _mm512_setzero_si512();
    for (uint32_t b = 0; b < bits; b++)
        codes =
            _mm512_mask_add_epi8(codes, _cvtu64_mask64(plane_bits(from + b * plane_bytes, bytes)),
                                 codes, _mm512_set1_epi8((char)(1 << b)));
    _mm512_storeu_si512(quads, codes);
}

/* Bytes `j` of VL dwords. */
INLINE vf quad_codes(const uint32_t *quads, const uint32_t j)
{
    __m512i x = _mm512_srli_epi32(_mm512_loadu_si512(quads), 8 * j);
    return _mm512_cvtepi32_ps(j == 3 ? x : _mm512_and_si512(x, _mm512_set1_epi32(255)));
}
#else
INLINE void expand_quads(const uint32_t bits, const unsigned char *from, size_t plane_bytes,
                         size_t bytes, uint32_t *quads)
{
    /* Byte i of 32 looks at bit i % 8 of byte i / 8 of four. */
    const __m256i byte =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    __m256i low = _mm256_setzero_si256(), high = low;
    for (uint32_t b = bits; b-- > 0;) {
        const uint64_t plane = plane_bits(from + b * plane_bytes, bytes);
        __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)(uint32_t)plane), byte);
        __m256i y = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)(uint32_t)(plane >> 32)), byte);
        x = _mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit); /* -1 where the bit is set */
        y = _mm256_cmpeq_epi8(_mm256_and_si256(y, bit), bit);
        low = _mm256_sub_epi8(_mm256_add_epi8(low, low), x);
        high = _mm256_sub_epi8(_mm256_add_epi8(high, high), y);
    }
    _mm256_storeu_si256((__m256i *)(void *)quads, low);
    _mm256_storeu_si256((__m256i *)(void *)(quads + VL), high);
}

INLINE vf quad_codes(const uint32_t *quads, const uint32_t j)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)quads);
    x = _mm256_srli_epi32(x, (int)(8 * j));
    return _mm256_cvtepi32_ps(j == 3 ? x : _mm256_and_si256(x, _mm256_set1_epi32(255)));
}
#endif

#endif
