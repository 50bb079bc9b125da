/* spec.h - a KV spec: which policy a sequence runs under and with which settings, as a request, an
 * option or a program names them.
 *
 *     NAME[:BITS[:TOPK]][:SETTING=VALUE...]       full    kivi:1    specache:1:64:levels=mse
 *
 * One table (kva_kv_setting_at) describes every setting that any policy has: name, values, help. A
 * policy lists those it has, with their defaults and its paper's values (policy.h). Options,
 * requests, `kvahead options` and the documentation are read from there. A setting that the policy
 * does not have is an error, never ignored.
 *
 * Thread rule: reads constants only: any thread. */
#ifndef KVA_ENGINE_KV_SPEC_H
#define KVA_ENGINE_KV_SPEC_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct kva_kv_policy;

enum kva_kv_policy_id {
    KVA_KV_FULL,     /* 16-bit pages on the device */
    KVA_KV_OFFLOAD,  /* 16-bit pages on the host, all staged every step (FlexGen-like baseline) */
    KVA_KV_KIVI,     /* 1, 2 or 4 bits on the device, the newest tokens in 16 (KIVI) */
    KVA_KV_SPECACHE, /* the same, and the 16-bit rows that the next step will need, fetched ahead */
    KVA_KV_STREAMING, /* the first tokens and the newest ones; the others are dropped for good
                         (StreamingLLM) */
    KVA_KV_H2O,       /* the tokens that were attended to most, and the newest ones; the others are
                   dropped for good (H2O) */
    KVA_KV_QHITTER,   /* the same in few bits, and tokens that few bits suit (Q-Hitter) */
    KVA_KV_INFINIGEN, /* partial keys on the device, and the 16-bit rows that the next layer will
                         need, fetched ahead (InfiniGen) */
    KVA_KV_POLICY_COUNT,
};

/* Whose query selects the rows that the next step will need. */
enum kva_kv_predictor {
    KVA_PREDICT_SPEC_TOKEN, /* a speculative token, decoded along (SpeCache 3.3) */
    KVA_PREDICT_PREV_QUERY, /* this step's own token: no second row; where the next query has
                               moved away from it, rows are selected again, with a wait (FreeKV) */
    KVA_PREDICT_SYNC,       /* the next token itself, which then waits for the rows: the oracle */
    KVA_PREDICT_AUTO,       /* sync on a CPU, where rows are fetched by the attention that selected
                               them; spec-token on a GPU */
    KVA_PREDICTOR_COUNT,
};

/* What the speculative token behind a wrong one is made from. */
enum kva_kv_mispredict {
    KVA_MISPREDICT_CHAIN,     /* from the wrong one: the paper; mispredictions propagate */
    KVA_MISPREDICT_PREDECODE, /* from the token that came instead, which runs once more before its
                                 step, as in the pre-decoding (SpeCache 3.3), and selects that
                                 step's rows */
    KVA_MISPREDICT_COUNT,
};

enum kva_kv_fetch {
    KVA_FETCH_ALL,      /* every selected row, every step: the paper */
    KVA_FETCH_DELTA,    /* only rows that are not there already; the same tokens as ALL */
    KVA_FETCH_RESIDENT, /* the same traffic; rows of earlier selections attend while they are there
                         */
    KVA_FETCH_COUNT,
};

enum kva_kv_levels {
    KVA_KV_LEVELS_MINMAX,   /* from minimum and maximum of a group, as in the papers */
    KVA_KV_LEVELS_MSE,      /* least squares: the same bytes, less error */
    KVA_KV_LEVELS_EXTREMES, /* minimum and maximum themselves at 1 bit too, as KIVI; else minmax */
    KVA_KV_LEVELS_AUTO,     /* mse for keys, minmax for values */
    KVA_KV_LEVELS_COUNT,
};

