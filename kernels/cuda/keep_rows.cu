/* keep_rows.cu - mean_keys, row_error, store_rows and roll_rows: rows of kept tokens, coded, put
 * into slots, rotated. Codes and errors have the bits of the CPU (kernels/cpu/keep/token_row.h): no product is
 * fused with a sum. A row by one block of threads; the rows of a KV head of a store one after the
 * other, since tokens of one block share bytes. */
#include "kernels/cuda/token_row.cuh"

#include <math.h>

#define THREADS      128u
#define DIM_MAX      256u
#define STORE_BLOCKS 10u /* of store_rows, that a multiprocessor has registers for */
#define BITS_MAX     8u
#define ROW_OWN      (DIM_MAX / KVA_WARP) /* numbers of a row that a lane of a warp has */

struct rotary {
    const float *inv_freq; /* NULL: none */
    uint32_t half;
};

/* A store's blocks, and what is in them. */
struct place {
    size_t offset;
    uint32_t dim, bits; /* bits 0: 16-bit blocks */
    bool turned;
    struct kva_lowbit_layout layout;
};

/* --- a row ------------------------------------------------------------------------------------ */

/* x = a 16-bit row as floats; whoever reads them waits. */
template <typename KV> static __device__ void load_row(float *x, const KV *from, uint32_t dim)
{
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS)
        x[i] = kva_to_f32(from[i]);
}

/* x rotated by a position, or back; x is there, and is when it returns. */
static __device__ void rotate(float *x, const rotary &r, uint32_t position, bool back)
{
    for (uint32_t i = threadIdx.x; i < r.half && r.inv_freq; i += THREADS) {
        double turns =
            position * static_cast<double>(r.inv_freq[i]) * 0.15915494309189533577; /* 1 / 2 pi */
        float c, s, a = x[i], b = x[r.half + i];
        sincospif(2.0f * static_cast<float>(turns - rint(turns)), &s, &c);
        s = back ? -s : s;
        x[i] = a * c - b * s;
        x[r.half + i] = b * c + a * s;
    }
    __syncthreads(); /* the row is rotated */
}

static __device__ unsigned char *head_of(const void *block, const place &p, uint32_t kv_head)
{
    return static_cast<unsigned char *>(const_cast<void *>(block)) + p.offset +
           kv_head * p.layout.head_bytes;
}

/* Key and value of a token, at x, turned where the place is; they are there, and are when it
 * returns. */
static __device__ void turn(float *x, const place &p, bool back)
{
    const uint32_t warp = threadIdx.x / KVA_WARP, lane = threadIdx.x % KVA_WARP;
    if (!p.turned)
        return;
    if (warp < 2)
        kva_turn_row<ROW_OWN>(x + warp * p.dim, p.dim, lane, back);
    __syncthreads(); /* the rows are turned */
}

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

/* x = a key without the mean, if there is one; whoever reads it waits. */
static __device__ void take_mean(float *x, const float *mean, uint32_t kv_head, uint32_t dim)
{
    for (uint32_t c = threadIdx.x; c < dim && mean; c += THREADS)
        x[c] = __fsub_rn(x[c], mean[static_cast<size_t>(kv_head) * dim + c]);
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
    float x[N], zero, scale;
    row_sum off, all;
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t i = lane + KVA_WARP * j;
        const float own = i < p.dim ? kva_to_f32(from[i]) : 0.0f;
        x[j] = clamped(mean && i < p.dim ? __fsub_rn(own, mean[i]) : own);
    }
    if (p.turned)
        kva_turn_warp(x, p.dim, lane, false);
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        x[j] = clamped(x[j]);
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

/* A token a warp, a page of them a block; N: numbers of a row that a lane has. */
template <typename KV, int N>
static __global__ void __launch_bounds__(THREADS) error_kernel(error_params p)
{
    kva_begin();
    const error_seq seq = p.seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, page = blockIdx.z, warps = THREADS / KVA_WARP;
    const uint32_t end = min(seq.count, (page + 1) * KVA_PAGE_TOKENS);
    const float *mean = seq.mean ? seq.mean + static_cast<size_t>(kv_head) * p.dim : nullptr;
    for (uint32_t i = page * KVA_PAGE_TOKENS + threadIdx.x / KVA_WARP; i < end; i += warps) {
        const KV *row = row_16<KV>(seq.blocks[page], p.offset, kv_head, i, p.dim);
        const float key = row_error<KV, N>(row, mean, p);
        const float both = __fadd_rn(key, row_error<KV, N>(row + p.dim, nullptr, p));
        if (threadIdx.x % KVA_WARP == 0)
            seq.error[static_cast<size_t>(kv_head) * seq.stride + i] = both;
    }
}

