/* attend_prompt.cuh - attention over 16-bit pages for many pairs: prompts (attend_pages.cuh).
 *
 * A block takes up to 192 pairs of a KV head, 16 a warp, and brings tiles for all of them into
 * shared memory, where there is room the next one while one is multiplied. Queries and the sums of
 * a split stay in registers; the sums of all splits, which are touched once a split, lie in shared
 * memory, so that registers suffice for twelve warps. Heads of more than 128 dimensions take two
 * warps for 16 pairs, eight in all: both make all scores, and each multiplies half of the values, so
 * that there are registers for all sums; their queries lie in shared memory. */
#ifndef KVA_KERNELS_CUDA_ATTEND_PROMPT_CUH
#define KVA_KERNELS_CUDA_ATTEND_PROMPT_CUH

#include "kernels/cuda/attend_pages.cuh"

/* Warps for the same 16 pairs. */
static constexpr __host__ __device__ uint32_t prompt_slices(uint32_t dim)
{
    return dim > 128 ? 2 : 1;
}

/* Whether the sums of all splits lie in shared memory; queries do otherwise. */
static constexpr __host__ __device__ bool prompt_shares_sums(uint32_t dim)
{
    return dim <= 128;
}

/* Warps of a block, at most. */
static constexpr __host__ __device__ uint32_t prompt_warps(uint32_t dim)
{
    return prompt_shares_sums(dim) ? 12 : 8;
}

/* A split of the lane's pairs while its tiles are added: m as products have it, e without the
 * tokens of odd slots. */
template <int D> struct split_state : state<D> {
    float odd[2];

    __device__ void begin()
    {
        this->clear();
        odd[0] = odd[1] = 0.0f;
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
        scale[i] = grow_maximum(to.m[i], __fmul_rn(to.m[i], c), top, c);
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE) / 8; j++) {
            sum[0] += s[j][2 * i] = weight_of(s[j][2 * i], c, scale[i].base);
            sum[1] += s[j][2 * i + 1] = weight_of(s[j][2 * i + 1], c, scale[i].base);
        }
        to.e[i] = fmaf(to.e[i], scale[i].keep, sum[0]);
        to.odd[i] = fmaf(to.odd[i], scale[i].keep, sum[1]);
        to.m[i] = top;
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

/* All splits of a warp's 16 pairs: in registers, or in shared memory. Behind what is in shared
 * memory nobody waits: lanes have their own. */
template <int D, bool SHARED> struct prompt_total {
    state<D> sums;

    __device__ void begin(const state<D> &from, float2 *, uint32_t)
    {
        sums = from;
    }

    __device__ __forceinline__ void add(const state<D> &split)
    {
        fold_split<D>(sums, split);
    }

    __device__ state<D> &end(state<D> &)
    {
        return sums;
    }
};

template <int D> struct prompt_total<D, true> {
    float2 *a; /* of pair lane / 4 + 8 i dimensions j * 8 + lane % 4 * 2 and the next: own(j, i) */
    float parts; /* m and e of both pairs, one in each of the four lanes that need them */

    __device__ __forceinline__ float2 &own(int j, int i) const
    {
        return a[(j * 2 + i) * KVA_WARP];
    }

    __device__ __forceinline__ void keep_parts(const float (&m)[2], const float (&e)[2])
    {
        const uint32_t part = threadIdx.x % 4;
        parts = part == 0 ? m[0] : part == 1 ? m[1] : part == 2 ? e[0] : e[1];
    }

    __device__ __forceinline__ float part_of(uint32_t part) const
    {
        return __shfl_sync(KVA_ALL, parts, threadIdx.x % KVA_WARP / 4 * 4 + part);
    }

    __device__ void begin(const state<D> &from, float2 *shared, uint32_t warp)
    {
        a = shared + warp * (D / 4 * KVA_WARP) + threadIdx.x % KVA_WARP;
        keep_parts(from.m, from.e);
#pragma unroll
        for (int j = 0; j < D / 4; j++)
            own(j / 2, j % 2) = {from.a[j / 2][j % 2 * 2], from.a[j / 2][j % 2 * 2 + 1]};
    }

    /* fold_split */
    __device__ __forceinline__ void add(const state<D> &split)
    {
        float m[2] = {part_of(0), part_of(1)}, e[2] = {part_of(2), part_of(3)};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (split.m[i] == -INFINITY)
                continue;
            float top, keep, add;
            fold_scales(m[i], split.m[i], top, keep, add);
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                const float2 old = own(j, i);
                own(j, i) = {fold(old.x, keep, split.a[j][2 * i], add),
                             fold(old.y, keep, split.a[j][2 * i + 1], add)};
            }
            e[i] = fold(e[i], keep, split.e[i], add);
            m[i] = top;
        }
        keep_parts(m, e);
    }

    __device__ state<D> &end(state<D> &to)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to.m[i] = part_of(i);
            to.e[i] = part_of(2 + i);
        }
