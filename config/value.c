/* value.c - from the text of a value to the field it belongs in. */
#include "config/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void *field(struct kva_config *config, const struct kva_option *option)
{
    return (unsigned char *)config + option->offset;
}

static enum kva_status wrong(const struct kva_option *option, const char *value, const char *origin,
                             struct kva_err *err, const char *want)
{
    return kva_fail_param(err, KVA_EINVAL, option->name, "%s is '%.100s', expected %s", origin,
                          value, want);
}

/* Numbers are shown as people write them: 16384, 0.5, not 1.6384e+04. */
static void describe_range(const struct kva_option *option, char *text, size_t size)
{
    const char *what = option->kind == KVA_OPTION_NUMBER     ? "a number"
                       : option->kind == KVA_OPTION_BYTES    ? "bytes (K, M, G, T allowed)"
                       : option->kind == KVA_OPTION_DURATION ? "a duration (ms, s, m, h) in ms"
                                                             : "a whole number";
    snprintf(text, size, "%s from %.15g to %.15g", what, option->min, option->max);
}

static enum kva_status set_string(char **at, const char *value, struct kva_err *err)
{
    char *copy = strdup(value);
    if (!copy)
        return kva_fail(err, KVA_ENOMEM, "out of memory for options");
    free(*at);
    *at = copy;
    return KVA_OK;
}

static enum kva_status set_list(struct kva_string_list *list, const struct kva_option *option,
                                const char *value, const char *origin, struct kva_err *err)
{
    if (list->count == KVA_LIST_MAX)
        return kva_fail_param(err, KVA_EINVAL, option->name, "%s is given more than %u times",
                              origin, KVA_LIST_MAX);
    char *copy = strdup(value);
    if (!copy)
        return kva_fail(err, KVA_ENOMEM, "out of memory for options");
    list->items[list->count++] = copy;
    return KVA_OK;
}

static enum kva_status set_bool(bool *at, const struct kva_option *option, const char *value,
                                const char *origin, struct kva_err *err)
{
    static const char *const yes[] = {"true", "on", "yes", "1"};
    static const char *const no[] = {"false", "off", "no", "0"};
    for (size_t i = 0; i < KVA_COUNT_OF(yes); i++) {
        if (strcmp(value, yes[i]) == 0 || strcmp(value, no[i]) == 0) {
            *at = strcmp(value, yes[i]) == 0;
            return KVA_OK;
        }
    }
    return wrong(option, value, origin, err, "true or false");
}

static enum kva_status set_choice(uint32_t *at, const struct kva_option *option, const char *value,
                                  const char *origin, struct kva_err *err)
{
    struct kva_buf words;
    kva_buf_init(&words, 256);
    kva_buf_puts(&words, "one of");
    for (uint32_t i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], value) == 0) {
            *at = i;
            kva_buf_finish(&words);
            return KVA_OK;
        }
        kva_buf_printf(&words, "%s %s", i ? "," : "", option->choices[i]);
    }
    enum kva_status status =
        wrong(option, value, origin, err, words.data ? words.data : "another word");
    kva_buf_finish(&words);
    return status;
}

/* What a number's suffix multiplies it by; 0: not a suffix of this kind. */
static double unit(enum kva_option_kind kind, const char *suffix)
{
    static const struct {
        enum kva_option_kind kind;
        const char *suffix;
        double factor;
    } units[] = {
        {KVA_OPTION_BYTES, "K", 1024.0},       {KVA_OPTION_BYTES, "M", 1048576.0},
        {KVA_OPTION_BYTES, "G", 1073741824.0}, {KVA_OPTION_BYTES, "T", 1099511627776.0},
        {KVA_OPTION_DURATION, "ms", 1},        {KVA_OPTION_DURATION, "s", 1000},
        {KVA_OPTION_DURATION, "m", 60000},     {KVA_OPTION_DURATION, "h", 3600000},
    };
    if (!*suffix)
        return 1;
    char base[8] = {0};
    size_t length = strlen(suffix);
    /* "GiB" and "GB" are G: people write both and mean this. */
    if (kind == KVA_OPTION_BYTES && length > 1 && length <= 3 && suffix[length - 1] == 'B')
        length = 1;
    if (length >= sizeof(base))
        return 0;
    memcpy(base, suffix, length);
    for (size_t i = 0; i < KVA_COUNT_OF(units); i++) {
        if (units[i].kind == kind && strcasecmp(units[i].suffix, base) == 0)
            return units[i].factor;
    }
    return 0;
}

static enum kva_status parse_number(const struct kva_option *option, const char *value,
                                    const char *origin, double *ret, struct kva_err *err)
{
    char want[160];
    char *end;
    describe_range(option, want, sizeof(want));
    errno = 0;
    double number = strtod(value, &end);
    if (end == value || !isfinite(number) || strpbrk(value, "xXnN"))
        return wrong(option, value, origin, err, want);
    double factor = unit(option->kind, end);
    bool has_unit = option->kind == KVA_OPTION_BYTES || option->kind == KVA_OPTION_DURATION;
    if (factor == 0 || (*end && !has_unit))
        return wrong(option, value, origin, err, want);
    number *= factor;
    bool whole = option->kind != KVA_OPTION_NUMBER;
    if (number < option->min || number > option->max || (whole && number != floor(number)))
        return wrong(option, value, origin, err, want);
    *ret = number;
    return KVA_OK;
}

enum kva_status kva_config_set(struct kva_config *config, const struct kva_option *option,
                               const char *value, const char *origin, struct kva_err *err)
{
    void *at = field(config, option);
    double number = 0;
    enum kva_status status = KVA_OK;
    switch (option->kind) {
    case KVA_OPTION_STRING:
        return set_string(at, value, err);
    case KVA_OPTION_SECRET:
        return *value ? set_string(at, value, err) : KVA_OK;
    case KVA_OPTION_LIST:
    case KVA_OPTION_SECRETS:
        return set_list(at, option, value, origin, err);
    case KVA_OPTION_BOOL:
        return set_bool(at, option, value, origin, err);
    case KVA_OPTION_CHOICE:
        return set_choice(at, option, value, origin, err);
    default:
        status = parse_number(option, value, origin, &number, err);
        break;
    }
    if (status)
        return status;
    if (option->kind == KVA_OPTION_NUMBER)
        *(double *)at = number;
    else if (option->kind == KVA_OPTION_INT)
        *(int64_t *)at = (int64_t)number;
    else
        *(uint64_t *)at = (uint64_t)number;
    return KVA_OK;
}
