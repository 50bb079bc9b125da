/* filters_text.c - filters over text. */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static enum kva_status filter_##name(                                                          \
        struct kva_tpl_run *run, const struct kva_tpl_invocation *in, struct kva_tpl_value *ret)

/* soft_str(operand): filters over text take anything. */
static enum kva_status operand(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                               struct kva_tpl_value *ret)
{
    return kva_tpl_to_str(run, in->self, true, ret);
}

static enum kva_status filter_case(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                   enum kva_tpl_case mode, struct kva_tpl_value *ret)
{
    struct kva_tpl_value text;
    KVA_TPL_TRY(operand(run, in, &text));
    return kva_tpl_change_case(run, &text, mode, ret);
}

FILTER(upper)
{
    return filter_case(run, in, KVA_TPL_CASE_UPPER, ret);
}

FILTER(lower)
{
    return filter_case(run, in, KVA_TPL_CASE_LOWER, ret);
}

FILTER(capitalize)
{
    return filter_case(run, in, KVA_TPL_CASE_CAPITALIZE, ret);
}

/* Words begin behind white space and the characters -({[< ; this is not str.title. */
static bool splits_words(uint32_t code)
{
    return kva_tpl_is_space(code) || (code < 0x80 && code != 0 && strchr("-({[<", (int)code));
}

FILTER(title)
{
    struct kva_tpl_value value;
    KVA_TPL_TRY(operand(run, in, &value));
    const struct kva_tpl_str *text = value.as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, text->length));
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    bool first = true;
    for (size_t at = 0; at < text->length;) {
        int bytes;
        uint32_t code = kva_tpl_char(text->data + at, &bytes);
        kva_tpl_put_case(&buf, text->data + at, (size_t)bytes,
                         first ? KVA_TPL_CASE_UPPER : KVA_TPL_CASE_LOWER);
        first = splits_words(code);
        at += (size_t)bytes;
    }
    return kva_tpl_buf_take(run, &buf, ret);
}

FILTER(trim)
{
    struct kva_tpl_value text;
    KVA_TPL_TRY(operand(run, in, &text));
    return kva_tpl_strip(run, in, &text, true, true, ret);
}

FILTER(replace)
{
    struct kva_tpl_value text, old, with;
    int64_t count = -1;
    KVA_TPL_TRY(kva_tpl_to_str(run, in->self, false, &text));
    KVA_TPL_TRY(kva_tpl_to_str(run, &in->args[0], false, &old));
    KVA_TPL_TRY(kva_tpl_to_str(run, &in->args[1], false, &with));
    if (kva_tpl_arg_given(in, 2) && in->args[2].type != KVA_TPL_NONE)
        KVA_TPL_TRY(kva_tpl_arg_int(run, in, 2, -1, &count));
    return kva_tpl_replace(run, text.as.string, old.as.string, with.as.string, count, ret);
}

FILTER(string)
{
    return operand(run, in, ret);
}

FILTER(safe)
{
    KVA_TPL_TRY(kva_tpl_to_str(run, in->self, false, ret));
    ret->safe = true;
    return KVA_OK;
}

FILTER(escape)
{
    return kva_tpl_escape(run, in->self, ret);
}

FILTER(forceescape)
{
    struct kva_tpl_value text;
    KVA_TPL_TRY(kva_tpl_to_str(run, in->self, false, &text));
    return kva_tpl_escape(run, &text, ret);
}

FILTER(center)
{
    static const struct kva_tpl_str name = {.data = "center", .length = 6};
    struct kva_tpl_value text;
    struct kva_tpl_value width = kva_tpl_arg_given(in, 0) ? in->args[0] : kva_tpl_int(80);
    struct kva_tpl_call call = {.args = &width, .count = 1};
    bool unsafe;
    KVA_TPL_TRY(operand(run, in, &text));
    return kva_tpl_invoke(run, kva_tpl_find_method(&text, &name, &unsafe), &text, &call, ret);
}

/* "{format}"|format(values): the % operator. */
FILTER(format)
{
    struct kva_tpl_value text, values;
    if (in->call->count > 0 && in->call->named_count > 0)
        return kva_tpl_fail(run, "can't handle positional and keyword arguments at the same time");
    KVA_TPL_TRY(operand(run, in, &text));
    if (in->call->named_count > 0) {
        KVA_TPL_TRY(kva_tpl_dict_new(run, KVA_TPL_DICT, &values));
        for (uint32_t i = 0; i < in->call->named_count; i++) {
            struct kva_tpl_value key = {.type = KVA_TPL_STRING,
                                        .as.string = in->call->named[i].name};
            KVA_TPL_TRY(kva_tpl_dict_set(run, values.as.dict, &key, &in->call->named[i].value));
        }
    } else {
        KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_TUPLE, in->call->count, &values));
        for (uint32_t i = 0; i < in->call->count; i++)
            KVA_TPL_TRY(kva_tpl_list_add(run, values.as.list, &in->call->args[i]));
    }
    KVA_TPL_TRY(kva_tpl_percent(run, text.as.string, &values, ret));
    ret->safe = text.safe;
    return KVA_OK;
}

/* The indentation: a number of spaces or a string. */
static enum kva_status indentation(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                   struct kva_tpl_value *ret)
{
    if (in->args[0].type == KVA_TPL_STRING) {
        *ret = in->args[0];
        return KVA_OK;
    }
    int64_t width;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 4, &width));
    struct kva_tpl_value space, count = kva_tpl_int(width);
    KVA_TPL_TRY(kva_tpl_borrow(run, " ", 1, &space));
    return kva_tpl_binary(run, KVA_TPL_OP_MUL, &space, &count, ret);
}

