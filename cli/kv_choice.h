/* kv_choice.h - KV policy and settings from the options.
 *
 * Thread rule: any. */
#ifndef KVA_CLI_KV_CHOICE_H
#define KVA_CLI_KV_CHOICE_H

#include "config/options.h"
#include "engine/kv/policy_choice.h"

/* What the options make of a policy's settings. Fails: KVA_EINVAL, err->param is the option. */
KVA_MUST_CHECK enum kva_status kva_cli_kv_choice(const struct kva_config *config,
                                                 enum kva_kv_policy_id policy,
                                                 struct kva_kv_choice *ret, struct kva_err *err);

#endif
