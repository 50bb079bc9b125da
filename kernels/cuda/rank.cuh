/* rank.cuh - numbers in their order, by a block of RANK_THREADS threads: entries that are kept
 * (keep.cu), positions of a store (keep_rows.cu).
 *
 *   find_border     the least of the largest: a histogram of where they lie, then one of the digit
 *                   that it is in, and so on, until all of a digit are wanted
 *   rank_numbers    how many are less than each: sorted by digits of eight bits, the lowest first
 *   rank_different  the same of numbers that all differ and lie close together, as positions do: a
 *                   bit for each number that may be there
 *
 * Numbers come from get() and results go to put(), by whatever thread; results do not depend on
 * the order in which threads run. */
#ifndef KVA_KERNELS_CUDA_RANK_CUH
#define KVA_KERNELS_CUDA_RANK_CUH

#include "kernels/cuda/number.cuh"

#define RANK_THREADS  512u
#define RANK_WARPS    (RANK_THREADS / KVA_WARP)

#define BORDER_BITS   11
#define BORDER_DIGITS (1u << BORDER_BITS)

#define RANK_BITS     8
#define RANK_DIGITS   (1u << RANK_BITS) /* a thread has one at most */

#define AHEAD         4u /* numbers that a thread has on their way */

#define WINDOW_WORDS  2048u
#define WINDOW        (WINDOW_WORDS * 32u) /* numbers that there are bits for */

/* The least number that is wanted; of the `same` numbers from it to the next larger one that is
 * told apart, `left` are wanted. */
struct rank_border {
    uint32_t least, left, same;
};

/* Shared memory of a block. */
struct rank_shared {
    uint32_t counts[RANK_WARPS * RANK_DIGITS]; /* of find_border, BORDER_DIGITS; of rank_numbers,
                                                  by warp; of rank_different, the bits, and how many
                                                  are before each word */
    uint32_t parts[RANK_WARPS], lows[RANK_WARPS], highs[RANK_WARPS];
    rank_border found;
};

/* low and high = the least and the greatest of the block's. */
static __device__ void rank_ends(rank_shared &shared, uint32_t *low, uint32_t *high)
{
#pragma unroll
    for (int lanes = KVA_WARP / 2; lanes > 0; lanes /= 2) {
        *low = min(*low, __shfl_xor_sync(KVA_ALL, *low, lanes));
        *high = max(*high, __shfl_xor_sync(KVA_ALL, *high, lanes));
    }
    if (threadIdx.x % KVA_WARP == 0) {
        shared.lows[threadIdx.x / KVA_WARP] = *low;
        shared.highs[threadIdx.x / KVA_WARP] = *high;
    }
    __syncthreads(); /* every warp's ends are there */
#pragma unroll
    for (uint32_t i = 0; i < RANK_WARPS; i++) {
        *low = min(*low, shared.lows[i]);
        *high = max(*high, shared.highs[i]);
    }
}

/* --- the least of the largest ----------------------------------------------------------------- */

/* The largest digit of which, with all larger ones, there are `left` at least. */
static __device__ rank_border find_border_digit(rank_shared &shared, uint32_t left)
{
    const uint32_t own = BORDER_DIGITS / RANK_THREADS;
    const uint32_t first =
        (RANK_THREADS - 1 - threadIdx.x) * own; /* the largest digits come first */
    uint32_t sum = 0, total;
#pragma unroll
    for (uint32_t i = 0; i < own; i++)
        sum += shared.counts[first + i];
    uint32_t more = kva_sum_before(sum, shared.parts, &total);
    if (more < left && left <= more + sum) { /* one thread at most */
        uint32_t digit = first + own - 1;
        for (; more + shared.counts[digit] < left; digit--)
            more += shared.counts[digit];
        shared.found = {digit, left - more, shared.counts[digit]};
    }
    __syncthreads(); /* the digit is found */
    return shared.found;
}

/* The least of the `wanted` largest, from 1, of the numbers that get(i, &x) says are there: there
 * are so many. Digits are of the range that is left from its least to its greatest number, so that
 * numbers of few magnitudes are told apart, and what they have in common costs nothing. */
