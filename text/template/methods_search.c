/* methods_search.c - methods of strings that look for one string in another. */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static enum kva_status str_##name(                                                             \
        struct kva_tpl_run *run, const struct kva_tpl_invocation *in, struct kva_tpl_value *ret)

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
    int64_t start, end, count;
    KVA_TPL_TRY(kva_tpl_length(run, in->self, &count));
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, text->length)); /* the offsets, below */
    end = count;
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

static enum kva_status has_affix(struct kva_tpl_run *run, const char *text, size_t length,
                                 const struct kva_tpl_str *affix, bool at_end, bool *ret)
{
    *ret = false;
    if (affix->length > length)
        return KVA_OK;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, affix->length));
    const char *at = at_end ? text + length - affix->length : text;
    *ret = memcmp(at, affix->data, affix->length) == 0;
    return KVA_OK;
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
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, count));
    }
    *ret = kva_tpl_bool(false);
    for (size_t i = 0; i < count; i++) {
        if (items[i].type != KVA_TPL_STRING)
            return kva_tpl_fail(run, "%s first arg must be str or a tuple of str, not %s",
                                at_end ? "endswith" : "startswith", kva_tpl_type_name(&items[i]));
        bool has = false;
        if (!window.empty)
            KVA_TPL_TRY(has_affix(run, in->self->as.string->data + window.from, window.length,
                                  items[i].as.string, at_end, &has));
        if (has)
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
    const char *text = in->self->as.string->data + window.from;
    size_t at = SIZE_MAX;
    if (!window.empty)
        KVA_TPL_TRY(kva_tpl_search(run, text, window.length, needle, last, &at));
    if (at != SIZE_MAX)
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, at));
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
    KVA_TPL_TRY(kva_tpl_charge_search(run, window.length, needle->length));
    const char *text = in->self->as.string->data + window.from;
    int64_t count = 0;
    if (needle->length == 0 && !window.empty) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, window.length));
        count = (int64_t)kva_tpl_char_count(text, window.length) + 1;
    } else if (!window.empty) {
        for (size_t at = 0;; at += needle->length) {
            at = kva_tpl_find(text, window.length, at, needle->data, needle->length);
            if (at == SIZE_MAX)
                break;
            KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
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
    KVA_TPL_TRY(kva_tpl_charge_search(run, text->length, mark->length));
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

static enum kva_status rsplit_pieces(struct kva_tpl_run *run, const struct kva_tpl_value *self,
                                     struct kva_tpl_backward *search, int64_t limit,
                                     struct kva_tpl_list *list)
{
    struct kva_tpl_value piece;
    size_t end = self->as.string->length;
    while (limit-- != 0) {
        size_t found = kva_tpl_backward_next(search);
        if (found == SIZE_MAX)
            break;
        size_t from = found + search->needle.length;
        KVA_TPL_TRY(kva_tpl_piece(run, self, from, end - from, &piece));
        KVA_TPL_TRY(kva_tpl_list_add(run, list, &piece));
        end = found;
    }
    KVA_TPL_TRY(kva_tpl_piece(run, self, 0, end, &piece));
    return kva_tpl_list_add(run, list, &piece);
}

static enum kva_status rsplit_at(struct kva_tpl_run *run, const struct kva_tpl_value *self,
                                 const struct kva_tpl_str *mark, int64_t limit,
                                 struct kva_tpl_list *list)
{
    const struct kva_tpl_str *text = self->as.string;
    struct kva_tpl_backward search;
    KVA_TPL_TRY(kva_tpl_backward_init(run, text->data, text->length, mark, &search));
    enum kva_status status = rsplit_pieces(run, self, &search, limit, list);
    kva_tpl_backward_finish(&search);
    return status;
}

static enum kva_status split(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                             bool from_right, struct kva_tpl_value *ret)
{
    int64_t limit;
    const struct kva_tpl_str *mark;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 1, -1, &limit));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, ret));
    struct kva_tpl_list *list = ret->as.list;
    if (!kva_tpl_arg_given(in, 0) || in->args[0].type == KVA_TPL_NONE) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, in->self->as.string->length));
        KVA_TPL_TRY(from_right ? rsplit_words(run, in->self, limit, list)
                               : split_words(run, in->self, limit, list));
    } else {
        KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &mark));
        if (mark->length == 0)
            return kva_tpl_fail(run, "empty separator");
        KVA_TPL_TRY(from_right ? rsplit_at(run, in->self, mark, limit, list)
                               : split_at(run, in->self, mark, limit, list));
    }
    if (from_right) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, list->count));
        reverse(list);
    }
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

static enum kva_status partition(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                 bool last, struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = in->self->as.string;
    const struct kva_tpl_str *mark;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &mark));
    if (mark->length == 0)
        return kva_tpl_fail(run, "empty separator");
    size_t at;
    KVA_TPL_TRY(kva_tpl_search(run, text->data, text->length, mark, last, &at));
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
    bool has;
    KVA_TPL_TRY(has_affix(run, text->data, text->length, affix, false, &has));
    size_t cut = has ? affix->length : 0;
    return kva_tpl_piece(run, in->self, cut, text->length - cut, ret);
}

METHOD(removesuffix)
{
    const struct kva_tpl_str *text = in->self->as.string;
    const struct kva_tpl_str *affix;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &affix));
    bool has;
    KVA_TPL_TRY(has_affix(run, text->data, text->length, affix, true, &has));
    size_t cut = has ? affix->length : 0;
    return kva_tpl_piece(run, in->self, 0, text->length - cut, ret);
}

static const struct kva_tpl_builtin methods[] = {
    {"split", str_split, "sep maxsplit", 0},    {"startswith", str_startswith, "- - -", 1},
    {"endswith", str_endswith, "- - -", 1},     {"find", str_find, "- - -", 1},
    {"rfind", str_rfind, "- - -", 1},           {"index", str_index, "- - -", 1},
    {"rindex", str_rindex, "- - -", 1},         {"count", str_count, "- - -", 1},
    {"rsplit", str_rsplit, "sep maxsplit", 0},  {"partition", str_partition, "-", 1},
    {"rpartition", str_rpartition, "-", 1},     {"removeprefix", str_removeprefix, "-", 1},
    {"removesuffix", str_removesuffix, "-", 1},
};

const struct kva_tpl_table kva_tpl_search_methods = {methods, KVA_COUNT_OF(methods)};
