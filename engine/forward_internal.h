/* forward_internal.h - what the files of the forward pass share:
 *
 *     forward.c          the rows of a call through the layers
 *     forward_attend.c   a layer's attention: ranges to operators, and the merge
 *     forward_select.c   attention over low-bit pages, and the selection of rows
 *     forward_rehearse.c queries of the layer behind
 *     forward_logits.c   from the last layer's rows to logits, and what is wanted of them;
 *                        sums of rows
 *     forward_memory.c   creation: weights on the device, scratch, descriptors
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_FORWARD_INTERNAL_H
#define KVA_ENGINE_FORWARD_INTERNAL_H

#include "engine/forward.h"

struct kva_layer_weights {
    struct kva_weight attn_norm, attn_norm_bias;
    struct kva_weight q, q_bias, k, k_bias, v, v_bias, o, o_bias;
    struct kva_weight q_norm, k_norm;
    struct kva_weight mlp_norm, mlp_norm_bias;
    struct kva_weight gate, gate_bias, up, up_bias, down, down_bias;
};

struct kva_scratch_piece {
    void *data;
    size_t bytes;
};

enum kva_scratch_name {
    KVA_SCRATCH_HIDDEN,     /* [rows, hidden] */
    KVA_SCRATCH_NORMED,     /* [rows, hidden] */
    KVA_SCRATCH_Q,          /* [rows, heads * head_dim] */
    KVA_SCRATCH_Q_ROLLED,   /* the same, at rolled positions */
    KVA_SCRATCH_K,          /* [rows, kv_heads * head_dim] */
    KVA_SCRATCH_V,          /* the same */
    KVA_SCRATCH_ATTN,       /* [rows, heads * head_dim] */
    KVA_SCRATCH_GATE,       /* [rows, intermediate]; without a gate, nothing */
    KVA_SCRATCH_UP,         /* [rows, intermediate] */
    KVA_SCRATCH_PARTIALS,   /* what `partials` points to */
    KVA_SCRATCH_SELECT,     /* scores of one sequence at a time; on a GPU of many */
    KVA_SCRATCH_APART,      /* what comes before the partial results of others: with a remote, where
                               the device has attend_apart; else nothing */
    KVA_SCRATCH_LOGIT_ROWS, /* [logit_rows, hidden] */
    KVA_SCRATCH_LOGITS,     /* fp32 [logit_rows, vocab] */
    KVA_SCRATCH_COUNT,
};

/* Sequences whose low-bit pages are read at once, and what is done with their scores
 * (forward_select.c); arrays of [sequences_max]. */
struct kva_select_turn {
    struct kva_lowbit_seq *low;
    struct kva_rows_seq *rows;
    struct kva_weigh_seq *weigh;
    struct kva_choose_seq *choose;
    struct kva_lowbit_seq *selecting;   /* the entry of `low` that goes with one of weigh */
    const struct kva_kv_rows **weighed; /* whose entry of weigh it is */
    uint32_t count;
    uint32_t rows_count;
    uint32_t select_count; /* of `weigh` */
    uint32_t choose_count;
    bool by_peaks; /* weighing and choosing are one */
};

/* Partial results that the rows of one sequence can have. */
#define KVA_PARTIALS_MAX (KVA_RANGE_PARTIAL + KVA_KV_RANGES_MAX)

struct kva_forward {
    struct kva_forward_params params;
    const struct kva_model_config *config;
    const struct kva_ops *ops;
    struct kva_device *device;
    size_t act_bytes;

    struct kva_weight embed, positions_table, lm_head, final_norm, final_norm_bias;
    struct kva_layer_weights *layers;

    struct kva_scratch_piece scratch[KVA_SCRATCH_COUNT];
    struct kva_partial partials[KVA_RANGE_PARTIAL]; /* by kind of range, of all rows of a call */
    struct kva_scratch_piece host_logits;           /* where the host cannot read the device's */
    bool *brought;                                  /* [logit_rows]: the row is there */
    /* Of the host tier: what is known of the rows of a pick. */
    struct kva_scratch_piece summaries;      /* kva_shortlist [logit_rows] */
    struct kva_scratch_piece listed;         /* kva_candidate [logit_rows][KVA_SHORTLIST_MAX] */
    struct kva_scratch_piece tracked_logits; /* float [tracked_max] */
    struct kva_scratch_piece pooled;         /* float [sequences_max][hidden] */
    struct kva_shortlist_request *requests;  /* [logit_rows]: of rows with a list */

