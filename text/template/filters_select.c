/* filters_select.c - filters that look into items: map, select and reject, with and without an
 * attribute, groupby. */
#include "text/template/builtins.h"

#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static enum kva_status filter_##name(                                                          \
        struct kva_tpl_run *run, const struct kva_tpl_invocation *in, struct kva_tpl_value *ret)

static bool is_digits(const char *text, size_t length)
{
    for (size_t i = 0; i < length && length < 19; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
    }
    return length > 0 && length < 19;
}

/* One part of a path: digits are an index, all else is a key. */
static enum kva_status path_part(struct kva_tpl_run *run, const char *text, size_t length,
                                 struct kva_tpl_value *ret)
{
    if (!is_digits(text, length))
        return kva_tpl_borrow(run, text, length, ret);
    int64_t index = 0;
    for (size_t i = 0; i < length; i++)
        index = index * 10 + (text[i] - '0');
    *ret = kva_tpl_int(index);
    return KVA_OK;
}

enum kva_status kva_tpl_get_path(struct kva_tpl_run *run, const struct kva_tpl_value *item,
                                 const struct kva_tpl_value *path,
                                 const struct kva_tpl_value *fallback, struct kva_tpl_value *ret)
{
    struct kva_tpl_value value = *item;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
    if (path->type != KVA_TPL_STRING) {
        if (path->type != KVA_TPL_NONE)
            KVA_TPL_TRY(kva_tpl_get_item(run, item, path, &value));
        if (value.type == KVA_TPL_UNDEFINED && fallback->type != KVA_TPL_ABSENT)
            value = *fallback;
        *ret = value;
        return KVA_OK;
    }
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, path->as.string->length));
    const char *at = path->as.string->data;
    const char *end = at + path->as.string->length;
    for (;;) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
        const char *dot = at < end ? memchr(at, '.', (size_t)(end - at)) : NULL;
        const char *stop = dot ? dot : end;
        struct kva_tpl_value key;
        KVA_TPL_TRY(path_part(run, at, (size_t)(stop - at), &key));
        KVA_TPL_TRY(kva_tpl_get_item(run, &value, &key, &value));
        if (value.type == KVA_TPL_UNDEFINED && fallback->type != KVA_TPL_ABSENT)
            value = *fallback;
        if (!dot)
            break;
        at = dot + 1;
    }
    *ret = value;
    return KVA_OK;
}

static const struct kva_tpl_value *find_named(const struct kva_tpl_call *call, const char *name)
{
    for (uint32_t i = 0; i < call->named_count; i++) {
        if (call->named[i].name->length == strlen(name) &&
            memcmp(call->named[i].name->data, name, strlen(name)) == 0)
            return &call->named[i].value;
    }
    return NULL;
}

/* The call without its first `count` positional arguments. */
static struct kva_tpl_call rest_of(const struct kva_tpl_call *call, uint32_t count)
{
    struct kva_tpl_call rest = *call;
    rest.args = call->count > count ? call->args + count : NULL;
    rest.count = call->count > count ? call->count - count : 0;
    return rest;
}

static enum kva_status map_attribute(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                     const struct kva_tpl_list *items, struct kva_tpl_list *made)
{
    static const struct kva_tpl_value nothing = {.type = KVA_TPL_ABSENT};
    const struct kva_tpl_value *attribute = find_named(in->call, "attribute");
    const struct kva_tpl_value *fallback = find_named(in->call, "default");
    if (!fallback || fallback->type == KVA_TPL_NONE)
        fallback = &nothing;
    if (in->call->named_count > 1 + (find_named(in->call, "default") != NULL))
        return kva_tpl_fail(run, "map: Unexpected keyword argument");
    for (size_t i = 0; i < items->count; i++) {
        struct kva_tpl_value item;
        KVA_TPL_TRY(kva_tpl_get_path(run, &items->items[i], attribute, fallback, &item));
        KVA_TPL_TRY(kva_tpl_list_add(run, made, &item));
    }
    return KVA_OK;
}

/* The items of the operand. What is false has none, even None. */
static enum kva_status operand_items(struct kva_tpl_run *run, const struct kva_tpl_value *self,
                                     const struct kva_tpl_list **ret)
{
    static const struct kva_tpl_list empty = {.items = NULL};
    *ret = &empty;
    return kva_tpl_truth(self) ? kva_tpl_iterate(run, self, ret) : KVA_OK;
}

FILTER(map)
{
    const struct kva_tpl_list *items;
    struct kva_tpl_value made;
    KVA_TPL_TRY(operand_items(run, in->self, &items));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &made));
    /* Looking for names among the named arguments. */
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, in->call->named_count));
    if (in->call->count == 0 && find_named(in->call, "attribute")) {
        KVA_TPL_TRY(map_attribute(run, in, items, made.as.list));
    } else {
        if (in->call->count == 0 && items->count > 0)
            return kva_tpl_fail(run, "map requires a filter argument");
        struct kva_tpl_call rest = rest_of(in->call, 1);
        for (size_t i = 0; i < items->count; i++) {
            struct kva_tpl_value item;
            KVA_TPL_TRY(
                kva_tpl_apply(run, false, &in->call->args[0], &items->items[i], &rest, &item));
            KVA_TPL_TRY(kva_tpl_list_add(run, made.as.list, &item));
        }
    }
    return kva_tpl_iterator_new(run, made.as.list, "generator", ret);
}

/* The items whose test comes out as `want`. by_attribute: the first argument says what of the item
 * is tested; the next one is the test, truth if there is none. */
