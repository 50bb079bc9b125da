/* gguf.c - reading metadata and the table of tensors, checked. */
#include "gguf/gguf_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fewest bytes that a field or a tensor takes: what a count may be is bounded by the file's size.
 */
#define FIELD_BYTES_MIN  (8u + 1 + 4 + 1)
#define TENSOR_BYTES_MIN (8u + 1 + 4 + 8 + 4 + 8)

struct parse {
    struct kva_gguf *gguf;
    uint64_t at;
    struct kva_err *err;
};

/* ---- bytes ---------------------------------------------------------------------------------- */

static enum kva_status cut(const struct parse *parse, const char *what)
{
    return kva_fail(parse->err, KVA_EFORMAT,
                    "%s: the file ends in %s: it has %zu bytes (an unfinished download?)",
                    parse->gguf->file, what, parse->gguf->data_bytes);
}

static enum kva_status take(struct parse *parse, uint32_t bytes, const char *what, uint64_t *ret)
{
    if (parse->gguf->data_bytes - parse->at < bytes)
        return cut(parse, what);
    *ret = kva_gguf_load(parse->gguf->data + parse->at, bytes);
    parse->at += bytes;
    return KVA_OK;
}

/* Control characters and non-ASCII are replaced, and the text cut. */
static const char *show(const char *text, size_t length, char *out, size_t size)
{
    size_t count = kva_min_size(length, size - 1);
    for (size_t i = 0; i < count; i++)
        out[i] = text[i] >= 0x20 && text[i] < 0x7F ? text[i] : '?';
    out[count] = '\0';
    return out;
}

/* A key or a name: printable ASCII of bounded length, copied. */
static enum kva_status take_name(struct parse *parse, const char *what, uint64_t length_max,
                                 const char **ret)
{
    struct kva_gguf *gguf = parse->gguf;
    uint64_t length = 0;
    char text[64];
    enum kva_status status = take(parse, 8, what, &length);
    if (status)
        return status;
    if (length == 0 || length > length_max)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: %s at byte %llu has %llu bytes, allowed are 1..%llu", gguf->file, what,
                        (unsigned long long)parse->at, (unsigned long long)length,
                        (unsigned long long)length_max);
    if (gguf->data_bytes - parse->at < length)
        return cut(parse, what);
    char *copy = kva_arena_strndup(&gguf->arena, (const char *)gguf->data + parse->at, length);
    if (!copy)
        return kva_fail(parse->err, KVA_ENOMEM, "%s: out of memory", gguf->file);
    for (size_t i = 0; i < length; i++)
        if (copy[i] <= 0x20 || copy[i] >= 0x7F)
            return kva_fail(parse->err, KVA_EFORMAT,
                            "%s: %s '%s' has a NUL, a space or another character that is not "
                            "printable ASCII",
                            gguf->file, what, show(copy, length, text, sizeof(text)));
    parse->at += length;
    *ret = copy;
    return KVA_OK;
}

/* ---- fields --------------------------------------------------------------------------------- */

static enum kva_status too_long(const struct parse *parse, const struct kva_gguf_field *field)
{
    return kva_fail(parse->err, KVA_EFORMAT,
                    "%s: %s has %llu elements of type %s, more than the %zu bytes of the file hold",
                    parse->gguf->file, field->key, (unsigned long long)field->count,
                    kva_gguf_type_name(field->type), parse->gguf->data_bytes);
}

static enum kva_status skip_strings(struct parse *parse, const struct kva_gguf_field *field)
{
    const struct kva_gguf *gguf = parse->gguf;
    if (field->count > (gguf->data_bytes - parse->at) / 8)
        return too_long(parse, field);
    for (uint64_t i = 0; i < field->count; i++) {
        uint64_t length = 0;
        enum kva_status status = take(parse, 8, field->key, &length);
        if (status)
            return status;
        if (length > gguf->data_bytes - parse->at)
            return kva_fail(parse->err, KVA_EFORMAT,
                            "%s: string %llu of %s has %llu bytes, the file has %llu after it",
                            gguf->file, (unsigned long long)i, field->key,
                            (unsigned long long)length,
                            (unsigned long long)(gguf->data_bytes - parse->at));
        parse->at += length;
    }
    return KVA_OK;
}

static enum kva_status skip_values(struct parse *parse, struct kva_gguf_field *field)
{
    const struct kva_gguf *gguf = parse->gguf;
    uint32_t bytes = kva_gguf_type_bytes(field->type);
    enum kva_status status = KVA_OK;
    field->begin = parse->at;
    if (bytes == 0)
        status = skip_strings(parse, field);
    else if (field->count > (gguf->data_bytes - parse->at) / bytes)
        status = too_long(parse, field);
    else
        parse->at += field->count * bytes;
    field->end = parse->at;
    return status;
}

