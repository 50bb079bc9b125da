/* index.c - reading the index of shards. */
#include "engine/model/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool kva_model_is_plain_name(const char *name)
{
    size_t length = strlen(name);
    bool plain = length > 0 && length <= KVA_MODEL_FILE_NAME_MAX && name[0] != '.' &&
                 !strchr(name, '/') && !strchr(name, '\\');
    for (size_t i = 0; i < length; i++)
        plain = plain && (unsigned char)name[i] >= 0x20 && name[i] != 0x7F;
    return plain;
}

static enum kva_status check_file_name(const char *name, const char *file, struct kva_err *err)
{
    char text[64];
    if (kva_model_is_plain_name(name))
        return KVA_OK;
    return kva_fail(err, KVA_EFORMAT,
                    "%s: shard name '%s' is not a plain file name of at most %u bytes", file,
                    kva_text_show(name, text, sizeof(text)), KVA_MODEL_FILE_NAME_MAX);
}

/* The index of the shard `name`, added if it is new. Shards are few and come in runs, so the last
 * one is looked at first. */
static enum kva_status shard_index(struct kva_model_files *files, const char *name,
                                   const char *file, uint32_t *ret, struct kva_err *err)
{
    for (size_t i = files->shard_count; i > 0; i--) {
        if (strcmp(files->shards[i - 1].name, name) == 0) {
            *ret = (uint32_t)(i - 1);
            return KVA_OK;
        }
    }
    enum kva_status status = check_file_name(name, file, err);
    if (status)
        return status;
    if (files->shard_count == KVA_MODEL_SHARDS_MAX)
        return kva_fail(err, KVA_EFORMAT, "%s: more than the allowed %u shards", file,
                        KVA_MODEL_SHARDS_MAX);
    char *copy = kva_arena_strndup(&files->arena, name, strlen(name));
    if (!copy)
        return kva_fail(err, KVA_ENOMEM, "%s: out of memory", file);
    files->shards[files->shard_count].name = copy;
    *ret = (uint32_t)files->shard_count++;
    return KVA_OK;
}

static enum kva_status add_place(struct kva_model_files *files, const cJSON *item, const char *file,
                                 struct kva_err *err)
{
    char text[64];
    size_t length = strlen(item->string);
    if (length > KVA_SAFETENSORS_NAME_BYTES_MAX)
        return kva_fail(err, KVA_EFORMAT,
                        "%s: the name of tensor '%s'... has %zu bytes, allowed are %u", file,
                        kva_text_show(item->string, text, sizeof(text)), length,
                        KVA_SAFETENSORS_NAME_BYTES_MAX);
    if (!cJSON_IsString(item))
        return kva_fail(err, KVA_EFORMAT, "%s: the shard of tensor %s is not a string", file,
                        kva_text_show(item->string, text, sizeof(text)));
    struct kva_model_place *place = &files->places[files->place_count];
    enum kva_status status = shard_index(files, item->valuestring, file, &place->shard, err);
    if (status)
        return status;
    place->tensor = kva_arena_strndup(&files->arena, item->string, length);
    if (!place->tensor)
        return kva_fail(err, KVA_ENOMEM, "%s: out of memory", file);
    files->place_count++;
    return KVA_OK;
}

static int compare_places(const void *a, const void *b)
{
    const struct kva_model_place *left = a, *right = b;
    return strcmp(left->tensor, right->tensor);
}

enum kva_status kva_model_index_parse(const cJSON *index, const char *file,
                                      struct kva_model_files *files, struct kva_err *err)
{
    struct kva_fields root = {index, file, "", err};
    struct kva_fields map;
    const cJSON *item;
    char text[64];
    size_t count = 0;
    enum kva_status status = kva_fields_object(&root, "weight_map", "weight_map.", &map);
    if (status)
        return status;
    cJSON_ArrayForEach(item, map.object) count++;
    if (count == 0 || count > KVA_SAFETENSORS_TENSORS_MAX)
        return kva_fail(err, KVA_EFORMAT, "%s: weight_map names %zu tensors, allowed are 1..%u",
                        file, count, KVA_SAFETENSORS_TENSORS_MAX);
    /* Names and their padding; the index's own size bounds them already. */
    kva_arena_init(&files->arena, 2 * (size_t)KVA_MODEL_INDEX_BYTES_MAX + count * 32);
    files->shards = calloc(kva_min_size(count, KVA_MODEL_SHARDS_MAX), sizeof(*files->shards));
    files->places = kva_arena_calloc(&files->arena, count, sizeof(*files->places));
    if (!files->shards || !files->places)
        return kva_fail(err, KVA_ENOMEM, "%s: out of memory for %zu tensors", file, count);
    cJSON_ArrayForEach(item, map.object)
    {
        status = add_place(files, item, file, err);
        if (status)
            return status;
    }
    qsort(files->places, files->place_count, sizeof(*files->places), compare_places);
    for (size_t i = 1; i < files->place_count; i++)
        if (compare_places(&files->places[i - 1], &files->places[i]) == 0)
            return kva_fail(err, KVA_EFORMAT, "%s: weight_map names tensor %s twice", file,
                            kva_text_show(files->places[i].tensor, text, sizeof(text)));
    return KVA_OK;
}
