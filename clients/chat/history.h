/* history.h - the conversation: a system message and turns, within a number of bytes.
 *
 * A turn is what the user said and, once it came, what the model answered. A turn without an answer
 * is always the last one; asking again replaces it, so that a server never sees two user messages
 * in a row. When the bytes, or KVA_CHAT_TURNS_MAX turns, do not suffice, the oldest
 * turns go.
 *
 * Thread rule: one thread at a time. Invariant: the texts' bytes never exceed `max_bytes`. */
#ifndef KVA_CLIENTS_CHAT_HISTORY_H
#define KVA_CLIENTS_CHAT_HISTORY_H

#include "base/buf.h"
#include "base/err.h"

/* Turns kept at most, however short they are. */
#define KVA_CHAT_TURNS_MAX 10000u

struct kva_chat_text {
    char *data; /* owned, ends with NUL; NULL: there is none */
    size_t length;
};

struct kva_chat_turn {
    struct kva_chat_text user;
    struct kva_chat_text answer;
};

struct kva_chat_history {
    struct kva_chat_text system;
    struct kva_chat_turn *turns;
    size_t count;
    size_t capacity;
    size_t bytes;
    size_t max_bytes;
};

void kva_chat_history_init(struct kva_chat_history *history, size_t max_bytes);
void kva_chat_history_finish(struct kva_chat_history *history);

/* Forgets the turns, keeps the system message. */
void kva_chat_history_clear(struct kva_chat_history *history);

/* Empty text: no system message. Old turns may go: *ret_dropped of them. Fails: KVA_ETOOBIG (err
 * has both numbers), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_chat_history_system(struct kva_chat_history *history,
                                                       const char *text, size_t length,
                                                       size_t *ret_dropped, struct kva_err *err);

/* A new turn; one without an answer is replaced. Fails like kva_chat_history_system. */
KVA_MUST_CHECK enum kva_status kva_chat_history_ask(struct kva_chat_history *history,
                                                    const char *text, size_t length,
                                                    size_t *ret_dropped, struct kva_err *err);

/* The answer to the last turn, which has none yet. Fails like kva_chat_history_system; the turn
 * is then still without an answer. */
KVA_MUST_CHECK enum kva_status kva_chat_history_answer(struct kva_chat_history *history,
                                                       const char *text, size_t length,
                                                       size_t *ret_dropped, struct kva_err *err);

/* Takes the last turn's answer away, so that it can be asked again; kva_chat_history_retry_end
 * takes *ret_old back (data NULL: the turn had none). False: there is no turn. */
KVA_MUST_CHECK bool kva_chat_history_retry(struct kva_chat_history *history,
                                           struct kva_chat_text *ret_old);

/* The old answer comes back if the turn has no new one, else it is freed. Between the two calls
 * only kva_chat_history_answer may change the history. */
void kva_chat_history_retry_end(struct kva_chat_history *history, struct kva_chat_text *old);

/* Appends the messages as OpenAI's JSON array. */
void kva_chat_history_json(const struct kva_chat_history *history, struct kva_buf *out);

#endif
