/* parse_prompt.c - prompts and messages. */
#include "server/api/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static enum kva_status read_text_prompt(struct kva_api_prompt *prompt, const cJSON *value)
{
    *prompt = (struct kva_api_prompt){.text = value->valuestring,
                                      .text_bytes = strlen(value->valuestring)};
    return KVA_OK;
}

/* More ids than the context holds are still read: preparing says both counts, or truncates. */
static enum kva_status read_id_prompt(struct kva_api_parser *p, const char *name,
                                      const cJSON *value, struct kva_api_prompt *prompt)
{
    prompt->text = NULL;
    return kva_api_read_ids(p, name, value, UINT32_MAX, &prompt->ids, &prompt->id_count);
}

static enum kva_status read_batch(struct kva_api_parser *p, const char *name, const cJSON *value,
                                  uint32_t count)
{
    uint32_t index = 0;
    for (const cJSON *item = value->child; item; item = item->next, index++) {
        char place[KVA_ERR_PARAM_MAX];
        snprintf(place, sizeof(place), "%s[%u]", name, index);
        struct kva_api_prompt *prompt = &p->call->prompts[index];
        enum kva_status status;
        if (cJSON_IsString(item))
            status = read_text_prompt(prompt, item);
        else if (cJSON_IsArray(item))
            status = read_id_prompt(p, place, item, prompt);
        else
            status = kva_fail_param(p->err, KVA_EINVAL, place,
                                    "'%s' must be a string or an array of token ids, not %s.",
                                    place, kva_api_type_name(item));
        if (status != KVA_OK)
            return status;
    }
    p->call->prompt_count = count;
    return KVA_OK;
}

enum kva_status kva_api_parse_prompt(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    bool is_ids = cJSON_IsArray(value) && cJSON_IsNumber(value->child);
    bool is_batch = cJSON_IsArray(value) && !is_ids;
    if (!cJSON_IsString(value) && !cJSON_IsArray(value))
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be a string, token ids, or an array of those, not %s.",
                              name, kva_api_type_name(value));
    size_t count = 1;
    if (is_batch) {
        count = 0;
        for (const cJSON *item = value->child; item; item = item->next)
            count++;
    }
    const struct kva_api_limits *limits = &p->config->limits;
    uint32_t prompts_max = p->call->route == KVA_API_TOKENIZE     ? 1
                           : p->call->route == KVA_API_EMBEDDINGS ? limits->inputs_max
                                                                  : limits->prompts_max;
    if (count == 0)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must not be empty.", name);
    if (count > prompts_max)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' has %zu prompts, limit is %u.", name,
                              count, prompts_max);
    p->call->prompts = kva_arena_calloc(&p->call->arena, count, sizeof(*p->call->prompts));
    if (!p->call->prompts)
        return kva_fail_param(p->err, KVA_ENOMEM, name, "'%s' does not fit the request's memory.",
                              name);
    if (is_batch)
        return read_batch(p, name, value, (uint32_t)count);
    p->call->prompt_count = 1;
    if (is_ids)
        return read_id_prompt(p, name, value, p->call->prompts);
    return read_text_prompt(p->call->prompts, value);
}

enum kva_status kva_api_parse_tokens(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    p->call->prompts = kva_arena_calloc(&p->call->arena, 1, sizeof(*p->call->prompts));
    if (!p->call->prompts)
        return kva_fail_param(p->err, KVA_ENOMEM, name, "Out of memory.");
    p->call->prompt_count = 1;
    if (cJSON_IsArray(value) && !value->child)
        return KVA_OK;
    return read_id_prompt(p, name, value, p->call->prompts);
}

/* The text of a part: a plain string, {"type": "text", "text"}, its name in another of OpenAI's APIs,
 * or what an assistant said in place of an answer. */
