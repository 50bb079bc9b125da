/* ops_rows.h - rows: 16-bit keys and values of single tokens that lie on the device apart from
 * their pages, and how they are chosen.
 *
 *   weigh         scores -> what share of a row's attention each token had
 *   choose        shares -> which tokens are wanted
 *   weigh_choose  peaks of pages -> which tokens are wanted (ops_attend.h)
 *   accumulate    shares are added up over steps
 *   assign_slots  wanted tokens -> slots of a row cache, and which of them are to be fetched
 *   fetch_rows    the rows of these, from host pages into their slots
 *   query_cosine  how far queries have turned since they were last looked at; gates are open for
 *                 those that have turned too far
 *
 * What ops.h promises holds here. */
#ifndef KVA_KERNELS_OPS_ROWS_H
#define KVA_KERNELS_OPS_ROWS_H

#include "kernels/device.h"
#include "kernels/kv_layout.h"

struct kva_partial;

#define KVA_NO_TOKEN UINT32_MAX

/* The rows of one sequence in one layer: slots per KV head, and what is in them. All addresses are
 * device addresses; choose and assign_slots change them, the engine only lets them be copied. The
 * first `pinned` slots hold positions 0 .. pinned - 1 for good (the attention sinks): they always
 * attend and are never chosen. */
struct kva_row_cache {
    void *rows;       /* 16 bit [kv_heads][slots][2 (K, V)][head_dim] */
    uint32_t *tokens; /* [kv_heads][slots]: position of the row in the slot, or KVA_NO_TOKEN */
    uint32_t *used;   /* [kv_heads][slots]: the stamp of the assignment that last wanted it */
    uint32_t *order;  /* [kv_heads][slots]: the slots that attend, by ascending position */
    uint32_t *count;  /* [kv_heads]: of them */
    uint32_t *chosen; /* [kv_heads][k]: wanted next, by ascending position; the rest KVA_NO_TOKEN */
    uint32_t *missing; /* [kv_heads][slots]: slots whose rows are to be fetched; the rest
                          KVA_NO_TOKEN. Set by assign_slots, k at most */
    uint64_t *hits; /* [2]: assign_slots adds the chosen rows that were there, and that were not */
    uint32_t slots; /* >= pinned + k */
    uint32_t pinned;
    uint32_t k;
    float successor; /* kva_choose_seq has it */
};

enum kva_rows_mode {
    KVA_ROWS_CHOSEN,   /* exactly the chosen rows attend */
    KVA_ROWS_RESIDENT, /* all rows that happen to be there attend: free accuracy */
};

/* --- selection ------------------------------------------------------------------------------- */

/* One row of a sequence whose attention is looked at. */
struct kva_weigh_seq {
    uint32_t row;                     /* of q and of the partial results */
    uint32_t first;                   /* positions before it are out of its sight */
    uint32_t page_count;              /* low-bit pages from position 0 on */
    const float *scores;              /* what attend_lowbit left for this row, at a multiple of 16
                                         bytes, as weights; NULL if page_count is 0, and of
                                         weigh_choose */
    const struct kva_row_cache *rows; /* host pointer; NULL: none */
    float *weights;                   /* out: [kv_heads][page_count * KVA_PAGE_TOKENS] */
    const uint32_t *gate;             /* ops.h */
};

/* weights[kv_head][t] = the sum, over the query heads that share the KV head, of the probability
 * that the row gave to position t; normalised over all partial results, of which only m and e are
 * read. Tokens of rows are weighed by their 16 bits. A token that was not attended to: less than 0.
 */
struct kva_weigh_args {
    const void *q;                      /* act [rows, heads, head_dim], row stride q_stride */
    const struct kva_partial *partials; /* host [partial_count] */
    const struct kva_weigh_seq *seqs;   /* host [seq_count] */
    uint32_t partial_count;
    uint32_t seq_count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype; /* of rows */
    enum kva_queue queue;    /* compute's, or aside */
    float scale;
};

enum kva_choose_kind {
    KVA_CHOOSE_MOST,  /* the k largest weights */
    KVA_CHOOSE_NEAR,  /* of these, those that are at least `share` times the largest: scores of at
                         least max - alpha, with share = exp(-alpha) (InfiniGen) */
    KVA_CHOOSE_LEAST, /* the k smallest: what is evicted */
};

