/* lowbit_run.cuh - low-bit pages and up to 8 NT (row, query head) pairs that share a KV head, by a
 * warp.
 *
 * It walks the pages by itself: no barrier of a block, a ring of pages of its own in shared memory,
 * which asynchronous copies fill ahead, and the matrix products of lowbit_page.cuh. Within a run of
 * RUN_TOKENS the softmax goes online, page by page, to base 2; runs are folded in ascending order
 * (attend_tile.cuh). What a pair's numbers are depends on it and on the pages alone: not on the pairs
 * beside it, nor on whether runs are attended to one after the other or side by side. What a selecting
 * row's tokens weigh is kept (select.cuh); those of tokens that rows have are not looked at. */
#ifndef KVA_KERNELS_CUDA_LOWBIT_RUN_CUH
#define KVA_KERNELS_CUDA_LOWBIT_RUN_CUH

#include "kernels/cuda/lowbit_page.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/cuda/turn.cuh"

#define RUN_TILES   16u
#define RUN_TOKENS  (RUN_TILES * TILE)
#define BLOCK_WARPS 4u

#define LOG2E       1.44269504f

/* A sequence, on the device. */
struct lowbit_seq {
    struct kva_row_cache rows;
    float *scores; /* of the selecting row (kva_kept_of); NULL: none are kept */
    uint32_t block_first;
    uint32_t page_count;
    uint32_t select_row; /* of the sequence's rows */
    uint32_t row_first, row_count;
    const uint32_t *gate;
    const float *mean; /* what keys are without; or NULL */
    bool has_rows;
};

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
};

/* What a warp knows of a pair. */
struct alignas(16) pair_facts {
    float factor;        /* of a product: its score, to base 2 */
    float shift;         /* what the score lacks whose keys are without a mean; the same */
    float sum;           /* of the query, as it is multiplied */
    uint32_t seen_first; /* the first token in sight */
    kva_kept kept;       /* where its weights are kept; NULL: they are not */
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
        if (at.own && seq.scores && at.row == seq.select_row)
            facts.kept = kva_kept_of(seq.scores, shape.heads, seq.page_count, at.head);
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

/* --- a page ----------------------------------------------------------------------------------- */

/* What is summed up over a run. Lane 4 g + t has pairs 2 t and 2 t + 1 of each 8. */
template <int D, int NT> struct run_state {
    float a[D / 32][2][NT][4]; /* multiply_values */
    float zeros[NT][4];        /* multiply_zeros */
    float m[NT][2];            /* to base 2 */
    float e[NT][2];            /* of the lane's tokens */

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int c = 0; c < D / 32; c++)
                    a[c][0][j][i] = a[c][1][j][i] = 0.0f;
                zeros[j][i] = 0.0f;
            }
            m[j][0] = m[j][1] = -INFINITY;
            e[j][0] = e[j][1] = 0.0f;
        }
    }
};

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

/* Scores of tokens that rows have, or that are out of sight, become -inf. */
template <int D, int NT>
static __device__ void hide_scores(float (&s)[2][2][NT][4], const warp_memory<D, NT> &memory,
                                   uint32_t tile, uint32_t lane)
{
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const uint32_t own = lane / 4 * 4, token = tile * TILE + part * 32 + own;
        const uint32_t mask = memory.masks[tile % RUN_TILES * 2 + part] >> own;
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t first = memory.pairs[8 * j + lane % 4 * 2 + i].seen_first;
                const uint32_t before = first > token ? min(first - token, 4u) : 0;
                const uint32_t seen = mask & 0xFu << before;
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    float &x = s[part][n / 2][j][n % 2 * 2 + i];
                    x = seen >> n & 1 ? x : -INFINITY;
                }
            }
        }
    }
}

/* Scores become probabilities relative to the running maximum, as 16-bit columns of the product with
 * V; the state is rescaled to it. */
template <int D, int NT>
static __device__ __forceinline__ void
soften(run_state<D, NT> &state, uint32_t (&weights)[2][4][NT], float (&s)[2][2][NT][4])
{
    float keep[NT][2];
    bool grown = false;
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = state.m[j][i], sum = 0.0f;
#pragma unroll
            for (int n = 0; n < 8; n++)
                top = fmaxf(top, s[n / 4][n / 2 % 2][j][n % 2 * 2 + i]);
            top = fmaxf(top, __shfl_xor_sync(KVA_ALL, top, 4));
            top = fmaxf(top, __shfl_xor_sync(KVA_ALL, top, 8));
            top = fmaxf(top, __shfl_xor_sync(KVA_ALL, top, 16));
            const float base = top == -INFINITY ? 0.0f : top;
            keep[j][i] = kva_exp2(state.m[j][i] - base);
            grown = grown || top > state.m[j][i];
            state.m[j][i] = top;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float &x = s[n / 4][n / 2 % 2][j][n % 2 * 2 + i];
                x = kva_exp2(x - base);
                sum += x;
            }
            state.e[j][i] = fmaf(state.e[j][i], keep[j][i], sum);
        }
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float *pair = &s[n / 4][n / 2 % 2][j][n % 2 * 2];
            weights[n / 4][n % 4][j] = kva_transpose(kva_pack<kva_f16>(pair[0], pair[1]));
        }
    }
    if (!__any_sync(KVA_ALL, grown))
        return; /* all of them would be multiplied by one */
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                state.a[c][0][j][i] *= keep[j][i % 2];
                state.a[c][1][j][i] *= keep[j][i % 2];
            }
            state.zeros[j][i] *= keep[j][i % 2];
        }
    }
}

