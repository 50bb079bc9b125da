/* weigh_choose.cu - weigh_choose: which tokens a row gave most of its attention to, by what
 * attend_lowbit kept of pages (kva_peaks_of) and by a second look at the keys of those pages alone
 * that may have such a token.
 *
 * A page's tokens have at most what its peaks come to together, over heads, and one of them has each
 * peak. The keys of a few pages that may have most are multiplied once more, which gives the same
 * scores. The k-th largest of their weights, of those of rows, and of the other pages' single peaks
 * is no more than the k-th largest weight of all, and a page whose peaks come to less has none of
 * the k. The keys of the others are multiplied, too, and of these weights, in the caller's memory,
 * and of rows the largest are taken. What is bounded by peaks is rounded as weights are, so that
 * nothing is near enough to be missed: together it is weigh and choose, to the bit.
 *
 * A block of threads has a KV head of a sequence. */
#include "kernels/cuda/lowbit_pairs.cuh"
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/weigh.cuh"

struct page_choice {
    weigh_params weigh;
    lowbit_params pages; /* their shape, sequences, blocks */
    const struct kva_choose_seq *seqs;
    uint32_t bits, group; /* of keys */
    uint32_t key_bytes;   /* of a page's keys in shared memory */
    uint32_t warps;       /* that score pages, each with two in shared memory */
};

/* Pages that are listed in shared memory at a time. */
#define BATCH 128u

/* Pages that are scored first, which a warp finds and scores. */
#define FIRST RADIX_WARPS

/* Of a page in a list: its keys are multiplied, or have been. Without, some of its rows may be
 * chosen, and nothing else of it. */
#define SCORED  0x80000000u
#define DONE    0x40000000u
#define PAGE_OF 0x3FFFFFFFu

/* What a block shares besides the pages that are scored. */
template <int D> struct choice_memory {
    weigh_totals totals;
    warp_memory<D, 1> queries; /* of eight heads */
    uint32_t parts[RADIX_WARPS], first[FIRST];
    union {
        weigh_list list;
        radix largest;
        struct {
            uint32_t pages[BATCH];
            uint32_t rows[BATCH][TILE / 32]; /* tokens that have rows */
        } batch;
    };
};

/* What a block is about. */
struct head_choice {
    const struct kva_choose_seq &seq;
    const weigh_seq &weighed;
    const lowbit_seq &low;
    uint32_t kv_head, rows; /* that the KV head has */
    float *weights;         /* of the KV head, in memory: of pages that are listed, and of rows */
    float *least;           /* [page_count]: that a token of the page has; then, as words, which
                               pages are listed */
    float *most;            /* [page_count]: that a token of the page has; then the list */
    uint32_t *first;        /* shared [FIRST]: the pages that are scored first */
    uint32_t first_count;
};

static __device__ __forceinline__ uint32_t key_of_most(float weight)
{
    return key_of(weight, KVA_CHOOSE_MOST);
}

/* --- which pages ------------------------------------------------------------------------------ */

/* least and most of every page, less than 0 where nothing is known or nothing is chosen; peaks
 * become what weights of the page are relative to, the largest of its run so far. What a token
 * weighs is no number where a head's score of it is none: then its attention has no sum, and that
 * a head's peak is there does not mean that its token may be chosen. */
