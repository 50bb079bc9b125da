/* keep.cu - keep: which tokens stay, and where; use_rows: how often they were used. One KV head of one sequence by one block of
 * threads. The numbers are those of the CPU (kernels/cpu/keep/keep.c): keys whose order is the order
 * wanted, scores whose products are not fused with sums. The least key that stays is found by
 * histograms, ranks by sorting (rank.cuh). */
#include "kernels/cuda/rank.cuh"

#include <math.h>

#define THREADS RANK_THREADS

typedef unsigned long long keep_key;
#define OUTRIGHT (~0ull)

/* One KV head: the slots' entries, then those that come. */
struct entries {
    uint32_t *positions;
    float *mass, *error;               /* error NULL: none is kept */
    const float *new_mass, *new_error; /* NULL: 0 */
    uint32_t *to;
    keep_key *keys;       /* [count] */
    rank_number *numbers; /* [2 * count]: while there are ranks to find */
    uint32_t *freed;      /* [filled], there as well: afterwards */
    uint32_t count, filled, slots;
    uint32_t position_first, position_end; /* of what comes */
    uint32_t sinks, recent, pure;
    bool newer;
};

struct keep_seq {
    struct kva_keep_seq seq;
    keep_key *scratch;
};

static __device__ entries entries_of(const keep_seq &from, uint32_t kv_head)
{
    const struct kva_keep_seq &seq = from.seq;
    const size_t at = static_cast<size_t>(kv_head) * seq.store.slots;
    const size_t come = static_cast<size_t>(kv_head) * seq.stride;
    const uint32_t count = seq.filled + seq.count;
    keep_key *keys = from.scratch + static_cast<size_t>(kv_head) * 3 * count;
    return {seq.store.positions + at,
            seq.store.mass + at,
            seq.store.error ? seq.store.error + at : nullptr,
            seq.mass ? seq.mass + come : nullptr,
            seq.error ? seq.error + come : nullptr,
            seq.to + static_cast<size_t>(kv_head) * seq.count,
            keys,
            keys + count,
            reinterpret_cast<uint32_t *>(keys + count),
            count,
            seq.filled,
            seq.store.slots,
            seq.position_first,
            seq.position_first + seq.count,
            seq.sinks,
            seq.recent,
            seq.pure,
            seq.newer};
}

static __device__ uint32_t position_of(const entries &all, uint32_t i)
{
    return i < all.filled ? all.positions[i] : all.position_first + (i - all.filled);
}

/* What is scored: the mass, or the worth, which is less the greater the error. */
static __device__ float value_of(const entries &all, uint32_t i, bool worth)
{
    if (worth)
        return -(i < all.filled ? all.error[i] : all.new_error[i - all.filled]);
    if (i < all.filled)
        return all.mass[i];
    return all.new_mass ? all.new_mass[i - all.filled] : 0.0f;
}

