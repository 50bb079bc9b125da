/* avx512.h - vectors of 16 floats for the bodies that avx2 and avx512 share.
 *
 * avx2.h has the same names for 8. Functions ending in _n touch the first `n` < VL elements
 * only; the other lanes read as 0. */
#ifndef KVA_KERNELS_CPU_SIMD_AVX512_H
#define KVA_KERNELS_CPU_SIMD_AVX512_H

#include "kernels/cpu/simd/scalar.h"
#include "kernels/cpu/simd/transpose_512.h"

#include <immintrin.h>

#define VL     16u
#define INLINE static inline __attribute__((always_inline))

/* Register tiles: 24 sums, the operands and one to spare, of 32 registers. */
#define LINEAR_TILE_ROWS    6
#define LINEAR_TILE_OUTPUTS 4
#define ATTEND_TILE_QUERIES 6
#define ATTEND_TILE_VECTORS 4

/* Names of this level's kernels. */
#define LEVEL(name) name##_avx512

typedef __m512 vf;

INLINE __mmask16 v_mask(uint32_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

INLINE vf v_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE vf v_set(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vf v_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

INLINE vf v_load_n(const float *from, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), from);
}

INLINE void v_store(float *to, vf x)
{
    _mm512_storeu_ps(to, x);
}

INLINE void v_store_n(float *to, vf x, uint32_t n)
{
    _mm512_mask_storeu_ps(to, v_mask(n), x);
}

/* x with lanes from `n` on cleared. */
INLINE vf v_keep_n(vf x, uint32_t n)
{
    return _mm512_maskz_mov_ps(v_mask(n), x);
}

INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once. */
INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The greater; b if either is NaN. */
INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

INLINE vf v_abs(vf x)
{
    return _mm512_abs_ps(x);
}

/* x < 0 ? a : b */
INLINE vf v_if_negative(vf x, vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
}

INLINE float v_first(vf x)
{
    return _mm512_cvtss_f32(x);
}

/* Halves added until four lanes are left: the upper part of the tree of v_sum. */
INLINE __m128 v_fold(vf x)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

INLINE float v_largest(vf x)
{
    return _mm512_reduce_max_ps(x);
}

/* exp of each lane; scalar.h has the formula. */
INLINE vf v_exp(vf x)
{
    vf top = _mm512_min_ps(v_set(89.0f), x); /* keeps NaN */
    vf n = _mm512_roundscale_ps(v_mul(top, v_set(KVA_LOG2E)),
                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf r = _mm512_fnmadd_ps(n, v_set(KVA_LN2_HIGH), top);
    r = _mm512_fnmadd_ps(n, v_set(KVA_LN2_LOW), r);
    vf p = v_fma(v_set(KVA_EXP_C6), r, v_set(KVA_EXP_C5));
    p = v_fma(p, r, v_set(KVA_EXP_C4));
    p = v_fma(p, r, v_set(KVA_EXP_C3));
    p = v_fma(p, r, v_set(KVA_EXP_C2));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
    __mmask16 gone = _mm512_cmp_ps_mask(x, v_set(KVA_EXP_MIN), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), gone, v_zero());
}

/* 2^x for x <= 0, relative error 4e-6, for what is rounded to bf16 or to bytes; -inf gives 0, what
 * is not a number stays so. */
INLINE vf v_exp2(vf x)
{
    vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = v_fma(v_set(0.01342668429f), r, v_set(0.05224247419f));
    p = v_fma(p, r, v_set(0.2412802048f));
    p = v_fma(p, r, v_set(0.6930448449f));
    p = v_fma(p, r, v_set(1.0f));
    return _mm512_scalef_ps(p, x);
}

/* --- 16-bit formats --------------------------------------------------------------------------- */

INLINE vf v_of_bf16(__m256i halves)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

INLINE vf v_load_16(const uint16_t *from, enum kva_dtype dtype)
{
    __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)from);
    return dtype == KVA_BF16 ? v_of_bf16(halves) : _mm512_cvtph_ps(halves);
}