static __device__ void bound_pages(const weigh_params &p, const weigh_totals &totals,
                                   const head_choice &c)
{
    static_assert(RADIX_THREADS % RUN_TILES == 0 && KVA_WARP % RUN_TILES == 0, "runs in a warp");
    const uint32_t pages = c.low.page_count, in_run = threadIdx.x % RUN_TILES;
    for (uint32_t base = 0; base < pages; base += RADIX_THREADS) {
        const uint32_t page = base + threadIdx.x;
        const bool seen = page < pages && (page + 1) * TILE > c.weighed.first;
        float least = 0.0f, most = 0.0f;
        bool numbers = true;
#pragma unroll 4
        for (uint32_t h = 0; h < p.group; h++) {
            float *peaks = kva_peaks_of(c.low.peaks, pages, c.kv_head * p.group + h).tops;
            const float peak = seen ? peaks[page] : -INFINITY;
            float top = peak; /* of the run so far */
#pragma unroll
            for (uint32_t delta = 1; delta < RUN_TILES; delta *= 2) {
                const float before = __shfl_up_sync(KVA_ALL, top, delta);
                top = in_run >= delta ? fmaxf(top, before) : top;
            }
            if (seen)
                peaks[page] = top;
            numbers = numbers && totals.inverse[h] > 0.0f;
            const float factor = kept_factor(top, totals, h);
            const float weight = kept_weight(peak, top);
            least = fmaxf(least, __fmul_rn(kva_to_f32(keep_weight(weight)), factor));
            /* exp2 is that of the hardware, whose results need not ascend to the last bit. */
            most = fmaf(kva_to_f32(keep_weight(weight * (1.0f + 0x1p-20f))), factor, most);
        }
        if (page >= pages)
            continue;
        const bool whole = page * TILE >= c.seq.first && (page + 1) * TILE <= c.seq.end;
        const bool some = seen && (page + 1) * TILE > c.seq.first && page * TILE < c.seq.end;
        c.least[page] = whole && numbers && most >= 0.0f ? least : -1.0f;
        c.most[page] = some ? most : -1.0f;
    }
}

/* c.first = of every FIRST-th page the one with the largest bound, a warp each. Of few pages all may
 * be scored at once; none is first, either, where some warp finds nothing to choose. */
static __device__ void find_first(head_choice &c)
{
    const uint32_t pages = c.low.page_count, lane = threadIdx.x % KVA_WARP;
    const uint32_t warp = threadIdx.x / KVA_WARP;
    float most = -1.0f;
    uint32_t at = 0;
    __syncthreads(); /* all bounds are there */
    if (pages <= 2 * FIRST)
        return;
    for (uint32_t page = lane * FIRST + warp; page < pages; page += FIRST * KVA_WARP) {
        at = c.most[page] > most ? page : at;
        most = fmaxf(most, c.most[page]);
    }
#pragma unroll
    for (int lanes = KVA_WARP / 2; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(KVA_ALL, most, lanes);
        const uint32_t other_at = __shfl_xor_sync(KVA_ALL, at, lanes);
        at = other > most || (other == most && other_at < at) ? other_at : at;
        most = fmaxf(most, other);
    }
    if (lane == 0)
        c.first[warp] = at | (most >= 0.0f ? SCORED : 0);
    __syncthreads(); /* the first pages are known */
    const uint32_t own = c.first[threadIdx.x % FIRST];
    uint32_t rank = 0;
    bool all = true;
#pragma unroll
    for (uint32_t i = 0; i < FIRST; i++) {
        all = all && c.first[i] & SCORED;
        rank += c.first[i] < own ? 1 : 0;
    }
    __syncthreads(); /* they have been read */
    c.first_count = all ? FIRST : 0;
    /* Ascending; their tokens will be known, and count instead. */
    if (threadIdx.x < c.first_count) {
        c.first[rank] = own;
        c.least[own & PAGE_OF] = -1.0f;
    }
}

/* A row of the KV head that may be chosen, and its key; 0: row i is none. */
static __device__ __forceinline__ uint32_t key_of_row(const head_choice &c, uint32_t i,
                                                      uint32_t &token)
{
    token = find_row(c.weighed, c.kv_head, c.rows, i).token;
    const uint32_t first = max(c.seq.first, c.weighed.first);
    const bool own = token != KVA_NO_TOKEN && token >= first && token < c.seq.end;
    return own ? key_of_most(c.weights[token]) : 0;
}

/* The key of token `at` of the first pages; 0: there is none, or it is no candidate. */
static __device__ __forceinline__ uint32_t key_of_first(const head_choice &c, uint32_t at)
{
    if (at >= c.first_count * TILE)
        return 0;
    const uint32_t token = (c.first[at / TILE] & PAGE_OF) * TILE + at % TILE;
    return token >= c.seq.first && token < c.seq.end ? key_of_most(c.weights[token]) : 0;
}

/* The key of row i, unless its page may be one of the first. */
static __device__ __forceinline__ uint32_t key_of_other_row(const head_choice &c, uint32_t i)
{
    uint32_t token;
    const uint32_t key = key_of_row(c, i, token);
    return key && c.least[token / TILE] < 0.0f ? 0 : key;
}

