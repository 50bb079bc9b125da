/* files.c - mapping shards, and finding tensors in them. */
#include "engine/model/files.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mapped.h"
#include "engine/model/checksum.h"
#include "engine/model/index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

static uint64_t stamp_of(const struct stat *info)
{
    const uint64_t words[] = {
        (uint64_t)info->st_dev,          (uint64_t)info->st_ino,
        (uint64_t)info->st_size,         (uint64_t)info->st_mtim.tv_sec,
        (uint64_t)info->st_mtim.tv_nsec, (uint64_t)info->st_ctim.tv_sec,
        (uint64_t)info->st_ctim.tv_nsec,
    };
    return kva_checksum(words, sizeof(words));
}

enum kva_status kva_model_shard_map(int dir_fd, struct kva_model_shard *shard, struct kva_err *err)
{
    struct stat info;
    int fd;
    enum kva_status status = kva_file_open(dir_fd, shard->name, &fd, &info, err);
    if (status)
        return status;
    if (info.st_size == 0) {
        status = kva_fail(err, KVA_EFORMAT, "%s is empty", shard->name);
    } else {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            status = kva_fail(err, errno == ENOMEM ? KVA_ENOMEM : KVA_EIO,
                              "%s: cannot map %lld bytes: %s", shard->name, (long long)info.st_size,
                              strerror(errno));
        } else {
            shard->map = map;
            shard->map_bytes = (size_t)info.st_size;
            shard->watch = kva_mapped_watch(map, shard->map_bytes);
            shard->stamp = stamp_of(&info);
        }
    }
    close(fd);
    return status;
}

static enum kva_status open_shard(int dir_fd, struct kva_model_shard *shard, struct kva_err *err)
{
    enum kva_status status = kva_model_shard_map(dir_fd, shard, err);
    if (status)
        return status;
    return kva_safetensors_init(&shard->table, shard->map, shard->map_bytes, shard->name, err);
}

/* What the folder has instead of weights that can be read here, or NULL. */
static const char *other_weights(int dir_fd)
{
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                         "consolidated.safetensors", "adapter_model.safetensors",
                                         "tf_model.h5"};
    for (size_t i = 0; i < KVA_COUNT_OF(others); i++)
        if (faccessat(dir_fd, others[i], F_OK, 0) == 0)
            return others[i];
    return NULL;
}

static enum kva_status no_weights(int dir_fd, struct kva_err *err)
{
    const char *other = other_weights(dir_fd);
    if (other)
        return kva_fail(err, KVA_ENOTFOUND,
                        "has neither " SINGLE_FILE " nor " INDEX_FILE
                        "; its %s cannot be read: save the model as safetensors",
                        other);
    return kva_fail(err, KVA_ENOTFOUND, "has neither " SINGLE_FILE " nor " INDEX_FILE);
}

void kva_model_folder_lacks(const char *path, struct kva_buf *out)
{
    int dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return;
    if (faccessat(dir_fd, "config.json", F_OK, 0) != 0)
        kva_buf_puts(out, "config.json");
    if (faccessat(dir_fd, SINGLE_FILE, F_OK, 0) != 0 &&
        faccessat(dir_fd, INDEX_FILE, F_OK, 0) != 0) {
        const char *other = other_weights(dir_fd);
        kva_buf_printf(out, "%sweights (" SINGLE_FILE " or " INDEX_FILE "%s%s%s)",
                       out->length > 0 ? "; " : "", other ? "; its " : "", other ? other : "",
                       other ? " cannot be read: save the model as safetensors" : "");
    }
    close(dir_fd);
}

/* All missing shards are named at once, as far as a message holds them: an interrupted download is
 * the usual reason. */
static enum kva_status check_shards_exist(int dir_fd, const struct kva_model_files *files,
                                          struct kva_err *err)
{
    struct kva_buf names;
    size_t missing = 0;
    kva_buf_init(&names, KVA_ERR_MESSAGE_MAX);
    for (size_t i = 0; i < files->shard_count; i++) {
        if (faccessat(dir_fd, files->shards[i].name, F_OK, 0) == 0)
            continue;
        kva_buf_printf(&names, "%s%s", missing ? ", " : "", files->shards[i].name);
        missing++;
    }
    enum kva_status status = KVA_OK;
    if (missing)
        status = kva_fail(err, KVA_ENOTFOUND,
                          "%zu of the %zu shards that " INDEX_FILE " names are missing: %s",
                          missing, files->shard_count, names.data ? names.data : "?");
    kva_buf_finish(&names);
    return status;
}

static enum kva_status open_single(int dir_fd, struct kva_model_files *files, struct kva_err *err)
{
    files->shards = calloc(1, sizeof(*files->shards));
    if (!files->shards)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    files->shard_count = 1;
    files->shards[0].name = SINGLE_FILE;
    return open_shard(dir_fd, &files->shards[0], err);
}

static enum kva_status open_sharded(int dir_fd, struct kva_model_files *files, struct kva_err *err)
{
    cJSON *index;
    enum kva_status status =
        kva_model_json_read(dir_fd, INDEX_FILE, KVA_MODEL_INDEX_BYTES_MAX, &index, err);
    if (status)
        return status;
    status = kva_model_index_parse(index, INDEX_FILE, files, err);
    cJSON_Delete(index);
    if (!status)
        status = check_shards_exist(dir_fd, files, err);
    for (size_t i = 0; !status && i < files->shard_count; i++)
        status = open_shard(dir_fd, &files->shards[i], err);
    return status;
}

