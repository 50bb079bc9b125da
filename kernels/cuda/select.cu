/* select.cu - weigh, choose and accumulate: what share of a row's attention each token had, and
 * which tokens have most.
 *
 * For choose, weights become keys whose order is the order wanted: the bits of the weight, which is
 * not negative, plus one; 0 is no candidate. The largest of them are found as radix.cuh says. */
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/weigh.cuh"

/* --- weigh ------------------------------------------------------------------------------------ */

/* Tokens of a block, eight a thread. */
#define WEIGH_TOKENS (8u * WEIGH_THREADS)
#define WEIGH_PAGES  (WEIGH_TOKENS / KVA_PAGE_TOKENS)

/* What a thread wants of FLIGHT heads: the weights of its eight tokens, a page's top. */
struct weigh_ahead {
    uint4 eight[FLIGHT];
    float top;
};

/* Heads h .. of the KV head, of which the last stands for those behind it. */
static __device__ __forceinline__ weigh_ahead ask_heads(const weigh_params &p, const weigh_seq &seq,
                                                        const weigh_range &range, uint32_t h)
{
    const uint32_t pages = seq.end / KVA_PAGE_TOKENS, head = range.kv_head * p.group;
    weigh_ahead ahead = {};
    const uint32_t page = range.first / KVA_PAGE_TOKENS + threadIdx.x % WEIGH_PAGES;
    const uint32_t own = min(h + threadIdx.x / WEIGH_PAGES, p.group - 1);
    if (threadIdx.x < FLIGHT * WEIGH_PAGES && page < pages)
        ahead.top = kva_kept_of(seq.scores, p.heads, pages, head + own).tops[page];
    const uint32_t t = range.first + threadIdx.x * 8;
    if (t >= seq.end || t + 8 <= seq.first)
        return ahead;
#pragma unroll
    for (uint32_t i = 0; i < FLIGHT; i++)
        ahead.eight[i] = *reinterpret_cast<const uint4 *>(
            kva_kept_of(seq.scores, p.heads, pages, head + min(h + i, p.group - 1)).weights + t);
    return ahead;
}

/* sums[i] += the probabilities of eight tokens of a page, heads ascending; the page's factors are
 * WEIGH_PAGES apart. */
static __device__ __forceinline__ void
weigh_eight(const uint4 (&eight)[FLIGHT], const float *factors, uint32_t heads, float (&sums)[8])
{
#pragma unroll
    for (uint32_t i = 0; i < FLIGHT; i++) {
        if (i >= heads)
            break;
        const float factor = factors[i * WEIGH_PAGES];
        const uint32_t pairs[4] = {eight[i].x, eight[i].y, eight[i].z, eight[i].w};
#pragma unroll
        for (uint32_t n = 0; n < 8; n++)
            sums[n] = fmaf(kva_to_f32(kva_f16{static_cast<uint16_t>(pairs[n / 2] >> n % 2 * 16)}),
                           factor, sums[n]);
    }
}

/* What a block that weighs shares, besides a weigh_list. */
struct weigh_shared {
    weigh_totals totals;
    float factors[FLIGHT][WEIGH_PAGES];
};

/* The range's weights by the pages. `ahead`: of the first heads, then of the others. */
static __device__ __forceinline__ void weigh_by_pages(const weigh_params &p, weigh_shared &shared,
                                                      const weigh_seq &seq,
                                                      const weigh_range &range, weigh_ahead &ahead)
{
    static_assert(FLIGHT * WEIGH_PAGES <= WEIGH_THREADS, "a factor a thread");
    float sums[8] = {};
    for (uint32_t h = 0; h < p.group; h += FLIGHT) {
        const uint32_t i = threadIdx.x / WEIGH_PAGES, own = min(h + i, p.group - 1);
        if (h > 0)
            ahead = ask_heads(p, seq, range, h);
        __syncthreads(); /* the heads before have been weighed */
        if (i < FLIGHT)
            shared.factors[i][threadIdx.x % WEIGH_PAGES] =
                kept_factor(ahead.top, shared.totals, own);
        __syncthreads(); /* the factors are there */
        weigh_eight(ahead.eight, &shared.factors[0][threadIdx.x * 8 / KVA_PAGE_TOKENS], p.group - h,
                    sums);
    }
    const uint32_t at = threadIdx.x * 8, t = range.first + at;
    if (t >= range.end)
        return;
#pragma unroll
    for (uint32_t n = 0; n < 8; n++)
        sums[n] = sums[n] >= 0.0f && t + n >= seq.first ? sums[n] : -1.0f;
    auto *to = reinterpret_cast<float4 *>(range.weights + at);
    to[0] = {sums[0], sums[1], sums[2], sums[3]};
    to[1] = {sums[4], sums[5], sums[6], sums[7]};
}

/* WEIGH_TOKENS of one KV head of one sequence by a block; what it reads is asked for before it waits
 * for anything. */
