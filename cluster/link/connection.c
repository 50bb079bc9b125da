/* connection.c - see internal.h. */
#include "cluster/link/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line at most about strangers in so long. */
#define STRANGERS_NS (10 * KVA_NS_PER_S)

struct connection *kva_connection_create(struct kva_link *link, enum connection_state state)
{
    struct connection *connection = malloc(sizeof(*connection));
    if (!connection)
        return NULL;
    *connection = (struct connection){.link = link, .transport = link->transport, .state = state};
    connection->deadline_ns = link->waited_ns + link->params.hello_ns;
    snprintf(connection->address, sizeof(connection->address), "an unknown address");
    kva_list_init(&connection->unsent);
    kva_list_init(&connection->frames);
    kva_list_append(&link->connections, &connection->links);
    return connection;
}

void kva_connection_fail(struct connection *connection, const char *format, ...)
{
    va_list args;
    if (connection->why[0])
        return;
    va_start(args, format);
    vsnprintf(connection->why, sizeof(connection->why), format, args);
    va_end(args);
    if (connection->link)
        kva_watch_note(connection->link);
}

/* --- endpoints --------------------------------------------------------------------------------- */

static void broken(void *arg, ucp_ep_h ep KVA_UNUSED, ucs_status_t status)
{
    struct connection *connection = arg;
    if (connection->state == CONNECTION_CALLS && status == UCS_ERR_REJECTED)
        kva_connection_fail(connection, "it takes no connections now");
    else if (connection->state == CONNECTION_CALLS && status == UCS_ERR_CONNECTION_RESET)
        kva_connection_fail(connection, "it has ended the connection before it said HELLO: "
                                        "another secret, or not who is meant");
    else
        kva_connection_fail(connection, "%s", kva_ucx.status_string(status));
}

static ucp_ep_params_t endpoint(struct connection *connection)
{
    return (ucp_ep_params_t){.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                           UCP_EP_PARAM_FIELD_ERR_HANDLER,
                             .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                             .err_handler = {broken, connection}};
}

enum kva_status kva_connection_accept(struct connection *connection)
{
    ucp_ep_params_t params = endpoint(connection);
    params.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = connection->request;
    connection->request = NULL;
    ucs_status_t failed =
        kva_ucx.ep_create(connection->transport->worker, &params, &connection->ep);
    if (failed == UCS_OK) {
        connection->state = CONNECTION_LISTENS;
        return KVA_OK;
    }
    connection->ep = NULL;
    kva_connection_fail(connection, "%s", kva_ucx.status_string(failed));
    return KVA_EIO;
}

/* Say HELLO, for the `sequence`th time. */
static void say_hello(struct connection *connection, uint64_t sequence, const uint8_t *peer_nonce)
{
    const struct kva_link *link = connection->link;
    struct kva_message message = {.source = link->node,
                                  .source_life = link->life,
                                  .target = connection->node,
                                  .target_life = connection->life,
                                  .sequence = sequence};
    uint8_t bytes[KVA_HELLO_BYTES];
    memcpy(message.hello.nonce, connection->nonce, sizeof(connection->nonce));
    enum kva_status status =
        kva_hello_write((struct kva_hello_key){link->secret, link->params.secret_bytes}, &message,
                        peer_nonce, bytes);
    if (!status)
        status = kva_outgoing_send(connection, LINK_FRAME_HELLO, 0, NULL, 0, bytes, sizeof(bytes));
    if (status)
        kva_connection_fail(connection, "HELLO: %s", kva_status_info(status)->name);
}

enum kva_status kva_connection_call(struct connection *connection,
                                    const struct kva_link_address *address, struct kva_err *err)
{
    ucp_ep_params_t params = endpoint(connection);
    params.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = (ucs_sock_addr_t){(const struct sockaddr *)&address->socket, address->bytes};
    kva_link_address_write(&address->socket, connection->address);
    if (kva_hello_draw(connection->nonce) != KVA_OK)
        return kva_fail(err, KVA_EIO, "no random numbers");
    /* UCX 1.13 takes events of sockets that it has closed for those of a new one with the same
     * descriptor, and then ends the process: they are dealt with before there is a new one. */
    (void)kva_transport_progress(connection->transport, connection->link);
    ucs_status_t failed =
        kva_ucx.ep_create(connection->transport->worker, &params, &connection->ep);
    if (failed != UCS_OK) {
        connection->ep = NULL;
        kva_connection_fail(connection, "%s", kva_ucx.status_string(failed));
        return KVA_OK;
    }
    say_hello(connection, 1, NULL);
    return KVA_OK;
}

/* --- HELLO ------------------------------------------------------------------------------------- */

