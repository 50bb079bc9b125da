/* parse_format.c - what the answer must be: response_format, and how vLLM, SGLang and llama-server
 * say the same. Each becomes one source of a grammar; a request has one at most. */
#include "server/api/fields.h"

#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES_MAX 4096u

/* Only one of them can hold. */
static enum kva_status set_source(struct kva_api_parser *p, const char *name,
                                  enum kva_grammar_kind kind, const char *text, size_t length,
                                  bool strict)
{
    struct kva_api_format *format = &p->call->format;
    if (format->field)
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' and '%s' both say what the answer must be: only one may.",
                              format->field, name);
    const char *field = kva_arena_strndup(&p->call->arena, name, strlen(name));
    const char *copy = kva_arena_strndup(&p->call->arena, text, length);
    if (!field || !copy)
        return kva_fail_param(p->err, KVA_ENOMEM, name, "'%s' does not fit the request's memory.",
                              name);
    format->field = field;
    format->source = (struct kva_grammar_source){kind, copy, length, strict};
    return KVA_OK;
}

static enum kva_status set_schema(struct kva_api_parser *p, const char *name, const cJSON *schema,
                                  bool strict)
{
    char *text = cJSON_PrintUnformatted(schema);
    if (!text)
        return kva_fail_param(p->err, KVA_ENOMEM, name, "Out of memory for '%s'.", name);
    enum kva_status status = set_source(p, name, KVA_GRAMMAR_SCHEMA, text, strlen(text), strict);
    free(text);
    return status;
}

/* A schema, or a string of one. */
static enum kva_status parse_schema(struct kva_api_parser *p, const char *name, const cJSON *value,
                                    bool strict)
{
    if (cJSON_IsObject(value))
        return set_schema(p, name, value, strict);
    if (!cJSON_IsString(value))
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be a JSON Schema, an object or a string of one, not %s.",
                              name, kva_api_type_name(value));
    cJSON *schema = NULL;
    enum kva_status status = kva_json_parse(value->valuestring, strlen(value->valuestring),
                                            &p->config->limits.json, &schema, p->err);
    if (status) {
        struct kva_err why = *p->err;
        return kva_fail_param(p->err, status, name, "'%s' is a string, but not of JSON. %s", name,
                              why.message);
    }
    status = cJSON_IsObject(schema)
                 ? set_schema(p, name, schema, strict)
                 : kva_fail_param(p->err, KVA_EINVAL, name,
                                  "'%s' must be a JSON Schema, an object, not %s.", name,
                                  kva_api_type_name(schema));
    cJSON_Delete(schema);
    return status;
}

/* Any object. */
static enum kva_status set_object(struct kva_api_parser *p, const char *name)
{
    static const char any[] = "{\"type\":\"object\"}";
    return set_source(p, name, KVA_GRAMMAR_SCHEMA, any, strlen(any), false);
}

/* --- OpenAI ---------------------------------------------------------------------------------- */

static enum kva_status parse_json_schema(struct kva_api_parser *p, const char *name,
                                         const cJSON *value)
{
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(value, "json_schema");
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(inner, "schema");
    const cJSON *strict = cJSON_GetObjectItemCaseSensitive(inner, "strict");
    if (!cJSON_IsObject(schema))
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' of type 'json_schema' must have 'json_schema' with a 'schema'.",
                              name);
    bool is_strict = false;
    if (strict && !cJSON_IsNull(strict)) {
        enum kva_status status =
            kva_api_read_bool(p, "response_format.json_schema.strict", strict, &is_strict);
        if (status)
            return status;
    }
    return set_schema(p, name, schema, is_strict);
}

/* The Responses API has the members of json_schema beside the type. */
enum kva_status kva_api_parse_text_format(struct kva_api_parser *p, const char *name,
                                          const cJSON *value)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(value, "type");
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(value, "schema");
    const cJSON *strict = cJSON_GetObjectItemCaseSensitive(value, "strict");
    const char *word = cJSON_IsString(type) ? type->valuestring : "";
    if (strcmp(word, "text") == 0)
        return KVA_OK;
    if (strcmp(word, "json_object") == 0)
        return set_object(p, name);
    if (strcmp(word, "json_schema") == 0 && cJSON_IsObject(schema))
        return set_schema(p, name, schema, cJSON_IsTrue(strict));
    return kva_fail_param(p->err, KVA_EINVAL, name,
                          "'%s' must have a 'type' of text, json_object, or json_schema with a "
                          "'schema'.",
                          name);
}

