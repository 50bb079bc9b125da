/* filters_number.c - filters over numbers. */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static enum kva_status filter_##name(struct kva_tpl_run *run KVA_UNUSED,                       \
                                         const struct kva_tpl_invocation *in,                      \
                                         struct kva_tpl_value *ret)

/* Longest text that is read as a number. */
#define NUMBER_BYTES_MAX 400

/* The text without white space around it and underscores between digits, NUL-terminated; false if
 * it is too long or its underscores are misplaced. */
static bool clean_number(const struct kva_tpl_str *text, char out[NUMBER_BYTES_MAX])
{
    size_t start = kva_tpl_leading_space(text->data, text->length);
    size_t end = text->length -
                 (start < text->length ? kva_tpl_trailing_space(text->data, text->length) : 0);
    size_t count = 0;
    if (end - start >= NUMBER_BYTES_MAX)
        return false;
    for (size_t i = start; i < end; i++) {
        char c = text->data[i];
        if (c == '_') {
            bool between =
                i > start && i + 1 < end && text->data[i - 1] != '_' && text->data[i + 1] != '_';
            if (!between)
                return false;
            continue;
        }
        if (c == '\0')
            return false;
        out[count++] = c;
    }
    out[count] = '\0';
    return count > 0;
}

/* float(text) as Python reads it; false if it does not. */
static bool parse_float(const struct kva_tpl_str *text, double *ret)
{
    char number[NUMBER_BYTES_MAX];
    if (!clean_number(text, number))
        return false;
    /* strtod would also take hexadecimal numbers and nan(...). */
    if (strpbrk(number, "xXpP("))
        return false;
    char *end;
    *ret = strtod(number, &end);
    return *end == '\0' && end > number && !kva_tpl_is_space((unsigned char)number[0]);
}

/* int(text, base); *ret_big: it is one that does not fit. */
static bool parse_int(const struct kva_tpl_str *text, int64_t base, int64_t *ret, bool *ret_big)
{
    char number[NUMBER_BYTES_MAX];
    *ret_big = false;
    if (base != 0 && (base < 2 || base > 36))
        return false;
    if (!clean_number(text, number))
        return false;
    size_t sign = number[0] == '-' || number[0] == '+';
    const char *digits = number + sign;
    char mark = digits[0] == '0' ? (char)(digits[1] | 0x20) : '\0';
    int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked && (base == 0 || base == marked)) {
        digits += 2;
        base = marked;
    }
    if (base == 0)
        base = 10;
    if (digits[0] == '\0' || strchr("+-", digits[0]) || (base == 16 && digits[1] == 'x'))
        return false;
    char *end;
    errno = 0;
    char value[NUMBER_BYTES_MAX];
    snprintf(value, sizeof(value), "%s%s", number[0] == '-' ? "-" : "", digits);
    *ret = strtoll(value, &end, (int)base);
    *ret_big = errno == ERANGE;
    return *end == '\0';
}

/* int(number): cut off; false if there is no such integer. */
static bool truncate_float(double number, int64_t *ret)
{
    if (!(fabs(number) < 9223372036854775808.0))
        return false;
    *ret = (int64_t)number;
    return true;
}

/* Pay for reading a text as a number, twice. */
static enum kva_status charge_text(struct kva_tpl_run *run, const struct kva_tpl_value *value)
{
    if (value->type != KVA_TPL_STRING)
        return KVA_OK;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, KVA_TPL_NUMBER_STEPS));
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, value->as.string->length));
    return kva_tpl_charge(run, KVA_TPL_CHARS, value->as.string->length);
}

FILTER(int)
{
    const struct kva_tpl_value *value = in->self;
    *ret = kva_tpl_arg_given(in, 0) ? in->args[0] : kva_tpl_int(0);
    int64_t base, integer;
    double number;
    bool big;
    KVA_TPL_TRY(charge_text(run, value));
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 1, 10, &base));
    if (value->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, value);
    if (kva_tpl_is_integer(value)) {
        *ret = kva_tpl_int(kva_tpl_as_integer(value));
    } else if (value->type == KVA_TPL_FLOAT) {
        if (truncate_float(value->as.number, &integer))
            *ret = kva_tpl_int(integer);
    } else if (value->type == KVA_TPL_STRING) {
        if (parse_int(value->as.string, base, &integer, &big)) {
            if (big)
                return kva_tpl_fail(run, "int: a number that does not fit into 64 bits");
            *ret = kva_tpl_int(integer);
        } else if (parse_float(value->as.string, &number) && truncate_float(number, &integer)) {
            *ret = kva_tpl_int(integer);
        }
    }
    return KVA_OK;
}

