/* settings.c - the table of settings, and policies as programs name them. */
#include "engine/kv/spec.h"

#include "engine/kv/policy.h"

#include <stdio.h>
#include <string.h>

/* In the order of the enumerations. */
static const char *const levels[] = {"minmax", "mse", "extremes", "auto", NULL};
static const char *const predictors[] = {"spec-token", "prev-query", "sync", "auto", NULL};
static const char *const fetches[] = {"all", "delta", "resident", NULL};
static const char *const mispredicts[] = {"chain", "predecode", NULL};
static const char *const positions[] = {"index", "original", NULL};

static const char *const norms[] = {"rank", "minmax", NULL};
static const char *const codings[] = {"turned", "plain", NULL};
static const char *const masses[] = {"last", "all", NULL};

static const char *const skews[] = {"after", "none", "fold", "planes", NULL};

static const char *const column_choices[] = {"static", "prompt", NULL};
static const char *const victims[] = {"counter", "lru", "fifo", NULL};

static const char *const spreads[] = {"auto", "never", NULL};

static const uint32_t partial_widths[] = {8, 16, 0};
static const uint32_t bit_widths[] = {1, 2, 4, 0};
static const uint32_t groups[] = {32, 64, 0};

#define AT(field) .offset = offsetof(struct kva_kv_spec, field)
#define NUMBER    .kind = KVA_SETTING_NUMBER
#define AMOUNT    .kind = KVA_SETTING_AMOUNT
#define SHARE     .kind = KVA_SETTING_SHARE
#define WORD      .kind = KVA_SETTING_WORD

