/* distance.h - the world of tests/engine/lent_world.h, whose creditors are asked over links: each has
 * a struct kva_creditor beside its engine, and the debtor's engine a struct kva_debtor. */
#ifndef KVA_TESTS_CLUSTER_REMOTE_DISTANCE_H
#define KVA_TESTS_CLUSTER_REMOTE_DISTANCE_H

#include "cluster/link/transport.h"
#include "cluster/remote/creditor.h"
#include "cluster/remote/debtor.h"
#include "tests/engine/lent_world.h"

enum { DISTANCE_DEBTOR = 9 }; /* its node; creditors are 1 and 2 */

struct distance {
    struct lent_world lent;          /* its network only holds guests */
    struct kva_transport *transport; /* the debtor's */
    struct kva_debtor *debtor;
    struct kva_remote remote; /* what the engine has: the debtor's, and what follows */
    uint64_t posts;
    uint64_t dies_at; /* before this post creditor 1 dies; 0: never */
    bool dies_after;  /* not before, but when the question is on its way */

    struct kva_transport *transports[LOOPBACK_CREDITORS];
    struct kva_creditor *creditors[LOOPBACK_CREDITORS];
    struct kva_device *devices[LOOPBACK_CREDITORS];
    struct kva_guest_worker *workers[LOOPBACK_CREDITORS];
    uint64_t lives[LOOPBACK_CREDITORS];
};

struct kva_debtor_params distance_debtor_params(const struct distance *d);
struct kva_creditor_params distance_creditor_params(const struct distance *d);

/* `answer_ns` 0: far longer than anything takes. */
void distance_open(struct distance *d, const char *model, uint32_t levels, uint64_t answer_ns);
void distance_close(struct distance *d);

/* A creditor's transport ends; it begins again, in a new life, and the debtor is told. Its guests
 * are the engine's, and stay. */
void distance_kill(struct distance *d, uint32_t creditor);
void distance_revive(struct distance *d, uint32_t creditor);

struct kva_debtor_stats distance_stats(const struct distance *d);

#endif
