/* listener.c - accepting, and resting where that fails. */
#include "server/http/listener.h"

#include "base/clock.h"

#include <errno.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <stdlib.h>

/* Until the next try: when room was made, and when there is none to be made. */
#define RETRY_SOON_NS  (1 * KVA_NS_PER_MS)
#define RETRY_LATER_NS (200 * KVA_NS_PER_MS)

struct kva_listener {
    struct kva_listener_params params; /* but for the address */
    struct evconnlistener *socket;
    struct event *retry;
};

static void on_retry(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    struct kva_listener *listener = opaque;
    evconnlistener_enable(listener->socket);
}

static void on_error(struct evconnlistener *socket, void *opaque)
{
    struct kva_listener *listener = opaque;
    bool room = listener->params.make_room(listener->params.opaque);
    struct timeval pause = {.tv_usec =
                                (suseconds_t)((room ? RETRY_SOON_NS : RETRY_LATER_NS) / 1000)};
    evconnlistener_disable(socket);
    evtimer_add(listener->retry, &pause);
}

static void on_accept(struct evconnlistener *socket, evutil_socket_t fd, struct sockaddr *address,
                      int length, void *opaque)
{
    (void)socket;
    (void)length;
    struct kva_listener *listener = opaque;
    listener->params.accept(listener->params.opaque, fd, address);
}

struct kva_listener *kva_listener_create(const struct kva_listener_params *params)
{
    unsigned flags = LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    if (params->ipv6_only && params->address->sa_family == AF_INET6)
        flags |= LEV_OPT_BIND_IPV6ONLY;
    struct kva_listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return NULL;
    listener->params = *params;
    listener->params.address = NULL;
    listener->retry = evtimer_new(params->base, on_retry, listener);
    if (!listener->retry)
        errno = ENOMEM;
    else
        listener->socket =
            evconnlistener_new_bind(params->base, on_accept, listener, flags, params->backlog,
                                    params->address, (int)params->address_length);
    if (!listener->socket) {
        int error = errno;
        kva_listener_destroy(listener);
        errno = error;
        return NULL;
    }
    evconnlistener_set_error_cb(listener->socket, on_error);
    return listener;
}

uint16_t kva_listener_port(const struct kva_listener *listener)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    if (getsockname(evconnlistener_get_fd(listener->socket), (struct sockaddr *)&address,
                    &length) != 0)
        return 0;
    return ntohs(address.ss_family == AF_INET6
                     ? ((struct sockaddr_in6 *)(void *)&address)->sin6_port
                     : ((struct sockaddr_in *)(void *)&address)->sin_port);
}

void kva_listener_destroy(struct kva_listener *listener)
{
    if (!listener)
        return;
    if (listener->socket)
        evconnlistener_free(listener->socket);
    if (listener->retry)
        event_free(listener->retry);
    free(listener);
}
