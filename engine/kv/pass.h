/* pass.h - the KV cache during a forward pass: where the rows of each layer find their tokens
 * (range.h), and what is told to the parts and policies along the way.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PASS_H
#define KVA_ENGINE_KV_PASS_H

#include "engine/kv/policy.h"
#include "engine/kv/range.h"

/* select_row of sequences of which no row selects. */
#define KVA_NO_ROW UINT32_MAX

/* One sequence's rows in a pass through some layers. */
struct kva_kv_rows {
    struct kva_kv_seq *seq;
    const uint32_t *ids;     /* host [row_count] */
    uint32_t position_first; /* of its first row */
    uint32_t row_count;
    bool draft;           /* the last row's token is a guess, never part of the sequence */
    bool predecode;       /* its row comes again in the next step, which supersedes its K and V */
    uint32_t select_row;  /* whose attention to low-bit pages selects rows, if any does ... */
    bool select_now;      /* ... for itself, before it attends; layer_query may change it */
    const uint32_t *gate; /* select_now holds only if this is open on the device (kernels/ops.h) */
    bool select_next;     /* ... for the next step, while it attends */

    /* --- from the forward pass, once per call --- */
    uint32_t row_first;  /* number of its first row in the pass */
    uint32_t rolled;     /* its sequence's (policy.h) */
    uint32_t page_first; /* pages before it are gone for good */
    const void **blocks; /* [pages from page_first up to the last row's]: layer_begin writes this
                            layer's 16-bit block addresses, of pages in ranges of blocks */

    /* --- while the layer in front of a layer begins --- */
    uint32_t rehearsed; /* its row of the rehearsed queries; KVA_NO_ROW: it has none */

    /* --- in each layer, once it is known what selects --- */
    bool fused; /* what select_row selects for itself is fetched by the operator that selects ... */
    struct kva_fused_fetch fetch; /* ... as this says */

    /* --- from layer_begin --- */
    struct kva_kv_range *ranges; /* [KVA_KV_RANGES_MAX], of the cache's */
    uint32_t range_count;
    struct kva_attend_scores scores; /* where attention to blocks keeps the one row's */
    struct kva_kv_range candidates; /* low-bit pages that select_row selects from for the next step,
                                       where not all of them attend yet; page_end 0: those that
                                       attend */
};

/* The 16-bit block of a page, where a range has it. */
static inline const void **kva_kv_block_at(const struct kva_kv_rows *rows, uint32_t page)
{
    return &rows->blocks[page - rows->page_first];
}

/* The first range of that kind; NULL: there is none. */
static inline const struct kva_kv_range *kva_kv_find_range(const struct kva_kv_rows *rows,
                                                           enum kva_kv_range_kind kind)
{
    for (uint32_t i = 0; i < rows->range_count; i++) {
        if (rows->ranges[i].kind == kind)
            return &rows->ranges[i];
    }
    return NULL;
}

/* Pages [0, so many) that attend in low bits. */
static inline uint32_t kva_kv_lowbit_pages(const struct kva_kv_rows *rows)
{
    const struct kva_kv_range *range = kva_kv_find_range(rows, KVA_RANGE_LOWBIT);
    return range ? range->page_end : 0;
}

/* The 16-bit rows that attend in this layer, beside low-bit pages or alone; NULL: none. */
static inline const struct kva_row_cache *kva_kv_find_rows(const struct kva_kv_rows *rows)
{
    for (uint32_t i = 0; i < rows->range_count; i++) {
        if (rows->ranges[i].rows)
            return rows->ranges[i].rows;
    }
    return NULL;
}

/* --- who selects ------------------------------------------------------------------------------
 *
 * Of a sequence's rows one selects at most, in layers where rows of the sequence replace low-bit
 * tokens: before it attends (`now`), while it attends (`next`), or both; and if now alone, then
 * perhaps by the operator that attends (`fused`). */

static inline bool kva_kv_selects(const struct kva_kv_rows *rows)
{
    const struct kva_kv_range *range = kva_kv_find_range(rows, KVA_RANGE_LOWBIT);
    return range && range->rows && range->rows->k > 0 && rows->select_row < rows->row_count;
}

