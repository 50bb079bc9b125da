/* shortlist.cu - shortlist: what choosing a token needs to know of a row of logits. The results go
 * straight to pinned host memory, some kilobytes a row.
 *
 * Logits become keys whose order is theirs. A row is cut into chunks of RADIX_CHUNK logits, each of
 * which is a block's:
 *
 *   list   the best of each chunk, and what its logits add to the row's normaliser and rank
 *   join   one block a row: the best of what was listed, by ascending token
 *   rest   where it is asked for: what each chunk adds to the sum over what is not listed; add
 *
 * Sums are over the same parts in the same order every time. */
#include "kernels/cuda/radix.cuh"

#include <math.h>

struct candidate {
    uint32_t key, token;
};

/* What a chunk adds to what is known of its row. */
struct chunk_part {
    double most, sum; /* its largest logit, and the sum of exp(logit - most) */
    double rest;      /* of what is not listed */
    uint32_t before;  /* tokens that are better than the first one tracked */
    uint32_t same;    /* keys that equal the least one listed */
};

struct shortlist_params {
    struct kva_shortlist *out;
    struct kva_candidate *listed;
    float *tracked_logits;
    const float *logits;
    const struct kva_shortlist_request *requests;
    const uint32_t *tracked;
    candidate *lists;      /* [request][chunk][k_max], the first k of each used; by ascending token,
                              then keys of 0 */
    chunk_part *parts;     /* [request][chunk] */
    radix_border *borders; /* [request] */
    uint32_t vocab, chunks, k_max;
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

static __device__ const float *row_of(const shortlist_params &p,
                                      const struct kva_shortlist_request &request)
{
    return p.logits + static_cast<size_t>(request.row) * p.vocab;
}

static __device__ candidate *lists_of(const shortlist_params &p)
{
    return p.lists + static_cast<size_t>(blockIdx.x) * p.chunks * p.k_max;
}

static __device__ __forceinline__ void load_keys(const shortlist_params &p, const float *row,
                                                 uint32_t chunk, uint32_t (&keys)[RADIX_KEYS])
{
    float x[RADIX_KEYS];
    radix_load(x, row, chunk, p.vocab, -INFINITY);
#pragma unroll
    for (uint32_t i = 0; i < RADIX_KEYS; i++)
        keys[i] = key_of(x[i]);
}

/* --- over a block ----------------------------------------------------------------------------- */

/* The better of two: the larger, of equal ones the lower. */
static __device__ candidate better(candidate a, candidate b)
{
    return b.key > a.key || (b.key == a.key && b.token < a.token) ? b : a;
}

static __device__ candidate block_best(candidate best)
{
    __shared__ candidate parts[RADIX_WARPS];
    for (int lanes = KVA_WARP / 2; lanes > 0; lanes /= 2)
        best = better(best, {__shfl_xor_sync(KVA_ALL, best.key, lanes),
                             __shfl_xor_sync(KVA_ALL, best.token, lanes)});
    if (threadIdx.x % KVA_WARP == 0)
        parts[threadIdx.x / KVA_WARP] = best;
    __syncthreads(); /* every warp has its best */
    for (uint32_t i = 0; i < RADIX_WARPS; i++)
        best = better(best, parts[i]);
    return best;
}

static __device__ uint32_t block_most(uint32_t x)
{
    __shared__ uint32_t parts[RADIX_WARPS];
    for (int lanes = KVA_WARP / 2; lanes > 0; lanes /= 2)
        x = max(x, __shfl_xor_sync(KVA_ALL, x, lanes));
    if (threadIdx.x % KVA_WARP == 0)
        parts[threadIdx.x / KVA_WARP] = x;
    __syncthreads(); /* every warp has its largest */
    for (uint32_t i = 0; i < RADIX_WARPS; i++)
        x = max(x, parts[i]);
    return x;
}

/* Over the threads of the block, always in the same order; the first thread alone learns it. */
static __device__ double block_sum(double x)
{
    __shared__ double parts[RADIX_THREADS];
    __syncthreads(); /* the sum before has been read */
    parts[threadIdx.x] = x;
    for (uint32_t half = RADIX_THREADS / 2; half > 0; half /= 2) {
        __syncthreads(); /* every warp's part is there */
        if (threadIdx.x < half)
            parts[threadIdx.x] = x += parts[threadIdx.x + half];
    }
    return x;
}

/* --- chunks ----------------------------------------------------------------------------------- */

/* The best of a chunk. */
static __device__ void list_chunk(const uint32_t (&keys)[RADIX_KEYS], uint32_t k, uint32_t first,
                                  candidate *list)
{
    __shared__ radix shared;
    if (k == 1) {
        candidate best = {0, 0};
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++)
            best = better(best, {keys[i], keys[i] ? first + radix_at(i) : 0});
        best = block_best(best);
        if (threadIdx.x == 0)
            *list = best;
        return;
    }
    auto load = [&](uint32_t(&to)[RADIX_KEYS], uint32_t) {
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++)
            to[i] = keys[i];
    };
    const uint32_t taken =
        take_largest(shared, load, 1, k, [&](uint32_t rank, uint32_t at, uint32_t key) {
            list[rank] = {key, first + at};
        });
    for (uint32_t i = taken + threadIdx.x; i < k; i += RADIX_THREADS)
        list[i] = {0, 0};
}

