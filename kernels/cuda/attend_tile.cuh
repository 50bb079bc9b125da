/* attend_tile.cuh - what attention over 16-bit pages (attend.cu) and over low-bit pages (lowbit.cu)
 * share: items of work, tiles in shared memory, the product of a warp's 16 pairs with a tile, and
 * the fold of splits.
 *
 * A block of threads takes up to 128 or 192 (row, query head) pairs that share a KV head, and walks
 * the tokens by tiles of KVA_PAGE_TOKENS: each K and V is read once for all pairs. Each warp
 * multiplies its 16 pairs on the tensor cores. Within a split of KVA_ATTEND_SPLIT_TOKENS the
 * softmax runs online, tile by tile; splits are folded in ascending order by fold_scales and fold
 * alone.
 *
 * Where blocks would be too few for the GPU (decoding), splits run side by side into scratch and a
 * second kernel folds them: the same additions, so the same bits. */
#ifndef KVA_KERNELS_CUDA_ATTEND_TILE_CUH
#define KVA_KERNELS_CUDA_ATTEND_TILE_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/vector.cuh"

#include <math.h>

#define TILE        KVA_PAGE_TOKENS
#define SPLIT_TILES (KVA_ATTEND_SPLIT_TOKENS / TILE)
#define WARPS_MAX   8u /* of 16 pairs each */

/* Elements by which rows in shared memory are longer, so that matrix loads meet no bank twice. */
#define PAD      8u

#define KVA_NONE UINT32_MAX

/* What one block of threads does, for each KV head. */
struct item {
    uint32_t row_first; /* of the call */
    uint32_t position_first;
    uint32_t pair_first; /* pair = row * group + head of the group */
    uint32_t pair_count;
    uint32_t tile_first; /* [tile_first, tile_end) in the sequence */
    uint32_t tile_end;
    int32_t tiles;        /* attend: tile 0 of the sequence in the table, if it had one */
    uint32_t partial;     /* where in scratch the result goes, in pairs; KVA_NONE: to `out` */
    uint32_t seq;         /* lowbit, rows: of the call */
    const uint32_t *gate; /* lowbit, rows: ops.h */
};

/* Where results go, and the shape of everything. */
struct attend_shape {
    struct kva_partial out;
    float
        *partials; /* from pair item.partial kv_heads on [kv_heads][pair_count][dim + 2]: a, m, e */
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t group;
    uint32_t dim;
    uint32_t window;
    float scale;
    bool accumulate;
    const void *q;
    enum kva_dtype q_dtype;
    bool q_whole; /* queries are whole vectors (vector.cuh) */
    uint32_t q_stride;
};

/* The greater, or what is not a number. */
static __device__ __forceinline__ float greater(float a, float b)
{
    return b > a || b != b ? b : a;
}

/* How much of a total and of a split goes into their fold. */
static __device__ __forceinline__ void fold_scales(float m, float split_m, float &top, float &keep,
                                                   float &add)
{
    top = greater(m, split_m);
    keep = m == -INFINITY ? 0.0f : __expf(m - top);
    add = split_m == -INFINITY ? 0.0f : __expf(split_m - top);
}

/* a keep + split_a add: fused here, not where the compiler likes, so the same bits everywhere. */
static __device__ __forceinline__ float fold(float a, float keep, float split_a, float add)
{
    return fmaf(split_a, add, __fmul_rn(a, keep));
}

/* --- tiles in shared memory ------------------------------------------------------------------- */

template <typename KV, int D> struct stage {
    KV k[TILE][D + PAD];
    KV v[TILE][D + PAD];
};

/* Zero the elements that no copy writes: what pads the head dimension. */
template <typename KV, int D>
static __device__ void clear_padding(stage<KV, D> *stages, uint32_t count, uint32_t dim)
{
    uint32_t rest = D - dim;
    for (uint32_t i = threadIdx.x; rest > 0 && i < count * 2 * TILE * rest; i += blockDim.x) {
        uint32_t row = i / rest, column = dim + i % rest;
        stage<KV, D> &to = stages[row / (2 * TILE)];
        (row / TILE % 2 ? to.v : to.k)[row % TILE][column].bits = 0;
    }
}

/* --- one warp's 16 pairs ---------------------------------------------------------------------- */

/* Rows g and g + 8 of a warp's 16 are held by lanes 4 g .. 4 g + 3. */
template <int D> struct state {
    float a[D / 8][4];
    float m[2], e[2];

    __device__ void clear()
    {
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            a[j][0] = a[j][1] = a[j][2] = a[j][3] = 0.0f;
        m[0] = m[1] = -INFINITY;
        e[0] = e[1] = 0.0f;
    }
};

