/* http.h - HTTP/1.1 for the API: listeners, connections, exchanges, TLS.
 *
 * libevent's loop, buffers and TLS carry the bytes, llhttp's tables read them (parser.h), and all
 * else is here: what is refused and in which words, how long a peer may take, how much may be held
 * for it, and when it is gone.
 *
 * An exchange is one request and its answer. `begin` sees it when its head is complete, before any
 * byte of the body is read: it may refuse it there (kva_exchange_reply), and then the body is not
 * taken. Otherwise `handle` gets it when the body is complete and either answers at once or keeps
 * it (kva_exchange_keep) and answers later; if the peer leaves first, the keeper is called and the
 * exchange is gone.
 *
 * Nothing is held for strangers without a bound: a head must be complete in time, connections that
 * wait (for a handshake, a head, the next request) are counted by address and the oldest makes room
 * for a new one, bodies are bounded in sum and by account. A few connections more than allowed are
 * accepted to be told so and to answer probes (kva_exchange_info.reserve). A peer that closes or
 * resets its connection is noticed whatever the connection is doing.
 *
 * Thread rule: the event loop's thread only. */
#ifndef KVA_SERVER_HTTP_HTTP_H
#define KVA_SERVER_HTTP_HTTP_H

#include "base/buf.h"
#include "base/err.h"
#include "server/http/parser.h"

#include <event2/event.h>

struct kva_http;
struct kva_exchange;

#define KVA_REQUEST_ID_MAX 128u
#define KVA_PEER_MAX       48u

struct kva_http_params {
    struct event_base *base;
    const char *host;       /* numeric address or name to listen on */
    uint16_t port;          /* 0: any free one */
    const char *admin_host; /* for probes and scrapes only, without TLS; NULL: none */
    uint16_t admin_port;    /* 0: any free one */
    uint32_t backlog;
    uint32_t connections_max;
    uint32_t waiting_per_address_max; /* connections without a request, of one address */
    size_t header_bytes_max;
    size_t body_bytes_max;       /* of one request */
    size_t bodies_bytes_max;     /* of all requests whose bodies are held */
    size_t bodies_account_max;   /* of those of one key, or one address without keys */
    uint64_t head_timeout_ns;    /* from accepting, or a request's first byte, to its head's end;
                                    a TLS handshake included */
    uint64_t idle_timeout_ns;    /* a kept-alive connection without a request */
    uint64_t request_timeout_ns; /* from a request's first byte to its last */
    uint64_t write_timeout_ns;   /* a peer that takes no byte for this long is cut */
    size_t unsent_resume_bytes;  /* writable: an exchange's unsent bytes fell to this */
    const char *tls_cert_path;   /* PEM chain; NULL: no TLS */
    const char *tls_key_path;
    /* A complete head: refuse it, or let the body come. */
    void (*begin)(void *opaque, struct kva_exchange *exchange);
    /* A complete request: answer it or keep it before returning. */
    void (*handle)(void *opaque, struct kva_exchange *exchange);
    /* The answer left, or the connection did: for the log and the counters. */
    void (*done)(void *opaque, struct kva_exchange *exchange);
    void *opaque;
};

/* Fails: KVA_EINVAL (address), KVA_EIO (err names address and reason, or the TLS file),
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_http_create(const struct kva_http_params *params,
                                               struct kva_http **ret, struct kva_err *err);

/* Close every connection; owners of kept exchanges are called. NULL is allowed. */
void kva_http_destroy(struct kva_http *http);

/* The ports that are listened on; 0: none. */
uint16_t kva_http_port(const struct kva_http *http);
uint16_t kva_http_admin_port(const struct kva_http *http);

/* From now on every answer is the last of its connection, and connections that have had one and wait
 * for another request close. New ones are accepted as before. */
void kva_http_drain(struct kva_http *http);

/* Whether anybody but this machine can connect (the admin listener left aside). */
bool kva_http_is_public(const struct kva_http *http);

/* Read certificate and key again; new connections use them. On failure the old ones stay. */
KVA_MUST_CHECK enum kva_status kva_http_reload_tls(struct kva_http *http, struct kva_err *err);

/* Whoever accepts connections in this process has no descriptor left for one, errno says why: it is
 * counted, and connections that wait longest close. False: none does. */
bool kva_http_make_room(struct kva_http *http);

struct kva_http_counts {
    uint32_t connections;
    uint32_t waiting; /* of those: without a request */
    uint32_t exchanges;
    uint64_t body_bytes; /* held now */
    uint64_t malformed;  /* refused by the parser, since the start */
    uint64_t evicted;    /* closed while they waited, to make room, since the start */
    uint64_t accept_errors;
};
void kva_http_get_counts(const struct kva_http *http, struct kva_http_counts *ret);

