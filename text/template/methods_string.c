/* methods_string.c - methods of strings. */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static enum kva_status str_##name(                                                             \
        struct kva_tpl_run *run, const struct kva_tpl_invocation *in, struct kva_tpl_value *ret)

#define CASE_METHOD(name, mode)                                                                    \
    METHOD(name)                                                                                   \
    {                                                                                              \
        return kva_tpl_change_case(run, in->self, mode, ret);                                      \
    }

CASE_METHOD(upper, KVA_TPL_CASE_UPPER)
CASE_METHOD(lower, KVA_TPL_CASE_LOWER)
CASE_METHOD(title, KVA_TPL_CASE_TITLE)
CASE_METHOD(capitalize, KVA_TPL_CASE_CAPITALIZE)
CASE_METHOD(swapcase, KVA_TPL_CASE_SWAP)

METHOD(strip)
{
    return kva_tpl_strip(run, in, in->self, true, true, ret);
}

METHOD(lstrip)
{
    return kva_tpl_strip(run, in, in->self, true, false, ret);
}

METHOD(rstrip)
{
    return kva_tpl_strip(run, in, in->self, false, true, ret);
}

METHOD(replace)
{
    const struct kva_tpl_str *old, *with;
    int64_t count;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &old));
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 1, &with));
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 2, -1, &count));
    struct kva_tpl_value escaped;
    if (in->self->safe) {
        KVA_TPL_TRY(kva_tpl_escape(run, &in->args[1], &escaped));
        with = escaped.as.string;
    }
    KVA_TPL_TRY(kva_tpl_replace(run, in->self->as.string, old, with, count, ret));
    ret->safe = in->self->safe;
    return KVA_OK;
}

METHOD(splitlines)
{
    return kva_tpl_split_lines(run, in->self, kva_tpl_arg_truth(in, 0, false), ret);
}

METHOD(join)
{
    const struct kva_tpl_list *items;
    const struct kva_tpl_str *mark = in->self->as.string;
    KVA_TPL_TRY(kva_tpl_iterate(run, &in->args[0], &items));
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    for (size_t i = 0; i < items->count; i++) {
        if (items->items[i].type != KVA_TPL_STRING) {
            kva_buf_finish(&buf);
            return kva_tpl_fail(run, "sequence item %zu: expected str instance, %s found", i,
                                kva_tpl_type_name(&items->items[i]));
        }
        const struct kva_tpl_str *item = items->items[i].as.string;
        enum kva_status status = kva_tpl_charge(run, KVA_TPL_BYTES, mark->length + item->length);
        if (status) {
            kva_buf_finish(&buf);
            return status;
        }
        if (i > 0)
            kva_buf_append(&buf, mark->data, mark->length);
        kva_buf_append(&buf, item->data, item->length);
    }
    return kva_tpl_buf_take(run, &buf, ret);
}

/* Fill up to `width` characters: `left` and `right` say on which side. */
static enum kva_status justify(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                               bool left, bool right, struct kva_tpl_value *ret)
{
    static const struct kva_tpl_str space = {.data = " ", .length = 1};
    const struct kva_tpl_str *text = in->self->as.string;
    const struct kva_tpl_str *fill = &space;
    int64_t width;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 80, &width));
    if (kva_tpl_arg_given(in, 1))
        KVA_TPL_TRY(kva_tpl_arg_string(run, in, 1, &fill));
    /* No character has more than 4 bytes. */
    if (fill->length > 4 || kva_tpl_char_count(fill->data, fill->length) != 1)
        return kva_tpl_fail(run, "The fill character must be exactly one character long");
    int64_t count;
    KVA_TPL_TRY(kva_tpl_length(run, in->self, &count));
    int64_t missing = width > count ? width - count : 0;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, (size_t)missing));
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, text->length));
    int64_t before = right ? 0 : missing;
    /* str.center puts an odd rest to the left if the width is odd. */
    if (left && right)
        before = missing / 2 + (missing & width & 1);
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    for (int64_t i = 0; i < before && !buf.failed; i++)
        kva_buf_append(&buf, fill->data, fill->length);
    kva_buf_append(&buf, text->data, text->length);
    for (int64_t i = before; i < missing && !buf.failed; i++)
        kva_buf_append(&buf, fill->data, fill->length);
    KVA_TPL_TRY(kva_tpl_buf_take(run, &buf, ret));
    ret->safe = in->self->safe;
    return KVA_OK;
}

