/* lowbit_pairs.cuh - (row, query head) pairs before low-bit pages: what a warp knows of them, their
 * queries as lowbit_page.cuh multiplies them, and the scores that come of that. For attention over
 * pages (lowbit_run.cuh), and for a second look at their keys (weigh_choose.cu): the same scores. */
#ifndef KVA_KERNELS_CUDA_LOWBIT_PAIRS_CUH
#define KVA_KERNELS_CUDA_LOWBIT_PAIRS_CUH

#include "kernels/cuda/lowbit_page.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/cuda/turn.cuh"

#define RUN_TILES  16u
#define RUN_TOKENS (RUN_TILES * TILE)

#define LOG2E      1.44269504f

/* A sequence, on the device. */
struct lowbit_seq {
    struct kva_row_cache rows;
    float *scores; /* of the selecting row (kva_kept_of); NULL: none are kept */
    float *peaks;  /* of the selecting row (kva_peaks_of); NULL: none are kept */
    uint32_t block_first;
    uint32_t page_count;
    uint32_t select_row; /* of the sequence's rows */
    uint32_t row_first, row_count;
    const uint32_t *gate;
    const float *mean; /* what keys are without; or NULL */
    bool has_rows;
};

enum lowbit_keeps { KEEPS_NOTHING, KEEPS_PEAKS, KEEPS_WEIGHTS };

struct lowbit_params {
    attend_shape shape;
    page_shape page;
    const item *items;
    const lowbit_seq *seqs;
    const void *const *blocks;
    size_t block_offset;
    uint32_t item_count;
    uint32_t stages, warp_bytes; /* of a warp's shared memory */
    bool turned;                 /* rows of pages are turned */
    enum lowbit_keeps keeps;     /* of selecting rows */
};

/* What a warp knows of a pair. */
struct alignas(16) pair_facts {
    float factor;        /* of a product: its score, to base 2 */
    float shift;         /* what the score lacks whose keys are without a mean; the same */
    float sum;           /* of the query, as it is multiplied */
    uint32_t seen_first; /* the first token in sight */
    kva_kept kept;       /* what of it is kept */
};

/* A warp's shared memory: the ring of pages, then this. */
template <int D, int NT> struct warp_memory {
    static constexpr uint32_t q_row = D + 4 * PAD; /* rows that are read at once: in other banks */
    kva_f16 q[8 * NT][q_row];
    pair_facts pairs[8 * NT];
    uint32_t masks[RUN_TOKENS / 32]; /* of a run: tokens that no row replaces */
};

/* --- pairs ------------------------------------------------------------------------------------ */

/* Pairs that are loaded side by side: what one waits for the others wait for, too. */
#define PAIRS_AT_ONCE 4

/* Where a pair's query is. */
struct pair_place {
    uint32_t row, head; /* the row is the sequence's */
    bool own;           /* else there is no such pair, and the first stands for it */
};

static __device__ __forceinline__ pair_place find_pair(const attend_shape &shape, const item &work,
                                                       uint32_t kv_head, uint32_t pair)
{
    const bool own = pair < work.pair_count;
    const uint32_t index = work.pair_first + (own ? pair : 0);
    return {index / shape.group, kv_head * shape.group + index % shape.group, own};
}

/* x[i][j] = number lane + KVA_WARP * j of the query of pair first + i; 0: there is none. */
template <int D>
static __device__ __forceinline__ void load_numbers(float (&x)[PAIRS_AT_ONCE][D / KVA_WARP],
                                                    const attend_shape &shape, const item &work,
                                                    uint32_t kv_head, uint32_t first, uint32_t lane)
{
    uint32_t bits[PAIRS_AT_ONCE][D / KVA_WARP];
#pragma unroll
    for (int i = 0; i < PAIRS_AT_ONCE; i++) {
        const pair_place at = find_pair(shape, work, kv_head, first + i);
        const size_t from = static_cast<size_t>(work.row_first + at.row) * shape.q_stride +
                            static_cast<size_t>(at.head) * shape.dim;
#pragma unroll
        for (uint32_t j = 0; j < D / KVA_WARP; j++)
            bits[i][j] = kva_load_bits(shape.q, shape.q_dtype,
                                       from + min(lane + KVA_WARP * j, shape.dim - 1));
    }
#pragma unroll
    for (int i = 0; i < PAIRS_AT_ONCE; i++) {
        const bool own = find_pair(shape, work, kv_head, first + i).own;
        kva_from_bits(x[i], bits[i], shape.q_dtype);
#pragma unroll
        for (uint32_t j = 0; j < D / KVA_WARP; j++)
            x[i][j] = own && lane + KVA_WARP * j < shape.dim ? x[i][j] : 0.0f;
    }
}

/* Queries and facts of pairs first .. first + PAIRS_AT_ONCE - 1, by the warp. A query is multiplied
 * by a power of two that makes it less than one, so that it can be multiplied by any scale. `mean`:
 * the lane's numbers of what keys are without, or 0. */
