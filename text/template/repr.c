/* repr.c - str() and repr(), escaping. */
#include "text/template/run.h"

#include "base/utf8.h"
#include "text/template/builtins.h"
#include "text/template/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest digits that read back as the same number, laid out as Python does: with an exponent
 * below 1e-4 and from 1e16 on. */
void kva_tpl_put_float(struct kva_buf *buf, double number)
{
    if (isnan(number) || isinf(number)) {
        kva_buf_puts(buf, isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
        return;
    }
    char text[40];
    int precision = 0;
    do {
        snprintf(text, sizeof(text), "%.*e", precision, number);
    } while (strtod(text, NULL) != number && ++precision < 17);
    const char *e = strchr(text, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        kva_buf_append(buf, text, (size_t)(e - text));
        kva_buf_printf(buf, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision > exponent ? precision - exponent : 0;
    kva_buf_printf(buf, "%.*f", decimals, number);
    if (decimals == 0)
        kva_buf_puts(buf, ".0");
}

static void put_string_repr(struct kva_buf *buf, const struct kva_tpl_str *string)
{
    bool single = memchr(string->data, '\'', string->length) != NULL;
    bool twice = memchr(string->data, '"', string->length) != NULL;
    char quote = single && !twice ? '"' : '\'';
    kva_buf_putc(buf, quote);
    for (size_t at = 0; at < string->length;) {
        int bytes;
        uint32_t code = kva_tpl_char(string->data + at, &bytes);
        if (code == '\\' || code == (unsigned char)quote)
            kva_buf_printf(buf, "\\%c", (int)code);
        else if (code == '\n')
            kva_buf_puts(buf, "\\n");
        else if (code == '\r')
            kva_buf_puts(buf, "\\r");
        else if (code == '\t')
            kva_buf_puts(buf, "\\t");
        else if (kva_tpl_is_printable(code))
            kva_buf_append(buf, string->data + at, (size_t)bytes);
        else
            kva_buf_printf(buf,
                           code < 0x100     ? "\\x%02x"
                           : code < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                           code);
        at += (size_t)bytes;
    }
    kva_buf_putc(buf, quote);
}

static enum kva_status put_items(struct kva_tpl_run *run, struct kva_buf *buf,
                                 const struct kva_tpl_list *list, const char *open,
                                 const char *close)
{
    kva_buf_puts(buf, open);
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0)
            kva_buf_puts(buf, ", ");
        KVA_TPL_TRY(kva_tpl_put_repr(run, buf, &list->items[i]));
    }
    kva_buf_puts(buf, close);
    return KVA_OK;
}

static enum kva_status put_dict(struct kva_tpl_run *run, struct kva_buf *buf,
                                const struct kva_tpl_dict *dict)
{
    kva_buf_putc(buf, '{');
    for (uint32_t i = 0; i < dict->count; i++) {
        if (i > 0)
            kva_buf_puts(buf, ", ");
        KVA_TPL_TRY(kva_tpl_put_repr(run, buf, &dict->entries[i].key));
        kva_buf_puts(buf, ": ");
        KVA_TPL_TRY(kva_tpl_put_repr(run, buf, &dict->entries[i].value));
    }
    kva_buf_putc(buf, '}');
    return KVA_OK;
}

static enum kva_status put_view(struct kva_tpl_run *run, struct kva_buf *buf,
                                const struct kva_tpl_value *value)
{
    const struct kva_tpl_list *items;
    KVA_TPL_TRY(kva_tpl_iterate(run, value, &items));
    kva_buf_printf(buf, "%s(", kva_tpl_type_name(value));
    KVA_TPL_TRY(put_items(run, buf, items, "[", "]"));
    kva_buf_putc(buf, ')');
    return KVA_OK;
}

static void put_range(struct kva_buf *buf, const struct kva_tpl_range *range)
{
    kva_buf_printf(buf, "range(%" PRId64 ", %" PRId64, range->start, range->stop);
    if (range->step != 1)
        kva_buf_printf(buf, ", %" PRId64, range->step);
    kva_buf_putc(buf, ')');
}

/* What holds other values. */
static enum kva_status put_nested(struct kva_tpl_run *run, struct kva_buf *buf,
                                  const struct kva_tpl_value *value)
{
    switch (value->type) {
    case KVA_TPL_LIST:
        return put_items(run, buf, value->as.list, "[", "]");
    case KVA_TPL_TUPLE:
        return put_items(run, buf, value->as.list, "(", value->as.list->count == 1 ? ",)" : ")");
    case KVA_TPL_DICT:
        return put_dict(run, buf, value->as.dict);
    case KVA_TPL_NAMESPACE:
        kva_buf_puts(buf, "<Namespace ");
        KVA_TPL_TRY(put_dict(run, buf, value->as.dict));
        kva_buf_putc(buf, '>');
        return KVA_OK;
    default:
        return put_view(run, buf, value);
    }
}

enum kva_status kva_tpl_put_repr(struct kva_tpl_run *run, struct kva_buf *buf,
                                 const struct kva_tpl_value *value)
{
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
    switch (value->type) {
    case KVA_TPL_UNDEFINED:
        kva_buf_puts(buf, "Undefined");
        return KVA_OK;
    case KVA_TPL_NONE:
        kva_buf_puts(buf, "None");
        return KVA_OK;
    case KVA_TPL_BOOL:
        kva_buf_puts(buf, value->as.boolean ? "True" : "False");
        return KVA_OK;
    case KVA_TPL_INT:
        kva_buf_printf(buf, "%" PRId64, value->as.integer);
        return KVA_OK;
    case KVA_TPL_FLOAT:
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, KVA_TPL_NUMBER_STEPS));
        kva_tpl_put_float(buf, value->as.number);
        return KVA_OK;
    case KVA_TPL_STRING:
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, value->as.string->length));
        if (value->safe)
            kva_buf_puts(buf, "Markup(");
        put_string_repr(buf, value->as.string);
        if (value->safe)
            kva_buf_putc(buf, ')');
        return KVA_OK;
    case KVA_TPL_LIST:
    case KVA_TPL_TUPLE:
    case KVA_TPL_DICT:
    case KVA_TPL_NAMESPACE:
    case KVA_TPL_VIEW:
        KVA_TPL_TRY(kva_tpl_enter(run));
        KVA_TPL_TRY(put_nested(run, buf, value));
        kva_tpl_leave(run);
        return buf->failed ? kva_tpl_buf_fail(run, buf, buf->max_bytes, "text") : KVA_OK;
    case KVA_TPL_RANGE:
        put_range(buf, value->as.range);
        return KVA_OK;
    case KVA_TPL_MACRO:
        if (value->as.macro->name)
            KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, value->as.macro->name->length));
        kva_buf_puts(buf, "<Macro ");
        if (value->as.macro->name)
            put_string_repr(buf, value->as.macro->name);
        else
            kva_buf_puts(buf, "anonymous");
        kva_buf_putc(buf, '>');
        return KVA_OK;
    default:
        /* Python would show an address here. */
        kva_buf_printf(buf, "<%s object>", kva_tpl_type_name(value));
        return KVA_OK;
    }
}

