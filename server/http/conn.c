/* conn.c - a connection: its phases, deadlines, and the bytes between socket and parser. */
#include "server/http/internal.h"

#include "base/clock.h"

#include <event2/bufferevent_ssl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

/* What is read at once. */
#define INPUT_BYTES_MAX ((size_t)512 << 10)
/* What a peer may send ahead while its request is served. One that sends more is cut: to stop
 * reading instead would mean not to notice its end, which comes behind those bytes. */
#define AHEAD_BYTES_MAX ((size_t)256 << 10)
/* A refused peer may go on sending for as long, and be silent for as long, before it is cut. */
#define LINGER_NS        (5 * KVA_NS_PER_S)
#define LINGER_SILENT_NS (2 * KVA_NS_PER_S)

static void arm(struct kva_conn *conn, uint64_t ns)
{
    struct timeval tv = {.tv_sec = (time_t)(ns / KVA_NS_PER_S),
                         .tv_usec = (suseconds_t)(ns % KVA_NS_PER_S / 1000)};
    if (ns > 0)
        evtimer_add(&conn->timer, &tv);
    else
        evtimer_del(&conn->timer);
}

/* What is left of `limit_ns` since `since_ns`, at least a moment. */
static uint64_t remaining(uint64_t since_ns, uint64_t limit_ns)
{
    uint64_t spent = kva_time_ns() - since_ns;
    return spent < limit_ns ? limit_ns - spent : KVA_NS_PER_MS;
}

static size_t unsent(const struct kva_conn *conn)
{
    return evbuffer_get_length(bufferevent_get_output(conn->bev));
}

/* --- the end --------------------------------------------------------------------------------- */

static void conn_free(struct kva_conn *conn)
{
    kva_list_remove(&conn->link);
    event_del(&conn->timer);
    event_del(&conn->later);
    if (conn->bev)
        bufferevent_free(conn->bev);
    kva_http_parser_destroy(conn->parser);
    free(conn);
}

static void close_as(struct kva_conn *conn, bool stalled)
{
    struct kva_http *http = conn->http;
    if (conn->phase == CONN_DEAD)
        return;
    conn->phase = CONN_DEAD;
    conn->finishing = false;
    if (conn->exchange)
        kva_exchange_lost(conn->exchange, stalled);
    kva_conn_wait_over(conn);
    kva_accounts_release(http->addresses, conn->address);
    conn->address = NULL;
    bufferevent_disable(conn->bev, EV_READ | EV_WRITE);
    if (conn->admin)
        http->admin_count--;
    else
        http->counts.connections--;
    arm(conn, 0);
    event_active(&conn->later, EV_TIMEOUT, 0);
}

void kva_conn_close(struct kva_conn *conn)
{
    close_as(conn, false);
}

void kva_conn_destroy(struct kva_conn *conn)
{
    close_as(conn, false);
    conn_free(conn);
}

/* Tell the peer that nothing more comes. What it still sends is thrown away for a while: closing
 * now would reset the connection and could take the answer with it. */
static void linger(struct kva_conn *conn)
{
    evutil_socket_t fd = bufferevent_getfd(conn->bev);
    if (conn->tls)
        (void)SSL_shutdown(bufferevent_openssl_get_ssl(conn->bev));
    if (!kva_http_parser_begun(conn->parser) &&
        evbuffer_get_length(bufferevent_get_input(conn->bev)) == 0) {
        kva_conn_close(conn);
        return;
    }
    shutdown(fd, SHUT_WR);
    evbuffer_drain(bufferevent_get_input(conn->bev), SIZE_MAX);
    conn->phase = CONN_LINGERING;
    conn->linger_until_ns = kva_time_ns() + LINGER_NS;
    kva_conn_wait(conn);
    arm(conn, LINGER_SILENT_NS);
}

/* A connection without an answer yet is new: its client would take the end for a failure, where that
 * of a kept one only means that it is asked for anew. What the socket has is a request, too. */
void kva_conn_retire(struct kva_conn *conn)
{
    int ahead = 0;
    if (conn->http->draining && conn->phase == CONN_WAITING && conn->answered &&
        evbuffer_get_length(bufferevent_get_input(conn->bev)) == 0 &&
        ioctl(bufferevent_getfd(conn->bev), FIONREAD, &ahead) == 0 && ahead == 0)
        linger(conn);
}

/* --- one request after another --------------------------------------------------------------- */

static void start_serving(struct kva_conn *conn)
{
    conn->phase = CONN_SERVING;
    kva_conn_wait_over(conn);
    arm(conn, 0);
}