template <int D, int BITS, int GROUP, int NT>
static __device__ void load_pairs(warp_memory<D, NT> &memory, const lowbit_params &p,
                                  const lowbit_seq &seq, const item &work, uint32_t kv_head,
                                  uint32_t first, const float (&mean)[D / KVA_WARP], uint32_t lane)
{
    constexpr int N = PAIRS_AT_ONCE;
    const attend_shape &shape = p.shape;
    float x[N][D / KVA_WARP], shift[N] = {}, most[N] = {}, sum[N] = {}, down[N];
    uint32_t exponent[N];
    load_numbers<D>(x, shape, work, kv_head, first, lane);
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (uint32_t j = 0; j < D / KVA_WARP; j++) /* of the query as it came: a large product */
            shift[i] = seq.mean ? fmaf(x[i][j], mean[j], shift[i]) : 0.0f;
        if (p.turned)
            kva_turn_warp(x[i], shape.dim, lane, false);
#pragma unroll
        for (uint32_t j = 0; j < D / KVA_WARP; j++)
            most[i] = fmaxf(most[i], fabsf(x[i][j]));
    }
#pragma unroll
    for (int lanes = KVA_WARP / 2; lanes > 0; lanes /= 2) {
#pragma unroll
        for (int i = 0; i < N; i++)
            most[i] = fmaxf(most[i], __shfl_xor_sync(KVA_ALL, most[i], lanes));
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        exponent[i] = min(max(__float_as_uint(most[i]) >> 23, 64u), 190u);
        down[i] = __uint_as_float((253 - exponent[i]) << 23);
#pragma unroll
        for (uint32_t j = 0; j < D / KVA_WARP; j++) {
            const uint32_t d = lane + KVA_WARP * j;
            const kva_f16 element = kva_saturate<kva_f16>(x[i][j] * down[i]);
            const float step = static_cast<float>(1u << query_step<BITS, GROUP>(d));
            memory.q[first + i][query_place<GROUP>(d)] =
                kva_saturate<kva_f16>(x[i][j] * down[i] / step);
            sum[i] += kva_to_f32(element);
        }
    }
    kva_warp_sums(sum);
    kva_warp_sums(shift);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (lane != static_cast<uint32_t>(i)) /* a lane a pair */
            continue;
        pair_facts &facts = memory.pairs[first + i];
        const pair_place at = find_pair(shape, work, kv_head, first + i);
        const uint32_t position = work.position_first + at.row;
        const float scale = shape.scale * LOG2E;
        facts.factor = scale * __uint_as_float((exponent[i] + 1) << 23);
        facts.shift = shift[i] * scale;
        facts.sum = sum[i];
        facts.seen_first =
            shape.window && position >= shape.window ? position - shape.window + 1 : 0;
        facts.kept = {};
        if (at.own && at.row == seq.select_row)
            facts.kept = seq.scores  ? kva_kept_of(seq.scores, shape.heads, seq.page_count, at.head)
                         : seq.peaks ? kva_peaks_of(seq.peaks, seq.page_count, at.head)
                                     : kva_kept{};
    }
}

template <int D, int BITS, int GROUP, int NT>
static __device__ void load_all_pairs(warp_memory<D, NT> &memory, const lowbit_params &p,
                                      const lowbit_seq &seq, const item &work, uint32_t kv_head,
                                      uint32_t lane)
{
    float mean[D / KVA_WARP];
#pragma unroll
    for (uint32_t j = 0; j < D / KVA_WARP; j++) {
        const uint32_t d = lane + KVA_WARP * j;
        mean[j] = seq.mean && d < p.shape.dim
                      ? seq.mean[static_cast<size_t>(kv_head) * p.shape.dim + d]
                      : 0.0f;
    }
#pragma unroll 1
    for (uint32_t first = 0; first < 8 * NT; first += PAIRS_AT_ONCE)
        load_pairs<D, BITS, GROUP, NT>(memory, p, seq, work, kv_head, first, mean, lane);
    __syncwarp(); /* the queries are there */
}

/* --- scores ----------------------------------------------------------------------------------- */

/* Scales and zeros of four tokens whose keys have levels of their own. */
template <int BITS> struct token_levels {
    float scale[4], zero[4];

    __device__ __forceinline__ void take(uint2 scales, uint2 zeros)
    {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t shifted = n % 2 * 16;
            scale[n] = kva_code_factor<BITS>(n) * kva_to_f32(kva_f16{static_cast<uint16_t>(
                                                      (n < 2 ? scales.x : scales.y) >> shifted)});
            zero[n] =
                kva_to_f32(kva_f16{static_cast<uint16_t>((n < 2 ? zeros.x : zeros.y) >> shifted)});
        }
    }
};

/* The products of multiply_keys become scores, to base 2. */
template <int D, int BITS, int GROUP, int NT>
static __device__ __forceinline__ void
find_scores(float (&s)[2][2][NT][4], const float (&zeros)[2][NT][4],
            const warp_memory<D, NT> &memory, const unsigned char *page, uint32_t lane)
{
    using place = page_place<D, BITS, GROUP>;
    const unsigned char *levels = page + place::levels + lane / 4 * 8;
#pragma unroll
    for (int part = 0; part < 2; part++) {
        token_levels<k_bits(BITS)> own;
        if (GROUP == 0)
            own.take(shared_load<uint2>(levels + part * TILE),
                     shared_load<uint2>(levels + place::k_zero + part * TILE));
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const pair_facts &pair = memory.pairs[8 * j + lane % 4 * 2 + i];
                const float base =
                    fmaf(key_zero<GROUP, NT>(zeros, j, i, part), pair.factor, pair.shift);
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    float &x = s[part][n / 2][j][n % 2 * 2 + i];
                    x = GROUP == 0 ? fmaf(fmaf(x, own.scale[n], own.zero[n] * pair.sum),
                                          pair.factor, pair.shift)
                                   : fmaf(x, pair.factor * kva_code_factor<k_bits(BITS)>(n), base);
                }
            }
        }
    }
}

#endif
