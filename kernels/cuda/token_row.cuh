/* token_row.cuh - one key or value in few bits, KVA_KEYS_PER_TOKEN: its levels and codes, with the
 * bits of the CPU (kernels/cpu/keep/token_row.h): no product is fused with a sum. */
#ifndef KVA_KERNELS_CUDA_TOKEN_ROW_CUH
#define KVA_KERNELS_CUDA_TOKEN_ROW_CUH

#include "kernels/cuda/turn.cuh"

#include <math.h>

#define LANES 16u

static __device__ __forceinline__ float clamped(float x)
{
    x += 0.0f;
    x = x > 65504.0f ? 65504.0f : x;
    return x < -65504.0f ? -65504.0f : x;
}

/* The K row of a token of a 16-bit block. */
template <typename KV>
static __device__ KV *row_16(const void *block, size_t offset, uint32_t kv_head, uint32_t token,
                             uint32_t dim)
{
    unsigned char *at = static_cast<unsigned char *>(const_cast<void *>(block)) + offset;
    return reinterpret_cast<KV *>(at) +
           (static_cast<size_t>(kv_head) * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS) * 2 * dim;
}

/* What a warp adds up of a row: lane l has numbers l + KVA_WARP * j. The CPU's order: sixteen sums,
 * each of the numbers sixteen apart, then by halves; here lanes l and l + 16 both have sum l. */
struct row_sum {
    float sum = 0.0f;

    /* x = number lane + KVA_WARP * j, zero where the row has none. */
    __device__ __forceinline__ void add(float x, uint32_t lane)
    {
        const float other = __shfl_xor_sync(KVA_ALL, x, LANES);
        sum = __fadd_rn(sum, lane < LANES ? x : other);
        sum = __fadd_rn(sum, lane < LANES ? other : x);
    }

    __device__ __forceinline__ float whole() const
    {
        float ret = sum;
#pragma unroll
        for (uint32_t half = LANES / 2; half > 0; half /= 2)
            ret = __fadd_rn(ret, __shfl_xor_sync(KVA_ALL, ret, half));
        return ret;
    }
};

/* Of turned numbers: the first level and the step, if they are nearer than those of the range. */
template <int N>
static __device__ void find_turned(const float (&x)[N], uint32_t dim, uint32_t lane, uint32_t bits,
                                   float *low, float *step)
{
    row_sum sums, squares;
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const float y = lane + KVA_WARP * j < dim ? __fsub_rn(x[j], *low) : 0.0f;
        sums.add(y, lane);
        squares.add(__fmul_rn(y, y), lane);
    }
    const float n = static_cast<float>(dim), code_max = static_cast<float>((1u << bits) - 1);
    const float mean = __fdiv_rn(sums.whole(), n);
    const float square = __fsub_rn(__fdiv_rn(squares.whole(), n), __fmul_rn(mean, mean));
    const float best = square > 0.0f ? __fmul_rn(kva_turn_step(bits), sqrtf(square)) : 0.0f;
    if (!(best < *step) || best == 0.0f)
        return;
    *low = __fadd_rn(*low, __fsub_rn(mean, __fmul_rn(__fmul_rn(0.5f, code_max), best)));
    *step = best;
}

/* zero and scale of a warp's row of such numbers; what is not a number does not count. */
template <int N>
static __device__ void find_levels(const float (&x)[N], uint32_t dim, uint32_t lane, uint32_t bits,
                                   bool turned, float *zero, float *scale)
{
    float low = INFINITY, high = -INFINITY;
    *zero = *scale = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const bool there = lane + KVA_WARP * j < dim;
        low = there && x[j] < low ? x[j] : low;
        high = there && x[j] > high ? x[j] : high;
    }
#pragma unroll
    for (uint32_t half = KVA_WARP / 2; half > 0; half /= 2) {
        low = fminf(low, __shfl_xor_sync(KVA_ALL, low, half));
        high = fmaxf(high, __shfl_xor_sync(KVA_ALL, high, half));
    }
    if (!(low <= high))
        return;
    const float code_max = static_cast<float>((1u << bits) - 1);
    float step = __fdiv_rn(__fsub_rn(high, low), code_max);
    if (turned)
        find_turned(x, dim, lane, bits, &low, &step);
    *scale = kva_to_f32(kva_saturate<kva_f16>(step));
    float from = *scale == 0.0f ? __fadd_rn(__fmul_rn(0.5f, low), __fmul_rn(0.5f, high)) : low;
    *zero = kva_to_f32(kva_saturate<kva_f16>(from));
}

static __device__ uint32_t code_of(float x, uint32_t bits, float zero, float scale)
{
    const float code_max = static_cast<float>((1u << bits) - 1);
    if (scale == 0.0f)
        return 0;
    float level = __fmul_rn(__fsub_rn(x, zero), __fdiv_rn(1.0f, scale));
    level = level > 0.0f ? level : 0.0f;
    level = level < code_max ? level : code_max;
    return static_cast<uint32_t>(rintf(level));
}

#endif
