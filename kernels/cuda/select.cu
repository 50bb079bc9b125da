/* select.cu - weigh, choose and accumulate: what share of a row's attention each token had, and
 * which tokens have most.
 *
 * For choose, weights become keys whose order is the order wanted: the bits of the weight, which is
 * not negative, plus one; 0 is no candidate. The largest of them are found as radix.cuh says. */
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/select.cuh"

#include <math.h>

#define THREADS 256u

/* Tokens that a block weighs. */
#define WEIGH_TOKENS 2048u
#define WEIGH_PAGES  (WEIGH_TOKENS / KVA_PAGE_TOKENS)

/* --- weigh ------------------------------------------------------------------------------------ */

struct weigh_seq {
    struct kva_row_cache cache;
    float *scores; /* kva_kept_of */
    float *weights;
    uint32_t row, first, end;
    bool has_rows;
    const uint32_t *gate;
};

struct weigh_params {
    const void *q;
    const weigh_seq *seqs;
    const struct kva_partial *partials;
    uint32_t partial_count, q_stride, heads, group, dim;
    enum kva_dtype q_dtype, kv_dtype;
    float scale;
};

/* Partial results and heads that a thread has on their way; rows of a warp. */
#define FLIGHT       4u
#define ROWS_AT_ONCE 2u

/* Channels of a query that is staged, which is what head_dim is at most. */
#define QUERY_MAX 256u

/* top[h] and inverse[h]: a head's probability of a score is exp(score - top) * inverse. */
static __device__ void find_totals(const weigh_params &p, const weigh_seq &seq, uint32_t kv_head,
                                   float *top, float *inverse)
{
    for (uint32_t h = threadIdx.x; h < p.group; h += blockDim.x) {
        const size_t pair = static_cast<size_t>(seq.row) * p.heads + kv_head * p.group + h;
        float most = -INFINITY, sum = 0.0f;
        for (uint32_t first = 0; first < p.partial_count; first += FLIGHT) {
            float m[FLIGHT], e[FLIGHT], before = most;
#pragma unroll
            for (uint32_t i = 0; i < FLIGHT; i++) {
                const kva_partial &partial = p.partials[min(first + i, p.partial_count - 1)];
                m[i] = partial.m[pair];
                e[i] = partial.e[pair];
            }
#pragma unroll
            for (uint32_t i = 0; i < FLIGHT; i++) {
                m[i] = first + i < p.partial_count ? m[i] : -INFINITY;
                most = m[i] > most ? m[i] : most;
            }
            sum *= before == -INFINITY ? 0.0f : __expf(before - most);
#pragma unroll
            for (uint32_t i = 0; i < FLIGHT; i++)
                sum += m[i] == -INFINITY ? 0.0f : e[i] * __expf(m[i] - most);
        }
        top[h] = most;
        inverse[h] = sum > 0.0f ? 1.0f / sum : 0.0f;
    }
    __syncthreads(); /* every head's total is there */
}

static __device__ float probability(float score, float top, float inverse)
{
    return score == -INFINITY ? 0.0f : __expf(score - top) * inverse;
}

/* Rows that a block looks at together, and those of them that it weighs; queries that their keys are
 * multiplied with. */
struct weigh_list {
    alignas(16) float queries[FLIGHT][QUERY_MAX];
    float sums[THREADS];
    uint32_t slots[THREADS], tokens[THREADS];
    uint32_t count;
};

/* A row of the cache; of the token KVA_NO_TOKEN: none. */
struct cached_row {
    uint32_t slot, token;
};

static __device__ cached_row find_row(const weigh_seq &seq, uint32_t kv_head, uint32_t count,
                                      uint32_t i)
{
    const size_t head = static_cast<size_t>(kv_head) * seq.cache.slots;
    if (i >= count)
        return {0, KVA_NO_TOKEN};
    const uint32_t slot = seq.cache.order[head + i];
    return {slot, seq.cache.tokens[head + slot]};
}

