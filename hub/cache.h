/* cache.h - the cache of huggingface_hub: its folders, and what is in them.
 *
 *     models--org--name/refs/REVISION                   the commit that the revision last was
 *     models--org--name/blobs/ETAG[.incomplete]         content, by its checksum
 *     models--org--name/snapshots/COMMIT/FILE           a link to its blob
 *     .locks/models--org--name/ETAG.lock                held by the process that fetches a blob
 *
 * Thread rule: any thread. */
#ifndef KVA_HUB_CACHE_H
#define KVA_HUB_CACHE_H

#include "hub/listing.h"
#include "hub/places.h"

#define KVA_HUB_CACHE_PREFIX "models--"
#define KVA_HUB_COMMIT_TEXT  41

/* Paths of a repository; the caller frees; NULL: out of memory, or too long. */
char *kva_hub_cache_snapshot(const struct kva_hub_places *places, const char *repository,
                             const char *commit, const char *file);
char *kva_hub_cache_blob(const struct kva_hub_places *places, const char *repository,
                         const char *etag, const char *suffix);
char *kva_hub_cache_lock(const struct kva_hub_places *places, const char *repository,
                         const char *etag);

/* The commit that the revision was when it was last asked for; a commit is its own. False: not
 * known. */
bool kva_hub_cache_get_ref(const struct kva_hub_places *places, const char *repository,
                           const char *revision, char ret[KVA_HUB_COMMIT_TEXT]);
KVA_MUST_CHECK enum kva_status kva_hub_cache_put_ref(const struct kva_hub_places *places,
                                                     const char *repository, const char *revision,
                                                     const char *commit, struct kva_err *err);

/* A link from the snapshot to the blob. One that is right is left alone, so that nothing is written
 * where nothing is new: the cache may be read-only. Fails: KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_hub_cache_link(const struct kva_hub_places *places,
                                                  const char *repository, const char *commit,
                                                  const char *file, const char *etag,
                                                  struct kva_err *err);

/* The files that a snapshot has, those of them whose content is there. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_hub_cache_files(const struct kva_hub_places *places,
                                                   const char *repository, const char *commit,
                                                   struct kva_hub_listing *ret,
                                                   struct kva_err *err);

#endif
