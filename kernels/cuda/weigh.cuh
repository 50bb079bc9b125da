/* weigh.cuh - what share of a row's attention each token had, by a block of threads: of what
 * attend_lowbit kept (select.cuh), and of rows that take the place of their tokens. For weigh,
 * which writes it to memory, and for weigh_choose, which has it in shared memory (select.cu). */
#ifndef KVA_KERNELS_CUDA_WEIGH_CUH
#define KVA_KERNELS_CUDA_WEIGH_CUH

#include "kernels/cuda/select.cuh"

#include <math.h>

#define WEIGH_THREADS 256u

/* Tokens of a piece, eight a thread; a block weighs one piece, or more side by side. */
#define WEIGH_TOKENS (8u * WEIGH_THREADS)
#define WEIGH_PAGES  (WEIGH_TOKENS / KVA_PAGE_TOKENS)

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

/* What of a KV head a block weighs: tokens [first, end), `first` the first of a page. */
struct weigh_range {
    uint32_t kv_head, first, end;
    float *weights; /* out: of them; in memory, or shared */
};

/* A head's probability of a score is exp(score - top) * inverse. */
struct weigh_totals {
    float top[KVA_SELECT_HEADS_MAX], inverse[KVA_SELECT_HEADS_MAX];
};

static __device__ void find_totals(const weigh_params &p, const weigh_seq &seq, uint32_t kv_head,
                                   weigh_totals &totals)
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
        totals.top[h] = most;
        totals.inverse[h] = sum > 0.0f ? 1.0f / sum : 0.0f;
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
    float sums[WEIGH_THREADS];
    uint32_t slots[WEIGH_THREADS], places[WEIGH_THREADS]; /* of tokens: in the range */
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

/* Of the threads' rows those of the range's tokens from `first` on, in any order. */
static __device__ void list_rows(weigh_list &list, cached_row row, const weigh_range &range,
                                 uint32_t first)
{
    __syncthreads(); /* the rows before have been weighed */
    if (threadIdx.x == 0)
        list.count = 0;
    __syncthreads(); /* the list is empty */
    if (row.token != KVA_NO_TOKEN && row.token >= first && row.token < range.end) {
        const uint32_t at = atomicAdd(&list.count, 1u);
        list.slots[at] = row.slot;
        list.places[at] = row.token - range.first;
    }
    __syncthreads(); /* the list is complete */
}

/* Queries of heads h .. h + FLIGHT - 1, of which the group's last one stands for those behind it. */
static __device__ void stage_queries(float (*queries)[QUERY_MAX], const weigh_params &p,
                                     const weigh_seq &seq, uint32_t kv_head, uint32_t h)
{
    const size_t row = static_cast<size_t>(seq.row) * p.q_stride;
    __syncthreads(); /* the heads before have been multiplied */
    for (uint32_t i = threadIdx.x; i < FLIGHT * p.dim; i += WEIGH_THREADS) {
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

/* The weights of the range's rows, by their 16 bits: ROWS_AT_ONCE a warp, heads ascending. `row`:
 * the thread's of the first rows. */
static __device__ void weigh_rows(const weigh_params &p, const weigh_totals &totals,
                                  weigh_list &list, const weigh_seq &seq, const weigh_range &range,
                                  uint32_t count, cached_row row)
{
    const uint32_t lane = threadIdx.x % KVA_WARP, first = max(range.first, seq.first);
    const uint16_t *keys_of = static_cast<const uint16_t *>(seq.cache.rows) +
                              static_cast<size_t>(range.kv_head) * seq.cache.slots * 2 * p.dim;
    for (uint32_t from = 0; from < count; from += WEIGH_THREADS) {
        if (from > 0)
            row = find_row(seq, range.kv_head, count, from + threadIdx.x);
        list_rows(list, row, range, first);
        const uint32_t listed = list.count;
        for (uint32_t h = 0; h < p.group && listed > 0; h += FLIGHT) {
            stage_queries(list.queries, p, seq, range.kv_head, h);
            for (uint32_t at = threadIdx.x / KVA_WARP * ROWS_AT_ONCE; at < listed;
                 at += WEIGH_THREADS / KVA_WARP * ROWS_AT_ONCE) {
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
                            sum += probability(dots[r][n] * p.scale, totals.top[h + n],
                                               totals.inverse[h + n]);
                    }
                    if (lane != 0 || at + r >= listed)
                        continue;
                    list.sums[at + r] = sum; /* of the warp alone */
                    if (h + FLIGHT >= p.group)
                        range.weights[list.places[at + r]] = sum >= 0.0f ? sum : -1.0f;
                }
            }
        }
    }
}

/* What a thread wants of FLIGHT heads: the weights of eight tokens of each piece, a page's top. */
template <uint32_t PIECES> struct weigh_ahead {
    uint4 eight[PIECES][FLIGHT];
    float top;
};

/* Of all pieces. */
template <uint32_t PIECES> static constexpr uint32_t weigh_pages = PIECES *WEIGH_PAGES;