/* Of the threads' rows those of tokens [first, end), in any order. */
static __device__ void list_rows(weigh_list &list, cached_row row, uint32_t first, uint32_t end)
{
    __syncthreads(); /* the rows before have been weighed */
    if (threadIdx.x == 0)
        list.count = 0;
    __syncthreads(); /* the list is empty */
    if (row.token != KVA_NO_TOKEN && row.token >= first && row.token < end) {
        const uint32_t at = atomicAdd(&list.count, 1u);
        list.slots[at] = row.slot;
        list.tokens[at] = row.token;
    }
    __syncthreads(); /* the list is complete */
}

/* Queries of heads h .. h + FLIGHT - 1, of which the group's last one stands for those behind it. */
static __device__ void stage_queries(float (*queries)[QUERY_MAX], const weigh_params &p,
                                     const weigh_seq &seq, uint32_t kv_head, uint32_t h)
{
    const size_t row = static_cast<size_t>(seq.row) * p.q_stride;
    __syncthreads(); /* the heads before have been multiplied */
    for (uint32_t i = threadIdx.x; i < FLIGHT * p.dim; i += THREADS) {
        const uint32_t head = kv_head * p.group + min(h + i / p.dim, p.group - 1);
        queries[i / p.dim][i % p.dim] = kva_load(p.q, p.q_dtype, row + head * p.dim + i % p.dim);
    }
    __syncthreads(); /* the queries are there */
}

/* dots[r][i] = the lane's part of the product of key r, which begins at number keys[r] of the rows,
 * and query i: four channels of every 128. */
static __device__ __forceinline__ void multiply_rows(const weigh_params &p, const uint16_t *rows,
                                                     const float (*queries)[QUERY_MAX],
                                                     const uint32_t (&keys)[ROWS_AT_ONCE],
                                                     float (&dots)[ROWS_AT_ONCE][FLIGHT])
{
    for (uint32_t d = threadIdx.x % KVA_WARP * 4; d < p.dim; d += KVA_WARP * 4) {
        uint2 x[ROWS_AT_ONCE];
        float k[ROWS_AT_ONCE][4];
#pragma unroll
        for (uint32_t r = 0; r < ROWS_AT_ONCE; r++)
            x[r] = *reinterpret_cast<const uint2 *>(rows + keys[r] + d);
#pragma unroll
        for (uint32_t r = 0; r < ROWS_AT_ONCE; r++) {
            const uint32_t bits[4] = {x[r].x & 0xFFFFu, x[r].x >> 16, x[r].y & 0xFFFFu,
                                      x[r].y >> 16};
            kva_from_bits(k[r], bits, p.kv_dtype);
        }
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++) {
            const float4 q = *reinterpret_cast<const float4 *>(&queries[i][d]);
#pragma unroll
            for (uint32_t r = 0; r < ROWS_AT_ONCE; r++)
                dots[r][i] =
                    fmaf(q.w, k[r][3],
                         fmaf(q.z, k[r][2], fmaf(q.y, k[r][1], fmaf(q.x, k[r][0], dots[r][i]))));
        }
    }
}

/* The weights of rows, by their 16 bits, of tokens [first, end): ROWS_AT_ONCE a warp, heads
 * ascending. `row`: the thread's of the first rows. */
static __device__ void weigh_rows(const weigh_params &p, weigh_list &list, const weigh_seq &seq,
                                  uint32_t kv_head, uint32_t count, cached_row row, uint32_t first,
                                  uint32_t end, float *weights, const float *top,
                                  const float *inverse)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    const uint16_t *keys_of = static_cast<const uint16_t *>(seq.cache.rows) +
                              static_cast<size_t>(kv_head) * seq.cache.slots * 2 * p.dim;
    for (uint32_t from = 0; from < count; from += THREADS) {
        if (from > 0)
            row = find_row(seq, kv_head, count, from + threadIdx.x);
        list_rows(list, row, first, end);
        const uint32_t listed = list.count;
        for (uint32_t h = 0; h < p.group && listed > 0; h += FLIGHT) {
            stage_queries(list.queries, p, seq, kv_head, h);
            for (uint32_t at = threadIdx.x / KVA_WARP * ROWS_AT_ONCE; at < listed;
                 at += THREADS / KVA_WARP * ROWS_AT_ONCE) {
                float dots[ROWS_AT_ONCE][FLIGHT] = {};
                uint32_t keys[ROWS_AT_ONCE];
#pragma unroll
                for (uint32_t r = 0; r < ROWS_AT_ONCE; r++)
                    keys[r] = list.slots[min(at + r, listed - 1)] * 2 * p.dim;
                multiply_rows(p, keys_of, list.queries, keys, dots);
#pragma unroll
                for (uint32_t r = 0; r < ROWS_AT_ONCE; r++) {
                    float sum = lane == 0 && h > 0 && at + r < listed ? list.sums[at + r] : 0.0f;
                    kva_warp_sums(dots[r]);
#pragma unroll
                    for (uint32_t n = 0; n < FLIGHT; n++) {
                        if (h + n < p.group)
                            sum += probability(dots[r][n] * p.scale, top[h + n], inverse[h + n]);
                    }
                    if (lane != 0 || at + r >= listed)
                        continue;
                    list.sums[at + r] = sum; /* of the warp alone */
                    if (h + FLIGHT >= p.group)
                        weights[list.tokens[at + r]] = sum >= 0.0f ? sum : -1.0f;
                }
            }
        }
    }
}

