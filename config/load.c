/* load.c - from the sources, in their order of precedence, to a config. */
#include "config/options.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX  (1u << 20)
#define NAME_MAX_LENGTH 40u
/* Wrong letters of a name that is still taken for an option's. */
#define DISTANCE_MAX 2u

/* Which options a source of higher precedence has set already. */
struct loader {
    struct kva_config *config;
    const struct kva_config_sources *sources;
    const struct kva_option *options;
    size_t count;
    bool set[192];
    bool in_file[192]; /* met in the configuration file */
};

enum kva_status kva_config_init(struct kva_config *config, struct kva_err *err)
{
    size_t count;
    const struct kva_option *options = kva_options(&count);
    *config = (struct kva_config){0};
    for (size_t i = 0; i < count; i++) {
        if (!options[i].fallback)
            continue;
        enum kva_status status =
            kva_config_set(config, &options[i], options[i].fallback, options[i].name, err);
        if (status)
            return status;
    }
    return KVA_OK;
}

void kva_config_finish(struct kva_config *config)
{
    size_t count;
    const struct kva_option *options = kva_options(&count);
    for (size_t i = 0; i < count; i++) {
        unsigned char *at = (unsigned char *)config + options[i].offset;
        if (options[i].kind == KVA_OPTION_STRING || options[i].kind == KVA_OPTION_SECRET) {
            char **text = (char **)(void *)at;
            free(*text);
            *text = NULL;
        } else if (options[i].kind == KVA_OPTION_LIST || options[i].kind == KVA_OPTION_SECRETS) {
            struct kva_string_list *list = (struct kva_string_list *)(void *)at;
            while (list->count > 0)
                free(list->items[--list->count]);
        }
    }
}

/* Whether `name` (length `length`, '_' is '-') is `option`. */
static bool names_option(const char *option, const char *name, size_t length)
{
    size_t i = 0;
    while (i < length && option[i] &&
           (option[i] == name[i] || (option[i] == '-' && name[i] == '_')))
        i++;
    return i == length && !option[i];
}

/* Option of this command with that name; -1: none. */
static int find_option(const struct loader *loader, const char *name, size_t length)
{
    for (size_t i = 0; i < loader->count; i++) {
        const struct kva_option *option = &loader->options[i];
        if ((option->commands & loader->sources->command) &&
            names_option(option->name, name, length))
            return (int)i;
    }
    return -1;
}

static bool known_elsewhere(const struct loader *loader, const char *name)
{
    struct loader any = *loader;
    struct kva_config_sources sources = *loader->sources;
    any.sources = &sources;
    for (uint32_t bit = 1; bit <= KVA_CMD_LAST; bit <<= 1) {
        sources.command = (enum kva_command)bit;
        if (find_option(&any, name, strlen(name)) >= 0)
            return true;
    }
    return false;
}

/* --- command line ---------------------------------------------------------------------------- */

/* Options that --kv has replaced. */
static const char *const retired[] = {
    "kv-policy", "kv-paper",  "kv-bits", "kv-group",     "kv-levels",  "kv-window", "kv-sinks",
    "kv-plain",  "kv-exempt", "kv-topk", "kv-predictor", "kv-correct", "kv-fetch",  "kv-miss",
};

/* Whether `name` (length `length`) is one of them. */
static bool is_retired(const char *name, size_t length)
{
    for (size_t i = 0; i < KVA_COUNT_OF(retired); i++) {
        if (names_option(retired[i], name, length))
            return true;
    }
    return false;
}

static enum kva_status retired_option(const char *origin, struct kva_err *err)
{
    return kva_fail_param(err, KVA_EINVAL, "kv",
                          "%.100s: KV settings are now given as kv POLICY:SETTING=VALUE, such as "
                          "--kv specache:bits=1:topk=64",
                          origin);
}

/* Letters to put in, leave out, replace or swap with their neighbour to make `b` of `a` (length
 * `length`); more than DISTANCE_MAX counts as that many and one. */
static unsigned distance(const char *a, size_t length, const char *b)
{
    unsigned rows[3][NAME_MAX_LENGTH + 1];
    size_t columns = strlen(b);
    if (length > NAME_MAX_LENGTH || columns > NAME_MAX_LENGTH)
        return DISTANCE_MAX + 1;
    for (size_t i = 0; i <= length; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= columns; j++) {
            if (i == 0) {
                row[j] = (unsigned)j;
                continue;
            }
            unsigned same = above[j - 1] + (a[i - 1] != b[j - 1]);
            unsigned other = 1 + (above[j] < row[j - 1] ? above[j] : row[j - 1]);
            row[j] = same < other ? same : other;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
    }
    return rows[length % 3][columns];
}

