/* attend.cu - attend: partial attention over 16-bit pages. Sequences with few pairs, as in decoding,
 * go to one kernel (attend_decode.cuh), the others to another (attend_prompt.cuh); what a pair gets
 * is the same (attend_pages.cuh).
 *
 * Tiles and splits are aligned to positions, so the order of additions is a property of the
 * sequence.
 *
 * What is not a number in V spreads to the rows of the same sequence that do not see the token, if
 * it lies in a tile of theirs: a product by zero does not remove it. */
#include "kernels/cuda/attend_decode.cuh"
#include "kernels/cuda/attend_plan.cuh"
#include "kernels/cuda/attend_prompt.cuh"

#include <string.h>

/* --- the plan --------------------------------------------------------------------------------- */

/* Items and folds are those of prompts and decoding; the items of decoding lie in an array of their
 * own. */
struct plan : attend_plan {
    const struct kva_attend_args *args;
    uint32_t tile_count, overflow_count, decode_count;
    uint32_t decode_pairs; /* at most, of an item */
    tile *tiles;
    tile *overflow;
    item *decode_items;
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

/* The sequence's tile table. */
static void add_tiles(struct plan *plan, const struct kva_attend_seq *seq)
{
    const struct kva_attend_args *args = plan->args;
    struct tile_span span = seq_tiles(args, seq);
    tile *tiles = plan->items ? plan->tiles + plan->tile_count : nullptr;
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

/* Whether a sequence's splits go to the kernel of decoding: if it takes so many pairs and such
 * queries, and scratch holds them beside those before. No bit depends on it. */
static bool decodes(const struct plan *plan, const struct kva_attend_seq *seq, uint32_t splits)
{
    const struct kva_attend_args *args = plan->args;
    const uint32_t pairs = seq->row_count * plan->group;
    const size_t partials = plan->partial_count + static_cast<size_t>(splits) * pairs;
    return pairs <= decode_pairs(args->head_dim) && args->head_dim % 8 == 0 &&
           partials * args->kv_heads * (args->head_dim + 2) * sizeof(float) <= plan->scratch_bytes;
}

static void add_decode_item(struct plan *plan, const item &work)
{
    if (plan->items)
        plan->decode_items[plan->decode_count] = work;
    plan->decode_count++;
    plan->decode_pairs = kva_max_u32(plan->decode_pairs, work.pair_count);
}

/* A sequence that decodes: an item a split; a single one needs no fold. */
static void add_decode_items(struct plan *plan, const item &work)
{
    const uint32_t first = work.tile_first / SPLIT_TILES;
    const uint32_t end = kva_blocks(work.tile_end, SPLIT_TILES);
    const bool empty = work.tile_first == work.tile_end;
    if (!plan->args->accumulate && (empty || end == first + 1)) {
        add_decode_item(plan, work);
        return;
    }
    if (empty)
        return;
    plan_fold(plan, work, end - first);
    item part = work;
    for (uint32_t split = first; split < end; split++) {
        part.tile_first = kva_max_u32(work.tile_first, split * SPLIT_TILES);
        part.tile_end = kva_min_u32(work.tile_end, (split + 1) * SPLIT_TILES);
        part.partial = plan->partial_count;
        plan->partial_count += part.pair_count;
        add_decode_item(plan, part);
    }
}

/* The items of one sequence. */
static void add_items(struct plan *plan, const struct kva_attend_seq *seq)
{
    const struct kva_attend_args *args = plan->args;
    uint32_t pair_count = seq->row_count * plan->group;
    int32_t tiles = static_cast<int32_t>(plan->tile_count - seq_tiles(args, seq).first);
    struct tile_span all = rows_tiles(args, seq, 0, seq->row_count);
    item work = {seq->row_first, seq->position_first, 0, pair_count, all.first, all.end, tiles,
                 KVA_NONE};
    if (decodes(plan, seq, kva_blocks(all.end, SPLIT_TILES) - all.first / SPLIT_TILES)) {
        add_decode_items(plan, work);
        return;
    }
    for (uint32_t pair = 0; pair < pair_count; pair += plan->pairs) {
        uint32_t pair_end = kva_min_u32(pair + plan->pairs, pair_count);
        struct tile_span span =
            rows_tiles(args, seq, pair / plan->group, kva_blocks(pair_end, plan->group));
        work.pair_first = pair;
        work.pair_count = pair_end - pair;
        work.tile_first = span.first;
        work.tile_end = span.end;
        plan_splits(plan, work);
    }
}

static void walk(struct plan *plan)
{
    plan->item_count = plan->fold_count = plan->tile_count = 0;
    plan->overflow_count = plan->partial_count = 0;
    plan->decode_count = plan->decode_pairs = 0;
    for (uint32_t i = 0; i < plan->args->seq_count; i++) {
        add_items(plan, &plan->args->seqs[i]);
        add_tiles(plan, &plan->args->seqs[i]);
    }
}

static size_t lay_out(struct plan *plan, const void *base)
{
    size_t bytes = 0;
    plan->tiles = plan_array<tile>(base, &bytes, plan->tile_count);
    plan->overflow = plan_array<tile>(base, &bytes, plan->overflow_count);
    plan->items = plan_array<item>(base, &bytes, plan->item_count);
    plan->folds = plan_array<item>(base, &bytes, plan->fold_count);
    plan->decode_items = plan_array<item>(base, &bytes, plan->decode_count);
    return bytes;
}

/* --- the operator ----------------------------------------------------------------------------- */

template <typename KV> static auto prompt_kernel_of(uint32_t dim)
{
    return dim <= 64    ? prompt_kernel<KV, 64>
           : dim <= 128 ? prompt_kernel<KV, 128>
                        : prompt_kernel<KV, 256>;
}

template <typename KV> static auto decode_kernel_of(uint32_t dim, uint32_t pairs)
{
    if (dim > 128)
        return decode_kernel<KV, 256, 1>;
    if (dim > 64)
        return pairs > 8 ? decode_kernel<KV, 128, 2> : decode_kernel<KV, 128, 1>;
    return pairs > 8 ? decode_kernel<KV, 64, 2> : decode_kernel<KV, 64, 1>;
}

static void run_prompts(struct kva_device *device, const struct plan *plan,
                        const attend_params &params, decltype(&prompt_kernel<kva_f16, 64>) kernel)
{
    struct kva_cuda_launch launch = plan_launch(plan, params.shape);
    launch.block.x *= prompt_slices(params.shape.dim);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend", launch, kernel, params);
}

static void run_decoding(struct kva_device *device, const struct plan *plan, attend_params params)
{
    const struct kva_attend_args *args = plan->args;
    const auto kernel = args->kv_dtype == KVA_F16
                            ? decode_kernel_of<kva_f16>(args->head_dim, plan->decode_pairs)
                            : decode_kernel_of<kva_bf16>(args->head_dim, plan->decode_pairs);
    params.items = plan->decode_items;
    const size_t bytes = 2 * TILE * padded_dim(args->head_dim) * sizeof(uint16_t);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend, decoding",
                 {dim3(plan->decode_count, args->kv_heads), dim3(KVA_WARP), bytes}, kernel, params);
}

/* How long a tile takes a block, by its warps, of 16 pairs each (measured on an H200 with 8 and 12
 * of them). */
static uint32_t tile_cost(uint32_t pairs)
{
    return 9 + pairs / 16;
}

/* The pairs of a block with which prompts take the GPU fewest turns, and those the shortest: none
 * more than shared memory holds. No bit depends on it. */
static void choose_pairs(struct plan *plan, const struct kva_device *device,
                         const struct kva_attend_args *args)
{
    const uint32_t most = plan->pairs, sm_count = static_cast<uint32_t>(device->sm_count);
    uint64_t least = UINT64_MAX;
    for (uint32_t pairs = most; pairs >= 64; pairs -= 16) {
        uint64_t blocks = 0;
        for (uint32_t i = 0; i < args->seq_count; i++) {
            const uint32_t count = args->seqs[i].row_count * plan->group;
            blocks += count > decode_pairs(args->head_dim) ? kva_blocks(count, pairs) : 0;
        }
        const uint64_t turns = (blocks * args->kv_heads + sm_count - 1) / sm_count;
        if (turns * tile_cost(pairs) < least) {
            least = turns * tile_cost(pairs);
            plan->pairs = pairs;
        }
    }
    plan->shared_bytes -= (most - plan->pairs) * pair_bytes(plan, args->head_dim);
}

/* Plan the call and send the plan; false: there is nothing to do, or it failed. */
template <typename Kernel>
static bool prepare(struct kva_device *device, struct plan *plan, Kernel *kernel,
                    const struct kva_attend_args *args)
{
    uint32_t rows_max = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        rows_max = kva_max_u32(rows_max, args->seqs[i].row_count);
    plan->args = args;
    plan->group = args->heads / args->kv_heads;
    plan->stages = 2;
    plan->pairs_max = prompt_warps(args->head_dim) * 16 / prompt_slices(args->head_dim);
    plan->shared_queries = !prompt_shares_sums(args->head_dim);
    plan->shared_sums = prompt_shares_sums(args->head_dim);
    if (!plan_begin(plan, device, "attend", kernel, rows_max, args->head_dim))
        return false;
    choose_pairs(plan, device, args);
    choose_width(plan, device, args);
    return plan->item_count + plan->decode_count > 0 && send_plan(device, plan);
}

void kva_cuda_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    struct plan plan = {};
    const auto kernel = args->kv_dtype == KVA_F16 ? prompt_kernel_of<kva_f16>(args->head_dim)
                                                  : prompt_kernel_of<kva_bf16>(args->head_dim);
    if (!prepare(device, &plan, kernel, args))
        return;
    attend_params params = {};
    params.shape = shape_of(device, args);
    params.shape.accumulate = args->accumulate;
    params.tiles = plan.tiles;
    params.overflow = plan.overflow;
    params.items = plan.items;
    params.stages = plan.stages;
    /* Rows that the pairs of an item lie in, and the tiles that end behind the first of them. */
    const uint32_t rows = kva_blocks(plan.pairs, plan.group) + 1;
    params.border = kva_blocks(rows + TILE - 2, TILE);
    if (plan.decode_count > 0)
        run_decoding(device, &plan, params);
    if (plan.item_count > 0 && !kva_cuda_failed(device))
        run_prompts(device, &plan, params, kernel);
    run_folds(device, &plan, params.shape, "attend's folds");
}