enum kva_status kva_api_parse_response_format(struct kva_api_parser *p, const char *name,
                                              const cJSON *value)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(value, "type");
    if (!cJSON_IsString(type))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object with a 'type'.",
                              name);
    if (strcmp(type->valuestring, "text") == 0)
        return KVA_OK;
    if (strcmp(type->valuestring, "json_schema") == 0)
        return parse_json_schema(p, name, value);
    if (strcmp(type->valuestring, "json_object") == 0) {
        const cJSON *schema = cJSON_GetObjectItemCaseSensitive(value, "schema");
        return cJSON_IsObject(schema) ? set_schema(p, name, schema, false) : set_object(p, name);
    }
    return kva_fail_param(p->err, KVA_EUNSUPPORTED, name,
                          "'%s' of type '%.40s' is not supported by this server, only 'text', "
                          "'json_object' and 'json_schema'.",
                          name, type->valuestring);
}

/* --- vLLM, SGLang, llama-server -------------------------------------------------------------- */

enum kva_status kva_api_parse_guided_json(struct kva_api_parser *p, const char *name,
                                          const cJSON *value)
{
    return parse_schema(p, name, value, false);
}

static enum kva_status parse_text(struct kva_api_parser *p, const char *name, const cJSON *value,
                                  enum kva_grammar_kind kind)
{
    if (!cJSON_IsString(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be a string, not %s.", name,
                              kva_api_type_name(value));
    if (value->valuestring[0] == '\0')
        return KVA_OK;
    return set_source(p, name, kind, value->valuestring, strlen(value->valuestring), false);
}

enum kva_status kva_api_parse_guided_regex(struct kva_api_parser *p, const char *name,
                                           const cJSON *value)
{
    return parse_text(p, name, value, KVA_GRAMMAR_REGEX);
}

enum kva_status kva_api_parse_guided_grammar(struct kva_api_parser *p, const char *name,
                                             const cJSON *value)
{
    return parse_text(p, name, value, KVA_GRAMMAR_EBNF);
}

enum kva_status kva_api_parse_guided_choice(struct kva_api_parser *p, const char *name,
                                            const cJSON *value)
{
    uint32_t count = (uint32_t)cJSON_GetArraySize(value), used = 0;
    if (!cJSON_IsArray(value) || count == 0 || count > CHOICES_MAX)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an array of 1 to %u strings.",
                              name, CHOICES_MAX);
    struct kva_grammar_choice *choices = kva_arena_calloc(&p->call->arena, count, sizeof(*choices));
    if (!choices)
        return kva_fail_param(p->err, KVA_ENOMEM, name, "'%s' does not fit the request's memory.",
                              name);
    for (const cJSON *at = value->child; at; at = at->next) {
        if (!cJSON_IsString(at) || at->valuestring[0] == '\0')
            return kva_fail_param(p->err, KVA_EINVAL, name,
                                  "'%s[%u]' must be a string that is not empty.", name, used);
        choices[used++] = (struct kva_grammar_choice){at->valuestring, strlen(at->valuestring)};
    }
    struct kva_buf rules;
    kva_buf_init(&rules, p->config->limits.arena_bytes_max);
    kva_grammar_put_choices(&rules, choices, used);
    enum kva_status status =
        rules.failed ? kva_fail_param(p->err, KVA_ENOMEM, name, "Out of memory for '%s'.", name)
                     : set_source(p, name, KVA_GRAMMAR_EBNF, rules.data, rules.length, false);
    kva_buf_finish(&rules);
    return status;
}

enum kva_status kva_api_parse_structured_outputs(struct kva_api_parser *p, const char *name,
                                                 const cJSON *value)
{
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object, not %s.", name,
                              kva_api_type_name(value));
    enum kva_status status = KVA_OK;
    for (const cJSON *at = value->child; at && !status; at = at->next) {
        char place[KVA_ERR_PARAM_MAX];
        snprintf(place, sizeof(place), "%s.%s", name, at->string);
        if (cJSON_IsNull(at) || cJSON_IsFalse(at))
            continue;
        if (strcmp(at->string, "json") == 0)
            status = kva_api_parse_guided_json(p, place, at);
        else if (strcmp(at->string, "regex") == 0)
            status = kva_api_parse_guided_regex(p, place, at);
        else if (strcmp(at->string, "grammar") == 0)
            status = kva_api_parse_guided_grammar(p, place, at);
        else if (strcmp(at->string, "choice") == 0)
            status = kva_api_parse_guided_choice(p, place, at);
        else if (strcmp(at->string, "json_object") == 0 && cJSON_IsTrue(at))
            status = set_object(p, place);
        else
            status = kva_fail_param(p->err, KVA_EUNSUPPORTED, place,
                                    "'%s' is not supported by this server.", place);
    }
    return status;
}