/* The option of this command that was probably meant, of a name with few wrong letters; NULL. */
static const char *near_option(const struct loader *loader, const char *name, size_t length)
{
    const char *nearest = NULL;
    unsigned least = length < 4 ? 2 : DISTANCE_MAX + 1;
    for (size_t i = 0; i < loader->count; i++) {
        const struct kva_option *option = &loader->options[i];
        unsigned far = distance(name, length, option->name);
        if ((option->commands & loader->sources->command) && far < least) {
            nearest = option->name;
            least = far;
        }
    }
    return nearest;
}

static enum kva_status unknown_flag(const struct loader *loader, const char *flag,
                                    struct kva_err *err)
{
    const char *near = NULL;
    if (strncmp(flag, "--", 2) == 0) {
        size_t length = strcspn(flag + 2, "=");
        if (is_retired(flag + 2, length))
            return retired_option(flag, err);
        near = near_option(loader, flag + 2, length);
    }
    return kva_fail(err, KVA_EINVAL, "unknown option '%.100s'%s%s%s; --help lists the options",
                    flag, near ? " (is --" : "", near ? near : "", near ? " meant?)" : "");
}

/* What an argument that begins with "--" says. */
struct flag {
    int option;        /* its index; -1: none of this command */
    bool is_file;      /* --config */
    const char *value; /* in the same argument, or told by the option alone; NULL: in the next */
};

static struct flag parse_flag(const struct loader *loader, const char *argument)
{
    const char *name = argument + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    struct flag flag = {.option = find_option(loader, name, length),
                        .is_file = length == 6 && strncmp(name, "config", 6) == 0,
                        .value = equals ? equals + 1 : NULL};
    if (flag.option >= 0 && loader->options[flag.option].kind == KVA_OPTION_BOOL && !equals)
        flag.value = "true";
    if (flag.option >= 0 || equals || strncmp(name, "no-", 3) != 0)
        return flag;
    int negated = find_option(loader, name + 3, length - 3);
    if (negated >= 0 && loader->options[negated].kind == KVA_OPTION_BOOL)
        flag = (struct flag){.option = negated, .value = "false"};
    return flag;
}

/* The value of `flag` in the argument behind it. What is an option is taken for one: otherwise a
 * forgotten value goes unnoticed, and a file gets the option's name. */
static enum kva_status next_value(const struct loader *loader, const char *flag, int *index,
                                  const char **ret, struct kva_err *err)
{
    if (*index + 1 >= loader->sources->argc)
        return kva_fail(err, KVA_EINVAL, "%s wants a value", flag);
    const char *value = loader->sources->argv[*index + 1];
    struct flag other = {.option = -1};
    if (strncmp(value, "--", 2) == 0)
        other = parse_flag(loader, value);
    if (other.option >= 0 || other.is_file)
        return kva_fail(err, KVA_EINVAL,
                        "%s wants a value, '%.100s' is an option (%s=%.100s if it is meant)", flag,
                        value, flag, value);
    ++*index;
    *ret = value;
    return KVA_OK;
}

void kva_option_variable(const char *option, char *name, size_t size)
{
    int length = snprintf(name, size, "KVAHEAD_%s", option);
    for (int i = 8; i < length; i++)
        name[i] = name[i] == '-' ? '_' : (char)toupper((unsigned char)name[i]);
}

static enum kva_status no_flag(const struct loader *loader, const struct kva_option *option,
                               struct kva_err *err)
{
    char variable[80], file[80];
    kva_option_variable(option->name, variable, sizeof(variable));
    int length = snprintf(file, sizeof(file), "%s-file", option->name);
    bool has_file = find_option(loader, file, (size_t)length) >= 0;
    return kva_fail_param(err, KVA_EINVAL, option->name,
                          "--%s is no flag: everybody on this machine could read it in the list "
                          "of processes; use %s%s%sthe environment variable %s",
                          option->name, has_file ? "--" : "", has_file ? file : "",
                          has_file ? " FILE or " : "", variable);
}

