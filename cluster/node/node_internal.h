/* node_internal.h - what the parts of a node share. Not for other modules.
 *
 * `to_engine` and `to_cluster` lie between the threads, `view` under its lock; the rest belongs to
 * one thread each, after attach. */
#ifndef KVA_CLUSTER_NODE_NODE_INTERNAL_H
#define KVA_CLUSTER_NODE_NODE_INTERNAL_H

#include "cluster/instance/instance.h"
#include "cluster/link/link.h"
#include "cluster/link/transport.h"
#include "cluster/members/members.h"
#include "cluster/node/lenders.h"
#include "cluster/node/mailbox.h"
#include "cluster/node/node.h"
#include "cluster/remote/creditor.h"
#include "cluster/remote/debtor.h"

#include <stdatomic.h>

/* A gManager speaks as a node of its own: the one after all members. */
#define KVA_NODE_MANAGER_FIRST KVA_MEMBERS_NODES_MAX

static inline uint32_t kva_node_manager_of(uint32_t node)
{
    return node + KVA_NODE_MANAGER_FIRST;
}

static inline uint32_t kva_node_process_of(uint32_t node)
{
    return node > KVA_NODE_MANAGER_FIRST ? node - KVA_NODE_MANAGER_FIRST : node;
}

#define KVA_NODE_NAME_MAX 64u

/* Pages of a loan that are on their way at once, where they are not too large. */
#define KVA_NODE_UNACKED_PAGES 8u
#define KVA_NODE_UNACKED_BYTES ((size_t)64 << 20)

static inline uint32_t kva_node_unacked_pages(size_t page_bytes)
{
    size_t pages = KVA_NODE_UNACKED_BYTES / page_bytes;
    return pages < 1                        ? 1
           : pages < KVA_NODE_UNACKED_PAGES ? (uint32_t)pages
                                            : KVA_NODE_UNACKED_PAGES;
}

/* That may wait on the way from thread to thread, and in a link: 256 MiB, and the pages of four loans
 * at least, however large they are. */
static inline size_t kva_node_queue_bytes(size_t page_bytes)
{
    const size_t loans = 4 * (kva_node_unacked_pages(page_bytes) * page_bytes + (64 << 10));
    const size_t usual = (size_t)256 << 20;
    return loans > usual ? loans : usual;
}

/* Loans of an instance in each role: at most so many, and no more than its engine's sequences may have.
 * A row that decodes is asked about once for each of its loans, so that no layer's queries are of more
 * rows than this, whoever asks. */
#define KVA_NODE_LOANS_MAX 64u

static inline uint32_t kva_node_loans(uint32_t sequences_max)
{
    return kva_min_u32(KVA_NODE_LOANS_MAX, kva_kv_loans_of(sequences_max));
}

/* Of a leader's plan: what a request lacks that is longer than its instance, all of it or nothing, and
 * moves of others beside it. */
#define KVA_NODE_MOVES_MAX 256u

/* "HOST:PORT". */
#define KVA_NODE_ADDRESS_MAX (KVA_MEMBERS_HOST_MAX + 16)
void kva_node_address(const char *host, uint16_t port, char ret[KVA_NODE_ADDRESS_MAX]);

/* Kinds of frames on the link. */
enum kva_node_frame {
    KVA_NODE_MESSAGE = 1, /* header: a message; data: content of pages */
    KVA_NODE_PROBE, /* header: struct kva_probe_mark, data: anything; sent back without data */
    KVA_NODE_PROBED,
};

/* How fast the link to a member is: frames that it sends back (probe.c), every other one with so many
 * bytes. */
#define KVA_PROBE_BYTES ((size_t)256 << 10)

struct kva_probe_mark {
    uint64_t sent_ns;
    uint64_t bytes;
};

struct kva_probe {
    double latency_s;   /* one way; 0: not known yet */
    double bytes_per_s; /* 0: not known yet */
    uint32_t asked;
    uint32_t answered;
    double least_s[2]; /* round trips, without and with data */
};

struct kva_lookup;

/* A member, as the cluster's thread knows it. */
struct kva_peer {
    struct kva_member member;
    bool up;
    bool known; /* its host was found, and the engine's thread was told of it */
    char host[KVA_MEMBERS_HOST_MAX]; /* known: as a number */
    struct kva_lookup *lookup;       /* of its host's name; NULL: none is under way */
    uint64_t look_ns;  /* not known: when to look its name up again; 0: it was not yet */
    uint64_t retry_ns; /* when to connect again; 0: connecting, or connected */
    struct kva_probe probe;
};

