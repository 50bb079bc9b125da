/* Connections: bounds and deadlines around evhttp's own.
 *
 * evhttp asks for a bufferevent when it accepts a connection, and only later makes its
 * evhttp_connection; both are tied together by an event that runs right after (adopt). */
#include "server/http/internal.h"

#include "base/clock.h"
#include "server/stream/answer.h"

#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* What a peer may send ahead while its request is served. */
#define AHEAD_BYTES_MAX 4096u
/* Time for the last bytes of a refused request to leave. */
#define CLOSING_NS (2 * KVA_NS_PER_S)

static struct timeval timeval_of(uint64_t ns)
{
    return (struct timeval){.tv_sec = (time_t)(ns / KVA_NS_PER_S),
                            .tv_usec = (suseconds_t)(ns % KVA_NS_PER_S / 1000)};
}

static void arm(struct kva_conn *conn, uint64_t ns)
{
    struct timeval tv = timeval_of(ns);
    if (ns > 0)
        evtimer_add(&conn->timer, &tv);
    else
        evtimer_del(&conn->timer);
}

static struct kva_conn **bucket_of(struct kva_http *http, const struct bufferevent *bev)
{
    /* Allocations are 16 bytes apart at least; the multiplication spreads the rest. */
    uint64_t hash = ((uint64_t)(uintptr_t)bev >> 4) * 0x9E3779B97F4A7C15ull;
    return &http->buckets[hash >> 48 & (KVA_HTTP_BUCKETS - 1)];
}

static void conn_free(struct kva_conn *conn)
{
    struct kva_http *http = conn->http;
    event_del(&conn->timer);
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        *bucket_of(http, conn->bev) = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    http->conn_count--;
    free(conn);
    if (!http->destroying)
        kva_http_update_accepting(http);
}

/* evhttp is about to free the connection, for whatever reason. */
static void on_close(struct evhttp_connection *evcon, void *opaque)
{
    (void)evcon;
    struct kva_conn *conn = opaque;
    if (conn->exchange)
        kva_exchange_lost(conn->exchange);
    conn_free(conn);
}

/* Learn which evhttp_connection was made for this bufferevent: it is the argument of the callbacks
 * that evhttp has set on it. None: evhttp gave up on the connection. */
