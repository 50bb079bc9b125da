/* kivi.c - KIVI: low-bit copies on the device; sinks and the newest tokens in 16 bits. */
#include "engine/kv/part.h"
#include "engine/kv/policy.h"

/* The paper's residual is 128 tokens (4.1). */
static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_BITS, 2, 2, NULL},
    {KVA_SETTING_VALUE_BITS, 0, 0, NULL},
    {KVA_SETTING_GROUP, 64, 64, NULL},
    {KVA_SETTING_LEVELS, KVA_KV_LEVELS_AUTO, KVA_KV_LEVELS_MINMAX, NULL},
    {KVA_SETTING_WINDOW, 64, 128, NULL},
    {KVA_SETTING_SINKS, 4, 0, NULL},
    {KVA_SETTING_MIN_TOKENS, 1024, 0, NULL},
    {KVA_SETTING_SKIP_LAYERS, 0, 0, NULL},
};

static const struct kva_kv_part *const parts[] = {&kva_kv_part_prompt_stage, &kva_kv_part_lowbit,
                                                  &kva_kv_part_rows, &kva_kv_part_resident, NULL};

const struct kva_kv_policy kva_kv_policy_kivi = {
    .name = "kivi",
    .exactness = KVA_KV_EXACT_PROMPT,
    .settings = settings,
    .setting_count = KVA_COUNT_OF(settings),
    .parts = parts,
    .offloaded = kva_kv_offload_behind_window,
};
