/* ops.h - the operators: one signature each, declared once, filled per device and capability.
 *
 * All run on the compute queue. Addresses are device addresses unless said otherwise; descriptor
 * arrays (`seqs`, `ranges`, `blocks`, `positions`, ...) are host memory, read when the operator is
 * enqueued. `act` is the device's activation format (kva_device_info.act). Strides are dense unless
 * a stride is given.
 *
 * Determinism, tested for every variant: a row's result depends on that row's inputs only. It is
 * bit-equal for any number of other rows in the call, any thread count, and any split of a prompt
 * into chunks. Within one capability level that makes a request's tokens independent of what else
 * is being served.
 *
 * Accumulation is in fp32 (or better). No operator allocates. */
#ifndef KVA_KERNELS_OPS_H
#define KVA_KERNELS_OPS_H

#include "kernels/device.h"
#include "kernels/kv_layout.h"

/* Attention folds a range in pieces that end at multiples of this position, whatever the caller's
 * ranges and chunks are, so that the order of additions is a property of the sequence alone. A
 * multiple of KVA_PAGE_TOKENS. */
#define KVA_ATTEND_SPLIT_TOKENS 256u

enum kva_norm_kind {
    KVA_NORM_RMS,   /* x / rms(x) * w */
    KVA_NORM_LAYER, /* (x - mean) / std * w + b */
};

enum kva_activation {
    KVA_ACT_SILU,
    KVA_ACT_GELU,      /* erf form */
    KVA_ACT_GELU_TANH, /* tanh approximation */
    KVA_ACT_RELU,
};

/* out[r, :] = table[ids[r], :] * scale (+ positions_table[positions[r], :] if present). */
struct kva_embed_args {
    void *out;                         /* act [rows, dim] */
    struct kva_weight table;           /* [vocab, dim] */
    struct kva_weight positions_table; /* [positions, dim] or absent */
    const uint32_t *ids;               /* host [rows], each < vocab */
    const uint32_t *positions;         /* host [rows]; used with positions_table */
    uint32_t rows;
    float scale; /* 1, or sqrt(dim) for Gemma */
};

/* out may be x. Norm of `rows` rows of `dim` elements; for QK norm rows = rows * heads, dim =
 * head_dim. */
struct kva_norm_args {
    void *out;                /* act [rows, dim] */
    const void *x;            /* act [rows, dim] */
    struct kva_weight weight; /* [dim] */
    struct kva_weight bias;   /* [dim] or absent; layer norm only */
    uint32_t rows;
    uint32_t dim;
    enum kva_norm_kind kind;
    float eps;
    float weight_offset; /* 0, or 1 where the file stores w - 1 (Gemma) */
};

/* out = x w^T (+ bias) (+ out if accumulate). */
struct kva_linear_args {
    void *out;     /* act [rows, w.rows], row stride out_stride elements; F32 if out_f32 */
    const void *x; /* act [rows, w.cols], row stride x_stride elements */
    struct kva_weight weight; /* [w.rows = outputs, w.cols = inputs] */
    struct kva_weight bias;   /* [w.rows] or absent */
    uint32_t rows;
    uint32_t x_stride;
    uint32_t out_stride;
    bool accumulate; /* add to what out holds: the residual stream */
    bool out_f32;    /* logits */
};

/* Rotary embedding in place, half-split pairs (i, i + rotary_dim / 2) of each head's first
 * rotary_dim elements: angle = position * inv_freq[i]; cos and sin are multiplied by `factor`.
 * Elements from rotary_dim on stay. */
struct kva_rope_args {
    void *x;                   /* act [rows, heads, head_dim], row stride x_stride elements */
    const uint32_t *positions; /* host [rows] */
    const float *inv_freq;     /* host [rotary_dim / 2] */
    uint32_t rows;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t rotary_dim; /* even, <= head_dim */
    uint32_t x_stride;
    float factor; /* attention factor of YaRN and the like, else 1 */
};

/* out[r, i] = act(gate[r, i]) * up[r, i]; without `up`, act(gate). out may be gate. */
struct kva_glu_args {
    void *out;        /* act [rows, dim] */
    const void *gate; /* act [rows, dim] */
    const void *up;   /* act [rows, dim] or NULL */
    uint32_t rows;
    uint32_t dim;
    enum kva_activation activation;
};

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