template <typename KV>
static void run_error(struct kva_device *device, const dim3 &grid, const error_params &p)
{
    constexpr int own = ROW_OWN;
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "row_error", {grid, THREADS},
                 p.dim > DIM_MAX / 2 ? error_kernel<KV, own> : error_kernel<KV, own / 2>, p);
}

static uint32_t pages_of(uint32_t tokens)
{
    return kva_blocks(tokens, KVA_PAGE_TOKENS);
}

void kva_cuda_row_error(struct kva_device *device, const struct kva_row_error_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    uint32_t pages = 0, most = 0, at = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        pages += pages_of(args->seqs[i].count);
        most = kva_max_u32(most, pages_of(args->seqs[i].count));
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
    const dim3 grid(args->seq_count, args->kv_heads, most);
    if (args->kv_dtype == KVA_F16)
        run_error<kva_f16>(device, grid, p);
    else
        run_error<kva_bf16>(device, grid, p);
}

/* --- tables of blocks ------------------------------------------------------------------------- */

/* Rows that go from blocks to blocks: store_rows' tokens to slots, roll_rows' slots to slots. */
struct move_seq {
    const void *const *from;
    void *const *to;
    const uint32_t *slots; /* store: where a token goes; roll: positions */
    uint32_t *index;       /* roll */
    uint32_t count;
    uint32_t stride; /* of slots, index and places */
    uint32_t position_first;
    kva_roll_place *places; /* roll */
    const float *mean;      /* of keys, or NULL */
};

struct move_params {
    const move_seq *seqs;
    place from, to;
    rotary turn;
};

static place place_of(size_t offset, uint32_t dim, struct kva_lowbit_format format)
{
    place p = {offset, dim, format.bits, format.coding == KVA_CODING_TURNED, {}};
    if (format.bits > 0)
        p.layout = kva_lowbit_layout_of(format, dim);
    return p;
}

/* Host arrays of addresses become arrays on the device, from and to of a sequence one behind the
 * other. */
static void put_blocks(const void **blocks, const void *const *from, uint32_t from_pages,
                       void *const *to, uint32_t to_pages)
{
    for (uint32_t i = 0; i < from_pages; i++)
        *blocks++ = from[i];
    for (uint32_t i = 0; i < to_pages; i++)
        *blocks++ = to[i];
}

/* --- store_rows ------------------------------------------------------------------------------- */

/* Bytes that hold bits of the row, each written by one thread. */
static __device__ void put_row(const float *x, unsigned char *head, const place &p, bool values,
                               uint32_t token)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    float own[ROW_OWN], zero, scale; /* of each warp */
#pragma unroll
    for (uint32_t j = 0; j < ROW_OWN; j++)
        own[j] = lane + KVA_WARP * j < p.dim ? x[lane + KVA_WARP * j] : 0.0f;
    find_levels(own, p.dim, lane, p.bits, p.turned, &zero, &scale);
    if (threadIdx.x == 0) {
        uint32_t at = values ? p.layout.v_scale : p.layout.k_scale;
        reinterpret_cast<kva_f16 *>(head + at)[token] = kva_from_f32<kva_f16>(scale);
        at = values ? p.layout.v_zero : p.layout.k_zero;
        reinterpret_cast<kva_f16 *>(head + at)[token] = kva_from_f32<kva_f16>(zero);
    }
    /* Keys: four channels of the token are a nibble; values: two channels share a byte. */
    const uint32_t step = values ? 2 : 4, bytes = p.dim / step;
    unsigned char *planes = head + (values ? p.layout.v_codes : p.layout.k_codes);
    for (uint32_t i = threadIdx.x; i < p.bits * bytes; i += THREADS) {
        const uint32_t plane = i / bytes, channel = i % bytes * step;
        const uint32_t first =
            values ? kva_lowbit_v_bit(token, channel, p.dim) : kva_lowbit_k_bit(token, channel);
        unsigned char *byte = planes + plane * p.layout.plane_bytes + first / 8;
        uint32_t now = *byte;
        for (uint32_t c = channel; c < channel + step; c++) {
            const uint32_t bit =
                values ? kva_lowbit_v_bit(token, c, p.dim) : kva_lowbit_k_bit(token, c);
            const uint32_t set = code_of(x[c], p.bits, zero, scale) >> plane & 1u;
            now = (now & ~(1u << bit % 8)) | set << bit % 8;
        }
        *byte = static_cast<unsigned char>(now);
    }
}

