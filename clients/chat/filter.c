/* filter.c - control characters and broken UTF-8 are replaced. */
#include "clients/chat/filter.h"

#include "base/utf8.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

static void put_picture(struct kva_buf *out, uint32_t control)
{
    char picture[4];
    int size = kva_utf8_encode(control == 0x7F ? 0x2421 : 0x2400 + control, picture);
    kva_buf_append(out, picture, (size_t)size);
}

/* One character of `size` well-formed bytes that is no CR. */
static void put_character(struct kva_buf *out, const char *text, int size)
{
    uint32_t code = kva_utf8_decode(text, size);
    if ((code < 0x20 && code != '\n' && code != '\t') || code == 0x7F)
        put_picture(out, code);
    else if (code >= 0x80 && code < 0xA0)
        kva_buf_puts(out, REPLACEMENT);
    else
        kva_buf_append(out, text, (size_t)size);
}

/* Takes characters from the front of text; returns how many bytes. The rest needs what follows. */
static size_t take(const char *text, size_t length, bool last, struct kva_buf *out)
{
    size_t at = 0;
    while (at < length) {
        size_t bad = length - at;
        int size = kva_utf8_sequence(text + at, length - at, &bad);
        bool undecided = size < 0 || (text[at] == '\r' && at + 1 == length);
        if (undecided && !last)
            break;
        if (size <= 0) {
            kva_buf_puts(out, REPLACEMENT);
            at += bad;
            continue;
        }
        if (text[at] != '\r')
            put_character(out, text + at, size);
        else if (at + 1 == length || text[at + 1] != '\n')
            put_picture(out, '\r');
        at += (size_t)size;
    }
    return at;
}

void kva_chat_filter_push(struct kva_chat_filter *filter, const char *text, size_t length,
                          struct kva_buf *out)
{
    /* Bytes join the held ones singly until those are settled: at most three turns. */
    while (filter->held_length > 0 && length > 0) {
        char joined[5];
        memcpy(joined, filter->held, filter->held_length);
        joined[filter->held_length] = *text;
        size_t joined_length = filter->held_length + 1;
        size_t taken = take(joined, joined_length, false, out);
        filter->held_length = joined_length - taken;
        memcpy(filter->held, joined + taken, filter->held_length);
        text++;
        length--;
    }
    size_t taken = take(text, length, false, out);
    if (taken < length) {
        filter->held_length = length - taken;
        memcpy(filter->held, text + taken, filter->held_length);
    }
}

void kva_chat_filter_end(struct kva_chat_filter *filter, struct kva_buf *out)
{
    take(filter->held, filter->held_length, true, out);
    filter->held_length = 0;
}

void kva_chat_filter_line(const char *text, size_t length, char *line, size_t size)
{
    struct kva_buf out;
    /* A byte becomes at most three; what the line cannot hold need not be looked at. */
    length = kva_min_size(length, size);
    kva_buf_init(&out, 3 * size);
    take(text, length, true, &out);
    size_t used = out.data ? kva_min_size(out.length, size - 1) : 0;
    if (used > 0)
        memcpy(line, out.data, used);
    used -= kva_utf8_incomplete_tail(line, used);
    line[used] = '\0';
    for (size_t i = 0; i < used; i++) {
        if (line[i] == '\n' || line[i] == '\t')
            line[i] = ' ';
    }
    kva_buf_finish(&out);
}
