/* gguf.c - reading metadata and the table of tensors, checked. */
#include "gguf/gguf.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t bytes; /* 0: not fixed */
} type_table[KVA_GGUF_TYPE_COUNT] = {
    [KVA_GGUF_TYPE_U8] = {"u8", 1},         [KVA_GGUF_TYPE_I8] = {"i8", 1},
    [KVA_GGUF_TYPE_U16] = {"u16", 2},       [KVA_GGUF_TYPE_I16] = {"i16", 2},
    [KVA_GGUF_TYPE_U32] = {"u32", 4},       [KVA_GGUF_TYPE_I32] = {"i32", 4},
    [KVA_GGUF_TYPE_F32] = {"f32", 4},       [KVA_GGUF_TYPE_BOOL] = {"bool", 1},
    [KVA_GGUF_TYPE_STRING] = {"string", 0}, [KVA_GGUF_TYPE_ARRAY] = {"array", 0},
    [KVA_GGUF_TYPE_U64] = {"u64", 8},       [KVA_GGUF_TYPE_I64] = {"i64", 8},
    [KVA_GGUF_TYPE_F64] = {"f64", 8},
};

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

static uint64_t load(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t i = bytes; i > 0; i--)
        value = value << 8 | at[i - 1];
    return value;
}

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
    *ret = load(parse->gguf->data + parse->at, bytes);
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
    uint32_t bytes = type_table[field->type].bytes;
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

/* The bits of an element of fixed size. */
static bool element(const struct kva_gguf *gguf, const struct kva_gguf_field *field, uint64_t index,
                    uint64_t *ret)
{
    uint32_t bytes = type_table[field->type].bytes;
    if (bytes == 0 || index >= field->count)
        return false;
    *ret = load(gguf->data + field->begin + index * bytes, bytes);
    return true;
}

bool kva_gguf_whole(const struct kva_gguf *gguf, const struct kva_gguf_field *field, uint64_t index,
                    int64_t *ret)
{
    uint64_t bits;
    if (!element(gguf, field, index, &bits))
        return false;
    switch (field->type) {
    case KVA_GGUF_TYPE_U8:
    case KVA_GGUF_TYPE_U16:
    case KVA_GGUF_TYPE_U32:
    case KVA_GGUF_TYPE_I64:
        *ret = (int64_t)bits;
        return true;
    case KVA_GGUF_TYPE_I8:
        *ret = (int8_t)bits;
        return true;
    case KVA_GGUF_TYPE_I16:
        *ret = (int16_t)bits;
        return true;
    case KVA_GGUF_TYPE_I32:
        *ret = (int32_t)bits;
        return true;
    case KVA_GGUF_TYPE_U64:
        if (bits > INT64_MAX)
            return false;
        *ret = (int64_t)bits;
        return true;
    default:
        return false;
    }
}

bool kva_gguf_number(const struct kva_gguf *gguf, const struct kva_gguf_field *field,
                     uint64_t index, double *ret)
{
    uint64_t bits;
    int64_t whole;
    if (kva_gguf_whole(gguf, field, index, &whole)) {
        *ret = (double)whole;
        return true;
    }
    if (!element(gguf, field, index, &bits))
        return false;
    if (field->type == KVA_GGUF_TYPE_F32) {
        uint32_t half = (uint32_t)bits;
        float value;
        memcpy(&value, &half, sizeof(value));
        *ret = (double)value;
        return true;
    }
    if (field->type == KVA_GGUF_TYPE_F64) {
        memcpy(ret, &bits, sizeof(*ret));
        return true;
    }
    return false;
}

bool kva_gguf_bool(const struct kva_gguf *gguf, const struct kva_gguf_field *field, bool *ret)
{
    uint64_t bits;
    if (field->is_array || field->type != KVA_GGUF_TYPE_BOOL || !element(gguf, field, 0, &bits) ||
        bits > 1)
        return false;
    *ret = bits == 1;
    return true;
}

static enum kva_status wrong(const struct kva_gguf *gguf, const struct kva_gguf_field *field,
                             const char *wanted, struct kva_err *err)
{
    return kva_fail_param(err, KVA_EFORMAT, field->key, "%s: %s is %s%s, expected %s", gguf->file,
                          field->key, field->is_array ? "an array of " : "of type ",
                          kva_gguf_type_name(field->type), wanted);
}

enum kva_status kva_gguf_get_whole(const struct kva_gguf *gguf, const char *key, int64_t min,
                                   int64_t max, int64_t *ret, struct kva_err *err)
{
    const struct kva_gguf_field *field = kva_gguf_find(gguf, key);
    int64_t value;
    if (!field)
        return KVA_OK;
    if (field->is_array || !kva_gguf_whole(gguf, field, 0, &value))
        return wrong(gguf, field, "a whole number", err);
    if (value < min || value > max)
        return kva_fail_param(err, KVA_EFORMAT, key,
                              "%s: %s is %lld, expected a whole number in %lld..%lld", gguf->file,
                              key, (long long)value, (long long)min, (long long)max);
    *ret = value;
    return KVA_OK;
}

enum kva_status kva_gguf_get_bool(const struct kva_gguf *gguf, const char *key, bool *ret,
                                  struct kva_err *err)
{
    const struct kva_gguf_field *field = kva_gguf_find(gguf, key);
    return !field || kva_gguf_bool(gguf, field, ret) ? KVA_OK
                                                     : wrong(gguf, field, "true or false", err);
}

enum kva_status kva_gguf_get_string(const struct kva_gguf *gguf, const char *key, const char **ret,
                                    size_t *ret_length, struct kva_err *err)
{
    const struct kva_gguf_field *field = kva_gguf_find(gguf, key);
    const char *text;
    size_t length;
    if (!field)
        return KVA_OK;
    struct kva_gguf_strings strings = kva_gguf_strings(gguf, field);
    if (field->is_array || !kva_gguf_strings_next(&strings, &text, &length))
        return wrong(gguf, field, "a string", err);
    if (memchr(text, '\0', length))
        return kva_fail_param(err, KVA_EFORMAT, key, "%s: the string %s has a NUL in it",
                              gguf->file, key);
    if (!kva_utf8_valid(text, length))
        return kva_fail_param(err, KVA_EFORMAT, key, "%s: the string %s is not UTF-8", gguf->file,
                              key);
    *ret = text;
    *ret_length = length;
    return KVA_OK;
}

struct kva_gguf_strings kva_gguf_strings(const struct kva_gguf *gguf,
                                         const struct kva_gguf_field *field)
{
    return (struct kva_gguf_strings){.gguf = gguf, .field = field, .at = field->begin};
}

bool kva_gguf_strings_next(struct kva_gguf_strings *strings, const char **ret, size_t *ret_length)
{
    const struct kva_gguf_field *field = strings->field;
    if (field->type != KVA_GGUF_TYPE_STRING || strings->index == field->count ||
        field->end - strings->at < 8)
        return false;
    uint64_t length = load(strings->gguf->data + strings->at, 8);
    if (length > field->end - strings->at - 8)
        return false;
    *ret = (const char *)strings->gguf->data + strings->at + 8;
    *ret_length = length;
    strings->at += 8 + length;
    strings->index++;
    return true;
}

const char *kva_gguf_type_name(enum kva_gguf_type type)
{
    return type < KVA_GGUF_TYPE_COUNT ? type_table[type].name : "none";
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
