/* packed_512.h - vectors of 512 bits for packed_body.h, which it includes; included by
 * packed_avx512.c and packed_avx512vnni.c behind their products. */

INLINE vi broadcast_four(const int8_t *from)
{
    int32_t four;
    memcpy(&four, from, sizeof(four));
    return _mm512_set1_epi32(four);
}

INLINE vi broadcast_int(int32_t x)
{
    return _mm512_set1_epi32(x);
}

INLINE vi add_ints(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

INLINE vf float_of_ints(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

/* --- codes and scales as they are stored ------------------------------------------------------- */

INLINE vi load_bytes(const uint8_t *from)
{
    return _mm512_loadu_si512(from);
}

INLINE void store_bytes(uint8_t *to, vi x)
{
    _mm512_store_si512(to, x);
}

/* Of numbers of 16 bits. */
INLINE vi shift_right(vi x, const int bits)
{
    return _mm512_srl_epi16(x, _mm_cvtsi32_si128(bits));
}

INLINE vi shift_left(vi x, const int bits)
{
    return _mm512_sll_epi16(x, _mm_cvtsi32_si128(bits));
}

INLINE vi and_bytes(vi x, uint8_t mask)
{
    return _mm512_and_si512(x, _mm512_set1_epi8((char)mask));
}

INLINE vi or_bytes(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

INLINE vf load_halves(const uint8_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
}

INLINE vi load_signed(const uint8_t *from)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
}

INLINE vi load_unsigned(const uint8_t *from)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
}

#include "kernels/cpu/linear/packed_body.h"
