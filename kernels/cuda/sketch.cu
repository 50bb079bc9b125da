/* sketch.cu - partial keys: a page's, queries', how large both are, and what they say of scores.
 * Sums are one chain of fused products each, a column or a token a thread, so that bits are those of
 * the CPU. Plain arithmetic: no matrix instructions. */
#include "kernels/cuda/vector.cuh"

#include <math.h>

/* Tokens whose columns a thread sums side by side. */
#define TOKENS  8u

#define THREADS 128u

/* --- sketch ----------------------------------------------------------------------------------- */

struct sketch_page {
    const void *from;
    void *to;
};

struct sketch_params {
    const sketch_page *pages;
    struct kva_sketch_columns by;
    uint32_t dim, columns;
    bool wide; /* 16 bits */
    size_t head_bytes;
};

/* The column that is number c of a KV head; none was chosen where sums are no numbers. */
static __device__ uint32_t column_of(const struct kva_sketch_columns &by, uint32_t kv_head,
                                     uint32_t dim, uint32_t c)
{
    return by.columns ? min(by.columns[static_cast<size_t>(kv_head) * dim + c], dim - 1) : c;
}

/* sums[t] = column `column` of the rows x[t], dim floats each. */
static __device__ void project(float *sums, const float *x, const float *basis, uint32_t dim,
                               uint32_t column, uint32_t rows)
{
    for (uint32_t t = 0; t < rows; t++)
        sums[t] = basis ? 0.0f : x[t * dim + column];
    for (uint32_t i = 0; i < dim && basis; i++) {
        const float a = basis[static_cast<size_t>(i) * dim + column];
        for (uint32_t t = 0; t < rows; t++)
            sums[t] = fmaf(x[t * dim + i], a, sums[t]);
    }
}

/* What is no number has no magnitude; in the order of the columns. */
static __device__ float scale_of(const float *x, uint32_t columns)
{
    float most = 0.0f;
    for (uint32_t c = 0; c < columns; c++)
        most = fabsf(x[c]) > most ? fabsf(x[c]) : most;
    most = most < 65504.0f ? most : 65504.0f;
    return kva_to_f32(kva_saturate<kva_f16>(__fdiv_rn(most, 127.0f)));
}

static __device__ int8_t code_of(float x, float scale)
{
    if (scale == 0.0f || x != x)
        return 0;
    const float level = rintf(__fdiv_rn(x, scale));
    return static_cast<int8_t>(level > 127.0f ? 127.0f : level < -127.0f ? -127.0f : level);
}

/* A page of a KV head by a block, TOKENS tokens at a time: their columns as floats, then as the
 * format has them. */
template <typename KV>
static __global__ void __launch_bounds__(THREADS) sketch_kernel(sketch_params p)
{
    kva_begin();
    __shared__ float scales[TOKENS];
    KVA_DYNAMIC_SHARED(float, x); /* [TOKENS][dim], then what they come to [TOKENS][columns] */
    const uint32_t kv_head = blockIdx.y, dim = p.dim, columns = p.columns;
    float *y = x + TOKENS * dim;
    const sketch_page page = p.pages[blockIdx.x];
    const KV *from = static_cast<const KV *>(page.from) +
                     static_cast<size_t>(kv_head) * KVA_PAGE_TOKENS * 2 * dim;
    unsigned char *to = static_cast<unsigned char *>(page.to) + kv_head * p.head_bytes;
    const float *basis =
        p.by.basis ? p.by.basis + static_cast<size_t>(kv_head) * dim * dim : nullptr;
    for (uint32_t first = 0; first < KVA_PAGE_TOKENS; first += TOKENS) {
        for (uint32_t i = threadIdx.x; i < TOKENS * dim; i += THREADS)
            x[i] = kva_to_f32(from[static_cast<size_t>(first + i / dim) * 2 * dim + i % dim]);
        __syncthreads(); /* the keys are there */
        for (uint32_t c = threadIdx.x; c < columns; c += THREADS) {
            float sums[TOKENS];
            project(sums, x, basis, dim, column_of(p.by, kv_head, dim, c), TOKENS);
            for (uint32_t t = 0; t < TOKENS; t++)
                y[t * columns + c] = sums[t];
        }
        __syncthreads(); /* all columns are there */
        if (!p.wide && threadIdx.x < TOKENS) {
            scales[threadIdx.x] = scale_of(y + threadIdx.x * columns, columns);
            kva_f16 *at = reinterpret_cast<kva_f16 *>(to + columns * KVA_PAGE_TOKENS);
            at[first + threadIdx.x] = kva_from_f32<kva_f16>(scales[threadIdx.x]);
        }
        __syncthreads(); /* the tokens' scales are there */
        for (uint32_t i = threadIdx.x; i < TOKENS * columns; i += THREADS) {
            const uint32_t c = i / TOKENS, t = i % TOKENS;
            const size_t at = static_cast<size_t>(c) * KVA_PAGE_TOKENS + first + t;
            const float number = y[t * columns + c];
            if (p.wide)
                reinterpret_cast<KV *>(to)[at] = kva_saturate<KV>(number);
            else
                reinterpret_cast<int8_t *>(to)[at] = code_of(number, scales[t]);
        }
    }
}