/* One sequence's rows: consecutive rows at consecutive positions. */
struct kva_attend_seq {
    uint32_t row_first;
    uint32_t row_count;
    uint32_t position_first; /* of row_first; a row at position p sees tokens p - window < t <= p of
                                the ranges */
    uint32_t range_first;    /* index into args.ranges; ranges ascend and are disjoint */
    uint32_t range_count;
};

/* The partial result of attention over some tokens (architecture.md; DistAttention eq. 2-3,
 * FlashDecoding): m = max s, e = sum exp(s - m), a = sum exp(s - m) v. No visible token: m = -inf,
 * e = 0, a = 0. */
struct kva_partial {
    float *a; /* [rows, heads, head_dim] */
    float *m; /* [rows, heads] */
    float *e; /* [rows, heads] */
};

/* Scratch memory with which one sequence of `page_count` low-bit pages can select. Per head and
 * split, in whole lines of the cache. */
static inline size_t kva_attend_lowbit_scratch_bytes(uint32_t heads, uint32_t page_count)
{
    size_t positions = (size_t)page_count * KVA_PAGE_TOKENS;
    size_t splits = (positions + KVA_ATTEND_SPLIT_TOKENS - 1) / KVA_ATTEND_SPLIT_TOKENS;
    return heads * splits * (KVA_ATTEND_SPLIT_TOKENS + 16) * sizeof(float);
}

/* Scratch memory with which one sequence of `page_count` low-bit pages can select and act upon its
 * choice at once (kva_lowbit_seq.now). */
static inline size_t kva_attend_lowbit_now_bytes(uint32_t heads, uint32_t head_dim,
                                                 uint32_t page_count)
{
    size_t positions = (size_t)page_count * KVA_PAGE_TOKENS;
    size_t splits = (positions + KVA_ATTEND_SPLIT_TOKENS - 1) / KVA_ATTEND_SPLIT_TOKENS;
    return kva_attend_lowbit_scratch_bytes(heads, page_count) +
           heads * splits * (kva_align_up(head_dim, 16) + 16) * sizeof(float);
}

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

/* --- low-bit KV ------------------------------------------------------------------------------ */

/* Low-bit blocks from 16-bit ones. Scale and zero are computed in fp32 and rounded to f16 before
 * coding, so that encoder and decoder agree; codes are clamped. A constant group has scale 0 and
 * codes 0. Elements beyond the range of f16 count as its end. */
struct kva_quantise_args {
    const void *const *from;  /* host [count]: 16-bit blocks, in either tier */
    void *const *to;          /* host [count]: low-bit blocks */
    const uint32_t *exempt;   /* host [count]: so many first tokens of the block do not count for
                                 the keys' levels; NULL: none */
    size_t from_offset_bytes; /* added to every address of `from` */
    size_t to_offset_bytes;   /* added to every address of `to` */
    uint32_t count;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    struct kva_lowbit_format format;
};

#define KVA_NO_TOKEN UINT32_MAX

/* The 16-bit rows of one sequence that replace low-bit ones in one layer: slots per KV head, and
 * what is in them. All addresses are device addresses; resolve and attend_lowbit change them, the
 * engine only lets them be copied. The first `pinned` slots hold positions 0 .. pinned - 1 for
 * good (the attention sinks): they always attend and are never chosen. */
struct kva_hot {
    void *rows;       /* 16 bit [kv_heads][slots][2 (K, V)][head_dim] */
    uint32_t *tokens; /* [kv_heads][slots]: position of the row in the slot, or KVA_NO_TOKEN */
    uint32_t *used;   /* [kv_heads][slots]: the resolve that last wanted it */
    uint32_t *order;  /* [kv_heads][slots]: the slots that attend, by ascending position */
    uint32_t *count;  /* [kv_heads]: of them */
    uint32_t *chosen; /* [kv_heads][k]: wanted next, by ascending position; the rest KVA_NO_TOKEN */
    uint32_t *missing; /* [kv_heads][slots]: slots whose rows are to be fetched; the rest
                          KVA_NO_TOKEN. Set by resolve, k at most */
    uint64_t *hits;    /* [2]: resolve adds the chosen rows that were there, and that were not */
    uint32_t slots;    /* >= pinned + k */
    uint32_t pinned;
    uint32_t k;
};

