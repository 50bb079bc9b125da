/* select.cu - weigh, choose and accumulate: what share of a row's attention each token had, and
 * which tokens have most. One KV head of one sequence by one block of threads.
 *
 * For choose, weights become keys whose order is the order wanted: the bits of the weight, which is
 * not negative, plus one; 0 is no candidate. The k-th largest key is found digit by digit; then the
 * tokens above it, and the first of those equal to it, are written in ascending position. */
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/select.cuh"

#include <math.h>

#define THREADS 512u

/* --- weigh ------------------------------------------------------------------------------------ */

struct weigh_seq {
    struct kva_row_cache cache;
    const float *scores; /* [heads][page_count * KVA_PAGE_TOKENS] */
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

/* top[h] and inverse[h]: a head's probability of a score is exp(score - top) * inverse. */
static __device__ void find_totals(const weigh_params &p, const weigh_seq &seq, uint32_t kv_head,
                                   float *top, float *inverse)
{
    for (uint32_t h = threadIdx.x; h < p.group; h += blockDim.x) {
        size_t pair = static_cast<size_t>(seq.row) * p.heads + kv_head * p.group + h;
        float m = p.partials[0].m[pair], e = 0.0f;
        for (uint32_t i = 1; i < p.partial_count; i++)
            m = p.partials[i].m[pair] > m ? p.partials[i].m[pair] : m;
        for (uint32_t i = 0; i < p.partial_count; i++) {
            float part = p.partials[i].m[pair];
            e += part == -INFINITY ? 0.0f : p.partials[i].e[pair] * __expf(part - m);
        }
        top[h] = m;
        inverse[h] = e > 0.0f ? 1.0f / e : 0.0f;
    }
    __syncthreads(); /* every head's total is there */
}

static __device__ float probability(float score, float top, float inverse)
{
    return score == -INFINITY ? 0.0f : __expf(score - top) * inverse;
}

/* The weights of rows, by their 16 bits: a row a warp, heads ascending. */
static __device__ void weigh_rows(const weigh_params &p, const weigh_seq &seq, uint32_t kv_head,
                                  float *weights, const float *top, const float *inverse)
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    const size_t head = static_cast<size_t>(kv_head) * seq.cache.slots;
    for (uint32_t i = warp; i < seq.cache.count[kv_head]; i += THREADS / KVA_WARP) {
        uint32_t slot = seq.cache.order[head + i], token = seq.cache.tokens[head + slot];
        if (token < seq.first || token >= seq.end)
            continue;
        float sum = 0.0f;
        for (uint32_t h = 0; h < p.group; h++) {
            size_t q_at = static_cast<size_t>(seq.row) * p.q_stride +
                          static_cast<size_t>(kv_head * p.group + h) * p.dim;
            float dot = 0.0f;
            for (uint32_t d = lane; d < p.dim; d += KVA_WARP)
                dot += kva_load(p.q, p.q_dtype, q_at + d) *
                       kva_load(seq.cache.rows, p.kv_dtype, (head + slot) * 2 * p.dim + d);
            sum += probability(kva_warp_sum(dot) * p.scale, top[h], inverse[h]);
        }
        if (lane == 0)
            weights[token] = sum >= 0.0f ? sum : -1.0f;
    }
}

static __global__ void __launch_bounds__(THREADS) weigh_kernel(weigh_params p)
{
    __shared__ float top[KVA_SELECT_HEADS_MAX], inverse[KVA_SELECT_HEADS_MAX];
    const weigh_seq &seq = p.seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y;
    if (kva_gate_closed(seq.gate))
        return;
    const float *scores = seq.scores + static_cast<size_t>(kv_head) * p.group * seq.end;
    float *weights = seq.weights + static_cast<size_t>(kv_head) * seq.end;
    find_totals(p, seq, kv_head, top, inverse);
    for (uint32_t t = threadIdx.x; t < seq.end; t += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t h = 0; h < p.group && t >= seq.first; h++)
            sum += probability(scores[static_cast<size_t>(h) * seq.end + t], top[h], inverse[h]);
        weights[t] = sum >= 0.0f && t >= seq.first ? sum : -1.0f;
    }
    __syncthreads(); /* rows take the place of what their tokens had in the pages */
    if (seq.has_rows)
        weigh_rows(p, seq, kv_head, weights, top, inverse);
}

