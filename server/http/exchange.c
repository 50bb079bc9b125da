/* One request and its answer. */
#include "server/http/internal.h"

#include "base/clock.h"

#include <ctype.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const char *method_name(enum evhttp_cmd_type method)
{
    switch (method) {
    case EVHTTP_REQ_GET:
        return "GET";
    case EVHTTP_REQ_POST:
        return "POST";
    case EVHTTP_REQ_HEAD:
        return "HEAD";
    case EVHTTP_REQ_PUT:
        return "PUT";
    case EVHTTP_REQ_DELETE:
        return "DELETE";
    case EVHTTP_REQ_OPTIONS:
        return "OPTIONS";
    case EVHTTP_REQ_PATCH:
        return "PATCH";
    default:
        return "OTHER";
    }
}

/* The client's X-Request-Id if it is short and harmless in logs and headers, else 128 random bits.
 */
static void choose_request_id(struct kva_exchange *exchange)
{
    char *id = exchange->info.request_id;
    const char *given = kva_exchange_header(exchange, "X-Request-Id");
    size_t length = given ? strlen(given) : 0;
    bool usable = length > 0 && length <= KVA_REQUEST_ID_MAX;
    for (size_t i = 0; usable && i < length; i++)
        usable = isalnum((unsigned char)given[i]) || strchr("-_.:/+=@", given[i]);
    if (usable) {
        memcpy(id, given, length + 1);
        return;
    }
    unsigned char random[16] = {0};
    if (RAND_bytes(random, sizeof(random)) != 1) {
        /* Uniqueness is what matters here, not secrecy. */
        uint64_t now = kva_time_ns();
        memcpy(random, &now, sizeof(now));
        memcpy(random + 8, &exchange, sizeof(void *));
    }
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(id + 2 * i, 3, "%02x", random[i]);
}

static void exchange_free(struct kva_exchange *exchange)
{
    if (exchange->closed_added)
        event_del(&exchange->closed);
    exchange->http->exchange_count--;
    if (exchange->http->params.done)
        exchange->http->params.done(exchange->http->params.opaque, exchange);
    free(exchange);
}

/* Everything has been written. */
static void on_complete(struct evhttp_request *req, void *opaque)
{
    (void)req;
    struct kva_exchange *exchange = opaque;
    kva_conn_served(exchange->conn);
    exchange->req = NULL;
    exchange_free(exchange);
}

void kva_exchange_lost(struct kva_exchange *exchange)
{
    struct kva_exchange_owner owner = exchange->owner;
    bool tell = exchange->kept && !exchange->replied;
    exchange->info.aborted = true;
    /* libevent counts from the start of the loop's turn, which may have been a long one. */
    exchange->info.stalled =
        kva_exchange_unsent(exchange) > 0 &&
        kva_time_ns() - exchange->progress_ns >= exchange->http->params.write_timeout_ns / 2;
    /* evhttp lets go of a request that nobody has answered yet: then it is ours to free. */
    struct evhttp_request *req = exchange->req;
    if (tell && owner.gone)
        owner.gone(owner.opaque);
    exchange->conn->exchange = NULL;
    exchange_free(exchange);
    if (req && !evhttp_request_get_connection(req))
        evhttp_request_free(req);
}

void kva_exchange_drained(struct kva_exchange *exchange, size_t unsent)
{
    exchange->progress_ns = kva_time_ns();
    if (exchange->writable_wanted && !exchange->replied &&
        unsent <= exchange->http->params.unsent_resume_bytes) {
        exchange->writable_wanted = false;
        if (exchange->owner.writable)
            exchange->owner.writable(exchange->owner.opaque);
    }
}

static void on_peer_closed(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    struct kva_exchange *exchange = opaque;
    exchange->closed_added = false;
    evhttp_connection_free(exchange->conn->evcon);
}

