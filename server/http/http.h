/* http.h - HTTP/1.1 on libevent's evhttp: connections, exchanges, TLS.
 *
 * An exchange is one request and its answer. The handler gets it when the body is complete and
 * either answers at once or keeps it (kva_exchange_keep) and answers later; if the peer leaves
 * first, the keeper is told and the exchange is gone.
 *
 * What evhttp 2.1 leaves open is closed here: its own HTML error pages become JSON, a peer that
 * sends its request too slowly gets 408, a header block over the limit 431; the number of
 * connections is bounded; a peer that closes while it waits is noticed at once, although evhttp
 * does not read then; what a peer may send ahead of its answer is bounded.
 *
 * Thread rule: the event loop's thread only. */
#ifndef KVA_SERVER_HTTP_HTTP_H
#define KVA_SERVER_HTTP_HTTP_H

#include "base/buf.h"
#include "base/err.h"

#include <event2/event.h>
#include <event2/http.h>

struct kva_http;
struct kva_exchange;

#define KVA_REQUEST_ID_MAX 128u

struct kva_http_params {
    struct event_base *base;
    const char *host; /* numeric address or name to listen on */
    uint16_t port;    /* 0: any free one */
    uint32_t backlog;
    uint32_t connections_max;
    size_t header_bytes_max;
    size_t body_bytes_max;
    uint64_t idle_timeout_ns;    /* a kept-alive connection without a request */
    uint64_t request_timeout_ns; /* from a request's first byte to its last */
    uint64_t write_timeout_ns;   /* a peer that takes no byte for this long is cut */
    size_t unsent_resume_bytes;  /* writable: an exchange's unsent bytes fell to this */
    const char *tls_cert_path;   /* PEM chain; NULL: no TLS */
    const char *tls_key_path;
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

/* Closes every connection; kept exchanges are told. NULL is allowed. */
void kva_http_destroy(struct kva_http *http);

/* The port that is listened on. */
uint16_t kva_http_port(const struct kva_http *http);

/* Read certificate and key again; new connections use them. On failure the old ones stay. */
KVA_MUST_CHECK enum kva_status kva_http_reload_tls(struct kva_http *http, struct kva_err *err);

/* Stop listening; connections that are open stay. */
void kva_http_stop_accepting(struct kva_http *http);

uint32_t kva_http_connections(const struct kva_http *http);
uint32_t kva_http_exchanges(const struct kva_http *http);
uint64_t kva_http_refused_by_parser(const struct kva_http *http);

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
    const char *route; /* the pattern, a constant; NULL: none */
    const char *method;
    const char *path; /* without query; valid until done */
    const char *peer;
    uint64_t received_ns; /* kva_time_ns when the request was complete */
    uint64_t body_bytes;
    uint64_t sent_bytes; /* of the body */
    int status;          /* 0: none was sent */
    bool aborted;        /* the connection ended before the answer did */
    bool stalled;        /* it was cut because the peer took nothing for write_timeout_ns */
    int key_index;       /* -1: no key */
    char note[192];      /* what the log line adds, e.g. tokens and the finish reason */
    char note_json[192];
};

struct kva_exchange_info *kva_exchange_info(struct kva_exchange *exchange);
enum evhttp_cmd_type kva_exchange_method(const struct kva_exchange *exchange);
/* NULL: absent. */
const char *kva_exchange_header(const struct kva_exchange *exchange, const char *name);
/* The body; an evbuffer that the caller may drain. */
struct evbuffer *kva_exchange_body(struct kva_exchange *exchange);

/* Whether the request says two things about its length, or something unknown. */
bool kva_exchange_framing_ambiguous(const struct kva_exchange *exchange);

/* A response header, before the reply. */
void kva_exchange_add_header(struct kva_exchange *exchange, const char *name, const char *value);

/* Answer later. */
void kva_exchange_keep(struct kva_exchange *exchange, const struct kva_exchange_owner *owner);

/* The whole answer. The exchange belongs to the transport afterwards: the owner hears nothing more.
 */
void kva_exchange_reply(struct kva_exchange *exchange, int code, const char *content_type,
                        const void *body, size_t length);

/* The same with what was gathered in a buffer; 503 without a body if that ran out of memory. */
void kva_exchange_reply_buf(struct kva_exchange *exchange, int code, const char *content_type,
                            const struct kva_buf *body);

/* A body in pieces. A stream of which a piece cannot be had is cut. */
void kva_exchange_stream_begin(struct kva_exchange *exchange, int code, const char *content_type);
void kva_exchange_stream_write(struct kva_exchange *exchange, const void *data, size_t length);
void kva_exchange_stream_end(struct kva_exchange *exchange, bool close_connection);

/* Bytes given to this exchange that the peer's socket has not taken. */
size_t kva_exchange_unsent(const struct kva_exchange *exchange);

/* Close the connection now; the owner is not told. */
void kva_exchange_cut(struct kva_exchange *exchange);

#endif