    /* Descriptors of the current call, on the host. */
    uint32_t *ids;       /* [rows_max] */
    uint32_t *positions; /* [rows_max] */
    /* [rows_max]: the same, but nearer by what the sequence has rolled: learned positions, and
     * queries before rows ahead of a gap */
    uint32_t *rolled_positions;
    bool rolls;                                     /* they are others */
    uint32_t *row_numbers;                          /* [rows_max]: 0, 1, 2, ... */
    uint32_t *rehearsed_rows, *rehearsed_positions; /* [sequences_max] */
    void **row_blocks;                              /* [rows_max] */
    const void **blocks; /* [blocks_max]: the sequences' tables, one after the other */
    size_t blocks_max;
    struct kva_attend_seq *attend_seqs;     /* [sequences_max] */
    struct kva_attend_range *attend_ranges; /* [sequences_max * KVA_KV_RANGES_MAX] */
    const void **low_blocks;                /* [blocks_max] */
    struct kva_select_seq *low_seqs;        /* [sequences_max] */
    const struct kva_kv_rows **low_rows;    /* [sequences_max]: whose turn it is */
    struct kva_rows_seq *rows_seqs;         /* [sequences_max] */
    struct kva_select_turn turn;
    bool rows_beside; /* partials[ROWS] has, or will have, the rows that replace tokens of low-bit
                         pages, to be folded behind those (forward_attend.c) */
};

/* out = norm of x, act [rows, hidden_size] each; they may be the same. */
void kva_forward_norm(struct kva_forward *fw, void *out, const void *x, struct kva_weight weight,
                      struct kva_weight bias, uint32_t rows);

/* q = queries of `rows` rows, act [rows, heads, head_dim], of what the layer's norm has made of
 * them: with norms of heads and rotary embedding at host [rows] positions. */
void kva_forward_queries(struct kva_forward *fw, void *q, const void *normed,
                         const struct kva_layer_weights *w, const uint32_t *positions,
                         uint32_t rows);

/* The queries that the pass's rows will about have in `layer`, where policies ask for them: of
 * `hidden`, the input of the layer in front of it. Overwrites KVA_SCRATCH_NORMED, _Q and
 * _ATTN. */
void kva_forward_rehearse(struct kva_forward *fw, struct kva_kv_pass *pass, uint32_t layer,
                          const void *hidden);

/* KVA_SCRATCH_ATTN = attention of what KVA_SCRATCH_Q holds over all that the pass's sequences have,
 * their own rows' K and V among it; sequences that choose rows for the next step do so on the way.
 */
void kva_forward_attend(struct kva_forward *fw, struct kva_kv_pass *pass,
                        const struct kva_forward_observer *observer, uint32_t layer, uint32_t rows);

/* --- between forward_attend.c and forward_select.c ------------------------------------------- */

/* The partial result over ranges of that kind, from row `row_first` of the pass on. */
static inline struct kva_partial kva_forward_partial_of(const struct kva_forward *fw,
                                                        enum kva_kv_range_kind kind,
                                                        uint32_t row_first)
{
    size_t pair = (size_t)row_first * fw->config->heads;
    const struct kva_partial *all = &fw->partials[kind];
    return (struct kva_partial){all->a + pair * fw->config->head_dim, all->m + pair, all->e + pair};
}

/* All partial results of its rows but that over low-bit pages, from its first row on; the compute
 * queue waits for them. Returns their number, KVA_PARTIALS_MAX - 1 at most. */
uint32_t kva_forward_list_rest(const struct kva_forward *fw, const struct kva_kv_rows *rows,
                               struct kva_partial *ret);

/* Sequences whose low-bit pages one call can read. */
struct kva_lowbit_call {
    const struct kva_kv_rows *const *rows; /* [count]; those without low-bit pages get an empty
                                              result */
    uint32_t count;
    uint32_t layer;
    const struct kva_kv_range *like; /* of a sequence that has some */
    bool
        has_rest; /* those attend to more than blocks and low-bit pages, of which the fused operator
                      knows nothing */
    bool (*selects)(const struct kva_kv_rows *rows); /* its select_row does so in this call */
    bool gated; /* the call is for those whose gates are open */
    bool aside; /* what is chosen is wanted behind the layer: selection may run beside the rest of
                   it (kva_kv_order_aside) */
};

/* partials[LOWBIT] of the sequences' rows, and their selections. */
void kva_forward_attend_lowbit(struct kva_forward *fw, const struct kva_lowbit_call *call);

struct kva_rows_call {
    enum kva_kv_range_kind kind; /* the result is this partial, or goes to it (`accumulate`) */
    bool rolls;                  /* the queries are those at rolled positions */
    const struct kva_rows_seq *seqs;
    uint32_t count;
    uint32_t layer;
    bool accumulate;
};

void kva_forward_attend_rows(struct kva_forward *fw, const struct kva_rows_call *call);

#endif