INLINE vf v_load_16_n(const uint16_t *from, enum kva_dtype dtype, uint32_t n)
{
    __m256i halves = _mm256_maskz_loadu_epi16(v_mask(n), from);
    return dtype == KVA_BF16 ? v_of_bf16(halves) : _mm512_cvtph_ps(halves);
}

/* VL signed bytes as floats. */
INLINE vf v_load_i8(const int8_t *from)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

INLINE __m256i v_to_bf16(vf x)
{
    const __m512i sign = _mm512_set1_epi32((int)0x80000000u);
    __m512i bits = _mm512_castps_si512(x);
    __m512i rest = _mm512_andnot_si512(sign, bits);
    __mmask16 nan = _mm512_cmpgt_epu32_mask(rest, _mm512_set1_epi32(0x7F800000));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(rest, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(rest, _mm512_set1_epi32(0x7FFF)), odd);
    rounded =
        _mm512_min_epu32(_mm512_srli_epi32(rounded, 16), _mm512_set1_epi32(KVA_BF16_MAX_BITS));
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(rest, 16), _mm512_set1_epi32(0x40));
    rounded = _mm512_mask_mov_epi32(rounded, nan, quiet);
    rounded = _mm512_or_si512(rounded, _mm512_srli_epi32(_mm512_and_si512(bits, sign), 16));
    return _mm512_cvtepi32_epi16(rounded);
}

INLINE __m256i v_to_f16(vf x)
{
    vf clamped = _mm512_min_ps(v_set(65504.0f), _mm512_max_ps(v_set(-65504.0f), x));
    return _mm512_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE void v_store_16(uint16_t *to, vf x, enum kva_dtype dtype)
{
    __m256i halves = dtype == KVA_BF16 ? v_to_bf16(x) : v_to_f16(x);
    _mm256_storeu_si256((__m256i *)(void *)to, halves);
}

INLINE void v_store_16_n(uint16_t *to, vf x, enum kva_dtype dtype, uint32_t n)
{
    __m256i halves = dtype == KVA_BF16 ? v_to_bf16(x) : v_to_f16(x);
    _mm256_mask_storeu_epi16(to, v_mask(n), halves);
}

/* --- keys, transposed ------------------------------------------------------------------------- */

INLINE vf v_low_half(__m512i pairs, enum kva_dtype dtype)
{
    if (dtype == KVA_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
}

INLINE vf v_high_half(__m512i pairs, enum kva_dtype dtype)
{
    if (dtype == KVA_BF16)
        return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xFFFF0000u)));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
}

/* to[i * stride + t] = element i < count <= 2 VL of token t < VL; absent tokens give 0. */
INLINE void v_transpose_16(const void *const *tokens, uint32_t first, uint32_t count,
                           enum kva_dtype dtype, float *to, size_t stride)
{
    __m512i rows[16];
    __mmask32 mask = count >= 32 ? 0xFFFFFFFFu : (1u << count) - 1u;
    for (int t = 0; t < 16; t++) {
        const uint16_t *from = tokens[t];
        rows[t] = from ? _mm512_maskz_loadu_epi16(mask, from + first) : _mm512_setzero_si512();
    }
    kva_transpose_512(rows);
    if (count == 32) {
        for (int i = 0; i < 16; i++) {
            v_store(to + (size_t)(2 * i) * stride, v_low_half(rows[i], dtype));
            v_store(to + (size_t)(2 * i + 1) * stride, v_high_half(rows[i], dtype));
        }
        return;
    }
    for (uint32_t i = 0; i < 16 && 2 * i < count; i++) {
        v_store(to + 2 * i * stride, v_low_half(rows[i], dtype));
        if (2 * i + 1 < count)
            v_store(to + (2 * i + 1) * stride, v_high_half(rows[i], dtype));
    }
}

#include "kernels/cpu/simd/common.h"

#endif