/* Heads h .. of the KV head, of which the last stands for those behind it. */
template <uint32_t PIECES>
static __device__ __forceinline__ weigh_ahead<PIECES>
ask_heads(const weigh_params &p, const weigh_seq &seq, const weigh_range &range, uint32_t h)
{
    const uint32_t pages = seq.end / KVA_PAGE_TOKENS, head = range.kv_head * p.group;
    weigh_ahead<PIECES> ahead = {};
    const uint32_t page = range.first / KVA_PAGE_TOKENS + threadIdx.x % weigh_pages<PIECES>;
    const uint32_t own = min(h + threadIdx.x / weigh_pages<PIECES>, p.group - 1);
    if (threadIdx.x < FLIGHT * weigh_pages<PIECES> && page < pages)
        ahead.top = kva_kept_of(seq.scores, p.heads, pages, head + own).tops[page];
#pragma unroll
    for (uint32_t j = 0; j < PIECES; j++) {
        const uint32_t t = range.first + j * WEIGH_TOKENS + threadIdx.x * 8;
        if (t >= seq.end || t + 8 <= seq.first)
            continue;
#pragma unroll
        for (uint32_t i = 0; i < FLIGHT; i++)
            ahead.eight[j][i] = *reinterpret_cast<const uint4 *>(
                kva_kept_of(seq.scores, p.heads, pages, head + min(h + i, p.group - 1)).weights +
                t);
    }
    return ahead;
}

/* sums[i] += the probabilities of eight tokens of a page, heads ascending; the page's factors are
 * `stride` apart. */
static __device__ __forceinline__ void weigh_eight(const uint4 (&eight)[FLIGHT],
                                                   const float *factors, uint32_t stride,
                                                   uint32_t heads, float (&sums)[8])
{
#pragma unroll
    for (uint32_t i = 0; i < FLIGHT; i++) {
        if (i >= heads)
            break;
        const float factor = factors[i * stride];
        const uint32_t pairs[4] = {eight[i].x, eight[i].y, eight[i].z, eight[i].w};
#pragma unroll
        for (uint32_t n = 0; n < 8; n++)
            sums[n] = fmaf(kva_to_f32(kva_f16{static_cast<uint16_t>(pairs[n / 2] >> n % 2 * 16)}),
                           factor, sums[n]);
    }
}

/* What a block that weighs shares, besides a weigh_list. */
template <uint32_t PIECES> struct weigh_shared {
    weigh_totals totals;
    float factors[FLIGHT][weigh_pages<PIECES>];
};

/* The range's weights by the pages, of PIECES pieces at most. `ahead`: of the first heads, then of
 * the others. */
template <uint32_t PIECES>
static __device__ __forceinline__ void
weigh_by_pages(const weigh_params &p, weigh_shared<PIECES> &shared, const weigh_seq &seq,
               const weigh_range &range, weigh_ahead<PIECES> &ahead)
{
    float sums[PIECES][8] = {};
    for (uint32_t h = 0; h < p.group; h += FLIGHT) {
        const uint32_t i = threadIdx.x / weigh_pages<PIECES>, own = min(h + i, p.group - 1);
        if (h > 0)
            ahead = ask_heads<PIECES>(p, seq, range, h);
        __syncthreads(); /* the heads before have been weighed */
        if (i < FLIGHT)
            shared.factors[i][threadIdx.x % weigh_pages<PIECES>] =
                probability(ahead.top * LN2, shared.totals.top[own], shared.totals.inverse[own]) /
                KVA_KEPT_FACTOR;
        __syncthreads(); /* the factors are there */
#pragma unroll
        for (uint32_t j = 0; j < PIECES; j++)
            weigh_eight(ahead.eight[j],
                        &shared.factors[0][j * WEIGH_PAGES + threadIdx.x * 8 / KVA_PAGE_TOKENS],
                        weigh_pages<PIECES>, p.group - h, sums[j]);
    }
#pragma unroll
    for (uint32_t j = 0; j < PIECES; j++) {
        const uint32_t at = j * WEIGH_TOKENS + threadIdx.x * 8, t = range.first + at;
        if (t >= range.end)
            continue;
#pragma unroll
        for (uint32_t n = 0; n < 8; n++)
            sums[j][n] = sums[j][n] >= 0.0f && t + n >= seq.first ? sums[j][n] : -1.0f;
        auto *to = reinterpret_cast<float4 *>(range.weights + at);
        to[0] = {sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
        to[1] = {sums[j][4], sums[j][5], sums[j][6], sums[j][7]};
    }
}

/* The range's weights, of PIECES pieces at most. All threads of a block; what it reads is asked for
 * before it waits for anything. */
template <uint32_t PIECES>
static __device__ __forceinline__ void weigh_tokens(const weigh_params &p,
                                                    weigh_shared<PIECES> &shared, weigh_list &list,
                                                    const weigh_seq &seq, const weigh_range &range)
{
    static_assert(FLIGHT * weigh_pages<PIECES> <= WEIGH_THREADS, "a factor a thread");
    const uint32_t rows = seq.has_rows ? seq.cache.count[range.kv_head] : 0;
    weigh_ahead<PIECES> ahead = ask_heads<PIECES>(p, seq, range, 0);
    const cached_row row = find_row(seq, range.kv_head, rows, threadIdx.x);
    find_totals(p, seq, range.kv_head, shared.totals);
    weigh_by_pages<PIECES>(p, shared, seq, range, ahead);
    /* Rows take the place of what their tokens had in the pages. */
    weigh_rows(p, shared.totals, list, seq, range, rows, row);
}

#endif
