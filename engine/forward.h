/* forward.h - the transformer: rows of tokens through the layers of any supported family.
 *
 * One forward pass for all families: what differs is data in kva_model_config, and whether a
 * tensor is there. Activations live in the hidden buffer of the caller (the residual stream) and in
 * scratch of a fixed number of rows; nothing is allocated after creation.
 *
 *     embed (+ positions) -> [ norm, QKV, (QK norm), (RoPE), append K V, attend, merge,
 *                              output projection, norm, MLP ] x layers -> norm, logits
 *
 * With parallel residuals the second norm comes right after QKV, so that it sees what the first
 * one saw.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_FORWARD_H
#define KVA_ENGINE_FORWARD_H

#include "engine/kv/pass.h"
#include "engine/model/model.h"
#include "kernels/ops.h"

struct kva_forward;

struct kva_forward_params {
    struct kva_device *device;
    const struct kva_model *model; /* outlives the forward pass */
    struct kva_kv *kv;
    uint32_t rows_max;               /* rows of one call */
    uint32_t sequences_max;          /* sequences of one call */
    uint32_t context_max;            /* tokens of one sequence */
    uint32_t logit_rows_max;         /* rows of one kva_forward_pick call */
    uint32_t tracked_max;            /* tokens that they track together */
    const struct kva_planes *planes; /* outlive it; NULL: no sequence asks for them */
};

/* What one sequence attends to in one layer: shown to an observer before it happens, and before
 * anything is fetched for what follows. Addresses are the device's. */
struct kva_forward_view {
    uint32_t layer;
    const struct kva_kv_rows *rows; /* of a sequence whose prompt is in */
    const void *q;                  /* act [heads, head_dim] of the first of the rows */
    /* [kv_heads][k] positions, ascending, the rest KVA_NO_TOKEN: the rows that this query itself
     * chooses (KVA_PREDICT_SYNC) with what the device has. NULL: the policy fetches none. */
    const uint32_t *selection;
    const void *out; /* act [rows->row_count, heads, head_dim]: what attention gave; NULL before */
};

/* Points of a layer. */
enum kva_forward_point {
    KVA_POINT_INPUT,    /* hidden is what the layer gets */
    KVA_POINT_QUERIES,  /* and q and k are made of it, as attention is to have them */
    KVA_POINT_ATTENDED, /* what attention gave is added to hidden */
    KVA_POINT_OUTPUT,   /* hidden is what the next layer gets */
};

/* All rows of a pass at a point of a layer, prompts' rows too. Addresses are the device's. */
struct kva_forward_layer_view {
    enum kva_forward_point point;
    uint32_t layer;
    const struct kva_kv_rows *sequences; /* [sequence_count]: whose rows they are */
    uint32_t sequence_count;
    uint32_t rows;      /* of all of them */
    const void *hidden; /* act [rows, hidden_size] */
    const void *q;      /* act [rows, heads, head_dim], from QUERIES to ATTENDED, else NULL */
    const void *k;      /* act [rows, kv_heads, head_dim]; the same */
};

/* Only for looking, where the host reads the device's memory: it changes no result. The call costs
 * time, its absence none. */
struct kva_forward_observer {
    void (*layer)(void *opaque, const struct kva_forward_layer_view *view); /* or NULL */
    void (*attends)(void *opaque, const struct kva_forward_view *view);     /* or NULL */
    void (*attended)(void *opaque, const struct kva_forward_view *view); /* or NULL; no selection */
    void *opaque;
    uint32_t
        *selection; /* device memory for view->selection: [kv_heads][k], k the largest of all */
};

struct kva_forward_call {
    struct kva_kv_pass pass;
    void *hidden;                                /* act [rows of the pass, hidden_size] */
    const struct kva_forward_observer *observer; /* or NULL */
};

KVA_MUST_CHECK enum kva_status kva_forward_create(const struct kva_forward_params *params,
                                                  struct kva_forward **ret, struct kva_err *err);
void kva_forward_destroy(struct kva_forward *forward);

/* Scratch hidden buffer: act [rows_max, hidden_size]. */
void *kva_forward_hidden(struct kva_forward *forward);

/* hidden = the pass's layers of hidden, or, from layer 0 on, of the embeddings of the rows' ids; K
 * and V go to the sequences' pages. */
void kva_forward_run(struct kva_forward *forward, const struct kva_forward_call *call);

/* Given K and V, host act [rows, kv_heads, head_dim] each, go to the sequences' pages as those of
 * the layers' own rows would: the policies are told all the same. For measurements, which want a
 * sequence of some length and care not what it says. call->hidden is not used. */
void kva_forward_fill(struct kva_forward *forward, const struct kva_forward_call *call,
                      const void *k, const void *v);

struct kva_forward_pick {
    const void *hidden;
    const uint32_t *rows; /* host [count]: of hidden */
    const struct kva_shortlist_request
        *requests;           /* host [count]; k 0: all logits. `row` is not read */
    const uint32_t *tracked; /* host [tracked_count] */
    uint32_t tracked_count;
    uint32_t count;
};

/* What became of a row of which a list was wanted: host-readable, valid until the next call. NULL
 * for the others. */
struct kva_forward_picked {
    const struct kva_shortlist *summary;
    const struct kva_candidate *listed;
    const float *tracked_logits; /* of this row's first on */
};

/* The logits of some rows of hidden are made, and of each what is wanted is found out where they
 * are. Waits for the device. */
void kva_forward_pick(struct kva_forward *forward, const struct kva_forward_pick *pick,
                      struct kva_forward_picked *ret);

/* All logits of row `index` of the last pick: host-readable fp32 [vocab_size], valid until the next
 * one; the caller may write to them. If they were not wanted then, they are copied, and waited
 * for, now. */
float *kva_forward_logits(struct kva_forward *forward, uint32_t index);

/* The final norm of `rows` rows of hidden, from row `first` on, is added up in slot `slot`, of one for
 * each sequence; to what is there if `accumulate`. */
struct kva_forward_pool {
    const void *hidden;
    uint32_t first, rows;
    uint32_t slot;
    bool accumulate;
};

void kva_forward_pool(struct kva_forward *forward, const struct kva_forward_pool *pool);

/* The slot's numbers, [hidden_size], as of the last call. Waits for the device; the host may write to
 * them. */
float *kva_forward_pooled(struct kva_forward *forward, uint32_t slot);

/* Bytes of scratch memory on the device. */
size_t kva_forward_scratch_bytes(const struct kva_forward *forward);

/* Of it, what each of rows_max rows takes, with activations of so many bytes. */
size_t kva_forward_row_bytes(const struct kva_model_config *config, size_t act_bytes);

#endif