/* Weights that are wanted are kept. */
template <int D, int NT>
static __device__ __forceinline__ void
keep_weights(const run_state<D, NT> &state, const float (&s)[2][2][NT][4],
             const warp_memory<D, NT> &memory, uint32_t tile, uint32_t lane)
{
    constexpr float factor = KVA_KEPT_FACTOR;
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const kva_kept kept = memory.pairs[8 * j + lane % 4 * 2 + i].kept;
            if (!kept.weights)
                continue;
            kva_f16 *to = kept.weights + tile * TILE + lane / 4 * 4;
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const uint32_t low =
                    kva_pack<kva_f16>(s[part][0][j][i] * factor, s[part][0][j][2 + i] * factor);
                const uint32_t high =
                    kva_pack<kva_f16>(s[part][1][j][i] * factor, s[part][1][j][2 + i] * factor);
                *reinterpret_cast<uint2 *>(to + part * 32) = make_uint2(low, high);
            }
            if (lane / 4 == 0)
                kept.tops[tile] = state.m[j][i];
        }
    }
}

/* --- runs ------------------------------------------------------------------------------------- */

/* Rows of which a lane looks at so many side by side. */
#define ROWS_AT_ONCE 5u

/* masks = the tokens of the run of `tile` that no row replaces. */
static __device__ void find_present(uint32_t *masks, const lowbit_seq &seq, uint32_t kv_head,
                                    uint32_t tile, uint32_t lane)
{
    static_assert(RUN_TOKENS / 32 == KVA_WARP, "a word a lane");
    __syncwarp(); /* those of the run before have been read */
    masks[lane] = KVA_ALL;
    __syncwarp();
    const size_t head = static_cast<size_t>(kv_head) * seq.rows.slots;
    const uint32_t count = seq.has_rows ? seq.rows.count[kv_head] : 0;
    for (uint32_t base = lane; base < count; base += ROWS_AT_ONCE * KVA_WARP) {
        uint32_t slots[ROWS_AT_ONCE], tokens[ROWS_AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AT_ONCE; i++)
            slots[i] = seq.rows.order[head + min(base + i * KVA_WARP, count - 1)];
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AT_ONCE; i++)
            tokens[i] = seq.rows.tokens[head + slots[i]];
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) {
            if (tokens[i] / RUN_TOKENS == tile / RUN_TILES)
                atomicAnd(&masks[tokens[i] % RUN_TOKENS / 32], ~(1u << tokens[i] % 32));
        }
    }
    __syncwarp(); /* the masks are complete */
}

/* A run's result goes where the item's belongs; `more`: to what is there. */
template <int D, int BITS, int GROUP, int NT>
static __device__ void end_run(run_state<D, NT> &state, const lowbit_params &p, const item &work,
                               uint32_t kv_head, bool more, uint32_t lane)
{
    const attend_shape &shape = p.shape;
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t pair = 8 * j + lane % 4 * 2 + i;
            const bool own = pair < work.pair_count;
            float e = state.e[j][i], m = state.m[j][i] * LN2, keep = 0.0f, add = 1.0f;
            e += __shfl_xor_sync(KVA_ALL, e, 4);
            e += __shfl_xor_sync(KVA_ALL, e, 8);
            e += __shfl_xor_sync(KVA_ALL, e, 16);
            if (e != e)
                m = e; /* what is not a number stays */
            const place at = place_of(shape, work, kv_head, own ? pair : 0);
            if (more && own && m != -INFINITY) {
                const float before = *at.m;
                fold_scales(before, m, m, keep, add);
                e = fold(*at.e, keep, e, add);
            }
            const bool nothing = more && m == -INFINITY;
            __syncwarp(); /* what is there has been read */
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                const float zero = __shfl_sync(
                    KVA_ALL, state.zeros[j][i],
                    static_cast<int>(c / page_place<D, BITS, GROUP>::v_pieces * 4 + lane % 4));
                const uint32_t d = c * 32 + lane / 4 * 4;
                if (!own || nothing || d >= shape.dim)
                    continue;
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const float x = fmaf(state.a[c][n / 2][j][n % 2 * 2 + i],
                                         kva_code_factor<v_bits(BITS)>(n), zero);
                    at.a[d + n] = (more ? fold(at.a[d + n], keep, x, add) : x) + 0.0f;
                }
            }
            if (own && !nothing && lane / 4 == 0) {
                *at.m = m;
                *at.e = e;
            }
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* Blocks whose registers a multiprocessor has to hold. */
static constexpr int blocks_at_once(int dim, int columns)
{
    return dim > 128 ? 2 : columns == 1 ? (dim > 64 ? 4 : 5) : dim > 64 ? 2 : 3;
}