#pragma unroll
        for (int j = 0; j < D / 4; j++) {
            to.a[j / 2][j % 2 * 2] = own(j / 2, j % 2).x;
            to.a[j / 2][j % 2 * 2 + 1] = own(j / 2, j % 2).y;
        }
        return to;
    }
};

/* The split is complete: into `total` with it. */
template <int D, bool SHARED>
static __device__ __forceinline__ void end_split(prompt_total<D, SHARED> &total,
                                                 split_state<D> &split, float scale)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        split.e[i] += split.odd[i];
        split.e[i] += __shfl_xor_sync(KVA_ALL, split.e[i], 1);
        split.e[i] += __shfl_xor_sync(KVA_ALL, split.e[i], 2);
        split.m[i] = maximum_of(split.m[i], split.e[i], scale);
    }
    total.add(split);
    split.begin();
}

/* The queries of a warp's 16 pairs: in registers, or in shared memory. */
template <typename KV, int D, bool SHARED = !prompt_shares_sums(D)> struct prompt_queries {
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

/* The block's item; the last ones, which see most, come first. It is read again where it is needed
 * rather than kept in registers, and so are tiles. */
static __device__ __forceinline__ const item &own_item(const attend_params &p)
{
    return p.items[gridDim.x - 1 - blockIdx.x];
}

/* Tile t of its sequence. */
static __device__ __forceinline__ const tile &own_tile(const attend_params &p, uint32_t t)
{
    return p.tiles[own_item(p).tiles + static_cast<int32_t>(t)];
}

/* Whether a window begins behind tile t's first token. */
static __device__ bool window_cuts(const attend_params &p, uint32_t warp_pair, uint32_t t)
{
    return p.shape.window && t * TILE < view_of(p.shape, own_item(p), warp_pair + 15).first;
}

/* Whether some of a warp's 16 pairs see some of tile t. */
static __device__ bool is_seen(const attend_params &p, uint32_t warp_pair, uint32_t t)
{
    const item &work = own_item(p);
    return sees_any(view_of(p.shape, work, warp_pair), view_of(p.shape, work, warp_pair + 15), t);
}

/* What is not seen weighs nothing. */
static __device__ __forceinline__ void hide_scores(float (&s)[TILE / 8][4], const attend_params &p,
                                                   uint32_t warp_pair, uint32_t t, uint32_t lane)
{
    const item &work = own_item(p);
    const uint64_t mask = tile_mask(p, own_tile(p, t));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const view own = view_of(p.shape, work, warp_pair + lane / 4 + 8 * i);
        const uint64_t seen = (mask & seen_mask(own, t)) >> lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE) / 4; j++) {
            if (!(seen >> (j / 2 * 8 + j % 2) & 1))
                s[j / 2][2 * i + j % 2] = -INFINITY;
        }
    }
}

/* A whole tile of D dimensions: a token's key and value lie side by side. */
template <typename KV, int D>
static __device__ __forceinline__ void load_whole(stage<KV, D> &to, const KV *from)
{
    constexpr uint32_t COLUMNS = 2 * D / 8; /* threads of a token; blocks have a multiple of them */
    const uint32_t column = threadIdx.x % COLUMNS * 8, step = blockDim.x / COLUMNS;
    uint32_t token = threadIdx.x / COLUMNS;
    KV *row = column < D ? &to.k[token][column] : &to.v[token][column - D];
    from += token * 2 * D + column;
    for (; token < TILE; token += step, row += step * (D + PAD), from += step * 2 * D)
        kva_copy_async(row, from, true);
}

