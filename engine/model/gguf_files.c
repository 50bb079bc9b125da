/* gguf_files.c - mapping the parts of a GGUF model. */
#include "engine/model/gguf_files.h"

#include "base/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES_MAX 4096

/* ---- one part -------------------------------------------------------------------------------- */

/* The tensors as the table that the binding of safetensors reads; both are sorted by name. */
static enum kva_status fill_table(struct kva_model_shard *shard, struct kva_err *err)
{
    const struct kva_gguf *gguf = &shard->gguf;
    struct kva_safetensors *table = &shard->table;
    kva_arena_init(&table->arena,
                   (gguf->tensor_count + 1) * 2 * sizeof(struct kva_safetensors_entry) + 8192);
    table->data = shard->map;
    table->data_bytes = shard->map_bytes;
    table->entries =
        kva_arena_calloc(&table->arena, gguf->tensor_count + 1, sizeof(*table->entries));
    if (!table->entries)
        return kva_fail(err, KVA_ENOMEM, "%s: out of memory for %zu tensors", shard->name,
                        gguf->tensor_count);
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        const struct kva_gguf_tensor *tensor = &gguf->tensors[i];
        struct kva_safetensors_entry *entry = &table->entries[table->entry_count++];
        entry->name = tensor->name;
        if (tensor->format)
            snprintf(entry->dtype, sizeof(entry->dtype), "%s", tensor->format->name);
        else
            snprintf(entry->dtype, sizeof(entry->dtype), "type %u", tensor->format_id % 100000);
        entry->rank = tensor->rank;
        for (uint32_t j = 0; j < tensor->rank; j++)
            entry->shape[j] = tensor->dims[tensor->rank - 1 - j];
        entry->begin = tensor->begin;
        entry->end = tensor->end;
    }
    return KVA_OK;
}

enum kva_status kva_gguf_shard_read(struct kva_model_shard *shard, struct kva_err *err)
{
    enum kva_status status =
        kva_gguf_init(&shard->gguf, shard->map, shard->map_bytes, shard->name, err);
    return status ? status : fill_table(shard, err);
}

static enum kva_status open_part(int dir_fd, struct kva_model_shard *shard, struct kva_err *err)
{
    enum kva_status status = kva_model_shard_map(dir_fd, shard, err);
    return status ? status : kva_gguf_shard_read(shard, err);
}

/* ---- several --------------------------------------------------------------------------------- */

struct split {
    int64_t number, count, tensors;
};

static enum kva_status read_split(const struct kva_gguf *gguf, struct split *ret,
                                  struct kva_err *err)
{
    *ret = (struct split){0, 1, -1};
    enum kva_status status =
        kva_gguf_get_whole(gguf, "split.count", 0, KVA_MODEL_SHARDS_MAX, &ret->count, err);
    if (!status)
        status = kva_gguf_get_whole(gguf, "split.no", 0, KVA_MODEL_SHARDS_MAX, &ret->number, err);
    if (!status)
        status = kva_gguf_get_whole(gguf, "split.tensors.count", 0, INT32_MAX, &ret->tensors, err);
    if (!status && ret->count == 0)
        ret->count = 1;
    return status;
}

/* The name without -00001-of-0000N.gguf; 0: it does not end so. */
static size_t stem_length(const char *name, int64_t count)
{
    char suffix[64];
    snprintf(suffix, sizeof(suffix), "-%05d-of-%05lld.gguf", 1, (long long)count);
    size_t length = strlen(name), end = strlen(suffix);
    return length > end && strcmp(name + length - end, suffix) == 0 ? length - end : 0;
}

static enum kva_status name_parts(struct kva_model_files *files, const struct split *split,
                                  struct kva_err *err)
{
    const char *first = files->shards[0].name;
    size_t stem = stem_length(first, split->count);
    if (split->number != 0)
        return kva_fail(err, KVA_EINVAL,
                        "%s is part %lld of %lld: give the first part, the others are found beside "
                        "it",
                        first, (long long)split->number + 1, (long long)split->count);
    if (stem == 0)
        return kva_fail(err, KVA_EFORMAT,
                        "%s is part 1 of %lld, but its name does not end in -00001-of-%05lld.gguf, "
                        "by which the others are found",
                        first, (long long)split->count, (long long)split->count);
    struct kva_model_shard *shards =
        realloc(files->shards, (size_t)split->count * sizeof(*files->shards));
    if (!shards)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    files->shards = shards;
    memset(shards + 1, 0, ((size_t)split->count - 1) * sizeof(*shards));
    for (int64_t i = 1; i < split->count; i++) {
        char name[PATH_BYTES_MAX];
        int length = snprintf(name, sizeof(name), "%.*s-%05lld-of-%05lld.gguf", (int)stem, first,
                              (long long)i + 1, (long long)split->count);
        shards[i].watch = KVA_MAPPED_NONE;
        shards[i].name = kva_arena_strndup(&files->arena, name, (size_t)length);
        if (!shards[i].name)
            return kva_fail(err, KVA_ENOMEM, "out of memory");
        files->shard_count++;
    }
    return KVA_OK;
}

