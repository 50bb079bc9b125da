/* int8_512.h - vectors of 512 bits for int8_body.h, which it includes; included by
 * int8_avx512.c and int8_avx512vnni.c behind their products. */

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

#include "kernels/cpu/linear/int8_body.h"
