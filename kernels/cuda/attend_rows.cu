/* attend_rows.cu - attend_rows: partial attention over the rows of a cache, which are gathered into
 * tiles of f16 in ascending position; from there it is attention over 16-bit tiles
 * (attend_tile.cuh). */
#include "kernels/cuda/attend_plan.cuh"

/* A sequence, on the device. */
struct rows_seq {
    struct kva_row_cache cache;
    bool has_rows;
};

struct rows_params {
    attend_shape shape;
    const item *items;
    const rows_seq *seqs;
    enum kva_dtype kv_dtype;
};

/* Pieces of 16 bytes that a thread has on their way. */
#define GATHER_FLIGHT 8u

/* Values of a sum that a thread has on their way when it is folded: all are asked for before the
 * first is stored, behind which the compiler would not have them. */
#define FOLD_FLIGHT 16

/* Which rows a tile has. */
struct tile_rows {
    uint32_t slots[TILE]; /* KVA_NONE: there is no row */
    uint32_t positions[TILE];
};

/* Rows first .. first + TILE - 1 in ascending position. */
static __device__ void find_rows(tile_rows &to, const struct kva_row_cache &cache, uint32_t kv_head,
                                 uint32_t first)
{
    const size_t head = static_cast<size_t>(kv_head) * cache.slots;
    const uint32_t count = cache.count[kv_head];
    for (uint32_t i = threadIdx.x; i < TILE; i += blockDim.x) {
        const bool there = first + i < count;
        const uint32_t slot = there ? cache.order[head + first + i] : KVA_NONE;
        to.slots[i] = slot;
        to.positions[i] = there ? cache.tokens[head + slot] : 0;
    }
    __syncthreads(); /* the rows are known */
}

/* Two 16-bit numbers as two f16. */
static __device__ __forceinline__ uint32_t two_halves(uint32_t bits, enum kva_dtype dtype)
{
    if (dtype == KVA_F16)
        return bits;
    const float low = __uint_as_float(bits << 16), high = __uint_as_float(bits & 0xFFFF0000u);
    return kva_pack<kva_f16>(kva_clamp<kva_f16>(low), kva_clamp<kva_f16>(high));
}

/* The numbers of the first `count` rows, where a row is so many pieces of 16 bytes: for a head
 * dimension of D how many is known, and a warp takes a whole number of rows. */
template <int D, bool WHOLE>
static __device__ void gather_pieces(stage<kva_f16, D> &to, const tile_rows &rows,
                                     const rows_params &p, const uint4 *from, uint32_t count)
{
    const uint32_t half = (WHOLE ? D : p.shape.dim) / 8, pieces = 2 * half, end = count * pieces;
    for (uint32_t base = threadIdx.x; base < end; base += GATHER_FLIGHT * blockDim.x) {
        uint4 x[GATHER_FLIGHT];
#pragma unroll
        for (uint32_t i = 0; i < GATHER_FLIGHT; i++) {
            const uint32_t at = min(base + i * blockDim.x, end - 1);
            x[i] = from[static_cast<size_t>(rows.slots[at / pieces]) * pieces + at % pieces];
        }
#pragma unroll
        for (uint32_t i = 0; i < GATHER_FLIGHT; i++) {
            const uint32_t at = base + i * blockDim.x, piece = at % pieces;
            if (at >= end)
                break;
            kva_f16 *row = piece < half ? to.k[at / pieces] : to.v[at / pieces];
            reinterpret_cast<uint4 *>(row)[piece % half] =
                make_uint4(two_halves(x[i].x, p.kv_dtype), two_halves(x[i].y, p.kv_dtype),
                           two_halves(x[i].z, p.kv_dtype), two_halves(x[i].w, p.kv_dtype));
        }
    }
}

/* The same, number by number. */
template <int D>
static __device__ void gather_numbers(stage<kva_f16, D> &to, const tile_rows &rows,
                                      const rows_params &p, const struct kva_row_cache &cache,
                                      size_t head, uint32_t count)
{
    const uint32_t dim = p.shape.dim;
    for (uint32_t i = threadIdx.x; i < count * 2 * dim; i += blockDim.x) {
        const uint32_t row = i / (2 * dim), at = i % (2 * dim), slot = rows.slots[row];
        const float x = kva_load(cache.rows, p.kv_dtype, (head + slot) * 2 * dim + at);
        (at < dim ? to.k[row][at] : to.v[row][at - dim]) = kva_saturate<kva_f16>(x);
    }
}

