/* json.c - reading tokenizer.json, with the place of an error. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

struct kva_tok_place kva_tok_place_root(const char *file, struct kva_err *err)
{
    return (struct kva_tok_place){.file = file, .err = err};
}

struct kva_tok_place kva_tok_place_member(const struct kva_tok_place *parent, const char *name)
{
    struct kva_tok_place place = {.file = parent->file, .err = parent->err};
    int length = (int)kva_min_size(strlen(name), 40);
    snprintf(place.text, sizeof(place.text), "%.70s%s%.*s", parent->text,
             parent->text[0] ? "." : "", length, name);
    return place;
}

struct kva_tok_place kva_tok_place_index(const struct kva_tok_place *parent, size_t index)
{
    struct kva_tok_place place = {.file = parent->file, .err = parent->err};
    snprintf(place.text, sizeof(place.text), "%.90s[%zu]", parent->text, index);
    return place;
}

enum kva_status kva_tok_complain(const struct kva_tok_place *place, enum kva_status status,
                                 const char *format, ...)
{
    char message[KVA_ERR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    return kva_fail(place->err, status, "%s: %s%s%s", place->file, place->text,
                    place->text[0] ? ": " : "", message);
}

/* What a scan before parsing finds. cJSON takes about a hundred bytes for each value and recurses
 * for each level, so both are bounded before it sees the text. */
struct prescan {
    size_t values;
    size_t depth, depth_max;
    bool in_string;
};

/* An escape of U+0000 would end a string early in cJSON. */
static bool is_nul_escape(const char *json, size_t length, size_t at)
{
    return length - at >= 6 && memcmp(json + at, "\\u0000", 6) == 0;
}

static enum kva_status prescan_ascii(const struct kva_tok_place *place, struct prescan *scan,
                                     const char *json, size_t length, size_t *at)
{
    char c = json[*at];
    if (scan->in_string) {
        if (c == '\\') {
            if (is_nul_escape(json, length, *at))
                return kva_tok_complain(place, KVA_EUNSUPPORTED,
                                        "a string at byte %zu contains U+0000", *at);
            *at += 1;
        }
        scan->in_string = c != '"';
    } else if (c == '"') {
        scan->in_string = true;
    } else if (c == '[' || c == '{') {
        scan->values++;
        if (++scan->depth > KVA_TOKENIZER_JSON_DEPTH_MAX)
            return kva_tok_complain(place, KVA_EFORMAT, "nested deeper than %d levels at byte %zu",
                                    KVA_TOKENIZER_JSON_DEPTH_MAX, *at);
    } else if (c == ']' || c == '}') {
        scan->depth -= scan->depth > 0;
    } else if (c == ',') {
        scan->values++;
    }
    *at += 1;
    return KVA_OK;
}

static enum kva_status prescan(const struct kva_tok_place *place, const char *json, size_t length)
{
    struct prescan scan = {0};
    size_t at = 0;
    while (at < length) {
        if ((unsigned char)json[at] >= 0x80) {
            int size = kva_utf8_sequence(json + at, length - at, NULL);
            if (size <= 0)
                return kva_tok_complain(place, KVA_EFORMAT, "not UTF-8 at byte %zu", at);
            at += (size_t)size;
            continue;
        }
        enum kva_status status = prescan_ascii(place, &scan, json, length, &at);
        if (status)
            return status;
    }
    if (scan.values > KVA_TOKENIZER_JSON_VALUES_MAX)
        return kva_tok_complain(place, KVA_ETOOBIG, "%zu values, limit is %zu", scan.values,
                                KVA_TOKENIZER_JSON_VALUES_MAX);
    return KVA_OK;
}

enum kva_status kva_tok_json_parse(const struct kva_tok_place *place, const char *json,
                                   size_t length, size_t bytes_max, cJSON **ret_root)
{
    if (length > bytes_max)
        return kva_tok_complain(place, KVA_ETOOBIG, "%zu bytes, limit is %zu", length, bytes_max);
    enum kva_status status = prescan(place, json, length);
    if (status)
        return status;
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(json, length, &end, false);
    if (!root)
        return kva_tok_complain(place, KVA_EFORMAT, "not valid JSON near byte %zu",
                                end ? (size_t)(end - json) : 0);
    while (end < json + length && strchr(" \t\r\n", *end) && *end)
        end++;
    if (end != json + length || !cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return kva_tok_complain(place, KVA_EFORMAT, "not one JSON object");
    }
    *ret_root = root;
    return KVA_OK;
}

