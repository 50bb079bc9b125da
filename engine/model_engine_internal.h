/* model_engine_internal.h - what model_engine.c (life of sequences, memory), step.c (the step),
 * prefill.c (long prompts), pick.c (tokens) and pooling.c (vectors) share.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_MODEL_ENGINE_INTERNAL_H
#define KVA_ENGINE_MODEL_ENGINE_INTERNAL_H

#include "engine/forward.h"
#include "engine/model_engine.h"
#include "engine/sampler.h"

struct kva_sequence {
    struct kva_sequence_params params;
    struct kva_kv_seq kv;
    uint32_t *ids;        /* [tokens_max]: prompt, then output */
    uint32_t token_count; /* of ids */

    uint32_t prefill_tokens; /* to compute before the next one: the prompt, or all there were when
                                the sequence was put back to its beginning */

    /* Prefill: layer-major cursor over these tokens that the prefix cache did not have. */
    uint32_t prefill_first; /* first token to compute */
    uint32_t cached_tokens; /* as it was when the sequence was first admitted ... */
    bool was_admitted;      /* ... which it has been */
    uint32_t prefill_layer;
    uint32_t prefill_position;
    uint32_t prefill_reported; /* tokens' worth of progress told to the scheduler */
    bool prefilled;
    bool silent; /* nothing came of the step in progress: it is run again */

    struct kva_prompt_logprob *prompt_logprobs; /* [prompt_tokens - 1], or NULL */
    struct kva_constraint_state *constraint;    /* of params.sampling->constraint, or NULL */
    uint32_t pool_slot;                         /* of the forward pass; KVA_NO_SLOT: none */
    bool pool_divided;                          /* the sum there has become the mean */
};

#define KVA_NO_SLOT UINT32_MAX

/* Rows whose logits are made together, what of each is wanted, and what came of it. */
struct kva_pick {
    uint32_t *rows;                         /* [rows_max]: of hidden */
    struct kva_shortlist_request *requests; /* [rows_max] */
    struct kva_forward_picked *picked;      /* [rows_max] */
    uint32_t *tracked;                      /* [rows_max * KVA_SAMPLER_TRACKED_MAX] */
    uint32_t rows_max;
    uint32_t count, tracked_count;
};

struct model_engine {
    struct kva_engine engine;
    struct kva_model_engine_params params;
    const struct kva_model_config *config;
    struct kva_device *device;
    struct kva_kv *kv;
    struct kva_forward *forward;
    struct kva_planes *planes; /* NULL: nobody asks for them */
    struct kva_sampler *sampler;
    uint64_t steps;
    size_t act_bytes;
    const struct kva_forward_observer *observer; /* NULL: nobody looks */

    /* The joint pass of a step. */
    struct kva_kv_rows *batch_rows;     /* [sequences_max] */
    struct kva_step_item **batch_items; /* [sequences_max] */
    struct kva_pick pick;

    /* Slots of vectors that nobody has. */
    uint32_t *pool_slots; /* [sequences_max] */
    uint32_t pool_slot_count;
};

/* Rows of the sequence's next decode: a draft one may come behind its own. */
uint32_t kva_model_engine_rows(const struct kva_sequence *seq);

/* --- pick.c ---------------------------------------------------------------------------------- */

/* Of so many rows at a time, which bounds the memory for logits of large vocabularies. */
KVA_MUST_CHECK enum kva_status kva_pick_create(struct kva_pick *pick, uint32_t rows_max,
                                               struct kva_err *err);
void kva_pick_destroy(struct kva_pick *pick);

/* Begin a pick, then add up to rows_max rows of hidden, then run it. */
void kva_pick_begin(struct model_engine *e);
void kva_pick_item(struct model_engine *e, uint32_t row, const struct kva_step_item *item);
void kva_pick_run(struct model_engine *e, const void *hidden);

/* A guess of the token behind the sequence's last one, or behind its draft token, which then stands
 * in ids after it: the best token that the request's logit processors leave. The row is added to
 * the pick, and the guess found out after its run; 0 if there is none. */
void kva_pick_guess(struct model_engine *e, uint32_t row, const struct kva_sequence *seq,
                    bool behind_draft);
uint32_t kva_pick_guessed(struct model_engine *e, uint32_t index, const struct kva_sequence *seq,
                          bool behind_draft);

/* The item's token, of row `index` of the pick, added by kva_pick_item, becomes the sequence's. */
void kva_pick_emit(struct model_engine *e, uint32_t index, struct kva_step_item *item);

/* Rows of hidden that belong to positions of a prompt. */
struct kva_pick_prompt {
    const void *hidden;
    uint32_t row_first;
    uint32_t position_first;
    uint32_t row_count;
};

/* Log-probabilities of the tokens after these, if the sequence wants them. Picks of their own. */
void kva_pick_score_prompt(struct model_engine *e, struct kva_sequence *seq,
                           const struct kva_pick_prompt *prompt);

/* --- pooling.c ------------------------------------------------------------------------------- */

/* What these rows, behind the last layer, are to a sequence whose prompt is in no further than they
 * are: tokens to score, or part of its vector. */
void kva_pooling_take(struct model_engine *e, struct kva_sequence *seq,
                      const struct kva_pick_prompt *prompt);

/* An admitted sequence has a slot for its vector if it wants one, until it ends. */
void kva_pooling_begin(struct model_engine *e, struct kva_sequence *seq);
void kva_pooling_end(struct model_engine *e, struct kva_sequence *seq);

/* The vector, once all rows have been taken: [hidden_size]. */
const float *kva_pooling_vector(struct model_engine *e, struct kva_sequence *seq);

/* --- prefill.c ------------------------------------------------------------------------------- */

/* Tokens that had to be computed when the sequence was admitted. */
uint32_t kva_prefill_left(const struct kva_sequence *seq);

/* The quota of a prompt that does not fit the step whole. */
void kva_prefill_run(struct model_engine *e, struct kva_step_item *item);

/* The last row of the prompt has gone through all layers, and been taken. */
void kva_prefill_finish(struct kva_step_item *item);

/* How many tokens the next piece of a prompt that exceeds the context brings the sequence to; 0: it
 * has not come to pieces. */
uint32_t kva_model_engine_piece_end(const struct kva_sequence *seq);

/* --- step.c ---------------------------------------------------------------------------------- */

/* One step: see struct kva_engine_ops. */
enum kva_status kva_model_engine_step(void *self, struct kva_step_item *items, uint32_t count,
                                      struct kva_err *err);

#endif