/* What a thread wants of FLIGHT heads: the weights of its eight tokens, and a page's top. */
struct weigh_ahead {
    uint4 eight[FLIGHT];
    float top;
};

/* Heads h .. of the KV head, of which the last stands for those behind it. */
static __device__ __forceinline__ weigh_ahead ask_heads(const weigh_params &p, const weigh_seq &seq,
                                                        uint32_t kv_head, uint32_t h, uint32_t t)
{
    const uint32_t pages = seq.end / KVA_PAGE_TOKENS;
    weigh_ahead ahead = {};
    const uint32_t page = blockIdx.z * WEIGH_PAGES + threadIdx.x % WEIGH_PAGES;
    const uint32_t own = min(h + threadIdx.x / WEIGH_PAGES, p.group - 1);
    if (threadIdx.x < FLIGHT * WEIGH_PAGES && page < pages)
        ahead.top = kva_kept_of(seq.scores, p.heads, pages, kv_head * p.group + own).tops[page];
    if (t >= seq.end || t + 8 <= seq.first)
        return ahead;
#pragma unroll
    for (uint32_t i = 0; i < FLIGHT; i++) {
        const uint32_t head = kv_head * p.group + min(h + i, p.group - 1);
        ahead.eight[i] = *reinterpret_cast<const uint4 *>(
            kva_kept_of(seq.scores, p.heads, pages, head).weights + t);
    }
    return ahead;
}

/* sums[i] += the probabilities of the eight tokens, heads ascending. */
static __device__ __forceinline__ void weigh_eight(const weigh_ahead &ahead,
                                                   const float (*factors)[WEIGH_PAGES],
                                                   uint32_t heads, uint32_t page, float (&sums)[8])
{
#pragma unroll
    for (uint32_t i = 0; i < FLIGHT; i++) {
        if (i >= heads)
            break;
        const float factor = factors[i][page];
        const uint32_t pairs[4] = {ahead.eight[i].x, ahead.eight[i].y, ahead.eight[i].z,
                                   ahead.eight[i].w};
#pragma unroll
        for (uint32_t n = 0; n < 8; n++)
            sums[n] = fmaf(kva_to_f32(kva_f16{static_cast<uint16_t>(pairs[n / 2] >> n % 2 * 16)}),
                           factor, sums[n]);
    }
}

/* WEIGH_TOKENS of one KV head of one sequence by a block. What it reads is asked for before it waits
 * for anything. */
