/* Methods of strings. */
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

/* The characters to strip; None is white space. */
static enum kva_status strip(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                             bool left, bool right, struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *chars = NULL;
    if (kva_tpl_arg_given(in, 0) && in->args[0].type != KVA_TPL_NONE)
        KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &chars));
    return kva_tpl_strip(run, in->self, chars, left, right, ret);
}

METHOD(strip)
{
    return strip(run, in, true, true, ret);
}

METHOD(lstrip)
{
    return strip(run, in, true, false, ret);
}

METHOD(rstrip)
{
    return strip(run, in, false, true, ret);
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

/* The part of the string between the optional bounds `start` and `end`, which count characters. */
struct window {
    size_t from, length; /* bytes */
    size_t first;        /* character */
    bool empty;          /* start lies behind the end */
};

static enum kva_status get_window(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                  struct window *ret)
{
    const struct kva_tpl_str *text = in->self->as.string;
    *ret = (struct window){.length = text->length};
    if (!kva_tpl_arg_given(in, 1))
        return KVA_OK;
    int64_t count = kva_tpl_length(in->self);
    int64_t start, end = count;
    KVA_TPL_TRY(kva_tpl_charge(run, text->length / 64));
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 1, 0, &start));
    if (kva_tpl_arg_given(in, 2) && in->args[2].type != KVA_TPL_NONE)
        KVA_TPL_TRY(kva_tpl_arg_int(run, in, 2, count, &end));
    start = start < -count ? 0 : start < 0 ? start + count : start;
    end = end < -count ? 0 : end < 0 ? end + count : end > count ? count : end;
    ret->empty = start > end;
    if (ret->empty)
        return KVA_OK;
    ret->first = (size_t)start;
    ret->from = kva_tpl_char_offset(text->data, text->length, (size_t)start);
    ret->length = kva_tpl_char_offset(text->data + ret->from, text->length - ret->from,
                                      (size_t)(end - start));
    return KVA_OK;
}

static bool has_affix(const char *text, size_t length, const struct kva_tpl_str *affix, bool at_end)
{
    if (affix->length > length)
        return false;
    const char *at = at_end ? text + length - affix->length : text;
    return memcmp(at, affix->data, affix->length) == 0;
}

/* startswith and endswith: of one string, or of any of a tuple. */
static enum kva_status test_affix(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                  bool at_end, struct kva_tpl_value *ret)
{
    const struct kva_tpl_value *affix = &in->args[0];
    const struct kva_tpl_value *items = affix;
    size_t count = 1;
    struct window window;
    KVA_TPL_TRY(get_window(run, in, &window));
    if (affix->type == KVA_TPL_TUPLE) {
        items = affix->as.list->items;
        count = affix->as.list->count;
        KVA_TPL_TRY(kva_tpl_charge(run, count / 4));
    }
    *ret = kva_tpl_bool(false);
    for (size_t i = 0; i < count; i++) {
        if (items[i].type != KVA_TPL_STRING)
            return kva_tpl_fail(run, "%s first arg must be str or a tuple of str, not %s",
                                at_end ? "endswith" : "startswith", kva_tpl_type_name(&items[i]));
        if (!window.empty && has_affix(in->self->as.string->data + window.from, window.length,
                                       items[i].as.string, at_end))
            *ret = kva_tpl_bool(true);
    }
    return KVA_OK;
}

METHOD(startswith)
{
    return test_affix(run, in, false, ret);
}

METHOD(endswith)
{
    return test_affix(run, in, true, ret);
}

/* Position of the argument in characters; -1. */
static enum kva_status find(struct kva_tpl_run *run, const struct kva_tpl_invocation *in, bool last,
                            int64_t *ret)
{
    const struct kva_tpl_str *needle;
    struct window window;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &needle));
    KVA_TPL_TRY(get_window(run, in, &window));
    const struct kva_tpl_str *whole = in->self->as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, whole->length / 32));
    const char *text = whole->data + window.from;
    size_t at = SIZE_MAX;
    if (!window.empty)
        at = last ? kva_tpl_find_last(text, window.length, needle->data, needle->length)
                  : kva_tpl_find(text, window.length, 0, needle->data, needle->length);
    *ret = at == SIZE_MAX ? -1 : (int64_t)(window.first + kva_tpl_char_count(text, at));
    return KVA_OK;
}

METHOD(find)
{
    int64_t at;
    KVA_TPL_TRY(find(run, in, false, &at));
    *ret = kva_tpl_int(at);
    return KVA_OK;
}

METHOD(rfind)
{
    int64_t at;
    KVA_TPL_TRY(find(run, in, true, &at));
    *ret = kva_tpl_int(at);
    return KVA_OK;
}

METHOD(index)
{
    KVA_TPL_TRY(str_find(run, in, ret));
    return ret->as.integer < 0 ? kva_tpl_fail(run, "substring not found") : KVA_OK;
}

METHOD(rindex)
{
    KVA_TPL_TRY(str_rfind(run, in, ret));
    return ret->as.integer < 0 ? kva_tpl_fail(run, "substring not found") : KVA_OK;
}