enum kva_status kva_tpl_put_str(struct kva_tpl_run *run, struct kva_buf *buf,
                                const struct kva_tpl_value *value)
{
    if (value->type == KVA_TPL_STRING) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, value->as.string->length));
        kva_buf_append(buf, value->as.string->data, value->as.string->length);
        return KVA_OK;
    }
    if (value->type == KVA_TPL_UNDEFINED)
        return KVA_OK;
    return kva_tpl_put_repr(run, buf, value);
}

enum kva_status kva_tpl_to_str(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                               bool soft, struct kva_tpl_value *ret)
{
    if (value->type == KVA_TPL_STRING) {
        bool safe = soft && value->safe;
        *ret = *value;
        ret->safe = safe;
        return KVA_OK;
    }
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    enum kva_status status = kva_tpl_put_str(run, &buf, value);
    if (status) {
        kva_buf_finish(&buf);
        return status;
    }
    return kva_tpl_buf_take(run, &buf, ret);
}

enum kva_status kva_tpl_escape(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                               struct kva_tpl_value *ret)
{
    if (value->type == KVA_TPL_STRING && value->safe) {
        *ret = *value;
        return KVA_OK;
    }
    struct kva_tpl_value plain;
    KVA_TPL_TRY(kva_tpl_to_str(run, value, false, &plain));
    const struct kva_tpl_str *text = plain.as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, text->length));
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    for (size_t i = 0; i < text->length; i++) {
        switch (text->data[i]) {
        case '&':
            kva_buf_puts(&buf, "&amp;");
            break;
        case '<':
            kva_buf_puts(&buf, "&lt;");
            break;
        case '>':
            kva_buf_puts(&buf, "&gt;");
            break;
        case '\'':
            kva_buf_puts(&buf, "&#39;");
            break;
        case '"':
            kva_buf_puts(&buf, "&#34;");
            break;
        default:
            kva_buf_putc(&buf, text->data[i]);
            break;
        }
    }
    KVA_TPL_TRY(kva_tpl_buf_take(run, &buf, ret));
    ret->safe = true;
    return KVA_OK;
}
