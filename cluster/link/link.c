/* link.c - see link.h and internal.h. */
#include "cluster/link/internal.h"

#include "base/clock.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

enum {
    ENDING_WAIT_MS = 2000,
    HELLO_PARTS = 32, /* of hello_ns: one at most passes between two calls of progress */
};

/* --- turns -------------------------------------------------------------------------------------- */

static void leave(const struct kva_link *link)
{
    kva_transport_leave(link->transport);
}

static void enter(const struct kva_link *link)
{
    kva_transport_enter(link->transport);
}

/* The same, of the link's own thread, which does not sleep then. */
static void enter_awake(struct kva_link *link)
{
    enter(link);
    link->asleep = false;
}

/* What the owner is told, while it is others' turn. */
static void tell(struct kva_link *link, uint32_t node, uint64_t life, const char *why)
{
    leave(link);
    link->params.changed(link->params.opaque, node, life, !why, why);
    enter_awake(link);
}

/* --- life --------------------------------------------------------------------------------------- */

static enum kva_status check_params(const struct kva_link_params *params, struct kva_err *err)
{
    if (params->secret_bytes < KVA_LINK_SECRET_MIN)
        return kva_fail_param(err, KVA_EINVAL, "secret",
                              "the cluster's secret has %zu bytes, at least %u are needed",
                              params->secret_bytes, KVA_LINK_SECRET_MIN);
    if (params->peers_max == 0 || params->peers_max > 4096)
        return kva_fail_param(err, KVA_EINVAL, "peers_max", "%u peers, not 1 to 4096",
                              params->peers_max);
    if (params->header_bytes_max > UINT32_MAX || params->data_bytes_max > UINT32_MAX)
        return kva_fail_param(err, KVA_EINVAL, "data_bytes_max",
                              "frames of %zu and %zu bytes, at most %u are possible",
                              params->header_bytes_max, params->data_bytes_max, UINT32_MAX);
    if (params->hello_ns == 0 || !params->transport || !params->received || !params->changed)
        return kva_fail_param(err, KVA_EINVAL, "hello_ns",
                              "no time for HELLO, no transport, or no callbacks");
    return KVA_OK;
}

static enum kva_status open(struct kva_link *link, struct kva_err *err)
{
    link->secret = malloc(link->params.secret_bytes);
    if (!link->secret)
        return kva_fail(err, KVA_ENOMEM, "no memory for a link");
    memcpy(link->secret, link->params.secret, link->params.secret_bytes);
    enum kva_status status = kva_watch_open(link, err);
    if (!status && link->params.listen)
        status = kva_listener_open(link, err);
    return status;
}

enum kva_status kva_link_create(const struct kva_link_params *params, struct kva_link **ret,
                                struct kva_err *err)
{
    enum kva_status status = check_params(params, err);
    if (status)
        return status;
    struct kva_link *link = calloc(1, sizeof(*link));
    if (!link)
        return kva_fail(err, KVA_ENOMEM, "no memory for a link");
    link->params = *params;
    link->transport = params->transport;
    link->now_ns = kva_time_ns();
    link->fd = link->wake_fd = -1;
    kva_list_init(&link->connections);
    kva_list_init(&link->ending);
    enter(link);
    kva_list_append(&link->transport->links, &link->siblings);
    leave(link);
    status = open(link, err);
    link->params.secret = link->secret;
    link->params.listen = NULL;
    if (status)
        kva_link_destroy(link);
    else
        *ret = link;
    return status;
}

static struct connection *first(const struct kva_link *link)
{
    return KVA_CONTAINER_OF(link->connections.next, struct connection, links);
}

/* What UCX does not let go of in time is the transport's: it still writes there. */
static void abandon(struct kva_link *link)
{
    for (struct kva_list *at = link->ending.next; at != &link->ending; at = at->next)
        KVA_CONTAINER_OF(at, struct connection, links)->link = NULL;
    kva_list_splice(&link->transport->orphans, &link->ending);
}

