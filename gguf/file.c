/* file.c - mapping the file, and reads within its bounds. */
#include "gguf/file.h"

#include "base/file.h"
#include "base/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SUFFIX ".gguf"

bool kva_gguf_is_path(const char *path)
{
    struct stat info;
    size_t length = strlen(path), end = strlen(SUFFIX);
    if (stat(path, &info) == 0)
        return !S_ISDIR(info.st_mode);
    return length > end && strcmp(path + length - end, SUFFIX) == 0;
}

static enum kva_status map(struct kva_gguf_file *file, const char *path, struct kva_err *err)
{
    struct stat info;
    int fd;
    enum kva_status status = kva_file_open(AT_FDCWD, path, &fd, &info, err);
    if (status)
        return status;
    if (info.st_size == 0) {
        status = kva_fail(err, KVA_EFORMAT, "%s is empty", path);
    } else {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (bytes == MAP_FAILED) {
            status = kva_fail(err, errno == ENOMEM ? KVA_ENOMEM : KVA_EIO, "%s: cannot map: %s",
                              path, strerror(errno));
        } else {
            file->map = bytes;
            file->map_bytes = (size_t)info.st_size;
            file->watch = kva_mapped_watch(bytes, file->map_bytes);
        }
    }
    close(fd);
    return status;
}

enum kva_status kva_gguf_file_open(const char *path, struct kva_gguf_file **ret,
                                   struct kva_err *err)
{
    const char *slash = strrchr(path, '/');
    struct kva_gguf_file *file = calloc(1, sizeof(*file));
    if (!file)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    file->watch = KVA_MAPPED_NONE;
    snprintf(file->name, sizeof(file->name), "%s", slash ? slash + 1 : path);
    enum kva_status status = map(file, path, err);
    if (!status)
        status = kva_gguf_init(&file->gguf, file->map, file->map_bytes, file->name, err);
    if (status) {
        kva_gguf_file_close(file);
        return status;
    }
    *ret = file;
    return KVA_OK;
}

void kva_gguf_file_close(struct kva_gguf_file *file)
{
    if (!file)
        return;
    kva_gguf_finish(&file->gguf);
    kva_mapped_unwatch(file->watch);
    if (file->map)
        munmap(file->map, file->map_bytes);
    free(file);
}
