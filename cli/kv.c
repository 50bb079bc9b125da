/* kv.c - KV specs from the options. */
#include "cli/kv.h"

#include "cli/cli.h"

void kva_cli_kv_init(struct kva_cli_kv *kv)
{
    kv->policy = KVA_KV_FULL;
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        kv->specs[id] = kva_kv_spec_default((enum kva_kv_policy_id)id);
}

enum kva_status kva_cli_kv_read(struct kva_cli_kv *kv, const struct kva_config *config,
                                struct kva_err *err)
{
    struct kva_err why;
    enum kva_status status =
        kva_kv_spec_parse_list(config->kv.items, config->kv.count, kv->specs, &kv->policy, &why);
    return status ? kva_fail_param(err, status, "kv", "--kv %s", why.message) : KVA_OK;
}

enum kva_status kva_cli_check(const struct kva_config *config, struct kva_err *err)
{
    struct kva_cli_kv kv;
    kva_cli_kv_init(&kv);
    return kva_cli_kv_read(&kv, config, err);
}