void kva_conn_refuse(struct kva_conn *conn, enum kva_status status, const struct kva_err *err)
{
    if (!conn->exchange)
        conn->exchange = kva_exchange_create(conn);
    if (!conn->exchange) {
        kva_conn_close(conn);
        return;
    }
    start_serving(conn);
    kva_exchange_close_after(conn->exchange);
    if (status == KVA_EBUSY || status == KVA_ERATE)
        kva_exchange_add_header(conn->exchange, "Retry-After", "1");
    if (status == KVA_EMETHOD)
        kva_exchange_add_header(conn->exchange, "Allow", "GET, HEAD, POST, OPTIONS");
    kva_exchange_reply_error(conn->exchange, status, err);
}

static void head_complete(struct kva_conn *conn)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const struct kva_http *http = conn->http;
    const struct kva_http_head *head = kva_http_parser_head(conn->parser);
    bool has_body = head->chunked || head->content_length > 0;
    struct kva_err err;
    size_t used;
    if (!has_body)
        (void)kva_http_parser_feed(conn->parser, NULL, 0, &used);
    kva_conn_wait_over(conn);
    conn->phase = CONN_BODY;
    conn->close_after = !head->keep_alive || conn->reserve;
    conn->exchange = kva_exchange_create(conn);
    if (!conn->exchange) {
        kva_conn_close(conn);
        return;
    }
    http->params.begin(http->params.opaque, conn->exchange);
    if (conn->phase != CONN_BODY)
        return;
    if (!has_body) {
        start_serving(conn);
        http->params.handle(http->params.opaque, conn->exchange);
        return;
    }
    enum kva_status status = kva_exchange_expect_body(conn->exchange, &err);
    if (status != KVA_OK) {
        kva_conn_refuse(conn, status, &err);
        return;
    }
    arm(conn, remaining(conn->begun_ns, http->params.request_timeout_ns));
    if (head->expects_continue && evbuffer_get_length(bufferevent_get_input(conn->bev)) == 0) {
        struct iovec part = {(void *)(uintptr_t)go_on, sizeof(go_on) - 1};
        if (!kva_conn_write(conn, &part, 1))
            kva_conn_close(conn);
    }
}

/* True: the next message may begin. */
static bool message_complete(struct kva_conn *conn)
{
    const struct kva_http *http = conn->http;
    if (conn->phase == CONN_DISCARDING) {
        conn->phase = CONN_WAITING;
        arm(conn, http->params.idle_timeout_ns);
        kva_conn_retire(conn);
        return true;
    }
    start_serving(conn);
    http->params.handle(http->params.opaque, conn->exchange);
    return false;
}

static void message_refused(struct kva_conn *conn)
{
    const struct kva_err *err = kva_http_parser_error(conn->parser);
    enum kva_status status = err->status;
    struct kva_err of_body;
    if (conn->phase == CONN_DISCARDING) {
        /* Its answer has left already. */
        conn->http->counts.malformed++;
        linger(conn);
        return;
    }
    if (conn->exchange && conn->exchange->body_status != KVA_OK) {
        status = kva_exchange_body_error(conn->exchange, &of_body);
        err = &of_body;
    } else {
        conn->http->counts.malformed++;
    }
    kva_conn_refuse(conn, status, err);
}

static void begin_head(struct kva_conn *conn)
{
    if (conn->phase != CONN_WAITING || !kva_http_parser_begun(conn->parser))
        return;
    conn->phase = CONN_HEAD;
    conn->begun_ns = kva_time_ns();
    arm(conn, conn->http->params.head_timeout_ns);
}

/* One piece of what has come; false: there is nothing to go on with. */
static bool parse_piece(struct kva_conn *conn)
{
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    struct evbuffer_iovec piece = {.iov_base = NULL};
    size_t used = 0;
    if (evbuffer_peek(input, -1, NULL, &piece, 1) < 1)
        piece.iov_len = 0;
    if (piece.iov_len == 0 && conn->phase != CONN_BODY)
        return false;
    enum kva_http_event event =
        kva_http_parser_feed(conn->parser, piece.iov_base, piece.iov_len, &used);
    evbuffer_drain(input, used);
    begin_head(conn);
    switch (event) {
    case KVA_HTTP_EVENT_MORE:
        return piece.iov_len > 0;
    case KVA_HTTP_EVENT_HEAD:
        head_complete(conn);
        return true;
    case KVA_HTTP_EVENT_END:
        return message_complete(conn);
    case KVA_HTTP_EVENT_REFUSED:
        message_refused(conn);
        return false;
    }
    return false;
}

