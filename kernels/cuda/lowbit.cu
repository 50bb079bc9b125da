/* lowbit.cu - attend_lowbit: partial attention over low-bit pages (lowbit_run.cuh): what a warp
 * takes, and the launch. Runs may go side by side into scratch; then they are folded by a kernel of
 * their own. */
#include "kernels/cuda/attend_plan.cuh"
#include "kernels/cuda/lowbit_run.cuh"

/* Sums of turned values are turned back: those of a query head of a sequence by a block. */
template <int D> static __global__ void turn_back_kernel(lowbit_params p)
{
    kva_begin();
    const lowbit_seq &seq = p.seqs[blockIdx.x];
    const attend_shape &shape = p.shape;
    if (kva_gate_closed(seq.gate))
        return;
    for (uint32_t row = threadIdx.y; row < seq.row_count; row += blockDim.y) {
        const size_t at = static_cast<size_t>(seq.row_first + row) * shape.heads + blockIdx.y;
        kva_turn_row<D / KVA_WARP>(shape.out.a + at * shape.dim, shape.dim, threadIdx.x, true);
    }
}

/* --- the plan --------------------------------------------------------------------------------- */

/* Of an item that is not cut. */
#define ALL_RUNS (UINT32_MAX / 2)

struct lowbit_plan : seq_plan<kva_attend_lowbit_args, lowbit_seq> {
    uint32_t runs; /* of an item, at most */
};

static void fill_seq(lowbit_seq *to, const struct kva_lowbit_seq *seq)
{
    *to = {};
    to->block_first = seq->block_first;
    to->page_count = seq->page_count;
    to->select_row = seq->select_row;
    to->row_first = seq->row_first;
    to->row_count = seq->row_count;
    to->gate = seq->gate;
    to->scores = seq->scores;
    to->peaks = seq->peaks;
    to->mean = seq->mean;
    to->has_rows = seq->rows != nullptr;
    if (seq->rows)
        to->rows = *seq->rows;
}

/* All pages but those before the window of the first row. */
static void find_tiles(const lowbit_plan *plan, const struct kva_lowbit_seq *seq, item *work)
{
    uint32_t window = plan->args->window;
    uint32_t position = seq->position_first + work->pair_first / plan->group;
    uint32_t first = window > 0 && position >= window ? (position - window + 1) / TILE : 0;
    work->tile_first = kva_min_u32(first, seq->page_count);
    work->tile_end = seq->page_count;
}

/* One item, or one for every few runs, of which each is a part that is then folded. What goes behind
 * them is folded in any case. */
static void plan_runs(lowbit_plan *plan, const item &work)
{
    const uint32_t first = work.tile_first / RUN_TILES, end = kva_blocks(work.tile_end, RUN_TILES);
    if (end <= first + plan->runs) {
        plan_item(plan, work);
        if (plan->args->behind)
            plan_behind(plan, work);
        return;
    }
    plan_fold(plan, work, end - first);
    const uint32_t pieces = kva_blocks(end - first, plan->runs);
    item part = work;
    for (uint32_t i = 0; i < pieces; i++) {
        const uint32_t from = first + (end - first) * i / pieces;
        const uint32_t to = first + (end - first) * (i + 1) / pieces;
        part.tile_first = kva_max_u32(work.tile_first, from * RUN_TILES);
        part.tile_end = kva_min_u32(work.tile_end, to * RUN_TILES);
        plan_parts(plan, part, to - from);
    }
}

static void walk(lowbit_plan *plan)
{
    const struct kva_attend_lowbit_args *args = plan->args;
    plan->item_count = plan->fold_count = plan->partial_count = 0;
    for (uint32_t s = 0; s < args->seq_count; s++) {
        const struct kva_lowbit_seq *seq = &args->seqs[s];
        const uint32_t pair_count = seq->row_count * plan->group;
        if (plan->items)
            fill_seq(&plan->seqs[s], seq);
        for (uint32_t pair = 0; pair < pair_count; pair += plan->pairs) {
            item work = {};
            work.row_first = seq->row_first;
            work.position_first = seq->position_first;
            work.pair_first = pair;
            work.pair_count = kva_min_u32(plan->pairs, pair_count - pair);
            work.partial = KVA_NONE;
            work.seq = s;
            work.gate = seq->gate;
            find_tiles(plan, seq, &work);
            plan_runs(plan, work);
        }
    }
}

