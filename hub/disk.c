/* disk.c - folders, locks, room on the disk, and files published whole. */
#include "hub/disk.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PATH_BYTES_MAX 4096u
#define LOCK_POLL_MS   100
#define TREE_FDS       16

/* Left free besides, so that the disk is not filled to its last byte. */
#define SPARE_BYTES ((uint64_t)16 << 20)

/* --- folders --------------------------------------------------------------------------------- */

static enum kva_status make_one(const char *path, struct kva_err *err)
{
    struct stat info;
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return KVA_OK;
    int why = errno;
    /* A read-only file system says so even of folders that are there. */
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return KVA_OK;
    return kva_fail(err, KVA_EIO, "the folder '%s' cannot be made: %s", path, strerror(why));
}

static enum kva_status make_upto(const char *path, size_t length, struct kva_err *err)
{
    char part[PATH_BYTES_MAX];
    if (length >= sizeof(part))
        return kva_fail(err, KVA_EIO, "the path '%.100s...' is too long", path);
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        enum kva_status status = make_one(part, err);
        if (status)
            return status;
    }
    return KVA_OK;
}

enum kva_status kva_hub_disk_make(const char *path, struct kva_err *err)
{
    return make_upto(path, strlen(path), err);
}

enum kva_status kva_hub_disk_make_parent(const char *path, struct kva_err *err)
{
    const char *slash = strrchr(path, '/');
    return slash && slash > path ? make_upto(path, (size_t)(slash - path), err) : KVA_OK;
}

static int remove_one(const char *path, const struct stat *info KVA_UNUSED, int kind KVA_UNUSED,
                      struct FTW *place KVA_UNUSED)
{
    remove(path);
    return 0;
}

void kva_hub_disk_remove(const char *path)
{
    nftw(path, remove_one, TREE_FDS, FTW_DEPTH | FTW_PHYS);
}

/* nftw has no argument of the caller's: one sum per thread. */
static _Thread_local uint64_t tree_bytes;

static int add_one(const char *path KVA_UNUSED, const struct stat *info, int kind,
                   struct FTW *place KVA_UNUSED)
{
    if (kind == FTW_F && S_ISREG(info->st_mode))
        tree_bytes += (uint64_t)info->st_size;
    return 0;
}

uint64_t kva_hub_disk_bytes(const char *path)
{
    tree_bytes = 0;
    nftw(path, add_one, TREE_FDS, FTW_PHYS);
    return tree_bytes;
}

bool kva_hub_disk_is_file(const char *path, uint64_t *ret_bytes)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    if (ret_bytes)
        *ret_bytes = (uint64_t)info.st_size;
    return true;
}

/* --- locks and room -------------------------------------------------------------------------- */

enum kva_status kva_hub_disk_lock(const char *path, const atomic_bool *cancelled, int *ret_fd,
                                  struct kva_err *err)
{
    for (bool told = false;;) {
        struct stat info;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0)
            return kva_fail(err, KVA_EIO, "the lock '%s' cannot be opened: %s", path,
                            strerror(errno));
        bool taken = flock(fd, LOCK_EX | LOCK_NB) == 0;
        int why = taken ? 0 : errno;
        /* Who had it may have removed the file, as filelock does: others would lock the next. */
        if (taken && fstat(fd, &info) == 0 && info.st_nlink > 0) {
            *ret_fd = fd;
            return KVA_OK;
        }
        close(fd);
        if (!taken && why != EWOULDBLOCK && why != EINTR)
            return kva_fail(err, KVA_EIO, "the lock '%s' cannot be taken: %s", path, strerror(why));
        if (cancelled && atomic_load(cancelled))
            return kva_fail(err, KVA_ECANCELLED, "stopped");
        if (taken)
            continue;
        if (!told)
            kva_log(KVA_LOG_INFO, "waiting for another process that fetches the same (%s)", path);
        told = true;
        poll(NULL, 0, LOCK_POLL_MS);
    }
}

enum kva_status kva_hub_disk_check_room(const char *path, uint64_t bytes, struct kva_err *err)
{
    struct statvfs info;
    if (statvfs(path, &info) != 0)
        return kva_fail(err, KVA_EIO, "'%s': %s", path, strerror(errno));
    uint64_t left = (uint64_t)info.f_bavail * info.f_frsize;
    /* Some network file systems do not say. */
    if (info.f_blocks == 0 || (bytes <= left && left - bytes >= SPARE_BYTES))
        return KVA_OK;
    return kva_fail(err, KVA_EIO,
                    "the disk of '%s' has %.1f MiB free, and %.1f MiB are to be written: free "
                    "some, or name another folder (XDG_CACHE_HOME, HF_HOME)",
                    path, (double)left / (1 << 20), (double)bytes / (1 << 20));
}

/* --- files ----------------------------------------------------------------------------------- */

enum kva_status kva_hub_disk_write(int fd, const char *path, const void *bytes, size_t count,
                                   struct kva_err *err)
{
    const char *at = bytes;
    while (count > 0) {
        ssize_t written = write(fd, at, count);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return kva_fail(err, KVA_EIO, "'%s' cannot be written: %s", path,
                            strerror(written < 0 ? errno : ENOSPC));
        at += written;
        count -= (size_t)written;
    }
    return KVA_OK;
}

/* Folders of some file systems cannot be flushed, which is then their affair. */
static void flush_parent(const char *path)
{
    char parent[PATH_BYTES_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof(parent))
        return;
    memcpy(parent, path, length);
    parent[length] = '\0';
    int fd = open(length > 0 ? parent : slash ? "/" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

enum kva_status kva_hub_disk_publish(const char *temporary_path, const char *path,
                                     struct kva_err *err)
{
    int fd = open(temporary_path, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (!ok)
        return kva_fail(err, KVA_EIO, "'%s' cannot be flushed to disk: %s", temporary_path,
                        strerror(why));
    if (rename(temporary_path, path) != 0)
        return kva_fail(err, KVA_EIO, "'%s' cannot be renamed to '%s': %s", temporary_path, path,
                        strerror(errno));
    flush_parent(path);
    return KVA_OK;
}

enum kva_status kva_hub_disk_put(const char *path, const char *text, struct kva_err *err)
{
    char temporary[PATH_BYTES_MAX];
    if (snprintf(temporary, sizeof(temporary), "%s.%ld.new", path, (long)getpid()) >=
        (int)sizeof(temporary))
        return kva_fail(err, KVA_EIO, "the path '%.100s...' is too long", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return kva_fail(err, KVA_EIO, "'%s' cannot be made: %s", temporary, strerror(errno));
    enum kva_status status = kva_hub_disk_write(fd, temporary, text, strlen(text), err);
    close(fd);
    if (!status)
        status = kva_hub_disk_publish(temporary, path, err);
    if (status)
        unlink(temporary);
    return status;
}
