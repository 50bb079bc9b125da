/* Reference kernels of low-bit KV: quantisation, attention over one split, selection. */
#include "kernels/cpu/kernels_ref.h"
#include "kernels/cpu/lowbit.h"
#include "kernels/cpu/scalar.h"

#include <string.h>

/* --- quantisation -----------------------------------------------------------------------------
 *
 * One formula per number, in one order, so that every level gives the same bits. A group has up to
 * 64 elements, which may lie apart; those before `counted` do not count for its levels. Sums go by
 * GROUP_LANES lanes (element % lanes), added by halves. */

#define GROUP_MAX   64u
#define GROUP_LANES 16u

struct group {
    float x[GROUP_MAX];
    uint8_t codes[GROUP_MAX];
    uint32_t count;
    uint32_t counted; /* elements [counted, count) count */
    uint16_t scale;   /* f16 */
    uint16_t zero;
};

static float lanes_total(float *lanes)
{
    for (uint32_t half = GROUP_LANES / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

/* sum y[i] * codes[i] over what counts; without codes, sum y[i]. */
static float group_sum(const struct group *group, const float *y, const uint8_t *codes)
{
    float lanes[GROUP_LANES] = {0};
    for (uint32_t i = group->counted; i < group->count; i++)
        lanes[i % GROUP_LANES] += codes ? y[i] * (float)codes[i] : y[i];
    return lanes_total(lanes);
}

static void group_constant(struct group *group, float value)
{
    group->scale = 0;
    group->zero = kva_f16_of_f32(value);
    memset(group->codes, 0, sizeof group->codes);
}

/* codes = the nearest level, clamped; what is not a number gets 0. */
static void group_code(struct group *group, uint32_t code_max)
{
    float zero = kva_f32_of_f16(group->zero);
    float inverse = 1.0f / kva_f32_of_f16(group->scale);
    for (uint32_t i = 0; i < group->count; i++) {
        float level = (group->x[i] - zero) * inverse;
        level = level > 0.0f ? level : 0.0f;
        level = level < (float)code_max ? level : (float)code_max;
        group->codes[i] = (uint8_t)rintf(level);
    }
}

/* Levels by least squares over the codes, relative to `low`: with y = x - low,
 * scale = (n S(yc) - S(y) S(c)) / (n S(cc) - S(c)^2), zero = low + (S(y) - scale S(c)) / n. */
static void group_fit(struct group *group, const float *y, float low, float mean)
{
    uint32_t sum_c = 0, sum_cc = 0;
    for (uint32_t i = group->counted; i < group->count; i++) {
        sum_c += group->codes[i];
        sum_cc += (uint32_t)group->codes[i] * group->codes[i];
    }
    uint32_t n = group->count - group->counted;
    float sum_y = group_sum(group, y, NULL), sum_yc = group_sum(group, y, group->codes);
    float spread = (float)(n * sum_cc - sum_c * sum_c);
    float scale = ((float)n * sum_yc - sum_y * (float)sum_c) / spread;
    group->scale = kva_f16_of_f32(scale);
    if (!(spread > 0.0f) || group->scale == 0) {
        group_constant(group, low + mean);
        return;
    }
    group->zero = kva_f16_of_f32(low + (sum_y - scale * (float)sum_c) / (float)n);
}

static void quantise_group(struct group *group, struct kva_lowbit_format format)
{
    float low = INFINITY, high = -INFINITY, y[GROUP_MAX];
    for (uint32_t i = group->counted; i < group->count; i++) {
        low = group->x[i] < low ? group->x[i] : low;
        high = group->x[i] > high ? group->x[i] : high;
    }
    if (!(low < high)) {
        /* Constant, or nothing counts, or nothing is a number. */
        group_constant(group, low == high ? low : 0.0f);
        return;
    }
    for (uint32_t i = 0; i < group->count; i++)
        y[i] = group->x[i] - low;
    float n = (float)(group->count - group->counted);
    float mean = group_sum(group, y, NULL) / n;
    uint32_t code_max = (1u << format.bits) - 1;
    if (format.bits == 1) {
        /* Products by 3/4, 1/4 and 1/2 do not overflow where sums would. */
        float threshold = format.levels == KVA_LEVELS_PAPER ? 0.5f * low + 0.5f * high : mean;
        const float *from = format.levels == KVA_LEVELS_PAPER ? group->x : y;
        group->zero = kva_f16_of_f32(0.75f * low + 0.25f * high);
        group->scale = kva_f16_of_f32(0.5f * high - 0.5f * low);
        for (uint32_t i = 0; i < group->count; i++)
            group->codes[i] = from[i] >= threshold;
    } else {
        group->zero = kva_f16_of_f32(low);
        group->scale = kva_f16_of_f32((high - low) / (float)code_max);
        if (group->scale != 0)
            group_code(group, code_max);
    }
    if (group->scale == 0)
        group_constant(group, low + mean);
    else if (format.levels == KVA_LEVELS_FIT)
        group_fit(group, y, low, mean);
}

/* What is beyond the range of f16 counts as its end. */
static float number_of(uint16_t bits, enum kva_dtype dtype)
{
    float x = kva_f32_of_16(bits, dtype);
    x = x > 65504.0f ? 65504.0f : x;
    return x < -65504.0f ? -65504.0f : x;
}

static void put_bits(unsigned char *planes, size_t plane_bytes, size_t bit, uint32_t bits,
                     uint32_t code)
{
    for (uint32_t plane = 0; plane < bits; plane++)
        planes[plane * plane_bytes + bit / 8] |= (unsigned char)((code >> plane & 1u) << bit % 8);
}

void kva_quantise_ref(const struct kva_cpu_quantise *args)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout(args->format, args->head_dim);
    uint32_t dim = args->head_dim, size = args->format.group, bits = args->format.bits;
    unsigned char *to = args->to;
    struct group group;
    memset(to + layout.k_codes, 0, 2 * bits * layout.plane_bytes);
    for (uint32_t g = 0; g < layout.k_groups; g++) {
        for (uint32_t c = 0; c < dim; c++) {
            group.count = size;
            group.counted =
                kva_min_u32(args->exempt > g * size ? args->exempt - g * size : 0, size);
            for (uint32_t i = 0; i < size; i++)
                group.x[i] =
                    number_of(args->from[(size_t)(g * size + i) * 2 * dim + c], args->kv_dtype);
            quantise_group(&group, args->format);
            memcpy(to + layout.k_scale + (size_t)(g * dim + c) * 2, &group.scale, 2);
            memcpy(to + layout.k_zero + (size_t)(g * dim + c) * 2, &group.zero, 2);
            for (uint32_t i = 0; i < size; i++)
                put_bits(to + layout.k_codes, layout.plane_bytes, kva_lowbit_k_bit(g * size + i, c),
                         bits, group.codes[i]);
        }
    }
    for (uint32_t g = 0; g < layout.v_groups; g++) {
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
            group.count = kva_min_u32(size, dim - g * size);
            group.counted = 0;
            for (uint32_t i = 0; i < group.count; i++)
                group.x[i] =
                    number_of(args->from[(size_t)(t * 2 + 1) * dim + g * size + i], args->kv_dtype);
            quantise_group(&group, args->format);
            memcpy(to + layout.v_scale + (size_t)(g * KVA_PAGE_TOKENS + t) * 2, &group.scale, 2);
            memcpy(to + layout.v_zero + (size_t)(g * KVA_PAGE_TOKENS + t) * 2, &group.zero, 2);
            for (uint32_t i = 0; i < group.count; i++)
                put_bits(to + layout.v_codes, layout.plane_bytes,
                         kva_lowbit_v_bit(t, g * size + i, dim), bits, group.codes[i]);
        }
    }
}

