/* internal.h - one running chat and its parts. Thread rule: main thread. */
#ifndef KVA_CLIENTS_CHAT_INTERNAL_H
#define KVA_CLIENTS_CHAT_INTERNAL_H

#include "clients/chat/chat.h"
#include "clients/chat/history.h"
#include "clients/chat/http.h"
#include "clients/chat/input.h"
#include "clients/chat/screen.h"
#include "clients/chat/wire.h"

struct kva_chat {
    const struct kva_chat_params *params;
    struct kva_chat_http *http;
    struct kva_chat_history history;
    struct kva_chat_screen screen;
    struct kva_chat_input *input;
    struct kva_chat_sampling sampling;
    char *model;
    bool interactive; /* a person sits at a terminal */
    bool quit;
};

/* Asks for the last turn's answer, shows it as it comes and keeps it, also the part that came
 * before Ctrl-C or a failure. Fails like kva_chat_http_run, or with KVA_EFORMAT (the stream),
 * KVA_ETOOBIG (the answer); KVA_ECANCELLED: Ctrl-C. */
KVA_MUST_CHECK enum kva_status kva_chat_answer(struct kva_chat *chat, struct kva_err *err);

/* The ids of GET /models, each followed by a NUL. Fails like kva_chat_http_run, KVA_EFORMAT. */
KVA_MUST_CHECK enum kva_status kva_chat_models(struct kva_chat *chat, struct kva_buf *ret_ids,
                                               struct kva_err *err);

/* Takes the model's name. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_chat_use_model(struct kva_chat *chat, const char *name,
                                                  struct kva_err *err);

/* Says that old turns had to go, if any had. */
void kva_chat_say_dropped(struct kva_chat *chat, size_t dropped);

/* Runs "/name arguments". Fails: KVA_EINVAL (unknown command, wrong arguments), or what the command
 * met. */
KVA_MUST_CHECK enum kva_status kva_chat_command(struct kva_chat *chat, const char *line,
                                                struct kva_err *err);

#endif