/* At which positions of the model the tokens that are kept attend to each other. */
enum kva_kv_positions {
    KVA_POSITIONS_INDEX,    /* at their indices among the kept ones (position rolling): sequences
                               may go on past the model's context */
    KVA_POSITIONS_ORIGINAL, /* at those that they have in the sequence */
    KVA_POSITIONS_COUNT,
};

/* Which of the prompt's rows say what the tokens of the prompt are worth. */
enum kva_kv_mass {
    KVA_MASS_LAST, /* the last KVA_KV_OBSERVED: others may come from the prefix cache */
    KVA_MASS_ALL,  /* all: the papers; nothing comes from the prefix cache */
    KVA_MASS_COUNT,
};

#define KVA_KV_OBSERVED 64u

/* What makes masses and errors comparable. */
enum kva_kv_norm {
    KVA_NORM_RANK,   /* their ranks: no single token, such as a sink, flattens the others */
    KVA_NORM_MINMAX, /* minimum 0, maximum 1 (Q-Hitter) */
    KVA_NORM_COUNT,
};

/* What partial keys are made of. */
enum kva_kv_skew_mode {
    KVA_SKEW_AFTER, /* keys as they are attended to, times the model's skew (InfiniGen 4.2, after
                       rotary embedding) */
    KVA_SKEW_NONE,  /* keys as they are: the columns that matter most, as far as it is known */
    KVA_SKEW_FOLD,  /* the leading columns: the skew is in the weights */
    KVA_SKEW_PLANES, /* columns of keys as they are, in whole rotation planes: rehearsing reads only a
                        part of the query weights (engine/planes.h) */
    KVA_SKEW_MODE_COUNT,
};

/* Which columns partial keys have. */
enum kva_kv_columns {
    KVA_COLUMNS_STATIC, /* the same for all prompts: partial keys are shared as pages are */
    KVA_COLUMNS_PROMPT, /* those in which the prompt's queries and keys are largest (InfiniGen 4.2):
                           nothing comes from the prefix cache */
    KVA_COLUMNS_COUNT,
};

/* Which rows in host memory give their place to newer ones (InfiniGen 4.4). */
enum kva_kv_victim {
    KVA_VICTIM_COUNTER, /* those that were chosen least often; of equals the oldest */
    KVA_VICTIM_LRU,     /* those whose last choice is longest ago */
    KVA_VICTIM_FIFO,    /* the oldest */
    KVA_VICTIM_COUNT,
};

/* What few bits hold of a kept token. */
enum kva_kv_coding {
    KVA_KV_CODING_TURNED, /* its key and value turned, so that large channels are shared out */
    KVA_KV_CODING_PLAIN,  /* as they are (Q-Hitter) */
    KVA_KV_CODING_COUNT,
};

/* Whether pages may be lent to other instances of a cluster. */
enum kva_kv_spread {
    KVA_SPREAD_AUTO, /* where a plan finds that it gains */
    KVA_SPREAD_NEVER,
    KVA_SPREAD_COUNT,
};

/* An amount of tokens is a number, or so many percent of the prompt. */
#define KVA_KV_PERCENT 0x80000000u

/* Layers [first, end) with a k of their own. */
struct kva_kv_k_range {
    uint32_t first, end;
    uint32_t k;
};

#define KVA_KV_K_RANGES_MAX 4u

/* Settings that the policy does not have are 0 in what is parsed, and not read. */
struct kva_kv_spec {
    enum kva_kv_policy_id policy;