static enum kva_status take_type(struct parse *parse, const char *key, enum kva_gguf_type *ret)
{
    uint64_t type = 0;
    enum kva_status status = take(parse, 4, key, &type);
    if (!status && type >= KVA_GGUF_TYPE_COUNT)
        status = kva_fail(parse->err, KVA_EFORMAT, "%s: %s is of type %llu, which does not exist",
                          parse->gguf->file, key, (unsigned long long)type);
    if (!status)
        *ret = (enum kva_gguf_type)type;
    return status;
}

static enum kva_status parse_field(struct parse *parse, struct kva_gguf_field *field)
{
    enum kva_status status = take_name(parse, "the key", KVA_GGUF_KEY_BYTES_MAX, &field->key);
    if (!status)
        status = take_type(parse, field->key, &field->type);
    field->count = 1;
    if (!status && field->type == KVA_GGUF_TYPE_ARRAY) {
        field->is_array = true;
        status = take_type(parse, field->key, &field->type);
        if (!status && field->type == KVA_GGUF_TYPE_ARRAY)
            status = kva_fail(parse->err, KVA_EUNSUPPORTED,
                              "%s: %s is an array of arrays, which is not supported",
                              parse->gguf->file, field->key);
        if (!status)
            status = take(parse, 8, field->key, &field->count);
    }
    return status ? status : skip_values(parse, field);
}

static int compare_fields(const void *a, const void *b)
{
    return strcmp(((const struct kva_gguf_field *)a)->key, ((const struct kva_gguf_field *)b)->key);
}

static enum kva_status parse_fields(struct parse *parse, uint64_t count)
{
    struct kva_gguf *gguf = parse->gguf;
    if (count > KVA_GGUF_FIELDS_MAX || count > (gguf->data_bytes - parse->at) / FIELD_BYTES_MIN)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: %llu metadata fields, allowed are %u, in %zu bytes", gguf->file,
                        (unsigned long long)count, KVA_GGUF_FIELDS_MAX, gguf->data_bytes);
    gguf->fields = kva_arena_calloc(&gguf->arena, count, sizeof(*gguf->fields));
    if (!gguf->fields)
        return kva_fail(parse->err, KVA_ENOMEM, "%s: out of memory", gguf->file);
    for (; gguf->field_count < count; gguf->field_count++) {
        enum kva_status status = parse_field(parse, &gguf->fields[gguf->field_count]);
        if (status)
            return status;
    }
    qsort(gguf->fields, count, sizeof(*gguf->fields), compare_fields);
    for (uint64_t i = 1; i < count; i++)
        if (compare_fields(&gguf->fields[i - 1], &gguf->fields[i]) == 0)
            return kva_fail(parse->err, KVA_EFORMAT, "%s: %s stands there twice", gguf->file,
                            gguf->fields[i].key);
    return KVA_OK;
}

/* ---- tensors -------------------------------------------------------------------------------- */

/* Dimensions, and the bytes that they need; 0 where the format is not known. */
static enum kva_status parse_dims(struct parse *parse, struct kva_gguf_tensor *tensor,
                                  uint64_t *ret_elements)
{
    const char *file = parse->gguf->file;
    uint64_t rank = 0, elements = 1;
    enum kva_status status = take(parse, 4, tensor->name, &rank);
    if (status)
        return status;
    if (rank == 0 || rank > KVA_GGUF_RANK_MAX)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: tensor %s has %llu dimensions, allowed are 1..%u", file, tensor->name,
                        (unsigned long long)rank, KVA_GGUF_RANK_MAX);
    tensor->rank = (uint32_t)rank;
    for (uint32_t i = 0; i < tensor->rank && !status; i++) {
        status = take(parse, 8, tensor->name, &tensor->dims[i]);
        if (!status && (tensor->dims[i] > INT64_MAX ||
                        __builtin_mul_overflow(elements, tensor->dims[i], &elements)))
            status = kva_fail(parse->err, KVA_EFORMAT,
                              "%s: the element count of tensor %s overflows 64 bits", file,
                              tensor->name);
    }
    *ret_elements = elements;
    return status;
}

static enum kva_status tensor_bytes(const struct parse *parse, const struct kva_gguf_tensor *tensor,
                                    uint64_t elements, uint64_t *ret)
{
    const struct kva_gguf_format *format = tensor->format;
    *ret = 0;
    if (!format)
        return KVA_OK;
    if (tensor->dims[0] % format->block_values)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: tensor %s has rows of %llu, which are no whole blocks of %u as %s "
                        "has them",
                        parse->gguf->file, tensor->name, (unsigned long long)tensor->dims[0],
                        format->block_values, format->name);
    if (__builtin_mul_overflow(elements / format->block_values, (uint64_t)format->block_bytes, ret))
        return kva_fail(parse->err, KVA_EFORMAT, "%s: the size of tensor %s overflows 64 bits",
                        parse->gguf->file, tensor->name);
    return KVA_OK;
}

