/* sketch.h - partial keys of offloaded pages, in all layers but the skipped ones, which are there
 * whole (kernels/ops_sketch.h). Taken, shared and made again as copies.h says: columns are static,
 * so a page's copy depends on the page alone. Nobody attends to them: they are what rows are chosen
 * by.
 *
 * Thread rule: engine thread; what gets no sequence reads constants only. */
#ifndef KVA_ENGINE_KV_PARTS_SKETCH_H
#define KVA_ENGINE_KV_PARTS_SKETCH_H

#include "engine/kv/policy.h"

/* Layers that are whole on the device: the first of them at least, which no layer precedes. */
uint32_t kva_sketch_skip_layers(const struct kva_kv *kv, const struct kva_kv_spec *spec);

struct kva_sketch_format kva_sketch_format_of(const struct kva_kv *kv,
                                              const struct kva_kv_spec *spec);

/* Which columns a layer of the sequence has. */
struct kva_sketch_columns kva_sketch_columns_of(const struct kva_kv *kv,
                                                const struct kva_kv_seq *seq, uint32_t layer);

/* Of a sequence, [offloaded]: its pages' copies; and where in each a layer is. */
const void *const *kva_sketch_copies(const struct kva_kv_seq *seq);
size_t kva_sketch_offset(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer);

#endif
