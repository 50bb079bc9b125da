/* safetensors.c - reading the header, checked. */
#include "engine/model/safetensors.h"

#include "engine/model/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every format of the specification, so that the size of a tensor is checked even if it is one that
 * no model of ours needs. */
static const struct {
    const char *name;
    uint32_t bits;
} dtype_table[] = {
    {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"F64", 64},    {"C64", 64},
    {"I64", 64},    {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},
    {"U32", 32},    {"U16", 16},    {"U8", 8},      {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},      {"BOOL", 8},
};

/* What parsing one file carries along. */
struct parse {
    struct kva_safetensors *table;
    const char *file;
    uint64_t data_begin; /* 8 + n */
    struct kva_err *err;
};

static uint32_t dtype_bits(const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(dtype_table); i++)
        if (strcmp(dtype_table[i].name, name) == 0)
            return dtype_table[i].bits;
    return 0;
}

bool kva_safetensors_dtype(const struct kva_safetensors_entry *entry, enum kva_dtype *ret)
{
    static const char *const names[KVA_DTYPE_COUNT] = {
        [KVA_F32] = "F32", [KVA_F16] = "F16", [KVA_BF16] = "BF16"};
    for (size_t i = 0; i < KVA_DTYPE_COUNT; i++) {
        if (strcmp(names[i], entry->dtype) == 0) {
            *ret = (enum kva_dtype)i;
            return true;
        }
    }
    return false;
}

const char *kva_safetensors_show_shape(const struct kva_safetensors_entry *entry, char *out,
                                       size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (uint32_t i = 0; i < entry->rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)entry->shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
    return out;
}

static enum kva_status copy_name(struct parse *parse, const char *name, const char **ret)
{
    size_t length = strlen(name);
    char text[64];
    if (length > KVA_SAFETENSORS_NAME_BYTES_MAX)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: the name of tensor '%s'... has %zu bytes, allowed are %u", parse->file,
                        kva_text_show(name, text, sizeof(text)), length,
                        KVA_SAFETENSORS_NAME_BYTES_MAX);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return kva_fail(parse->err, KVA_EFORMAT,
                            "%s: the name of tensor '%s' has a control character", parse->file,
                            kva_text_show(name, text, sizeof(text)));
    *ret = kva_arena_strndup(&parse->table->arena, name, length);
    return *ret ? KVA_OK : kva_fail(parse->err, KVA_ENOMEM, "%s: out of memory", parse->file);
}

/* entry->shape, and the bytes that shape and dtype need; *ret_bytes is UINT64_MAX if the dtype is
 * none that we know. */
static enum kva_status parse_shape(struct parse *parse, struct kva_safetensors_entry *entry,
                                   const cJSON *shape, uint64_t *ret_bytes)
{
    uint64_t elements = 1;
    char text[64];
    const cJSON *item;
    if (!cJSON_IsArray(shape))
        return kva_fail(parse->err, KVA_EFORMAT, "%s: tensor %s has no shape list", parse->file,
                        entry->name);
    cJSON_ArrayForEach(item, shape)
    {
        if (entry->rank == KVA_SAFETENSORS_RANK_MAX)
            return kva_fail(parse->err, KVA_EFORMAT,
                            "%s: tensor %s has more than the allowed %u dimensions", parse->file,
                            entry->name, KVA_SAFETENSORS_RANK_MAX);
        uint64_t *dim = &entry->shape[entry->rank++];
        if (!kva_json_whole(item, 0, UINT64_MAX, dim))
            return kva_fail(parse->err, KVA_EFORMAT,
                            "%s: tensor %s has dimension %s, expected a whole number >= 0",
                            parse->file, entry->name, kva_json_show(item, text, sizeof(text)));
        if (__builtin_mul_overflow(elements, *dim, &elements))
            return kva_fail(parse->err, KVA_EFORMAT,
                            "%s: the element count of tensor %s overflows 64 bits", parse->file,
                            entry->name);
    }
    uint32_t bits = dtype_bits(entry->dtype);
    uint64_t total_bits;
    if (__builtin_mul_overflow(elements, bits, &total_bits))
        return kva_fail(parse->err, KVA_EFORMAT, "%s: the size of tensor %s overflows 64 bits",
                        parse->file, entry->name);
    if (total_bits % 8)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: tensor %s of %u-bit elements does not end at a byte", parse->file,
                        entry->name, bits);
    *ret_bytes = bits ? total_bits / 8 : UINT64_MAX;
    return KVA_OK;
}

