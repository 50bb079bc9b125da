/* disk.h - files that come into being whole or not at all: folders, locks, room, publishing.
 *
 * A file is written under another name, flushed, and renamed to its own; whoever opens it by its
 * own name sees all of it. One process at a time writes: the others wait for a lock, which the
 * system drops with the process that held it.
 *
 * Thread rule: any thread. */
#ifndef KVA_HUB_DISK_H
#define KVA_HUB_DISK_H

#include "base/buf.h"
#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The folder and those above it. Fails: KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_hub_disk_make(const char *path, struct kva_err *err);

/* The folder that `path` is in, likewise. */
KVA_MUST_CHECK enum kva_status kva_hub_disk_make_parent(const char *path, struct kva_err *err);

/* Waits for the lock file, which is made where it is not there; *ret_fd holds it until it is
 * closed. Fails: KVA_EIO, KVA_ECANCELLED. */
KVA_MUST_CHECK enum kva_status kva_hub_disk_lock(const char *path, const atomic_bool *cancelled,
                                                 int *ret_fd, struct kva_err *err);

/* Whether `bytes` more fit on the file system of `path`. Fails: KVA_EIO, which says both. */
KVA_MUST_CHECK enum kva_status kva_hub_disk_check_room(const char *path, uint64_t bytes,
                                                       struct kva_err *err);

/* All of it; `fd` is of the file `path`. Fails: KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_hub_disk_write(int fd, const char *path, const void *bytes,
                                                  size_t count, struct kva_err *err);

/* Flushes `temporary_path` and gives it its own name; the folder is flushed too. Fails: KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_hub_disk_publish(const char *temporary_path, const char *path,
                                                    struct kva_err *err);

/* A small file, replaced as a whole. Fails: KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_hub_disk_put(const char *path, const char *text,
                                                struct kva_err *err);

/* Bytes of all regular files below the folder; symbolic links are not followed. */
uint64_t kva_hub_disk_bytes(const char *path);

/* The folder and all below it, as far as that is possible. */
void kva_hub_disk_remove(const char *path);

/* Whether a regular file is there; *ret_bytes (may be NULL) is its size. Links are followed. */
bool kva_hub_disk_is_file(const char *path, uint64_t *ret_bytes);

#endif
