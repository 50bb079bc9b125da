/* json.c - from cJSON to values, and the filter `tojson`. */
#include "text/template/builtins.h"

#include "base/utf8.h"
#include "text/template/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whole numbers below this are exact in cJSON's double. */
#define EXACT_INTEGER_MAX 9007199254740992.0

static enum kva_status text_from_json(struct kva_tpl_run *run, const char *text, const char *what,
                                      struct kva_tpl_value *ret)
{
    size_t length = text ? strlen(text) : 0;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, length));
    if (!kva_utf8_valid(text, length))
        return kva_fail_param(run->err, KVA_EINVAL, what, "%s: a string is not valid UTF-8", what);
    return kva_tpl_borrow(run, text ? text : "", length, ret);
}

/* Of its text, where whoever parsed it has kept that (server/api/json.h): 1.0 is no integer, and those
 * of 64 bits are exact. Larger ones are floats. */
static struct kva_tpl_value number_from_json(const cJSON *json)
{
    const char *text = json->valuestring;
    if (text && !strpbrk(text, ".eE")) {
        errno = 0;
        long long integer = strtoll(text, NULL, 10);
        if (errno == 0)
            return kva_tpl_int(integer);
    }
    double number = json->valuedouble;
    bool whole = !text && fabs(number) <= EXACT_INTEGER_MAX && floor(number) == number;
    return whole ? kva_tpl_int((int64_t)number) : kva_tpl_float(number);
}

static enum kva_status nested_from_json(struct kva_tpl_run *run, const cJSON *json,
                                        const char *what, struct kva_tpl_value *ret)
{
    bool is_array = cJSON_IsArray(json);
    if (is_array)
        KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, ret));
    else
        KVA_TPL_TRY(kva_tpl_dict_new(run, KVA_TPL_DICT, ret));
    struct kva_tpl_value container = *ret;
    for (const cJSON *child = json->child; child; child = child->next) {
        struct kva_tpl_value item, key;
        KVA_TPL_TRY(kva_tpl_from_json(run, child, what, &item));
        if (is_array) {
            KVA_TPL_TRY(kva_tpl_list_add(run, container.as.list, &item));
            continue;
        }
        KVA_TPL_TRY(text_from_json(run, child->string, what, &key));
        KVA_TPL_TRY(kva_tpl_dict_set(run, container.as.dict, &key, &item));
    }
    return KVA_OK;
}

enum kva_status kva_tpl_from_json(struct kva_tpl_run *run, const cJSON *json, const char *what,
                                  struct kva_tpl_value *ret)
{
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
    if (cJSON_IsNull(json)) {
        *ret = kva_tpl_none();
    } else if (cJSON_IsBool(json)) {
        *ret = kva_tpl_bool(cJSON_IsTrue(json));
    } else if (cJSON_IsNumber(json)) {
        *ret = number_from_json(json);
    } else if (cJSON_IsString(json)) {
        return text_from_json(run, json->valuestring, what, ret);
    } else if (cJSON_IsArray(json) || cJSON_IsObject(json)) {
        KVA_TPL_TRY(kva_tpl_enter(run));
        KVA_TPL_TRY(nested_from_json(run, json, what, ret));
        kva_tpl_leave(run);
    } else {
        return kva_fail_param(run->err, KVA_EINVAL, what, "%s: holds something that is not JSON",
                              what);
    }
    return KVA_OK;
}

/* json.dumps */
struct writer {
    struct kva_tpl_run *run;
    struct kva_buf *buf;
    const struct kva_tpl_str *item_separator;
    const struct kva_tpl_str *key_separator;
    const struct kva_tpl_str *indent; /* NULL: everything on one line */
    bool ascii;
    bool sort_keys;
};

static enum kva_status put_string(struct writer *writer, const struct kva_tpl_str *string)
{
    KVA_TPL_TRY(kva_tpl_charge(writer->run, KVA_TPL_ITEMS, string->length));
    if (!writer->ascii) {
        kva_buf_json_string_plain(writer->buf, string->data, string->length);
        return KVA_OK;
    }
    kva_buf_putc(writer->buf, '"');
    for (size_t at = 0; at < string->length;) {
        int bytes;
        uint32_t code = kva_tpl_char(string->data + at, &bytes);
        if (code >= 0x10000)
            kva_buf_printf(writer->buf, "\\u%04x\\u%04x", 0xD7C0 + (code >> 10),
                           0xDC00 + (code & 0x3FF));
        else if (code >= 0x7F)
            kva_buf_printf(writer->buf, "\\u%04x", code);
        else if (code < 0x20 || code == '"' || code == '\\') {
            /* The shared writer knows the short escapes; its quotes are taken off again. */
            struct kva_buf one;
            kva_buf_init(&one, 16);
            kva_buf_json_string(&one, string->data + at, 1);
            if (!one.failed)
                kva_buf_append(writer->buf, one.data + 1, one.length - 2);
            kva_buf_finish(&one);
        } else
            kva_buf_putc(writer->buf, (char)code);
        at += (size_t)bytes;
    }
    kva_buf_putc(writer->buf, '"');
    return KVA_OK;
}