static const struct kva_kv_setting settings[KVA_SETTING_COUNT] = {
    [KVA_SETTING_BITS] = {"bits", NUMBER, .min = 1, .max = 16, .among = bit_widths, AT(bits),
                          .help = "bits per element of the device copy, or of kept tokens (16: as "
                                  "they are)"},
    [KVA_SETTING_VALUE_BITS] = {"value_bits", NUMBER, .max = 2, .multiple_of = 2, AT(value_bits),
                                .help = "bits per element of values, where keys have 1: 2; 0: as "
                                        "many as of keys"},
    [KVA_SETTING_GROUP] = {"group", NUMBER, .min = 32, .max = 64, .among = groups, AT(group),
                           .help =
                               "tokens (keys, per channel) or channels (values, per token) that "
                               "share a scale and a zero"},
    [KVA_SETTING_LEVELS] = {"levels", WORD, .words = levels, AT(levels),
                            .help =
                                "quantisation levels. `minmax`: from a group's minimum and maximum "
                                "(1 bit: a quarter of the range inwards, SpeCache eq. 3); `mse`: "
                                "least squares for the same codes (1 bit: the means of both halves "
                                "of the range); `extremes`: `minmax`, but minimum and maximum "
                                "themselves at 1 bit (KIVI); `auto`: `mse` for keys, `minmax` for "
                                "values"},
    [KVA_SETTING_WINDOW] = {"window", NUMBER, .min = 64, .max = 1u << 20, .multiple_of = 64,
                            AT(window),
                            .help = "newest tokens in 16 bits: between this many and 63 more"},
    [KVA_SETTING_SINKS] = {"sinks", NUMBER, .max = KVA_KV_SINKS_MAX, AT(sinks),
                           .help =
                               "first tokens in 16 bits, and outside the statistics of the keys' "
                               "groups"},
    [KVA_SETTING_MIN_TOKENS] = {"min_tokens", NUMBER, .max = 1u << 24, .multiple_of = 64,
                                AT(min_tokens),
                                .help = "sequences of fewer tokens stay in 16 bits"},
    [KVA_SETTING_SKIP_LAYERS] = {"skip_layers", NUMBER, .max = 65536, AT(skip_layers),
                                 .help = "first layers that stay in 16 bits"},
    [KVA_SETTING_TOPK] = {"topk", .kind = KVA_SETTING_BY_LAYER, .max = KVA_KV_K_MAX, AT(k),
                          .help =
                              "rows fetched per KV head and layer; `64+256@0-1`: 64, but 256 in "
                              "layers 0 and 1 (up to four such parts, the last that names a layer "
                              "holds)"},
    [KVA_SETTING_PREDICTOR] = {"predictor", WORD, .words = predictors, AT(predictor),
                               .help =
                                   "whose query selects the rows: a speculative token's, the "
                                   "current token's, or the next token's own, which then waits for "
                                   "them; `auto`: `sync` on a CPU, `spec-token` on a GPU"},
    [KVA_SETTING_RESELECT_BELOW] = {"reselect_below", NUMBER, .max = 100, AT(reselect_below),
                                    .help = "`prev-query`: percent of cosine between successive "
                                            "queries under which a layer selects again, and waits; "
                                            "0: never"},
    [KVA_SETTING_FETCH] = {"fetch", WORD, .words = fetches, AT(fetch),
                           .help =
                               "`all` selected rows every step; `delta`: those that are not there; "
                               "`resident`: the same, and rows of earlier selections attend too"},
    [KVA_SETTING_SUCCESSOR] = {"successor", NUMBER, .max = 100, AT(successor),
                               .help = "percent of the attention to a token that the token behind "
                                       "it counts for at least, when rows are selected; at 2 bits "
                                       "a ninth of that, at 4 bits hardly any"},
    [KVA_SETTING_ON_MISPREDICT] = {"on_mispredict", WORD, .words = mispredicts, AT(on_mispredict),
                                   .help =
                                       "`spec-token`: after a wrong speculative token the next one "
                                       "follows it (`chain`), or the token that came instead runs "
                                       "once more first (`predecode`)"},
    [KVA_SETTING_POSITIONS] = {"positions", WORD, .words = positions, AT(positions),
                               .help =
                                   "where kept tokens attend to each other: at their `index` among "
                                   "the kept ones, which lets a sequence go on past the model's "
                                   "context, or at their `original` positions"},
    [KVA_SETTING_HEAVY] = {"heavy", AMOUNT, .max = KVA_KV_TOKENS_MAX, AT(heavy),
                           .help =
                               "tokens kept, per KV head and layer, because they were attended to "
                               "most; `10%`: of the prompt"},
    [KVA_SETTING_RECENT] = {"recent", AMOUNT, .max = KVA_KV_TOKENS_MAX, AT(recent),
                            .help = "newest tokens that are never dropped, at least 64; `10%`: of "
                                    "the prompt"},
    [KVA_SETTING_MASS] = {"mass", WORD, .words = masses, AT(mass),
                          .help = "whose attention counts while the prompt is read: the `last` 64 "
                                  "tokens', or `all` tokens', which takes nothing from the prefix "
                                  "cache"},
    [KVA_SETTING_PURE] = {"pure", AMOUNT, .max = KVA_KV_TOKENS_MAX, AT(pure),
                          .help = "of the heavy tokens, so many are chosen by attention alone; "
                                  "`5%`: of the prompt"},
    [KVA_SETTING_LAMBDA] = {"lambda", NUMBER, .max = 100, AT(lambda),
                            .help = "percent that attention counts for in choosing the other heavy "
                                    "tokens; the rest goes to those whose rows suffer least from "
                                    "`bits`"},
    [KVA_SETTING_NORM] = {"norm", WORD, .words = norms, AT(norm),
                          .help = "what makes attention and error comparable: their `rank` among "
                                  "the tokens, or `minmax`, between the smallest and the largest"},
    [KVA_SETTING_ALPHA] = {"alpha", NUMBER, .max = 1000, AT(alpha),
                           .help =
                               "rows are fetched whose score, by partial keys, is at most so much "
                               "below the largest of a query head (a score is the exponent of "
                               "attention); 80 and more: all, up to `cap`"},
    [KVA_SETTING_CAP] = {"cap", SHARE, .min = 1, .max = 8192, AT(cap),
                         .help = "rows fetched per KV head and layer at most, besides the sinks; "
                                 "`20%`: of the tokens before the window, 8192 at most"},
    [KVA_SETTING_PARTIAL] = {"partial", NUMBER, .min = 1, .max = 100, AT(partial),
                             .help = "percent of the keys' columns that partial keys have"},
    [KVA_SETTING_PARTIAL_BITS] = {"partial_bits", NUMBER, .min = 8, .max = 16,
                                  .among = partial_widths, AT(partial_bits),
                                  .help = "bits per element of partial keys"},
    [KVA_SETTING_SKEW] = {"skew", WORD, .words = skews, AT(skew),
                          .help =
                              "columns of keys times the model's skew, which `kvahead skew` makes "
                              "(`after`), of keys as they are (`none`), the leading ones of a "
                              "checkpoint that has the skew in its weights (`fold`), or of keys as "
                              "they are in whole rotation planes (`planes`), for which a layer is "
                              "rehearsed with a part of its query weights (`--skew-planes`)"},
    [KVA_SETTING_COLUMNS] =
        {"columns", WORD, .words = column_choices, AT(columns),
         .help = "which columns these are: `static`, the same for every prompt, so "
                 "that partial keys are shared; or those in which the `prompt`'s "
                 "queries and keys are largest, which takes nothing from the prefix "
                 "cache"},
    [KVA_SETTING_POOL] = {"pool", AMOUNT, .max = KVA_KV_TOKENS_MAX, AT(pool),
                          .help = "tokens before the window that are kept in host memory, per "
                                  "layer and KV head, in whole pages; others take the place of "
                                  "`victim`s; `80%`: of the prompt; 0: all"},
    [KVA_SETTING_VICTIM] = {"victim", WORD, .words = victims, AT(victim),
                            .help = "whose place in the pool is taken: of the tokens that were "
                                    "fetched least often (`counter`), longest ago (`lru`), or that "
                                    "came first (`fifo`)"},
    [KVA_SETTING_CODING] = {"coding", WORD, .words = codings, AT(coding),
                            .help = "what few bits hold of a kept token: its key and value "
                                    "`turned`, so that no channel is larger than others, or "
                                    "`plain`, as they are"},
    [KVA_SETTING_SPREAD] = {"spread", WORD, .words = spreads, AT(spread),
                            .help = "whether pages may be lent to other instances of a cluster: "
                                    "where a plan finds that it gains (`auto`), or `never`"},
};