static enum kva_status parse_offsets(struct parse *parse, struct kva_safetensors_entry *entry,
                                     const cJSON *offsets, uint64_t want_bytes)
{
    uint64_t room = parse->table->data_bytes - parse->data_begin;
    uint64_t begin = 0, end = 0;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !kva_json_whole(offsets->child, 0, UINT64_MAX, &begin) ||
        !kva_json_whole(offsets->child->next, 0, UINT64_MAX, &end))
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: data_offsets of tensor %s are not two whole numbers >= 0", parse->file,
                        entry->name);
    if (begin > end || end > room)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: tensor %s lies at %llu..%llu, but the file has %llu bytes of data",
                        parse->file, entry->name, (unsigned long long)begin,
                        (unsigned long long)end, (unsigned long long)room);
    if (want_bytes != UINT64_MAX && end - begin != want_bytes) {
        char shape[128];
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: tensor %s of shape %s in %s needs %llu bytes, its data_offsets give "
                        "%llu",
                        parse->file, entry->name,
                        kva_safetensors_show_shape(entry, shape, sizeof(shape)), entry->dtype,
                        (unsigned long long)want_bytes, (unsigned long long)(end - begin));
    }
    entry->begin = parse->data_begin + begin;
    entry->end = parse->data_begin + end;
    return KVA_OK;
}

static enum kva_status parse_entry(struct parse *parse, const cJSON *item)
{
    struct kva_safetensors *table = parse->table;
    struct kva_safetensors_entry *entry = &table->entries[table->entry_count];
    enum kva_status status = copy_name(parse, item->string, &entry->name);
    if (status)
        return status;
    if (!cJSON_IsObject(item))
        return kva_fail(parse->err, KVA_EFORMAT, "%s: tensor %s is not described by an object",
                        parse->file, entry->name);
    struct kva_fields fields = {item, parse->file, "", parse->err};
    const char *dtype = NULL;
    const cJSON *shape = NULL, *offsets = NULL;
    uint64_t bytes = 0;
    if ((status = kva_fields_string(&fields, "dtype", &dtype)) != KVA_OK ||
        (status = kva_fields_peek(&fields, "shape", &shape)) != KVA_OK ||
        (status = kva_fields_peek(&fields, "data_offsets", &offsets)) != KVA_OK)
        return kva_err_prefix(parse->err, status, "tensor %s", entry->name);
    if (!dtype)
        return kva_fail(parse->err, KVA_EFORMAT, "%s: tensor %s has no dtype", parse->file,
                        entry->name);
    kva_text_show(dtype, entry->dtype, sizeof(entry->dtype));
    status = parse_shape(parse, entry, shape, &bytes);
    if (!status)
        status = parse_offsets(parse, entry, offsets, bytes);
    if (!status)
        table->entry_count++;
    return status;
}

static int compare_names(const void *a, const void *b)
{
    const struct kva_safetensors_entry *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static int compare_places(const void *a, const void *b)
{
    const struct kva_safetensors_entry *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return left->end < right->end ? -1 : left->end > right->end;
}

/* In file order every tensor begins where the one before it ended. */
static enum kva_status check_places(struct parse *parse)
{
    struct kva_safetensors *table = parse->table;
    uint64_t at = parse->data_begin;
    const char *before = "the header";
    qsort(table->entries, table->entry_count, sizeof(*table->entries), compare_places);
    for (size_t i = 0; i < table->entry_count; i++) {
        const struct kva_safetensors_entry *entry = &table->entries[i];
        if (entry->begin != at)
            return kva_fail(parse->err, KVA_EFORMAT,
                            "%s: %s between %s and tensor %s: byte %llu against byte %llu",
                            parse->file, entry->begin < at ? "overlap" : "hole", before,
                            entry->name, (unsigned long long)at, (unsigned long long)entry->begin);
        at = entry->end;
        before = entry->name;
    }
    if (at != table->data_bytes)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: the tensors end at byte %llu, the file at byte %zu", parse->file,
                        (unsigned long long)at, table->data_bytes);
    return KVA_OK;
}

