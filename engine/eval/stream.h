/* stream.h - one long text through one policy, token by token: how well it goes on where full KV
 * cannot.
 *
 * The first token is the prompt; each further one is fed through the decode path, whatever the model
 * would rather say. What is told is told by windows of the text, as it goes on: under a policy that
 * keeps so much and no more (kva_kv_policy_drops) bytes and time of a token do not depend on where
 * it is. The text may exceed the model's context where the policy can; elsewhere the stream ends
 * there.
 *
 * Likelihoods and bytes depend on model, tokens and spec alone; times do not.
 *
 * Thread rule: engine thread; nothing else uses the engine meanwhile. */
#ifndef KVA_ENGINE_EVAL_STREAM_H
#define KVA_ENGINE_EVAL_STREAM_H

#include "engine/model_engine.h"

/* `tokens` tokens of the text, predicted from all before them. */
struct kva_stream_window {
    uint32_t tokens;             /* 0: the policy does not come so far */
    double nll;                  /* mean -log p of them, nats */
    uint64_t step_ns;            /* mean time of their steps */
    struct kva_tier_bytes bytes; /* at the window's end */
    uint64_t kept_tokens;        /* then */
};

struct kva_stream_params {
    struct kva_engine *engine; /* a kva_model_engine */
    const struct kva_model *model;
    const uint32_t *ids; /* [1 + window_count * window_tokens] */
    uint32_t window_tokens;
    uint32_t window_count;
    struct kva_kv_spec spec;
    /* A window is done; or NULL. */
    void (*progress)(void *opaque);
    void *opaque;
};

/* `windows` [window_count]. Fails: KVA_EINVAL (the spec; its setting is err->param), KVA_ELIMIT (the
 * stream does not fit the budgets; err names the tier), KVA_EUNSUPPORTED, KVA_ENOMEM, KVA_EDEVICE. */
KVA_MUST_CHECK enum kva_status kva_eval_stream(const struct kva_stream_params *params,
                                               struct kva_stream_window *windows,
                                               struct kva_err *err);

#endif