METHOD(count)
{
    const struct kva_tpl_str *needle;
    struct window window;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &needle));
    KVA_TPL_TRY(get_window(run, in, &window));
    KVA_TPL_TRY(kva_tpl_charge(run, in->self->as.string->length / 16));
    const char *text = in->self->as.string->data + window.from;
    int64_t count = 0;
    if (needle->length == 0 && !window.empty) {
        count = (int64_t)kva_tpl_char_count(text, window.length) + 1;
    } else if (!window.empty) {
        for (size_t at = 0;; at += needle->length) {
            at = kva_tpl_find(text, window.length, at, needle->data, needle->length);
            if (at == SIZE_MAX)
                break;
            count++;
        }
    }
    *ret = kva_tpl_int(count);
    return KVA_OK;
}

/* The pieces of a split, from the left; at most `limit` cuts, all if negative. */
static enum kva_status split_words(struct kva_tpl_run *run, const struct kva_tpl_value *self,
                                   int64_t limit, struct kva_tpl_list *list)
{
    const struct kva_tpl_str *text = self->as.string;
    size_t at = kva_tpl_leading_space(text->data, text->length);
    while (at < text->length) {
        size_t end = at;
        if (limit == 0)
            end = text->length;
        while (limit != 0 && end < text->length &&
               !kva_tpl_is_space(kva_tpl_char(text->data + end, NULL)))
            end += (size_t)kva_tpl_char_bytes(text->data + end);
        struct kva_tpl_value word;
        KVA_TPL_TRY(kva_tpl_piece(run, self, at, end - at, &word));
        KVA_TPL_TRY(kva_tpl_list_add(run, list, &word));
        at = end + kva_tpl_leading_space(text->data + end, text->length - end);
        limit--;
    }
    return KVA_OK;
}

static enum kva_status split_at(struct kva_tpl_run *run, const struct kva_tpl_value *self,
                                const struct kva_tpl_str *mark, int64_t limit,
                                struct kva_tpl_list *list)
{
    const struct kva_tpl_str *text = self->as.string;
    struct kva_tpl_value piece;
    size_t at = 0;
    while (limit-- != 0) {
        size_t found = kva_tpl_find(text->data, text->length, at, mark->data, mark->length);
        if (found == SIZE_MAX)
            break;
        KVA_TPL_TRY(kva_tpl_piece(run, self, at, found - at, &piece));
        KVA_TPL_TRY(kva_tpl_list_add(run, list, &piece));
        at = found + mark->length;
    }
    KVA_TPL_TRY(kva_tpl_piece(run, self, at, text->length - at, &piece));
    return kva_tpl_list_add(run, list, &piece);
}

static void reverse(struct kva_tpl_list *list)
{
    for (size_t i = 0; i < list->count / 2; i++) {
        struct kva_tpl_value swap = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = swap;
    }
}

/* The same from the right; the pieces come last one first. */
static enum kva_status rsplit_words(struct kva_tpl_run *run, const struct kva_tpl_value *self,
                                    int64_t limit, struct kva_tpl_list *list)
{
    const struct kva_tpl_str *text = self->as.string;
    size_t end = text->length - kva_tpl_trailing_space(text->data, text->length);
    while (end > 0) {
        size_t at = end;
        if (limit == 0)
            at = 0;
        while (limit != 0 && at > 0) {
            size_t bytes = kva_tpl_last_char_bytes(text->data, at);
            if (kva_tpl_is_space(kva_tpl_char(text->data + at - bytes, NULL)))
                break;
            at -= bytes;
        }
        struct kva_tpl_value word;
        KVA_TPL_TRY(kva_tpl_piece(run, self, at, end - at, &word));
        KVA_TPL_TRY(kva_tpl_list_add(run, list, &word));
        if (limit-- == 0)
            break;
        end = at - kva_tpl_trailing_space(text->data, at);
    }
    return KVA_OK;
}

static enum kva_status rsplit_at(struct kva_tpl_run *run, const struct kva_tpl_value *self,
                                 const struct kva_tpl_str *mark, int64_t limit,
                                 struct kva_tpl_list *list)
{
    const struct kva_tpl_str *text = self->as.string;
    struct kva_tpl_value piece;
    size_t end = text->length;
    while (limit-- != 0) {
        size_t found = kva_tpl_find_last(text->data, end, mark->data, mark->length);
        if (found == SIZE_MAX)
            break;
        size_t from = found + mark->length;
        KVA_TPL_TRY(kva_tpl_piece(run, self, from, end - from, &piece));
        KVA_TPL_TRY(kva_tpl_list_add(run, list, &piece));
        end = found;
    }
    KVA_TPL_TRY(kva_tpl_piece(run, self, 0, end, &piece));
    return kva_tpl_list_add(run, list, &piece);
}

