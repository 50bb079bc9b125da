/* part.h - a part: one form in which a sequence's KV lies in device memory. A policy is made of
 * parts (policy.h); memory (placement.h) and passes (pass.h) go through them in the policy's order.
 *
 * What a part knows of a sequence is its state: zeroed memory of state_bytes, which only the part's
 * own file reads. What it has for the whole cache (events, descriptors of a call) is cache_bytes of
 * such memory. Others ask by the functions below.
 *
 * A function that is NULL has nothing to do; a part without device memory of its own has none of
 * footprint, alloc, held and cut. Rules:
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

struct kva_copies_kind;

struct kva_kv_part {
    const struct kva_counter *const *counters; /* NULL-terminated, or NULL */

    /* The form of its copies of offloaded pages (parts/copies.h), of one part of a policy at most;
     * NULL: it has none. */
    const struct kva_copies_kind *copies;

    size_t state_bytes; /* of a sequence: kva_kv_part_state */
    size_t cache_bytes; /* of the cache: kva_kv_part_cache */

    /* Of the cache; finish also after an init that failed. Fails: KVA_ENOMEM, KVA_EDEVICE. */
    enum kva_status (*cache_init)(const struct kva_kv_part *self, struct kva_kv *kv,
                                  struct kva_err *err);
    void (*cache_finish)(const struct kva_kv_part *self, struct kva_kv *kv);

    /* What the part asks of the model's shape; `spec` is resolved. Fails: KVA_EUNSUPPORTED,
     * KVA_EINVAL. */
    enum kva_status (*check)(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err);

    /* Host memory for a sequence's life, and the kinds of device memory; finish also after an init
     * that failed. Fails: KVA_ENOMEM. */
    enum kva_status (*init)(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err);
    void (*finish)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* The sequence has given everything back: its state is that after init. */
    void (*reset)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* Device bytes in an empty tier; and of them what a page costs nothing of because a running
     * sequence has it. */
    uint64_t (*footprint)(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent);
    uint64_t (*shared_bytes)(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page);
    /* Device bytes of page `index` of a sequence that the part has, or takes when the sequence
     * resumes, where they are the page's: *ret_users running sequences have them, this one too if
     * it runs. Else 0. */
    uint64_t (*page_bytes)(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t index,
                           uint32_t *ret_users);

    /* Memory for `offloaded` pages, and for whole ones up to `end`. False: the tier is full. */
    bool (*alloc)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded, uint32_t end);
    uint32_t (*held)(const struct kva_kv_seq *seq);
    /* With `save`, first queue copies to the host of what only the part has. */
    void (*cut)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t held, bool save);
    /* Host bytes that cut with save takes at most, beyond the sequence's pages (saved.h); of
     * several parts of a policy each knows what is before its own. `spec` is resolved. */
    uint64_t (*saved_bytes)(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                            uint32_t prompt);
    /* After cut with save and alloc: the same content, also in the middle of a prompt. */
    void (*restore)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* All of the prompt's rows have gone through the layer; and then through all of them. */
    void (*prompt_layer)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer);
    void (*prompt_end)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* Page `index` has just become full in all layers: the part that has it sends it to the host.
     */
    void (*page_full)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index);

    /* Pages [seq->prepared, first), which are closed and whole on the device, are about to leave
     * it: make what stands for them; and once all parts have. */
    void (*prepare)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first);
    void (*prepared)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* Pages [seq->offloaded, first) leave the device. */
    void (*leave)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first);

    /* A pass over the sequence is over: what was counted on the device is read. */
    void (*count)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* The layer's 16-bit block of a page, if the part has it on the device now; else NULL. */
    const void *(*block)(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                         uint32_t page);

    /* --- in a pass: once for all of its sequences, if any of them has the part ---------------- */

    void (*pass_begin)(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass);

    /* Queries of a layer have been rehearsed, before the layer in front of it runs. */
    void (*rehearsed)(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                      const struct kva_kv_rehearsal *rehearsal);

    /* Where the rows' sequence has its tokens in this layer: kva_kv_add_range. For each sequence by
     * itself. */
    void (*locate)(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer);

    /* The rows' queries are known, act [rows of the pass, heads, head_dim], and their K and V are in
     * place; nothing has attended yet. */
    void (*queried)(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                    uint32_t layer, const void *q);

    /* A partial result of the part's (range.h) is about to be read by compute, which waits for it;
     * again if it is read again. */
    void (*await)(struct kva_kv *kv, const struct kva_kv_rows *rows,
                  const struct kva_kv_range *range);

    /* All have been located: compute waits for what it is about to read. */
    void (*layer_begin)(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                        uint32_t layer);

    /* Rows with select_now have selected: what they wanted is due before the layer goes on. */
    void (*selected)(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                     uint32_t layer);

    /* The same as one description, for attention that fetches what it selects. */
    struct kva_fused_fetch (*fused)(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                    uint32_t layer);

    /* The layer has attended. */
    void (*attended)(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                     const struct kva_kv_attention *attention);

    /* The layer has attended, and rows with select_next have selected. */
    void (*layer_end)(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                      uint32_t layer);

    /* Between steps: before the queues are ordered. */
    void (*step_begin)(const struct kva_kv_part *self, struct kva_kv *kv);
};

