/* percent.c - "..." % values. */
#include "text/template/format_spec.h"

#include "text/template/text.h"

#include <math.h>
#include <string.h>

struct percent {
    struct kva_tpl_run *run;
    struct kva_buf *buf;
    const struct kva_tpl_value *values;
    size_t next; /* of a tuple's items, or of the one value */
};

static enum kva_status next_value(struct percent *percent, struct kva_tpl_value *ret)
{
    const struct kva_tpl_value *values = percent->values;
    bool is_tuple = values->type == KVA_TPL_TUPLE;
    size_t count = is_tuple ? values->as.list->count : 1;
    if (percent->next >= count)
        return kva_tpl_fail(percent->run, "not enough arguments for format string");
    *ret = is_tuple ? values->as.list->items[percent->next] : *values;
    percent->next++;
    return KVA_OK;
}

/* "%(name)": the value of the mapping. */
static enum kva_status named_value(struct percent *percent, const char **at, const char *end,
                                   struct kva_tpl_value *ret)
{
    const char *close = memchr(*at, ')', (size_t)(end - *at));
    if (!close)
        return kva_tpl_fail(percent->run, "incomplete format key");
    if (percent->values->type != KVA_TPL_DICT)
        return kva_tpl_fail(percent->run, "format requires a mapping");
    struct kva_tpl_value key;
    const struct kva_tpl_value *value;
    KVA_TPL_TRY(kva_tpl_borrow(percent->run, *at, (size_t)(close - *at), &key));
    KVA_TPL_TRY(kva_tpl_dict_get(percent->run, percent->values->as.dict, &key, &value));
    if (!value)
        return kva_tpl_fail(percent->run, "KeyError: '%.*s'",
                            (int)kva_min_size((size_t)(close - *at), 60), *at);
    *at = close + 1;
    *ret = *value;
    return KVA_OK;
}

static enum kva_status put_percent_value(struct percent *percent, const struct kva_tpl_spec *spec,
                                         const struct kva_tpl_value *value)
{
    struct kva_tpl_run *run = percent->run;
    int64_t integer;
    switch (spec->type) {
    case 's':
    case 'r':
        return kva_tpl_put_string(run, percent->buf, spec, value, spec->type == 'r', '>');
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        KVA_TPL_TRY(kva_tpl_charge_number(run, spec));
        if (value->type == KVA_TPL_UNDEFINED)
            return kva_tpl_fail_undefined(run, value);
        if (value->type == KVA_TPL_FLOAT && spec->type != 'x' && spec->type != 'X' &&
            spec->type != 'o' && fabs(value->as.number) < 9.2e18)
            integer = (int64_t)value->as.number;
        else if (kva_tpl_is_integer(value))
            integer = kva_tpl_as_integer(value);
        else
            return kva_tpl_fail(run, "%%%c format: a real number is required, not %s", spec->type,
                                kva_tpl_type_name(value));
        kva_tpl_put_integer(percent->buf, spec, integer);
        return KVA_OK;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        KVA_TPL_TRY(kva_tpl_charge_number(run, spec));
        if (value->type == KVA_TPL_UNDEFINED)
            return kva_tpl_fail_undefined(run, value);
        if (!kva_tpl_is_number(value))
            return kva_tpl_fail(run, "must be real number, not %s", kva_tpl_type_name(value));
        kva_tpl_put_real(percent->buf, spec, kva_tpl_as_number(value));
        return KVA_OK;
    default:
        return kva_tpl_fail(run, "unsupported format character '%c'", spec->type);
    }
}

/* One field; *at is behind its '%'. */
static enum kva_status put_percent_field(struct percent *percent, const char **at, const char *end)
{
    struct kva_tpl_spec spec = {.fill = " ", .precision = -1};
    struct kva_tpl_value value;
    bool named = *at < end && **at == '(';
    if (named) {
        (*at)++;
        KVA_TPL_TRY(named_value(percent, at, end, &value));
    }
    for (; *at < end && **at != '\0' && strchr("-+ 0#", **at); (*at)++) {
        if (**at == '-')
            spec.align = '<';
        else if (**at == '#')
            spec.alternate = true;
        else if (**at == '0' && spec.align != '<')
            memcpy(spec.fill, "0", 2), spec.align = '=';
        else if (**at == '+' || (**at == ' ' && !spec.sign))
            spec.sign = **at;
    }
    bool good = kva_tpl_take_width(at, end, &spec.width);
    if (good && *at < end && **at == '.') {
        (*at)++;
        good = kva_tpl_take_width(at, end, &spec.precision);
    }
    if (!good)
        return kva_tpl_fail(percent->run, "a format's width or precision is over %d",
                            KVA_TPL_WIDTH_MAX);
    if (*at >= end)
        return kva_tpl_fail(percent->run, "incomplete format");
    spec.type = *(*at)++;
    if (spec.type == '%') {
        kva_buf_putc(percent->buf, '%');
        return KVA_OK;
    }
    if (!named)
        KVA_TPL_TRY(next_value(percent, &value));
    if ((spec.type == 's' || spec.type == 'r') && spec.align == '=')
        memcpy(spec.fill, " ", 2), spec.align = '>';
    return put_percent_value(percent, &spec, &value);
}

static enum kva_status put_percent(struct percent *percent, const struct kva_tpl_str *format)
{
    const char *at = format->data;
    const char *end = at + format->length;
    while (at < end) {
        const char *mark = memchr(at, '%', (size_t)(end - at));
        const char *stop = mark ? mark : end;
        kva_buf_append(percent->buf, at, (size_t)(stop - at));
        at = stop;
        if (!mark)
            break;
        at++;
        KVA_TPL_TRY(kva_tpl_charge(percent->run, KVA_TPL_NODES, 1));
        KVA_TPL_TRY(put_percent_field(percent, &at, end));
    }
    const struct kva_tpl_value *values = percent->values;
    size_t count = values->type == KVA_TPL_TUPLE ? values->as.list->count : 1;
    bool is_mapping = values->type == KVA_TPL_DICT || values->type == KVA_TPL_LIST ||
                      values->type == KVA_TPL_RANGE;
    if (percent->next < count && !is_mapping)
        return kva_tpl_fail(percent->run, "not all arguments converted during string formatting");
    return KVA_OK;
}

enum kva_status kva_tpl_percent(struct kva_tpl_run *run, const struct kva_tpl_str *format,
                                const struct kva_tpl_value *values, struct kva_tpl_value *ret)
{
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    struct percent percent = {.run = run, .buf = &buf, .values = values};
    enum kva_status status = kva_tpl_charge(run, KVA_TPL_CHARS, format->length);
    if (!status)
        status = put_percent(&percent, format);
    if (status) {
        kva_buf_finish(&buf);
        return status;
    }
    return kva_tpl_buf_take(run, &buf, ret);
}
