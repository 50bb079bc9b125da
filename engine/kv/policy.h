/* policy.h - what a KV policy decides: which tokens live where, in what precision, and what is
 * fetched when.
 *
 * A policy has no attention code. Before a layer attends it says which blocks its ranges consist
 * of; the operators do the rest.
 *
 * Device memory of a sequence is taken in `reserve` and `restore` and given back in `release`,
 * between steps; within a pass a policy only moves data.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_POLICY_H
#define KVA_ENGINE_KV_POLICY_H

#include "engine/kv/kv.h"

/* One sequence's rows in a pass through some layers. */
struct kva_kv_rows {
    struct kva_kv_seq *seq;
    uint32_t position_first; /* of its first row */
    uint32_t row_count;
    const void **blocks; /* [pages up to the last row's]: where layer_begin writes this layer's
                            block addresses */
};

/* Layers [layer_first, layer_first + layer_count) for the rows of some sequences. */
struct kva_kv_pass {
    struct kva_kv_rows *rows;
    uint32_t rows_count;
    uint32_t layer_first;
    uint32_t layer_count;
    /* The pass starts over at its first layer. False: it goes on where an earlier pass through the
     * same layer stopped (the next chunk of a long prompt), and what that pass left on the device
     * still counts. */
    bool restart;
    uint32_t policies; /* bit i: some row is under policy i; set by kva_kv_pass_begin */
};

struct kva_kv_policy {
    enum kva_kv_policy_id id;
    const char *name;

    /* Device bytes that a sequence of `tokens` tokens needs, in an empty tier. */
    uint64_t (*footprint)(const struct kva_kv *kv, uint32_t tokens);

    /* Of it: what a sequence need not take for a page of its beginning, because a running one uses
     * it. NULL: nothing. */
    uint64_t (*shared)(const struct kva_kv *kv, const struct kva_page *page);

    /* Device memory for `tokens` tokens; pages [0, page_count) exist. All or nothing; false: the
     * tier is full. */
    bool (*reserve)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t tokens);

    /* Give all device memory back. With `save`, first queue copies to the host pages of what only
     * the device has. */
    void (*release)(struct kva_kv *kv, struct kva_kv_seq *seq, bool save);

    /* After a release with save: take the memory again and queue the copies back. All or nothing.
     */
    bool (*restore)(struct kva_kv *kv, struct kva_kv_seq *seq);

    /* Page `index` is full in every layer and is being closed: see that the host gets it. */
    void (*close_page)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index);

    /* Called for all sequences of a pass that are under this policy, in this order. Entries of
     * other policies are to be passed over. After layer_begin, rows[i].blocks[] holds the layer's
     * block of every page up to the last row's, ready for compute. */
    void (*pass_begin)(struct kva_kv *kv, struct kva_kv_pass *pass);
    void (*layer_begin)(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);
    void (*layer_end)(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);
};

/* Never NULL for a valid id. */
const struct kva_kv_policy *kva_kv_policy_get(enum kva_kv_policy_id id);

extern const struct kva_kv_policy kva_kv_policy_full;
extern const struct kva_kv_policy kva_kv_policy_offload;

/* For the forward pass: the steps of a pass, for every policy that has rows in it. */
void kva_kv_pass_begin(struct kva_kv *kv, struct kva_kv_pass *pass);
void kva_kv_layer_begin(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);
void kva_kv_layer_end(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

/* Pages that hold `tokens` tokens. */
static inline uint32_t kva_kv_pages(uint32_t tokens)
{
    return tokens / KVA_PAGE_TOKENS + (tokens % KVA_PAGE_TOKENS != 0);
}

#endif
