#include "tests/cmocka.h"

#include "tests/engine/trace.h"

#include <string.h>

struct kva_kv_spec trace_variant(enum variant which)
{
    static const struct kva_kv_spec specs[VARIANTS] = {
        [FULL] = {.policy = KVA_KV_FULL},
        [OFFLOAD] = {.policy = KVA_KV_OFFLOAD},
        [STREAMING] = {.policy = KVA_KV_STREAMING, .window = 64, .sinks = 4},
        [STREAMING_ORIGINAL] = {.policy = KVA_KV_STREAMING,
                                .window = 64,
                                .sinks = 4,
                                .positions = KVA_POSITIONS_ORIGINAL},
        [KIVI] = {.policy = KVA_KV_KIVI,
                  .bits = 2,
                  .group = 64,
                  .levels = KVA_KV_LEVELS_MSE,
                  .window = 64,
                  .sinks = 4},
        [KIVI_PAPER] = {.policy = KVA_KV_KIVI,
                        .bits = 1,
                        .group = 32,
                        .levels = KVA_KV_LEVELS_MINMAX,
                        .window = 64,
                        .min_tokens = 128},
        [SPEC] = {.policy = KVA_KV_SPECACHE,
                  .bits = 1,
                  .group = 64,
                  .levels = KVA_KV_LEVELS_MSE,
                  .window = 64,
                  .sinks = 4,
                  .k = 8,
                  .predictor = KVA_PREDICT_SPEC_TOKEN,
                  .fetch = KVA_FETCH_RESIDENT,
                  .successor = 10,
                  .on_mispredict = KVA_MISPREDICT_PREDECODE},
        [SPEC_DELTA] = {.policy = KVA_KV_SPECACHE,
                        .bits = 1,
                        .group = 64,
                        .levels = KVA_KV_LEVELS_MSE,
                        .window = 64,
                        .sinks = 4,
                        .k = 8,
                        .predictor = KVA_PREDICT_SPEC_TOKEN,
                        .fetch = KVA_FETCH_DELTA,
                        .successor = 10,
                        .on_mispredict = KVA_MISPREDICT_PREDECODE},
        [SPEC_ALL] = {.policy = KVA_KV_SPECACHE,
                      .bits = 1,
                      .group = 64,
                      .levels = KVA_KV_LEVELS_MINMAX,
                      .window = 64,
                      .min_tokens = 128,
                      .k = 8,
                      .predictor = KVA_PREDICT_SPEC_TOKEN,
                      .fetch = KVA_FETCH_ALL},
        [PREVIOUS] = {.policy = KVA_KV_SPECACHE,
                      .bits = 2,
                      .group = 32,
                      .levels = KVA_KV_LEVELS_MSE,
                      .window = 64,
                      .sinks = 1,
                      .k = 5,
                      .predictor = KVA_PREDICT_PREV_QUERY,
                      .fetch = KVA_FETCH_RESIDENT},
        [CORRECTED] = {.policy = KVA_KV_SPECACHE,
                       .bits = 1,
                       .group = 64,
                       .levels = KVA_KV_LEVELS_MSE,
                       .window = 64,
                       .sinks = 4,
                       .k = 8,
                       .predictor = KVA_PREDICT_PREV_QUERY,
                       .reselect_below = 90,
                       .fetch = KVA_FETCH_RESIDENT},
        [AUTO] = {.policy = KVA_KV_SPECACHE,
                  .bits = 1,
                  .value_bits = 2,
                  .group = 64,
                  .levels = KVA_KV_LEVELS_MINMAX,
                  .window = 64,
                  .sinks = 4,
                  .k = 6,
                  .predictor = KVA_PREDICT_AUTO,
                  .reselect_below = 50,
                  .fetch = KVA_FETCH_DELTA},
        [EXEMPT] = {.policy = KVA_KV_SPECACHE,
                    .bits = 2,
                    .group = 64,
                    .levels = KVA_KV_LEVELS_MINMAX,
                    .window = 64,
                    .sinks = 4,
                    .skip_layers = 1,
                    .k = 6,
                    .predictor = KVA_PREDICT_SPEC_TOKEN,
                    .fetch = KVA_FETCH_RESIDENT,
                    .successor = 10,
                    .on_mispredict = KVA_MISPREDICT_PREDECODE},
        [SYNC] = {.policy = KVA_KV_SPECACHE,
                  .bits = 1,
                  .group = 64,
                  .levels = KVA_KV_LEVELS_MSE,
                  .window = 64,
                  .sinks = 4,
                  .k = 8,
                  .predictor = KVA_PREDICT_SYNC,
                  .fetch = KVA_FETCH_DELTA,
                  .successor = 20},
        /* Layers after the first have nothing at all in 16 bits but the window. */
        [BY_LAYER] = {.policy = KVA_KV_SPECACHE,
                      .bits = 1,
                      .group = 64,
                      .window = 64,
                      .predictor = KVA_PREDICT_PREV_QUERY,
                      .reselect_below = 90,
                      .fetch = KVA_FETCH_RESIDENT,
                      .k_ranges = {{0, 1, 8}},
                      .k_range_count = 1},
        [AHEAD] = {.policy = KVA_KV_INFINIGEN,
                   .window = 64,
                   .sinks = 2,
                   .skip_layers = 1,
                   .alpha = 1,
                   .cap = KVA_KV_PERCENT | 20,
                   .partial = 50,
                   .partial_bits = 8,
                   .skew = KVA_SKEW_NONE},
    };
    return specs[which];
}

