/* transport.h - what the links of a process share: UCX's context and its one worker.
 *
 * One worker, because UCX keeps an event that it could not handle at once by its descriptor alone: if
 * that is closed and its number is another worker's by then, an assertion ends the process
 * (ucs/async/async.c, `handler->async == async`; UCX 1.13 and later). Whoever can make connections
 * break, by noise at a port, could do that to a process with two workers.
 *
 * Links have threads of their own. Whoever makes progress makes it for all of them: what comes for
 * another link is noted there, and its thread is woken. Threads have their turn in the order in which
 * they ask. Where another waits none keeps it for longer than a piece of a frame or a round of UCX's
 * progress takes, and never while a callback of a link's owner runs.
 *
 * Of the links that sleep one watches UCX's descriptor, the last for which something came, so that
 * what comes often wakes the thread that it is for, and no other. While that thread is at work nobody
 * may watch, but whoever goes to sleep next; so what comes may wait until a link makes progress, which
 * each is to do now and then (link.h).
 *
 * Thread rule: create and destroy: one thread, without links. */
#ifndef KVA_CLUSTER_LINK_TRANSPORT_H
#define KVA_CLUSTER_LINK_TRANSPORT_H

#include "base/err.h"

struct kva_transport;

/* Connections use the network interface that has the host of `address` ("ADDRESS:PORT",
 * "[ADDRESS]:PORT"; the port is for nobody); NULL, or the address of all: UCX's choice. About
 * `peers_max` nodes will be talked to. Fails: KVA_EINVAL (the address), KVA_EUNSUPPORTED (no UCX),
 * KVA_ENOMEM, KVA_EIO (UCX's words). */
KVA_MUST_CHECK enum kva_status kva_transport_create(const char *address, uint32_t peers_max,
                                                    struct kva_transport **ret,
                                                    struct kva_err *err);
/* After its links. NULL is allowed. */
void kva_transport_destroy(struct kva_transport *transport);

#endif
