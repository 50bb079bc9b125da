/* attend.cu - attend: partial attention over 16-bit pages, prompts and decoding alike
 * (attend_tile.cuh).
 *
 * Tiles come through two stages of shared memory, or one where a GPU has no room for two. Tiles and
 * splits are aligned to positions, so the order of additions is a property of the sequence.
 *
 * What is not a number in V spreads to the rows of the same sequence that do not see the token, if
 * it lies in a tile of theirs: a product by zero does not remove it. */
#include "kernels/cuda/attend_plan.cuh"

#include <string.h>

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
    uint32_t stages; /* 1 or 2 */
};

/* --- tiles in shared memory ------------------------------------------------------------------- */

/* Start bringing the rows of a tile; rows of no token become zero. */
template <typename KV, int D>
static __device__ void load_tile(stage<KV, D> &to, const attend_params &p, tile piece,
                                 uint32_t kv_head)
{
    const size_t head_bytes = static_cast<size_t>(TILE) * 2 * p.shape.dim * sizeof(KV);
    bool first_piece = true;
    for (;;) {
        const KV *from = reinterpret_cast<const KV *>(piece.block + kv_head * head_bytes);
        uint32_t chunk = p.shape.dim % 8 == 0 ? 8 : 1, chunks = 2 * p.shape.dim / chunk;
        for (uint32_t i = threadIdx.x; i < TILE * chunks; i += blockDim.x) {
            uint32_t token = i / chunks, at = i % chunks * chunk;
            bool valid = piece.block && token >= piece.first && token < piece.end;
            KV *row = at < p.shape.dim ? &to.k[token][at] : &to.v[token][at - p.shape.dim];
            if (!valid && !first_piece)
                continue;
            const KV *source =
                valid ? from + token * 2 * p.shape.dim + at : reinterpret_cast<const KV *>(p.tiles);
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

/* --- the kernel ------------------------------------------------------------------------------- */

template <typename KV, int D>
static __global__ void __launch_bounds__(WARPS_MAX * 32) attend_kernel(attend_params p)
{
    const attend_shape &shape = p.shape;
    const uint32_t pairs = blockDim.x / 2, lane = threadIdx.x % KVA_WARP;
    const uint32_t warp_pair = threadIdx.x / KVA_WARP * 16, kv_head = blockIdx.y;
    const item work = p.items[blockIdx.x];
    const tile *tiles = p.tiles + work.tiles;
    KVA_DYNAMIC_SHARED(unsigned char, shared_bytes);
    stage<KV, D> *stages = reinterpret_cast<stage<KV, D> *>(shared_bytes);
    KV(*q)[D + PAD] = reinterpret_cast<KV(*)[D + PAD]>(stages + p.stages);
    bool busy = warp_pair < work.pair_count;

    uint32_t position[2], seen_first[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t pair = min(warp_pair + lane / 4 + 8 * i, work.pair_count - 1);
        position[i] = work.position_first + (work.pair_first + pair) / shape.group;
        bool cut = shape.window && position[i] >= shape.window;
        seen_first[i] = cut ? position[i] - shape.window + 1 : 0;
    }
    state<D> total, split;
    total.clear();
    split.clear();
    if (shape.accumulate && work.partial == KVA_NONE && busy)
        move_state<false>(total, shape, work, kv_head, warp_pair, lane);
    clear_padding(stages, p.stages, shape.dim);
    load_queries<KV, D>(q, shape, work, kv_head, pairs);
    tile next = {};
    if (work.tile_first < work.tile_end) {
        next = tiles[work.tile_first];
        load_tile(stages[0], p, next, kv_head);
    }
    kva_copy_commit();
    for (uint32_t t = work.tile_first; t < work.tile_end; t++) {
        const tile current = next;
        const bool more = t + 1 < work.tile_end;
        if (more)
            next = tiles[t + 1];
        if (more && p.stages > 1)
            load_tile(stages[(t + 1 - work.tile_first) % 2], p, next, kv_head);
        kva_copy_commit();
        if (p.stages > 1)
            kva_copy_wait<1>();
        else
            kva_copy_wait<0>();
        __syncthreads(); /* everybody's part of the tile is there */
        const uint64_t mask = tile_mask(p, current);
        const stage<KV, D> &here = stages[(t - work.tile_first) % p.stages];
        if (busy && mask) {
            auto look = [&](uint32_t slot, int i, float x) {
                uint32_t token = t * TILE + slot;
                bool seen = (mask >> slot & 1) && token <= position[i] && token >= seen_first[i];
                return seen ? x : -INFINITY;
            };
            attend_tile<KV, D>(split, q + warp_pair, here, shape.scale, lane, look);
        }
        if ((t + 1) % SPLIT_TILES == 0 || t + 1 == work.tile_end) {
            fold_split(total, split);
            split.clear();
        }
        __syncthreads(); /* the stage may be written again */
        if (more && p.stages == 1)
            load_tile(stages[0], p, next, kv_head);
    }
    if (busy)
        move_state<true>(total, shape, work, kv_head, warp_pair, lane);
}

/* --- the plan --------------------------------------------------------------------------------- */

struct plan : attend_plan {
    const struct kva_attend_args *args;
    uint32_t tile_count, overflow_count;
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

/* The items of one sequence. */
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
        plan_splits(plan, work);
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

static size_t lay_out(struct plan *plan, const void *base)
{
    size_t bytes = 0;
    plan->tiles = plan_array<tile>(base, &bytes, plan->tile_count);
    plan->overflow = plan_array<tile>(base, &bytes, plan->overflow_count);
    plan->items = plan_array<item>(base, &bytes, plan->item_count);
    plan->folds = plan_array<item>(base, &bytes, plan->fold_count);
    return bytes;
}

/* --- the operator ----------------------------------------------------------------------------- */

template <typename KV> static auto kernel_of(uint32_t dim)
{
    return dim <= 64    ? attend_kernel<KV, 64>
           : dim <= 128 ? attend_kernel<KV, 128>
                        : attend_kernel<KV, 256>;
}

void kva_cuda_attend(struct kva_device *device, const struct kva_attend_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    struct plan plan = {};
    auto kernel = args->kv_dtype == KVA_F16 ? kernel_of<kva_f16>(args->head_dim)
                                            : kernel_of<kva_bf16>(args->head_dim);
    if (!make_plan(device, &plan, "attend", kernel, 2, args))
        return;
    attend_params params = {};
    params.shape = shape_of(device, args);
    params.shape.accumulate = args->accumulate;
    params.tiles = plan.tiles;
    params.overflow = plan.overflow;
    params.items = plan.items;
    params.stages = plan.stages;
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend", plan_launch(&plan, params.shape), kernel,
                 params);
    run_folds(device, &plan, params.shape, "attend's folds");
}