/* Rows first .. end - 1 of the tile become zero. */
template <int D>
static __device__ void clear_rows(stage<kva_f16, D> &to, uint32_t first, uint32_t end)
{
    constexpr uint32_t pieces = D / 8;
    for (uint32_t at = first * pieces + threadIdx.x; at < end * pieces; at += blockDim.x) {
        const uint4 zero = make_uint4(0, 0, 0, 0);
        reinterpret_cast<uint4 *>(to.k[at / pieces])[at % pieces] = zero;
        reinterpret_cast<uint4 *>(to.v[at / pieces])[at % pieces] = zero;
    }
}

/* The tile's first `count` rows, and zero up to `end`. */
template <int D>
static __device__ void gather_rows(stage<kva_f16, D> &to, const tile_rows &rows,
                                   const rows_params &p, const struct kva_row_cache &cache,
                                   uint32_t kv_head, uint32_t count, uint32_t end)
{
    const size_t head = static_cast<size_t>(kv_head) * cache.slots;
    const uint4 *from = static_cast<const uint4 *>(cache.rows) + head * (p.shape.dim / 4);
    if (p.shape.dim == D)
        gather_pieces<D, true>(to, rows, p, from, count);
    else if (p.shape.dim % 8 == 0)
        gather_pieces<D, false>(to, rows, p, from, count);
    else
        gather_numbers<D>(to, rows, p, cache, head, count);
    clear_rows<D>(to, count, end);
}

/* --- sums of splits --------------------------------------------------------------------------- */

/* What the splits before came to. Their values are in memory, where the result belongs: nearly all
 * caches are one split, and two sums of heads of 256 do not fit the registers. */
struct splits_before {
    float m[2], e[2];
    bool there; /* values are in memory */

    __device__ void begin(const attend_shape &p, const item &work, uint32_t kv_head,
                          uint32_t warp_pair, uint32_t lane)
    {
        there = p.accumulate && work.partial == KVA_NONE;
        for (int i = 0; i < 2; i++) {
            const uint32_t pair = warp_pair + lane / 4 + 8 * i;
            const bool known = there && pair < work.pair_count;
            m[i] = known ? *place_of(p, work, kv_head, pair).m : -INFINITY;
            e[i] = known ? *place_of(p, work, kv_head, pair).e : 0.0f;
        }
    }

    /* Of a lane's value number j of a pair. */
    static __device__ __forceinline__ uint32_t dim_of(int j, uint32_t lane)
    {
        return j / 2 * 8 + lane % 4 * 2 + j % 2;
    }

    /* As fold_split. */
    template <int D>
    __device__ void add(const state<D> &split, const attend_shape &p, const item &work,
                        uint32_t kv_head, uint32_t warp_pair, uint32_t lane)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t pair = warp_pair + lane / 4 + 8 * i;
            const bool empty = split.m[i] == -INFINITY;
            if (pair >= work.pair_count || (empty && there))
                continue;
            float top = m[i], keep = 1.0f, share = 0.0f, *a = place_of(p, work, kv_head, pair).a;
            if (!empty)
                fold_scales(m[i], split.m[i], top, keep, share);
#pragma unroll
            for (int first = 0; first < D / 4; first += FOLD_FLIGHT) {
                float known[FOLD_FLIGHT];
#pragma unroll
                for (int j = 0; j < FOLD_FLIGHT; j++) {
                    const uint32_t d = dim_of(first + j, lane);
                    known[j] = there && d < p.dim ? a[d] : 0.0f;
                }
#pragma unroll
                for (int j = 0; j < FOLD_FLIGHT; j++) {
                    const uint32_t d = dim_of(first + j, lane);
                    const float own = split.a[(first + j) / 2][2 * i + (first + j) % 2];
                    if (d < p.dim) /* no negative zeros, as move_state */
                        a[d] = fold(known[j], keep, own, share) + 0.0f;
                }
            }
            e[i] = fold(e[i], keep, split.e[i], share);
            m[i] = top;
        }
        there = true;
    }

    __device__ void end(const attend_shape &p, const item &work, uint32_t kv_head,
                        uint32_t warp_pair, uint32_t lane)
    {
        for (int i = 0; i < 2; i++) {
            const uint32_t pair = warp_pair + lane / 4 + 8 * i;
            if (pair >= work.pair_count || lane % 4 != 0)
                continue;
            *place_of(p, work, kv_head, pair).m = m[i];
            *place_of(p, work, kv_head, pair).e = e[i];
        }
    }
};

