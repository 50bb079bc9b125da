/* wire.h - what is said to an OpenAI-compatible server and how its replies are read.
 *
 * Replies are untrusted: any field may be missing or of another type, which is never an error by
 * itself; numbers are clamped.
 *
 * Thread rule: pure functions; a read reply belongs to one thread. */
#ifndef KVA_CLIENTS_CHAT_WIRE_H
#define KVA_CLIENTS_CHAT_WIRE_H

#include "clients/chat/history.h"

struct cJSON;

struct kva_chat_sampling {
    uint64_t max_tokens; /* 0: the server's choice */
    double temperature;
    double top_p;
    int64_t seed; /* -1: none */
};

/* The body of POST /chat/completions, streamed, with usage. */
void kva_chat_wire_body(const struct kva_chat_history *history, const char *model,
                        const struct kva_chat_sampling *sampling, struct kva_buf *out);

/* One chunk of a stream, or a whole answer. Strings belong to `root`; NULL: absent. */
struct kva_chat_piece {
    struct cJSON *root;
    const char *content;
    const char *reasoning; /* thinking that some servers send apart from the answer */
    const char *finish_reason;
    const char *error; /* the server's message: the answer failed */
    bool has_usage;
    uint64_t prompt_tokens;
    uint64_t output_tokens;
    uint64_t cached_tokens; /* of the prompt, that the server had from before */
};

/* Fails: KVA_EFORMAT (not JSON). The caller ends with kva_chat_piece_finish. */
KVA_MUST_CHECK enum kva_status kva_chat_piece_read(struct kva_chat_piece *piece, const char *text,
                                                   size_t length, struct kva_err *err);
void kva_chat_piece_finish(struct kva_chat_piece *piece);

/* Reads the message of an error body into `line` as one harmless line; a body without one gives
 * its beginning, an empty one "". */
void kva_chat_wire_error(const char *body, size_t length, char *line, size_t size);

/* Reads GET /models: appends the ids, each followed by a NUL. Fails: KVA_EFORMAT. */
KVA_MUST_CHECK enum kva_status kva_chat_wire_models(const char *body, size_t length,
                                                    struct kva_buf *ret_ids, struct kva_err *err);

/* What a comment that keeps a stream alive says to a person, as one harmless ASCII line: kvahead's
 * "keep-alive prefill 512/2048" becomes "prefill 25% of 2048 tokens". "": nothing. */
void kva_chat_wire_progress(const char *comment, size_t length, char *line, size_t size);

#endif
