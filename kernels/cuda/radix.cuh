/* radix.cuh - the k-th largest of many keys, found digit by digit: by selection (select.cu) and for
 * shortlists (shortlist.cu). */
#ifndef KVA_KERNELS_CUDA_RADIX_CUH
#define KVA_KERNELS_CUDA_RADIX_CUH

#include "kernels/cuda/number.cuh"

#define RADIX_DIGITS 256u

/* By the first warp: the largest digit of which, with all larger ones, there are `left` at least;
 * found = {one more than the digit, how many of it are needed}, {0, ..}: there are too few. */
static __device__ void find_digit(const uint32_t *counts, uint32_t left, uint32_t *found)
{
    const uint32_t lane = threadIdx.x, of_lane = RADIX_DIGITS / KVA_WARP;
    uint32_t digit = RADIX_DIGITS - 1 - lane * of_lane, sum = 0;
    for (uint32_t i = 0; i < of_lane; i++)
        sum += counts[digit - i];
    uint32_t upto = sum;
    for (uint32_t delta = 1; delta < KVA_WARP; delta *= 2) {
        uint32_t other = __shfl_up_sync(KVA_ALL, upto, delta);
        upto += lane >= delta ? other : 0;
    }
    uint32_t more = upto - sum;
    if (lane == KVA_WARP - 1 && upto < left)
        found[0] = 0;
    if (more >= left || upto < left)
        return;
    for (; more + counts[digit] < left; digit--)
        more += counts[digit];
    found[0] = digit + 1;
    found[1] = left - more;
}

/* The `wanted`-th largest (from 1) of key(i), i in [first, end), keys of 0 left out, and how many
 * of those equal to it are among the wanted. 0, and none, if there are fewer keys than that. All
 * threads of a block of a multiple of KVA_WARP. */
template <typename Key>
static __device__ uint32_t find_least(Key key, uint32_t first, uint32_t end, uint32_t wanted,
                                      uint32_t *ret_equal)
{
    __shared__ uint32_t counts[RADIX_DIGITS], found[2];
    uint32_t prefix = 0, left = wanted;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < RADIX_DIGITS; i += blockDim.x)
            counts[i] = 0;
        __syncthreads(); /* no key is counted before; all keys are there */
        for (uint32_t i = first + threadIdx.x; i < end; i += blockDim.x) {
            uint32_t x = key(i), above = shift == 24 ? 0 : x >> (shift + 8);
            if (x && above == prefix)
                atomicAdd(&counts[x >> shift & (RADIX_DIGITS - 1)], 1u);
        }
        __syncthreads(); /* all keys are counted */
        if (threadIdx.x < KVA_WARP)
            find_digit(counts, left, found);
        __syncthreads(); /* the digit is found */
        if (found[0] == 0) {
            *ret_equal = 0;
            return 0;
        }
        prefix = prefix << 8 | (found[0] - 1);
        left = found[1];
    }
    *ret_equal = left;
    return prefix;
}

#endif