/* How long a call takes whose items have so many runs, and are so many, on a GPU that has room for
 * `warps` at once: in runs of a GPU that is full, times 64 `warps`. What an item does besides takes
 * a quarter of a run (measured on an H200); a GPU that is not full is not faster in proportion: no
 * call is taken to last less than 0.6 of the time of a full one (not measured). */
static uint64_t time_of(uint64_t runs, uint64_t items, uint64_t warps)
{
    const uint64_t rest = items % warps;
    const uint64_t least = rest ? kva_max_u64(rest * 64, warps * 64 * 6 / 10) : 0;
    return (4 * runs + 1) * ((items - rest) * 64 + least) / 4;
}

/* The runs of an item, which change no bit: those that take least time, and whose partial results
 * scratch holds. */
static void choose_runs(lowbit_plan *plan, uint32_t warps)
{
    static const uint32_t choices[] = {1, 2, 3, 4, 5, 6, 8, 11, 16, 32, ALL_RUNS};
    const struct kva_attend_lowbit_args *args = plan->args;
    const size_t pair_bytes = args->kv_heads * (args->head_dim + 2) * sizeof(float);
    uint64_t least = UINT64_MAX;
    uint32_t runs = ALL_RUNS;
    plan->items = nullptr;
    for (uint32_t choice : choices) {
        plan->runs = choice;
        walk(plan);
        const uint64_t time =
            time_of(kva_blocks(plan->tiles_most, RUN_TILES),
                    static_cast<uint64_t>(plan->item_count) * args->kv_heads, warps);
        if (time < least && plan->partial_count * pair_bytes <= plan->scratch_bytes) {
            least = time;
            runs = choice;
        }
        if (plan->partial_count == 0)
            break; /* more runs are the same */
    }
    plan->runs = runs;
    walk(plan);
}

/* --- the operator ----------------------------------------------------------------------------- */

using lowbit_function = void (*)(lowbit_params);

/* A kernel, and what its warps need beside the ring and of it. */
struct lowbit_choice {
    lowbit_function kernel;
    uint32_t page_bytes;
    uint32_t warp_bytes; /* without the ring */
    uint32_t warps_most; /* that registers allow a multiprocessor */
};

template <int D, int BITS, int GROUP, int NT> static lowbit_choice choice_of()
{
    return {lowbit_kernel<D, BITS, GROUP, NT>, page_place<D, BITS, GROUP>::bytes,
            static_cast<uint32_t>(kva_align_up(sizeof(warp_memory<D, NT>), 16)),
            blocks_at_once(D, NT) * BLOCK_WARPS};
}

template <int D, int GROUP, int NT>
static lowbit_choice choose_bits(struct kva_lowbit_format format)
{
    if (format.bits == 1 && format.value_bits == 2)
        return choice_of<D, 1 + 2 * VALUE_BITS, GROUP, NT>();
    return format.bits == 1   ? choice_of<D, 1, GROUP, NT>()
           : format.bits == 2 ? choice_of<D, 2, GROUP, NT>()
                              : choice_of<D, 4, GROUP, NT>();
}

template <int D, int NT> static lowbit_choice choose_format(struct kva_lowbit_format format)
{
    if (format.keys == KVA_KEYS_PER_TOKEN)
        return format.bits == 2   ? choice_of<D, 2, 0, NT>()
               : format.bits == 3 ? choice_of<D, 3, 0, NT>()
               : format.bits == 4 ? choice_of<D, 4, 0, NT>()
                                  : choice_of<D, 8, 0, NT>();
    return format.group == 32 ? choose_bits<D, 32, NT>(format) : choose_bits<D, 64, NT>(format);
}

/* For so many pairs a warp. */
static lowbit_choice choose_kernel(struct kva_lowbit_format format, uint32_t dim, uint32_t pairs)
{
    if (dim > 128)
        return choose_format<256, 1>(format);
    if (dim > 64)
        return pairs > 8 ? choose_format<128, 2>(format) : choose_format<128, 1>(format);
    return pairs > 8 ? choose_format<64, 2>(format) : choose_format<64, 1>(format);
}

/* What a block of threads takes of shared memory beside its own. */
#define BLOCK_BYTES ((size_t)1 << 10)

/* The ring and the block of threads with which most warps are on a multiprocessor at once, which is
 * returned: their waiting for each other is hidden by others alone. Among equals rather three pages
 * a warp than two, and large blocks. 0: the device has failed. */
