/* registry.c - the policies by id and by name. */
#include "engine/kv/policy.h"

static const struct kva_kv_policy *const policies[KVA_KV_POLICY_COUNT] = {
    [KVA_KV_FULL] = &kva_kv_policy_full,           [KVA_KV_OFFLOAD] = &kva_kv_policy_offload,
    [KVA_KV_KIVI] = &kva_kv_policy_kivi,           [KVA_KV_SPECACHE] = &kva_kv_policy_specache,
    [KVA_KV_STREAMING] = &kva_kv_policy_streaming, [KVA_KV_H2O] = &kva_kv_policy_h2o,
    [KVA_KV_QHITTER] = &kva_kv_policy_qhitter,     [KVA_KV_INFINIGEN] = &kva_kv_policy_infinigen,
};

const struct kva_kv_policy *kva_kv_policy_get(enum kva_kv_policy_id id)
{
    return policies[id];
}

const struct kva_kv_policy *kva_kv_policy_of(const struct kva_kv_spec *spec)
{
    if (spec->own)
        return spec->own;
    return (unsigned)spec->policy < KVA_KV_POLICY_COUNT ? policies[spec->policy] : NULL;
}

bool kva_kv_policy_has_setting(const struct kva_kv_policy *policy, enum kva_kv_setting_id id)
{
    for (size_t i = 0; i < policy->setting_count; i++) {
        if (policy->settings[i].id == id)
            return true;
    }
    return false;
}

uint32_t kva_kv_cacheable_pages(const struct kva_kv_spec *spec, uint32_t prompt_tokens)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    uint32_t computed = policy->computed ? policy->computed(spec) : 1;
    return prompt_tokens > computed ? (prompt_tokens - computed) / KVA_PAGE_TOKENS : 0;
}

uint32_t kva_kv_offload_behind_window(const struct kva_kv_spec *spec, uint32_t tokens)
{
    if (tokens < spec->min_tokens || tokens < spec->window)
        return 0;
    return (tokens - spec->window) / KVA_PAGE_TOKENS;
}
