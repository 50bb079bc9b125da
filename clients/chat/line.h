/* line.h - single lines, edited on a terminal or read from anything else; see input.h. */
#ifndef KVA_CLIENTS_CHAT_LINE_H
#define KVA_CLIENTS_CHAT_LINE_H

#include "clients/chat/input.h"

#include <histedit.h>

enum kva_chat_line {
    KVA_CHAT_LINE_TEXT,
    KVA_CHAT_LINE_TOO_LONG, /* it was read to its end and dropped */
    KVA_CHAT_LINE_STOPPED,  /* Ctrl-C or a request to end, with nothing written */
    KVA_CHAT_LINE_CLEARED,  /* Ctrl-C with something written */
    KVA_CHAT_LINE_END,
};

struct kva_chat_line_source {
    int fd;
    /* A terminal: */
    EditLine *edit;
    History *history;
    char prompt[32];
    bool color;
    bool stopped; /* ... by a signal, while a line was edited */
    bool written; /* ... which had something in it */
    FILE *out;
    /* Anything else: */
    char *block;
    size_t block_length, block_at;
};

KVA_MUST_CHECK enum kva_status kva_chat_line_source_init(struct kva_chat_line_source *source,
                                                         const struct kva_chat_input_params *params,
                                                         struct kva_err *err);
void kva_chat_line_source_finish(struct kva_chat_line_source *source);

/* Appends a line without its end to `line`, up to the maximum of that. `prompt` is one character,
 * shown on a terminal. Fails: KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_chat_line_read(struct kva_chat_line_source *source,
                                                  const char *prompt, enum kva_chat_line *ret_kind,
                                                  struct kva_buf *line, struct kva_err *err);

#endif
