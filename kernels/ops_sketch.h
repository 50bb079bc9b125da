/* ops_sketch.h - partial keys (InfiniGen 4): what a few columns of a query and of the keys say of
 * attention to tokens whose keys and values are elsewhere.
 *
 *   sketch          a page's keys -> its partial keys
 *   sketch_queries  queries -> partial queries
 *   sketch_sums     how large the columns of queries and keys are: what columns are chosen by
 *   sketch_weigh    both -> how near each token's score comes to the largest
 *
 * Columns are those of k A, where A is orthogonal, head_dim x head_dim, one per KV head: a score
 * q.k is (q A).(k A), and if A's columns are in the order of what they contribute, the first few
 * give most of it. choose with KVA_CHOOSE_NEAR and a share of exp(-alpha) then takes the tokens
 * whose scores are at least max - alpha.
 *
 * Sums are one chain of fused products each, in the order of the elements: partial keys and queries
 * have the same bits at every level and on every device.
 *
 * What ops.h promises holds here. */
#ifndef KVA_KERNELS_OPS_SKETCH_H
#define KVA_KERNELS_OPS_SKETCH_H

#include "kernels/device.h"
#include "kernels/kv_layout.h"

/* Which columns, of which basis. Device addresses. */
struct kva_sketch_columns {
    const float *basis;      /* [kv_heads][head_dim][head_dim (columns)]; NULL: the identity */
    const uint32_t *columns; /* [kv_heads][head_dim]: the first kva_sketch_format.columns of them,
                                each < head_dim; NULL: the leading ones */
};

/* Partial keys of some blocks. 8 bits: scale = the largest magnitude of a token's numbers / 127,
 * rounded to f16 before coding, so that encoder and decoder agree; what is beyond f16 counts as its
 * end, what is no number as 0. */
struct kva_sketch_args {
    const void *const *from;  /* host [count]: 16-bit blocks, in either tier */
    void *const *to;          /* host [count]: sketches */
    size_t from_offset_bytes; /* added to every address of `from` */
    size_t to_offset_bytes;   /* added to every address of `to` */
    struct kva_sketch_columns by;
    uint32_t count;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    struct kva_sketch_format format;
};

/* out[i][head] = the columns of scale * q of row rows[i]. */
struct kva_sketch_queries_args {
    const void *q;        /* act [.., heads, head_dim], row stride q_stride elements */
    const uint32_t *rows; /* host [count] */
    float *out;           /* device [count][heads][columns] */
    struct kva_sketch_columns by;
    uint32_t count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads; /* divides heads */
    uint32_t head_dim;
    uint32_t columns; /* 1 to head_dim */
    float scale;
};

/* sums[kv_head][c] += the magnitude of column c of x A, for every x: the queries of `count` rows, of
 * the heads that share the KV head, or the keys of tokens [0, count) of some blocks. One addition
 * per x, rows ascending, the heads of a row ascending: so bits do not depend on how rows are cut
 * into calls. */
struct kva_sketch_sums_args {
    const void *q; /* act [row_first + count, heads, head_dim], row stride q_stride elements; NULL:
                      keys */
    const void *const *blocks; /* host: 16-bit blocks, in either tier: token i is token
                                  i % KVA_PAGE_TOKENS of blocks[i / KVA_PAGE_TOKENS] */
    float *sums;               /* device [kv_heads][head_dim] */
    const float *basis;        /* as kva_sketch_columns has it */
    uint32_t row_first;        /* of the queries */
    uint32_t count;
    uint32_t q_stride;
    uint32_t heads;
    uint32_t kv_heads; /* divides heads */
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    bool anew; /* sums are 0 before */
};

/* One row before the sketches of its sequence's pages, which hold positions [0, page_count *
 * KVA_PAGE_TOKENS). */
struct kva_sketch_seq {
    const float *q;            /* [heads][columns]: as sketch_queries leaves it */
    const void *const *blocks; /* host [page_count]: sketches, device addresses */
    float *scratch;            /* kva_sketch_scratch_bytes; device */
    float *weights;            /* out: [kv_heads][page_count * KVA_PAGE_TOKENS]; device */
    uint32_t page_count;
    uint32_t first;  /* positions before it are out of its sight */
    uint32_t always; /* positions before it are wanted in any case; they set no maximum */
};

/* Memory for one row's scores over `page_count` pages; it is not more than
 * kva_attend_scores_bytes. */
static inline size_t kva_sketch_scratch_bytes(uint32_t heads, uint32_t page_count)
{
    return (size_t)heads * page_count * (KVA_PAGE_TOKENS + 1) * sizeof(float);
}

/* weights[kv_head][t] = the largest, over the query heads h that share the KV head, of
 * exp(s_h(t) - max_h), where max_h is the head's own largest score: 0 to 1. Scores are over
 * positions from max(first, always) on; positions [first, always) weigh 1. Out of sight, or no
 * number: less than 0. */
struct kva_sketch_weigh_args {
    const struct kva_sketch_seq *seqs; /* host [seq_count] */
    size_t block_offset_bytes;         /* added to every block address */
    uint32_t seq_count;
    uint32_t heads;
    uint32_t kv_heads; /* divides heads */
    uint32_t head_dim;
    enum kva_dtype kv_dtype; /* of 16-bit sketches */
    struct kva_sketch_format format;
};

#endif