FILTER(indent)
{
    struct kva_tpl_value indent, lines;
    if (in->self->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, in->self);
    if (in->self->type != KVA_TPL_STRING)
        return kva_tpl_fail(run, "indent expects str, not %s", kva_tpl_type_name(in->self));
    bool first = kva_tpl_arg_truth(in, 1, false);
    bool blank = kva_tpl_arg_truth(in, 2, false);
    KVA_TPL_TRY(indentation(run, in, &indent));
    if (in->self->safe)
        KVA_TPL_TRY(kva_tpl_escape(run, &indent, &indent));
    const struct kva_tpl_str *text = in->self->as.string;
    const struct kva_tpl_str *with = indent.as.string;
    KVA_TPL_TRY(kva_tpl_split_lines(run, in->self, false, &lines));
    /* Jinja2 appends a newline before it splits: a text that ends with one keeps it. */
    size_t count = lines.as.list->count;
    if (text->length == 0 ||
        kva_tpl_is_line_break(kva_tpl_char(
            text->data + text->length - kva_tpl_last_char_bytes(text->data, text->length), NULL)))
        count++;
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    enum kva_status status = KVA_OK;
    for (size_t i = 0; i < count && !buf.failed && !status; i++) {
        static const struct kva_tpl_str nothing = {.data = ""};
        const struct kva_tpl_str *line =
            i < lines.as.list->count ? lines.as.list->items[i].as.string : &nothing;
        status = kva_tpl_charge(run, KVA_TPL_BYTES, 1 + with->length + line->length);
        if (status)
            break;
        if (i > 0)
            kva_buf_putc(&buf, '\n');
        if (i == 0 ? first : blank || line->length > 0)
            kva_buf_append(&buf, with->data, with->length);
        kva_buf_append(&buf, line->data, line->length);
    }
    if (status) {
        kva_buf_finish(&buf);
        return status;
    }
    KVA_TPL_TRY(kva_tpl_buf_take(run, &buf, ret));
    ret->safe = in->self->safe;
    return KVA_OK;
}

FILTER(truncate)
{
    static const struct kva_tpl_str dots = {.data = "...", .length = 3};
    const struct kva_tpl_str *end = &dots;
    int64_t length, leeway = 5;
    if (in->self->type != KVA_TPL_STRING)
        return kva_tpl_fail(run, "truncate expects str, not %s", kva_tpl_type_name(in->self));
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 255, &length));
    if (kva_tpl_arg_given(in, 2))
        KVA_TPL_TRY(kva_tpl_arg_string(run, in, 2, &end));
    if (kva_tpl_arg_given(in, 3) && in->args[3].type != KVA_TPL_NONE)
        KVA_TPL_TRY(kva_tpl_arg_int(run, in, 3, 5, &leeway));
    struct kva_tpl_value end_value = {.type = KVA_TPL_STRING, .as.string = end};
    int64_t end_length, text_length;
    KVA_TPL_TRY(kva_tpl_length(run, &end_value, &end_length));
    if (length < end_length || leeway < 0)
        return kva_tpl_fail(run, "truncate: expected length >= %lld and leeway >= 0",
                            (long long)end_length);
    const struct kva_tpl_str *text = in->self->as.string;
    KVA_TPL_TRY(kva_tpl_length(run, in->self, &text_length));
    if (text_length - leeway <= length) {
        *ret = *in->self;
        return KVA_OK;
    }
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, text->length));
    size_t keep = kva_tpl_char_offset(text->data, text->length, (size_t)(length - end_length));
    if (!kva_tpl_arg_truth(in, 1, false)) {
        static const struct kva_tpl_str blank = {.data = " ", .length = 1};
        size_t space;
        KVA_TPL_TRY(kva_tpl_search(run, text->data, keep, &blank, true, &space));
        keep = space == SIZE_MAX ? keep : space;
    }
    struct kva_tpl_str head = {.data = text->data, .length = keep};
    KVA_TPL_TRY(kva_tpl_join(run, &head, end, ret));
    ret->safe = in->self->safe;
    return KVA_OK;
}

FILTER(wordcount)
{
    struct kva_tpl_value value;
    KVA_TPL_TRY(operand(run, in, &value));
    const struct kva_tpl_str *text = value.as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, text->length));
    int64_t count = 0;
    bool inside = false;
    for (size_t at = 0; at < text->length;) {
        int bytes;
        bool word = kva_tpl_is_word(kva_tpl_char(text->data + at, &bytes));
        count += word && !inside;
        inside = word;
        at += (size_t)bytes;
    }
    *ret = kva_tpl_int(count);
    return KVA_OK;
}

static const struct kva_tpl_builtin filters[] = {
    {"trim", filter_trim, "chars", 0},
    {"string", filter_string, "", 0},
    {"upper", filter_upper, "", 0},
    {"lower", filter_lower, "", 0},
    {"capitalize", filter_capitalize, "", 0},
    {"title", filter_title, "", 0},
    {"replace", filter_replace, "old new count", 2},
    {"safe", filter_safe, "", 0},
    {"escape", filter_escape, "", 0},
    {"e", filter_escape, "", 0},
    {"forceescape", filter_forceescape, "", 0},
    {"center", filter_center, "width", 0},
    {"format", filter_format, NULL, 0},
    {"indent", filter_indent, "width first blank", 0},
    {"truncate", filter_truncate, "length killwords end leeway", 0},
    {"wordcount", filter_wordcount, "", 0},
};

const struct kva_tpl_table kva_tpl_text_filters = {filters, KVA_COUNT_OF(filters)};
