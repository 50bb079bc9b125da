/* ops_attend.h - attention: over 16-bit blocks, over low-bit pages, over rows; each gives partial
 * results, and merge adds them up. What ops.h promises holds here. */
#ifndef KVA_KERNELS_OPS_ATTEND_H
#define KVA_KERNELS_OPS_ATTEND_H

#include "kernels/ops_rows.h"

/* Attention folds a range in pieces that end at multiples of this position, whatever the caller's
 * ranges and chunks are, so that the order of additions is a property of the sequence alone. A
 * multiple of KVA_PAGE_TOKENS. */
#define KVA_ATTEND_SPLIT_TOKENS 256u

/* Round K and V rows to 16 bits and store them in their blocks. */
struct kva_kv_append_args {
    const void *k;             /* act [rows, kv_heads, head_dim] */
    const void *v;             /* act [rows, kv_heads, head_dim] */
    void *const *blocks;       /* host [rows]: address of the block that holds the row's token */
    size_t block_offset_bytes; /* added to every address: layer * block bytes in a page of all
                                  layers */
    const uint32_t *positions; /* host [rows] */
    uint32_t rows;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype; /* F16 or BF16 */
};

enum kva_kv_format {
    KVA_KV_16BIT, /* blocks as drawn above */
};

/* Tokens [token_first, token_first + token_count) of a sequence in one format. The first block
 * holds token_first; each next block the next KVA_PAGE_TOKENS-aligned piece. token_first need not
 * be aligned. */
struct kva_attend_range {
    enum kva_kv_format format;
    uint32_t token_first;
    uint32_t token_count;
    uint32_t block_first; /* index into args.blocks */
};

/* Where the scores of one row are kept for attend_mass (ops_keep.h), which then need not read the
 * keys again: [heads][split_count][KVA_ATTEND_SPLIT_TOKENS], from the split `split_first` on. A
 * device whose attend_mass reads the keys all the same leaves them as they are. */
struct kva_attend_scores {
    float *data; /* device; NULL: they are not kept */
    uint32_t split_first;
    uint32_t split_count;
};

/* One sequence's rows: consecutive rows at consecutive positions. */
struct kva_attend_seq {
    uint32_t row_first;
    uint32_t row_count;
    uint32_t position_first; /* of row_first; a row at position p sees tokens p - window < t <= p of
                                the ranges */
    uint32_t range_first;    /* index into args.ranges; ranges ascend and are disjoint */
    uint32_t range_count;
    struct kva_attend_scores scores; /* of a sequence of one row; all its splits lie within */
};

/* The partial result of attention over some tokens (architecture.md; DistAttention eq. 2-3,
 * FlashDecoding): m = max s, e = sum exp(s - m), a = sum exp(s - m) v. No visible token: m = -inf,
 * e = 0, a = 0. */
struct kva_partial {
    float *a; /* [rows, heads, head_dim] */
    float *m; /* [rows, heads] */
    float *e; /* [rows, heads] */
};

/* out = partial attention of every row over its sequence's ranges. Each KV head is read once for
 * all the query heads that share it. With `accumulate`, the ranges are folded into what `out`
 * already holds; folding pieces that meet at multiples of KVA_ATTEND_SPLIT_TOKENS gives the same
 * bits as one call over all of them. */
struct kva_attend_args {
    const void *q; /* act [rows, heads, head_dim], row stride q_stride elements */
    struct kva_partial out;
    const struct kva_attend_seq *seqs;     /* host [seq_count] */
    const struct kva_attend_range *ranges; /* host */
    const void *const *blocks;             /* host: device addresses */
    size_t block_offset_bytes;             /* added to every block address */
    uint32_t seq_count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads; /* divides heads */
    uint32_t head_dim;
    uint32_t window; /* sliding window in tokens, 0: none */
    enum kva_dtype kv_dtype;
    float scale; /* 1 / sqrt(head_dim), usually */
    bool accumulate;
};