/* The first thread alone learns them. */
static __device__ void add_up(const uint32_t (&keys)[RADIX_KEYS], chunk_part *part)
{
    const uint32_t top = block_most([&] {
        uint32_t most = 0;
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++)
            most = max(most, keys[i]);
        return most;
    }());
    double sum = 0;
    part->most = top ? static_cast<double>(logit_of(top)) : -INFINITY;
    for (uint32_t i = 0; i < RADIX_KEYS; i++) {
        if (keys[i])
            sum += exp(static_cast<double>(logit_of(keys[i])) - part->most);
    }
    part->sum = block_sum(sum);
}

static __global__ void __launch_bounds__(RADIX_THREADS) list_kernel(shortlist_params p)
{
    kva_begin();
    const struct kva_shortlist_request request = p.requests[blockIdx.x];
    const float *row = row_of(p, request);
    const uint32_t chunk = blockIdx.y, first = chunk * RADIX_CHUNK;
    uint32_t keys[RADIX_KEYS];
    chunk_part part = {};
    load_keys(p, row, chunk, keys);
    list_chunk(keys, request.k, first, lists_of(p) + static_cast<size_t>(chunk) * request.k);
    if (request.log_sum)
        add_up(keys, &part);
    if (request.rank) {
        const uint32_t token = p.tracked[request.tracked_first], own = key_of(row[token]);
        uint32_t before = 0;
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++) {
            const uint32_t at = first + radix_at(i);
            before += at < p.vocab && (keys[i] > own || (keys[i] == own && at < token));
        }
        part.before = static_cast<uint32_t>(block_sum(static_cast<double>(before)));
    }
    if (threadIdx.x == 0)
        p.parts[static_cast<size_t>(blockIdx.x) * p.chunks + chunk] = part;
    for (uint32_t i = chunk * RADIX_THREADS + threadIdx.x; i < request.tracked_count;
         i += gridDim.y * RADIX_THREADS)
        p.tracked_logits[request.tracked_first + i] = row[p.tracked[request.tracked_first + i]];
}

/* --- rows ------------------------------------------------------------------------------------- */

/* The normaliser of all chunks; -inf: nothing is above it. */
static __device__ double log_sum_of(const chunk_part *parts, uint32_t chunks)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < chunks; i++)
        most = parts[i].most > most ? parts[i].most : most;
    if (most == -INFINITY)
        return most;
    for (uint32_t i = 0; i < chunks; i++) {
        const chunk_part part = parts[i];
        sum += part.sum * exp(part.most - most);
    }
    return most + log(sum);
}

static __global__ void __launch_bounds__(RADIX_THREADS) join_kernel(shortlist_params p)
{
    kva_begin();
    __shared__ radix shared;
    const struct kva_shortlist_request request = p.requests[blockIdx.x];
    const float *row = row_of(p, request);
    const candidate *lists = lists_of(p);
    const chunk_part *parts = p.parts + static_cast<size_t>(blockIdx.x) * p.chunks;
    struct kva_candidate *listed = p.listed + static_cast<size_t>(blockIdx.x) * KVA_SHORTLIST_MAX;
    const uint32_t count = p.chunks * request.k;
    uint32_t keys[RADIX_KEYS], same;
    struct kva_shortlist out = {};
    auto load = [&](uint32_t(&to)[RADIX_KEYS], uint32_t chunk) {
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++) {
            const uint32_t at = chunk * RADIX_CHUNK + radix_at(i);
            to[i] = at < count ? lists[at].key : 0;
        }
    };
    auto take = [&](uint32_t rank, uint32_t at, uint32_t) {
        listed[rank] = {row[lists[at].token], lists[at].token};
    };
    const uint32_t chunks = radix_chunks(count);
    const radix_border border = find_border(shared, load, chunks, request.k, keys);
    out.count = take_keys(shared, load, chunks, border, keys, take, &same);
    if (threadIdx.x != 0)
        return;
    if (request.log_sum)
        out.log_sum = log_sum_of(parts, p.chunks);
    if (request.rank) {
        uint32_t rank = 1;
        for (uint32_t i = 0; i < p.chunks; i++) {
            const chunk_part part = parts[i];
            rank += part.before;
        }
        out.rank = rank;
    }
    p.out[blockIdx.x] = out;
    p.borders[blockIdx.x] = border;
}

