/* chat.h - a terminal chat with any OpenAI-compatible server.
 *
 * Answers stream in as they are made; the conversation is kept and sent with each question. Ctrl-C
 * stops an answer, and at an empty prompt it ends the chat. If standard input is not a terminal,
 * each of its messages is asked in turn and the first failure ends the run.
 *
 * Thread rule: main thread; one chat at a time in a process, because it takes SIGINT, SIGTERM,
 * SIGHUP, SIGWINCH, SIGCONT and SIGPIPE while it runs and gives them back at its end. It reads no
 * environment itself; libcurl honours the usual proxy variables and libedit TERM. On a terminal,
 * LC_CTYPE should be a UTF-8 locale. */
#ifndef KVA_CLIENTS_CHAT_CHAT_H
#define KVA_CLIENTS_CHAT_CHAT_H

#include "base/err.h"

#include <stdbool.h>
#include <stdio.h>

/* Bytes of conversation kept by default; a quarter of what `kvahead serve` takes as a body, since
 * JSON can make a text longer. */
#define KVA_CHAT_HISTORY_BYTES ((size_t)4 << 20)

struct kva_chat_params {
    const char *url;     /* base URL, e.g. "http://127.0.0.1:8000/v1" */
    const char *api_key; /* NULL: none */
    const char *ca_file; /* PEM certificates to trust instead of the system's; NULL: those */
    const char *model;   /* NULL: the first that the server lists */
    const char *system;  /* system message; NULL: none */
    uint64_t max_tokens; /* of an answer; 0: the server's choice */
    double temperature;
    double top_p;
    int64_t seed;             /* -1: none */
    size_t history_bytes_max; /* 0: KVA_CHAT_HISTORY_BYTES */
    bool no_color;
    /* Streams; NULL: standard input, standard output and standard error. */
    FILE *in, *out, *notes;
};

/* Runs until the person leaves or the input ends. Fails: whatever made the chat impossible, or,
 * without a terminal, what made an answer fail (see clients/chat/http.h); KVA_ECANCELLED after
 * Ctrl-C without a terminal; KVA_EIO when the output cannot be written. */
KVA_MUST_CHECK enum kva_status kva_chat_run(const struct kva_chat_params *params,
                                            struct kva_err *err);

#endif