static void parse_input(struct kva_conn *conn)
{
    if (conn->parsing)
        return;
    conn->parsing = true;
    while ((conn->phase == CONN_WAITING || conn->phase == CONN_HEAD || conn->phase == CONN_BODY ||
            conn->phase == CONN_DISCARDING) &&
           parse_piece(conn)) {
        /* The next piece. */
    }
    conn->parsing = false;
    size_t ahead = evbuffer_get_length(bufferevent_get_input(conn->bev));
    if (conn->phase == CONN_SERVING && !conn->finishing && ahead > AHEAD_BYTES_MAX)
        kva_conn_close(conn);
}

/* The answer has left. */
static void next_request(struct kva_conn *conn)
{
    conn->finishing = false;
    kva_exchange_finish(conn->exchange);
    if (conn->phase == CONN_DEAD)
        return;
    conn->answered = true;
    if (conn->close_after) {
        linger(conn);
        return;
    }
    bool more = kva_http_parser_begun(conn->parser);
    conn->phase = more ? CONN_DISCARDING : CONN_WAITING;
    kva_conn_wait(conn);
    arm(conn, more ? conn->http->params.head_timeout_ns : conn->http->params.idle_timeout_ns);
    parse_input(conn);
    kva_conn_retire(conn); /* its answer's head may have left before a drain began */
}

void kva_conn_replied(struct kva_conn *conn)
{
    if (conn->phase == CONN_DEAD)
        return;
    if (conn->phase != CONN_SERVING)
        start_serving(conn);
    conn->finishing = true;
    if (unsent(conn) == 0)
        event_active(&conn->later, EV_TIMEOUT, 0);
}

/* --- libevent's callbacks -------------------------------------------------------------------- */

static void on_later(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    struct kva_conn *conn = opaque;
    if (conn->phase == CONN_DEAD)
        conn_free(conn);
    else if (conn->finishing && unsent(conn) == 0)
        next_request(conn);
}

static void on_read(struct bufferevent *bev, void *opaque)
{
    struct kva_conn *conn = opaque;
    if (conn->phase == CONN_LINGERING) {
        evbuffer_drain(bufferevent_get_input(bev), SIZE_MAX);
        if (kva_time_ns() >= conn->linger_until_ns)
            kva_conn_close(conn);
        else
            arm(conn, LINGER_SILENT_NS);
        return;
    }
    parse_input(conn);
}

static void on_written(struct bufferevent *bev, void *opaque)
{
    (void)bev;
    struct kva_conn *conn = opaque;
    if (conn->finishing && unsent(conn) == 0)
        next_request(conn);
}

static void on_output(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *opaque)
{
    struct kva_conn *conn = opaque;
    if (info->n_deleted > 0 && conn->exchange)
        kva_exchange_drained(conn->exchange, evbuffer_get_length(buffer));
}

static void on_event(struct bufferevent *bev, short what, void *opaque)
{
    (void)bev;
    struct kva_conn *conn = opaque;
    if (what & BEV_EVENT_CONNECTED)
        return;
    /* A peer may end its side once it has asked for all that it wants to know; while it waits for
     * an answer it is taken for gone, as proxies do. Not by TLS: nothing is written there any more. */
    if ((what & BEV_EVENT_EOF) && conn->finishing && !conn->tls) {
        conn->close_after = true;
        return;
    }
    close_as(conn, (what & BEV_EVENT_TIMEOUT) != 0);
}

static void on_timer(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    struct kva_conn *conn = opaque;
    struct kva_err err;
    switch (conn->phase) {
    case CONN_HEAD:
    case CONN_BODY:
        kva_fail(&err, KVA_ETIMEOUT, "The request did not arrive in time.");
        kva_conn_refuse(conn, KVA_ETIMEOUT, &err);
        break;
    case CONN_WAITING:
    case CONN_DISCARDING:
    case CONN_LINGERING:
        kva_conn_close(conn);
        break;
    case CONN_SERVING:
    case CONN_DEAD:
        break;
    }
}

/* --- the beginning --------------------------------------------------------------------------- */

static bool put_body(void *opaque, const char *data, size_t length)
{
    struct kva_conn *conn = opaque;
    return !conn->exchange || kva_exchange_put_body(conn->exchange, data, length);
}

static struct bufferevent *make_bufferevent(struct kva_conn *conn, evutil_socket_t fd)
{
    struct event_base *base = conn->http->params.base;
    if (!conn->tls)
        return bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    SSL *ssl = SSL_new(conn->http->tls);
    struct bufferevent *bev = NULL;
    if (ssl)
        bev = bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                             BEV_OPT_CLOSE_ON_FREE);
    if (bev)
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    else
        SSL_free(ssl);
    return bev;
}

