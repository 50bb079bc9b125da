#include "engine/kv/policy_choice.h"

#include <stdio.h>
#include <string.h>

static const char *const policy_names[KVA_KV_POLICY_COUNT] = {
    [KVA_KV_FULL] = "full",
    [KVA_KV_OFFLOAD] = "offload",
    [KVA_KV_KIVI] = "kivi",
    [KVA_KV_SPECACHE] = "specache",
};

/* In the order of the enumerations. */
static const char *const levels[] = {"paper", "fit", "auto", NULL};
static const char *const predictors[] = {"spec-token", "prev-query", "sync", "auto", NULL};
static const char *const fetches[] = {"all", "delta", "resident", NULL};
static const char *const misses[] = {"chain", "predecode", NULL};

#define AT(field) offsetof(struct kva_kv_choice, field)

static const struct kva_kv_setting settings[] = {
    {"bits", 1, 4, NULL, AT(bits), false},
    {"group", 32, 64, NULL, AT(group), false},
    {"levels", 0, 0, levels, AT(levels), false},
    {"window", 64, 1u << 20, NULL, AT(window), false},
    {"sinks", 0, KVA_KV_SINKS_MAX, NULL, AT(sinks), false},
    {"plain", 0, 1u << 24, NULL, AT(plain), false},
    {"topk", 0, KVA_KV_K_MAX, NULL, AT(k), true},
    {"exempt", 0, 65536, NULL, AT(exempt), false},
    {"predictor", 0, 0, predictors, AT(predictor), false},
    {"correct", 0, 100, NULL, AT(correct), false},
    {"fetch", 0, 0, fetches, AT(fetch), false},
    {"miss", 0, 0, misses, AT(miss), false},
};

const struct kva_kv_setting *kva_kv_settings(size_t *ret_count)
{
    *ret_count = KVA_COUNT_OF(settings);
    return settings;
}

const char *kva_kv_setting_word(const char *name, uint32_t value)
{
    for (size_t i = 0; i < KVA_COUNT_OF(settings); i++) {
        if (settings[i].words && strcmp(settings[i].name, name) == 0)
            return settings[i].words[value];
    }
    return "";
}

const char *kva_kv_policy_name(enum kva_kv_policy_id policy)
{
    return policy_names[policy];
}

enum kva_kv_policy_id kva_kv_policy_find(const char *name)
{
    uint32_t id = 0;
    while (id < KVA_KV_POLICY_COUNT && strcmp(policy_names[id], name) != 0)
        id++;
    return (enum kva_kv_policy_id)id;
}

bool kva_kv_policy_exact(enum kva_kv_policy_id policy)
{
    return policy == KVA_KV_FULL || policy == KVA_KV_OFFLOAD;
}

enum kva_kv_predictor kva_kv_predictor_of(const struct kva_kv_choice *choice, bool host_readable)
{
    return choice->predictor == KVA_PREDICT_AUTO && host_readable ? KVA_PREDICT_SYNC
                                                                  : choice->predictor;
}

struct kva_kv_choice kva_kv_choice_default(enum kva_kv_policy_id policy)
{
    return (struct kva_kv_choice){
        .policy = policy,
        .bits = 2,
        .group = 64,
        .levels = KVA_KV_LEVELS_AUTO,
        .window = 64,
        .sinks = 4,
        .plain = 1024,
        .k = 64,
        .predictor = KVA_PREDICT_AUTO,
        .correct = 85,
        .fetch = KVA_FETCH_RESIDENT,
        .miss = KVA_MISS_PREDECODE,
    };
}

struct kva_kv_choice kva_kv_choice_paper(enum kva_kv_policy_id policy)
{
    return (struct kva_kv_choice){
        .policy = policy,
        .bits = 2,
        .group = 64,
        .window = policy == KVA_KV_KIVI ? 128 : 64,
        .k = 64,
        .predictor = KVA_PREDICT_SPEC_TOKEN,
        .fetch = KVA_FETCH_ALL,
    };
}

