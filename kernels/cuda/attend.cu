/* attend: partial attention over 16-bit pages, prompts and decoding alike.
 *
 * A block of threads takes up to 64 or 128 (row, query head) pairs that share a KV head, and walks
 * the tokens by tiles of KVA_PAGE_TOKENS positions: each K and V is read once for all pairs. Tiles
 * come through two stages of shared memory; each warp multiplies its 16 pairs on the tensor cores.
 * Within a split of KVA_ATTEND_SPLIT_TOKENS positions the softmax runs online, tile by tile; splits
 * are folded in ascending order by kva_fold alone. Tiles and splits are aligned to positions, so
 * the order of additions is a property of the sequence.
 *
 * Where blocks would be too few for the GPU (decoding), splits run side by side into scratch and a
 * second kernel folds them: the same additions, so the same bits.
 *
 * What is not a number in V spreads to the rows of the same sequence that do not see the token, if
 * it lies in a tile of theirs: a product by zero does not remove it. */
#include "kernels/cuda/mma.cuh"

#include <math.h>
#include <string.h>

#define TILE        KVA_PAGE_TOKENS
#define SPLIT_TILES (KVA_ATTEND_SPLIT_TOKENS / TILE)
#define STAGES      2u
#define WARPS_MAX   8u /* of 16 pairs each */

/* Elements by which rows in shared memory are longer, so that matrix loads meet no bank twice. */
#define PAD 8u

/* A tile of a sequence: the tokens of slots [first, end) of a block; more in overflow tile next - 1
 * if ranges meet within it. */
struct tile {
    const unsigned char *block; /* NULL: no token */
    uint16_t first, end;
    uint32_t next; /* 0: none */
};

/* What one block of threads does, for each KV head. */
struct item {
    uint32_t row_first; /* of the call */
    uint32_t position_first;
    uint32_t pair_first; /* pair = row * group + head of the group */
    uint32_t pair_count;
    uint32_t tile_first; /* [tile_first, tile_end) in the sequence */
    uint32_t tile_end;
    int32_t tiles;    /* tile 0 of the sequence in the table, if it had one */
    uint32_t partial; /* where in scratch the result goes; KVA_NONE: to `out` */
};

#define KVA_NONE UINT32_MAX