static bool make_parts(struct kva_conn *conn, evutil_socket_t fd, const struct sockaddr *address)
{
    struct kva_http *http = conn->http;
    struct kva_http_parser_params parser = {
        .head_bytes_max = http->params.header_bytes_max,
        .body_bytes_max = http->params.body_bytes_max,
        .body = put_body,
        .opaque = conn,
    };
    conn->parser = kva_http_parser_create(&parser);
    conn->address = kva_accounts_hold(http->addresses, kva_account_name_of_address(address));
    if (conn->parser && conn->address)
        conn->bev = make_bufferevent(conn, fd);
    if (conn->bev)
        return true;
    kva_http_parser_destroy(conn->parser);
    kva_accounts_release(http->addresses, conn->address);
    return false;
}

/* Whether one more connection may be had, making room if need be. */
static bool make_room(struct kva_conn *conn, const struct kva_account *address)
{
    struct kva_http *http = conn->http;
    uint32_t max = http->params.connections_max;
    if (conn->admin)
        return http->admin_count < KVA_HTTP_ADMIN_MAX;
    if (address->waiting >= http->params.waiting_per_address_max)
        (void)kva_http_evict(http, conn->address);
    if (http->counts.connections >= max)
        (void)kva_http_evict(http, NULL);
    conn->reserve = http->counts.connections >= max;
    return http->counts.connections < max + KVA_HTTP_RESERVE;
}

static void start(struct kva_conn *conn)
{
    struct kva_http *http = conn->http;
    struct timeval write_timeout = {
        .tv_sec = (time_t)(http->params.write_timeout_ns / KVA_NS_PER_S),
        .tv_usec = (suseconds_t)(http->params.write_timeout_ns % KVA_NS_PER_S / 1000)};
    evtimer_assign(&conn->timer, http->params.base, on_timer, conn);
    event_assign(&conn->later, http->params.base, -1, 0, on_later, conn);
    bufferevent_setcb(conn->bev, on_read, on_written, on_event, conn);
    bufferevent_setwatermark(conn->bev, EV_READ, 0, INPUT_BYTES_MAX);
    bufferevent_set_timeouts(conn->bev, NULL,
                             http->params.write_timeout_ns ? &write_timeout : NULL);
    evbuffer_add_cb(bufferevent_get_output(conn->bev), on_output, conn);
    kva_list_append(&http->conns, &conn->link);
    if (conn->admin)
        http->admin_count++;
    else
        http->counts.connections++;
    kva_conn_wait(conn);
    arm(conn, http->params.head_timeout_ns);
    bufferevent_enable(conn->bev, EV_READ | EV_WRITE);
}

void kva_conn_open(struct kva_http_listener *listener, evutil_socket_t fd,
                   const struct sockaddr *address)
{
    struct kva_http *http = listener->http;
    struct kva_conn *conn = calloc(1, sizeof(*conn));
    int one = 1;
    if (conn) {
        conn->http = http;
        conn->admin = listener->admin;
        conn->tls = http->tls && !listener->admin;
        kva_list_init(&conn->waiting);
        kva_list_init(&conn->of_address);
    }
    if (!conn || !make_parts(conn, fd, address)) {
        evutil_closesocket(fd);
        free(conn);
        return;
    }
    socklen_t length =
        address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (getnameinfo(address, length, conn->peer, sizeof(conn->peer), NULL, 0, NI_NUMERICHOST) != 0)
        conn->peer[0] = '\0';
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (!make_room(conn, conn->address)) {
        kva_accounts_release(http->addresses, conn->address);
        kva_http_parser_destroy(conn->parser);
        bufferevent_free(conn->bev);
        free(conn);
        return;
    }
    start(conn);
}

/* --- bytes to the peer ----------------------------------------------------------------------- */

/* Straight to the socket: nothing waits before it, and arming and disarming EPOLLOUT for every
 * token would cost more than the write. What the socket does not take goes the usual way, errors
 * too: the bufferevent meets them again. TLS knows the usual way only. */
bool kva_conn_write(struct kva_conn *conn, const struct iovec *parts, uint32_t count)
{
    size_t taken = 0;
    if (!conn->tls && unsent(conn) == 0) {
        ssize_t written = writev(bufferevent_getfd(conn->bev), parts, (int)count);
        taken = written > 0 ? (size_t)written : 0;
    }
    if (taken > 0 && conn->exchange)
        conn->exchange->progress_ns = kva_time_ns();
    for (uint32_t i = 0; i < count; i++) {
        size_t skip = kva_min_size(taken, parts[i].iov_len);
        taken -= skip;
        if (skip < parts[i].iov_len &&
            bufferevent_write(conn->bev, (char *)parts[i].iov_base + skip,
                              parts[i].iov_len - skip) != 0)
            return false;
    }
    return true;
}