static __global__ void __launch_bounds__(THREADS, 4) weigh_kernel(weigh_params p)
{
    kva_begin();
    __shared__ float top[KVA_SELECT_HEADS_MAX], inverse[KVA_SELECT_HEADS_MAX];
    __shared__ float factors[FLIGHT][WEIGH_PAGES];
    __shared__ weigh_list list;
    static_assert(WEIGH_TOKENS == 8 * THREADS, "eight tokens a thread");
    static_assert(FLIGHT * WEIGH_PAGES <= THREADS, "a factor a thread");
    const weigh_seq &seq = p.seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, first = blockIdx.z * WEIGH_TOKENS;
    const uint32_t end = min(first + WEIGH_TOKENS, seq.end), t = first + threadIdx.x * 8;
    if (kva_gate_closed(seq.gate) || first >= seq.end)
        return;
    float *weights = seq.weights + static_cast<size_t>(kv_head) * seq.end, sums[8] = {};
    const uint32_t rows = seq.has_rows ? seq.cache.count[kv_head] : 0;
    weigh_ahead ahead = ask_heads(p, seq, kv_head, 0, t);
    const cached_row row = find_row(seq, kv_head, rows, threadIdx.x);
    find_totals(p, seq, kv_head, top, inverse);
    for (uint32_t h = 0; h < p.group; h += FLIGHT) {
        const uint32_t own = min(h + threadIdx.x / WEIGH_PAGES, p.group - 1);
        if (h > 0)
            ahead = ask_heads(p, seq, kv_head, h, t);
        __syncthreads(); /* the heads before have been weighed */
        if (threadIdx.x < FLIGHT * WEIGH_PAGES)
            factors[threadIdx.x / WEIGH_PAGES][threadIdx.x % WEIGH_PAGES] =
                probability(ahead.top * LN2, top[own], inverse[own]) / KVA_KEPT_FACTOR;
        __syncthreads(); /* the factors are there */
        weigh_eight(ahead, factors, p.group - h, threadIdx.x * 8 / KVA_PAGE_TOKENS, sums);
    }
    if (t < end) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            sums[i] = sums[i] >= 0.0f && t + i >= seq.first ? sums[i] : -1.0f;
        auto *to = reinterpret_cast<float4 *>(weights + t);
        to[0] = {sums[0], sums[1], sums[2], sums[3]};
        to[1] = {sums[4], sums[5], sums[6], sums[7]};
    }
    /* Rows take the place of what their tokens had in the pages. */
    weigh_rows(p, list, seq, kv_head, rows, row, max(first, seq.first), end, weights, top, inverse);
}

void kva_cuda_weigh(struct kva_device *device, const struct kva_weigh_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    size_t bytes = args->seq_count * sizeof(weigh_seq);
    weigh_seq *staged = static_cast<weigh_seq *>(kva_cuda_stage(device, bytes));
    if (!staged)
        return;
    uint32_t tokens = 1;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_weigh_seq *seq = &args->seqs[i];
        tokens = kva_max_u32(tokens, seq->page_count * KVA_PAGE_TOKENS);
        staged[i] = {};
        staged[i].scores = const_cast<float *>(seq->scores);
        staged[i].weights = seq->weights;
        staged[i].row = seq->row;
        staged[i].first = seq->first;
        staged[i].end = seq->page_count * KVA_PAGE_TOKENS;
        staged[i].has_rows = seq->rows != nullptr;
        staged[i].gate = seq->gate;
        if (seq->rows)
            staged[i].cache = *seq->rows;
    }
    weigh_params p = {};
    p.seqs = static_cast<const weigh_seq *>(kva_cuda_send(device, staged, bytes));
    p.partials = kva_cuda_upload_array(device, args->partials, args->partial_count);
    p.partial_count = args->partial_count;
    p.q = args->q;
    p.q_dtype = device->base.info.act;
    p.q_stride = args->q_stride;
    p.kv_dtype = args->kv_dtype;
    p.heads = args->heads;
    p.group = args->heads / args->kv_heads;
    p.dim = args->head_dim;
    p.scale = args->scale;
    if (!kva_cuda_failed(device))
        kva_cuda_run(
            device, args->queue, "weigh",
            {dim3(args->seq_count, args->kv_heads, kva_blocks(tokens, WEIGH_TOKENS)), THREADS},
            weigh_kernel, p);
}

/* --- choose ----------------------------------------------------------------------------------- */

/* Ranges of more keys than a block holds at once are split: of each chunk of positions a block lists
 * the k best, and one block of threads chooses among those that were listed. Where a list would be
 * more than a quarter of its chunk, one block reads all of them. */
#define LISTED_MAX (RADIX_CHUNK / 4)

struct listed {
    uint32_t key, position;
};

struct choose_params {
    const struct kva_choose_seq *seqs;
    listed *lists; /* [seq][kv_head][split][k_max], position by position, then keys of 0; NULL: no
                      lists are made */
    uint32_t splits, k_max;
    enum kva_choose_kind kind;
    float share;
};

