/* history.c - turns in order; the oldest are dropped when there is no room. */
#include "clients/chat/history.h"

#include <stdlib.h>
#include <string.h>

void kva_chat_history_init(struct kva_chat_history *history, size_t max_bytes)
{
    *history = (struct kva_chat_history){.max_bytes = max_bytes};
}

static void drop_text(struct kva_chat_history *history, struct kva_chat_text *text)
{
    history->bytes -= text->length;
    free(text->data);
    *text = (struct kva_chat_text){0};
}

static void drop_turns(struct kva_chat_history *history, size_t at, size_t count)
{
    for (size_t i = at; i < at + count; i++) {
        drop_text(history, &history->turns[i].user);
        drop_text(history, &history->turns[i].answer);
    }
    size_t after = history->count - at - count;
    if (after > 0)
        memmove(history->turns + at, history->turns + at + count, after * sizeof(*history->turns));
    history->count -= count;
}

void kva_chat_history_clear(struct kva_chat_history *history)
{
    drop_turns(history, 0, history->count);
}

void kva_chat_history_finish(struct kva_chat_history *history)
{
    kva_chat_history_clear(history);
    drop_text(history, &history->system);
    free(history->turns);
    kva_chat_history_init(history, history->max_bytes);
}

/* Drops the oldest turns, but not the last `keep`, until `length` more bytes fit. Nothing is
 * dropped if that would not suffice. */
static enum kva_status make_room(struct kva_chat_history *history, size_t length, size_t keep,
                                 size_t *ret_dropped, struct kva_err *err)
{
    size_t kept = history->system.length;
    for (size_t i = history->count - keep; i < history->count; i++)
        kept += history->turns[i].user.length + history->turns[i].answer.length;
    if (length > history->max_bytes || kept > history->max_bytes - length)
        return kva_fail(err, KVA_ETOOBIG,
                        "a text of %zu bytes does not fit: the conversation may have %zu bytes, "
                        "and %zu of them are taken",
                        length, history->max_bytes, kept);
    size_t count = 0;
    size_t bytes = history->bytes;
    while (bytes > history->max_bytes - length) {
        bytes -= history->turns[count].user.length + history->turns[count].answer.length;
        count++;
    }
    drop_turns(history, 0, count);
    *ret_dropped = count;
    return KVA_OK;
}

static char *copy_text(const char *text, size_t length, struct kva_err *err)
{
    char *copy = malloc(length + 1);
    if (!copy) {
        kva_fail(err, KVA_ENOMEM, "out of memory for a text of %zu bytes", length);
        return NULL;
    }
    if (length > 0)
        memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

static void set_text(struct kva_chat_history *history, struct kva_chat_text *slot, char *data,
                     size_t length)
{
    drop_text(history, slot);
    *slot = (struct kva_chat_text){data, length};
    history->bytes += length;
}

enum kva_status kva_chat_history_system(struct kva_chat_history *history, const char *text,
                                        size_t length, size_t *ret_dropped, struct kva_err *err)
{
    size_t old = history->system.length;
    /* The new message takes the old one's place, so only what it adds needs room. */
    if (length > old) {
        enum kva_status status = make_room(history, length - old, 0, ret_dropped, err);
        if (status)
            return status;
    } else {
        *ret_dropped = 0;
    }
    if (length == 0) {
        drop_text(history, &history->system);
        return KVA_OK;
    }
    char *copy = copy_text(text, length, err);
    if (!copy)
        return KVA_ENOMEM;
    set_text(history, &history->system, copy, length);
    return KVA_OK;
}

static bool make_slot(struct kva_chat_history *history)
{
    if (history->count < history->capacity)
        return true;
    size_t capacity = history->capacity ? 2 * history->capacity : 16;
    struct kva_chat_turn *turns = realloc(history->turns, capacity * sizeof(*turns));
    if (!turns)
        return false;
    history->turns = turns;
    history->capacity = capacity;
    return true;
}

enum kva_status kva_chat_history_ask(struct kva_chat_history *history, const char *text,
                                     size_t length, size_t *ret_dropped, struct kva_err *err)
{
    /* An empty text takes no bytes, so it would not be bounded; no server wants one either. */
    if (length == 0)
        return kva_fail(err, KVA_EINVAL, "the message is empty");
    if (history->count > 0 && !history->turns[history->count - 1].answer.data)
        drop_turns(history, history->count - 1, 1);
    size_t dropped;
    enum kva_status status = make_room(history, length, 0, &dropped, err);
    if (status)
        return status;
    if (history->count == KVA_CHAT_TURNS_MAX) {
        drop_turns(history, 0, 1);
        dropped++;
    }
    *ret_dropped = dropped;
    char *copy = make_slot(history) ? copy_text(text, length, err) : NULL;
    if (!copy)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a message of %zu bytes", length);
    struct kva_chat_turn *turn = &history->turns[history->count++];
    *turn = (struct kva_chat_turn){0};
    set_text(history, &turn->user, copy, length);
    return KVA_OK;
}

enum kva_status kva_chat_history_answer(struct kva_chat_history *history, const char *text,
                                        size_t length, size_t *ret_dropped, struct kva_err *err)
{
    if (history->count == 0 || history->turns[history->count - 1].answer.data)
        return kva_fail(err, KVA_EINTERNAL, "an answer without a question");
    enum kva_status status = make_room(history, length, 1, ret_dropped, err);
    if (status)
        return status;
    char *copy = copy_text(text, length, err);
    if (!copy)
        return KVA_ENOMEM;
    set_text(history, &history->turns[history->count - 1].answer, copy, length);
    return KVA_OK;
}

bool kva_chat_history_retry(struct kva_chat_history *history, struct kva_chat_text *ret_old)
{
    if (history->count == 0)
        return false;
    struct kva_chat_text *answer = &history->turns[history->count - 1].answer;
    *ret_old = *answer;
    *answer = (struct kva_chat_text){0};
    history->bytes -= ret_old->length;
    return true;
}

void kva_chat_history_retry_end(struct kva_chat_history *history, struct kva_chat_text *old)
{
    struct kva_chat_text *answer = &history->turns[history->count - 1].answer;
    if (answer->data)
        free(old->data);
    else
        set_text(history, answer, old->data, old->length);
    *old = (struct kva_chat_text){0};
}

static void put_message(struct kva_buf *out, bool *first, const char *role,
                        const struct kva_chat_text *text)
{
    if (!text->data)
        return;
    kva_buf_printf(out, "%s{\"role\":\"%s\",\"content\":", *first ? "" : ",", role);
    kva_buf_json_string(out, text->data, text->length);
    kva_buf_putc(out, '}');
    *first = false;
}

void kva_chat_history_json(const struct kva_chat_history *history, struct kva_buf *out)
{
    bool first = true;
    kva_buf_putc(out, '[');
    put_message(out, &first, "system", &history->system);
    for (size_t i = 0; i < history->count; i++) {
        put_message(out, &first, "user", &history->turns[i].user);
        put_message(out, &first, "assistant", &history->turns[i].answer);
    }
    kva_buf_putc(out, ']');
}
