/* cluster_none.c - a program that was built without clusters. */
#include "cli/cluster.h"

enum kva_status kva_cli_cluster_check(const struct kva_config *config, struct kva_err *err)
{
    if (!config->cluster_listen && config->cluster_etcd.count == 0 &&
        !config->cluster_secret_file && !config->cluster_advertise)
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "cluster-listen",
                          "this program was built without clusters, which need UCX (libucx-dev): "
                          "install it, and build anew with -Dcluster=enabled");
}

enum kva_status kva_cli_cluster_open(const struct kva_cli_instance *instance,
                                     const struct kva_config *config, struct kva_cli_cluster **ret,
                                     struct kva_err *err)
{
    (void)instance;
    (void)ret;
    return kva_cli_cluster_check(config, err);
}

void kva_cli_cluster_close(struct kva_cli_cluster *cluster)
{
    (void)cluster;
}

const struct kva_remote *kva_cli_cluster_remote(struct kva_cli_cluster *cluster)
{
    (void)cluster;
    return NULL;
}

enum kva_status kva_cli_cluster_join(struct kva_cli_cluster *cluster,
                                     const struct kva_cli_instance *instance,
                                     const struct kva_config *config, struct kva_err *err)
{
    (void)cluster;
    (void)instance;
    (void)config;
    (void)err;
    return KVA_OK;
}

const struct kva_service_beside *kva_cli_cluster_beside(struct kva_cli_cluster *cluster)
{
    (void)cluster;
    return NULL;
}

void kva_cli_cluster_set_service(struct kva_cli_cluster *cluster, struct kva_service *service)
{
    (void)cluster;
    (void)service;
}

void kva_cli_cluster_view(void *cluster, struct kva_cluster_view *ret)
{
    (void)cluster;
    *ret = (struct kva_cluster_view){0};
}
