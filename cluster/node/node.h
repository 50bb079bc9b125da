/* node.h - a process of a cluster: the instance with its rManager on the engine's thread, and a thread
 * of its own for all that waits for others.
 *
 *     engine's thread    cluster/instance (loans), cluster/remote/debtor (queries, answers)
 *     cluster's thread   cluster/link (messages), cluster/members (etcd), a gManager while it leads
 *     creditor's thread  cluster/remote/creditor (attention for others)
 *
 * Between the first two there are two queues (mailbox.h), and nothing else: neither waits for the
 * other. Until etcd has given the process a number it serves as if there were no cluster, and again
 * when it has lost it.
 *
 * Life: create (listens) -> the engine is made with kva_node_remote -> attach (joins) -> the
 * service is started with kva_node_beside -> it drains, and what others have here goes home -> it is
 * stopped -> destroy, before the engine.
 *
 * Thread rule: create, attach and destroy: one thread, no service running; get_view: any. */
#ifndef KVA_CLUSTER_NODE_NODE_H
#define KVA_CLUSTER_NODE_NODE_H

#include "cluster/view.h"
#include "engine/kv/remote.h"
#include "engine/model_engine.h"
#include "scheduler/service.h"

struct kva_node;

#define KVA_NODE_ETCD_MAX 16u

/* When a leader has memory lent. */
enum kva_cluster_plan {
    KVA_CLUSTER_PLAN_GAIN,    /* when it is waited for and the model of cost says that all gain */
    KVA_CLUSTER_PLAN_WAITING, /* whenever it is waited for: kva_cost_disregard */
};

struct kva_node_params {
    /* --- where --- */
    const char *name;        /* of the cluster */
    const char *const *etcd; /* URLs */
    uint32_t etcd_count;     /* at most KVA_NODE_ETCD_MAX */
    const char *etcd_user;   /* or NULL */
    const char *etcd_ca;     /* or NULL */
    const char *listen;      /* "ADDRESS:PORT"; creditors' queries come to any port there */
    const char *advertise;   /* host that others reach it by; NULL: the address of `listen` */
    const char *secret_file; /* what all instances know: one line */
    /* --- what --- */
    const struct kva_model *model; /* shape, and the name by which instances find their like */
    const char *model_name;
    enum kva_dtype kv_dtype;
    enum kva_dtype act; /* of the device's queries */
    /* --- bounds --- */
    uint32_t nodes_max;
    uint32_t lend_percent;      /* of device memory that others may have here */
    uint32_t copy_percent;      /* of a step of one row that copying pages may take */
    bool keeps_homes;           /* instance.h */
    uint64_t answer_ns;         /* that a creditor has to answer a layer */
    uint64_t lease_ttl_ns;      /* of membership */
    uint64_t loan_ttl_ns;       /* of loans that this node orders as a leader */
    uint64_t recall_ns;         /* that debtors have to bring pages home */
    uint64_t patience_ns;       /* instance.h */
    enum kva_cluster_plan plan; /* when it has memory lent, as a leader */
    uint64_t round_ns;          /* between a leader's plans */
};

/* Strings are borrowed until destroy. Fails: KVA_EINVAL (a parameter, by its option's name), KVA_EIO (address in use, secret unreadable),
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_node_create(const struct kva_node_params *params,
                                               struct kva_node **ret, struct kva_err *err);
/* Leaves the cluster. NULL is allowed. */
void kva_node_destroy(struct kva_node *node);

/* What the engine is to be made with. */
const struct kva_remote *kva_node_remote(struct kva_node *node);

/* The engine whose memory is lent and borrowed, without sequences yet; a device of the same kind that
 * attends to what others have here; what the scheduler runs at most. Both outlive the node. Measures
 * first what plans are made by (cost.h), in a few seconds: linear layers by rows, attention by tokens.
 * Then it joins. Fails: KVA_ENOMEM, KVA_EDEVICE, KVA_EINVAL (the engine's pages are not those of the
 * parameters). */
KVA_MUST_CHECK enum kva_status kva_node_attach(struct kva_node *node, struct kva_engine *engine,
                                               struct kva_device *guests, uint32_t running_max,
                                               struct kva_err *err);

/* For the service's parameters; and the service, once it runs, so that it is woken when something
 * comes. NULL: it is about to stop. */
const struct kva_service_beside *kva_node_beside(struct kva_node *node);
void kva_node_set_service(struct kva_node *node, struct kva_service *service);

void kva_node_get_view(struct kva_node *node, struct kva_cluster_view *ret);

#endif
