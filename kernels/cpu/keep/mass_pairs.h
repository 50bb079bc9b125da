/* mass_pairs.h - keys of a split and queries in pairs of bf16, for the mass of tokens: what levels
 * avx512bf16 and amx share. */
#ifndef KVA_KERNELS_CPU_KEEP_MASS_PAIRS_H
#define KVA_KERNELS_CPU_KEEP_MASS_PAIRS_H

#include "kernels/cpu/attend/bf16_pairs.h"
#include "kernels/cpu/cpu.h"

/* The keys of the page from slot `base` on, which lie a page behind the other, and the queries
 * behind all of them; `dims`: as many as the level's products take. */
static struct pairs pairs_at(const struct kva_cpu_mass_split *split, uint32_t dims, uint32_t base)
{
    uint32_t *k = (uint32_t *)(void *)split->k;
    return (struct pairs){.dims = dims,
                          .k = k + (size_t)base * dims,
                          .q = k + (size_t)KVA_ATTEND_SPLIT_TOKENS * dims};
}

/* What bf16_pairs.h asks of a split; nothing is prefetched. */
static struct kva_cpu_attend_split attend_of(const struct kva_cpu_mass_split *split)
{
    return (struct kva_cpu_attend_split){.q = split->q,
                                         .tokens = split->tokens,
                                         .q_count = split->q_count,
                                         .head_dim = split->head_dim,
                                         .kv_dtype = split->kv_dtype,
                                         .scores = split->k};
}

static void pair_split_keys(const struct kva_cpu_mass_split *split, uint32_t dims)
{
    const struct kva_cpu_attend_split attend = attend_of(split);
    struct ahead none = plan_ahead(&attend);
    for (uint32_t base = 0; base < split->slots; base += KVA_PAGE_TOKENS) {
        const struct pairs pairs = pairs_at(split, dims, base);
        pair_keys(&attend, &pairs, base, &none);
    }
}

#endif
