/* stream.h - the residual stream of a prompt whose prefill spans steps: a row of activations for
 * each token that is not computed yet, which waits between chunks of a layer and between steps.
 *
 *     rows      0 .......... n ......... 2n ........
 *     pages     |  page 0   |  page 1   |  ...           n = page_bytes / stream_row_bytes
 *
 * It lies in chunks of the device tier, each as large as a page of KV, so that it is counted with
 * the sequence's other device memory: a prompt is admitted when there is room for both, and waits
 * otherwise. A suspended prompt's stream moves to pages of the host tier, which are promised from
 * admission on: suspension gives all device memory back, and no token is computed twice. Both go
 * when the prompt is in.
 *
 * Thread rule: engine thread; pages and bytes read constants only. */
#ifndef KVA_ENGINE_KV_STREAM_H
#define KVA_ENGINE_KV_STREAM_H

#include "engine/kv/kv.h"

/* What `rows` rows take in either tier. */
uint32_t kva_kv_stream_pages(const struct kva_kv *kv, uint32_t rows);
uint64_t kva_kv_stream_bytes(const struct kva_kv *kv, uint32_t rows);

/* Tables for the whole prompt; finish also after an init that failed. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_kv_stream_init(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                                  struct kva_err *err);
void kva_kv_stream_finish(struct kva_kv_seq *seq);

/* Host memory for the rows of `rows` tokens has been promised with the sequence's other pages. */
void kva_kv_stream_begin(const struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t rows);

/* Device memory, all or nothing; false: the tier is full. */
bool kva_kv_stream_alloc(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Give it back. With `save`, first queue copies to the host. */
void kva_kv_stream_cut(struct kva_kv *kv, struct kva_kv_seq *seq, bool save);

/* After cut with save and alloc: the same content. */
void kva_kv_stream_restore(struct kva_kv *kv, struct kva_kv_seq *seq);

/* The stream is not needed any more: memory of both tiers goes back. */
void kva_kv_stream_end(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Copy rows [row_first, row_first + rows), counted from the first token that is computed, to and
 * from device memory, on the compute queue. */
void kva_kv_stream_read(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t row_first,
                        uint32_t rows, void *to);
void kva_kv_stream_write(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t row_first,
                         uint32_t rows, const void *from);

#endif
