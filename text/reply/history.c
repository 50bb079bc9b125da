/* history.c - the calls of earlier turns, for templates that know none, or know them in a form of
 * their own. */
#include "text/reply/internal.h"

#include <string.h>

/* --- as text --------------------------------------------------------------------------------- */

/* What the assistant has called, as it would have written it: in its style, where that has an object
 * between two marks, or as an object alone. */
static bool tell_calls(cJSON *message, enum kva_reply_style style, struct kva_buf *text)
{
    const struct kva_reply_syntax *syntax = &kva_reply_syntaxes[style];
    const struct kva_reply_syntax *as =
        syntax->closing && !syntax->xml ? syntax : &kva_reply_syntaxes[KVA_REPLY_JSON];
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    kva_buf_puts(text, kva_reply_member(message, "content"));
    for (const cJSON *call = calls->child; call; call = call->next) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
        const char *name = kva_reply_member(function, "name");
        kva_buf_printf(text, "%s%s{\"name\": ", text->length > 0 ? "\n" : "", as->before);
        kva_buf_json_string_plain(text, name, strlen(name));
        kva_buf_printf(text, ", \"%s\": ", as->arguments);
        kva_reply_put_json(text, cJSON_GetObjectItemCaseSensitive(function, "arguments"));
        kva_buf_printf(text, "}%s", as->after);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(message, "tool_calls");
    return !text->failed && kva_reply_set_content(message, text->data);
}

/* What a function has said, as if the user had. */
static bool tell_result(cJSON *message, struct kva_buf *text)
{
    cJSON *user = cJSON_CreateString("user");
    kva_buf_puts(text, "The function has returned:\n");
    kva_buf_puts(text, kva_reply_member(message, "content"));
    if (!user || !cJSON_ReplaceItemInObjectCaseSensitive(message, "role", user)) {
        cJSON_Delete(user);
        return false;
    }
    return !text->failed && kva_reply_set_content(message, text->data);
}

static bool tell_history(cJSON *messages, enum kva_reply_style style, size_t bytes_max)
{
    bool told = true;
    for (cJSON *message = messages->child; message && told; message = message->next) {
        const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
        struct kva_buf text;
        kva_buf_init(&text, bytes_max);
        if (cJSON_IsArray(calls))
            told = tell_calls(message, style, &text);
        else if (strcmp(kva_reply_member(message, "role"), "tool") == 0)
            told = tell_result(message, &text);
        kva_buf_finish(&text);
    }
    return told;
}

/* --- in the template's form ------------------------------------------------------------------ */

/* Every one as text, as the model would have written it. */
static bool print_arguments(const cJSON *calls, size_t bytes_max)
{
    for (const cJSON *call = calls->child; call; call = call->next) {
        cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
        const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(function, "arguments");
        if (!arguments || cJSON_IsString(arguments))
            continue;
        struct kva_buf text;
        kva_buf_init(&text, bytes_max);
        kva_reply_put_json(&text, arguments);
        cJSON *string = text.failed ? NULL : cJSON_CreateString(text.data);
        kva_buf_finish(&text);
        if (!string || !cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", string)) {
            cJSON_Delete(string);
            return false;
        }
    }
    return true;
}

/* A message of the list, before another one: cJSON's own way counts from the beginning. */
static void insert_before(cJSON *messages, cJSON *at, cJSON *message)
{
    message->next = at;
    message->prev = at->prev;
    if (messages->child == at)
        messages->child = message; /* whose prev is the last one, as cJSON has it */
    else
        at->prev->next = message;
    at->prev = message;
}

/* The content becomes none; what it says is a message of its own before the calls. */
static bool part_content(cJSON *messages, cJSON *message)
{
    const char *text = kva_reply_member(message, "content");
    cJSON *none = cJSON_CreateNull();
    cJSON *before = text[0] ? cJSON_CreateObject() : NULL;
    bool made =
        none && (!text[0] || (before && cJSON_AddStringToObject(before, "role", "assistant") &&
                              cJSON_AddStringToObject(before, "content", text)));
    if (!made || !kva_reply_put_content(message, none)) {
        cJSON_Delete(before);
        cJSON_Delete(none);
        return false;
    }
    if (before)
        insert_before(messages, message, before);
    return true;
}

bool kva_reply_shape_history(cJSON *messages, const struct kva_reply_history *history,
                             enum kva_reply_style style, size_t bytes_max)
{
    bool told = history->known || tell_history(messages, style, bytes_max);
    if (!history->known || (!history->none_beside_calls && !history->arguments_as_text))
        return told;
    for (cJSON *message = messages->child; message && told; message = message->next) {
        const cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
        if (!cJSON_IsArray(calls))
            continue;
        told = !history->arguments_as_text || print_arguments(calls, bytes_max);
        if (told && history->none_beside_calls)
            told = part_content(messages, message);
    }
    return told;
}
