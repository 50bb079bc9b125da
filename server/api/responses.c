/* responses.c - the Responses API as a chat: its input becomes messages, its tools and formats those of
 * a chat, and what an answer repeats of the request is kept. */
#include "server/api/fields.h"

#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cJSON *get(const cJSON *object, const char *name)
{
    cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(value) ? NULL : value;
}

static enum kva_status no_memory(struct kva_api_parser *p)
{
    return kva_fail_param(p->err, KVA_ENOMEM, "input", "Out of memory for 'input'.");
}

/* --- fields ---------------------------------------------------------------------------------- */

enum kva_status kva_api_parse_input(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    bool good = cJSON_IsString(value) || (cJSON_IsArray(value) && value->child);
    if (!good)
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be a string or an array of at least one item, not %s.",
                              name, cJSON_IsArray(value) ? "empty" : kva_api_type_name(value));
    p->input = value;
    return KVA_OK;
}

enum kva_status kva_api_parse_instructions(struct kva_api_parser *p, const char *name,
                                           const cJSON *value)
{
    if (!cJSON_IsString(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be a string, not %s.", name,
                              kva_api_type_name(value));
    p->call->instructions = value->valuestring;
    return KVA_OK;
}

enum kva_status kva_api_parse_previous(struct kva_api_parser *p, const char *name,
                                       const cJSON *value)
{
    struct kva_api_text id;
    enum kva_status status = kva_api_read_text(p, name, value, 128, &id);
    if (status == KVA_OK)
        p->call->previous = id.data;
    return status;
}

enum kva_status kva_api_parse_text(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    const cJSON *format = get(value, "format"), *verbosity = get(value, "verbosity");
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object, not %s.", name,
                              kva_api_type_name(value));
    if (verbosity && (!cJSON_IsString(verbosity) || strcmp(verbosity->valuestring, "medium") != 0))
        return kva_fail_param(p->err, KVA_EUNSUPPORTED, "text.verbosity",
                              "'text.verbosity' is not supported by this server.");
    return format ? kva_api_parse_text_format(p, "text.format", format) : KVA_OK;
}

enum kva_status kva_api_parse_reasoning(struct kva_api_parser *p, const char *name,
                                        const cJSON *value)
{
    const cJSON *effort = get(value, "effort");
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object, not %s.", name,
                              kva_api_type_name(value));
    return effort ? kva_api_parse_effort(p, "reasoning.effort", effort) : KVA_OK;
}