    uint32_t bits;       /* 1, 2 or 4; of kept tokens 2, 3, 4, 8 or 16 */
    uint32_t value_bits; /* of values: 2, with keys of 1; 0: as many as of keys */
    uint32_t group;      /* 32 or 64 */
    enum kva_kv_levels levels;
    uint32_t window;      /* newest tokens in 16 bits, at least */
    uint32_t sinks;       /* first tokens in 16 bits, at most KVA_KV_SINKS_MAX */
    uint32_t min_tokens;  /* shorter sequences stay in 16 bits */
    uint32_t skip_layers; /* so many first layers stay in 16 bits */
    uint32_t k;           /* "topk": rows fetched per KV head; of layers without a range below */
    enum kva_kv_predictor predictor;
    uint32_t reselect_below; /* prev-query: percent of cosine between successive queries of a layer,
                                mean over its heads, under which it selects again; 0: never */
    enum kva_kv_fetch fetch;
    uint32_t successor; /* percent, at 1 bit, of the weight of the token before it that a token has
                           at least when rows are selected */
    enum kva_kv_mispredict on_mispredict; /* spec-token */
    enum kva_kv_positions positions;
    uint32_t heavy;  /* tokens kept because they were attended to: an amount */
    uint32_t recent; /* newest tokens that are never dropped: an amount */
    enum kva_kv_mass mass;
    uint32_t pure;   /* of the heavy tokens, so many go by mass alone: an amount */
    uint32_t lambda; /* percent that mass counts for, beside error */
    enum kva_kv_norm norm;
    uint32_t alpha;        /* rows whose scores are at least max - alpha are fetched ... */
    uint32_t cap;          /* ... but so many at most: an amount, of the sequence */
    uint32_t partial;      /* percent of the columns that partial keys have */
    uint32_t partial_bits; /* 8 or 16 */
    enum kva_kv_skew_mode skew;
    enum kva_kv_columns columns;
    uint32_t pool; /* tokens before the window in host memory, per layer and KV head: an
                              amount; 0: all */
    enum kva_kv_victim victim;
    uint32_t tokens_max; /* no setting: of the sequence, once amounts are resolved */
    enum kva_kv_coding coding;
    enum kva_kv_spread spread;
    struct kva_kv_k_range k_ranges[KVA_KV_K_RANGES_MAX]; /* the last that has a layer holds */
    uint32_t k_range_count;
    const struct kva_kv_policy *own; /* a policy that is in no table, and that requests cannot name;
                                        NULL: the table's of that id */
};

/* --- the table of settings ------------------------------------------------------------------- */

enum kva_kv_setting_id {
    KVA_SETTING_BITS,
    KVA_SETTING_VALUE_BITS,
    KVA_SETTING_GROUP,
    KVA_SETTING_LEVELS,
    KVA_SETTING_WINDOW,
    KVA_SETTING_SINKS,
    KVA_SETTING_MIN_TOKENS,
    KVA_SETTING_SKIP_LAYERS,
    KVA_SETTING_TOPK,
    KVA_SETTING_PREDICTOR,
    KVA_SETTING_RESELECT_BELOW,
    KVA_SETTING_FETCH,
    KVA_SETTING_SUCCESSOR,
    KVA_SETTING_ON_MISPREDICT,
    KVA_SETTING_POSITIONS,
    KVA_SETTING_HEAVY,
    KVA_SETTING_RECENT,
    KVA_SETTING_MASS,
    KVA_SETTING_PURE,
    KVA_SETTING_LAMBDA,
    KVA_SETTING_NORM,
    KVA_SETTING_ALPHA,
    KVA_SETTING_CAP,
    KVA_SETTING_PARTIAL,
    KVA_SETTING_PARTIAL_BITS,
    KVA_SETTING_SKEW,
    KVA_SETTING_COLUMNS,
    KVA_SETTING_POOL,
    KVA_SETTING_VICTIM,
    KVA_SETTING_CODING,
    KVA_SETTING_SPREAD,
    KVA_SETTING_COUNT,
};

enum kva_kv_setting_kind {
    KVA_SETTING_NUMBER,   /* whole */
    KVA_SETTING_AMOUNT,   /* the same, or "10%": KVA_KV_PERCENT | 10, of the prompt */
    KVA_SETTING_SHARE,    /* the same, of what there is of the sequence at the time */
    KVA_SETTING_WORD,     /* one of some words; the value is the index */
    KVA_SETTING_BY_LAYER, /* topk: a whole number, and others for some layers (kva_kv_spec_read_k)
                           */
};

