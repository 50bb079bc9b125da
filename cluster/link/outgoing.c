/* outgoing.c - see internal.h. A frame is copied once, and kept until UCX has no more use for any of
 * its pieces. Nobody waits longer for his turn than a piece takes. */
#include "cluster/link/internal.h"

#include <string.h>

static void write_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void write_prefix(uint8_t at[LINK_PREFIX_BYTES], uint64_t sequence, uint32_t type,
                         uint32_t kind, size_t header_bytes, uint64_t size)
{
    write_u32(at, (uint32_t)sequence);
    write_u32(at + 4, (uint32_t)(sequence >> 32));
    write_u32(at + 8, type);
    write_u32(at + 12, kind);
    write_u32(at + 16, (uint32_t)header_bytes);
    write_u32(at + 20, (uint32_t)size);
    write_u32(at + 24, (uint32_t)(size >> 32));
}

/* One use less: that of a piece, or of whoever cuts it into pieces. */
static void release(struct outgoing *frame)
{
    if (--frame->uses > 0)
        return;
    frame->connection->unsent_bytes -= frame->cost;
    kva_list_remove(&frame->links);
    kva_spares_give(&frame->connection->transport->spares, frame);
}

static void sent(void *request, ucs_status_t status, void *arg)
{
    struct outgoing *frame = arg;
    kva_ucx.request_free(request);
    frame->connection->operations--;
    if (status != UCS_OK)
        kva_connection_fail(frame->connection, "sending: %s", kva_ucx.status_string(status));
    release(frame);
}

/* Bytes of a frame to UCX. Whether it took them: not those of a connection that has failed, perhaps
 * while it was others' turn. */
static bool hand_over(struct outgoing *frame, size_t from, size_t size)
{
    struct connection *connection = frame->connection;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                       UCP_OP_ATTR_FIELD_USER_DATA |
                                                       UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
                                       .cb.send = sent,
                                       .user_data = frame};
    if (connection->why[0])
        return false;
    void *request = kva_ucx.am_send_nbx(connection->ep, LINK_MESSAGE, frame->prefix,
                                        sizeof(frame->prefix), frame->bytes + from, size, &param);
    if (UCS_PTR_IS_PTR(request)) {
        connection->operations++;
        frame->uses++;
    } else if (UCS_PTR_IS_ERR(request)) {
        kva_connection_fail(connection, "sending: %s",
                            kva_ucx.status_string(UCS_PTR_STATUS(request)));
    }
    return !UCS_PTR_IS_ERR(request);
}

static bool cut(struct outgoing *frame, size_t size)
{
    struct kva_transport *transport = frame->connection->transport;
    size_t from = 0, piece;
    for (;;) {
        piece = kva_min_size(size - from, LINK_PIECE_BYTES);
        if (!hand_over(frame, from, piece))
            return false;
        from += piece;
        if (from == size)
            return true;
        kva_transport_leave(transport);
        kva_transport_enter(transport);
    }
}

/* The content of a frame; that of a large one while it is others' turn. */
static void copy(struct outgoing *frame, const void *header, size_t header_bytes, const void *data,
                 size_t data_bytes)
{
    struct kva_transport *transport = frame->connection->transport;
    const bool is_large = header_bytes + data_bytes > LINK_PIECE_BYTES;
    if (is_large)
        kva_transport_leave(transport);
    if (data_bytes > 0)
        memcpy(frame->bytes, data, data_bytes);
    if (header_bytes > 0)
        memcpy(frame->bytes + data_bytes, header, header_bytes);
    if (is_large)
        kva_transport_enter(transport);
}

enum kva_status kva_outgoing_send(struct connection *connection, uint32_t type, uint32_t kind,
                                  const void *header, size_t header_bytes, const void *data,
                                  size_t data_bytes)
{
    size_t size = header_bytes + data_bytes;
    uint64_t cost = size + LINK_FRAME_COST;
    if (connection->why[0])
        return KVA_ENOTFOUND;
    if (connection->unsent_bytes > 0 &&
        connection->unsent_bytes + cost > connection->link->params.unsent_bytes_max)
        return KVA_EBUSY;
    struct outgoing *frame = kva_spares_take(&connection->transport->spares, sizeof(*frame) + size);
    if (!frame)
        return KVA_ENOMEM;
    *frame = (struct outgoing){.connection = connection, .cost = cost, .uses = 1};
    copy(frame, header, header_bytes, data, data_bytes);
    write_prefix(frame->prefix, ++connection->sent, type, kind, header_bytes, size);
    kva_list_append(&connection->unsent, &frame->links);
    connection->unsent_bytes += cost;
    bool taken = cut(frame, size);
    release(frame);
    return taken ? KVA_OK : KVA_ENOTFOUND;
}

void kva_outgoing_drop(struct connection *connection)
{
    while (!kva_list_empty(&connection->unsent)) {
        struct outgoing *first = KVA_CONTAINER_OF(connection->unsent.next, struct outgoing, links);
        kva_list_remove(&first->links);
        kva_spares_give(&connection->transport->spares, first);
    }
    connection->unsent_bytes = 0;
}
