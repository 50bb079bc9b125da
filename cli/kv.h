/* kv.h - KV policies and their settings from the options: `--kv SPEC`, repeated.
 *
 * Thread rule: any. */
#ifndef KVA_CLI_KV_H
#define KVA_CLI_KV_H

#include "config/options.h"
#include "engine/kv/spec.h"

struct kva_cli_kv {
    enum kva_kv_policy_id policy;                  /* of requests that name none */
    struct kva_kv_spec specs[KVA_KV_POLICY_COUNT]; /* what each policy's settings start from */
};

/* Where nothing is said: full, and the defaults of each policy. */
void kva_cli_kv_init(struct kva_cli_kv *kv);

/* What the options say goes over what `kv` has. Fails: KVA_EINVAL, err->param is "kv". */
KVA_MUST_CHECK enum kva_status
kva_cli_kv_read(struct kva_cli_kv *kv, const struct kva_config *config, struct kva_err *err);

#endif
