/* avx2.h - vectors of 8 floats; avx512.h says what each function does. */
#ifndef KVA_KERNELS_CPU_SIMD_AVX2_H
#define KVA_KERNELS_CPU_SIMD_AVX2_H

#include "kernels/cpu/simd/scalar.h"

#include <immintrin.h>

#define VL     8u
#define INLINE static inline __attribute__((always_inline))

/* Register tiles: 12 sums and their operands, of 16 registers. */
#define LINEAR_TILE_ROWS    4
#define LINEAR_TILE_OUTPUTS 3
#define ATTEND_TILE_QUERIES 6
#define ATTEND_TILE_VECTORS 2

#define LEVEL(name)         name##_avx2

typedef __m256 vf;

INLINE __m256i v_mask(uint32_t n)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lanes);
}

INLINE vf v_zero(void)
{
    return _mm256_setzero_ps();
}

INLINE vf v_set(float x)
{
    return _mm256_set1_ps(x);
}

INLINE vf v_load(const float *from)
{
    return _mm256_loadu_ps(from);
}

INLINE vf v_load_n(const float *from, uint32_t n)
{
    return _mm256_maskload_ps(from, v_mask(n));
}

INLINE void v_store(float *to, vf x)
{
    _mm256_storeu_ps(to, x);
}

INLINE void v_store_n(float *to, vf x, uint32_t n)
{
    _mm256_maskstore_ps(to, v_mask(n), x);
}

INLINE vf v_keep_n(vf x, uint32_t n)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(v_mask(n)));
}

INLINE vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

INLINE vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

INLINE vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

INLINE vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

INLINE vf v_abs(vf x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

INLINE vf v_if_negative(vf x, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}

INLINE float v_first(vf x)
{
    return _mm256_cvtss_f32(x);
}

INLINE __m128 v_fold(vf x)
{
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

INLINE float v_largest(vf x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

INLINE vf v_exp(vf x)
{
    vf top = _mm256_min_ps(v_set(89.0f), _mm256_max_ps(v_set(-88.0f), x)); /* keeps NaN */
    vf n = _mm256_round_ps(v_mul(top, v_set(KVA_LOG2E)),
                           _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf r = _mm256_fnmadd_ps(n, v_set(KVA_LN2_HIGH), top);
    r = _mm256_fnmadd_ps(n, v_set(KVA_LN2_LOW), r);
    vf p = v_fma(v_set(KVA_EXP_C6), r, v_set(KVA_EXP_C5));
    p = v_fma(p, r, v_set(KVA_EXP_C4));
    p = v_fma(p, r, v_set(KVA_EXP_C3));
    p = v_fma(p, r, v_set(KVA_EXP_C2));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
    /* 2^n in two factors: n is up to 128, which no normal number has as its exponent. */
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i whole = _mm256_cvtps_epi32(n);
    __m256i half = _mm256_srai_epi32(whole, 1);
    __m256i rest = _mm256_sub_epi32(whole, half);
    vf y = v_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    y = v_mul(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
    vf gone = _mm256_cmp_ps(x, v_set(KVA_EXP_MIN), _CMP_LT_OQ);
    return _mm256_andnot_ps(gone, y);
}

/* --- 16-bit formats --------------------------------------------------------------------------- */

INLINE vf v_of_16(__m128i halves, enum kva_dtype dtype)
{
    if (dtype == KVA_F16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

INLINE vf v_load_16(const uint16_t *from, enum kva_dtype dtype)
{
    return v_of_16(_mm_loadu_si128((const __m128i *)(const void *)from), dtype);
}

INLINE vf v_load_16_n(const uint16_t *from, enum kva_dtype dtype, uint32_t n)
{
    uint16_t halves[8] = {0};
    for (uint32_t i = 0; i < n; i++)
        halves[i] = from[i];
    return v_of_16(_mm_loadu_si128((const __m128i *)(const void *)halves), dtype);
}

INLINE vf v_load_i8(const int8_t *from)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)from);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

INLINE __m128i v_to_bf16(vf x)
{
    const __m256i rest_mask = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i bits = _mm256_castps_si256(x);
    __m256i rest = _mm256_and_si256(bits, rest_mask);
    __m256i nan = _mm256_cmpgt_epi32(rest, _mm256_set1_epi32(0x7F800000));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(rest, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(rest, _mm256_set1_epi32(0x7FFF)), odd);
    rounded =
        _mm256_min_epu32(_mm256_srli_epi32(rounded, 16), _mm256_set1_epi32(KVA_BF16_MAX_BITS));
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(rest, 16), _mm256_set1_epi32(0x40));
    rounded = _mm256_blendv_epi8(rounded, quiet, nan);
    rounded = _mm256_or_si256(rounded, _mm256_srli_epi32(_mm256_andnot_si256(rest_mask, bits), 16));
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

INLINE __m128i v_to_16(vf x, enum kva_dtype dtype)
{
    if (dtype == KVA_BF16)
        return v_to_bf16(x);
    vf clamped = _mm256_min_ps(v_set(65504.0f), _mm256_max_ps(v_set(-65504.0f), x));
    return _mm256_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE void v_store_16(uint16_t *to, vf x, enum kva_dtype dtype)
{
    _mm_storeu_si128((__m128i *)(void *)to, v_to_16(x, dtype));
}

INLINE void v_store_16_n(uint16_t *to, vf x, enum kva_dtype dtype, uint32_t n)
{
    uint16_t halves[8];
    v_store_16(halves, x, dtype);
    for (uint32_t i = 0; i < n; i++)
        to[i] = halves[i];
}

/* --- keys, transposed ------------------------------------------------------------------------- */

/* rows[i] <- column i of the 8 x 8 matrix of dwords. */
INLINE void transpose(__m256i rows[8])
{
    __m256i t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        rows[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        rows[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        rows[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        rows[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        rows[i] = t[i];
}

INLINE __m128i low_words(__m256i pairs)
{
    __m256i words = _mm256_and_si256(pairs, _mm256_set1_epi32(0xFFFF));
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

INLINE vf v_low_half(__m256i pairs, enum kva_dtype dtype)
{
    if (dtype == KVA_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    return _mm256_cvtph_ps(low_words(pairs));
}

INLINE vf v_high_half(__m256i pairs, enum kva_dtype dtype)
{
    if (dtype == KVA_BF16)
        return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xFFFF0000u)));
    return _mm256_cvtph_ps(low_words(_mm256_srli_epi32(pairs, 16)));
}

INLINE __m256i load_words_n(const uint16_t *from, uint32_t n)
{
    uint16_t words[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        words[i] = from[i];
    return _mm256_loadu_si256((const __m256i *)(const void *)words);
}

INLINE void v_transpose_16(const void *const *tokens, uint32_t first, uint32_t count,
                           enum kva_dtype dtype, float *to, size_t stride)
{
    __m256i rows[8];
    for (int t = 0; t < 8; t++) {
        const uint16_t *from = tokens[t];
        if (!from)
            rows[t] = _mm256_setzero_si256();
        else if (count == 16)
            rows[t] = _mm256_loadu_si256((const __m256i *)(const void *)(from + first));
        else
            rows[t] = load_words_n(from + first, count);
    }
    transpose(rows);
    for (uint32_t i = 0; i < 8 && 2 * i < count; i++) {
        v_store(to + 2 * i * stride, v_low_half(rows[i], dtype));
        if (2 * i + 1 < count)
            v_store(to + (2 * i + 1) * stride, v_high_half(rows[i], dtype));
    }
}

#include "kernels/cpu/simd/common.h"

#endif