/* One flag, its value in the same or in the next argument. */
static enum kva_status read_flag(struct loader *loader, int *index, char **ret_file,
                                 struct kva_err *err)
{
    const char *argument = loader->sources->argv[*index];
    struct flag flag = parse_flag(loader, argument);
    if (flag.option < 0 && !flag.is_file)
        return unknown_flag(loader, argument, err);
    if (flag.option >= 0 && (loader->options[flag.option].kind == KVA_OPTION_SECRET ||
                             loader->options[flag.option].kind == KVA_OPTION_SECRETS))
        return no_flag(loader, &loader->options[flag.option], err);
    enum kva_status status = KVA_OK;
    if (!flag.value)
        status = next_value(loader, argument, index, &flag.value, err);
    if (status)
        return status;
    if (flag.is_file) {
        *ret_file = (char *)(uintptr_t)flag.value;
        return KVA_OK;
    }
    char origin[80];
    snprintf(origin, sizeof(origin), "--%s", loader->options[flag.option].name);
    loader->set[flag.option] = true;
    return kva_config_set(loader->config, &loader->options[flag.option], flag.value, origin, err);
}

static enum kva_status read_arguments(struct loader *loader, struct kva_string_list *ret_rest,
                                      char **ret_file, struct kva_err *err)
{
    bool only_rest = false;
    for (int i = 0; i < loader->sources->argc; i++) {
        char *argument = loader->sources->argv[i];
        if (!only_rest && strcmp(argument, "--") == 0) {
            only_rest = true;
        } else if (!only_rest && strncmp(argument, "--", 2) == 0) {
            enum kva_status status = read_flag(loader, &i, ret_file, err);
            if (status)
                return status;
        } else if (!only_rest && argument[0] == '-' && argument[1]) {
            return unknown_flag(loader, argument, err);
        } else if (ret_rest->count == KVA_LIST_MAX) {
            return kva_fail(err, KVA_EINVAL, "more than %u arguments", KVA_LIST_MAX);
        } else {
            ret_rest->items[ret_rest->count++] = argument;
        }
    }
    return KVA_OK;
}

/* --- environment ----------------------------------------------------------------------------- */

/* Values with commas between; empty ones, as behind a last comma, are none. A variable of commas
 * alone is what a script makes of others that are not set: it must not mean "no key". */
static enum kva_status set_several(struct kva_config *config, const struct kva_option *option,
                                   const char *value, const char *name, struct kva_err *err)
{
    char *copy = strdup(value);
    char *save = NULL;
    if (!copy)
        return kva_fail(err, KVA_ENOMEM, "out of memory for options");
    enum kva_status status = KVA_OK;
    for (char *one = strtok_r(copy, ",", &save); one && !status; one = strtok_r(NULL, ",", &save))
        status = kva_config_set(config, option, one, name, err);
    memset(copy, 0, strlen(value));
    free(copy);
    if (!status && strspn(value, ",") == strlen(value) && *value)
        return kva_fail_param(err, KVA_EINVAL, option->name,
                              "%s has commas and no value between them", name);
    return status;
}

static enum kva_status read_environment(struct loader *loader, struct kva_err *err)
{
    char name[80];
    for (size_t i = 0; i < KVA_COUNT_OF(retired); i++) {
        kva_option_variable(retired[i], name, sizeof(name));
        if (loader->sources->env(name))
            return retired_option(name, err);
    }
    for (size_t i = 0; i < loader->count; i++) {
        const struct kva_option *option = &loader->options[i];
        if (loader->set[i] || !(option->commands & loader->sources->command))
            continue;
        kva_option_variable(option->name, name, sizeof(name));
        const char *value = loader->sources->env(name);
        if (!value)
            continue;
        loader->set[i] = true;
        enum kva_status status = option->kind == KVA_OPTION_SECRETS
                                     ? set_several(loader->config, option, value, name, err)
                                     : kva_config_set(loader->config, option, value, name, err);
        if (status)
            return status;
    }
    return KVA_OK;
}

/* --- configuration file ---------------------------------------------------------------------- */

static enum kva_status read_text(const char *path, char **ret, struct kva_err *err)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return kva_fail(err, KVA_ENOTFOUND, "configuration file '%s': %s", path, strerror(errno));
    char *text = malloc(FILE_BYTES_MAX + 1);
    size_t length = text ? fread(text, 1, FILE_BYTES_MAX + 1, file) : 0;
    bool failed = ferror(file);
    fclose(file);
    if (!text)
        return kva_fail(err, KVA_ENOMEM, "out of memory for '%s'", path);
    if (failed || length > FILE_BYTES_MAX) {
        free(text);
        return kva_fail(err, KVA_EINVAL, "configuration file '%s' %s", path,
                        failed ? "cannot be read" : "is over 1 MiB");
    }
    text[length] = '\0';
    *ret = text;
    return KVA_OK;
}

