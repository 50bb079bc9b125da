/* input.c - messages of one line and of several. */
#include "clients/chat/input.h"

#include "clients/chat/line.h"

#include <stdlib.h>
#include <string.h>

struct kva_chat_input {
    struct kva_chat_line_source source;
    struct kva_buf line;
    size_t max_bytes;
};

enum kva_status kva_chat_input_create(const struct kva_chat_input_params *params,
                                      struct kva_chat_input **ret, struct kva_err *err)
{
    struct kva_chat_input *input = calloc(1, sizeof(*input));
    if (!input)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the input");
    input->max_bytes = params->max_bytes;
    kva_buf_init(&input->line, params->max_bytes);
    enum kva_status status = kva_chat_line_source_init(&input->source, params, err);
    if (status) {
        free(input);
        return status;
    }
    *ret = input;
    return KVA_OK;
}

void kva_chat_input_destroy(struct kva_chat_input *input)
{
    if (!input)
        return;
    kva_chat_line_source_finish(&input->source);
    kva_buf_finish(&input->line);
    free(input);
}

static bool has_suffix(const struct kva_buf *text, const char *suffix, size_t from)
{
    size_t length = strlen(suffix);
    return text->length >= from + length &&
           memcmp(text->data + text->length - length, suffix, length) == 0;
}

static void cut(struct kva_buf *text, size_t length)
{
    text->length -= length;
    text->data[text->length] = '\0';
}

/* After the message did not fit: whether this line is its last. */
static bool ends_message(const struct kva_buf *line, bool block)
{
    return block ? has_suffix(line, "\"\"\"", 0) : !has_suffix(line, "\\", 0);
}

/* The message with its next line. True: it is complete. */
static bool add_line(struct kva_buf *message, const struct kva_buf *line, bool *block, bool first)
{
    const char *data = line->data ? line->data : "";
    size_t length = line->length;
    bool opens = first && length >= 3 && memcmp(data, "\"\"\"", 3) == 0;
    if (opens) {
        *block = true;
        data += 3;
        length -= 3;
    }
    size_t from = message->length;
    kva_buf_append(message, data, length);
    if (message->failed)
        return ends_message(line, *block);
    if (*block) {
        if (has_suffix(message, "\"\"\"", from)) {
            cut(message, 3);
            /* Closing marks on a line of their own end the line before them. */
            if (message->length == from && has_suffix(message, "\n", 0))
                cut(message, 1);
            return true;
        }
        if (!opens || length > 0)
            kva_buf_putc(message, '\n');
        return false;
    }
    if (!has_suffix(message, "\\", from))
        return true;
    cut(message, 1);
    kva_buf_putc(message, '\n');
    return false;
}

enum kva_status kva_chat_input_read(struct kva_chat_input *input,
                                    enum kva_chat_input_event *ret_event,
                                    struct kva_buf *ret_message, struct kva_err *err)
{
    bool block = false;
    bool complete = false;
    bool too_big = false;
    kva_buf_clear(ret_message);
    for (bool first = true; !complete; first = false) {
        enum kva_chat_line kind;
        kva_buf_clear(&input->line);
        enum kva_status status =
            kva_chat_line_read(&input->source, first ? ">" : ".", &kind, &input->line, err);
        if (status)
            return status;
        if (kind == KVA_CHAT_LINE_STOPPED) {
            *ret_event = first ? KVA_CHAT_INPUT_END : KVA_CHAT_INPUT_DROPPED;
            return KVA_OK;
        }
        if (kind == KVA_CHAT_LINE_CLEARED) {
            *ret_event = KVA_CHAT_INPUT_DROPPED;
            return KVA_OK;
        }
        if (kind == KVA_CHAT_LINE_END && first) {
            *ret_event = KVA_CHAT_INPUT_END;
            return KVA_OK;
        }
        if (kind == KVA_CHAT_LINE_END)
            break;
        too_big = too_big || kind == KVA_CHAT_LINE_TOO_LONG;
        if (too_big) {
            complete = kind == KVA_CHAT_LINE_TEXT ? ends_message(&input->line, block) : !block;
            continue;
        }
        complete = add_line(ret_message, &input->line, &block, first);
        too_big = ret_message->failed;
    }
    if (too_big)
        return kva_fail(err, KVA_ETOOBIG, "the message is over %zu bytes and was not sent",
                        input->max_bytes);
    *ret_event = block ? KVA_CHAT_INPUT_BLOCK : KVA_CHAT_INPUT_MESSAGE;
    return KVA_OK;
}