enum kva_hot_mode {
    KVA_HOT_PAPER,    /* exactly the chosen rows attend */
    KVA_HOT_RESIDENT, /* all rows that happen to be there attend: free accuracy */
};

/* How a choice is acted upon within the call that makes it: as resolve (`stamp`, `mode`, `keep`)
 * and kva_device_fetch_hot (`pages`, `page_offset_bytes`) would. */
struct kva_hot_now {
    const void *const *pages; /* host tier: of the sequence, from position 0 on */
    size_t page_offset_bytes;
    uint32_t stamp;
    enum kva_hot_mode mode;
    bool keep;
};

/* A sequence's rows before its low-bit pages: positions [0, page_count * KVA_PAGE_TOKENS) minus
 * those of its hot rows, which attend in 16 bits instead. */
struct kva_lowbit_seq {
    uint32_t row_first;
    uint32_t row_count;
    uint32_t position_first; /* of row_first; matters for a sliding window only: all pages lie
                                before it */
    uint32_t block_first;    /* index into args.blocks */
    uint32_t page_count;
    const struct kva_hot *hot; /* host pointer; NULL: nothing is replaced and nothing chosen */
    uint32_t select_row;       /* its row (< row_count) whose scores choose hot->chosen; else none
                                  does */
    const struct kva_hot_now *now; /* of a sequence of one row, which selects: what it chooses is
                                      fetched and attends in this very call. NULL: the choice is
                                      for a later one */
};

/* out = partial attention of every row over its sequence's low-bit pages and hot rows (SpeCache
 * eq. 1); rows of no listed sequence stay as they are. Each KV head is read once for all its query
 * heads and rows. Low-bit positions fold by pieces that end at multiples of
 * KVA_ATTEND_SPLIT_TOKENS, hot rows by ascending position, whatever their slots: rows and slots of
 * other requests, and where a row happens to be, change no bit.
 *
 * A selecting row writes hot->chosen: the k positions of the pages with the largest mean, over the
 * query heads of a KV head, of the row's attention probability; it is normalised over `out` and
 * `rest` together. Scores of hot rows come from their 16 bits. Ties go to the lower position.
 * Positions outside the sliding window, and pinned ones, are not chosen.
 *
 * A row that acts `now` gets the bits of four calls: this one to choose, resolve, fetch, and this
 * one again; but what the choice does not change is computed once. Only devices that reach the host
 * tier as they do their own (kva_device_info.host_readable) can. */
struct kva_attend_lowbit_args {
    const void *q; /* act [rows, heads, head_dim], row stride q_stride elements */
    struct kva_partial out;
    const struct kva_partial *rest;    /* the same rows' attention over all other tokens, for
                                          selecting rows; NULL: there are none */
    const struct kva_lowbit_seq *seqs; /* host [seq_count] */
    const void *const *blocks;         /* host: low-bit blocks, device addresses */
    size_t block_offset_bytes;         /* added to every block address: layer * block bytes */
    void *scratch;                     /* device, for selection: kva_attend_lowbit_scratch_bytes
                                          of the longest selecting sequence at least; with the sum
                                          over all of them they are done side by side. Of those
                                          that act at once: kva_attend_lowbit_now_bytes */
    size_t scratch_bytes;
    uint32_t seq_count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads;       /* divides heads */
    uint32_t head_dim;       /* a multiple of 4 */
    uint32_t window;         /* sliding window in tokens, 0: none */
    enum kva_dtype kv_dtype; /* of hot rows */
    struct kva_lowbit_format format;
    float scale;
};

/* Make room for hot->chosen: rows that are in a slot stay, the others take the slots that were
 * wanted longest ago (ties: the lowest slot; empty ones first), except pinned ones and those just
 * wanted; without `keep`, every chosen row is fetched anew, and counted as such, into slots from
 * `pinned` on, and nothing else stays. Then tokens, used, order, count and missing say what the
 * next attend_lowbit will find once kva_device_fetch_hot has run. */
