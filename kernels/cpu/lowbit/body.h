/* body.h - attention over low-bit pages and selection for the vector levels; included by
 * avx2.c and avx512.c after their simd header.
 *
 * A page is expanded to floats once for all queries: keys [head_dim, 64], values [64, head_dim]. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lowbit/lanes.h"
#include "kernels/cpu/lowbit/quads.h"

#include <string.h>

#define PAGE_FLOATS (KVA_CPU_HEAD_DIM_MAX * KVA_PAGE_TOKENS)

_Static_assert(PAGE_FLOATS * sizeof(float) <= KVA_CPU_LOWBIT_SCRATCH_BYTES,
               "a page of floats outgrew the scratch");

/* --- a page as floats ------------------------------------------------------------------------- */

/* Of each of four numbers of 16 lanes. */
struct levels {
    vf scale[4][16 / VL], zero[4][16 / VL];
};

/* Levels that all lanes share: four of them, side by side, from f16. */
INLINE struct levels shared_levels(const unsigned char *scale, const unsigned char *zero)
{
    struct levels levels;
    for (uint32_t j = 0; j < 4; j++) {
        uint16_t halves[2];
        memcpy(&halves[0], scale + 2 * j, 2);
        memcpy(&halves[1], zero + 2 * j, 2);
        for (uint32_t i = 0; i < 16 / VL; i++) {
            levels.scale[j][i] = v_set(kva_f32_of_f16(halves[0]));
            levels.zero[j][i] = v_set(kva_f32_of_f16(halves[1]));
        }
    }
    return levels;
}

/* The numbers of 16 nibbles, times scale plus zero: number j of lane i to to[j * stride + i]. */
INLINE void decode_quads(const uint32_t bits, const unsigned char *from, size_t plane_bytes,
                         size_t bytes, const struct levels *levels, float *to, size_t stride)
{
    uint32_t quads[QUADS];
    expand_quads(bits, from, plane_bytes, bytes, quads);
    for (uint32_t i = 0; i < 16 / VL; i++) {
        const uint32_t *at = quads + i * VL;
        v_store(to + i * VL, v_fma(quad_codes(at, 0), levels->scale[0][i], levels->zero[0][i]));
        v_store(to + stride + i * VL,
                v_fma(quad_codes(at, 1), levels->scale[1][i], levels->zero[1][i]));
        v_store(to + 2 * stride + i * VL,
                v_fma(quad_codes(at, 2), levels->scale[2][i], levels->zero[2][i]));
        v_store(to + 3 * stride + i * VL,
                v_fma(quad_codes(at, 3), levels->scale[3][i], levels->zero[3][i]));
    }
}

/* Keys of a page as floats [head_dim, 64], with levels per token. */
INLINE void decode_token_keys(const uint32_t bits, const struct kva_cpu_lowbit_split *split,
                              const struct kva_lowbit_layout *layout, const unsigned char *head,
                              float *to)
{
    const uint16_t *scales = (const uint16_t *)(const void *)(head + layout->k_scale);
    const uint16_t *zeros = (const uint16_t *)(const void *)(head + layout->k_zero);
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += 16) {
        struct levels levels;
        for (uint32_t i = 0; i < 4 * (16 / VL); i++) {
            const uint32_t at = t + i / 4 * VL;
            levels.scale[i % 4][i / 4] = v_load_16(scales + at, KVA_F16);
            levels.zero[i % 4][i / 4] = v_load_16(zeros + at, KVA_F16);
        }
        for (uint32_t c = 0; c < split->head_dim; c += 4)
            decode_quads(bits,
                         head + layout->k_codes + (size_t)(c / 4) * KVA_PAGE_TOKENS / 2 + t / 2,
                         layout->plane_bytes, 8, &levels, to + (size_t)c * KVA_PAGE_TOKENS + t,
                         KVA_PAGE_TOKENS);
    }
}