template <typename KV>
static __global__ void __launch_bounds__(THREADS, STORE_BLOCKS) store_kernel(move_params p)
{
    kva_begin();
    __shared__ float x[2 * DIM_MAX];
    const move_seq seq = p.seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, dim = p.to.dim;
    const uint32_t *slots = seq.slots + static_cast<size_t>(kv_head) * seq.stride;
    for (uint32_t i = 0; i < seq.count; i++) {
        const uint32_t slot = slots[i];
        if (slot == KVA_NO_SLOT)
            continue;
        const KV *from = row_16<KV>(seq.from[i / KVA_PAGE_TOKENS], p.from.offset, kv_head, i, dim);
        const void *to = seq.to[slot / KVA_PAGE_TOKENS];
        __syncthreads(); /* the row before has been written */
        load_row(x, from, 2 * dim);
        __syncthreads(); /* the row is there */
        rotate(x, p.turn, seq.position_first + i, true);
        if (p.to.bits == 0) {
            KV *row = row_16<KV>(to, p.to.offset, kv_head, slot, dim);
            for (uint32_t c = threadIdx.x; c < 2 * dim; c += THREADS)
                row[c] = p.turn.inv_freq && c < 2 * p.turn.half ? kva_saturate<KV>(x[c]) : from[c];
            continue;
        }
        unsigned char *head = head_of(to, p.to, kv_head);
        take_mean(x, seq.mean, kv_head, dim);
        __syncthreads(); /* the mean is off */
        for (uint32_t c = threadIdx.x; c < 2 * dim; c += THREADS)
            x[c] = clamped(x[c]);
        __syncthreads(); /* the row is clamped */
        turn(x, p.to, false);
        for (uint32_t c = threadIdx.x; c < 2 * dim && p.to.turned; c += THREADS)
            x[c] = clamped(x[c]);
        __syncthreads(); /* and again */
        put_row(x, head, p.to, false, slot % KVA_PAGE_TOKENS);
        put_row(x + dim, head, p.to, true, slot % KVA_PAGE_TOKENS);
    }
}

/* Pages of a store that tokens may go to: the host does not know which, so all that are named. */
static uint32_t store_pages(const struct kva_store_seq *seq)
{
    return pages_of(seq->slot_count);
}

static const rotary upload_rotary(struct kva_device *device, const struct kva_keep_rotary *from)
{
    rotary turn = {nullptr, from->inv_freq ? from->rotary_dim / 2 : 0};
    if (turn.half > 0)
        turn.inv_freq = kva_cuda_upload_array(device, from->inv_freq, turn.half);
    return turn;
}

void kva_cuda_store_rows(struct kva_device *device, const struct kva_store_rows_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    size_t pages = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        pages += pages_of(args->seqs[i].count) + store_pages(&args->seqs[i]);
    const size_t bytes = args->seq_count * sizeof(move_seq);
    const void **blocks =
        static_cast<const void **>(kva_cuda_stage(device, pages * sizeof(void *)));
    if (!blocks)
        return;
    const void **at = blocks;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_store_seq *seq = &args->seqs[i];
        put_blocks(at, seq->from, pages_of(seq->count), seq->to, store_pages(seq));
        at += pages_of(seq->count) + store_pages(seq);
    }
    const void *const *sent =
        static_cast<const void *const *>(kva_cuda_send(device, blocks, pages * sizeof(void *)));
    move_seq *seqs = static_cast<move_seq *>(kva_cuda_stage(device, bytes));
    if (!seqs)
        return;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_store_seq *seq = &args->seqs[i];
        void *const *to = const_cast<void *const *>(sent + pages_of(seq->count));
        seqs[i] = {sent,       to,         seq->slots,          nullptr,
                   seq->count, seq->count, seq->position_first, nullptr,
                   seq->mean};
        sent += pages_of(seq->count) + store_pages(seq);
    }
    move_params p = {static_cast<const move_seq *>(kva_cuda_send(device, seqs, bytes)),
                     place_of(args->from_offset_bytes, args->head_dim, {}),
                     place_of(args->to_offset_bytes, args->head_dim, args->format),
                     upload_rotary(device, &args->rotary)};
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "store_rows",
                     {dim3(args->seq_count, args->kv_heads), THREADS},
                     args->kv_dtype == KVA_F16 ? store_kernel<kva_f16> : store_kernel<kva_bf16>, p);
}

/* --- roll_rows -------------------------------------------------------------------------------- */

/* index = how many positions of the KV head are lower. */
static __global__ void __launch_bounds__(THREADS) index_kernel(const move_seq *seqs)
{
    kva_begin();
    const move_seq seq = seqs[blockIdx.x];
    const size_t at = static_cast<size_t>(blockIdx.y) * seq.stride;
    for (uint32_t i = threadIdx.x; i < seq.count; i += THREADS) {
        const uint32_t own = seq.slots[at + i];
        uint32_t below = 0;
        for (uint32_t j = 0; j < seq.count; j++)
            below += seq.slots[at + j] < own;
        seq.index[at + i] = below;
    }
}