enum kva_status kva_model_files_open(int dir_fd, struct kva_model_files **ret, struct kva_err *err)
{
    struct kva_model_files *files = calloc(1, sizeof(*files));
    enum kva_status status;
    if (!files)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    if (faccessat(dir_fd, SINGLE_FILE, F_OK, 0) == 0)
        status = open_single(dir_fd, files, err);
    else if (faccessat(dir_fd, INDEX_FILE, F_OK, 0) == 0)
        status = open_sharded(dir_fd, files, err);
    else
        status = no_weights(dir_fd, err);
    if (status) {
        kva_model_files_close(files);
        return status;
    }
    *ret = files;
    return KVA_OK;
}

void kva_model_files_close(struct kva_model_files *files)
{
    if (!files)
        return;
    for (size_t i = 0; files->shards && i < files->shard_count; i++) {
        kva_safetensors_finish(&files->shards[i].table);
        kva_gguf_finish(&files->shards[i].gguf);
        if (!files->shards[i].map)
            continue;
        kva_mapped_unwatch(files->shards[i].watch);
        munmap(files->shards[i].map, files->shards[i].map_bytes);
    }
    free(files->shards);
    kva_arena_finish(&files->arena);
    free(files);
}

static int compare_tensors(const void *key, const void *place)
{
    return strcmp(key, ((const struct kva_model_place *)place)->tensor);
}

enum kva_status kva_model_files_find(const struct kva_model_files *files, const char *name,
                                     const struct kva_safetensors_entry **ret_entry,
                                     const struct kva_model_shard **ret_shard, struct kva_err *err)
{
    const struct kva_model_shard *shard = &files->shards[0];
    const struct kva_model_place *place = NULL;
    if (files->places) {
        place = bsearch(name, files->places, files->place_count, sizeof(*files->places),
                        compare_tensors);
        if (!place) {
            *ret_entry = NULL;
            return KVA_OK;
        }
        shard = &files->shards[place->shard];
    }
    const struct kva_safetensors_entry *entry = kva_safetensors_find(&shard->table, name);
    if (!entry && place)
        return kva_fail(err, KVA_EFORMAT,
                        INDEX_FILE " says that tensor %s is in %s, which does not have it", name,
                        shard->name);
    *ret_entry = entry;
    *ret_shard = shard;
    return KVA_OK;
}

uint64_t kva_model_files_bytes(const struct kva_model_files *files)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < files->shard_count; i++)
        bytes += files->shards[i].map_bytes;
    return bytes;
}

enum kva_status kva_model_files_check(const struct kva_model_files *files, struct kva_err *err)
{
    for (size_t i = 0; i < files->shard_count; i++)
        if (kva_mapped_is_lost(files->shards[i].watch))
            return kva_fail(err, KVA_EIO,
                            "%s has been cut, or cannot be read any more, while it was in use",
                            files->shards[i].name);
    return KVA_OK;
}

/* Reads a piece of a mapping. MADV_POPULATE_READ (Linux 5.14) maps the pages of a piece with one
 * call and reports a read error, where touching them takes a fault for every few pages and ends in
 * SIGBUS; older kernels have only the latter. */
static enum kva_status populate(uint8_t *piece, size_t bytes, const char *name, struct kva_err *err)
{
#ifdef MADV_POPULATE_READ
    while (madvise(piece, bytes, MADV_POPULATE_READ) != 0) {
        if (errno == EINTR)
            continue;
        if (errno == EINVAL)
            goto touch;
        return kva_fail(err, errno == ENOMEM ? KVA_ENOMEM : KVA_EIO, "%s: cannot read: %s", name,
                        strerror(errno));
    }
    return KVA_OK;
touch:
#endif
    (void)name;
    (void)err;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t at = 0; at < bytes; at += page)
        (void)*(volatile const uint8_t *)(piece + at);
    return KVA_OK;
}

enum kva_status kva_model_files_prefetch(const struct kva_model_files *files,
                                         const struct kva_model_open_params *params,
                                         struct kva_err *err)
{
    uint64_t total = kva_model_files_bytes(files);
    uint64_t done = 0;
    for (size_t i = 0; i < files->shard_count; i++) {
        const struct kva_model_shard *shard = &files->shards[i];
        for (size_t at = 0; at < shard->map_bytes;) {
            size_t bytes = kva_min_size(shard->map_bytes - at, KVA_MODEL_PREFETCH_BYTES);
            size_t ahead = kva_min_size(shard->map_bytes - at, 2 * KVA_MODEL_PREFETCH_BYTES);
            uint8_t *piece = (uint8_t *)shard->map + at;
            /* Only a hint, so a failure of this one is none of ours: while one piece is mapped the
             * disk already reads the next. */
            (void)madvise(piece, ahead, MADV_WILLNEED);
            enum kva_status status = kva_model_check_cancelled(params->cancelled, err);
            if (!status)
                status = populate(piece, bytes, shard->name, err);
            if (status)
                return status;
            at += bytes;
            done += bytes;
            if (params->progress)
                params->progress(params->progress_opaque, done, total);
        }
    }
    return KVA_OK;
}
