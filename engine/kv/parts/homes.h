/* homes.h - what fetching rows wants of a sequence in host memory: where its pages are, and the
 * device's counts of what was fetched.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PARTS_HOMES_H
#define KVA_ENGINE_KV_PARTS_HOMES_H

#include "engine/kv/kv.h"

/* Zeroed, it is ready for finish. */
struct kva_homes {
    const void **pages;  /* host tier [pages_max]: the pages on the host; NULL: dropped */
    uint32_t page_count; /* of them filled in */
    uint64_t *hits;      /* host tier [2]: selected rows that were there, and that were not */
};

/* Fails: KVA_ENOMEM, KVA_EDEVICE. */
KVA_MUST_CHECK enum kva_status kva_homes_init(struct kva_homes *homes, struct kva_kv *kv,
                                              const struct kva_kv_seq *seq, struct kva_err *err);

/* No fetch uses it any more. */
void kva_homes_finish(struct kva_homes *homes, struct kva_kv *kv, const struct kva_kv_seq *seq);

/* Fill in all pages that are offloaded. */
void kva_homes_list(struct kva_homes *homes, const struct kva_kv_seq *seq);

#endif
