/* lenders.h - what other members can lend to one request: the engine is told, so that it accepts none
 * that could never have its memory. A request has KVA_KV_LOANS_MAX loans at most, each of one creditor:
 * so many of them count, those that lend most.
 *
 * Thread rule: one thread at a time. */
#ifndef KVA_CLUSTER_NODE_LENDERS_H
#define KVA_CLUSTER_NODE_LENDERS_H

#include "base/err.h"

struct kva_lender {
    uint32_t node;
    uint32_t pages;
};

struct kva_lenders {
    struct kva_lender *of; /* [max], those that lend most first */
    uint32_t count;
    uint32_t max;
};

/* Room for `max` members. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_lenders_init(struct kva_lenders *lenders, uint32_t max,
                                                struct kva_err *err);
void kva_lenders_finish(struct kva_lenders *lenders);

/* A member lends `pages` at most, whatever it did before. Where there is no room it does not count. */
void kva_lenders_put(struct kva_lenders *lenders, uint32_t node, uint32_t pages);
/* It is there no more, or was not. */
void kva_lenders_remove(struct kva_lenders *lenders, uint32_t node);

/* Pages that one request can count on. */
uint64_t kva_lenders_pages(const struct kva_lenders *lenders);

#endif
