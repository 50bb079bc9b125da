/* filters_sequence.c - filters over sequences and mappings. */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static enum kva_status filter_##name(struct kva_tpl_run *run KVA_UNUSED,                       \
                                         const struct kva_tpl_invocation *in,                      \
                                         struct kva_tpl_value *ret)

FILTER(length)
{
    int64_t length;
    KVA_TPL_TRY(kva_tpl_length(run, in->self, &length));
    if (length < 0)
        return kva_tpl_fail(run, "object of type '%s' has no len()", kva_tpl_type_name(in->self));
    *ret = kva_tpl_int(length);
    return KVA_OK;
}

/* The items as a list value. */
static enum kva_status as_list(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                               struct kva_tpl_value *ret)
{
    const struct kva_tpl_list *items;
    KVA_TPL_TRY(kva_tpl_iterate(run, value, &items));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, items->count, ret));
    if (items->count > 0)
        memcpy(ret->as.list->items, items->items, items->count * sizeof(*items->items));
    ret->as.list->count = items->count;
    return KVA_OK;
}

FILTER(list)
{
    return as_list(run, in->self, ret);
}

FILTER(first)
{
    const struct kva_tpl_list *items;
    if (in->self->type == KVA_TPL_ITERATOR) {
        /* Takes one item out of it and leaves the others. */
        struct kva_tpl_iterator *iterator = in->self->as.iterator;
        if (iterator->position < iterator->list->count) {
            *ret = iterator->list->items[iterator->position++];
            return KVA_OK;
        }
    }
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    if (items->count == 0)
        return kva_tpl_undefined_new(run, "No first item, sequence was empty.", NULL, NULL, ret);
    *ret = items->items[0];
    return KVA_OK;
}

FILTER(last)
{
    const struct kva_tpl_list *items;
    if (in->self->type == KVA_TPL_ITERATOR)
        return kva_tpl_fail(run, "'%s' object is not reversible", kva_tpl_type_name(in->self));
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    if (items->count == 0)
        return kva_tpl_undefined_new(run, "No last item, sequence was empty.", NULL, NULL, ret);
    *ret = items->items[items->count - 1];
    return KVA_OK;
}

FILTER(reverse)
{
    struct kva_tpl_value list;
    KVA_TPL_TRY(as_list(run, in->self, &list));
    struct kva_tpl_value *items = list.as.list->items;
    size_t count = list.as.list->count;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, count));
    for (size_t i = 0; i < count / 2; i++) {
        struct kva_tpl_value swap = items[i];
        items[i] = items[count - 1 - i];
        items[count - 1 - i] = swap;
    }
    if (in->self->type == KVA_TPL_STRING) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, count));
        struct kva_buf buf;
        kva_tpl_buf_init(run, &buf);
        for (size_t i = 0; i < count; i++)
            kva_buf_append(&buf, items[i].as.string->data, items[i].as.string->length);
        KVA_TPL_TRY(kva_tpl_buf_take(run, &buf, ret));
        ret->safe = in->self->safe;
        return KVA_OK;
    }
    /* What Python cannot reverse lazily becomes a list. */
    if (in->self->type == KVA_TPL_ITERATOR) {
        *ret = list;
        return KVA_OK;
    }
    const char *type = in->self->type == KVA_TPL_LIST    ? "list_reverseiterator"
                       : in->self->type == KVA_TPL_DICT  ? "dict_reversekeyiterator"
                       : in->self->type == KVA_TPL_RANGE ? "range_iterator"
                                                         : "reversed";
    return kva_tpl_iterator_new(run, list.as.list, type, ret);
}

