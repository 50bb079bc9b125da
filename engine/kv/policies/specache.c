/* specache.c - SpeCache: low-bit copies, and the 16-bit rows that the next step is expected to
 * need, selected by one step and fetched before the next (docs/kv.md).
 *
 * A step at token t runs a second row, of the speculative token T'(t+1), behind the emitted one's;
 * its attention selects the rows for step t+1, and its best successor is T'(t+2) (3.3). After a
 * misprediction T'(t+2) follows the wrong token (chain), or the emitted token is run once more,
 * alone, before its step (pre-decoding). Other predictors: the emitted token's own row selects for
 * the next step (prev-query), or for its own, and waits (sync). */
#include "engine/kv/part.h"
#include "engine/kv/parts/rows.h"
#include "engine/kv/policy.h"

/* SpeCache 1 and 4.1. */
static const struct kva_kv_policy_setting settings[] = {
    {KVA_SETTING_BITS, 2, 2, NULL},
    {KVA_SETTING_VALUE_BITS, 0, 0, NULL},
    {KVA_SETTING_GROUP, 64, 64, NULL},
    {KVA_SETTING_LEVELS, KVA_KV_LEVELS_AUTO, KVA_KV_LEVELS_MINMAX, NULL},
    {KVA_SETTING_WINDOW, 64, 64, NULL},
    {KVA_SETTING_SINKS, 4, 0, NULL},
    {KVA_SETTING_MIN_TOKENS, 1024, 0, NULL},
    {KVA_SETTING_SKIP_LAYERS, 0, 0, NULL},
    {KVA_SETTING_TOPK, 64, 64, NULL},
    {KVA_SETTING_PREDICTOR, KVA_PREDICT_AUTO, KVA_PREDICT_SPEC_TOKEN, NULL},
    {KVA_SETTING_RESELECT_BELOW, 85, 0, NULL},
    {KVA_SETTING_FETCH, KVA_FETCH_RESIDENT, KVA_FETCH_ALL, NULL},
    {KVA_SETTING_SUCCESSOR, 10, 0, NULL},
    {KVA_SETTING_ON_MISPREDICT, KVA_MISPREDICT_PREDECODE, KVA_MISPREDICT_CHAIN, NULL},
};

static const struct kva_kv_part *const parts[] = {&kva_kv_part_prompt_stage, &kva_kv_part_lowbit,
                                                  &kva_kv_part_rows, &kva_kv_part_resident, NULL};

static const struct kva_counter speculative = {
    .name = "speculative_tokens",
    .unit = "tokens",
    .help = "Speculative tokens decoded.",
    .field = "speculative_tokens",
};

static const struct kva_counter speculative_matched = {
    .name = "speculative_tokens_matched",
    .unit = "tokens",
    .help = "Of these: equal to the token that was then sampled.",
    .field = "speculative_tokens_matched",
};

static const struct kva_counter *const counters[] = {&speculative, &speculative_matched, NULL};

struct state {
    uint32_t spec_token; /* expected behind the last one */
    bool predecoded;     /* and rows have been selected for the next step */
};

static struct state *state_of(const struct kva_kv_seq *seq)
{
    return seq->policy_state;
}

/* A step after the next one is possible: the token that the next one gives is not the last, which
 * nobody runs. */
static bool has_next_step(const struct kva_kv_seq *seq)
{
    return seq->tokens + 3 <= seq->tokens_max;
}

static bool selects_ahead(const struct kva_kv_spec *spec)
{
    return kva_kv_spec_k_max(spec) > 0 && spec->predictor != KVA_PREDICT_SYNC;
}

/* Correcting a selection is part of selecting with the same query for the next step: so the last
 * step does that, too. */
static bool selects_next(const struct kva_kv_seq *seq)
{
    return seq->spec.predictor != KVA_PREDICT_SYNC &&
           (has_next_step(seq) || seq->spec.predictor == KVA_PREDICT_PREV_QUERY);
}

static void plan(const struct kva_kv_seq *seq, struct kva_kv_step_plan *ret)
{
    if (kva_kv_spec_k_max(&seq->spec) == 0 || !kva_kv_rows_started(seq))
        return;
    bool sync = seq->spec.predictor == KVA_PREDICT_SYNC;
    ret->draft = seq->spec.predictor == KVA_PREDICT_SPEC_TOKEN && has_next_step(seq);
    ret->predecode = !sync && !state_of(seq)->predecoded;
    ret->draft_token = state_of(seq)->spec_token;
    ret->select_now = sync;
    ret->select_next = selects_next(seq);
    if (ret->select_now || ret->select_next)
        ret->select_row = ret->draft ? 1 : 0;
}

static void predecoded(struct kva_kv_seq *seq, uint32_t token)
{
    *state_of(seq) = (struct state){.spec_token = token, .predecoded = true};
}

static void drafted(struct kva_kv_seq *seq, uint32_t token)
{
    state_of(seq)->spec_token = token;
}

static void emitted(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t token)
{
    bool matched = token == state_of(seq)->spec_token;
    kva_kv_count(kv, seq, &speculative, 1);
    kva_kv_count(kv, seq, &speculative_matched, matched);
    if (!matched && seq->spec.on_mispredict == KVA_MISPREDICT_PREDECODE)
        state_of(seq)->predecoded = false;
}

const struct kva_kv_policy kva_kv_policy_specache = {
    .name = "specache",
    .exactness = KVA_KV_EXACT_PROMPT,
    .settings = settings,
    .setting_count = KVA_COUNT_OF(settings),
    .parts = parts,
    .counters = counters,
    .state_bytes = sizeof(struct state),
    .offloaded = kva_kv_offload_behind_window,
    .selects_ahead = selects_ahead,
    .plan = plan,
    .predecoded = predecoded,
    .drafted = drafted,
    .emitted = emitted,
    .layer_query = kva_kv_rows_reselect,
};
