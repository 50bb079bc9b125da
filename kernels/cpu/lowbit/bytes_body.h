/* bytes_body.h - attention over one split of low-bit pages by products of bytes: what levels
 * avx512vnni and amx share, whose bits are the same.
 *
 * Codes are small integers, so that inner products run over integers.
 *
 *   scores   sum_c q[c] (zero[c] + scale[c] code[c]): the first part is one number per query, page
 *            and token group. q[c] scale[c] is rounded to int8, by one step per query for all of
 *            the split's pages; lanes are tokens. Scores are in units of ln 2.
 *   values   sum_t w[t] (zero[t] + scale[t] code[t]) per channel group: the first part is one
 *            number per query. w[t] scale[t] is rounded to 7 bits by a step per query and channel
 *            group; lanes are channels. Rounding is stochastic with a fixed dither, a sequence over
 *            the slots: rounding to nearest would lose the many small weights of a long context.
 *
 * With 3 bits and more the codes are exact enough for these roundings to show: both are rounded to
 * two 7-bit limbs there; with keys per token from 8 bits on, since one step for all of a row leaves
 * ten times what rounding does (docs/results/kept.md). A page is expanded to bytes once for QUERIES
 * queries.
 *
 * With keys per token a score is zero[t] sum_c q[c] + scale[t] sum_c q[c] code[c]: the same products
 * as if all scales were 1, then a product and a sum by lanes. */
#ifndef KVA_KERNELS_CPU_LOWBIT_BYTES_BODY_H
#define KVA_KERNELS_CPU_LOWBIT_BYTES_BODY_H

#include "kernels/cpu/lowbit/bytes.h"

/* --- factors to integers ---------------------------------------------------------------------- */

/* Largest whole number of `limbs` limbs. */
INLINE float whole_max(const uint32_t limbs)
{
    return limbs == 1 ? 127.0f : 127.0f * LIMB + 63.0f;
}

/* Queries whose sums and largest numbers are found together: the lanes of a quarter vector. */
#define QUAD 4u

/* The sums of four vectors: halves until four lanes are left, then (0 + 2) + (1 + 3). */
INLINE __m128 quad_sums(const vf x[QUAD])
{
    __m128 a = v_fold(x[0]), b = v_fold(x[1]), c = v_fold(x[2]), d = v_fold(x[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    return _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d));
}

