/* tools.c - telling functions to a model whose chat template has no place for them. */
#include "text/reply/internal.h"

#include <string.h>

/* --- messages -------------------------------------------------------------------------------- */

bool kva_reply_put_content(cJSON *message, cJSON *content)
{
    bool there = cJSON_HasObjectItem(message, "content");
    return content && (there ? cJSON_ReplaceItemInObjectCaseSensitive(message, "content", content)
                             : cJSON_AddItemToObject(message, "content", content));
}

bool kva_reply_set_content(cJSON *message, const char *text)
{
    cJSON *content = cJSON_CreateString(text ? text : "");
    bool done = kva_reply_put_content(message, content);
    if (!done)
        cJSON_Delete(content);
    return done;
}

const char *kva_reply_member(const cJSON *message, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(message, name);
    return cJSON_IsString(value) ? value->valuestring : "";
}

void kva_reply_rename_developers(cJSON *messages)
{
    for (cJSON *message = messages->child; message; message = message->next) {
        cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
        if (cJSON_IsString(role) && strcmp(role->valuestring, "developer") == 0)
            cJSON_SetValuestring(role, "system"); /* shorter: in its place */
    }
}

/* --- functions ------------------------------------------------------------------------------- */

static void put_tools(struct kva_buf *out, const cJSON *tools, bool required)
{
    kva_buf_puts(out, "You can call these functions:\n");
    for (const cJSON *tool = tools->child; tool; tool = tool->next) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        kva_reply_put_json(out, function ? function : tool);
        kva_buf_putc(out, '\n');
    }
    kva_buf_puts(out, required ? "Call one now: answer" : "To call one, answer");
    kva_buf_puts(out, " with nothing but an object of this form:\n"
                      "{\"name\": \"the function's name\", \"arguments\": {...}}");
}

static bool tell_tools(cJSON *messages, const cJSON *tools, bool required, struct kva_buf *text)
{
    cJSON *first = messages->child;
    const char *role = kva_reply_member(first, "role");
    bool system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
    if (system) {
        kva_buf_puts(text, kva_reply_member(first, "content"));
        kva_buf_puts(text, "\n\n");
    }
    put_tools(text, tools, required);
    if (text->failed)
        return false;
    if (system)
        return kva_reply_set_content(first, text->data);
    cJSON *message = cJSON_CreateObject();
    bool made = message && cJSON_AddStringToObject(message, "role", "system") &&
                cJSON_AddStringToObject(message, "content", text->data);
    if (made && cJSON_InsertItemInArray(messages, 0, message))
        return true;
    cJSON_Delete(message);
    return false;
}

bool kva_reply_tell_tools(cJSON *messages, const cJSON *tools, bool required, size_t bytes_max)
{
    struct kva_buf text;
    kva_buf_init(&text, bytes_max);
    bool told = !messages->child || tell_tools(messages, tools, required, &text);
    kva_buf_finish(&text);
    return told;
}
