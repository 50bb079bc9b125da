/* Listening, and how many connections there may be. */
#include "server/http/internal.h"

#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kva_http_update_accepting(struct kva_http *http)
{
    bool want = !http->stopped && http->conn_count < http->params.connections_max;
    if (want == http->accepting)
        return;
    http->accepting = want;
    for (uint32_t i = 0; i < http->listener_count; i++) {
        if (want)
            evconnlistener_enable(http->listeners[i]);
        else
            evconnlistener_disable(http->listeners[i]);
    }
}

static void on_retry(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    kva_http_update_accepting(opaque);
}

/* Out of descriptors or memory: a level-triggered listener would spin. Pause, then try again. */
static void on_accept_error(struct evconnlistener *listener, void *opaque)
{
    (void)listener;
    struct kva_http *http = opaque;
    struct timeval pause = {.tv_sec = 0, .tv_usec = 200000};
    kva_log(KVA_LOG_WARN, "accepting a connection failed: %s", strerror(errno));
    for (uint32_t i = 0; i < http->listener_count; i++)
        evconnlistener_disable(http->listeners[i]);
    http->accepting = false;
    evtimer_add(http->retry, &pause);
}

static void note_port(struct kva_http *http, struct evconnlistener *listener)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    char service[16];
    if (getsockname(evconnlistener_get_fd(listener), (struct sockaddr *)&address, &length) == 0 &&
        getnameinfo((struct sockaddr *)&address, length, NULL, 0, service, sizeof(service),
                    NI_NUMERICSERV) == 0)
        http->port = (uint16_t)strtoul(service, NULL, 10);
}

static bool listen_on(struct kva_http *http, const struct addrinfo *address)
{
    unsigned flags = LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    if (address->ai_family == AF_INET6)
        flags |= LEV_OPT_BIND_IPV6ONLY;
    struct evconnlistener *listener =
        evconnlistener_new_bind(http->params.base, NULL, NULL, flags, (int)http->params.backlog,
                                address->ai_addr, (int)address->ai_addrlen);
    if (!listener)
        return false;
    if (!evhttp_bind_listener(http->evhttp, listener)) {
        evconnlistener_free(listener);
        return false;
    }
    evconnlistener_set_error_cb(listener, on_accept_error);
    http->listeners[http->listener_count++] = listener;
    note_port(http, listener);
    return true;
}

/* Every address that the host has, at least one of which must work. */
static enum kva_status open_listeners(struct kva_http *http, struct kva_err *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    snprintf(service, sizeof(service), "%u", http->params.port);
    int code = getaddrinfo(http->params.host, service, &hints, &found);
    if (code != 0)
        return kva_fail(err, KVA_EINVAL, "Cannot listen on '%s': %s", http->params.host,
                        gai_strerror(code));
    int error = 0;
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        /* A free port is chosen once; a second address would get another one. */
        if (http->listener_count == KVA_HTTP_LISTENERS_MAX ||
            (http->params.port == 0 && http->listener_count > 0))
            break;
        if (!listen_on(http, at))
            error = errno;
    }
    freeaddrinfo(found);
    if (http->listener_count == 0)
        return kva_fail(err, KVA_EIO, "Cannot listen on %s port %u: %s", http->params.host,
                        http->params.port, strerror(error));
    return KVA_OK;
}

static void configure(struct kva_http *http)
{
    const struct kva_http_params *params = &http->params;
    evhttp_set_max_headers_size(http->evhttp, (ev_ssize_t)params->header_bytes_max);
    evhttp_set_max_body_size(http->evhttp, (ev_ssize_t)params->body_bytes_max);
    /* Methods are refused by route, with the list of those that it has. */
    evhttp_set_allowed_methods(http->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD |
                                                 EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                                                 EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE |
                                                 EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
    /* Read an over-long body to its end, so that the refusal is not lost to a reset. */
    evhttp_set_flags(http->evhttp, EVHTTP_SERVER_LINGERING_CLOSE);
    evhttp_set_default_content_type(http->evhttp, NULL);
    evhttp_set_bevcb(http->evhttp, kva_conn_open, http);
    evhttp_set_gencb(http->evhttp, kva_exchange_dispatch, http);
}

enum kva_status kva_http_create(const struct kva_http_params *params, struct kva_http **ret,
                                struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    struct kva_http *http = calloc(1, sizeof(*http));
    if (!http)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for the HTTP server.");
    http->params = *params;
    http->accepting = true;
    http->evhttp = evhttp_new(params->base);
    http->retry = evtimer_new(params->base, on_retry, http);
    if (!http->evhttp || !http->retry)
        status = kva_fail(err, KVA_ENOMEM, "Out of memory for the HTTP server.");
    if (status == KVA_OK && params->tls_cert_path)
        status = kva_tls_create(params->tls_cert_path, params->tls_key_path, &http->tls, err);
    if (status == KVA_OK) {
        configure(http);
        status = open_listeners(http, err);
    }
    if (status != KVA_OK) {
        kva_http_destroy(http);
        return status;
    }
    *ret = http;
    return KVA_OK;
}

void kva_http_destroy(struct kva_http *http)
{
    if (!http)
        return;
    http->destroying = true;
    http->stopped = true;
    if (http->evhttp)
        evhttp_free(http->evhttp);
    if (http->retry)
        event_free(http->retry);
    SSL_CTX_free(http->tls);
    free(http);
}

uint16_t kva_http_port(const struct kva_http *http)
{
    return http->port;
}

enum kva_status kva_http_reload_tls(struct kva_http *http, struct kva_err *err)
{
    SSL_CTX *fresh;
    if (!http->tls)
        return KVA_OK;
    enum kva_status status =
        kva_tls_create(http->params.tls_cert_path, http->params.tls_key_path, &fresh, err);
    if (status != KVA_OK)
        return status;
    /* Open connections hold a reference to the old one. */
    SSL_CTX_free(http->tls);
    http->tls = fresh;
    return KVA_OK;
}

void kva_http_stop_accepting(struct kva_http *http)
{
    http->stopped = true;
    kva_http_update_accepting(http);
}

uint32_t kva_http_connections(const struct kva_http *http)
{
    return http->conn_count;
}

uint32_t kva_http_exchanges(const struct kva_http *http)
{
    return http->exchange_count;
}

uint64_t kva_http_refused_by_parser(const struct kva_http *http)
{
    return http->refused_by_parser;
}
