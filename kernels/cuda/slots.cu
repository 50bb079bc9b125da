/* slots.cu - row caches: which slots the chosen rows take (assign_slots), and how far the queries
 * that chose them have turned (query_cosine). fetch.cu brings the rows.
 *
 * assign_slots takes one KV head of one sequence a block. Where slots are few, all of its arrays are
 * in shared memory while it works, and ranks are found by counting; else by sorting. */
#include "kernels/cuda/slots.cuh"

#include <math.h>
#include <string.h>

#define THREADS 256u

/* Slots up to which ranks are counted in shared memory; more are sorted there, so many at most. */
#define SORT_FROM 256u
#define SORT_MAX  8192u

/* A head of few slots in shared memory. */
struct small_head {
    uint32_t tokens[SORT_FROM], used[SORT_FROM], order[SORT_FROM], missing[SORT_FROM];
    uint32_t chosen[SORT_FROM];
    uint4 keys[SORT_FROM / 4]; /* to be ranked */
};

/* Read what assign_slots goes on from; the arrays of the result are those in `small`. */
static __device__ head stage_head(const head &h, small_head &small)
{
    const uint32_t i = threadIdx.x;
    if (i < h.slots) {
        small.tokens[i] = h.tokens[i];
        small.used[i] = h.used[i];
    }
    if (i < h.k)
        small.chosen[i] = h.chosen[i];
    __syncthreads(); /* the head is in shared memory */
    return {small.tokens,  small.used, small.order, h.count, small.chosen,
            small.missing, h.slots,    h.pinned,    h.k};
}

/* What has changed goes back. */
static __device__ void return_head(const head &h, const small_head &small)
{
    const uint32_t i = threadIdx.x;
    __syncthreads(); /* order is whole */
    if (i >= h.slots)
        return;
    h.tokens[i] = small.tokens[i];
    h.used[i] = small.used[i];
    h.missing[i] = small.missing[i];
    if (i < *h.count)
        h.order[i] = small.order[i];
}

/* How many of the keys are less than `own`, or, of the first `equal_end`, no greater. */
static __device__ uint32_t count_less(const small_head &small, uint32_t slots, uint32_t own,
                                      uint32_t equal_end)
{
    uint32_t rank = 0;
    for (uint32_t i = 0; i < slots; i += 4) {
        const uint4 four = small.keys[i / 4];
        rank += four.x < own || (four.x == own && i < equal_end);
        rank += four.y < own || (four.y == own && i + 1 < equal_end);
        rank += four.z < own || (four.z == own && i + 2 < equal_end);
        rank += four.w < own || (four.w == own && i + 3 < equal_end);
    }
    return rank;
}

/* Each thread's key among those of its slot's neighbours; whoever has none gives the largest. */
static __device__ void give_key(small_head &small, uint32_t key)
{
    (&small.keys[0].x)[threadIdx.x] = key;
    __syncthreads(); /* every slot's key is there */
}

