/* stream.c - a text through the decode path, and what is counted by its windows. */
#include "engine/eval/stream.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

struct run {
    const struct kva_stream_params *params;
    struct kva_step_item item; /* of the stream's sequence */
    uint32_t vocab;
};

static double nll_of(const float *logits, uint32_t vocab, uint32_t token)
{
    double most = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < vocab; i++)
        most = fmax(most, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) + most - (double)logits[token];
}

/* The step whose logits predict `token`, which then follows. */
static enum kva_status step(struct run *run, uint32_t token, struct kva_err *err)
{
    const struct kva_engine *engine = run->params->engine;
    struct kva_step_item *item = &run->item;
    enum kva_status status = KVA_OK;
    item->forced_token = token;
    for (item->emitted = false; !item->emitted && !status;) {
        if (item->prefill_tokens == 0)
            status = engine->ops->grow(engine->self, item->seq, err);
        if (!status)
            status = engine->ops->step(engine->self, item, 1, err);
        if (!status && item->status)
            status = kva_fail(err, item->status, "a token of the text could not be fed");
    }
    item->prefill_tokens = 0;
    return status;
}

static enum kva_status run_window(struct run *run, const uint32_t *ids,
                                  struct kva_stream_window *ret, struct kva_err *err)
{
    const struct kva_engine *engine = run->params->engine;
    uint32_t tokens = run->params->window_tokens;
    struct kva_sequence_info info;
    uint64_t took_ns = 0;
    double nll = 0;
    for (uint32_t i = 0; i < tokens; i++) {
        uint64_t begun_ns = kva_time_ns();
        enum kva_status status = step(run, ids[i], err);
        if (status)
            return status;
        took_ns += kva_time_ns() - begun_ns;
        nll += nll_of(run->item.logits, run->vocab, ids[i]);
    }
    engine->ops->sequence_info(engine->self, run->item.seq, &info);
    *ret = (struct kva_stream_window){
        .tokens = tokens,
        .nll = nll / tokens,
        .step_ns = took_ns / tokens,
        .bytes = info.bytes,
        .kept_tokens = info.kept_tokens,
    };
    return KVA_OK;
}

static enum kva_status run_windows(struct run *run, uint32_t count,
                                   struct kva_stream_window *windows, struct kva_err *err)
{
    const struct kva_stream_params *p = run->params;
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; i < p->window_count && !status; i++) {
        windows[i] = (struct kva_stream_window){0};
        if (i < count)
            status = run_window(run, p->ids + 1 + (size_t)i * p->window_tokens, &windows[i], err);
        if (p->progress)
            p->progress(p->opaque);
    }
    return status;
}

enum kva_status kva_eval_stream(const struct kva_stream_params *params,
                                struct kva_stream_window *windows, struct kva_err *err)
{
    const struct kva_engine *engine = params->engine;
    const struct kva_sampling_params sampling = {
        .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};
    uint32_t tokens_max = engine->ops->tokens_max(engine->self, &params->spec);
    uint32_t count = kva_min_u32(params->window_count, (tokens_max - 1) / params->window_tokens);
    const uint32_t tokens = kva_max_u32(2, 1 + count * params->window_tokens);
    struct run run = {.params = params, .vocab = params->model->config.vocab_size};
    const struct kva_sequence_params sequence = {
        .prompt = params->ids,
        .prompt_tokens = 1,
        .tokens_max = tokens,
        .sampling = &sampling,
        /* Percents are of the text, since the prompt is one token. */
        .kv = kva_kv_spec_resolve(&params->spec, tokens, tokens),
        .cache_disabled = true,
    };
    uint32_t cached;
    float *logits = calloc(run.vocab, sizeof(*logits));
    if (!logits)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u logits", run.vocab);
    run.item = (struct kva_step_item){.prefill_tokens = 1, .forced = true, .logits = logits};
    enum kva_status status = engine->ops->create(engine->self, &sequence, &run.item.seq, err);
    if (!status)
        status = engine->ops->admit(engine->self, run.item.seq, &cached, NULL, err);
    if (!status)
        status = run_windows(&run, count, windows, err);
    engine->ops->destroy(engine->self, run.item.seq);
    free(logits);
    return status;
}
