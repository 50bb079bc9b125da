/* copies.h - copies of offloaded pages in another form, in all layers: what parts have in common
 * whose copy of a page depends on nothing but the page and the settings (lowbit.c, sketch.c).
 *
 *     copy of a page:  [16-bit block] x skipped  [the form's block] x (layers - skipped)
 *
 * During a prefill a layer is coded from its staged pages as soon as all of the prompt's rows have
 * gone through it; later a page is coded when it leaves the window. Copies of closed pages belong
 * to the page and are shared by running sequences with the same key; after a suspension they are
 * made again from the pages' homes. Where host memory is limited (pool.h), a page of slots stands
 * where a page stands, and its copy is nobody else's.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PARTS_COPIES_H
#define KVA_ENGINE_KV_PARTS_COPIES_H

#include "engine/kv/part.h"

/* Pages that one call codes at most. */
#define KVA_COPIES_LIST_MAX 256u

/* The part's state of a sequence. */
struct kva_copies {
    void **at;             /* [pages_max]: of page i in all layers */
    uint32_t count;        /* the first so many are there */
    uint32_t coded_layers; /* during the prefill: the first so many layers have been coded ... */
    uint32_t lost_layers;  /* ... of which the first so many were lost */
};

/* Descriptors of one call: what the part has of the cache begins with them. */
struct kva_copies_list {
    const void *from[KVA_COPIES_LIST_MAX];
    void *to[KVA_COPIES_LIST_MAX];
    uint32_t page[KVA_COPIES_LIST_MAX]; /* of the sequence */
    uint32_t count;
};

/* What a part says of its copies (struct kva_kv_part, `copies`). */
struct kva_copies_kind {
    /* One layer of a page in the part's form. */
    size_t (*block_bytes)(const struct kva_kv *kv, const struct kva_kv_spec *spec);
    /* Layers that are in 16 bits as they are. */
    uint32_t (*skip_layers)(const struct kva_kv *kv, const struct kva_kv_spec *spec);
    /* What must be equal for two sequences to share a copy; not 0, and of no other part. */
    uint64_t (*key)(const struct kva_kv_spec *spec);
    /* Code a layer of the listed pages, `to_offset` behind the copies' addresses. */
    void (*code)(struct kva_kv *kv, const struct kva_kv_seq *seq,
                 const struct kva_copies_list *list, uint32_t layer, size_t to_offset);
};

/* The copies of a sequence whose policy has such a part. */
struct kva_copies *kva_copies_of(const struct kva_kv_seq *seq);

/* Where a layer lies in a copy; with the number of layers: one page in all layers, the item that
 * is taken from the tier. */
size_t kva_copies_offset(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer);

/* Make all copies again, of what is in host memory now. */
void kva_copies_anew(struct kva_kv *kv, const struct kva_kv_seq *seq);

/* A range of the skipped layer's blocks of all offloaded pages. */
void kva_copies_add_blocks(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer);

/* --- functions of the part, as part.h has them ------------------------------------------------ */

/* For the part's table: all of them. */
#define KVA_COPIES_FUNCTIONS                                                                       \
    .init = kva_copies_init, .finish = kva_copies_finish, .reset = kva_copies_reset,               \
    .footprint = kva_copies_footprint, .shared_bytes = kva_copies_shared_bytes,                    \
    .page_bytes = kva_copies_page_bytes, .alloc = kva_copies_alloc, .held = kva_copies_held,       \
    .cut = kva_copies_cut, .restore = kva_copies_restore, .prompt_layer = kva_copies_prompt_layer, \
    .prompt_end = kva_copies_prompt_end, .prepare = kva_copies_prepare,                            \
    .prepared = kva_copies_prepared

enum kva_status kva_copies_init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err);
void kva_copies_finish(struct kva_kv *kv, struct kva_kv_seq *seq);
void kva_copies_reset(struct kva_kv *kv, struct kva_kv_seq *seq);
uint64_t kva_copies_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                              const struct kva_kv_extent *extent);
uint64_t kva_copies_shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                 const struct kva_page *page);
uint64_t kva_copies_page_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                               uint32_t index, uint32_t *ret_users);
bool kva_copies_alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded, uint32_t end);
uint32_t kva_copies_held(const struct kva_kv_seq *seq);
void kva_copies_cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t held, bool save);
void kva_copies_restore(struct kva_kv *kv, struct kva_kv_seq *seq);
void kva_copies_prompt_layer(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer);
void kva_copies_prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq);
void kva_copies_prepare(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first);
void kva_copies_prepared(struct kva_kv *kv, struct kva_kv_seq *seq);

#endif