/* --- the kernel ------------------------------------------------------------------------------- */

template <int D> static __global__ void __launch_bounds__(WARPS_MAX * 32) rows_kernel(rows_params p)
{
    kva_begin();
    __shared__ tile_rows rows;
    const attend_shape &shape = p.shape;
    const uint32_t pairs = blockDim.x / 2, lane = threadIdx.x % KVA_WARP;
    const uint32_t warp_pair = threadIdx.x / KVA_WARP * 16, kv_head = blockIdx.y;
    const item work = p.items[blockIdx.x];
    const rows_seq &seq = p.seqs[work.seq];
    KVA_DYNAMIC_SHARED(unsigned char, shared_bytes);
    stage<kva_f16, D> &here = *reinterpret_cast<stage<kva_f16, D> *>(shared_bytes);
    kva_f16(*q)[D + PAD] = reinterpret_cast<kva_f16(*)[D + PAD]>(&here + 1);
    bool busy = warp_pair < work.pair_count;
    if (kva_gate_closed(work.gate))
        return;

    uint32_t seen_first[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t pair = work.pair_first + min(warp_pair + lane / 4 + 8 * i, work.pair_count - 1);
        uint32_t position = work.position_first + pair / shape.group;
        bool cut = shape.window && position >= shape.window;
        seen_first[i] = cut ? position - shape.window + 1 : 0;
    }
    state<D> split;
    splits_before before;
    split.clear();
    before.begin(shape, work, kv_head, warp_pair, lane);
    clear_padding(&here, 1, shape.dim);
    load_queries<kva_f16, D>(q, shape, work, kv_head, min(pairs, (work.pair_count + 15) / 16 * 16));
    const uint32_t count = seq.has_rows ? seq.cache.count[kv_head] : 0;
    for (uint32_t t = work.tile_first; t < work.tile_end && t * TILE < count; t++) {
        const uint32_t own = min(count - t * TILE, TILE);
        const uint32_t end = (own + tile_chunk<D> - 1) / tile_chunk<D> * tile_chunk<D>;
        find_rows(rows, seq.cache, kv_head, t * TILE);
        gather_rows<D>(here, rows, p, seq.cache, kv_head, own, end);
        __syncthreads(); /* the tile is gathered */
        if (busy) {
            auto look = [&](uint32_t slot, int i, float x) {
                bool seen = rows.slots[slot] != KVA_NONE && rows.positions[slot] >= seen_first[i];
                return seen ? x : -INFINITY;
            };
            attend_tile<kva_f16, D>(split, q + warp_pair, here, shape.scale, lane, look, end);
        }
        if ((t + 1) % SPLIT_TILES == 0 || t + 1 == work.tile_end || (t + 1) * TILE >= count) {
            before.add(split, shape, work, kv_head, warp_pair, lane);
            split.clear();
        }
        __syncthreads(); /* the next tile may be gathered */
    }
    if (!before.there)
        before.add(split, shape, work, kv_head, warp_pair, lane);
    before.end(shape, work, kv_head, warp_pair, lane);
}

/* --- the plan --------------------------------------------------------------------------------- */

using plan = seq_plan<kva_attend_rows_args, rows_seq>;

static void fill_seq(rows_seq *to, const struct kva_rows_seq *seq)
{
    *to = {};
    to->has_rows = seq->rows != nullptr;
    if (seq->rows)
        to->cache = *seq->rows;
}

/* All slots: how many of them attend is known on the device alone. */
static void find_tiles(const plan *, const struct kva_rows_seq *seq, item *work)
{
    work->tile_end = kva_blocks(seq->rows ? seq->rows->slots : 0, TILE);
}

/* --- the operator ----------------------------------------------------------------------------- */

static auto kernel_of(uint32_t dim)
{
    return dim <= 64 ? rows_kernel<64> : dim <= 128 ? rows_kernel<128> : rows_kernel<256>;
}

void kva_cuda_attend_rows(struct kva_device *device, const struct kva_attend_rows_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    plan plan = {};
    const auto kernel = kernel_of(args->head_dim);
    if (!make_plan(device, &plan, "attend_rows", kernel, 1, args))
        return;
    rows_params params = {};
    params.shape = shape_of(device, args);
    params.shape.accumulate = args->accumulate;
    params.kv_dtype = args->kv_dtype;
    params.items = plan.items;
    params.seqs = plan.seqs;
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_rows", plan_launch(&plan, params.shape), kernel,
                 params);
    run_folds(device, &plan, params.shape, "attend_rows' folds");
}
