/* amx.c - mass of the tokens of a split, level amx: bf16 keys against queries rounded to bf16, in the
 * tiles that attention of the level has, so that a score is the number that attention has kept. f16
 * KV is level avx512's. */
#include "kernels/cpu/attend/amx_tile.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/keep/mass_add.h"
#include "kernels/cpu/keep/mass_pairs.h"

/* Whole steps of tiles, padded with 0. */
static uint32_t dims_of(const struct kva_cpu_mass_split *split)
{
    return (uint32_t)kva_align_up(split->head_dim, CHUNK_DIM) / 2;
}

void kva_mass_keys_amx(const struct kva_cpu_mass_split *split)
{
    if (split->kv_dtype == KVA_BF16)
        pair_split_keys(split, dims_of(split));
    else
        kva_mass_keys_avx512(split);
}

void kva_mass_split_amx(const struct kva_cpu_mass_split *split)
{
    const struct kva_cpu_attend_split attend = attend_of(split);
    const uint32_t dims = dims_of(split), group = tile_queries(split->q_count);
    const struct pairs first = pairs_at(split, dims, 0);
    struct ahead none = plan_ahead(&attend);
    if (split->kv_dtype != KVA_BF16 || split->scored) {
        kva_mass_split_avx512(split);
        return;
    }
    pair_queries(&attend, &first);
    configure_tiles(group);
    for (uint32_t base = 0; base < split->slots; base += KVA_PAGE_TOKENS) {
        const struct pairs pairs = pairs_at(split, dims, base);
        for (uint32_t j = 0; j < split->q_count; j += group) {
            const uint32_t last = kva_min_u32(j + group, split->q_count) - 1;
            if (split->slot_end[last] > base)
                score_page_tile(pairs.q + (size_t)j * dims, pairs.k, dims, &none,
                                split->scores + (size_t)j * KVA_ATTEND_SPLIT_TOKENS + base);
        }
    }
    kva_tiles_release();
    add_queries(split);
}
