/* attend_prompt.cuh - attention over 16-bit pages for many pairs: prompts (attend_pages.cuh).
 *
 * A block takes up to 128 pairs of a KV head, 16 a warp, and brings tiles for all of them into
 * shared memory, where there is room the next one while one is multiplied. Queries stay in
 * registers. Heads of more than 128 dimensions take two warps for 16 pairs: both make all scores,
 * and each multiplies half of the values, so that sums of a split and of all splits find room in
 * registers; their queries lie in shared memory. */
#ifndef KVA_KERNELS_CUDA_ATTEND_PROMPT_CUH
#define KVA_KERNELS_CUDA_ATTEND_PROMPT_CUH

#include "kernels/cuda/attend_pages.cuh"

/* Warps for the same 16 pairs. */
static constexpr __host__ __device__ uint32_t prompt_slices(uint32_t dim)
{
    return dim > 128 ? 2 : 1;
}

/* A split of the lane's pairs while its tiles are added: m as products have it, e without the
 * tokens of odd slots. */
template <int D> struct split_state : state<D> {
    float base[2], odd[2];

    __device__ void begin()
    {
        this->clear();
        base[0] = base[1] = odd[0] = odd[1] = 0.0f;
    }
};

/* Scores of a tile become weights. */
template <int D>
static __device__ __forceinline__ void weigh_tile(split_state<D> &to, float (&s)[TILE / 8][4],
                                                  float c)
{
    pair_scale scale[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = to.m[i], sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE) / 8; j++)
            top = fmaxf(top, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(KVA_ALL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(KVA_ALL, top, 2));
        scale[i] = grow_maximum(to.m[i], to.base[i], top, c);
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE) / 8; j++) {
            sum[0] += s[j][2 * i] = weight_of(s[j][2 * i], c, scale[i].base);
            sum[1] += s[j][2 * i + 1] = weight_of(s[j][2 * i + 1], c, scale[i].base);
        }
        to.e[i] = fmaf(to.e[i], scale[i].keep, sum[0]);
        to.odd[i] = fmaf(to.odd[i], scale[i].keep, sum[1]);
        to.m[i] = top;
        to.base[i] = scale[i].base;
    }
    if (!__any_sync(KVA_ALL, scale[0].keep != 1.0f || scale[1].keep != 1.0f))
        return; /* most tiles raise no maximum */
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        to.a[j][0] *= scale[0].keep;
        to.a[j][1] *= scale[0].keep;
        to.a[j][2] *= scale[1].keep;
        to.a[j][3] *= scale[1].keep;
    }
}

/* The split is complete: into `total` with it. */
template <int D>
static __device__ __forceinline__ void end_split(state<D> &total, split_state<D> &split,
                                                 float scale)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        split.e[i] += split.odd[i];
        split.e[i] += __shfl_xor_sync(KVA_ALL, split.e[i], 1);
        split.e[i] += __shfl_xor_sync(KVA_ALL, split.e[i], 2);
        split.m[i] = maximum_of(split.m[i], split.e[i], scale);
    }
    fold_split<D>(total, split);
    split.begin();
}

/* The queries of a warp's 16 pairs: in registers, or in shared memory. */
template <typename KV, int D, bool SHARED = (D > 128)> struct prompt_queries {
    uint32_t words[2][D / 8];

    __device__ void load(KV (*)[D + PAD], const attend_shape &p, const item &work, uint32_t kv_head,
                         uint32_t, uint32_t warp_pair, uint32_t lane)
    {
        load_query<KV, D>(words[0], p, work, kv_head, warp_pair + lane / 4, lane);
        load_query<KV, D>(words[1], p, work, kv_head, warp_pair + lane / 4 + 8, lane);
    }

    /* s = q k^T for the tokens of a tile. */
    __device__ __forceinline__ void multiply(float (&s)[TILE / 8][4], const KV (*k)[D + PAD],
                                             uint32_t lane) const
    {
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE) / 8; j++)
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            const uint32_t a[4] = {words[0][d / 8], words[1][d / 8], words[0][d / 8 + 1],
                                   words[1][d / 8 + 1]};
#pragma unroll
            for (int j = 0; j < static_cast<int>(TILE) / 8; j += 2) {
                uint32_t b[4];
                kva_load_matrices(b, &k[j * 8 + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
                kva_mma<KV>(s[j], a, b[0], b[1]);
                kva_mma<KV>(s[j + 1], a, b[2], b[3]);
            }
        }
    }
};

template <typename KV, int D> struct prompt_queries<KV, D, true> {
    const KV (*q)[D + PAD];

    __device__ void load(KV (*shared)[D + PAD], const attend_shape &p, const item &work,
                         uint32_t kv_head, uint32_t pairs, uint32_t warp_pair, uint32_t)
    {
        load_queries<KV, D>(shared, p, work, kv_head, pairs);
        q = shared + warp_pair;
    }

    __device__ __forceinline__ void multiply(float (&s)[TILE / 8][4], const KV (*k)[D + PAD],
                                             uint32_t lane) const
    {
        multiply_keys<KV, D, TILE>(s, q, k, lane);
    }
};

