/* engine.h - what the scheduler sees of an engine: sequences, token counts, byte budgets and steps.
 * No tensor.
 *
 * An engine is this table of functions, so that the scheduler runs unchanged on the real one
 * (model_engine.h) and on scripted ones (tests, simulation).
 *
 * Life of a sequence:
 *
 *     create -> admit -> step (prefill quota ...) -> grow, step (decode) ... -> destroy
 *                               |        ^                |         ^
 *                            suspend   resume          suspend    resume
 *
 * suspend gives the device memory back and loses nothing: no token is computed twice. A sequence that
 * is longer than the device tier, because other instances can hold the rest, comes out of its prefill
 * as if it were suspended, and resumes when enough of it is lent. A sequence that
 * has lent KV to another instance may lose it there: a step says so, and restart puts it back before
 * admit, with all of its tokens for a prompt.
 *
 * Thread rule: the engine thread calls everything. Steps allocate nothing. */
#ifndef KVA_ENGINE_ENGINE_H
#define KVA_ENGINE_ENGINE_H

#include "base/err.h"
#include "engine/kv/spec.h"
#include "engine/kv/usage.h"
#include "engine/sampling.h"

#include <stdbool.h>

struct kva_sequence; /* the engine's own */

/* What of the prompt is wanted instead of tokens that follow: one vector, of what the last layer makes
 * of its tokens, behind the final norm. */
enum kva_pooling {
    KVA_POOLING_NONE,
    KVA_POOLING_MEAN, /* of all tokens */
    KVA_POOLING_LAST, /* the last token's */
};

/* Constant properties that the scheduler plans with. */
struct kva_engine_limits {
    uint32_t context_max;          /* prompt + output tokens of one sequence, but for policies
                                      that go on (ops->tokens_max) */
    uint32_t sequences_max;        /* admitted at once, suspended ones included */
    uint32_t step_tokens_max;      /* decode rows + prefill tokens of one step */
    uint32_t partial_prefills_max; /* sequences whose prefill may be unfinished between steps */
    uint32_t prefill_tokens_min;   /* fewer are not worth beginning a prompt with */
    struct kva_tier_bytes budget;
};

struct kva_engine_usage {
    struct kva_tier_bytes used;   /* by admitted sequences and the prefix cache */
    struct kva_tier_bytes cached; /* of it: prefix cache only, given up on demand */
    struct kva_tier_bytes guests; /* of it: held for other instances, until it is recalled */
    struct kva_tier_bytes budget;
    uint32_t sequences[KVA_KV_POLICY_COUNT]; /* that hold device memory, by policy */
    uint64_t prefix_lookup_tokens;           /* counters since start */
    uint64_t prefix_hit_tokens;
    struct kva_counts counts; /* what cache, parts and policies count, since start */
    uint64_t steps;
};

struct kva_sequence_params {
    const uint32_t *prompt; /* borrowed until destroy; at least 1 token */
    uint32_t prompt_tokens;
    uint32_t tokens_max; /* prompt + output, at most ops->tokens_max */
    uint32_t choice;     /* index among the request's choices: offsets the seed */
    const struct kva_sampling_params *sampling; /* borrowed until destroy */
    struct kva_kv_spec kv;
    uint64_t cache_scope[2]; /* prefixes are shared only within one scope (key and salt) */
    bool cache_disabled;
    enum kva_pooling pooling;
};

/* What a sequence holds now, for usage.kvahead and the live view. */
struct kva_sequence_info {
    const char *policy;
    struct kva_tier_bytes bytes;
    uint32_t cached_tokens; /* prompt tokens found in the prefix cache when it was first admitted */
    uint64_t kept_tokens;   /* tokens whose K and V are there: all but those dropped for good */
    struct kva_counts counts; /* of those that have a field */
};

/* One sequence's part of a step: filled in by the scheduler, results by the engine. */
struct kva_step_item {
    struct kva_sequence *seq;
    uint32_t prefill_tokens; /* quota of prompt tokens' worth of work; 0: decode one token */
    bool forced;             /* the token that comes out is forced_token, whatever the logits say */
    uint32_t forced_token;
    float *logits; /* [vocabulary] or NULL: gets the logits that the token is chosen from */

    /* --- results --- */
    enum kva_status status; /* this item's failure; the others are unaffected */
    uint32_t prefill_done;  /* tokens' worth of prefill done in this step, <= quota */
    bool emitted;           /* `token` is valid: a decode, but for steps in which the sequence only
                               prepares one; or the step that finished the prefill */
    struct kva_token_output token;
    bool pooled;     /* the prompt is in, and its vector is there: there is nothing to decode */
    bool parked;     /* the prompt is in, and is longer than the device tier: the sequence is as
                        after suspend, and resumes when enough of it is lent */
    bool lost;       /* KV of the sequence is gone: nothing came of the step, and restart is next */
    bool speculated; /* a speculative token was decoded along: spec_token, expected to be `token` */
    uint32_t spec_token;
};

