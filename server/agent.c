/* agent.c - a line to whoever connects. */
#include "server/agent.h"

#include "server/http/listener.h"

#include <errno.h>
#include <event2/util.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BACKLOG 64

struct kva_agent {
    struct kva_agent_params params;
    struct kva_listener *listener;
    uint16_t port;
};

/* The line is shorter than any socket's buffer, so that it leaves at once or the peer is gone; what
 * HAProxy sends (agent-send) is not read. */
static void on_accept(void *opaque, evutil_socket_t fd, const struct sockaddr *address)
{
    struct kva_agent *agent = opaque;
    char line[32];
    (void)address;
    int weight = agent->params.weight(agent->params.opaque);
    int bytes = weight > 0 ? snprintf(line, sizeof(line), "ready up %d%%\n", weight)
                           : snprintf(line, sizeof(line), weight == 0 ? "drain\n" : "down\n");
    (void)!send(fd, line, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    evutil_closesocket(fd);
}

static bool make_room(void *opaque)
{
    const struct kva_agent *agent = opaque;
    return agent->params.make_room(agent->params.opaque);
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
        agent->listener =
            kva_listener_create(&(struct kva_listener_params){.base = p->base,
                                                              .address = at->ai_addr,
                                                              .address_length = at->ai_addrlen,
                                                              .backlog = BACKLOG,
                                                              .accept = on_accept,
                                                              .make_room = make_room,
                                                              .opaque = agent});
        error = errno;
    }
    freeaddrinfo(found);
    if (!agent->listener)
        return kva_fail_param(err, KVA_EIO, "agent-listen",
                              "agent-listen: cannot listen on %s port %u: %s", p->host, p->port,
                              strerror(error));
    agent->port = kva_listener_port(agent->listener);
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
    kva_listener_destroy(agent->listener);
    free(agent);
}