static enum kva_status check_names(struct parse *parse)
{
    struct kva_safetensors *table = parse->table;
    qsort(table->entries, table->entry_count, sizeof(*table->entries), compare_names);
    for (size_t i = 1; i < table->entry_count; i++)
        if (compare_names(&table->entries[i - 1], &table->entries[i]) == 0)
            return kva_fail(parse->err, KVA_EFORMAT, "%s: tensor %s stands there twice",
                            parse->file, table->entries[i].name);
    return KVA_OK;
}

static enum kva_status parse_header(struct parse *parse, const cJSON *header)
{
    struct kva_safetensors *table = parse->table;
    const cJSON *item;
    size_t count = 0;
    cJSON_ArrayForEach(item, header) count++;
    if (count > KVA_SAFETENSORS_TENSORS_MAX)
        return kva_fail(parse->err, KVA_EFORMAT, "%s: %zu tensors, allowed are %u", parse->file,
                        count, KVA_SAFETENSORS_TENSORS_MAX);
    table->entries = kva_arena_calloc(&table->arena, count, sizeof(*table->entries));
    if (!table->entries)
        return kva_fail(parse->err, KVA_ENOMEM, "%s: out of memory for %zu tensors", parse->file,
                        count);
    cJSON_ArrayForEach(item, header)
    {
        if (strcmp(item->string, "__metadata__") == 0)
            continue;
        enum kva_status status = parse_entry(parse, item);
        if (status)
            return status;
    }
    enum kva_status status = check_places(parse);
    return status ? status : check_names(parse);
}

/* The header's length; the file is known to hold that many bytes after it. */
static enum kva_status header_length(const uint8_t *data, size_t data_bytes, const char *file,
                                     size_t *ret, struct kva_err *err)
{
    uint64_t length = 0;
    if (data_bytes < 8)
        return kva_fail(err, KVA_EFORMAT,
                        "%s has %zu bytes, too few for a safetensors file (is it a Git LFS "
                        "pointer or an unfinished download?)",
                        file, data_bytes);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | data[i];
    if (length > KVA_SAFETENSORS_HEADER_BYTES_MAX)
        return kva_fail(err, KVA_EFORMAT,
                        "%s: header of %llu bytes, allowed are %u (is it a safetensors file?)",
                        file, (unsigned long long)length, KVA_SAFETENSORS_HEADER_BYTES_MAX);
    if (length > data_bytes - 8)
        return kva_fail(err, KVA_EFORMAT, "%s: header of %llu bytes, but the file has %zu", file,
                        (unsigned long long)length, data_bytes);
    *ret = (size_t)length;
    return KVA_OK;
}

enum kva_status kva_safetensors_init(struct kva_safetensors *ret, const void *data,
                                     size_t data_bytes, const char *file, struct kva_err *err)
{
    struct kva_safetensors table = {.data = data, .data_bytes = data_bytes};
    size_t length = 0;
    cJSON *header = NULL;
    enum kva_status status = header_length(data, data_bytes, file, &length, err);
    if (status)
        return status;
    status = kva_model_json_parse((const char *)table.data + 8, length, file, &header, err);
    if (status)
        return status;
    /* Entries and copies of names are bounded by the header's own bounds; twice that is room. */
    kva_arena_init(&table.arena,
                   KVA_SAFETENSORS_TENSORS_MAX * 2 *
                       (sizeof(struct kva_safetensors_entry) + KVA_SAFETENSORS_NAME_BYTES_MAX));
    struct parse parse = {&table, file, 8 + length, err};
    status = parse_header(&parse, header);
    cJSON_Delete(header);
    if (status) {
        kva_arena_finish(&table.arena);
        return status;
    }
    *ret = table;
    return KVA_OK;
}

void kva_safetensors_finish(struct kva_safetensors *table)
{
    kva_arena_finish(&table->arena);
    table->entries = NULL;
    table->entry_count = 0;
}

const struct kva_safetensors_entry *kva_safetensors_find(const struct kva_safetensors *table,
                                                         const char *name)
{
    struct kva_safetensors_entry key = {.name = name};
    if (!table->entry_count)
        return NULL;
    return bsearch(&key, table->entries, table->entry_count, sizeof(*table->entries),
                   compare_names);
}
