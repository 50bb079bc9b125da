/* attend_decode.cuh - attention over 16-bit pages for up to 16 pairs of a KV head, a decoding
 * step's: all that matters is that bytes keep coming (attend_pages.cuh).
 *
 * A block is one warp, and takes a split. Products have tokens as rows and pairs as columns, so that
 * 8 pairs fill one; queries lie in registers. The tile's eight pieces, 16 tokens of keys or of
 * values each, have their places in shared memory; a piece is asked for again, for the next tile, as
 * soon as it has been multiplied, so that seven are on their way or there while one is worked on.
 * Nobody else writes to this memory or reads it: there are no barriers but those of the warp. */
#ifndef KVA_KERNELS_CUDA_ATTEND_DECODE_CUH
#define KVA_KERNELS_CUDA_ATTEND_DECODE_CUH

#include "kernels/cuda/attend_pages.cuh"

#define PIECE       16u /* tokens */
#define TILE_PIECES (TILE / PIECE)

/* Pairs that a warp takes, in products of 8 columns. */
static constexpr __host__ __device__ uint32_t decode_pairs(uint32_t dim)
{
    return dim > 128 ? 8 : 16;
}

/* 8 pairs of a split: those of the lane are columns 2 t and 2 t + 1, t the lane modulo 4; of the
 * eight sums of e it has the one of tokens lane / 4 modulo 8. */
template <int D> struct columns {
    float a[D / 16][4]; /* rows: dimensions */
    float m[2], base[2], e[2];

    __device__ void clear()
    {
#pragma unroll
        for (int j = 0; j < D / 16; j++)
            a[j][0] = a[j][1] = a[j][2] = a[j][3] = 0.0f;
        m[0] = m[1] = -INFINITY;
        base[0] = base[1] = e[0] = e[1] = 0.0f;
    }
};

/* s = k q^T for the 16 tokens of a piece. */
template <typename KV, int D, int N>
static __device__ __forceinline__ void
multiply_piece_keys(float (&s)[N][TILE_PIECES][4], uint32_t piece, const KV (*k)[D + PAD],
                    const uint32_t (&q)[N][D / 8], uint32_t lane)
{
#pragma unroll
    for (int n = 0; n < N; n++)
        s[n][piece][0] = s[n][piece][1] = s[n][piece][2] = s[n][piece][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4];
        kva_load_matrices(a, &k[lane % 16][d + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < N; n++)
            kva_mma<KV>(s[n][piece], a, q[n][d / 8], q[n][d / 8 + 1]);
    }
}

/* a += v^T p for the 16 tokens of a piece. */
template <typename KV, int D, int N>
static __device__ __forceinline__ void
multiply_piece_values(columns<D> (&to)[N], const float (&p)[N][TILE_PIECES][4], uint32_t piece,
                      const KV (*v)[D + PAD], uint32_t lane)
{
    uint32_t b[N][2];
#pragma unroll
    for (int n = 0; n < N; n++) {
        b[n][0] = kva_transpose(kva_pack<KV>(p[n][piece][0], p[n][piece][1]));
        b[n][1] = kva_transpose(kva_pack<KV>(p[n][piece][2], p[n][piece][3]));
    }
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4];
        kva_load_transposed(a, &v[lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]);
#pragma unroll
        for (int n = 0; n < N; n++)
            kva_mma<KV>(to[n].a[d / 16], a, b[n][0], b[n][1]);
    }
}

/* Scores of a tile become weights: 8 pairs. */
template <int D>
static __device__ __forceinline__ void weigh_columns(columns<D> &to, float (&s)[TILE_PIECES][4],
                                                     float c)
{
    pair_scale scale[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = to.m[i], sum = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < TILE_PIECES; j++)
            top = fmaxf(top, fmaxf(s[j][i], s[j][i + 2]));
        top = fmaxf(top, __shfl_xor_sync(KVA_ALL, top, 4));
        top = fmaxf(top, __shfl_xor_sync(KVA_ALL, top, 8));
        top = fmaxf(top, __shfl_xor_sync(KVA_ALL, top, 16));
        scale[i] = grow_maximum(to.m[i], to.base[i], top, c);
#pragma unroll
        for (uint32_t j = 0; j < TILE_PIECES; j++) {
            sum += s[j][i] = weight_of(s[j][i], c, scale[i].base);
            sum += s[j][i + 2] = weight_of(s[j][i + 2], c, scale[i].base);
        }
        to.e[i] = fmaf(to.e[i], scale[i].keep, sum);
        to.m[i] = top;
        to.base[i] = scale[i].base;
    }
    if (!__any_sync(KVA_ALL, scale[0].keep != 1.0f || scale[1].keep != 1.0f))
        return;
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        to.a[j][0] *= scale[0].keep;
        to.a[j][1] *= scale[1].keep;
        to.a[j][2] *= scale[0].keep;
        to.a[j][3] *= scale[1].keep;
    }
}

