#include "engine/kv/policy.h"

static uint32_t none_away(const struct kva_kv_spec *spec KVA_UNUSED, uint32_t tokens KVA_UNUSED)
{
    return 0;
}

static uint32_t all_but_last_away(const struct kva_kv_spec *spec KVA_UNUSED, uint32_t tokens)
{
    return tokens > 0 ? (tokens - 1) / KVA_PAGE_TOKENS : 0;
}

/* Between `window` and window + 63 of the newest tokens stay; short sequences stay whole. */
static uint32_t all_but_window_away(const struct kva_kv_spec *spec, uint32_t tokens)
{
    if (tokens < spec->min_tokens || tokens < spec->window)
        return 0;
    return (tokens - spec->window) / KVA_PAGE_TOKENS;
}

/* The KIVI paper's residual is 128 tokens (4.1). */
static const struct kva_kv_policy_setting kivi_settings[] = {
    {KVA_SETTING_BITS, 2, 2},
    {KVA_SETTING_GROUP, 64, 64},
    {KVA_SETTING_LEVELS, KVA_KV_LEVELS_AUTO, KVA_KV_LEVELS_MINMAX},
    {KVA_SETTING_WINDOW, 64, 128},
    {KVA_SETTING_SINKS, 4, 0},
    {KVA_SETTING_MIN_TOKENS, 1024, 0},
    {KVA_SETTING_SKIP_LAYERS, 0, 0},
};

/* SpeCache 1 and 4.1. */
static const struct kva_kv_policy_setting specache_settings[] = {
    {KVA_SETTING_BITS, 2, 2},
    {KVA_SETTING_GROUP, 64, 64},
    {KVA_SETTING_LEVELS, KVA_KV_LEVELS_AUTO, KVA_KV_LEVELS_MINMAX},
    {KVA_SETTING_WINDOW, 64, 64},
    {KVA_SETTING_SINKS, 4, 0},
    {KVA_SETTING_MIN_TOKENS, 1024, 0},
    {KVA_SETTING_SKIP_LAYERS, 0, 0},
    {KVA_SETTING_TOPK, 64, 64},
    {KVA_SETTING_PREDICTOR, KVA_PREDICT_AUTO, KVA_PREDICT_SPEC_TOKEN},
    {KVA_SETTING_RESELECT_BELOW, 85, 0},
    {KVA_SETTING_FETCH, KVA_FETCH_RESIDENT, KVA_FETCH_ALL},
    {KVA_SETTING_ON_MISPREDICT, KVA_MISPREDICT_PREDECODE, KVA_MISPREDICT_CHAIN},
};

static const struct kva_kv_policy policies[KVA_KV_POLICY_COUNT] = {
    [KVA_KV_FULL] = {.name = "full", .exact = true, .away = none_away},
    [KVA_KV_OFFLOAD] = {.name = "offload", .exact = true, .away = all_but_last_away},
    [KVA_KV_KIVI] = {.name = "kivi",
                     .settings = kivi_settings,
                     .setting_count = KVA_COUNT_OF(kivi_settings),
                     .away = all_but_window_away,
                     .coded = true},
    [KVA_KV_SPECACHE] = {.name = "specache",
                         .settings = specache_settings,
                         .setting_count = KVA_COUNT_OF(specache_settings),
                         .away = all_but_window_away,
                         .coded = true,
                         .fetched = true},
};

const struct kva_kv_policy *kva_kv_policy_get(enum kva_kv_policy_id id)
{
    return &policies[id];
}