/* The lists of a KV head. */
static __device__ listed *lists_of(const choose_params &p)
{
    const size_t head = static_cast<size_t>(blockIdx.x) * gridDim.y + blockIdx.y;
    return p.lists + head * p.splits * p.k_max;
}

/* By kind; what is no candidate: 0. */
static __device__ __forceinline__ uint32_t key_of(float weight, enum kva_choose_kind kind)
{
    if (!(weight >= 0.0f))
        return 0;
    uint32_t bits = __float_as_uint(weight + 0.0f); /* the two zeros are the same weight */
    return kind == KVA_CHOOSE_LEAST ? 0x80000000u - bits : bits + 1;
}

/* The keys of a chunk of positions. */
static __device__ __forceinline__ void load_weights(uint32_t (&keys)[RADIX_KEYS],
                                                    const struct kva_choose_seq &seq,
                                                    enum kva_choose_kind kind, uint32_t chunk)
{
    const float *weights = seq.weights + static_cast<size_t>(blockIdx.y) * seq.stride;
    float x[RADIX_KEYS];
    radix_load(x, weights, chunk, seq.end, -1.0f);
#pragma unroll
    for (uint32_t i = 0; i < RADIX_KEYS; i++) {
        const uint32_t at = chunk * RADIX_CHUNK + radix_at(i);
        float weight = x[i];
        if (seq.successor > 0.0f && weight >= 0.0f && at > seq.first)
            weight = fmaxf(weight, (i % 4 ? x[i - 1] : weights[at - 1]) * seq.successor);
        keys[i] = at >= seq.first ? key_of(weight, kind) : 0;
    }
}

/* One chunk of one KV head's positions. */
static __global__ void __launch_bounds__(RADIX_THREADS, 4) list_kernel(choose_params p)
{
    kva_begin();
    __shared__ radix shared;
    const struct kva_choose_seq seq = p.seqs[blockIdx.x];
    const uint32_t chunk = blockIdx.z;
    listed *list = lists_of(p) + static_cast<size_t>(chunk) * p.k_max;
    if (kva_gate_closed(seq.gate) || chunk >= radix_chunks(seq.end))
        return;
    auto load = [&](uint32_t(&keys)[RADIX_KEYS], uint32_t) {
        load_weights(keys, seq, p.kind, chunk);
    };
    auto take = [&](uint32_t rank, uint32_t at, uint32_t key) {
        list[rank] = {key, chunk * RADIX_CHUNK + at};
    };
    const uint32_t taken = take_largest(shared, load, 1, seq.k, take);
    for (uint32_t i = taken + threadIdx.x; i < p.k_max; i += RADIX_THREADS)
        list[i] = {0, 0};
}

/* The least key that is near enough to the largest. */
template <typename Load>
static __device__ uint32_t least_near(radix &shared, Load load, uint32_t chunks, float share)
{
    uint32_t keys[RADIX_KEYS], most = 0;
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        load(keys, chunk);
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++)
            most = max(most, keys[i]);
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        most = max(most, __shfl_xor_sync(KVA_ALL, most, lanes));
    if (threadIdx.x % KVA_WARP == 0)
        shared.parts[threadIdx.x / KVA_WARP] = most;
    __syncthreads(); /* every warp's largest is there */
    for (uint32_t i = 0; i < RADIX_WARPS; i++)
        most = max(most, shared.parts[i]);
    return most ? key_of(__uint_as_float(most - 1) * share, KVA_CHOOSE_NEAR) : 1;
}

/* All of a KV head, of weights or of lists. */
template <typename Load, typename Position>
static __device__ void choose_all(radix &shared, const choose_params &p,
                                  const struct kva_choose_seq &seq, uint32_t chunks, Load load,
                                  Position position_of)
{
    uint32_t *chosen = seq.chosen + static_cast<size_t>(blockIdx.y) * seq.k;
    uint32_t least = 1;
    if (p.kind == KVA_CHOOSE_NEAR)
        least = least_near(shared, load, chunks, p.share);
    auto load_near = [&](uint32_t(&keys)[RADIX_KEYS], uint32_t chunk) {
        load(keys, chunk);
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++)
            keys[i] = keys[i] >= least && least ? keys[i] : 0;
    };
    auto take = [&](uint32_t rank, uint32_t at, uint32_t) { chosen[rank] = position_of(at); };
    const uint32_t taken = take_largest(shared, load_near, chunks, seq.k, take);
    for (uint32_t i = taken + threadIdx.x; i < seq.k; i += RADIX_THREADS)
        chosen[i] = KVA_NO_TOKEN;
}

