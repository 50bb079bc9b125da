/* lowbit_run.cuh - low-bit pages and up to 8 NT (row, query head) pairs that share a KV head, by a
 * warp.
 *
 * It walks the pages by itself: no barrier of a block, a ring of pages of its own in shared memory,
 * which asynchronous copies fill ahead, and the matrix products of lowbit_page.cuh. Within a run of
 * RUN_TOKENS the softmax goes online, page by page, to base 2; runs are folded in ascending order
 * (attend_tile.cuh). What a pair's numbers are depends on it and on the pages alone: not on the pairs
 * beside it, nor on whether runs are attended to one after the other or side by side. What a selecting
 * row's tokens weigh, or the largest score of each page, is kept (select.cuh); tokens that rows have
 * are not looked at. */
#ifndef KVA_KERNELS_CUDA_LOWBIT_RUN_CUH
#define KVA_KERNELS_CUDA_LOWBIT_RUN_CUH

#include "kernels/cuda/lowbit_pairs.cuh"

#define BLOCK_WARPS 4u

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
 * V; the state is rescaled to it. peaks = the page's largest scores. */
template <int D, int NT>
static __device__ __forceinline__ void soften(run_state<D, NT> &state,
                                              uint32_t (&weights)[2][4][NT], float (&peaks)[NT][2],
                                              float (&s)[2][2][NT][4])
{
    float keep[NT][2];
    bool grown = false;
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float peak = -INFINITY, sum = 0.0f;
#pragma unroll
            for (int n = 0; n < 8; n++)
                peak = fmaxf(peak, s[n / 4][n / 2 % 2][j][n % 2 * 2 + i]);
            peak = fmaxf(peak, __shfl_xor_sync(KVA_ALL, peak, 4));
            peak = fmaxf(peak, __shfl_xor_sync(KVA_ALL, peak, 8));
            peak = fmaxf(peak, __shfl_xor_sync(KVA_ALL, peak, 16));
            peaks[j][i] = peak;
            const float top = fmaxf(peak, state.m[j][i]);
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

/* Peaks are kept where they are wanted: of a lane's pairs by lanes 4 g + t with g = 0 and 1, one
 * each. */
template <int D, int NT>
static __device__ __forceinline__ void keep_peaks(const float (&peaks)[NT][2],
                                                  const warp_memory<D, NT> &memory, uint32_t tile,
                                                  uint32_t lane)
{
    if (lane >= 8)
        return;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        float *tops = memory.pairs[8 * j + lane % 4 * 2 + lane / 4].kept.tops;
        if (tops)
            tops[tile] = lane < 4 ? peaks[j][0] : peaks[j][1];
    }
}

/* The same of weights, and of what they are relative to. */
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
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const pair_facts &facts = memory.pairs[8 * j + lane % 4 * 2 + i];
            seen_most = max(seen_most, facts.seen_first);
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
        float peaks[NT][2];
        uint32_t weights[2][4][NT];
        multiply_keys<D, BITS, GROUP, NT>(s, zeros, &memory.q[lane / 4][lane % 4 * 8],
                                          warp_memory<D, NT>::q_row, page, lane);
        find_scores<D, BITS, GROUP, NT>(s, zeros, memory, page, lane);
        const uint32_t *masks = memory.masks + t % RUN_TILES * 2;
        if (__any_sync(KVA_ALL, t * TILE < seen_most || (masks[0] & masks[1]) != KVA_ALL))
            hide_scores<D, NT>(s, memory, t, lane);
        soften<D, NT>(state, weights, peaks, s);
        if (p.keeps == KEEPS_PEAKS)
            keep_peaks<D, NT>(peaks, memory, t, lane);
        else if (p.keeps == KEEPS_WEIGHTS)
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
