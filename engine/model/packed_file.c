/* packed_file.c - writing the file, and who may. */
#include "engine/model/packed_file.h"

#include "base/log.h"
#include "base/mapped.h"
#include "engine/model/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The first bytes of the file. Numbers are as this processor has them: files are not carried from
 * one kind to another, and the version would not match if they were. */
struct page {
    char magic[16];
    uint32_t version;
    uint32_t reserved;
    struct kva_packed_file_header header;
    uint64_t own_sum; /* of all before it */
};

_Static_assert(sizeof(struct page) <= KVA_PACKED_FILE_HEADER_BYTES, "the header fits its page");

static void new_path(const struct kva_packed_file *file, char *out, size_t size)
{
    snprintf(out, size, "%s.new", file->path);
}

/* The last component of a path, without slashes at its end. */
static void base_name(const char *path, char *out, size_t size)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(out, size, "%.*s", (int)(end - start), path + start);
}

void kva_packed_file_init_none(struct kva_packed_file *file,
                               const struct kva_packed_file_kind *kind)
{
    *file = (struct kva_packed_file){.kind = kind, .fd = -1, .watch = KVA_MAPPED_NONE};
}

void kva_packed_file_init_at(struct kva_packed_file *file, const struct kva_packed_file_kind *kind,
                             const char *path)
{
    kva_packed_file_init_none(file, kind);
    snprintf(file->path, sizeof(file->path), "%s", path);
}

void kva_packed_file_init(struct kva_packed_file *file, const struct kva_packed_file_kind *kind,
                          const char *model_path, const char *cache_path, const char *format)
{
    struct stat info;
    kva_packed_file_init_none(file, kind);
    if (!cache_path) {
        bool is_file = stat(model_path, &info) == 0 && !S_ISDIR(info.st_mode);
        snprintf(file->path, sizeof(file->path), "%s%s%s", model_path,
                 is_file ? "." : "/" KVA_PACKED_FILE_NAME, format);
        return;
    }
    char *real = realpath(model_path, NULL), model[256];
    const char *where = real ? real : model_path;
    base_name(where, model, sizeof(model));
    snprintf(file->path, sizeof(file->path), "%s/%s-%016llx.%s", cache_path, model,
             (unsigned long long)kva_checksum(where, strlen(where)), format);
    free(real);
    if (mkdir(cache_path, 0777) != 0 && errno != EEXIST)
        kva_log(KVA_LOG_WARN, "%s: cannot make the folder: %s", cache_path, strerror(errno));
}

/* --- reading ---------------------------------------------------------------------------------- */

bool kva_packed_file_open(struct kva_packed_file *file)
{
    struct stat info;
    file->looked_ino = 0;
    if (!*file->path)
        return false;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            kva_log(KVA_LOG_WARN, "%s cannot be read: %s", file->path, strerror(errno));
        if (stat(file->path, &info) == 0) /* looked at, all the same */
            file->looked_ino = info.st_ino;
        return false;
    }
    void *map = MAP_FAILED;
    if (fstat(fd, &info) == 0) {
        file->looked_ino = info.st_ino;
        if (S_ISREG(info.st_mode) && info.st_size > 0)
            map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (map == MAP_FAILED)
        return false;
    file->map = map;
    file->map_bytes = (size_t)info.st_size;
    file->watch = kva_mapped_watch(map, file->map_bytes);
    file->shared = true;
    return true;
}

void kva_packed_file_unmap(struct kva_packed_file *file)
{
    kva_mapped_unwatch(file->watch);
    file->watch = KVA_MAPPED_NONE;
    if (file->map)
        munmap(file->map, file->map_bytes);
    file->map = NULL;
    file->map_bytes = 0;
    file->shared = false;
}

