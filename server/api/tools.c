/* tools.c - functions that a reply may call: what a request says of them, and the grammar of it. */
#include "server/api/fields.h"

#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* OpenAI: 128. */
#define TOOLS_MAX      128u
#define NAME_BYTES_MAX 256u

enum kva_status kva_api_parse_tools(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    if (!cJSON_IsArray(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an array, not %s.", name,
                              kva_api_type_name(value));
    p->tools = value;
    return KVA_OK;
}

enum kva_status kva_api_parse_tool_choice(struct kva_api_parser *p, const char *name,
                                          const cJSON *value)
{
    if (!cJSON_IsString(value) && !cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be \"none\", \"auto\", \"required\" or an object that "
                              "names a function, not %s.",
                              name, kva_api_type_name(value));
    p->tool_choice = value;
    return KVA_OK;
}

static const cJSON *get(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(value) ? NULL : value;
}

/* Where the members of a function are: beside the tool's type, but in chats. */
static bool is_flat(const struct kva_api_parser *p)
{
    return p->call->face != KVA_FACE_OPENAI || p->call->tools.legacy;
}

/* What the request calls them. */
static const char *field_of(const struct kva_api_call *call)
{
    return call->tools.legacy ? "functions" : "tools";
}

static const char *inside(const struct kva_api_parser *p)
{
    return is_flat(p) ? "" : ".function";
}

static const char *schema_name(const struct kva_api_call *call)
{
    return call->tools.legacy                 ? "functions[%u].parameters"
           : call->face == KVA_FACE_MESSAGES  ? "tools[%u].input_schema"
           : call->face == KVA_FACE_RESPONSES ? "tools[%u].parameters"
                                              : "tools[%u].function.parameters";
}

/* The form that templates know has them in an object of their own. */
static bool nest(cJSON *tool)
{
    cJSON *function = cJSON_CreateObject();
    for (cJSON *at = tool->child, *next; function && at; at = next) {
        next = at->next;
        if (strcmp(at->string, "type") == 0 || strcmp(at->string, "cache_control") == 0)
            continue;
        cJSON *member = cJSON_DetachItemViaPointer(tool, at);
        const char *name = strcmp(at->string, "input_schema") == 0 ? "parameters" : at->string;
        char *copy = strdup(name);
        bool added = copy && cJSON_AddItemToObject(function, copy, member);
        free(copy);
        if (!added) {
            cJSON_Delete(member);
            cJSON_Delete(function);
            return false;
        }
    }
    cJSON_DeleteItemFromObjectCaseSensitive(tool, "type");
    cJSON_DeleteItemFromObjectCaseSensitive(tool, "cache_control");
    bool made = function && cJSON_AddStringToObject(tool, "type", "function");
    if (made && cJSON_AddItemToObject(tool, "function", function))
        return true;
    cJSON_Delete(function);
    return false;
}

/* --- tools ----------------------------------------------------------------------------------- */

static enum kva_status read_name(struct kva_api_parser *p, const cJSON *value, const char *place,
                                 const char **ret)
{
    const char *name = cJSON_IsString(value) ? value->valuestring : "";
    size_t length = strlen(name);
    bool good =
        length > 0 && length <= NAME_BYTES_MAX &&
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == length;
    if (!good)
        return kva_fail_param(p->err, KVA_EINVAL, place,
                              "'%s' must be a name of 1 to %u letters, digits, '_', '-' or '.'.",
                              place, NAME_BYTES_MAX);
    *ret = kva_arena_strndup(&p->call->arena, name, length);
    return *ret ? KVA_OK : kva_fail_param(p->err, KVA_ENOMEM, place, "Out of memory.");
}

/* Text of the schema, in the call's arena; without one a function has no parameters. */
static enum kva_status read_parameters(struct kva_api_parser *p, const cJSON *value,
                                       const char *place, const char **ret)
{
    static const char none[] =
        "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}";
    *ret = none;
    if (!value || (cJSON_IsObject(value) && !value->child))
        return KVA_OK;
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, place,
                              "'%s' must be a JSON Schema, an object, not %s.", place,
                              kva_api_type_name(value));
    char *text = cJSON_PrintUnformatted(value);
    *ret = text ? kva_arena_strndup(&p->call->arena, text, strlen(text)) : NULL;
    free(text);
    return *ret ? KVA_OK
                : kva_fail_param(p->err, KVA_ENOMEM, place,
                                 "'%s' does not fit the request's memory.", place);
}