/* Attention that goes on from a result which is not there yet, in two calls, optional operators of
 * which a device has both or neither: attend_apart computes the partial results of splits into
 * `memory`, of each sequence the first ones, as many as fit in its even share; attend_join, once
 * attend.out holds what they are to be folded into, folds them and attends to the other splits.
 * Together they give the bits of attend with the same arguments. attend_apart neither reads nor
 * writes attend.out; the two calls have the same arguments, and nothing else uses `memory` in
 * between. Without these operators the caller waits, then calls attend. */
struct kva_attend_apart_args {
    struct kva_attend_args attend; /* with `accumulate` */
    void *memory;                  /* device [bytes], begins a cache line */
    size_t bytes;
};

/* Low-bit blocks from 16-bit ones. Scale and zero are computed in fp32 and rounded to f16 before
 * coding, so that encoder and decoder agree; codes are clamped. A constant group has scale 0 and
 * codes 0. Elements beyond the range of f16 count as its end. */
struct kva_quantise_args {
    const void *const *from;  /* host [count]: 16-bit blocks, in either tier */
    void *const *to;          /* host [count]: low-bit blocks */
    const uint32_t *exempt;   /* host [count]: the first tokens of the block that do not count for
                                 the keys' levels; NULL: none. Of KVA_KEYS_PER_CHANNEL */
    size_t from_offset_bytes; /* added to every address of `from` */
    size_t to_offset_bytes;   /* added to every address of `to` */
    uint32_t count;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    struct kva_lowbit_format format;
};

/* out[r, h, :] = (sum_j a_j exp(m_j - m)) / (sum_j e_j exp(m_j - m)), m = max_j m_j; a row that saw
 * nothing gives 0. */
struct kva_merge_args {
    void *out;                          /* act [rows, heads, head_dim] */
    const struct kva_partial *partials; /* host [partial_count] */
    uint32_t partial_count;
    uint32_t rows;
    uint32_t heads;
    uint32_t head_dim;
};

/* --- low-bit pages and rows ------------------------------------------------------------------ */

/* Splits of `page_count` pages. */
static inline size_t kva_attend_splits(uint32_t page_count)
{
    size_t tokens = (size_t)page_count * KVA_PAGE_TOKENS;
    return (tokens + KVA_ATTEND_SPLIT_TOKENS - 1) / KVA_ATTEND_SPLIT_TOKENS;
}

/* Memory for one row's partial results of all splits of `page_count` pages (attend_apart). */
static inline size_t kva_attend_apart_bytes(uint32_t heads, uint32_t head_dim, uint32_t page_count)
{
    size_t pair = kva_align_up(((size_t)head_dim + 2) * sizeof(float), KVA_CACHE_LINE);
    return heads * kva_attend_splits(page_count) * pair;
}

/* Memory for one row's scores over `page_count` pages: per head and split, in whole lines of the
 * cache. Their layout is the device's own; weigh reads them. */
static inline size_t kva_attend_scores_bytes(uint32_t heads, uint32_t page_count)
{
    return heads * kva_attend_splits(page_count) * (KVA_ATTEND_SPLIT_TOKENS + 16) * sizeof(float);
}

/* Memory for the largest score of each page and head, and for what weigh_choose makes of them. */
static inline size_t kva_attend_peaks_bytes(uint32_t heads, uint32_t kv_heads, uint32_t page_count)
{
    return kva_align_up((heads + 2 * (size_t)kv_heads) * page_count * sizeof(float),
                        KVA_CACHE_LINE);
}

/* One sequence's rows before its low-bit pages, which hold positions [0, page_count *
 * KVA_PAGE_TOKENS), and before the rows that replace some of these tokens. */
