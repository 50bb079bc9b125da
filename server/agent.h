/* agent.h - a weight for a load balancer: HAProxy's agent-check.
 *
 * Whoever connects gets one line and is closed: "ready N%", where N is the share of the device tier
 * that is free, at least 1; "drain" while the server drains; "down" while it loads or has failed.
 * Requests in front of many servers then go where there is memory.
 *
 * Thread rule: the event loop's thread. */
#ifndef KVA_SERVER_AGENT_H
#define KVA_SERVER_AGENT_H

#include "base/err.h"

#include <stdbool.h>

struct event_base;
struct kva_agent;

struct kva_agent_params {
    struct event_base *base;
    const char *host;
    uint16_t port; /* 0: any free one */
    /* Percent that are free; 0: drain; -1: down. */
    int (*weight)(void *opaque);
    bool (*make_room)(void *opaque); /* as a listener's (server/http/listener.h) */
    void *opaque;
};

/* Listens. Fails: KVA_EIO (address in use), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_agent_create(const struct kva_agent_params *params,
                                                struct kva_agent **ret, struct kva_err *err);
uint16_t kva_agent_port(const struct kva_agent *agent);
void kva_agent_destroy(struct kva_agent *agent); /* NULL is allowed */

#endif
