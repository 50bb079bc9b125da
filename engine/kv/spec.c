/* spec.c - specs from text: values, settings by name, one line. */
#include "engine/kv/spec.h"

#include "engine/kv/policy.h"

#include <stdio.h>
#include <string.h>

/* Names that clients learned before 0.2. */
static const struct {
    const char *old, *name;
} renamed[] = {{"plain", "min_tokens"},
               {"exempt", "skip_layers"},
               {"correct", "reselect_below"},
               {"miss", "on_mispredict"}};

static const struct {
    const char *setting, *old, *word;
} renamed_words[] = {{"levels", "paper", "minmax"}, {"levels", "fit", "mse"}};

/* --- values ---------------------------------------------------------------------------------- */

/* "a, b or c": further words are dropped where the text is full. */
struct words {
    char text[256];
    size_t used;
};

static void add_word(struct words *words, const char *word)
{
    int wrote = snprintf(words->text + words->used, sizeof(words->text) - words->used, "%s%s",
                         words->used ? ", " : "", word);
    if (wrote > 0)
        words->used = kva_min_size(words->used + (size_t)wrote, sizeof(words->text) - 1);
}

static bool is_among(const uint32_t *among, uint32_t value)
{
    while (*among && *among != value)
        among++;
    return *among != 0;
}

static bool number_fits(const struct kva_kv_setting *setting, uint64_t value)
{
    return value >= setting->min && value <= setting->max &&
           (setting->multiple_of == 0 || value % setting->multiple_of == 0) &&
           (!setting->among || is_among(setting->among, (uint32_t)value));
}

static bool amount_fits(const struct kva_kv_setting *setting, uint32_t value)
{
    bool percent = value & KVA_KV_PERCENT;
    return percent ? (value & ~KVA_KV_PERCENT) <= 100 : number_fits(setting, value);
}

/* "1, 2, 4", or "a whole number from 0 to 32", or the words. */
static struct words describe(const struct kva_kv_setting *setting)
{
    struct words words = {.used = 0};
    char text[96];
    for (size_t i = 0; setting->words && setting->words[i]; i++)
        add_word(&words, setting->words[i]);
    for (size_t i = 0; setting->among && setting->among[i]; i++) {
        snprintf(text, sizeof(text), "%u", setting->among[i]);
        add_word(&words, text);
    }
    if (words.used > 0)
        return words;
    const bool either = kva_kv_setting_is_either(setting);
    int wrote = snprintf(text, sizeof(text), either ? "%u or %u" : "a whole number from %u to %u",
                         setting->min, setting->max);
    if (setting->multiple_of > 0 && !either)
        snprintf(text + wrote, sizeof(text) - (size_t)wrote, " that is a multiple of %u",
                 setting->multiple_of);
    if (kva_kv_setting_is_amount(setting))
        snprintf(text + wrote, sizeof(text) - (size_t)wrote, ", or from 0%% to 100%% of the %s",
                 setting->kind == KVA_SETTING_AMOUNT ? "prompt" : "tokens");
    add_word(&words, text);
    return words;
}

static enum kva_status bad_value(const struct kva_kv_setting *setting, const char *value,
                                 struct kva_err *err)
{
    for (size_t i = 0; i < KVA_COUNT_OF(renamed_words); i++) {
        if (strcmp(renamed_words[i].setting, setting->name) == 0 &&
            strcmp(renamed_words[i].old, value) == 0)
            return kva_fail_param(err, KVA_EINVAL, setting->name, "%s '%s' is called '%s' now",
                                  setting->name, value, renamed_words[i].word);
    }
    struct words words = describe(setting);
    bool listed = setting->words || setting->among;
    return kva_fail_param(err, KVA_EINVAL, setting->name, "%s is '%.100s', it must be %s%s",
                          setting->name, value, listed ? "one of: " : "", words.text);
}