static __global__ void __launch_bounds__(RADIX_THREADS) choose_kernel(choose_params p)
{
    kva_begin();
    __shared__ radix shared;
    const struct kva_choose_seq seq = p.seqs[blockIdx.x];
    if (kva_gate_closed(seq.gate))
        return;
    if (p.lists) {
        const listed *lists = lists_of(p);
        const uint32_t count = radix_chunks(seq.end) * p.k_max;
        auto load = [&](uint32_t(&keys)[RADIX_KEYS], uint32_t chunk) {
#pragma unroll
            for (uint32_t i = 0; i < RADIX_KEYS; i++) {
                const uint32_t at = chunk * RADIX_CHUNK + radix_at(i);
                keys[i] = at < count ? lists[at].key : 0;
            }
        };
        choose_all(shared, p, seq, radix_chunks(count), load,
                   [&](uint32_t at) { return lists[at].position; });
    } else {
        const uint32_t from = seq.first / RADIX_CHUNK;
        auto load = [&](uint32_t(&keys)[RADIX_KEYS], uint32_t chunk) {
            load_weights(keys, seq, p.kind, from + chunk);
        };
        choose_all(shared, p, seq, radix_chunks(seq.end) - from, load,
                   [&](uint32_t at) { return from * RADIX_CHUNK + at; });
    }
}

void kva_cuda_choose(struct kva_device *device, const struct kva_choose_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    choose_params p = {};
    p.seqs = kva_cuda_upload_array(device, args->seqs, args->seq_count);
    p.kind = args->kind;
    p.share = args->share;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        p.k_max = kva_max_u32(p.k_max, args->seqs[i].k);
        p.splits = kva_max_u32(p.splits, radix_chunks(args->seqs[i].end));
    }
    const dim3 heads(args->seq_count, args->kv_heads);
    const size_t bytes =
        static_cast<size_t>(heads.x) * heads.y * p.splits * p.k_max * sizeof(listed);
    const bool aside = args->queue == KVA_QUEUE_ASIDE;
    const size_t room = aside ? KVA_CUDA_ASIDE_BYTES : KVA_CUDA_SCRATCH_BYTES;
    if (p.splits > 1 && p.k_max <= LISTED_MAX && bytes <= room)
        p.lists = static_cast<listed *>(aside ? device->aside : device->scratch);
    if (p.lists && !kva_cuda_failed(device))
        kva_cuda_run(device, args->queue, "choose's lists",
                     {dim3(heads.x, heads.y, p.splits), RADIX_THREADS}, list_kernel, p);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, args->queue, "choose", {heads, RADIX_THREADS}, choose_kernel, p);
}

/* --- accumulate ------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
    accumulate_kernel(const struct kva_accumulate_seq *seqs)
{
    kva_begin();
    const struct kva_accumulate_seq seq = seqs[blockIdx.x];
    float *mass = seq.mass + static_cast<size_t>(blockIdx.y) * seq.mass_stride;
    const float *weights = seq.weights + static_cast<size_t>(blockIdx.y) * seq.weights_stride;
    for (uint32_t i = blockIdx.z * THREADS + threadIdx.x; i < seq.count; i += gridDim.z * THREADS) {
        if (weights[i] >= 0.0f)
            mass[i] += weights[i];
    }
}

void kva_cuda_accumulate(struct kva_device *device, const struct kva_accumulate_args *args)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        most = kva_max_u32(most, args->seqs[i].count);
    if (most == 0 || !kva_cuda_enter(device))
        return;
    const struct kva_accumulate_seq *seqs =
        kva_cuda_upload_array(device, args->seqs, args->seq_count);
    const uint32_t blocks = kva_min_u32(kva_blocks(most, THREADS), 64);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "accumulate",
                     {dim3(args->seq_count, args->kv_heads, blocks), THREADS}, accumulate_kernel,
                     seqs);
}