static __device__ void get_row(float *x, const unsigned char *head, const place &p, bool values,
                               uint32_t token)
{
    const uint32_t scale_at = values ? p.layout.v_scale : p.layout.k_scale;
    const uint32_t zero_at = values ? p.layout.v_zero : p.layout.k_zero;
    const float scale = kva_to_f32(reinterpret_cast<const kva_f16 *>(head + scale_at)[token]);
    const float zero = kva_to_f32(reinterpret_cast<const kva_f16 *>(head + zero_at)[token]);
    const unsigned char *planes = head + (values ? p.layout.v_codes : p.layout.k_codes);
    for (uint32_t c = threadIdx.x; c < p.dim; c += THREADS) {
        const uint32_t bit =
            values ? kva_lowbit_v_bit(token, c, p.dim) : kva_lowbit_k_bit(token, c);
        uint32_t code = 0;
        for (uint32_t b = 0; b < p.bits; b++)
            code |= (planes[b * p.layout.plane_bytes + bit / 8] >> bit % 8 & 1u) << b;
        x[c] = __fadd_rn(zero, __fmul_rn(scale, static_cast<float>(code)));
    }
}

/* The slots of a page by a block. */
template <typename KV> static __global__ void __launch_bounds__(THREADS) roll_kernel(move_params p)
{
    kva_begin();
    __shared__ float x[2 * DIM_MAX];
    const move_seq seq = p.seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, dim = p.to.dim, page = blockIdx.z;
    const uint32_t *index = seq.index + static_cast<size_t>(kv_head) * seq.stride;
    const size_t first = static_cast<size_t>(kv_head) * seq.stride;
    const uint32_t *positions = seq.slots + first;
    kva_roll_place *places = seq.places + first;
    const uint32_t end = min(seq.count, (page + 1) * KVA_PAGE_TOKENS);
    for (uint32_t slot = page * KVA_PAGE_TOKENS; slot < end; slot++) {
        const void *from = seq.from[page];
        const uint32_t position = seq.position_first + index[slot];
        const bool there = places[slot].token == positions[slot] + 1;
        if (there && places[slot].position == position)
            continue;
        const uint32_t width = there ? dim : 2 * dim;
        __syncthreads(); /* the row before has been written, the place read */
        if (p.from.bits == 0) {
            load_row(x, row_16<KV>(from, p.from.offset, kv_head, slot, dim), width);
        } else {
            const unsigned char *head = head_of(from, p.from, kv_head);
            get_row(x, head, p.from, false, slot % KVA_PAGE_TOKENS);
            if (!there)
                get_row(x + dim, head, p.from, true, slot % KVA_PAGE_TOKENS);
        }
        __syncthreads(); /* the row is there */
        turn(x, p.from, true);
        for (uint32_t c = threadIdx.x; c < dim && seq.mean; c += THREADS)
            x[c] = __fadd_rn(x[c], seq.mean[static_cast<size_t>(kv_head) * dim + c]);
        __syncthreads(); /* the keys are whole */
        rotate(x, p.turn, position, false);
        if (threadIdx.x == 0)
            places[slot] = {positions[slot] + 1, position};
        KV *to = row_16<KV>(seq.to[page], p.to.offset, kv_head, slot, dim);
        for (uint32_t c = threadIdx.x; c < width; c += THREADS)
            to[c] = kva_saturate<KV>(x[c]);
    }
}

void kva_cuda_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *args)
{
    uint32_t pages = 0, most = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        pages += pages_of(args->seqs[i].filled);
        most = kva_max_u32(most, pages_of(args->seqs[i].filled));
    }
    if (pages == 0 || !kva_cuda_enter(device))
        return;
    const size_t bytes = args->seq_count * sizeof(move_seq);
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
    move_params p = {static_cast<const move_seq *>(kva_cuda_send(device, seqs, bytes)),
                     place_of(args->from_offset_bytes, args->head_dim, args->format),
                     place_of(args->to_offset_bytes, args->head_dim, {}),
                     upload_rotary(device, &args->rotary)};
    if (kva_cuda_failed(device) ||
        !kva_cuda_run(device, KVA_QUEUE_COMPUTE, "roll_rows' order",
                      {dim3(args->seq_count, args->kv_heads), THREADS}, index_kernel, p.seqs))
        return;
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "roll_rows",
                 {dim3(args->seq_count, args->kv_heads, most), THREADS},
                 args->kv_dtype == KVA_F16 ? roll_kernel<kva_f16> : roll_kernel<kva_bf16>, p);
}