struct kva_lowbit_seq {
    uint32_t row_first;
    uint32_t row_count;
    uint32_t position_first; /* of row_first; matters for a sliding window only: all pages lie
                                before it */
    uint32_t block_first;    /* index into args.blocks */
    uint32_t page_count;
    const struct kva_row_cache *rows; /* host pointer; NULL: nothing is replaced */
    uint32_t select_row;              /* its row whose scores or peaks are kept, if any */
    float *scores;                    /* kva_attend_scores_bytes, device; NULL: none are kept */
    float *peaks;                     /* kva_attend_peaks_bytes, device: of that row, what
                                         weigh_choose wants, on devices that have it; no sequence
                                         of the call has scores then. NULL: it is not kept */
    const float *mean;                /* [kv_heads][head_dim]: what keys of pages are without
                                         (mean_keys); device. NULL: nothing is missing */
    const uint32_t *gate;             /* ops.h */
};

/* out = partial attention of every row over its sequence's low-bit pages, without the tokens that
 * `rows` has; rows of no listed sequence stay as they are. Each KV head is read once for all its
 * query heads and rows. Positions fold by pieces that end at multiples of KVA_ATTEND_SPLIT_TOKENS.
 */
struct kva_attend_lowbit_args {
    const void *q; /* act [rows, heads, head_dim], row stride q_stride elements */
    struct kva_partial out;
    const struct kva_lowbit_seq *seqs; /* host [seq_count] */
    const void *const *blocks;         /* host: low-bit blocks, device addresses */
    size_t block_offset_bytes;         /* added to every block address: layer * block bytes */
    uint32_t seq_count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads; /* divides heads */
    uint32_t head_dim; /* a multiple of 4 */
    uint32_t window;   /* sliding window in tokens, 0: none */
    struct kva_lowbit_format format;
    float scale;
    const struct kva_partial *behind; /* host pointer: of the same rows, what is folded behind their
                                         pages, and is waited for behind the branches
                                         (kva_device_branch) there only; NULL: nothing. Not of
                                         turned codes */
};

/* One sequence's rows before the rows of its cache that attend. */
struct kva_rows_seq {
    uint32_t row_first;
    uint32_t row_count;
    uint32_t position_first;          /* as kva_lowbit_seq's */
    const struct kva_row_cache *rows; /* host pointer; NULL: none */
    const uint32_t *gate;             /* ops.h */
};

/* out = partial attention of every row over the rows of its sequence's cache, folded by ascending
 * position, KVA_ATTEND_SPLIT_TOKENS at a time, whatever their slots: slots of other requests, and
 * where a row happens to be, change no bit. With `accumulate` they are folded into what `out`
 * holds: behind attend_lowbit, that is SpeCache's eq. 1. Of no more rows than KVA_ATTEND_SPLIT_TOKENS
 * without it, as attend_lowbit's `behind`, they give the same bits, and neither call waits for the
 * other. */
struct kva_attend_rows_args {
    const void *q; /* act [rows, heads, head_dim], row stride q_stride elements */
    struct kva_partial out;
    const struct kva_rows_seq *seqs; /* host [seq_count] */
    uint32_t seq_count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads; /* divides heads */
    uint32_t head_dim; /* a multiple of 4 */
    uint32_t window;   /* sliding window in tokens, 0: none */
    enum kva_dtype kv_dtype;
    float scale;
    bool accumulate;
};

/* Weigh and choose by the peaks of pages, so that scores of tokens are never in memory: an optional
 * operator. What is chosen is, to the bit, what weigh and choose choose by the scores that
 * attend_lowbit would have kept. The keys of a page are looked at once more only where it may have a
 * token that is chosen.
 *
 * weigh.seqs[i] has no scores, low[i] is what attend_lowbit had for it, with peaks; weights is
 * memory, which holds anything afterwards. choose.seqs[i] chooses by all that weigh.seqs[i] weighs,
 * behind the same gate, the k largest weights (KVA_CHOOSE_MOST): as many sequences, the same KV
 * heads, the same queue. */
