#include "engine/kv/policy.h"

static uint32_t none_away(const struct kva_kv_choice *choice KVA_UNUSED, uint32_t tokens KVA_UNUSED)
{
    return 0;
}

static uint32_t all_but_last_away(const struct kva_kv_choice *choice KVA_UNUSED, uint32_t tokens)
{
    return tokens > 0 ? (tokens - 1) / KVA_PAGE_TOKENS : 0;
}

/* Between `window` and window + 63 of the newest tokens stay; short sequences stay whole. */
static uint32_t all_but_window_away(const struct kva_kv_choice *choice, uint32_t tokens)
{
    if (tokens < choice->plain || tokens < choice->window)
        return 0;
    return (tokens - choice->window) / KVA_PAGE_TOKENS;
}

static const struct kva_kv_policy policies[KVA_KV_POLICY_COUNT] = {
    [KVA_KV_FULL] = {.away = none_away},
    [KVA_KV_OFFLOAD] = {.away = all_but_last_away},
    [KVA_KV_KIVI] = {.away = all_but_window_away, .coded = true},
    [KVA_KV_SPECACHE] = {.away = all_but_window_away, .coded = true, .fetched = true},
};

const struct kva_kv_policy *kva_kv_policy_get(enum kva_kv_policy_id id)
{
    return &policies[id];
}