struct kva_sampling_params trace_sampling(void)
{
    struct kva_sampling_params sampling = fixture_greedy();
    sampling.logprobs = 0;
    return sampling;
}

void trace_suspend(struct fixture *f, struct kva_sequence *seq)
{
    struct kva_err err;
    uint32_t prompt[CONTEXT];
    const struct kva_sampling_params sampling = trace_sampling();
    f->engine->ops->suspend(f->engine->self, seq);
    fixture_prompt(prompt, CONTEXT, VOCAB, 777);
    struct kva_sequence *other =
        fixture_start(f, &(struct kva_sequence_params){.prompt = prompt,
                                                       .prompt_tokens = CONTEXT - 1,
                                                       .tokens_max = CONTEXT,
                                                       .sampling = &sampling,
                                                       .cache_disabled = true});
    fixture_prefill(f, other, CONTEXT);
    f->engine->ops->destroy(f->engine->self, other);
    assert_int_equal(f->engine->ops->resume(f->engine->self, seq, &err), KVA_OK);
}

struct trace trace_run(struct fixture *f, const struct run *run)
{
    uint32_t prompt[CONTEXT];
    struct kva_err err;
    struct trace trace = {0};
    const uint32_t outputs = run->outputs ? run->outputs : OUTPUT;
    const struct kva_sampling_params sampling = trace_sampling();
    fixture_prompt(prompt, run->prompt_tokens, VOCAB, run->prompt_seed);
    struct kva_sequence *seq = fixture_start(f, &(struct kva_sequence_params){
                                                    .prompt = prompt,
                                                    .prompt_tokens = run->prompt_tokens,
                                                    .tokens_max = run->prompt_tokens + outputs,
                                                    .sampling = &sampling,
                                                    .kv = run->kv,
                                                    .cache_scope = {run->scope},
                                                });
    struct kva_sequence_info info;
    f->engine->ops->sequence_info(f->engine->self, seq, &info);
    trace.cached = info.cached_tokens;
    uint32_t quota = run->quota ? run->quota : CONTEXT;
    for (uint32_t step = 1, output = 0; output < outputs; step++) {
        struct kva_step_item item = {.seq = seq, .prefill_tokens = output ? 0 : quota};
        if (output > 0)
            assert_int_equal(f->engine->ops->grow(f->engine->self, seq, &err), KVA_OK);
        assert_int_equal(f->engine->ops->step(f->engine->self, &item, 1, &err), KVA_OK);
        assert_int_equal(item.status, KVA_OK);
        if (item.emitted) {
            trace.tokens[output] = item.token.token;
            trace.logprobs[output++] = item.token.chosen.logprob;
        }
        if (run->suspend_every && step % run->suspend_every == 0)
            trace_suspend(f, seq);
    }
    f->engine->ops->destroy(f->engine->self, seq);
    return trace;
}

void trace_expect_together(struct fixture *f, struct kva_step_item *items, const struct trace *want,
                           uint32_t count, uint32_t outputs)
{
    struct kva_err err;
    const struct kva_engine *engine = f->engine;
    for (uint32_t t = 1; t < outputs; t++) {
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(engine->ops->grow(engine->self, items[i].seq, &err), KVA_OK);
        assert_int_equal(engine->ops->step(engine->self, items, count, &err), KVA_OK);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(items[i].token.token, want[i].tokens[t]);
            assert_true(items[i].token.chosen.logprob == want[i].logprobs[t]);
        }
    }
    for (uint32_t i = 0; i < count; i++)
        engine->ops->destroy(engine->self, items[i].seq);
}

void trace_expect_same(const struct trace *a, const struct trace *b, const char *what)
{
    if (memcmp(a->tokens, b->tokens, sizeof(a->tokens)) != 0)
        fail_msg("%s: other tokens", what);
    if (memcmp(a->logprobs, b->logprobs, sizeof(a->logprobs)) != 0)
        fail_msg("%s: other bits in the log-probabilities", what);
}
