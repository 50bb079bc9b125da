/* ref.c - reference kernels of low-bit KV: quantisation, attention over one split, selection. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lowbit/group.h"
#include "kernels/cpu/simd/scalar.h"

#include <string.h>

/* --- quantisation --------------------------------------------------------------------------- */

void kva_quantise_ref(const struct kva_cpu_quantise *args)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(args->format, args->head_dim);
    memset((unsigned char *)args->to + layout.k_codes, 0, layout.head_bytes - layout.k_codes);
    for (uint32_t g = 0; g < layout.k_groups; g++) {
        for (uint32_t c = 0; c < args->head_dim; c++)
            kva_lowbit_quantise_key(args, &layout, g, c);
    }
    for (uint32_t g = 0; g < layout.v_groups; g++) {
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++)
            kva_lowbit_quantise_value(args, &layout, g, t);
    }
}

/* --- attention -------------------------------------------------------------------------------- */

static uint32_t code_at(const unsigned char *planes, size_t plane_bytes, size_t bit, uint32_t bits)
{
    uint32_t code = 0;
    for (uint32_t plane = 0; plane < bits; plane++)
        code |= ((uint32_t)planes[plane * plane_bytes + bit / 8] >> bit % 8 & 1u) << plane;
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
    const bool tokens = split->format.keys == KVA_KEYS_PER_TOKEN;
    uint32_t dim = split->head_dim, first = token, step = 0;
    if (!tokens) {
        first = token / split->format.group * dim;
        step = 1;
    }
    for (uint32_t c = 0; c < dim; c++)
        to[c] = f16_at(page + layout->k_zero, first + c * step) +
                f16_at(page + layout->k_scale, first + c * step) *
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
                                   kva_lowbit_v_bit(token, c, split->head_dim),
                                   kva_lowbit_value_bits(split->format));
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
static void softmax_split(const struct kva_cpu_lowbit_split *split, uint32_t query, uint32_t slots)
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
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(split->format, split->head_dim);
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
        softmax_split(split, j, slots);
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
