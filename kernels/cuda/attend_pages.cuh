/* attend_pages.cuh - what the two kernels of attention over 16-bit pages share: tiles, how their
 * rows come to shared memory, queries in registers, and the order of additions.
 *
 * A pair (a row and a query head) has the same bits whichever kernel has it, so both keep to one
 * order within a split, from an empty one on, a tile at a time:
 *
 *   scores   each a chain of products over 16 dimensions, ascending
 *   m        the largest score that is seen. Exponents are powers of two, relative to `base`, m in
 *            units of log2(e) / scale, rounded
 *   e        eight sums, each of the tokens that are equal modulo 8, ascending within the tile, to
 *            which the sum before, scaled to the new maximum, is added. Behind the split's last
 *            tile they are added in pairs: those that differ by 1, by 2, by 4
 *   a        each a chain of products over 16 tokens, ascending, scaled whenever the maximum grows
 *
 * In one kernel a product has pairs as rows and tokens, or dimensions, as columns, in the other the
 * other way round. The elements of a product are the same sums of the same 16 products of the same
 * numbers, only that the factors change places. Nothing published about tensor cores lets that, or
 * where in a tile an element lies, change its bits; on a GPU it was not tried. */
#ifndef KVA_KERNELS_CUDA_ATTEND_PAGES_CUH
#define KVA_KERNELS_CUDA_ATTEND_PAGES_CUH

#include "kernels/cuda/attend_tile.cuh"

/* A tile of a sequence: the tokens of slots [first, end) of a block; more in overflow tile next - 1
 * if ranges meet within it. */
struct tile {
    const unsigned char *block; /* NULL: no token */
    uint16_t first, end;
    uint32_t next; /* 0: none */
};

struct attend_params {
    attend_shape shape;
    const tile *tiles;
    const tile *overflow;
    const item *items;
    /* Of prompts: tiles in shared memory, 1 or 2, and the last tiles of an item that not all of its
     * rows see whole. */
    uint32_t stages, border;
};

/* --- which tokens are seen -------------------------------------------------------------------- */

