/* instance.h - one server of a cluster: its engine, its scheduler, and the rManager that lends and
 * borrows for them (Infinite-LLM, section 6).
 *
 * What the rManager asks for is done to the engine (engine/lending.h), what becomes of requests is
 * told to the rManager; content of pages goes with the messages. Device memory is what is lent: the
 * pages of memory that reports speak of are those of the device tier. With `keeps_homes` the host's
 * copies of lent pages stay here, so that a lost creditor costs a step; without, their memory is free
 * too, and a lost creditor costs computing the request again.
 *
 * While its own first in line lacks memory, what is free and cannot help it yet may be lent all the
 * same, since it would lie idle. When that request has waited so for `patience_ns`, what becomes free
 * is kept for it, and what it lacks beside is recalled: its own requests come first, but for one that is
 * longer than the instance, which no recall would help.
 *
 * A request that is longer than the instance waits, when its prompt is in, as the first in line, until
 * plans have lent what it lacks; when it has waited for `patience_ns`, reports say so of it too
 * (`keeps`). What others can lend is told to the engine by whoever knows the cluster
 * (engine/lending.h: kva_lending_set_others).
 *
 * As in rmanager.h, messages and times are handed in: a transport is around it, or a test.
 *
 * Thread rule: the scheduler's thread. */
#ifndef KVA_CLUSTER_INSTANCE_H
#define KVA_CLUSTER_INSTANCE_H

#include "cluster/rmanager.h"
#include "engine/lending.h"
#include "scheduler/scheduler.h"

struct kva_instance;

struct kva_instance_params {
    struct kva_rmanager_params rmanager; /* request_loans_max 0: as many as a sequence can have */
    struct kva_engine *engine;           /* with a remote, if it is to borrow */
    struct kva_scheduler *scheduler;
    uint32_t running_max; /* of the scheduler */
    bool keeps_homes;
    uint64_t patience_ns; /* for which its own first in line waits before others are to give way */
    double step_pages; /* pages of loans that are copied in a step, on average; > 0, may be < 1 */
    /* A message goes out; of PAGES `content` is that of its pages, page_bytes each, else NULL. Does
     * not call back. */
    void (*send)(void *opaque, const struct kva_message *message, const void *content);
    /* rmanager.h: the engine's remote may ask the creditor, and has a connection with it. */
    bool (*may_ask)(void *opaque, uint32_t creditor);
    bool (*reaches)(void *opaque, uint32_t creditor);
    void *opaque;
};

/* Fails: KVA_EINVAL (a parameter, named), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_instance_create(const struct kva_instance_params *params,
                                                   struct kva_instance **ret, struct kva_err *err);

/* Loans of guests end here and now. NULL is allowed. Before scheduler and engine. */
void kva_instance_destroy(struct kva_instance *instance);

/* A decoded message for this node, with the content that came behind it. Fails: KVA_EFORMAT: the
 * content is not that of the message's pages; nothing is done. */
KVA_MUST_CHECK enum kva_status kva_instance_receive(struct kva_instance *instance,
                                                    const struct kva_message *message,
                                                    const void *content, size_t bytes,
                                                    uint64_t now_ns, struct kva_err *err);

/* Before every step of the scheduler, and from time to time when nothing steps: pages change hands,
 * leases are renewed, memory that is short is recalled. */
void kva_instance_between_steps(struct kva_instance *instance, uint64_t now_ns);

/* It is about to leave: kva_rmanager_drain. */
void kva_instance_drain(struct kva_instance *instance, uint64_t now_ns);

/* The link to a creditor is broken for good, says the transport. */
void kva_instance_peer_lost(struct kva_instance *instance, uint32_t node, uint64_t now_ns);

/* What others have here, for a worker that attends to it. */
struct kva_guests *kva_instance_guests(struct kva_instance *instance);

/* Bytes of a page's content. */
size_t kva_instance_page_bytes(const struct kva_instance *instance);

void kva_instance_get_stats(const struct kva_instance *instance, struct kva_rmanager_stats *ret);

#endif