/* The least key that a token needs; 1: fewer than k are known, any candidate's will do. */
static __device__ uint32_t find_least(radix &shared, const head_choice &c)
{
    const uint32_t pages = c.low.page_count, rows_end = pages + c.rows;
    auto load = [&](uint32_t(&keys)[RADIX_KEYS], uint32_t chunk) {
#pragma unroll
        for (uint32_t i = 0; i < RADIX_KEYS; i++) {
            const uint32_t at = chunk * RADIX_CHUNK + radix_at(i);
            keys[i] = at < pages      ? key_of_most(c.least[at])
                      : at < rows_end ? key_of_other_row(c, at - pages)
                                      : key_of_first(c, at - rows_end);
        }
    };
    const uint32_t all = rows_end + c.first_count * TILE;
    uint32_t keys[RADIX_KEYS];
    return max(find_border(shared, load, radix_chunks(all), c.seq.k, keys).least, 1u);
}

/* Marks of a page: that some of its rows may be chosen; that some of its other tokens may; that it
 * has been scored. */
#define MARK_ROWS   1u
#define MARK_TOKENS 2u
#define MARK_FIRST  4u

/* c.least = the marks of pages. */
static __device__ void mark_pages(const head_choice &c, uint32_t least)
{
    const uint32_t pages = c.low.page_count;
    const float share = c.seq.successor;
    auto *marks = reinterpret_cast<uint32_t *>(c.least);
    auto enough = [&](float weight) { return key_of_most(weight) >= least; };
    for (uint32_t page = threadIdx.x; page < pages; page += RADIX_THREADS) {
        const float before = page > 0 ? c.most[page - 1] : -1.0f;
        marks[page] =
            enough(c.most[page]) || (share > 0.0f && enough(before * share)) ? MARK_TOKENS : 0;
    }
    __syncthreads(); /* pages are marked */
    if (threadIdx.x < c.first_count)
        atomicOr(&marks[c.first[threadIdx.x] & PAGE_OF], MARK_FIRST);
    for (uint32_t i = threadIdx.x; i < c.rows; i += RADIX_THREADS) {
        uint32_t token;
        const uint32_t key = key_of_row(c, i, token);
        if (key == 0)
            continue;
        if (key >= least)
            atomicOr(&marks[token / TILE], MARK_ROWS);
        if (share > 0.0f && enough(c.weights[token] * share) && (token + 1) / TILE < pages)
            atomicOr(&marks[(token + 1) / TILE], MARK_TOKENS);
    }
    __syncthreads(); /* those of rows are, too */
}

static __device__ __forceinline__ uint32_t kind_of(uint32_t mark)
{
    return mark & MARK_FIRST ? DONE : mark & MARK_TOKENS ? SCORED : 0;
}

/* c.most = the marked pages, ascending; returns how many. */
static __device__ uint32_t list_pages(uint32_t *parts, const head_choice &c)
{
    const auto *marks = reinterpret_cast<const uint32_t *>(c.least);
    auto *list = reinterpret_cast<uint32_t *>(c.most);
    uint32_t count = 0;
    for (uint32_t base = 0; base < c.low.page_count; base += RADIX_THREADS) {
        const uint32_t page = base + threadIdx.x, mark = page < c.low.page_count ? marks[page] : 0;
        uint32_t total;
        const uint32_t before = kva_sum_before(mark > 0, parts, &total);
        if (mark > 0)
            list[count + before] = page | kind_of(mark);
        count += total;
    }
    __syncthreads(); /* the list is complete */
    return count;
}

/* --- their tokens ----------------------------------------------------------------------------- */

/* Pages [from, from + BATCH) of a list come to shared memory, with the tokens that rows have;
 * returns how many. */
