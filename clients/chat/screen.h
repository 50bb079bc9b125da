/* screen.h - what the chat shows: answers, dim notes, errors and one passing status line.
 *
 * On a terminal, notes and errors are coloured lines and a status line may stand where the next
 * output will; colours can be off. Elsewhere only answers go to `out`, in plain bytes, while notes
 * and errors go to `notes`; there is no status line.
 *
 * Thread rule: one thread at a time. Everything shown passes the filter (filter.h) except the
 * escape sequences made here. Invariant: a status line is gone before anything else is written. */
#ifndef KVA_CLIENTS_CHAT_SCREEN_H
#define KVA_CLIENTS_CHAT_SCREEN_H

#include "clients/chat/filter.h"

#include <stdio.h>

struct kva_chat_screen {
    FILE *out;
    FILE *notes;
    bool terminal;
    bool color;
    bool line_open;       /* the cursor is not at a line's start */
    bool dim;             /* the text being shown is */
    bool failed;          /* out took no more: nobody reads it */
    size_t status_length; /* columns of the status line; 0: none */
    struct kva_chat_filter filter;
    struct kva_buf text; /* filtered, on its way out */
};

void kva_chat_screen_init(struct kva_chat_screen *screen, FILE *out, FILE *notes, bool color);
void kva_chat_screen_finish(struct kva_chat_screen *screen);

/* More of an answer, shown at once; dim for thoughts. */
void kva_chat_screen_text(struct kva_chat_screen *screen, const char *text, size_t length,
                          bool dim);

/* The answer is complete: the next output begins on a new line. */
void kva_chat_screen_text_end(struct kva_chat_screen *screen);

/* Replaces the status line, cut to the terminal's width; "" removes it. ASCII only. */
void kva_chat_screen_status(struct kva_chat_screen *screen, const char *line);

/* Lines for the person. `hint` lines are worth seeing on a terminal only. */
void kva_chat_screen_note(struct kva_chat_screen *screen, const char *format, ...) KVA_PRINTF(2, 3);
void kva_chat_screen_hint(struct kva_chat_screen *screen, const char *format, ...) KVA_PRINTF(2, 3);
void kva_chat_screen_error(struct kva_chat_screen *screen, const char *format, ...)
    KVA_PRINTF(2, 3);

#endif