struct kva_weigh_choose_args {
    struct kva_weigh_args weigh;
    struct kva_choose_args choose;
    const struct kva_lowbit_seq *low; /* host [seq_count] */
    const void *const *blocks;        /* as attend_lowbit's */
    size_t block_offset_bytes;
    struct kva_lowbit_format format; /* KVA_KEYS_PER_CHANNEL */
};

/* Scratch memory with which one sequence can select by peaks: they, then weights. */
static inline size_t kva_attend_choose_bytes(uint32_t heads, uint32_t kv_heads, uint32_t page_count)
{
    return kva_attend_peaks_bytes(heads, kv_heads, page_count) +
           (size_t)kv_heads * page_count * KVA_PAGE_TOKENS * sizeof(float);
}

/* --- all of it at once ----------------------------------------------------------------------- */

/* How a choice is acted upon within the call that makes it: as assign_slots (`stamp`, `mode`,
 * `keep`) and fetch_rows (`pages`, `page_offset_bytes`) would. */
struct kva_fused_fetch {
    const void *const *pages; /* host tier: of the sequence, from position 0 on */
    size_t page_offset_bytes;
    uint32_t stamp;
    enum kva_rows_mode mode;
    bool keep;
};

/* A sequence as kva_lowbit_seq and kva_rows_seq, and what is done with its scores. */
struct kva_select_seq {
    uint32_t row_first;
    uint32_t row_count;
    uint32_t position_first;
    uint32_t block_first;
    uint32_t page_count;
    const struct kva_row_cache *rows;  /* NULL: nothing is replaced and nothing chosen */
    uint32_t select_row;               /* its row (< row_count) that chooses rows->chosen; else none
                                         does */
    const struct kva_fused_fetch *now; /* of a sequence of one row, which selects: what it chooses
                                          is fetched and attends in this very call. NULL: the
                                          choice is for a later one */
    const float *mean;                 /* as kva_lowbit_seq's */
};

/* Scratch memory with which one sequence can select. */
static inline size_t kva_attend_select_bytes(uint32_t heads, uint32_t kv_heads, uint32_t page_count)
{
    return kva_attend_scores_bytes(heads, page_count) +
           (size_t)kv_heads * page_count * KVA_PAGE_TOKENS * sizeof(float);
}

/* Scratch memory with which the fused operator can select for one sequence and act upon its choice
 * at once (kva_select_seq.now). */
static inline size_t kva_attend_fused_bytes(uint32_t heads, uint32_t head_dim, uint32_t page_count)
{
    return kva_attend_scores_bytes(heads, page_count) + heads * kva_attend_splits(page_count) *
                                                            (kva_align_up(head_dim, 16) + 16) *
                                                            sizeof(float);
}

/* attend_lowbit, attend_rows, weigh and choose in one call, for whom that is faster: an optional
 * operator, whose bits are those of the four. A selecting row chooses the rows->k positions with
 * the largest weights; those outside the sliding window, and pinned ones, are no candidates.
 *
 * A row that acts `now` gets the bits of these four, assign_slots, fetch_rows, and the first two
 * again; but what the choice does not change is computed once. */
struct kva_attend_select_fetch_args {
    const void *q; /* act [rows, heads, head_dim], row stride q_stride elements */
    struct kva_partial out;
    const struct kva_partial *rest;    /* the same rows' attention over all other tokens, for
                                          selecting rows; NULL: there are none */
    const struct kva_select_seq *seqs; /* host [seq_count] */
    const void *const *blocks;         /* as attend_lowbit's */
    size_t block_offset_bytes;
    void *scratch; /* device, for selection: kva_attend_select_bytes of the
                                          longest selecting sequence at least; with the sum over
                                          all of them they are done side by side. Of those that
                                          act at once: kva_attend_fused_bytes */
    size_t scratch_bytes;
    uint32_t seq_count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t window;
    enum kva_dtype kv_dtype;
    struct kva_lowbit_format format;
    float scale;
};

#endif
