/* policy_windowed.c - sinks and a window of the newest tokens attend; what lies between is dropped
 * from the device (StreamingLLM's set, at the tokens' own positions). */
#include "tests/engine/policy_windowed.h"

#include "engine/kv/part.h"

static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_WINDOW, 64, 64},
    {KVA_SETTING_SINKS, 4, 4},
};

static const struct kva_kv_part *const parts[] = {&kva_kv_part_prompt_stage, &kva_kv_part_rows,
                                                  &kva_kv_part_resident, NULL};

const struct kva_kv_policy policy_windowed = {
    .name = "windowed",
    .exactness = KVA_KV_INEXACT,
    .settings = settings,
    .setting_count = KVA_COUNT_OF(settings),
    .parts = parts,
    .offloaded = kva_kv_offload_behind_window,
};
