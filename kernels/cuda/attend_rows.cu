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

/* Rows first .. first + TILE - 1 in ascending position; those beyond `count` become zero. */
template <int D>
static __device__ void gather_rows(stage<kva_f16, D> &to, uint32_t *positions, const rows_params &p,
                                   const struct kva_row_cache &cache, uint32_t kv_head,
                                   uint32_t first, uint32_t count)
{
    const uint32_t dim = p.shape.dim;
    const size_t head = static_cast<size_t>(kv_head) * cache.slots;
    for (uint32_t i = threadIdx.x; i < TILE * 2 * dim; i += blockDim.x) {
        uint32_t row = i / (2 * dim), at = i % (2 * dim);
        float x = 0.0f;
        if (first + row < count) {
            uint32_t slot = cache.order[head + first + row];
            x = kva_load(cache.rows, p.kv_dtype, (head + slot) * 2 * dim + at);
            if (at == 0)
                positions[row] = cache.tokens[head + slot];
        }
        (at < dim ? to.k[row][at] : to.v[row][at - dim]) = kva_saturate<kva_f16>(x);
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <int D> static __global__ void __launch_bounds__(WARPS_MAX * 32) rows_kernel(rows_params p)
{
    __shared__ uint32_t positions[TILE];
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
    state<D> total, split;
    total.clear();
    split.clear();
    if (shape.accumulate && work.partial == KVA_NONE && busy)
        move_state<false>(total, shape, work, kv_head, warp_pair, lane);
    clear_padding(&here, 1, shape.dim);
    load_queries<kva_f16, D>(q, shape, work, kv_head, pairs);
    const uint32_t count = seq.has_rows ? seq.cache.count[kv_head] : 0;
    for (uint32_t t = work.tile_first; t < work.tile_end && t * TILE < count; t++) {
        gather_rows<D>(here, positions, p, seq.cache, kv_head, t * TILE, count);
        __syncthreads(); /* the tile is gathered */
        if (busy) {
            auto look = [&](uint32_t slot, int i, float x) {
                bool seen = t * TILE + slot < count && positions[slot] >= seen_first[i];
                return seen ? x : -INFINITY;
            };
            attend_tile<kva_f16, D>(split, q + warp_pair, here, shape.scale, lane, look);
        }
        if ((t + 1) % SPLIT_TILES == 0 || t + 1 == work.tile_end || (t + 1) * TILE >= count) {
            fold_split(total, split);
            split.clear();
        }
        __syncthreads(); /* the next tile may be gathered */
    }
    if (busy)
        move_state<true>(total, shape, work, kv_head, warp_pair, lane);
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
