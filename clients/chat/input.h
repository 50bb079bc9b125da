/* input.h - messages from a person or a pipe.
 *
 * On a terminal a line can be edited and earlier lines come back (libedit; kept in memory only).
 * Elsewhere lines are read as they are. A message is one line, or several: a backslash at a line's
 * end goes on to the next line, and three quotation marks begin a block that three more end.
 *
 * Thread rule: one thread at a time, with the signals of signals.h installed. Invariant: a message
 * has at most max_bytes. */
#ifndef KVA_CLIENTS_CHAT_INPUT_H
#define KVA_CLIENTS_CHAT_INPUT_H

#include "base/buf.h"
#include "base/err.h"

#include <stdio.h>

struct kva_chat_input;

struct kva_chat_input_params {
    FILE *in;
    FILE *out;     /* where a terminal's prompt and echo go */
    bool terminal; /* both are one */
    bool color;
    size_t max_bytes;
};

enum kva_chat_input_event {
    KVA_CHAT_INPUT_MESSAGE,
    KVA_CHAT_INPUT_BLOCK,   /* a message in quotation marks: never a command */
    KVA_CHAT_INPUT_DROPPED, /* Ctrl-C took a half-written message away */
    KVA_CHAT_INPUT_END,     /* end of input, Ctrl-D or Ctrl-C at an empty prompt, SIGTERM */
};

/* Fails: KVA_ENOMEM, KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_chat_input_create(const struct kva_chat_input_params *params,
                                                     struct kva_chat_input **ret,
                                                     struct kva_err *err);
void kva_chat_input_destroy(struct kva_chat_input *input);

/* Waits for the next message; `ret_message` is cleared first. Fails: KVA_ETOOBIG (the message is
 * read to its end and dropped; reading may go on), KVA_EIO, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_chat_input_read(struct kva_chat_input *input,
                                                   enum kva_chat_input_event *ret_event,
                                                   struct kva_buf *ret_message,
                                                   struct kva_err *err);

#endif
