/* radix.cuh - the largest of many keys, in the order that they are in: by selection (select.cu) and
 * for shortlists (shortlist.cu).
 *
 * A block of threads holds RADIX_CHUNK keys in registers, sixteen a thread. The least key that is
 * wanted is found in three digits of 11, 11 and 10 bits, each by a histogram in shared memory; then
 * every warp counts what it has above it, and what equals it, and writes what is taken in its
 * place. Of more keys, chunk after chunk is loaded again for each of the four. */
#ifndef KVA_KERNELS_CUDA_RADIX_CUH
#define KVA_KERNELS_CUDA_RADIX_CUH

#include "kernels/cuda/number.cuh"

#define RADIX_THREADS 256u
#define RADIX_WARPS   (RADIX_THREADS / KVA_WARP)
#define RADIX_PIECES  4u /* of four keys that lie side by side */
#define RADIX_KEYS    (4u * RADIX_PIECES)
#define RADIX_PIECE   (4u * RADIX_THREADS)
#define RADIX_CHUNK   (RADIX_PIECES * RADIX_PIECE)

#define RADIX_BITS    11
#define RADIX_DIGITS  (1u << RADIX_BITS)
#define RADIX_OWN     (RADIX_DIGITS / RADIX_THREADS) /* digits that a thread looks at */

/* Shared memory of a block that selects. */
struct radix {
    uint4 counts[RADIX_DIGITS / 4];
    uint32_t parts[KVA_WARP]; /* of chunks: a number a warp and piece */
    uint32_t found[2];
};

/* Where key i of a thread is in the chunk. */
static __device__ __forceinline__ uint32_t radix_at(uint32_t i)
{
    return i / 4 * RADIX_PIECE + threadIdx.x * 4 + i % 4;
}

/* The chunk's numbers of from[0 .. end); `none` behind them. */
static __device__ __forceinline__ void radix_load(float (&x)[RADIX_KEYS], const float *from,
                                                  uint32_t chunk, uint32_t end, float none)
{
    const uint32_t base = chunk * RADIX_CHUNK;
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0 && base + RADIX_CHUNK <= end) {
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i += 4) {
            const float4 four = *reinterpret_cast<const float4 *>(from + base + radix_at(i));
            x[i] = four.x;
            x[i + 1] = four.y;
            x[i + 2] = four.z;
            x[i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < RADIX_KEYS; i++)
        x[i] = base + radix_at(i) < end ? from[base + radix_at(i)] : none;
}

static __host__ __device__ __forceinline__ uint32_t radix_chunks(uint32_t count)
{
    return (count + RADIX_CHUNK - 1) / RADIX_CHUNK;
}

static __device__ __forceinline__ uint32_t sum_upto(uint32_t x)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
#pragma unroll
    for (uint32_t delta = 1; delta < KVA_WARP; delta *= 2) {
        uint32_t other = __shfl_up_sync(KVA_ALL, x, delta);
        x += lane >= delta ? other : 0;
    }
    return x;
}

/* The thread's digits, the largest last; they are zero afterwards. */
static __device__ __forceinline__ void take_counts(radix &shared, uint32_t (&own)[RADIX_OWN])
{
    const uint32_t first = (RADIX_THREADS - 1 - threadIdx.x) * (RADIX_OWN / 4);
#pragma unroll
    for (uint32_t i = 0; i < RADIX_OWN / 4; i++) {
        const uint4 four = shared.counts[first + i];
        own[4 * i] = four.x;
        own[4 * i + 1] = four.y;
        own[4 * i + 2] = four.z;
        own[4 * i + 3] = four.w;
        shared.counts[first + i] = make_uint4(0, 0, 0, 0);
    }
}

/* The largest digit of which, with all larger ones, there are *left at least; *left becomes how many
 * of it are needed. False: there are too few. */
