/* weigh.cuh - what share of a row's attention each token had, by a block of threads: what all of
 * it comes to, and rows that take the place of their tokens. For weigh (select.cu) and for
 * weigh_choose (weigh_choose.cu). */
#ifndef KVA_KERNELS_CUDA_WEIGH_CUH
#define KVA_KERNELS_CUDA_WEIGH_CUH

#include "kernels/cuda/select.cuh"

#include <math.h>

#define WEIGH_THREADS 256u

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
    float *weights; /* out: of them */
};

/* A head's probability of a score is exp(score - top) * inverse. Products are rounded where they
 * stand, not fused where the compiler likes: all kernels find the same bits. */
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
            sum = __fmul_rn(sum, before == -INFINITY ? 0.0f : __expf(before - most));
#pragma unroll
            for (uint32_t i = 0; i < FLIGHT; i++)
                sum = m[i] == -INFINITY ? sum : fmaf(e[i], __expf(m[i] - most), sum);
        }
        totals.top[h] = most;
        totals.inverse[h] = sum > 0.0f ? 1.0f / sum : 0.0f;
    }
    __syncthreads(); /* every head's total is there */
}

static __device__ float probability(float score, float top, float inverse)
{
    return score == -INFINITY ? 0.0f : __fmul_rn(__expf(score - top), inverse);
}

/* Of a weight that is relative to `top`, to base 2 (select.cuh): head h's probability. */
static __device__ float kept_factor(float top, const weigh_totals &totals, uint32_t h)
{
    return probability(__fmul_rn(top, LN2), totals.top[h], totals.inverse[h]) / KVA_KEPT_FACTOR;
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
                            sum += probability(__fmul_rn(dots[r][n], p.scale), totals.top[h + n],
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

/* What `args` ask of a kernel that weighs, descriptors sent. */
static weigh_params prepare_weigh(struct kva_device *device, const struct kva_weigh_args *args)
{
    weigh_params p = {};
    const size_t bytes = args->seq_count * sizeof(weigh_seq);
    weigh_seq *staged = static_cast<weigh_seq *>(kva_cuda_stage(device, bytes));
    if (!staged)
        return p;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_weigh_seq *seq = &args->seqs[i];
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
    return p;
}

#endif
