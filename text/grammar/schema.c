/* schema.c - what of JSON Schema can be enforced: everything else is refused with its place.
 *
 * The library reads a schema by its first strong word ($ref, const, enum, anyOf, oneOf, allOf, type)
 * and leaves out what stands beside it, and some words it does not know at all. A text that it lets
 * pass would then not be what was asked for; so these combinations end here. What can be said
 * otherwise, is: the tree is changed. */
#include "text/grammar/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Schemas that are referred to; the check of each is done once. */
#define REFERENCES_MAX 1024u

struct walk {
    cJSON *root;
    bool xml;
    uint32_t inside; /* so many arrays and objects */
    struct kva_err *err;
    char place[KVA_GRAMMAR_PLACE_MAX];
    size_t place_length;
    uint32_t depth;
    uint32_t one_of_depth; /* of schemas that the library tells apart by their values */
    uint32_t reference_count;
    const cJSON *references[REFERENCES_MAX];
};

static enum kva_status check(struct walk *w, cJSON *schema);

static enum kva_status refuse(const struct walk *w, enum kva_status status, const char *why)
{
    return kva_fail(w->err, status, "the schema at '#%s': %s", w->place, why);
}

static enum kva_status refuse_word(const struct walk *w, enum kva_status status, const char *word,
                                   const char *why)
{
    return kva_fail(w->err, status, "the schema at '#%s': '%s' %s", w->place, word, why);
}

static cJSON *get(const cJSON *schema, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(schema, name);
}

/* --- places ---------------------------------------------------------------------------------- */

static void go_in(struct walk *w, const char *name)
{
    int length =
        snprintf(w->place + w->place_length, sizeof(w->place) - w->place_length, "/%s", name);
    w->place_length = kva_min_size(w->place_length + (size_t)kva_max_u32((uint32_t)length, 0),
                                   sizeof(w->place) - 1);
}

static void go_back(struct walk *w, size_t length)
{
    w->place_length = length;
    w->place[length] = '\0';
}

static enum kva_status check_in(struct walk *w, const char *word, const char *name, cJSON *schema)
{
    size_t length = w->place_length;
    go_in(w, word);
    if (name)
        go_in(w, name);
    enum kva_status status = check(w, schema);
    if (!status)
        go_back(w, length);
    return status;
}

static enum kva_status check_each(struct walk *w, const char *word, const cJSON *schemas)
{
    uint32_t index = 0;
    for (cJSON *at = schemas->child; at; at = at->next, index++) {
        char number[16];
        snprintf(number, sizeof(number), "%u", index);
        enum kva_status status =
            check_in(w, word, cJSON_IsObject(schemas) ? at->string : number, at);
        if (status)
            return status;
    }
    return KVA_OK;
}

/* --- types ----------------------------------------------------------------------------------- */