static enum kva_status put_line(struct writer *writer, uint32_t level)
{
    if (!writer->indent)
        return KVA_OK;
    KVA_TPL_TRY(kva_tpl_charge(writer->run, KVA_TPL_ITEMS, level));
    KVA_TPL_TRY(kva_tpl_charge(writer->run, KVA_TPL_BYTES, level * writer->indent->length));
    kva_buf_putc(writer->buf, '\n');
    for (uint32_t i = 0; i < level; i++)
        kva_buf_append(writer->buf, writer->indent->data, writer->indent->length);
    return KVA_OK;
}

static enum kva_status put_separator(struct writer *writer, const struct kva_tpl_str *separator)
{
    KVA_TPL_TRY(kva_tpl_charge(writer->run, KVA_TPL_BYTES, separator->length));
    kva_buf_append(writer->buf, separator->data, separator->length);
    return KVA_OK;
}

static void put_number(struct writer *writer, const struct kva_tpl_value *value)
{
    if (value->type == KVA_TPL_INT)
        kva_buf_printf(writer->buf, "%" PRId64, value->as.integer);
    else if (isnan(value->as.number) || isinf(value->as.number))
        kva_buf_puts(writer->buf, isnan(value->as.number) ? "NaN"
                                  : value->as.number > 0  ? "Infinity"
                                                          : "-Infinity");
    else
        kva_tpl_put_float(writer->buf, value->as.number);
}

static enum kva_status put_value(struct writer *writer, const struct kva_tpl_value *value,
                                 uint32_t level);

static enum kva_status put_array(struct writer *writer, const struct kva_tpl_list *list,
                                 uint32_t level)
{
    if (list->count == 0) {
        kva_buf_puts(writer->buf, "[]");
        return KVA_OK;
    }
    kva_buf_putc(writer->buf, '[');
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0)
            KVA_TPL_TRY(put_separator(writer, writer->item_separator));
        KVA_TPL_TRY(put_line(writer, level + 1));
        KVA_TPL_TRY(put_value(writer, &list->items[i], level + 1));
    }
    KVA_TPL_TRY(put_line(writer, level));
    kva_buf_putc(writer->buf, ']');
    return KVA_OK;
}

/* Keys become strings, as far as JSON has a word for them. */
static enum kva_status put_key(struct writer *writer, const struct kva_tpl_value *key)
{
    if (key->type == KVA_TPL_STRING) {
        return put_string(writer, key->as.string);
    }
    if (key->type != KVA_TPL_NONE && !kva_tpl_is_number(key))
        return kva_tpl_fail(writer->run, "keys must be str, int, float, bool or None, not %s",
                            kva_tpl_type_name(key));
    kva_buf_putc(writer->buf, '"');
    KVA_TPL_TRY(put_value(writer, key, 0));
    kva_buf_putc(writer->buf, '"');
    return KVA_OK;
}

/* The entries in the order they are written: sorted into a copy if that is asked for. */
static enum kva_status entry_order(struct writer *writer, const struct kva_tpl_dict *dict,
                                   struct kva_tpl_value **ret)
{
    *ret = NULL;
    if (!writer->sort_keys || dict->count == 0)
        return KVA_OK;
    struct kva_tpl_value *order = kva_tpl_alloc(writer->run, dict->count, 2 * sizeof(*order));
    if (!order)
        return writer->run->err->status;
    struct kva_tpl_value *keys = order + dict->count;
    for (uint32_t i = 0; i < dict->count; i++) {
        order[i] = kva_tpl_int(i);
        keys[i] = dict->entries[i].key;
    }
    *ret = order;
    return kva_tpl_sort(writer->run, order, keys, dict->count, false);
}

static enum kva_status put_object(struct writer *writer, const struct kva_tpl_dict *dict,
                                  uint32_t level)
{
    if (dict->count == 0) {
        kva_buf_puts(writer->buf, "{}");
        return KVA_OK;
    }
    struct kva_tpl_value *order;
    KVA_TPL_TRY(entry_order(writer, dict, &order));
    kva_buf_putc(writer->buf, '{');
    for (uint32_t i = 0; i < dict->count; i++) {
        const struct kva_tpl_entry *entry = &dict->entries[order ? order[i].as.integer : i];
        if (i > 0)
            KVA_TPL_TRY(put_separator(writer, writer->item_separator));
        KVA_TPL_TRY(put_line(writer, level + 1));
        KVA_TPL_TRY(put_key(writer, &entry->key));
        KVA_TPL_TRY(put_separator(writer, writer->key_separator));
        KVA_TPL_TRY(put_value(writer, &entry->value, level + 1));
    }
    KVA_TPL_TRY(put_line(writer, level));
    kva_buf_putc(writer->buf, '}');
    return KVA_OK;
}

