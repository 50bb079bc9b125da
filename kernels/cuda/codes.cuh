/* codes.cuh - codes of few bits as the 16-bit operands of matrix products, without leaving the
 * register that they came in.
 *
 * A half precision number below 2^-13 is its low eleven bits times 2^-24. So a code that stands
 * somewhere among these bits of a half register, with zeros around it, is a number already: the
 * code times 2^(its place - 24). Two codes, one in each half, take one AND, and what their place
 * multiplies by is taken back where sums are scaled anyway. Matrix products take such subnormal
 * numbers exactly.
 *
 * Codes come as planes: bit b of all codes in plane b (kernels/kv_layout.h). */
#ifndef KVA_KERNELS_CUDA_CODES_CUH
#define KVA_KERNELS_CUDA_CODES_CUH

#include "kernels/cuda/number.cuh"

/* The products of two pairs of halves. */
static __device__ __forceinline__ uint32_t kva_multiply_halves(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
#ifdef __CUDACC__
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#else
    for (int shift = 0; shift < 32; shift += 16) {
        const kva_f16 x = {(uint16_t)(a >> shift)}, y = {(uint16_t)(b >> shift)};
        product |= (uint32_t)kva_from_f32<kva_f16>(kva_to_f32(x) * kva_to_f32(y)).bits << shift;
    }
#endif
    return product;
}

/* Of the nibbles of both halves of a register the codes at bit R of each: of bits up to 4, nibble n
 * of a half is the code of nibble n; of 8 bits, its low bits and its high bits are apart. */
template <int BITS> struct code_set {
    uint32_t low, high;
};

template <int COUNT, int R>
static __device__ __forceinline__ uint32_t kva_join_planes(const uint32_t *planes)
{
    uint32_t codes = planes[0] >> R;
#pragma unroll
    for (int b = 1; b < COUNT; b++) {
        const uint32_t plane = R >= b ? planes[b] >> (R - b) : planes[b] << (b - R);
        const uint32_t mask = 0x11111111u << b;
        codes = (codes & ~mask) | (plane & mask);
    }
    return codes;
}

template <int BITS, int R>
static __device__ __forceinline__ code_set<BITS> kva_codes_of(const uint32_t *planes)
{
    if constexpr (BITS > 4)
        return {kva_join_planes<4, R>(planes), kva_join_planes<BITS - 4, R>(planes + 4)};
    else
        return {kva_join_planes<BITS, R>(planes), 0};
}

/* The codes of nibble N of both halves, as numbers: code * 2^-kva_code_place<BITS>(N). */
template <int BITS, int N>
static __device__ __forceinline__ uint32_t kva_code_numbers(const code_set<BITS> &codes)
{
    constexpr uint32_t mask = ((1u << BITS) - 1) * 0x00010001u;
    if constexpr (BITS == 1 || (BITS <= 4 && N < 2)) {
        return codes.low & mask << 4 * N;
    } else if constexpr (BITS <= 4) {
        return codes.low >> 8 & mask << 4 * (N - 2);
    } else {
        const uint32_t low = codes.low >> 4 * N;
        const uint32_t high = N > 0 ? codes.high >> 4 * (N - 1) : codes.high << 4;
        return ((low & 0x000F000Fu) | (high & ~0x000F000Fu)) & mask;
    }
}

template <int BITS> static __device__ __forceinline__ constexpr int kva_code_place(int n)
{
    if (BITS == 1)
        return n < 3 ? 24 - 4 * n : 11; /* the bit at place 12 is one of the exponent */
    return BITS <= 4 && n % 2 ? 20 : 24;
}

/* 2^place of it. */
template <int BITS> static __device__ __forceinline__ float kva_code_factor(int n)
{
    return static_cast<float>(1u << kva_code_place<BITS>(n));
}

#endif