void kva_cuda_sketch(struct kva_device *device, const struct kva_sketch_args *args)
{
    if (args->count == 0 || !kva_cuda_enter(device))
        return;
    const size_t bytes = args->count * sizeof(sketch_page);
    sketch_page *staged = static_cast<sketch_page *>(kva_cuda_stage(device, bytes));
    if (!staged)
        return;
    for (uint32_t i = 0; i < args->count; i++)
        staged[i] = {static_cast<const unsigned char *>(args->from[i]) + args->from_offset_bytes,
                     static_cast<unsigned char *>(args->to[i]) + args->to_offset_bytes};
    sketch_params p = {};
    p.pages = static_cast<const sketch_page *>(kva_cuda_send(device, staged, bytes));
    p.by = args->by;
    p.dim = args->head_dim;
    p.columns = args->format.columns;
    p.wide = args->format.bits == 16;
    p.head_bytes = kva_sketch_head_bytes(args->format);
    const size_t shared = TOKENS * (p.dim + p.columns) * sizeof(float);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "sketch",
                     {dim3(args->count, args->kv_heads), THREADS, shared},
                     args->kv_dtype == KVA_F16 ? sketch_kernel<kva_f16> : sketch_kernel<kva_bf16>,
                     p);
}

/* --- sketch_queries --------------------------------------------------------------------------- */

struct queries_params {
    const void *q;
    const uint32_t *rows;
    float *out;
    struct kva_sketch_columns by;
    uint32_t q_stride, heads, group, dim, columns;
    enum kva_dtype q_dtype;
    float scale;
};

/* A head of a row by a block. */
static __global__ void __launch_bounds__(THREADS) queries_kernel(queries_params p)
{
    kva_begin();
    KVA_DYNAMIC_SHARED(float, x);
    const uint32_t head = blockIdx.y, dim = p.dim, kv_head = head / p.group;
    const size_t from = static_cast<size_t>(p.rows[blockIdx.x]) * p.q_stride + head * dim;
    const float *basis =
        p.by.basis ? p.by.basis + static_cast<size_t>(kv_head) * dim * dim : nullptr;
    float *out = p.out + (static_cast<size_t>(blockIdx.x) * p.heads + head) * p.columns;
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS)
        x[i] = __fmul_rn(kva_load(p.q, p.q_dtype, from + i), p.scale);
    __syncthreads(); /* the query is there */
    for (uint32_t c = threadIdx.x; c < p.columns; c += THREADS) {
        float sum;
        project(&sum, x, basis, dim, column_of(p.by, kv_head, dim, c), 1);
        out[c] = sum;
    }
}