static enum kva_status read_number(const struct kva_kv_setting *setting, const char *value,
                                   uint32_t *ret, struct kva_err *err)
{
    uint64_t number = 0;
    size_t digits = strspn(value, "0123456789");
    for (size_t i = 0; i < digits && number <= setting->max; i++)
        number = number * 10 + (uint64_t)(value[i] - '0');
    if (digits == 0 || value[digits] || !number_fits(setting, number))
        return bad_value(setting, value, err);
    *ret = (uint32_t)number;
    return KVA_OK;
}

/* A number, or percent. */
static enum kva_status read_amount(const struct kva_kv_setting *setting, const char *value,
                                   uint32_t *ret, struct kva_err *err)
{
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || digits > 3 || strcmp(value + digits, "%") != 0)
        return read_number(setting, value, ret, err);
    uint32_t percent = 0;
    for (size_t i = 0; i < digits; i++)
        percent = percent * 10 + (uint32_t)(value[i] - '0');
    if (percent > 100)
        return bad_value(setting, value, err);
    *ret = KVA_KV_PERCENT | percent;
    return KVA_OK;
}

static enum kva_status read_word(const struct kva_kv_setting *setting, const char *value,
                                 uint32_t *ret, struct kva_err *err)
{
    for (uint32_t i = 0; setting->words[i]; i++) {
        if (strcmp(setting->words[i], value) == 0) {
            *ret = i;
            return KVA_OK;
        }
    }
    return bad_value(setting, value, err);
}

enum kva_status kva_kv_spec_check(const struct kva_kv_spec *spec, struct kva_err *err)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    if (!policy)
        return kva_fail_param(err, KVA_EINVAL, "kv.policy", "no KV policy has the number %u",
                              (unsigned)spec->policy);
    struct kva_kv_spec copy = *spec;
    for (size_t i = 0; i < policy->setting_count; i++) {
        const struct kva_kv_setting own = kva_kv_setting_of(&policy->settings[i]);
        const struct kva_kv_setting *setting = &own;
        uint32_t value = *kva_kv_setting_value(setting, &copy);
        if (setting->kind == KVA_SETTING_BY_LAYER)
            value = kva_kv_spec_k_max(spec);
        uint32_t words = 0;
        while (setting->words && setting->words[words])
            words++;
        bool fits = kva_kv_setting_is_amount(setting) ? amount_fits(setting, value)
                    : setting->words                  ? value < words
                                                      : number_fits(setting, value);
        if (fits)
            continue;
        char text[16];
        snprintf(text, sizeof(text), "%u", value);
        return bad_value(setting, text, err);
    }
    if (kva_kv_policy_has_setting(policy, KVA_SETTING_VALUE_BITS) && spec->value_bits > 0 &&
        spec->bits != 1)
        return kva_fail_param(err, KVA_EINVAL, "value_bits",
                              "value_bits is %u, which goes with bits 1, not %u", spec->value_bits,
                              spec->bits);
    return KVA_OK;
}

/* --- settings by name ------------------------------------------------------------------------ */

#define PAPER "paper"

static enum kva_kv_setting_id id_of(const struct kva_kv_setting *setting)
{
    return (enum kva_kv_setting_id)(setting - kva_kv_setting_at(0));
}

static enum kva_status no_setting(const struct kva_kv_policy *policy, const char *name,
                                  struct kva_err *err)
{
    for (size_t i = 0; i < KVA_COUNT_OF(renamed); i++) {
        if (strcmp(renamed[i].old, name) == 0)
            return kva_fail_param(err, KVA_EINVAL, name, "'%s' is called '%s' now", name,
                                  renamed[i].name);
    }
    struct words words = {.used = 0};
    const struct kva_kv_setting *setting = kva_kv_setting_find(name);
    for (uint32_t id = 0; setting && id < KVA_KV_POLICY_COUNT; id++) {
        const struct kva_kv_policy *other = kva_kv_policy_get((enum kva_kv_policy_id)id);
        if (kva_kv_policy_has_setting(other, id_of(setting)))
            add_word(&words, other->name);
    }
    if (setting)
        return kva_fail_param(err, KVA_EINVAL, name,
                              "policy '%s' has no setting '%s'; policies that have it: %s",
                              policy->name, name, words.text);
    for (size_t i = 0; i < policy->setting_count; i++)
        add_word(&words, kva_kv_setting_at(policy->settings[i].id)->name);
    return kva_fail_param(err, KVA_EINVAL, "policy",
                          "'%.60s' is no setting; policy '%s' has: %s%s%s", name, policy->name,
                          PAPER, words.used ? ", " : "", words.text);
}

