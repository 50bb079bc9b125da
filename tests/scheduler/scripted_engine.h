/* scripted_engine.h - an engine without tensors: tokens are a function of the prompt, the seed and
 * the position, memory is counted, time is a cost table.
 *
 * It keeps the contract of engine.h and aborts, naming the rule, when the scheduler breaks it: a
 * budget exceeded, a sequence twice in a step, a decode without room for its token, a call on a
 * second thread ... Every lost, repeated or reordered token shows, because the caller can compute
 * what each must be.
 *
 * Memory: pages of `page_tokens` tokens. A sequence owns its open pages; closed prompt pages are
 * shared through the prefix cache (scripted_pages.h). */
#ifndef KVA_TESTS_SCHEDULER_SCRIPTED_ENGINE_H
#define KVA_TESTS_SCHEDULER_SCRIPTED_ENGINE_H

#include "base/clock.h"
#include "engine/engine.h"

/* Time that passes only when the test or the engine says so. */
struct kva_virtual_clock {
    struct kva_clock clock;
    uint64_t now_ns;
};

void kva_virtual_clock_init(struct kva_virtual_clock *clock, uint64_t now_ns);

/* The id that a sequence emits as output token `index`; called on the engine thread. */
typedef uint32_t (*kva_scripted_next_fn)(void *opaque, const struct kva_sequence_params *params,
                                         uint32_t index);

struct kva_scripted_params {
    struct kva_engine_limits limits;
    uint32_t page_tokens;
    struct kva_tier_bytes page_bytes[KVA_KV_POLICY_COUNT];
    uint32_t vocab;
    bool prefix_cache;

    /* Time of a step: on the virtual clock if there is one; `sleep_ns` is really slept. */
    struct kva_virtual_clock *clock;
    uint64_t step_ns;
    uint64_t decode_row_ns;
    uint64_t prefill_token_ns;
    uint64_t sleep_ns;

    /* NULL: kva_scripted_token. */
    kva_scripted_next_fn next_token;
    void *next_token_opaque;

    /* Failures, each every so many calls; 0: never. */
    uint64_t fail_step; /* the step, counted from 1, in which the device fails */
    uint32_t create_fails_every;
    uint32_t item_fails_every;
    enum kva_status item_status; /* with which; KVA_OK: KVA_EINTERNAL */
    uint32_t admit_refused_every;
    uint32_t grow_refused_every;         /* of decodes that need a page */
    uint32_t prefill_grow_refused_every; /* of prefills, as where prompts exceed the context */
    uint32_t resume_refused_every;

    /* Every so many decodes one gives no token, as when its sequence pre-decodes; 0: none. */
    uint32_t sits_out_every;

    /* Every so many decodes one gives no token because its KV is lost; 0: none. */
    uint32_t lost_every;

    /* Device pages that other instances can lend in all: sequences may be longer than the device by
     * so much. Every so many times that one which waits for it is asked for its bytes, it is lent
     * what it lacks, or nothing; every so many resumes, what was lent comes home instead. */
    uint32_t others_pages, lent_every, home_every;

    /* Every so many decodes of a sequence with pages at others one gives no token, and they come home:
     * nobody answered for them; 0: none. */
    uint32_t void_every;

    struct kva_tier_bytes guests; /* what usage says that other instances have here */

    bool without_check; /* which an engine may lack */
};

struct kva_scripted;

/* A context of 8192, 64 sequences, steps of 512 tokens, 2 partial prefills, pages of 64 tokens,
 * room for 1024 pages on the device and 4096 on the host, vocabulary 1000, prefix cache on, no
 * time. */
struct kva_scripted_params kva_scripted_defaults(void);

/* Aborts when memory runs out: it is a test's. */
struct kva_scripted *kva_scripted_create(const struct kva_scripted_params *params);

/* Aborts if sequences are left. */
void kva_scripted_destroy(struct kva_scripted *scripted);

/* Borrowed until destroy. */
struct kva_engine *kva_scripted_engine(struct kva_scripted *scripted);

/* May be changed between steps, on the engine thread. */
struct kva_scripted_params *kva_scripted_params(struct kva_scripted *scripted);

struct kva_scripted_report {
    uint32_t live_sequences;
    uint64_t steps;
    uint64_t engine_ns; /* real time spent in step */
    uint64_t rows_max;  /* of one step */
    uint64_t refusals;  /* of admit, grow and resume, injected or real */
    uint64_t suspends;
    uint64_t parked;       /* prompts longer than the device */
    uint64_t lent;         /* times */
    uint32_t decode_rows;  /* of the last step */
    uint32_t prefill_rows; /* of the last step: tokens */
    struct kva_tier_bytes peak;
};

/* Engine thread, or when it rests. */
void kva_scripted_get_report(const struct kva_scripted *scripted, struct kva_scripted_report *ret);

/* The vector of a prompt: so many numbers. */
#define KVA_SCRIPTED_WIDTH 8u
void kva_scripted_vector(uint64_t prompt_hash, enum kva_pooling pooling, float *ret);

/* What output token `index` of a choice must be, unless next_token says otherwise. */
uint64_t kva_scripted_hash(const uint32_t *prompt, uint32_t prompt_tokens);
uint32_t kva_scripted_token(uint64_t prompt_hash, const struct kva_sampling_params *sampling,
                            uint32_t choice, uint32_t index, uint32_t vocab);

#endif