/* --- attention -------------------------------------------------------------------------------- */

static uint32_t code_at(const unsigned char *planes, size_t plane_bytes, size_t bit, uint32_t bits)
{
    uint32_t code = 0;
    for (uint32_t plane = 0; plane < bits; plane++)
        code |= (planes[plane * plane_bytes + bit / 8] >> bit % 8 & 1u) << plane;
    return code;
}

static float f16_at(const unsigned char *from, size_t index)
{
    uint16_t half;
    memcpy(&half, from + 2 * index, sizeof half);
    return kva_f32_of_f16(half);
}

/* The key of token `token`, or its value. */
static void decode_key(const struct kva_cpu_lowbit_split *split,
                       const struct kva_lowbit_layout *layout, const unsigned char *page,
                       uint32_t token, float *to)
{
    uint32_t dim = split->head_dim, group = token / split->format.group;
    for (uint32_t c = 0; c < dim; c++)
        to[c] = f16_at(page + layout->k_zero, group * dim + c) +
                f16_at(page + layout->k_scale, group * dim + c) *
                    (float)code_at(page + layout->k_codes, layout->plane_bytes,
                                   kva_lowbit_k_bit(token, c), split->format.bits);
}

static void decode_value(const struct kva_cpu_lowbit_split *split,
                         const struct kva_lowbit_layout *layout, const unsigned char *page,
                         uint32_t token, float *to)
{
    for (uint32_t c = 0; c < split->head_dim; c++) {
        size_t at = c / split->format.group * KVA_PAGE_TOKENS + token;
        to[c] = f16_at(page + layout->v_zero, at) +
                f16_at(page + layout->v_scale, at) *
                    (float)code_at(page + layout->v_codes, layout->plane_bytes,
                                   kva_lowbit_v_bit(token, c, split->head_dim), split->format.bits);
    }
}

