/* repository.h - a model of a hub: what of it is in the cache, and fetching the rest.
 *
 * A snapshot that is whole is used as it is. Otherwise, or for an update, the hub is asked for the
 * revision's commit and files, those that make the model are chosen (listing.h) and fetched
 * (download.h), and the revision is noted last: what it names is whole.
 *
 * Thread rule: one thread at a time. */
#ifndef KVA_HUB_REPOSITORY_H
#define KVA_HUB_REPOSITORY_H

#include "hub/hub.h"
#include "hub/name.h"

/* Fails: as kva_hub_find. */
KVA_MUST_CHECK enum kva_status kva_hub_repository_find(const struct kva_hub_name *name,
                                                       const struct kva_hub_params *params,
                                                       struct kva_hub_found *ret,
                                                       struct kva_err *err);

/* Whether the cache has anything of it. */
bool kva_hub_repository_is_cached(const struct kva_hub_name *name,
                                  const struct kva_hub_places *places);

#endif