/* --- what is not listed ----------------------------------------------------------------------- */

static __global__ void __launch_bounds__(RADIX_THREADS) rest_kernel(shortlist_params p)
{
    kva_begin();
    const struct kva_shortlist_request request = p.requests[blockIdx.x];
    const radix_border border = p.borders[blockIdx.x];
    uint32_t keys[RADIX_KEYS], same = 0;
    if (!(request.temperature > 0.0f) || border.least == 0)
        return;
    load_keys(p, row_of(p, request), blockIdx.y, keys);
    const double last = static_cast<double>(logit_of(border.least));
    double sum = 0;
    for (uint32_t i = 0; i < RADIX_KEYS; i++) {
        same += keys[i] == border.least;
        if (keys[i] && keys[i] < border.least)
            sum += exp((static_cast<double>(logit_of(keys[i])) - last) /
                       static_cast<double>(request.temperature));
    }
    sum = block_sum(sum);
    const double equals = block_sum(static_cast<double>(same));
    if (threadIdx.x != 0)
        return;
    chunk_part *part = &p.parts[static_cast<size_t>(blockIdx.x) * p.chunks + blockIdx.y];
    part->rest = sum;
    part->same = static_cast<uint32_t>(equals);
}

/* A row a thread. */
static __global__ void add_kernel(shortlist_params p, uint32_t count)
{
    kva_begin();
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count || !(p.requests[i].temperature > 0.0f) || p.borders[i].least == 0)
        return;
    const radix_border border = p.borders[i];
    const chunk_part *parts = p.parts + static_cast<size_t>(i) * p.chunks;
    double sum = 0;
    uint32_t same = 0;
    for (uint32_t chunk = 0; chunk < p.chunks; chunk++) {
        sum += parts[chunk].rest;
        same += parts[chunk].same;
    }
    p.out[i].tail_sum = sum + static_cast<double>(same - border.equal);
}

/* --- the operator ----------------------------------------------------------------------------- */

/* `count` requests from `first` on, whose lists and parts scratch has room for. */
static void run_requests(struct kva_device *device, shortlist_params p, uint32_t first,
                         uint32_t count, bool sampled)
{
    unsigned char *scratch = static_cast<unsigned char *>(device->scratch);
    p.out += first;
    p.listed += static_cast<size_t>(first) * KVA_SHORTLIST_MAX;
    p.requests += first;
    p.parts = reinterpret_cast<chunk_part *>(scratch);
    p.borders = reinterpret_cast<radix_border *>(p.parts + static_cast<size_t>(count) * p.chunks);
    p.lists = reinterpret_cast<candidate *>(p.borders + count);
    const dim3 all(count, p.chunks);
    bool good = kva_cuda_run(device, KVA_QUEUE_COMPUTE, "shortlist's lists", {all, RADIX_THREADS},
                             list_kernel, p) &&
                kva_cuda_run(device, KVA_QUEUE_COMPUTE, "shortlist", {count, RADIX_THREADS},
                             join_kernel, p);
    if (good && sampled)
        (void)(kva_cuda_run(device, KVA_QUEUE_COMPUTE, "shortlist's rest", {all, RADIX_THREADS},
                            rest_kernel, p) &&
               kva_cuda_run(device, KVA_QUEUE_COMPUTE, "shortlist's sums",
                            {kva_blocks(count, KVA_WARP), KVA_WARP}, add_kernel, p, count));
}

void kva_cuda_shortlist(struct kva_device *device, const struct kva_shortlist_args *args)
{
    if (args->count == 0 || !kva_cuda_enter(device))
        return;
    shortlist_params p = {};
    bool sampled = false;
    p.out = args->out;
    p.listed = args->listed;
    p.tracked_logits = args->tracked_logits;
    p.logits = args->logits;
    p.requests = kva_cuda_upload_array(device, args->requests, args->count);
    p.tracked = kva_cuda_upload_array(device, args->tracked, args->tracked_count);
    p.vocab = args->vocab;
    p.chunks = radix_chunks(args->vocab);
    for (uint32_t i = 0; i < args->count; i++) {
        p.k_max = kva_max_u32(p.k_max, args->requests[i].k);
        sampled |= args->requests[i].temperature > 0.0f;
    }
    const size_t bytes =
        p.chunks * (sizeof(chunk_part) + p.k_max * sizeof(candidate)) + sizeof(radix_border);
    const uint32_t most = static_cast<uint32_t>(
        kva_min_size(kva_max_size(KVA_CUDA_SCRATCH_BYTES / bytes, 1), args->count));
    for (uint32_t first = 0; first < args->count && !kva_cuda_failed(device); first += most)
        run_requests(device, p, first, kva_min_u32(most, args->count - first), sampled);
}
