/* policy.h - a KV policy as data: which pages of a sequence leave the device, and what stands for
 * them there.
 *
 * A policy has no code of its own beyond that. What its words mean is in placement.h (memory: who
 * holds what between steps) and pass.h (the layers of one forward pass); attention is the
 * operators' business.
 *
 *             prefill: pages [0, away)       decode: pages [0, away)            pages [away, ..)
 *   full      none are away                                                     whole
 *   offload   staged, layer by layer         the same                           whole: the last one
 *   kivi      staged; coded on the way       low-bit copies, sinks in 16 bits   whole: the window
 *   specache  the same                       the same, and fetched rows         the same
 *
 * Thread rule: constants. */
#ifndef KVA_ENGINE_KV_POLICY_H
#define KVA_ENGINE_KV_POLICY_H

#include "engine/kv/kv.h"

struct kva_kv_policy {
    const char *name;
    bool exact; /* tokens are those of full KV */
    const struct kva_kv_policy_setting *settings;
    size_t setting_count;

    /* How many pages of a sequence of `tokens` tokens are away. Never falls as tokens grow. */
    uint32_t (*away)(const struct kva_kv_spec *spec, uint32_t tokens);

    bool coded;   /* pages that are away have a low-bit copy on the device */
    bool fetched; /* and some of their rows are fetched ahead */
};

/* Never NULL for a valid id. */
const struct kva_kv_policy *kva_kv_policy_get(enum kva_kv_policy_id id);

/* Pages that hold `tokens` tokens. */
static inline uint32_t kva_kv_pages(uint32_t tokens)
{
    return tokens / KVA_PAGE_TOKENS + (tokens % KVA_PAGE_TOKENS != 0);
}

#endif
