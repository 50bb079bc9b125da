/* part.h - a part: one form in which a sequence's KV lies in device memory. A policy is made of
 * parts (policy.h); memory (placement.h) and passes (pass.h) go through them in the policy's order.
 *
 * A function that is NULL has nothing to do. Rules:
 *
 *     alloc is all or nothing, and only there and in restore is memory taken
 *     `held` is how much a part has; cut takes it back to that much, in any state
 *     locate adds the ranges of what it has; several parts may not claim one token
 *
 * Thread rule: engine thread; check, footprint and shared_bytes read constants only. */
#ifndef KVA_ENGINE_KV_PART_H
#define KVA_ENGINE_KV_PART_H

#include "engine/kv/pass.h"

/* Memory of a sequence of some length. */
struct kva_kv_extent {
    uint32_t offloaded; /* pages */
    uint32_t resident;
    bool prefilled;
};

struct kva_kv_part {
    /* What the part asks of the model's shape. Fails: KVA_EUNSUPPORTED, KVA_EINVAL. */
    enum kva_status (*check)(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err);

    /* Host memory for a sequence's life, and the kinds of device memory. Fails: KVA_ENOMEM. */
    enum kva_status (*init)(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err);
    void (*finish)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* Device bytes in an empty tier; and of them what a page costs nothing of because a running
     * sequence has it. */
    uint64_t (*footprint)(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent);
    uint64_t (*shared_bytes)(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page);

    /* Memory for `offloaded` pages, and for whole ones up to `end`. False: the tier is full. */
    bool (*alloc)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded, uint32_t end);
    uint32_t (*held)(const struct kva_kv_seq *seq);
    /* With `save`, first queue copies to the host of what only the part has. */
    void (*cut)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t held, bool save);
    /* After cut with save and alloc: the same content. Only of sequences with a finished prompt. */
    void (*restore)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* All of the prompt's rows have gone through the layer; and then through all of them. */
    void (*prompt_layer)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer);
    void (*prompt_end)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* Pages [seq->offloaded, first) leave the device; before, and after they have. */
    void (*leave)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first);
    void (*left)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* Where the rows' sequence has its tokens in this layer: kva_kv_add_blocks, kva_kv_add_range.
     */
    void (*locate)(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer);
};

extern const struct kva_kv_part kva_kv_part_stage; /* offloaded pages, two layers at a time */
extern const struct kva_kv_part kva_kv_part_prompt_stage; /* the same, until the prompt is in */
extern const struct kva_kv_part kva_kv_part_lowbit;       /* low-bit copies of offloaded pages */
extern const struct kva_kv_part kva_kv_part_rows;         /* 16-bit rows of offloaded pages */
extern const struct kva_kv_part kva_kv_part_resident;     /* whole pages; always the last */

#endif