void kva_exchange_dispatch(struct evhttp_request *req, void *opaque)
{
    struct kva_http *http = opaque;
    struct evhttp_connection *evcon = evhttp_request_get_connection(req);
    struct kva_conn *conn = kva_conn_find(http, evcon);
    struct kva_exchange *exchange = conn ? calloc(1, sizeof(*exchange)) : NULL;
    if (!exchange) {
        /* No memory. A page in words would be evhttp's, in HTML. */
        if (conn)
            kva_conn_close(conn);
        struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
        (void)evhttp_add_header(headers, "Retry-After", "1");
        (void)evhttp_add_header(headers, "Content-Length", "0");
        (void)evhttp_add_header(headers, "Connection", "close");
        evhttp_send_reply(req, 503, NULL, NULL);
        return;
    }
    exchange->conn = conn;
    exchange->http = http;
    exchange->req = req;
    http->exchange_count++;
    struct kva_exchange_info *info = &exchange->info;
    info->received_ns = exchange->progress_ns = kva_time_ns();
    info->method = method_name(evhttp_request_get_command(req));
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    info->path = path ? path : "";
    info->peer = evhttp_request_get_host(req) ? req->remote_host : "";
    info->body_bytes = evbuffer_get_length(evhttp_request_get_input_buffer(req));
    info->key_index = -1;
    choose_request_id(exchange);
    kva_exchange_add_header(exchange, "X-Request-Id", info->request_id);
    kva_conn_serving(conn, exchange);
    evhttp_request_set_on_complete_cb(req, on_complete, exchange);
    http->params.handle(http->params.opaque, exchange);
}

struct kva_exchange_info *kva_exchange_info(struct kva_exchange *exchange)
{
    return &exchange->info;
}

enum evhttp_cmd_type kva_exchange_method(const struct kva_exchange *exchange)
{
    return evhttp_request_get_command(exchange->req);
}

const char *kva_exchange_header(const struct kva_exchange *exchange, const char *name)
{
    return evhttp_find_header(evhttp_request_get_input_headers(exchange->req), name);
}

struct evbuffer *kva_exchange_body(struct kva_exchange *exchange)
{
    return evhttp_request_get_input_buffer(exchange->req);
}

bool kva_exchange_framing_ambiguous(const struct kva_exchange *exchange)
{
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(exchange->req);
    const struct evkeyval *header;
    unsigned lengths = 0;
    unsigned encodings = 0;
    for (header = headers->tqh_first; header; header = header->next.tqe_next) {
        lengths += strcasecmp(header->key, "Content-Length") == 0;
        if (strcasecmp(header->key, "Transfer-Encoding") == 0)
            encodings += strcasecmp(header->value, "chunked") == 0 ? 1 : 2;
    }
    return lengths > 1 || encodings > 1 || (lengths && encodings);
}

void kva_exchange_add_header(struct kva_exchange *exchange, const char *name, const char *value)
{
    evhttp_add_header(evhttp_request_get_output_headers(exchange->req), name, value);
}

void kva_exchange_keep(struct kva_exchange *exchange, const struct kva_exchange_owner *owner)
{
    exchange->owner = *owner;
    exchange->kept = true;
    /* evhttp does not read while a request is served: only the socket's own event tells that the
     * peer has closed. A peer that only ends its side is taken for gone, as proxies do. */
    evutil_socket_t fd = bufferevent_getfd(exchange->conn->bev);
    if (event_assign(&exchange->closed, exchange->http->params.base, fd, EV_CLOSED, on_peer_closed,
                     exchange) == 0 &&
        event_add(&exchange->closed, NULL) == 0)
        exchange->closed_added = true;
}

/* The peer's close no longer matters once the answer is complete: writing it will tell. */
static void forget_owner(struct kva_exchange *exchange)
{
    exchange->replied = true;
    if (exchange->closed_added)
        event_del(&exchange->closed);
    exchange->closed_added = false;
}

void kva_exchange_reply(struct kva_exchange *exchange, int code, const char *content_type,
                        const void *body, size_t length)
{
    struct evhttp_request *req = exchange->req;
    struct evbuffer *output = evhttp_request_get_output_buffer(req);
    char text[24];
    bool head = evhttp_request_get_command(req) == EVHTTP_REQ_HEAD;
    /* The length is told first, so a body that cannot be had is none at all. */
    if (length > 0 && (!body || (!head && evbuffer_add(output, body, length) != 0))) {
        code = 503;
        length = 0;
    }
    exchange->info.status = code;
    exchange->info.sent_bytes = length;
    forget_owner(exchange);
    if (content_type)
        kva_exchange_add_header(exchange, "Content-Type", content_type);
    snprintf(text, sizeof(text), "%zu", length);
    if (code != 204)
        kva_exchange_add_header(exchange, "Content-Length", text);
    evhttp_send_reply(req, code, NULL, NULL);
}