/* Offsets are kept in begin and sizes in end, until the header's end is known. */
static enum kva_status parse_tensor(struct parse *parse, struct kva_gguf_tensor *tensor)
{
    uint64_t elements = 0, format = 0;
    enum kva_status status =
        take_name(parse, "the tensor's name", KVA_GGUF_NAME_BYTES_MAX, &tensor->name);
    if (!status)
        status = parse_dims(parse, tensor, &elements);
    if (!status)
        status = take(parse, 4, tensor->name, &format);
    if (status)
        return status;
    tensor->format_id = (uint32_t)format;
    tensor->format = kva_gguf_format_find(tensor->format_id);
    status = take(parse, 8, tensor->name, &tensor->begin);
    return status ? status : tensor_bytes(parse, tensor, elements, &tensor->end);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct kva_gguf_tensor *)a)->name,
                  ((const struct kva_gguf_tensor *)b)->name);
}

static int compare_places(const void *a, const void *b)
{
    const struct kva_gguf_tensor *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return left->end < right->end ? -1 : left->end > right->end;
}

/* Places in the file instead of offset and size. */
static enum kva_status place_tensor(const struct parse *parse, struct kva_gguf_tensor *tensor,
                                    uint64_t data_begin)
{
    const struct kva_gguf *gguf = parse->gguf;
    if (data_begin > gguf->data_bytes)
        return cut(parse, "the padding before the tensors' data");
    uint64_t room = gguf->data_bytes - data_begin;
    if (tensor->begin % gguf->alignment)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: tensor %s begins at byte %llu of the data, which is no multiple of "
                        "the alignment %u",
                        gguf->file, tensor->name, (unsigned long long)tensor->begin,
                        gguf->alignment);
    if (tensor->begin > room || tensor->end > room - tensor->begin)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s: tensor %s needs %llu bytes from byte %llu of the data on, the file "
                        "has %llu bytes of data (an unfinished download?)",
                        gguf->file, tensor->name, (unsigned long long)tensor->end,
                        (unsigned long long)tensor->begin, (unsigned long long)room);
    tensor->begin += data_begin;
    tensor->end += tensor->begin;
    return KVA_OK;
}

static enum kva_status check_tensors(const struct parse *parse)
{
    struct kva_gguf *gguf = parse->gguf;
    uint64_t data_begin = kva_align_up(parse->at, gguf->alignment);
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        enum kva_status status = place_tensor(parse, &gguf->tensors[i], data_begin);
        if (status)
            return status;
    }
    qsort(gguf->tensors, gguf->tensor_count, sizeof(*gguf->tensors), compare_places);
    for (size_t i = 1; i < gguf->tensor_count; i++)
        if (gguf->tensors[i].begin < gguf->tensors[i - 1].end)
            return kva_fail(parse->err, KVA_EFORMAT,
                            "%s: tensors %s and %s overlap: byte %llu against byte %llu",
                            gguf->file, gguf->tensors[i - 1].name, gguf->tensors[i].name,
                            (unsigned long long)gguf->tensors[i - 1].end,
                            (unsigned long long)gguf->tensors[i].begin);
    qsort(gguf->tensors, gguf->tensor_count, sizeof(*gguf->tensors), compare_names);
    for (size_t i = 1; i < gguf->tensor_count; i++)
        if (compare_names(&gguf->tensors[i - 1], &gguf->tensors[i]) == 0)
            return kva_fail(parse->err, KVA_EFORMAT, "%s: tensor %s stands there twice", gguf->file,
                            gguf->tensors[i].name);
    return KVA_OK;
}