template <int D>
static __device__ uint32_t take_batch(choice_memory<D> &shared, const head_choice &c,
                                      const uint32_t *list, uint32_t from, uint32_t count)
{
    const uint32_t taken = min(count - from, BATCH);
    __syncthreads(); /* the batch before has been scored, and the list's memory is free */
    for (uint32_t i = threadIdx.x; i < taken; i += RADIX_THREADS) {
        shared.batch.pages[i] = list[from + i];
        shared.batch.rows[i][0] = shared.batch.rows[i][1] = 0;
    }
    __syncthreads(); /* the batch is there */
    for (uint32_t i = threadIdx.x; i < c.rows; i += RADIX_THREADS) {
        const uint32_t token = find_row(c.weighed, c.kv_head, c.rows, i).token;
        uint32_t low = 0, high = taken; /* the first page that is not before the token's */
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if ((shared.batch.pages[middle] & PAGE_OF) < token / TILE)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < taken && (shared.batch.pages[low] & PAGE_OF) == token / TILE)
            atomicOr(&shared.batch.rows[low][token % TILE / 32], 1u << token % 32);
    }
    __syncthreads(); /* rows are marked */
    return taken;
}

/* Heads [first, end) of the KV head, eight at most. */
struct head_range {
    uint32_t first, end;
};

/* Four tokens of the lane's, from `token` on: their weights go to memory, but those of rows, which
 * are there. `last`: these are the sums over all heads. */
static __device__ __forceinline__ void put_four(const head_choice &c, uint32_t token, uint32_t rows,
                                                const float *sums, bool last)
{
#pragma unroll
    for (uint32_t n = 0; n < 4; n++) {
        const bool seen = token + n >= c.weighed.first;
        if (seen && rows >> n & 1)
            continue;
        c.weights[token + n] = !last || (seen && sums[n] >= 0.0f) ? sums[n] : -1.0f;
    }
}

/* s = the scores of a page's tokens and of eight heads, as multiply_keys has them. */
template <int D, int BITS, int GROUP>
static __device__ void score_keys(float (&s)[2][2][1][4], const warp_memory<D, 1> &queries,
                                  const unsigned char *keys, uint32_t lane)
{
    float zeros[2][1][4] = {};
    multiply_keys<D, BITS, GROUP, 1>(s, zeros, &queries.q[lane / 4][lane % 4 * 8],
                                     warp_memory<D, 1>::q_row, keys, lane);
    find_scores<D, BITS, GROUP, 1>(s, zeros, queries, keys, lane);
}

template <int D, int GROUP>
static __device__ void score_page(float (&s)[2][2][1][4], const warp_memory<D, 1> &queries,
                                  uint32_t bits, const unsigned char *keys, uint32_t lane)
{
    if (bits == 1)
        score_keys<D, 1 + NO_VALUES, GROUP>(s, queries, keys, lane);
    else if (bits == 2)
        score_keys<D, 2 + NO_VALUES, GROUP>(s, queries, keys, lane);
    else
        score_keys<D, 4 + NO_VALUES, GROUP>(s, queries, keys, lane);
}

/* The weights of a page's tokens by heads [range.first, range.end), added to what those before have
 * given. The lanes of a token's pairs add theirs one after the other: heads ascend. */
template <int D>
static __device__ void weigh_page(choice_memory<D> &shared, const page_choice &p,
                                  const head_choice &c, const head_range &range,
                                  const unsigned char *keys, uint32_t i, uint32_t lane)
{
    const uint32_t page = shared.batch.pages[i] & PAGE_OF, group = p.weigh.group;
    float s[2][2][1][4] = {}, sums[8], factor[2], top[2];
    if (p.group == 32)
        score_page<D, 32>(s, shared.queries, p.bits, keys, lane);
    else
        score_page<D, 64>(s, shared.queries, p.bits, keys, lane);
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t h = min(range.first + lane % 4 * 2 + j, group - 1);
        top[j] = kva_peaks_of(c.low.peaks, c.low.page_count, c.kv_head * group + h).tops[page];
        factor[j] = kept_factor(top[j], shared.totals, h);
    }
    const uint32_t token = page * TILE + lane / 4 * 4;
#pragma unroll
    for (uint32_t n = 0; n < 8; n++)
        sums[n] = range.first > 0 ? c.weights[token + n / 4 * 32 + n % 4] : 0.0f;
