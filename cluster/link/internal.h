/* internal.h - what a link is made of.
 *
 *     ucx.c          UCX's functions
 *     ucx_log.c      what UCX has to say
 *     transport.c    UCX's context and worker, and whose turn it is to use them
 *     watch.c        how threads sleep until there is something for their links
 *     listener.c     who wants to connect
 *     connection.c   the life of a connection, from the first HELLO to its last byte
 *     outgoing.c     frames that leave
 *     incoming.c     frames that come, in pieces: bounds, order, memory
 *     link.c         what callers see; nodes, and what becomes of their connections
 *
 * UCX calls back in the middle of its progress, on any link's thread. There a link only takes notes: a
 * frame, a failure, somebody who wants to connect. What follows from them, endings and the callbacks
 * of whoever owns the link among them, is done by its own thread, when UCX's progress has returned.
 *
 * Everything here is called by the thread whose turn it is (kva_transport_enter), but what says so.
 * Only a link's own thread ends its connections; so it may give its turn away and find them again.
 *
 * On the wire a frame is one active message, or several, one after the other, of LINK_PIECE_BYTES
 * each but for the last. UCX's header is the prefix below, little-endian and the same for all pieces;
 * its data are the frame's data and behind them the frame's header, so that data begin where memory
 * is aligned and a header can be of any size. A piece is small enough that UCX copies it and sends it
 * as it is: so pieces keep their order, and memory for a frame is there only after its size was seen. */
#ifndef KVA_CLUSTER_LINK_INTERNAL_H
#define KVA_CLUSTER_LINK_INTERNAL_H

#include "base/list.h"
#include "base/spares.h"
#include "cluster/link/address.h"
#include "cluster/link/hello.h"
#include "cluster/link/link.h"
#include "cluster/link/transport.h"
#include "cluster/link/ucx.h"

#include <pthread.h>

enum {
    LINK_MESSAGE = 0,            /* the one id of active messages that is in use */
    LINK_PREFIX_BYTES = 28,      /* sequence u64, type u32, kind u32, header_bytes u32, size u64 */
    LINK_PIECE_BYTES = 63 << 10, /* with UCX's headers at most a segment (transport.c) */
    LINK_FRAME_HELLO = 1,
    LINK_FRAME_DATA = 2,
    LINK_ALIGNMENT = 64,
    LINK_FRAME_COST = 256, /* bytes that a frame counts besides its content */
    LINK_WHY_MAX = 160,
};

enum connection_state {
    CONNECTION_ARRIVED,  /* somebody wants to connect; no endpoint yet */
    CONNECTION_LISTENS,  /* who wanted it is to say HELLO */
    CONNECTION_ANSWERED, /* and to show that our nonce has reached him */
    CONNECTION_CALLS,    /* we have said HELLO */
    CONNECTION_UP,
    CONNECTION_ENDING, /* UCX has not let go of it yet */
};

struct connection {
    struct kva_list links; /* of link->connections or link->ending, or transport->orphans */
    struct kva_link *link; /* NULL: it has gone before UCX let go of the connection */
    struct kva_transport *transport;
    enum connection_state state;
    bool own;  /* we have begun it */
    bool told; /* CONNECTION_UP, and its place among the node's others is decided */
    uint32_t node;
    uint64_t life;        /* 0: not known yet */
    uint64_t deadline_ns; /* of link->waited_ns */
    uint8_t nonce[KVA_MESSAGE_NONCE_BYTES], peer_nonce[KVA_MESSAGE_NONCE_BYTES];
    char address[KVA_LINK_ADDRESS_TEXT];
    char why[LINK_WHY_MAX]; /* it has to be ended; "": it has not */

    ucp_ep_h ep;
    ucp_conn_request_h request; /* CONNECTION_ARRIVED */
    void *closing;              /* UCX's request */
    uint32_t operations;        /* that UCX has not completed */

    struct kva_list unsent; /* struct outgoing, oldest first */
    uint64_t unsent_bytes;
    uint64_t sent; /* frames */

    struct kva_list frames; /* struct incoming, oldest first; the last may not be whole yet */
    uint64_t received;      /* frames that have begun to come */
    uint64_t unread_bytes;  /* of `frames` */

    /* When progress was called last: */
    uint64_t received_then;
    bool needs_care; /* and it has not been given since */
};

/* A frame that UCX still needs. */
struct outgoing {
    struct kva_list links;
    struct connection *connection;
    uint64_t cost;
    uint32_t uses;
    uint8_t prefix[LINK_PREFIX_BYTES];
    uint8_t bytes[]; /* data, then header */
};

struct incoming {
    struct kva_list links;
    uint64_t sequence;
    uint32_t type, kind;
    uint64_t size, header_bytes;
    uint64_t come; /* bytes */
    uint8_t *bytes;
    bool is_ucx; /* bytes are UCX's */
};

struct kva_transport {
    ucp_context_h context;
    ucp_worker_h worker;
    int fd; /* UCX's: readable when there is progress to be made, after worker_arm */