/* s = q k^T for the N tokens that begin at k. */
template <typename KV, int D, int N>
static __device__ void multiply_keys(float (&s)[N / 8][4], const KV (*q)[D + PAD],
                                     const KV (*k)[D + PAD], uint32_t lane)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4], b[4];
        kva_load_matrices(a, &q[lane % 16][d + lane / 16 * 8]);
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            kva_load_matrices(b, &k[j * 8 + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
            kva_mma<KV>(s[j], a, b[0], b[1]);
            kva_mma<KV>(s[j + 1], a, b[2], b[3]);
        }
    }
}

/* a += p v for the N tokens that begin at v, in rows of PITCH elements. */
template <typename KV, int D, int N, int PITCH>
static __device__ void multiply_values(state<D> &to, const float (&p)[N / 8][4],
                                       const KV (*v)[PITCH], uint32_t lane)
{
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
        uint32_t a[4] = {kva_pack<KV>(p[j][0], p[j][1]), kva_pack<KV>(p[j][2], p[j][3]),
                         kva_pack<KV>(p[j + 1][0], p[j + 1][1]),
                         kva_pack<KV>(p[j + 1][2], p[j + 1][3])};
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            uint32_t b[4];
            kva_load_transposed(b, &v[j * 8 + lane % 16][d + lane / 16 * 8]);
            kva_mma<KV>(to.a[d / 8], a, b[0], b[1]);
            kva_mma<KV>(to.a[d / 8 + 1], a, b[2], b[3]);
        }
    }
}

/* Scores become probabilities relative to the running maximum; `to` is rescaled to it. look(slot,
 * i, score) gives the score of a slot of the tile for the lane's row g + 8 i, -inf if it is not
 * seen. */
template <int D, int N, typename Look>
static __device__ __forceinline__ void softmax_split(state<D> &to, float (&s)[N / 8][4],
                                                     float scale, uint32_t lane, Look look)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = to.m[i];
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            float &x = s[j / 2][2 * i + j % 2];
            x = look(j / 2 * 8 + lane % 4 * 2 + j % 2, i, x * scale);
            top = greater(top, x);
        }
        top = greater(top, __shfl_xor_sync(KVA_ALL, top, 1));
        top = greater(top, __shfl_xor_sync(KVA_ALL, top, 2));
        float keep = to.m[i] == -INFINITY ? 0.0f : __expf(to.m[i] - top), sum = 0.0f;
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            float &x = s[j / 2][2 * i + j % 2];
            x = x == -INFINITY ? 0.0f : __expf(x - top);
            sum += x;
        }
        sum += __shfl_xor_sync(KVA_ALL, sum, 1);
        sum += __shfl_xor_sync(KVA_ALL, sum, 2);
        to.m[i] = top;
        to.e[i] = fmaf(to.e[i], keep, sum);
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            to.a[j][2 * i] *= keep;
            to.a[j][2 * i + 1] *= keep;
        }
    }
}

/* Tokens of a tile that a warp takes at a time: as many as there are registers for scores. */
template <int D> constexpr uint32_t tile_chunk = D <= 64 ? TILE : D <= 128 ? TILE / 2 : TILE / 4;

/* Partial attention of the warp's pairs over a tile, or over its first tokens, a multiple of
 * tile_chunk. look: see softmax_split. */
template <typename KV, int D, typename Look>
static __device__ __forceinline__ void attend_tile(state<D> &to, const KV (*q)[D + PAD],
                                                   const stage<KV, D> &tile, float scale,
                                                   uint32_t lane, Look look, uint32_t tokens = TILE)
{
    constexpr int N = tile_chunk<D>;
#pragma unroll 1
    for (uint32_t first = 0; first < tokens; first += N) {
        float s[N / 8][4];
        multiply_keys<KV, D, N>(s, q, tile.k + first, lane);
        softmax_split<D, N>(to, s, scale, lane, [&](uint32_t slot, int i, float x) {
            return look(first + slot, i, x);
        });
        multiply_values<KV, D, N>(to, s, tile.v + first, lane);
    }
}

template <int D> static __device__ void fold_split(state<D> &to, const state<D> &split)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (split.m[i] == -INFINITY)
            continue;
        float top, keep, add;
        fold_scales(to.m[i], split.m[i], top, keep, add);
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            to.a[j][2 * i] = fold(to.a[j][2 * i], keep, split.a[j][2 * i], add);
            to.a[j][2 * i + 1] = fold(to.a[j][2 * i + 1], keep, split.a[j][2 * i + 1], add);
        }
        to.e[i] = fold(to.e[i], keep, split.e[i], add);
        to.m[i] = top;
    }
}

/* Where a pair's a, m and e are. */
struct place {
    float *a, *m, *e;
};

/* In scratch: a, then m, then e. */
static __device__ float *partial_of(const attend_shape &p, const item &work, uint32_t kv_head,
                                    uint32_t pair)
{
    size_t at = static_cast<size_t>(work.partial) * p.kv_heads + kv_head * work.pair_count + pair;
    return p.partials + at * (p.dim + 2);
}

