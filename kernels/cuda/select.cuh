/* select.cuh - the limit of selection, and what attend_lowbit (lowbit_run.cuh) keeps for weigh
 * (select.cu) and for weigh_choose (weigh_choose.cu).
 *
 * A token's weight is its probability before the row's sum is known, as attention multiplies it with
 * V: exp(score - top), where the page's `top` is the largest score of its run so far. 16 bits do
 * for it, times 2^15 so that they are normal numbers down to 2^-29. Rounding takes or adds 2^-11 of
 * a weight: tokens nearer to each other than twice that may change places, and equal ones go by
 * position. */
#ifndef KVA_KERNELS_CUDA_SELECT_CUH
#define KVA_KERNELS_CUDA_SELECT_CUH

#include "kernels/cuda/number.cuh"
#include "kernels/ops_attend.h"

#include <math.h>

/* Query heads of a KV head that may choose together. */
#define KVA_SELECT_HEADS_MAX 256u

#define KVA_KEPT_FACTOR      32768.0f

/* Of tops and scores to base 2. */
#define LN2 0.69314718f

/* [heads][page_count * KVA_PAGE_TOKENS] weights, then [heads][page_count] tops, to base 2. Of peaks:
 * no weights, and the tops are pages' own largest scores. */
struct kva_kept {
    kva_f16 *weights;
    float *tops;
};

/* Those of a head, in the memory that ops_attend.h calls scores. */
static __device__ __forceinline__ kva_kept kva_kept_of(float *scores, uint32_t heads,
                                                       uint32_t page_count, uint32_t head)
{
    const size_t tokens = static_cast<size_t>(page_count) * KVA_PAGE_TOKENS;
    float *tops = scores + heads * tokens / 2;
    return {reinterpret_cast<kva_f16 *>(scores) + head * tokens,
            tops + static_cast<size_t>(head) * page_count};
}

/* Those of a head in what ops_attend.h calls peaks: [heads][page_count], and behind them
 * [kv_heads][2][page_count], weigh_choose's own. */
static __device__ __forceinline__ kva_kept kva_peaks_of(float *peaks, uint32_t page_count,
                                                        uint32_t head)
{
    return {nullptr, peaks + static_cast<size_t>(head) * page_count};
}

static __device__ __forceinline__ float *kva_peaks_own(float *peaks, uint32_t heads,
                                                       uint32_t page_count, uint32_t kv_head)
{
    return peaks + (static_cast<size_t>(heads) + 2 * kv_head) * page_count;
}

/* A token's weight, and as it is kept. */
static __device__ __forceinline__ float kept_weight(float score, float top)
{
    return kva_exp2(score - (top == -INFINITY ? 0.0f : top));
}

static __device__ __forceinline__ kva_f16 keep_weight(float weight)
{
    return kva_from_f32<kva_f16>(weight * KVA_KEPT_FACTOR);
}

/* What choose goes by; what is no candidate: 0. */
static __device__ __forceinline__ uint32_t key_of(float weight, enum kva_choose_kind kind)
{
    if (!(weight >= 0.0f))
        return 0;
    uint32_t bits = __float_as_uint(weight + 0.0f); /* the two zeros are the same weight */
    return kind == KVA_CHOOSE_LEAST ? 0x80000000u - bits : bits + 1;
}

#endif