/* NULL: the policy has no setting of that name. */
static const struct kva_kv_policy_setting *find_own(const struct kva_kv_policy *policy,
                                                    const char *name)
{
    for (size_t i = 0; i < policy->setting_count; i++) {
        if (strcmp(kva_kv_setting_at(policy->settings[i].id)->name, name) == 0)
            return &policy->settings[i];
    }
    return NULL;
}

enum kva_status kva_kv_spec_set(struct kva_kv_spec *spec, const char *name, const char *value,
                                struct kva_err *err)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    const struct kva_kv_policy_setting *own = find_own(policy, name);
    if (!own)
        return no_setting(policy, name, err);
    const struct kva_kv_setting as_policy = kva_kv_setting_of(own), *setting = &as_policy;
    uint32_t *at = kva_kv_setting_value(setting, spec);
    switch (setting->kind) {
    case KVA_SETTING_NUMBER:
        return read_number(setting, value, at, err);
    case KVA_SETTING_AMOUNT:
    case KVA_SETTING_SHARE:
        return read_amount(setting, value, at, err);
    case KVA_SETTING_WORD:
        return read_word(setting, value, at, err);
    case KVA_SETTING_BY_LAYER:
        return kva_kv_spec_read_k(value, strlen(value), setting->max, spec, err);
    }
    return KVA_OK;
}

/* --- a spec from one line -------------------------------------------------------------------- */

#define PART_MAX 160u

/* One part of a line, between colons. */
struct part {
    bool bare; /* a value without a name */
    char name[PART_MAX];
    char value[PART_MAX];
};

/* The part that begins at *at, which then stands at the next one or at the end. False: too long. */
static bool next_part(const char **at, struct part *ret)
{
    const char *text = *at;
    size_t length = strcspn(text, ":"), name = strcspn(text, ":=");
    size_t value = name < length ? name + 1 : 0;
    *at = text + length + (text[length] == ':');
    if (length >= PART_MAX)
        return false;
    ret->bare = name == length;
    snprintf(ret->name, sizeof(ret->name), "%.*s", name < length ? (int)name : 0, text);
    snprintf(ret->value, sizeof(ret->value), "%.*s", (int)(length - value), text + value);
    return true;
}

static enum kva_status read_paper(const char *value, bool *ret, struct kva_err *err)
{
    *ret = strcmp(value, "true") == 0;
    if (!*ret && strcmp(value, "false") != 0)
        return kva_fail_param(err, KVA_EINVAL, PAPER,
                              PAPER " is '%.100s', it must be true or false", value);
    return KVA_OK;
}

/* The first two settings need no names, as long as none before them has one. */
static const char *const bare[] = {"bits", "topk"};

struct line {
    struct kva_kv_spec spec;
    bool paper;
    char seen[KVA_SETTING_COUNT + 2][32];
    uint32_t seen_count;
    bool named; /* a part had a name */
};

static enum kva_status note_seen(struct line *line, const char *name, struct kva_err *err)
{
    for (uint32_t i = 0; i < line->seen_count; i++) {
        if (strcmp(line->seen[i], name) == 0)
            return kva_fail_param(err, KVA_EINVAL, "policy", "%s is given twice", name);
    }
    snprintf(line->seen[line->seen_count++], sizeof(line->seen[0]), "%.31s", name);
    return KVA_OK;
}

