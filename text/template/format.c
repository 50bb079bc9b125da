/* format.c - the two ways to format text: "..." % values, and "...".format(values). */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Widths and precisions beyond this are an error: printf gets them. */
#define WIDTH_MAX 1000

/* What stands between the mark and the type of a field. */
struct spec {
    char fill[5]; /* one character */
    char align;   /* '<', '>', '^', '='; '\0': the type's own */
    char sign;    /* '+', ' ' or '\0' */
    bool alternate;
    bool comma;
    int width;
    int precision; /* -1: none */
    char type;     /* '\0': none */
};

/* Pad `text`, whose first `sign` bytes stay before padding of '='. */
static void put_padded(struct kva_buf *buf, const struct spec *spec, char align, const char *text,
                       size_t length, size_t sign)
{
    size_t count = kva_tpl_char_count(text, length);
    size_t missing = (size_t)spec->width > count ? (size_t)spec->width - count : 0;
    size_t before = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
    if (align != '=')
        sign = 0;
    kva_buf_append(buf, text, sign);
    for (size_t i = 0; i < before; i++)
        kva_buf_puts(buf, spec->fill);
    kva_buf_append(buf, text + sign, length - sign);
    for (size_t i = before; i < missing; i++)
        kva_buf_puts(buf, spec->fill);
}

static void put_grouped(struct kva_buf *buf, const char *digits)
{
    size_t sign = strspn(digits, "-+ ");
    size_t count = strspn(digits + sign, "0123456789");
    kva_buf_append(buf, digits, sign);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0)
            kva_buf_putc(buf, ',');
        kva_buf_putc(buf, digits[sign + i]);
    }
    kva_buf_puts(buf, digits + sign + count);
}

static void put_number(struct kva_buf *buf, const struct spec *spec, const char *text)
{
    struct kva_buf grouped;
    kva_buf_init(&grouped, 4096);
    if (spec->comma)
        put_grouped(&grouped, text);
    else
        kva_buf_puts(&grouped, text);
    if (!grouped.failed && grouped.data)
        put_padded(buf, spec, spec->align ? spec->align : '>', grouped.data, grouped.length,
                   strspn(grouped.data, "-+ "));
    kva_buf_finish(&grouped);
}

static void put_integer(struct kva_buf *buf, const struct spec *spec, int64_t integer)
{
    char text[128];
    uint64_t size = integer < 0 ? 0 - (uint64_t)integer : (uint64_t)integer;
    const char *sign = integer < 0 ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "";
    const char *prefix = "";
    char type = spec->type;
    if (spec->alternate)
        prefix = type == 'x'   ? "0x"
                 : type == 'X' ? "0X"
                 : type == 'o' ? "0o"
                 : type == 'b' ? "0b"
                               : "";
    if (type == 'b') {
        char bits[65];
        size_t at = sizeof(bits) - 1;
        bits[at] = '\0';
        do
            bits[--at] = (char)('0' + (size & 1));
        while (size >>= 1);
        snprintf(text, sizeof(text), "%s%s%s", sign, prefix, bits + at);
    } else if (type == 'x') {
        snprintf(text, sizeof(text), "%s%s%" PRIx64, sign, prefix, size);
    } else if (type == 'X') {
        snprintf(text, sizeof(text), "%s%s%" PRIX64, sign, prefix, size);
    } else if (type == 'o') {
        snprintf(text, sizeof(text), "%s%s%" PRIo64, sign, prefix, size);
    } else {
        snprintf(text, sizeof(text), "%s%" PRIu64, sign, size);
    }
    put_number(buf, spec, text);
}

static void put_real(struct kva_buf *buf, const struct spec *spec, double number)
{
    char text[WIDTH_MAX + 400];
    char format[8] = "%";
    char type = spec->type == '%' ? 'f' : spec->type ? spec->type : 'g';
    size_t at = 1;
    if (spec->sign)
        format[at++] = spec->sign;
    if (spec->alternate)
        format[at++] = '#';
    memcpy(format + at, ".*", 3);
    format[at + 2] = type;
    format[at + 3] = '\0';
    if (spec->type == '%')
        number *= 100;
        /* The compiler cannot check a format that is made here of known parts. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof(text) - 1, format, spec->precision < 0 ? 6 : spec->precision, number);
#pragma GCC diagnostic pop
    if (spec->type == '%')
        memcpy(text + strlen(text), "%", 2);
    put_number(buf, spec, text);
}

/* Pay for a number's digits, and for what fills it up. */
static enum kva_status charge_number(struct kva_tpl_run *run, const struct spec *spec)
{
    size_t digits = (size_t)spec->width + (spec->precision > 0 ? (size_t)spec->precision : 0);
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, KVA_TPL_NUMBER_STEPS));
    return kva_tpl_charge(run, KVA_TPL_ITEMS, digits);
}

static enum kva_status put_string(struct kva_tpl_run *run, struct kva_buf *buf,
                                  const struct spec *spec, const struct kva_tpl_value *value,
                                  bool as_repr, char align)
{
    struct kva_buf text;
    kva_tpl_buf_init(run, &text);
    enum kva_status status =
        as_repr ? kva_tpl_put_repr(run, &text, value) : kva_tpl_put_str(run, &text, value);
    size_t length = text.length;
    if (!status)
        status = kva_tpl_charge(run, KVA_TPL_CHARS, 2 * length + (size_t)spec->width);
    if (!status && spec->precision >= 0)
        length = kva_tpl_char_offset(text.data ? text.data : "", length, (size_t)spec->precision);
    if (!status)
        put_padded(buf, spec, spec->align ? spec->align : align, text.data ? text.data : "", length,
                   0);
    if (!status && text.failed)
        status = kva_tpl_buf_fail(run, &text, text.max_bytes, "text");
    kva_buf_finish(&text);
    return status;
}