void kva_link_destroy(struct kva_link *link)
{
    if (!link)
        return;
    enter(link);
    while (!kva_list_empty(&link->connections))
        kva_connection_end(first(link));
    kva_listener_close(link);
    uint64_t until_ns = kva_time_ns() + ENDING_WAIT_MS * KVA_NS_PER_MS;
    while (!kva_list_empty(&link->ending) && kva_time_ns() < until_ns) {
        kva_transport_progress(link->transport, link);
        kva_connection_reap(&link->ending, false);
        leave(link);
        enter(link);
    }
    abandon(link);
    kva_watch_close(link);
    kva_list_remove(&link->siblings);
    leave(link);
    if (link->secret)
        OPENSSL_cleanse(link->secret, link->params.secret_bytes);
    free(link->secret);
    free(link);
}

uint16_t kva_link_port(const struct kva_link *link)
{
    return link->port;
}

void kva_link_identify(struct kva_link *link, uint32_t node, uint64_t life)
{
    enter_awake(link);
    link->node = node;
    link->life = life;
    leave(link);
}

/* --- nodes ------------------------------------------------------------------------------------- */

typedef bool (*chooser)(const struct connection *connection, uint32_t node);

static struct connection *find(const struct kva_link *link, uint32_t node, chooser choose)
{
    for (struct kva_list *at = link->connections.next; at != &link->connections; at = at->next) {
        struct connection *connection = KVA_CONTAINER_OF(at, struct connection, links);
        if (choose(connection, node))
            return connection;
    }
    return NULL;
}

static bool is_own(const struct connection *connection, uint32_t node)
{
    return connection->own && connection->node == node;
}

static bool is_up(const struct connection *connection, uint32_t node)
{
    return connection->told && connection->node == node;
}

static bool is_own_up(const struct connection *connection, uint32_t node)
{
    return connection->own && is_up(connection, node);
}

static bool is_theirs_up(const struct connection *connection, uint32_t node)
{
    return !connection->own && is_up(connection, node);
}

/* Whose node it knows: he counts as a peer. */
static bool is_known(const struct connection *connection, uint32_t node)
{
    return (connection->own || connection->told) && connection->node == node;
}

static uint32_t peers(const struct kva_link *link)
{
    uint32_t count = 0;
    for (struct kva_list *at = link->connections.next; at != &link->connections; at = at->next) {
        struct connection *connection = KVA_CONTAINER_OF(at, struct connection, links);
        count += is_known(connection, connection->node) &&
                 find(link, connection->node, is_known) == connection;
    }
    return count;
}

uint64_t kva_link_life(const struct kva_link *link, uint32_t node)
{
    enter(link);
    const struct connection *connection = find(link, node, is_up);
    uint64_t life = connection ? connection->life : 0;
    leave(link);
    return life;
}

bool kva_link_is_up(const struct kva_link *link, uint32_t node)
{
    enter(link);
    bool any = find(link, node, is_up);
    leave(link);
    return any;
}

/* All of a node's connections that were up, since on one of them frames may be lost; then who wants
 * to know is told. */
static void lose(struct kva_link *link, uint32_t node, uint64_t life, const char *why)
{
    char words[LINK_WHY_MAX];
    struct connection *connection;
    memcpy(words, why, sizeof(words));
    while ((connection = find(link, node, is_up)))
        kva_connection_end(connection);
    tell(link, node, life, words);
}

static void end_failed(struct connection *connection)
{
    struct kva_link *link = connection->link;
    struct connection gone = *connection;
    kva_connection_end(connection);
    if (gone.told)
        lose(link, gone.node, gone.life, gone.why);
    else if (gone.own && !find(link, gone.node, is_up))
        tell(link, gone.node, gone.life, gone.why);
}