FILTER(join)
{
    static const struct kva_tpl_value nothing = {.type = KVA_TPL_ABSENT};
    const struct kva_tpl_list *items;
    struct kva_tpl_value mark = {.type = KVA_TPL_UNDEFINED};
    if (kva_tpl_arg_given(in, 0))
        mark = in->args[0];
    bool by_path = kva_tpl_arg_given(in, 1) && in->args[1].type != KVA_TPL_NONE;
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    enum kva_status status = KVA_OK;
    for (size_t i = 0; i < items->count && !status && !buf.failed; i++) {
        struct kva_tpl_value item = items->items[i];
        status = kva_tpl_charge(run, KVA_TPL_NODES, 1);
        if (!status && i > 0)
            status = kva_tpl_put_str(run, &buf, &mark);
        if (!status && by_path)
            status = kva_tpl_get_path(run, &items->items[i], &in->args[1], &nothing, &item);
        if (!status)
            status = kva_tpl_put_str(run, &buf, &item);
    }
    if (status) {
        kva_buf_finish(&buf);
        return status;
    }
    return kva_tpl_buf_take(run, &buf, ret);
}

FILTER(default)
{
    bool use = in->self->type == KVA_TPL_UNDEFINED ||
               (kva_tpl_arg_truth(in, 1, false) && !kva_tpl_truth(in->self));
    if (!use)
        *ret = *in->self;
    else if (kva_tpl_arg_given(in, 0))
        *ret = in->args[0];
    else
        return kva_tpl_borrow(run, "", 0, ret);
    return KVA_OK;
}

/* A copy of a string's lower case unless the case matters. */
static enum kva_status sort_key(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                bool case_sensitive, struct kva_tpl_value *ret)
{
    if (!case_sensitive)
        return kva_tpl_ignore_case(run, value, ret);
    *ret = *value;
    return KVA_OK;
}

FILTER(dictsort)
{
    if (in->self->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, in->self);
    if (in->self->type != KVA_TPL_DICT)
        return kva_tpl_fail(run, "'%s' object has no attribute 'items'",
                            kva_tpl_type_name(in->self));
    bool case_sensitive = kva_tpl_arg_truth(in, 0, false);
    bool by_value = false;
    if (kva_tpl_arg_given(in, 1)) {
        const struct kva_tpl_str *by;
        KVA_TPL_TRY(kva_tpl_arg_string(run, in, 1, &by));
        by_value = by->length == 5 && memcmp(by->data, "value", 5) == 0;
        if (!by_value && (by->length != 3 || memcmp(by->data, "key", 3) != 0))
            return kva_tpl_fail(run, "You can only sort by either \"key\" or \"value\"");
    }
    const struct kva_tpl_dict *dict = in->self->as.dict;
    struct kva_tpl_value keys;
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, dict->count, ret));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, dict->count, &keys));
    for (uint32_t i = 0; i < dict->count; i++) {
        const struct kva_tpl_entry *entry = &dict->entries[i];
        KVA_TPL_TRY(kva_tpl_pair(run, &entry->key, &entry->value, &ret->as.list->items[i]));
        KVA_TPL_TRY(sort_key(run, by_value ? &entry->value : &entry->key, case_sensitive,
                             &keys.as.list->items[i]));
    }
    ret->as.list->count = dict->count;
    return kva_tpl_sort(run, ret->as.list->items, keys.as.list->items, dict->count,
                        kva_tpl_arg_truth(in, 2, false));
}

FILTER(items)
{
    static const struct kva_tpl_list empty = {.items = NULL};
    const struct kva_tpl_list *items = &empty;
    if (in->self->type != KVA_TPL_UNDEFINED) {
        if (in->self->type != KVA_TPL_DICT)
            return kva_tpl_fail(run, "Can only get item pairs from a mapping.");
        struct kva_tpl_view view = {.dict = in->self->as.dict, .kind = KVA_TPL_VIEW_ITEMS};
        struct kva_tpl_value value = {.type = KVA_TPL_VIEW, .as.view = &view};
        KVA_TPL_TRY(kva_tpl_iterate(run, &value, &items));
    }
    return kva_tpl_iterator_new(run, items, "generator", ret);
}