void kva_cuda_weigh(struct kva_device *device, const struct kva_weigh_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    size_t bytes = args->seq_count * sizeof(weigh_seq);
    weigh_seq *staged = static_cast<weigh_seq *>(kva_cuda_stage(device, bytes));
    if (!staged)
        return;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_weigh_seq *seq = &args->seqs[i];
        staged[i] = {};
        staged[i].scores = seq->scores;
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
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "weigh",
                     {dim3(args->seq_count, args->kv_heads), THREADS}, weigh_kernel, p);
}

/* --- choose ----------------------------------------------------------------------------------- */

/* The largest of the block's numbers, none of them negative. */
static __device__ float block_max(float x, float *parts)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(KVA_ALL, x, lanes));
    if (threadIdx.x % KVA_WARP == 0)
        parts[threadIdx.x / KVA_WARP] = x;
    __syncthreads(); /* every warp's largest is there */
    for (uint32_t i = 0; i < THREADS / KVA_WARP; i++)
        x = fmaxf(x, parts[i]);
    return x;
}

/* By kind; weights under `least`, and what is no candidate: 0. */
static __device__ uint32_t key_of(float weight, enum kva_choose_kind kind, float least)
{
    if (!(weight >= least))
        return 0;
    uint32_t bits = __float_as_uint(weight + 0.0f); /* the two zeros are the same weight */
    return kind == KVA_CHOOSE_LEAST ? 0x80000000u - bits : bits + 1;
}

static __global__ void __launch_bounds__(THREADS)
    choose_kernel(const struct kva_choose_seq *seqs, enum kva_choose_kind kind, float share)
{
    __shared__ uint32_t parts[THREADS / KVA_WARP];
    __shared__ float most[THREADS / KVA_WARP];
    const struct kva_choose_seq seq = seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, first = seq.first, end = seq.end, k = seq.k;
    const float *weights = seq.weights + static_cast<size_t>(kv_head) * seq.stride;
    uint32_t *chosen = seq.chosen + static_cast<size_t>(kv_head) * k;
    float least = 0.0f;
    if (kva_gate_closed(seq.gate))
        return;
    if (kind == KVA_CHOOSE_NEAR) {
        for (uint32_t i = first + threadIdx.x; i < end; i += blockDim.x)
            least = fmaxf(least, weights[i]);
        least = block_max(least, most) * share;
    }
    auto key = [&](uint32_t i) { return key_of(weights[i], kind, least); };
    uint32_t equal, taken = 0, equal_taken = 0;
    uint32_t last = find_least(key, first, end, k, &equal);
    for (uint32_t base = first; base < end; base += THREADS) {
        uint32_t i = base + threadIdx.x, total;
        uint32_t x = i < end ? key(i) : 0;
        uint32_t same = x && x == last;
        uint32_t rank = equal_taken + kva_sum_before(same, parts, &total);
        equal_taken += total;
        uint32_t take = x > last || (same && rank < equal);
        uint32_t at = taken + kva_sum_before(take, parts, &total);
        if (take)
            chosen[at] = i;
        taken += total;
    }
    for (uint32_t i = taken + threadIdx.x; i < k; i += blockDim.x)
        chosen[i] = KVA_NO_TOKEN;
}

void kva_cuda_choose(struct kva_device *device, const struct kva_choose_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    const struct kva_choose_seq *seqs = kva_cuda_upload_array(device, args->seqs, args->seq_count);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "choose",
                     {dim3(args->seq_count, args->kv_heads), THREADS}, choose_kernel, seqs,
                     args->kind, args->share);
}

/* --- accumulate ------------------------------------------------------------------------------- */

static __global__ void accumulate_kernel(float *mass, const float *weights, uint32_t count)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && weights[i] >= 0.0f)
        mass[i] += weights[i];
}

void kva_cuda_accumulate(struct kva_device *device, const struct kva_accumulate_args *args)
{
    if (args->count > 0 && kva_cuda_enter(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "accumulate",
                     {kva_blocks(args->count, THREADS), THREADS}, accumulate_kernel, args->mass,
                     args->weights, args->count);
}