const struct kva_kv_setting *kva_kv_setting_at(enum kva_kv_setting_id id)
{
    return &settings[id];
}

struct kva_kv_setting kva_kv_setting_of(const struct kva_kv_policy_setting *own)
{
    struct kva_kv_setting setting = settings[own->id];
    setting.among = own->among ? own->among : setting.among;
    return setting;
}

const struct kva_kv_setting *kva_kv_setting_find(const char *name)
{
    for (size_t i = 0; i < KVA_SETTING_COUNT; i++) {
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    }
    return NULL;
}

const struct kva_kv_policy_setting *kva_kv_policy_settings(enum kva_kv_policy_id policy,
                                                           size_t *ret_count)
{
    const struct kva_kv_policy *p = kva_kv_policy_get(policy);
    *ret_count = p->setting_count;
    return p->settings;
}

bool kva_kv_has_setting(enum kva_kv_policy_id policy, enum kva_kv_setting_id id)
{
    return kva_kv_policy_has_setting(kva_kv_policy_get(policy), id);
}

bool kva_kv_spec_has_setting(const struct kva_kv_spec *spec, enum kva_kv_setting_id id)
{
    return kva_kv_policy_has_setting(kva_kv_policy_of(spec), id);
}

const char *kva_kv_policy_name(enum kva_kv_policy_id policy)
{
    return kva_kv_policy_get(policy)->name;
}

const char *kva_kv_spec_policy_name(const struct kva_kv_spec *spec)
{
    return kva_kv_policy_of(spec)->name;
}

