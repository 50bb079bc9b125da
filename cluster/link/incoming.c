/* incoming.c - see internal.h. */
#include "cluster/link/internal.h"

#include <stdlib.h>
#include <string.h>

static uint32_t read_u32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Whose endpoint it is, of all links. */
static struct connection *find(struct kva_transport *transport, ucp_ep_h ep)
{
    for (struct kva_list *i = transport->links.next; i != &transport->links; i = i->next) {
        struct kva_link *link = KVA_CONTAINER_OF(i, struct kva_link, siblings);
        for (struct kva_list *at = link->connections.next; at != &link->connections;
             at = at->next) {
            struct connection *connection = KVA_CONTAINER_OF(at, struct connection, links);
            if (connection->ep == ep)
                return connection;
        }
    }
    return NULL;
}

static uint64_t cost(const struct incoming *frame)
{
    return frame->size + LINK_FRAME_COST;
}

void kva_incoming_free(struct kva_transport *transport, struct incoming *frame)
{
    if (frame->is_ucx)
        kva_ucx.am_data_release(transport->worker, frame->bytes);
    else
        kva_spares_give(&transport->spares, frame->bytes);
    free(frame);
}

void kva_incoming_drop(struct connection *connection)
{
    while (!kva_list_empty(&connection->frames)) {
        struct incoming *frame = KVA_CONTAINER_OF(connection->frames.next, struct incoming, links);
        kva_list_remove(&frame->links);
        kva_incoming_free(connection->transport, frame);
    }
}

static const struct incoming *oldest(const struct connection *connection)
{
    return kva_list_empty(&connection->frames)
               ? NULL
               : KVA_CONTAINER_OF(connection->frames.next, struct incoming, links);
}

bool kva_incoming_is_whole(const struct connection *connection)
{
    const struct incoming *frame = oldest(connection);
    return frame && frame->come == frame->size;
}

bool kva_incoming_is_due(const struct connection *connection)
{
    return kva_incoming_is_whole(connection) &&
           oldest(connection)->sequence <= connection->received_then;
}

struct incoming *kva_incoming_take(struct connection *connection)
{
    struct incoming *frame = KVA_CONTAINER_OF(connection->frames.next, struct incoming, links);
    kva_list_remove(&frame->links);
    connection->unread_bytes -= cost(frame);
    return frame;
}

/* --- what UCX calls ---------------------------------------------------------------------------- */

/* What a prefix says of the frame that a piece belongs to. */
static struct incoming read_prefix(const uint8_t at[LINK_PREFIX_BYTES])
{
    return (struct incoming){.sequence = read_u32(at) | (uint64_t)read_u32(at + 4) << 32,
                             .type = read_u32(at + 8),
                             .kind = read_u32(at + 12),
                             .header_bytes = read_u32(at + 16),
                             .size = read_u32(at + 20) | (uint64_t)read_u32(at + 24) << 32};
}

/* Until both have shown who they are, nothing but HELLO is said; it is answered at once, so that
 * the frames which follow it find the connection up. */
static void greet(struct connection *connection, const struct incoming *frame, const void *bytes,
                  size_t size)
{
    if (frame->type != LINK_FRAME_HELLO || frame->size != KVA_HELLO_BYTES || frame->size != size ||
        frame->sequence != connection->received + 1) {
        kva_connection_fail(connection, "what it said first is no HELLO");
        return;
    }
    connection->received++;
    kva_connection_hello(connection, bytes, size);
}