METHOD(center)
{
    return justify(run, in, true, true, ret);
}

METHOD(ljust)
{
    return justify(run, in, false, true, ret);
}

METHOD(rjust)
{
    return justify(run, in, true, false, ret);
}

METHOD(zfill)
{
    const struct kva_tpl_str *text = in->self->as.string;
    int64_t width, count;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 0, &width));
    KVA_TPL_TRY(kva_tpl_length(run, in->self, &count));
    int64_t missing = width > count ? width - count : 0;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, (size_t)missing));
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, text->length));
    size_t sign = text->length > 0 && (text->data[0] == '-' || text->data[0] == '+');
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    kva_buf_append(&buf, text->data, sign);
    for (int64_t i = 0; i < missing && !buf.failed; i++)
        kva_buf_putc(&buf, '0');
    kva_buf_append(&buf, text->data + sign, text->length - sign);
    return kva_tpl_buf_take(run, &buf, ret);
}

METHOD(format)
{
    KVA_TPL_TRY(kva_tpl_format(run, in->self->as.string, in->call, ret));
    ret->safe = in->self->safe;
    return KVA_OK;
}

/* Whether the string has characters and all of them are of one kind. */
static enum kva_status all_are(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                               bool (*kind)(uint32_t code), struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = in->self->as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, text->length));
    bool all = text->length > 0;
    for (size_t at = 0; all && at < text->length;) {
        int bytes;
        all = kind(kva_tpl_char(text->data + at, &bytes));
        at += (size_t)bytes;
    }
    *ret = kva_tpl_bool(all);
    return KVA_OK;
}

static bool is_alnum(uint32_t code)
{
    return code != '_' && kva_tpl_is_word(code);
}

METHOD(isspace)
{
    return all_are(run, in, kva_tpl_is_space, ret);
}

METHOD(isalpha)
{
    return all_are(run, in, kva_tpl_is_alpha, ret);
}

METHOD(isdigit)
{
    return all_are(run, in, kva_tpl_is_decimal, ret);
}

METHOD(isalnum)
{
    return all_are(run, in, is_alnum, ret);
}

static enum kva_status case_test(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                 const char *test, struct kva_tpl_value *ret)
{
    return kva_tpl_find_test(test, strlen(test))->fn(run, in, ret);
}

METHOD(isupper)
{
    return case_test(run, in, "upper", ret);
}

METHOD(islower)
{
    return case_test(run, in, "lower", ret);
}

static const struct kva_tpl_builtin methods[] = {
    {"strip", str_strip, "-", 0},
    {"lstrip", str_lstrip, "-", 0},
    {"rstrip", str_rstrip, "-", 0},
    {"replace", str_replace, "- - -", 2},
    {"upper", str_upper, "", 0},
    {"lower", str_lower, "", 0},
    {"title", str_title, "", 0},
    {"capitalize", str_capitalize, "", 0},
    {"casefold", str_lower, "", 0},
    {"swapcase", str_swapcase, "", 0},
    {"splitlines", str_splitlines, "keepends", 0},
    {"join", str_join, "-", 1},
    {"center", str_center, "- -", 1},
    {"ljust", str_ljust, "- -", 1},
    {"rjust", str_rjust, "- -", 1},
    {"zfill", str_zfill, "-", 1},
    {"format", str_format, NULL, 0},
    {"isspace", str_isspace, "", 0},
    {"isalpha", str_isalpha, "", 0},
    {"isdigit", str_isdigit, "", 0},
    {"isdecimal", str_isdigit, "", 0},
    {"isnumeric", str_isdigit, "", 0},
    {"isalnum", str_isalnum, "", 0},
    {"isupper", str_isupper, "", 0},
    {"islower", str_islower, "", 0},
    /* Known, so that a missing key of the same name is not mistaken for data; not supported. */
    {"encode", NULL, NULL, 0},
    {"expandtabs", NULL, NULL, 0},
    {"format_map", NULL, NULL, 0},
    {"isascii", NULL, NULL, 0},
    {"isidentifier", NULL, NULL, 0},
    {"isprintable", NULL, NULL, 0},
    {"istitle", NULL, NULL, 0},
    {"maketrans", NULL, NULL, 0},
    {"translate", NULL, NULL, 0},
};

const struct kva_tpl_table kva_tpl_string_methods = {methods, KVA_COUNT_OF(methods)};