static const cJSON *member(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

bool kva_tok_json_missing(const cJSON *object, const char *name)
{
    return !member(object, name);
}

enum kva_status kva_tok_json_bool(const struct kva_tok_place *place, const cJSON *object,
                                  const char *name, bool missing, bool *ret_value)
{
    const cJSON *item = member(object, name);
    if (item && !cJSON_IsBool(item))
        return kva_tok_complain(place, KVA_EFORMAT, "'%s' is not true or false", name);
    *ret_value = item ? cJSON_IsTrue(item) : missing;
    return KVA_OK;
}

enum kva_status kva_tok_json_string_optional(const struct kva_tok_place *place, const cJSON *object,
                                             const char *name, const char **ret_value)
{
    const cJSON *item = member(object, name);
    if (item && !cJSON_IsString(item))
        return kva_tok_complain(place, KVA_EFORMAT, "'%s' is not a string", name);
    *ret_value = item ? item->valuestring : NULL;
    return KVA_OK;
}

enum kva_status kva_tok_json_string(const struct kva_tok_place *place, const cJSON *object,
                                    const char *name, const char **ret_value)
{
    if (!member(object, name))
        return kva_tok_complain(place, KVA_EFORMAT, "'%s' is missing", name);
    return kva_tok_json_string_optional(place, object, name, ret_value);
}

enum kva_status kva_tok_json_uint(const struct kva_tok_place *place, const cJSON *item,
                                  uint32_t max, uint32_t *ret_value)
{
    if (!cJSON_IsNumber(item))
        return kva_tok_complain(place, KVA_EFORMAT, "a number is missing");
    double value = item->valuedouble;
    if (!(value >= 0 && value <= max))
        return kva_tok_complain(place, KVA_EFORMAT, "%g is not in [0, %u]", value, max);
    if (value != (double)(uint32_t)value)
        return kva_tok_complain(place, KVA_EFORMAT, "%g is not an integer", value);
    *ret_value = (uint32_t)value;
    return KVA_OK;
}

enum kva_status kva_tok_json_array(const struct kva_tok_place *place, const cJSON *object,
                                   const char *name, const cJSON **ret_array)
{
    const cJSON *item = member(object, name);
    if (!cJSON_IsArray(item))
        return kva_tok_complain(place, KVA_EFORMAT, "'%s' is not an array", name);
    *ret_array = item;
    return KVA_OK;
}

/* One level of a Sequence; recursion is bounded by the depth of the JSON text. */
static enum kva_status flatten(const struct kva_tok_place *place, const cJSON *component,
                               const char *name, struct kva_tok_json_list *list)
{
    if (!cJSON_IsObject(component))
        return kva_tok_complain(place, KVA_EFORMAT, "not an object");
    const char *type;
    enum kva_status status = kva_tok_json_string(place, component, "type", &type);
    if (status)
        return status;
    if (strcmp(type, "Sequence") != 0) {
        if (list->count == KVA_TOKENIZER_STAGES_MAX)
            return kva_tok_complain(place, KVA_ETOOBIG, "more than %d stages",
                                    KVA_TOKENIZER_STAGES_MAX);
        list->items[list->count] = component;
        list->places[list->count] = *place;
        list->types[list->count] = type;
        list->count++;
        return KVA_OK;
    }
    const cJSON *array = NULL;
    status = kva_tok_json_array(place, component, name, &array);
    struct kva_tok_place inner = kva_tok_place_member(place, name);
    size_t index = 0;
    for (const cJSON *item = status ? NULL : array->child; item && !status; item = item->next) {
        struct kva_tok_place each = kva_tok_place_index(&inner, index++);
        status = flatten(&each, item, name, list);
    }
    return status;
}

enum kva_status kva_tok_json_flatten(const struct kva_tok_place *place, const cJSON *component,
                                     const char *name, struct kva_tok_json_list *list)
{
    list->count = 0;
    return flatten(place, component, name, list);
}
