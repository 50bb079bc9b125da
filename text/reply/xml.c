/* xml.c - a call in XML: <function=NAME><parameter=KEY>VALUE</parameter>...</function>, and the JSON that
 * its values stand for, which the function's schema says. */
#include "base/json_check.h"
#include "text/reply/internal.h"

#include <stdio.h>
#include <string.h>

/* A span of the text. */
struct span {
    const char *data;
    size_t length;
};

static bool is(struct span span, const char *word)
{
    return strlen(word) == span.length && memcmp(word, span.data, span.length) == 0;
}

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* --- where it ends --------------------------------------------------------------------------- */

enum kva_scan_result kva_xml_find_end(const char *text, size_t length, size_t *at)
{
    size_t mark = strlen(KVA_REPLY_FUNCTION_END);
    const char *end = memmem(text + *at, length - *at, KVA_REPLY_FUNCTION_END, mark);
    if (end) {
        *at = (size_t)(end - text) + mark;
        return KVA_SCAN_DONE;
    }
    *at = length > mark ? kva_max_size(*at, length - mark) : *at;
    return KVA_SCAN_MORE;
}

/* --- values ---------------------------------------------------------------------------------- */

/* Whether a schema's type, or one of them, is that. */
static bool has_type(const cJSON *schema, const char *name)
{
    const cJSON *type = get(schema, "type");
    if (cJSON_IsString(type))
        return strcmp(type->valuestring, name) == 0;
    for (const cJSON *at = cJSON_IsArray(type) ? type->child : NULL; at; at = at->next) {
        if (cJSON_IsString(at) && strcmp(at->valuestring, name) == 0)
            return true;
    }
    return false;
}

/* Whether a string may stand there: it is none only where the schema says what else it is. */
static bool may_be_string(const cJSON *schema)
{
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    if (get(schema, "type"))
        return has_type(schema, "string");
    for (size_t i = 0; i < KVA_COUNT_OF(choices); i++) {
        const cJSON *list = get(schema, choices[i]);
        for (const cJSON *at = cJSON_IsArray(list) ? list->child : NULL; at; at = at->next) {
            if (may_be_string(at))
                return true;
        }
        if (list)
            return false;
    }
    const cJSON *words = get(schema, "enum");
    for (const cJSON *at = cJSON_IsArray(words) ? words->child : NULL; at; at = at->next) {
        if (cJSON_IsString(at))
            return true;
    }
    const cJSON *one = get(schema, "const");
    return one ? cJSON_IsString(one) : !words;
}

static void skip_spaces(struct span *span)
{
    while (span->length > 0 && kva_reply_is_space(span->data[0])) {
        span->data++;
        span->length--;
    }
}

static struct span without_spaces(struct span span)
{
    skip_spaces(&span);
    while (span.length > 0 && kva_reply_is_space(span.data[span.length - 1]))
        span.length--;
    return span;
}

/* Models know Python's words for them. */
static const char *python_word(struct span span)
{
    return is(span, "True")    ? "true"
           : is(span, "False") ? "false"
           : is(span, "None")  ? "null"
                               : NULL;
}

/* A string of which more is said than that it is one: grammars allow white space around it, which is
 * none of it. */
static bool is_bounded(const cJSON *schema)
{
    static const char *const words[] = {"enum",      "const",     "pattern", "format",
                                        "minLength", "maxLength", "anyOf",   "oneOf"};
    for (size_t i = 0; i < KVA_COUNT_OF(words); i++) {
        if (get(schema, words[i]))
            return true;
    }
    return false;
}

static void put_value(struct kva_buf *out, struct span value, const cJSON *schema)
{
    struct kva_json_limits limits;
    struct span bare = without_spaces(value);
    kva_json_limits_default(&limits);
    bool null = is(bare, "null") && has_type(schema, "null");
    bool string = !schema || may_be_string(schema);
    const char *word = string ? NULL : python_word(bare);
    if (word)
        kva_buf_puts(out, word);
    else if (null || (!string && kva_json_check(bare.data, bare.length, &limits, NULL) == KVA_OK))
        kva_buf_append(out, bare.data, bare.length);
    else if (is_bounded(schema))
        kva_buf_json_string_plain(out, bare.data, bare.length);
    else
        kva_buf_json_string_plain(out, value.data, value.length);
}

/* --- the call -------------------------------------------------------------------------------- */

/* What comes before `mark`, and both are left behind. */
static bool take_until(struct span *rest, const char *mark, struct span *ret)
{
    const char *end = memmem(rest->data, rest->length, mark, strlen(mark));
    if (!end)
        return false;
    *ret = (struct span){rest->data, (size_t)(end - rest->data)};
    size_t taken = ret->length + strlen(mark);
    rest->data += taken;
    rest->length -= taken;
    return true;
}

static bool take_word(struct span *rest, const char *word)
{
    size_t length = strlen(word);
    if (rest->length < length || memcmp(rest->data, word, length) != 0)
        return false;
    rest->data += length;
    rest->length -= length;
    return true;
}

/* Templates write a value on lines of its own. */
static struct span without_frame(struct span value)
{
    if (value.length > 0 && value.data[0] == '\n') {
        value.data++;
        value.length--;
    }
    if (value.length > 0 && value.data[value.length - 1] == '\n')
        value.length--;
    return value;
}

bool kva_xml_read_name(const char *text, size_t length, const char **ret, size_t *ret_length)
{
    struct span rest = {text, length}, name;
    if (!take_word(&rest, KVA_REPLY_FUNCTION) || !take_until(&rest, ">", &name))
        return false;
    name = without_spaces(name);
    *ret = name.data;
    *ret_length = name.length;
    return true;
}

bool kva_xml_put_arguments(const char *text, size_t length, const char *schema, struct kva_buf *out)
{
    struct span rest = {text, length}, key, value;
    cJSON *tree = schema ? cJSON_Parse(schema) : NULL;
    const cJSON *properties = get(tree, "properties");
    bool good = take_until(&rest, ">", &key);
    uint32_t count = 0;
    kva_buf_putc(out, '{');
    while (good) {
        skip_spaces(&rest);
        if (take_word(&rest, KVA_REPLY_FUNCTION_END))
            break;
        good = take_word(&rest, KVA_REPLY_PARAMETER) && take_until(&rest, ">", &key) &&
               take_until(&rest, KVA_REPLY_PARAMETER_END, &value);
        if (!good)
            break;
        key = without_spaces(key);
        char name[256];
        good = key.length < sizeof(name);
        snprintf(name, sizeof(name), "%.*s", good ? (int)key.length : 0, key.data);
        kva_buf_puts(out, count++ ? ", " : "");
        kva_buf_json_string_plain(out, key.data, key.length);
        kva_buf_puts(out, ": ");
        put_value(out, without_frame(value), get(properties, name));
    }
    kva_buf_putc(out, '}');
    cJSON_Delete(tree);
    /* Keys and values that no JSON has, such as bytes that are not UTF-8. */
    struct kva_json_limits limits;
    kva_json_limits_default(&limits);
    return good && !out->failed && kva_json_check(out->data, out->length, &limits, NULL) == KVA_OK;
}
