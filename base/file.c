/* file.c - opening a regular file without waiting for it. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum kva_status kva_file_open(int dir_fd, const char *path, int *ret_fd, struct stat *ret_info,
                              struct kva_err *err)
{
    struct stat info;
    /* O_NONBLOCK: the open of a FIFO does not wait for a writer. Regular files do not care. */
    int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return kva_fail(err, errno == ENOENT || errno == ENOTDIR ? KVA_ENOTFOUND : KVA_EIO,
                        "cannot open %s: %s", path, strerror(errno));
    enum kva_status status = KVA_OK;
    if (fstat(fd, &info) != 0)
        status = kva_fail(err, KVA_EIO, "%s: cannot stat: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = kva_fail(err, KVA_EFORMAT, "%s is not a regular file", path);
    if (status) {
        close(fd);
        return status;
    }
    *ret_fd = fd;
    if (ret_info)
        *ret_info = info;
    return KVA_OK;
}

enum kva_status kva_file_read(int dir_fd, const char *path, struct kva_buf *out,
                              struct kva_err *err)
{
    char chunk[16384];
    int fd;
    enum kva_status status = kva_file_open(dir_fd, path, &fd, NULL, err);
    if (status)
        return status;
    for (;;) {
        ssize_t count = read(fd, chunk, sizeof(chunk));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            status = kva_fail(err, KVA_EIO, "%s: cannot be read: %s", path, strerror(errno));
        if (count <= 0)
            break;
        kva_buf_append(out, chunk, (size_t)count);
        if (out->failed) {
            status = out->no_memory ? kva_fail(err, KVA_ENOMEM, "%s: out of memory", path)
                                    : kva_fail(err, KVA_ETOOBIG, "%s: more than %zu bytes", path,
                                               out->max_bytes);
            break;
        }
    }
    close(fd);
    return status;
}

enum kva_status kva_file_check(const char *path, struct kva_err *err)
{
    int fd = -1;
    enum kva_status status = kva_file_open(AT_FDCWD, path, &fd, NULL, err);
    if (!status)
        close(fd);
    return status;
}

bool kva_file_write_at(int fd, const void *data, size_t bytes, uint64_t at)
{
    const unsigned char *from = data;
    while (bytes > 0) {
        const ssize_t written = pwrite(fd, from, bytes, (off_t)at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        from += written;
        at += (uint64_t)written;
        bytes -= (size_t)written;
    }
    return true;
}
