/* keep_rows.cu - mean_keys, row_error and roll_rows: what keys have in common, what coding costs a
 * row, and a store's rows rotated. Codes and errors have the bits of the CPU
 * (kernels/cpu/keep/token_row.h): no product is fused with a sum. */
#include "kernels/cuda/keep_rows.cuh"
#include "kernels/cuda/rank.cuh"

/* --- mean_keys -------------------------------------------------------------------------------- */

/* The mean of each channel of a KV head, and the sum of the squares of what tokens have else; a
 * channel by a thread. */
template <typename KV>
static __device__ void channel_means(const kva_mean_keys_args &p, float *mean, float *squares)
{
    const float n = static_cast<float>(p.end - p.first);
    for (uint32_t c = threadIdx.x; c < p.head_dim; c += THREADS) {
        auto at = [&](uint32_t t) {
            const KV *row = row_16<KV>(p.block, p.block_offset_bytes, blockIdx.x, t, p.head_dim);
            const float x = clamped(kva_to_f32(row[c]));
            return x == x ? x : 0.0f;
        };
        float sum = 0.0f;
        for (uint32_t t = p.first; t < p.end; t++)
            sum = __fadd_rn(sum, at(t));
        mean[c] = __fdiv_rn(sum, n);
        squares[c] = 0.0f;
        for (uint32_t t = p.first; t < p.end; t++) {
            const float off = __fsub_rn(at(t), mean[c]);
            squares[c] = __fadd_rn(squares[c], __fmul_rn(off, off));
        }
    }
}

/* A KV head by a block of threads. */
template <typename KV>
static __global__ void __launch_bounds__(THREADS) mean_kernel(kva_mean_keys_args p)
{
    kva_begin();
    __shared__ float mean[DIM_MAX], squares[DIM_MAX];
    __shared__ bool some;
    const float n = static_cast<float>(p.end - p.first);
    auto weight = [&](uint32_t c) { return __fmul_rn(__fmul_rn(mean[c], mean[c]), n); };
    auto counts = [&](uint32_t c) {
        return weight(c) > __fmul_rn(KVA_MEAN_KEY_DEVIATIONS_2, squares[c]);
    };
    channel_means<KV>(p, mean, squares);
    __syncthreads(); /* the means are there */
    if (threadIdx.x == 0) {
        float common = 0.0f, apart = 0.0f;
        for (uint32_t c = 0; c < p.head_dim; c++) {
            common = __fadd_rn(common, counts(c) ? weight(c) : 0.0f);
            apart = __fadd_rn(apart, squares[c]);
        }
        some = common > __fmul_rn(KVA_MEAN_KEY_SHARE, apart);
    }
    __syncthreads(); /* `some` is */
    float *to = p.mean + static_cast<size_t>(blockIdx.x) * p.head_dim;
    for (uint32_t c = threadIdx.x; c < p.head_dim; c += THREADS)
        to[c] = some && counts(c) ? mean[c] : 0.0f;
}

void kva_cuda_mean_keys(struct kva_device *device, const struct kva_mean_keys_args *args)
{
    if (kva_cuda_enter(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "mean_keys", {dim3(args->kv_heads), THREADS},
                     args->kv_dtype == KVA_F16 ? mean_kernel<kva_f16> : mean_kernel<kva_bf16>,
                     *args);
}

/* --- row_error -------------------------------------------------------------------------------- */

struct error_seq {
    const void *const *blocks;
    float *error;
    const float *mean;
    uint32_t count, stride;
};

struct error_params {
    const error_seq *seqs;
    size_t offset;
    uint32_t dim, bits;
    bool turned;
};

/* Of one row, by a warp whose lanes hold it. */
template <typename KV, int N>
static __device__ float row_error(const KV *from, const float *mean, const error_params &p)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    float x[N] = {}, zero, scale;
    row_sum off, all;
    load_row(x, from, p.dim);
    take_row(x, mean, p.dim, p.turned);
    find_levels(x, p.dim, lane, p.bits, p.turned, &zero, &scale);
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const bool there = lane + KVA_WARP * j < p.dim;
        const float code = static_cast<float>(code_of(x[j], p.bits, zero, scale));
        const float y = __fsub_rn(x[j], __fadd_rn(zero, __fmul_rn(scale, code)));
        off.add(there ? __fmul_rn(y, y) : 0.0f, lane);
        all.add(there ? __fmul_rn(x[j], x[j]) : 0.0f, lane);
    }
    const float size = all.whole(), error = off.whole();
    return size > 0.0f ? __fdiv_rn(error, size) : 0.0f;
}