enum kva_status kva_kv_choice_check(const struct kva_kv_choice *c, struct kva_err *err)
{
    if (kva_kv_policy_exact(c->policy))
        return KVA_OK;
    if (c->bits != 1 && c->bits != 2 && c->bits != 4)
        return kva_fail_param(err, KVA_EINVAL, "bits", "bits is %u, it must be 1, 2 or 4", c->bits);
    if (c->group != 32 && c->group != 64)
        return kva_fail_param(err, KVA_EINVAL, "group", "group is %u, it must be 32 or 64",
                              c->group);
    if (c->sinks > KVA_KV_SINKS_MAX)
        return kva_fail_param(err, KVA_EINVAL, "sinks", "sinks is %u, it must be at most %u",
                              c->sinks, KVA_KV_SINKS_MAX);
    if (c->window == 0 || c->window % 64 != 0)
        return kva_fail_param(err, KVA_EINVAL, "window",
                              "window is %u, it must be a multiple of 64, and not 0", c->window);
    if (c->plain % 64 != 0)
        return kva_fail_param(err, KVA_EINVAL, "plain", "plain is %u, it must be a multiple of 64",
                              c->plain);
    uint32_t k = kva_kv_choice_k_max(c);
    if (c->policy == KVA_KV_SPECACHE && k > KVA_KV_K_MAX)
        return kva_fail_param(err, KVA_EINVAL, "topk", "topk is %u, it must be at most %u", k,
                              KVA_KV_K_MAX);
    return KVA_OK;
}

/* --- k by layer ------------------------------------------------------------------------------ */

uint32_t kva_kv_choice_k(const struct kva_kv_choice *choice, uint32_t layer)
{
    for (uint32_t i = choice->k_range_count; i-- > 0;) {
        const struct kva_kv_k_range *range = &choice->k_ranges[i];
        if (layer >= range->first && layer < range->end)
            return range->k;
    }
    return choice->k;
}

uint32_t kva_kv_choice_k_max(const struct kva_kv_choice *choice)
{
    uint32_t most = choice->k;
    for (uint32_t i = 0; i < choice->k_range_count; i++)
        most = kva_max_u32(most, choice->k_ranges[i].k);
    return most;
}

/* A number at *at, which then stands behind it. */
static bool take_number(const char **at, const char *end, uint32_t max, uint32_t *ret)
{
    const char *text = *at;
    uint64_t number = 0;
    for (; *at < end && **at >= '0' && **at <= '9' && number <= max; ++*at)
        number = number * 10 + (uint64_t)(**at - '0');
    *ret = (uint32_t)number;
    return *at > text && number <= max;
}

static bool take_char(const char **at, const char *end, char wanted)
{
    bool there = *at < end && **at == wanted;
    *at += there;
    return there;
}

/* N@FIRST or N@FIRST-LAST. */
static bool take_range(const char **at, const char *end, uint32_t max, struct kva_kv_k_range *ret)
{
    if (!take_number(at, end, max, &ret->k) || !take_char(at, end, '@') ||
        !take_number(at, end, KVA_KV_LAYER_MAX, &ret->first))
        return false;
    uint32_t last = ret->first;
    if (take_char(at, end, '-') && !take_number(at, end, KVA_KV_LAYER_MAX, &last))
        return false;
    ret->end = last + 1;
    return last >= ret->first;
}

enum kva_status kva_kv_choice_read_k(const char *text, size_t length, uint32_t max,
                                     struct kva_kv_choice *choice, struct kva_err *err)
{
    struct kva_kv_choice read = *choice;
    const char *at = text, *end = text + length;
    memset(read.k_ranges, 0, sizeof(read.k_ranges));
    read.k_range_count = 0;
    bool ok = take_number(&at, end, max, &read.k);
    while (ok && at < end && read.k_range_count < KVA_KV_K_RANGES_MAX)
        ok = take_char(&at, end, '+') &&
             take_range(&at, end, max, &read.k_ranges[read.k_range_count++]);
    if (!ok || at < end)
        return kva_fail_param(err, KVA_EINVAL, "topk",
                              "topk is '%.*s', it must be a whole number from 0 to %u, and for "
                              "layers with another one +N@LAYER or +N@FIRST-LAST, %u times at most",
                              (int)kva_min_size(length, 100), text, max, KVA_KV_K_RANGES_MAX);
    *choice = read;
    return KVA_OK;
}

