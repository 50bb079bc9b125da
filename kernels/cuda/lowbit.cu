/* lowbit.cu - attend_lowbit: partial attention over low-bit pages (attend_tile.cuh).
 *
 * A tile's codes become f16 numbers in shared memory, zero + scale * code, once for all pairs of
 * the block; from there it is attention over 16-bit tiles. Scores are kept as [head][position], for
 * select.cu, which does not look at those of tokens that rows have. */
#include "kernels/cuda/attend_plan.cuh"
#include "kernels/cuda/turn.cuh"

#define BITS_MAX 8u

/* A sequence, on the device. */
struct lowbit_seq {
    struct kva_row_cache rows;
    float *scores; /* [heads][page_count * KVA_PAGE_TOKENS] of the selecting row; NULL: none */
    uint32_t block_first;
    uint32_t page_count;
    uint32_t select_row; /* of the sequence's rows */
    uint32_t row_first, row_count;
    const uint32_t *gate;
    const float *mean; /* what keys are without; or NULL */
    bool has_rows;
};

struct lowbit_params {
    attend_shape shape;
    const item *items;
    const lowbit_seq *seqs;
    const void *const *blocks;
    size_t block_offset;
    uint32_t bits;
    uint32_t group_tokens; /* tokens, or channels, of a quantisation group */
    bool token_keys;       /* keys have levels per token */
    bool turned;           /* rows of pages are turned */
    struct kva_lowbit_layout layout;
};

/* --- tiles ------------------------------------------------------------------------------------ */

static __device__ __forceinline__ float f16_at(const unsigned char *from, uint32_t index)
{
    return kva_to_f32(reinterpret_cast<const kva_f16 *>(from)[index]);
}

/* The code of bit `bit` of every plane's byte `index`. */
static __device__ __forceinline__ uint32_t spread(const unsigned char *codes, uint32_t plane_bytes,
                                                  uint32_t index, uint32_t bits, uint32_t *planes)
{
    for (uint32_t b = 0; b < bits; b++)
        planes[b] = codes[b * plane_bytes + index];
    return bits;
}

static __device__ __forceinline__ float code_of(const uint32_t *planes, uint32_t bits, uint32_t bit)
{
    uint32_t code = 0;
#pragma unroll
    for (uint32_t b = 0; b < BITS_MAX; b++) {
        if (b < bits)
            code |= (planes[b] >> bit & 1u) << b;
    }
    return static_cast<float>(code);
}

/* A byte of a key plane: channels 4 i .. 4 i + 3 of tokens t and t + 1. */
template <int D>
static __device__ void decode_keys(kva_f16 (*k)[D + PAD], const lowbit_params &p,
                                   const unsigned char *page)
{
    const uint32_t dim = p.shape.dim, bytes = TILE / 2;
    for (uint32_t i = threadIdx.x; i < dim / 4 * bytes; i += blockDim.x) {
        uint32_t channel = i / bytes * 4, token = i % bytes * 2, planes[BITS_MAX] = {};
        uint32_t at = token / p.group_tokens * dim + channel;
        spread(page + p.layout.k_codes, p.layout.plane_bytes, i, p.bits, planes);
        float x[8];
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            const uint32_t low = p.token_keys ? token : at + c;
            const uint32_t high = p.token_keys ? token + 1 : at + c;
            x[c] = fmaf(f16_at(page + p.layout.k_scale, low), code_of(planes, p.bits, c),
                        f16_at(page + p.layout.k_zero, low));
            x[4 + c] = fmaf(f16_at(page + p.layout.k_scale, high), code_of(planes, p.bits, 4 + c),
                            f16_at(page + p.layout.k_zero, high));
        }
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t *to = reinterpret_cast<uint32_t *>(&k[token + t][channel]);
            to[0] = kva_pack<kva_f16>(x[4 * t], x[4 * t + 1]);
            to[1] = kva_pack<kva_f16>(x[4 * t + 2], x[4 * t + 3]);
        }
    }
}

/* A byte of a value plane: tokens 4 i .. 4 i + 3 of channels c and c + 1. */
template <int D>
static __device__ void decode_values(kva_f16 (*v)[D + PAD], const lowbit_params &p,
                                     const unsigned char *page)
{
    const uint32_t dim = p.shape.dim, bytes = dim / 2;
    for (uint32_t i = threadIdx.x; i < TILE / 4 * bytes; i += blockDim.x) {
        uint32_t token = i / bytes * 4, channel = i % bytes * 2, planes[BITS_MAX] = {};
        uint32_t at = channel / p.group_tokens * TILE + token;
        spread(page + p.layout.v_codes, p.layout.plane_bytes, i, p.bits, planes);
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            float scale = f16_at(page + p.layout.v_scale, at + t);
            float zero = f16_at(page + p.layout.v_zero, at + t);
            *reinterpret_cast<uint32_t *>(&v[token + t][channel]) =
                kva_pack<kva_f16>(fmaf(scale, code_of(planes, p.bits, t), zero),
                                  fmaf(scale, code_of(planes, p.bits, 4 + t), zero));
        }
    }
}

