/* cluster.h - what the options say of a cluster (cluster/node/node.h), for an instance that is in one.
 *
 * Thread rule: as node.h. */
#ifndef KVA_CLI_CLUSTER_H
#define KVA_CLI_CLUSTER_H

#include "cli/instance.h"
#include "cluster/view.h"
#include "scheduler/service.h"

struct kva_cli_cluster;

/* Before anything is loaded: whether the options go together. Fails: KVA_EINVAL (the option that is
 * missing), KVA_EUNSUPPORTED (this program was built without clusters). */
KVA_MUST_CHECK enum kva_status kva_cli_cluster_check(const struct kva_config *config,
                                                     struct kva_err *err);

/* With model and device, before the engine. Fails as kva_node_create. */
KVA_MUST_CHECK enum kva_status kva_cli_cluster_open(const struct kva_cli_instance *instance,
                                                    const struct kva_config *config,
                                                    struct kva_cli_cluster **ret,
                                                    struct kva_err *err);

/* After the service was stopped, before the engine goes. NULL is allowed, here and in what follows. */
void kva_cli_cluster_close(struct kva_cli_cluster *cluster);

/* For the engine; NULL: nothing can be lent. */
const struct kva_remote *kva_cli_cluster_remote(struct kva_cli_cluster *cluster);

/* With the engine, before the service. */
KVA_MUST_CHECK enum kva_status kva_cli_cluster_join(struct kva_cli_cluster *cluster,
                                                    const struct kva_cli_instance *instance,
                                                    const struct kva_config *config,
                                                    struct kva_err *err);

/* For the service's parameters; and the service itself, NULL before it is stopped. */
const struct kva_service_beside *kva_cli_cluster_beside(struct kva_cli_cluster *cluster);
void kva_cli_cluster_set_service(struct kva_cli_cluster *cluster, struct kva_service *service);

/* The cluster as it is now. `cluster` is a struct kva_cli_cluster. */
void kva_cli_cluster_view(void *cluster, struct kva_cluster_view *ret);

#endif
