/* attend_fold.cuh - the fold of splits that went side by side into scratch: over 16-bit pages
 * (attend.cu), low-bit pages (lowbit.cu) and rows (attend_rows.cu). */
#ifndef KVA_KERNELS_CUDA_ATTEND_FOLD_CUH
#define KVA_KERNELS_CUDA_ATTEND_FOLD_CUH

#include "kernels/cuda/attend_tile.cuh"

/* Warps that fold a pair: a dimension a lane. */
static inline __host__ __device__ uint32_t fold_warps(uint32_t dim)
{
    return (dim + KVA_WARP - 1) / KVA_WARP;
}

/* A lane's split in the fold of up to KVA_WARP of them, and the scales that bring the running
 * total, and the split, to the maximum of what came before and the split. */
struct fold_step {
    float e, keep, add;
};

/* The steps of the splits from `first` on, one a lane, and in *m the maximum behind them all. What
 * is not there, or saw nothing, changes no total. */
static __device__ fold_step find_fold_step(const float *own, bool there, uint32_t dim, float *m)
{
    const float own_m = there ? own[dim] : -INFINITY, before_all = *m;
    fold_step ret = {there ? own[dim + 1] : 0.0f, 1.0f, 0.0f};
    float top = own_m;
#pragma unroll
    for (uint32_t delta = 1; delta < KVA_WARP; delta *= 2) {
        const float earlier = __shfl_up_sync(KVA_ALL, top, delta);
        top = threadIdx.x >= delta ? greater(earlier, top) : top;
    }
    top = greater(before_all, top);
    const float earlier = __shfl_up_sync(KVA_ALL, top, 1);
    if (own_m != -INFINITY)
        fold_scales(threadIdx.x > 0 ? earlier : before_all, own_m, top, ret.keep, ret.add);
    *m = __shfl_sync(KVA_ALL, top, KVA_WARP - 1);
    return ret;
}

/* Fold the splits of an item's pairs, and `behind`, if it has an a, behind them: one pair a block of
 * fold_warps(dim) warps. items[i].partial is the first split's place, tile_end - tile_first the
 * number of splits; KVA_NONE: there are none, and the result is what it has been. Of KVA_WARP splits
 * at a time all maxima, sums and values are asked for at once; the additions are those of fold_split,
 * in its order. */
static __global__ void __launch_bounds__(256)
    fold_kernel(attend_shape p, const item *items, struct kva_partial behind)
{
    kva_begin();
    const item work = items[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, pair = blockIdx.z;
    const uint32_t d = threadIdx.y * KVA_WARP + threadIdx.x;
    if (pair >= work.pair_count || kva_gate_closed(work.gate))
        return;
    const place out = place_in(p.out, p, work, kv_head, pair);
    const bool there = p.accumulate || work.partial == KVA_NONE;
    const float *splits = partial_of(p, work, kv_head, pair);
    const size_t stride = static_cast<size_t>(work.pair_count) * p.kv_heads * (p.dim + 2);
    const uint32_t count = work.tile_end - work.tile_first;
    float m = there ? *out.m : -INFINITY, e = there ? *out.e : 0.0f;
    float a = there && d < p.dim ? out.a[d] : 0.0f;
    const place last = behind.a ? place_in(behind, p, work, kv_head, pair) : place{};
    const float last_m = last.m ? *last.m : -INFINITY, last_e = last.e ? *last.e : 0.0f;
    const float last_a = last.a && d < p.dim ? last.a[d] : 0.0f;
    for (uint32_t first = 0; first < count; first += KVA_WARP, splits += KVA_WARP * stride) {
        float values[KVA_WARP];
#pragma unroll
        for (uint32_t i = 0; i < KVA_WARP; i++)
            values[i] = first + i < count && d < p.dim ? splits[i * stride + d] : 0.0f;
        const fold_step own =
            find_fold_step(splits + threadIdx.x * stride, first + threadIdx.x < count, p.dim, &m);
#pragma unroll
        for (uint32_t i = 0; i < KVA_WARP; i++) {
            const float keep = __shfl_sync(KVA_ALL, own.keep, i);
            const float add = __shfl_sync(KVA_ALL, own.add, i);
            a = fold(a, keep, values[i], add);
            e = fold(e, keep, __shfl_sync(KVA_ALL, own.e, i), add);
        }
    }
    if (last_m != -INFINITY) {
        float top, keep, add;
        fold_scales(m, last_m, top, keep, add);
        a = fold(a, keep, last_a, add);
        e = fold(e, keep, last_e, add);
        m = top;
    }
    __syncthreads(); /* all warps have what was there before */
    if (d < p.dim)
        out.a[d] = a + 0.0f;
    if (d == 0) {
        *out.m = m;
        *out.e = e;
    }
}

#endif