void kva_cuda_sketch_queries(struct kva_device *device, const struct kva_sketch_queries_args *args)
{
    if (args->count == 0 || !kva_cuda_enter(device))
        return;
    queries_params p = {};
    p.q = args->q;
    p.rows = kva_cuda_upload_array(device, args->rows, args->count);
    p.out = args->out;
    p.by = args->by;
    p.q_stride = args->q_stride;
    p.heads = args->heads;
    p.group = args->heads / args->kv_heads;
    p.dim = args->head_dim;
    p.columns = args->columns;
    p.q_dtype = device->base.info.act;
    p.scale = args->scale;
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "sketch_queries",
                     {dim3(args->count, args->heads), THREADS, p.dim * sizeof(float)},
                     queries_kernel, p);
}

/* --- sketch_sums ------------------------------------------------------------------------------ */

struct sums_params {
    const void *q;
    const void *const *blocks;
    float *sums;
    const float *basis;
    uint32_t row_first, rows, q_stride, group, dim; /* rows: of queries by head, or of keys */
    enum kva_dtype q_dtype, kv_dtype;
    bool anew;
};

/* Number i of row `row` of a KV head. */
static __device__ float sums_number(const sums_params &p, uint32_t kv_head, uint32_t row,
                                    uint32_t i)
{
    if (p.q) {
        const size_t at = static_cast<size_t>(p.row_first + row / p.group) * p.q_stride;
        return kva_load(p.q, p.q_dtype, at + (kv_head * p.group + row % p.group) * p.dim + i);
    }
    const size_t slot = static_cast<size_t>(kv_head) * KVA_PAGE_TOKENS + row % KVA_PAGE_TOKENS;
    return kva_load(p.blocks[row / KVA_PAGE_TOKENS], p.kv_dtype, slot * 2 * p.dim + i);
}

/* Rows that a block reads at a time: TOKENS a warp. */
#define SUMS_ROWS (THREADS / KVA_WARP * TOKENS)

/* KVA_WARP columns of a KV head by a block, a column by a lane; the first warp adds what all warps
 * have made, in the order of the rows. */
static __global__ void __launch_bounds__(THREADS) sums_kernel(sums_params p)
{
    kva_begin();
    KVA_DYNAMIC_SHARED(float, x); /* [SUMS_ROWS][dim], then magnitudes [SUMS_ROWS][KVA_WARP] */
    const uint32_t kv_head = blockIdx.x, dim = p.dim;
    const uint32_t lane = threadIdx.x % KVA_WARP, begin = threadIdx.x / KVA_WARP * TOKENS;
    const uint32_t column = blockIdx.y * KVA_WARP + lane;
    const bool adds = begin == 0 && column < dim;
    const float *basis = p.basis ? p.basis + static_cast<size_t>(kv_head) * dim * dim : nullptr;
    float *sums = p.sums + static_cast<size_t>(kv_head) * dim, *magnitudes = x + SUMS_ROWS * dim;
    float sum = adds && !p.anew ? sums[column] : 0.0f;
    for (uint32_t first = 0; first < p.rows; first += SUMS_ROWS) {
        const uint32_t count = p.rows - first < SUMS_ROWS ? p.rows - first : SUMS_ROWS;
        for (uint32_t i = threadIdx.x; i < count * dim; i += THREADS)
            x[i] = sums_number(p, kv_head, first + i / dim, i % dim);
        __syncthreads(); /* the rows are there */
        const uint32_t left = count > begin ? count - begin : 0;
        const uint32_t own = left < TOKENS ? left : TOKENS;
        float columns[TOKENS];
        if (column < dim)
            project(columns, x + begin * dim, basis, dim, column, own);
        for (uint32_t t = 0; t < own && column < dim; t++)
            magnitudes[(begin + t) * KVA_WARP + lane] = fabsf(columns[t]);
        __syncthreads(); /* the magnitudes are there, and the rows have been read */
        for (uint32_t t = 0; t < count && adds; t++)
            sum = __fadd_rn(sum, magnitudes[t * KVA_WARP + lane]);
    }
    if (adds)
        sums[column] = sum;
}

