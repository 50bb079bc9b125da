/* format.c - "...".format(values). */
#include "text/template/format_spec.h"

#include "text/template/text.h"

#include <string.h>

struct fields {
    struct kva_tpl_run *run;
    struct kva_buf *buf;
    const struct kva_tpl_call *call;
    uint32_t next; /* of the fields without a number */
};

/* "[[fill]align][sign][#][0][width][,][.precision][type]" */
static enum kva_status parse_spec(struct kva_tpl_run *run, const char *at, const char *end,
                                  struct kva_tpl_spec *ret)
{
    struct kva_tpl_spec spec = {.fill = " ", .precision = -1};
    size_t first = at < end ? (size_t)kva_tpl_char_bytes(at) : 0;
    bool good = true;
    if (first > 0 && at + first < end && strchr("<>^=", at[first])) {
        memcpy(spec.fill, at, first);
        spec.fill[first] = '\0';
        spec.align = at[first];
        at += first + 1;
    } else if (first > 0 && *at != '\0' && strchr("<>^=", *at)) {
        spec.align = *at++;
    }
    if (at < end && (*at == '+' || *at == '-' || *at == ' ')) {
        spec.sign = *at == '-' ? '\0' : *at;
        at++;
    }
    if (at < end && *at == '#') {
        spec.alternate = true;
        at++;
    }
    if (at < end && *at == '0' && !spec.align) {
        memcpy(spec.fill, "0", 2);
        spec.align = '=';
    }
    good = kva_tpl_take_width(&at, end, &spec.width);
    if (at < end && *at == ',') {
        spec.comma = true;
        at++;
    }
    if (good && at < end && *at == '.') {
        at++;
        good = kva_tpl_take_width(&at, end, &spec.precision);
    }
    if (at < end)
        spec.type = *at++;
    if (!good || at != end)
        return kva_tpl_fail(run, "Invalid format specifier");
    *ret = spec;
    return KVA_OK;
}

static enum kva_status put_formatted(struct fields *fields, const struct kva_tpl_spec *spec,
                                     const struct kva_tpl_value *value)
{
    struct kva_tpl_run *run = fields->run;
    char type = spec->type;
    bool real = type != '\0' && strchr("eEfFgG%", type);
    if ((kva_tpl_is_integer(value) && value->type != KVA_TPL_BOOL && !real) ||
        (value->type == KVA_TPL_BOOL && type != '\0' && !real && type != 's')) {
        if (type != '\0' && !strchr("bdoxXn", type))
            return kva_tpl_fail(run, "Unknown format code '%c' for object of type 'int'", type);
        KVA_TPL_TRY(kva_tpl_charge_number(run, spec));
        kva_tpl_put_integer(fields->buf, spec, kva_tpl_as_integer(value));
        return KVA_OK;
    }
    if (kva_tpl_is_number(value) &&
        (real || (value->type == KVA_TPL_FLOAT && type == '\0' && spec->precision >= 0))) {
        KVA_TPL_TRY(kva_tpl_charge_number(run, spec));
        kva_tpl_put_real(fields->buf, spec, kva_tpl_as_number(value));
        return KVA_OK;
    }
    if (type != '\0' && type != 's')
        return kva_tpl_fail(run, "Unknown format code '%c' for object of type '%s'", type,
                            kva_tpl_type_name(value));
    return kva_tpl_put_string(run, fields->buf, spec, value, false,
                              value->type == KVA_TPL_FLOAT ? '>' : '<');
}

/* The argument that `text` names: a number, a name, or the next one. */
static enum kva_status find_argument(struct fields *fields, const char *text, size_t length,
                                     struct kva_tpl_value *ret)
{
    const struct kva_tpl_call *call = fields->call;
    const char *at = text;
    int index;
    if (length == 0) {
        index = (int)kva_min_u32(fields->next, KVA_TPL_WIDTH_MAX);
        fields->next++;
    } else if (!kva_tpl_take_width(&at, text + length, &index) || at != text + length) {
        KVA_TPL_TRY(kva_tpl_charge(fields->run, KVA_TPL_ITEMS, call->named_count));
        for (uint32_t i = 0; i < call->named_count; i++) {
            if (call->named[i].name->length != length)
                continue;
            KVA_TPL_TRY(kva_tpl_charge(fields->run, KVA_TPL_BYTES, length));
            if (memcmp(call->named[i].name->data, text, length) == 0) {
                *ret = call->named[i].value;
                return KVA_OK;
            }
        }
        return kva_tpl_fail(fields->run, "KeyError: '%.*s'", (int)kva_min_size(length, 60), text);
    }
    if ((uint32_t)index >= call->count)
        return kva_tpl_fail(fields->run,
                            "Replacement index %d out of range for positional args tuple", index);
    *ret = call->args[index];
    return KVA_OK;
}