/* What else an answer may have: log-probabilities; what is never there may be asked for. */
enum kva_status kva_api_parse_include(struct kva_api_parser *p, const char *name,
                                      const cJSON *value)
{
    if (!cJSON_IsArray(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an array, not %s.", name,
                              kva_api_type_name(value));
    for (const cJSON *at = value->child; at; at = at->next) {
        if (cJSON_IsString(at) && strcmp(at->valuestring, "message.output_text.logprobs") == 0)
            p->call->want_logprobs = true;
    }
    return KVA_OK;
}

/* --- input to messages ----------------------------------------------------------------------- */

/* What is being made of the items. */
struct maker {
    struct kva_api_parser *p;
    cJSON *messages;
    uint32_t *origins; /* of each message: the item that it was made of */
    uint32_t count;
    cJSON *thoughts; /* that the next message of the assistant begins with */
};

static enum kva_status add_message(struct maker *m, const char *role, uint32_t index, cJSON **ret)
{
    uint32_t most = m->p->config->limits.messages_max;
    if (m->count >= most)
        return kva_fail_param(m->p->err, KVA_EINVAL, "input",
                              "'input' has more than %u messages, which is the limit.", most);
    cJSON *message = cJSON_CreateObject();
    if (!message || !cJSON_AddStringToObject(message, "role", role) ||
        !cJSON_AddItemToArray(m->messages, message)) {
        cJSON_Delete(message);
        return no_memory(m->p);
    }
    m->origins[m->count++] = index;
    *ret = message;
    if (strcmp(role, "assistant") == 0 && m->thoughts) {
        if (!cJSON_AddItemToObject(message, "reasoning_content", m->thoughts))
            cJSON_Delete(m->thoughts);
        m->thoughts = NULL;
    }
    return KVA_OK;
}

/* Moves a member of the item to the message. */
static enum kva_status move(struct maker *m, cJSON *item, const char *from, cJSON *message,
                            const char *to)
{
    cJSON *value = cJSON_DetachItemFromObjectCaseSensitive(item, from);
    if (!value || cJSON_AddItemToObject(message, to, value))
        return KVA_OK;
    cJSON_Delete(value);
    return no_memory(m->p);
}

static enum kva_status read_string(struct maker *m, const cJSON *item, uint32_t index,
                                   const char *name, const char **ret)
{
    const cJSON *value = get(item, name);
    char place[KVA_ERR_PARAM_MAX];
    snprintf(place, sizeof(place), "input[%u].%s", index, name);
    if (!cJSON_IsString(value))
        return kva_fail_param(m->p->err, KVA_EINVAL, place, "'%s' must be a string, not %s.", place,
                              kva_api_type_name(value));
    *ret = value->valuestring;
    return KVA_OK;
}

static enum kva_status read_message(struct maker *m, cJSON *item, uint32_t index)
{
    const char *role = "";
    cJSON *message = NULL;
    enum kva_status status = read_string(m, item, index, "role", &role);
    if (status == KVA_OK)
        status = add_message(m, role, index, &message);
    return status ? status : move(m, item, "content", message, "content");
}

/* Calls behind each other, or behind what the assistant said before them, are one message's. */
static cJSON *calls_of_last(struct maker *m)
{
    /* The first item's `prev` is the last one: counting would make many calls take long. */
    cJSON *first = m->messages->child, *message = first ? first->prev : NULL;
    const cJSON *role = get(message, "role");
    if (!role || strcmp(role->valuestring, "assistant") != 0 || m->thoughts)
        return NULL;
    cJSON *calls = get(message, "tool_calls");
    return calls ? calls : cJSON_AddArrayToObject(message, "tool_calls");
}

static enum kva_status read_call(struct maker *m, cJSON *item, uint32_t index)
{
    const char *id = "", *name = "", *arguments = "";
    cJSON *message = NULL, *calls = calls_of_last(m);
    enum kva_status status = read_string(m, item, index, "call_id", &id);
    if (status == KVA_OK)
        status = read_string(m, item, index, "name", &name);
    if (status == KVA_OK)
        status = read_string(m, item, index, "arguments", &arguments);
    if (status == KVA_OK && !calls) {
        status = add_message(m, "assistant", index, &message);
        calls = status ? NULL : cJSON_AddArrayToObject(message, "tool_calls");
    }
    if (status)
        return status;
    cJSON *call = cJSON_CreateObject();
    cJSON *function = call ? cJSON_AddObjectToObject(call, "function") : NULL;
    bool made = function && cJSON_AddStringToObject(call, "id", id) &&
                cJSON_AddStringToObject(call, "type", "function") &&
                cJSON_AddStringToObject(function, "name", name) &&
                cJSON_AddStringToObject(function, "arguments", arguments);
    if (made && calls && cJSON_AddItemToArray(calls, call))
        return KVA_OK;
    cJSON_Delete(call);
    return no_memory(m->p);
}

static enum kva_status read_output(struct maker *m, cJSON *item, uint32_t index)
{
    const char *id = "";
    cJSON *message = NULL;
    const cJSON *output = get(item, "output");
    char place[KVA_ERR_PARAM_MAX];
    snprintf(place, sizeof(place), "input[%u].output", index);
    if (!cJSON_IsString(output) && !cJSON_IsArray(output))
        return kva_fail_param(m->p->err, KVA_EINVAL, place,
                              "'%s' must be a string or an array of text parts, not %s.", place,
                              kva_api_type_name(output));
    enum kva_status status = read_string(m, item, index, "call_id", &id);
    if (status == KVA_OK)
        status = add_message(m, "tool", index, &message);
    if (status == KVA_OK)
        status = move(m, item, "call_id", message, "tool_call_id");
    return status ? status : move(m, item, "output", message, "content");
}

static enum kva_status read_thoughts(struct maker *m, const cJSON *item)
{
    struct kva_buf text;
    const cJSON *content = get(item, "content");
    kva_buf_init(&text, m->p->config->limits.arena_bytes_max);
    for (const cJSON *at = content ? content->child : NULL; at; at = at->next) {
        const cJSON *part = get(at, "text");
        kva_buf_puts(&text, cJSON_IsString(part) ? part->valuestring : "");
    }
    cJSON_Delete(m->thoughts);
    m->thoughts = text.length > 0 && !text.failed ? cJSON_CreateString(text.data) : NULL;
    kva_buf_finish(&text);
    return KVA_OK;
}

static enum kva_status read_item(struct maker *m, cJSON *item, uint32_t index)
{
    const cJSON *type = get(item, "type");
    const char *word = cJSON_IsString(type) ? type->valuestring : "message";
    char place[KVA_ERR_PARAM_MAX];
    snprintf(place, sizeof(place), "input[%u]", index);
    if (!cJSON_IsObject(item))
        return kva_fail_param(m->p->err, KVA_EINVAL, place, "'%s' must be an object, not %s.",
                              place, kva_api_type_name(item));
    if (strcmp(word, "message") == 0)
        return read_message(m, item, index);
    if (strcmp(word, "function_call") == 0)
        return read_call(m, item, index);
    if (strcmp(word, "function_call_output") == 0)
        return read_output(m, item, index);
    if (strcmp(word, "reasoning") == 0)
        return read_thoughts(m, item);
    return kva_fail_param(m->p->err, KVA_EUNSUPPORTED, place,
                          "'%s' is of type '%.40s', which this server does not support, only "
                          "message, function_call, function_call_output and reasoning.",
                          place, word);
}

static enum kva_status read_input(struct maker *m)
{
    const cJSON *input = m->p->input;
    uint32_t index = 0, count = 1;
    cJSON *message = NULL;
    for (const cJSON *at = cJSON_IsArray(input) ? input->child : NULL; at; at = at->next)
        count++;
    m->origins = kva_arena_calloc(&m->p->call->arena, count, sizeof(*m->origins));
    if (!m->origins)
        return no_memory(m->p);
    enum kva_status status = KVA_OK;
    if (cJSON_IsString(input)) {
        status = add_message(m, "user", 0, &message);
        if (status == KVA_OK && !cJSON_AddStringToObject(message, "content", input->valuestring))
            status = no_memory(m->p);
        return status;
    }
    for (cJSON *at = input->child; at && status == KVA_OK; at = at->next)
        status = read_item(m, at, index++);
    return status;
}

/* --- what answers repeat --------------------------------------------------------------------- */

/* Of metadata, which are kept as long as the response: 16 pairs of names of 64 characters and values
 * of 512 are less. */
#define METADATA_BYTES_MAX (16u << 10)

static void put_member(struct kva_buf *out, const cJSON *body, const char *name,
                       const char *fallback)
{
    const cJSON *value = get(body, name);
    char *text = value ? cJSON_PrintUnformatted(value) : NULL;
    kva_buf_printf(out, ",\"%s\":", name);
    if (text)
        kva_buf_json_line(out, text, strlen(text));
    else
        kva_buf_puts(out, fallback);
    out->failed = out->failed || (value && !text);
    free(text);
}

static enum kva_status keep_echo(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    struct kva_buf text;
    kva_buf_init(&text, p->config->limits.arena_bytes_max);
    kva_buf_printf(&text, ",\"store\":%s,\"temperature\":", call->store ? "true" : "false");
    kva_buf_float(&text, call->sampling.temperature);
    kva_buf_puts(&text, ",\"top_p\":");
    kva_buf_float(&text, call->sampling.top_p);
    put_member(&text, call->json, "instructions", "null");
    put_member(&text, call->json, "max_output_tokens", "null");
    const size_t before = text.length + strlen(",\"metadata\":");
    put_member(&text, call->json, "metadata", "{}");
    const size_t metadata_bytes = text.failed ? 0 : text.length - before;
    put_member(&text, call->json, "parallel_tool_calls", "true");
    put_member(&text, call->json, "previous_response_id", "null");
    put_member(&text, call->json, "reasoning", "{\"effort\":null,\"summary\":null}");
    put_member(&text, call->json, "text", "{\"format\":{\"type\":\"text\"}}");
    put_member(&text, call->json, "tool_choice", "\"auto\"");
    put_member(&text, call->json, "tools", "[]");
    put_member(&text, call->json, "truncation", "\"disabled\"");
    const char *copy = text.failed ? NULL : kva_arena_strndup(&call->arena, text.data, text.length);
    kva_buf_finish(&text);
    call->echoed = copy;
    if (copy && metadata_bytes > METADATA_BYTES_MAX)
        return kva_fail_param(p->err, KVA_EINVAL, "metadata",
                              "'metadata' has %zu bytes as JSON, at most %u are kept.",
                              metadata_bytes, METADATA_BYTES_MAX);
    return copy ? KVA_OK : no_memory(p);
}

/* Content as a list of parts. */
static bool list_content(cJSON *item, const char *text)
{
    const cJSON *role = get(item, "role");
    bool assistant = cJSON_IsString(role) && strcmp(role->valuestring, "assistant") == 0;
    cJSON *parts = cJSON_CreateArray(), *part = cJSON_CreateObject();
    bool made = part &&
                cJSON_AddStringToObject(part, "type", assistant ? "output_text" : "input_text") &&
                cJSON_AddStringToObject(part, "text", text) &&
                (!assistant || cJSON_AddArrayToObject(part, "annotations"));
    if (!made || !parts || !cJSON_AddItemToArray(parts, part)) {
        cJSON_Delete(part);
        cJSON_Delete(parts);
        return false;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(item, "content");
    if (cJSON_AddItemToObject(item, "content", parts))
        return true;
    cJSON_Delete(parts);
    return false;
}

/* An item as it is shown: of a type, with an id, and its text in a list. */
static bool complete_item(cJSON *item, uint32_t index)
{
    char id[32];
    snprintf(id, sizeof(id), "item_%u", index);
    const cJSON *content = get(item, "content");
    return (get(item, "type") || cJSON_AddStringToObject(item, "type", "message")) &&
           (get(item, "id") || cJSON_AddStringToObject(item, "id", id)) &&
           (get(item, "status") || cJSON_AddStringToObject(item, "status", "completed")) &&
           (!cJSON_IsString(content) || list_content(item, content->valuestring));
}

/* Before they become messages; what is no item is refused when they do. */
static enum kva_status keep_items(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    bool text_alone = cJSON_IsString(p->input);
    cJSON *items = text_alone ? cJSON_CreateArray() : cJSON_Duplicate(p->input, true);
    cJSON *only = items && text_alone ? cJSON_CreateObject() : NULL;
    bool made =
        items && (!text_alone || (only && cJSON_AddItemToArray(items, only) &&
                                  cJSON_AddStringToObject(only, "role", "user") &&
                                  cJSON_AddStringToObject(only, "content", p->input->valuestring)));
    uint32_t index = 0;
    for (cJSON *item = made ? items->child : NULL; item && made; item = item->next)
        made = !cJSON_IsObject(item) || complete_item(item, index++);
    char *text = made ? cJSON_PrintUnformatted(items) : NULL;
    call->input_items = text ? kva_arena_strndup(&call->arena, text, strlen(text)) : NULL;
    free(text);
    cJSON_Delete(items);
    return call->input_items ? KVA_OK : no_memory(p);
}

enum kva_status kva_api_read_input(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    if (!p->input)
        return kva_fail_param(p->err, KVA_EINVAL, "input", "'input' is missing.");
    enum kva_status status = keep_echo(p);
    if (status == KVA_OK && call->store)
        status = keep_items(p);
    struct maker m = {.p = p, .messages = cJSON_CreateArray()};
    if (status == KVA_OK)
        status = m.messages ? read_input(&m) : no_memory(p);
    cJSON_Delete(m.thoughts);
    cJSON_DeleteItemFromObjectCaseSensitive(call->json, "messages");
    if (status != KVA_OK || !cJSON_AddItemToObject(call->json, "messages", m.messages)) {
        cJSON_Delete(m.messages);
        return status ? status : no_memory(p);
    }
    p->origins = m.origins;
    return kva_api_parse_messages(p, "input", m.messages);
}

/* --- conversations --------------------------------------------------------------------------- */

/* How much deeper what a call was given lies in the messages of a conversation than in a request,
 * where it is text. */
#define CONVERSATION_DEPTH 8u

enum kva_status kva_api_continue(const struct kva_api_config *config, struct kva_api_call *call,
                                 const char *conversation, struct kva_err *err)
{
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(call->json, "messages");
    cJSON *before = NULL;
    struct kva_json_limits limits = config->limits.json;
    limits.depth_max = kva_min_u32(limits.depth_max + CONVERSATION_DEPTH, KVA_JSON_DEPTH_MAX);
    enum kva_status status =
        kva_json_parse(conversation, strlen(conversation), &limits, &before, err);
    if (status != KVA_OK) {
        const struct kva_err why = *err;
        return kva_fail_param(err, status == KVA_ENOMEM ? status : KVA_EINVAL,
                              "previous_response_id",
                              "The conversation so far cannot be continued: %.200s", why.message);
    }
    /* The new messages go behind the old ones. */
    while (status == KVA_OK && messages->child) {
        cJSON *first = cJSON_DetachItemViaPointer(messages, messages->child);
        if (!cJSON_AddItemToArray(before, first)) {
            cJSON_Delete(first);
            status = kva_fail_param(err, KVA_ENOMEM, "input", "Out of memory for 'input'.");
        }
    }
    if (status == KVA_OK &&
        cJSON_ReplaceItemInObjectCaseSensitive(call->json, "messages", before)) {
        call->messages = before;
        return KVA_OK;
    }
    cJSON_Delete(before);
    return status ? status : kva_fail_param(err, KVA_ENOMEM, "input", "Out of memory for 'input'.");
}

enum kva_status kva_api_open_conversation(const struct kva_api_config *config,
                                          struct kva_api_call *call, struct kva_err *err)
{
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(call->json, "messages");
    if (call->store) {
        struct kva_buf text;
        kva_buf_init(&text, config->limits.arena_bytes_max);
        kva_reply_put_json(&text, messages);
        call->conversation =
            text.failed ? NULL : kva_arena_strndup(&call->arena, text.data, text.length);
        kva_buf_finish(&text);
        if (!call->conversation)
            return kva_fail_param(err, KVA_ENOMEM, "input", "Out of memory for 'input'.");
    }
    if (!call->instructions)
        return KVA_OK;
    cJSON *message = cJSON_CreateObject();
    bool made = message && cJSON_AddStringToObject(message, "role", "system") &&
                cJSON_AddStringToObject(message, "content", call->instructions);
    if (made && cJSON_InsertItemInArray(messages, 0, message))
        return KVA_OK;
    cJSON_Delete(message);
    return kva_fail_param(err, KVA_ENOMEM, "instructions", "Out of memory for 'instructions'.");
}
