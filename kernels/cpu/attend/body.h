/* body.h - attention over one split for the vector levels; included by avx2.c and
 * avx512.c after their simd header.
 *
 * Scores: a page's keys are transposed into floats [head_dim, 64] once for all queries, so that a
 * vector holds the same dimension of VL tokens and no sum across lanes is needed. A tile is up to
 * ATTEND_TILE_QUERIES queries by ATTEND_TILE_VECTORS vectors of tokens.
 * Values: a tile is as many queries by vectors of dimensions, and runs over the tokens in order.
 * With few queries the values are widened in registers, with many once per page into scratch.
 * A query touches only values of tokens that it sees: what lies in other slots never matters. */

#include "kernels/cpu/attend/prefetch.h"
#include "kernels/cpu/attend/score_tile.h"

/* Queries up to which values are widened anew for each tile instead of once into scratch. */
#define DIRECT_QUERIES_MAX (2u * ATTEND_TILE_QUERIES)

/* Half of the lines of the split that comes next are prefetched as keys are transposed: so many
 * with VL tokens by 2 VL dimensions. The other half as the first queries meet the values: two with
 * so many tokens of a whole tile of dimensions. */
#define TRANSPOSE_LINES (VL * VL / 16)
#define TOKENS_A_TURN   (64u / (ATTEND_TILE_VECTORS * VL))

/* --- scores ----------------------------------------------------------------------------------- */

/* k = the keys of a page's tokens as floats [head_dim, KVA_PAGE_TOKENS]. */
INLINE void transpose_page(const void *const *tokens, struct ahead *ahead, uint32_t head_dim,
                           enum kva_dtype dtype, float *k)
{
    struct ahead next = *ahead;
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += VL) {
        for (uint32_t i = 0; i < head_dim; i += 2 * VL) {
            prefetch(&next, TRANSPOSE_LINES);
            v_transpose_16(tokens + t, i, kva_min_u32(2 * VL, head_dim - i), dtype,
                           k + (size_t)i * KVA_PAGE_TOKENS + t, KVA_PAGE_TOKENS);
        }
    }
    *ahead = next;
}

/* Scores of every query with the slots [base, base + KVA_PAGE_TOKENS), whose keys are in `k`.
 * Scores of slots that a query does not see may be left as they are. */
static void score_page(const struct kva_cpu_attend_split *split, uint32_t base)
{
    uint32_t group = group_queries(split->q_count);
    for (uint32_t j = 0; j < split->q_count; j += group) {
        uint32_t queries = kva_min_u32(group, split->q_count - j);
        /* Later queries see from later on, and further. */
        uint32_t first = split->slot_first[j], end = split->slot_end[j + queries - 1];
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += TILE_TOKENS) {
            if (base + t >= end || base + t + TILE_TOKENS <= first)
                continue;
            score_queries(queries, split->q + (size_t)j * split->head_dim, split->head_dim,
                          split->k + t,
                          split->scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + base + t);
        }
    }
}

/* --- weights of the tokens -------------------------------------------------------------------- */

/* m and e of a query; its scores become exp(score - m), 0 where it sees nothing. Lane i of the sum
 * takes the slots i, i + VL, ... whatever the query sees. */
static void softmax_split(const struct kva_cpu_attend_split *split, uint32_t query, bool holes)
{
    float *scores = split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
    uint32_t first = split->slot_first[query], end = split->slot_end[query];
    uint32_t low = first / VL * VL;
    uint32_t high = (uint32_t)kva_align_up(end, VL);
    split->m[query] = -INFINITY;
    split->e[query] = 0.0f;
    if (first >= end)
        return;
    for (uint32_t slot = low; slot < first; slot++)
        scores[slot] = -INFINITY;
    for (uint32_t slot = end; slot < high; slot++)
        scores[slot] = -INFINITY;
    for (uint32_t slot = first; holes && slot < end; slot++) {
        if (!split->tokens[slot])
            scores[slot] = -INFINITY;
    }
    kva_cpu_keep_scores(split, query, low, high);
    vf top = v_set(-INFINITY);
    for (uint32_t slot = low; slot < high; slot += VL)
        top = v_max(top, v_load(scores + slot));
    float m = v_largest(top);
    /* A maximum may pass over what is not a number. Where that is all there is, it must not be
     * taken for nothing. */
    for (uint32_t slot = first; m == -INFINITY && slot < end; slot++)
        m = scores[slot] != scores[slot] ? scores[slot] : m;
    if (m == -INFINITY) {
        for (uint32_t slot = low; slot < high; slot += VL)
            v_store(scores + slot, v_zero());
        return;
    }
    vf sum = v_zero();
    for (uint32_t slot = low; slot < high; slot += VL) {
        vf p = v_exp(v_sub(v_load(scores + slot), v_set(m)));
        v_store(scores + slot, p);
        sum = v_add(sum, p);
    }
    split->m[query] = m;
    split->e[query] = v_sum(sum);
}

/* --- values ----------------------------------------------------------------------------------- */

