/* file.h - opening what must be a regular file. A FIFO, a device or a folder in its place is
 * refused at once: opening or reading one may wait for ever.
 *
 * Thread rule: any thread. */
#ifndef KVA_BASE_FILE_H
#define KVA_BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

#include <sys/stat.h>

/* Open `path`, relative to the folder `dir_fd` (AT_FDCWD: to the current one), for reading.
 * *ret_info (may be NULL) is what fstat says. Fails: KVA_ENOTFOUND, KVA_EIO, KVA_EFORMAT (not a
 * regular file); err names the path. */
KVA_MUST_CHECK enum kva_status kva_file_open(int dir_fd, const char *path, int *ret_fd,
                                             struct stat *ret_info, struct kva_err *err);

/* Append the whole content to `out`. Fails also with KVA_ETOOBIG (more than `out` may hold) and
 * KVA_ENOMEM; `out` then has some of it. */
KVA_MUST_CHECK enum kva_status kva_file_read(int dir_fd, const char *path, struct kva_buf *out,
                                             struct kva_err *err);

/* Write all of it from offset `at` on. False: errno says why. */
KVA_MUST_CHECK bool kva_file_write_at(int fd, const void *data, size_t bytes, uint64_t at);

/* Whether `path` could be opened so, for libraries that open it themselves. */
KVA_MUST_CHECK enum kva_status kva_file_check(const char *path, struct kva_err *err);

#endif