struct kva_engine_ops {
    /* Validate and remember; takes no page. Fails: KVA_EINVAL, KVA_EUNSUPPORTED, KVA_ENOMEM;
     * KVA_ELIMIT if the sequence could not fit the budgets even alone, with what other instances can
     * lend (err names the tier and all byte counts). */
    enum kva_status (*create)(void *self, const struct kva_sequence_params *params,
                              struct kva_sequence **ret, struct kva_err *err);

    /* Reserve host bytes for tokens_max, device bytes for the prompt and one page, and look the
     * prompt up in the prefix cache; *ret_cached_tokens of the prompt need no prefill. Fails:
     * KVA_ELIMIT (not now: `short_of`, if not NULL, is the tier that has no room), nothing taken.
     */
    enum kva_status (*admit)(void *self, struct kva_sequence *seq, uint32_t *ret_cached_tokens,
                             enum kva_tier_id *short_of, struct kva_err *err);

    /* What admit would take now, in each tier: memory that other sequences hold already is free of
     * charge, memory that only the prefix cache holds is not. *ret_cached_tokens as admit would have
     * it. */
    void (*admit_bytes)(void *self, const struct kva_sequence *seq, struct kva_tier_bytes *ret,
                        uint32_t *ret_cached_tokens);

    /* Device bytes that the sequence comes to hold more whenever it takes memory to go on decoding:
     * about so much for each running sequence should stay free. A constant of the sequence. */
    uint64_t (*growth_bytes)(void *self, const struct kva_sequence *seq);

    /* Before every decode, and before every step of a prefill: room for the tokens of the next step.
     * Most calls take nothing and return at once, and all those for prompts that fit the context.
     * Fails: KVA_ELIMIT (device tier), nothing taken. */
    enum kva_status (*grow)(void *self, struct kva_sequence *seq, struct kva_err *err);

    /* Give the device memory back; progress is kept, also a prefill's. */
    void (*suspend)(void *self, struct kva_sequence *seq);

    /* Take it again. Fails: KVA_ELIMIT (not now). */
    enum kva_status (*resume)(void *self, struct kva_sequence *seq, struct kva_err *err);

    /* Device bytes with which the sequence, admitted, goes on as it is: about what resume takes of a
     * suspended one if it shares nothing. It falls where pages are lent, and may exceed the budget of a sequence that is
     * longer than the device tier; resume then fails until enough of it is lent. NULL: what it had
     * when it was suspended. */
    uint64_t (*resume_bytes)(void *self, const struct kva_sequence *seq);

    /* Of what the sequence, admitted, has on the device, or takes with resume, what running ones
     * other than it have too. NULL: nothing is shared. */
    void (*shared_bytes)(void *self, const struct kva_sequence *seq, struct kva_shared_bytes *ret);

    /* Run one step. Each sequence at most once; sum of rows <= step_tokens_max. Fails as a whole
     * only if the device failed (KVA_EDEVICE). */
    enum kva_status (*step)(void *self, struct kva_step_item *items, uint32_t count,
                            struct kva_err *err);

    /* Give everything back: the sequence is as after create, but that its prompt is all tokens that it
     * has, output too, and the first token that comes out is the next one. Fails: KVA_ENOMEM (destroy
     * is all that is left). May be NULL where no item is ever lost. */
    enum kva_status (*restart)(void *self, struct kva_sequence *seq, struct kva_err *err);

    /* Any state; pages go to the prefix cache or back to the pools. NULL is allowed. */
    void (*destroy)(void *self, struct kva_sequence *seq);

    void (*sequence_info)(void *self, const struct kva_sequence *seq,
                          struct kva_sequence_info *ret);

    /* prompt_tokens - 1 entries once the prefill is done, if they were asked for, else NULL;
     * borrowed until destroy. */
    const struct kva_prompt_logprob *(*prompt_logprobs)(void *self, const struct kva_sequence *seq);

    /* *ret_count numbers, once a step has said `pooled`; borrowed until destroy. Waits for the
     * device. May be NULL where no sequence has a pooling. */
    const float *(*pooled)(void *self, struct kva_sequence *seq, uint32_t *ret_count);

    void (*usage)(void *self, struct kva_engine_usage *ret);

    /* Whether create would accept these parameters: same errors, nothing made. Reads constants
     * and what others can lend, so that any thread may call it while a step runs: it lets a request that can never fit
     * be refused at once. NULL: such a request ends with an error instead. */
    enum kva_status (*check)(void *self, const struct kva_sequence_params *params,
                             struct kva_err *err);

    /* The most tokens that a sequence under this policy can have: context_max, or more where it goes
     * on past the model's context. Any thread. NULL: context_max. */
    uint32_t (*tokens_max)(void *self, const struct kva_kv_spec *spec);
};

struct kva_engine {
    const struct kva_engine_ops *ops;
    void *self;
    struct kva_engine_limits limits;
};

#endif