/* The first: who wants to connect says who he is. */
static void answer(struct connection *connection, const struct kva_message *hello)
{
    connection->node = hello->source;
    connection->life = hello->source_life;
    memcpy(connection->peer_nonce, hello->hello.nonce, sizeof(connection->peer_nonce));
    if (kva_hello_draw(connection->nonce) != KVA_OK) {
        kva_connection_fail(connection, "no random numbers");
        return;
    }
    connection->state = CONNECTION_ANSWERED;
    say_hello(connection, 1, connection->peer_nonce);
}

/* The last: it is he, now. */
static void believe(struct connection *connection, const struct kva_message *hello)
{
    if (memcmp(connection->peer_nonce, hello->hello.nonce, sizeof(connection->peer_nonce)) != 0 ||
        connection->node != hello->source || connection->life != hello->source_life) {
        kva_connection_fail(connection, "its second HELLO is not its first's");
        return;
    }
    connection->state = CONNECTION_UP;
}

/* The answer: it is who we meant. */
static void meet(struct connection *connection, const struct kva_message *hello)
{
    if (connection->node != hello->source ||
        (connection->life != 0 && connection->life != hello->source_life)) {
        kva_connection_fail(connection, "node %u, life %llu is there, not node %u, life %llu",
                            hello->source, (unsigned long long)hello->source_life, connection->node,
                            (unsigned long long)connection->life);
        return;
    }
    connection->life = hello->source_life;
    say_hello(connection, 2, hello->hello.nonce);
    if (!connection->why[0])
        connection->state = CONNECTION_UP;
}

/* Somebody who does not know the secret, or means another: told of, but not so often that he could
 * fill a log. */
static void tell(const struct connection *connection)
{
    struct kva_link *link = connection->link;
    if (link->stranger_ns != 0 && link->now_ns - link->stranger_ns < STRANGERS_NS)
        return;
    link->stranger_ns = link->now_ns;
    kva_log(KVA_LOG_WARN, "cluster: a connection from %s was refused: %s", connection->address,
            connection->why);
}

void kva_connection_hello(struct connection *connection, const void *bytes, size_t size)
{
    const struct kva_link *link = connection->link;
    const uint8_t *peer_nonce = connection->state == CONNECTION_LISTENS ? NULL : connection->nonce;
    struct kva_message hello;
    struct kva_err err;
    enum kva_status status =
        kva_hello_read((struct kva_hello_key){link->secret, link->params.secret_bytes}, bytes, size,
                       peer_nonce, &hello, &err);
    if (status)
        kva_connection_fail(connection, "%s", err.message);
    else if (hello.source == link->node)
        kva_connection_fail(connection, "it says that it is node %u, which is here", link->node);
    else if (hello.target != link->node ||
             (hello.target_life != 0 && hello.target_life != link->life))
        kva_connection_fail(connection, "it means node %u, life %llu; this is node %u, life %llu",
                            hello.target, (unsigned long long)hello.target_life, link->node,
                            (unsigned long long)link->life);
    else if (connection->state == CONNECTION_LISTENS)
        answer(connection, &hello);
    else if (connection->state == CONNECTION_ANSWERED)
        believe(connection, &hello);
    else
        meet(connection, &hello);
    if (connection->state == CONNECTION_UP)
        kva_watch_note(connection->link);
    if (connection->why[0] && !connection->own)
        tell(connection);
}

/* --- the end ----------------------------------------------------------------------------------- */

void kva_connection_end(struct connection *connection)
{
    struct kva_link *link = connection->link;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    kva_connection_fail(connection, "it was ended here");
    connection->state = CONNECTION_ENDING;
    kva_list_remove(&connection->links);
    kva_list_append(&link->ending, &connection->links);
    kva_incoming_drop(connection);
    if (connection->request)
        (void)kva_ucx.listener_reject(link->listener, connection->request);
    connection->request = NULL;
    if (connection->ep) {
        void *closing = kva_ucx.ep_close_nbx(connection->ep, &param);
        connection->closing = UCS_PTR_IS_PTR(closing) ? closing : NULL;
    }
    connection->ep = NULL;
}

static bool is_over(struct connection *connection)
{
    if (connection->closing &&
        kva_ucx.request_check_status(connection->closing) != UCS_INPROGRESS) {
        kva_ucx.request_free(connection->closing);
        connection->closing = NULL;
    }
    return !connection->closing && connection->operations == 0;
}

void kva_connection_reap(struct kva_list *ending, bool now)
{
    struct kva_list *next;
    for (struct kva_list *at = ending->next; at != ending; at = next) {
        struct connection *connection = KVA_CONTAINER_OF(at, struct connection, links);
        next = at->next;
        if (!now && !is_over(connection))
            continue;
        kva_list_remove(&connection->links);
        kva_outgoing_drop(connection);
        free(connection);
    }
}