template <typename Get>
static __device__ rank_border find_border(rank_shared &shared, uint32_t count, uint32_t wanted,
                                          Get get)
{
    const uint32_t own = BORDER_DIGITS / RANK_THREADS;
    uint32_t low = 0, high = UINT32_MAX, x;
    rank_border border = {0, wanted, 0};
    int shift;
    __syncthreads(); /* every number is there; what was in shared memory has been read */
    do {
        uint32_t least = UINT32_MAX, most = 0;
        for (uint32_t i = threadIdx.x; i < count; i += RANK_THREADS) {
            if (get(i, &x) && x - low <= high - low) {
                least = min(least, x);
                most = max(most, x);
            }
        }
        /* The digits that the thread has looked at. */
#pragma unroll
        for (uint32_t i = 0; i < own; i++)
            shared.counts[(RANK_THREADS - 1 - threadIdx.x) * own + i] = 0;
        rank_ends(shared, &least, &most); /* counts are zero, too */
        low = least;
        high = most;
        shift = max(32 - __clz(static_cast<int>(high - low)) - BORDER_BITS, 0);
        for (uint32_t base = threadIdx.x; base < count; base += AHEAD * RANK_THREADS) {
            uint32_t own_x[AHEAD], there = 0;
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                const uint32_t i = base + j * RANK_THREADS;
                own_x[j] = 0;
                if (i < count && get(i, &own_x[j]) && own_x[j] - low <= high - low)
                    there |= 1u << j;
            }
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                if (there >> j & 1u)
                    atomicAdd(&shared.counts[(own_x[j] - low) >> shift], 1u);
            }
        }
        __syncthreads(); /* all numbers are counted */
        border = find_border_digit(shared, border.left);
        low += border.least << shift;
        high = min(high, low + ((1u << shift) - 1));
    } while (shift > 0 && border.left < border.same);
    return {low, border.left, border.same};
}

/* --- ranks ------------------------------------------------------------------------------------ */

typedef unsigned long long rank_number; /* the number, and in the low half whose it is */

/* The lanes of the warp that have a number with this digit. */
static __device__ __forceinline__ uint32_t rank_same(uint32_t digit, bool there)
{
    uint32_t same = __ballot_sync(KVA_ALL, there);
#pragma unroll
    for (uint32_t bit = 0; bit < RANK_BITS; bit++) {
        const uint32_t set = __ballot_sync(KVA_ALL, digit >> bit & 1u);
        same &= digit >> bit & 1u ? set : ~set;
    }
    return same;
}

/* counts = where the warps' numbers of each digit begin, lower digits first, then earlier warps. */
static __device__ void rank_places(rank_shared &shared)
{
    const bool has_digit = threadIdx.x < RANK_DIGITS;
    uint32_t *counts = shared.counts + threadIdx.x, sum = 0, total;
#pragma unroll
    for (uint32_t i = 0; i < RANK_WARPS; i++)
        sum += has_digit ? counts[i * RANK_DIGITS] : 0;
    uint32_t before = kva_sum_before(sum, shared.parts, &total);
    for (uint32_t i = 0; i < RANK_WARPS && has_digit; i++) {
        const uint32_t own = counts[i * RANK_DIGITS];
        counts[i * RANK_DIGITS] = before;
        before += own;
    }
    __syncthreads(); /* every place is known */
}

/* to = from by the digit from bit `shift` on; what has the same one stays in its order. A warp has
 * a piece of `from`. */
static __device__ void rank_sort(rank_shared &shared, const rank_number *from, rank_number *to,
                                 uint32_t count, int shift)
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    const uint32_t piece = (count + RANK_THREADS - 1) / RANK_THREADS * KVA_WARP;
    const uint32_t first = warp * piece, end = min(first + piece, count);
    uint32_t *places = shared.counts + warp * RANK_DIGITS;
    for (uint32_t i = lane; i < RANK_DIGITS; i += KVA_WARP)
        places[i] = 0;
    __syncwarp(); /* the warp's counts are zero */
    for (uint32_t base = first + lane; base < end; base += AHEAD * KVA_WARP) {
        rank_number x[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++)
            x[j] = base + j * KVA_WARP < end ? from[base + j * KVA_WARP] : 0;
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            if (base + j * KVA_WARP < end)
                atomicAdd(&places[x[j] >> shift & (RANK_DIGITS - 1)], 1u);
        }
    }
    __syncthreads(); /* every warp has counted */
    rank_places(shared);
    rank_number next = first + lane < end ? from[first + lane] : 0;
    for (uint32_t base = first; base < end; base += KVA_WARP) {
        const bool there = base + lane < end;
        const rank_number x = next;
        next = base + KVA_WARP + lane < end ? from[base + KVA_WARP + lane] : 0;
        const uint32_t digit = x >> shift & (RANK_DIGITS - 1), place = places[digit];
        const uint32_t same = rank_same(digit, there);
        const uint32_t before = __popc(same & ((1u << lane) - 1));
        __syncwarp(); /* the lanes have read where their digits go on */
        if (there)
            to[place + before] = x;
        if (there && before == 0)
            places[digit] = place + __popc(same);
        __syncwarp(); /* digits go on behind what these lanes have */
    }
    __syncthreads(); /* all numbers are in their places */
}

