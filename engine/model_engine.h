/* model_engine.h - the engine: a model on a device behind the scheduler's contract (engine.h).
 *
 * A step is one pass over all decoding rows together with the prompts that fit the step whole, then
 * the work quota of long prompts. Long prompts are prefilled layer-major: all of a layer's chunks
 * before the next layer, so that a policy that keeps KV on the host needs device memory for one
 * layer of the prompt only. The cursor (layer, position) stands still between steps, which lets
 * running streams decode in between.
 *
 * Thread rule: created anywhere, used by the engine thread. */
#ifndef KVA_ENGINE_MODEL_ENGINE_H
#define KVA_ENGINE_MODEL_ENGINE_H

#include "engine/engine.h"
#include "engine/model/model.h"

struct kva_model_engine_params {
    struct kva_device *device;     /* outlives the engine */
    const struct kva_model *model; /* the same */
    struct kva_tier_bytes budget;
    uint32_t context_max;     /* 0: the model's */
    uint32_t sequences_max;   /* admitted at once */
    uint32_t step_tokens_max; /* rows of a step */
    bool prefix_cache;
    /* F16 or BF16; F32: chosen by the model's own format (BF16 for BF16, else F16). */
    enum kva_dtype kv_dtype;
    const struct kva_remote *remote; /* kv/remote.h: pages may be lent (lending.h); NULL: never.
                                        Outlives the engine */
    /* For sequences with skew=planes and as many percent of the columns: a part of the query weights
     * is there a second time (planes.h). 0: there are no such sequences. */
    uint32_t planes_percent;
};

/* The KV format that kv_dtype = F32 stands for. */
enum kva_dtype kva_model_engine_kv_dtype(const struct kva_model *model);

/* Whether the device's operators take the model's shape, before weights and memory are given to it.
 * Fails: KVA_EUNSUPPORTED (err names both numbers and the device). */
KVA_MUST_CHECK enum kva_status kva_model_engine_check(const struct kva_device *device,
                                                      const struct kva_model *model,
                                                      struct kva_err *err);

/* Fails: KVA_EINVAL (budgets under one page, limits out of range), KVA_EUNSUPPORTED (as
 * kva_model_engine_check), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_engine_create(const struct kva_model_engine_params *params,
                                                       struct kva_engine **ret,
                                                       struct kva_err *err);

/* Memory that the KV of a sequence with a prompt of `prompt` tokens takes at most in each tier
 * until it has `tokens` tokens, when it shares nothing; any thread. */
struct kva_tier_bytes kva_model_engine_footprint(const struct kva_engine *engine,
                                                 const struct kva_kv_spec *spec, uint32_t prompt,
                                                 uint32_t tokens);

/* Bytes that a prompt of `prompt` tokens takes beside it in each tier until it is in. */
uint64_t kva_model_engine_stream_bytes(const struct kva_engine *engine, uint32_t prompt);

/* The KV's memory beside a running sequence with an equal prompt, as far as the prefix cache helps.
 */
struct kva_tier_bytes kva_model_engine_footprint_shared(const struct kva_engine *engine,
                                                        const struct kva_kv_spec *spec,
                                                        uint32_t prompt, uint32_t tokens);

/* Ends an admitted sequence's prefill without running the model: noise stands for the keys and
 * values of the prompt tokens that the prefix cache did not have, and some token for the first
 * output token. The pages, the policy's device memory and what decoding reads from then on are
 * those of a real prompt of this length. Fails: KVA_EUNSUPPORTED (an activation format that noise
 * is not made in), KVA_ENOMEM, KVA_EDEVICE. */
KVA_MUST_CHECK enum kva_status kva_model_engine_fill(struct kva_engine *engine,
                                                     struct kva_sequence *seq, uint64_t seed,
                                                     struct kva_err *err);

/* All sequences must have been destroyed. NULL is allowed. */
void kva_model_engine_destroy(struct kva_engine *engine);

/* Let `observer` (forward.h) see what the layers do with prompts up to the context and with decoding
 * rows, and what these attend to, from the next step on; it is borrowed. NULL: nobody. */
struct kva_forward_observer;
void kva_model_engine_observe(struct kva_engine *engine,
                              const struct kva_forward_observer *observer);

/* What memory is for, in lines for people: weights, scratch, tiers, and how many sequences of which
 * length fit under each policy with the settings of specs [KVA_KV_POLICY_COUNT]. */
struct kva_buf;
void kva_model_engine_describe(const struct kva_engine *engine, const struct kva_kv_spec *specs,
                               struct kva_buf *out);

/* Sequences of `tokens` tokens that both tiers hold under a policy, beside the residual stream of
 * the one whose prompt comes last. */
uint64_t kva_model_engine_fit(const struct kva_engine *engine, const struct kva_kv_spec *spec,
                              uint32_t tokens);

#endif