struct kva_resolve_args {
    const struct kva_hot *const *hots; /* host [count] */
    uint32_t count;
    uint32_t kv_heads;
    uint32_t stamp; /* greater than that of the resolve before, > 0 */
    enum kva_hot_mode mode;
    bool keep; /* delta fetch */
};

/* How far the queries of some rows have moved since they were last looked at (FreeKV's correction):
 * cosine[i] = mean over the heads of cos(q of rows[i], before[i]), where a zero vector has cosine
 * 0; then before[i] = that q. The caller reads the result after waiting for the queue. */
struct kva_drift_args {
    const void *q;        /* act [.., heads, head_dim], row stride q_stride elements */
    const uint32_t *rows; /* host [count] */
    void *const *before;  /* host [count]: act [heads, head_dim] each, device */
    float *cosine;        /* host tier [count] */
    uint32_t count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t head_dim;
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

/* out[i, :] = x[rows[i], :]: the rows whose logits are wanted. */
struct kva_gather_args {
    void *out;            /* act [count, dim] */
    const void *x;        /* act [.., dim] */
    const uint32_t *rows; /* host [count] */
    uint32_t count;
    uint32_t dim;
};

/* Candidates of a row that are listed at most. */
#define KVA_SHORTLIST_MAX 1024u

struct kva_candidate {
    float logit;
    uint32_t token;
};

/* What of a row of logits is wanted. What is not a number counts as -inf. Of two tokens the one
 * with the larger logit is the better one, of equal ones the lower. */
struct kva_shortlist_want {
    uint32_t row;         /* of the logits */
    uint32_t best;        /* so many of the best tokens above -inf, 1 to KVA_SHORTLIST_MAX */
    uint32_t watch_first; /* in `watched`: tokens whose logits are wanted whatever they are */
    uint32_t watch_count;
    float temperature; /* > 0: `rest` is wanted */
    bool log_sum;      /* is wanted */
    bool rank;         /* of the first of the watched tokens is wanted */
};

/* What there is besides the lists; what was not asked for is 0. */
struct kva_shortlist {
    double rest; /* over the tokens that are not listed, exp((logit - l) / temperature), where l is
                    the least logit listed; 0 if everything above -inf is listed */
    double log_sum; /* of exp(logit) over all tokens, its logarithm */
    uint32_t count; /* listed; fewer than wanted: no other token is above -inf */
    uint32_t rank;  /* 1: the best */
};

/* Everything that choosing a token needs to know of some rows of logits, so that they need not
 * leave the device. The caller reads the results after waiting for the queue. */
struct kva_shortlist_args {
    struct kva_shortlist *out;    /* host tier [count] */
    struct kva_candidate *listed; /* host tier [count][KVA_SHORTLIST_MAX], by ascending token */
    float *watched_logits;        /* host tier [watched_count], as they are in the row */
    const float *logits;          /* fp32 [.., vocab] */
    const struct kva_shortlist_want *wants; /* host [count] */
    const uint32_t *watched;                /* host [watched_count], each < vocab */
    uint32_t count;
    uint32_t watched_count;
    uint32_t vocab;
};

struct kva_ops {
    void (*embed)(struct kva_device *device, const struct kva_embed_args *args);
    void (*norm)(struct kva_device *device, const struct kva_norm_args *args);
    void (*linear)(struct kva_device *device, const struct kva_linear_args *args);
    void (*rope)(struct kva_device *device, const struct kva_rope_args *args);
    void (*glu)(struct kva_device *device, const struct kva_glu_args *args);
    void (*kv_append)(struct kva_device *device, const struct kva_kv_append_args *args);
    void (*attend)(struct kva_device *device, const struct kva_attend_args *args);
    void (*quantise)(struct kva_device *device, const struct kva_quantise_args *args);
    void (*attend_lowbit)(struct kva_device *device, const struct kva_attend_lowbit_args *args);
    void (*resolve)(struct kva_device *device, const struct kva_resolve_args *args);
    void (*drift)(struct kva_device *device, const struct kva_drift_args *args);
    void (*merge)(struct kva_device *device, const struct kva_merge_args *args);
    void (*gather)(struct kva_device *device, const struct kva_gather_args *args);
    void (*shortlist)(struct kva_device *device, const struct kva_shortlist_args *args);
};

#endif
