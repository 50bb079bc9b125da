/* link.h - frames between the nodes of a cluster, on UCX: who may speak, and that what he says
 * arrives whole and in order, or that the connection is said to be broken.
 *
 * UCX brings active messages, RDMA where there is any, and failures of peers. This adds what it
 * leaves out: frames of any size in their order, bounds, and an exchange in which both sides show that
 * they know the cluster's secret before anything else is read:
 *
 *     who connects   HELLO  nonce c, MAC of (frame, no nonce)
 *     who listens    HELLO  nonce s, MAC of (frame, c)
 *     who connects   HELLO  nonce c, MAC of (frame, s)
 *
 * with HMAC-SHA-256 of the secret; so a HELLO that was overheard is of no use. What follows is
 * neither signed nor encrypted: the network between instances has to be private (SECURITY.md).
 *
 * A link listens, or connects, or both. There are at most two connections with a node, one that each
 * side has begun; what is sent goes by the own one if it is there. Frames on one connection keep
 * their order. Where one of the two breaks, frames may be lost: both are ended, and the node is said
 * to be down. It is too where it comes back in a newer life, or begins a connection that this side
 * still has, before the new one is said to be up.
 *
 * Links of one process share a transport (transport.h), and may have a thread each.
 *
 * Thread rule: one thread at a time, but for kva_link_wake. Callbacks are called by progress (and
 * by disconnect and destroy: none), and may send, connect and disconnect. */
#ifndef KVA_CLUSTER_LINK_LINK_H
#define KVA_CLUSTER_LINK_LINK_H

#include "base/err.h"

#include <stdbool.h>

struct kva_link;
struct kva_transport;

#define KVA_LINK_SECRET_MIN 16u /* bytes */

/* What came from a node. Memory is the link's, until the callback returns. */
struct kva_link_frame {
    uint32_t node; /* who said it: shown by HELLO */
    uint64_t life;
    uint32_t kind; /* the sender's */
    const void *header;
    size_t header_bytes;
    const void *data; /* aligned to 64 bytes */
    size_t data_bytes;
};

struct kva_link_params {
    struct kva_transport *transport; /* outlives the link */
    const char *listen; /* "ADDRESS:PORT", "[ADDRESS]:PORT", of the transport's interface; port 0:
                           any; NULL: only connects */
    const void *secret;
    size_t secret_bytes;
    size_t header_bytes_max; /* of frames that come; larger ones end their connection */
    size_t data_bytes_max;
    size_t unsent_bytes_max; /* to one node, before sending fails with KVA_EBUSY */
    size_t unread_bytes_max; /* of a connection, that other links' threads have taken in while this
                                one's was busy, before the connection is ended */
    uint32_t peers_max;      /* nodes; as many connections again may be in their HELLO */
    uint64_t hello_ns;       /* that a connection has to be established and to say HELLO */

    void *opaque;
    void (*received)(void *opaque, const struct kva_link_frame *frame);
    /* A connection with the node can be used (`why` NULL), or none is left (`why`: for a log). */
    void (*changed)(void *opaque, uint32_t node, uint64_t life, bool up, const char *why);
};

/* `params` and the secret are copied. Fails: KVA_EINVAL (a parameter, named), KVA_EBUSY (the address
 * is in use), KVA_ENOMEM, KVA_EIO (UCX's words). */
KVA_MUST_CHECK enum kva_status kva_link_create(const struct kva_link_params *params,
                                               struct kva_link **ret, struct kva_err *err);
/* Ends all connections; what was sent and has not left is lost. NULL is allowed. */
void kva_link_destroy(struct kva_link *link);

/* The port that it listens at; 0: none. */
uint16_t kva_link_port(const struct kva_link *link);

/* Who this is: before that nobody's HELLO is answered. Once. */
void kva_link_identify(struct kva_link *link, uint32_t node, uint64_t life);

/* Begin to connect with a node at `address` ("HOST:PORT", "[HOST]:PORT"; a name is looked up before
 * this returns); `changed` says how it ended. Nothing, if there is a connection with this life that
 * we began, or it is being made; one with another life is ended. `life` 0: any. Fails: KVA_EINVAL
 * (the address; before identify), KVA_ELIMIT (too many peers), KVA_ENOMEM, KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_link_connect(struct kva_link *link, uint32_t node, uint64_t life,
                                                const char *address, struct kva_err *err);

/* End all connections with a node, without a word of it here; the node is told that they broke. */
void kva_link_disconnect(struct kva_link *link, uint32_t node);

/* Whether something can be sent to the node. */
bool kva_link_is_up(const struct kva_link *link, uint32_t node);

/* The life with which a node is up; 0: it is not. */
uint64_t kva_link_life(const struct kva_link *link, uint32_t node);

/* Send a frame; header and data are copied. Fails: KVA_ENOTFOUND (no connection), KVA_EBUSY (too much
 * is unsent), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_link_send(struct kva_link *link, uint32_t node, uint32_t kind,
                                             const void *header, size_t header_bytes,
                                             const void *data, size_t data_bytes);

/* Do what can be done without waiting, but nothing that comes up meanwhile: each call ends, whatever
 * comes. Whether anything was done; if so, there may be more. */
bool kva_link_progress(struct kva_link *link, uint64_t now_ns);

/* A descriptor that becomes readable when there is something to do, after arm has returned true;
 * false: there is something already, or somebody has woken the link. The descriptor is the link's
 * and stays the same. Time that passes does not make it readable: progress is to be called now and
 * then while nothing happens, so that hello_ns ends. Between two calls a 32nd of it passes at most: who
 * stood still has first to hear what was said meanwhile. */
int kva_link_fd(const struct kva_link *link);
bool kva_link_arm(struct kva_link *link);

/* Make the descriptor readable. Any thread. */
void kva_link_wake(struct kva_link *link);

#endif
