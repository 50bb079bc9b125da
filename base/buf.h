/* buf.h - a growable byte buffer with a maximum.
 *
 * Errors are sticky: after the first failed append the buffer keeps what it had, `failed` is set
 * and later appends do nothing, so that a writer checks once at the end. Thread rule: one thread at
 * a time. Invariant: data[length] == '\0' whenever data is not NULL. */
#ifndef KVA_BASE_BUF_H
#define KVA_BASE_BUF_H

#include "base/kva.h"

#include <stdbool.h>

struct kva_buf {
    char *data;
    size_t length;
    size_t capacity;
    size_t max_bytes;
    bool failed;
    bool no_memory; /* failed, and not for want of room under max_bytes */
};

void kva_buf_init(struct kva_buf *buf, size_t max_bytes);
void kva_buf_finish(struct kva_buf *buf);

/* Forget the content and the failure, keep the storage. */
void kva_buf_clear(struct kva_buf *buf);

/* Make room for `extra` more bytes. False: over the maximum or out of memory, and the buffer has
 * failed. */
bool kva_buf_reserve(struct kva_buf *buf, size_t extra);

/* What should have come has no memory elsewhere: the buffer fails as if it had none. */
void kva_buf_fail(struct kva_buf *buf);
/* What should have come is in a buffer that may have failed: then this one has, for its reason. */
void kva_buf_fail_with(struct kva_buf *buf, const struct kva_buf *other);

void kva_buf_append(struct kva_buf *buf, const void *data, size_t length);
void kva_buf_puts(struct kva_buf *buf, const char *text);
void kva_buf_putc(struct kva_buf *buf, char c);
void kva_buf_printf(struct kva_buf *buf, const char *format, ...) KVA_PRINTF(2, 3);

/* The shortest decimal that reads back as the same float, which must be finite: of 0.7f it is 0.7. */
void kva_buf_float(struct kva_buf *buf, float value);

/* Append `length` bytes as a quoted JSON string. Invalid UTF-8 becomes U+FFFD, one per maximal bad
 * sequence; control characters, quote and backslash are escaped, and so are U+0085, U+2028 and U+2029,
 * at which some readers of lines end theirs; '/' and other non-ASCII are not. */
void kva_buf_json_string(struct kva_buf *buf, const char *text, size_t length);

/* The same without escapes beyond ASCII, as Python's json.dumps(ensure_ascii=False) has it, which is
 * what models have seen. */
void kva_buf_json_string_plain(struct kva_buf *buf, const char *text, size_t length);

/* Append a JSON text of valid UTF-8, with U+0085, U+2028 and U+2029 in its strings escaped. */
void kva_buf_json_line(struct kva_buf *buf, const char *text, size_t length);

/* Take the bytes; the caller frees them. NULL if nothing was appended or the buffer failed. */
char *kva_buf_take(struct kva_buf *buf, size_t *ret_length);

#endif