void kva_exchange_reply_buf(struct kva_exchange *exchange, int code, const char *content_type,
                            const struct kva_buf *body)
{
    if (body->failed)
        kva_exchange_reply(exchange, 503, content_type, NULL, 0);
    else
        kva_exchange_reply(exchange, code, content_type, body->data, body->length);
}

void kva_exchange_stream_begin(struct kva_exchange *exchange, int code, const char *content_type)
{
    exchange->info.status = code;
    exchange->streaming = true;
    kva_exchange_add_header(exchange, "Content-Type", content_type);
    kva_exchange_add_header(exchange, "Cache-Control", "no-cache");
    /* nginx and its like would otherwise collect the stream. */
    kva_exchange_add_header(exchange, "X-Accel-Buffering", "no");
    /* Without chunks only the end of the connection ends the body. */
    if (exchange->req->major == 1 && exchange->req->minor == 0)
        kva_exchange_add_header(exchange, "Connection", "close");
    evhttp_send_reply_start(exchange->req, code, NULL);
}

/* Without memory for all of it the stream must not look whole: the peer sees its connection close,
 * and so does the event loop, which then lets everything go. */
static void break_stream(struct kva_exchange *exchange)
{
    exchange->broken = true;
    shutdown(bufferevent_getfd(exchange->conn->bev), SHUT_RDWR);
}

/* Straight to the socket: nothing waits before it, and arming and disarming EPOLLOUT for every
 * token would cost more than the write. What the socket does not take goes the usual way, errors
 * too: the bufferevent meets them again. */
static void write_now(struct kva_exchange *exchange, const void *data, size_t length)
{
    struct bufferevent *bev = exchange->conn->bev;
    bool chunked = exchange->req->chunked;
    char head[24];
    int head_bytes = chunked ? snprintf(head, sizeof(head), "%zx\r\n", length) : 0;
    struct iovec parts[] = {
        {head, (size_t)head_bytes},
        {(void *)(uintptr_t)data, length},
        {(void *)(uintptr_t) "\r\n", chunked ? 2 : 0},
    };
    ssize_t written = writev(bufferevent_getfd(bev), parts, KVA_COUNT_OF(parts));
    size_t taken = written > 0 ? (size_t)written : 0;
    if (taken > 0)
        exchange->progress_ns = kva_time_ns();
    for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
        size_t skip = kva_min_size(taken, parts[i].iov_len);
        taken -= skip;
        if (skip == parts[i].iov_len)
            continue;
        if (bufferevent_write(bev, (char *)parts[i].iov_base + skip, parts[i].iov_len - skip) == 0)
            continue;
        break_stream(exchange);
        return;
    }
}

/* The usual way; TLS knows no other. */
static void write_later(struct kva_exchange *exchange, const void *data, size_t length)
{
    struct evbuffer *output = evhttp_request_get_output_buffer(exchange->req);
    if (evbuffer_add(output, data, length) == 0)
        evhttp_send_reply_chunk(exchange->req, output);
    else
        break_stream(exchange);
}

void kva_exchange_stream_write(struct kva_exchange *exchange, const void *data, size_t length)
{
    if (length == 0 || exchange->broken)
        return;
    exchange->info.sent_bytes += length;
    if (!exchange->http->tls && kva_exchange_unsent(exchange) == 0)
        write_now(exchange, data, length);
    else
        write_later(exchange, data, length);
    if (kva_exchange_unsent(exchange) > exchange->http->params.unsent_resume_bytes)
        exchange->writable_wanted = true;
}

void kva_exchange_stream_end(struct kva_exchange *exchange, bool close_connection)
{
    forget_owner(exchange);
    if (close_connection)
        kva_exchange_add_header(exchange, "Connection", "close");
    evhttp_send_reply_end(exchange->req);
}

size_t kva_exchange_unsent(const struct kva_exchange *exchange)
{
    return evbuffer_get_length(bufferevent_get_output(exchange->conn->bev));
}

void kva_exchange_cut(struct kva_exchange *exchange)
{
    exchange->replied = true;
    evhttp_connection_free(exchange->conn->evcon);
}