static enum kva_status read_tool(struct kva_api_parser *p, cJSON *tool, uint32_t index,
                                 struct kva_reply_function *ret)
{
    char place[KVA_ERR_PARAM_MAX];
    const cJSON *type = p->call->tools.legacy ? NULL : get(tool, "type");
    const char *list = field_of(p->call);
    ret->index = index;
    snprintf(place, sizeof(place), "%s[%u].type", list, index);
    bool custom = p->call->face == KVA_FACE_MESSAGES, legacy = p->call->tools.legacy;
    if (legacy && !cJSON_IsObject(tool)) {
        snprintf(place, sizeof(place), "%s[%u]", list, index);
        return kva_fail_param(p->err, KVA_EINVAL, place, "'%s' must be an object, not %s.", place,
                              kva_api_type_name(tool));
    }
    if (!cJSON_IsObject(tool) || (!cJSON_IsString(type) && !((custom || legacy) && !type)))
        return kva_fail_param(p->err, KVA_EINVAL, place, "'%s' must be \"%s\".", place,
                              custom ? "custom" : "function");
    if (type && strcmp(type->valuestring, custom ? "custom" : "function") != 0)
        return kva_fail_param(p->err, KVA_EUNSUPPORTED, place,
                              "'%s' is '%.40s', this server supports only functions.", place,
                              type->valuestring);
    if (is_flat(p) && !nest(tool))
        return kva_fail_param(p->err, KVA_ENOMEM, list, "Out of memory for '%s'.", list);
    const cJSON *function = get(tool, "function");
    const cJSON *strict = get(function, "strict");
    snprintf(place, sizeof(place), "%s[%u]%s", list, index, inside(p));
    if (!cJSON_IsObject(function))
        return kva_fail_param(p->err, KVA_EINVAL, place, "'%s' must be an object, not %s.", place,
                              kva_api_type_name(function));
    snprintf(place, sizeof(place), "%s[%u]%s.strict", list, index, inside(p));
    enum kva_status status = strict ? kva_api_read_bool(p, place, strict, &ret->strict) : KVA_OK;
    snprintf(place, sizeof(place), "%s[%u]%s.description", list, index, inside(p));
    const cJSON *description = get(function, "description");
    if (status == KVA_OK && description && !cJSON_IsString(description))
        status = kva_fail_param(p->err, KVA_EINVAL, place, "'%s' must be a string, not %s.", place,
                                kva_api_type_name(description));
    snprintf(place, sizeof(place), "%s[%u]%s.name", list, index, inside(p));
    if (status == KVA_OK)
        status = read_name(p, get(function, "name"), place, &ret->name);
    for (uint32_t i = 0; status == KVA_OK && i < index; i++) {
        if (strcmp(p->call->tools.functions[i].name, ret->name) == 0)
            status = kva_fail_param(p->err, KVA_EINVAL, place,
                                    "'%s' is '%.64s', which %s[%u] has already.", place, ret->name,
                                    list, i);
    }
    snprintf(place, sizeof(place), schema_name(p->call), index);
    return status ? status
                  : read_parameters(p, get(function, "parameters"), place, &ret->parameters);
}

static enum kva_status read_tools(struct kva_api_parser *p)
{
    struct kva_api_tools *tools = &p->call->tools;
    uint32_t count = 0;
    for (const cJSON *tool = p->tools->child; tool; tool = tool->next)
        count++;
    if (count > TOOLS_MAX)
        return kva_fail_param(p->err, KVA_EINVAL, field_of(p->call),
                              "'%s' has %u functions, limit is %u.", field_of(p->call), count,
                              TOOLS_MAX);
    tools->functions = kva_arena_calloc(&p->call->arena, count, sizeof(*tools->functions));
    if (!tools->functions)
        return kva_fail_param(p->err, KVA_ENOMEM, "tools", "Out of memory for 'tools'.");
    for (cJSON *tool = p->tools->child; tool; tool = tool->next) {
        enum kva_status status = read_tool(p, tool, tools->count, &tools->functions[tools->count]);
        if (status != KVA_OK)
            return status;
        tools->count++;
    }
    tools->list = p->tools;
    return KVA_OK;
}

/* --- tool_choice ----------------------------------------------------------------------------- */

