/* node.c - a node's life, and what it shares. */
#include "cluster/node/node_internal.h"

#include "base/file.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX (KVA_MEMBERS_NODES_MAX - 1)

/* --- parameters -------------------------------------------------------------------------------- */

static enum kva_status check(const struct kva_node_params *p, struct kva_err *err)
{
    const uint64_t second = 1000000000ull;
    if (p->etcd_count == 0 || p->etcd_count > KVA_NODE_ETCD_MAX)
        return kva_fail_param(err, KVA_EINVAL, "cluster-etcd",
                              "%u URLs of etcd, 1 to %u are possible", p->etcd_count,
                              KVA_NODE_ETCD_MAX);
    size_t length = strspn(p->name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    if (length == 0 || p->name[length] || length >= KVA_NODE_NAME_MAX)
        return kva_fail_param(err, KVA_EINVAL, "cluster-name",
                              "--cluster-name is '%s', it has to be 1 to %u of a-z, 0-9 and -",
                              p->name, KVA_NODE_NAME_MAX - 1);
    if (p->nodes_max == 0 || p->nodes_max > NODES_MAX)
        return kva_fail_param(err, KVA_EINVAL, "cluster-nodes",
                              "a cluster of %u instances, 1 to %u are possible", p->nodes_max,
                              NODES_MAX);
    if (p->lease_ttl_ns < 2 * second || p->loan_ttl_ns < second)
        return kva_fail_param(err, KVA_EINVAL, "cluster-lease",
                              "a lease of less than two seconds would end while a step runs");
    return KVA_OK;
}

/* One line, without its end. */
static enum kva_status read_secret(struct kva_node *node, struct kva_err *err)
{
    const char *path = node->params.secret_file;
    struct kva_buf text;
    kva_buf_init(&text, sizeof(node->secret));
    enum kva_status status = kva_file_read(AT_FDCWD, path, &text, err);
    size_t length = text.length;
    while (length > 0 && (text.data[length - 1] == '\n' || text.data[length - 1] == '\r'))
        length--;
    if (status == KVA_ETOOBIG)
        status = kva_fail_param(err, KVA_EINVAL, "cluster-secret-file",
                                "%s has more than %zu bytes", path, sizeof(node->secret));
    else if (!status && length < KVA_LINK_SECRET_MIN)
        status = kva_fail_param(err, KVA_EINVAL, "cluster-secret-file",
                                "%s has %zu bytes, a secret has at least %u: openssl rand -hex 32 "
                                "makes one",
                                path, length, KVA_LINK_SECRET_MIN);
    if (!status) {
        memcpy(node->secret, text.data, length);
        node->secret_bytes = length;
    }
    if (text.data)
        OPENSSL_cleanse(text.data, text.length);
    kva_buf_finish(&text);
    return status;
}

/* Instances lend to each other whose pages mean the same. */
static void name_model(struct kva_node *node)
{
    const struct kva_model_config *c = &node->params.model->config;
    snprintf(node->model, sizeof(node->model), "%.64s %ux%ux%u/%u %s %s", node->params.model_name,
             c->layer_count, c->kv_heads, c->head_dim, c->heads,
             kva_dtype_name(node->params.kv_dtype), kva_dtype_name(node->params.act));
}

/* --- parts ------------------------------------------------------------------------------------- */

static enum kva_status create_parts(struct kva_node *node, struct kva_err *err)
{
    const struct kva_node_params *p = &node->params;
    const struct kva_model_config *c = &p->model->config;
    const struct kva_debtor_params debtor = {
        .transport = node->transport,
        .secret = node->secret,
        .secret_bytes = node->secret_bytes,
        .heads = c->heads,
        .head_dim = c->head_dim,
        .act = p->act,
        .rows_max = node->asked_max,
        .peers_max = p->nodes_max,
        .answer_ns = p->answer_ns,
    };
    char listen[KVA_NODE_ADDRESS_MAX];
    const char *port = strrchr(p->listen, ':');
    snprintf(listen, sizeof(listen), "%.*s:0", port ? (int)(port - p->listen) : 0, p->listen);
    const struct kva_creditor_params creditor = {
        .transport = node->transport,
        .listen = listen,
        .secret = node->secret,
        .secret_bytes = node->secret_bytes,
        .heads = c->heads,
        .head_dim = c->head_dim,
        .layers = c->layer_count,
        .act = p->act,
        .rows_max = node->asked_max,
        .peers_max = p->nodes_max,
    };
    enum kva_status status = kva_node_listen(node, err);
    if (!status)
        status = kva_debtor_create(&debtor, &node->debtor, err);
    if (!status)
        status = kva_creditor_create(&creditor, &node->creditor, err);
    return status;
}

static enum kva_status create(struct kva_node *node, struct kva_err *err)
{
    const struct kva_node_params *p = &node->params;
    enum kva_status status = check(p, err);
    if (!status)
        status = read_secret(node, err);
    if (status)
        return status;
    snprintf(node->name, sizeof(node->name), "%s", p->name);
    name_model(node);
    node->asked_max = KVA_NODE_LOANS_MAX;
    node->peers = calloc(p->nodes_max, sizeof(*node->peers));
    node->waiting = calloc(KVA_MEMBERS_NODES_MAX, sizeof(*node->waiting));
    if (!node->peers || !node->waiting)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a cluster");
    status = kva_lenders_init(&node->lenders, p->nodes_max, err);
    if (!status)
        status = kva_transport_create(p->listen, p->nodes_max, &node->transport, err);
    return status ? status : create_parts(node, err);
}

enum kva_status kva_node_create(const struct kva_node_params *params, struct kva_node **ret,
                                struct kva_err *err)
{
    struct kva_node *node = calloc(1, sizeof(*node));
    if (!node)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a cluster");
    node->params = *params;
    for (uint32_t i = 0; i < params->etcd_count && i < KVA_NODE_ETCD_MAX; i++)
        node->etcd[i] = params->etcd[i];
    node->params.etcd = node->etcd;
    node->page_bytes = KVA_PAGE_TOKENS * kva_model_kv_bytes_per_token(&params->model->config);
    node->unacked_pages = kva_node_unacked_pages(node->page_bytes);
    node->queue_bytes = kva_node_queue_bytes(node->page_bytes);
    kva_mailbox_init(&node->to_engine, node->queue_bytes);
    kva_mailbox_init(&node->to_cluster, node->queue_bytes);
    pthread_mutex_init(&node->view_lock, NULL);
    pthread_mutex_init(&node->service_lock, NULL);
    node->beside = (struct kva_service_beside){
        .opaque = node,
        .between_steps = kva_node_between_steps,
        .leave = kva_node_leave,
        .end = kva_node_end,
    };
    enum kva_status status = create(node, err);
    if (status) {
        kva_node_destroy(node);
        return status;
    }
    *ret = node;
    return KVA_OK;
}

void kva_node_destroy(struct kva_node *node)
{
    if (!node)
        return;
    kva_node_thread_stop(node);
    kva_creditor_destroy(node->creditor);
    kva_debtor_destroy(node->debtor);
    kva_transport_destroy(node->transport);
    kva_mailbox_finish(&node->to_engine);
    kva_mailbox_finish(&node->to_cluster);
    pthread_mutex_destroy(&node->view_lock);
    pthread_mutex_destroy(&node->service_lock);
    OPENSSL_cleanse(node->secret, sizeof(node->secret));
    kva_lenders_finish(&node->lenders);
    free(node->peers);
    free(node->waiting);
    free(node);
}

void kva_node_address(const char *host, uint16_t port, char ret[KVA_NODE_ADDRESS_MAX])
{
    bool v6 = strchr(host, ':') != NULL;
    snprintf(ret, KVA_NODE_ADDRESS_MAX, "%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

/* --- what others ask of it --------------------------------------------------------------------- */

const struct kva_remote *kva_node_remote(struct kva_node *node)
{
    return kva_debtor_remote(node->debtor);
}

enum kva_status kva_node_attach(struct kva_node *node, struct kva_engine *engine,
                                struct kva_device *guests, uint32_t running_max,
                                struct kva_err *err)
{
    node->engine = engine;
    node->guest_device = guests;
    node->running_max = running_max;
    if (kva_lending_page_bytes(engine) != node->page_bytes)
        return kva_fail(err, KVA_EINVAL, "a page has %zu bytes in the engine, %zu in the cluster",
                        kva_lending_page_bytes(engine), node->page_bytes);
    struct kva_engine_usage usage;
    engine->ops->usage(engine->self, &usage);
    node->lend_pages =
        (uint32_t)(usage.budget.device / node->page_bytes * node->params.lend_percent / 100);
    enum kva_status status = kva_node_measure(node, err);
    if (status)
        return status;
    node->view.page_bytes = node->page_bytes;
    node->view.cost = node->cost;
    return kva_node_thread_start(node, err);
}

const struct kva_service_beside *kva_node_beside(struct kva_node *node)
{
    return &node->beside;
}

void kva_node_set_service(struct kva_node *node, struct kva_service *service)
{
    pthread_mutex_lock(&node->service_lock);
    node->service = service;
    pthread_mutex_unlock(&node->service_lock);
}

void kva_node_get_view(struct kva_node *node, struct kva_cluster_view *ret)
{
    pthread_mutex_lock(&node->view_lock);
    *ret = node->view;
    pthread_mutex_unlock(&node->view_lock);
}
