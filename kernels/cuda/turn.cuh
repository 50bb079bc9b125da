/* turn.cuh - rows turned and turned back (kernels/turn.h), with the bits of the CPU
 * (kernels/cpu/keep/token_row.h): by a warp whose lanes hold a row. */
#ifndef KVA_KERNELS_CUDA_TURN_CUH
#define KVA_KERNELS_CUDA_TURN_CUH

#include "kernels/cuda/number.cuh"
#include "kernels/turn.h"

/* x[j] = number lane + KVA_WARP * j of a row; those from dim on are not looked at. */
template <int N>
static __device__ void kva_turn_warp(float (&x)[N], uint32_t dim, uint32_t lane, bool back)
{
    const uint32_t block = KVA_TURN_BLOCK(dim);
    const float factor = kva_turn_factor(block);
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        x[j] = !back && kva_turn_flips(lane + KVA_WARP * j) ? -x[j] : x[j];
    for (uint32_t half = 1; half < block && half < KVA_WARP; half *= 2) {
#pragma unroll
        for (uint32_t j = 0; j < N; j++) {
            const float other = __shfl_xor_sync(KVA_ALL, x[j], half);
            x[j] = lane & half ? __fsub_rn(other, x[j]) : __fadd_rn(x[j], other);
        }
    }
#pragma unroll
    for (uint32_t half = 1; half < N; half *= 2) {
        if (half * KVA_WARP >= block)
            continue;
#pragma unroll
        for (uint32_t j = 0; j < N; j++) {
            if (j & half)
                continue;
            const float a = x[j], b = x[j + half];
            x[j] = __fadd_rn(a, b);
            x[j + half] = __fsub_rn(a, b);
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        x[j] = __fmul_rn(x[j], factor);
        x[j] = back && kva_turn_flips(lane + KVA_WARP * j) ? -x[j] : x[j];
    }
}

/* A row by the warp, in place. */
template <int N>
static __device__ void kva_turn_row(float *row, uint32_t dim, uint32_t lane, bool back)
{
    float x[N];
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        x[j] = lane + KVA_WARP * j < dim ? row[lane + KVA_WARP * j] : 0.0f;
    kva_turn_warp(x, dim, lane, back);
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        if (lane + KVA_WARP * j < dim)
            row[lane + KVA_WARP * j] = x[j];
    }
}

#endif
