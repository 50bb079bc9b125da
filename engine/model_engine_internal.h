/* model_engine_internal.h - what model_engine.c (life of sequences, memory) and step.c (the step)
 * share.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_MODEL_ENGINE_INTERNAL_H
#define KVA_ENGINE_MODEL_ENGINE_INTERNAL_H

#include "engine/forward.h"
#include "engine/model_engine.h"
#include "engine/sampler.h"

/* Rows whose logits are computed together: bounds the buffer for large vocabularies. */
#define KVA_LOGIT_ROWS_MAX 64u

struct kva_sequence {
    struct kva_sequence_params params;
    struct kva_kv_seq kv;
    uint32_t *ids;        /* [tokens_max]: prompt, then output */
    uint32_t token_count; /* of ids */

    /* Prefill: layer-major cursor over the prompt tokens that the prefix cache did not have. */
    uint32_t prefill_first; /* first token to compute */
    uint32_t prefill_layer;
    uint32_t prefill_position;
    uint32_t prefill_reported; /* tokens' worth of progress told to the scheduler */
    bool prefilled;
    void *
        stream; /* act [prompt_tokens - prefill_first, hidden]: the residual stream between steps */
    size_t stream_bytes;

    /* Speculation: the token that is expected after the last one, and whether rows have been chosen
     * for the next step. */
    uint32_t spec_token;
    bool looked_ahead;
    uint64_t spec_tokens;
    uint64_t spec_tokens_matched;

    struct kva_prompt_logprob *prompt_logprobs; /* [prompt_tokens - 1], or NULL */
};

struct model_engine {
    struct kva_engine engine;
    struct kva_model_engine_params params;
    const struct kva_model_config *config;
    struct kva_device *device;
    struct kva_kv *kv;
    struct kva_forward *forward;
    struct kva_sampler *sampler;
    uint64_t steps;
    uint64_t spec_tokens;
    uint64_t spec_tokens_matched;
    enum kva_kv_predictor auto_predictor; /* AUTO: not measured yet */
    size_t act_bytes;
    const struct kva_forward_observer *observer; /* of decoding rows; NULL: nobody looks */

    /* The joint pass of a step. */
    struct kva_forward_rows *batch_rows; /* [sequences_max] */
    struct kva_step_item **batch_items;  /* [sequences_max] */
    uint32_t *logit_rows;                /* [max(2 sequences_max, step_tokens_max)] */
};

/* Rows of the sequence's next decode: a speculative one may come behind its own. */
uint32_t kva_model_engine_rows(const struct kva_sequence *seq);

/* One step: see struct kva_engine_ops. */
enum kva_status kva_model_engine_step(void *self, struct kva_step_item *items, uint32_t count,
                                      struct kva_err *err);

#endif