void kva_cuda_sketch_sums(struct kva_device *device, const struct kva_sketch_sums_args *args)
{
    if (!kva_cuda_enter(device))
        return;
    sums_params p = {};
    p.q = args->q;
    if (!args->q)
        p.blocks = kva_cuda_upload_array(device, args->blocks,
                                         (args->count + KVA_PAGE_TOKENS - 1) / KVA_PAGE_TOKENS);
    p.sums = args->sums;
    p.basis = args->basis;
    p.row_first = args->row_first;
    p.group = args->heads / args->kv_heads;
    p.rows = args->q ? args->count * p.group : args->count;
    p.q_stride = args->q_stride;
    p.dim = args->head_dim;
    p.q_dtype = device->base.info.act;
    p.kv_dtype = args->kv_dtype;
    p.anew = args->anew;
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "sketch_sums",
                     {dim3(args->kv_heads, (p.dim + KVA_WARP - 1) / KVA_WARP), THREADS,
                      SUMS_ROWS * (p.dim + KVA_WARP) * sizeof(float)},
                     sums_kernel, p);
}

/* --- sketch_weigh ----------------------------------------------------------------------------- */

#define SPLIT KVA_ATTEND_SPLIT_TOKENS

/* Of a split by a block: tokens of a thread, which lie side by side, and query heads that are scored
 * at once. */
#define OWN           4u
#define QUERIES       4u

#define SCORE_THREADS (SPLIT / OWN)

struct weigh_seq {
    const float *q;
    const void *const *blocks;
    float *scores; /* [heads][tokens] */
    float *most;   /* [splits][heads] */
    float *weights;
    uint32_t tokens, first, always, splits;
};

struct weigh_params {
    const weigh_seq *seqs;
    size_t offset, head_bytes;
    uint32_t heads, group, columns;
};

/* The largest of a block of WARPS warps; what is no number is not looked at. */
template <uint32_t WARPS> static __device__ float block_max(float x, float *parts)
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    x = x > -INFINITY ? x : -INFINITY;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(KVA_ALL, x, lanes));
    __syncthreads(); /* the parts of the call before have been read */
    if (lane == 0)
        parts[warp] = x;
    __syncthreads(); /* every warp's largest is there */
    for (uint32_t i = 0; i < WARPS; i++)
        x = fmaxf(x, parts[i]);
    return x;
}

/* OWN codes or numbers that lie side by side. */
static __device__ __forceinline__ void load_own(float (&to)[OWN], const int8_t *from)
{
    /* Bytes without a sign become the last bits of a float from 2^23 on: no conversion, of which there
     * are few a cycle. */
    const uint32_t word = *reinterpret_cast<const uint32_t *>(from) ^ 0x80808080u;
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++)
        to[i] = kva_byte_of(word, i, 128);
}

template <typename KV>
static __device__ __forceinline__ void load_own(float (&to)[OWN], const KV *from)
{
    const uint2 words = *reinterpret_cast<const uint2 *>(from);
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++)
        to[i] = kva_to_f32(KV{static_cast<uint16_t>((i / 2 ? words.y : words.x) >> i % 2 * 16)});
}

/* sums[h] = the products of the thread's tokens and query h. */
template <typename T>
static __device__ __forceinline__ void score_tokens(float (&sums)[QUERIES][OWN], const T *keys,
                                                    const float4 *q, uint32_t columns)
{
#pragma unroll 4
    for (uint32_t c = 0; c < columns; c++) {
        const float4 four = q[c];
        const float queries[QUERIES] = {four.x, four.y, four.z, four.w};
        float k[OWN];
        load_own(k, keys + static_cast<size_t>(c) * KVA_PAGE_TOKENS);
#pragma unroll
        for (uint32_t h = 0; h < QUERIES; h++) {
#pragma unroll
            for (uint32_t i = 0; i < OWN; i++)
                sums[h][i] = fmaf(queries[h], k[i], sums[h][i]);
        }
    }
}