/* What is not seen weighs nothing: 8 pairs. */
static __device__ void hide_columns(float (&s)[TILE_PIECES][4], uint64_t mask,
                                    const attend_params &p, const item &work, uint32_t pair,
                                    uint32_t t, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const view own = view_of(p.shape, work, pair + lane % 4 * 2 + i);
        const uint64_t seen = (mask & seen_mask(own, t)) >> lane / 4;
#pragma unroll
        for (uint32_t j = 0; j < 2 * TILE_PIECES; j++) {
            if (!(seen >> j * 8 & 1))
                s[j / 2][i + j % 2 * 2] = -INFINITY;
        }
    }
}

/* The split is complete: 8 pairs go where they belong. */
template <int D>
static __device__ void store_columns(columns<D> &from, const attend_params &p, const item &work,
                                     uint32_t kv_head, uint32_t pair, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        from.e[i] += __shfl_xor_sync(KVA_ALL, from.e[i], 4);
        from.e[i] += __shfl_xor_sync(KVA_ALL, from.e[i], 8);
        from.e[i] += __shfl_xor_sync(KVA_ALL, from.e[i], 16);
        const uint32_t own = pair + lane % 4 * 2 + i;
        if (own >= work.pair_count)
            continue;
        const place at = place_of(p.shape, work, kv_head, own);
#pragma unroll
        for (uint32_t j = 0; j < D / 8; j++) {
            const uint32_t d = j * 8 + lane / 4;
            if (d < p.shape.dim)
                at.a[d] = from.a[j / 2][i + j % 2 * 2] + 0.0f;
        }
        if (lane < 4) {
            *at.m = maximum_of(from.m[i], from.e[i], p.shape.scale);
            *at.e = from.e[i];
        }
    }
}

/* N times 8 pairs. An item is a split, or a part of one that the ranges end in. */
template <typename KV, int D, int N>
static __global__ void __launch_bounds__(KVA_WARP) decode_kernel(attend_params p)
{
    kva_begin();
    const uint32_t lane = threadIdx.x, kv_head = blockIdx.y, dim = p.shape.dim;
    const item work = p.items[blockIdx.x];
    const tile *tiles = p.tiles + work.tiles;
    KVA_DYNAMIC_SHARED(unsigned char, shared_bytes);
    stage<KV, D> &here = *reinterpret_cast<stage<KV, D> *>(shared_bytes);

    tile current = {}, next = {};
    if (work.tile_first < work.tile_end)
        current = tiles[work.tile_first];
    if (work.tile_first + 1 < work.tile_end)
        next = tiles[work.tile_first + 1];
    for (uint32_t i = 0; i < 2 * TILE_PIECES; i++) {
        const row_walk rows = {i % TILE_PIECES * PIECE, (i % TILE_PIECES + 1) * PIECE, 0, 1};
        const bool keys = i < TILE_PIECES;
        copy_rows<KV, D>(keys ? here.k : here.v, p, current, kv_head, keys ? 0 : dim, rows, lane);
        kva_copy_commit();
    }
    const view first = view_of(p.shape, work, 0), last = view_of(p.shape, work, 8 * N - 1);
    const float c = __fmul_rn(p.shape.scale, LOG2_E);
    uint32_t q[N][D / 8];
    columns<D> split[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        load_query<KV, D>(q[n], p.shape, work, kv_head, n * 8 + lane / 4, lane);
        split[n].clear();
    }
    for (uint32_t t = work.tile_first; t < work.tile_end; t++) {
        const bool more = t + 1 < work.tile_end;
        const tile after = t + 2 < work.tile_end ? tiles[t + 2] : tile{};
        float s[N][TILE_PIECES][4];
#pragma unroll
        for (uint32_t i = 0; i < TILE_PIECES; i++) {
            const row_walk rows = {i * PIECE, (i + 1) * PIECE, 0, 1};
            kva_copy_wait<2 * TILE_PIECES - 1>();
            __syncwarp(); /* all lanes' parts of these keys are there */
            multiply_piece_keys<KV, D, N>(s, i, here.k + i * PIECE, q, lane);
            __syncwarp(); /* these keys have been read */
            if (more)
                copy_rows<KV, D>(here.k, p, next, kv_head, 0, rows, lane);
            kva_copy_commit();
        }
        const bool whole = is_whole(current) && sees_all(first, last, t);
        const uint64_t mask = whole ? 0 : tile_mask(p, current);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!whole)
                hide_columns(s[n], mask, p, work, n * 8, t, lane);
            weigh_columns<D>(split[n], s[n], c);
        }
#pragma unroll
        for (uint32_t i = 0; i < TILE_PIECES; i++) {
            const row_walk rows = {i * PIECE, (i + 1) * PIECE, 0, 1};
            kva_copy_wait<2 * TILE_PIECES - 1>();
            __syncwarp(); /* all lanes' parts of these values are there */
            multiply_piece_values<KV, D, N>(split, s, i, here.v + i * PIECE, lane);
            __syncwarp(); /* these values have been read */
            if (more)
                copy_rows<KV, D>(here.v, p, next, kv_head, dim, rows, lane);
            kva_copy_commit();
        }
        current = next;
        next = after;
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        store_columns<D>(split[n], p, work, kv_head, n * 8, lane);
}

#endif