/* The same with levels per channel. */
INLINE void decode_keys(const uint32_t bits, const struct kva_cpu_lowbit_split *split,
                        const struct kva_lowbit_layout *layout, const unsigned char *head,
                        float *to)
{
    const uint32_t dim = split->head_dim, group = split->format.group;
    for (uint32_t c = 0; c < dim; c += 4) {
        const unsigned char *row = head + layout->k_codes + (size_t)(c / 4) * KVA_PAGE_TOKENS / 2;
        for (uint32_t first = 0; first < KVA_PAGE_TOKENS; first += group) {
            const size_t level = ((size_t)(first / group) * dim + c) * 2;
            const struct levels levels =
                shared_levels(head + layout->k_scale + level, head + layout->k_zero + level);
            for (uint32_t t = first; t < first + group; t += 16)
                decode_quads(bits, row + t / 2, layout->plane_bytes, 8, &levels,
                             to + (size_t)c * KVA_PAGE_TOKENS + t, KVA_PAGE_TOKENS);
        }
    }
}

/* Values of a page as floats [64, stride]. */
INLINE void decode_values(const uint32_t bits, const struct kva_cpu_lowbit_split *split,
                          const struct kva_lowbit_layout *layout, const unsigned char *head,
                          uint32_t stride, float *to)
{
    const uint32_t dim = split->head_dim, group = split->format.group;
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += 4) {
        const unsigned char *row = head + layout->v_codes + (size_t)(t / 4) * dim / 2;
        for (uint32_t first = 0; first < dim; first += group) {
            const size_t level = (size_t)(first / group * KVA_PAGE_TOKENS + t) * 2;
            const struct levels levels =
                shared_levels(head + layout->v_scale + level, head + layout->v_zero + level);
            for (uint32_t c = first; c < kva_min_u32(dim, first + group); c += 16)
                decode_quads(bits, row + c / 2, layout->plane_bytes, kva_min_size(8, (dim - c) / 2),
                             &levels, to + (size_t)t * stride + c, stride);
        }
    }
}

/* --- tiles ------------------------------------------------------------------------------------ */

#define TILE_QUERIES ATTEND_TILE_QUERIES
#define TILE_VECTORS ATTEND_TILE_VECTORS
_Static_assert(TILE_QUERIES == 6, "tiles have 1 to 6 queries");

/* sums[j][n] (+)= sum over i < count of x[j][i] y[i][n], in order. */
INLINE void float_tile(const int queries, const int vectors, const float *x, size_t x_stride,
                       const float *y, size_t y_stride, uint32_t count, bool add, float *sums,
                       size_t sums_stride)
{
    vf acc[TILE_QUERIES][TILE_VECTORS];
    for (int j = 0; j < queries; j++) {
        for (int n = 0; n < vectors; n++)
            acc[j][n] = add ? v_load(sums + (size_t)j * sums_stride + (uint32_t)n * VL) : v_zero();
    }
    for (uint32_t i = 0; i < count; i++) {
        vf rows[TILE_VECTORS];
        for (int n = 0; n < vectors; n++)
            rows[n] = v_load(y + (size_t)i * y_stride + (uint32_t)n * VL);
        for (int j = 0; j < queries; j++) {
            vf factor = v_set(x[(size_t)j * x_stride + i]);
            for (int n = 0; n < vectors; n++)
                acc[j][n] = v_fma(factor, rows[n], acc[j][n]);
        }
    }
    for (int j = 0; j < queries; j++) {
        for (int n = 0; n < vectors; n++)
            v_store(sums + (size_t)j * sums_stride + (uint32_t)n * VL, acc[j][n]);
    }
}

INLINE void float_tile_of(uint32_t queries, const int vectors, const float *x, size_t x_stride,
                          const float *y, size_t y_stride, uint32_t count, bool add, float *sums,
                          size_t sums_stride)
{
#define TILE(n)                                                                                    \
    case n:                                                                                        \
        float_tile(n, vectors, x, x_stride, y, y_stride, count, add, sums, sums_stride);           \
        return;
    switch (queries) {
        TILE(1)
        TILE(2)
        TILE(3)
        TILE(4)
        TILE(5)
        TILE(6)
    }
#undef TILE
}

/* Any number of queries, in tiles as even as can be. Not a part of its callers: there are many. */
#define FLOAT_TILES(name, vectors)                                                                 \
    __attribute__((noinline)) static void name(uint32_t queries, const float *x, size_t x_stride,  \
                                               const float *y, size_t y_stride, uint32_t count,    \
                                               bool add, float *sums, size_t sums_stride)          \
    {                                                                                              \
        const uint32_t tiles = (uint32_t)kva_div_up(queries, TILE_QUERIES);                        \
        for (uint32_t tile = 0, j = 0, size; tile < tiles; tile++, j += size) {                    \
            size = (uint32_t)kva_div_up(queries - j, tiles - tile);                                \
            float_tile_of(size, vectors, x + j * x_stride, x_stride, y, y_stride, count, add,      \
                          sums + j * sums_stride, sums_stride);                                    \
        }                                                                                          \
    }