/* A token a warp: its key and then its value are chains that nothing else hides; N: numbers of a row
 * that a lane has. */
template <typename KV, int N>
static __global__ void __launch_bounds__(THREADS) error_kernel(error_params p)
{
    kva_begin();
    const error_seq seq = p.seqs[blockIdx.z];
    const uint32_t kv_head = blockIdx.y, i = blockIdx.x * WARPS + threadIdx.x / KVA_WARP;
    const float *mean = seq.mean ? seq.mean + static_cast<size_t>(kv_head) * p.dim : nullptr;
    if (i >= seq.count)
        return;
    const KV *row = row_16<KV>(seq.blocks[i / KVA_PAGE_TOKENS], p.offset, kv_head, i, p.dim);
    const float key = row_error<KV, N>(row, mean, p);
    const float both = __fadd_rn(key, row_error<KV, N>(row + p.dim, nullptr, p));
    if (threadIdx.x % KVA_WARP == 0)
        seq.error[static_cast<size_t>(kv_head) * seq.stride + i] = both;
}

template <typename KV>
static void run_error(struct kva_device *device, const dim3 &grid, const error_params &p)
{
    constexpr int own = ROW_OWN;
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "row_error", {grid, THREADS},
                 p.dim > DIM_MAX / 2 ? error_kernel<KV, own> : error_kernel<KV, own / 2>, p);
}

void kva_cuda_row_error(struct kva_device *device, const struct kva_row_error_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    uint32_t pages = 0, most = 0, at = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        pages += pages_of(args->seqs[i].count);
        most = kva_max_u32(most, args->seqs[i].count);
    }
    if (most == 0)
        return;
    const size_t seqs_bytes = args->seq_count * sizeof(error_seq);
    const void **blocks =
        static_cast<const void **>(kva_cuda_stage(device, pages * sizeof(void *)));
    if (!blocks)
        return;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        for (uint32_t j = 0; j < pages_of(args->seqs[i].count); j++)
            blocks[at++] = args->seqs[i].blocks[j];
    }
    const void *const *sent =
        static_cast<const void *const *>(kva_cuda_send(device, blocks, pages * sizeof(void *)));
    error_seq *seqs = static_cast<error_seq *>(kva_cuda_stage(device, seqs_bytes));
    if (!seqs)
        return;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_row_error_seq *seq = &args->seqs[i];
        seqs[i] = {sent, seq->error, seq->mean, seq->count, seq->stride};
        sent += pages_of(seq->count);
    }
    error_params p = {static_cast<const error_seq *>(kva_cuda_send(device, seqs, seqs_bytes)),
                      args->block_offset_bytes, args->head_dim, args->format.bits,
                      args->format.coding == KVA_CODING_TURNED};
    if (kva_cuda_failed(device))
        return;
    const dim3 grid(kva_blocks(most, WARPS), args->kv_heads, args->seq_count);
    if (args->kv_dtype == KVA_F16)
        run_error<kva_f16>(device, grid, p);
    else
        run_error<kva_bf16>(device, grid, p);
}

/* --- roll_rows -------------------------------------------------------------------------------- */

/* index = how many positions of the KV head are lower. */
static __global__ void __launch_bounds__(RANK_THREADS) index_kernel(const move_seq *seqs)
{
    kva_begin();
    __shared__ rank_shared shared;
    const move_seq seq = seqs[blockIdx.x];
    const size_t at = static_cast<size_t>(blockIdx.y) * seq.stride;
    rank_different(
        shared, seq.count, [&](uint32_t i) { return seq.slots[at + i]; },
        [&](uint32_t i, uint32_t less) { seq.index[at + i] = less; });
}

/* A slot's place: `key` is whether its key is yet to be written, `value` its value. */
struct roll_slot {
    uint32_t position;
    bool key, value;
};

static __device__ roll_slot find_slot(const move_seq &seq, size_t at)
{
    const kva_roll_place place = seq.places[at];
    const uint32_t position = seq.position_first + seq.index[at];
    const bool there = place.token == seq.slots[at] + 1;
    return {position, !there || place.position != position, !there};
}