extern const struct kva_kv_part kva_kv_part_stage; /* offloaded pages, two layers at a time */
extern const struct kva_kv_part kva_kv_part_prompt_stage; /* the same, until the prompt is in */
extern const struct kva_kv_part kva_kv_part_lowbit;       /* low-bit copies of offloaded pages */
extern const struct kva_kv_part kva_kv_part_rows;         /* 16-bit rows of offloaded pages */
extern const struct kva_kv_part kva_kv_part_kept;         /* a store of tokens that were kept */
extern const struct kva_kv_part kva_kv_part_columns;      /* columns of a prompt's own */
extern const struct kva_kv_part kva_kv_part_sketch;       /* partial keys of offloaded pages */
extern const struct kva_kv_part kva_kv_part_pool;         /* a limit on host memory */
extern const struct kva_kv_part kva_kv_part_ahead;        /* 16-bit rows chosen a layer ahead */
extern const struct kva_kv_part kva_kv_part_lent;         /* pages at other instances */
extern const struct kva_kv_part kva_kv_part_resident;     /* whole pages; always the last */

/* The part's state of a sequence; NULL: its policy does not have the part. */
static inline void *kva_kv_part_state(const struct kva_kv_seq *seq, const struct kva_kv_part *part)
{
    const struct kva_kv_part *const *parts = seq->policy->parts;
    for (uint32_t i = 0; parts[i]; i++) {
        if (parts[i] == part)
            return seq->part_states[i];
    }
    return NULL;
}

/* What it has for the whole cache. */
static inline void *kva_kv_part_cache(const struct kva_kv *kv, const struct kva_kv_part *part)
{
    for (uint32_t i = 0; i < kv->part_count; i++) {
        if (kv->parts[i] == part)
            return kv->part_caches[i];
    }
    return NULL;
}

/* For a part's check: low-bit pages and rows are of heads of a multiple of 4. Fails:
 * KVA_EUNSUPPORTED. */
KVA_MUST_CHECK enum kva_status
kva_kv_check_heads(const struct kva_kv *kv, const struct kva_kv_spec *spec, struct kva_err *err);

/* For parts of whole pages: begin to use a page's device copy, which is taken and fetched unless
 * somebody has it, and stop. The copy queue has been ordered. False: the tier is full. */
bool kva_kv_begin_use(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_page *page);
void kva_kv_end_use(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_page *page);

/* For what lies behind one another in a part's memory, each at a multiple of 64 bytes: where so many
 * bytes are; *at goes on behind them. */
static inline size_t kva_kv_lay_piece(size_t *at, size_t bytes)
{
    size_t offset = *at;
    *at += kva_align_up(bytes, 64);
    return offset;
}

/* The layer's 16-bit block of a page, from the part that has it on the device, else on the host. */
const void *kva_kv_find_block(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                              uint32_t page);

/* --- for the cache --------------------------------------------------------------------------- */

/* See that the cache has what the policy and its parts need and count. Fails: KVA_ENOMEM,
 * KVA_EDEVICE, KVA_EINVAL (too many parts or counters). */
KVA_MUST_CHECK enum kva_status
kva_kv_meet_policy(struct kva_kv *kv, const struct kva_kv_policy *policy, struct kva_err *err);
void kva_kv_parts_finish(struct kva_kv *kv);

/* States of a sequence's parts, made ready; and given back. */
KVA_MUST_CHECK enum kva_status kva_kv_parts_init_seq(struct kva_kv *kv, struct kva_kv_seq *seq,
                                                     struct kva_err *err);
void kva_kv_parts_finish_seq(struct kva_kv *kv, struct kva_kv_seq *seq);

#endif