static bool is_present(const struct kva_cpu_lowbit_split *split, uint32_t slot)
{
    return split->present[slot / KVA_PAGE_TOKENS] >> slot % KVA_PAGE_TOKENS & 1u;
}

static bool sees(const struct kva_cpu_lowbit_split *split, uint32_t query, uint32_t slot)
{
    return slot >= split->slot_first[query] && is_present(split, slot);
}

/* m and e of a query; its scores become exp(score - m). */
static void soften(const struct kva_cpu_lowbit_split *split, uint32_t query, uint32_t slots)
{
    float *weights = split->weights + (size_t)query * KVA_ATTEND_SPLIT_TOKENS;
    float m = -INFINITY, e = 0.0f;
    for (uint32_t slot = 0; slot < slots; slot++)
        m = weights[slot] > m || weights[slot] != weights[slot] ? weights[slot] : m;
    for (uint32_t slot = 0; slot < slots; slot++) {
        weights[slot] = m == -INFINITY ? 0.0f : kva_scalar_exp(weights[slot] - m);
        e += weights[slot];
    }
    split->m[query] = m;
    split->e[query] = e;
}

void kva_lowbit_split_ref(const struct kva_cpu_lowbit_split *split)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout(split->format, split->head_dim);
    uint32_t dim = split->head_dim, slots = split->page_count * KVA_PAGE_TOKENS;
    float *row = split->scratch;
    for (uint32_t slot = 0; slot < slots; slot++) {
        decode_key(split, &layout, split->pages[slot / KVA_PAGE_TOKENS], slot % KVA_PAGE_TOKENS,
                   row);
        for (uint32_t j = 0; j < split->q_count; j++) {
            const float *q = split->q + (size_t)j * dim;
            float sum = 0.0f;
            for (uint32_t i = 0; i < dim; i++)
                sum += q[i] * row[i];
            split->weights[(size_t)j * KVA_ATTEND_SPLIT_TOKENS + slot] =
                sees(split, j, slot) ? sum : -INFINITY;
        }
    }
    for (uint32_t j = 0; j < split->q_count; j++)
        soften(split, j, slots);
    memset(split->a, 0, (size_t)split->q_count * dim * sizeof *split->a);
    for (uint32_t slot = 0; slot < slots; slot++) {
        decode_value(split, &layout, split->pages[slot / KVA_PAGE_TOKENS], slot % KVA_PAGE_TOKENS,
                     row);
        for (uint32_t j = 0; j < split->q_count; j++) {
            if (!sees(split, j, slot))
                continue;
            float p = split->weights[(size_t)j * KVA_ATTEND_SPLIT_TOKENS + slot];
            for (uint32_t i = 0; i < dim; i++)
                split->a[(size_t)j * dim + i] += p * row[i];
        }
    }
}

/* --- selection -------------------------------------------------------------------------------- */

uint32_t kva_lowbit_filter_ref(const struct kva_cpu_lowbit_filter *args)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
        if (!(args->candidates >> t & 1u))
            continue;
        float sum = 0.0f;
        for (uint32_t h = 0; h < args->heads; h++)
            sum += args->weights[h * args->stride + t] * args->factors[h];
        if (!(sum >= args->threshold))
            continue;
        args->found[count] = sum;
        args->tokens[count++] = t;
    }
    return count;
}

void kva_lowbit_score_ref(float *out, const float *q, const void *const *rows, uint32_t count,
                          uint32_t head_dim, enum kva_dtype kv_dtype)
{
    for (uint32_t j = 0; j < count; j++) {
        const uint16_t *row = rows[j];
        float sum = 0.0f;
        for (uint32_t i = 0; i < head_dim; i++)
            sum += q[i] * kva_f32_of_16(row[i], kv_dtype);
        out[j] = sum;
    }
}
