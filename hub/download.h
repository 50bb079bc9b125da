/* download.h - one file of a repository, from a hub to a blob of the cache.
 *
 * The blob grows as ETAG.incomplete and has its name once its size and checksum are right. A
 * broken transfer goes on where it was, in this process or in a later one. One process at a time
 * fetches a blob, by the lock that huggingface_hub uses.
 *
 * Thread rule: one thread at a time. */
#ifndef KVA_HUB_DOWNLOAD_H
#define KVA_HUB_DOWNLOAD_H

#include "hub/http.h"

/* What a hub says of a file. */
struct kva_hub_file {
    const char *name;
    char etag[72]; /* sha256, or git's id of the blob: lower-case hex */
    uint64_t bytes;
    uint64_t begun; /* of them, from a fetch that was broken off */
    bool there;     /* the blob is in the cache */
};

struct kva_hub_download {
    struct kva_hub_http *http;
    const struct kva_hub_params *params;
    const char *repository;
    const char *commit;
    uint64_t done_bytes, total_bytes; /* of all files, for the bar */
};

/* Asks what `file->name` is, and looks whether it is there. Fails: as kva_hub_find. */
KVA_MUST_CHECK enum kva_status kva_hub_download_look(struct kva_hub_download *download,
                                                     struct kva_hub_file *file,
                                                     struct kva_err *err);

/* Makes the blob be there and links the snapshot to it. Fails: as kva_hub_find. */
KVA_MUST_CHECK enum kva_status kva_hub_download_file(struct kva_hub_download *download,
                                                     struct kva_hub_file *file,
                                                     struct kva_err *err);

/* What an answer that is none of what was asked for means: no such repository, gated, ... `file`
 * is NULL where the repository itself was asked for. Returns the failure. */
KVA_MUST_CHECK enum kva_status kva_hub_download_explain(const struct kva_hub_params *params,
                                                        const char *repository,
                                                        const char *revision, const char *file,
                                                        const struct kva_hub_answer *answer,
                                                        struct kva_err *err);

#endif