/* Where a page's values are read from: floats [KVA_PAGE_TOKENS, stride], or, where `wide` is NULL,
 * the tokens themselves. */
struct values {
    const void *const *tokens; /* of the page's slots */
    const float *wide;
    uint32_t stride;
    uint32_t head_dim;
    const float *p;      /* [queries, KVA_ATTEND_SPLIT_TOKENS], from the page's first slot on */
    float *a;            /* [queries, head_dim] */
    struct ahead *ahead; /* NULL: nothing is to be prefetched */
};

#define FORMAT_WIDE KVA_F32

/* a[j, i..] += sum of p[j, t] v[t, i..] over the slots [first, end), in order. `rest` > 0: only
 * that many dimensions, less than a vector. */
INLINE void value_tile(const int queries, const int vectors, enum kva_dtype format,
                       const struct values *values, uint32_t i, uint32_t rest, uint32_t first,
                       uint32_t end)
{
    const bool fetch = values->ahead && vectors == ATTEND_TILE_VECTORS;
    struct ahead next = {0};
    if (fetch)
        next = *values->ahead;
    vf sums[ATTEND_TILE_QUERIES][ATTEND_TILE_VECTORS];
    for (int j = 0; j < queries; j++) {
        const float *a = values->a + (size_t)j * values->head_dim + i;
        for (int n = 0; n < vectors; n++)
            sums[j][n] = rest ? v_load_n(a, rest) : v_load(a + (uint32_t)n * VL);
    }
    for (uint32_t t = first; t < end; t++) {
        if (fetch && t % TOKENS_A_TURN == 0)
            prefetch(&next, 2);
        if (!values->tokens[t])
            continue;
        vf v[ATTEND_TILE_VECTORS];
        const uint16_t *half = (const uint16_t *)values->tokens[t] + values->head_dim + i;
        const float *wide = values->wide + (size_t)t * values->stride + i;
        for (int n = 0; n < vectors; n++) {
            if (format == FORMAT_WIDE)
                v[n] = v_load(wide + (uint32_t)n * VL);
            else
                v[n] = rest ? v_load_16_n(half, format, rest)
                            : v_load_16(half + (uint32_t)n * VL, format);
        }
        for (int j = 0; j < queries; j++) {
            vf p = v_set(values->p[(size_t)j * KVA_ATTEND_SPLIT_TOKENS + t]);
            for (int n = 0; n < vectors; n++)
                sums[j][n] = v_fma(p, v[n], sums[j][n]);
        }
    }
    if (fetch)
        *values->ahead = next;
    for (int j = 0; j < queries; j++) {
        float *a = values->a + (size_t)j * values->head_dim + i;
        for (int n = 0; n < vectors; n++) {
            if (rest)
                v_store_n(a, sums[j][n], rest);
            else
                v_store(a + (uint32_t)n * VL, sums[j][n]);
        }
    }
}

INLINE void value_run(const int queries, enum kva_dtype format, const struct values *values,
                      uint32_t first, uint32_t end)
{
    uint32_t dim = values->head_dim, i = 0;
    for (; i + ATTEND_TILE_VECTORS * VL <= dim; i += ATTEND_TILE_VECTORS * VL)
        value_tile(queries, ATTEND_TILE_VECTORS, format, values, i, 0, first, end);
    for (; i + VL <= dim; i += VL)
        value_tile(queries, 1, format, values, i, 0, first, end);
    if (i < dim)
        value_tile(queries, 1, format, values, i, dim - i, first, end);
}

INLINE void value_queries_of(enum kva_dtype format, uint32_t queries, const struct values *values,
                             uint32_t first, uint32_t end)
{
    switch (queries) {
    case 1:
        value_run(1, format, values, first, end);
        break;
    case 2:
        value_run(2, format, values, first, end);
        break;
    case 3:
        value_run(3, format, values, first, end);
        break;
    case 4:
        value_run(4, format, values, first, end);
        break;
    case 5:
        value_run(5, format, values, first, end);
        break;
    default:
        value_run(6, format, values, first, end);
        break;
    }
}

static void value_queries(enum kva_dtype dtype, uint32_t queries, const struct values *values,
                          uint32_t first, uint32_t end)
{
    if (first >= end)
        return;
    if (values->wide)
        value_queries_of(FORMAT_WIDE, queries, values, first, end);
    else if (dtype == KVA_BF16)
        value_queries_of(KVA_BF16, queries, values, first, end);
    else
        value_queries_of(KVA_F16, queries, values, first, end);
}

/* The part of [first, end) that lies in the page from `base` on, as slots of the page. */
static void page_part(uint32_t base, uint32_t first, uint32_t end, uint32_t *ret_first,
                      uint32_t *ret_end)
{
    first = kva_max_u32(first, base) - base;
    end = kva_max_u32(end, base) - base;
    *ret_first = first;
    *ret_end = kva_min_u32(end, KVA_PAGE_TOKENS);
}

/* Queries [j, j + queries) with the page from `base` on. What all of them see is done in one tile;
 * what only some see, at either end of it, one by one. */