struct attend_params {
    const void *q;
    enum kva_dtype q_dtype;
    struct kva_partial out;
    const tile *tiles;
    const tile *overflow;
    const item *items;
    float *partials; /* [item.partial][kv_heads][pairs][dim + 2]: a, m, e */
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t group;
    uint32_t dim;
    uint32_t window;
    float scale;
    bool accumulate;
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
static __device__ void clear_padding(stage<KV, D> *stages, uint32_t dim)
{
    uint32_t rest = D - dim;
    for (uint32_t i = threadIdx.x; rest > 0 && i < STAGES * 2 * TILE * rest; i += blockDim.x) {
        uint32_t row = i / rest, column = dim + i % rest;
        stage<KV, D> &to = stages[row / (2 * TILE)];
        (row / TILE % 2 ? to.v : to.k)[row % TILE][column].bits = 0;
    }
}

/* Start bringing the rows of a tile; rows of no token become zero. */
template <typename KV, int D>
static __device__ void load_tile(stage<KV, D> &to, const attend_params &p, tile piece,
                                 uint32_t kv_head)
{
    const size_t head_bytes = static_cast<size_t>(TILE) * 2 * p.dim * sizeof(KV);
    bool first_piece = true;
    for (;;) {
        const KV *from = reinterpret_cast<const KV *>(piece.block + kv_head * head_bytes);
        uint32_t chunk = p.dim % 8 == 0 ? 8 : 1, chunks = 2 * p.dim / chunk;
        for (uint32_t i = threadIdx.x; i < TILE * chunks; i += blockDim.x) {
            uint32_t token = i / chunks, at = i % chunks * chunk;
            bool valid = piece.block && token >= piece.first && token < piece.end;
            KV *row = at < p.dim ? &to.k[token][at] : &to.v[token][at - p.dim];
            if (!valid && !first_piece)
                continue;
            const KV *source =
                valid ? from + token * 2 * p.dim + at : reinterpret_cast<const KV *>(p.tiles);
            if (chunk == 8)
                kva_copy_async(row, source, valid);
            else
                row->bits = valid ? source->bits : 0;
        }
        if (piece.next == 0)
            return;
        piece = p.overflow[piece.next - 1];
        first_piece = false;
        /* A later piece may write what an earlier one has under way as zeros. */
        kva_copy_commit();
        kva_copy_wait<0>();
        __syncthreads();
    }
}

/* Bit i: slot i of the tile holds a token. */
static __device__ uint64_t tile_mask(const attend_params &p, tile piece)
{
    uint64_t mask = 0;
    for (;;) {
        if (piece.block && piece.end > piece.first)
            mask |= ~0ull >> (64 - (piece.end - piece.first)) << piece.first;
        if (piece.next == 0)
            return mask;
        piece = p.overflow[piece.next - 1];
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

/* s = q k^T for the tile's 64 tokens. */
template <typename KV, int D>
static __device__ void multiply_keys(float (&s)[TILE / 8][4], const KV (*q)[D + PAD],
                                     const KV (*k)[D + PAD], uint32_t lane)
{
#pragma unroll
    for (int j = 0; j < static_cast<int>(TILE / 8); j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4], b[4];
        kva_load_matrices(a, &q[lane % 16][d + lane / 16 * 8]);
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE / 8); j += 2) {
            kva_load_matrices(b, &k[j * 8 + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
            kva_mma<KV>(s[j], a, b[0], b[1]);
            kva_mma<KV>(s[j + 1], a, b[2], b[3]);
        }
    }
}

/* a += p v for the tile's 64 tokens. */
template <typename KV, int D>
static __device__ void multiply_values(state<D> &to, const float (&p)[TILE / 8][4],
                                       const KV (*v)[D + PAD], uint32_t lane)
{
#pragma unroll
    for (int j = 0; j < static_cast<int>(TILE / 8); j += 2) {
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

/* Scores become probabilities relative to the running maximum; `to` is rescaled to it. position[i]:
 * of the lane's row g + 8 i. */
template <int D>
static __device__ void soften(state<D> &to, float (&s)[TILE / 8][4], const attend_params &p,
                              uint64_t mask, uint32_t base, const uint32_t (&position)[2],
                              uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t first = p.window && position[i] >= p.window ? position[i] - p.window + 1 : 0;
        float top = to.m[i];
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE / 4); j++) {
            uint32_t slot = j / 2 * 8 + lane % 4 * 2 + j % 2, token = base + slot;
            float &x = s[j / 2][2 * i + j % 2];
            bool seen = (mask >> slot & 1) && token <= position[i] && token >= first;
            x = seen ? x * p.scale : -INFINITY;
            top = greater(top, x);
        }
        top = greater(top, __shfl_xor_sync(KVA_ALL, top, 1));
        top = greater(top, __shfl_xor_sync(KVA_ALL, top, 2));
        float keep = to.m[i] == -INFINITY ? 0.0f : __expf(to.m[i] - top), sum = 0.0f;
#pragma unroll
        for (int j = 0; j < static_cast<int>(TILE / 4); j++) {
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

static __device__ place place_of(const attend_params &p, const item &work, uint32_t kv_head,
                                 uint32_t pairs, uint32_t pair)
{
    if (work.partial != KVA_NONE) {
        size_t at = (static_cast<size_t>(work.partial) * p.kv_heads + kv_head) * pairs + pair;
        float *a = p.partials + at * (p.dim + 2);
        return {a, a + p.dim, a + p.dim + 1};
    }
    uint32_t index = work.pair_first + pair;
    size_t row = work.row_first + index / p.group;
    size_t at = row * p.heads + kv_head * p.group + index % p.group;
    return {p.out.a + at * p.dim, p.out.m + at, p.out.e + at};
}

/* Between a state and memory, for the lane's two pairs. */
template <bool STORE, int D>
static __device__ void move_state(state<D> &s, const attend_params &p, const item &work,
                                  uint32_t kv_head, uint32_t pairs, uint32_t warp_pair,
                                  uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t pair = warp_pair + lane / 4 + 8 * i;
        if (pair >= work.pair_count)
            continue;
        place at = place_of(p, work, kv_head, pairs, pair);
#pragma unroll
        for (int j = 0; j < D / 4; j++) {
            uint32_t d = j / 2 * 8 + lane % 4 * 2 + j % 2;
            float &x = s.a[j / 2][2 * i + j % 2];
            if (d >= p.dim)
                continue;
            if (STORE)
                at.a[d] = x + 0.0f; /* no negative zeros: a row alone has other ones */
            else
                x = at.a[d];
        }
        if (STORE && lane % 4 == 0) {
            *at.m = s.m[i];
            *at.e = s.e[i];
        } else if (!STORE) {
            s.m[i] = *at.m;
            s.e[i] = *at.e;
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <typename KV, int D>
static __device__ void load_queries(KV (*q)[D + PAD], const attend_params &p, const item &work,
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
static __global__ void __launch_bounds__(WARPS_MAX * 32) attend_kernel(attend_params p)
{
    const uint32_t pairs = blockDim.x / 2, lane = threadIdx.x % KVA_WARP;
    const uint32_t warp_pair = threadIdx.x / KVA_WARP * 16, kv_head = blockIdx.y;
    const item work = p.items[blockIdx.x];
    const tile *tiles = p.tiles + work.tiles;
    KVA_DYNAMIC_SHARED(unsigned char, shared);
    stage<KV, D> *stages = reinterpret_cast<stage<KV, D> *>(shared);
    KV(*q)[D + PAD] = reinterpret_cast<KV(*)[D + PAD]>(stages + STAGES);
    bool busy = warp_pair < work.pair_count;

    uint32_t position[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t pair = min(warp_pair + lane / 4 + 8 * i, work.pair_count - 1);
        position[i] = work.position_first + (work.pair_first + pair) / p.group;
    }
    state<D> total, split;
    total.clear();
    split.clear();
    if (p.accumulate && work.partial == KVA_NONE && busy)
        move_state<false>(total, p, work, kv_head, pairs, warp_pair, lane);
    clear_padding(stages, p.dim);
    load_queries<KV, D>(q, p, work, kv_head, pairs);
    tile next = {};
    if (work.tile_first < work.tile_end) {
        next = tiles[work.tile_first];
        load_tile(stages[0], p, next, kv_head);
    }
    kva_copy_commit();
    for (uint32_t t = work.tile_first; t < work.tile_end; t++) {
        const tile current = next;
        if (t + 1 < work.tile_end) {
            next = tiles[t + 1];
            load_tile(stages[(t + 1 - work.tile_first) % STAGES], p, next, kv_head);
        }
        kva_copy_commit();
        kva_copy_wait<1>();
        __syncthreads(); /* everybody's part of the tile is there */
        const uint64_t mask = tile_mask(p, current);
        const stage<KV, D> &here = stages[(t - work.tile_first) % STAGES];
        if (busy && mask) {
            float s[TILE / 8][4];
            multiply_keys<KV, D>(s, q + warp_pair, here.k, lane);
            soften(split, s, p, mask, t * TILE, position, lane);
            multiply_values<KV, D>(split, s, here.v, lane);
        }
        if ((t + 1) % SPLIT_TILES == 0 || t + 1 == work.tile_end) {
            fold_split(total, split);
            split.clear();
        }
        __syncthreads(); /* the stage may be written again */
    }
    if (busy)
        move_state<true>(total, p, work, kv_head, pairs, warp_pair, lane);
}

/* Fold the splits of an item's pairs: one pair a warp. items[i].partial is the first split's place,
 * tile_end - tile_first the number of splits. */
static __global__ void fold_kernel(attend_params p, const item *items, uint32_t pairs)
{
    const item work = items[blockIdx.x];
    uint32_t kv_head = blockIdx.y, pair = blockIdx.z * blockDim.y + threadIdx.y;
    if (pair >= work.pair_count)
        return;
    item result = work, from = work;
    result.partial = KVA_NONE;
    place out = place_of(p, result, kv_head, pairs, pair);
    float m = p.accumulate ? *out.m : -INFINITY, e = p.accumulate ? *out.e : 0.0f;
    float a[16];
    for (uint32_t j = 0; j < 16; j++) {
        uint32_t d = j * KVA_WARP + threadIdx.x;
        a[j] = p.accumulate && d < p.dim ? out.a[d] : 0.0f;
    }
    for (uint32_t split = 0; split < work.tile_end - work.tile_first; split++) {
        from.partial = work.partial + split;
        place at = place_of(p, from, kv_head, pairs, pair);
        float split_m = *at.m;
        if (split_m == -INFINITY)
            continue;
        float top, keep, add;
        fold_scales(m, split_m, top, keep, add);
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) {
            uint32_t d = j * KVA_WARP + threadIdx.x;
            if (d < p.dim)
                a[j] = fold(a[j], keep, at.a[d], add);
        }
        e = fold(e, keep, *at.e, add);
        m = top;
    }
    __syncwarp();
    for (uint32_t j = 0; j < 16; j++) {
        uint32_t d = j * KVA_WARP + threadIdx.x;
        if (d < p.dim)
            out.a[d] = a[j] + 0.0f;
    }
    if (threadIdx.x == 0) {
        *out.m = m;
        *out.e = e;
    }
}

/* --- the plan --------------------------------------------------------------------------------- */

/* A call, cut into items; all arrays lie in one piece of the descriptor ring. */
struct plan {
    const struct kva_attend_args *args;
    uint32_t group;
    uint32_t pairs; /* of a block of threads */
    bool wide;      /* splits side by side */
    uint32_t item_count, fold_count, tile_count, overflow_count, partial_count;
    item *items;
    item *folds;
    tile *tiles;
    tile *overflow;
};

struct tile_span {
    uint32_t first, end;
};

/* Tiles that the ranges of a sequence reach. */
static struct tile_span seq_tiles(const struct kva_attend_args *args,
                                  const struct kva_attend_seq *seq)
{
    if (seq->range_count == 0)
        return {0, 0};
    const struct kva_attend_range *ranges = args->ranges + seq->range_first;
    const struct kva_attend_range *last = &ranges[seq->range_count - 1];
    return {ranges[0].token_first / TILE, kva_blocks(last->token_first + last->token_count, TILE)};
}

/* Tiles that some of the rows [row_first, row_end) of a sequence may see. */
static struct tile_span rows_tiles(const struct kva_attend_args *args,
                                   const struct kva_attend_seq *seq, uint32_t row_first,
                                   uint32_t row_end)
{
    struct tile_span span = seq_tiles(args, seq);
    uint32_t low = seq->position_first + row_first, high = seq->position_first + row_end;
    if (args->window > 0 && low >= args->window)
        span.first = kva_max_u32(span.first, (low - args->window + 1) / TILE);
    span.end = kva_min_u32(span.end, kva_blocks(high, TILE));
    span.end = kva_max_u32(span.end, span.first);
    return span;
}

/* The sequence's tile table; with plan->tiles NULL only counted. */
static void add_tiles(struct plan *plan, const struct kva_attend_seq *seq)
{
    const struct kva_attend_args *args = plan->args;
    struct tile_span span = seq_tiles(args, seq);
    tile *tiles = plan->tiles ? plan->tiles + plan->tile_count : nullptr;
    if (tiles)
        memset(tiles, 0, (span.end - span.first) * sizeof *tiles);
    uint32_t last_end = span.first; /* tiles before it have a token already */
    for (uint32_t i = 0; i < seq->range_count; i++) {
        const struct kva_attend_range *range = &args->ranges[seq->range_first + i];
        uint32_t end = range->token_first + range->token_count;
        for (uint32_t at = range->token_first / TILE; at * TILE < end; at++) {
            uint32_t first = kva_max_u32(at * TILE, range->token_first) - at * TILE;
            const void *block = args->blocks[range->block_first + at - range->token_first / TILE];
            tile piece = {static_cast<const unsigned char *>(block) + args->block_offset_bytes,
                          static_cast<uint16_t>(first),
                          static_cast<uint16_t>(kva_min_u32(end - at * TILE, TILE)), 0};
            bool more = at < last_end;
            if (more && tiles) {
                piece.next = tiles[at - span.first].next;
                plan->overflow[plan->overflow_count] = piece;
                tiles[at - span.first].next = plan->overflow_count + 1;
            } else if (tiles) {
                tiles[at - span.first] = piece;
            }
            plan->overflow_count += more;
            last_end = kva_max_u32(last_end, at + 1);
        }
    }
    plan->tile_count += span.end - span.first;
}

/* The items of one sequence; with plan->items NULL only counted. */
static void add_items(struct plan *plan, const struct kva_attend_seq *seq)
{
    const struct kva_attend_args *args = plan->args;
    uint32_t pair_count = seq->row_count * plan->group;
    int32_t tiles = static_cast<int32_t>(plan->tile_count - seq_tiles(args, seq).first);
    for (uint32_t pair = 0; pair < pair_count; pair += plan->pairs) {
        uint32_t pair_end = kva_min_u32(pair + plan->pairs, pair_count);
        struct tile_span span =
            rows_tiles(args, seq, pair / plan->group, kva_blocks(pair_end, plan->group));
        item work = {
            seq->row_first, seq->position_first, pair, pair_end - pair, span.first, span.end, tiles,
            KVA_NONE};
        uint32_t split_first = span.first / SPLIT_TILES;
        uint32_t split_end = kva_blocks(span.end, SPLIT_TILES);
        if (!plan->wide || split_end - split_first < 2) {
            if (plan->items)
                plan->items[plan->item_count] = work;
            plan->item_count++;
            continue;
        }
        if (plan->folds) {
            plan->folds[plan->fold_count] = work;
            plan->folds[plan->fold_count].partial = plan->partial_count;
            plan->folds[plan->fold_count].tile_first = split_first;
            plan->folds[plan->fold_count].tile_end = split_end;
        }
        plan->fold_count++;
        for (uint32_t split = split_first; split < split_end; split++) {
            work.tile_first = kva_max_u32(span.first, split * SPLIT_TILES);
            work.tile_end = kva_min_u32(span.end, (split + 1) * SPLIT_TILES);
            work.partial = plan->partial_count++;
            if (plan->items)
                plan->items[plan->item_count] = work;
            plan->item_count++;
        }
    }
}

static void walk(struct plan *plan)
{
    plan->item_count = plan->fold_count = plan->tile_count = 0;
    plan->overflow_count = plan->partial_count = 0;
    for (uint32_t i = 0; i < plan->args->seq_count; i++) {
        add_items(plan, &plan->args->seqs[i]);
        add_tiles(plan, &plan->args->seqs[i]);
    }
}

static size_t partial_bytes(const struct plan *plan)
{
    const struct kva_attend_args *args = plan->args;
    return static_cast<size_t>(plan->partial_count) * args->kv_heads * plan->pairs *
           (args->head_dim + 2) * sizeof(float);
}

/* Splits go side by side where whole items would leave a part of the GPU idle, and scratch holds
 * the partial results. Neither changes a bit. */
static void choose_width(struct plan *plan, const struct kva_device *device)
{
    walk(plan);
    if (plan->item_count * plan->args->kv_heads >= 4u * static_cast<uint32_t>(device->sm_count))
        return;
    plan->wide = true;
    walk(plan);
    if (partial_bytes(plan) <= KVA_CUDA_SCRATCH_BYTES)
        return;
    plan->wide = false;
    walk(plan);
}

/* Fill the plan in the ring and send it; the addresses become the device's. */
static bool send_plan(struct kva_device *device, struct plan *plan)
{
    size_t items = (plan->item_count + plan->fold_count) * sizeof(item);
    size_t tiles = (static_cast<size_t>(plan->tile_count) + plan->overflow_count) * sizeof(tile);
    void *staged = kva_cuda_stage(device, items + tiles);
    if (!staged)
        return false;
    plan->tiles = static_cast<tile *>(staged);
    plan->overflow = plan->tiles + plan->tile_count;
    plan->items = reinterpret_cast<item *>(static_cast<unsigned char *>(staged) + tiles);
    plan->folds = plan->items + plan->item_count;
    walk(plan);
    const unsigned char *sent =
        static_cast<const unsigned char *>(kva_cuda_send(device, staged, items + tiles));
    ptrdiff_t shift = sent - static_cast<unsigned char *>(staged);
    plan->tiles = reinterpret_cast<tile *>(reinterpret_cast<unsigned char *>(plan->tiles) + shift);
    plan->overflow = plan->tiles + plan->tile_count;
    plan->items = reinterpret_cast<item *>(reinterpret_cast<unsigned char *>(plan->items) + shift);
    plan->folds = plan->items + plan->item_count;
    return sent != nullptr;
}

/* --- the operator ----------------------------------------------------------------------------- */

static bool check_args(struct kva_device *device, const struct kva_attend_args *args)
{
    if (args->head_dim == 0 || args->head_dim > 256)
        kva_cuda_fail(device, "attend: head_dim %u, must be 1 to 256", args->head_dim);
    else if (args->kv_heads == 0 || args->heads % args->kv_heads != 0)
        kva_cuda_fail(device, "attend: %u heads cannot share %u KV heads", args->heads,
                      args->kv_heads);
    else if (args->kv_dtype != KVA_F16 && args->kv_dtype != KVA_BF16)
        kva_cuda_fail(device, "attend: KV blocks hold f16 or bf16, not data type %d",
                      static_cast<int>(args->kv_dtype));
    return !kva_cuda_failed(device);
}

template <typename KV, int D>
static void launch(struct kva_device *device, const struct plan *plan, const attend_params &params)
{
    size_t shared_bytes = STAGES * sizeof(stage<KV, D>) + plan->pairs * (D + PAD) * sizeof(KV);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend",
                 {dim3(plan->item_count, params.kv_heads), plan->pairs * 2, shared_bytes},
                 attend_kernel<KV, D>, params);
}

template <typename KV>
static void launch_dim(struct kva_device *device, const struct plan *plan,
                       const attend_params &params)
{
    if (params.dim <= 64)
        launch<KV, 64>(device, plan, params);
    else if (params.dim <= 128)
        launch<KV, 128>(device, plan, params);
    else
        launch<KV, 256>(device, plan, params);
}

void kva_cuda_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device) || !check_args(device, args))
        return;
    struct plan plan = {};
    plan.args = args;
    plan.group = args->heads / args->kv_heads;
    uint32_t rows_max = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        rows_max = kva_max_u32(rows_max, args->seqs[i].row_count);
    plan.pairs = static_cast<size_t>(rows_max) * plan.group <= 64 ? 64 : WARPS_MAX * 16;
    choose_width(&plan, device);
    if (plan.item_count == 0 || !send_plan(device, &plan))
        return;
    attend_params params = {};
    params.q = args->q;
    params.q_dtype = device->base.info.act;
    params.out = args->out;
    params.tiles = plan.tiles;
    params.overflow = plan.overflow;
    params.items = plan.items;
    params.partials = static_cast<float *>(device->scratch);
    params.q_stride = args->q_stride;
    params.heads = args->heads;
    params.kv_heads = args->kv_heads;
    params.group = plan.group;
    params.dim = args->head_dim;
    params.window = args->window;
    params.scale = args->scale;
    params.accumulate = args->accumulate;
    if (args->kv_dtype == KVA_F16)
        launch_dim<kva_f16>(device, &plan, params);
    else
        launch_dim<kva_bf16>(device, &plan, params);
    if (plan.fold_count > 0 && !kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend's folds",
                     {dim3(plan.fold_count, args->kv_heads, plan.pairs / 4), dim3(KVA_WARP, 4)},
                     fold_kernel, params, plan.folds, plan.pairs);
}
