/* ucx.h - UCX, loaded when the first link is made.
 *
 * It is not linked: as soon as it is loaded it patches libc's functions that map memory and takes the
 * signals of defects for its own, which is nothing for a process that is in no cluster. Its functions
 * are called by this table; the signals' handlers are put back, since that of SIGBUS is how a model's
 * file that is cut becomes an error.
 *
 * Thread rule: load: any thread; the table is constant afterwards. */
#ifndef KVA_CLUSTER_LINK_UCX_H
#define KVA_CLUSTER_LINK_UCX_H

#include "base/err.h"

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

/* Every function that is called, without its prefix; ucp_init is a macro around init_version. */
#define KVA_UCP_FUNCTIONS(X)                                                                       \
    X(am_data_release)                                                                             \
    X(am_send_nbx)                                                                                 \
    X(cleanup)                                                                                     \
    X(config_modify)                                                                               \
    X(config_read)                                                                                 \
    X(config_release)                                                                              \
    X(conn_request_query)                                                                          \
    X(ep_close_nbx)                                                                                \
    X(ep_create)                                                                                   \
    X(listener_create)                                                                             \
    X(listener_destroy)                                                                            \
    X(listener_query)                                                                              \
    X(listener_reject)                                                                             \
    X(request_check_status)                                                                        \
    X(request_free)                                                                                \
    X(worker_arm)                                                                                  \
    X(worker_create)                                                                               \
    X(worker_destroy)                                                                              \
    X(worker_get_efd)                                                                              \
    X(worker_progress)                                                                             \
    X(worker_set_am_recv_handler)                                                                  \
    X(init_version)

struct kva_ucx {
#define KVA_UCX_FIELD(name) __typeof__(&ucp_##name) name;
    KVA_UCP_FUNCTIONS(KVA_UCX_FIELD)
#undef KVA_UCX_FIELD
    __typeof__(&ucs_status_string) status_string;
    __typeof__(&ucs_log_push_handler) log_push_handler;
};

extern struct kva_ucx kva_ucx;

/* Once; later calls say the same. Fails: KVA_EUNSUPPORTED (it is not installed, or lacks a
 * function). */
KVA_MUST_CHECK enum kva_status kva_ucx_load(struct kva_err *err);

#endif