/* Queries [0, count) of `from` side by side for each column; zeros behind them. */
static __device__ void load_sketched(float4 *q, const float *from, uint32_t columns, uint32_t count)
{
    for (uint32_t c = threadIdx.x; c < columns; c += SCORE_THREADS) {
        float x[QUERIES];
#pragma unroll
        for (uint32_t h = 0; h < QUERIES; h++)
            x[h] = h < count ? from[static_cast<size_t>(h) * columns + c] : 0.0f;
        q[c] = {x[0], x[1], x[2], x[3]};
    }
}

/* The scales of the thread's tokens; of 16-bit sketches 1. */
template <typename T>
static __device__ void load_scales(float (&scales)[OWN], const T *keys, uint32_t columns,
                                   uint32_t slot)
{
    const kva_f16 *from = reinterpret_cast<const kva_f16 *>(keys + columns * KVA_PAGE_TOKENS);
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++)
        scales[i] = sizeof(T) == 1 ? kva_to_f32(from[slot + i]) : 1.0f;
}

static __device__ void store_scores(float *to, const float (&scores)[OWN])
{
    if (kva_vector_at(to)) {
        *reinterpret_cast<float4 *>(to) = {scores[0], scores[1], scores[2], scores[3]};
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++)
        to[i] = scores[i];
}

/* A split of a KV head of a sequence by a block: scores, and the largest of each head. T: of the
 * sketches' numbers. */
template <typename T>
static __global__ void __launch_bounds__(SCORE_THREADS) scores_kernel(weigh_params p)
{
    kva_begin();
    __shared__ float parts[SCORE_THREADS / KVA_WARP];
    KVA_DYNAMIC_SHARED(float4, q); /* [columns]: of QUERIES queries */
    const weigh_seq &seq = p.seqs[blockIdx.z];
    const uint32_t token = blockIdx.x * SPLIT + threadIdx.x * OWN;
    const bool there = token < seq.tokens; /* whole pages */
    if (blockIdx.x >= seq.splits)
        return;
    const void *block = seq.blocks[there ? token / KVA_PAGE_TOKENS : 0];
    const T *keys = reinterpret_cast<const T *>(static_cast<const unsigned char *>(block) +
                                                p.offset + blockIdx.y * p.head_bytes);
    float scales[OWN];
    load_scales(scales, keys, p.columns, token % KVA_PAGE_TOKENS);
    for (uint32_t base = 0; base < p.group; base += QUERIES) {
        const uint32_t count = min(QUERIES, p.group - base), head = blockIdx.y * p.group + base;
        float sums[QUERIES][OWN] = {};
        __syncthreads(); /* the queries before have been used */
        load_sketched(q, seq.q + static_cast<size_t>(head) * p.columns, p.columns, count);
        __syncthreads(); /* the queries are there */
        score_tokens(sums, keys + token % KVA_PAGE_TOKENS, q, p.columns);
        for (uint32_t h = 0; h < count; h++) {
            float most = -INFINITY;
#pragma unroll
            for (uint32_t i = 0; i < OWN; i++) {
                sums[h][i] = sizeof(T) == 1 ? __fmul_rn(sums[h][i], scales[i]) : sums[h][i];
                const bool counts = there && token + i >= seq.first && token + i >= seq.always;
                most = fmaxf(most, counts ? sums[h][i] : -INFINITY);
            }
            if (there)
                store_scores(seq.scores + static_cast<size_t>(head + h) * seq.tokens + token,
                             sums[h]);
            most = block_max<SCORE_THREADS / KVA_WARP>(most, parts);
            if (threadIdx.x == 0)
                seq.most[static_cast<size_t>(blockIdx.x) * p.heads + head + h] = most;
        }
    }
}