#pragma unroll
    for (uint32_t turn = 0; turn < 4; turn++) {
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            const bool own = lane % 4 == turn && range.first + turn * 2 + j < range.end;
#pragma unroll
            for (uint32_t n = 0; n < 8; n++) {
                const float weight = kept_weight(s[n / 4][n / 2 % 2][0][n % 2 * 2 + j], top[j]);
                const float sum = fmaf(kva_to_f32(keep_weight(weight)), factor[j], sums[n]);
                sums[n] = own ? sum : sums[n];
            }
        }
        if (turn == 3)
            break;
#pragma unroll
        for (uint32_t n = 0; n < 8; n++)
            sums[n] = __shfl_up_sync(KVA_ALL, sums[n], 1);
    }
    if (lane % 4 != 3)
        return;
#pragma unroll
    for (uint32_t part = 0; part < 2; part++)
        put_four(c, token + part * 32, shared.batch.rows[i][part] >> lane / 4 * 4, sums + part * 4,
                 range.end == group);
}

/* Nothing but a page's rows is chosen. */
static __device__ void hide_page(const head_choice &c, uint32_t page, const uint32_t *rows,
                                 uint32_t lane)
{
    for (uint32_t part = 0; part < TILE / 32; part++) {
        const uint32_t token = page * TILE + part * 32 + lane;
        if (!(rows[part] >> lane & 1) || token < c.weighed.first)
            c.weights[token] = -1.0f;
    }
}

/* The batch's pages, one a warp: the next one's keys are on their way meanwhile. */
template <int D>
static __device__ void weigh_batch(choice_memory<D> &shared, const page_choice &p,
                                   const head_choice &c, const head_range &range, uint32_t count,
                                   unsigned char *ring)
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    const void *const *blocks = p.pages.blocks + c.low.block_first;
    const size_t offset =
        p.pages.block_offset + static_cast<size_t>(c.kv_head) * p.pages.page.head_bytes;
    auto ask = [&](uint32_t i, uint32_t to) {
        if (i < count && shared.batch.pages[i] & SCORED) {
            const void *block = blocks[shared.batch.pages[i] & PAGE_OF];
            copy_keys<D>(ring + to * p.key_bytes,
                         static_cast<const unsigned char *>(block) + offset, p.pages.page, p.bits,
                         lane);
        }
        kva_copy_commit();
    };
    if (warp >= p.warps)
        return;
    uint32_t slot = 0;
    ask(warp, 0);
    for (uint32_t i = warp; i < count; i += p.warps) {
        ask(i + p.warps, 1 - slot);
        kva_copy_wait<1>();
        __syncwarp(); /* the page is there */
        if (shared.batch.pages[i] & SCORED)
            weigh_page(shared, p, c, range, ring + slot * p.key_bytes, i, lane);
        else if (range.first == 0 && !(shared.batch.pages[i] & DONE))
            hide_page(c, shared.batch.pages[i], shared.batch.rows[i], lane);
        __syncwarp(); /* it has been read */
        slot = 1 - slot;
    }
    kva_copy_wait<0>();
}

/* Zero what no copy writes: the channels that a head has not. */
template <int D> static __device__ void clear_rings(const page_choice &p)
{
    KVA_DYNAMIC_SHARED(unsigned char, rings);
    for (uint32_t i = threadIdx.x * 4; p.pages.page.dim < D && i < p.warps * 2 * p.key_bytes;
         i += RADIX_THREADS * 4)
        *reinterpret_cast<uint32_t *>(rings + i) = 0;
}

/* The weights of all pages of a list. */
template <int D>
static __device__ void weigh_pages(choice_memory<D> &shared, const page_choice &p,
                                   const head_choice &c, const uint32_t *list, uint32_t count)
{
    KVA_DYNAMIC_SHARED(unsigned char, rings);
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    unsigned char *ring = rings + warp * 2 * p.key_bytes;
    if (count == 0)
        return;
    item work = {};
    work.row_first = c.weighed.row;
    for (uint32_t h = 0; h < p.weigh.group; h += 8) {
        const head_range range = {h, min(h + 8, p.weigh.group)};
        work.pair_first = h;
        work.pair_count = range.end - h;
        __syncthreads(); /* the queries before have been multiplied */
        if (warp == 0)   /* with levels of channels they are the same of all formats */
            load_all_pairs<D, 1, 64, 1>(shared.queries, p.pages, c.low, work, c.kv_head, lane);
        for (uint32_t from = 0; from < count; from += BATCH) {
            const uint32_t taken = take_batch(shared, c, list, from, count);
            weigh_batch(shared, p, c, range, taken, ring);
        }
    }
}