static bool is_type(const char *name)
{
    static const char *const names[] = {"object",  "array",   "string", "number",
                                        "integer", "boolean", "null"};
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

static enum kva_status check_type(const struct walk *w, const cJSON *type)
{
    const cJSON *at = cJSON_IsArray(type) ? type->child : type;
    if (!at)
        return refuse_word(w, KVA_EINVAL, "type", "must not be empty");
    for (; at; at = cJSON_IsArray(type) ? at->next : NULL) {
        if (!cJSON_IsString(at) || !is_type(at->valuestring))
            return refuse_word(w, KVA_EINVAL, "type",
                               "must be object, array, string, number, integer, boolean or null, "
                               "or an array of these");
    }
    return KVA_OK;
}

/* Whether the schema's `type`, which is there, has this one. */
static bool has_type(const cJSON *schema, const char *name)
{
    const cJSON *type = get(schema, "type");
    if (cJSON_IsString(type))
        return strcmp(type->valuestring, name) == 0;
    for (const cJSON *at = type ? type->child : NULL; at; at = at->next) {
        if (strcmp(at->valuestring, name) == 0)
            return true;
    }
    return false;
}

static bool value_has_type(const cJSON *schema, const cJSON *value)
{
    if (cJSON_IsObject(value))
        return has_type(schema, "object");
    if (cJSON_IsArray(value))
        return has_type(schema, "array");
    if (cJSON_IsString(value))
        return has_type(schema, "string");
    if (cJSON_IsBool(value))
        return has_type(schema, "boolean");
    if (cJSON_IsNumber(value))
        return has_type(schema, "number") ||
               (has_type(schema, "integer") && value->valuedouble == floor(value->valuedouble));
    return has_type(schema, "null");
}

/* --- strong words ---------------------------------------------------------------------------- */

/* `type` may stand beside a strong word where it says nothing more. */
static bool type_is_implied(const cJSON *schema, const struct kva_schema_word *strong)
{
    const cJSON *value = get(schema, strong->name);
    if (strcmp(strong->name, "const") == 0)
        return value_has_type(schema, value);
    if (strcmp(strong->name, "$ref") == 0)
        return false;
    for (const cJSON *at = value->child; at; at = at->next) {
        bool implied =
            strcmp(strong->name, "enum") == 0
                ? value_has_type(schema, at)
                : cJSON_IsString(get(at, "type")) && has_type(schema, get(at, "type")->valuestring);
        if (!implied)
            return false;
    }
    return true;
}

/* What stands beside a strong word would be left out. */
static enum kva_status check_beside(const struct walk *w, const cJSON *schema,
                                    const struct kva_schema_word *strong)
{
    if (get(schema, "type") && !type_is_implied(schema, strong))
        return refuse_word(w, KVA_EUNSUPPORTED, "type",
                           "beside $ref, const, enum, anyOf, oneOf or allOf is not enforced where "
                           "it says more than they do");
    for (const cJSON *at = schema->child; at; at = at->next) {
        const struct kva_schema_word *word = kva_schema_word_find(at->string);
        if (word && word != strong)
            return kva_fail(w->err, KVA_EUNSUPPORTED,
                            "the schema at '#%s': '%s' beside '%s' is not enforced", w->place,
                            word->name, strong->name);
    }
    return KVA_OK;
}

static enum kva_status check_reference(struct walk *w, const char *reference)
{
    if (reference[0] != '#')
        return refuse_word(w, KVA_EUNSUPPORTED, "$ref",
                           "must begin with #: other documents are not fetched");
    if (strpbrk(reference, "~%"))
        return refuse_word(w, KVA_EUNSUPPORTED, "$ref",
                           "with escapes (~ or %) is not followed: rename what it names");
    cJSON *target = kva_schema_find_reference(w->root, reference);
    if (!target)
        return kva_fail(w->err, KVA_EINVAL,
                        "the schema at '#%s': '$ref' names '%.100s', which is not "
                        "in the schema",
                        w->place, reference);
    if (target == get(w->root, "$ref") || get(target, "$ref"))
        return refuse_word(w, KVA_EUNSUPPORTED, "$ref",
                           "that names another '$ref' is not followed");
    for (uint32_t i = 0; i < w->reference_count; i++) {
        if (w->references[i] == target)
            return KVA_OK;
    }
    if (w->reference_count == REFERENCES_MAX)
        return refuse(w, KVA_ETOOBIG, "more than 1024 schemas are referred to");
    w->references[w->reference_count++] = target;
    size_t length = w->place_length;
    char place[KVA_GRAMMAR_PLACE_MAX];
    memcpy(place, w->place, sizeof(place));
    go_back(w, 0);
    if (strlen(reference) > 1)
        go_in(w, reference + 2);
    const uint32_t inside = w->inside;
    w->inside = inside == 1 ? 2 : inside; /* others may refer to it, from deeper inside */
    enum kva_status status = check(w, target);
    w->inside = inside;
    if (!status) {
        memcpy(w->place, place, sizeof(place));
        w->place_length = length;
    }
    return status;
}

static enum kva_status check_values(const struct walk *w, cJSON *schema)
{
    if (w->depth == w->one_of_depth || kva_schema_mend_decimals(schema))
        return KVA_OK;
    return kva_fail(w->err, KVA_ENOMEM, "out of memory for a schema");
}

static enum kva_status check_one_of(struct walk *w, const cJSON *value)
{
    uint32_t depth = w->one_of_depth;
    w->one_of_depth = w->depth + 1;
    enum kva_status status = check_each(w, "oneOf", value);
    w->one_of_depth = depth;
    return status;
}

static enum kva_status check_strong(struct walk *w, cJSON *schema,
                                    const struct kva_schema_word *strong)
{
    const cJSON *value = get(schema, strong->name);
    enum kva_status status = check_beside(w, schema, strong);
    if (status)
        return status;
    if (strcmp(strong->name, "const") == 0 || strcmp(strong->name, "enum") == 0)
        return check_values(w, schema);
    if (strcmp(strong->name, "$ref") == 0)
        return check_reference(w, value->valuestring);
    if (strcmp(strong->name, "oneOf") == 0)
        return check_one_of(w, value);
    if (strcmp(strong->name, "allOf") == 0 && value->child->next)
        return refuse_word(w, KVA_EUNSUPPORTED, "allOf", "of more than one schema is not enforced");
    return check_each(w, strong->name, value);
}

/* Of alternatives that are apart, one is any. The library knows some of those, but not by references
 * and not where objects may have further properties. */
static bool mend_one_of(const struct walk *w, cJSON *schema)
{
    cJSON *alternatives = get(schema, "oneOf");
    if (get(schema, "anyOf") || !kva_schema_are_apart(w->root, alternatives))
        return false;
    char *name = malloc(sizeof("anyOf"));
    if (!name)
        return false;
    memcpy(name, "anyOf", sizeof("anyOf"));
    cJSON_free(alternatives->string);
    alternatives->string = name;
    return true;
}

/* --- what a type has ------------------------------------------------------------------------- */

static enum kva_status check_numbers(const struct walk *w, const cJSON *schema)
{
    bool ranged = get(schema, "minimum") || get(schema, "maximum") ||
                  get(schema, "exclusiveMinimum") || get(schema, "exclusiveMaximum");
    if (get(schema, "multipleOf") && (has_type(schema, "number") || ranged))
        return refuse_word(w, KVA_EUNSUPPORTED, "multipleOf",
                           "is enforced for integers without a range only");
    if (ranged && has_type(schema, "number") && !kva_schema_has_decimals(schema))
        return refuse(w, KVA_EUNSUPPORTED,
                      "no number of six decimals is in its range: others are not enforced");
    return KVA_OK;
}

/* An address without a quoted part. */
#define EMAIL                                                                                      \
    "^[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\\.[A-Za-z0-9]+)+$"

/* What the library makes of these formats may not be JSON: it has escapes, or lacks them. */
static enum kva_status mend_format(const struct walk *w, cJSON *schema)
{
    const cJSON *format = get(schema, "format");
    if (!format)
        return KVA_OK;
    bool is_email = strcmp(format->valuestring, "email") == 0;
    if (!is_email && strcmp(format->valuestring, "json-pointer") != 0 &&
        strcmp(format->valuestring, "relative-json-pointer") != 0)
        return KVA_OK;
    cJSON_DeleteItemFromObjectCaseSensitive(schema, "format");
    if (is_email && !cJSON_AddStringToObject(schema, "pattern", EMAIL))
        return kva_fail(w->err, KVA_ENOMEM, "out of memory for a schema");
    return KVA_OK;
}

/* *text, which belongs to the schema, becomes an expression for strings in JSON. Those that are XML's,
 * right in the object that a call has, are as they are. */
static enum kva_status mend_pattern(const struct walk *w, char **text)
{
    char *written = NULL;
    if (w->xml && w->inside < 2)
        return KVA_OK;
    bool good = kva_schema_write_pattern(*text, &written);
    if (!written)
        return kva_fail(w->err, KVA_ENOMEM, "out of memory for a schema");
    cJSON_free(*text);
    *text = written;
    return good ? KVA_OK
                : refuse_word(w, KVA_EUNSUPPORTED, "pattern",
                              "that asks for a character which JSON escapes (a quote, a backslash, "
                              "a control character) is not enforced");
}

static enum kva_status check_strings(const struct walk *w, cJSON *schema)
{
    if (get(schema, "pattern") &&
        (get(schema, "minLength") || get(schema, "maxLength") || get(schema, "format")))
        return refuse_word(w, KVA_EUNSUPPORTED, "pattern",
                           "beside minLength, maxLength or format is not enforced");
    enum kva_status status = mend_format(w, schema);
    cJSON *pattern = get(schema, "pattern");
    return !status && pattern ? mend_pattern(w, &pattern->valuestring) : status;
}

static bool is_false(const cJSON *schema)
{
    return cJSON_IsFalse(schema);
}

/* Whether the library can tell a further property from these: it compares bytes with characters. */
static bool are_plain(const cJSON *properties)
{
    for (const cJSON *at = properties->child; at; at = at->next) {
        for (const unsigned char *c = (const unsigned char *)at->string; *c; c++) {
            if (*c < 0x20 || *c > 0x7e || *c == '"' || *c == '\\')
                return false;
        }
    }
    return true;
}

/* Where nothing else is evaluated, what is not evaluated is what is additional; and an object whose
 * properties are described has these. */
static enum kva_status mend_rest(const struct walk *w, cJSON *schema, const char *unevaluated,
                                 const char *rest, bool closed)
{
    cJSON *moved = cJSON_DetachItemFromObjectCaseSensitive(schema, unevaluated);
    if (get(schema, rest)) {
        cJSON_Delete(moved);
        return KVA_OK;
    }
    if (!moved && closed)
        moved = cJSON_CreateFalse();
    else if (!moved)
        return KVA_OK;
    if (moved && cJSON_AddItemToObject(schema, rest, moved))
        return KVA_OK;
    cJSON_Delete(moved);
    return kva_fail(w->err, KVA_ENOMEM, "out of memory for a schema");
}

static enum kva_status check_arrays(struct walk *w, cJSON *schema)
{
    enum kva_status status = mend_rest(w, schema, "unevaluatedItems", "items", false);
    const cJSON *prefix = get(schema, "prefixItems");
    cJSON *items = get(schema, "items");
    w->inside++;
    if (!status && prefix)
        status = check_each(w, "prefixItems", prefix);
    if (!status && items && !is_false(items))
        status = check_in(w, "items", NULL, items);
    w->inside--;
    return status;
}

static enum kva_status check_required(const struct walk *w, const cJSON *schema)
{
    const cJSON *required = get(schema, "required"), *properties = get(schema, "properties");
    for (const cJSON *at = required ? required->child : NULL; at; at = at->next) {
        if (!cJSON_IsString(at))
            return refuse_word(w, KVA_EINVAL, "required", "must be an array of strings");
        if (!properties || !get(properties, at->valuestring))
            return kva_fail(w->err, KVA_EUNSUPPORTED,
                            "the schema at '#%s': 'required' has '%.100s', which 'properties' does "
                            "not describe: that is not enforced",
                            w->place, at->valuestring);
    }
    return KVA_OK;
}

/* Names are strings: a pattern of them is all that is enforced. */
static enum kva_status check_names(const struct walk *w, cJSON *names)
{
    const cJSON *type = get(names, "type");
    bool only_pattern = get(names, "pattern") != NULL;
    for (const cJSON *at = names->child; at; at = at->next)
        only_pattern = only_pattern &&
                       (!kva_schema_word_find(at->string) || strcmp(at->string, "pattern") == 0);
    if (type && !(cJSON_IsString(type) && strcmp(type->valuestring, "string") == 0))
        only_pattern = false;
    if (!only_pattern)
        return refuse_word(w, KVA_EUNSUPPORTED, "propertyNames",
                           "is enforced with 'pattern' only, and nothing beside it");
    cJSON *pattern = get(names, "pattern");
    return cJSON_IsString(pattern) ? mend_pattern(w, &pattern->valuestring)
                                   : refuse_word(w, KVA_EINVAL, "pattern", "must be a string");
}

static enum kva_status check_members(struct walk *w, cJSON *schema)
{
    const cJSON *properties = get(schema, "properties");
    const cJSON *patterns = get(schema, "patternProperties");
    cJSON *names = get(schema, "propertyNames");
    enum kva_status status = mend_rest(w, schema, "unevaluatedProperties", "additionalProperties",
                                       properties && !patterns && !names);
    if (status)
        return status;
    cJSON *rest = get(schema, "additionalProperties");
    if (patterns &&
        (properties || names || !is_false(rest) || (patterns->child && patterns->child->next)))
        return refuse_word(w, KVA_EUNSUPPORTED, "patternProperties",
                           "is enforced with one pattern, with 'additionalProperties': false, and "
                           "without properties and propertyNames only");
    if (names && (properties || rest))
        return refuse_word(w, KVA_EUNSUPPORTED, "propertyNames",
                           "beside properties or additionalProperties is not enforced");
    status = names ? check_names(w, names) : KVA_OK;
    if (status)
        return status;
    if (properties && !is_false(rest) && !are_plain(properties))
        return refuse_word(w, KVA_EUNSUPPORTED, "additionalProperties",
                           "beside properties whose names are not plain ASCII is not enforced");
    status = check_required(w, schema);
    if (!status && properties)
        status = check_each(w, "properties", properties);
    if (!status && patterns && patterns->child)
        status = mend_pattern(w, &patterns->child->string);
    if (!status && patterns)
        status = check_each(w, "patternProperties", patterns);
    if (!status && rest && !is_false(rest))
        status = check_in(w, "additionalProperties", NULL, rest);
    return status;
}

static enum kva_status check_objects(struct walk *w, cJSON *schema)
{
    w->inside++;
    enum kva_status status = check_members(w, schema);
    w->inside--;
    return status;
}

/* --- a schema -------------------------------------------------------------------------------- */

/* Every word by itself. `ret_strong`: the strong one, if there is one. */
static enum kva_status check_words(const struct walk *w, const cJSON *schema,
                                   const struct kva_schema_word **ret_strong,
                                   const struct kva_schema_word **ret_asserts)
{
    for (const cJSON *at = schema->child; at; at = at->next) {
        const struct kva_schema_word *word = kva_schema_word_find(at->string);
        if (!word)
            continue;
        bool is_off = cJSON_IsFalse(at) && word->value == KVA_SCHEMA_VALUE_BOOL;
        if (word->use == KVA_SCHEMA_USE_REFUSED && !is_off)
            return refuse_word(w, KVA_EUNSUPPORTED, at->string, "is not enforced by this server");
        bool may_be_empty = strcmp(at->string, "required") == 0 && cJSON_IsArray(at);
        const char *why = may_be_empty ? NULL : kva_schema_value_lacks(word->value, at);
        if (why)
            return refuse_word(w, KVA_EINVAL, at->string, why);
        if (word->use == KVA_SCHEMA_USE_STRONG && !*ret_strong)
            *ret_strong = word;
        if (word->use == KVA_SCHEMA_USE_ASSERTS)
            *ret_asserts = word;
    }
    return KVA_OK;
}

static enum kva_status check_object(struct walk *w, cJSON *schema)
{
    const struct kva_schema_word *strong = NULL, *asserts = NULL;
    const cJSON *type = get(schema, "type");
    enum kva_status status = check_words(w, schema, &strong, &asserts);
    if (!status && type)
        status = check_type(w, type);
    if (status)
        return status;
    if (strong && strcmp(strong->name, "oneOf") == 0 && mend_one_of(w, schema))
        strong = kva_schema_word_find("anyOf");
    if (strong)
        return check_strong(w, schema, strong);
    if (asserts && !type && strcmp(asserts->type, "object") != 0 &&
        strcmp(asserts->type, "array") != 0)
        return refuse_word(w, KVA_EUNSUPPORTED, asserts->name,
                           "without 'type' is not enforced: say which type it is about");
    if (asserts && !type && !get(schema, "properties") && !get(schema, "additionalProperties") &&
        !get(schema, "items") && !get(schema, "prefixItems"))
        return refuse_word(w, KVA_EUNSUPPORTED, asserts->name,
                           "without 'type' is not enforced: say which type it is about");
    status = check_numbers(w, schema);
    if (!status)
        status = check_strings(w, schema);
    if (!status)
        status = check_arrays(w, schema);
    return status ? status : check_objects(w, schema);
}

static enum kva_status check(struct walk *w, cJSON *schema)
{
    if (cJSON_IsTrue(schema))
        return KVA_OK;
    if (cJSON_IsFalse(schema))
        return refuse(w, KVA_EINVAL, "false: no value is allowed here");
    if (!cJSON_IsObject(schema))
        return refuse(w, KVA_EINVAL, "a schema must be an object, true or false");
    if (w->depth == KVA_GRAMMAR_DEPTH_MAX)
        return refuse(w, KVA_ETOOBIG, "more than 64 levels of schemas");
    w->depth++;
    enum kva_status status = check_object(w, schema);
    w->depth--;
    return status;
}

enum kva_status kva_grammar_check_tree(cJSON *root, bool xml, struct kva_err *err)
{
    struct walk *w = calloc(1, sizeof(*w));
    if (!w)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a schema");
    w->root = root;
    w->xml = xml;
    w->err = err;
    enum kva_status status = check(w, root);
    free(w);
    return status;
}