/* The first of chosen[0 .. count), which ascend, that is not below `token`. */
static __device__ uint32_t find_chosen(const head &h, uint32_t count, uint32_t token)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (h.chosen[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Chosen rows that are in a slot are marked; order[0 .. return) = the others' positions, ascending.
 */
static __device__ uint32_t find_absent(const head &h, uint32_t chosen, uint32_t stamp,
                                       uint32_t *parts)
{
    for (uint32_t i = threadIdx.x; i < chosen; i += THREADS)
        h.missing[i] = 1;
    __syncthreads();
    for (uint32_t slot = h.pinned + threadIdx.x; slot < h.slots; slot += THREADS) {
        uint32_t token = h.tokens[slot], at = find_chosen(h, chosen, token);
        if (token == KVA_NO_TOKEN || at == chosen || h.chosen[at] != token)
            continue;
        h.used[slot] = stamp;
        h.missing[at] = 0;
    }
    __syncthreads();
    uint32_t absent = 0;
    for (uint32_t base = 0; base < chosen; base += THREADS) {
        uint32_t i = base + threadIdx.x, total;
        uint32_t wanted = i < chosen ? h.missing[i] : 0;
        uint32_t before = kva_sum_before(wanted, parts, &total);
        if (wanted)
            h.order[absent + before] = h.chosen[i];
        absent += total;
    }
    __syncthreads();
    return absent;
}

/* Numbers to be sorted: more than there are slots are never looked at. */
typedef unsigned long long sort_key;
#define LAST_KEY (~0ull)

/* Ascending; `count` is a power of two. Whoever reads them next waits for nothing. */
static __device__ void sort_keys(sort_key *keys, uint32_t count)
{
    for (uint32_t run = 2; run <= count; run *= 2) {
        for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
            __syncthreads(); /* the keys of the round before are in their places */
            for (uint32_t i = threadIdx.x; i < count / 2; i += THREADS) {
                uint32_t low = i / apart * 2 * apart + i % apart, high = low + apart;
                bool ascends = (low & run) == 0;
                sort_key a = keys[low], b = keys[high];
                if ((a > b) == ascends) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
        }
    }
    __syncthreads(); /* all keys are in their places */
}

static __host__ __device__ uint32_t sort_count(uint32_t slots)
{
    uint32_t count = 2;
    while (count < slots)
        count *= 2;
    return count;
}

/* As take_slots, by sorting what may be given away. */
static __device__ void sort_free_slots(const head &h, uint32_t count, uint32_t stamp,
                                       sort_key *keys)
{
    uint32_t keys_count = sort_count(h.slots);
    for (uint32_t slot = threadIdx.x; slot < keys_count; slot += THREADS) {
        bool free = slot >= h.pinned && slot < h.slots && h.used[slot] != stamp;
        uint32_t used = free && h.tokens[slot] != KVA_NO_TOKEN ? h.used[slot] : 0;
        keys[slot] = free ? static_cast<sort_key>(used) << 32 | slot : LAST_KEY;
    }
    sort_keys(keys, keys_count);
    for (uint32_t i = threadIdx.x; i < count; i += THREADS)
        h.missing[i] = static_cast<uint32_t>(keys[i]);
}

/* Which of two free slots was wanted longer ago. */
static __device__ bool goes_first(const head &h, uint32_t a, uint32_t b)
{
    uint32_t used_a = h.tokens[a] == KVA_NO_TOKEN ? 0 : h.used[a];
    uint32_t used_b = h.tokens[b] == KVA_NO_TOKEN ? 0 : h.used[b];
    return used_a < used_b || (used_a == used_b && a < b);
}

/* The same by counting, of more slots than can be sorted. */
static __device__ void count_free_slots(const head &h, uint32_t count, uint32_t stamp)
{
    for (uint32_t slot = h.pinned + threadIdx.x; slot < h.slots; slot += THREADS) {
        uint32_t rank = 0;
        if (h.used[slot] == stamp)
            continue;
        for (uint32_t other = h.pinned; other < h.slots && rank < count; other++)
            rank += h.used[other] != stamp && goes_first(h, other, slot);
        if (rank < count)
            h.missing[rank] = slot;
    }
}

/* The same of few slots. */
static __device__ void rank_free_slots(const head &h, uint32_t count, uint32_t stamp,
                                       small_head &small)
{
    const uint32_t slot = threadIdx.x;
    const bool free = slot >= h.pinned && slot < h.slots && h.used[slot] != stamp;
    const uint32_t used = free && h.tokens[slot] != KVA_NO_TOKEN ? h.used[slot] : 0;
    give_key(small, free ? used : UINT32_MAX);
    const uint32_t rank = free ? count_less(small, h.slots, used, slot) : count;
    if (rank < count)
        h.missing[rank] = slot;
}

/* missing[0 .. count) = the slots that take the positions order[0 .. count). */
static __device__ void take_slots(const head &h, uint32_t count, uint32_t stamp, sort_key *keys,
                                  small_head &small)
{
    if (h.slots <= SORT_FROM)
        rank_free_slots(h, count, stamp, small);
    else if (h.slots <= SORT_MAX)
        sort_free_slots(h, count, stamp, keys);
    else
        count_free_slots(h, count, stamp);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        uint32_t slot = h.missing[i];
        h.tokens[slot] = h.order[i];
        h.used[slot] = stamp;
    }
}

/* All chosen rows anew, in the first slots; nothing else stays. They are in order as they are. */
static __device__ void take_all(const head &h, uint32_t chosen, uint32_t stamp)
{
    for (uint32_t slot = threadIdx.x; slot < h.slots; slot += THREADS) {
        uint32_t i = slot - h.pinned;
        if (slot < h.pinned + chosen)
            h.order[slot] = slot;
        if (slot < h.pinned)
            continue;
        h.tokens[slot] = i < chosen ? h.chosen[i] : KVA_NO_TOKEN;
        h.used[slot] = i < chosen ? stamp : 0;
        if (i < chosen)
            h.missing[i] = slot;
    }
    if (threadIdx.x == 0)
        *h.count = h.pinned + chosen;
}

static __device__ bool attends(const head &h, uint32_t slot, uint32_t stamp, bool all)
{
    return h.tokens[slot] != KVA_NO_TOKEN && (slot < h.pinned || all || h.used[slot] == stamp);
}

/* order = the slots that attend, by position; each returns how many the thread has put there. */
static __device__ uint32_t rank_order(const head &h, uint32_t stamp, bool all, small_head &small)
{
    const uint32_t slot = threadIdx.x;
    const bool in = slot < h.slots && attends(h, slot, stamp, all);
    const uint32_t token = in ? h.tokens[slot] : KVA_NO_TOKEN;
    give_key(small, token);
    if (in)
        h.order[count_less(small, h.slots, token, 0)] = slot;
    return in;
}

static __device__ uint32_t sort_order(const head &h, uint32_t stamp, bool all, sort_key *keys)
{
    uint32_t own = 0, keys_count = sort_count(h.slots);
    for (uint32_t slot = threadIdx.x; slot < keys_count; slot += THREADS) {
        bool in = slot < h.slots && attends(h, slot, stamp, all);
        keys[slot] = in ? static_cast<sort_key>(h.tokens[slot]) << 32 | slot : LAST_KEY;
    }
    sort_keys(keys, keys_count);
    for (uint32_t i = threadIdx.x; i < h.slots && keys[i] != LAST_KEY; i += THREADS) {
        h.order[i] = static_cast<uint32_t>(keys[i]);
        own++;
    }
    return own;
}

static __device__ uint32_t count_order(const head &h, uint32_t stamp, bool all)
{
    uint32_t own = 0;
    for (uint32_t slot = threadIdx.x; slot < h.slots; slot += THREADS) {
        uint32_t rank = 0;
        if (!attends(h, slot, stamp, all))
            continue;
        own++;
        for (uint32_t other = 0; other < h.slots; other++)
            rank += h.tokens[other] < h.tokens[slot] && attends(h, other, stamp, all);
        h.order[rank] = slot;
    }
    return own;
}

/* order and count. */
static __device__ void put_in_order(const head &h, uint32_t stamp, bool all, uint32_t *parts,
                                    sort_key *keys, small_head &small)
{
    uint32_t own = 0, total;
    if (h.slots <= SORT_FROM)
        own = rank_order(h, stamp, all, small);
    else if (h.slots <= SORT_MAX)
        own = sort_order(h, stamp, all, keys);
    else
        own = count_order(h, stamp, all);
    (void)kva_sum_before(own, parts, &total);
    if (threadIdx.x == 0)
        *h.count = total;
}

/* What the heads of a sequence have counted, and how many of them have. Zero when they begin. */
struct assign_tally {
    uint32_t hits, misses, heads;
};

struct assign_seq {
    struct kva_row_cache cache;
    const uint32_t *gate;
    assign_tally tally;
};

/* What was there and what was not is counted in host memory, which an addition takes long to reach:
 * the sequence's last head adds for all. */
static __device__ void count_hits(assign_seq &seq, uint32_t hits, uint32_t misses)
{
    auto *to = reinterpret_cast<unsigned long long *>(seq.cache.hits);
    atomicAdd(&seq.tally.hits, hits);
    atomicAdd(&seq.tally.misses, misses);
    __threadfence();
    if (atomicAdd(&seq.tally.heads, 1u) + 1 < gridDim.y)
        return;
    __threadfence();
    hits = atomicAdd(&seq.tally.hits, 0u);
    misses = atomicAdd(&seq.tally.misses, 0u);
    seq.tally = {}; /* the next launch may be given the same descriptors */
    if (hits > 0)
        atomicAdd(&to[0], static_cast<unsigned long long>(hits));
    if (misses > 0)
        atomicAdd(&to[1], static_cast<unsigned long long>(misses));
}

static __global__ void __launch_bounds__(THREADS, 4)
    assign_kernel(assign_seq *seqs, const uint32_t *stamps, bool resident, bool keep)
{
    kva_begin();
    KVA_DYNAMIC_SHARED(sort_key, keys);
    __shared__ uint32_t parts[THREADS / KVA_WARP];
    __shared__ small_head small;
    const struct kva_row_cache cache = seqs[blockIdx.x].cache;
    const uint32_t stamp = stamps[0];
    if (kva_gate_closed(seqs[blockIdx.x].gate))
        return;
    const head whole = head_of(cache, blockIdx.y);
    const head h = whole.slots <= SORT_FROM ? stage_head(whole, small) : whole;
    for (uint32_t slot = threadIdx.x; slot < h.pinned; slot += THREADS)
        h.tokens[slot] = slot;
    uint32_t chosen = find_chosen(h, h.k, KVA_NO_TOKEN), missing = chosen;
    if (keep) {
        missing = find_absent(h, chosen, stamp, parts);
        take_slots(h, missing, stamp, keys, small);
    } else {
        take_all(h, chosen, stamp);
    }
    for (uint32_t i = missing + threadIdx.x; i < h.slots; i += THREADS)
        h.missing[i] = KVA_NO_TOKEN;
    __syncthreads(); /* every slot has its token */
    if (keep)
        put_in_order(h, stamp, resident, parts, keys, small);
    if (whole.slots <= SORT_FROM)
        return_head(whole, small);
    if (threadIdx.x == 0)
        count_hits(seqs[blockIdx.x], chosen - missing, missing);
}

void kva_cuda_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *args)
{
    if (args->count == 0 || !kva_cuda_enter(device))
        return;
    /* The stamp lies behind them: it differs from step to step, and no argument should. */
    size_t bytes = args->count * sizeof(assign_seq) + sizeof(uint32_t);
    assign_seq *seqs = static_cast<assign_seq *>(kva_cuda_stage(device, bytes));
    if (!seqs)
        return;
    uint32_t sorted = 0;
    for (uint32_t i = 0; i < args->count; i++) {
        seqs[i] = {*args->caches[i], args->gates ? args->gates[i] : nullptr, {}};
        uint32_t slots = args->caches[i]->slots;
        if (args->keep && slots > SORT_FROM && slots <= SORT_MAX)
            sorted = kva_max_u32(sorted, sort_count(slots));
    }
    memcpy(static_cast<void *>(seqs + args->count), &args->stamp, sizeof args->stamp);
    auto *sent = static_cast<assign_seq *>(const_cast<void *>(kva_cuda_send(device, seqs, bytes)));
    if (sent)
        kva_cuda_run(device, args->queue, "assign_slots",
                     {dim3(args->count, args->kv_heads), THREADS, sorted * sizeof(sort_key)},
                     assign_kernel, sent, reinterpret_cast<const uint32_t *>(sent + args->count),
                     args->mode == KVA_ROWS_RESIDENT, args->keep);
}