static enum kva_status split(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                             bool from_right, struct kva_tpl_value *ret)
{
    int64_t limit;
    const struct kva_tpl_str *mark;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 1, -1, &limit));
    KVA_TPL_TRY(kva_tpl_charge(run, in->self->as.string->length / 16));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, ret));
    struct kva_tpl_list *list = ret->as.list;
    if (!kva_tpl_arg_given(in, 0) || in->args[0].type == KVA_TPL_NONE) {
        KVA_TPL_TRY(from_right ? rsplit_words(run, in->self, limit, list)
                               : split_words(run, in->self, limit, list));
    } else {
        KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &mark));
        if (mark->length == 0)
            return kva_tpl_fail(run, "empty separator");
        KVA_TPL_TRY(from_right ? rsplit_at(run, in->self, mark, limit, list)
                               : split_at(run, in->self, mark, limit, list));
    }
    if (from_right)
        reverse(list);
    return KVA_OK;
}

METHOD(split)
{
    return split(run, in, false, ret);
}

METHOD(rsplit)
{
    return split(run, in, true, ret);
}

METHOD(splitlines)
{
    return kva_tpl_split_lines(run, in->self, kva_tpl_arg_truth(in, 0, false), ret);
}

static enum kva_status partition(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                 bool last, struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = in->self->as.string;
    const struct kva_tpl_str *mark;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &mark));
    if (mark->length == 0)
        return kva_tpl_fail(run, "empty separator");
    KVA_TPL_TRY(kva_tpl_charge(run, text->length / 32));
    size_t at = last ? kva_tpl_find_last(text->data, text->length, mark->data, mark->length)
                     : kva_tpl_find(text->data, text->length, 0, mark->data, mark->length);
    size_t mark_length = at == SIZE_MAX ? 0 : mark->length;
    if (at == SIZE_MAX)
        at = last ? 0 : text->length;
    size_t tail = at + mark_length;
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_TUPLE, 3, ret));
    struct kva_tpl_list *list = ret->as.list;
    list->count = 3;
    KVA_TPL_TRY(kva_tpl_piece(run, in->self, 0, at, &list->items[0]));
    KVA_TPL_TRY(kva_tpl_piece(run, in->self, at, mark_length, &list->items[1]));
    return kva_tpl_piece(run, in->self, tail, text->length - tail, &list->items[2]);
}

METHOD(partition)
{
    return partition(run, in, false, ret);
}

METHOD(rpartition)
{
    return partition(run, in, true, ret);
}

METHOD(removeprefix)
{
    const struct kva_tpl_str *text = in->self->as.string;
    const struct kva_tpl_str *affix;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &affix));
    size_t cut = has_affix(text->data, text->length, affix, false) ? affix->length : 0;
    return kva_tpl_piece(run, in->self, cut, text->length - cut, ret);
}

METHOD(removesuffix)
{
    const struct kva_tpl_str *text = in->self->as.string;
    const struct kva_tpl_str *affix;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &affix));
    size_t cut = has_affix(text->data, text->length, affix, true) ? affix->length : 0;
    return kva_tpl_piece(run, in->self, 0, text->length - cut, ret);
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
        if (i > 0)
            kva_buf_append(&buf, mark->data, mark->length);
        kva_buf_append(&buf, items->items[i].as.string->data, items->items[i].as.string->length);
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
    if (kva_tpl_char_count(fill->data, fill->length) != 1)
        return kva_tpl_fail(run, "The fill character must be exactly one character long");
    int64_t count = kva_tpl_length(in->self);
    int64_t missing = width > count ? width - count : 0;
    KVA_TPL_TRY(kva_tpl_charge(run, (size_t)missing / 16 + text->length / 64));
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
    int64_t width;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 0, &width));
    int64_t missing = width - kva_tpl_length(in->self);
    KVA_TPL_TRY(kva_tpl_charge(run, missing > 0 ? (size_t)missing / 16 : 0));
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
    KVA_TPL_TRY(kva_tpl_charge(run, text->length / 16));
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
    {"split", str_split, "sep maxsplit", 0},
    {"strip", str_strip, "-", 0},
    {"lstrip", str_lstrip, "-", 0},
    {"rstrip", str_rstrip, "-", 0},
    {"startswith", str_startswith, "- - -", 1},
    {"endswith", str_endswith, "- - -", 1},
    {"replace", str_replace, "- - -", 2},
    {"upper", str_upper, "", 0},
    {"lower", str_lower, "", 0},
    {"title", str_title, "", 0},
    {"capitalize", str_capitalize, "", 0},
    {"casefold", str_lower, "", 0},
    {"swapcase", str_swapcase, "", 0},
    {"find", str_find, "- - -", 1},
    {"rfind", str_rfind, "- - -", 1},
    {"index", str_index, "- - -", 1},
    {"rindex", str_rindex, "- - -", 1},
    {"count", str_count, "- - -", 1},
    {"rsplit", str_rsplit, "sep maxsplit", 0},
    {"splitlines", str_splitlines, "keepends", 0},
    {"partition", str_partition, "-", 1},
    {"rpartition", str_rpartition, "-", 1},
    {"removeprefix", str_removeprefix, "-", 1},
    {"removesuffix", str_removesuffix, "-", 1},
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
