/* shortlist.cu - shortlist: what choosing a token needs to know of a row of logits, one row by one
 * block of threads. The results go straight to pinned host memory, some kilobytes a row.
 *
 * Logits become keys whose order is theirs. The least key that is listed is found digit by digit;
 * then each warp counts those of its part of the row, and, when all have counted, writes them in
 * their places, so the list is in ascending order of tokens. Sums are over the same parts in the
 * same order every time. */
#include "kernels/cuda/radix.cuh"

#include <math.h>

#define THREADS 512u
#define WARPS   (THREADS / KVA_WARP)

struct shortlist_params {
    struct kva_shortlist *out;
    struct kva_candidate *listed;
    float *tracked_logits;
    const float *logits;
    const struct kva_shortlist_request *requests;
    const uint32_t *tracked;
    uint32_t vocab;
};

/* Greater for the greater logit, the same for both zeros; 0: not above -inf. */
static __device__ __forceinline__ uint32_t key_of(float x)
{
    uint32_t bits = __float_as_uint(x + 0.0f);
    return x > -INFINITY ? (bits >> 31 ? ~bits : bits | 0x80000000u) : 0;
}

static __device__ __forceinline__ float logit_of(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

/* --- the best alone --------------------------------------------------------------------------- */

/* The better of two: the larger, of equal ones the lower. */
static __device__ kva_candidate better(kva_candidate a, kva_candidate b)
{
    return b.logit > a.logit || (b.logit == a.logit && b.token < a.token) ? b : a;
}

/* Returns how many there are, 0 or 1. */
static __device__ uint32_t list_one(const float *row, uint32_t vocab, kva_candidate *listed)
{
    __shared__ kva_candidate parts[WARPS];
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    kva_candidate best = {-INFINITY, 0};
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        if (row[i] > best.logit)
            best = {row[i], i};
    }
    for (int lanes = KVA_WARP / 2; lanes > 0; lanes /= 2) {
        kva_candidate other = {__shfl_xor_sync(KVA_ALL, best.logit, lanes),
                               __shfl_xor_sync(KVA_ALL, best.token, lanes)};
        best = better(best, other);
    }
    if (lane == 0)
        parts[warp] = best;
    __syncthreads(); /* every warp has its best */
    for (uint32_t i = 0; i < WARPS; i++)
        best = better(best, parts[i]);
    if (threadIdx.x == 0 && best.logit > -INFINITY)
        *listed = best;
    return best.logit > -INFINITY;
}

/* --- the best --------------------------------------------------------------------------------- */

/* The part of the row that is a warp's. */
struct part {
    uint32_t first, end;
};

static __device__ part part_of(uint32_t warp, uint32_t vocab)
{
    uint32_t share = (vocab + WARPS - 1) / WARPS;
    share = (share + KVA_WARP - 1) / KVA_WARP * KVA_WARP;
    return {min(warp * share, vocab), min((warp + 1) * share, vocab)};
}

/* Keys above `least` and the first `equal` of those that equal it, by ascending token. Returns how
 * many there are; *ret_same: how many equal it. */
static __device__ uint32_t list_best(const float *row, uint32_t vocab, uint32_t least,
                                     uint32_t equal, kva_candidate *listed, uint32_t *ret_same)
{
    __shared__ uint32_t above_parts[WARPS], same_parts[WARPS];
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    const uint32_t below = (1u << lane) - 1; /* the lanes below this one */
    const part own = part_of(warp, vocab);
    uint32_t above = 0, same = 0;
    for (uint32_t base = own.first; base < own.end; base += KVA_WARP) {
        uint32_t key = base + lane < own.end ? key_of(row[base + lane]) : 0;
        above += static_cast<uint32_t>(__popc(__ballot_sync(KVA_ALL, key > least)));
        same += static_cast<uint32_t>(__popc(__ballot_sync(KVA_ALL, key && key == least)));
    }
    if (lane == 0) {
        above_parts[warp] = above;
        same_parts[warp] = same;
    }
    __syncthreads(); /* every warp has counted */
    uint32_t at = 0, rank = 0, above_total = 0, same_total = 0;
    for (uint32_t i = 0; i < WARPS; i++) {
        at += i < warp ? above_parts[i] : 0;
        rank += i < warp ? same_parts[i] : 0;
        above_total += above_parts[i];
        same_total += same_parts[i];
    }
    at += min(rank, equal);
    for (uint32_t base = own.first; base < own.end; base += KVA_WARP) {
        uint32_t i = base + lane;
        uint32_t key = i < own.end ? key_of(row[i]) : 0;
        uint32_t equals = __ballot_sync(KVA_ALL, key && key == least);
        bool first = rank + static_cast<uint32_t>(__popc(equals & below)) < equal;
        bool take = key > least || (key && key == least && first);
        uint32_t taken = __ballot_sync(KVA_ALL, take);
        if (take)
            listed[at + static_cast<uint32_t>(__popc(taken & below))] = {row[i], i};
        at += static_cast<uint32_t>(__popc(taken));
        rank += static_cast<uint32_t>(__popc(equals));
    }
    *ret_same = same_total;
    return above_total + equal;
}