/* Only this one may be called, and it is. */
static enum kva_status choose_function(struct kva_api_parser *p, const cJSON *choice)
{
    struct kva_api_tools *tools = &p->call->tools;
    const cJSON *type = p->call->tools.legacy ? NULL : get(choice, "type");
    bool flat = is_flat(p);
    const cJSON *name = get(flat ? choice : get(choice, "function"), "name");
    const char *place = p->call->tools.legacy ? "function_call.name"
                        : flat                ? "tool_choice.name"
                                              : "tool_choice.function.name";
    const char *kind = p->call->face == KVA_FACE_MESSAGES ? "tool" : "function";
    if (cJSON_IsString(type) && strcmp(type->valuestring, kind) != 0)
        return kva_fail_param(p->err, KVA_EUNSUPPORTED, "tool_choice.type",
                              "'tool_choice.type' is '%.40s', this server supports only '%s'.",
                              type->valuestring, kind);
    if (!cJSON_IsString(name))
        return kva_fail_param(p->err, KVA_EINVAL, place, "'%s' must be the name of one of '%s'.",
                              place, field_of(p->call));
    for (uint32_t i = 0; i < tools->count; i++) {
        if (strcmp(tools->functions[i].name, name->valuestring) != 0)
            continue;
        tools->functions += i;
        tools->count = 1;
        tools->required = true;
        return KVA_OK;
    }
    return kva_fail_param(p->err, KVA_EINVAL, place, "'%s' is '%.64s', which '%s' does not have.",
                          place, name->valuestring, field_of(p->call));
}

/* none, auto, required or whatever was said; NULL: a function is named. Anthropic's words are types of
 * an object, which may forbid more than one call, too. */
static const char *choice_word(struct kva_api_parser *p, const cJSON *choice)
{
    const cJSON *type = get(choice, "type");
    if (p->call->face != KVA_FACE_MESSAGES)
        return cJSON_IsString(choice) ? choice->valuestring : NULL;
    if (cJSON_IsTrue(get(choice, "disable_parallel_tool_use")))
        p->call->tools.parallel = false;
    if (!cJSON_IsString(type))
        return "";
    if (strcmp(type->valuestring, "any") == 0)
        return "required";
    return strcmp(type->valuestring, "tool") == 0 ? NULL : type->valuestring;
}

static enum kva_status read_choice(struct kva_api_parser *p)
{
    struct kva_api_tools *tools = &p->call->tools;
    const cJSON *choice = p->tool_choice;
    const char *word = choice_word(p, choice);
    bool named = !word;
    word = word ? word : "auto";
    bool none = strcmp(word, "none") == 0, automatic = strcmp(word, "auto") == 0;
    const char *field = tools->legacy ? "function_call" : "tool_choice";
    if (!none && !automatic && (tools->legacy || strcmp(word, "required") != 0))
        return kva_fail_param(p->err, KVA_EINVAL, field,
                              "'%s' is '%.40s', allowed is none, auto%s or an object that names a "
                              "function.",
                              field, word, tools->legacy ? "" : ", required");
    if (tools->count == 0 && !none && (!automatic || named))
        return kva_fail_param(p->err, KVA_EINVAL, field,
                              "'%s' asks for a call, but there are no '%s'.", field,
                              field_of(p->call));
    if (none) {
        tools->list = NULL;
        tools->count = 0;
    }
    tools->required = !none && !automatic;
    return named ? choose_function(p, choice) : KVA_OK;
}

/* --- the grammar ----------------------------------------------------------------------------- */

static bool any_is_strict(const struct kva_api_tools *tools)
{
    for (uint32_t i = 0; i < tools->count; i++) {
        if (tools->functions[i].strict)
            return true;
    }
    return false;
}

/* A tag that no grammar could say would keep the model from thinking. */
static bool thought_is_text(const struct kva_api_config *config, const struct kva_api_call *call)
{
    int32_t id = kva_tokenizer_lookup(config->tokenizer, "<think>", strlen("<think>"));
    return !call->chat_template->reply.thinks || id < 0 ||
           !kva_tokenizer_is_special(config->tokenizer, id);
}

