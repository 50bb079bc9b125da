#include "tests/cmocka.h"

#include "tests/cluster/link/raw.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(ucs_status_t status)
{
    if (status != UCS_OK)
        fail_msg("%s", kva_ucx.status_string(status));
}

static void broke(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct raw *raw = arg;
    (void)ep;
    (void)status;
    raw->broken = true;
}

static ucs_status_t came(void *arg, const void *header, size_t header_bytes, void *data,
                         size_t size, const ucp_am_recv_param_t *param)
{
    struct raw *raw = arg;
    (void)header;
    (void)header_bytes;
    if (raw->count < RAW_KEPT && size <= sizeof(raw->kept[0]) &&
        !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(raw->kept[raw->count], data, size);
        raw->sizes[raw->count] = size;
    }
    raw->count++;
    return UCS_OK;
}

static void asked(ucp_conn_request_h request, void *arg)
{
    struct raw *raw = arg;
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLER |
                                                  UCP_EP_PARAM_FIELD_CONN_REQUEST,
                                    .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {broke, raw},
                                    .conn_request = request};
    assert_null(raw->ep);
    expect(kva_ucx.ep_create(raw->worker, &params, &raw->ep));
}

static void listen_anywhere(struct raw *raw)
{
    const struct sockaddr_in any = {.sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const ucp_listener_params_t params = {.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                                                        UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                          .sockaddr = {(const struct sockaddr *)&any, sizeof(any)},
                                          .conn_handler = {asked, raw}};
    ucp_listener_attr_t got = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    expect(kva_ucx.listener_create(raw->worker, &params, &raw->listener));
    expect(kva_ucx.listener_query(raw->listener, &got));
    snprintf(raw->address, sizeof(raw->address), "127.0.0.1:%u",
             ntohs(((const struct sockaddr_in *)&got.sockaddr)->sin_port));
}

void raw_open(struct raw *raw, bool listening)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_AM};
    const ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SINGLE};
    const ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                          UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                          UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                            .cb = came,
                                            .arg = raw};
    ucp_config_t *config;
    *raw = (struct raw){0};
    assert_int_equal(kva_ucx_load(NULL), KVA_OK);
    expect(kva_ucx.config_read(NULL, NULL, &config));
    expect(kva_ucx.config_modify(config, "NET_DEVICES", "lo"));
    expect(kva_ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &raw->context));
    kva_ucx.config_release(config);
    expect(kva_ucx.worker_create(raw->context, &worker, &raw->worker));
    expect(kva_ucx.worker_set_am_recv_handler(raw->worker, &handler));
    if (listening)
        listen_anywhere(raw);
}

void raw_hang_up(struct raw *raw)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    if (!raw->ep)
        return;
    void *closing = kva_ucx.ep_close_nbx(raw->ep, &param);
    while (UCS_PTR_IS_PTR(closing) && kva_ucx.request_check_status(closing) == UCS_INPROGRESS)
        kva_ucx.worker_progress(raw->worker);
    if (UCS_PTR_IS_PTR(closing))
        kva_ucx.request_free(closing);
    raw->ep = NULL;
}

void raw_close(struct raw *raw)
{
    raw_hang_up(raw);
    if (raw->listener)
        kva_ucx.listener_destroy(raw->listener);
    kva_ucx.worker_destroy(raw->worker);
    kva_ucx.cleanup(raw->context);
}

void raw_connect(struct raw *raw, const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)strtoul(strchr(address, ':') + 1, NULL, 10));
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {broke, raw},
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {(const struct sockaddr *)&to, sizeof(to)}};
    raw->broken = false;
    raw->count = 0;
    expect(kva_ucx.ep_create(raw->worker, &params, &raw->ep));
}

void raw_progress(struct raw *raw)
{
    kva_ucx.worker_progress(raw->worker);
}

/* --- sending ----------------------------------------------------------------------------------- */

struct said {
    unsigned char prefix[RAW_PREFIX_BYTES];
    unsigned char bytes[];
};

static void done(void *request, ucs_status_t status, void *arg)
{
    (void)status;
    kva_ucx.request_free(request);
    free(arg);
}

void raw_say_piece(struct raw *raw, size_t prefix_bytes, struct raw_prefix prefix,
                   const void *bytes, size_t size)
{
    struct said *said = malloc(sizeof(*said) + size);
    assert_non_null(said);
    memcpy(said->prefix, &prefix.sequence, 8); /* tests run where integers are little-endian */
    memcpy(said->prefix + 8, &prefix.type, 4);
    memcpy(said->prefix + 12, &prefix.kind, 4);
    memcpy(said->prefix + 16, &prefix.header_bytes, 4);
    memcpy(said->prefix + 20, &prefix.size, 8);
    memcpy(said->bytes, bytes, size);
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                       UCP_OP_ATTR_FIELD_USER_DATA |
                                                       UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_AM_SEND_FLAG_REPLY,
                                       .cb.send = done,
                                       .user_data = said};
    void *request =
        kva_ucx.am_send_nbx(raw->ep, 0, said->prefix, prefix_bytes, said->bytes, size, &param);
    if (!UCS_PTR_IS_PTR(request))
        free(said);
}

void raw_say(struct raw *raw, uint64_t sequence, uint32_t type, uint32_t header_bytes,
             const void *bytes, size_t size)
{
    const struct raw_prefix prefix = {
        .sequence = sequence, .type = type, .header_bytes = header_bytes, .size = size};
    raw_say_piece(raw, RAW_PREFIX_BYTES, prefix, bytes, size);
}