void kva_kv_choice_write_k(const struct kva_kv_choice *choice, char *text)
{
    int used = snprintf(text, KVA_KV_K_TEXT_MAX, "%u", choice->k);
    for (uint32_t i = 0; i < choice->k_range_count; i++) {
        const struct kva_kv_k_range *range = &choice->k_ranges[i];
        used += snprintf(text + used, KVA_KV_K_TEXT_MAX - (size_t)used, "+%u@%u", range->k,
                         range->first);
        if (range->end > range->first + 1)
            used += snprintf(text + used, KVA_KV_K_TEXT_MAX - (size_t)used, "-%u", range->end - 1);
    }
}

/* --- a choice from one line ------------------------------------------------------------------ */

#define PAPER "paper"

/* One part of a line, between colons. */
struct part {
    const char *name; /* NULL: a bare number */
    size_t name_length;
    const char *value;
    size_t value_length;
};

static bool is(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(text, word, length) == 0;
}

/* The part that begins at *at, which then stands at the next one or at the end. */
static struct part next_part(const char **at)
{
    const char *text = *at;
    size_t length = strcspn(text, ":"), name = strcspn(text, ":=");
    *at = text + length + (text[length] == ':');
    if (name == length)
        return (struct part){.value = text, .value_length = length};
    return (struct part){text, name, text + name + 1, length - name - 1};
}

static enum kva_status read_number(const struct kva_kv_setting *setting, const struct part *part,
                                   uint32_t *ret, struct kva_err *err)
{
    uint64_t number = 0;
    size_t digits = strspn(part->value, "0123456789");
    for (size_t i = 0; i < digits && number <= setting->max; i++)
        number = number * 10 + (uint64_t)(part->value[i] - '0');
    if (part->value_length == 0 || digits < part->value_length || number < setting->min ||
        number > setting->max)
        return kva_fail_param(
            err, KVA_EINVAL, setting->name, "%s is '%.*s', it must be a whole number from %u to %u",
            setting->name, (int)part->value_length, part->value, setting->min, setting->max);
    *ret = (uint32_t)number;
    return KVA_OK;
}