/* Digits at *at; false if the number is over the maximum. */
static bool take_number(const char **at, const char *end, int *ret)
{
    int number = 0;
    while (*at < end && **at >= '0' && **at <= '9') {
        number = number * 10 + (*(*at)++ - '0');
        if (number > WIDTH_MAX)
            return false;
    }
    *ret = number;
    return true;
}

/* --- % -----------------------------------------------------------------------------------------*/

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

static enum kva_status put_percent_value(struct percent *percent, const struct spec *spec,
                                         const struct kva_tpl_value *value)
{
    struct kva_tpl_run *run = percent->run;
    int64_t integer;
    switch (spec->type) {
    case 's':
    case 'r':
        return put_string(run, percent->buf, spec, value, spec->type == 'r', '>');
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        KVA_TPL_TRY(charge_number(run, spec));
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
        put_integer(percent->buf, spec, integer);
        return KVA_OK;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        KVA_TPL_TRY(charge_number(run, spec));
        if (value->type == KVA_TPL_UNDEFINED)
            return kva_tpl_fail_undefined(run, value);
        if (!kva_tpl_is_number(value))
            return kva_tpl_fail(run, "must be real number, not %s", kva_tpl_type_name(value));
        put_real(percent->buf, spec, kva_tpl_as_number(value));
        return KVA_OK;
    default:
        return kva_tpl_fail(run, "unsupported format character '%c'", spec->type);
    }
}

/* One field; *at is behind its '%'. */
static enum kva_status put_percent_field(struct percent *percent, const char **at, const char *end)
{
    struct spec spec = {.fill = " ", .precision = -1};
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
    bool good = take_number(at, end, &spec.width);
    if (good && *at < end && **at == '.') {
        (*at)++;
        good = take_number(at, end, &spec.precision);
    }
    if (!good)
        return kva_tpl_fail(percent->run, "a format's width or precision is over %d", WIDTH_MAX);
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

/* --- format ------------------------------------------------------------------------------------*/

struct fields {
    struct kva_tpl_run *run;
    struct kva_buf *buf;
    const struct kva_tpl_call *call;
    uint32_t next; /* of the fields without a number */
};

/* "[[fill]align][sign][#][0][width][,][.precision][type]" */
static enum kva_status parse_spec(struct kva_tpl_run *run, const char *at, const char *end,
                                  struct spec *ret)
{
    struct spec spec = {.fill = " ", .precision = -1};
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
    good = take_number(&at, end, &spec.width);
    if (at < end && *at == ',') {
        spec.comma = true;
        at++;
    }
    if (good && at < end && *at == '.') {
        at++;
        good = take_number(&at, end, &spec.precision);
    }
    if (at < end)
        spec.type = *at++;
    if (!good || at != end)
        return kva_tpl_fail(run, "Invalid format specifier");
    *ret = spec;
    return KVA_OK;
}

static enum kva_status put_formatted(struct fields *fields, const struct spec *spec,
                                     const struct kva_tpl_value *value)
{
    struct kva_tpl_run *run = fields->run;
    char type = spec->type;
    bool real = type != '\0' && strchr("eEfFgG%", type);
    if ((kva_tpl_is_integer(value) && value->type != KVA_TPL_BOOL && !real) ||
        (value->type == KVA_TPL_BOOL && type != '\0' && !real && type != 's')) {
        if (type != '\0' && !strchr("bdoxXn", type))
            return kva_tpl_fail(run, "Unknown format code '%c' for object of type 'int'", type);
        KVA_TPL_TRY(charge_number(run, spec));
        put_integer(fields->buf, spec, kva_tpl_as_integer(value));
        return KVA_OK;
    }
    if (kva_tpl_is_number(value) &&
        (real || (value->type == KVA_TPL_FLOAT && type == '\0' && spec->precision >= 0))) {
        KVA_TPL_TRY(charge_number(run, spec));
        put_real(fields->buf, spec, kva_tpl_as_number(value));
        return KVA_OK;
    }
    if (type != '\0' && type != 's')
        return kva_tpl_fail(run, "Unknown format code '%c' for object of type '%s'", type,
                            kva_tpl_type_name(value));
    return put_string(run, fields->buf, spec, value, false,
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
        index = (int)kva_min_u32(fields->next, WIDTH_MAX);
        fields->next++;
    } else if (!take_number(&at, text + length, &index) || at != text + length) {
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
        if (item && take_number(&digits, at + length, &index) && digits == at + length)
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
    struct spec spec;
    struct kva_tpl_value value;
    KVA_TPL_TRY(find_field(fields, *at, mark ? mark : name_end, &value));
    KVA_TPL_TRY(parse_spec(run, colon ? colon + 1 : close, close, &spec));
    *at = close + 1;
    if (mark)
        return put_string(run, fields->buf, &spec, &value, conversion == 'r', '<');
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