static __device__ bool find_digit(radix &shared, uint32_t *left, uint32_t *ret_digit)
{
    uint32_t own[RADIX_OWN], sum = 0, more = 0, total = 0;
    take_counts(shared, own);
#pragma unroll
    for (uint32_t i = 0; i < RADIX_OWN; i++)
        sum += own[i];
    const uint32_t upto = sum_upto(sum);
    if (threadIdx.x % KVA_WARP == KVA_WARP - 1)
        shared.parts[threadIdx.x / KVA_WARP] = upto;
    __syncthreads(); /* every warp's sum is there */
#pragma unroll
    for (uint32_t i = 0; i < RADIX_WARPS; i++) {
        more += i < threadIdx.x / KVA_WARP ? shared.parts[i] : 0;
        total += shared.parts[i];
    }
    more += upto - sum;
    bool found = more < *left && *left <= more + sum; /* in one thread at most */
#pragma unroll
    for (uint32_t i = RADIX_OWN; i-- > 0;) {
        if (found && *left <= more + own[i]) {
            shared.found[0] = (RADIX_THREADS - 1 - threadIdx.x) * RADIX_OWN + i;
            shared.found[1] = *left - more;
            found = false;
        }
        more += own[i];
    }
    __syncthreads(); /* the digit is found */
    if (total < *left)
        return false;
    *ret_digit = shared.found[0];
    *left = shared.found[1];
    return true;
}

/* Of the keys whose bits from `shift` + `bits` on are `prefix`, the next digits; the first ones of
 * those from `bound` on. */
static __device__ __forceinline__ void count_keys(radix &shared, const uint32_t (&keys)[RADIX_KEYS],
                                                  int shift, int bits, uint32_t prefix,
                                                  uint32_t bound)
{
    uint32_t *counts = &shared.counts[0].x;
#pragma unroll
    for (uint32_t i = 0; i < RADIX_KEYS; i++) {
        const uint32_t x = keys[i];
        if (x && (bits + shift == 32 ? x >= bound : x >> (shift + bits) == prefix))
            atomicAdd(&counts[x >> shift & ((1u << bits) - 1)], 1u);
    }
}

/* A key that at least `wanted` of the block's are not below; 0: none is known. A lane's largest key
 * is no less than the least of its warp's, so that as many warps as there are lanes wanted by the
 * warp have a lane's each. Most keys are below it, and need not be counted. */
static __device__ uint32_t find_bound(radix &shared, uint32_t wanted,
                                      const uint32_t (&keys)[RADIX_KEYS])
{
    const uint32_t warps = (wanted + KVA_WARP - 1) / KVA_WARP;
    uint32_t least = 0, bound = 0;
#pragma unroll
    for (uint32_t i = 0; i < RADIX_KEYS; i++)
        least = max(least, keys[i]);
#pragma unroll
    for (int lanes = KVA_WARP / 2; lanes > 0; lanes /= 2)
        least = min(least, __shfl_xor_sync(KVA_ALL, least, lanes));
    if (threadIdx.x % KVA_WARP == 0)
        shared.parts[threadIdx.x / KVA_WARP] = least;
    __syncthreads(); /* every warp's least is there */
#pragma unroll
    for (uint32_t i = 0; i < RADIX_WARPS; i++) {
        const uint32_t own = shared.parts[i];
        uint32_t above = 0; /* warps whose least is no less, this one among them */
#pragma unroll
        for (uint32_t j = 0; j < RADIX_WARPS; j++)
            above += shared.parts[j] >= own;
        bound = above >= warps ? max(bound, own) : bound;
    }
    return bound;
}

/* What is taken of a selection: keys above `least`, and the first `equal` of those that equal it.
 * least 0: all keys. */
struct radix_border {
    uint32_t least, equal;
};

/* The `wanted`-th largest (from 1) of the keys that load(keys, chunk) gives, zeros left out. All
 * threads of a block of RADIX_THREADS. `keys` are those of the only chunk, if there is one. */
