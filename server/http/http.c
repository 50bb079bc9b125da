/* http.c - listening: addresses, room for those who come, certificates. */
#include "server/http/internal.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Connections that make room at once. */
#define EVICT_COUNT 8u

bool kva_http_make_room(struct kva_http *http)
{
    uint32_t evicted = 0;
    if (http->counts.accept_errors++ % 100 == 0)
        kva_log(KVA_LOG_WARN,
                "accepting a connection failed: %s; %u are open, and so it was %llu times",
                strerror(errno), http->counts.connections,
                (unsigned long long)http->counts.accept_errors);
    while (evicted < EVICT_COUNT && kva_http_evict(http, NULL))
        evicted++;
    return evicted > 0;
}

static bool make_room(void *opaque)
{
    const struct kva_http_listener *listener = opaque;
    return kva_http_make_room(listener->http);
}

static void on_accept(void *opaque, evutil_socket_t fd, const struct sockaddr *address)
{
    kva_conn_open(opaque, fd, address);
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >>
                24) == 127;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

static bool listen_on(struct kva_http *http, const struct addrinfo *address, bool admin)
{
    struct kva_http_listener *listener = &http->listeners[http->listener_count];
    const struct kva_listener_params params = {.base = http->params.base,
                                               .address = address->ai_addr,
                                               .address_length = address->ai_addrlen,
                                               .backlog = (int)http->params.backlog,
                                               .ipv6_only = true,
                                               .accept = on_accept,
                                               .make_room = make_room,
                                               .opaque = listener};
    *listener = (struct kva_http_listener){.http = http, .admin = admin};
    listener->listener = kva_listener_create(&params);
    if (!listener->listener)
        return false;
    *(admin ? &http->admin_port : &http->port) = kva_listener_port(listener->listener);
    http->is_public = http->is_public || (!admin && !is_loopback(address->ai_addr));
    http->listener_count++;
    return true;
}

/* Every address that the host has, at least one of which must work. */
static enum kva_status open_listeners(struct kva_http *http, const char *host, uint16_t port,
                                      bool admin, struct kva_err *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    snprintf(service, sizeof(service), "%u", port);
    int code = getaddrinfo(host, service, &hints, &found);
    if (code != 0)
        return kva_fail(err, KVA_EINVAL, "Cannot listen on '%s': %s", host, gai_strerror(code));
    uint32_t before = http->listener_count;
    int error = 0;
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        /* A free port is chosen once; a second address would get another one. */
        if (http->listener_count == KVA_HTTP_LISTENERS_MAX ||
            (port == 0 && http->listener_count > before))
            break;
        if (!listen_on(http, at, admin))
            error = errno;
    }
    freeaddrinfo(found);
    if (http->listener_count == before)
        return kva_fail(err, KVA_EIO, "Cannot listen on %s port %u: %s", host, port,
                        strerror(error));
    return KVA_OK;
}

static enum kva_status create_parts(struct kva_http *http, struct kva_err *err)
{
    const struct kva_http_params *params = &http->params;
    enum kva_status status = KVA_OK;
    http->addresses = kva_accounts_create();
    http->bodies = kva_accounts_create();
    if (!http->addresses || !http->bodies)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for the HTTP server.");
    if (params->tls_cert_path)
        status = kva_tls_create(params->tls_cert_path, params->tls_key_path, &http->tls, err);
    if (status == KVA_OK)
        status = open_listeners(http, params->host, params->port, false, err);
    if (status == KVA_OK && params->admin_host)
        status = open_listeners(http, params->admin_host, params->admin_port, true, err);
    return status;
}

enum kva_status kva_http_create(const struct kva_http_params *params, struct kva_http **ret,
                                struct kva_err *err)
{
    struct kva_http *http = calloc(1, sizeof(*http));
    if (!http)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for the HTTP server.");
    http->params = *params;
    kva_list_init(&http->conns);
    kva_list_init(&http->waiting);
    enum kva_status status = create_parts(http, err);
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
    for (uint32_t i = 0; i < http->listener_count; i++)
        kva_listener_destroy(http->listeners[i].listener);
    while (!kva_list_empty(&http->conns))
        kva_conn_destroy(KVA_CONTAINER_OF(http->conns.next, struct kva_conn, link));
    kva_accounts_destroy(http->addresses);
    kva_accounts_destroy(http->bodies);
    SSL_CTX_free(http->tls);
    free(http);
}

void kva_http_drain(struct kva_http *http)
{
    http->draining = true;
    for (struct kva_list *at = http->conns.next; at != &http->conns; at = at->next)
        kva_conn_retire(KVA_CONTAINER_OF(at, struct kva_conn, link));
}

uint16_t kva_http_port(const struct kva_http *http)
{
    return http->port;
}

uint16_t kva_http_admin_port(const struct kva_http *http)
{
    return http->admin_port;
}

bool kva_http_is_public(const struct kva_http *http)
{
    return http->is_public;
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

void kva_http_get_counts(const struct kva_http *http, struct kva_http_counts *ret)
{
    *ret = http->counts;
}
