/* forward_internal.h - what the files of the forward pass share:
 *
 *     forward.c          the rows of a call through the layers
 *     forward_attend.c   a layer's attention: over 16-bit blocks, over low-bit pages, merged
 *     forward_logits.c   from the last layer's rows to logits, and what is wanted of them
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
    KVA_SCRATCH_HIDDEN, /* [rows, hidden] */
    KVA_SCRATCH_NORMED, /* [rows, hidden] */
    KVA_SCRATCH_Q,      /* [rows, heads * head_dim] */
    KVA_SCRATCH_K,      /* [rows, kv_heads * head_dim] */
    KVA_SCRATCH_V,      /* the same */
    KVA_SCRATCH_ATTN,   /* [rows, heads * head_dim] */
    KVA_SCRATCH_GATE,   /* [rows, intermediate]; without a gate, nothing */
    KVA_SCRATCH_UP,     /* [rows, intermediate] */
    KVA_SCRATCH_PARTIAL_A,
    KVA_SCRATCH_PARTIAL_M,
    KVA_SCRATCH_PARTIAL_E,
    KVA_SCRATCH_LOWBIT_A, /* the partial result over low-bit pages */
    KVA_SCRATCH_LOWBIT_M,
    KVA_SCRATCH_LOWBIT_E,
    KVA_SCRATCH_SELECT,     /* scores of one sequence at a time; on a GPU of many */
    KVA_SCRATCH_LOGIT_ROWS, /* [logit_rows, hidden] */
    KVA_SCRATCH_LOGITS,     /* fp32 [logit_rows, vocab] */
    KVA_SCRATCH_COUNT,
};

struct kva_forward {
    struct kva_forward_params params;
    const struct kva_model_config *config;
    const struct kva_ops *ops;
    struct kva_device *device;
    size_t act_bytes;

    struct kva_weight embed, positions_table, lm_head, final_norm, final_norm_bias;
    struct kva_layer_weights *layers;

    struct kva_scratch_piece scratch[KVA_SCRATCH_COUNT];
    struct kva_scratch_piece host_logits; /* where the host cannot read the device's */
    bool *brought;                        /* [logit_rows]: the row is there */
    /* Of the host tier: what is known of the rows of a pick. */
    struct kva_scratch_piece summaries;      /* kva_shortlist [logit_rows] */
    struct kva_scratch_piece listed;         /* kva_candidate [logit_rows][KVA_SHORTLIST_MAX] */
    struct kva_scratch_piece watched_logits; /* float [watched_max] */
    struct kva_shortlist_want *wants;        /* [logit_rows]: of rows with a list */

    /* Descriptors of the current call, on the host. */
    uint32_t *ids;       /* [rows_max] */
    uint32_t *positions; /* [rows_max] */
    void **row_blocks;   /* [rows_max] */
    const void **blocks; /* [blocks_max]: the sequences' tables, one after the other */
    size_t blocks_max;
    struct kva_attend_seq *attend_seqs;     /* [sequences_max] */
    struct kva_attend_range *attend_ranges; /* [sequences_max * KVA_KV_RANGES_MAX] */
    const void **low_blocks;                /* [blocks_max] */
    struct kva_select_seq *low_seqs;        /* [sequences_max] */
    struct kva_fused_fetch *low_now;        /* [sequences_max] */
};

/* out = norm of x, act [rows, hidden_size] each; they may be the same. */
void kva_forward_norm(struct kva_forward *fw, void *out, const void *x, struct kva_weight weight,
                      struct kva_weight bias, uint32_t rows);

/* KVA_SCRATCH_ATTN = attention of what KVA_SCRATCH_Q holds over all that the pass's sequences have,
 * their own rows' K and V among it; sequences that choose rows for the next step do so on the way.
 */
void kva_forward_attend(struct kva_forward *fw, struct kva_kv_pass *pass,
                        const struct kva_forward_observer *observer, uint32_t layer, uint32_t rows);

#endif
