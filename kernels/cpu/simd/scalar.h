/* scalar.h - functions of one number, for the reference kernels and for the few places where a
 * vector is not worth it. The vector levels have the same formulas with fused products. */
#ifndef KVA_KERNELS_CPU_SIMD_SCALAR_H
#define KVA_KERNELS_CPU_SIMD_SCALAR_H

#include "kernels/convert.h"

#include <math.h>

/* exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2. ln 2 is split so that n * HIGH is
 * exact. The polynomial is a minimax fit of (exp(r) - 1 - r) / r^2, relative error 3e-9. */
#define KVA_LOG2E    1.44269504f
#define KVA_LN2_HIGH 0.693359375f
#define KVA_LN2_LOW  (-2.12194440e-4f)
#define KVA_EXP_C2   4.999999345e-01f
#define KVA_EXP_C3   1.666652063e-01f
#define KVA_EXP_C4   4.166838811e-02f
#define KVA_EXP_C5   8.368717312e-03f
#define KVA_EXP_C6   1.381459658e-03f
#define KVA_EXP_MAX  88.7228390f  /* beyond: infinity */
#define KVA_EXP_MIN  -87.3365402f /* below: 0, as results would be under the smallest normal */

/* erfc(x) = exp(-x^2) P(t), t = 1 / (1 + 0.4 x), x >= 0: minimax fit on [0, 9.5], relative error
 * 6e-8; beyond, the result is 0 in fp32. */
#define KVA_ERFC_SCALE      0.4f
#define KVA_ERFC_C1         2.256262984e-01f
#define KVA_ERFC_C2         2.265757066e-01f
#define KVA_ERFC_C3         2.009586009e-01f
#define KVA_ERFC_C4         1.969629813e-01f
#define KVA_ERFC_C5         7.150836007e-02f
#define KVA_ERFC_C6         9.972958130e-02f
#define KVA_ERFC_C7         7.384208062e-02f
#define KVA_ERFC_C8         -1.354710302e-01f
#define KVA_ERFC_C9         4.026747864e-02f

#define KVA_SQRT_HALF       0.707106781f
#define KVA_GELU_TANH_SCALE 1.595769122f /* 2 sqrt(2 / pi) */
#define KVA_GELU_TANH_CUBE  0.044715f

/* Within 2 units in the last place; exp(0) is exactly 1; NaN gives NaN. */
static inline float kva_scalar_exp(float x)
{
    if (x > KVA_EXP_MAX)
        return INFINITY;
    if (x < KVA_EXP_MIN)
        return 0.0f;
    if (x != x)
        return x;
    float n = rintf(x * KVA_LOG2E);
    float r = (x - n * KVA_LN2_HIGH) - n * KVA_LN2_LOW;
    float p = KVA_EXP_C6;
    p = p * r + KVA_EXP_C5;
    p = p * r + KVA_EXP_C4;
    p = p * r + KVA_EXP_C3;
    p = p * r + KVA_EXP_C2;
    p = p * (r * r) + r + 1.0f;
    /* 2^n in two factors: n is up to 128, which no normal number has as its exponent. */
    int32_t whole = (int32_t)n;
    int32_t half = whole / 2;
    return p * kva_float_of_bits((uint32_t)(half + 127) << 23) *
           kva_float_of_bits((uint32_t)(whole - half + 127) << 23);
}

/* erfc(x), x >= 0. */
static inline float kva_scalar_erfc(float x)
{
    float t = 1.0f / (1.0f + KVA_ERFC_SCALE * x);
    float p = KVA_ERFC_C9;
    p = p * t + KVA_ERFC_C8;
    p = p * t + KVA_ERFC_C7;
    p = p * t + KVA_ERFC_C6;
    p = p * t + KVA_ERFC_C5;
    p = p * t + KVA_ERFC_C4;
    p = p * t + KVA_ERFC_C3;
    p = p * t + KVA_ERFC_C2;
    p = p * t + KVA_ERFC_C1;
    return p * t * kva_scalar_exp(-x * x);
}

#endif
