/* cuda_fp16.h - conversions, on the host. */
#ifndef KVA_TESTS_CUDA_FP16_H
#define KVA_TESTS_CUDA_FP16_H

#include <cstring>

struct __half {
    _Float16 value;
};

inline __half __float2half_rn(float x)
{
    return {(_Float16)x};
}
inline float __half2float(__half x)
{
    return (float)x.value;
}
inline unsigned short __half_as_ushort(__half x)
{
    unsigned short bits;
    memcpy(&bits, &x.value, 2);
    return bits;
}
inline __half __ushort_as_half(unsigned short bits)
{
    __half x;
    memcpy(&x.value, &bits, 2);
    return x;
}

#endif