static enum kva_status put_value(struct writer *writer, const struct kva_tpl_value *value,
                                 uint32_t level)
{
    struct kva_tpl_run *run = writer->run;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
    switch (value->type) {
    case KVA_TPL_NONE:
        kva_buf_puts(writer->buf, "null");
        return KVA_OK;
    case KVA_TPL_BOOL:
        kva_buf_puts(writer->buf, value->as.boolean ? "true" : "false");
        return KVA_OK;
    case KVA_TPL_INT:
    case KVA_TPL_FLOAT:
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, KVA_TPL_NUMBER_STEPS));
        put_number(writer, value);
        return KVA_OK;
    case KVA_TPL_STRING:
        return put_string(writer, value->as.string);
    case KVA_TPL_LIST:
    case KVA_TPL_TUPLE:
    case KVA_TPL_DICT:
        KVA_TPL_TRY(kva_tpl_enter(run));
        if (value->type == KVA_TPL_DICT)
            KVA_TPL_TRY(put_object(writer, value->as.dict, level));
        else
            KVA_TPL_TRY(put_array(writer, value->as.list, level));
        kva_tpl_leave(run);
        return writer->buf->failed
                   ? kva_tpl_buf_fail(run, writer->buf, writer->buf->max_bytes, "text")
                   : KVA_OK;
    default:
        return kva_tpl_fail(run, "Object of type %s is not JSON serializable",
                            kva_tpl_type_name(value));
    }
}

/* indent: None, a number of spaces, or a string that is the indentation. */
static enum kva_status set_indent(struct writer *writer, const struct kva_tpl_invocation *in)
{
    const struct kva_tpl_value *indent = &in->args[1];
    if (indent->type == KVA_TPL_ABSENT || indent->type == KVA_TPL_NONE)
        return KVA_OK;
    if (indent->type == KVA_TPL_STRING) {
        writer->indent = indent->as.string;
        return KVA_OK;
    }
    int64_t width;
    KVA_TPL_TRY(kva_tpl_arg_int(writer->run, in, 1, 0, &width));
    if (width < 0)
        width = 0;
    if (width > 1000)
        return kva_tpl_fail(writer->run, "tojson: an indent of more than 1000 spaces");
    struct kva_tpl_str *spaces = kva_tpl_alloc(writer->run, 1, sizeof(*spaces));
    char *data = spaces ? kva_tpl_alloc(writer->run, (size_t)width + 1, 1) : NULL;
    if (!data)
        return writer->run->err->status;
    memset(data, ' ', (size_t)width);
    *spaces = (struct kva_tpl_str){.data = data, .length = (size_t)width};
    writer->indent = spaces;
    return KVA_OK;
}

static enum kva_status set_separators(struct writer *writer, const struct kva_tpl_value *pair)
{
    if (pair->type == KVA_TPL_ABSENT || pair->type == KVA_TPL_NONE)
        return KVA_OK;
    if (!kva_tpl_is_sequence(pair) || pair->as.list->count != 2 ||
        pair->as.list->items[0].type != KVA_TPL_STRING ||
        pair->as.list->items[1].type != KVA_TPL_STRING)
        return kva_tpl_fail(writer->run, "tojson: separators must be two strings");
    writer->item_separator = pair->as.list->items[0].as.string;
    writer->key_separator = pair->as.list->items[1].as.string;
    return KVA_OK;
}

static enum kva_status filter_tojson(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                     struct kva_tpl_value *ret)
{
    static const struct kva_tpl_str comma = {.data = ", ", .length = 2};
    static const struct kva_tpl_str colon = {.data = ": ", .length = 2};
    static const struct kva_tpl_str line_comma = {.data = ",", .length = 1};
    struct kva_buf buf;
    struct writer writer = {.run = run, .buf = &buf, .key_separator = &colon};
    writer.ascii = kva_tpl_arg_truth(in, 0, false);
    writer.sort_keys = kva_tpl_arg_truth(in, 3, false);
    KVA_TPL_TRY(set_indent(&writer, in));
    writer.item_separator = writer.indent ? &line_comma : &comma;
    KVA_TPL_TRY(set_separators(&writer, &in->args[2]));
    kva_tpl_buf_init(run, &buf);
    enum kva_status status = put_value(&writer, in->self, 0);
    if (status) {
        kva_buf_finish(&buf);
        return status;
    }
    return kva_tpl_buf_take(run, &buf, ret);
}

static const struct kva_tpl_builtin filters[] = {
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0},
};

const struct kva_tpl_table kva_tpl_json_filters = {filters, KVA_COUNT_OF(filters)};