/* Why the node's other connections cannot stay beside a new one; NULL: they can. */
static const char *displaces(const struct kva_link *link, const struct connection *connection,
                             const struct connection *other)
{
    static const char again[LINK_WHY_MAX] = "it has connected again",
                      anew[LINK_WHY_MAX] = "it has started again";
    if (!other)
        return NULL;
    if (other->life < connection->life)
        return anew;
    chooser same_side = connection->own ? is_own_up : is_theirs_up;
    return find(link, connection->node, same_side) ? again : NULL;
}

/* A connection that has come up, and others with that node which were. */
static void rise(struct connection *connection)
{
    struct kva_link *link = connection->link;
    uint32_t node = connection->node;
    struct connection *other = find(link, node, is_up);
    if (other && other->life > connection->life) {
        kva_connection_fail(connection, "it is of an older life than the node");
        return;
    }
    if (!find(link, node, is_known) && peers(link) >= link->params.peers_max) {
        kva_connection_fail(connection, "there are %u peers already", link->params.peers_max);
        return;
    }
    const char *why = displaces(link, connection, other);
    if (why)
        lose(link, node, other->life, why);
    if (connection->state != CONNECTION_UP)
        return; /* whoever was told has ended it */
    bool known = find(link, node, is_up);
    connection->told = true;
    if (!known)
        tell(link, node, connection->life, NULL);
}

/* A connection with a node that has none of this side's with this life. */
static enum kva_status call(struct kva_link *link, uint32_t node, uint64_t life,
                            const struct kva_link_address *to, struct kva_err *err)
{
    struct connection *own = find(link, node, is_own);
    if (!find(link, node, is_known) && peers(link) >= link->params.peers_max)
        return kva_fail(err, KVA_ELIMIT, "there are %u peers already", link->params.peers_max);
    if (own)
        kva_connection_end(own);
    struct connection *connection = kva_connection_create(link, CONNECTION_CALLS);
    if (!connection)
        return kva_fail(err, KVA_ENOMEM, "no memory for a connection");
    connection->own = true;
    connection->node = node;
    connection->life = life;
    enum kva_status status = kva_connection_call(connection, to, err);
    if (status)
        kva_connection_end(connection);
    return status;
}

enum kva_status kva_link_connect(struct kva_link *link, uint32_t node, uint64_t life,
                                 const char *address, struct kva_err *err)
{
    struct kva_link_address to;
    enter_awake(link);
    const struct connection *own = find(link, node, is_own);
    const bool is_there = own && (life == 0 || own->life == life) && !own->why[0];
    leave(link);
    if (is_there)
        return KVA_OK;
    if (node == 0 || link->node == 0 || node == link->node)
        return kva_fail(err, KVA_EINVAL, "node %u does not connect with node %u", link->node, node);
    enum kva_status status = kva_link_address_resolve(address, false, &to, err);
    if (status)
        return status;
    enter_awake(link);
    status = call(link, node, life, &to, err);
    leave(link);
    return status;
}

static bool is_of(const struct connection *connection, uint32_t node)
{
    return connection->node == node;
}

void kva_link_disconnect(struct kva_link *link, uint32_t node)
{
    struct connection *connection;
    enter_awake(link);
    while ((connection = find(link, node, is_of)))
        kva_connection_end(connection);
    leave(link);
}

enum kva_status kva_link_send(struct kva_link *link, uint32_t node, uint32_t kind,
                              const void *header, size_t header_bytes, const void *data,
                              size_t data_bytes)
{
    enum kva_status status = KVA_ENOTFOUND;
    enter_awake(link);
    struct connection *connection = find(link, node, is_own_up);
    if (!connection)
        connection = find(link, node, is_up);
    if (connection)
        status = kva_outgoing_send(connection, LINK_FRAME_DATA, kind, header, header_bytes, data,
                                   data_bytes);
    leave(link);
    return status;
}

/* --- progress ---------------------------------------------------------------------------------- */

