/* policies.h - KV policies and their settings as JSON, for `kvahead options` and for clients that
 * offer a choice. */
#ifndef KVA_SERVER_API_POLICIES_H
#define KVA_SERVER_API_POLICIES_H

#include "base/buf.h"
#include "engine/kv/spec.h"

/* {"name","exact","settings":[...]}: each setting of the spec's policy with its name, range, help,
 * the paper's value, and as "default" the value that the spec has. */
void kva_policy_json(struct kva_buf *out, const struct kva_kv_spec *spec);

#endif
