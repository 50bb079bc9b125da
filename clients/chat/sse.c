/* sse.c - lines and fields of an event stream. */
#include "clients/chat/sse.h"

#include <string.h>

void kva_chat_sse_init(struct kva_chat_sse *sse, const struct kva_chat_sse_handler *handler,
                       size_t max_bytes)
{
    *sse = (struct kva_chat_sse){.handler = *handler, .first_line = true};
    kva_buf_init(&sse->line, max_bytes);
    kva_buf_init(&sse->data, max_bytes);
}

void kva_chat_sse_finish(struct kva_chat_sse *sse)
{
    kva_buf_finish(&sse->line);
    kva_buf_finish(&sse->data);
}

static void dispatch(struct kva_chat_sse *sse)
{
    if (sse->has_data)
        sse->handler.event(sse->handler.opaque, sse->name, sse->data.data ? sse->data.data : "",
                           sse->data.length);
    kva_buf_clear(&sse->data);
    sse->name[0] = '\0';
    sse->has_data = false;
}

static void field(struct kva_chat_sse *sse, const char *name, size_t name_length, const char *value,
                  size_t value_length)
{
    if (name_length == 4 && memcmp(name, "data", 4) == 0) {
        if (sse->has_data)
            kva_buf_putc(&sse->data, '\n');
        kva_buf_append(&sse->data, value, value_length);
        sse->has_data = true;
    } else if (name_length == 5 && memcmp(name, "event", 5) == 0) {
        size_t length = kva_min_size(value_length, KVA_CHAT_SSE_NAME_MAX);
        memcpy(sse->name, value, length);
        sse->name[length] = '\0';
    }
}

static void end_line(struct kva_chat_sse *sse)
{
    const char *line = sse->line.data ? sse->line.data : "";
    size_t length = sse->line.length;
    if (sse->first_line && length >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
        line += 3;
        length -= 3;
    }
    sse->first_line = false;
    if (length == 0) {
        dispatch(sse);
        kva_buf_clear(&sse->line);
        return;
    }
    const char *colon = memchr(line, ':', length);
    size_t name_length = colon ? (size_t)(colon - line) : length;
    const char *value = colon ? colon + 1 : line + length;
    size_t value_length = colon ? length - name_length - 1 : 0;
    if (value_length > 0 && *value == ' ') {
        value++;
        value_length--;
    }
    if (name_length > 0)
        field(sse, line, name_length, value, value_length);
    else if (sse->handler.comment)
        sse->handler.comment(sse->handler.opaque, value, value_length);
    kva_buf_clear(&sse->line);
}

enum kva_status kva_chat_sse_push(struct kva_chat_sse *sse, const char *bytes, size_t length,
                                  struct kva_err *err)
{
    size_t at = 0;
    while (at < length && !sse->line.failed && !sse->data.failed) {
        if (sse->skip_lf) {
            sse->skip_lf = false;
            if (bytes[at] == '\n') {
                at++;
                continue;
            }
        }
        size_t end = at;
        while (end < length && bytes[end] != '\n' && bytes[end] != '\r')
            end++;
        kva_buf_append(&sse->line, bytes + at, end - at);
        if (end < length && !sse->line.failed) {
            sse->skip_lf = bytes[end] == '\r';
            end_line(sse);
            end++;
        }
        at = end;
    }
    if (sse->line.failed || sse->data.failed)
        return kva_fail(err, KVA_ETOOBIG,
                        "the server sent an event of over %zu bytes, or memory is out",
                        sse->line.max_bytes);
    return KVA_OK;
}
