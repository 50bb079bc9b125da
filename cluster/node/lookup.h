/* lookup.h - a host's name is looked up while its asker goes on: a resolver may take half a minute
 * to say that it does not know one.
 *
 * Each lookup has a thread of its own, which nobody waits for: ended early, it frees what there is
 * when the resolver has come back.
 *
 * Thread rule: one thread at a time for each lookup. */
#ifndef KVA_CLUSTER_NODE_LOOKUP_H
#define KVA_CLUSTER_NODE_LOOKUP_H

#include "cluster/link/address.h"

struct kva_lookup;

/* kva_link_address_resolve, but for tests. */
typedef enum kva_status (*kva_lookup_resolve)(const char *text, bool listening,
                                              struct kva_link_address *ret, struct kva_err *err);

/* Begin to look `address` ("HOST:PORT") up; where it is a number already, that is done when this
 * returns, and no thread was needed. Fails: KVA_ENOMEM (no memory, or no thread). */
KVA_MUST_CHECK enum kva_status kva_lookup_begin(const char *address, kva_lookup_resolve resolve,
                                                struct kva_lookup **ret, struct kva_err *err);

bool kva_lookup_is_done(struct kva_lookup *lookup);

/* What came of it, once it is done: the numeric address. Fails: as kva_link_address_resolve. */
KVA_MUST_CHECK enum kva_status kva_lookup_take(const struct kva_lookup *lookup,
                                               char ret[KVA_LINK_ADDRESS_TEXT],
                                               struct kva_err *err);

/* At any time; NULL is allowed. */
void kva_lookup_end(struct kva_lookup *lookup);

#endif
