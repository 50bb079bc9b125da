/* agent.c - a line to whoever connects. */
#include "server/agent.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BACKLOG 64

struct kva_agent {
    struct kva_agent_params params;
    struct evconnlistener *listener;
    uint16_t port;
};

/* The line is shorter than any socket's buffer, so that it leaves at once or the peer is gone; what
 * HAProxy sends (agent-send) is not read. */
static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int length, void *opaque)
{
    struct kva_agent *agent = opaque;
    char line[32];
    (void)listener;
    (void)address;
    (void)length;
    int weight = agent->params.weight(agent->params.opaque);
    int bytes = weight > 0 ? snprintf(line, sizeof(line), "ready up %d%%\n", weight)
                           : snprintf(line, sizeof(line), weight == 0 ? "drain\n" : "down\n");
    (void)!send(fd, line, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    evutil_closesocket(fd);
}

static uint16_t port_of(evutil_socket_t fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        return 0;
    return ntohs(address.ss_family == AF_INET6
                     ? ((struct sockaddr_in6 *)(void *)&address)->sin6_port
                     : ((struct sockaddr_in *)(void *)&address)->sin_port);
}

static enum kva_status open_listener(struct kva_agent *agent, struct kva_err *err)
{
    const struct kva_agent_params *p = &agent->params;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    snprintf(service, sizeof(service), "%u", p->port);
    int code = getaddrinfo(p->host, service, &hints, &found);
    if (code != 0)
        return kva_fail_param(err, KVA_EINVAL, "agent-listen",
                              "agent-listen: cannot listen on '%s': %s", p->host,
                              gai_strerror(code));
    int error = 0;
    for (const struct addrinfo *at = found; at && !agent->listener; at = at->ai_next) {
        agent->listener = evconnlistener_new_bind(p->base, on_accept, agent,
                                                  LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
                                                      LEV_OPT_REUSEABLE,
                                                  BACKLOG, at->ai_addr, (int)at->ai_addrlen);
        error = errno;
    }
    freeaddrinfo(found);
    if (!agent->listener)
        return kva_fail_param(err, KVA_EIO, "agent-listen",
                              "agent-listen: cannot listen on %s port %u: %s", p->host, p->port,
                              strerror(error));
    agent->port = port_of(evconnlistener_get_fd(agent->listener));
    return KVA_OK;
}

enum kva_status kva_agent_create(const struct kva_agent_params *params, struct kva_agent **ret,
                                 struct kva_err *err)
{
    struct kva_agent *agent = calloc(1, sizeof(*agent));
    if (!agent)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for a listener.");
    agent->params = *params;
    enum kva_status status = open_listener(agent, err);
    if (status)
        kva_agent_destroy(agent);
    else
        *ret = agent;
    return status;
}

uint16_t kva_agent_port(const struct kva_agent *agent)
{
    return agent->port;
}

void kva_agent_destroy(struct kva_agent *agent)
{
    if (!agent)
        return;
    if (agent->listener)
        evconnlistener_free(agent->listener);
    free(agent);
}