const char *kva_packed_file_header_read(const struct kva_packed_file *file,
                                        struct kva_packed_file_header *ret)
{
    struct page page;
    if (file->map_bytes < KVA_PACKED_FILE_HEADER_BYTES)
        return "it is too short";
    memcpy(&page, file->map, sizeof(page));
    if (memcmp(page.magic, file->kind->magic, sizeof(page.magic)) != 0)
        return "it is a file of another kind";
    if (page.version != file->kind->version)
        return "it is of another version of kvahead";
    if (page.own_sum != kva_checksum(&page, offsetof(struct page, own_sum)))
        return "its header is damaged";
    *ret = page.header;
    return NULL;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* It cannot be kept: errno says why. */
static void give_up(struct kva_packed_file *file, const char *what)
{
    snprintf(file->why, sizeof(file->why), "%s: %s", what, strerror(errno));
    if (file->kind->instead)
        kva_log(KVA_LOG_WARN, "%s cannot be kept in %s: %s. %s", file->kind->what, file->path,
                file->why, file->kind->instead);
}

static void drop_new(struct kva_packed_file *file)
{
    char path[sizeof(file->path) + 8];
    new_path(file, path, sizeof(path));
    (void)unlink(path);
    close(file->fd);
    file->fd = -1;
}

/* flock has no bound and goes on after signals: ask every so often instead. */
static bool wait_for_lock(struct kva_packed_file *file, int fd,
                          const struct kva_packed_file_wait *wait)
{
    enum { TURN_MS = 50 };
    const struct timespec turn = {.tv_nsec = TURN_MS * 1000000l};
    for (uint64_t waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; waited_ms += TURN_MS) {
        /* File systems without locks: as if nobody else were there. */
        if (errno != EWOULDBLOCK && errno != EINTR)
            return true;
        if (waited_ms == 0)
            kva_log(KVA_LOG_INFO, "waiting up to %u s for another process that makes %s",
                    wait->max_ms / 1000, file->path);
        if (wait->cancelled && atomic_load(wait->cancelled))
            return false;
        if (waited_ms >= wait->max_ms) {
            errno = EBUSY;
            give_up(file, "another process has held the new one for too long");
            return false;
        }
        nanosleep(&turn, NULL);
    }
    return true;
}

bool kva_packed_file_lock(struct kva_packed_file *file, const struct kva_packed_file_wait *wait)
{
    char path[sizeof(file->path) + 8];
    struct stat ours, named, made;
    if (!*file->path)
        return true;
    new_path(file, path, sizeof(path));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) {
        give_up(file, "cannot open");
        return true;
    }
    if (!wait_for_lock(file, fd, wait)) {
        close(fd);
        return true;
    }
    /* Whoever had the lock may have renamed the file since, or thrown it away. */
    if (fstat(fd, &ours) != 0 || stat(path, &named) != 0 || ours.st_ino != named.st_ino ||
        ours.st_dev != named.st_dev) {
        close(fd);
        return false;
    }
    file->fd = fd;
    if (stat(file->path, &made) == 0 && made.st_ino != file->looked_ino) {
        drop_new(file);
        return false;
    }
    return true;
}

/* Room is taken now: a disk that is full later would end the process with SIGBUS. */
static void *map_new(struct kva_packed_file *file, size_t bytes)
{
    if (file->fd < 0)
        return MAP_FAILED;
    int failed = ftruncate(file->fd, 0) != 0 ? errno : 0;
    if (!failed)
        failed = posix_fallocate(file->fd, 0, (off_t)bytes);
    void *map = MAP_FAILED;
    if (!failed) {
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
        failed = map == MAP_FAILED ? errno : 0;
    }
    if (failed) {
        errno = failed;
        give_up(file, "no room");
        drop_new(file);
    }
    return map;
}

enum kva_status kva_packed_file_begin(struct kva_packed_file *file, size_t bytes,
                                      struct kva_err *err)
{
    void *map = map_new(file, bytes);
    bool in_file = map != MAP_FAILED;
    if (!in_file)
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %zu bytes of %s", bytes,
                        file->kind->what);
    if (!in_file)
        (void)madvise(map, bytes, MADV_HUGEPAGE);
    file->map = map;
    file->map_bytes = bytes;
    file->made = true;
    return KVA_OK;
}

void kva_packed_file_publish(struct kva_packed_file *file,
                             const struct kva_packed_file_header *header)
{
    struct page page = {.version = file->kind->version, .header = *header};
    memcpy(page.magic, file->kind->magic, sizeof(page.magic));
    page.own_sum = kva_checksum(&page, offsetof(struct page, own_sum));
    memcpy(file->map, &page, sizeof(page));
    (void)mprotect(file->map, file->map_bytes, PROT_READ);
    file->watch = kva_mapped_watch(file->map, file->map_bytes);
    if (file->fd < 0)
        return;
    char path[sizeof(file->path) + 8];
    new_path(file, path, sizeof(path));
    file->shared = rename(path, file->path) == 0;
    if (!file->shared)
        give_up(file, "cannot rename");
}

void kva_packed_file_finish(struct kva_packed_file *file, bool failed)
{
    if (file->fd >= 0 && !file->shared)
        drop_new(file);
    else if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
    if (failed)
        kva_packed_file_unmap(file);
}
