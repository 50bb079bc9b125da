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

struct lowbit_plan : seq_plan<kva_attend_lowbit_args, lowbit_seq> {
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

/* One item, or one for each run, which are then folded. */
static void plan_runs(lowbit_plan *plan, const item &work)
{
    const uint32_t first = work.tile_first / RUN_TILES, end = kva_blocks(work.tile_end, RUN_TILES);
    if (!plan->wide || end < first + 2) {
        plan_item(plan, work);
        return;
    }
    plan_fold(plan, work, end - first);
    item part = work;
    for (uint32_t run = first; run < end; run++) {
        part.tile_first = kva_max_u32(work.tile_first, run * RUN_TILES);
        part.tile_end = kva_min_u32(work.tile_end, (run + 1) * RUN_TILES);
        plan_part(plan, part);
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

/* Runs go side by side where whole items would leave a part of the GPU idle, with less than two
 * warps a scheduler, and scratch holds the partial results. Neither changes a bit. */
static void choose_runs(lowbit_plan *plan, const struct kva_device *device)
{
    const struct kva_attend_lowbit_args *args = plan->args;
    plan->items = nullptr;
    plan->wide = false;
    walk(plan);
    if (plan->item_count * args->kv_heads >= 8u * static_cast<uint32_t>(device->sm_count))
        return;
    plan->wide = true;
    walk(plan);
    const size_t pair_bytes = args->kv_heads * (args->head_dim + 2) * sizeof(float);
    if (plan->partial_count * pair_bytes <= KVA_CUDA_SCRATCH_BYTES)
        return;
    plan->wide = false;
    walk(plan);
}

/* --- the operator ----------------------------------------------------------------------------- */

using lowbit_function = void (*)(lowbit_params);

/* A kernel, and what its warps need beside the ring and of it. */
struct lowbit_choice {
    lowbit_function kernel;
    uint32_t page_bytes;
    uint32_t warp_bytes; /* without the ring */
};

template <int D, int BITS, int GROUP, int NT> static lowbit_choice choice_of()
{
    return {lowbit_kernel<D, BITS, GROUP, NT>, page_place<D, BITS, GROUP>::bytes,
            static_cast<uint32_t>(kva_align_up(sizeof(warp_memory<D, NT>), 16))};
}

template <int D, int GROUP, int NT> static lowbit_choice choose_bits(uint32_t bits)
{
    return bits == 1   ? choice_of<D, 1, GROUP, NT>()
           : bits == 2 ? choice_of<D, 2, GROUP, NT>()
                       : choice_of<D, 4, GROUP, NT>();
}

template <int D, int NT> static lowbit_choice choose_format(struct kva_lowbit_format format)
{
    if (format.keys == KVA_KEYS_PER_TOKEN)
        return format.bits == 2   ? choice_of<D, 2, 0, NT>()
               : format.bits == 3 ? choice_of<D, 3, 0, NT>()
               : format.bits == 4 ? choice_of<D, 4, 0, NT>()
                                  : choice_of<D, 8, 0, NT>();
    return format.group == 32 ? choose_bits<D, 32, NT>(format.bits)
                              : choose_bits<D, 64, NT>(format.bits);
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

static page_shape page_shape_of(struct kva_lowbit_format format, uint32_t dim)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(format, dim);
    page_shape page = {};
    page.dim = dim;
    page.v_scale = layout.v_scale;
    page.v_zero = layout.v_zero;
    page.k_codes = layout.k_codes;
    page.v_codes = layout.v_codes;
    page.plane_bytes = layout.plane_bytes;
    page.head_bytes = layout.head_bytes;
    page.k_row = layout.k_zero / layout.k_groups;
    return page;
}

/* Shared memory: three pages a warp if there is room, else two, and then rather fewer warps. False:
 * the device has failed. */
static bool fit_ring(lowbit_params *params, struct kva_cuda_launch *launch,
                     struct kva_device *device, const lowbit_choice &choice)
{
    const size_t room = kva_cuda_shared_room(device, "attend_lowbit",
                                             reinterpret_cast<const void *>(choice.kernel));
    if (kva_cuda_failed(device))
        return false;
    for (uint32_t warps = BLOCK_WARPS; warps > 0; warps /= 2) {
        for (params->stages = 3; params->stages > 1; params->stages--) {
            params->warp_bytes = params->stages * choice.page_bytes + choice.warp_bytes;
            launch->shared_bytes = static_cast<size_t>(warps) * params->warp_bytes;
            launch->block = dim3(warps * KVA_WARP);
            if (launch->shared_bytes <= room)
                return true;
        }
    }
    kva_cuda_fail(device,
                  "GPU %d: attend_lowbit: heads of %u need more than its %zu bytes of "
                  "shared memory",
                  device->index, params->page.dim, room);
    return false;
}

static auto turn_back_kernel_of(uint32_t dim)
{
    return dim <= 64    ? turn_back_kernel<64>
           : dim <= 128 ? turn_back_kernel<128>
                        : turn_back_kernel<256>;
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
    lowbit_params params = {};
    struct kva_cuda_launch launch = {};
    params.shape = shape_of(device, args);
    params.page = page_shape_of(args->format, args->head_dim);
    params.blocks = kva_cuda_upload_array(device, args->blocks, block_count);
    params.block_offset = args->block_offset_bytes;
    params.turned = args->format.coding == KVA_CODING_TURNED;
    const lowbit_choice choice = choose_kernel(args->format, args->head_dim, plan.pairs);
    if (!fit_ring(&params, &launch, device, choice))
        return;
    choose_runs(&plan, device);
    if (plan.item_count == 0 || !send_plan(device, &plan))
        return;
    params.items = plan.items;
    params.item_count = plan.item_count;
    params.seqs = plan.seqs;
    launch.grid = dim3(kva_blocks(plan.item_count, launch.block.x / KVA_WARP), args->kv_heads);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_lowbit", launch, choice.kernel, params);
    run_folds(device, &plan, params.shape, "attend_lowbit's folds");
    if (params.turned && !kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_lowbit's turn back",
                     {dim3(args->seq_count, params.shape.heads), dim3(KVA_WARP, 4)},
                     turn_back_kernel_of(args->head_dim), params);
}
