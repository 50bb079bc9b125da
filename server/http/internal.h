/* internal.h - connections and exchanges (inside server/http). */
#ifndef KVA_SERVER_HTTP_INTERNAL_H
#define KVA_SERVER_HTTP_INTERNAL_H

#include "server/http/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event_struct.h>
#include <event2/listener.h>
#include <openssl/ssl.h>

#define KVA_HTTP_LISTENERS_MAX 8u
#define KVA_HTTP_BUCKETS       4096u /* a power of two */

struct kva_conn;

struct kva_http {
    struct kva_http_params params;
    struct evhttp *evhttp;
    struct evconnlistener *listeners[KVA_HTTP_LISTENERS_MAX];
    uint32_t listener_count;
    SSL_CTX *tls;
    struct kva_conn *buckets[KVA_HTTP_BUCKETS]; /* connections by their bufferevent */
    struct event *retry; /* accept again after the process ran out of descriptors */
    uint32_t conn_count;
    uint32_t exchange_count;
    uint64_t refused_by_parser;
    uint16_t port;
    bool accepting;
    bool stopped; /* for good */
    bool destroying;
};

enum conn_phase {
    CONN_NEW,     /* accepted, its evhttp_connection not known yet */
    CONN_IDLE,    /* between requests */
    CONN_READING, /* a request has begun to arrive */
    CONN_SERVING, /* an exchange */
    CONN_CLOSING, /* the last answer is on its way out */
};

struct kva_conn {
    struct kva_http *http;
    struct kva_conn *prev, *next; /* in its bucket */
    struct bufferevent *bev;
    struct evhttp_connection *evcon;
    struct kva_exchange *exchange;
    struct event timer;
    size_t input_bytes; /* of the request that is arriving */
    enum conn_phase phase;
    bool fix_page; /* evhttp wrote an error page of its own */
};

struct kva_exchange {
    struct kva_conn *conn;
    struct kva_http *http;
    struct evhttp_request *req;
    struct kva_exchange_owner owner;
    struct kva_exchange_info info;
    struct event closed; /* the peer's FIN, while evhttp does not read */
    uint64_t progress_ns;
    bool kept;
    bool closed_added;
    bool streaming;
    bool broken;          /* a part of the stream was lost, the socket is shut */
    bool replied;         /* nothing more comes from us */
    bool writable_wanted; /* unsent bytes were above the mark */
};

/* --- conn.c --- */
struct bufferevent *kva_conn_open(struct event_base *base, void *http);
void kva_conn_serving(struct kva_conn *conn, struct kva_exchange *exchange);
void kva_conn_served(struct kva_conn *conn);
/* What is written now is the last; the connection goes when it has left. */
void kva_conn_close(struct kva_conn *conn);
/* The connection that `evcon` belongs to; NULL: unknown. */
struct kva_conn *kva_conn_find(struct kva_http *http, struct evhttp_connection *evcon);
void kva_http_update_accepting(struct kva_http *http);

/* --- exchange.c --- */
void kva_exchange_dispatch(struct evhttp_request *req, void *http);
/* The connection is going away. */
void kva_exchange_lost(struct kva_exchange *exchange);
void kva_exchange_drained(struct kva_exchange *exchange, size_t unsent);

/* --- tls.c --- */
KVA_MUST_CHECK enum kva_status kva_tls_create(const char *cert_path, const char *key_path,
                                              SSL_CTX **ret, struct kva_err *err);

#endif