/* Bits that ascend as the number does; the two zeros are one, what is no number is the least. */
static __device__ uint32_t ordered(float x)
{
    if (x != x)
        return 0;
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ keep_key key_of(const entries &all, uint32_t position, float score)
{
    return static_cast<keep_key>(ordered(score)) << 32 | (all.newer ? position : ~position);
}

/* The sum of the block's numbers. */
static __device__ uint32_t block_sum(uint32_t x, uint32_t *parts)
{
    uint32_t total;
    kva_sum_before(x, parts, &total);
    return total;
}

/* The least of the `wanted` largest keys that are not OUTRIGHT, or a number below it that no key is
 * between: by the score, then of those with this score by the position. There are more such keys. */
static __device__ keep_key least_of(const entries &all, uint32_t wanted, rank_shared &shared)
{
    if (wanted == 0)
        return OUTRIGHT;
    const rank_border score = find_border(shared, all.count, wanted, [&](uint32_t i, uint32_t *x) {
        *x = static_cast<uint32_t>(all.keys[i] >> 32);
        return *x != UINT32_MAX;
    });
    const keep_key least = static_cast<keep_key>(score.least) << 32;
    if (score.left == score.same)
        return least;
    const auto ties = [&](uint32_t i, uint32_t *x) {
        *x = static_cast<uint32_t>(all.keys[i]);
        return all.keys[i] >> 32 == score.least;
    };
    return least | find_border(shared, all.count, score.left, ties).least;
}

/* --- scores ----------------------------------------------------------------------------------- */

static __device__ void add_score(const entries &all, uint32_t i, float part)
{
    if (all.keys[i] == OUTRIGHT)
        return;
    float sum = __fadd_rn(__uint_as_float(static_cast<uint32_t>(all.keys[i])), part);
    all.keys[i] = __float_as_uint(sum);
}

static __device__ void add_minmax(const entries &all, bool worth, float weight, rank_shared &shared)
{
    float low = INFINITY, high = -INFINITY;
    for (uint32_t i = threadIdx.x; i < all.count; i += THREADS) {
        float x = value_of(all, i, worth);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        low = fminf(low, __shfl_xor_sync(KVA_ALL, low, lanes));
        high = fmaxf(high, __shfl_xor_sync(KVA_ALL, high, lanes));
    }
    __syncthreads(); /* the ends before have been read */
    if (threadIdx.x % KVA_WARP == 0) {
        shared.lows[threadIdx.x / KVA_WARP] = __float_as_uint(low);
        shared.highs[threadIdx.x / KVA_WARP] = __float_as_uint(high);
    }
    __syncthreads(); /* every warp's ends are there */
    for (uint32_t i = 0; i < THREADS / KVA_WARP; i++) {
        low = fminf(low, __uint_as_float(shared.lows[i]));
        high = fmaxf(high, __uint_as_float(shared.highs[i]));
    }
    for (uint32_t i = threadIdx.x; i < all.count; i += THREADS) {
        float x = value_of(all, i, worth), norm = 0.0f;
        if (low < high && x == x)
            norm = __fdiv_rn(__fsub_rn(x, low), __fsub_rn(high, low));
        add_score(all, i, __fmul_rn(weight, norm));
    }
}

static __device__ void add_ranks(const entries &all, bool worth, float weight, rank_shared &shared)
{
    const auto number = [&](uint32_t i) { return ordered(value_of(all, i, worth)); };
    rank_numbers(shared, all.numbers, all.count, number, [&](uint32_t i, uint32_t less) {
        float norm = __fdiv_rn(static_cast<float>(less), static_cast<float>(all.count - 1));
        add_score(all, i, __fmul_rn(weight, norm));
    });
}

/* keys = those of mass; of what is protected, OUTRIGHT. Returns how many are. */
static __device__ uint32_t put_mass(const entries &all, uint32_t *parts)
{
    uint32_t outright = 0;
    for (uint32_t i = threadIdx.x; i < all.count; i += THREADS) {
        const uint32_t own = position_of(all, i);
        const unsigned long long position = own;
        bool stays = position < all.sinks || position + all.recent >= all.position_end;
        all.keys[i] = stays ? OUTRIGHT : key_of(all, own, value_of(all, i, false));
        outright += stays;
    }
    return block_sum(outright, parts);
}

/* --- slots ------------------------------------------------------------------------------------ */

static __device__ void settle(const entries &all, uint32_t i, uint32_t slot)
{
    all.to[i] = slot;
    all.positions[slot] = all.position_first + i;
    all.mass[slot] = all.new_mass ? all.new_mass[i] : 0.0f;
    if (all.error)
        all.error[slot] = all.new_error ? all.new_error[i] : 0.0f;
}

/* each(i, picked(i), before) for each i from first on: how many are picked before it. A warp has a
 * piece of them. Returns how many are picked. */
template <typename Picked, typename Each>
static __device__ uint32_t number_picked(uint32_t first, uint32_t end, uint32_t *parts,
                                         Picked picked, Each each)
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    const uint32_t piece = (end - first + THREADS - 1) / THREADS * KVA_WARP;
    const uint32_t from = first + warp * piece, to = min(from + piece, end);
    uint32_t count = 0, total;
    for (uint32_t i = from + lane; i < to; i += KVA_WARP)
        count += picked(i);
    /* The first lane's: what the warps before have. */
    uint32_t before = __shfl_sync(KVA_ALL, kva_sum_before(count, parts, &total), 0);
    for (uint32_t base = from; base < to; base += KVA_WARP) {
        const uint32_t i = base + lane;
        const bool own = i < to && picked(i);
        const uint32_t lanes = __ballot_sync(KVA_ALL, own);
        if (i < to)
            each(i, own, before + __popc(lanes & ((1u << lane) - 1)));
        before += __popc(lanes);
    }
    return total;
}

/* Entries with keys of at least `least` stay. */
static __device__ void assign(const entries &all, keep_key least, uint32_t *parts)
{
    const auto goes = [&](uint32_t slot) { return all.keys[slot] < least; };
    const auto stays = [&](uint32_t i) { return all.keys[i] >= least; };
    const uint32_t gone =
        number_picked(0, all.filled, parts, goes, [&](uint32_t slot, bool own, uint32_t before) {
            if (own)
                all.freed[before] = slot;
        });
    const uint32_t free = gone + all.slots - all.filled;
    /* Every slot that was freed is there once the next sum is known. */
    number_picked(all.filled, all.count, parts, stays, [&](uint32_t i, bool own, uint32_t before) {
        if (own && before < free)
            settle(all, i - all.filled,
                   before < gone ? all.freed[before] : all.filled + (before - gone));
        else
            all.to[i - all.filled] = KVA_NO_SLOT;
    });
}

