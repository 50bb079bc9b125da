/* internal.h - connections, exchanges and accounts (inside server/http). */
#ifndef KVA_SERVER_HTTP_INTERNAL_H
#define KVA_SERVER_HTTP_INTERNAL_H

#include "base/list.h"
#include "server/http/accounts.h"
#include "server/http/http.h"
#include "server/http/listener.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event_struct.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define KVA_HTTP_LISTENERS_MAX 8u
/* Connections beyond connections_max: to say that there are too many, and for probes. */
#define KVA_HTTP_RESERVE 16u
/* Of the admin listener, which has a count of its own. */
#define KVA_HTTP_ADMIN_MAX 64u
/* A body that nobody wants is read to its end up to this length, so that the connection lasts. */
#define KVA_HTTP_DISCARD_MAX ((size_t)64 << 10)

struct kva_conn;

struct kva_http_listener {
    struct kva_http *http;
    struct kva_listener *listener;
    bool admin;
};

struct kva_http {
    struct kva_http_params params;
    struct kva_http_listener listeners[KVA_HTTP_LISTENERS_MAX];
    uint32_t listener_count;
    SSL_CTX *tls;
    struct kva_list conns;
    struct kva_list waiting; /* connections without a request, the one that waits longest first */
    struct kva_accounts *addresses; /* waiting connections by address */
    struct kva_accounts *bodies;    /* bytes by key, or by address */
    struct kva_http_counts counts;
    uint32_t admin_count;
    uint16_t port;
    uint16_t admin_port;
    bool is_public;
    bool draining; /* every answer is the last of its connection */
};

/*              a byte                head complete          body complete
 *   WAITING ---------------> HEAD ---------------> BODY ------------------> SERVING
 *      ^                      |        refused      |       refused           |
 *      |                      '---------------------'-----------------------> |
 *      |  its body ends                                                       | answer has left
 *      |<--------------- DISCARDING <-------- a short body is still to come --|
 *      '-------------------------------------------------------- keep alive --|
 *                        LINGERING <--------------------------- close after --'
 * DEAD: closed, freed in the loop's next turn. */
enum conn_phase {
    CONN_WAITING,    /* for a TLS handshake, or between requests */
    CONN_HEAD,       /* a request has begun to arrive */
    CONN_BODY,       /* its head was accepted */
    CONN_SERVING,    /* it is complete, or refused and its answer is leaving */
    CONN_DISCARDING, /* refused before its body was read, which now comes and is thrown away */
    CONN_LINGERING,  /* the last answer has left; what still comes is thrown away */
    CONN_DEAD,
};

struct kva_conn {
    struct kva_http *http;
    struct kva_list link;       /* in http->conns */
    struct kva_list waiting;    /* in http->waiting unless the phase is BODY or SERVING */
    struct kva_list of_address; /* the same in its account */
    struct bufferevent *bev;
    struct kva_http_parser *parser;
    struct kva_exchange *exchange;
    struct kva_account *address;
    struct event timer;
    struct event later; /* what must not happen inside a callback of somebody else */
    uint64_t begun_ns;  /* of the request that is arriving: its first byte */
    uint64_t linger_until_ns;
    char peer[KVA_PEER_MAX];
    enum conn_phase phase;
    bool tls;
    bool admin;
    bool reserve;
    bool answered;    /* at least one request */
    bool close_after; /* the answer that is leaving is the last */
    bool finishing;   /* `later` is to look whether the answer has left */
    bool parsing;     /* input is being parsed: no second time from within */
};

struct kva_exchange {
    struct kva_conn *conn;
    struct kva_http *http;
    struct kva_exchange_owner owner;
    struct kva_exchange_info info;
    const void *user;
    struct kva_buf body;
    struct kva_buf fields;       /* of the response, as they are sent */
    struct kva_account *account; /* that the body's bytes are held for */
    uint64_t held_bytes;
    uint64_t progress_ns;
    uint64_t body_wanted;        /* bytes that were to be held, last */
    enum kva_status body_status; /* why the body was refused */
    bool kept;
    bool chunked;         /* the response's body */
    bool broken;          /* a part of the stream was lost, the socket is shut */
    bool replied;         /* nothing more comes from us */
    bool writable_wanted; /* unsent bytes were above the mark */
};

/* --- conn.c --- */
/* Takes the socket over, also on failure. */
void kva_conn_open(struct kva_http_listener *listener, evutil_socket_t fd,
                   const struct sockaddr *address);
/* Close now. The exchange, if there is one, is lost; memory goes in the loop's next turn. */
void kva_conn_close(struct kva_conn *conn);
/* The same with its memory, when the server goes. */
void kva_conn_destroy(struct kva_conn *conn);
/* Bytes to the peer: to the socket at once if nothing waits before them. False: out of memory. */
bool kva_conn_write(struct kva_conn *conn, const struct iovec *parts, uint32_t count);
/* The exchange's answer is complete: go on when it has left. */
void kva_conn_replied(struct kva_conn *conn);
/* In a drain: close it if it waits for another request, of which nothing has come. */
void kva_conn_retire(struct kva_conn *conn);
/* Answer what is not a request, or must not go on, and close behind it. */
void kva_conn_refuse(struct kva_conn *conn, enum kva_status status, const struct kva_err *err);

/* --- waiting.c: connections that hold a place without a request --- */
void kva_conn_wait(struct kva_conn *conn);
void kva_conn_wait_over(struct kva_conn *conn);
/* Close the longest waiting connection, of one account (NULL: of all). False: there is none. */
bool kva_http_evict(struct kva_http *http, struct kva_account *address);

/* --- exchange.c --- */
/* NULL: out of memory. */
struct kva_exchange *kva_exchange_create(struct kva_conn *conn);
/* The answer has left. */
void kva_exchange_finish(struct kva_exchange *exchange);
/* The connection is going away. */
void kva_exchange_lost(struct kva_exchange *exchange, bool stalled);
void kva_exchange_drained(struct kva_exchange *exchange, size_t unsent);
/* Make room for the body that the head announces. */
KVA_MUST_CHECK enum kva_status kva_exchange_expect_body(struct kva_exchange *exchange,
                                                        struct kva_err *err);
/* Why the body was refused, in words; returns the status. */
enum kva_status kva_exchange_body_error(const struct kva_exchange *exchange, struct kva_err *err);
bool kva_exchange_put_body(struct kva_exchange *exchange, const char *data, size_t length);

/* --- tls.c --- */
KVA_MUST_CHECK enum kva_status kva_tls_create(const char *cert_path, const char *key_path,
                                              SSL_CTX **ret, struct kva_err *err);

#endif
