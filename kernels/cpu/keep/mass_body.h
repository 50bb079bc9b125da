/* mass_body.h - mass of the tokens of a split for the vector levels; included by avx2.c and avx512.c
 * after their simd header. Scores are made as attention makes them (attend/score_tile.h), some
 * queries with a page at a time; then each vector of tokens is added to, query by query. */
#include "kernels/cpu/attend/score_tile.h"
#include "kernels/cpu/keep/mass_add.h"

void LEVEL(kva_mass_keys)(const struct kva_cpu_mass_split *split)
{
    const uint32_t dim = split->head_dim;
    for (uint32_t base = 0; base < split->slots; base += KVA_PAGE_TOKENS) {
        const void *const *tokens = split->tokens + base;
        float *k = split->k + (size_t)base * dim;
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += VL) {
            for (uint32_t i = 0; i < dim; i += 2 * VL) {
                float *to = k + (size_t)i * KVA_PAGE_TOKENS + t;
                const uint32_t count = kva_min_u32(2 * VL, dim - i);
                if (split->kv_dtype == KVA_BF16)
                    v_transpose_16(tokens + t, i, count, KVA_BF16, to, KVA_PAGE_TOKENS);
                else
                    v_transpose_16(tokens + t, i, count, KVA_F16, to, KVA_PAGE_TOKENS);
            }
        }
    }
}

void LEVEL(kva_mass_split)(const struct kva_cpu_mass_split *split)
{
    const uint32_t group = group_queries(split->q_count), dim = split->head_dim;
    for (uint32_t base = 0; base < split->slots && !split->scored; base += KVA_PAGE_TOKENS) {
        const float *k = split->k + (size_t)base * dim;
        for (uint32_t j = 0; j < split->q_count; j += group) {
            const uint32_t queries = kva_min_u32(group, split->q_count - j);
            const uint32_t end = split->slot_end[j + queries - 1];
            for (uint32_t t = 0; t < KVA_PAGE_TOKENS && base + t < end; t += TILE_TOKENS)
                score_queries(queries, split->q + (size_t)j * dim, dim, k + t,
                              split->scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + base + t);
        }
    }
    add_queries(split);
}