static struct kva_reply_rules rules_of(const struct kva_api_config *config,
                                       const struct kva_api_call *call)
{
    return (struct kva_reply_rules){
        .style = call->chat_template->reply.style,
        .functions = call->tools.functions,
        .function_count = call->tools.count,
        .required = call->tools.required,
        .parallel = call->tools.parallel,
        .thinks = call->chat_template->reply.thinks && thought_is_text(config, call),
        .thinking = call->thinking,
        .marker_token = call->chat_template->reply_marker,
        .answer = call->tools.answer,
        .answer_strict = call->tools.answer_strict,
        .answer_place = call->tools.answer_field,
        .schema_place = schema_name(call),
    };
}

/* The grammar's source becomes the call's format. */
static enum kva_status set_format(const struct kva_api_config *config, struct kva_api_call *call,
                                  struct kva_err *err)
{
    const struct kva_reply_rules rules = rules_of(config, call);
    struct kva_buf text;
    kva_buf_init(&text, config->limits.arena_bytes_max);
    kva_reply_put_grammar(&text, &rules);
    const char *copy = text.failed ? NULL : kva_arena_strndup(&call->arena, text.data, text.length);
    size_t length = text.length;
    kva_buf_finish(&text);
    if (!copy)
        return kva_fail_param(err, KVA_ENOMEM, "tools", "Out of memory for 'tools'.");
    call->format.field = field_of(call);
    call->format.source = (struct kva_grammar_source){KVA_GRAMMAR_TAGS, copy, length, false};
    return KVA_OK;
}

enum kva_status kva_api_bind_tools(const struct kva_api_config *config, struct kva_api_call *call,
                                   struct kva_err *err)
{
    /* Only here is it known whether the prompt ends within a thought. */
    if (call->tools.bound == KVA_REPLY_FREE || !call->thinking)
        return KVA_OK;
    return set_format(config, call, err);
}

/* An answer's schema, beside which there may be calls. */
static enum kva_status take_answer(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    struct kva_api_tools *tools = &call->tools;
    const struct kva_api_format *format = &call->format;
    if (!format->field)
        return KVA_OK;
    if (format->source.kind != KVA_GRAMMAR_SCHEMA)
        return kva_fail_param(p->err, KVA_EINVAL, format->field,
                              "'%s' and '%s' both say what the answer must be: only one may, "
                              "unless it is a JSON Schema.",
                              format->field, field_of(call));
    tools->answer = tools->required ? NULL : format->source.text;
    tools->answer_strict = format->source.strict;
    tools->answer_field = format->field;
    return KVA_OK;
}

enum kva_status kva_api_check_tools(struct kva_api_parser *p)
{
    const struct kva_api_config *config = p->config;
    struct kva_api_call *call = p->call;
    struct kva_api_tools *tools = &call->tools;
    enum kva_status status = kva_api_take_functions(p);
    if (status == KVA_OK && p->tools && p->tools->child)
        status = read_tools(p);
    if (status == KVA_OK && p->tool_choice)
        status = read_choice(p);
    call->chat_template = kva_api_template_of(config, tools->list);
    if (status != KVA_OK || tools->count == 0 || call->route == KVA_API_TOKENIZE)
        return status;
    tools->names = kva_arena_calloc(&call->arena, tools->count, sizeof(*tools->names));
    tools->schemas = kva_arena_calloc(&call->arena, tools->count, sizeof(*tools->schemas));
    if (!tools->names || !tools->schemas)
        return kva_fail_param(p->err, KVA_ENOMEM, "tools", "Out of memory for 'tools'.");
    for (uint32_t i = 0; i < tools->count; i++) {
        tools->names[i] = tools->functions[i].name;
        tools->schemas[i] = tools->functions[i].parameters;
    }
    if (tools->required && call->chat_template->reply.style == KVA_REPLY_NONE)
        return kva_fail_param(p->err, KVA_EUNSUPPORTED,
                              tools->legacy ? "function_call" : "tool_choice",
                              "The request asks for a call, but this server looks for none "
                              "(--tool-parser none).");
    status = take_answer(p);
    const struct kva_reply_rules rules = rules_of(config, call);
    enum kva_reply_bound bound = kva_reply_bound_of(&rules);
    bool must = tools->required || tools->answer || any_is_strict(tools);
    bool may = thought_is_text(config, call) && config->grammars;
    if (status != KVA_OK || bound == KVA_REPLY_FREE || (!must && !may))
        return status;
    tools->bound = bound;
    tools->thoughtless = !thought_is_text(config, call);
    return set_format(config, call, p->err);
}