FLOAT_TILES(wide_tiles, TILE_VECTORS)
FLOAT_TILES(narrow_tiles, 1)

/* --- attention -------------------------------------------------------------------------------- */

static bool sees(const struct kva_cpu_lowbit_split *split, uint32_t query, uint32_t slot)
{
    return slot >= split->slot_first[query] &&
           (split->present[slot / KVA_PAGE_TOKENS] >> slot % KVA_PAGE_TOKENS & 1u);
}

/* Scores that are not seen become -inf. */
static void hide(const struct kva_cpu_lowbit_split *split, uint32_t query, float *scores,
                 uint32_t slots)
{
    uint64_t all = UINT64_MAX;
    for (uint32_t page = 0; page < split->page_count; page++)
        all &= split->present[page];
    if (all == UINT64_MAX && split->slot_first[query] == 0)
        return;
    for (uint32_t slot = 0; slot < slots; slot++)
        scores[slot] = sees(split, query, slot) ? scores[slot] : -INFINITY;
}

/* m and e of a query; its scores become weights. */
static void softmax_split(const struct kva_cpu_lowbit_split *split, uint32_t query)
{
    float *scores = split->weights + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
    uint32_t slots = split->page_count * KVA_PAGE_TOKENS;
    hide(split, query, scores, slots);
    vf top = v_set(-INFINITY), sum = v_zero();
    for (uint32_t slot = 0; slot < slots; slot += VL)
        top = v_max(top, v_load(scores + slot));
    float m = v_largest(top);
    split->m[query] = m;
    split->e[query] = 0.0f;
    if (m == -INFINITY) {
        memset(scores, 0, slots * sizeof *scores);
        return;
    }
    for (uint32_t slot = 0; slot < slots; slot += VL) {
        vf p = v_exp(v_sub(v_load(scores + slot), v_set(m)));
        v_store(scores + slot, p);
        sum = v_add(sum, p);
    }
    split->e[query] = v_sum(sum);
}

INLINE void prefetch_pages(const struct kva_cpu_lowbit_split *split)
{
    size_t bytes = kva_lowbit_head_bytes(split->format, split->head_dim);
    for (uint32_t page = 0; page < split->next_count; page++) {
        for (size_t i = 0; i < bytes; i += KVA_CACHE_LINE)
            _mm_prefetch((const char *)split->next[page] + i, _MM_HINT_T1);
    }
}

/* a += weights times the values of page `page`, which are in `values`. */
INLINE void add_values(const struct kva_cpu_lowbit_split *split, uint32_t page, const float *values,
                       uint32_t stride)
{
    const float *weights = split->weights + page * KVA_PAGE_TOKENS;
    uint32_t dim = split->head_dim, c = 0;
    for (; c + TILE_VECTORS * VL <= dim; c += TILE_VECTORS * VL)
        wide_tiles(split->q_count, weights, KVA_ATTEND_SPLIT_TOKENS, values + c, stride,
                   KVA_PAGE_TOKENS, true, split->a + c, dim);
    for (; c + VL <= dim; c += VL)
        narrow_tiles(split->q_count, weights, KVA_ATTEND_SPLIT_TOKENS, values + c, stride,
                     KVA_PAGE_TOKENS, true, split->a + c, dim);
    for (uint32_t j = 0; c < dim && j < split->q_count; j++) {
        float *a = split->a + (size_t)j * dim + c;
        vf sum = v_load_n(a, dim - c);
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++)
            sum = v_fma(v_set(weights[(size_t)j * KVA_ATTEND_SPLIT_TOKENS + t]),
                        v_load(values + (size_t)t * stride + c), sum);
        v_store_n(a, sum, dim - c);
    }
}

