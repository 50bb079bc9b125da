/* pass.h - the KV cache during a forward pass: where the rows of each layer find their tokens.
 *
 * Before a layer attends, each sequence's tokens lie in at most three places, which add up to all
 * of them: low-bit pages [0, page_first), hot rows that replace some of those, and 16-bit blocks
 * from page_first on. The operators do the rest (kernels/ops.h).
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PASS_H
#define KVA_ENGINE_KV_PASS_H

#include "engine/kv/policy.h"

/* select_row of sequences of which no row chooses. */
#define KVA_NO_ROW UINT32_MAX

/* One sequence's rows in a pass through some layers. */
struct kva_kv_rows {
    struct kva_kv_seq *seq;
    uint32_t position_first; /* of its first row */
    uint32_t row_count;
    uint32_t select_row; /* whose attention chooses rows, if any does ... */
    bool choose_now;     /* ... for itself, before it attends */
    bool choose_next;    /* ... for the next step, while it attends */
    bool at_once;        /* what it chooses for itself is fetched by the attention that chooses
                            (kva_lowbit_seq.now), not by the copy queue */
    const void **blocks; /* [pages up to the last row's]: layer_begin writes this layer's 16-bit
                            block addresses, from page_first on */

    /* --- from layer_begin --- */
    uint32_t page_first;
    void *const *low; /* [page_first] low-bit pages of all layers; NULL if page_first is 0 */
    const struct kva_hot *hot; /* or NULL */
};

/* Layers [layer_first, layer_first + layer_count) for the rows of some sequences. */
struct kva_kv_pass {
    struct kva_kv_rows *rows;
    uint32_t rows_count;
    uint32_t layer_first;
    uint32_t layer_count;
    /* The pass starts over at its first layer. False: it goes on where an earlier pass through the
     * same layer stopped (the next chunk of a long prompt), and what that pass left on the device
     * still counts. */
    bool restart;
};

void kva_kv_pass_begin(struct kva_kv *kv, struct kva_kv_pass *pass);
void kva_kv_layer_begin(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

/* Rows of which the query is known now may find that what was chosen for them will not do: they set
 * choose_now for this layer. q: act [rows, heads, head_dim]. */
void kva_kv_layer_correct(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                          const void *q);

/* How the attention of rows that choose `at_once` acts upon their selection. */
struct kva_hot_now kva_kv_layer_now(const struct kva_kv *kv, const struct kva_kv_rows *rows,
                                    uint32_t layer);

/* The rows have chosen: their hot rows change before the layer goes on. For predictors that choose
 * with the very query that is about to attend. */
void kva_kv_layer_choose(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

void kva_kv_layer_end(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer);

#endif
