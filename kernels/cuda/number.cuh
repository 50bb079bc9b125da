/* number.cuh - number formats, and sums over a warp or block. */
#ifndef KVA_KERNELS_CUDA_NUMBER_CUH
#define KVA_KERNELS_CUDA_NUMBER_CUH

#include "kernels/cuda/device_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#define KVA_WARP 32u
#define KVA_ALL  0xFFFFFFFFu

/* Of exponents to base 2. */
#define LOG2_E 1.44269504088896341f

/* The block's dynamic shared memory as `type *name`. */
#ifdef __CUDACC__
#define KVA_DYNAMIC_SHARED(type, name)                                                             \
    extern __shared__ __align__(128) unsigned char kva_dynamic_shared[];                           \
    type *name = reinterpret_cast<type *>(kva_dynamic_shared)
#else
#define KVA_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(simt::dynamic_shared())
#endif

/* Whether an entry with this gate is skipped (ops.h): a whole block's alike. */
__device__ __forceinline__ bool kva_gate_closed(const uint32_t *gate)
{
    return gate && *gate == 0;
}

/* 2^x by the special function unit: what is below the normal numbers becomes 0. */
__device__ __forceinline__ float kva_exp2(float x)
{
#ifdef __CUDACC__
    float to;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(to) : "f"(x));
    return to;
#else
    const float to = exp2f(x);
    return to < 0x1p-126f ? 0.0f : to;
#endif
}

/* 1 / x by the special function unit, off by a unit in the last place: what is below the normal
 * numbers becomes 0. */
__device__ __forceinline__ float kva_reciprocal(float x)
{
#ifdef __CUDACC__
    float to;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(to) : "f"(x));
    return to;
#else
    const float to = 1.0f / x;
    return fabsf(to) < 0x1p-126f ? 0.0f : to;
#endif
}

/* Byte i of a word, less `zero`: in the mantissa of 2^23 it is a number already. */
__device__ __forceinline__ float kva_byte_of(uint32_t word, uint32_t i, uint32_t zero)
{
    return __fsub_rn(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + i)),
                     8388608.0f + static_cast<float>(zero));
}

/* Storage of an element; distinct types, so that templates tell them apart. */
struct kva_f16 {
    uint16_t bits;
};
struct kva_bf16 {
    uint16_t bits;
};

/* What the stream had before has run and written, from here on: the kernel may have been launched
 * ahead of that (kva_cuda_run). */
__device__ __forceinline__ void kva_await()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The kernel behind this one may be launched, which waits in the same way. */
__device__ __forceinline__ void kva_let_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Every kernel's first statement: nothing is read or written before, nor returned. */
__device__ __forceinline__ void kva_begin()
{
    kva_await();
    kva_let_next();
}

/* The first statement of a kernel that reads weights, which nobody writes any more, before it calls
 * kva_await, and nothing else. */
__device__ __forceinline__ void kva_begin_weights()
{
    kva_let_next();
}