/* ---- one exchange ---------------------------------------------------------------------------- */

struct kva_exchange_owner {
    /* The peer left or was cut: the exchange ends when this returns. */
    void (*gone)(void *opaque);
    /* Unsent bytes are few again. Called while the socket is written: write later, not here. May
     * be NULL. */
    void (*writable)(void *opaque);
    void *opaque;
};

/* What the log and the counters want to know; filled in as it becomes known. */
struct kva_exchange_info {
    char request_id[KVA_REQUEST_ID_MAX + 1];
    const char *route;  /* the pattern, a constant; NULL: none */
    const char *method; /* "-" and path "": what came is not HTTP */
    const char *path;   /* without query; valid until done */
    char peer[KVA_PEER_MAX];
    uint64_t received_ns; /* kva_time_ns when the head was complete */
    uint64_t body_bytes;
    uint64_t sent_bytes; /* of the body */
    int status;          /* 0: none was sent */
    bool admin;          /* came in on the admin listener */
    bool reserve;        /* on a connection beyond connections_max: for probes only */
    bool aborted;        /* the connection ended before the answer did */
    bool stalled;        /* it was cut because the peer took nothing for write_timeout_ns */
    int key_index;       /* -1: no key */
    const char *error;   /* name of the status that it was refused or ended with; NULL: none */
    char param[KVA_ERR_PARAM_MAX];         /* the field at fault, or "" */
    char unknown_field[KVA_ERR_PARAM_MAX]; /* the first one that nobody knows, or "" */
    uint32_t unknown_fields;
    char summary[192]; /* what the log line adds, e.g. tokens and the finish reason */
    char summary_json[192];
};

struct kva_exchange_info *kva_exchange_info(struct kva_exchange *exchange);
const struct kva_http_head *kva_exchange_head(const struct kva_exchange *exchange);
/* NULL: absent. */
const char *kva_exchange_header(const struct kva_exchange *exchange, const char *name);

/* What `begin` found, for `handle`. */
void kva_exchange_set_user(struct kva_exchange *exchange, const void *user);
const void *kva_exchange_user(const struct kva_exchange *exchange);

size_t kva_exchange_body_bytes(const struct kva_exchange *exchange);
/* Take the body, ended by NUL; the caller frees it. It counts as held until kva_exchange_body_done
 * or the exchange's end. */
char *kva_exchange_take_body(struct kva_exchange *exchange, size_t *ret_length);
void kva_exchange_body_done(struct kva_exchange *exchange);
/* Instead, so many bytes go on to count as held: what of it, and of what it asked for, stays until
 * the exchange's end. Fails: KVA_ERATE, KVA_EBUSY: nothing is held; KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_exchange_body_stays(struct kva_exchange *exchange, size_t bytes,
                                                       struct kva_err *err);

/* A response header, before the reply. Neither may contain a line break. */
void kva_exchange_add_header(struct kva_exchange *exchange, const char *name, const char *value);

/* Close the connection behind this answer. */
void kva_exchange_close_after(struct kva_exchange *exchange);

/* Answer later. */
void kva_exchange_keep(struct kva_exchange *exchange, const struct kva_exchange_owner *owner);

/* The whole answer. Afterwards the exchange belongs to the transport, and the owner is not called
 * again. */
void kva_exchange_reply(struct kva_exchange *exchange, int code, const char *content_type,
                        const void *body, size_t length);

/* The same with the content of a buffer; 503 without a body if that ran out of memory. */
void kva_exchange_reply_buf(struct kva_exchange *exchange, int code, const char *content_type,
                            const struct kva_buf *body);

/* What the log says of an error; all that reply with one do. */
void kva_exchange_note_error(struct kva_exchange *exchange, enum kva_status status,
                             const struct kva_err *err);

/* The same with an error and its status' code, in OpenAI's form, or Anthropic's below /v1/messages. */
void kva_exchange_reply_error(struct kva_exchange *exchange, enum kva_status status,
                              const struct kva_err *err);

/* A body in pieces. A stream of which a piece cannot be had is cut. */
void kva_exchange_stream_begin(struct kva_exchange *exchange, int code, const char *content_type);
void kva_exchange_stream_write(struct kva_exchange *exchange, const void *data, size_t length);
void kva_exchange_stream_end(struct kva_exchange *exchange, bool close_connection);

/* Bytes given to this exchange that the peer's socket has not taken. */
size_t kva_exchange_unsent(const struct kva_exchange *exchange);

/* Close the connection now; the owner is not told. */
void kva_exchange_abort(struct kva_exchange *exchange);

#endif