struct kva_node {
    struct kva_node_params params;
    const char *etcd[KVA_NODE_ETCD_MAX];
    char model[KVA_MEMBERS_MODEL_MAX];
    char name[KVA_NODE_NAME_MAX];
    unsigned char secret[256];
    size_t secret_bytes;
    struct kva_cost_params cost; /* link apart, constant from measure on */
    size_t page_bytes;
    uint32_t unacked_pages;
    size_t queue_bytes;
    uint32_t asked_max;  /* rows that a layer's queries are of: the same on all nodes */
    uint32_t lend_pages; /* that others may have here at most */
    double copy_page_s;  /* what sending a page takes all who copy it */

    struct kva_transport *transport; /* of the three links */
    struct kva_mailbox to_engine;
    struct kva_mailbox to_cluster;
    pthread_mutex_t view_lock;
    struct kva_cluster_view view;
    pthread_mutex_t service_lock;
    struct kva_service *service;

    /* Engine's thread. */
    struct kva_engine *engine;
    struct kva_device *guest_device;
    uint32_t running_max;
    struct kva_debtor *debtor;
    struct kva_creditor *creditor;
    struct kva_instance *instance;
    struct kva_guest_worker *guest_worker;
    struct kva_service_beside beside;
    struct kva_lenders lenders; /* members that the debtor knows */
    uint32_t node;              /* 0: not joined */
    bool failed;                /* what joining needs could not be made: it was said */
    bool draining;              /* the instance was told that it leaves */

    /* Cluster's thread. */
    pthread_t thread;
    bool running;
    atomic_bool stop;
    struct kva_link *link;
    struct kva_members *members;
    struct kva_gmanager *gmanager; /* while it leads */
    struct kva_peer *peers;        /* [nodes_max] */
    uint32_t peer_count;
    struct kva_member *waiting; /* [KVA_MEMBERS_NODES_MAX]: for a place among the peers, in order */
    uint32_t waiting_count;
    uint32_t self;
    uint64_t self_life;
    uint64_t tick_ns; /* of the last look at what is due */
    struct kva_cluster_view cluster_view;
    struct kva_gmanager_stats led; /* of the times before that it led: what only grows */
    struct kva_message_entry entries[KVA_MESSAGE_ENTRIES_MAX];
    uint8_t bytes[KVA_MESSAGE_BYTES_MAX];
};

/* --- thread.c: the cluster's thread ------------------------------------------------------------ */

KVA_MUST_CHECK enum kva_status kva_node_thread_start(struct kva_node *node, struct kva_err *err);
void kva_node_thread_stop(struct kva_node *node);
KVA_MUST_CHECK enum kva_status kva_node_listen(struct kva_node *node, struct kva_err *err);

struct kva_peer *kva_node_find_peer(struct kva_node *node, uint32_t number);

/* A message for a node or a gManager, this process's own ones included. */
void kva_node_route(struct kva_node *node, const uint8_t *bytes, size_t size, const void *content,
                    size_t content_bytes);

/* --- manager.c: the gManager of this process, while it leads ------------------------------------- */

void kva_node_elected(void *opaque, uint64_t revision, uint64_t sent_ns);
void kva_node_kept_alive(void *opaque, uint64_t sent_ns);
void kva_node_deposed(void *opaque);
void kva_node_manager_link_measured(struct kva_node *node);
/* Of all times that it led; what is of the moment is 0 while it does not. */
void kva_node_manager_stats(const struct kva_node *node, struct kva_gmanager_stats *ret);
void kva_node_manager_tick(struct kva_node *node, uint64_t now_ns);

/* --- probe.c -------------------------------------------------------------------------------------- */

void kva_probe_begin(struct kva_node *node, struct kva_peer *peer, uint64_t now_ns);
void kva_probe_answer(struct kva_node *node, const struct kva_link_frame *frame);
void kva_probe_take(struct kva_node *node, const struct kva_link_frame *frame, uint64_t now_ns);

/* --- measure.c ------------------------------------------------------------------------------------ */

KVA_MUST_CHECK enum kva_status kva_node_measure(struct kva_node *node, struct kva_err *err);
/* Pages of loans that go in a step, on average, by --cluster-copy and what was measured. */
double kva_node_step_pages(const struct kva_node *node);

/* --- beside.c: the engine's thread ----------------------------------------------------------------- */

uint64_t kva_node_between_steps(void *opaque, struct kva_scheduler *scheduler);
bool kva_node_leave(void *opaque);
void kva_node_end(void *opaque);

#endif
