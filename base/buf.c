/* buf.c - appending and printing; growth by doubling up to the maximum. */
#include "base/buf.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kva_buf_init(struct kva_buf *buf, size_t max_bytes)
{
    *buf = (struct kva_buf){.max_bytes = max_bytes};
}

void kva_buf_finish(struct kva_buf *buf)
{
    free(buf->data);
    kva_buf_init(buf, buf->max_bytes);
}

void kva_buf_clear(struct kva_buf *buf)
{
    buf->length = 0;
    buf->failed = buf->no_memory = false;
    if (buf->data)
        buf->data[0] = '\0';
}

bool kva_buf_reserve(struct kva_buf *buf, size_t extra)
{
    if (buf->failed)
        return false;
    if (extra > buf->max_bytes || buf->length > buf->max_bytes - extra) {
        buf->failed = true;
        return false;
    }
    size_t want = buf->length + extra + 1;
    if (want <= buf->capacity)
        return true;
    size_t capacity = kva_max_size(want, kva_min_size(buf->capacity * 2, buf->max_bytes + 1));
    capacity = kva_max_size(capacity, 64);
    char *data = realloc(buf->data, capacity);
    if (!data) {
        buf->failed = buf->no_memory = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void kva_buf_fail(struct kva_buf *buf)
{
    buf->failed = buf->no_memory = true;
}

void kva_buf_fail_with(struct kva_buf *buf, const struct kva_buf *other)
{
    buf->failed = buf->failed || other->failed;
    buf->no_memory = buf->no_memory || other->no_memory;
}

void kva_buf_append(struct kva_buf *buf, const void *data, size_t length)
{
    if (!kva_buf_reserve(buf, length))
        return;
    if (length > 0)
        memcpy(buf->data + buf->length, data, length);
    buf->length += length;
    buf->data[buf->length] = '\0';
}

void kva_buf_puts(struct kva_buf *buf, const char *text)
{
    kva_buf_append(buf, text, strlen(text));
}

void kva_buf_putc(struct kva_buf *buf, char c)
{
    kva_buf_append(buf, &c, 1);
}

void kva_buf_printf(struct kva_buf *buf, const char *format, ...)
{
    char small[256];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(small, sizeof(small), format, args);
    va_end(args);
    if (length < 0) {
        buf->failed = true;
        return;
    }
    if ((size_t)length < sizeof(small)) {
        kva_buf_append(buf, small, (size_t)length);
        return;
    }
    if (!kva_buf_reserve(buf, (size_t)length))
        return;
    va_start(args, format);
    vsnprintf(buf->data + buf->length, (size_t)length + 1, format, args);
    va_end(args);
    buf->length += (size_t)length;
}

void kva_buf_float(struct kva_buf *buf, float value)
{
    char text[32];
    int digits = 6;
    do
        snprintf(text, sizeof(text), "%.*g", digits, (double)value);
    while (strtof(text, NULL) != value && ++digits <= 9);
    kva_buf_puts(buf, text);
}

static void put_escape(struct kva_buf *buf, unsigned char c)
{
    switch (c) {
    case '"':
        kva_buf_append(buf, "\\\"", 2);
        break;
    case '\\':
        kva_buf_append(buf, "\\\\", 2);
        break;
    case '\b':
        kva_buf_append(buf, "\\b", 2);
        break;
    case '\f':
        kva_buf_append(buf, "\\f", 2);
        break;
    case '\n':
        kva_buf_append(buf, "\\n", 2);
        break;
    case '\r':
        kva_buf_append(buf, "\\r", 2);
        break;
    case '\t':
        kva_buf_append(buf, "\\t", 2);
        break;
    default:
        kva_buf_printf(buf, "\\u%04x", c);
        break;
    }
}

/* Whether a well-formed sequence is a line's end for str.splitlines() of Python and its like: U+0085,
 * U+2028 and U+2029. */
static bool ends_line(const char *text, int size)
{
    if (size == 2)
        return memcmp(text, "\xC2\x85", 2) == 0;
    return size == 3 && memcmp(text, "\xE2\x80", 2) == 0 && ((unsigned char)text[2] & 0xFE) == 0xA8;
}

static void put_code(struct kva_buf *buf, const char *text, int size)
{
    kva_buf_printf(buf, "\\u%04x", kva_utf8_decode(text, size));
}

static void put_string(struct kva_buf *buf, const char *text, size_t length, bool plain)
{
    if (!kva_buf_reserve(buf, length + 2))
        return;
    kva_buf_putc(buf, '"');
    size_t start = 0;
    size_t at = 0;
    while (at < length) {
        unsigned char c = (unsigned char)text[at];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            at++;
            continue;
        }
        size_t bad = length - at;
        int size = c < 0x80 ? 0 : kva_utf8_sequence(text + at, length - at, &bad);
        if (size > 0 && (plain || !ends_line(text + at, size))) {
            at += (size_t)size;
            continue;
        }
        kva_buf_append(buf, text + start, at - start);
        if (c < 0x80) {
            put_escape(buf, c);
            at++;
        } else if (size > 0) {
            put_code(buf, text + at, size);
            at += (size_t)size;
        } else {
            kva_buf_append(buf, "\xEF\xBF\xBD", 3);
            at += bad;
        }
        start = at;
    }
    kva_buf_append(buf, text + start, length - start);
    kva_buf_putc(buf, '"');
}

void kva_buf_json_string(struct kva_buf *buf, const char *text, size_t length)
{
    put_string(buf, text, length, false);
}

void kva_buf_json_string_plain(struct kva_buf *buf, const char *text, size_t length)
{
    put_string(buf, text, length, true);
}

void kva_buf_json_line(struct kva_buf *buf, const char *text, size_t length)
{
    size_t start = 0, at = 0;
    while (at < length) {
        int size = kva_utf8_sequence(text + at, length - at, NULL);
        size_t next = at + (size > 0 ? (size_t)size : 1);
        if (size > 1 && ends_line(text + at, size)) {
            kva_buf_append(buf, text + start, at - start);
            put_code(buf, text + at, size);
            start = next;
        }
        at = next;
    }
    kva_buf_append(buf, text + start, length - start);
}

char *kva_buf_take(struct kva_buf *buf, size_t *ret_length)
{
    if (buf->failed || !buf->data)
        return NULL;
    char *data = buf->data;
    if (ret_length)
        *ret_length = buf->length;
    kva_buf_init(buf, buf->max_bytes);
    return data;
}