static __global__ void __launch_bounds__(WEIGH_THREADS, 3) weigh_kernel(weigh_params p)
{
    kva_begin();
    __shared__ weigh_shared shared;
    __shared__ weigh_list list;
    const weigh_seq &seq = p.seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, first = blockIdx.z * WEIGH_TOKENS;
    if (kva_gate_closed(seq.gate) || first >= seq.end)
        return;
    float *weights = seq.weights + static_cast<size_t>(kv_head) * seq.end + first;
    const weigh_range range = {kv_head, first, min(first + WEIGH_TOKENS, seq.end), weights};
    const uint32_t rows = seq.has_rows ? seq.cache.count[kv_head] : 0;
    weigh_ahead ahead = ask_heads(p, seq, range, 0);
    const cached_row row = find_row(seq, kv_head, rows, threadIdx.x);
    find_totals(p, seq, kv_head, shared.totals);
    weigh_by_pages(p, shared, seq, range, ahead);
    /* Rows take the place of what their tokens had in the pages. */
    weigh_rows(p, shared.totals, list, seq, range, rows, row);
}

void kva_cuda_weigh(struct kva_device *device, const struct kva_weigh_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    uint32_t tokens = 1;
    for (uint32_t i = 0; i < args->seq_count; i++)
        tokens = kva_max_u32(tokens, args->seqs[i].page_count * KVA_PAGE_TOKENS);
    const weigh_params p = prepare_weigh(device, args);
    const dim3 grid(args->seq_count, args->kv_heads, kva_blocks(tokens, WEIGH_TOKENS));
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, args->queue, "weigh", {grid, WEIGH_THREADS}, weigh_kernel, p);
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

/* The keys of a chunk of positions; those before `first` have none. */
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
    if (kva_gate_closed(seq.gate) || chunk >= radix_chunks(seq.end))
        return;
    auto load = [&](uint32_t(&keys)[RADIX_KEYS], uint32_t) {
        load_weights(keys, seq, p.kind, chunk);
    };
    listed *list = lists_of(p) + static_cast<size_t>(chunk) * p.k_max;
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

static __global__ void __launch_bounds__(RADIX_THREADS, 4) choose_kernel(choose_params p)
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

/* What `args` ask, and where lists go, if they are to be made. */
static choose_params prepare_choose(struct kva_device *device, const struct kva_choose_args *args)
{
    choose_params p = {};
    p.seqs = kva_cuda_upload_array(device, args->seqs, args->seq_count);
    p.kind = args->kind;
    p.share = args->share;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        p.k_max = kva_max_u32(p.k_max, args->seqs[i].k);
        p.splits = kva_max_u32(p.splits, radix_chunks(args->seqs[i].end));
    }
    const size_t bytes =
        static_cast<size_t>(args->seq_count) * args->kv_heads * p.splits * p.k_max * sizeof(listed);
    const bool aside = args->queue == KVA_QUEUE_ASIDE;
    const size_t room = aside ? KVA_CUDA_ASIDE_BYTES : KVA_CUDA_SCRATCH_BYTES;
    if (p.splits > 1 && p.k_max <= LISTED_MAX && bytes <= room)
        p.lists = static_cast<listed *>(aside ? device->aside : device->scratch);
    return p;
}

void kva_cuda_choose(struct kva_device *device, const struct kva_choose_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    const choose_params p = prepare_choose(device, args);
    const dim3 heads(args->seq_count, args->kv_heads);
    if (p.lists && !kva_cuda_failed(device))
        kva_cuda_run(device, args->queue, "choose's lists",
                     {dim3(heads.x, heads.y, p.splits), RADIX_THREADS}, list_kernel, p);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, args->queue, "choose", {heads, RADIX_THREADS}, choose_kernel, p);
}

/* --- accumulate ------------------------------------------------------------------------------- */

#define ACCUMULATE_THREADS 256u

static __global__ void __launch_bounds__(ACCUMULATE_THREADS)
    accumulate_kernel(const struct kva_accumulate_seq *seqs)
{
    kva_begin();
    const struct kva_accumulate_seq seq = seqs[blockIdx.x];
    float *mass = seq.mass + static_cast<size_t>(blockIdx.y) * seq.mass_stride;
    const float *weights = seq.weights + static_cast<size_t>(blockIdx.y) * seq.weights_stride;
    for (uint32_t i = blockIdx.z * ACCUMULATE_THREADS + threadIdx.x; i < seq.count;
         i += gridDim.z * ACCUMULATE_THREADS) {
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
    const uint32_t blocks = kva_min_u32(kva_blocks(most, ACCUMULATE_THREADS), 64);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "accumulate",
                     {dim3(args->seq_count, args->kv_heads, blocks), ACCUMULATE_THREADS},
                     accumulate_kernel, seqs);
}
