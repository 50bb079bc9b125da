/* sse.h - a server-sent events parser: bytes in, events and comments out.
 *
 * Follows the WHATWG specification's "interpreting an event stream": lines end with LF, CR or CRLF,
 * a byte order mark at the start is skipped, several data lines of one event are joined with a line
 * feed, lines that begin with a colon are comments, unknown fields are ignored, and an event that
 * the end of the stream cuts off is dropped. Bytes may arrive in pieces of any size: what is handed
 * out does not depend on where they were split.
 *
 * Thread rule: one thread at a time. Invariant: no more than `max_bytes` of one line, and of one
 * event's data, are held. */
#ifndef KVA_CLIENTS_CHAT_SSE_H
#define KVA_CLIENTS_CHAT_SSE_H

#include "base/buf.h"
#include "base/err.h"

#define KVA_CHAT_SSE_NAME_MAX 63u

struct kva_chat_sse_handler {
    /* A whole event; `name` is "" for one without an event field. Both strings end with NUL and are
     * valid during the call. */
    void (*event)(void *opaque, const char *name, const char *data, size_t length);
    /* A comment without its colon and one leading space. May be NULL. */
    void (*comment)(void *opaque, const char *text, size_t length);
    void *opaque;
};

struct kva_chat_sse {
    struct kva_chat_sse_handler handler;
    struct kva_buf line;
    struct kva_buf data;
    char name[KVA_CHAT_SSE_NAME_MAX + 1];
    bool skip_lf;    /* the byte before was CR, which has ended its line already */
    bool first_line; /* where a byte order mark may be */
    bool has_data;   /* the event has a data field, perhaps an empty one */
};

void kva_chat_sse_init(struct kva_chat_sse *sse, const struct kva_chat_sse_handler *handler,
                       size_t max_bytes);
void kva_chat_sse_finish(struct kva_chat_sse *sse);

/* The next bytes. Fails, for good: KVA_ETOOBIG (a line or an event over max_bytes, or memory is
 * out). */
KVA_MUST_CHECK enum kva_status kva_chat_sse_push(struct kva_chat_sse *sse, const char *bytes,
                                                 size_t length, struct kva_err *err);

#endif