INLINE void attend(const uint32_t bits, const uint32_t value_bits, const bool tokens,
                   const struct kva_cpu_lowbit_split *split)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(split->format, split->head_dim);
    uint32_t dim = split->head_dim, stride = (uint32_t)kva_align_up(dim, 16);
    float *floats = split->scratch;
    prefetch_pages(split);
    for (uint32_t page = 0; page < split->page_count; page++) {
        if (tokens)
            decode_token_keys(bits, split, &layout, split->pages[page], floats);
        else
            decode_keys(bits, split, &layout, split->pages[page], floats);
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += TILE_VECTORS * VL)
            wide_tiles(split->q_count, split->q, dim, floats + t, KVA_PAGE_TOKENS, dim, false,
                       split->weights + page * KVA_PAGE_TOKENS + t, KVA_ATTEND_SPLIT_TOKENS);
    }
    for (uint32_t j = 0; j < split->q_count; j++)
        softmax_split(split, j);
    memset(split->a, 0, (size_t)split->q_count * dim * sizeof *split->a);
    for (uint32_t page = 0; page < split->page_count; page++) {
        decode_values(value_bits, split, &layout, split->pages[page], stride, floats);
        add_values(split, page, floats, stride);
    }
}

void LEVEL(kva_lowbit_split)(const struct kva_cpu_lowbit_split *split)
{
    const bool tokens = split->format.keys == KVA_KEYS_PER_TOKEN;
    switch (split->format.bits) {
    case 1:
        if (kva_lowbit_value_bits(split->format) == 2)
            attend(1, 2, false, split);
        else
            attend(1, 1, false, split);
        break;
    case 2:
        if (tokens)
            attend(2, 2, true, split);
        else
            attend(2, 2, false, split);
        break;
    case 3:
        attend(3, 3, true, split);
        break;
    case 8:
        attend(8, 8, true, split);
        break;
    default:
        if (tokens)
            attend(4, 4, true, split);
        else
            attend(4, 4, false, split);
        break;
    }
}

/* --- selection -------------------------------------------------------------------------------- */

uint32_t LEVEL(kva_lowbit_filter)(const struct kva_cpu_lowbit_filter *args)
{
    vf sums[KVA_PAGE_TOKENS / VL];
    for (uint32_t i = 0; i < KVA_PAGE_TOKENS / VL; i++)
        sums[i] = v_zero();
    for (uint32_t h = 0; h < args->heads; h++) {
        vf factor = v_set(args->factors[h]);
        for (uint32_t i = 0; i < KVA_PAGE_TOKENS / VL; i++)
            sums[i] = v_fma(v_load(args->weights + h * args->stride + i * VL), factor, sums[i]);
    }
    uint64_t bits = 0;
    for (uint32_t i = 0; i < KVA_PAGE_TOKENS / VL; i++)
        bits |= (uint64_t)v_not_less(sums[i], v_set(args->threshold)) << i * VL;
    bits &= args->candidates;
    if (bits == 0)
        return 0;
    float means[KVA_PAGE_TOKENS];
    for (uint32_t i = 0; i < KVA_PAGE_TOKENS / VL; i++)
        v_store(means + i * VL, sums[i]);
    uint32_t count = 0;
    for (; bits; bits &= bits - 1, count++) {
        args->tokens[count] = (uint32_t)__builtin_ctzll(bits);
        args->found[count] = means[args->tokens[count]];
    }
    return count;
}

void LEVEL(kva_lowbit_score)(float *out, const float *q, const void *const *rows, uint32_t count,
                             uint32_t head_dim, enum kva_dtype kv_dtype)
{
    for (uint32_t j = 0; j < count; j++) {
        const uint16_t *row = rows[j];
        vf sums[2] = {v_zero(), v_zero()};
        uint32_t i = 0;
        for (; i + 2 * VL <= head_dim; i += 2 * VL) {
            sums[0] = v_fma(v_load(q + i), v_load_16(row + i, kv_dtype), sums[0]);
            sums[1] = v_fma(v_load(q + i + VL), v_load_16(row + i + VL, kv_dtype), sums[1]);
        }
        for (; i < head_dim; i += VL) {
            uint32_t n = kva_min_u32(VL, head_dim - i);
            sums[0] = v_fma(v_load_n(q + i, n), v_load_16_n(row + i, kv_dtype, n), sums[0]);
        }
        out[j] = v_sum(v_add(sums[0], sums[1]));
    }
}