static int compare_places(const void *a, const void *b)
{
    const struct kva_model_place *left = a, *right = b;
    return strcmp(left->tensor, right->tensor);
}

static enum kva_status index_tensors(struct kva_model_files *files, const struct split *split,
                                     struct kva_err *err)
{
    size_t count = 0;
    for (size_t i = 0; i < files->shard_count; i++)
        count += files->shards[i].table.entry_count;
    if (split->tensors >= 0 && (uint64_t)split->tensors != count)
        return kva_fail(err, KVA_EFORMAT, "%s: split.tensors.count is %lld, the %zu parts have %zu",
                        files->shards[0].name, (long long)split->tensors, files->shard_count,
                        count);
    files->places = kva_arena_calloc(&files->arena, count + 1, sizeof(*files->places));
    if (!files->places)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %zu tensors", count);
    for (uint32_t i = 0; i < files->shard_count; i++)
        for (size_t j = 0; j < files->shards[i].table.entry_count; j++)
            files->places[files->place_count++] =
                (struct kva_model_place){files->shards[i].table.entries[j].name, i};
    qsort(files->places, count, sizeof(*files->places), compare_places);
    for (size_t i = 1; i < count; i++)
        if (compare_places(&files->places[i - 1], &files->places[i]) == 0)
            return kva_fail(err, KVA_EFORMAT, "tensor %s is in %s and in %s",
                            files->places[i].tensor, files->shards[files->places[i - 1].shard].name,
                            files->shards[files->places[i].shard].name);
    return KVA_OK;
}

static enum kva_status open_others(int dir_fd, struct kva_model_files *files,
                                   const struct split *split, struct kva_err *err)
{
    enum kva_status status = name_parts(files, split, err);
    for (size_t i = 1; !status && i < files->shard_count; i++) {
        struct split other;
        status = open_part(dir_fd, &files->shards[i], err);
        if (status == KVA_ENOTFOUND)
            return kva_fail(err, KVA_ENOTFOUND, "part %zu of %zu of %s is missing: there is no %s",
                            i + 1, files->shard_count, files->shards[0].name,
                            files->shards[i].name);
        if (!status)
            status = read_split(&files->shards[i].gguf, &other, err);
        if (!status && (other.number != (int64_t)i || other.count != split->count))
            status = kva_fail(err, KVA_EFORMAT, "%s says that it is part %lld of %lld",
                              files->shards[i].name, (long long)other.number + 1,
                              (long long)other.count);
    }
    return status ? status : index_tensors(files, split, err);
}

static enum kva_status open_all(int dir_fd, const char *name, struct kva_model_files *files,
                                struct kva_err *err)
{
    struct split split;
    kva_arena_init(&files->arena,
                   (size_t)KVA_MODEL_SHARDS_MAX * (PATH_BYTES_MAX + 64) +
                       (size_t)KVA_GGUF_TENSORS_MAX * 4 * sizeof(struct kva_model_place));
    files->shards = calloc(1, sizeof(*files->shards));
    char *copy = kva_arena_strndup(&files->arena, name, strlen(name));
    if (!files->shards || !copy)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    files->shards[0].name = copy;
    files->shards[0].watch = KVA_MAPPED_NONE;
    files->shard_count = 1;
    enum kva_status status = open_part(dir_fd, &files->shards[0], err);
    if (!status)
        status = read_split(&files->shards[0].gguf, &split, err);
    if (!status && split.count > 1)
        status = open_others(dir_fd, files, &split, err);
    return status;
}

enum kva_status kva_gguf_files_open(const char *path, struct kva_model_files **ret,
                                    struct kva_err *err)
{
    char dir[PATH_BYTES_MAX];
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    int length =
        snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    if (length < 0 || (size_t)length >= sizeof(dir) || strlen(name) > 255)
        return kva_fail(err, KVA_EINVAL, "the path of the model's file is too long");
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return kva_fail(err, errno == ENOENT || errno == ENOTDIR ? KVA_ENOTFOUND : KVA_EIO,
                        "%s: cannot open the model's folder: %s", dir, strerror(errno));
    struct kva_model_files *files = calloc(1, sizeof(*files));
    enum kva_status status =
        files ? open_all(dir_fd, name, files, err) : kva_fail(err, KVA_ENOMEM, "out of memory");
    close(dir_fd);
    if (status) {
        kva_model_files_close(files);
        return status;
    }
    *ret = files;
    return KVA_OK;
}
