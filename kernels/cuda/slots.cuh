/* slots.cuh - a row cache as kernels see it: slots.cu, fetch.cu. */
#ifndef KVA_KERNELS_CUDA_SLOTS_CUH
#define KVA_KERNELS_CUDA_SLOTS_CUH

#include "kernels/cuda/number.cuh"

/* One KV head's part of a row cache. */
struct head {
    uint32_t *tokens, *used, *order, *count, *chosen, *missing;
    uint32_t slots, pinned, k;
};

static __device__ inline head head_of(const struct kva_row_cache &cache, uint32_t kv_head)
{
    size_t slot = static_cast<size_t>(kv_head) * cache.slots;
    return {cache.tokens + slot,
            cache.used + slot,
            cache.order + slot,
            cache.count + kv_head,
            cache.chosen + static_cast<size_t>(kv_head) * cache.k,
            cache.missing + slot,
            cache.slots,
            cache.pinned,
            cache.k};
}

#endif
