/* attend_plan.cuh - how attention over 16-bit pages (attend.cu), over low-bit pages (lowbit.cu) and
 * over rows (attend_rows.cu) is cut into items of work, and how a plan comes to the device.
 *
 * A plan is counted first, with no arrays, then filled where it is sent from: all its arrays lie in
 * one piece of the descriptor ring. Each of the files has a plan, derived from attend_plan, and
 *
 *   walk(plan)           cuts the call into items; with `items` NULL they are only counted
 *   lay_out(plan, base)  places its arrays, from `base` on; returns the bytes that they take
 *
 * of its own (attend.cu), or those of seq_plan, which ask for two functions:
 *
 *   fill_seq(to, seq)            a sequence as the device has it
 *   find_tiles(plan, seq, work)  the tiles [tile_first, tile_end) that the pairs of `work` see */
#ifndef KVA_KERNELS_CUDA_ATTEND_PLAN_CUH
#define KVA_KERNELS_CUDA_ATTEND_PLAN_CUH

#include "kernels/cuda/attend_fold.cuh"

struct attend_plan {
    uint32_t group; /* query heads of a KV head */
    uint32_t pairs; /* of a block of threads, two threads each */
    uint32_t pairs_max = WARPS_MAX * 16;
    uint32_t stages;            /* tiles in shared memory */
    bool shared_queries = true; /* or in registers */
    bool shared_sums;           /* of all splits; or in registers */
    size_t shared_bytes;
    size_t scratch_bytes;            /* for partial results of splits */
    bool wide;                       /* splits side by side */
    uint32_t item_count, fold_count; /* of items and folds */
    uint32_t fold_pairs;             /* at most, of a fold */
    uint32_t partial_count;          /* pairs in scratch */
    uint64_t tiles_all;              /* of items, decoding apart */
    uint32_t tiles_most;             /* of an item */
    item *items;                     /* NULL: only counted */
    item *folds;
};

/* Elements of a row in shared memory. */
static inline uint32_t padded_dim(uint32_t dim)
{
    return (dim <= 64 ? 64 : dim <= 128 ? 128 : 256) + PAD;
}

/* Shared memory of a pair. */
static size_t pair_bytes(const attend_plan *plan, uint32_t dim)
{
    return (plan->shared_queries ? padded_dim(dim) * sizeof(uint16_t) : 0) +
           (plan->shared_sums ? (padded_dim(dim) - PAD) * sizeof(float) : 0);
}

/* The largest block of which a GPU has the shared memory: rather fewer pairs than one stage, but
 * two warps at least, four where pairs take most of it. False: none fits. Neither changes a bit. */
static bool fit_block(attend_plan *plan, uint32_t dim, size_t room)
{
    const size_t stage_bytes = 2 * TILE * padded_dim(dim) * sizeof(uint16_t);
    const uint32_t wanted = plan->pairs;
    for (; plan->stages > 0; plan->stages--) {
        const uint32_t least = plan->stages == 1 ? 16 : plan->shared_sums ? 64 : 32;
        for (plan->pairs = wanted; plan->pairs >= least;
             plan->pairs = plan->pairs > 128 ? 128 : plan->pairs / 2) {
            plan->shared_bytes = stage_bytes * plan->stages + plan->pairs * pair_bytes(plan, dim);
            if (plan->shared_bytes <= room)
                return true;
        }
    }
    return false;
}

/* For a call whose sequences have up to rows_max rows. False: the device has failed. */
template <typename Kernel>
static bool plan_begin(attend_plan *plan, struct kva_device *device, const char *name,
                       Kernel *kernel, uint32_t rows_max, uint32_t dim)
{
    size_t room = kva_cuda_shared_room(device, name, reinterpret_cast<const void *>(kernel));
    plan->pairs = static_cast<size_t>(rows_max) * plan->group <= 64 ? 64 : plan->pairs_max;
    plan->scratch_bytes = kva_cuda_scratch(device).bytes;
    if (kva_cuda_failed(device))
        return false;
    if (fit_block(plan, dim, room))
        return true;
    kva_cuda_fail(device, "GPU %d: %s: heads of %u need more than its %zu bytes of shared memory",
                  device->index, name, dim, room);
    return false;
}

