/* cluster.c - a node of a cluster from the options. */
#include "cli/cluster.h"

#include "base/clock.h"
#include "cluster/node/node.h"

#include <stdlib.h>

struct kva_cli_cluster {
    struct kva_node *node;
    struct kva_device *guests; /* attends to what others have here */
};

static struct kva_node_params params_of(const struct kva_cli_instance *instance,
                                        const struct kva_config *config)
{
    enum kva_dtype kv_dtype = (enum kva_dtype)config->kv_dtype;
    return (struct kva_node_params){
        .name = config->cluster_name,
        .etcd = (const char *const *)config->cluster_etcd.items,
        .etcd_count = config->cluster_etcd.count,
        .etcd_user = config->cluster_etcd_user,
        .etcd_ca = config->cluster_etcd_ca,
        .listen = config->cluster_listen,
        .advertise = config->cluster_advertise,
        .secret_file = config->cluster_secret_file,
        .model = instance->model,
        .model_name = instance->name,
        .kv_dtype = kv_dtype == KVA_F32 ? kva_model_engine_kv_dtype(instance->model) : kv_dtype,
        .act = kva_device_get_info(instance->device)->act,
        .nodes_max = (uint32_t)config->cluster_nodes,
        .lend_percent = (uint32_t)config->cluster_lend,
        .copy_percent = (uint32_t)config->cluster_copy,
        .keeps_homes = config->cluster_keep_home,
        .answer_ns = config->cluster_answer_ms * KVA_NS_PER_MS,
        .lease_ttl_ns = config->cluster_lease_ms / 1000 * KVA_NS_PER_S,
        .loan_ttl_ns = config->cluster_loan_ms * KVA_NS_PER_MS,
        .recall_ns = config->cluster_recall_ms * KVA_NS_PER_MS,
        .patience_ns = config->cluster_patience_ms * KVA_NS_PER_MS,
        .plan = (enum kva_cluster_plan)config->cluster_plan,
        .round_ns = config->cluster_round_ms * KVA_NS_PER_MS,
    };
}

enum kva_status kva_cli_cluster_check(const struct kva_config *config, struct kva_err *err)
{
    const char *alone = config->cluster_etcd.count > 0 ? "cluster-etcd"
                        : config->cluster_secret_file  ? "cluster-secret-file"
                        : config->cluster_advertise    ? "cluster-advertise"
                                                       : NULL;
    if (!config->cluster_listen && alone)
        return kva_fail_param(err, KVA_EINVAL, "cluster-listen",
                              "--%s needs --cluster-listen ADDRESS:PORT: without it this instance "
                              "is in no cluster",
                              alone);
    if (!config->cluster_listen)
        return KVA_OK;
    if (config->cluster_etcd.count == 0)
        return kva_fail_param(err, KVA_EINVAL, "cluster-etcd",
                              "--cluster-listen needs --cluster-etcd URL: who is in the cluster");
    if (!config->cluster_secret_file)
        return kva_fail_param(err, KVA_EINVAL, "cluster-secret-file",
                              "--cluster-listen needs --cluster-secret-file: what all instances "
                              "know and nobody else");
    return KVA_OK;
}

enum kva_status kva_cli_cluster_open(const struct kva_cli_instance *instance,
                                     const struct kva_config *config, struct kva_cli_cluster **ret,
                                     struct kva_err *err)
{
    const struct kva_node_params params = params_of(instance, config);
    const uint64_t threads = config->cluster_threads ? config->cluster_threads : config->threads;
    struct kva_cli_cluster *cluster = calloc(1, sizeof(*cluster));
    if (!cluster)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a cluster");
    enum kva_status status =
        kva_cli_instance_open_device(instance, config, (uint32_t)threads, &cluster->guests, err);
    if (!status)
        status = kva_node_create(&params, &cluster->node, err);
    if (status)
        kva_cli_cluster_close(cluster);
    else
        *ret = cluster;
    return status;
}

void kva_cli_cluster_close(struct kva_cli_cluster *cluster)
{
    if (!cluster)
        return;
    kva_node_destroy(cluster->node);
    kva_device_close(cluster->guests);
    free(cluster);
}

const struct kva_remote *kva_cli_cluster_remote(struct kva_cli_cluster *cluster)
{
    return cluster ? kva_node_remote(cluster->node) : NULL;
}

enum kva_status kva_cli_cluster_join(struct kva_cli_cluster *cluster,
                                     const struct kva_cli_instance *instance,
                                     const struct kva_config *config, struct kva_err *err)
{
    return cluster ? kva_node_attach(cluster->node, instance->engine, cluster->guests,
                                     (uint32_t)config->sequences, err)
                   : KVA_OK;
}

const struct kva_service_beside *kva_cli_cluster_beside(struct kva_cli_cluster *cluster)
{
    return cluster ? kva_node_beside(cluster->node) : NULL;
}

void kva_cli_cluster_set_service(struct kva_cli_cluster *cluster, struct kva_service *service)
{
    if (cluster)
        kva_node_set_service(cluster->node, service);
}

void kva_cli_cluster_view(void *cluster, struct kva_cluster_view *ret)
{
    kva_node_get_view(((struct kva_cli_cluster *)cluster)->node, ret);
}