template <typename Load>
static __device__ radix_border find_border(radix &shared, Load load, uint32_t chunks,
                                           uint32_t wanted, uint32_t (&keys)[RADIX_KEYS])
{
    uint32_t prefix = 0, left = wanted, bound = 0, digit;
    __syncthreads(); /* whatever was there has been read */
#pragma unroll
    for (uint32_t i = 0; i < RADIX_OWN / 4; i++)
        shared.counts[threadIdx.x * (RADIX_OWN / 4) + i] = make_uint4(0, 0, 0, 0);
    if (chunks == 1) {
        load(keys, 0);
        bound = find_bound(shared, wanted, keys);
    }
#pragma unroll 1
    for (int pass = 0; pass < 3; pass++) {
        const int bits = pass < 2 ? RADIX_BITS : 32 - 2 * RADIX_BITS;
        const int shift = pass < 2 ? 32 - (pass + 1) * RADIX_BITS : 0;
        __syncthreads(); /* no key is counted before; the counts are zero */
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            if (chunks > 1)
                load(keys, chunk);
            count_keys(shared, keys, shift, bits, prefix, bound);
        }
        __syncthreads(); /* all keys are counted */
        if (!find_digit(shared, &left, &digit))
            return {0, 0};
        prefix = prefix << bits | digit;
    }
    return {prefix, left};
}

/* How many of four keys are above the border, and in the high half, how many equal it. */
static __device__ __forceinline__ uint32_t count_four(const uint32_t *keys, uint32_t least)
{
    uint32_t count = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        count += keys[i] > least ? 1u : keys[i] && keys[i] == least ? 0x10000u : 0;
    return count;
}

/* before[j] = the counts (count_four) of the chunk's keys before the thread's piece j; returns
 * those of all. */
static __device__ __forceinline__ uint32_t count_before(radix &shared,
                                                        const uint32_t (&keys)[RADIX_KEYS],
                                                        uint32_t least,
                                                        uint32_t (&before)[RADIX_PIECES])
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    __syncthreads(); /* the parts of the chunk before have been read */
#pragma unroll
    for (uint32_t j = 0; j < RADIX_PIECES; j++) {
        const uint32_t own = count_four(keys + 4 * j, least), upto = sum_upto(own);
        before[j] = upto - own;
        if (lane == KVA_WARP - 1)
            shared.parts[j * RADIX_WARPS + warp] = upto;
    }
    __syncthreads(); /* every warp has counted */
    const uint32_t part = shared.parts[lane], upto = sum_upto(part);
#pragma unroll
    for (uint32_t j = 0; j < RADIX_PIECES; j++)
        before[j] += __shfl_sync(KVA_ALL, upto - part, static_cast<int>(j * RADIX_WARPS + warp));
    return __shfl_sync(KVA_ALL, upto, static_cast<int>(KVA_WARP - 1));
}

/* take(rank, at, key) for each key within the border, `at` its place among the keys, ranks ascending
 * with it; *ret_same: how many equal the border, taken or not. Returns how many were taken. */
template <typename Load, typename Take>
static __device__ uint32_t take_keys(radix &shared, Load load, uint32_t chunks, radix_border border,
                                     uint32_t (&keys)[RADIX_KEYS], Take take, uint32_t *ret_same)
{
    static_assert(RADIX_PIECES * RADIX_WARPS == KVA_WARP, "a lane sums up a piece of a warp");
    uint32_t above_before = 0, same_before = 0, before[RADIX_PIECES];
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        if (chunks > 1)
            load(keys, chunk);
        const uint32_t total = count_before(shared, keys, border.least, before);
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++) {
            uint32_t &counts = before[i / 4];
            const uint32_t above = above_before + (counts & 0xFFFFu);
            const uint32_t same = same_before + (counts >> 16);
            const bool equals = keys[i] && keys[i] == border.least;
            if (keys[i] > border.least || (equals && same < border.equal))
                take(above + min(same, border.equal), chunk * RADIX_CHUNK + radix_at(i), keys[i]);
            counts += keys[i] > border.least ? 1u : equals ? 0x10000u : 0;
        }
        above_before += total & 0xFFFFu;
        same_before += total >> 16;
    }
    *ret_same = same_before;
    return above_before + min(same_before, border.equal);
}

/* The `wanted` largest keys, as take_keys. */
template <typename Load, typename Take>
static __device__ uint32_t take_largest(radix &shared, Load load, uint32_t chunks, uint32_t wanted,
                                        Take take)
{
    uint32_t keys[RADIX_KEYS], same;
    const radix_border border = find_border(shared, load, chunks, wanted, keys);
    return take_keys(shared, load, chunks, border, keys, take, &same);
}

#endif
