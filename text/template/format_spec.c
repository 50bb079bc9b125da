/* format_spec.c - numbers and text, padded to a width. */
#include "text/template/format_spec.h"

#include "text/template/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Pad `text`, whose first `sign` bytes stay before padding of '='. */
static void put_padded(struct kva_buf *buf, const struct kva_tpl_spec *spec, char align,
                       const char *text, size_t length, size_t sign)
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

static void put_number(struct kva_buf *buf, const struct kva_tpl_spec *spec, const char *text)
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

void kva_tpl_put_integer(struct kva_buf *buf, const struct kva_tpl_spec *spec, int64_t integer)
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

void kva_tpl_put_real(struct kva_buf *buf, const struct kva_tpl_spec *spec, double number)
{
    char text[KVA_TPL_WIDTH_MAX + 400];
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

enum kva_status kva_tpl_charge_number(struct kva_tpl_run *run, const struct kva_tpl_spec *spec)
{
    size_t digits = (size_t)spec->width + (spec->precision > 0 ? (size_t)spec->precision : 0);
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, KVA_TPL_NUMBER_STEPS));
    return kva_tpl_charge(run, KVA_TPL_ITEMS, digits);
}

enum kva_status kva_tpl_put_string(struct kva_tpl_run *run, struct kva_buf *buf,
                                   const struct kva_tpl_spec *spec,
                                   const struct kva_tpl_value *value, bool as_repr, char align)
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

bool kva_tpl_take_width(const char **at, const char *end, int *ret)
{
    int number = 0;
    while (*at < end && **at >= '0' && **at <= '9') {
        number = number * 10 + (*(*at)++ - '0');
        if (number > KVA_TPL_WIDTH_MAX)
            return false;
    }
    *ret = number;
    return true;
}