/* Start bringing a tile, by all threads of the block; rows of no token become zero. */
template <typename KV, int D>
static __device__ void load_tile(stage<KV, D> &to, const attend_params &p, const tile &piece,
                                 uint32_t kv_head)
{
    const uint32_t lane = threadIdx.x % KVA_WARP, dim = p.shape.dim;
    const row_walk walk = {0, TILE, threadIdx.x / KVA_WARP, blockDim.x / KVA_WARP};
    if (dim == D && is_whole(piece)) {
        load_whole<KV, D>(to, reinterpret_cast<const KV *>(piece.block) +
                                  static_cast<size_t>(kv_head) * TILE * 2 * D);
        return;
    }
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

/* What the item begins with; `rest`: shared memory behind the stages, for queries or sums. */
template <typename KV, int D, int WIDTH>
static __device__ __forceinline__ void
begin_prompt(const attend_params &p, void *rest, split_state<WIDTH> &split,
             prompt_total<WIDTH, prompt_shares_sums(D)> &total, prompt_queries<KV, D> &queries)
{
    constexpr uint32_t SLICES = D / WIDTH;
    const uint32_t warp = threadIdx.x / KVA_WARP, lane = threadIdx.x % KVA_WARP;
    const uint32_t warp_pair = warp / SLICES * 16, kv_head = blockIdx.y;
    const item &work = own_item(p);
    split.begin();
    if (p.shape.accumulate && work.partial == KVA_NONE && warp_pair < work.pair_count)
        move_state<false>(split, p.shape, work, kv_head, warp_pair, lane, warp % SLICES * WIDTH);
    total.begin(split, static_cast<float2 *>(rest), warp);
    split.begin();
    queries.load(static_cast<KV(*)[D + PAD]>(rest), p.shape, work, kv_head,
                 blockDim.x / KVA_WARP / SLICES * 16, warp_pair, lane);
}

template <typename KV, int D>
static __global__ void __launch_bounds__(prompt_warps(D) * KVA_WARP) prompt_kernel(attend_params p)
{
    kva_begin();
    constexpr uint32_t SLICES = prompt_slices(D), WIDTH = D / SLICES;
    const attend_shape &shape = p.shape;
    const uint32_t warp = threadIdx.x / KVA_WARP, lane = threadIdx.x % KVA_WARP;
    const uint32_t warp_pair = warp / SLICES * 16, slice = warp % SLICES * WIDTH;
    const uint32_t kv_head = blockIdx.y;
    KVA_DYNAMIC_SHARED(unsigned char, shared_bytes);
    stage<KV, D> *stages = reinterpret_cast<stage<KV, D> *>(shared_bytes);

    split_state<WIDTH> split;
    prompt_total<WIDTH, prompt_shares_sums(D)> total;
    prompt_queries<KV, D> queries;
    begin_prompt<KV, D, WIDTH>(p, stages + p.stages, split, total, queries);
    const float c = __fmul_rn(shape.scale, LOG2_E);
    const bool busy = warp_pair < own_item(p).pair_count;
    const uint32_t tile_first = own_item(p).tile_first, tile_end = own_item(p).tile_end;
    /* Tile t is multiplied, and before that tile `at` asked for: the next, or where there is one
     * stage the same. */
    const uint32_t ahead = p.stages - 1;
    uint32_t whole = 0; /* bit 0: of the tile that was asked for last, bit 1: of the one before */
    for (uint32_t t = tile_first - ahead; t != tile_end; t++) {
        const uint32_t at = t + ahead;
        tile next = {};
        if (at < tile_end)
            next = own_tile(p, at);
        kva_copy_wait<0>();
        __syncthreads(); /* everybody's part of tile t is there; the other stage is free */
        if (at < tile_end)
            load_tile(stages[at & ahead], p, next, kv_head);
        kva_copy_commit();
        whole = whole << 1 | is_whole(next);
        if (ahead == 0) {
            kva_copy_wait<0>(); /* no other stage */
            __syncthreads();
        } else if (t + 1 == tile_first) {
            continue;
        }
        const bool border = t + p.border >= tile_end || window_cuts(p, warp_pair, t);
        if (busy && (!border || is_seen(p, warp_pair, t))) {
            const stage<KV, D> &here = stages[t & ahead];
            float s[TILE / 8][4];
            queries.multiply(s, here.k, lane);
            if (border || !(whole >> ahead & 1))
                hide_scores(s, p, warp_pair, t, lane);
            weigh_tile<WIDTH>(split, s, c);
            multiply_values<KV, WIDTH, TILE, D + PAD>(
                split, s, reinterpret_cast<const KV(*)[D + PAD]>(&here.v[0][slice]), lane);
        }
        if ((t + 1) % SPLIT_TILES == 0 || t + 1 == tile_end)
            end_split(total, split, shape.scale);
    }
    if (busy)
        move_state<true>(total.end(split), shape, own_item(p), kv_head, warp_pair, lane, slice);
}

#endif