/* A slot of 16 bits by a warp. */
template <typename KV, bool WHOLE>
static __global__ void __launch_bounds__(THREADS) roll_kernel(move_params p)
{
    kva_begin();
    const move_seq &seq = p.seqs[blockIdx.x]; /* there are no registers for it */
    const uint32_t kv_head = blockIdx.y, dim = p.to.dim, begin = blockIdx.z * BLOCK_ROWS;
    const uint32_t lane = threadIdx.x % KVA_WARP, end = min(seq.count, begin + BLOCK_ROWS);
    const size_t first = static_cast<size_t>(kv_head) * seq.stride;
    for (uint32_t slot = begin + threadIdx.x / KVA_WARP; slot < end; slot += WARPS) {
        const uint32_t page = slot / KVA_PAGE_TOKENS;
        const roll_slot now = find_slot(seq, first + slot);
        const KV *from = row_16<KV>(seq.from[page], p.from.offset, kv_head, slot, dim);
        KV *to = row_16<KV>(seq.to[page], p.to.offset, kv_head, slot, dim);
        if (!now.key)
            continue;
        __syncwarp(); /* all lanes have read the place */
        if (lane == 0)
            seq.places[first + slot] = {seq.slots[first + slot] + 1, now.position};
        rotate_row<WHOLE>(to, from, p.turn, now.position, false);
        for (uint32_t c = 2 * p.turn.half + lane; c < dim; c += KVA_WARP)
            to[c] = kva_saturate<KV>(kva_to_f32(from[c]));
        if (now.value)
            copy_row<WHOLE>(to + dim, from + dim, dim);
    }
}

/* What is to be written of a page's slots, by position, or UINT32_MAX. */
struct roll_plan {
    uint32_t keys[KVA_PAGE_TOKENS], values[KVA_PAGE_TOKENS];
};

/* The plan; then places are what they will be. */
static __device__ void plan_page(const move_seq &seq, uint32_t kv_head, uint32_t page,
                                 roll_plan *plan)
{
    const size_t first = static_cast<size_t>(kv_head) * seq.stride;
    for (uint32_t t = threadIdx.x; t < KVA_PAGE_TOKENS; t += PAGE_THREADS) {
        const uint32_t slot = page * KVA_PAGE_TOKENS + t;
        plan->keys[t] = plan->values[t] = UINT32_MAX;
        if (slot >= seq.count)
            continue;
        const roll_slot now = find_slot(seq, first + slot);
        plan->keys[t] = now.key ? now.position : UINT32_MAX;
        plan->values[t] = now.value ? now.position : UINT32_MAX;
        if (now.key)
            seq.places[first + slot] = {seq.slots[first + slot] + 1, now.position};
    }
    __syncthreads(); /* the plan is there */
}

/* x = a row of codes, turned back; `mean`: of a key, or NULL. */
template <int N>
static __device__ void decode_row(float (&x)[N], const place &p, const unsigned char *head,
                                  bool values, uint32_t slot, const unsigned char *codes,
                                  const float *mean)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    const uint32_t scale_at = values ? p.layout.v_scale : p.layout.k_scale;
    const uint32_t zero_at = values ? p.layout.v_zero : p.layout.k_zero;
    const float scale = kva_to_f32(reinterpret_cast<const kva_f16 *>(head + scale_at)[slot]);
    const float zero = kva_to_f32(reinterpret_cast<const kva_f16 *>(head + zero_at)[slot]);
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t i = lane + KVA_WARP * j;
        x[j] = i < p.dim ? __fadd_rn(zero, __fmul_rn(scale, static_cast<float>(codes[i]))) : 0.0f;
    }
    if (p.turned)
        kva_turn_warp(x, p.dim, lane, true);
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t i = lane + KVA_WARP * j;
        x[j] = mean && i < p.dim ? __fadd_rn(x[j], mean[i]) : x[j];
    }
}

/* A row goes to 16 bits, rotated by a position; `room`: DIM_MAX numbers of the warp's. */
template <typename KV, int N>
static __device__ void save_row(KV *to, const float (&x)[N], const rotary &r, uint32_t position,
                                uint32_t dim, float *room)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    if (r.half > 0)
        __syncwarp(); /* the row before has been read */
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t i = lane + KVA_WARP * j;
        if (i < 2 * r.half)
            room[i] = x[j];
        else if (i < dim)
            to[i] = kva_saturate<KV>(x[j]);
    }
    if (r.half == 0)
        return;
    __syncwarp(); /* what rotates is there */
    rotate_row<false>(to, room, r, position, false);
}

