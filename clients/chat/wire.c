/* wire.c - requests and replies as JSON. */
#include "clients/chat/wire.h"

#include "clients/chat/filter.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

/* Far above any context; keeps sums and conversions safe. */
#define TOKENS_MAX 1e15

/* A decimal number with a point in every locale. `value` is within the options' ranges. */
static void put_number(struct kva_buf *out, double value)
{
    char text[40];
    snprintf(text, sizeof(text), "%.10g", value);
    char *comma = strchr(text, ',');
    if (comma)
        *comma = '.';
    kva_buf_puts(out, text);
}

void kva_chat_wire_body(const struct kva_chat_history *history, const char *model,
                        const struct kva_chat_sampling *sampling, struct kva_buf *out)
{
    kva_buf_puts(out, "{\"model\":");
    kva_buf_json_string(out, model, strlen(model));
    kva_buf_puts(out, ",\"messages\":");
    kva_chat_history_json(history, out);
    kva_buf_puts(out, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    kva_buf_puts(out, ",\"temperature\":");
    put_number(out, sampling->temperature);
    kva_buf_puts(out, ",\"top_p\":");
    put_number(out, sampling->top_p);
    if (sampling->max_tokens > 0)
        kva_buf_printf(out, ",\"max_tokens\":%llu", (unsigned long long)sampling->max_tokens);
    if (sampling->seed >= 0)
        kva_buf_printf(out, ",\"seed\":%lld", (long long)sampling->seed);
    kva_buf_putc(out, '}');
}

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
}

static const char *string_member(const cJSON *object, const char *name)
{
    const cJSON *item = member(object, name);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static uint64_t count_member(const cJSON *object, const char *name)
{
    const cJSON *item = member(object, name);
    if (!cJSON_IsNumber(item) || !(item->valuedouble > 0))
        return 0;
    return item->valuedouble < TOKENS_MAX ? (uint64_t)item->valuedouble : (uint64_t)TOKENS_MAX;
}

/* OpenAI nests {"error":{"message"}}; others send {"error":"..."}, {"message":...} or
 * {"detail":...}. `bare`: the document is known to be an error, so that the last two count. */
static const char *error_message(const cJSON *root, bool bare)
{
    const cJSON *error = member(root, "error");
    const char *message = string_member(error, "message");
    if (!message)
        message = string_member(root, "error");
    if (!message && error && !cJSON_IsNull(error))
        message = "the server reported an error without a message";
    if (!message && bare)
        message = string_member(root, "message");
    if (!message && bare)
        message = string_member(root, "detail");
    return message;
}

static void read_usage(struct kva_chat_piece *piece)
{
    const cJSON *usage = member(piece->root, "usage");
    if (!cJSON_IsObject(usage))
        return;
    piece->has_usage = true;
    piece->prompt_tokens = count_member(usage, "prompt_tokens");
    piece->output_tokens = count_member(usage, "completion_tokens");
    piece->cached_tokens = count_member(member(usage, "prompt_tokens_details"), "cached_tokens");
}

enum kva_status kva_chat_piece_read(struct kva_chat_piece *piece, const char *text, size_t length,
                                    struct kva_err *err)
{
    *piece = (struct kva_chat_piece){0};
    piece->root = cJSON_ParseWithLength(text, length);
    if (!cJSON_IsObject(piece->root)) {
        char line[80];
        kva_chat_filter_line(text, length, line, sizeof(line));
        kva_chat_piece_finish(piece);
        return kva_fail(err, KVA_EFORMAT, "the server sent something that is no JSON object: %s",
                        line);
    }
    piece->error = error_message(piece->root, false);
    read_usage(piece);
    const cJSON *choice = cJSON_GetArrayItem(member(piece->root, "choices"), 0);
    const cJSON *message = member(choice, "delta");
    if (!message)
        message = member(choice, "message");
    piece->content = string_member(message, "content");
    piece->reasoning = string_member(message, "reasoning_content");
    if (!piece->reasoning)
        piece->reasoning = string_member(message, "reasoning");
    piece->finish_reason = string_member(choice, "finish_reason");
    return KVA_OK;
}

void kva_chat_piece_finish(struct kva_chat_piece *piece)
{
    cJSON_Delete(piece->root);
    *piece = (struct kva_chat_piece){0};
}

void kva_chat_wire_error(const char *body, size_t length, char *line, size_t size)
{
    cJSON *root = length > 0 ? cJSON_ParseWithLength(body, length) : NULL;
    const char *message = error_message(root, true);
    if (message)
        kva_chat_filter_line(message, strlen(message), line, size);
    else
        kva_chat_filter_line(body, length, line, kva_min_size(size, 200));
    cJSON_Delete(root);
}

enum kva_status kva_chat_wire_models(const char *body, size_t length, struct kva_buf *ret_ids,
                                     struct kva_err *err)
{
    cJSON *root = length > 0 ? cJSON_ParseWithLength(body, length) : NULL;
    const cJSON *data = member(root, "data");
    if (!cJSON_IsArray(data)) {
        cJSON_Delete(root);
        return kva_fail(err, KVA_EFORMAT,
                        "the server's list of models is not OpenAI's: is the base URL right?");
    }
    for (const cJSON *item = data->child; item; item = item->next) {
        const char *id = string_member(item, "id");
        if (id && *id)
            kva_buf_append(ret_ids, id, strlen(id) + 1);
    }
    cJSON_Delete(root);
    return KVA_OK;
}

void kva_chat_wire_progress(const char *comment, size_t length, char *line, size_t size)
{
    char text[160];
    unsigned long long done, total;
    kva_chat_filter_line(comment, length, text, sizeof(text));
    const char *from = text;
    if (strncmp(from, "keep-alive", 10) == 0)
        from += 10;
    from += strspn(from, " ");
    if (sscanf(from, "prefill %15llu/%15llu", &done, &total) == 2 && total > 0 && done <= total)
        snprintf(line, size, "prefill %llu%% of %llu tokens", 100 * done / total, total);
    else
        snprintf(line, size, "%s", from);
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    }
}
