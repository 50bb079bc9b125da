/* fill.c - sequences of any length in no time, and what they take: for measurements. */
#include "base/noise.h"
#include "engine/kv/placement.h"
#include "engine/kv/saved.h"
#include "engine/kv/stream.h"
#include "engine/model_engine_internal.h"

#include <stdlib.h>

/* Keys and values of a trained model have a deviation of this order. */
#define DEVIATION 1.0f

/* --- memory ---------------------------------------------------------------------------------- */

struct kva_tier_bytes kva_model_engine_footprint(const struct kva_engine *engine,
                                                 const struct kva_kv_spec *spec, uint32_t prompt,
                                                 uint32_t tokens)
{
    const struct model_engine *e = engine->self;
    const struct kva_kv_spec resolved = kva_kv_spec_resolve(spec, prompt, tokens);
    uint64_t pages = (uint64_t)kva_kv_host_pages(&resolved, prompt, tokens) +
                     kva_kv_saved_pages(e->kv, &resolved, prompt);
    return (struct kva_tier_bytes){
        .device = kva_kv_footprint(e->kv, spec, prompt, tokens),
        .host = pages * e->kv->shape.page_bytes,
    };
}

uint64_t kva_model_engine_stream_bytes(const struct kva_engine *engine, uint32_t prompt)
{
    const struct model_engine *e = engine->self;
    return kva_kv_stream_bytes(e->kv, prompt);
}

struct kva_tier_bytes kva_model_engine_footprint_shared(const struct kva_engine *engine,
                                                        const struct kva_kv_spec *spec,
                                                        uint32_t prompt, uint32_t tokens)
{
    const struct model_engine *e = engine->self;
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    struct kva_tier_bytes bytes = kva_model_engine_footprint(engine, spec, prompt, tokens);
    /* The page of the last prompt token is never shared: that token must be computed. */
    uint32_t pages = e->params.prefix_cache ? (prompt - 1) / KVA_PAGE_TOKENS : 0;
    bool offloads = policy->offloaded(spec, UINT32_MAX) > 0;
    uint32_t shared = offloads ? kva_min_u32(pages, policy->offloaded(spec, prompt)) : pages;
    bytes.host -= (uint64_t)pages * e->kv->shape.page_bytes;
    bytes.device -= shared * kva_kv_shared_bytes(e->kv, spec, NULL);
    return bytes;
}

/* --- content --------------------------------------------------------------------------------- */

struct fill {
    struct model_engine *engine;
    struct kva_sequence *seq;
    uint64_t seed;
    void *k, *v; /* act [step_tokens_max, kv_heads * head_dim] */
};

static void make_noise(const struct fill *fill, void *out, uint32_t rows, uint64_t seed)
{
    const struct kva_model_config *config = fill->engine->config;
    size_t count = (size_t)rows * config->kv_heads * config->head_dim;
    if (kva_device_get_info(fill->engine->device)->act == KVA_F32)
        kva_noise_f32(out, count, DEVIATION, seed);
    else
        kva_noise_bf16(out, count, DEVIATION, seed);
}

/* As a long prompt's own prefill goes: all of a layer before the next. */
static void fill_layer(const struct fill *fill, uint32_t layer)
{
    struct kva_sequence *seq = fill->seq;
    uint32_t prompt = seq->params.prompt_tokens;
    uint32_t rows_max = fill->engine->engine.limits.step_tokens_max;
    for (uint32_t at = seq->prefill_first; at < prompt; at += rows_max) {
        struct kva_kv_rows rows = {
            .seq = &seq->kv,
            .ids = seq->ids + at,
            .position_first = at,
            .row_count = kva_min_u32(rows_max, prompt - at),
            .select_row = KVA_NO_ROW,
        };
        const struct kva_forward_call call = {
            .pass = {.rows = &rows, .rows_count = 1, .layer_first = layer, .layer_count = 1}};
        /* On a GPU the chunk before is still being copied out of the buffers. */
        kva_device_sync(fill->engine->device, KVA_QUEUE_COMPUTE);
        uint64_t seed = kva_noise_seed(kva_noise_seed(fill->seed, layer), at);
        make_noise(fill, fill->k, rows.row_count, kva_noise_seed(seed, 0));
        make_noise(fill, fill->v, rows.row_count, kva_noise_seed(seed, 1));
        kva_forward_fill(fill->engine->forward, &call, fill->k, fill->v);
    }
}

enum kva_status kva_model_engine_fill(struct kva_engine *engine, struct kva_sequence *seq,
                                      uint64_t seed, struct kva_err *err)
{
    struct model_engine *e = engine->self;
    enum kva_dtype act = kva_device_get_info(e->device)->act;
    if (act != KVA_F32 && act != KVA_BF16)
        return kva_fail(err, KVA_EUNSUPPORTED, "synthetic keys and values are not made in %s",
                        kva_dtype_name(act));
    if (seq->kv.prompt_tokens < seq->params.prompt_tokens)
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "a prompt of %u tokens exceeds the context of %u: it cannot be filled",
                        seq->params.prompt_tokens, engine->limits.context_max);
    struct fill fill = {.engine = e, .seq = seq, .seed = seed};
    size_t bytes = (size_t)engine->limits.step_tokens_max * e->config->kv_heads *
                   e->config->head_dim * e->act_bytes;
    enum kva_status status = kva_device_alloc(e->device, KVA_MEM_HOST, bytes, &fill.k, err);
    if (!status)
        status = kva_device_alloc(e->device, KVA_MEM_HOST, bytes, &fill.v, err);
    if (!status) {
        kva_kv_step_begin(e->kv);
        for (uint32_t layer = 0; layer < e->config->layer_count; layer++)
            fill_layer(&fill, layer);
        kva_kv_seq_commit(e->kv, &seq->kv, seq->ids, seq->params.prompt_tokens);
        seq->ids[seq->token_count++] = seq->ids[0];
        seq->prefilled = true;
        kva_device_sync(e->device, KVA_QUEUE_COMPUTE);
        status = kva_device_error(e->device, err);
    }
    kva_device_free(e->device, KVA_MEM_HOST, fill.k, bytes);
    kva_device_free(e->device, KVA_MEM_HOST, fill.v, bytes);
    return status;
}