static uint32_t fit_ring(lowbit_params *params, struct kva_cuda_launch *launch,
                         struct kva_device *device, const lowbit_choice &choice)
{
    const size_t room = kva_cuda_shared_room(device, "attend_lowbit",
                                             reinterpret_cast<const void *>(choice.kernel));
    uint32_t most = 0;
    if (kva_cuda_failed(device))
        return 0;
    for (uint32_t warps = BLOCK_WARPS; warps > 0; warps /= 2) {
        for (uint32_t stages = 3; stages > 1; stages--) {
            const uint32_t warp_bytes = stages * choice.page_bytes + choice.warp_bytes;
            const size_t bytes = static_cast<size_t>(warps) * warp_bytes;
            const size_t blocks = kva_max_size(room / (bytes + BLOCK_BYTES), 1);
            const uint32_t at_once =
                kva_min_u32(static_cast<uint32_t>(blocks) * warps, choice.warps_most);
            if (bytes > room || at_once <= most)
                continue;
            most = at_once;
            params->stages = stages;
            params->warp_bytes = warp_bytes;
            launch->shared_bytes = bytes;
            launch->block = dim3(warps * KVA_WARP);
        }
    }
    if (most == 0)
        kva_cuda_fail(device,
                      "GPU %d: attend_lowbit: heads of %u need more than its %zu bytes of "
                      "shared memory",
                      device->index, params->page.dim, room);
    return most;
}

static auto turn_back_kernel_of(uint32_t dim)
{
    return dim <= 64    ? turn_back_kernel<64>
           : dim <= 128 ? turn_back_kernel<128>
                        : turn_back_kernel<256>;
}

/* The same of all sequences that keep something (kernels/check.c). */
static lowbit_keeps keeps_of(const struct kva_attend_lowbit_args *args)
{
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (args->seqs[i].scores)
            return KEEPS_WEIGHTS;
        if (args->seqs[i].peaks)
            return KEEPS_PEAKS;
    }
    return KEEPS_NOTHING;
}

/* The pairs that a warp takes: fewer if there are no more, and where registers end. */
static uint32_t pairs_of(const struct kva_attend_lowbit_args *args)
{
    uint32_t rows_max = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        rows_max = kva_max_u32(rows_max, args->seqs[i].row_count);
    const size_t most = static_cast<size_t>(rows_max) * (args->heads / args->kv_heads);
    return most <= 8 || args->head_dim > 128 ? 8 : 16;
}

void kva_cuda_attend_lowbit(struct kva_device *device, const struct kva_attend_lowbit_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    uint32_t block_count = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        block_count =
            kva_max_u32(block_count, args->seqs[i].block_first + args->seqs[i].page_count);
    lowbit_plan plan = {};
    plan.args = args;
    plan.group = args->heads / args->kv_heads;
    plan.pairs = pairs_of(args);
    plan.scratch_bytes = kva_cuda_scratch(device).bytes;
    lowbit_params params = {};
    struct kva_cuda_launch launch = {};
    params.shape = shape_of(device, args);
    params.page = page_shape_of(args->format, args->head_dim);
    params.blocks = kva_cuda_upload_array(device, args->blocks, block_count);
    params.block_offset = args->block_offset_bytes;
    params.turned = args->format.coding == KVA_CODING_TURNED;
    params.keeps = keeps_of(args);
    const lowbit_choice choice = choose_kernel(args->format, args->head_dim, plan.pairs);
    const uint32_t warps = fit_ring(&params, &launch, device, choice);
    if (warps == 0)
        return;
    choose_runs(&plan, warps * static_cast<uint32_t>(device->sm_count));
    if (plan.item_count == 0 || !send_plan(device, &plan))
        return;
    params.items = plan.items;
    params.item_count = plan.item_count;
    params.seqs = plan.seqs;
    launch.grid = dim3(kva_blocks(plan.item_count, launch.block.x / KVA_WARP), args->kv_heads);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_lowbit", launch, choice.kernel, params);
    if (args->behind)
        kva_cuda_step_join(device);
    run_folds(device, &plan, params.shape, "attend_lowbit's folds",
              args->behind ? *args->behind : kva_partial{});
    if (params.turned && !kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_lowbit's turn back",
                     {dim3(args->seq_count, params.shape.heads), dim3(KVA_WARP, 4)},
                     turn_back_kernel_of(args->head_dim), params);
}