static enum kva_status read_word(const struct kva_kv_setting *setting, const struct part *part,
                                 uint32_t *ret, struct kva_err *err)
{
    char known[128] = "";
    size_t used = 0;
    for (uint32_t i = 0; setting->words[i]; i++) {
        if (is(part->value, part->value_length, setting->words[i])) {
            *ret = i;
            return KVA_OK;
        }
        int wrote = snprintf(known + used, sizeof(known) - used, "%s%s", used ? ", " : "",
                             setting->words[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return kva_fail_param(err, KVA_EINVAL, setting->name, "%s is '%.*s', it must be one of: %s",
                          setting->name, (int)part->value_length, part->value, known);
}

static enum kva_status unknown_part(const struct part *part, struct kva_err *err)
{
    char known[256] = PAPER;
    size_t used = strlen(known);
    for (size_t i = 0; i < KVA_COUNT_OF(settings) && used < sizeof(known); i++) {
        int wrote = snprintf(known + used, sizeof(known) - used, ", %s", settings[i].name);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return kva_fail_param(err, KVA_EINVAL, "policy", "'%.*s' is no setting; there are: %s",
                          (int)part->name_length, part->name, known);
}

static enum kva_status read_paper(const struct part *part, bool *ret, struct kva_err *err)
{
    *ret = is(part->value, part->value_length, "true");
    if (!*ret && !is(part->value, part->value_length, "false"))
        return kva_fail_param(err, KVA_EINVAL, PAPER, PAPER " is '%.*s', it must be true or false",
                              (int)part->value_length, part->value);
    return KVA_OK;
}

/* The first two settings need no names, as long as none before them has one. */
static enum kva_status name_bare(struct part *part, size_t index, struct kva_err *err)
{
    static const char *const bare[] = {"bits", "topk"};
    if (part->name)
        return KVA_OK;
    if (index >= KVA_COUNT_OF(bare))
        return kva_fail_param(err, KVA_EINVAL, "policy",
                              "'%.*s' has no name: only bits and topk may stand without theirs, "
                              "before all others, which are NAME=VALUE",
                              (int)part->value_length, part->value);
    part->name = bare[index];
    part->name_length = strlen(bare[index]);
    return KVA_OK;
}

/* One part's value, in `choice` or *ret_paper. *seen: bit i for setting i, the next one for paper.
 */
static enum kva_status read_part(const struct part *part, struct kva_kv_choice *choice,
                                 bool *ret_paper, uint32_t *seen, struct kva_err *err)
{
    size_t i = 0;
    while (i < KVA_COUNT_OF(settings) && !is(part->name, part->name_length, settings[i].name))
        i++;
    if (i == KVA_COUNT_OF(settings) && !is(part->name, part->name_length, PAPER))
        return unknown_part(part, err);
    if (*seen & 1u << i)
        return kva_fail_param(err, KVA_EINVAL, "policy", "%.*s is given twice",
                              (int)part->name_length, part->name);
    *seen |= 1u << i;
    if (i == KVA_COUNT_OF(settings))
        return read_paper(part, ret_paper, err);
    uint32_t *value = kva_kv_setting_value(&settings[i], choice);
    if (settings[i].by_layer)
        return kva_kv_choice_read_k(part->value, part->value_length, settings[i].max, choice, err);
    return settings[i].words ? read_word(&settings[i], part, value, err)
                             : read_number(&settings[i], part, value, err);
}

/* All parts from `at` on. */
static enum kva_status read_parts(const char *at, struct kva_kv_choice *choice, bool *ret_paper,
                                  struct kva_err *err)
{
    uint32_t seen = 0;
    size_t bare = 0;
    enum kva_status status = KVA_OK;
    while (*at && !status) {
        struct part part = next_part(&at);
        bare = part.name ? SIZE_MAX : bare;
        status = name_bare(&part, bare, err);
        if (!status)
            status = read_part(&part, choice, ret_paper, &seen, err);
        bare += bare != SIZE_MAX;
    }
    return status;
}

static enum kva_status parse(const char *spec, struct kva_kv_choice *ret, struct kva_err *err)
{
    size_t length = strcspn(spec, ":");
    uint32_t id = 0;
    while (id < KVA_KV_POLICY_COUNT && !is(spec, length, policy_names[id]))
        id++;
    if (id == KVA_KV_POLICY_COUNT)
        return kva_fail_param(err, KVA_EINVAL, "policy",
                              "there is no such policy; there are full, offload, kivi, specache");
    if (spec[strlen(spec) - 1] == ':')
        return kva_fail_param(err, KVA_EINVAL, "policy", "nothing follows the last colon");
    /* What the settings start from may be said behind them: they are read twice. */
    const char *at = spec + length + (spec[length] == ':');
    struct kva_kv_choice choice = kva_kv_choice_default((enum kva_kv_policy_id)id);
    bool paper = false;
    enum kva_status status = read_parts(at, &choice, &paper, err);
    if (!status && paper) {
        choice = kva_kv_choice_paper((enum kva_kv_policy_id)id);
        status = read_parts(at, &choice, &paper, err);
    }
    if (!status)
        status = kva_kv_choice_check(&choice, err);
    if (!status)
        *ret = choice;
    return status;
}

enum kva_status kva_kv_choice_parse(const char *spec, struct kva_kv_choice *ret,
                                    struct kva_err *err)
{
    struct kva_err why;
    enum kva_status status = parse(spec, ret, &why);
    if (!status)
        return KVA_OK;
    return kva_fail_param(err, status, why.param, "'%s': %s", spec, why.message);
}
