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

/* The codes of both halves of a register of each plane, bits of which stand beside each other.
 * Number (r, n) is the code at bit r of nibble n:
 *
 *   1 bit    as they came, and a nibble lower
 *   2 bits   of even and of odd r, each with the bits of r and r + 2 in a nibble; and a byte lower
 *   3, 4     of each r, a code a nibble; and a byte lower
 *   8 bits   of each r; low and high bits apart */
template <int BITS> struct code_set {
    static constexpr int words = BITS > 4 ? 8 : BITS > 2 ? 4 : BITS;
    uint32_t at[words];
    uint32_t lower[words];
};

/* The bits of `mask` of a, the others of b. */
static __device__ __forceinline__ uint32_t kva_join(uint32_t mask, uint32_t a, uint32_t b)
{
    return (a & mask) | (b & ~mask);
}

/* The codes of four planes, or of three. */
template <int PLANES>
static __device__ __forceinline__ void kva_join_planes(uint32_t *to, const uint32_t *planes)
{
    constexpr uint32_t bits = 0x55555555u, pairs = 0x33333333u;
    const uint32_t even = kva_join(bits, planes[0], planes[1] << 1);
    const uint32_t odd = kva_join(bits, planes[0] >> 1, planes[1]);
    /* The third bit of a code, and the fourth: two further up. */
    const uint32_t more[2] = {PLANES > 3 ? kva_join(bits, planes[2], planes[3] << 1) : planes[2],
                              PLANES > 3 ? kva_join(bits, planes[2] >> 1, planes[3])
                                         : planes[2] >> 1};
    to[0] = kva_join(pairs, even, more[0] << 2);
    to[1] = kva_join(pairs, odd, more[1] << 2);
    to[2] = kva_join(pairs, even >> 2, more[0]);
    to[3] = kva_join(pairs, odd >> 2, more[1]);
}

template <int BITS>
static __device__ __forceinline__ code_set<BITS> kva_codes_of(const uint32_t *planes)
{
    code_set<BITS> codes = {};
    if constexpr (BITS == 1) {
        codes.at[0] = planes[0];
        codes.lower[0] = planes[0] >> 4;
    } else if constexpr (BITS == 2) {
        codes.at[0] = kva_join(0x55555555u, planes[0], planes[1] << 1);
        codes.at[1] = kva_join(0x55555555u, planes[0] >> 1, planes[1]);
    } else if constexpr (BITS <= 4) {
        kva_join_planes<BITS>(codes.at, planes);
    } else {
        kva_join_planes<4>(codes.at, planes);
        kva_join_planes<4>(codes.at + 4, planes + 4);
    }
    if constexpr (BITS > 1) {
#pragma unroll
        for (int i = 0; i < code_set<BITS>::words; i++)
            codes.lower[i] = codes.at[i] >> 8;
    }
    return codes;
}

/* Number (R, N) of both halves: the code times 2^kva_code_step<BITS>(R) /
 * kva_code_factor<BITS>(N). */
template <int BITS, int R, int N>
static __device__ __forceinline__ uint32_t kva_code_numbers(const code_set<BITS> &codes)
{
    constexpr uint32_t one = 0x00010001u, mask = ((1u << BITS) - 1) * one;
    if constexpr (BITS == 1)
        return N < 3 ? codes.at[0] & mask << (4 * N + R) : codes.lower[0] & mask << (8 + R);
    else if constexpr (BITS == 2)
        return (N < 2 ? codes.at : codes.lower)[R % 2] & mask << (4 * (N % 2) + R / 2 * 2);
    else if constexpr (BITS <= 4)
        return (N < 2 ? codes.at : codes.lower)[R] & mask << 4 * (N % 2);
    const uint32_t low = (N < 2 ? codes.at : codes.lower)[R];
    const uint32_t high = (N < 2 ? codes.at : codes.lower)[4 + R];
    return N % 2 ? kva_join(0x000F000Fu, low >> 4, high & 0x00F000F0u)
                 : kva_join(0x000F000Fu, low, high << 4 & 0x00F000F0u);
}

/* The binary logarithm of what a code's place in its nibble multiplies it by. */
template <int BITS> static __device__ __forceinline__ constexpr uint32_t kva_code_step(int r)
{
    return BITS == 1 ? static_cast<uint32_t>(r) : BITS == 2 && r > 1 ? 2 : 0;
}

/* Both halves of a register, for codes at bits r and s of their nibbles, without these steps. */
template <int BITS, int R, int S>
static __device__ __forceinline__ uint32_t kva_without_steps(uint32_t pair)
{
    constexpr uint32_t low = kva_code_step<BITS>(R), high = kva_code_step<BITS>(S);
    if constexpr (low == 0 && high == 0)
        return pair;
    return kva_multiply_halves(pair, (15 - low) << 10 | (15 - high) << 26); /* powers of two */
}

/* What its nibble divides it by. */
template <int BITS> static __device__ __forceinline__ constexpr float kva_code_factor(int n)
{
    return static_cast<float>(1u << (BITS == 1            ? 24 - 4 * (n < 3 ? n : 2)
                                     : BITS <= 4 && n % 2 ? 20
                                                          : 24));
}

#endif
