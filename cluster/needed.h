/* needed.h - settings that may not be 0.
 *
 * Thread rule: a function of its arguments. */
#ifndef KVA_CLUSTER_NEEDED_H
#define KVA_CLUSTER_NEEDED_H

#include "base/err.h"

struct kva_needed {
    const char *name;
    uint64_t value;
};

/* Fails: KVA_EINVAL, of the first that is 0, whose name is err->param. */
KVA_MUST_CHECK static inline enum kva_status kva_needed_check(const struct kva_needed *needed,
                                                              size_t count, struct kva_err *err)
{
    for (size_t i = 0; i < count; i++) {
        if (needed[i].value == 0)
            return kva_fail_param(err, KVA_EINVAL, needed[i].name, "%s is 0", needed[i].name);
    }
    return KVA_OK;
}

#endif
