/* lanes.h - lanes as bits, for the bodies of low-bit KV; included after a simd header. */
#ifndef KVA_KERNELS_CPU_LOWBIT_LANES_H
#define KVA_KERNELS_CPU_LOWBIT_LANES_H

#define ALL_LANES ((uint32_t)((1ull << VL) - 1))

#ifdef __AVX512F__
/* The lesser; b if either is NaN. */
INLINE vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

/* The nearest whole number, even on a tie. */
INLINE vf v_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Bit i: a[i] >= b[i]. */
INLINE uint32_t v_not_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

/* Bit i: bit `bit` of the whole number x[i]. */
INLINE uint32_t v_bit_of(vf x, uint32_t bit)
{
    return _mm512_test_epi32_mask(_mm512_cvtps_epi32(x), _mm512_set1_epi32(1 << bit));
}

/* x where the bit is set, else 0. */
INLINE vf v_where(uint32_t bits, vf x)
{
    return _mm512_maskz_mov_ps((__mmask16)bits, x);
}
#else
INLINE vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

INLINE vf v_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE uint32_t v_not_less(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

INLINE uint32_t v_bit_of(vf x, uint32_t bit)
{
    __m256i shifted = _mm256_sllv_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(31 - (int)bit));
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(shifted));
}

INLINE vf v_where(uint32_t bits, vf x)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_and_si256(_mm256_set1_epi32((int)bits), lane);
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane)));
}
#endif

#endif
