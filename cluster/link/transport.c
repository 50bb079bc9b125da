/* transport.c - see transport.h and internal.h. */
#include "cluster/link/internal.h"

#include <net/if.h>
#include <stdlib.h>

enum { PROGRESS_MAX = 32 }; /* of UCX's, before what came is handed on */

/* Of frames that come and go. */
#define SPARE_BYTES ((size_t)32 << 20)

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

static enum kva_status open_context(struct kva_transport *transport, const char *interface,
                                    uint32_t peers_max, struct kva_err *err)
{
    const ucp_params_t params = {.field_mask =
                                     UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                 .estimated_num_eps = peers_max};
    ucp_config_t *config;
    ucs_status_t failed = kva_ucx.config_read(NULL, NULL, &config);
    if (failed != UCS_OK)
        return kva_fail(err, KVA_EIO, "UCX's configuration: %s", kva_ucx.status_string(failed));
    enum kva_status status = configure(config, interface, err);
    if (!status) {
        failed = kva_ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config,
                                      &transport->context);
        if (failed != UCS_OK)
            status = kva_fail(err, failed == UCS_ERR_NO_MEMORY ? KVA_ENOMEM : KVA_EIO,
                              "UCX on %s: %s", interface[0] ? interface : "all network interfaces",
                              kva_ucx.status_string(failed));
    }
    kva_ucx.config_release(config);
    return status;
}

static enum kva_status open_worker(struct kva_transport *transport, struct kva_err *err)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE |
                                                      UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
                                        .am_alignment = LINK_ALIGNMENT};
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id = LINK_MESSAGE,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = kva_incoming_note,
        .arg = transport};
    ucs_status_t failed = kva_ucx.worker_create(transport->context, &params, &transport->worker);
    if (failed != UCS_OK)
        transport->worker = NULL;
    if (failed == UCS_OK)
        failed = kva_ucx.worker_set_am_recv_handler(transport->worker, &handler);
    if (failed == UCS_OK)
        failed = kva_ucx.worker_get_efd(transport->worker, &transport->fd);
    if (failed == UCS_OK)
        return KVA_OK;
    return kva_fail(err, failed == UCS_ERR_NO_MEMORY ? KVA_ENOMEM : KVA_EIO, "UCX's worker: %s",
                    kva_ucx.status_string(failed));
}

/* --- turns -------------------------------------------------------------------------------------- */

void kva_transport_enter(struct kva_transport *transport)
{
    pthread_mutex_lock(&transport->lock);
    uint64_t turn = transport->next++;
    while (transport->serving != turn)
        pthread_cond_wait(&transport->changed, &transport->lock);
    pthread_mutex_unlock(&transport->lock);
}

void kva_transport_leave(struct kva_transport *transport)
{
    pthread_mutex_lock(&transport->lock);
    if (++transport->serving != transport->next)
        pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
}

static bool is_waited_for(struct kva_transport *transport)
{
    pthread_mutex_lock(&transport->lock);
    bool any = transport->next > transport->serving + 1;
    pthread_mutex_unlock(&transport->lock);
    return any;
}

bool kva_transport_progress(struct kva_transport *transport, struct kva_link *self)
{
    bool any = false;
    for (int i = 0; i < PROGRESS_MAX && kva_ucx.worker_progress(transport->worker) > 0; i++) {
        any = true;
        if (is_waited_for(transport))
            break;
    }
    kva_watch_tell(transport, self);
    kva_connection_reap(&transport->orphans, false);
    return any;
}

/* --- life --------------------------------------------------------------------------------------- */

static enum kva_status open(struct kva_transport *transport, const char *address,
                            uint32_t peers_max, struct kva_err *err)
{
    struct kva_link_address resolved;
    char interface[IF_NAMESIZE] = "";
    enum kva_status status = kva_ucx_load(err);
    if (status)
        return status;
    kva_link_take_ucx_log();
    if (address)
        status = kva_link_address_resolve(address, true, &resolved, err);
    if (!status && address)
        status = kva_link_address_interface(&resolved, interface, sizeof(interface), err);
    if (!status)
        status = open_context(transport, interface, peers_max, err);
    if (!status)
        status = open_worker(transport, err);
    return status;
}

enum kva_status kva_transport_create(const char *address, uint32_t peers_max,
                                     struct kva_transport **ret, struct kva_err *err)
{
    struct kva_transport *transport = calloc(1, sizeof(*transport));
    if (!transport)
        return kva_fail(err, KVA_ENOMEM, "no memory for links");
    kva_list_init(&transport->links);
    kva_list_init(&transport->orphans);
    kva_spares_init(&transport->spares, SPARE_BYTES);
    pthread_mutex_init(&transport->lock, NULL);
    pthread_cond_init(&transport->changed, NULL);
    enum kva_status status = open(transport, address, peers_max, err);
    if (status)
        kva_transport_destroy(transport);
    else
        *ret = transport;
    return status;
}

void kva_transport_destroy(struct kva_transport *transport)
{
    if (!transport)
        return;
    if (transport->worker)
        kva_ucx.worker_destroy(transport->worker);
    if (transport->context)
        kva_ucx.cleanup(transport->context);
    kva_connection_reap(&transport->orphans, true);
    kva_spares_finish(&transport->spares);
    pthread_cond_destroy(&transport->changed);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}
