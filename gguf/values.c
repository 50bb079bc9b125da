/* values.c - what fields of a GGUF file say: numbers, strings, and what is wrong with them. */
#include "gguf/gguf_internal.h"

#include "base/utf8.h"

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

/* The bits of an element of fixed size. */
static bool element(const struct kva_gguf *gguf, const struct kva_gguf_field *field, uint64_t index,
                    uint64_t *ret)
{
    uint32_t bytes = kva_gguf_type_bytes(field->type);
    if (bytes == 0 || index >= field->count)
        return false;
    *ret = kva_gguf_load(gguf->data + field->begin + index * bytes, bytes);
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
    uint64_t length = kva_gguf_load(strings->gguf->data + strings->at, 8);
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

uint32_t kva_gguf_type_bytes(enum kva_gguf_type type)
{
    return type_table[type].bytes;
}