struct kva_kv_setting {
    const char *name;
    enum kva_kv_setting_kind kind;
    uint32_t min, max;        /* of a number */
    uint32_t multiple_of;     /* a number is a multiple of it; 0: any */
    const uint32_t *among;    /* or one of these, 0-terminated */
    const char *const *words; /* NULL-terminated */
    size_t offset;            /* of the 32-bit value in struct kva_kv_spec */
    const char *help;         /* Markdown, half a sentence */
};

/* A number, or percent of something. */
static inline bool kva_kv_setting_is_amount(const struct kva_kv_setting *setting)
{
    return setting->kind == KVA_SETTING_AMOUNT || setting->kind == KVA_SETTING_SHARE;
}

/* A number that is the least or the most, and nothing between. */
static inline bool kva_kv_setting_is_either(const struct kva_kv_setting *setting)
{
    return setting->multiple_of > 0 && setting->max - setting->min == setting->multiple_of;
}

/* A setting that a policy has. */
struct kva_kv_policy_setting {
    enum kva_kv_setting_id id;
    uint32_t fallback;     /* what was measured to be best (docs/kv.md) */
    uint32_t paper;        /* what the policy's paper has */
    const uint32_t *among; /* its own numbers, 0-terminated; NULL: the setting's */
};

const struct kva_kv_setting *kva_kv_setting_at(enum kva_kv_setting_id id);

/* As a policy has it, with the policy's own numbers. */
struct kva_kv_setting kva_kv_setting_of(const struct kva_kv_policy_setting *own);

/* NULL: no policy has one of that name. */
const struct kva_kv_setting *kva_kv_setting_find(const char *name);

/* Those of a policy; *ret_count entries. */
const struct kva_kv_policy_setting *kva_kv_policy_settings(enum kva_kv_policy_id policy,
                                                           size_t *ret_count);

bool kva_kv_has_setting(enum kva_kv_policy_id policy, enum kva_kv_setting_id id);
bool kva_kv_spec_has_setting(const struct kva_kv_spec *spec, enum kva_kv_setting_id id);

static inline uint32_t *kva_kv_setting_value(const struct kva_kv_setting *setting,
                                             struct kva_kv_spec *spec)
{
    return (uint32_t *)(void *)((unsigned char *)spec + setting->offset);
}

#define KVA_KV_SINKS_MAX 32u
#define KVA_KV_K_MAX     16384u /* the CPU device chooses so many */
#define KVA_KV_LAYER_MAX 65535u

/* --- specs ----------------------------------------------------------------------------------- */

/* Every setting at its default, and as in the policy's paper. */
struct kva_kv_spec kva_kv_spec_default(enum kva_kv_policy_id policy);
struct kva_kv_spec kva_kv_spec_paper(enum kva_kv_policy_id policy);

/* The defaults of a policy that is in no table. */
struct kva_kv_spec kva_kv_spec_own(const struct kva_kv_policy *policy);

/* The same with amounts in tokens, for a prompt of so many in a sequence that can have tokens_max,
 * and with what follows from them. What is resolved stays as it is. */
struct kva_kv_spec kva_kv_spec_resolve(const struct kva_kv_spec *spec, uint32_t prompt_tokens,
                                       uint32_t tokens_max);

/* A value as specs write it; `text` holds KVA_KV_VALUE_MAX bytes. Not of topk by layer. False: it is
 * a number. */
#define KVA_KV_VALUE_MAX 32u
bool kva_kv_setting_write(const struct kva_kv_setting *setting, uint32_t value, char *text);

/* Fails: KVA_EINVAL, err->param is the setting ("bits", "topk", ...). */
KVA_MUST_CHECK enum kva_status kva_kv_spec_check(const struct kva_kv_spec *spec,
                                                 struct kva_err *err);