/* masks[i] = the tokens of tile i of the split that no row replaces; complete after the next
 * barrier. */
static __device__ void find_present(unsigned long long *masks, const lowbit_seq &seq,
                                    uint32_t kv_head, uint32_t split)
{
    if (threadIdx.x < SPLIT_TILES)
        masks[threadIdx.x] = ~0ull;
    __syncthreads();
    if (seq.has_rows) {
        const size_t head = static_cast<size_t>(kv_head) * seq.rows.slots;
        for (uint32_t i = threadIdx.x; i < seq.rows.count[kv_head]; i += blockDim.x) {
            uint32_t token = seq.rows.tokens[head + seq.rows.order[head + i]];
            if (token / KVA_ATTEND_SPLIT_TOKENS == split)
                atomicAnd(&masks[token / TILE % SPLIT_TILES], ~(1ull << token % TILE));
        }
    }
}

/* As load_queries, turned: a query by a warp. */
template <int D>
static __device__ void load_turned(kva_f16 (*q)[D + PAD], const attend_shape &p, const item &work,
                                   uint32_t kv_head, uint32_t pairs, uint32_t lane)
{
    for (uint32_t pair = threadIdx.x / KVA_WARP; pair < pairs; pair += blockDim.x / KVA_WARP) {
        const uint32_t index = work.pair_first + pair;
        const size_t head = kv_head * p.group + index % p.group;
        const size_t row = work.row_first + index / p.group;
        float x[D / KVA_WARP];
#pragma unroll
        for (uint32_t j = 0; j < D / KVA_WARP; j++) {
            const uint32_t d = lane + KVA_WARP * j;
            const bool there = pair < work.pair_count && d < p.dim;
            x[j] = there ? kva_load(p.q, p.q_dtype, row * p.q_stride + head * p.dim + d) : 0.0f;
        }
        kva_turn_warp(x, p.dim, lane, false);
#pragma unroll
        for (uint32_t j = 0; j < D / KVA_WARP; j++) {
            const uint32_t d = lane + KVA_WARP * j;
            q[pair][d] = kva_saturate<kva_f16>(d < p.dim ? x[j] : 0.0f);
        }
    }
}

/* What the scores of the lane's pair lack whose keys are without a mean: from the query as it came,
 * since such a product is large. */
