/* view.h - a cluster as one of its nodes sees it, in numbers: for metrics and reports.
 *
 * Thread rule: none; no state. */
#ifndef KVA_CLUSTER_VIEW_H
#define KVA_CLUSTER_VIEW_H

#include "cluster/gmanager.h"
#include "cluster/rmanager.h"

enum kva_cluster_state {
    KVA_CLUSTER_JOINING, /* etcd has not given it a number yet */
    KVA_CLUSTER_JOINED,
    KVA_CLUSTER_APART, /* etcd keeps no lease alive: no new members, no plans; loans go on */
    KVA_CLUSTER_LEFT,  /* its number is another's: it serves by itself, until it is started again */
    KVA_CLUSTER_STATE_COUNT,
};

struct kva_cluster_view {
    enum kva_cluster_state state;
    uint32_t node;    /* 0: none yet */
    uint32_t members; /* this one included */
    uint32_t linked;  /* of the others, those with whom there is a connection */
    uint32_t leader;  /* 0: none is known */
    bool leads;
    uint64_t page_bytes;
    uint64_t etcd_failures;
    uint64_t messages_in; /* between rManagers and gManagers */
    uint64_t messages_out;
    uint64_t messages_bad;     /* not read, not for this node, or of somebody else's name */
    uint64_t content_bytes_in; /* of pages, with messages */
    uint64_t content_bytes_out;
    struct kva_rmanager_stats loans;
    struct kva_gmanager_stats plans; /* of its own times as a leader */
    struct {
        uint64_t questions; /* layers of a creditor asked for, as a debtor */
        uint64_t rows;
        uint64_t bytes_out;
        uint64_t bytes_in;
        uint64_t wait_ns;
        uint64_t lost;    /* creditors given up, and loans not found */
        uint64_t answers; /* layers attended to for others, as a creditor */
        uint64_t answered_rows;
        uint64_t attend_ns;
        uint64_t refused;
    } remote;
    struct kva_cost_params cost; /* as measured; layers 0: not yet */
};

#endif