static __device__ __forceinline__ bool is_whole(const tile &piece)
{
    return piece.block && piece.first == 0 && piece.end == TILE;
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

/* The tokens that a pair may see: [first, last]. */
struct view {
    uint32_t first, last;
};

static __device__ view view_of(const attend_shape &p, const item &work, uint32_t pair)
{
    const uint32_t index = work.pair_first + min(pair, work.pair_count - 1);
    const uint32_t position = work.position_first + index / p.group;
    const bool cut = p.window && position >= p.window;
    return {cut ? position - p.window + 1 : 0, position};
}

/* Bit i: token i of tile t is in the view. */
static __device__ uint64_t seen_mask(const view &seen, uint32_t t)
{
    const uint32_t begin = t * TILE;
    const uint32_t low = seen.first > begin ? seen.first - begin : 0;
    if (seen.last < begin || low >= TILE)
        return 0;
    return ~0ull << low & ~0ull >> (TILE - 1 - min(seen.last - begin, TILE - 1));
}

/* Whether the pairs whose first and last views these are see all of tile t. */
static __device__ __forceinline__ bool sees_all(const view &first, const view &last, uint32_t t)
{
    return t * TILE >= last.first && t * TILE + TILE - 1 <= first.last;
}

/* Whether they see any of it. */
static __device__ __forceinline__ bool sees_any(const view &first, const view &last, uint32_t t)
{
    return t * TILE + TILE - 1 >= first.first && t * TILE <= last.last;
}

/* --- rows into shared memory ------------------------------------------------------------------ */

/* Who copies what: the lanes of `warps` warps go through rows [first, end) of a tile. */
struct row_walk {
    uint32_t first, end, warp, warps;
};

/* How a warp lies over rows of D elements, 16 bytes a lane. */
template <int D> struct row_lanes {
    static constexpr uint32_t COLUMNS = D / 8;           /* lanes of a row */
    static constexpr uint32_t ROWS = KVA_WARP / COLUMNS; /* at a time */
};

/* Rows of K or V of a whole tile, of which `from` is the first; DIM: of so many elements, 0: of
 * `dim`, a multiple of 8, and zeros. */
template <typename KV, int D, uint32_t DIM>
static __device__ __forceinline__ void copy_whole(KV (*to)[D + PAD], const KV *from, uint32_t dim,
                                                  const row_walk &walk, uint32_t lane)
{
    const uint32_t stride = 2 * (DIM ? DIM : dim), step = walk.warps * row_lanes<D>::ROWS;
    const uint32_t column = lane % row_lanes<D>::COLUMNS * 8;
    const bool there = DIM ? true : column < dim;
    uint32_t row = walk.first + walk.warp * row_lanes<D>::ROWS + lane / row_lanes<D>::COLUMNS;
    from += row * stride + (there ? column : 0);
#pragma unroll
    for (; row < walk.end; row += step, from += step * stride)
        kva_copy_async(&to[row][column], from, there);
}

/* The row of a token of a tile, K and then V; NULL: there is no such token. */
template <typename KV>
static __device__ const KV *row_of(const attend_params &p, tile piece, uint32_t kv_head,
                                   uint32_t token)
{
    for (;;) {
        if (piece.block && token >= piece.first && token < piece.end)
            return reinterpret_cast<const KV *>(piece.block) +
                   (static_cast<size_t>(kv_head) * TILE + token) * 2 * p.shape.dim;
        if (piece.next == 0)
            return nullptr;
        piece = p.overflow[piece.next - 1];
    }
}

/* The same of any tile; rows of no token become zero. */
template <typename KV, int D>
static __device__ void copy_some(KV (*to)[D + PAD], const attend_params &p, const tile &piece,
                                 uint32_t kv_head, uint32_t offset, const row_walk &walk,
                                 uint32_t lane)
{
    const uint32_t column = lane % row_lanes<D>::COLUMNS * 8;
    uint32_t row = walk.first + walk.warp * row_lanes<D>::ROWS + lane / row_lanes<D>::COLUMNS;
    for (; row < walk.end; row += walk.warps * row_lanes<D>::ROWS) {
        const KV *from = row_of<KV>(p, piece, kv_head, row);
        const bool there = from && column < p.shape.dim;
        from = there ? from + offset + column : reinterpret_cast<const KV *>(p.tiles);
        kva_copy_async(&to[row][column], from, there);
    }
}

/* Start bringing rows of the keys (offset 0) or values (offset dim) of a tile. */
template <typename KV, int D>
static __device__ __forceinline__ void
copy_rows(KV (*to)[D + PAD], const attend_params &p, const tile &piece, uint32_t kv_head,
          uint32_t offset, const row_walk &walk, uint32_t lane)
{
    const uint32_t dim = p.shape.dim;
    const KV *from = reinterpret_cast<const KV *>(piece.block) +
                     static_cast<size_t>(kv_head) * TILE * 2 * dim + offset;
    if (!is_whole(piece))
        copy_some<KV, D>(to, p, piece, kv_head, offset, walk, lane);
    else if (dim == D)
        copy_whole<KV, D, D>(to, from, dim, walk, lane);
    else
        copy_whole<KV, D, 0>(to, from, dim, walk, lane);
}

/* --- queries ---------------------------------------------------------------------------------- */

/* Whether two numbers of a query can be read at once. */
static __device__ __forceinline__ bool queries_paired(const attend_shape &p)
{
    return (p.dim | p.q_stride) % 2 == 0 && reinterpret_cast<uintptr_t>(p.q) % 4 == 0;
}

/* Elements d and d + 1 of a row of a query, in 16 bits. */
template <typename KV, typename T>
static __device__ __forceinline__ uint32_t query_pair(const T *row, uint32_t d, uint32_t dim,
                                                      bool paired)
{
    T x[2] = {};
    if (sizeof(T) == 2 && paired && d < dim) {
        *reinterpret_cast<uint32_t *>(x) = *reinterpret_cast<const uint32_t *>(row + d);
    } else {
        x[0] = d < dim ? row[d] : x[0];
        x[1] = d + 1 < dim ? row[d + 1] : x[1];
    }
    return kva_saturate<KV>(kva_to_f32(x[0])).bits |
           static_cast<uint32_t>(kva_saturate<KV>(kva_to_f32(x[1])).bits) << 16;
}

template <typename T, typename KV, int D>
static __device__ void load_query_as(uint32_t (&words)[D / 8], const attend_shape &p, size_t at,
                                     uint32_t lane)
{
    const T *row = static_cast<const T *>(p.q) + at;
    const bool paired = queries_paired(p);
#pragma unroll
    for (uint32_t i = 0; i < D / 8; i++)
        words[i] = query_pair<KV>(row, i * 8 + lane % 4 * 2, p.dim, paired);
}

/* A pair's query as the lane's operands of products: words[i] has elements 8 i + 2 t and the next,
 * t the lane modulo 4. A pair that is not there has zeros. */
template <typename KV, int D>
static __device__ void load_query(uint32_t (&words)[D / 8], const attend_shape &p, const item &work,
                                  uint32_t kv_head, uint32_t pair, uint32_t lane)
{
    const uint32_t index = work.pair_first + min(pair, work.pair_count - 1);
    const size_t head = kv_head * p.group + index % p.group;
    const size_t at =
        (work.row_first + index / p.group) * static_cast<size_t>(p.q_stride) + head * p.dim;
    if (p.q_dtype == KVA_F32)
        load_query_as<float, KV, D>(words, p, at, lane);
    else if (p.q_dtype == KVA_F16)
        load_query_as<kva_f16, KV, D>(words, p, at, lane);
    else
        load_query_as<kva_bf16, KV, D>(words, p, at, lane);
#pragma unroll
    for (uint32_t i = 0; i < D / 8; i++)
        words[i] = pair < work.pair_count ? words[i] : 0;
}

/* --- a pair's maximum and sums ---------------------------------------------------------------- */

/* What exponents are relative to, and the scale of what was summed relative to another. */
struct pair_scale {
    float base, keep;
};

/* From the maximum `before` (of the scores as products have them) and its base to `top`. c: the
 * scale of scores, in units of log2(e). */
static __device__ __forceinline__ pair_scale grow_maximum(float before, float base, float top,
                                                          float c)
{
    const float grown = top == -INFINITY ? 0.0f : __fmul_rn(top, c);
    return {grown, before == -INFINITY ? 0.0f : kva_exp2(__fadd_rn(base, -grown))};
}

/* A score's weight. */
static __device__ __forceinline__ float weight_of(float score, float c, float base)
{
    return kva_exp2(fmaf(score, c, -base));
}

/* The maximum as others know it. Sums that are no number are seen in it, too, since a split whose
 * maximum is -inf is not looked at. */
static __device__ __forceinline__ float maximum_of(float m, float e, float scale)
{
    return e != e ? e : __fmul_rn(m, scale);
}

#endif
