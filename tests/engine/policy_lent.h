/* policy_lent.h - all of a sequence's pages are on the device, but those before its last multiples
 * of 256 tokens attend by themselves, as if another machine had them: what comes of it is handed
 * over as partial results. */
#ifndef KVA_TESTS_ENGINE_POLICY_LENT_H
#define KVA_TESTS_ENGINE_POLICY_LENT_H

#include "engine/kv/policy.h"
#include "engine/model/model.h"

enum lent_how {
    LENT_PREFIX, /* one partial result, on which the blocks behind it go on */
    LENT_ONE,    /* one, merged */
    LENT_TWO,    /* two, merged */
};

extern const struct kva_kv_policy policy_lent;

/* From now on, with an engine of that device and model. */
void policy_lent_open(struct kva_device *device, const struct kva_model *model, enum lent_how how,
                      uint32_t rows_max);
void policy_lent_close(void);

/* Partial results that were handed over since it was opened. */
uint64_t policy_lent_count(void);

#endif