/* Set one setting of spec->policy from text. Fails: KVA_EINVAL: no such setting, a setting of
 * another policy (err names those that have it), a former name (err says the new one), or a value
 * that it cannot have; err->param is the setting; the spec is as it was. */
KVA_MUST_CHECK enum kva_status kva_kv_spec_set(struct kva_kv_spec *spec, const char *name,
                                               const char *value, struct kva_err *err);

/* A spec from one line. Settings that it does not name are those of bases[policy]; bases NULL: the
 * defaults; with paper=true, the paper's. Fails: KVA_EINVAL, err->param is the setting, or
 * "policy". */
KVA_MUST_CHECK enum kva_status kva_kv_spec_parse(const char *text, const struct kva_kv_spec *bases,
                                                 struct kva_kv_spec *ret, struct kva_err *err);

/* What an operator gives: lines of which the first one is the default policy, and each one says the
 * settings that requests under its policy start from. On entry `specs` [KVA_KV_POLICY_COUNT] are
 * the settings that the lines start from. No line: *ret_default is left alone. Fails: KVA_EINVAL,
 * as above, or a policy is named twice. */
KVA_MUST_CHECK enum kva_status kva_kv_spec_parse_list(char *const *lines, uint32_t count,
                                                      struct kva_kv_spec *specs,
                                                      enum kva_kv_policy_id *ret_default,
                                                      struct kva_err *err);

/* Rows fetched per KV head in a layer, and the largest of them; 0 if the policy fetches none. */
uint32_t kva_kv_spec_k(const struct kva_kv_spec *spec, uint32_t layer);
uint32_t kva_kv_spec_k_max(const struct kva_kv_spec *spec);

/* k of all layers: N, then +N@LAYER or +N@FIRST-LAST for layers that have another one: "64",
 * "64+256@0-1". No number exceeds `max`. Fails: KVA_EINVAL (err->param is "topk"), the spec is as
 * it was. */
KVA_MUST_CHECK enum kva_status kva_kv_spec_read_k(const char *text, size_t length, uint32_t max,
                                                  struct kva_kv_spec *spec, struct kva_err *err);

#define KVA_KV_K_TEXT_MAX 128u

/* The same backwards; `text` holds KVA_KV_K_TEXT_MAX bytes. */
void kva_kv_spec_write_k(const struct kva_kv_spec *spec, char *text);

/* Whose query predicts. AUTO: sync where the host reads the device's memory
 * (kva_device_info.host_readable), since there is nothing to wait for and a token's own query selects
 * best; elsewhere spec-token. */
enum kva_kv_predictor kva_kv_predictor_of(const struct kva_kv_spec *spec, bool host_readable);

/* The name of the spec's policy. */
const char *kva_kv_spec_policy_name(const struct kva_kv_spec *spec);

/* --- policies by name ------------------------------------------------------------------------ */

/* "full", "offload", "kivi", "specache", "streaming", "h2o", "q-hitter", "infinigen". */
const char *kva_kv_policy_name(enum kva_kv_policy_id policy);

/* Policy of that name; KVA_KV_POLICY_COUNT if there is none. */
enum kva_kv_policy_id kva_kv_policy_find(const char *name);

/* Whether tokens are those of full KV. Where they are not, pages that were computed after a prompt
 * are not what `full` would have computed. */
bool kva_kv_policy_exact(enum kva_kv_policy_id policy);

/* Whether it drops tokens for good, which no later query can bring back. */
bool kva_kv_policy_drops(enum kva_kv_policy_id policy);

/* The same of a policy with such settings: its own doing, or that of a limit (`pool`). */
bool kva_kv_spec_drops(const struct kva_kv_spec *spec);

/* Tokens of a sequence whose policy lets it go on past the model's context. */
#define KVA_KV_TOKENS_MAX (1u << 24)

/* The most tokens that a sequence can have on a model with `context` positions: so many, or
 * KVA_KV_TOKENS_MAX. */
uint32_t kva_kv_tokens_max(const struct kva_kv_spec *spec, uint32_t context);

#endif
