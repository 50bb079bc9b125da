/* policy.h - what a KV policy is: the parts that a sequence is made of, and answers.
 *
 * A policy says which pages are offloaded and in which forms their tokens are there instead
 * (part.h), and it answers what a decoding step should do: whether a draft row runs along, who
 * selects rows, and when. It runs nothing: engine/step.c asks and acts, operators attend. All that
 * is particular to a policy is in its file in policies/; docs/policies.md says how to write one.
 *
 *              exact     parts                                  while decoding
 *   full       yes       prompt_stage, lent, resident           all pages are whole, here or lent
 *   offload    yes       stage, resident                        all but the last page are staged
 *   kivi       prompts   prompt_stage, lowbit, rows, resident   low-bit pages; sinks and window
 *                                                               whole
 *   specache   prompts   the same                               and rows are fetched ahead
 *   streaming  prompts   prompt_stage, rows, resident           sinks and window; the rest is gone
 *   h2o        prompts   prompt_stage, kept, resident           a store of kept tokens, and window
 *   q-hitter   prompts   the same                               the same, the store in few bits
 *   infinigen  prompts   prompt_stage, columns, sketch, pool,   rows chosen a layer ahead, and
 *                        ahead, resident                        window
 *
 * Thread rule: constants; functions on the engine thread, those that get no sequence on any. */
#ifndef KVA_ENGINE_KV_POLICY_H
#define KVA_ENGINE_KV_POLICY_H

#include "engine/kv/kv.h"

struct kva_kv_part;
struct kva_kv_pass;

/* Whose tokens are those of full KV: everybody's, only prompts', or nobody's. Pages that are not
 * are never in the prefix cache. */
enum kva_kv_exactness {
    KVA_KV_EXACT,
    KVA_KV_EXACT_PROMPT,
    KVA_KV_INEXACT,
};

/* What the next decoding step of a sequence should do. */
struct kva_kv_step_plan {
    bool predecode;       /* first, the last token runs once alone against what the device has: its
                             K and V are superseded, it selects, and its best successor is told.
                             Beside others that is a step of its own, which emits nothing */
    bool draft;           /* a row of draft_token runs behind the sequence's own */
    uint32_t draft_token; /* never part of the sequence */
    uint32_t select_row;  /* of the step's rows; KVA_NO_ROW: none selects */
    bool select_now;      /* for this step, before it attends */
    bool select_next;     /* for the next one, while it attends */
};

struct kva_kv_policy {
    const char *name;
    enum kva_kv_exactness exactness;
    const struct kva_kv_policy_setting *settings;
    size_t setting_count;
    const struct kva_kv_part *const *parts;    /* NULL-terminated */
    const struct kva_counter *const *counters; /* NULL-terminated, or NULL */
    size_t state_bytes; /* of a sequence's state (seq->policy_state), zeroed */

    /* How many pages of a sequence of `tokens` tokens are offloaded. Never falls as tokens grow. */
    uint32_t (*offloaded)(const struct kva_kv_spec *spec, uint32_t tokens);

    /* Offloaded tokens that no part has are gone for good: their pages leave the host too, all but
     * the sequence's first one, from which sinks are restored. */
    bool drops;
    /* The same of some settings only; NULL: `drops` says it. */
    bool (*limits)(const struct kva_kv_spec *spec);

    /* --- NULL: nothing ----------------------------------------------------------------------- */

    /* Amounts of the spec have just become numbers: what follows from them. */
    void (*resolved)(struct kva_kv_spec *spec);

    /* So many pages before the first whole one attend where they are, but what lies there is the
     * content of a store: tokens from anywhere before, others in each KV head. Never falls as
     * `offloaded` grows. NULL: none. */
    uint32_t (*stored)(const struct kva_kv_spec *spec, uint32_t offloaded);

    /* Where tokens are dropped: the pages [1, so many) that have. NULL: all that are offloaded. */
    uint32_t (*gone)(const struct kva_kv_seq *seq);

    /* The same: host pages that a sequence has at most, its residual stream and what its parts save
     * apart. NULL: the prompt, and what is not offloaded of what comes behind it. */
    uint32_t (*host_pages)(const struct kva_kv_spec *spec, uint32_t prompt, uint32_t tokens);