template <int D, int BITS, int GROUP, int NT>
static __global__ void __launch_bounds__(BLOCK_WARPS *KVA_WARP, blocks_at_once(D, NT))
    lowbit_kernel(lowbit_params p)
{
    kva_begin();
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    const uint32_t index = blockIdx.x * (blockDim.x / KVA_WARP) + warp, kv_head = blockIdx.y;
    constexpr uint32_t page_bytes = page_place<D, BITS, GROUP>::bytes;
    KVA_DYNAMIC_SHARED(unsigned char, shared_bytes);
    if (index >= p.item_count)
        return;
    item work = p.items[index];
    if (kva_gate_closed(work.gate))
        return;
    const lowbit_seq &seq = p.seqs[work.seq];
    unsigned char *const ring = shared_bytes + warp * p.warp_bytes;
    auto &memory = *reinterpret_cast<warp_memory<D, NT> *>(ring + p.stages * page_bytes);
    const void *const *blocks = p.blocks + seq.block_first;
    const size_t offset = p.block_offset + static_cast<size_t>(kv_head) * p.page.head_bytes;

    if (p.page.dim < D) { /* what no copy writes */
        for (uint32_t i = lane * 4; i < p.stages * page_bytes; i += KVA_WARP * 4)
            *reinterpret_cast<uint32_t *>(ring + i) = 0;
        __syncwarp();
    }
    uint32_t asked = work.tile_first, slot = 0;
    const void *next = asked < work.tile_end ? blocks[asked] : nullptr; /* on its way before */
    auto ask = [&](uint32_t to) {
        if (asked < work.tile_end)
            copy_page<D, BITS, GROUP>(ring + to * page_bytes,
                                      static_cast<const unsigned char *>(next) + offset, p.page,
                                      lane);
        asked++;
        if (asked < work.tile_end)
            next = blocks[asked];
        kva_copy_commit();
    };
    for (uint32_t i = 0; i + 1 < p.stages; i++)
        ask(i);

    load_all_pairs<D, BITS, GROUP, NT>(memory, p, seq, work, kv_head, lane);
    uint32_t seen_most = 0;
    bool kept = false;
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const pair_facts &facts = memory.pairs[8 * j + lane % 4 * 2 + i];
            seen_most = max(seen_most, facts.seen_first);
            kept = kept || facts.kept.weights;
        }
    }

    run_state<D, NT> state;
    state.clear();
    bool more = false;
    for (uint32_t t = work.tile_first; t < work.tile_end; t++) {
        if (t == work.tile_first || t % RUN_TILES == 0)
            find_present(memory.masks, seq, kv_head, t, lane);
        if (p.stages > 2)
            kva_copy_wait<1>();
        else
            kva_copy_wait<0>();
        __syncwarp(); /* the page is there, and the one before has been read */
        ask(slot > 0 ? slot - 1 : p.stages - 1);
        const unsigned char *page = ring + slot * page_bytes;
        slot = slot + 1 < p.stages ? slot + 1 : 0;

        float s[2][2][NT][4] = {}, zeros[2][NT][4] = {};
        uint32_t weights[2][4][NT];
        multiply_keys<D, BITS, GROUP, NT>(s, zeros, &memory.q[lane / 4][lane % 4 * 8],
                                          warp_memory<D, NT>::q_row, page, lane);
        find_scores<D, BITS, GROUP, NT>(s, zeros, memory, page, lane);
        const uint32_t *masks = memory.masks + t % RUN_TILES * 2;
        if (__any_sync(KVA_ALL, t * TILE < seen_most || (masks[0] & masks[1]) != KVA_ALL))
            hide_scores<D, NT>(s, memory, t, lane);
        soften<D, NT>(state, weights, s);
        if (kept)
            keep_weights<D, NT>(state, s, memory, t, lane);
        multiply_zeros<D, BITS, GROUP, NT>(state.zeros, weights, page, lane);
        multiply_values<D, BITS, GROUP, NT>(state.a, weights, page, lane);
        if ((t + 1) % RUN_TILES == 0 || t + 1 == work.tile_end) {
            end_run<D, BITS, GROUP, NT>(state, p, work, kv_head, more, lane);
            state.clear();
            if (work.partial == KVA_NONE)
                more = true;
            else
                work.partial += work.pair_count; /* the next run has a place of its own */
        }
    }
    kva_copy_wait<0>();
    if (work.tile_first == work.tile_end)
        end_run<D, BITS, GROUP, NT>(state, p, work, kv_head, false, lane);
}

#endif