/* The keys that `sort` compares: the items, or what "a,b" finds in them. */
static enum kva_status sort_keys(struct kva_tpl_run *run, const struct kva_tpl_list *items,
                                 const struct kva_tpl_value *attribute, bool case_sensitive,
                                 struct kva_tpl_list *keys)
{
    static const struct kva_tpl_value nothing = {.type = KVA_TPL_ABSENT};
    struct kva_tpl_value paths = {.type = KVA_TPL_ABSENT};
    if (attribute->type == KVA_TPL_STRING) {
        static const struct kva_tpl_str name = {.data = "split", .length = 5};
        struct kva_tpl_value comma;
        bool unsafe;
        KVA_TPL_TRY(kva_tpl_borrow(run, ",", 1, &comma));
        struct kva_tpl_call call = {.args = &comma, .count = 1};
        KVA_TPL_TRY(kva_tpl_invoke(run, kva_tpl_find_method(attribute, &name, &unsafe), attribute,
                                   &call, &paths));
    } else if (attribute->type == KVA_TPL_INT) {
        KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 1, &paths));
        KVA_TPL_TRY(kva_tpl_list_add(run, paths.as.list, attribute));
    }
    size_t path_count = paths.type == KVA_TPL_LIST ? paths.as.list->count : 0;
    for (size_t i = 0; i < items->count; i++) {
        struct kva_tpl_value key, part;
        KVA_TPL_TRY(sort_key(run, &items->items[i], case_sensitive, &key));
        if (path_count > 0)
            KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_TUPLE, path_count, &key));
        for (size_t j = 0; j < path_count; j++) {
            KVA_TPL_TRY(
                kva_tpl_get_path(run, &items->items[i], &paths.as.list->items[j], &nothing, &part));
            KVA_TPL_TRY(sort_key(run, &part, case_sensitive, &part));
            KVA_TPL_TRY(kva_tpl_list_add(run, key.as.list, &part));
        }
        KVA_TPL_TRY(kva_tpl_list_add(run, keys, &key));
    }
    return KVA_OK;
}

FILTER(sort)
{
    struct kva_tpl_value keys;
    KVA_TPL_TRY(as_list(run, in->self, ret));
    struct kva_tpl_list *list = ret->as.list;
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, list->count, &keys));
    KVA_TPL_TRY(sort_keys(run, list, &in->args[2], kva_tpl_arg_truth(in, 1, false), keys.as.list));
    return kva_tpl_sort(run, list->items, keys.as.list->items, list->count,
                        kva_tpl_arg_truth(in, 0, false));
}

FILTER(unique)
{
    static const struct kva_tpl_value nothing = {.type = KVA_TPL_ABSENT};
    bool case_sensitive = kva_tpl_arg_truth(in, 0, false);
    bool by_path = kva_tpl_arg_given(in, 1) && in->args[1].type != KVA_TPL_NONE;
    const struct kva_tpl_list *items;
    struct kva_tpl_value seen, kept;
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    KVA_TPL_TRY(kva_tpl_dict_new(run, KVA_TPL_DICT, &seen));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &kept));
    for (size_t i = 0; i < items->count; i++) {
        struct kva_tpl_value key = items->items[i];
        const struct kva_tpl_value *known;
        if (by_path)
            KVA_TPL_TRY(kva_tpl_get_path(run, &items->items[i], &in->args[1], &nothing, &key));
        KVA_TPL_TRY(sort_key(run, &key, case_sensitive, &key));
        KVA_TPL_TRY(kva_tpl_dict_get(run, seen.as.dict, &key, &known));
        if (known)
            continue;
        KVA_TPL_TRY(kva_tpl_dict_set(run, seen.as.dict, &key, &key));
        KVA_TPL_TRY(kva_tpl_list_add(run, kept.as.list, &items->items[i]));
    }
    return kva_tpl_iterator_new(run, kept.as.list, "generator", ret);
}

/* Lists of `size` items; the last one filled up if `fill` is given. */
FILTER(batch)
{
    int64_t size;
    const struct kva_tpl_list *items;
    struct kva_tpl_value batches;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 0, &size));
    bool fill = kva_tpl_arg_given(in, 1) && in->args[1].type != KVA_TPL_NONE;
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    if (size <= 0)
        return kva_tpl_fail(run, "batch: the size must be positive, not %lld", (long long)size);
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &batches));
    for (size_t i = 0; i < items->count;) {
        struct kva_tpl_value batch;
        KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &batch));
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
        for (int64_t j = 0; j < size && i < items->count; j++)
            KVA_TPL_TRY(kva_tpl_list_add(run, batch.as.list, &items->items[i++]));
        while (fill && (int64_t)batch.as.list->count < size) {
            KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
            KVA_TPL_TRY(kva_tpl_list_add(run, batch.as.list, &in->args[1]));
        }
        KVA_TPL_TRY(kva_tpl_list_add(run, batches.as.list, &batch));
    }
    return kva_tpl_iterator_new(run, batches.as.list, "generator", ret);
}

