/* cuda_fp16.h - conversions, on the host. */
#ifndef KVA_TESTS_CUDA_FP16_H
#define KVA_TESTS_CUDA_FP16_H

#include <cstring>

struct __half {
    unsigned short bits;
};

inline __half __float2half_rn(float x)
{
    unsigned u;
    memcpy(&u, &x, 4);
    unsigned sign = u >> 16 & 0x8000u, size = u & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return {0x7FFF};
    if (size >= 0x477FF000u) /* 65520: what rounds beyond the largest */
        return {(unsigned short)(sign | 0x7C00u)};
    if (size < 0x38800000u) { /* below the normal numbers: the sum is rounded to their step */
        float sum;
        memcpy(&sum, &size, 4);
        sum += 0.5f;
        memcpy(&size, &sum, 4);
        return {(unsigned short)(sign | (size - 0x3F000000u))};
    }
    size += 0xC8000FFFu + (size >> 13 & 1u); /* another exponent; half a step, or a hair less */
    return {(unsigned short)(sign | size >> 13)};
}
inline float __half2float(__half x)
{
    unsigned exponent = x.bits >> 10 & 31u, mantissa = x.bits & 0x3FFu, u;
    float value;
    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f;
        return x.bits & 0x8000u ? -value : value;
    }
    u = (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | mantissa << 13;
    u |= (x.bits & 0x8000u) << 16;
    memcpy(&value, &u, 4);
    return value;
}
inline unsigned short __half_as_ushort(__half x)
{
    return x.bits;
}
inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}

#endif
