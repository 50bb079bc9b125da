/* messages.c - Anthropic's Messages API as a chat: blocks become messages, results of tools ones of
 * their own. */
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

static const char *text_of(const cJSON *object, const char *name)
{
    const cJSON *value = get(object, name);
    return cJSON_IsString(value) ? value->valuestring : "";
}

static enum kva_status no_memory(struct kva_api_parser *p)
{
    return kva_fail_param(p->err, KVA_ENOMEM, "messages", "Out of memory for the messages.");
}

/* --- fields ---------------------------------------------------------------------------------- */

enum kva_status kva_api_keep_messages(struct kva_api_parser *p, const char *name,
                                      const cJSON *value)
{
    if (!cJSON_IsArray(value) || !value->child)
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be an array of at least one message.", name);
    p->input = value;
    return KVA_OK;
}

enum kva_status kva_api_parse_system(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    if (!cJSON_IsString(value) && !cJSON_IsArray(value))
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be a string or an array of text blocks, not %s.", name,
                              kva_api_type_name(value));
    p->system = value;
    return KVA_OK;
}

/* How long a model may think has no bound here; whether it does, its template may know. */
enum kva_status kva_api_parse_thinking(struct kva_api_parser *p, const char *name,
                                       const cJSON *value)
{
    const char *type = text_of(value, "type");
    if (strcmp(type, "disabled") == 0)
        p->effort = "none";
    else if (strcmp(type, "enabled") != 0 && strcmp(type, "adaptive") != 0)
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must have a 'type' of enabled, adaptive or disabled.", name);
    return KVA_OK;
}

enum kva_status kva_api_parse_output_config(struct kva_api_parser *p, const char *name,
                                            const cJSON *value)
{
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object, not %s.", name,
                              kva_api_type_name(value));
    const cJSON *effort = get(value, "effort"), *format = get(value, "format");
    enum kva_status status =
        effort ? kva_api_parse_effort(p, "output_config.effort", effort) : KVA_OK;
    if (status == KVA_OK && format)
        status = kva_api_parse_text_format(p, "output_config.format", format);
    return status;
}

/* --- blocks to messages ---------------------------------------------------------------------- */

struct maker {
    struct kva_api_parser *p;
    cJSON *messages;
    uint32_t *origins;
    uint32_t count, room;
};

static enum kva_status add_message(struct maker *m, const char *role, uint32_t index, cJSON **ret)
{
    cJSON *message = m->count < m->room ? cJSON_CreateObject() : NULL;
    if (!message || !cJSON_AddStringToObject(message, "role", role) ||
        !cJSON_AddItemToArray(m->messages, message)) {
        cJSON_Delete(message);
        return no_memory(m->p);
    }
    m->origins[m->count++] = index;
    *ret = message;
    return KVA_OK;
}

/* Moves a member to another object, if it is there. */
static bool move(cJSON *from, const char *name, cJSON *to, const char *as)
{
    cJSON *value = cJSON_DetachItemFromObjectCaseSensitive(from, name);
    if (!value || cJSON_AddItemToObject(to, as, value))
        return true;
    cJSON_Delete(value);
    return false;
}

static enum kva_status add_call(struct maker *m, cJSON *message, cJSON *block)
{
    cJSON *calls = get(message, "tool_calls");
    if (!calls)
        calls = cJSON_AddArrayToObject(message, "tool_calls");
    cJSON *call = cJSON_CreateObject();
    cJSON *function = call ? cJSON_AddObjectToObject(call, "function") : NULL;
    bool made = function && cJSON_AddStringToObject(call, "type", "function") &&
                move(block, "id", call, "id") && move(block, "name", function, "name") &&
                move(block, "input", function, "arguments");
    if (made && calls && cJSON_AddItemToArray(calls, call))
        return KVA_OK;
    cJSON_Delete(call);
    return no_memory(m->p);
}

/* Text goes to the message's parts. */
static enum kva_status add_text(struct maker *m, cJSON *message, const char *text)
{
    cJSON *content = get(message, "content");
    if (!content)
        content = cJSON_AddArrayToObject(message, "content");
    cJSON *part = cJSON_CreateString(text);
    if (part && content && cJSON_AddItemToArray(content, part))
        return KVA_OK;
    cJSON_Delete(part);
    return no_memory(m->p);
}

static enum kva_status add_thought(struct maker *m, cJSON *message, const char *text)
{
    bool done = text[0] == '\0' || cJSON_HasObjectItem(message, "reasoning_content") ||
                cJSON_AddStringToObject(message, "reasoning_content", text);
    return done ? KVA_OK : no_memory(m->p);
}

