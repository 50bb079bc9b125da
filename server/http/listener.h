/* listener.h - a socket that listens, and what happens when the process runs out of descriptors.
 *
 * A connection that cannot be accepted stays readable: a loop that only tried again would spin. So
 * its owner is asked to make room, and the listener rests: a moment when room was made, longer when
 * there is none to be made.
 *
 * Thread rule: the event loop's thread. */
#ifndef KVA_SERVER_HTTP_LISTENER_H
#define KVA_SERVER_HTTP_LISTENER_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct kva_listener;

struct kva_listener_params {
    struct event_base *base;
    const struct sockaddr *address;
    socklen_t address_length;
    int backlog;
    bool ipv6_only; /* of an IPv6 address: IPv4 ones come to another listener */
    /* A connection; the descriptor is the callee's. */
    void (*accept)(void *opaque, evutil_socket_t fd, const struct sockaddr *address);
    /* Accepting has failed, errno says why. True: room was made for another try. */
    bool (*make_room)(void *opaque);
    void *opaque;
};

/* Listens. NULL: it cannot, errno says why. */
struct kva_listener *kva_listener_create(const struct kva_listener_params *params);
uint16_t kva_listener_port(const struct kva_listener *listener);
void kva_listener_destroy(struct kva_listener *listener); /* NULL is allowed */

#endif
