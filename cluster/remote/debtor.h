/* debtor.h - the debtor's side of attention at a distance (Infinite-LLM, section 4): the engine's
 * struct kva_remote (engine/kv/remote.h) on a link.
 *
 * In every layer the rows of all sequences and loans that one creditor holds go to it in one frame;
 * its answer has (a, m, e) of all of them. The engine's own thread sends, and makes progress while
 * it waits: no other thread is between a layer and its answer.
 *
 * A creditor that does not answer within `answer_ns` is given up: what it held is lost, here and
 * in all steps to come, until a new connection is made with it. It is connected with when it is
 * asked first, and when it is asked again after it was given up: then nobody waits for that, and
 * there is one attempt a second at most.
 *
 * Thread rule: engine thread. */
#ifndef KVA_CLUSTER_REMOTE_DEBTOR_H
#define KVA_CLUSTER_REMOTE_DEBTOR_H

#include "base/err.h"
#include "engine/kv/remote.h"

#include <stdbool.h>

struct kva_debtor;

struct kva_debtor_params {
    struct kva_transport *transport; /* as of a link */
    const void *secret;
    size_t secret_bytes;
    uint32_t heads; /* of queries */
    uint32_t head_dim;
    enum kva_dtype act; /* of queries: what the engine's device computes in */
    uint32_t rows_max;  /* of a step, loans counted each */
    uint32_t peers_max;
    uint64_t answer_ns; /* that a creditor has to answer a layer, connecting included, while it is
                           waited for: little of it passes while this process stands still */
};

struct kva_debtor_stats {
    uint64_t questions; /* frames sent */
    uint64_t rows;      /* in them */
    uint64_t bytes_out; /* queries and their headers */
    uint64_t bytes_in;  /* answers */
    uint64_t wait_ns;   /* that collect has waited */
    uint64_t late;      /* creditors given up for not answering */
    uint64_t broken;    /* for a broken connection, or an answer that is none */
    uint64_t not_found; /* loans that a creditor did not hold */
};

/* `params` and the secret are copied. Fails: KVA_EINVAL (named), KVA_ENOMEM, KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_debtor_create(const struct kva_debtor_params *params,
                                                 struct kva_debtor **ret, struct kva_err *err);
/* NULL is allowed. */
void kva_debtor_destroy(struct kva_debtor *debtor);

/* What the engine is given. It is the debtor's, and stays where it is. */
const struct kva_remote *kva_debtor_remote(struct kva_debtor *debtor);

/* Who this is; once, before anything is lent. */
void kva_debtor_identify(struct kva_debtor *debtor, uint32_t node, uint64_t life);

/* Where a creditor attends, in this life ("HOST:PORT"). Another life, or another address: what is
 * known of it is forgotten. Fails: KVA_ELIMIT (too many), KVA_EINVAL (the address). */
KVA_MUST_CHECK enum kva_status kva_debtor_peer(struct kva_debtor *debtor, uint32_t node,
                                               uint64_t life, const char *address,
                                               struct kva_err *err);
void kva_debtor_peer_gone(struct kva_debtor *debtor, uint32_t node);
/* Whether it could be asked for attention: not one that was given up, or with which no connection could
 * be made. That one is connected with again, once a second at most, so that it may be asked later. */
bool kva_debtor_may_ask(struct kva_debtor *debtor, uint32_t node);
/* Whether there is a connection with it. If not, one is begun, once a second at most. */
bool kva_debtor_reaches(struct kva_debtor *debtor, uint32_t node);
/* Whether connections are being made, for which there has to be progress. */
bool kva_debtor_calls(const struct kva_debtor *debtor);

/* Connect with a creditor that will be asked soon, or was given up. Some progress, when no step is
 * running: not all there is, since a transport's other links may always have more. */
void kva_debtor_prepare(struct kva_debtor *debtor, uint32_t node);
void kva_debtor_progress(struct kva_debtor *debtor);

/* Creditors that were given up since the last call; at most `max`. How many. */
uint32_t kva_debtor_take_lost(struct kva_debtor *debtor, uint32_t *ret_nodes, uint32_t max);

void kva_debtor_get_stats(const struct kva_debtor *debtor, struct kva_debtor_stats *ret);

#endif
