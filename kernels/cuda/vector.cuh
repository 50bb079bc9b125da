/* vector.cuh - numbers that lie one behind the other, eight at a time: 16 bytes of a 16-bit format a
 * load, twice 16 of fp32. */
#ifndef KVA_KERNELS_CUDA_VECTOR_CUH
#define KVA_KERNELS_CUDA_VECTOR_CUH

#include "kernels/cuda/number.cuh"

#define KVA_VECTOR 8u

/* As they lie in memory; they are taken apart where they are used, so that nothing waits for a load
 * before it must. */
template <typename T> struct kva_vector {
    uint32_t words[KVA_VECTOR * sizeof(T) / sizeof(uint32_t)];
};

struct kva_numbers {
    float x[KVA_VECTOR];
};

/* Vectors are whole where all of them lie at multiples of 16 bytes and none has fewer than eight
 * numbers: where rows are whole numbers of vectors and the first of them lies so. Others are moved
 * number by number, by the same threads. */
static inline __host__ __device__ bool kva_vector_at(const void *data)
{
    return reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0;
}

/* Number i, which is a constant. */
template <typename T>
__device__ __forceinline__ T kva_vector_get(const kva_vector<T> &from, uint32_t i)
{
    if constexpr (sizeof(T) == sizeof(uint32_t))
        return __uint_as_float(from.words[i]);
    else
        return {static_cast<uint16_t>(from.words[i / 2] >> i % 2 * 16)};
}

template <typename T>
__device__ __forceinline__ kva_numbers kva_vector_to_f32(const kva_vector<T> &from)
{
    kva_numbers to;
#pragma unroll
    for (uint32_t i = 0; i < KVA_VECTOR; i++)
        to.x[i] = kva_to_f32(kva_vector_get(from, i));
    return to;
}

template <typename T>
__device__ __forceinline__ kva_vector<T> kva_vector_from_f32(const kva_numbers &from)
{
    kva_vector<T> to;
#pragma unroll
    for (uint32_t i = 0; i < KVA_VECTOR * sizeof(T) / sizeof(uint32_t); i++) {
        if constexpr (sizeof(T) == sizeof(uint32_t))
            to.words[i] = __float_as_uint(from.x[i]);
        else
            to.words[i] = kva_pack<T>(from.x[2 * i], from.x[2 * i + 1]);
    }
    return to;
}

/* The first `count` numbers, the rest 0; of a whole vector all or, if count is 0, none. */
template <bool WHOLE, typename T>
__device__ __forceinline__ kva_vector<T> kva_vector_load(const T *from, uint32_t count)
{
    kva_vector<T> to = {};
    if constexpr (WHOLE) {
        if (count == 0)
            return to;
#pragma unroll
        for (uint32_t i = 0; i < sizeof(to) / sizeof(uint4); i++) {
            const uint4 four = reinterpret_cast<const uint4 *>(from)[i];
            to.words[4 * i] = four.x;
            to.words[4 * i + 1] = four.y;
            to.words[4 * i + 2] = four.z;
            to.words[4 * i + 3] = four.w;
        }
    } else {
        kva_numbers x;
#pragma unroll
        for (uint32_t i = 0; i < KVA_VECTOR; i++)
            x.x[i] = i < count ? kva_to_f32(from[i]) : 0.0f;
        to = kva_vector_from_f32<T>(x);
    }
    return to;
}

/* The first `count` numbers go to `to`. */
template <bool WHOLE, typename T>
__device__ __forceinline__ void kva_vector_store(T *to, const kva_vector<T> &from, uint32_t count)
{
    if constexpr (WHOLE) {
        if (count == 0)
            return;
#pragma unroll
        for (uint32_t i = 0; i < sizeof(from) / sizeof(uint4); i++)
            reinterpret_cast<uint4 *>(to)[i] =
                make_uint4(from.words[4 * i], from.words[4 * i + 1], from.words[4 * i + 2],
                           from.words[4 * i + 3]);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < KVA_VECTOR; i++) {
            if (i < count)
                to[i] = kva_vector_get(from, i);
        }
    }
}

#endif
