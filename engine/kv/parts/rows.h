/* rows.h - the 16-bit rows of pages that are offloaded which the next step is expected to need
 * (struct kva_row_cache, kernels/ops_rows.h), for policies that select rows.
 *
 * A layer's rows are selected by one step and due in the same layer of the next: a whole step for
 * the fetch. Which rows are where is decided on the device (assign_slots), so the host never waits
 * for it.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PARTS_ROWS_H
#define KVA_ENGINE_KV_PARTS_ROWS_H

#include "engine/kv/pass.h"

/* Whether the sequence has row caches with content, into which rows can be selected. */
bool kva_kv_rows_started(const struct kva_kv_seq *seq);

/* Rows whose query has moved away from the one that selected for the layer set select_now
 * (KVA_SETTING_RESELECT_BELOW), behind a gate: the device decides, and the host waits for nothing.
 * A policy's layer_query. */
void kva_kv_rows_reselect(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                          const void *q);

#endif
