/* stage.h - pages that are offloaded, brought to the device two layers at a time, by parity of the
 * layer:
 *
 *     stage[0]  layer 0, 2, 4, ...    the copy queue fills stage[(l + 1) % 2]
 *     stage[1]  layer 1, 3, 5, ...    while compute attends over stage[l % 2]
 *
 * During a prefill the rows of a layer are written into stage[l % 2] and sent home when a page of
 * it is full.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_STAGE_H
#define KVA_ENGINE_KV_STAGE_H

#include "engine/kv/pass.h"

/* Buffers for pages [0, count). All or nothing; false: the tier is full. */
bool kva_kv_stage_alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count);

/* Give back those from `count` on. With `save`, first queue copies to the host of what only the
 * buffers hold: pages of an unfinished prefill. */
void kva_kv_stage_free(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save);

/* Whether any sequence of the pass has pages staged. */
bool kva_kv_stage_wanted(const struct kva_kv_pass *pass);

/* Queue the fetch of the content that exists before the rows, for one layer of all sequences with
 * staged pages; nothing if it is there already or the pass does not reach the layer. */
void kva_kv_stage_layer(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

/* Pages that the pass's rows completed in this layer go home. */
void kva_kv_stage_send(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

#endif