/* How many of ascending numbers are less than the one at `at`. */
static __device__ uint32_t rank_less(const rank_number *sorted, uint32_t at)
{
    const uint32_t own = sorted[at] >> 32;
    uint32_t first = 0, end = at; /* the first that is not less is from one to the other */
    if (at == 0 || sorted[at - 1] >> 32 < own)
        return at;
    while (first < end) {
        const uint32_t middle = (first + end) / 2;
        if (sorted[middle] >> 32 < own)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* put(i, less) for each i < count: how many of the numbers get(i) are less than its own. `numbers`
 * has room for 2 * count. */
template <typename Get, typename Put>
static __device__ void rank_numbers(rank_shared &shared, rank_number *numbers, uint32_t count,
                                    Get get, Put put)
{
    rank_number *other = numbers + count;
    for (uint32_t i = threadIdx.x; i < count; i += RANK_THREADS)
        numbers[i] = static_cast<rank_number>(get(i)) << 32 | i;
    __syncthreads(); /* every number is there */
    for (int shift = 32; shift < 64; shift += 2 * RANK_BITS) {
        rank_sort(shared, numbers, other, count, shift);
        rank_sort(shared, other, numbers, count, shift + RANK_BITS);
    }
    for (uint32_t i = threadIdx.x; i < count; i += RANK_THREADS)
        put(static_cast<uint32_t>(numbers[i]), rank_less(numbers, i));
    __syncthreads(); /* every number has been looked at */
}

/* --- ranks of numbers that differ -------------------------------------------------------------- */

/* before[i] = how many bits there are before word i of the window; returns how many there are. */
static __device__ uint32_t rank_words(rank_shared &shared)
{
    const uint32_t own = WINDOW_WORDS / RANK_THREADS, first = threadIdx.x * own;
    uint32_t *words = shared.counts + first, sum = 0, total;
#pragma unroll
    for (uint32_t i = 0; i < own; i++)
        sum += __popc(words[i]);
    uint32_t before = kva_sum_before(sum, shared.parts, &total);
#pragma unroll
    for (uint32_t i = 0; i < own; i++) {
        words[WINDOW_WORDS + i] = before;
        before += __popc(words[i]);
    }
    __syncthreads(); /* every word's are known */
    return total;
}

/* put(i, less) for each i < count: how many of the numbers get(i), which differ and are less than
 * UINT32_MAX, are less than its own. Of numbers that lie further apart there is window after
 * window, from the least number on that was in none. */
template <typename Get, typename Put>
static __device__ void rank_different(rank_shared &shared, uint32_t count, Get get, Put put)
{
    static_assert(2 * WINDOW_WORDS <= RANK_WARPS * RANK_DIGITS, "two arrays in one");
    uint32_t *words = shared.counts, done = 0, least = 0;
    while (done < count) {
        uint32_t low = UINT32_MAX, most = 0;
        for (uint32_t i = threadIdx.x; i < count; i += RANK_THREADS)
            low = get(i) >= least ? min(low, get(i)) : low;
        __syncthreads(); /* the window before has been looked at */
        for (uint32_t i = threadIdx.x; i < WINDOW_WORDS; i += RANK_THREADS)
            words[i] = 0;
        rank_ends(shared, &low, &most); /* no bit is set, too */
        for (uint32_t i = threadIdx.x; i < count; i += RANK_THREADS) {
            const uint32_t x = get(i) - low;
            if (get(i) >= low && x < WINDOW)
                atomicOr(&words[x / 32], 1u << x % 32);
        }
        __syncthreads(); /* every number has its bit */
        const uint32_t total = rank_words(shared);
        for (uint32_t i = threadIdx.x; i < count; i += RANK_THREADS) {
            const uint32_t x = get(i) - low;
            if (get(i) >= low && x < WINDOW)
                put(i, done + words[WINDOW_WORDS + x / 32] +
                           __popc(words[x / 32] & ((1u << x % 32) - 1)));
        }
        if (total == 0 || low >= UINT32_MAX - WINDOW)
            return; /* some were equal */
        done += total;
        least = low + WINDOW;
    }
}

#endif