static enum kva_status choose(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                              bool by_attribute, bool want, struct kva_tpl_value *ret)
{
    static const struct kva_tpl_value nothing = {.type = KVA_TPL_ABSENT};
    uint32_t offset = by_attribute ? 1 : 0;
    const struct kva_tpl_list *items;
    struct kva_tpl_value kept;
    KVA_TPL_TRY(operand_items(run, in->self, &items));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &kept));
    if (in->call->count < offset && items->count > 0)
        return kva_tpl_fail(run, "Missing parameter for attribute name");
    struct kva_tpl_call rest = rest_of(in->call, offset + 1);
    for (size_t i = 0; i < items->count; i++) {
        struct kva_tpl_value item = items->items[i];
        if (by_attribute)
            KVA_TPL_TRY(
                kva_tpl_get_path(run, &items->items[i], &in->call->args[0], &nothing, &item));
        struct kva_tpl_value answer = item;
        if (in->call->count > offset)
            KVA_TPL_TRY(kva_tpl_apply(run, true, &in->call->args[offset], &item, &rest, &answer));
        if (kva_tpl_truth(&answer) == want)
            KVA_TPL_TRY(kva_tpl_list_add(run, kept.as.list, &items->items[i]));
    }
    return kva_tpl_iterator_new(run, kept.as.list, "generator", ret);
}

FILTER(select)
{
    return choose(run, in, false, true, ret);
}

FILTER(reject)
{
    return choose(run, in, false, false, ret);
}

FILTER(selectattr)
{
    return choose(run, in, true, true, ret);
}

FILTER(rejectattr)
{
    return choose(run, in, true, false, ret);
}

/* obj|attr(name): as obj.name, but never an item. */
FILTER(attr)
{
    if (in->args[0].type != KVA_TPL_STRING)
        return kva_tpl_fail(run, "attr: the name must be a string, not %s",
                            kva_tpl_type_name(&in->args[0]));
    struct kva_tpl_value bare = *in->self;
    const struct kva_tpl_value *found = NULL;
    if (in->self->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, in->self);
    /* A dictionary's attributes are those that an empty one has. */
    if (bare.type == KVA_TPL_DICT)
        KVA_TPL_TRY(kva_tpl_dict_get(run, bare.as.dict, &in->args[0], &found));
    if (found) {
        struct kva_tpl_value probe;
        KVA_TPL_TRY(kva_tpl_dict_new(run, KVA_TPL_DICT, &bare));
        KVA_TPL_TRY(kva_tpl_get_attribute(run, &bare, &in->args[0], &probe));
        if (probe.type == KVA_TPL_UNDEFINED)
            return kva_tpl_undefined_new(run, NULL, in->self, &in->args[0], ret);
    }
    return kva_tpl_get_attribute(run, in->self, &in->args[0], ret);
}

/* (grouper, list) for every run of equal keys in the sorted items. */
FILTER(groupby)
{
    static const struct kva_tpl_value nothing = {.type = KVA_TPL_ABSENT};
    const struct kva_tpl_value *fallback =
        kva_tpl_arg_given(in, 1) && in->args[1].type != KVA_TPL_NONE ? &in->args[1] : &nothing;
    bool case_sensitive = kva_tpl_arg_truth(in, 2, false);
    const struct kva_tpl_list *items;
    struct kva_tpl_value sorted, keys, key;
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, items->count, &sorted));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, items->count, &keys));
    for (size_t i = 0; i < items->count; i++) {
        KVA_TPL_TRY(kva_tpl_get_path(run, &items->items[i], &in->args[0], fallback, &key));
        if (!case_sensitive)
            KVA_TPL_TRY(kva_tpl_ignore_case(run, &key, &key));
        KVA_TPL_TRY(kva_tpl_list_add(run, keys.as.list, &key));
        KVA_TPL_TRY(kva_tpl_list_add(run, sorted.as.list, &items->items[i]));
    }
    KVA_TPL_TRY(kva_tpl_sort(run, sorted.as.list->items, keys.as.list->items, items->count, false));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, ret));
    struct kva_tpl_value last = nothing, group = nothing;
    for (size_t i = 0; i < items->count; i++) {
        struct kva_tpl_value shown, pair;
        bool same = false;
        KVA_TPL_TRY(
            kva_tpl_get_path(run, &sorted.as.list->items[i], &in->args[0], fallback, &shown));
        key = shown;
        if (!case_sensitive)
            KVA_TPL_TRY(kva_tpl_ignore_case(run, &shown, &key));
        if (i > 0)
            KVA_TPL_TRY(kva_tpl_equal(run, &key, &last, &same));
        if (!same) {
            KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &group));
            KVA_TPL_TRY(kva_tpl_pair(run, &shown, &group, &pair));
            KVA_TPL_TRY(kva_tpl_list_add(run, ret->as.list, &pair));
        }
        KVA_TPL_TRY(kva_tpl_list_add(run, group.as.list, &sorted.as.list->items[i]));
        last = key;
    }
    return KVA_OK;
}

static const struct kva_tpl_builtin filters[] = {
    {"map", filter_map, NULL, 0},
    {"select", filter_select, NULL, 0},
    {"reject", filter_reject, NULL, 0},
    {"selectattr", filter_selectattr, NULL, 0},
    {"rejectattr", filter_rejectattr, NULL, 0},
    {"attr", filter_attr, "name", 1},
    {"groupby", filter_groupby, "attribute default case_sensitive", 1},
};

const struct kva_tpl_table kva_tpl_select_filters = {filters, KVA_COUNT_OF(filters)};
