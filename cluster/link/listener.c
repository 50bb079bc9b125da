/* listener.c - see internal.h. */
#include "cluster/link/internal.h"

/* Somebody wants to connect: he is looked at when UCX's progress has returned. */
static void arrived(ucp_conn_request_h request, void *arg)
{
    struct kva_link *link = arg;
    ucp_conn_request_attr_t asked = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    uint32_t strangers = 0;
    for (struct kva_list *at = link->connections.next; at != &link->connections; at = at->next) {
        const struct connection *other = KVA_CONTAINER_OF(at, struct connection, links);
        strangers += !other->own && other->state != CONNECTION_UP;
    }
    struct connection *connection = NULL;
    if (link->node != 0 && strangers < link->params.peers_max)
        connection = kva_connection_create(link, CONNECTION_ARRIVED);
    if (!connection) {
        (void)kva_ucx.listener_reject(link->listener, request);
        return;
    }
    kva_watch_note(link);
    connection->request = request;
    if (kva_ucx.conn_request_query(request, &asked) == UCS_OK)
        kva_link_address_write(&asked.client_address, connection->address);
}

enum kva_status kva_listener_open(struct kva_link *link, struct kva_err *err)
{
    struct kva_link_address address;
    enum kva_status status = kva_link_address_resolve(link->params.listen, true, &address, err);
    if (status)
        return status;
    const ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)&address.socket, address.bytes},
        .conn_handler = {arrived, link}};
    ucp_listener_attr_t got = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    kva_transport_enter(link->transport);
    ucs_status_t failed =
        kva_ucx.listener_create(link->transport->worker, &params, &link->listener);
    if (failed != UCS_OK)
        link->listener = NULL;
    if (failed == UCS_OK)
        failed = kva_ucx.listener_query(link->listener, &got);
    kva_transport_leave(link->transport);
    if (failed == UCS_OK) {
        link->port = kva_link_address_port(&got.sockaddr);
        return KVA_OK;
    }
    return kva_fail(err, failed == UCS_ERR_BUSY ? KVA_EBUSY : KVA_EIO, "listening at %s: %s",
                    link->params.listen,
                    failed == UCS_ERR_BUSY ? "the address is in use"
                                           : kva_ucx.status_string(failed));
}

void kva_listener_close(struct kva_link *link)
{
    if (link->listener)
        kva_ucx.listener_destroy(link->listener);
    link->listener = NULL;
}
