/* avx512bf16.c - mass of the tokens of a split, level avx512bf16: bf16 keys against queries rounded to
 * bf16, as attention of the level has them, so that a score is the same number. f16 KV is level
 * avx512's. */
#include "kernels/cpu/attend/bf16_tile.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/keep/mass_add.h"
#include "kernels/cpu/keep/mass_pairs.h"

static uint32_t dims_of(const struct kva_cpu_mass_split *split)
{
    return (split->head_dim + 1) / 2;
}

void kva_mass_keys_avx512bf16(const struct kva_cpu_mass_split *split)
{
    if (split->kv_dtype == KVA_BF16)
        pair_split_keys(split, dims_of(split));
    else
        kva_mass_keys_avx512(split);
}

void kva_mass_split_avx512bf16(const struct kva_cpu_mass_split *split)
{
    const struct kva_cpu_attend_split attend = attend_of(split);
    const uint32_t dims = dims_of(split), group = group_queries(split->q_count);
    const struct pairs first = pairs_at(split, dims, 0);
    struct ahead none = plan_ahead(&attend);
    if (split->kv_dtype != KVA_BF16 || split->scored) {
        kva_mass_split_avx512(split);
        return;
    }
    pair_queries(&attend, &first);
    for (uint32_t base = 0; base < split->slots; base += KVA_PAGE_TOKENS) {
        const struct pairs pairs = pairs_at(split, dims, base);
        for (uint32_t j = 0; j < split->q_count; j += group) {
            const uint32_t queries = kva_min_u32(group, split->q_count - j);
            const uint32_t end = split->slot_end[j + queries - 1];
            for (uint32_t t = 0; t < KVA_PAGE_TOKENS && base + t < end; t += TILE_TOKENS)
                score_tiles[0][queries - 1](pairs.q + (size_t)j * dims, dims, pairs.k + t, &none,
                                            split->scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS +
                                                base + t);
        }
    }
    add_queries(split);
}
