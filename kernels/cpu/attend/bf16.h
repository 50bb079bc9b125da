/* bf16.h - attention over one split in products of bf16 with sums in fp32: what levels
 * avx512bf16 and amx share.
 *
 * A split is worked on in three passes: scores of all its tokens, page by page; the softmax of each
 * query; the values. A page's keys are transposed to dwords of two dimensions
 * [head_dim / 2][64 tokens]: a vector holds one pair of dimensions of 16 tokens. Values of two
 * neighbouring tokens, at an even slot and the odd one behind it, are laid side by side. Weights
 * are rounded to bf16 before they are summed, so that what is divided by fits what is divided. */
#ifndef KVA_KERNELS_CPU_ATTEND_BF16_H
#define KVA_KERNELS_CPU_ATTEND_BF16_H

#include "kernels/cpu/attend/bf16_pairs.h"

/* --- keys and values as pairs ----------------------------------------------------------------- */

/* `dims`: as many as the level's products take, 16 chunks of dimensions at most. */
static struct pairs pairs_of(const struct kva_cpu_attend_split *split, uint32_t dims)
{
    uint32_t chunks = (uint32_t)kva_div_up(split->head_dim, CHUNK_DIM);
    uint32_t *k = (uint32_t *)(void *)split->k;
    float *e = split->v + (size_t)chunks * PAGE_PAIRS * CHUNK_DIM;
    return (struct pairs){.dims = dims,
                          .q = k + (size_t)dims * KVA_PAGE_TOKENS,
                          .k = k,
                          .v = (uint32_t *)(void *)split->v,
                          .e = e,
                          .sums = e + (size_t)split->q_count * VL};
}

/* Dimensions [i, i + count) of the values of a pair of tokens: of every eight of them the lower
 * four in `low`, the upper four in `high`. */
INLINE void load_values(const struct kva_cpu_attend_split *split, uint32_t pair, uint32_t i,
                        const uint32_t count, __m512i *low, __m512i *high)
{
    __m512i even = load_row(split->tokens[2 * pair], split->head_dim + i, count);
    __m512i odd = load_row(split->tokens[2 * pair + 1], split->head_dim + i, count);
    *low = _mm512_unpacklo_epi16(even, odd);
    *high = _mm512_unpackhi_epi16(even, odd);
}

/* pairs->v = the values of the page from slot `base` on. */
INLINE void pair_values(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                        uint32_t base, struct ahead *ahead)
{
    struct ahead next = *ahead;
    uint32_t *v = pairs->v;
    for (uint32_t i = 0; i < split->head_dim; i += CHUNK_DIM) {
        uint32_t count = kva_min_u32(CHUNK_DIM, split->head_dim - i);
        for (uint32_t pair = base / 2; pair < base / 2 + PAGE_PAIRS; pair++, v += CHUNK_DIM) {
            __m512i low, high;
            load_values(split, pair, i, count, &low, &high);
            _mm512_storeu_si512(v, low);
            _mm512_storeu_si512(v + VL, high);
            prefetch(&next, 3);
        }
    }
    *ahead = next;
}

/* --- weights of the tokens -------------------------------------------------------------------- */

/* A query's weights in bf16, by slot: over its scores, which they replace. */
static uint16_t *weights_of(const struct kva_cpu_attend_split *split, uint32_t query)
{
    return (uint16_t *)(void *)(split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS);
}

/* Slots whose weights are made at once: two vectors of scores become one of pairs. */
#define SOFTEN_SLOTS (2 * VL)

/* Scores of the vector from `slot` on become -inf outside [first, end). */
INLINE void hide_vector(float *scores, uint32_t slot, uint32_t first, uint32_t end)
{
    uint32_t before = first > slot ? kva_min_u32(first - slot, VL) : 0;
    uint32_t seen = end > slot ? kva_min_u32(end - slot, VL) : 0;
    __mmask16 keep = (__mmask16)(v_mask(seen) & ~v_mask(before));
    v_store(scores + slot, _mm512_mask_mov_ps(v_set(-INFINITY), keep, v_load(scores + slot)));
}

/* Scores of [from, to) that a query does not see become -inf. */
static void hide(const struct kva_cpu_attend_split *split, uint32_t query, uint32_t from,
                 uint32_t to, bool holes, float *scores)
{
    const uint32_t first = split->slot_first[query], end = split->slot_end[query];
    for (uint32_t slot = from; slot < first; slot += VL)
        hide_vector(scores, slot, first, end);
    for (uint32_t slot = to; slot > end; slot -= VL)
        hide_vector(scores, slot - VL, first, end);
    for (uint32_t slot = first; holes && slot < end; slot++) {
        if (!split->tokens[slot])
            scores[slot] = -INFINITY;
    }
}

/* The greatest score of slots [from, to). */
INLINE float greatest(const float *scores, uint32_t from, uint32_t to)
{
    vf even = v_set(-INFINITY), odd = even;
    for (uint32_t slot = from; slot < to; slot += SOFTEN_SLOTS) {
        even = v_max(even, v_load(scores + slot));
        odd = v_max(odd, v_load(scores + slot + VL));
    }
    return v_largest(v_max(even, odd));
}