/* --- the choice ------------------------------------------------------------------------------- */

/* The keys of a chunk of the listed pages' tokens, one page behind the other. */
static __device__ __forceinline__ void
load_listed(uint32_t (&keys)[RADIX_KEYS], const head_choice &c, uint32_t count, uint32_t chunk)
{
    const auto *list = reinterpret_cast<const uint32_t *>(c.most);
#pragma unroll
    for (uint32_t i = 0; i < RADIX_KEYS; i += 4) {
        const uint32_t at = chunk * RADIX_CHUNK + radix_at(i), of = at / TILE;
        if (of >= count) {
            keys[i] = keys[i + 1] = keys[i + 2] = keys[i + 3] = 0;
            continue;
        }
        const uint32_t page = list[of] & PAGE_OF, token = page * TILE + at % TILE;
        const float4 four = *reinterpret_cast<const float4 *>(c.weights + token);
        const float x[4] = {four.x, four.y, four.z, four.w};
        float before = -1.0f; /* of a page that is not listed: too little to count */
        if (at % TILE > 0 || (of > 0 && (list[of - 1] & PAGE_OF) + 1 == page))
            before = c.weights[token - 1];
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
            float weight = x[n];
            if (weight >= 0.0f && token + n > c.seq.first)
                weight = fmaxf(weight, before * c.seq.successor);
            before = x[n];
            keys[i + n] =
                token + n >= c.seq.first && token + n < c.seq.end ? key_of_most(weight) : 0;
        }
    }
}

static __device__ void choose_listed(radix &shared, const head_choice &c, uint32_t count)
{
    const auto *list = reinterpret_cast<const uint32_t *>(c.most);
    uint32_t *chosen = c.seq.chosen + static_cast<size_t>(c.kv_head) * c.seq.k;
    auto load = [&](uint32_t(&keys)[RADIX_KEYS], uint32_t chunk) {
        load_listed(keys, c, count, chunk);
    };
    auto take = [&](uint32_t rank, uint32_t at, uint32_t) {
        chosen[rank] = (list[at / TILE] & PAGE_OF) * TILE + at % TILE;
    };
    const uint32_t taken = take_largest(shared, load, radix_chunks(count * TILE), c.seq.k, take);
    for (uint32_t i = taken + threadIdx.x; i < c.seq.k; i += RADIX_THREADS)
        chosen[i] = KVA_NO_TOKEN;
}

/* --- the operator ----------------------------------------------------------------------------- */

template <int D>
static __global__ void __launch_bounds__(RADIX_THREADS, D > 128 ? 1 : 2)
    weigh_choose_kernel(page_choice p)
{
    kva_begin();
    static_assert(RADIX_THREADS == WEIGH_THREADS, "a block weighs what it chooses among");
    __shared__ choice_memory<D> shared;
    const struct kva_choose_seq &seq = p.seqs[blockIdx.x];
    const weigh_seq &weighed = p.weigh.seqs[blockIdx.x];
    const lowbit_seq &low = p.pages.seqs[blockIdx.x];
    if (kva_gate_closed(seq.gate))
        return;
    const uint32_t kv_head = blockIdx.y, pages = low.page_count;
    const uint32_t rows = weighed.has_rows ? weighed.cache.count[kv_head] : 0;
    float *own = kva_peaks_own(low.peaks, p.weigh.heads, pages, kv_head);
    float *weights = weighed.weights + static_cast<size_t>(kv_head) * weighed.end;
    head_choice c = {seq, weighed, low, kv_head, rows, weights, own, own + pages, shared.first, 0};
    clear_rings<D>(p);
    find_totals(p.weigh, weighed, kv_head, shared.totals); /* and the rings are clear */
    weigh_rows(p.weigh, shared.totals, shared.list, weighed, {kv_head, 0, weighed.end, c.weights},
               rows, find_row(weighed, kv_head, rows, threadIdx.x));
    bound_pages(p.weigh, shared.totals, c);
    find_first(c);
    const uint32_t *list = c.first;
    uint32_t count = c.first_count;
#pragma unroll 1
    for (uint32_t round = 0; round < 2; round++) { /* the first pages, then all that are listed */
        if (round > 0) {
            mark_pages(c, find_least(shared.largest, c));
            count = list_pages(shared.parts, c);
            list = reinterpret_cast<const uint32_t *>(c.most);
        }
        weigh_pages(shared, p, c, list, count);
    }
    choose_listed(shared.largest, c, count);
}