static enum kva_status parse_tensors(struct parse *parse, uint64_t count)
{
    struct kva_gguf *gguf = parse->gguf;
    if (count > KVA_GGUF_TENSORS_MAX || count > (gguf->data_bytes - parse->at) / TENSOR_BYTES_MIN)
        return kva_fail(parse->err, KVA_EFORMAT, "%s: %llu tensors, allowed are %u, in %zu bytes",
                        gguf->file, (unsigned long long)count, KVA_GGUF_TENSORS_MAX,
                        gguf->data_bytes);
    gguf->tensors = kva_arena_calloc(&gguf->arena, count, sizeof(*gguf->tensors));
    if (!gguf->tensors)
        return kva_fail(parse->err, KVA_ENOMEM, "%s: out of memory", gguf->file);
    for (; gguf->tensor_count < count; gguf->tensor_count++) {
        enum kva_status status = parse_tensor(parse, &gguf->tensors[gguf->tensor_count]);
        if (status)
            return status;
    }
    return check_tensors(parse);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static enum kva_status parse_start(struct parse *parse, uint64_t *ret_tensors, uint64_t *ret_fields)
{
    struct kva_gguf *gguf = parse->gguf;
    uint64_t version = 0;
    if (gguf->data_bytes < 8 || memcmp(gguf->data, "GGUF", 4) != 0)
        return kva_fail(parse->err, KVA_EFORMAT,
                        "%s is no GGUF file: it does not begin with GGUF (is it a Git LFS pointer "
                        "or an unfinished download?)",
                        gguf->file);
    parse->at = 4;
    enum kva_status status = take(parse, 4, "the header", &version);
    if (status)
        return status;
    gguf->version = (uint32_t)version;
    if (version != 2 && version != 3)
        return kva_fail(parse->err, KVA_EUNSUPPORTED,
                        "%s: GGUF version %u is not supported%s; supported are 2 and 3, "
                        "little-endian",
                        gguf->file, gguf->version,
                        version == 0x02000000 || version == 0x03000000 ? " (it is big-endian)"
                                                                       : "");
    status = take(parse, 8, "the header", ret_tensors);
    return status ? status : take(parse, 8, "the header", ret_fields);
}

static enum kva_status parse_all(struct parse *parse)
{
    struct kva_gguf *gguf = parse->gguf;
    uint64_t tensors = 0, fields = 0;
    int64_t alignment = 32;
    enum kva_status status = parse_start(parse, &tensors, &fields);
    if (!status)
        status = parse_fields(parse, fields);
    if (!status)
        status = kva_gguf_get_whole(gguf, "general.alignment", 8, KVA_GGUF_ALIGNMENT_MAX,
                                    &alignment, parse->err);
    if (!status && (alignment & (alignment - 1)))
        status = kva_fail(parse->err, KVA_EFORMAT,
                          "%s: general.alignment is %lld, expected a power of two", gguf->file,
                          (long long)alignment);
    gguf->alignment = (uint32_t)alignment;
    return status ? status : parse_tensors(parse, tensors);
}

enum kva_status kva_gguf_init(struct kva_gguf *ret, const void *data, size_t data_bytes,
                              const char *file, struct kva_err *err)
{
    struct kva_gguf gguf = {.file = file, .data = data, .data_bytes = data_bytes};
    struct parse parse = {.gguf = &gguf, .err = err};
    /* Entries, keys and names, with padding: all bounded above. */
    kva_arena_init(
        &gguf.arena,
        KVA_GGUF_TENSORS_MAX * 2 * (sizeof(struct kva_gguf_tensor) + KVA_GGUF_NAME_BYTES_MAX) +
            KVA_GGUF_FIELDS_MAX * 2 * (sizeof(struct kva_gguf_field) + KVA_GGUF_KEY_BYTES_MAX));
    enum kva_status status = parse_all(&parse);
    if (status) {
        kva_arena_finish(&gguf.arena);
        return status;
    }
    *ret = gguf;
    return KVA_OK;
}

void kva_gguf_finish(struct kva_gguf *gguf)
{
    kva_arena_finish(&gguf->arena);
    gguf->fields = NULL;
    gguf->tensors = NULL;
    gguf->field_count = gguf->tensor_count = 0;
}

/* ---- look-ups ------------------------------------------------------------------------------- */

const struct kva_gguf_field *kva_gguf_find(const struct kva_gguf *gguf, const char *key)
{
    const struct kva_gguf_field wanted = {.key = key};
    return gguf->field_count ? bsearch(&wanted, gguf->fields, gguf->field_count,
                                       sizeof(*gguf->fields), compare_fields)
                             : NULL;
}

const struct kva_gguf_tensor *kva_gguf_find_tensor(const struct kva_gguf *gguf, const char *name)
{
    const struct kva_gguf_tensor wanted = {.name = name};
    return gguf->tensor_count ? bsearch(&wanted, gguf->tensors, gguf->tensor_count,
                                        sizeof(*gguf->tensors), compare_names)
                              : NULL;
}

const char *kva_gguf_show_shape(const struct kva_gguf_tensor *tensor, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (uint32_t i = tensor->rank; i > 0 && used < size; i--)
        used += (size_t)snprintf(out + used, size - used, "%s%llu", i < tensor->rank ? ", " : "",
                                 (unsigned long long)tensor->dims[i - 1]);
    if (used < size)
        snprintf(out + used, size - used, "]");
    return out;
}
