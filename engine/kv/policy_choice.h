/* policy_choice.h - which KV policy a sequence runs under, as a request or the operator names it.
 */
#ifndef KVA_ENGINE_KV_POLICY_CHOICE_H
#define KVA_ENGINE_KV_POLICY_CHOICE_H

#include "base/kva.h"

enum kva_kv_policy_id {
    KVA_KV_FULL,    /* 16-bit pages on the device */
    KVA_KV_OFFLOAD, /* 16-bit pages on the host, all staged every step (FlexGen-like baseline) */
    KVA_KV_POLICY_COUNT,
};

struct kva_kv_choice {
    enum kva_kv_policy_id policy;
};

/* "full", "offload". */
const char *kva_kv_policy_name(enum kva_kv_policy_id policy);

/* Policy of that name; KVA_KV_POLICY_COUNT if there is none. */
enum kva_kv_policy_id kva_kv_policy_find(const char *name);

#endif
