/* digest.h - what a file's content is known by: sha256, or the id that git gives it.
 *
 * Thread rule: one thread at a time. */
#ifndef KVA_HUB_DIGEST_H
#define KVA_HUB_DIGEST_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>

#define KVA_HUB_DIGEST_TEXT 65 /* room for either, with its NUL */

enum kva_hub_digest_kind {
    KVA_HUB_SHA256,
    KVA_HUB_GIT_BLOB, /* sha1 over "blob SIZE\0" and the content */
};

struct kva_hub_digest {
    void *context;
};

/* The kind that such a text in lower-case hex is of. False: of none. */
bool kva_hub_digest_kind_of(const char *text, enum kva_hub_digest_kind *ret);

/* Starts; `bytes` is the content's size, which a git blob begins with. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_hub_digest_begin(struct kva_hub_digest *digest,
                                                    enum kva_hub_digest_kind kind, uint64_t bytes,
                                                    struct kva_err *err);
void kva_hub_digest_add(struct kva_hub_digest *digest, const void *bytes, size_t count);

/* The content of a file, from its start to `bytes` of it. Fails: KVA_EIO; KVA_ECANCELLED when
 * `cancelled` is set, which may be NULL. */
KVA_MUST_CHECK enum kva_status kva_hub_digest_add_file(struct kva_hub_digest *digest, int fd,
                                                       const char *path, uint64_t bytes,
                                                       const atomic_bool *cancelled,
                                                       struct kva_err *err);

/* Ends; `ret` (KVA_HUB_DIGEST_TEXT) gets lower-case hex, "" after a failure in between. */
void kva_hub_digest_end(struct kva_hub_digest *digest, char *ret);

#endif
