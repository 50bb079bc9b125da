/* common.h - what avx2.h and avx512.h build alike from their own functions; included
 * by them only. */
#ifndef KVA_KERNELS_CPU_SIMD_COMMON_H
#define KVA_KERNELS_CPU_SIMD_COMMON_H

/* Four sums at once, each by the tree of v_sum. */
INLINE __m128 v_sum4(vf a, vf b, vf c, vf d)
{
    __m128 r0 = v_fold(a), r1 = v_fold(b), r2 = v_fold(c), r3 = v_fold(d);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    return _mm_add_ps(_mm_add_ps(r0, r2), _mm_add_ps(r1, r3));
}

/* The lanes added by a tree: halves until four are left, then (0 + 2) + (1 + 3). */
INLINE float v_sum(vf x)
{
    __m128 four = v_fold(x);
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Elements of any format as floats. */
INLINE vf v_load_any(const void *from, enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? v_load(from) : v_load_16(from, dtype);
}

INLINE vf v_load_any_n(const void *from, enum kva_dtype dtype, uint32_t n)
{
    return dtype == KVA_F32 ? v_load_n(from, n) : v_load_16_n(from, dtype, n);
}

/* exp of one number, the bits that v_exp gives. */
INLINE float v_exp_first(float x)
{
    return v_first(v_exp(v_set(x)));
}

/* erfc(x), x >= 0; scalar.h has the formula. */
INLINE vf v_erfc(vf x)
{
    vf t = v_div(v_set(1.0f), v_fma(v_set(KVA_ERFC_SCALE), x, v_set(1.0f)));
    vf p = v_fma(v_set(KVA_ERFC_C9), t, v_set(KVA_ERFC_C8));
    p = v_fma(p, t, v_set(KVA_ERFC_C7));
    p = v_fma(p, t, v_set(KVA_ERFC_C6));
    p = v_fma(p, t, v_set(KVA_ERFC_C5));
    p = v_fma(p, t, v_set(KVA_ERFC_C4));
    p = v_fma(p, t, v_set(KVA_ERFC_C3));
    p = v_fma(p, t, v_set(KVA_ERFC_C2));
    p = v_fma(p, t, v_set(KVA_ERFC_C1));
    return v_mul(v_mul(p, t), v_exp(v_sub(v_zero(), v_mul(x, x))));
}

#endif