INLINE __m128 quarter_max(vf x)
{
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

INLINE __m128 quad_largest(const vf x[QUAD])
{
    __m128 a = quarter_max(x[0]), b = quarter_max(x[1]), c = quarter_max(x[2]),
           d = quarter_max(x[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    return _mm_max_ps(_mm_max_ps(a, c), _mm_max_ps(b, d));
}

/* Factors up to `top` in whole numbers: their steps and the inverse of these. */
INLINE void store_steps(const uint32_t limbs, __m128 top, float *steps, float *inverses)
{
    const __m128 most = _mm_set1_ps(whole_max(limbs));
    __mmask8 some = _mm_cmp_ps_mask(top, _mm_set1_ps(FACTOR_MIN), _CMP_GT_OQ);
    _mm_storeu_ps(steps, _mm_maskz_div_ps(some, top, most));
    _mm_storeu_ps(inverses, _mm_maskz_div_ps(some, most, top));
}

/* Four vectors of whole numbers as bytes, in their order. */
INLINE __m512i pack_64(const __m512i x[4])
{
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
    return _mm512_permutexvar_epi32(order, bytes);
}

/* 64 whole numbers as bytes; limb d at to + d * stride. */
INLINE void store_limbs(const uint32_t limbs, const __m512i x[4], int8_t *to, size_t stride)
{
    __m512i low[4], high[4];
    if (limbs == 1) {
        _mm512_store_si512(to, pack_64(x));
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        high[i] = _mm512_srai_epi32(_mm512_add_epi32(x[i], _mm512_set1_epi32(LIMB / 2)), 7);
        low[i] = _mm512_sub_epi32(x[i], _mm512_slli_epi32(high[i], 7));
    }
    _mm512_store_si512(to, pack_64(low));
    _mm512_store_si512(to + stride, pack_64(high));
}

/* --- levels, from f16 ------------------------------------------------------------------------- */

/* `count` numbers; the rest up to `width` becomes 0. */
INLINE void widen(const unsigned char *from, uint32_t count, uint32_t width, float *to)
{
    const uint16_t *halves = (const uint16_t *)(const void *)from;
    uint32_t i = 0;
    for (; i + VL <= count; i += VL)
        v_store(to + i, v_load_16(halves + i, KVA_F16));
    for (; i < width; i += VL)
        v_store(to + i, i < count ? v_load_16_n(halves + i, KVA_F16, count - i) : v_zero());
}

/* Those of tokens; for the products of queries and codes all scales and zeros of channels are 1. */
static void widen_token_keys(const struct kva_cpu_lowbit_split *split,
                             const struct kva_lowbit_layout *layout, struct work *work)
{
    for (uint32_t page = 0; page < split->page_count; page++) {
        const unsigned char *head = split->pages[page];
        const size_t to = (size_t)page * KVA_PAGE_TOKENS;
        widen(head + layout->k_scale, KVA_PAGE_TOKENS, KVA_PAGE_TOKENS, work->t_scale + to);
        widen(head + layout->k_zero, KVA_PAGE_TOKENS, KVA_PAGE_TOKENS, work->t_zero + to);
    }
    for (uint32_t c = 0; c < work->width; c += VL) {
        v_store(work->k_top + c, v_set(1.0f));
        v_store(work->k_scale + c, v_set(1.0f));
        v_store(work->k_zero + c, v_set(1.0f));
    }
}

static void widen_keys(const struct kva_cpu_lowbit_split *split,
                       const struct kva_lowbit_layout *layout, struct work *work)
{
    const uint32_t width = work->width, k_groups = layout->k_groups;
    memset(work->k_top, 0, width * sizeof *work->k_top);
    for (uint32_t i = 0; i < split->page_count * k_groups; i++) {
        const unsigned char *head = split->pages[i / k_groups];
        size_t at = (size_t)(i % k_groups) * work->dim * 2;
        float *scale = work->k_scale + (size_t)i * width;
        widen(head + layout->k_scale + at, work->dim, width, scale);
        widen(head + layout->k_zero + at, work->dim, width, work->k_zero + (size_t)i * width);
        for (uint32_t c = 0; c < width; c += VL)
            v_store(work->k_top + c, v_max(v_load(work->k_top + c), v_load(scale + c)));
    }
}

static void widen_values(const struct kva_cpu_lowbit_split *split,
                         const struct kva_lowbit_layout *layout, struct work *work)
{
    for (uint32_t i = 0; i < split->page_count * layout->v_groups; i++) {
        uint32_t page = i / layout->v_groups, group = i % layout->v_groups;
        const unsigned char *head = split->pages[page];
        size_t at = (size_t)group * KVA_PAGE_TOKENS * 2, to = page * KVA_PAGE_TOKENS;
        widen(head + layout->v_scale + at, KVA_PAGE_TOKENS, KVA_PAGE_TOKENS,
              work->v_scale[group] + to);
        widen(head + layout->v_zero + at, KVA_PAGE_TOKENS, KVA_PAGE_TOKENS,
              work->v_zero[group] + to);
    }
}

/* --- scores ----------------------------------------------------------------------------------- */

/* Queries j to j + 3 of `count`: in steps of their largest product with any scale, and their
 * products with the zeros of `groups` token groups. Behind the last query come copies of it. */
INLINE void load_queries(const uint32_t limbs, const float *q, uint32_t groups, struct work *work,
                         uint32_t j, uint32_t count)
{
    const uint32_t dim = work->dim, width = work->width;
    float *steps = work->q_steps + (size_t)j * width, inverse[QUAD];
    vf x[QUAD], largest[QUAD] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (uint32_t c = 0; c < width; c += VL) {
        for (uint32_t i = 0; i < QUAD; i++) {
            const float *at = q + (size_t)kva_min_u32(j + i, count - 1) * dim + c;
            x[i] = c + VL <= dim ? v_load(at) : c < dim ? v_load_n(at, dim - c) : v_zero();
            x[i] = v_mul(x[i], v_set(KVA_LOG2E));
            v_store(steps + i * width + c, x[i]);
            largest[i] = v_max(v_abs(v_mul(x[i], v_load(work->k_top + c))), largest[i]);
        }
    }
    for (uint32_t group = 0; group < groups; group++) {
        const float *zero = work->k_zero + (size_t)group * width;
        vf sums[QUAD] = {v_zero(), v_zero(), v_zero(), v_zero()};
        for (uint32_t c = 0; c < width; c += VL) {
            for (uint32_t i = 0; i < QUAD; i++)
                sums[i] = v_fma(v_load(steps + i * width + c), v_load(zero + c), sums[i]);
        }
        _mm_storeu_ps(work->q_zero[group] + j, quad_sums(sums));
    }
    store_steps(limbs, quad_largest(largest), work->k_steps + j, inverse);
    for (uint32_t i = 0; i < QUAD; i++) {
        for (uint32_t c = 0; c < width; c += VL)
            v_store(steps + i * width + c, v_mul(v_load(steps + i * width + c), v_set(inverse[i])));
        v_store(work->tops[j + i], v_set(-INFINITY));
    }
}

/* work->q = queries times the scales of token group `i`. */
INLINE void round_queries(const uint32_t limbs, uint32_t count, uint32_t i, struct work *work)
{
    const uint32_t width = work->width;
    const float *scale = work->k_scale + (size_t)i * width;
    for (uint32_t c = 0; c < width; c += 4 * VL) {
        vf scales[4];
        for (uint32_t v = 0; v < 4; v++)
            scales[v] = v_load(scale + c + v * VL);
        for (uint32_t j = 0; j < count; j++) {
            const float *steps = work->q_steps + (size_t)j * width + c;
            __m512i x[4];
            for (uint32_t v = 0; v < 4; v++)
                x[v] = _mm512_cvtps_epi32(v_mul(v_load(steps + v * VL), scales[v]));
            store_limbs(limbs, x, work->q + (size_t)j * limbs * width + c, width);
        }
    }
}

/* Scores of queries [first, first + count) with token group `i` of the split, in units of ln 2. */
INLINE void score_group(const uint32_t limbs, const struct kva_cpu_lowbit_split *split,
                        struct work *work, uint32_t i, uint32_t first, uint32_t count)
{
    const uint32_t group = split->format.group, slot = i * group;
    round_queries(limbs, count, i, work);
    const struct tiles tiles = {
        .queries = count,
        .count = work->dim / 4,
        .codes = work->k + (size_t)(slot % KVA_PAGE_TOKENS) * 4,
        .codes_stride = KVA_PAGE_TOKENS * 4,
        .factors = work->q,
        .factors_stride = work->width,
        .steps = work->k_steps,
        .zeros = work->q_zero[i],
        .keep = split->present[slot / KVA_PAGE_TOKENS] >> slot % KVA_PAGE_TOKENS,
        .out = split->weights + (size_t)first * KVA_ATTEND_SPLIT_TOKENS + slot,
        .out_stride = KVA_ATTEND_SPLIT_TOKENS,
        .tops = work->tops,
        .sums = work->sums,
    };
    if (group == 64)
        (limbs == 1 ? score_4_1 : score_4_2)(&tiles);
    else
        (limbs == 1 ? score_2_1 : score_2_2)(&tiles);
}

/* The same of a page whose keys have levels per token: work->q is the queries in steps, and q_zero
 * their sums. */
INLINE void score_tokens(const uint32_t limbs, const struct kva_cpu_lowbit_split *split,
                         struct work *work, uint32_t page, uint32_t first, uint32_t count)
{
    const uint32_t slot = page * KVA_PAGE_TOKENS;
    const uint64_t present = split->present[page];
    float none[QUERIES] = {0};
    vf scales[4], zeros[4];
    const struct tiles tiles = {
        .queries = count,
        .count = work->dim / 4,
        .codes = work->k,
        .codes_stride = KVA_PAGE_TOKENS * 4,
        .factors = work->q,
        .factors_stride = work->width,
        .steps = work->k_steps,
        .zeros = none,
        .keep = UINT64_MAX,
        .out = split->weights + (size_t)first * KVA_ATTEND_SPLIT_TOKENS + slot,
        .out_stride = KVA_ATTEND_SPLIT_TOKENS,
        .sums = work->sums,
    };
    (limbs == 1 ? value_4_1 : value_4_2)(&tiles);
    for (uint32_t v = 0; v < 4; v++) {
        scales[v] = v_load(work->t_scale + slot + v * VL);
        zeros[v] = v_load(work->t_zero + slot + v * VL);
    }
    for (uint32_t j = 0; j < count; j++) {
        float *scores = tiles.out + (size_t)j * KVA_ATTEND_SPLIT_TOKENS;
        const vf sum = v_set(work->q_zero[0][j]);
        vf top = v_load(work->tops[j]);
        for (uint32_t v = 0; v < 4; v++) {
            vf x = v_fma(v_load(scores + v * VL), scales[v], v_mul(sum, zeros[v]));
            x = _mm512_mask_mov_ps(v_set(-INFINITY), (__mmask16)(present >> v * VL), x);
            top = v_max(x, top);
            v_store(scores + v * VL, x);
        }
        v_store(work->tops[j], top);
    }
}

/* --- weights ---------------------------------------------------------------------------------- */

/* Mask the positions before the query's window. */
static void mask_before(uint32_t first, uint32_t slots, float *scores, float *tops)
{
    vf top = v_set(-INFINITY);
    for (uint32_t slot = 0; slot < slots; slot += VL) {
        uint32_t hidden = first > slot ? kva_min_u32(first - slot, VL) : 0;
        vf x = _mm512_mask_mov_ps(v_load(scores + slot), v_mask(hidden), v_set(-INFINITY));
        v_store(scores + slot, x);
        top = v_max(x, top);
    }
    v_store(tops, top);
}

/* m and e of a query; its scores become weights. */
INLINE void softmax_split(const struct kva_cpu_lowbit_split *split, struct work *work,
                          uint32_t query, uint32_t j)
{
    float *scores = split->weights + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
    const uint32_t slots = split->page_count * KVA_PAGE_TOKENS;
    if (split->slot_first[query] > 0)
        mask_before(split->slot_first[query], slots, scores, work->tops[j]);
    float top = v_largest(v_load(work->tops[j]));
    split->m[query] = top * (1.0f / KVA_LOG2E);
    split->e[query] = 0.0f;
    if (top == -INFINITY) {
        memset(scores, 0, slots * sizeof *scores);
        return;
    }
    vf sums[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (uint32_t slot = 0; slot < slots; slot += 4 * VL) {
        for (uint32_t v = 0; v < 4; v++) {
            vf p = v_exp2(v_sub(v_load(scores + slot + v * VL), v_set(top)));
            v_store(scores + slot + v * VL, p);
            sums[v] = v_add(sums[v], p);
        }
    }
    split->e[query] = v_sum(v_add(v_add(sums[0], sums[1]), v_add(sums[2], sums[3])));
}

/* --- values ----------------------------------------------------------------------------------- */

/* Where a fraction is rounded up: frac(i * golden ratio), so that any run of slots is even. */
static const float dither[KVA_PAGE_TOKENS] = {
#define D(i)  ((float)((uint32_t)((i)*2654435769u) >> 8) * 0x1p-24f)
#define D4(i) D(i), D((i) + 1u), D((i) + 2u), D((i) + 3u)
    D4(0u),  D4(4u),  D4(8u),  D4(12u), D4(16u), D4(20u), D4(24u), D4(28u),
    D4(32u), D4(36u), D4(40u), D4(44u), D4(48u), D4(52u), D4(56u), D4(60u),
#undef D4
#undef D
};

/* Weights of queries j to j + 3 of `count` with channel group `group`: the steps of their products
 * with the scales, and the products with the zeros. */
INLINE void measure_weights(const uint32_t limbs, uint32_t slots, const float *weights,
                            uint32_t group, struct work *work, uint32_t j, uint32_t count)
{
    const float *scale = work->v_scale[group], *zero = work->v_zero[group], *from[QUAD];
    vf largest[QUAD] = {v_zero(), v_zero(), v_zero(), v_zero()};
    vf zeros[QUAD] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (uint32_t i = 0; i < QUAD; i++)
        from[i] = weights + (size_t)kva_min_u32(j + i, count - 1) * KVA_ATTEND_SPLIT_TOKENS;
    for (uint32_t slot = 0; slot < slots; slot += VL) {
        vf scales = v_load(scale + slot), lows = v_load(zero + slot);
        for (uint32_t i = 0; i < QUAD; i++) {
            vf p = v_load(from[i] + slot);
            zeros[i] = v_fma(p, lows, zeros[i]);
            largest[i] = v_max(v_mul(p, scales), largest[i]);
        }
    }
    store_steps(limbs, quad_largest(largest), work->v_steps + j, work->v_inverses + j);
    _mm_storeu_ps(work->p_zero + j, quad_sums(zeros));
}

/* work->p = weights times the scales of channel group `group`. */
INLINE void round_weights(const uint32_t limbs, uint32_t slots, const float *weights,
                          uint32_t group, struct work *work, uint32_t count)
{
    const float *scale = work->v_scale[group];
    vf up[4], scales[4];
    for (uint32_t v = 0; v < 4; v++)
        up[v] = v_load(dither + v * VL);
    for (uint32_t slot = 0; slot < slots; slot += 4 * VL) {
        for (uint32_t v = 0; v < 4; v++)
            scales[v] = v_load(scale + slot + v * VL);
        for (uint32_t j = 0; j < count; j++) {
            const float *from = weights + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + slot;
            vf inverse = v_set(work->v_inverses[j]);
            __m512i whole[4];
            for (uint32_t v = 0; v < 4; v++)
                whole[v] = _mm512_cvttps_epi32(
                    v_fma(v_mul(v_load(from + v * VL), scales[v]), inverse, up[v]));
            store_limbs(limbs, whole, work->p[j * limbs] + slot, KVA_ATTEND_SPLIT_TOKENS);
        }
    }
}

INLINE void value_group(const uint32_t limbs, const struct kva_cpu_lowbit_split *split,
                        struct work *work, uint32_t group, uint32_t first, uint32_t count)
{
    const float *weights = split->weights + (size_t)first * KVA_ATTEND_SPLIT_TOKENS;
    const uint32_t slots = split->page_count * KVA_PAGE_TOKENS;
    for (uint32_t j = 0; j < count; j += QUAD)
        measure_weights(limbs, slots, weights, group, work, j, count);
    round_weights(limbs, slots, weights, group, work, count);
    const uint32_t dim = work->dim, stride = (uint32_t)kva_align_up(dim, VL);
    uint32_t c = group * split->format.group, end = kva_min_u32(dim, c + split->format.group);
    for (uint32_t vectors; c < end; c += vectors * VL) {
        uint32_t left = end - c;
        vectors = left > 2 * VL ? 4 : left > VL ? 2 : 1;
        if (c + vectors * VL > stride)
            vectors = 2;
        const struct tiles tiles = {
            .queries = count,
            .count = split->page_count * KVA_PAGE_TOKENS / 4,
            .codes = work->v + (size_t)c * 4,
            .codes_stride = (size_t)stride * 4,
            .factors = work->p[0],
            .factors_stride = KVA_ATTEND_SPLIT_TOKENS,
            .steps = work->v_steps,
            .zeros = work->p_zero,
            .keep = left >= 64 ? UINT64_MAX : (1ull << left) - 1,
            .out = split->a + (size_t)first * dim + c,
            .out_stride = dim,
            .sums = work->sums,
        };
        if (vectors == 4)
            (limbs == 1 ? value_4_1 : value_4_2)(&tiles);
        else if (vectors == 2)
            (limbs == 1 ? value_2_1 : value_2_2)(&tiles);
        else
            (limbs == 1 ? value_1_1 : value_1_2)(&tiles);
    }
}

/* --- the split -------------------------------------------------------------------------------- */

/* Prefetch part `part` of `parts` of the next split's pages. */
INLINE void prefetch_part(const struct kva_cpu_lowbit_split *split, uint32_t part, uint32_t parts)
{
    size_t bytes = kva_lowbit_head_bytes(split->format, split->head_dim);
    for (uint32_t page = 0; page < split->next_count; page++) {
        const char *at = split->next[page];
        for (size_t i = bytes * part / parts; i < bytes * (part + 1) / parts; i += KVA_CACHE_LINE)
            _mm_prefetch(at + i, _MM_HINT_T1);
    }
}

INLINE void attend_bits(const uint32_t bits, const uint32_t value_bits, const bool tokens,
                        const struct kva_cpu_lowbit_split *split)
{
    const uint32_t limbs = bits >= (tokens ? 8 : 3) ? 2 : 1, pages = split->page_count,
                   dim = split->head_dim;
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(split->format, dim);
    struct work *work = split->scratch;
    const uint32_t stride = (uint32_t)kva_align_up(dim, VL);
    work->dim = dim;
    work->width = (uint32_t)kva_align_up(dim, 4 * VL);
    if (tokens)
        widen_token_keys(split, &layout, work);
    else
        widen_keys(split, &layout, work);
    widen_values(split, &layout, work);
    for (uint32_t first = 0; first < split->q_count; first += QUERIES) {
        uint32_t count = kva_min_u32(QUERIES, split->q_count - first);
        tiles_begin(count * limbs);
        for (uint32_t j = 0; j < count; j += QUAD)
            load_queries(limbs, split->q + (size_t)first * dim,
                         tokens ? 1 : pages * layout.k_groups, work, j, count);
        if (tokens)
            round_queries(limbs, count, 0, work);
        for (uint32_t page = 0; page < pages; page++) {
            const unsigned char *codes = (const unsigned char *)split->pages[page];
            expand_keys(bits, codes + layout.k_codes, layout.plane_bytes, dim, work->k);
            if (first == 0)
                prefetch_part(split, page, pages);
            if (tokens)
                score_tokens(limbs, split, work, page, first, count);
            for (uint32_t i = 0; !tokens && i < layout.k_groups; i++)
                score_group(limbs, split, work, page * layout.k_groups + i, first, count);
        }
        for (uint32_t j = 0; j < count; j++)
            softmax_split(split, work, first + j, j);
        for (uint32_t page = 0; page < pages; page++)
            expand_values(value_bits, (const unsigned char *)split->pages[page] + layout.v_codes,
                          layout.plane_bytes, dim, stride,
                          work->v + (size_t)page * KVA_PAGE_TOKENS * stride);
        for (uint32_t group = 0; group < layout.v_groups; group++)
            value_group(limbs, split, work, group, first, count);
    }
    tiles_end();
}

static void attend(const struct kva_cpu_lowbit_split *split)
{
    const bool tokens = split->format.keys == KVA_KEYS_PER_TOKEN;
    switch (split->format.bits) {
    case 1:
        if (kva_lowbit_value_bits(split->format) == 2)
            attend_bits(1, 2, false, split);
        else
            attend_bits(1, 1, false, split);
        break;
    case 2:
        if (tokens)
            attend_bits(2, 2, true, split);
        else
            attend_bits(2, 2, false, split);
        break;
    case 3:
        attend_bits(3, 3, true, split);
        break;
    case 8:
        attend_bits(8, 8, true, split);
        break;
    default:
        if (tokens)
            attend_bits(4, 4, true, split);
        else
            attend_bits(4, 4, false, split);
        break;
    }
}

#endif
