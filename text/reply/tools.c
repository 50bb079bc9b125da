/* tools.c - telling functions to a model whose chat template has no place for them. */
#include "text/reply/internal.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static bool set_content(cJSON *message, const char *text)
{
    cJSON *content = cJSON_CreateString(text ? text : "");
    bool there = cJSON_HasObjectItem(message, "content");
    bool done =
        content && (there ? cJSON_ReplaceItemInObjectCaseSensitive(message, "content", content)
                          : cJSON_AddItemToObject(message, "content", content));
    if (!done)
        cJSON_Delete(content);
    return done;
}

static const char *text_of(const cJSON *message, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(message, name);
    return cJSON_IsString(value) ? value->valuestring : "";
}

static void put_json(struct kva_buf *out, const cJSON *value)
{
    char *text = value ? cJSON_PrintUnformatted(value) : NULL;
    kva_buf_puts(out, text ? text : "{}");
    free(text);
}

/* What the assistant has called, as it would have written it. */
static bool tell_calls(cJSON *message, struct kva_buf *text)
{
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    kva_buf_puts(text, text_of(message, "content"));
    for (const cJSON *call = calls->child; call; call = call->next) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
        const char *name = text_of(function, "name");
        kva_buf_puts(text, text->length > 0 ? "\n{\"name\": " : "{\"name\": ");
        kva_buf_json_string(text, name, strlen(name));
        kva_buf_puts(text, ", \"arguments\": ");
        put_json(text, cJSON_GetObjectItemCaseSensitive(function, "arguments"));
        kva_buf_putc(text, '}');
    }
    cJSON_DeleteItemFromObjectCaseSensitive(message, "tool_calls");
    return !text->failed && set_content(message, text->data);
}

/* What a function has said, as if the user had. */
static bool tell_result(cJSON *message, struct kva_buf *text)
{
    cJSON *user = cJSON_CreateString("user");
    kva_buf_puts(text, "The function has returned:\n");
    kva_buf_puts(text, text_of(message, "content"));
    if (!user || !cJSON_ReplaceItemInObjectCaseSensitive(message, "role", user)) {
        cJSON_Delete(user);
        return false;
    }
    return !text->failed && set_content(message, text->data);
}

static void put_tools(struct kva_buf *out, const cJSON *tools, bool required)
{
    kva_buf_puts(out, "You can call these functions:\n");
    for (const cJSON *tool = tools->child; tool; tool = tool->next) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        put_json(out, function ? function : tool);
        kva_buf_putc(out, '\n');
    }
    kva_buf_puts(out, required ? "Call one now: answer" : "To call one, answer");
    kva_buf_puts(out, " with nothing but an object of this form:\n"
                      "{\"name\": \"the function's name\", \"arguments\": {...}}");
}

static bool tell_tools(cJSON *messages, const cJSON *tools, bool required, struct kva_buf *text)
{
    cJSON *first = messages->child;
    const char *role = text_of(first, "role");
    bool system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
    if (system) {
        kva_buf_puts(text, text_of(first, "content"));
        kva_buf_puts(text, "\n\n");
    }
    put_tools(text, tools, required);
    if (text->failed)
        return false;
    if (system)
        return set_content(first, text->data);
    cJSON *message = cJSON_CreateObject();
    bool made = message && cJSON_AddStringToObject(message, "role", "system") &&
                cJSON_AddStringToObject(message, "content", text->data);
    if (made && cJSON_InsertItemInArray(messages, 0, message))
        return true;
    cJSON_Delete(message);
    return false;
}

void kva_reply_rename_developers(cJSON *messages)
{
    for (cJSON *message = messages->child; message; message = message->next) {
        cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
        if (cJSON_IsString(role) && strcmp(role->valuestring, "developer") == 0)
            cJSON_SetValuestring(role, "system"); /* shorter: in its place */
    }
}

bool kva_reply_tell_history(cJSON *messages, size_t bytes_max)
{
    bool told = true;
    for (cJSON *message = messages->child; message && told; message = message->next) {
        const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
        struct kva_buf text;
        kva_buf_init(&text, bytes_max);
        if (cJSON_IsArray(calls))
            told = tell_calls(message, &text);
        else if (strcmp(text_of(message, "role"), "tool") == 0)
            told = tell_result(message, &text);
        kva_buf_finish(&text);
    }
    return told;
}

bool kva_reply_tell_tools(cJSON *messages, const cJSON *tools, bool required, size_t bytes_max)
{
    struct kva_buf text;
    kva_buf_init(&text, bytes_max);
    bool told = !messages->child || tell_tools(messages, tools, required, &text);
    kva_buf_finish(&text);
    return told;
}