static void clear_weights(uint16_t *weights, uint32_t from, uint32_t to)
{
    for (uint32_t slot = from; slot < to; slot += SOFTEN_SLOTS)
        _mm512_storeu_si512(weights + slot, _mm512_setzero_si512());
}

/* Weights of the slots [from, to): 2^(score * log2(e) + offset), rounded. Returns their sum by
 * lanes. They replace scores that have been read: they are half as long. */
INLINE vf weigh(const float *scores, uint32_t from, uint32_t to, vf offset, struct ahead *ahead,
                uint16_t *weights)
{
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3F80);
    struct ahead next;
    vf sum = v_zero();
    if (ahead)
        next = *ahead;
    for (uint32_t slot = from; slot < to; slot += SOFTEN_SLOTS) {
        vf x = v_fma(v_load(scores + slot), v_set(KVA_LOG2E), offset);
        vf y = v_fma(v_load(scores + slot + VL), v_set(KVA_LOG2E), offset);
        __m512bh rounded = _mm512_cvtne2ps_pbh(v_exp2(y), v_exp2(x));
        _mm512_storeu_si512(weights + slot, (__m512i)rounded);
        sum = _mm512_dpbf16_ps(sum, rounded, ones);
        if (ahead)
            prefetch(&next, 1);
    }
    if (ahead)
        *ahead = next;
    return sum;
}

/* A query's weights exp(score - m), rounded, of the slots [base, stop), whole pages, 0 where it
 * sees nothing; its m, and what they sum to by lanes: lane i of e takes the pairs i, i + VL, ... of
 * slots, whatever the query sees. `ahead`: NULL where nothing is to be prefetched. */
static void softmax_split(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                          uint32_t query, uint32_t base, uint32_t stop, bool holes,
                          struct ahead *ahead)
{
    float *scores = split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
    uint16_t *weights = weights_of(split, query);
    const uint32_t first = split->slot_first[query], end = split->slot_end[query];
    if (first >= end) {
        clear_weights(weights, base, stop);
        v_store(pairs->e + (size_t)query * VL, v_zero());
        split->m[query] = -INFINITY;
        return;
    }
    const uint32_t from = first / SOFTEN_SLOTS * SOFTEN_SLOTS;
    const uint32_t to = (uint32_t)kva_align_up(end, SOFTEN_SLOTS);
    hide(split, query, from, to, holes, scores);
    kva_cpu_keep_scores(split, query, from, to);
    float m = greatest(scores, from, to);
    /* A maximum may pass over what is not a number. Where that is all there is, it must not be
     * taken for nothing. */
    for (uint32_t slot = first; m == -INFINITY && slot < end; slot++)
        m = scores[slot] != scores[slot] ? scores[slot] : m;
    const vf offset = v_set(m == -INFINITY ? m : -m * KVA_LOG2E);
    vf sum;
    if (ahead)
        sum = weigh(scores, from, to, offset, ahead, weights);
    else
        sum = weigh(scores, from, to, offset, NULL, weights);
    clear_weights(weights, base, from);
    clear_weights(weights, to, stop);
    v_store(pairs->e + (size_t)query * VL, sum);
    split->m[query] = m;
}

/* --- the split ----------------------------------------------------------------------------------
 */

/* Everything before the first pass. */
static void begin(const struct kva_cpu_attend_split *split, const struct pairs *pairs)
{
    size_t width = kva_align_up(split->head_dim, CHUNK_DIM);
    pair_queries(split, pairs);
    memset(pairs->sums, 0, split->q_count * width * sizeof *pairs->sums);
}

/* a = a query's sums in the order of the dimensions, none of them -0; e. */
static void finish_query(const struct kva_cpu_attend_split *split, const struct pairs *pairs,
                         uint32_t query)
{
    const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const uint32_t dim = split->head_dim;
    const float *sums = pairs->sums + query * kva_align_up(dim, CHUNK_DIM);
    float *a = split->a + (size_t)query * dim;
    for (uint32_t i = 0; i < dim; i += CHUNK_DIM) {
        vf x = v_add(v_load(sums + i), v_zero()), y = v_add(v_load(sums + i + VL), v_zero());
        v_store_n(a + i, _mm512_permutex2var_ps(x, low, y), kva_min_u32(dim - i, VL));
        if (dim - i > VL)
            v_store_n(a + i + VL, _mm512_permutex2var_ps(x, high, y),
                      kva_min_u32(dim - i - VL, VL));
    }
    split->e[query] = v_sum(v_load(pairs->e + (size_t)query * VL));
}

static bool has_holes(const struct kva_cpu_attend_split *split, uint32_t first, uint32_t end)
{
    for (uint32_t slot = first; slot < end; slot++) {
        if (!split->tokens[slot])
            return true;
    }
    return false;
}

#endif