static void look_after(struct connection *connection)
{
    struct kva_link *link = connection->link;
    if (connection->state == CONNECTION_ARRIVED)
        (void)kva_connection_accept(connection);
    if (connection->state != CONNECTION_UP && link->waited_ns >= connection->deadline_ns)
        kva_connection_fail(connection, "no HELLO from %s in time", connection->address);
    if (connection->state == CONNECTION_UP && !connection->told && !connection->why[0])
        rise(connection);
}

static bool needs_care(const struct connection *connection, uint32_t node KVA_UNUSED)
{
    return connection->why[0] || connection->state == CONNECTION_ARRIVED ||
           (connection->state == CONNECTION_UP && !connection->told) ||
           (connection->state != CONNECTION_UP &&
            connection->link->waited_ns >= connection->deadline_ns);
}

static bool has_frame(const struct connection *connection, uint32_t node KVA_UNUSED)
{
    return connection->told && kva_incoming_is_whole(connection);
}

static bool has_due_frame(const struct connection *connection, uint32_t node KVA_UNUSED)
{
    return connection->told && kva_incoming_is_due(connection);
}

static bool has_due_care(const struct connection *connection, uint32_t node KVA_UNUSED)
{
    return connection->needs_care;
}

/* What there is to do now. More may come at any time that is others' turn, and for ever: that is for
 * the next call, so that each of them ends. */
static void take_stock(struct kva_link *link)
{
    for (struct kva_list *at = link->connections.next; at != &link->connections; at = at->next) {
        struct connection *connection = KVA_CONTAINER_OF(at, struct connection, links);
        connection->received_then = connection->received;
        connection->needs_care = needs_care(connection, 0);
    }
}

static void hand_on(struct kva_link *link, struct connection *connection)
{
    struct incoming *frame = kva_incoming_take(connection);
    const size_t data_bytes = frame->size - frame->header_bytes;
    const struct kva_link_frame seen = {.node = connection->node,
                                        .life = connection->life,
                                        .kind = frame->kind,
                                        .header = frame->bytes + data_bytes,
                                        .header_bytes = frame->header_bytes,
                                        .data = frame->bytes,
                                        .data_bytes = data_bytes};
    leave(link);
    link->params.received(link->params.opaque, &seen);
    enter_awake(link);
    kva_incoming_free(link->transport, frame);
}

static void give_care(struct connection *connection)
{
    connection->needs_care = false;
    connection->why[0] ? end_failed(connection) : look_after(connection);
}

/* Whoever made no progress for long, since he was busy or his process or machine stood still, has not
 * heard what was said meanwhile, and may take more than a call for that: so little of the time for
 * HELLO is over by then. */
static void pass_time(struct kva_link *link, uint64_t now_ns)
{
    const uint64_t most_ns = link->params.hello_ns / HELLO_PARTS + 1;
    const uint64_t passed_ns = now_ns > link->now_ns ? now_ns - link->now_ns : 0;
    link->waited_ns += passed_ns < most_ns ? passed_ns : most_ns;
    link->now_ns = now_ns;
}

bool kva_link_progress(struct kva_link *link, uint64_t now_ns)
{
    struct connection *connection;
    enter_awake(link);
    pass_time(link, now_ns);
    bool any = kva_transport_progress(link->transport, link);
    take_stock(link);
    /* Frames first: what was whole before a connection failed is handed on. */
    for (;; any = true) {
        if ((connection = find(link, 0, has_due_frame)))
            hand_on(link, connection);
        else if ((connection = find(link, 0, has_due_care)))
            give_care(connection);
        else
            break;
    }
    kva_connection_reap(&link->ending, false);
    leave(link);
    return any;
}

int kva_link_fd(const struct kva_link *link)
{
    return link->fd;
}

bool kva_link_arm(struct kva_link *link)
{
    enter_awake(link);
    bool sleeps = !find(link, 0, has_frame) && !find(link, 0, needs_care) && kva_watch_sleep(link);
    leave(link);
    return sleeps;
}

void kva_link_wake(struct kva_link *link)
{
    kva_watch_wake(link);
}