struct kva_choose_seq {
    const float *weights; /* [kv_heads][stride]; less than 0, or no number: no candidate */
    uint32_t *chosen;     /* out: [kv_heads][k], by ascending position; the rest KVA_NO_TOKEN */
    uint32_t stride;
    uint32_t first; /* positions [first, end) are candidates */
    uint32_t end;
    uint32_t k;
    float successor;      /* 0 to 1: a candidate weighs at least so much of what the candidate right
                        before it weighs */
    const uint32_t *gate; /* ops.h */
};

/* chosen = k of the candidates at most. Ties go to the lower position. */
struct kva_choose_args {
    const struct kva_choose_seq *seqs; /* host [seq_count] */
    uint32_t seq_count;
    uint32_t kv_heads;
    enum kva_choose_kind kind;
    enum kva_queue queue; /* compute's, or aside */
    float share;          /* of KVA_CHOOSE_NEAR: 0 to 1 */
};

struct kva_accumulate_seq {
    float *mass;             /* [kv_heads][mass_stride]; device */
    const float *weights;    /* [kv_heads][weights_stride]; device */
    uint32_t mass_stride;    /* >= count */
    uint32_t weights_stride; /* >= count */
    uint32_t count;
};

/* mass[kv_head][i] += weights[kv_head][i], i < count, where the weight is not less than 0. */
struct kva_accumulate_args {
    const struct kva_accumulate_seq *seqs; /* host [seq_count]; their mass does not overlap */
    uint32_t seq_count;
    uint32_t kv_heads;
};

/* --- slots ----------------------------------------------------------------------------------- */

/* Make room for what was chosen: rows that are in a slot stay, the others take the slots that were
 * wanted longest ago (ties: the lowest slot; empty ones first), except pinned ones and those just
 * wanted; without `keep`, every chosen row is fetched anew, and counted as such, into slots from
 * `pinned` on, and nothing else stays. Then tokens, used, order, count and missing say what
 * attention will find once fetch_rows has run. */
struct kva_assign_slots_args {
    const struct kva_row_cache *const *caches; /* host [count] */
    const uint32_t *const *gates; /* host [count]: of the caches; NULL: there are none */
    uint32_t count;
    uint32_t kv_heads;
    uint32_t stamp; /* greater than that of the assignment before, > 0 */
    enum kva_rows_mode mode;
    enum kva_queue queue; /* compute's, or aside */
    bool keep;            /* delta fetch */
};

/* One sequence's rows and the pages of the host tier that they come from. */
struct kva_rows_fetch {
    const struct kva_row_cache *cache;
    const void *const *pages; /* in memory of the host tier, as what it points to */
    const uint32_t *gate;     /* ops.h; as it is when the compute queue has run so far */
};

/* Bring the rows that are missing into their slots: slot <- row of
 * pages[token / KVA_PAGE_TOKENS] + page_offset_bytes, a 16-bit block. The one operator that may run
 * on any queue. `fetches` and the caches are copied, what they point to stays valid until it
 * ran. */
struct kva_fetch_rows_args {
    const struct kva_rows_fetch *fetches; /* host [count] */
    size_t page_offset_bytes;             /* a multiple of 16 */
    uint32_t count;
    uint32_t kv_heads;
    uint32_t head_dim; /* a multiple of 4 */
    enum kva_queue queue;
};

/* How far the queries of some rows have turned since they were last looked at (FreeKV's
 * correction): cosine[i] = mean over the heads of cos(q of rows[i], before[i]), where a zero vector
 * has cosine 0; then before[i] = that q. The gate of row i is open, 1, if cosine[i] * 100 <
 * percents[i], else 0. */
struct kva_query_cosine_args {
    const void *q;         /* act [.., heads, head_dim], row stride q_stride elements */
    const uint32_t *rows;  /* host [count] */
    void *const *before;   /* host [count]: act [heads, head_dim] each, device */
    const float *percents; /* host [count] */
    float *cosine;         /* out: device [count] */
    uint32_t *gates;       /* out: device [count] */
    uint32_t count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t head_dim;
};

#endif