static void plan_item(attend_plan *plan, const item &work)
{
    if (plan->items)
        plan->items[plan->item_count] = work;
    const uint32_t tiles = work.tile_end - work.tile_first;
    plan->tiles_all = (plan->item_count ? plan->tiles_all : 0) + tiles;
    plan->tiles_most = kva_max_u32(plan->item_count ? plan->tiles_most : 0, tiles);
    plan->item_count++;
}

/* The next `splits` parts are to be folded into where `work` would have gone. */
static void plan_fold(attend_plan *plan, const item &work, uint32_t splits)
{
    if (plan->items) {
        item &fold = plan->folds[plan->fold_count];
        fold = work;
        fold.partial = plan->partial_count;
        fold.tile_first = 0;
        fold.tile_end = splits;
    }
    plan->fold_pairs = kva_max_u32(plan->fold_count ? plan->fold_pairs : 0, work.pair_count);
    plan->fold_count++;
}

/* What is behind the splits is to be folded into where `work` goes, and nothing else. */
[[maybe_unused]] static void plan_behind(attend_plan *plan, const item &work)
{
    plan_fold(plan, work, 0);
    if (plan->items)
        plan->folds[plan->fold_count - 1].partial = KVA_NONE;
}

/* An item that leaves the results of `count` parts, one behind the other. */
static void plan_parts(attend_plan *plan, item parts, uint32_t count)
{
    parts.partial = plan->partial_count;
    plan->partial_count += parts.pair_count * count;
    plan_item(plan, parts);
}

/* `work`, whose tiles are known: one item, or one for each split, which are then folded. */
[[maybe_unused]] static void plan_splits(attend_plan *plan, const item &work)
{
    uint32_t first = work.tile_first / SPLIT_TILES, end = kva_blocks(work.tile_end, SPLIT_TILES);
    if (!plan->wide || end < first + 2) {
        plan_item(plan, work);
        return;
    }
    plan_fold(plan, work, end - first);
    item part = work;
    for (uint32_t split = first; split < end; split++) {
        part.tile_first = kva_max_u32(work.tile_first, split * SPLIT_TILES);
        part.tile_end = kva_min_u32(work.tile_end, (split + 1) * SPLIT_TILES);
        plan_parts(plan, part, 1);
    }
}

/* An array of a plan at *bytes from its beginning. */
template <typename T> static T *plan_array(const void *base, size_t *bytes, size_t count)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(base) + *bytes;
    *bytes += kva_cuda_room(count * sizeof(T));
    return reinterpret_cast<T *>(at);
}

/* Pairs in scratch whose writing and folding take a block as long as a tile: for 128 pairs, about
 * as long as a split's tiles (measured on an H200). */
#define FOLD_PAIRS (128 / SPLIT_TILES)

/* Tiles for which the second kernel has to be worth its launch. */
#define FOLD_LAUNCH 4u

/* Splits go side by side where that takes less time, in tiles of a block: whole items take as long
 * as the longest of them, or as their share of the GPU; splits take their share, and are written
 * and folded. And scratch has to hold them. Neither changes a bit. */
template <typename Plan, typename Args>
static void choose_width(Plan *plan, const struct kva_device *device, const Args *args)
{
    const uint64_t sm_count = static_cast<uint64_t>(device->sm_count);
    plan->items = nullptr;
    plan->wide = false;
    walk(plan);
    const uint64_t whole_ones = plan->item_count ? plan->tiles_most * sm_count : 0;
    const uint32_t partials = plan->partial_count;
    plan->wide = true;
    walk(plan);
    const uint64_t folds = (plan->partial_count - partials) / FOLD_PAIRS;
    const uint64_t shares = plan->item_count ? (plan->tiles_all + folds) * args->kv_heads : 0;
    const size_t bytes = static_cast<size_t>(plan->partial_count) * args->kv_heads *
                         (args->head_dim + 2) * sizeof(float);
    if (shares + FOLD_LAUNCH * sm_count < whole_ones && bytes <= plan->scratch_bytes)
        return;
    plan->wide = false;
    walk(plan);
}