    pthread_mutex_t lock; /* of the two below; whose turn it is has all the rest */
    pthread_cond_t changed;
    uint64_t next, serving;

    struct kva_list links;    /* struct kva_link */
    struct kva_list orphans;  /* connections of links that are gone */
    struct kva_spares spares; /* memory of frames */
    struct kva_link *watcher; /* which descriptor shows `fd`; NULL: none does */
};

struct kva_link {
    struct kva_list siblings; /* of transport->links */
    struct kva_transport *transport;
    struct kva_link_params params;
    uint8_t *secret;
    uint32_t node;
    uint64_t life;
    uint64_t now_ns;    /* of its last progress */
    uint64_t waited_ns; /* that it has had connections' time for HELLO pass */

    ucp_listener_h listener;
    uint16_t port;

    int fd;      /* of epoll: `wake_fd`, and UCX's while this link watches it */
    int wake_fd; /* of an eventfd */
    bool asleep; /* its descriptor is waited for, as far as is known */
    bool noted;  /* UCX has called back since its last progress */

    struct kva_list connections;
    struct kva_list ending;
    uint64_t stranger_ns; /* when one was last logged */
};

/* --- transport.c ------------------------------------------------------------------------------ */

/* Wait for this thread's turn; end it. Not while it is this thread's. */
void kva_transport_enter(struct kva_transport *transport);
void kva_transport_leave(struct kva_transport *transport);

/* Some of UCX's progress, on a link's thread. Whether there was any. */
bool kva_transport_progress(struct kva_transport *transport, struct kva_link *self);

/* --- watch.c ---------------------------------------------------------------------------------- */

/* Descriptors of a link that is on transport->links. */
enum kva_status kva_watch_open(struct kva_link *link, struct kva_err *err);
void kva_watch_close(struct kva_link *link);

/* Something came for the link. */
void kva_watch_note(struct kva_link *link);

/* After progress of `self`: wake whoever something came for, and let the last of them watch. */
void kva_watch_tell(struct kva_transport *transport, struct kva_link *self);

/* The link's thread goes to sleep; false: there is something already. */
bool kva_watch_sleep(struct kva_link *link);

/* Make the link's descriptor readable. Any thread, whoever's turn it is. */
void kva_watch_wake(struct kva_link *link);

/* --- listener.c ------------------------------------------------------------------------------- */

/* Listen at params.listen. */
enum kva_status kva_listener_open(struct kva_link *link, struct kva_err *err);
void kva_listener_close(struct kva_link *link);

/* --- ucx_log.c -------------------------------------------------------------------------------- */

/* From now on UCX logs where this program does. Any thread, any number of times. */
void kva_link_take_ucx_log(void);

/* --- connection.c ----------------------------------------------------------------------------- */

/* One that somebody wants, or that we want. NULL: no memory. */
struct connection *kva_connection_create(struct kva_link *link, enum connection_state state);

/* Give it an endpoint; the first HELLO, if it is our own. */
enum kva_status kva_connection_accept(struct connection *connection);
enum kva_status kva_connection_call(struct connection *connection,
                                    const struct kva_link_address *address, struct kva_err *err);

/* It has to be ended, for the first reason that is given. */
void kva_connection_fail(struct connection *connection, const char *format, ...) KVA_PRINTF(2, 3);

/* A HELLO: it is answered, or believed (CONNECTION_UP), or the connection has failed. */
void kva_connection_hello(struct connection *connection, const void *bytes, size_t size);

/* Begin to let go of it: it is on link->ending from now on, and not to be used. */
void kva_connection_end(struct connection *connection);

/* Free those of a list of endings which UCX has let go of; `now`: all of them, since there is no
 * worker any more. */
void kva_connection_reap(struct kva_list *ending, bool now);

/* --- outgoing.c ------------------------------------------------------------------------------- */

/* Errors of kva_link_send. Where there is more than a piece, others have their turn in between. */
enum kva_status kva_outgoing_send(struct connection *connection, uint32_t type, uint32_t kind,
                                  const void *header, size_t header_bytes, const void *data,
                                  size_t data_bytes);
void kva_outgoing_drop(struct connection *connection);

/* --- incoming.c ------------------------------------------------------------------------------- */

/* UCX's handler of active messages; `arg` is the transport. */
ucs_status_t kva_incoming_note(void *arg, const void *prefix, size_t prefix_bytes, void *bytes,
                               size_t size, const ucp_am_recv_param_t *param);

/* Whether the oldest frame is whole; and had begun to come when progress was called. */
bool kva_incoming_is_whole(const struct connection *connection);
bool kva_incoming_is_due(const struct connection *connection);
/* The oldest, which is the caller's to free. */
struct incoming *kva_incoming_take(struct connection *connection);
void kva_incoming_free(struct kva_transport *transport, struct incoming *frame);
void kva_incoming_drop(struct connection *connection);

#endif
