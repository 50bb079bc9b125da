/* exact.c - the policies whose tokens are those of full KV: full, all pages on the device; offload,
 * all but the last page on the host, every layer staged in every step (the FlexGen-like baseline).
 * Pages of full may be lent to other instances (parts/lent.h); the prompt of a sequence that only
 * those can hold is staged as that of offload. */
#include "engine/kv/part.h"
#include "engine/kv/policy.h"

static uint32_t none_offloaded(const struct kva_kv_spec *spec KVA_UNUSED,
                               uint32_t tokens KVA_UNUSED)
{
    return 0;
}

static uint32_t all_but_last_offloaded(const struct kva_kv_spec *spec KVA_UNUSED, uint32_t tokens)
{
    return tokens > 0 ? (tokens - 1) / KVA_PAGE_TOKENS : 0;
}

static const struct kva_kv_part *const full_parts[] = {&kva_kv_part_prompt_stage, &kva_kv_part_lent,
                                                       &kva_kv_part_resident, NULL};
static const struct kva_kv_part *const offload_parts[] = {&kva_kv_part_stage, &kva_kv_part_resident,
                                                          NULL};

static const struct kva_kv_policy_setting full_settings[] = {
    {KVA_SETTING_SPREAD, KVA_SPREAD_AUTO, KVA_SPREAD_AUTO, NULL},
};

const struct kva_kv_policy kva_kv_policy_full = {
    .name = "full",
    .exactness = KVA_KV_EXACT,
    .settings = full_settings,
    .setting_count = KVA_COUNT_OF(full_settings),
    .parts = full_parts,
    .offloaded = none_offloaded,
};

const struct kva_kv_policy kva_kv_policy_offload = {
    .name = "offload",
    .exactness = KVA_KV_EXACT,
    .parts = offload_parts,
    .offloaded = all_but_last_offloaded,
};