/* --- sums ------------------------------------------------------------------------------------- */

/* Over the threads of the block, always in the same order; the first thread alone learns it. */
static __device__ double block_sum(double x)
{
    __shared__ double parts[THREADS];
    __syncthreads(); /* the sum before has been read */
    parts[threadIdx.x] = x;
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads(); /* all parts are there */
        if (threadIdx.x < half)
            parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    return parts[0];
}

/* Of the keys below `least`, and of the `beyond` that equal it but are not listed. */
static __device__ double tail_sum_of(const float *row, uint32_t vocab, uint32_t least,
                                     uint32_t beyond, float temperature)
{
    const double last = static_cast<double>(logit_of(least));
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        uint32_t key = key_of(row[i]);
        if (key && key < least)
            sum += exp((static_cast<double>(row[i]) - last) / static_cast<double>(temperature));
    }
    return block_sum(sum) + static_cast<double>(beyond);
}

static __device__ double log_sum_of(const float *row, uint32_t vocab)
{
    __shared__ uint32_t parts[WARPS];
    uint32_t top = 0;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
        top = max(top, key_of(row[i]));
    for (int lanes = KVA_WARP / 2; lanes > 0; lanes /= 2)
        top = max(top, __shfl_xor_sync(KVA_ALL, top, lanes));
    if (threadIdx.x % KVA_WARP == 0)
        parts[threadIdx.x / KVA_WARP] = top;
    __syncthreads(); /* every warp has its largest */
    for (uint32_t i = 0; i < WARPS; i++)
        top = max(top, parts[i]);
    if (top == 0)
        return -INFINITY;
    const double most = static_cast<double>(logit_of(top));
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        if (row[i] > -INFINITY)
            sum += exp(static_cast<double>(row[i]) - most);
    }
    return most + log(block_sum(sum));
}

static __device__ uint32_t rank_of(const float *row, uint32_t vocab, uint32_t token)
{
    const uint32_t own = key_of(row[token]);
    uint32_t before = 0;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        uint32_t key = key_of(row[i]);
        before += key > own || (key == own && i < token);
    }
    return 1 + static_cast<uint32_t>(block_sum(static_cast<double>(before)));
}

/* --- the operator ----------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) shortlist_kernel(shortlist_params p)
{
    const kva_shortlist_request request = p.requests[blockIdx.x];
    const float *row = p.logits + static_cast<size_t>(request.row) * p.vocab;
    kva_candidate *listed = p.listed + static_cast<size_t>(blockIdx.x) * KVA_SHORTLIST_MAX;
    kva_shortlist out = {}; /* the first thread's counts */
    for (uint32_t i = threadIdx.x; i < request.tracked_count; i += THREADS)
        p.tracked_logits[request.tracked_first + i] = row[p.tracked[request.tracked_first + i]];
    if (request.k == 1 && request.temperature <= 0.0f) {
        out.count = list_one(row, p.vocab, listed);
    } else {
        uint32_t equal, same;
        uint32_t least =
            find_least([&](uint32_t i) { return key_of(row[i]); }, 0, p.vocab, request.k, &equal);
        out.count = list_best(row, p.vocab, least, equal, listed, &same);
        if (request.temperature > 0.0f && least)
            out.tail_sum = tail_sum_of(row, p.vocab, least, same - equal, request.temperature);
    }
    if (request.log_sum)
        out.log_sum = log_sum_of(row, p.vocab);
    if (request.rank)
        out.rank = rank_of(row, p.vocab, p.tracked[request.tracked_first]);
    if (threadIdx.x == 0)
        p.out[blockIdx.x] = out;
}

void kva_cuda_shortlist(struct kva_device *device, const struct kva_shortlist_args *args)
{
    if (args->count == 0 || !kva_cuda_enter(device))
        return;
    shortlist_params p = {};
    p.out = args->out;
    p.listed = args->listed;
    p.tracked_logits = args->tracked_logits;
    p.logits = args->logits;
    p.requests = kva_cuda_upload_array(device, args->requests, args->count);
    p.tracked = kva_cuda_upload_array(device, args->tracked, args->tracked_count);
    p.vocab = args->vocab;
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "shortlist", {args->count, THREADS},
                     shortlist_kernel, p);
}