/* `slices` lists of almost the same length. */
FILTER(slice)
{
    int64_t slices;
    const struct kva_tpl_list *items;
    struct kva_tpl_value columns;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 0, &slices));
    bool fill = kva_tpl_arg_given(in, 1) && in->args[1].type != KVA_TPL_NONE;
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    if (slices <= 0)
        return kva_tpl_fail(run, "slice: the number of slices must be positive, not %lld",
                            (long long)slices);
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &columns));
    size_t each = items->count / (size_t)slices;
    size_t longer = items->count % (size_t)slices;
    size_t at = 0;
    for (size_t i = 0; i < (size_t)slices; i++) {
        struct kva_tpl_value column;
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
        KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &column));
        for (size_t j = 0; j < each + (i < longer); j++)
            KVA_TPL_TRY(kva_tpl_list_add(run, column.as.list, &items->items[at++]));
        if (fill && i >= longer)
            KVA_TPL_TRY(kva_tpl_list_add(run, column.as.list, &in->args[1]));
        KVA_TPL_TRY(kva_tpl_list_add(run, columns.as.list, &column));
    }
    return kva_tpl_iterator_new(run, columns.as.list, "generator", ret);
}

/* min and max; `want` is the order that a better item has to the best one so far. */
static enum kva_status extreme(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                               int want, struct kva_tpl_value *ret)
{
    static const struct kva_tpl_value nothing = {.type = KVA_TPL_ABSENT};
    bool by_path = kva_tpl_arg_given(in, 1) && in->args[1].type != KVA_TPL_NONE;
    const struct kva_tpl_list *items;
    struct kva_tpl_value best = nothing;
    KVA_TPL_TRY(kva_tpl_iterate(run, in->self, &items));
    for (size_t i = 0; i < items->count; i++) {
        struct kva_tpl_value key = items->items[i];
        int order = want;
        if (by_path)
            KVA_TPL_TRY(kva_tpl_get_path(run, &items->items[i], &in->args[1], &nothing, &key));
        KVA_TPL_TRY(sort_key(run, &key, kva_tpl_arg_truth(in, 0, false), &key));
        if (i > 0)
            KVA_TPL_TRY(kva_tpl_order(run, &key, &best, want < 0 ? "<" : ">", &order));
        if (order != want)
            continue;
        best = key;
        *ret = items->items[i];
    }
    if (items->count == 0)
        return kva_tpl_undefined_new(run, "No aggregated item, sequence was empty.", NULL, NULL,
                                     ret);
    return KVA_OK;
}

FILTER(min)
{
    return extreme(run, in, -1, ret);
}

FILTER(max)
{
    return extreme(run, in, 1, ret);
}

static const struct kva_tpl_builtin filters[] = {
    {"length", filter_length, "", 0},
    {"count", filter_length, "", 0},
    {"list", filter_list, "", 0},
    {"first", filter_first, "", 0},
    {"last", filter_last, "", 0},
    {"reverse", filter_reverse, "", 0},
    {"join", filter_join, "d attribute", 0},
    {"default", filter_default, "default_value boolean", 0},
    {"d", filter_default, "default_value boolean", 0},
    {"dictsort", filter_dictsort, "case_sensitive by reverse", 0},
    {"items", filter_items, "", 0},
    {"sort", filter_sort, "reverse case_sensitive attribute", 0},
    {"unique", filter_unique, "case_sensitive attribute", 0},
    {"batch", filter_batch, "linecount fill_with", 1},
    {"slice", filter_slice, "slices fill_with", 1},
    {"min", filter_min, "case_sensitive attribute", 0},
    {"max", filter_max, "case_sensitive attribute", 0},
};

const struct kva_tpl_table kva_tpl_sequence_filters = {filters, KVA_COUNT_OF(filters)};