static void adopt(struct kva_conn *conn)
{
    void *evcon = NULL;
    bufferevent_getcb(conn->bev, NULL, NULL, NULL, &evcon);
    evutil_socket_t fd = bufferevent_getfd(conn->bev);
    bufferevent_decref(conn->bev);
    if (!evcon) {
        conn_free(conn);
        return;
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    conn->evcon = evcon;
    conn->phase = CONN_IDLE;
    evhttp_connection_set_closecb(conn->evcon, on_close, conn);
    arm(conn, conn->http->params.idle_timeout_ns);
}

/* A complete answer of our own making, past evhttp, to a request that it has not finished reading;
 * the connection ends with it. */
static void put_error(struct kva_conn *conn, enum kva_status status, const char *message, int code)
{
    struct evbuffer *output = bufferevent_get_output(conn->bev);
    struct kva_err err;
    struct kva_buf body;
    kva_fail(&err, status, "%s", message);
    kva_buf_init(&body, 4096);
    kva_error_json(&body, status, &err);
    /* A socket's bufferevent keeps the front of its output frozen, one of TLS does not. */
    evbuffer_unfreeze(output, 1);
    evbuffer_drain(output, evbuffer_get_length(output));
    if (!conn->http->tls)
        evbuffer_freeze(output, 1);
    /* From here on on_output waits for these bytes to leave; before, it would take them for a page
     * of evhttp's that needs replacing. */
    conn->phase = CONN_CLOSING;
    evbuffer_add_printf(output,
                        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                        code, kva_status_info(status)->name, body.length);
    evbuffer_add(output, body.data, body.length);
    kva_buf_finish(&body);
    conn->http->refused_by_parser++;
}

/* Too slow, or far too much: evhttp would go on reading what it is going to refuse. */
static void give_up(struct kva_conn *conn)
{
    const struct kva_http_params *params = &conn->http->params;
    if (conn->input_bytes > params->body_bytes_max) {
        char message[96];
        snprintf(message, sizeof(message), "The body is larger than the limit of %zu bytes.",
                 params->body_bytes_max);
        put_error(conn, KVA_ETOOBIG, message, 413);
    } else {
        put_error(conn, KVA_ETIMEOUT, "The request did not arrive in time.", 408);
    }
    bufferevent_disable(conn->bev, EV_READ);
    bufferevent_enable(conn->bev, EV_WRITE);
    arm(conn, CLOSING_NS);
}

/* evhttp answers by itself what it cannot parse: the same refusal in our words. */
static void replace_page(struct kva_conn *conn)
{
    const struct kva_http_params *params = &conn->http->params;
    struct evbuffer *output = bufferevent_get_output(conn->bev);
    char line[32] = "";
    int code = 0;
    conn->fix_page = false;
    evbuffer_copyout(output, line, sizeof(line) - 1);
    if (sscanf(line, "HTTP/%*d.%*d %d", &code) != 1 || code == 100) {
        arm(conn, params->request_timeout_ns);
        return;
    }
    char message[160];
    if (code == 413 && conn->input_bytes > params->body_bytes_max / 2) {
        snprintf(message, sizeof(message), "The body is larger than the limit of %zu bytes.",
                 params->body_bytes_max);
        put_error(conn, KVA_ETOOBIG, message, 413);
    } else if (conn->input_bytes > params->header_bytes_max) {
        snprintf(message, sizeof(message), "The headers are larger than the limit of %zu bytes.",
                 params->header_bytes_max);
        put_error(conn, KVA_EHEADERS, message, 431);
    } else if (code == 413) {
        snprintf(message, sizeof(message),
                 "The body is malformed or larger than the limit of %zu bytes.",
                 params->body_bytes_max);
        put_error(conn, KVA_ETOOBIG, message, 413);
    } else if (code == 417) {
        put_error(conn, KVA_EINVAL, "This expectation cannot be met.", 417);
    } else if (code == 0 || code == 501) {
        put_error(conn, KVA_EMETHOD, "The method is unknown.", 405);
    } else {
        put_error(conn, KVA_EINVAL, "The request is not valid HTTP/1.1.", 400);
    }
    arm(conn, CLOSING_NS);
}

static void on_timer(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    struct kva_conn *conn = opaque;
    if (conn->phase == CONN_NEW) {
        adopt(conn);
    } else if (conn->fix_page) {
        replace_page(conn);
    } else if (conn->phase == CONN_READING) {
        give_up(conn);
    } else if (conn->phase == CONN_IDLE || conn->phase == CONN_CLOSING) {
        evhttp_connection_free(conn->evcon);
    }
}

static void on_input(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *opaque)
{
    (void)buffer;
    struct kva_conn *conn = opaque;
    if (info->n_added == 0 || conn->phase == CONN_SERVING || conn->phase == CONN_CLOSING)
        return;
    conn->input_bytes += info->n_added;
    if (conn->phase == CONN_IDLE) {
        conn->phase = CONN_READING;
        arm(conn, conn->http->params.request_timeout_ns);
    }
    /* Chunks cost bytes of their own, so this is not the limit itself, which evhttp holds. */
    const struct kva_http_params *params = &conn->http->params;
    if (conn->input_bytes > 2 * params->body_bytes_max + params->header_bytes_max)
        event_active(&conn->timer, EV_TIMEOUT, 0);
}

static void on_output(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *opaque)
{
    struct kva_conn *conn = opaque;
    if (conn->phase == CONN_SERVING) {
        if (info->n_deleted > 0 && conn->exchange)
            kva_exchange_drained(conn->exchange, evbuffer_get_length(buffer));
    } else if (conn->phase == CONN_CLOSING) {
        if (info->n_deleted > 0 && evbuffer_get_length(buffer) == 0)
            event_active(&conn->timer, EV_TIMEOUT, 0);
    } else if (info->n_added > 0 && !conn->fix_page && conn->phase != CONN_NEW) {
        /* Nobody asked for an answer, so evhttp writes one. It is looked at before the socket is:
         * an activated event runs before the loop polls again. */
        conn->fix_page = true;
        event_active(&conn->timer, EV_TIMEOUT, 0);
    }
}

struct bufferevent *kva_conn_open(struct event_base *base, void *opaque)
{
    struct kva_http *http = opaque;
    struct kva_conn *conn = calloc(1, sizeof(*conn));
    struct bufferevent *bev = NULL;
    SSL *ssl = NULL;
    if (conn && http->tls && (ssl = SSL_new(http->tls))) {
        bev = bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                             BEV_OPT_CLOSE_ON_FREE);
        if (bev)
            bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    } else if (conn && !http->tls) {
        bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    }
    if (!bev) {
        /* evhttp makes a plain one then; with TLS its bytes are not HTTP and get refused. */
        free(conn);
        return NULL;
    }
    conn->http = http;
    conn->bev = bev;
    struct kva_conn **bucket = bucket_of(http, bev);
    conn->next = *bucket;
    if (conn->next)
        conn->next->prev = conn;
    *bucket = conn;
    http->conn_count++;
    kva_http_update_accepting(http);
    /* A whole body waits in the input buffer until it is complete. */
    bufferevent_setwatermark(bev, EV_READ, 0,
                             http->params.body_bytes_max + http->params.header_bytes_max);
    struct timeval write_timeout = timeval_of(http->params.write_timeout_ns);
    bufferevent_set_timeouts(bev, NULL, http->params.write_timeout_ns ? &write_timeout : NULL);
    evbuffer_add_cb(bufferevent_get_input(bev), on_input, conn);
    evbuffer_add_cb(bufferevent_get_output(bev), on_output, conn);
    evtimer_assign(&conn->timer, base, on_timer, conn);
    bufferevent_incref(bev);
    event_active(&conn->timer, EV_TIMEOUT, 0);
    return bev;
}

struct kva_conn *kva_conn_find(struct kva_http *http, struct evhttp_connection *evcon)
{
    const struct bufferevent *bev = evhttp_connection_get_bufferevent(evcon);
    struct kva_conn *conn = *bucket_of(http, bev);
    while (conn && conn->bev != bev)
        conn = conn->next;
    return conn;
}

void kva_conn_serving(struct kva_conn *conn, struct kva_exchange *exchange)
{
    conn->phase = CONN_SERVING;
    conn->exchange = exchange;
    conn->fix_page = false;
    bufferevent_setwatermark(conn->bev, EV_READ, 0, AHEAD_BYTES_MAX);
    arm(conn, 0);
}

void kva_conn_close(struct kva_conn *conn)
{
    conn->phase = CONN_CLOSING;
    arm(conn, CLOSING_NS);
}

void kva_conn_served(struct kva_conn *conn)
{
    const struct kva_http_params *params = &conn->http->params;
    conn->exchange = NULL;
    conn->phase = CONN_IDLE;
    conn->input_bytes = 0;
    bufferevent_setwatermark(conn->bev, EV_READ, 0,
                             params->body_bytes_max + params->header_bytes_max);
    /* A pipelined request is in the buffer already. */
    if (evbuffer_get_length(bufferevent_get_input(conn->bev)) > 0) {
        conn->phase = CONN_READING;
        arm(conn, params->request_timeout_ns);
    } else {
        arm(conn, params->idle_timeout_ns);
    }
}