static enum kva_status part_text(struct kva_api_parser *p, const cJSON *part, const char *place,
                                 const char **ret)
{
    static const char *const kinds[][2] = {
        {"text", "text"}, {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
    if (cJSON_IsString(part)) {
        *ret = part->valuestring;
        return KVA_OK;
    }
    if (!cJSON_IsString(type))
        return kva_fail_param(p->err, KVA_EINVAL, place,
                              "'%s' must be a string or an object with a 'type'.", place);
    for (size_t i = 0; i < KVA_COUNT_OF(kinds); i++) {
        if (strcmp(type->valuestring, kinds[i][0]) != 0)
            continue;
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(part, kinds[i][1]);
        if (!cJSON_IsString(text))
            return kva_fail_param(p->err, KVA_EINVAL, place, "'%s.%s' must be a string.", place,
                                  kinds[i][1]);
        *ret = text->valuestring;
        return KVA_OK;
    }
    return kva_fail_param(p->err, KVA_EUNSUPPORTED, place,
                          "'%s' has type '%.40s', which this server does not support, only 'text'.",
                          place, type->valuestring);
}

/* Which item of the request a message is, or was made of. */
static uint32_t origin(const struct kva_api_parser *p, uint32_t index)
{
    return p->origins ? p->origins[index] : index;
}

/* Joins the parts of `content` to one string: templates expect text. */
static enum kva_status flatten_content(struct kva_api_parser *p, cJSON *message, cJSON *content,
                                       uint32_t index)
{
    struct kva_buf joined;
    uint32_t number = 0;
    enum kva_status status = KVA_OK;
    kva_buf_init(&joined, p->config->limits.arena_bytes_max);
    for (const cJSON *part = content->child; part && !status; part = part->next, number++) {
        char place[KVA_ERR_PARAM_MAX];
        const char *text = "";
        uint32_t from = origin(p, index);
        if (from == KVA_ORIGIN_SYSTEM)
            snprintf(place, sizeof(place), "system[%u]", number);
        else
            snprintf(place, sizeof(place), "%s[%u].content[%u]", p->call->prompt_field, from,
                     number);
        status = part_text(p, part, place, &text);
        kva_buf_puts(&joined, number ? "\n" : "");
        kva_buf_puts(&joined, text);
    }
    kva_buf_append(&joined, "", 1);
    cJSON *string = status || joined.failed ? NULL : cJSON_CreateString(joined.data);
    kva_buf_finish(&joined);
    if (status)
        return status;
    if (string && cJSON_ReplaceItemInObjectCaseSensitive(message, "content", string))
        return KVA_OK;
    cJSON_Delete(string);
    return kva_fail_param(p->err, KVA_ENOMEM, "messages",
                          "The messages do not fit the request's memory.");
}

static enum kva_status check_role(struct kva_api_parser *p, const cJSON *message, uint32_t index)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    for (size_t i = 0; cJSON_IsString(role) && i < KVA_COUNT_OF(roles); i++) {
        if (strcmp(role->valuestring, roles[i]) == 0)
            return KVA_OK;
    }
    char place[KVA_ERR_PARAM_MAX];
    snprintf(place, sizeof(place), "%s[%u].role", p->call->prompt_field, origin(p, index));
    return kva_fail_param(p->err, KVA_EINVAL, place,
                          "'%s' must be one of system, developer, user, assistant, tool, function.",
                          place);
}

/* A value of the arguments comes behind each of these, but for the first. */
static uint32_t count_values(const char *text)
{
    uint32_t count = 1;
    for (text += strcspn(text, ",:[{"); *text; text += 1 + strcspn(text + 1, ",:[{"))
        count++;
    return count;
}

/* Whether all templates do: which one it will be is not known yet. */
static bool want_text(const struct kva_api_config *config)
{
    return kva_api_template_of(config, false)->history.arguments_as_text &&
           kva_api_template_of(config, true)->history.arguments_as_text;
}

/* The arguments of a call that the assistant made are a string of JSON in OpenAI's API, and what it
 * says in templates, but for those that want the string. What is not JSON stays one. */
static enum kva_status parse_arguments(struct kva_api_parser *p, cJSON *function, const char *place)
{
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(function, "arguments");
    if (!cJSON_IsString(arguments) || (want_text(p->config) && arguments->valuestring[0]))
        return KVA_OK;
    const char *text = arguments->valuestring[0] ? arguments->valuestring : "{}";
    struct kva_json_limits limits = p->config->limits.json;
    uint32_t values = count_values(text);
    if (values > limits.values_max - p->argument_values)
        return kva_fail_param(p->err, KVA_EINVAL, place,
                              "The arguments of tool calls have more than %u values, which is the "
                              "limit.",
                              limits.values_max);
    p->argument_values += values;
    cJSON *parsed = NULL;
    enum kva_status status = kva_json_parse(text, strlen(text), &limits, &parsed, NULL);
    if (status == KVA_OK &&
        !cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", parsed)) {
        cJSON_Delete(parsed);
        status = KVA_ENOMEM;
    }
    return status == KVA_ENOMEM ? kva_fail_param(p->err, KVA_ENOMEM, place, "Out of memory.")
                                : KVA_OK;
}

static enum kva_status parse_tool_call(struct kva_api_parser *p, const cJSON *call,
                                       const char *place)
{
    cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(function, "arguments");
    if (!cJSON_IsObject(function) ||
        !cJSON_IsString(cJSON_GetObjectItemCaseSensitive(function, "name")))
        return kva_fail_param(p->err, KVA_EINVAL, place,
                              "'%s' must be an object that has a 'function' with a 'name'.", place);
    if (arguments && !cJSON_IsString(arguments) && !cJSON_IsObject(arguments))
        return kva_fail_param(p->err, KVA_EINVAL, place,
                              "'%s.function.arguments' must be a string of JSON, not %s.", place,
                              kva_api_type_name(arguments));
    return parse_arguments(p, function, place);
}

/* Calls in the history. None of them is as if nothing had been said of calls: templates ask whether
 * the member is there. */
static enum kva_status parse_tool_calls(struct kva_api_parser *p, cJSON *message, uint32_t index)
{
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    char place[KVA_ERR_PARAM_MAX];
    uint32_t number = 0;
    snprintf(place, sizeof(place), "%s[%u].tool_calls", p->call->prompt_field, origin(p, index));
    if (calls && !cJSON_IsArray(calls))
        return kva_fail_param(p->err, KVA_EINVAL, place, "'%s' must be an array, not %s.", place,
                              kva_api_type_name(calls));
    if (!calls || !calls->child) {
        cJSON_DeleteItemFromObjectCaseSensitive(message, "tool_calls");
        return KVA_OK;
    }
    for (const cJSON *call = calls->child; call; call = call->next, number++) {
        snprintf(place, sizeof(place), "%s[%u].tool_calls[%u]", p->call->prompt_field,
                 origin(p, index), number);
        enum kva_status status = parse_tool_call(p, call, place);
        if (status != KVA_OK)
            return status;
    }
    return KVA_OK;
}

/* An assistant's message may have tool calls or a refusal in place of content, and a function may
 * give nothing: that is empty then. */
static enum kva_status empty_content(struct kva_api_parser *p, cJSON *message)
{
    if (cJSON_AddStringToObject(message, "content", ""))
        return KVA_OK;
    return kva_fail_param(p->err, KVA_ENOMEM, "messages", "Out of memory.");
}

/* Null is the same as absent, as it is for fields: templates ask whether a member is there. */
static void drop_nulls(cJSON *message)
{
    for (cJSON *member = message->child, *next; member; member = next) {
        next = member->next;
        if (cJSON_IsNull(member))
            cJSON_Delete(cJSON_DetachItemViaPointer(message, member));
    }
}

static enum kva_status check_message(struct kva_api_parser *p, cJSON *message, uint32_t index)
{
    char place[KVA_ERR_PARAM_MAX];
    snprintf(place, sizeof(place), "%s[%u]", p->call->prompt_field, origin(p, index));
    if (!cJSON_IsObject(message))
        return kva_fail_param(p->err, KVA_EINVAL, place, "'%s' must be an object, not %s.", place,
                              kva_api_type_name(message));
    enum kva_status status = check_role(p, message, index);
    if (status != KVA_OK)
        return status;
    const char *role = cJSON_GetObjectItemCaseSensitive(message, "role")->valuestring;
    drop_nulls(message);
    bool may_lack = strcmp(role, "assistant") == 0 || strcmp(role, "function") == 0;
    status = kva_api_lift_message(p, message, place); /* which may change the role */
    if (status != KVA_OK)
        return status;
    status = parse_tool_calls(p, message, index);
    if (status != KVA_OK)
        return status;
    cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (cJSON_IsArray(content))
        return flatten_content(p, message, content, index);
    if (cJSON_IsString(content))
        return KVA_OK;
    if (may_lack && !content)
        return empty_content(p, message);
    snprintf(place, sizeof(place), "%s[%u].content", p->call->prompt_field, origin(p, index));
    return kva_fail_param(p->err, KVA_EINVAL, place,
                          "'%s' must be a string or an array of text parts.", place);
}

enum kva_status kva_api_parse_messages(struct kva_api_parser *p, const char *name,
                                       const cJSON *value)
{
    if (!cJSON_IsArray(value) || !value->child)
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be an array of at least one message.", name);
    uint32_t index = 0;
    p->call->prompt_field = name;
    for (cJSON *item = value->child, *next; item; item = next, index++) {
        next = item->next;
        if (index >= p->config->limits.messages_max)
            return kva_fail_param(p->err, KVA_EINVAL, name,
                                  "'%s' has more than %u messages, which is the limit.", name,
                                  p->config->limits.messages_max);
        enum kva_status status = check_message(p, item, index);
        if (status != KVA_OK)
            return status;
    }
    p->call->messages = value;
    /* A rendered template begins as the model wants it; only who asks gets a second beginning. */
    if (!cJSON_HasObjectItem(p->call->json, "add_special_tokens"))
        p->call->add_special_tokens = false;
    return KVA_OK;
}