__device__ __forceinline__ float kva_to_f32(float x)
{
    return x;
}
__device__ __forceinline__ float kva_to_f32(kva_f16 x)
{
    return __half2float(__ushort_as_half(x.bits));
}
__device__ __forceinline__ float kva_to_f32(kva_bf16 x)
{
    return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

template <typename T> __device__ __forceinline__ T kva_from_f32(float x);
template <> __device__ __forceinline__ float kva_from_f32<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ kva_f16 kva_from_f32<kva_f16>(float x)
{
    return {__half_as_ushort(__float2half_rn(x))};
}
template <> __device__ __forceinline__ kva_bf16 kva_from_f32<kva_bf16>(float x)
{
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

/* The largest number of a 16-bit format: KV saturates. */
template <typename T> __device__ __forceinline__ float kva_largest();
template <> __device__ __forceinline__ float kva_largest<kva_f16>()
{
    return 65504.0f;
}
template <> __device__ __forceinline__ float kva_largest<kva_bf16>()
{
    return __uint_as_float(0x7F7F0000u);
}

template <typename T> __device__ __forceinline__ float kva_clamp(float x)
{
    float most = kva_largest<T>();
    return x > most ? most : x < -most ? -most : x; /* what is not a number stays */
}

template <typename T> __device__ __forceinline__ T kva_saturate(float x)
{
    return kva_from_f32<T>(kva_clamp<T>(x));
}

/* Two numbers as one register of a matrix product, the first in the low half. */
template <typename T> __device__ __forceinline__ uint32_t kva_pack(float low, float high)
{
    return kva_from_f32<T>(low).bits | static_cast<uint32_t>(kva_from_f32<T>(high).bits) << 16;
}

/* Element of a weight whose format is known at run time only: vectors. */
__device__ __forceinline__ float kva_load(const void *data, enum kva_dtype dtype, size_t index)
{
    if (dtype == KVA_F32)
        return static_cast<const float *>(data)[index];
    if (dtype == KVA_F16)
        return kva_to_f32(static_cast<const kva_f16 *>(data)[index]);
    return kva_to_f32(static_cast<const kva_bf16 *>(data)[index]);
}

/* The same in two parts, so that many loads are on their way before one is waited for: the element
 * as it lies there, and its number. */
__device__ __forceinline__ uint32_t kva_load_bits(const void *data, enum kva_dtype dtype,
                                                  size_t index)
{
    return dtype == KVA_F32 ? static_cast<const uint32_t *>(data)[index]
                            : static_cast<const uint16_t *>(data)[index];
}
template <int N>
__device__ __forceinline__ void kva_from_bits(float (&to)[N], const uint32_t (&bits)[N],
                                              enum kva_dtype dtype)
{
    if (dtype == KVA_F16) {
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = kva_to_f32(kva_f16{static_cast<uint16_t>(bits[i])});
        return;
    }
    const uint32_t up = dtype == KVA_F32 ? 0 : 16;
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = __uint_as_float(bits[i] << up);
}

__device__ __forceinline__ float kva_warp_sum(float x)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(KVA_ALL, x, lanes);
    return x;
}

/* The same of several, side by side. */
template <int N> __device__ __forceinline__ void kva_warp_sums(float (&x)[N])
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] += __shfl_xor_sync(KVA_ALL, x[i], lanes);
    }
}

/* Sum of `x` over the block's threads before this one; *total: over all. blockDim.x is a multiple
 * of KVA_WARP; `parts` is shared memory, one number a warp. */
static __device__ inline uint32_t kva_sum_before(uint32_t x, uint32_t *parts, uint32_t *total)
{
    uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP, sum = x, before = 0;
    for (uint32_t delta = 1; delta < KVA_WARP; delta *= 2) {
        uint32_t other = __shfl_up_sync(KVA_ALL, sum, delta);
        sum += lane >= delta ? other : 0;
    }
    __syncthreads(); /* the parts of the call before have been read */
    if (lane == KVA_WARP - 1)
        parts[warp] = sum;
    __syncthreads();
    *total = 0;
    for (uint32_t i = 0; i < blockDim.x / KVA_WARP; i++) {
        before += i < warp ? parts[i] : 0;
        *total += parts[i];
    }
    return before + sum - x;
}

/* Call `fn<T>(...)` for the activations' format. */
#define KVA_BY_FORMAT(dtype, fn, ...)                                                              \
    ((dtype) == KVA_F32   ? fn<float>(__VA_ARGS__)                                                 \
     : (dtype) == KVA_F16 ? fn<kva_f16>(__VA_ARGS__)                                               \
                          : fn<kva_bf16>(__VA_ARGS__))

static inline uint32_t kva_blocks(size_t count, uint32_t of)
{
    return static_cast<uint32_t>(kva_div_up(count, of));
}

#endif