    /* So many last tokens of a prompt are computed, whatever the prefix cache has. NULL: one. */
    uint32_t (*computed)(const struct kva_kv_spec *spec);

    /* Positions of the model that a sequence uses until it has `tokens` tokens, its prompt's apart,
     * and never more whatever their number: it may go on past the model's context. NULL: as many as
     * there are tokens. */
    uint32_t (*positions_used)(const struct kva_kv_spec *spec, uint32_t tokens);

    /* By how many positions tokens behind a gap have moved up to the rows before it: to those, a
     * query is so much nearer than in the sequence (position rolling). Once the prompt is in. NULL:
     * 0. */
    uint32_t (*rolled)(const struct kva_kv_seq *seq);

    /* Whether rows are selected in one step for the next: pages then stay whole until a selection
     * has had them among its candidates. */
    bool (*selects_ahead)(const struct kva_kv_spec *spec);

    /* On entry: one row, which selects nothing. */
    void (*plan)(const struct kva_kv_seq *seq, struct kva_kv_step_plan *ret);

    /* The most likely token behind the last one, from a pre-decoding or from a draft row. */
    void (*predecoded)(struct kva_kv_seq *seq, uint32_t token);
    void (*drafted)(struct kva_kv_seq *seq, uint32_t token);

    /* A token came out of a step with a draft row. */
    void (*emitted)(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t token);

    /* Whether the queries of a layer's rows are made ahead, of the input of the layer in front of
     * it (kva_kv_rehearsal); not of the first layer. The parts are shown them. */
    bool (*rehearses)(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer);

    /* A layer begins: its input is known, the residual stream, act [rows, hidden_size], before the
     * layer's norm. The rows' ranges are still those of the layer before. */
    void (*layer_input)(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                        const void *hidden);

    /* The rows' queries are known, act [rows, heads, head_dim], and their K and V are in place;
     * nothing has attended yet. Rows may set select_now. */
    void (*layer_query)(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q);
};

/* One of the table. */
const struct kva_kv_policy *kva_kv_policy_get(enum kva_kv_policy_id id);

/* A spec's: its own, or one of the table; NULL: it names neither. */
const struct kva_kv_policy *kva_kv_policy_of(const struct kva_kv_spec *spec);

bool kva_kv_policy_has_setting(const struct kva_kv_policy *policy, enum kva_kv_setting_id id);

/* All but a window of the newest tokens, between `window` and window + 63, leave sequences of at
 * least min_tokens. */
uint32_t kva_kv_offload_behind_window(const struct kva_kv_spec *spec, uint32_t tokens);

/* Whether tokens of a sequence with such settings, which are resolved, are dropped for good. */
static inline bool kva_kv_drops(const struct kva_kv_spec *spec)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    return policy->drops || (policy->limits && policy->limits(spec));
}

/* Pages [offloaded - so many, offloaded) are of a store. */
static inline uint32_t kva_kv_stored(const struct kva_kv_seq *seq)
{
    return seq->policy->stored ? seq->policy->stored(&seq->spec, seq->offloaded) : 0;
}

/* Pages of a prompt that may come from the prefix cache. */
uint32_t kva_kv_cacheable_pages(const struct kva_kv_spec *spec, uint32_t prompt_tokens);

/* Pages that hold `tokens` tokens. */
static inline uint32_t kva_kv_pages(uint32_t tokens)
{
    return tokens / KVA_PAGE_TOKENS + (tokens % KVA_PAGE_TOKENS != 0);
}

/* --- the policies ---------------------------------------------------------------------------- */

extern const struct kva_kv_policy kva_kv_policy_full;
extern const struct kva_kv_policy kva_kv_policy_offload;
extern const struct kva_kv_policy kva_kv_policy_kivi;
extern const struct kva_kv_policy kva_kv_policy_specache;
extern const struct kva_kv_policy kva_kv_policy_streaming;
extern const struct kva_kv_policy kva_kv_policy_h2o;
extern const struct kva_kv_policy kva_kv_policy_qhitter;
extern const struct kva_kv_policy kva_kv_policy_infinigen;

#endif
