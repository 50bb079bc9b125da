/* range.h - where a sequence's tokens are in one layer.
 *
 * Before a layer attends, each sequence has a list of ranges: disjoint sets of its tokens, each in
 * one form. Attention over each of them gives a partial result, and one merge adds those up
 * (kernels/ops_attend.h). Tokens in no range have been dropped: nobody attends to them.
 *
 * Thread rule: plain data. */
#ifndef KVA_ENGINE_KV_RANGE_H
#define KVA_ENGINE_KV_RANGE_H

#include "kernels/ops.h"

enum kva_kv_range_kind {
    KVA_RANGE_BLOCKS,  /* pages [page_first, page_end), whole, in 16-bit blocks */
    KVA_RANGE_LOWBIT,  /* low-bit pages [0, page_end); tokens of `rows`, if there is one, are not
                          read there but in 16 bits from it */
    KVA_RANGE_ROWS,    /* the tokens of `rows` alone */
    KVA_RANGE_PARTIAL, /* tokens that others attend to: `partial` is what came of it */
};

struct kva_kv_part;

/* Blocks before and behind gaps, low-bit pages, rows alone, and partial results (of parts/lent.h, a
 * loan and the blocks before each). Of low-bit pages and of rows alone there is one range at most. */
#define KVA_KV_RANGES_MAX 68u

struct kva_kv_range {
    enum kva_kv_range_kind kind;
    uint32_t page_first, page_end;

    /* --- LOWBIT --- */
    struct kva_lowbit_format format;
    void *const *low;        /* [page_end]: a device address of each page ... */
    size_t low_offset_bytes; /* ... and where this layer's block lies behind it */
    /* Of a sequence of one row, device [kv_heads][page_end * KVA_PAGE_TOKENS]: gets the share of
     * the row's attention that each token had (kernels/ops_rows.h: weigh); NULL: nobody asks. */
    float *weights;
    const float *mean; /* [kv_heads][head_dim]: what keys are without, device; NULL: nothing */

    const struct kva_row_cache *rows; /* LOWBIT: or NULL; ROWS */

    /* --- PARTIAL: of the sequence's rows alone, device addresses, valid until the layer ends. --- */
    struct kva_partial partial;
    const struct kva_kv_part *owner; /* whose `await` comes before `partial` is read */
    /* The range begins the sequence, and attention over its 16-bit blocks goes on from it. If it is
     * what attend gives for tokens up to a multiple of KVA_ATTEND_SPLIT_TOKENS, the result is that
     * of attend over all of them, bit for bit: where the device has attend_apart, the blocks
     * are attended to before it is waited for, and folded onto it; else they wait. A range that is
     * no prefix is merged, which is the same up to rounding, and waited for as late as possible. */
    bool prefix;
};

#endif