/* What is not seen weighs nothing. */
static __device__ __forceinline__ void hide_scores(float (&s)[TILE / 8][4], uint64_t mask,
                                                   const view (&views)[2], uint32_t t,
                                                   uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint64_t seen = (mask & seen_mask(views[i], t)) >> lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE) / 4; j++) {
            if (!(seen >> (j / 2 * 8 + j % 2) & 1))
                s[j / 2][2 * i + j % 2] = -INFINITY;
        }
    }
}

/* Start bringing a tile, by all threads of the block; rows of no token become zero. */
template <typename KV, int D>
static __device__ void load_tile(stage<KV, D> &to, const attend_params &p, const tile &piece,
                                 uint32_t kv_head)
{
    const uint32_t lane = threadIdx.x % KVA_WARP, dim = p.shape.dim;
    const row_walk walk = {0, TILE, threadIdx.x / KVA_WARP, blockDim.x / KVA_WARP};
    if (dim % 8 == 0) {
        copy_rows<KV, D>(to.k, p, piece, kv_head, 0, walk, lane);
        copy_rows<KV, D>(to.v, p, piece, kv_head, dim, walk, lane);
        return;
    }
    for (uint32_t i = threadIdx.x; i < TILE * 2 * D; i += blockDim.x) {
        const uint32_t token = i / (2 * D), d = i % D;
        const bool value = i / D % 2;
        const KV *row = row_of<KV>(p, piece, kv_head, token);
        (value ? to.v : to.k)[token][d].bits =
            row && d < dim ? row[value ? dim + d : d].bits : static_cast<uint16_t>(0);
    }
}

template <typename KV, int D>
static __global__ void __launch_bounds__(WARPS_MAX * 32) prompt_kernel(attend_params p)
{
    constexpr uint32_t SLICES = prompt_slices(D), WIDTH = D / SLICES;
    const attend_shape &shape = p.shape;
    const uint32_t warp = threadIdx.x / KVA_WARP, lane = threadIdx.x % KVA_WARP;
    const uint32_t warp_pair = warp / SLICES * 16, slice = warp % SLICES * WIDTH;
    const uint32_t kv_head = blockIdx.y;
    /* The last items, which see most, come first. */
    const item work = p.items[gridDim.x - 1 - blockIdx.x];
    const tile *tiles = p.tiles + work.tiles;
    KVA_DYNAMIC_SHARED(unsigned char, shared_bytes);
    stage<KV, D> *stages = reinterpret_cast<stage<KV, D> *>(shared_bytes);
    const bool busy = warp_pair < work.pair_count;

    const view views[2] = {view_of(shape, work, warp_pair + lane / 4),
                           view_of(shape, work, warp_pair + lane / 4 + 8)};
    const view first = view_of(shape, work, warp_pair), last = view_of(shape, work, warp_pair + 15);
    const float c = __fmul_rn(shape.scale, LOG2_E);
    state<WIDTH> total;
    split_state<WIDTH> split;
    total.clear();
    split.begin();
    if (shape.accumulate && work.partial == KVA_NONE && busy)
        move_state<false>(total, shape, work, kv_head, warp_pair, lane, slice);
    tile next = {};
    if (work.tile_first < work.tile_end) {
        next = tiles[work.tile_first];
        load_tile(stages[0], p, next, kv_head);
    }
    kva_copy_commit();
    prompt_queries<KV, D> queries;
    queries.load(reinterpret_cast<KV(*)[D + PAD]>(stages + p.stages), shape, work, kv_head,
                 blockDim.x / KVA_WARP / SLICES * 16, warp_pair, lane);
    for (uint32_t t = work.tile_first; t < work.tile_end; t++) {
        const tile current = next;
        const bool more = t + 1 < work.tile_end;
        if (more)
            next = tiles[t + 1];
        kva_copy_wait<0>();
        __syncthreads(); /* everybody's part of the tile is there; the other stage is free */
        const stage<KV, D> &here = stages[(t - work.tile_first) % p.stages];
        if (more && p.stages > 1)
            load_tile(stages[(t + 1 - work.tile_first) % 2], p, next, kv_head);
        kva_copy_commit();
        if (busy && sees_any(first, last, t)) {
            float s[TILE / 8][4];
            queries.multiply(s, here.k, lane);
            if (!is_whole(current) || !sees_all(first, last, t))
                hide_scores(s, tile_mask(p, current), views, t, lane);
            weigh_tile<WIDTH>(split, s, c);
            multiply_values<KV, WIDTH, TILE, D + PAD>(
                split, s, reinterpret_cast<const KV(*)[D + PAD]>(&here.v[0][slice]), lane);
        }
        if ((t + 1) % SPLIT_TILES == 0 || !more)
            end_split<WIDTH>(total, split, shape.scale);
        if (more && p.stages == 1) {
            __syncthreads(); /* the stage may be written again */
            load_tile(stages[0], p, next, kv_head);
            kva_copy_commit();
        }
    }
    if (busy)
        move_state<true>(total, shape, work, kv_head, warp_pair, lane, slice);
}

#endif
