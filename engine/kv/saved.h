/* saved.h - host memory for what parts save of a suspended sequence beyond its pages: pages of the
 * host tier, promised at admission, taken when they are first needed, and a space of bytes across
 * them.
 *
 *     bytes     0 ............. n ............. 2n ........
 *     pages     |    page 0     |    page 1     |  ...          n = page_bytes
 *
 * Thread rule: engine thread; pages reads constants only. */
#ifndef KVA_ENGINE_KV_SAVED_H
#define KVA_ENGINE_KV_SAVED_H

#include "engine/kv/kv.h"

/* Pages that the parts of a sequence with such a prompt save at most; `spec` is resolved. */
uint32_t kva_kv_saved_pages(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                            uint32_t prompt);

/* Tables; finish also after an init that failed. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_kv_saved_init(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                                 struct kva_err *err);
void kva_kv_saved_finish(struct kva_kv_seq *seq);

/* The pages have been promised with the sequence's others; and they go back. */
void kva_kv_saved_begin(const struct kva_kv *kv, struct kva_kv_seq *seq);
void kva_kv_saved_end(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Queue copies of device memory to byte `at`, and back; whoever calls has ordered the copies. */
void kva_kv_saved_put(struct kva_kv *kv, struct kva_kv_seq *seq, size_t at, void *from,
                      size_t bytes);
void kva_kv_saved_get(struct kva_kv *kv, struct kva_kv_seq *seq, size_t at, void *to, size_t bytes);

/* The host's own hand in it, after kva_device_sync of the copy queue: whoever had the pages before may
 * still be copying there. So many bytes of one value from byte `at` on; and the number at byte `at`,
 * a multiple of 4, once there was a put or a fill. */
void kva_kv_saved_fill(struct kva_kv *kv, struct kva_kv_seq *seq, size_t at, unsigned char value,
                       size_t bytes);
uint32_t *kva_kv_saved_word(const struct kva_kv *kv, const struct kva_kv_seq *seq, size_t at);

#endif