static enum kva_status add_result(struct maker *m, cJSON *block, uint32_t index)
{
    cJSON *message = NULL;
    enum kva_status status = add_message(m, "tool", index, &message);
    if (status)
        return status;
    bool done = move(block, "tool_use_id", message, "tool_call_id") &&
                (get(block, "content") ? move(block, "content", message, "content")
                                       : cJSON_AddStringToObject(message, "content", "") != NULL);
    return done ? KVA_OK : no_memory(m->p);
}

/* One block of a message; *at is the message that it belongs to, made when it is needed. */
static enum kva_status read_block(struct maker *m, cJSON *block, const char *role, uint32_t index,
                                  uint32_t number, cJSON **at)
{
    char place[KVA_ERR_PARAM_MAX];
    const char *type = text_of(block, "type");
    bool assistant = strcmp(role, "assistant") == 0;
    enum kva_status status = KVA_OK;
    snprintf(place, sizeof(place), "messages[%u].content[%u]", index, number);
    if (!assistant && strcmp(type, "tool_result") == 0) {
        *at = NULL; /* what is said behind it is another message */
        return add_result(m, block, index);
    }
    if (!*at)
        status = add_message(m, role, index, at);
    if (status)
        return status;
    if (strcmp(type, "text") == 0 && cJSON_IsString(get(block, "text")))
        return add_text(m, *at, text_of(block, "text"));
    if (assistant && strcmp(type, "tool_use") == 0)
        return add_call(m, *at, block);
    if (assistant && strcmp(type, "thinking") == 0)
        return add_thought(m, *at, text_of(block, "thinking"));
    if (assistant && strcmp(type, "redacted_thinking") == 0)
        return KVA_OK;
    return kva_fail_param(m->p->err, type[0] ? KVA_EUNSUPPORTED : KVA_EINVAL, place,
                          "'%s' has type '%.40s', which this server does not support in a message "
                          "of the %.20s, only text, and calls, thoughts and results of tools.",
                          place, type, role);
}

static enum kva_status read_message(struct maker *m, cJSON *item, uint32_t index)
{
    const char *role = text_of(item, "role");
    cJSON *content = get(item, "content"), *at = NULL;
    uint32_t number = 0;
    enum kva_status status = KVA_OK;
    if (!cJSON_IsArray(content)) {
        status = add_message(m, role, index, &at);
        if (status == KVA_OK && !move(item, "content", at, "content"))
            status = no_memory(m->p);
        return status;
    }
    for (cJSON *block = content->child; block && !status; block = block->next)
        status = read_block(m, block, role, index, number++, &at);
    return status;
}

static enum kva_status read_messages(struct maker *m)
{
    cJSON *message = NULL;
    uint32_t index = 0;
    m->room = 1;
    for (const cJSON *at = m->p->input->child; at; at = at->next)
        m->room += 1 + (uint32_t)cJSON_GetArraySize(get(at, "content"));
    m->origins = kva_arena_calloc(&m->p->call->arena, m->room, sizeof(*m->origins));
    enum kva_status status = m->origins ? KVA_OK : no_memory(m->p);
    if (status == KVA_OK && m->p->system)
        status = add_message(m, "system", KVA_ORIGIN_SYSTEM, &message);
    if (message) {
        cJSON *system = cJSON_Duplicate(m->p->system, true);
        if (!system || !cJSON_AddItemToObject(message, "content", system)) {
            cJSON_Delete(system);
            status = no_memory(m->p);
        }
    }
    for (cJSON *at = m->p->input->child; at && !status; at = at->next)
        status = read_message(m, at, index++);
    return status;
}

enum kva_status kva_api_read_messages(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    if (!p->input)
        return kva_fail_param(p->err, KVA_EINVAL, "messages", "'messages' is missing.");
    if (p->route == KVA_API_MESSAGES && !call->has_max_tokens)
        return kva_fail_param(p->err, KVA_EINVAL, "max_tokens", "'max_tokens' is missing.");
    struct maker m = {.p = p, .messages = cJSON_CreateArray()};
    enum kva_status status = m.messages ? read_messages(&m) : no_memory(p);
    cJSON_DeleteItemFromObjectCaseSensitive(call->json, "messages");
    if (status != KVA_OK || !cJSON_AddItemToObject(call->json, "messages", m.messages)) {
        cJSON_Delete(m.messages);
        return status ? status : no_memory(p);
    }
    p->origins = m.origins;
    /* A last message of the assistant is the beginning of the answer. */
    const cJSON *last = cJSON_GetArrayItem(m.messages, cJSON_GetArraySize(m.messages) - 1);
    call->continue_final =
        strcmp(text_of(last, "role"), "assistant") == 0 && !cJSON_HasObjectItem(last, "tool_calls");
    return kva_api_parse_messages(p, "messages", m.messages);
}