/* Whether select_now holds, by its gate, too: only where the host reads the device's memory. */
static inline bool kva_kv_select_now_holds(const struct kva_kv_rows *rows)
{
    return rows->select_now && (!rows->gate || *rows->gate != 0);
}

static inline bool kva_kv_selects_now(const struct kva_kv_rows *rows)
{
    return rows->select_now && !rows->fused && kva_kv_selects(rows);
}

/* Whether they select for the next step from pages that do not all attend in low bits yet. */
static inline bool kva_kv_selects_apart(const struct kva_kv_rows *rows)
{
    const struct kva_kv_range *range = &rows->candidates;
    return rows->select_next && range->page_end > 0 && range->rows && range->rows->k > 0 &&
           rows->select_row < rows->row_count;
}

static inline bool kva_kv_selects_next(const struct kva_kv_rows *rows)
{
    return kva_kv_selects_apart(rows) || (rows->select_next && kva_kv_selects(rows));
}

/* For parts: one more range; whole pages go on from a range of whole pages that ends where they
 * begin. */
void kva_kv_add_range(struct kva_kv_rows *rows, struct kva_kv_range range);

/* Layers [layer_first, layer_first + layer_count) for the rows of some sequences. */
struct kva_kv_pass {
    struct kva_kv_rows *rows; /* the rows of the pass are theirs, in this order */
    uint32_t rows_count;
    uint32_t layer_first;
    uint32_t layer_count;
    /* The pass starts over at its first layer. False: it goes on where an earlier pass through the
     * same layer stopped (the next chunk of a long prompt), and what that pass left on the device
     * still counts. */
    bool restart;

    /* --- from pass_begin --- */
    const struct kva_kv_part *parts[KVA_KV_PART_KINDS_MAX]; /* of any of the sequences */
    uint32_t part_count;
};

void kva_kv_pass_begin(struct kva_kv *kv, struct kva_kv_pass *pass);
void kva_kv_layer_begin(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

/* Queries that rows are expected to have in a layer: made of the input of the layer in front of it
 * by the layer's own norm and weights, at the rows' positions. */
struct kva_kv_rehearsal {
    uint32_t layer;
    uint32_t window; /* of the layer, in tokens; 0: none */
    const void *q;   /* act [.., heads, head_dim]: row i is that with kva_kv_rows.rehearsed i */
    /* act [.., heads, plane_columns]: the same of those whose skew is planes (kv.h). */
    const void *q_planes;
    float scale;   /* of scores */
    void *scratch; /* device: for what is put into the compute queue now */
    size_t scratch_bytes;
};

/* Whether the rows' queries of a layer are to be rehearsed, of the last of them (policy.h). */
bool kva_kv_layer_rehearses(const struct kva_kv *kv, const struct kva_kv_rows *rows,
                            uint32_t layer);

/* They have been. */
void kva_kv_layer_rehearsed(struct kva_kv *kv, struct kva_kv_pass *pass,
                            const struct kva_kv_rehearsal *rehearsal);

/* The layer's input, act [rows, hidden_size], is known: policies may look at it. Before
 * layer_begin. */
void kva_kv_layer_input(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                        const void *hidden);

/* The rows' queries, act [rows, heads, head_dim], are known, and nothing has attended yet: policies
 * may have rows select now, and parts send them elsewhere. */
void kva_kv_layer_query(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q);

/* The rows' selection for themselves is left to the operator that attends. */
void kva_kv_layer_fuse(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer);

/* A partial result is about to be read: compute waits for it. */
void kva_kv_layer_await(struct kva_kv *kv, const struct kva_kv_rows *rows,
                        const struct kva_kv_range *range);

/* What a layer attended with, and what came of it. */
struct kva_kv_attention {
    uint32_t layer;
    const void *q;                      /* act [rows of the pass, heads, head_dim] */
    const struct kva_partial *partials; /* host [partial_count]: of all rows of the pass */
    uint32_t partial_count;
    float scale;
};

/* The layer has attended, where all partial results are the engine's own. */
void kva_kv_layer_attended(struct kva_kv *kv, struct kva_kv_pass *pass,
                           const struct kva_kv_attention *attention);

/* Rows have selected for themselves (kva_kv_selects_now): what they chose is fetched before the
 * layer goes on. */
void kva_kv_layer_choose(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

void kva_kv_layer_end(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

#endif