/* What the mass alone decides becomes OUTRIGHT, then the others have their scores. Returns how many
 * are OUTRIGHT. */
static __device__ uint32_t put_scores(const entries &all, uint32_t outright,
                                      enum kva_keep_score score, float lambda, rank_shared &shared)
{
    const uint32_t pure = min(all.pure, all.slots - outright);
    const keep_key least = least_of(all, pure, shared);
    for (uint32_t i = threadIdx.x; i < all.count; i += THREADS)
        all.keys[i] = all.keys[i] >= least ? OUTRIGHT : 0;
    for (uint32_t worth = 0; worth < 2; worth++) {
        const float weight = worth ? __fsub_rn(1.0f, lambda) : lambda;
        if (score == KVA_KEEP_MINMAX)
            add_minmax(all, worth, weight, shared);
        else
            add_ranks(all, worth, weight, shared);
    }
    for (uint32_t i = threadIdx.x; i < all.count; i += THREADS) {
        const keep_key key = all.keys[i];
        if (key != OUTRIGHT)
            all.keys[i] =
                key_of(all, position_of(all, i), __uint_as_float(static_cast<uint32_t>(key)));
    }
    __syncthreads(); /* every key is there */
    return outright + pure;
}

static __global__ void __launch_bounds__(THREADS, 1)
    keep_kernel(const keep_seq *seqs, enum kva_keep_score score, float lambda)
{
    kva_begin();
    __shared__ rank_shared shared;
    const entries all = entries_of(seqs[blockIdx.x], blockIdx.y);
    if (all.count <= all.slots) {
        for (uint32_t i = threadIdx.x; i < all.count - all.filled; i += THREADS)
            settle(all, i, all.filled + i);
        return;
    }
    if (all.slots == 0) {
        for (uint32_t i = threadIdx.x; i < all.count; i += THREADS)
            all.to[i] = KVA_NO_SLOT;
        return;
    }
    uint32_t outright = put_mass(all, shared.parts);
    if (score != KVA_KEEP_MASS)
        outright = put_scores(all, outright, score, lambda, shared);
    assign(all, least_of(all, all.slots - outright, shared), shared.parts);
}

void kva_cuda_keep(struct kva_device *device, const struct kva_keep_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    const size_t bytes = args->seq_count * sizeof(keep_seq);
    keep_seq *staged = static_cast<keep_seq *>(kva_cuda_stage(device, bytes));
    unsigned char *scratch = static_cast<unsigned char *>(args->scratch);
    if (!staged)
        return;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_keep_seq *seq = &args->seqs[i];
        staged[i] = {*seq, reinterpret_cast<keep_key *>(scratch)};
        scratch += kva_keep_scratch_bytes(args->kv_heads, seq->filled, seq->count);
    }
    const keep_seq *seqs = static_cast<const keep_seq *>(kva_cuda_send(device, staged, bytes));
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "keep",
                     {dim3(args->seq_count, args->kv_heads), THREADS}, keep_kernel, seqs,
                     args->score, args->lambda);
}

/* --- use_rows ---------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) use_kernel(const struct kva_use_seq *seqs)
{
    kva_begin();
    __shared__ uint32_t full;
    const struct kva_use_seq &seq = seqs[blockIdx.x];
    const uint32_t *used = seq.used + static_cast<size_t>(blockIdx.y) * seq.count;
    float *mass = seq.mass + static_cast<size_t>(blockIdx.y) * seq.slots;
    const bool counts = seq.rule == KVA_USE_COUNT;
    if (threadIdx.x == 0)
        full = 0;
    __syncthreads(); /* nothing is full yet */
    for (uint32_t i = threadIdx.x; i < seq.count; i += THREADS) {
        const uint32_t slot = used[i];
        if (slot == KVA_NO_SLOT)
            continue;
        mass[slot] =
            counts ? __fadd_rn(mass[slot], 1.0f) : fmaf(seq.step, static_cast<float>(i), seq.first);
        if (counts && mass[slot] >= KVA_USES_MAX)
            atomicAdd(&full, 1u);
    }
    __syncthreads(); /* all have been counted */
    for (uint32_t slot = threadIdx.x; full > 0 && slot < seq.filled; slot += THREADS)
        mass[slot] = floorf(__fmul_rn(mass[slot], 0.5f));
}

void kva_cuda_use_rows(struct kva_device *device, const struct kva_use_rows_args *args)
{
    if (args->seq_count == 0 || !kva_cuda_enter(device))
        return;
    const struct kva_use_seq *seqs = kva_cuda_upload_array(device, args->seqs, args->seq_count);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "use_rows",
                     {dim3(args->seq_count, args->kv_heads), THREADS}, use_kernel, seqs);
}