/* --- query_cosine ----------------------------------------------------------------------------- */

/* One row by a block, its heads by the warps in turn: a row's sums are always in the same order.
 */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    cosine_kernel(const T *q, const uint32_t *rows, void *const *places, const float *percents,
                  float *cosine, uint32_t *gates, uint32_t q_stride, uint32_t heads, uint32_t dim)
{
    kva_begin();
    __shared__ float parts[THREADS / KVA_WARP];
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    const T *row = q + static_cast<size_t>(rows[blockIdx.x]) * q_stride;
    T *before = static_cast<T *>(places[blockIdx.x]);
    float sum = 0;
    for (uint32_t head = warp; head < heads; head += THREADS / KVA_WARP) {
        float dot = 0, now = 0, then = 0;
        for (uint32_t i = head * dim + lane; i < (head + 1) * dim; i += KVA_WARP) {
            float a = kva_to_f32(row[i]), b = kva_to_f32(before[i]);
            dot += a * b;
            now += a * a;
            then += b * b;
            before[i] = row[i];
        }
        float norms = sqrtf(kva_warp_sum(now)) * sqrtf(kva_warp_sum(then));
        dot = kva_warp_sum(dot);
        sum += norms > 0.0f ? dot / norms : 0.0f;
    }
    if (lane == 0)
        parts[warp] = sum;
    __syncthreads(); /* every warp's heads are summed */
    if (threadIdx.x != 0)
        return;
    sum = 0;
    for (uint32_t i = 0; i < THREADS / KVA_WARP; i++)
        sum += parts[i];
    sum /= static_cast<float>(heads);
    cosine[blockIdx.x] = sum;
    gates[blockIdx.x] = sum * 100.0f < percents[blockIdx.x];
}

template <typename T>
static void cosine(struct kva_device *device, const struct kva_query_cosine_args *args)
{
    const uint32_t *rows = kva_cuda_upload_array(device, args->rows, args->count);
    void *const *before = kva_cuda_upload_array(device, args->before, args->count);
    const float *percents = kva_cuda_upload_array(device, args->percents, args->count);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "query_cosine", {args->count, THREADS},
                     cosine_kernel<T>, static_cast<const T *>(args->q), rows, before, percents,
                     args->cosine, args->gates, args->q_stride, args->heads, args->head_dim);
}

void kva_cuda_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *args)
{
    if (args->count > 0 && kva_cuda_enter(device))
        KVA_BY_FORMAT(device->base.info.act, cosine, device, args);
}
