/* xml.c - a call in XML: <function=NAME><parameter=KEY>VALUE</parameter>...</function>, and the JSON that
 * its values stand for, which the function's schema says. */
#include "base/json_check.h"
#include "text/grammar/reference.h"
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

/* Which of two marks (`second` may be NULL) comes first from *at on; *at goes behind it, or up to where
 * the text may end within one. NULL: none is there. */
static const char *find_mark(const char *text, size_t length, size_t *at, const char *first,
                             const char *second)
{
    size_t longest = strlen(first), left = length - *at;
    const char *found = memmem(text + *at, left, first, longest), *mark = first;
    if (second) {
        size_t within = found ? (size_t)(found - text) - *at : left;
        const char *sooner = memmem(text + *at, within, second, strlen(second));
        longest = kva_max_size(longest, strlen(second));
        mark = sooner ? second : first;
        found = sooner ? sooner : found;
    }
    if (found)
        *at = (size_t)(found - text) + strlen(mark);
    else if (length >= longest)
        *at = kva_max_size(*at, length - longest + 1);
    return found ? mark : NULL;
}

enum kva_scan_result kva_xml_find_end(const char *text, size_t length, bool bound,
                                      struct kva_xml_scan *scan)
{
    for (;;) {
        const char *mark = scan->in_value
                               ? find_mark(text, length, &scan->at, KVA_REPLY_PARAMETER_END, NULL)
                               : find_mark(text, length, &scan->at, KVA_REPLY_FUNCTION_END,
                                           bound ? KVA_REPLY_PARAMETER : NULL);
        if (!mark)
            return KVA_SCAN_MORE;
        if (!scan->in_value && strcmp(mark, KVA_REPLY_FUNCTION_END) == 0)
            return KVA_SCAN_DONE;
        scan->in_value = !scan->in_value;
    }
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

/* What the values of a call are held against. */
struct known {
    const cJSON *root;
    uint32_t left; /* schemas that are still looked at: references may go round */
};
#define SCHEMAS_MAX    1024u
#define REFERENCES_MAX 16u /* one behind the other */

/* The schema that says something: behind references, and the only one of `allOf`. */
static const cJSON *resolve(struct known *known, const cJSON *schema)
{
    for (uint32_t i = 0; i < REFERENCES_MAX && known->left > 0; i++, known->left--) {
        const cJSON *reference = get(schema, "$ref"), *all = get(schema, "allOf");
        if (cJSON_IsString(reference))
            schema = kva_schema_find_reference(known->root, reference->valuestring);
        else if (cJSON_IsArray(all) && all->child && !all->child->next && !get(schema, "type"))
            schema = all->child;
        else
            break;
    }
    return schema;
}

static bool value_has_type(const cJSON *value, const char *name)
{
    return strcmp(name, "null") == 0 ? cJSON_IsNull(value) : cJSON_IsString(value);
}

/* Whether a string, or null, may stand there: a string where the schema does not say what else. */
static bool allows(struct known *known, const cJSON *schema, const char *name)
{
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    static const char *const others[] = {"properties", "additionalProperties", "items",
                                         "prefixItems"};
    schema = resolve(known, schema);
    bool says_more = false;
    if (get(schema, "type"))
        return has_type(schema, name);
    for (size_t i = 0; i < KVA_COUNT_OF(choices); i++) {
        const cJSON *list = get(schema, choices[i]);
        const cJSON *at = cJSON_IsArray(list) ? list->child : NULL;
        for (; at && known->left > 0; at = at->next) {
            known->left--;
            if (allows(known, at, name))
                return true;
        }
        if (list)
            return false;
    }
    const cJSON *words = get(schema, "enum"), *one = get(schema, "const");
    for (const cJSON *at = cJSON_IsArray(words) ? words->child : NULL; at; at = at->next) {
        if (value_has_type(at, name))
            return true;
    }
    if (one)
        return value_has_type(one, name);
    for (size_t i = 0; i < KVA_COUNT_OF(others); i++)
        says_more = says_more || get(schema, others[i]);
    return !words && !says_more && strcmp(name, "string") == 0;
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
static bool is_bounded(struct known *known, const cJSON *schema)
{
    static const char *const words[] = {"enum",   "const",     "pattern",
                                        "format", "minLength", "maxLength"};
    static const char *const choices[] = {"anyOf", "oneOf"};
    for (size_t i = 0; i < KVA_COUNT_OF(words); i++) {
        if (get(schema, words[i]))
            return true;
    }
    for (size_t i = 0; i < KVA_COUNT_OF(choices); i++) {
        const cJSON *list = get(schema, choices[i]);
        const cJSON *at = cJSON_IsArray(list) ? list->child : NULL;
        for (; at && known->left > 0; at = at->next) {
            known->left--;
            const cJSON *choice = resolve(known, at);
            if (allows(known, choice, "string") && is_bounded(known, choice))
                return true;
        }
    }
    return false;
}

/* Of values that are told one by one, whether it is one of the strings; else whether a string may
 * stand there. */
static bool is_string(struct known *known, const cJSON *schema, struct span bare)
{
    const cJSON *words = get(schema, "enum");
    for (const cJSON *at = cJSON_IsArray(words) ? words->child : NULL; at; at = at->next) {
        if (cJSON_IsString(at) && is(bare, at->valuestring))
            return true;
    }
    return !words && allows(known, schema, "string");
}

static void put_value(struct kva_buf *out, struct span value, struct known *known,
                      const cJSON *schema)
{
    struct kva_json_limits limits;
    struct span bare = without_spaces(value);
    kva_json_limits_default(&limits);
    schema = resolve(known, schema);
    bool string = is_string(known, schema, bare);
    bool null = is(bare, "null") && allows(known, schema, "null");
    const char *word = string ? NULL : python_word(bare);
    if (word)
        kva_buf_puts(out, word);
    else if (null || (!string && kva_json_check(bare.data, bare.length, &limits, NULL) == KVA_OK))
        kva_buf_append(out, bare.data, bare.length);
    else if (is_bounded(known, schema))
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
    struct known known = {tree, SCHEMAS_MAX};
    const cJSON *object = resolve(&known, tree), *properties = get(object, "properties");
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
        const cJSON *property = get(properties, name);
        put_value(out, without_frame(value), &known,
                  property ? property : get(object, "additionalProperties"));
    }
    kva_buf_putc(out, '}');
    cJSON_Delete(tree);
    /* Keys and values that no JSON has, such as bytes that are not UTF-8. */
    struct kva_json_limits limits;
    kva_json_limits_default(&limits);
    return good && !out->failed && kva_json_check(out->data, out->length, &limits, NULL) == KVA_OK;
}
