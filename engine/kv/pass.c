#include "engine/kv/policy.h"

void kva_kv_pass_begin(struct kva_kv *kv, struct kva_kv_pass *pass)
{
    pass->policies = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++)
        pass->policies |= 1u << pass->rows[i].seq->policy->id;
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++) {
        const struct kva_kv_policy *policy = kva_kv_policy_get((enum kva_kv_policy_id)id);
        if ((pass->policies >> id & 1) && policy->pass_begin)
            policy->pass_begin(kv, pass);
    }
}

void kva_kv_layer_begin(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++) {
        if (pass->policies >> id & 1)
            kva_kv_policy_get((enum kva_kv_policy_id)id)->layer_begin(kv, pass, layer);
    }
}

void kva_kv_layer_end(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++) {
        const struct kva_kv_policy *policy = kva_kv_policy_get((enum kva_kv_policy_id)id);
        if ((pass->policies >> id & 1) && policy->layer_end)
            policy->layer_end(kv, pass, layer);
    }
}
