/* select.cuh - the limit of selection, and what attend_lowbit (lowbit_run.cuh) keeps for weigh
 * (select.cu).
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

/* Query heads of a KV head that may choose together. */
#define KVA_SELECT_HEADS_MAX 256u

#define KVA_KEPT_FACTOR      32768.0f

/* Of tops and scores to base 2. */
#define LN2 0.69314718f

/* [heads][page_count * KVA_PAGE_TOKENS] weights, then [heads][page_count] tops, to base 2. */
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

#endif