/* "name.attribute[item]". */
static enum kva_status find_field(struct fields *fields, const char *at, const char *end,
                                  struct kva_tpl_value *ret)
{
    struct kva_tpl_run *run = fields->run;
    size_t length = 0;
    while (at + length < end && at[length] != '.' && at[length] != '[')
        length++;
    KVA_TPL_TRY(find_argument(fields, at, length, ret));
    at += length;
    while (at < end) {
        bool item = *at++ == '[';
        length = 0;
        while (at + length < end &&
               (item ? at[length] != ']' : at[length] != '.' && at[length] != '['))
            length++;
        if (length == 0 || (item && at + length >= end))
            return kva_tpl_fail(run, "Empty attribute in format string");
        struct kva_tpl_value key;
        KVA_TPL_TRY(kva_tpl_borrow(run, at, length, &key));
        const char *digits = at;
        int index;
        if (item && kva_tpl_take_width(&digits, at + length, &index) && digits == at + length)
            key = kva_tpl_int(index);
        KVA_TPL_TRY(item ? kva_tpl_get_item(run, ret, &key, ret)
                         : kva_tpl_get_attribute(run, ret, &key, ret));
        at += length + item;
    }
    return KVA_OK;
}

/* "{name!r:spec}"; *at is behind the brace. */
static enum kva_status put_field(struct fields *fields, const char **at, const char *end)
{
    struct kva_tpl_run *run = fields->run;
    const char *close = memchr(*at, '}', (size_t)(end - *at));
    if (!close)
        return kva_tpl_fail(run, "expected '}' before end of string");
    if (memchr(*at, '{', (size_t)(close - *at)))
        return kva_tpl_fail(run, "a format inside of a format is not supported");
    const char *colon = memchr(*at, ':', (size_t)(close - *at));
    const char *name_end = colon ? colon : close;
    const char *mark = memchr(*at, '!', (size_t)(name_end - *at));
    char conversion = mark && mark + 2 == name_end ? mark[1] : '\0';
    if (mark && conversion != 'r' && conversion != 's')
        return kva_tpl_fail(run, "Unknown conversion specifier");
    struct kva_tpl_spec spec;
    struct kva_tpl_value value;
    KVA_TPL_TRY(find_field(fields, *at, mark ? mark : name_end, &value));
    KVA_TPL_TRY(parse_spec(run, colon ? colon + 1 : close, close, &spec));
    *at = close + 1;
    if (mark)
        return kva_tpl_put_string(run, fields->buf, &spec, &value, conversion == 'r', '<');
    return put_formatted(fields, &spec, &value);
}

static enum kva_status put_fields(struct fields *fields, const struct kva_tpl_str *format)
{
    const char *at = format->data;
    const char *end = at + format->length;
    while (at < end) {
        char c = *at++;
        if ((c == '{' || c == '}') && at < end && *at == c) {
            kva_buf_putc(fields->buf, c);
            at++;
        } else if (c == '}') {
            return kva_tpl_fail(fields->run, "Single '}' encountered in format string");
        } else if (c == '{') {
            KVA_TPL_TRY(kva_tpl_charge(fields->run, KVA_TPL_NODES, 1));
            KVA_TPL_TRY(put_field(fields, &at, end));
        } else {
            kva_buf_putc(fields->buf, c);
        }
    }
    return KVA_OK;
}

enum kva_status kva_tpl_format(struct kva_tpl_run *run, const struct kva_tpl_str *format,
                               const struct kva_tpl_call *call, struct kva_tpl_value *ret)
{
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    struct fields fields = {.run = run, .buf = &buf, .call = call};
    enum kva_status status = kva_tpl_charge(run, KVA_TPL_ITEMS, format->length);
    if (!status)
        status = put_fields(&fields, format);
    if (status) {
        kva_buf_finish(&buf);
        return status;
    }
    return kva_tpl_buf_take(run, &buf, ret);
}