/* Text of a scalar, as a flag would give it; NULL: not a scalar. */
static const char *scalar_text(const cJSON *value, char *scratch, size_t size)
{
    if (cJSON_IsString(value))
        return value->valuestring;
    if (cJSON_IsBool(value))
        return cJSON_IsTrue(value) ? "true" : "false";
    if (!cJSON_IsNumber(value))
        return NULL;
    snprintf(scratch, size, "%.17g", value->valuedouble);
    return scratch;
}

static enum kva_status read_entry(struct loader *loader, const char *path, const cJSON *entry,
                                  struct kva_err *err)
{
    int found = find_option(loader, entry->string, strlen(entry->string));
    if (found < 0 && known_elsewhere(loader, entry->string))
        return KVA_OK;
    if (found < 0 && is_retired(entry->string, strlen(entry->string)))
        return retired_option(entry->string, err);
    if (found < 0) {
        const char *near = near_option(loader, entry->string, strlen(entry->string));
        return kva_fail(err, KVA_EINVAL, "configuration file '%s': unknown option '%.100s'%s%s%s",
                        path, entry->string, near ? " (is '" : "", near ? near : "",
                        near ? "' meant?)" : "");
    }
    const struct kva_option *option = &loader->options[found];
    bool several = option->kind == KVA_OPTION_LIST || option->kind == KVA_OPTION_SECRETS;
    if (loader->in_file[found] && !several)
        return kva_fail_param(err, KVA_EINVAL, option->name,
                              "configuration file '%s': '%s' stands there twice", path,
                              option->name);
    loader->in_file[found] = true;
    if (loader->set[found])
        return KVA_OK;
    bool many = several && cJSON_IsArray(entry);
    for (const cJSON *value = many ? entry->child : entry; value;
         value = many ? value->next : NULL) {
        char scratch[40], origin[256];
        snprintf(origin, sizeof(origin), "'%s' in %.150s", option->name, path);
        const char *text = scalar_text(value, scratch, sizeof(scratch));
        if (!text)
            return kva_fail_param(err, KVA_EINVAL, option->name,
                                  "%s is neither text, number nor true or false", origin);
        /* A text may be several, as in the variable; an array has each by itself. */
        enum kva_status status = option->kind == KVA_OPTION_SECRETS && !many && *text
                                     ? set_several(loader->config, option, text, origin, err)
                                     : kva_config_set(loader->config, option, text, origin, err);
        if (status)
            return status;
    }
    return KVA_OK;
}

static enum kva_status read_file(struct loader *loader, const char *path, struct kva_err *err)
{
    char *text = NULL;
    enum kva_status status = read_text(path, &text, err);
    if (status)
        return status;
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithOpts(text, &end, true);
    if (!cJSON_IsObject(json)) {
        unsigned line = 1;
        for (const char *c = text; !json && end && c < end; c++)
            line += *c == '\n';
        status = kva_fail(err, KVA_EINVAL, "configuration file '%s': %s near line %u", path,
                          json ? "not a JSON object" : "malformed JSON", line);
    }
    for (const cJSON *entry = json ? json->child : NULL; entry && !status; entry = entry->next)
        status = read_entry(loader, path, entry, err);
    cJSON_Delete(json);
    free(text);
    return status;
}

enum kva_status kva_config_load(struct kva_config *config, const struct kva_config_sources *sources,
                                struct kva_string_list *ret_rest, struct kva_err *err)
{
    struct loader loader = {.config = config, .sources = sources};
    loader.options = kva_options(&loader.count);
    *ret_rest = (struct kva_string_list){0};
    config->env = sources->env;
    if (loader.count > KVA_COUNT_OF(loader.set))
        return kva_fail(err, KVA_EINTERNAL, "%zu options, room for %zu", loader.count,
                        KVA_COUNT_OF(loader.set));
    char *path = NULL;
    enum kva_status status = read_arguments(&loader, ret_rest, &path, err);
    if (!status)
        status = read_environment(&loader, err);
    const char *file = path ? path : sources->env("KVAHEAD_CONFIG");
    if (!status && file)
        status = read_file(&loader, file, err);
    return status;
}