FILTER(float)
{
    const struct kva_tpl_value *value = in->self;
    double number;
    KVA_TPL_TRY(charge_text(run, value));
    if (value->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, value);
    if (kva_tpl_is_number(value))
        *ret = kva_tpl_float(kva_tpl_as_number(value));
    else if (value->type == KVA_TPL_STRING && parse_float(value->as.string, &number))
        *ret = kva_tpl_float(number);
    else
        *ret = kva_tpl_arg_given(in, 0) ? in->args[0] : kva_tpl_float(0.0);
    return KVA_OK;
}

FILTER(abs)
{
    const struct kva_tpl_value *value = in->self;
    if (value->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, value);
    if (!kva_tpl_is_number(value))
        return kva_tpl_fail(run, "bad operand type for abs(): '%s'", kva_tpl_type_name(value));
    if (value->type == KVA_TPL_FLOAT) {
        *ret = kva_tpl_float(fabs(value->as.number));
        return KVA_OK;
    }
    int64_t integer = kva_tpl_as_integer(value);
    if (integer == INT64_MIN)
        return kva_tpl_fail(run, "integer overflow: abs() does not fit into 64 bits");
    *ret = kva_tpl_int(integer < 0 ? -integer : integer);
    return KVA_OK;
}

/* round(number, precision): to the even digit at an exact half, like printf. */
static double round_common(double number, int64_t precision)
{
    char text[NUMBER_BYTES_MAX + 32];
    if (!isfinite(number) || precision > 300)
        return number;
    if (precision < -300)
        return 0.0 * number;
    if (precision >= 0) {
        snprintf(text, sizeof(text), "%.*f", (int)precision, number);
        return strtod(text, NULL);
    }
    double scale = pow(10.0, (double)-precision);
    return nearbyint(number / scale) * scale;
}

FILTER(round)
{
    const struct kva_tpl_value *value = in->self;
    int64_t precision;
    const char *method = "common";
    char name[16] = "";
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 0, &precision));
    if (kva_tpl_arg_given(in, 1)) {
        const struct kva_tpl_str *text;
        KVA_TPL_TRY(kva_tpl_arg_string(run, in, 1, &text));
        memcpy(name, text->data, kva_min_size(text->length, sizeof(name) - 1));
        method = name;
    }
    bool ceiling = strcmp(method, "ceil") == 0;
    bool common = strcmp(method, "common") == 0;
    if (!ceiling && !common && strcmp(method, "floor") != 0)
        return kva_tpl_fail(run, "method must be common, ceil or floor");
    if (value->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, value);
    if (!kva_tpl_is_number(value))
        return kva_tpl_fail(run, "type %s doesn't define __round__ method",
                            kva_tpl_type_name(value));
    if (common && value->type != KVA_TPL_FLOAT && precision >= 0) {
        *ret = kva_tpl_int(kva_tpl_as_integer(value));
        return KVA_OK;
    }
    double number = kva_tpl_as_number(value);
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, KVA_TPL_NUMBER_STEPS));
    if (common) {
        number = round_common(number, precision);
        *ret = value->type == KVA_TPL_FLOAT ? kva_tpl_float(number) : kva_tpl_int((int64_t)number);
        return KVA_OK;
    }
    double scale = pow(10.0, (double)precision);
    *ret = kva_tpl_float((ceiling ? ceil(number * scale) : floor(number * scale)) / scale);
    return KVA_OK;
}

FILTER(sum)
{
    static const struct kva_tpl_value nothing = {.type = KVA_TPL_ABSENT};
    const struct kva_tpl_list *items;
    bool by_path = kva_tpl_arg_given(in, 0) && in->args[0].type != KVA_TPL_NONE;
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    *ret = kva_tpl_arg_given(in, 1) ? in->args[1] : kva_tpl_int(0);
    for (size_t i = 0; i < items->count; i++) {
        struct kva_tpl_value item = items->items[i];
        struct kva_tpl_value total = *ret;
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
        if (by_path)
            KVA_TPL_TRY(kva_tpl_get_path(run, &items->items[i], &in->args[0], &nothing, &item));
        KVA_TPL_TRY(kva_tpl_binary(run, KVA_TPL_OP_ADD, &total, &item, ret));
    }
    return KVA_OK;
}

static const struct kva_tpl_builtin filters[] = {
    {"int", filter_int, "default base", 0},
    {"float", filter_float, "default", 0},
    {"abs", filter_abs, "", 0},
    {"round", filter_round, "precision method", 0},
    {"sum", filter_sum, "attribute start", 0},
};

const struct kva_tpl_table kva_tpl_number_filters = {filters, KVA_COUNT_OF(filters)};