static __device__ float shift_of(const attend_shape &p, const item &work, const float *mean,
                                 uint32_t kv_head, uint32_t pair)
{
    const size_t head = kv_head * p.group + pair % p.group;
    const size_t at = (work.row_first + pair / p.group) * static_cast<size_t>(p.q_stride);
    float sum = 0.0f;
    for (uint32_t d = 0; d < p.dim; d++)
        sum = fmaf(kva_load(p.q, p.q_dtype, at + head * p.dim + d),
                   mean[static_cast<size_t>(kv_head) * p.dim + d], sum);
    return sum * p.scale;
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <int D>
static __global__ void __launch_bounds__(WARPS_MAX * 32) lowbit_kernel(lowbit_params p)
{
    __shared__ unsigned long long masks[SPLIT_TILES];
    const attend_shape &shape = p.shape;
    const uint32_t pairs = blockDim.x / 2, lane = threadIdx.x % KVA_WARP;
    const uint32_t warp_pair = threadIdx.x / KVA_WARP * 16, kv_head = blockIdx.y;
    const item work = p.items[blockIdx.x];
    const lowbit_seq &seq = p.seqs[work.seq];
    KVA_DYNAMIC_SHARED(unsigned char, shared_bytes);
    stage<kva_f16, D> &here = *reinterpret_cast<stage<kva_f16, D> *>(shared_bytes);
    kva_f16(*q)[D + PAD] = reinterpret_cast<kva_f16(*)[D + PAD]>(&here + 1);
    bool busy = warp_pair < work.pair_count;
    if (kva_gate_closed(work.gate))
        return;

    uint32_t seen_first[2];
    float shift[2];
    float *scores[2]; /* of the lane's rows; NULL: of no interest */
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t pair = work.pair_first + min(warp_pair + lane / 4 + 8 * i, work.pair_count - 1);
        uint32_t row = pair / shape.group, position = work.position_first + row;
        bool cut = shape.window && position >= shape.window;
        shift[i] = seq.mean ? shift_of(shape, work, seq.mean, kv_head, pair) : 0.0f;
        seen_first[i] = cut ? position - shape.window + 1 : 0;
        size_t head = kv_head * shape.group + pair % shape.group;
        bool own = warp_pair + lane / 4 + 8 * i < work.pair_count;
        scores[i] = own && seq.scores && row == seq.select_row
                        ? seq.scores + head * seq.page_count * TILE
                        : nullptr;
    }
    state<D> total, split;
    total.clear();
    split.clear();
    clear_padding(&here, 1, shape.dim);
    if (p.turned)
        load_turned<D>(q, shape, work, kv_head, pairs, lane);
    else
        load_queries<kva_f16, D>(q, shape, work, kv_head, pairs);
    for (uint32_t t = work.tile_first; t < work.tile_end; t++) {
        const unsigned char *page =
            static_cast<const unsigned char *>(p.blocks[seq.block_first + t]) + p.block_offset +
            kv_head * p.layout.head_bytes;
        if (t == work.tile_first || t % SPLIT_TILES == 0)
            find_present(masks, seq, kv_head, t / SPLIT_TILES);
        decode_keys<D>(here.k, p, page);
        decode_values<D>(here.v, p, page);
        __syncthreads(); /* the tile is decoded */
        const uint64_t mask = masks[t % SPLIT_TILES];
        if (busy && mask) {
            auto look = [&](uint32_t slot, int i, float x) {
                uint32_t token = t * TILE + slot;
                bool seen = (mask >> slot & 1) && token >= seen_first[i];
                x = seen ? x + shift[i] : -INFINITY;
                if (scores[i])
                    scores[i][token] = x;
                return x;
            };
            attend_tile<kva_f16, D>(split, q + warp_pair, here, shape.scale, lane, look);
        }
        if ((t + 1) % SPLIT_TILES == 0 || t + 1 == work.tile_end) {
            fold_split(total, split);
            split.clear();
        }
        __syncthreads(); /* the next tile may be decoded */
    }
    if (busy)
        move_state<true>(total, shape, work, kv_head, warp_pair, lane);
}

/* Sums of turned values are turned back: those of a query head of a sequence by a block. */
template <int D> static __global__ void turn_back_kernel(lowbit_params p)
{
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

using plan = seq_plan<kva_attend_lowbit_args, lowbit_seq>;

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
static void find_tiles(const plan *plan, const struct kva_lowbit_seq *seq, item *work)
{
    uint32_t window = plan->args->window;
    uint32_t position = seq->position_first + work->pair_first / plan->group;
    uint32_t first = window > 0 && position >= window ? (position - window + 1) / TILE : 0;
    work->tile_first = kva_min_u32(first, seq->page_count);
    work->tile_end = seq->page_count;
}

/* --- the operator ----------------------------------------------------------------------------- */

static auto kernel_of(uint32_t dim)
{
    return dim <= 64 ? lowbit_kernel<64> : dim <= 128 ? lowbit_kernel<128> : lowbit_kernel<256>;
}

static auto turn_back_kernel_of(uint32_t dim)
{
    return dim <= 64    ? turn_back_kernel<64>
           : dim <= 128 ? turn_back_kernel<128>
                        : turn_back_kernel<256>;
}

void kva_cuda_attend_lowbit(struct kva_device *device, const struct kva_attend_lowbit_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    plan plan = {};
    uint32_t block_count = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        block_count =
            kva_max_u32(block_count, args->seqs[i].block_first + args->seqs[i].page_count);
    lowbit_params params = {};
    params.shape = shape_of(device, args);
    params.blocks = kva_cuda_upload_array(device, args->blocks, block_count);
    params.block_offset = args->block_offset_bytes;
    params.bits = args->format.bits;
    params.group_tokens = args->format.group;
    params.token_keys = args->format.keys == KVA_KEYS_PER_TOKEN;
    params.turned = args->format.coding == KVA_CODING_TURNED;
    params.layout = kva_lowbit_layout_of(args->format, args->head_dim);
    const auto kernel = kernel_of(args->head_dim);
    if (!make_plan(device, &plan, "attend_lowbit", kernel, 1, args))
        return;
    params.items = plan.items;
    params.seqs = plan.seqs;
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_lowbit", plan_launch(&plan, params.shape),
                 kernel, params);
    run_folds(device, &plan, params.shape, "attend_lowbit's folds");
    if (params.turned && !kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_lowbit's turn back",
                     {dim3(args->seq_count, params.shape.heads), dim3(KVA_WARP, 4)},
                     turn_back_kernel_of(args->head_dim), params);
}