/* The slots of a page of few bits by a block, a slot a warp: keys, then values. */
template <typename KV, int N>
static __global__ void __launch_bounds__(PAGE_THREADS) decode_kernel(move_params p)
{
    kva_begin();
    __shared__ roll_plan plan;
    __shared__ kva_page_codes codes;
    __shared__ float rooms[PAGE_WARPS][DIM_MAX];
    const move_seq seq = p.seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, page = blockIdx.z, dim = p.to.dim;
    const uint32_t warp = threadIdx.x / KVA_WARP;
    if (page * KVA_PAGE_TOKENS >= seq.count)
        return;
    plan_page(seq, kv_head, page, &plan);
    unsigned char *head = head_of(seq.from[page], p.from, kv_head);
    for (uint32_t values = 0; values < 2; values++) {
        const float *mean =
            seq.mean && !values ? seq.mean + static_cast<size_t>(kv_head) * dim : nullptr;
        const rotary turn = {p.turn.inv_freq, values ? 0 : p.turn.half};
        const uint32_t *wanted = values ? plan.values : plan.keys;
        codes.get(planes_of(head, p.from, values), p.from.layout.plane_bytes, p.from.bits, dim,
                  values, wanted);
        __syncthreads(); /* the codes are there */
        for (uint32_t slot = warp; slot < KVA_PAGE_TOKENS; slot += PAGE_WARPS) {
            if (wanted[slot] == UINT32_MAX)
                continue;
            float x[N];
            decode_row(x, p.from, head, values, slot, codes.of(slot), mean);
            save_row(row_16<KV>(seq.to[page], p.to.offset, kv_head, slot, dim) + values * dim, x,
                     turn, wanted[slot], dim, rooms[warp]);
        }
        __syncthreads(); /* the codes have been read */
    }
}

template <typename KV>
static void run_roll(struct kva_device *device, const struct kva_roll_rows_args *args,
                     const move_params &p, uint32_t slots, bool whole)
{
    const dim3 rows(args->seq_count, args->kv_heads, kva_blocks(slots, BLOCK_ROWS));
    const dim3 pages(args->seq_count, args->kv_heads, pages_of(slots));
    if (p.from.bits == 0)
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "roll_rows", {rows, THREADS},
                     whole ? roll_kernel<KV, true> : roll_kernel<KV, false>, p);
    else
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "roll_rows", {pages, PAGE_THREADS},
                     p.to.dim > DIM_MAX / 2 ? decode_kernel<KV, ROW_OWN>
                                            : decode_kernel<KV, ROW_OWN / 2>,
                     p);
}

void kva_cuda_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *args)
{
    uint32_t pages = 0, most = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        pages += pages_of(args->seqs[i].filled);
        most = kva_max_u32(most, args->seqs[i].filled);
    }
    if (pages == 0 || !kva_cuda_enter(device))
        return;
    const size_t bytes = args->seq_count * sizeof(move_seq);
    move_params p = {nullptr, place_of(args->from_offset_bytes, args->head_dim, args->format),
                     place_of(args->to_offset_bytes, args->head_dim, {}), rotary_of(&args->rotary)};
    const void **blocks =
        static_cast<const void **>(kva_cuda_stage(device, 2 * pages * sizeof(void *)));
    if (!blocks)
        return;
    const void **at = blocks;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_roll_seq *seq = &args->seqs[i];
        put_blocks(at, seq->from, pages_of(seq->filled), seq->to, pages_of(seq->filled));
        at += 2 * pages_of(seq->filled);
    }
    const bool whole = rows_whole(p, blocks, 2 * pages);
    const void *const *sent =
        static_cast<const void *const *>(kva_cuda_send(device, blocks, 2 * pages * sizeof(void *)));
    move_seq *seqs = static_cast<move_seq *>(kva_cuda_stage(device, bytes));
    if (!seqs)
        return;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_roll_seq *seq = &args->seqs[i];
        void *const *to = const_cast<void *const *>(sent + pages_of(seq->filled));
        seqs[i] = {sent,        to,         seq->positions,      seq->index,
                   seq->filled, seq->slots, seq->position_first, seq->places,
                   seq->mean};
        sent += 2 * pages_of(seq->filled);
    }
    send_params(device, &p, seqs, bytes, &args->rotary);
    if (kva_cuda_failed(device) ||
        !kva_cuda_run(device, KVA_QUEUE_COMPUTE, "roll_rows' order",
                      {dim3(args->seq_count, args->kv_heads), RANK_THREADS}, index_kernel, p.seqs))
        return;
    if (args->kv_dtype == KVA_F16)
        run_roll<kva_f16>(device, args, p, most, whole);
    else
        run_roll<kva_bf16>(device, args, p, most, whole);
}