static __global__ void __launch_bounds__(SPLIT) weights_kernel(weigh_params p)
{
    kva_begin();
    __shared__ float parts[SPLIT / KVA_WARP];
    const weigh_seq &seq = p.seqs[blockIdx.z];
    const uint32_t kv_head = blockIdx.y, token = blockIdx.x * SPLIT + threadIdx.x;
    const bool there = token < seq.tokens;
    if (blockIdx.x >= seq.splits)
        return;
    float nearest = -INFINITY;
    for (uint32_t h = kv_head * p.group; h < (kv_head + 1) * p.group; h++) {
        float most = -INFINITY;
        for (uint32_t i = threadIdx.x; i < seq.splits; i += SPLIT)
            most = fmaxf(most, seq.most[static_cast<size_t>(i) * p.heads + h]);
        most = block_max<SPLIT / KVA_WARP>(most, parts);
        const float x =
            there ? seq.scores[static_cast<size_t>(h) * seq.tokens + token] - most : -INFINITY;
        nearest = x > nearest ? x : nearest;
    }
    float weight = nearest > -0x1p126f ? expf(nearest) : -1.0f;
    weight = token < seq.always ? 1.0f : weight;
    weight = token < seq.first ? -1.0f : weight;
    if (there)
        seq.weights[static_cast<size_t>(kv_head) * seq.tokens + token] = weight;
}

/* Sequences of one launch. */
#define SEQS 64u

static void weigh_some(struct kva_device *device, const struct kva_sketch_weigh_args *args,
                       const struct kva_sketch_seq *seqs, uint32_t count)
{
    const void *const *blocks[SEQS];
    uint32_t splits = 0;
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = kva_cuda_upload_array(device, seqs[i].blocks, seqs[i].page_count);
        splits = kva_max_u32(splits, kva_blocks(seqs[i].page_count * KVA_PAGE_TOKENS, SPLIT));
    }
    const size_t bytes = count * sizeof(weigh_seq);
    weigh_seq *staged =
        splits > 0 ? static_cast<weigh_seq *>(kva_cuda_stage(device, bytes)) : nullptr;
    if (!staged)
        return;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t tokens = seqs[i].page_count * KVA_PAGE_TOKENS;
        staged[i] = {};
        staged[i].q = seqs[i].q;
        staged[i].blocks = blocks[i];
        staged[i].scores = seqs[i].scratch;
        staged[i].most = seqs[i].scratch + static_cast<size_t>(args->heads) * tokens;
        staged[i].weights = seqs[i].weights;
        staged[i].tokens = tokens;
        staged[i].splits = kva_blocks(tokens, SPLIT);
        staged[i].first = seqs[i].first;
        staged[i].always = seqs[i].always;
    }
    weigh_params p = {};
    p.seqs = static_cast<const weigh_seq *>(kva_cuda_send(device, staged, bytes));
    p.offset = args->block_offset_bytes;
    p.head_bytes = kva_sketch_head_bytes(args->format);
    p.heads = args->heads;
    p.group = args->heads / args->kv_heads;
    p.columns = args->format.columns;
    const dim3 grid(splits, args->kv_heads, count);
    const size_t shared = p.columns * sizeof(float4);
    const auto kernel = args->format.bits == 8      ? scores_kernel<int8_t>
                        : args->kv_dtype == KVA_F16 ? scores_kernel<kva_f16>
                                                    : scores_kernel<kva_bf16>;
    if (!kva_cuda_failed(device) && kva_cuda_run(device, KVA_QUEUE_COMPUTE, "sketch_weigh",
                                                 {grid, SCORE_THREADS, shared}, kernel, p))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "sketch_weigh's weights", {grid, SPLIT},
                     weights_kernel, p);
}

void kva_cuda_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *args)
{
    if (!kva_cuda_enter(device))
        return;
    for (uint32_t first = 0; first < args->seq_count && !kva_cuda_failed(device); first += SEQS)
        weigh_some(device, args, args->seqs + first, kva_min_u32(SEQS, args->seq_count - first));
}