static void value_group(const struct kva_cpu_attend_split *split, uint32_t base, uint32_t j,
                        uint32_t queries, const struct values *page)
{
    struct values values = *page;
    values.p = split->scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + base;
    values.a = split->a + (size_t)j * split->head_dim;
    uint32_t first, end, own_first, own_end;
    page_part(base, split->slot_first[j + queries - 1], split->slot_end[j], &first, &end);
    for (uint32_t i = 0; i < queries; i++) {
        struct values own = values;
        own.p += (size_t)i * KVA_ATTEND_SPLIT_TOKENS;
        own.a += (size_t)i * split->head_dim;
        page_part(base, split->slot_first[j + i], split->slot_end[j + i], &own_first, &own_end);
        value_queries(split->kv_dtype, 1, &own, own_first,
                      first < end ? kva_min_u32(first, own_end) : own_end);
    }
    if (first >= end)
        return;
    value_queries(split->kv_dtype, queries, &values, first, end);
    for (uint32_t i = 0; i < queries; i++) {
        struct values own = values;
        own.p += (size_t)i * KVA_ATTEND_SPLIT_TOKENS;
        own.a += (size_t)i * split->head_dim;
        page_part(base, split->slot_first[j + i], split->slot_end[j + i], &own_first, &own_end);
        value_queries(split->kv_dtype, 1, &own, end, own_end);
    }
}

/* The values of a page's tokens as floats [KVA_PAGE_TOKENS, stride]. */
static void widen_page(const struct kva_cpu_attend_split *split, const void *const *tokens,
                       uint32_t stride)
{
    uint32_t dim = split->head_dim;
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
        if (!tokens[t])
            continue;
        const uint16_t *from = (const uint16_t *)tokens[t] + dim;
        float *to = split->v + (size_t)t * stride;
        uint32_t i = 0;
        for (; i + VL <= dim; i += VL)
            v_store(to + i, v_load_16(from + i, split->kv_dtype));
        if (i < dim)
            v_store(to + i, v_load_16_n(from + i, split->kv_dtype, dim - i));
    }
}

/* --- the split -------------------------------------------------------------------------------- */

static bool has_holes(const struct kva_cpu_attend_split *split, uint32_t first, uint32_t end)
{
    for (uint32_t slot = first; slot < end; slot++) {
        if (!split->tokens[slot])
            return true;
    }
    return false;
}

void LEVEL(kva_attend_split)(const struct kva_cpu_attend_split *split)
{
    uint32_t first = split->slot_first[0], end = split->slot_end[split->q_count - 1];
    uint32_t page_first = first / KVA_PAGE_TOKENS * KVA_PAGE_TOKENS;
    memset(split->a, 0, (size_t)split->q_count * split->head_dim * sizeof *split->a);
    struct ahead ahead = plan_ahead(split);
    for (uint32_t base = page_first; base < end; base += KVA_PAGE_TOKENS) {
        if (split->kv_dtype == KVA_BF16)
            transpose_page(split->tokens + base, &ahead, split->head_dim, KVA_BF16, split->k);
        else
            transpose_page(split->tokens + base, &ahead, split->head_dim, KVA_F16, split->k);
        score_page(split, base);
    }
    bool holes = has_holes(split, first, end);
    for (uint32_t j = 0; j < split->q_count; j++)
        softmax_split(split, j, holes);
    bool wide = split->q_count > DIRECT_QUERIES_MAX;
    uint32_t group = group_queries(split->q_count);
    struct values page = {.wide = wide ? split->v : NULL,
                          .stride = (uint32_t)kva_align_up(split->head_dim, 16),
                          .head_dim = split->head_dim};
    for (uint32_t base = page_first; base < end; base += KVA_PAGE_TOKENS) {
        page.tokens = split->tokens + base;
        page.ahead = &ahead;
        if (wide)
            widen_page(split, page.tokens, page.stride);
        for (uint32_t j = 0; j < split->q_count; j += group) {
            value_group(split, base, j, kva_min_u32(group, split->q_count - j), &page);
            page.ahead = NULL;
        }
    }
}

void LEVEL(kva_attend_fold)(float *a, float *m, float *e, const float *split_a, float split_m,
                            float split_e, uint32_t head_dim)
{
    if (split_m == -INFINITY)
        return;
    float top = *m > split_m ? *m : split_m;
    float keep = v_exp_first(*m - top), add = v_exp_first(split_m - top);
    uint32_t i = 0;
    for (; i + VL <= head_dim; i += VL)
        v_store(a + i, v_fma(v_load(a + i), v_set(keep), v_mul(v_load(split_a + i), v_set(add))));
    if (i < head_dim) {
        uint32_t n = head_dim - i;
        v_store_n(
            a + i,
            v_fma(v_load_n(a + i, n), v_set(keep), v_mul(v_load_n(split_a + i, n), v_set(add))), n);
    }
    *e = v_first(v_fma(v_set(*e), v_set(keep), v_mul(v_set(split_e), v_set(add))));
    *m = top;
}
