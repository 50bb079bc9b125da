/* transport.c - see internal.h. */
#include "cluster/link/internal.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>

/* What is set besides what UCX finds out by itself.
 *
 * Nothing is sent from where it lies (ZCOPY_THRESH): when a peer dies in the middle of that, UCX's TCP
 * completes the operation twice, and its assertion ends the process (uct_tcp_ep_sendv; 1.13 and later).
 *
 * UCX's segments of 8 KiB cost a system call each. The sizes have to be the same on both sides, and
 * hold a piece of a frame. UCX before 1.17 knows them without "TCP_", later ones with it; what it does
 * not know it ignores. */
static const char *const settings[][2] = {
    {"KEEPALIVE_INTERVAL", "5s"}, /* when nothing is said, whether the other side is alive */
    {"ZCOPY_THRESH", "inf"},      {"RX_SEG_SIZE", "256k"},    {"TCP_RX_SEG_SIZE", "256k"},
    {"TX_SEG_SIZE", "64k"},       {"TCP_TX_SEG_SIZE", "64k"},
};

static enum kva_status set(ucp_config_t *config, const char *name, const char *value,
                           struct kva_err *err)
{
    ucs_status_t status = kva_ucx.config_modify(config, name, value);
    if (status == UCS_OK)
        return KVA_OK;
    return kva_fail(err, KVA_EIO, "UCX: %s = %s: %s", name, value, kva_ucx.status_string(status));
}

static enum kva_status configure(ucp_config_t *config, const char *interface, struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    for (size_t i = 0; i < KVA_COUNT_OF(settings) && !status; i++)
        status = set(config, settings[i][0], settings[i][1], err);
    if (!status && interface[0])
        status = set(config, "NET_DEVICES", interface, err);
    return status;
}

static enum kva_status open_context(struct kva_link *link, const char *interface,
                                    struct kva_err *err)
{
    const ucp_params_t params = {.field_mask =
                                     UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                 .estimated_num_eps = link->params.peers_max};
    ucp_config_t *config;
    ucs_status_t failed = kva_ucx.config_read(NULL, NULL, &config);
    if (failed != UCS_OK)
        return kva_fail(err, KVA_EIO, "UCX's configuration: %s", kva_ucx.status_string(failed));
    enum kva_status status = configure(config, interface, err);
    if (!status) {
        failed =
            kva_ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &link->context);
        if (failed != UCS_OK)
            status = kva_fail(err, failed == UCS_ERR_NO_MEMORY ? KVA_ENOMEM : KVA_EIO,
                              "UCX on %s: %s", interface[0] ? interface : "all network interfaces",
                              kva_ucx.status_string(failed));
    }
    kva_ucx.config_release(config);
    return status;
}

static enum kva_status open_worker(struct kva_link *link, struct kva_err *err)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE |
                                                      UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT,
                                        .thread_mode = UCS_THREAD_MODE_SINGLE,
                                        .am_alignment = LINK_ALIGNMENT};
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id = LINK_MESSAGE,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = kva_incoming_note,
        .arg = link};
    ucs_status_t failed = kva_ucx.worker_create(link->context, &params, &link->worker);
    if (failed != UCS_OK)
        link->worker = NULL;
    if (failed == UCS_OK)
        failed = kva_ucx.worker_set_am_recv_handler(link->worker, &handler);
    if (failed == UCS_OK)
        failed = kva_ucx.worker_get_efd(link->worker, &link->fd);
    if (failed == UCS_OK)
        return KVA_OK;
    return kva_fail(err, failed == UCS_ERR_NO_MEMORY ? KVA_ENOMEM : KVA_EIO, "UCX's worker: %s",
                    kva_ucx.status_string(failed));
}

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
    connection->request = request;
    if (kva_ucx.conn_request_query(request, &asked) == UCS_OK)
        kva_link_address_write(&asked.client_address, connection->address);
}

static enum kva_status listen_at(struct kva_link *link, const struct kva_link_address *address,
                                 struct kva_err *err)
{
    const ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)&address->socket, address->bytes},
        .conn_handler = {arrived, link}};
    ucp_listener_attr_t got = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs_status_t failed = kva_ucx.listener_create(link->worker, &params, &link->listener);
    if (failed != UCS_OK)
        link->listener = NULL;
    if (failed == UCS_OK)
        failed = kva_ucx.listener_query(link->listener, &got);
    if (failed == UCS_OK) {
        link->port = kva_link_address_port(&got.sockaddr);
        return KVA_OK;
    }
    return kva_fail(err, failed == UCS_ERR_BUSY ? KVA_EBUSY : KVA_EIO, "listening at %s: %s",
                    link->params.listen,
                    failed == UCS_ERR_BUSY ? "the address is in use"
                                           : kva_ucx.status_string(failed));
}

enum kva_status kva_link_transport_open(struct kva_link *link, struct kva_err *err)
{
    const struct kva_link_params *params = &link->params;
    struct kva_link_address address;
    char interface[IF_NAMESIZE] = "";
    enum kva_status status = kva_ucx_load(err);
    if (status)
        return status;
    kva_link_take_ucx_log();
    if (params->listen)
        status = kva_link_address_resolve(params->listen, true, &address, err);
    if (!status && params->interface && !if_nametoindex(params->interface))
        status = kva_fail(err, KVA_EINVAL, "there is no network interface '%s'", params->interface);
    if (!status && params->interface)
        snprintf(interface, sizeof(interface), "%s", params->interface);
    else if (!status && params->listen)
        status = kva_link_address_interface(&address, interface, sizeof(interface), err);
    if (!status)
        status = open_context(link, interface, err);
    if (!status)
        status = open_worker(link, err);
    if (!status && params->listen)
        status = listen_at(link, &address, err);
    return status;
}

void kva_link_transport_close(struct kva_link *link)
{
    if (link->worker)
        kva_ucx.worker_destroy(link->worker);
    if (link->context)
        kva_ucx.cleanup(link->context);
    link->worker = NULL;
    link->context = NULL;
}
