/* range.h - where a sequence's tokens are in one layer.
 *
 * Before a layer attends, each sequence has a list of ranges: disjoint sets of its tokens, each in
 * one form. Attention over each of them gives a partial result, and one merge adds those up
 * (kernels/ops.h). Tokens in no range have been dropped: nobody attends to them.
 *
 * Thread rule: plain data. */
#ifndef KVA_ENGINE_KV_RANGE_H
#define KVA_ENGINE_KV_RANGE_H

#include "kernels/ops.h"

enum kva_kv_range_kind {
    KVA_RANGE_BLOCKS, /* pages [page_first, page_end), whole, in 16-bit blocks */
    KVA_RANGE_LOWBIT, /* low-bit pages [0, page_end); tokens of `rows`, if there is one, are not
                         read there but in 16 bits from it */
    KVA_RANGE_ROWS,   /* the tokens of `rows` alone */
};

/* Blocks before and behind a gap, low-bit pages, rows. */
#define KVA_KV_RANGES_MAX 4u

struct kva_kv_range {
    enum kva_kv_range_kind kind;
    uint32_t page_first, page_end;
    void *const *low;                 /* LOWBIT: [page_end] copies of pages in all layers */
    const struct kva_row_cache *rows; /* LOWBIT: or NULL; ROWS */
};

#endif
