/* creditor.h - the creditor's side of attention at a distance: a thread that answers debtors'
 * questions (engine/lending.h: kva_guests_attend) from a link of its own, beside the engine's steps.
 *
 * Questions are answered in the order in which they come. A question that is none (wire.h) ends the
 * connection with who asked it.
 *
 * Thread rule: create and destroy: any thread; identify and get_stats: any thread. */
#ifndef KVA_CLUSTER_REMOTE_CREDITOR_H
#define KVA_CLUSTER_REMOTE_CREDITOR_H

#include "engine/lending.h"

struct kva_creditor;

struct kva_creditor_params {
    struct kva_transport *transport; /* as of a link */
    const char *listen;
    const void *secret;
    size_t secret_bytes;
    uint32_t heads; /* of queries */
    uint32_t head_dim;
    uint32_t layers;
    enum kva_dtype act;
    uint32_t rows_max; /* of a question */
    uint32_t peers_max;
};

struct kva_creditor_stats {
    uint64_t answers;
    uint64_t rows;
    uint64_t attend_ns; /* that attention took */
    uint64_t refused;   /* questions that were none */
    uint32_t connections;
};

/* Listens at once, and answers nobody before it is identified and has guests. Fails: KVA_EINVAL,
 * KVA_EBUSY, KVA_ENOMEM, KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_creditor_create(const struct kva_creditor_params *params,
                                                   struct kva_creditor **ret, struct kva_err *err);
/* Ends the thread and lets go of worker and guests. NULL is allowed. */
void kva_creditor_destroy(struct kva_creditor *creditor);

uint16_t kva_creditor_port(const struct kva_creditor *creditor);

/* Who this is, and what it attends to: `worker` is used by the thread alone from now on, until stop
 * or destroy. Once. */
void kva_creditor_begin(struct kva_creditor *creditor, uint32_t node, uint64_t life,
                        struct kva_guest_worker *worker);

/* No question is answered any more; the worker is free. */
void kva_creditor_stop(struct kva_creditor *creditor);

void kva_creditor_get_stats(struct kva_creditor *creditor, struct kva_creditor_stats *ret);

#endif