/* Fill the plan in the ring and send it; the addresses become the device's. */
template <typename Plan> static bool send_plan(struct kva_device *device, Plan *plan)
{
    size_t bytes = lay_out(plan, nullptr);
    void *staged = kva_cuda_stage(device, bytes);
    if (!staged)
        return false;
    (void)lay_out(plan, staged);
    walk(plan);
    const void *sent = kva_cuda_send(device, staged, bytes);
    (void)lay_out(plan, sent);
    return sent != nullptr;
}

/* A plan whose sequences are described on the device by a Seq each. */
template <typename Args, typename Seq> struct seq_plan : attend_plan {
    const Args *args;
    Seq *seqs;
};

template <typename Args, typename Seq> static void walk(seq_plan<Args, Seq> *plan)
{
    const Args *args = plan->args;
    plan->item_count = plan->fold_count = plan->partial_count = 0;
    for (uint32_t s = 0; s < args->seq_count; s++) {
        uint32_t pair_count = args->seqs[s].row_count * plan->group;
        if (plan->items)
            fill_seq(&plan->seqs[s], &args->seqs[s]);
        for (uint32_t pair = 0; pair < pair_count; pair += plan->pairs) {
            item work = {};
            work.row_first = args->seqs[s].row_first;
            work.position_first = args->seqs[s].position_first;
            work.pair_first = pair;
            work.pair_count = kva_min_u32(plan->pairs, pair_count - pair);
            work.partial = KVA_NONE;
            work.seq = s;
            work.gate = args->seqs[s].gate;
            find_tiles(plan, &args->seqs[s], &work);
            plan_splits(plan, work);
        }
    }
}

template <typename Args, typename Seq>
static size_t lay_out(seq_plan<Args, Seq> *plan, const void *base)
{
    size_t bytes = 0;
    plan->seqs = plan_array<Seq>(base, &bytes, plan->args->seq_count);
    plan->items = plan_array<item>(base, &bytes, plan->item_count);
    plan->folds = plan_array<item>(base, &bytes, plan->fold_count);
    return bytes;
}

/* Plan a call of `kernel` with so many stages at most, and send the plan; false: there is nothing to
 * do, or it failed. */
template <typename Plan, typename Kernel, typename Args>
static bool make_plan(struct kva_device *device, Plan *plan, const char *name, Kernel *kernel,
                      uint32_t stages, const Args *args)
{
    uint32_t rows_max = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        rows_max = kva_max_u32(rows_max, args->seqs[i].row_count);
    plan->args = args;
    plan->group = args->heads / args->kv_heads;
    plan->stages = stages;
    if (!plan_begin(plan, device, name, kernel, rows_max, args->head_dim))
        return false;
    choose_width(plan, device, args);
    return plan->item_count > 0 && send_plan(device, plan);
}

/* The block of threads of a plan, for each of its items and KV heads. */
[[maybe_unused]] static struct kva_cuda_launch plan_launch(const attend_plan *plan,
                                                           const attend_shape &shape)
{
    return {dim3(plan->item_count, shape.kv_heads), plan->pairs * 2, plan->shared_bytes};
}

/* The shape of a call, of any of the operators. */
template <typename Args>
static attend_shape shape_of(const struct kva_device *device, const Args *args)
{
    attend_shape shape = {};
    shape.out = args->out;
    shape.partials = static_cast<float *>(kva_cuda_scratch(device).data);
    shape.heads = args->heads;
    shape.kv_heads = args->kv_heads;
    shape.group = args->heads / args->kv_heads;
    shape.dim = args->head_dim;
    shape.window = args->window;
    shape.scale = args->scale;
    shape.q = args->q;
    shape.q_dtype = device->base.info.act;
    shape.q_whole = args->head_dim % KVA_VECTOR == 0 && args->q_stride % KVA_VECTOR == 0 &&
                    kva_vector_at(args->q);
    shape.q_stride = args->q_stride;
    return shape;
}

/* After a plan's items: fold the splits that went side by side, and `behind` behind them. */
static void run_folds(struct kva_device *device, const attend_plan *plan, const attend_shape &shape,
                      const char *name, struct kva_partial behind = {})
{
    if (plan->fold_count > 0 && !kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, name,
                     {dim3(plan->fold_count, shape.kv_heads, plan->fold_pairs),
                      dim3(KVA_WARP, fold_warps(shape.dim))},
                     fold_kernel, shape, plan->folds, behind);
}

#endif
