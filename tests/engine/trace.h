/* trace.h - what a sequence says under a policy, to be compared bit by bit with what it says under
 * other circumstances. */
#ifndef KVA_TESTS_ENGINE_TRACE_H
#define KVA_TESTS_ENGINE_TRACE_H

#include "tests/engine/fixture.h"

enum { CONTEXT = 256, OUTPUT = 40, VOCAB = 300 };

struct trace {
    uint32_t tokens[OUTPUT];
    float logprobs[OUTPUT];
    uint32_t cached;
};

struct run {
    uint32_t prompt_tokens;
    uint64_t prompt_seed;
    uint32_t quota;   /* of a prefill step; 0: all at once */
    uint32_t outputs; /* tokens of the trace that there are; 0: all */
    struct kva_kv_spec kv;
    uint32_t suspend_every; /* steps; 0: never */
    uint64_t scope;
};

/* Policies and settings under which the same must hold; small, so that a short text has all parts:
 * sinks, low-bit pages, fetched rows, window. */
enum variant {
    FULL,
    OFFLOAD,
    STREAMING,
    STREAMING_ORIGINAL,
    KIVI,
    KIVI_PAPER,
    SPEC,
    SPEC_DELTA,
    SPEC_ALL,
    PREVIOUS,
    CORRECTED,
    AUTO,
    EXEMPT,
    SYNC,
    BY_LAYER,
    AHEAD,
    VARIANTS
};

struct kva_kv_spec trace_variant(enum variant which);

/* Greedy, with the log-probability of each token. */
struct kva_sampling_params trace_sampling(void);

/* One sequence, alone. */
struct trace trace_run(struct fixture *f, const struct run *run);

/* Suspend and resume it; meanwhile another one writes all over the device tier. */
void trace_suspend(struct fixture *f, struct kva_sequence *seq);

/* Sequences whose prompts are in, each with its first token told, go on together: each says what it
 * says alone, bit for bit, up to `outputs` tokens; then they end. */
void trace_expect_together(struct fixture *f, struct kva_step_item *items, const struct trace *want,
                           uint32_t count, uint32_t outputs);

void trace_expect_same(const struct trace *a, const struct trace *b, const char *what);

#endif
