/* select.cu - weigh, choose, both of them at once, and accumulate: what share of a row's attention
 * each token had, and which tokens have most.
 *
 * For choose, weights become keys whose order is the order wanted: the bits of the weight, which is
 * not negative, plus one; 0 is no candidate. The largest of them are found as radix.cuh says. */
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/weigh.cuh"

/* --- weigh ------------------------------------------------------------------------------------ */

/* WEIGH_TOKENS of one KV head of one sequence by a block. */
static __global__ void __launch_bounds__(WEIGH_THREADS, 3) weigh_kernel(weigh_params p)
{
    kva_begin();
    __shared__ weigh_shared<1> shared;
    __shared__ weigh_list list;
    const weigh_seq &seq = p.seqs[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, first = blockIdx.z * WEIGH_TOKENS;
    if (kva_gate_closed(seq.gate) || first >= seq.end)
        return;
    float *weights = seq.weights + static_cast<size_t>(kv_head) * seq.end + first;
    const weigh_range range = {kv_head, first, min(first + WEIGH_TOKENS, seq.end), weights};
    weigh_tokens<1>(p, shared, list, seq, range);
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
    uint32_t overlap; /* first positions of a chunk, which are listed with the one before */
    enum kva_choose_kind kind;
    float share;
};

/* Chunks of positions [0, end). */
static __host__ __device__ __forceinline__ uint32_t chunks_of(uint32_t end, uint32_t overlap)
{
    const uint32_t more = end > RADIX_CHUNK ? end - RADIX_CHUNK : 0, step = RADIX_CHUNK - overlap;
    return (end > 0) + (more + step - 1) / step;
}

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

/* keys = those of weights x of a chunk of positions that begins at `base`; those before `first`
 * have none. before(i) is the weight before the thread's weight i. */
template <typename Before>
static __device__ __forceinline__ void
make_keys(uint32_t (&keys)[RADIX_KEYS], const struct kva_choose_seq &seq, enum kva_choose_kind kind,
          const float (&x)[RADIX_KEYS], uint32_t base, uint32_t first, Before before)
{
#pragma unroll
    for (uint32_t i = 0; i < RADIX_KEYS; i++) {
        const uint32_t at = base + radix_at(i);
        float weight = x[i];
        if (seq.successor > 0.0f && weight >= 0.0f && at >= first && at > seq.first)
            weight = fmaxf(weight, (i % 4 ? x[i - 1] : before(i)) * seq.successor);
        keys[i] = at >= first ? key_of(weight, kind) : 0;
    }
}

/* The keys of a chunk of positions whose weights are in memory. */
static __device__ __forceinline__ void load_weights(uint32_t (&keys)[RADIX_KEYS],
                                                    const struct kva_choose_seq &seq,
                                                    enum kva_choose_kind kind, uint32_t chunk)
{
    const float *weights = seq.weights + static_cast<size_t>(blockIdx.y) * seq.stride;
    const uint32_t base = chunk * RADIX_CHUNK;
    float x[RADIX_KEYS];
    radix_load(x, weights, chunk, seq.end, -1.0f);
    make_keys(keys, seq, kind, x, base, seq.first,
              [&](uint32_t i) { return weights[base + radix_at(i) - 1]; });
}

/* The best of a chunk, whose first position is `base`, as a list. */
template <typename Load>
static __device__ __forceinline__ void list_chunk(radix &shared, const choose_params &p,
                                                  const struct kva_choose_seq &seq, Load load,
                                                  uint32_t base)
{
    listed *list = lists_of(p) + static_cast<size_t>(blockIdx.z) * p.k_max;
    auto take = [&](uint32_t rank, uint32_t at, uint32_t key) { list[rank] = {key, base + at}; };
    const uint32_t taken = take_largest(shared, load, 1, seq.k, take);
    for (uint32_t i = taken + threadIdx.x; i < p.k_max; i += RADIX_THREADS)
        list[i] = {0, 0};
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
    list_chunk(shared, p, seq, load, chunk * RADIX_CHUNK);
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
        const uint32_t count = chunks_of(seq.end, p.overlap) * p.k_max;
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
static choose_params prepare_choose(struct kva_device *device, const struct kva_choose_args *args,
                                    uint32_t overlap)
{
    choose_params p = {};
    p.seqs = kva_cuda_upload_array(device, args->seqs, args->seq_count);
    p.kind = args->kind;
    p.share = args->share;
    p.overlap = overlap;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        p.k_max = kva_max_u32(p.k_max, args->seqs[i].k);
        p.splits = kva_max_u32(p.splits, chunks_of(args->seqs[i].end, overlap));
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
    const choose_params p = prepare_choose(device, args, 0);
    const dim3 heads(args->seq_count, args->kv_heads);
    if (p.lists && !kva_cuda_failed(device))
        kva_cuda_run(device, args->queue, "choose's lists",
                     {dim3(heads.x, heads.y, p.splits), RADIX_THREADS}, list_kernel, p);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, args->queue, "choose", {heads, RADIX_THREADS}, choose_kernel, p);
}

/* --- weigh_choose ----------------------------------------------------------------------------- */

/* A block weighs a chunk of tokens and chooses among them: their weights are never in memory. What
 * the token before its first candidate brings it takes that token's weight, so a chunk has the last
 * page of the chunk before it at its beginning. */
#define CHUNK_PIECES  (RADIX_CHUNK / WEIGH_TOKENS)
#define CHUNK_OVERLAP KVA_PAGE_TOKENS

struct chunk {
    weigh_shared<CHUNK_PIECES> weighing;
    alignas(16) float weights[RADIX_CHUNK];
    union {
        weigh_list list;
        radix largest; /* when all are weighed */
    };
};

/* The weights of one chunk of a KV head of one sequence, then its list, or, of an only one, what is
 * chosen. */
template <bool LISTS>
static __global__ void __launch_bounds__(RADIX_THREADS, 3)
    weigh_choose_kernel(weigh_params w, choose_params p)
{
    kva_begin();
    static_assert(RADIX_THREADS == WEIGH_THREADS && RADIX_CHUNK % WEIGH_TOKENS == 0,
                  "a block weighs what it chooses among");
    __shared__ chunk shared;
    const struct kva_choose_seq seq = p.seqs[blockIdx.x];
    const uint32_t base = blockIdx.z * (RADIX_CHUNK - CHUNK_OVERLAP);
    const uint32_t first = base > 0 ? base + CHUNK_OVERLAP : 0;
    if (kva_gate_closed(seq.gate) || (LISTS && blockIdx.z >= chunks_of(seq.end, CHUNK_OVERLAP)))
        return;
    const weigh_seq &weighed = w.seqs[blockIdx.x];
    const weigh_range range = {blockIdx.y, base, min(base + RADIX_CHUNK, weighed.end),
                               shared.weights};
    weigh_tokens<CHUNK_PIECES>(w, shared.weighing, shared.list, weighed, range);
    __syncthreads(); /* all are weighed */
    auto load = [&](uint32_t(&keys)[RADIX_KEYS], uint32_t) {
        float x[RADIX_KEYS];
        radix_load(x, shared.weights, 0, seq.end - base, -1.0f);
        make_keys(keys, seq, p.kind, x, base, max(first, seq.first),
                  [&](uint32_t i) { return shared.weights[radix_at(i) - 1]; });
    };
    if constexpr (LISTS)
        list_chunk(shared.largest, p, seq, load, base);
    else
        choose_all(shared.largest, p, seq, 1, load, [](uint32_t at) { return at; });
}

/* Lists, and a choice among them; one chunk is chosen from at once. Where there are several and no
 * lists, weights do go to memory. */
void kva_cuda_weigh_choose(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    const struct kva_weigh_args *weigh = &args->weigh;
    const struct kva_choose_args *choose = &args->choose;
    if (choose->seq_count == 0 || !kva_cuda_enter(device))
        return;
    const choose_params p = prepare_choose(device, choose, CHUNK_OVERLAP);
    if (p.splits > 1 && !p.lists) {
        kva_cuda_weigh(device, weigh);
        kva_cuda_choose(device, choose);
        return;
    }
    const weigh_params w = prepare_weigh(device, weigh);
    const dim3 heads(choose->seq_count, choose->kv_heads);
    const kva_cuda_launch chunks = {dim3(heads.x, heads.y, kva_max_u32(p.splits, 1)),
                                    RADIX_THREADS};
    if (kva_cuda_failed(device))
        return;
    if (!p.lists)
        kva_cuda_run(device, choose->queue, "weigh_choose", chunks, weigh_choose_kernel<false>, w,
                     p);
    else if (kva_cuda_run(device, choose->queue, "weigh_choose's lists", chunks,
                          weigh_choose_kernel<true>, w, p))
        kva_cuda_run(device, choose->queue, "weigh_choose", {heads, RADIX_THREADS}, choose_kernel,
                     p);
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