static auto weigh_choose_kernel_of(uint32_t dim)
{
    return dim <= 64    ? weigh_choose_kernel<64>
           : dim <= 128 ? weigh_choose_kernel<128>
                        : weigh_choose_kernel<256>;
}

/* A page's keys in shared memory, for the kernel's heads. */
static uint32_t key_bytes_of(struct kva_lowbit_format format, uint32_t dim)
{
    const uint32_t channels = dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
    return key_levels_at(format.bits, channels) + 2 * TILE / format.group * channels * 2;
}

/* What is known of pages, descriptors sent. */
static lowbit_params prepare_pages(struct kva_device *device,
                                   const struct kva_weigh_choose_args *args)
{
    const struct kva_weigh_args *weigh = &args->weigh;
    lowbit_params p = {};
    const size_t bytes = weigh->seq_count * sizeof(lowbit_seq);
    lowbit_seq *staged = static_cast<lowbit_seq *>(kva_cuda_stage(device, bytes));
    uint32_t first = UINT32_MAX, end = 0; /* of blocks */
    if (!staged)
        return p;
    for (uint32_t i = 0; i < weigh->seq_count; i++) {
        first = kva_min_u32(first, args->low[i].block_first);
        end = kva_max_u32(end, args->low[i].block_first + args->low[i].page_count);
    }
    for (uint32_t i = 0; i < weigh->seq_count; i++) {
        const struct kva_lowbit_seq *seq = &args->low[i];
        staged[i] = {};
        staged[i].block_first = seq->block_first - first;
        staged[i].page_count = seq->page_count;
        staged[i].mean = seq->mean;
        staged[i].peaks = seq->peaks;
    }
    p.seqs = static_cast<const lowbit_seq *>(kva_cuda_send(device, staged, bytes));
    p.blocks = kva_cuda_upload_array(device, args->blocks + first, end - first);
    p.block_offset = args->block_offset_bytes;
    p.page = page_shape_of(args->format, weigh->head_dim);
    p.shape.heads = weigh->heads;
    p.shape.kv_heads = weigh->kv_heads;
    p.shape.group = weigh->heads / weigh->kv_heads;
    p.shape.dim = weigh->head_dim;
    p.shape.scale = weigh->scale;
    p.shape.q = weigh->q;
    p.shape.q_dtype = device->base.info.act;
    p.shape.q_stride = weigh->q_stride;
    return p;
}

void kva_cuda_weigh_choose(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    const struct kva_weigh_args *weigh = &args->weigh;
    if (weigh->seq_count == 0 || !kva_cuda_enter(device))
        return;
    const auto kernel = weigh_choose_kernel_of(weigh->head_dim);
    const size_t room =
        kva_cuda_shared_room(device, "weigh_choose", reinterpret_cast<const void *>(kernel));
    page_choice p = {};
    p.weigh = prepare_weigh(device, weigh);
    p.pages = prepare_pages(device, args);
    p.seqs = kva_cuda_upload_array(device, args->choose.seqs, args->choose.seq_count);
    p.bits = args->format.bits;
    p.group = args->format.group;
    p.key_bytes = key_bytes_of(args->format, weigh->head_dim);
    p.warps = kva_min_u32(static_cast<uint32_t>(room / (2 * p.key_bytes)), RADIX_WARPS);
    if (p.warps == 0 && !kva_cuda_failed(device))
        kva_cuda_fail(device,
                      "GPU %d: weigh_choose: heads of %u need more than its %zu bytes of "
                      "shared memory",
                      device->index, weigh->head_dim, room);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, args->choose.queue, "weigh_choose",
                     {dim3(weigh->seq_count, weigh->kv_heads), RADIX_THREADS,
                      static_cast<size_t>(p.warps) * 2 * p.key_bytes},
                     kernel, p);
}