/* Whether a frame may begin so; if not, the connection has failed. */
static bool check(struct connection *connection, const struct incoming *frame, size_t size)
{
    const struct kva_link_params *params = &connection->link->params;
    if (frame->type != LINK_FRAME_DATA)
        kva_connection_fail(connection, "a second HELLO");
    else if (frame->sequence != connection->received + 1)
        kva_connection_fail(connection, "frame %llu came where %llu should",
                            (unsigned long long)frame->sequence,
                            (unsigned long long)connection->received + 1);
    else if (frame->header_bytes > frame->size || frame->header_bytes > params->header_bytes_max)
        kva_connection_fail(connection, "a frame whose header has %llu bytes, at most %zu are read",
                            (unsigned long long)frame->header_bytes, params->header_bytes_max);
    else if (frame->size - frame->header_bytes > params->data_bytes_max)
        kva_connection_fail(connection, "a frame with %llu bytes of data, at most %zu are read",
                            (unsigned long long)(frame->size - frame->header_bytes),
                            params->data_bytes_max);
    else if (connection->unread_bytes > 0 &&
             connection->unread_bytes + cost(frame) > params->unread_bytes_max)
        kva_connection_fail(connection, "it sends more than is read: %llu bytes wait",
                            (unsigned long long)connection->unread_bytes);
    else if (size > frame->size || (size == 0 && frame->size > 0))
        kva_connection_fail(connection, "a piece of %zu bytes of a frame of %llu", size,
                            (unsigned long long)frame->size);
    else
        return true;
    return false;
}

/* The first piece of a frame. UCX's memory is kept (UCS_INPROGRESS) if it holds the whole frame, is
 * aligned and may be kept (`lasting`). */
static ucs_status_t begin(struct connection *connection, const struct incoming *frame, void *bytes,
                          size_t size, bool lasting)
{
    if (!check(connection, frame, size))
        return UCS_OK;
    struct incoming *held = malloc(sizeof(*held));
    bool is_ucx =
        lasting && size > 0 && size == frame->size && (uintptr_t)bytes % LINK_ALIGNMENT == 0;
    struct kva_spares *spares = &connection->transport->spares;
    uint8_t *memory = is_ucx ? bytes : kva_spares_take(spares, frame->size);
    if (!held || !memory) {
        kva_connection_fail(connection, "no memory for a frame of %llu bytes",
                            (unsigned long long)frame->size);
        free(held);
        if (!is_ucx)
            kva_spares_give(spares, memory);
        return UCS_OK;
    }
    *held = *frame;
    held->bytes = memory;
    held->is_ucx = is_ucx;
    held->come = size;
    if (!is_ucx && size > 0)
        memcpy(memory, bytes, size);
    kva_list_append(&connection->frames, &held->links);
    connection->received++;
    connection->unread_bytes += cost(held);
    return is_ucx ? UCS_INPROGRESS : UCS_OK;
}

static void go_on(struct connection *connection, struct incoming *held,
                  const struct incoming *frame, const void *bytes, size_t size)
{
    if (frame->sequence != held->sequence || frame->type != held->type ||
        frame->kind != held->kind || frame->header_bytes != held->header_bytes ||
        frame->size != held->size || size == 0 || size > held->size - held->come) {
        kva_connection_fail(connection, "a piece that does not belong to the frame before it");
        return;
    }
    memcpy(held->bytes + held->come, bytes, size);
    held->come += size;
}

ucs_status_t kva_incoming_note(void *arg, const void *prefix, size_t prefix_bytes, void *bytes,
                               size_t size, const ucp_am_recv_param_t *param)
{
    struct kva_transport *transport = arg;
    const bool announced = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    struct connection *connection = NULL;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)
        connection = find(transport, param->reply_ep);
    if (!connection || connection->why[0])
        return announced ? UCS_ERR_CANCELED : UCS_OK;
    if (announced || prefix_bytes != LINK_PREFIX_BYTES) {
        kva_connection_fail(connection, "what came is no frame of this version");
        return announced ? UCS_ERR_CANCELED : UCS_OK;
    }
    const struct incoming frame = read_prefix(prefix);
    struct incoming *last = KVA_CONTAINER_OF(connection->frames.prev, struct incoming, links);
    ucs_status_t status = UCS_OK;
    if (connection->state != CONNECTION_UP)
        greet(connection, &frame, bytes, size);
    else if (kva_list_empty(&connection->frames) || last->come == last->size)
        status =
            begin(connection, &frame, bytes, size, param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA);
    else
        go_on(connection, last, &frame, bytes, size);
    if (kva_incoming_is_whole(connection))
        kva_watch_note(connection->link);
    return status;
}
