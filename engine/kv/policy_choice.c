#include "engine/kv/policy_choice.h"

#include "engine/kv/policy.h"

#include <string.h>

static const struct kva_kv_policy *const policies[KVA_KV_POLICY_COUNT] = {
    [KVA_KV_FULL] = &kva_kv_policy_full,
    [KVA_KV_OFFLOAD] = &kva_kv_policy_offload,
};

const struct kva_kv_policy *kva_kv_policy_get(enum kva_kv_policy_id id)
{
    return policies[id];
}

const char *kva_kv_policy_name(enum kva_kv_policy_id policy)
{
    return policies[policy]->name;
}

enum kva_kv_policy_id kva_kv_policy_find(const char *name)
{
    uint32_t id = 0;
    while (id < KVA_KV_POLICY_COUNT && strcmp(policies[id]->name, name) != 0)
        id++;
    return (enum kva_kv_policy_id)id;
}
