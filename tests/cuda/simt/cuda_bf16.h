/* cuda_bf16.h - conversions, on the host. */
#ifndef KVA_TESTS_CUDA_BF16_H
#define KVA_TESTS_CUDA_BF16_H

#include <cstring>

struct __nv_bfloat16 {
    unsigned short bits;
};

inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    unsigned u;
    memcpy(&u, &x, 4);
    if (x != x)
        return {0x7FFF};
    u += 0x7FFFu + (u >> 16 & 1);
    return {(unsigned short)(u >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}

#endif