bool kva_kv_policy_exact(enum kva_kv_policy_id policy)
{
    return kva_kv_policy_get(policy)->exactness == KVA_KV_EXACT;
}

bool kva_kv_policy_drops(enum kva_kv_policy_id policy)
{
    return kva_kv_policy_get(policy)->drops;
}

bool kva_kv_spec_drops(const struct kva_kv_spec *spec)
{
    return kva_kv_policy_of(spec)->drops ||
           (kva_kv_spec_has_setting(spec, KVA_SETTING_POOL) && spec->pool > 0);
}

uint32_t kva_kv_tokens_max(const struct kva_kv_spec *spec, uint32_t context)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    bool goes_on = policy && policy->positions_used &&
                   policy->positions_used(spec, KVA_KV_TOKENS_MAX) <= context;
    return goes_on ? KVA_KV_TOKENS_MAX : context;
}

enum kva_kv_policy_id kva_kv_policy_find(const char *name)
{
    uint32_t id = 0;
    while (id < KVA_KV_POLICY_COUNT &&
           strcmp(kva_kv_policy_name((enum kva_kv_policy_id)id), name) != 0)
        id++;
    return (enum kva_kv_policy_id)id;
}

enum kva_kv_predictor kva_kv_predictor_of(const struct kva_kv_spec *spec, bool host_readable)
{
    if (spec->predictor != KVA_PREDICT_AUTO)
        return spec->predictor;
    return host_readable ? KVA_PREDICT_SYNC : KVA_PREDICT_SPEC_TOKEN;
}

static void set_values(struct kva_kv_spec *spec, bool paper)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    for (size_t i = 0; i < policy->setting_count; i++) {
        const struct kva_kv_policy_setting *own = &policy->settings[i];
        *kva_kv_setting_value(&settings[own->id], spec) = paper ? own->paper : own->fallback;
    }
}

struct kva_kv_spec kva_kv_spec_default(enum kva_kv_policy_id policy)
{
    struct kva_kv_spec spec = {.policy = policy};
    set_values(&spec, false);
    return spec;
}

struct kva_kv_spec kva_kv_spec_paper(enum kva_kv_policy_id policy)
{
    struct kva_kv_spec spec = {.policy = policy};
    set_values(&spec, true);
    return spec;
}

static void resolve_amount(uint32_t *amount, uint32_t prompt_tokens)
{
    uint64_t percent = *amount & ~KVA_KV_PERCENT;
    if (*amount & KVA_KV_PERCENT)
        *amount = (uint32_t)kva_div_up(percent * prompt_tokens, 100);
}

struct kva_kv_spec kva_kv_spec_resolve(const struct kva_kv_spec *spec, uint32_t prompt_tokens,
                                       uint32_t tokens_max)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    struct kva_kv_spec resolved = *spec;
    for (size_t i = 0; i < policy->setting_count; i++) {
        const struct kva_kv_setting *setting = &settings[policy->settings[i].id];
        if (setting->kind == KVA_SETTING_AMOUNT)
            resolve_amount(kva_kv_setting_value(setting, &resolved), prompt_tokens);
    }
    if (resolved.tokens_max == 0)
        resolved.tokens_max = tokens_max;
    if (policy->resolved)
        policy->resolved(&resolved);
    return resolved;
}

bool kva_kv_setting_write(const struct kva_kv_setting *setting, uint32_t value, char *text)
{
    bool percent = kva_kv_setting_is_amount(setting) && value & KVA_KV_PERCENT;
    if (setting->words)
        snprintf(text, KVA_KV_VALUE_MAX, "%s", setting->words[value]);
    else
        snprintf(text, KVA_KV_VALUE_MAX, "%u%s", value & ~(percent ? KVA_KV_PERCENT : 0),
                 percent ? "%" : "");
    return setting->words || percent;
}

struct kva_kv_spec kva_kv_spec_own(const struct kva_kv_policy *policy)
{
    struct kva_kv_spec spec = {.policy = KVA_KV_POLICY_COUNT, .own = policy};
    set_values(&spec, false);
    return spec;
}