/* In a partial result of the call's rows. */
static __device__ place place_in(const struct kva_partial &partial, const attend_shape &p,
                                 const item &work, uint32_t kv_head, uint32_t pair)
{
    const uint32_t index = work.pair_first + pair;
    const size_t row = work.row_first + index / p.group;
    const size_t at = row * p.heads + kv_head * p.group + index % p.group;
    return {partial.a + at * p.dim, partial.m + at, partial.e + at};
}

static __device__ place place_of(const attend_shape &p, const item &work, uint32_t kv_head,
                                 uint32_t pair)
{
    if (work.partial != KVA_NONE) {
        float *a = partial_of(p, work, kv_head, pair);
        return {a, a + p.dim, a + p.dim + 1};
    }
    return place_in(p.out, p, work, kv_head, pair);
}

/* Between a state and memory, for the lane's two pairs: D dimensions from `first` on, and with the
 * first ones m and e. */
template <bool STORE, int D>
static __device__ void move_state(state<D> &s, const attend_shape &p, const item &work,
                                  uint32_t kv_head, uint32_t warp_pair, uint32_t lane,
                                  uint32_t first = 0)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t pair = warp_pair + lane / 4 + 8 * i;
        if (pair >= work.pair_count)
            continue;
        place at = place_of(p, work, kv_head, pair);
#pragma unroll
        for (int j = 0; j < D / 4; j++) {
            uint32_t d = first + j / 2 * 8 + lane % 4 * 2 + j % 2;
            float &x = s.a[j / 2][2 * i + j % 2];
            if (d >= p.dim)
                continue;
            if (STORE)
                at.a[d] = x + 0.0f; /* no negative zeros: a row alone has other ones */
            else
                x = at.a[d];
        }
        if (STORE && lane % 4 == 0 && first == 0) {
            *at.m = s.m[i];
            *at.e = s.e[i];
        } else if (!STORE) {
            s.m[i] = *at.m;
            s.e[i] = *at.e;
        }
    }
}

/* The queries of `pairs` pairs, of which the item has the first work.pair_count; the others are
 * zero. Eight numbers at a time. */
template <typename KV, int D, typename Q>
static __device__ void load_whole_queries(KV (*q)[D + PAD], const attend_shape &p, const item &work,
                                          uint32_t kv_head, uint32_t pairs)
{
    constexpr uint32_t pieces = D / KVA_VECTOR;
    for (uint32_t i = threadIdx.x; i < pairs * pieces; i += blockDim.x) {
        const uint32_t pair = i / pieces, d = i % pieces * KVA_VECTOR;
        const uint32_t index = work.pair_first + pair;
        const size_t head = kv_head * p.group + index % p.group;
        const size_t row = work.row_first + index / p.group;
        const bool there = pair < work.pair_count && d < p.dim;
        kva_numbers x = kva_vector_to_f32(kva_vector_load<true>(
            static_cast<const Q *>(p.q) + row * p.q_stride + head * p.dim + d, there ? 8 : 0));
#pragma unroll
        for (uint32_t n = 0; n < KVA_VECTOR; n++)
            x.x[n] = kva_clamp<KV>(x.x[n]);
        kva_vector_store<true>(&q[pair][d], kva_vector_from_f32<KV>(x), KVA_VECTOR);
    }
}

/* The same, number by number. */
template <typename KV, int D>
static __device__ void load_query_numbers(KV (*q)[D + PAD], const attend_shape &p, const item &work,
                                          uint32_t kv_head, uint32_t pairs)
{
    for (uint32_t i = threadIdx.x; i < pairs * D; i += blockDim.x) {
        uint32_t pair = i / D, d = i % D, index = work.pair_first + pair;
        float x = 0.0f;
        if (pair < work.pair_count && d < p.dim) {
            size_t head = kv_head * p.group + index % p.group;
            size_t row = work.row_first + index / p.group;
            x = kva_load(p.q, p.q_dtype, row * p.q_stride + head * p.dim + d);
        }
        q[pair][d] = kva_saturate<KV>(x);
    }
}

template <typename KV, int D>
static __device__ void load_queries(KV (*q)[D + PAD], const attend_shape &p, const item &work,
                                    uint32_t kv_head, uint32_t pairs)
{
    if (!p.q_whole)
        load_query_numbers<KV, D>(q, p, work, kv_head, pairs);
    else if (p.q_dtype == KVA_F32)
        load_whole_queries<KV, D, float>(q, p, work, kv_head, pairs);
    else if (p.q_dtype == KVA_F16)
        load_whole_queries<KV, D, kva_f16>(q, p, work, kv_head, pairs);
    else
        load_whole_queries<KV, D, kva_bf16>(q, p, work, kv_head, pairs);
}

#endif