static enum kva_status read_part(struct line *line, struct part *part, uint32_t index,
                                 struct kva_err *err)
{
    if (part->bare && (line->named || index >= KVA_COUNT_OF(bare)))
        return kva_fail_param(err, KVA_EINVAL, "policy",
                              "'%.100s' has no name: only bits and topk may stand without theirs, "
                              "before all others, which are NAME=VALUE",
                              part->value);
    line->named |= !part->bare;
    const char *name = part->bare ? bare[index] : part->name;
    enum kva_status status = KVA_OK;
    if (strcmp(name, PAPER) == 0)
        status = read_paper(part->value, &line->paper, err);
    else
        status = kva_kv_spec_set(&line->spec, name, part->value, err);
    return status ? status : note_seen(line, name, err);
}

static enum kva_status read_parts(const char *at, struct line *line, struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; *at && !status; i++) {
        struct part part;
        if (!next_part(&at, &part))
            return kva_fail_param(err, KVA_EINVAL, "policy", "a setting is longer than %u bytes",
                                  PART_MAX - 1);
        status = read_part(line, &part, i, err);
    }
    return status;
}

static enum kva_status unknown_policy(struct kva_err *err)
{
    struct words words = {.used = 0};
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        add_word(&words, kva_kv_policy_name((enum kva_kv_policy_id)id));
    return kva_fail_param(err, KVA_EINVAL, "policy", "there is no such policy; there are %s",
                          words.text);
}

static enum kva_status parse(const char *text, const struct kva_kv_spec *bases,
                             struct kva_kv_spec *ret, struct kva_err *err)
{
    char name[PART_MAX];
    size_t length = strcspn(text, ":");
    snprintf(name, sizeof(name), "%.*s", (int)kva_min_size(length, PART_MAX - 1), text);
    enum kva_kv_policy_id id = kva_kv_policy_find(name);
    if (id == KVA_KV_POLICY_COUNT)
        return unknown_policy(err);
    if (text[strlen(text) - 1] == ':')
        return kva_fail_param(err, KVA_EINVAL, "policy", "nothing follows the last colon");
    /* What the settings start from may be said behind them: they are read twice. */
    const char *at = text + length + (text[length] == ':');
    struct line line = {.spec = bases ? bases[id] : kva_kv_spec_default(id)};
    enum kva_status status = read_parts(at, &line, err);
    if (!status && line.paper) {
        line = (struct line){.spec = kva_kv_spec_paper(id)};
        status = read_parts(at, &line, err);
    }
    if (!status)
        status = kva_kv_spec_check(&line.spec, err);
    if (!status)
        *ret = line.spec;
    return status;
}

enum kva_status kva_kv_spec_parse(const char *text, const struct kva_kv_spec *bases,
                                  struct kva_kv_spec *ret, struct kva_err *err)
{
    struct kva_err why;
    enum kva_status status = parse(text, bases, ret, &why);
    if (!status)
        return KVA_OK;
    return kva_fail_param(err, status, why.param, "'%.200s': %s", text, why.message);
}

enum kva_status kva_kv_spec_parse_list(char *const *lines, uint32_t count,
                                       struct kva_kv_spec *specs,
                                       enum kva_kv_policy_id *ret_default, struct kva_err *err)
{
    uint32_t named = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct kva_kv_spec spec;
        enum kva_status status = kva_kv_spec_parse(lines[i], specs, &spec, err);
        if (status)
            return status;
        if (named & 1u << spec.policy)
            return kva_fail_param(err, KVA_EINVAL, "policy", "'%.200s': policy %s is given twice",
                                  lines[i], kva_kv_policy_name(spec.policy));
        named |= 1u << spec.policy;
        specs[spec.policy] = spec;
        if (i == 0)
            *ret_default = spec.policy;
    }
    return KVA_OK;
}
