/* filter.h - makes text from elsewhere harmless to a terminal.
 *
 * A model, or a server's error message, may contain any byte. A terminal obeys control characters:
 * an escape sequence can rename the window, rewrite what is on the screen, or make some terminals
 * type. So only line feed and tab pass; other C0 controls become their visible pictures (U+2400
 * block, ESC is shown as U+241B), C1 controls and malformed UTF-8 become U+FFFD, and CR LF becomes
 * a line feed.
 *
 * Thread rule: one thread at a time. Pieces may be cut anywhere, also inside a character. */
#ifndef KVA_CLIENTS_CHAT_FILTER_H
#define KVA_CLIENTS_CHAT_FILTER_H

#include "base/buf.h"

struct kva_chat_filter {
    char held[4]; /* the start of a character, or a CR whose LF may follow */
    size_t held_length;
};

/* Appends the harmless form of `length` more bytes to out; a cut-off character waits. */
void kva_chat_filter_push(struct kva_chat_filter *filter, const char *text, size_t length,
                          struct kva_buf *out);

/* The text ends here: what waited is incomplete for good. */
void kva_chat_filter_end(struct kva_chat_filter *filter, struct kva_buf *out);

/* Writes the harmless form of a whole text as one line, line feeds and tabs as spaces, into `line`
 * of `size` > 0 bytes; cut at a character, with NUL. */
void kva_chat_filter_line(const char *text, size_t length, char *line, size_t size);

#endif
