/* compare.c - truth, equality, order, containment and sorting, as Python has them. */
#include "text/template/builtins.h"

#include <string.h>

bool kva_tpl_truth(const struct kva_tpl_value *value)
{
    switch (value->type) {
    case KVA_TPL_UNDEFINED:
    case KVA_TPL_NONE:
    case KVA_TPL_ABSENT:
        return false;
    case KVA_TPL_FLOAT:
        return value->as.number != 0.0;
    case KVA_TPL_BOOL:
    case KVA_TPL_INT:
        return kva_tpl_as_integer(value) != 0;
    case KVA_TPL_STRING:
        return value->as.string->length != 0;
    default:
        /* Objects without a length are true, generators among them. */
        return kva_tpl_item_count(value) != 0;
    }
}

static int order_strings(const struct kva_tpl_str *a, const struct kva_tpl_str *b)
{
    /* The order of UTF-8 bytes is the order of code points. */
    size_t common = kva_min_size(a->length, b->length);
    int order = common > 0 ? memcmp(a->data, b->data, common) : 0;
    if (order == 0)
        order = (a->length > b->length) - (a->length < b->length);
    return (order > 0) - (order < 0);
}

static int order_numbers(const struct kva_tpl_value *a, const struct kva_tpl_value *b)
{
    if (a->type != KVA_TPL_FLOAT && b->type != KVA_TPL_FLOAT) {
        int64_t x = kva_tpl_as_integer(a);
        int64_t y = kva_tpl_as_integer(b);
        return (x > y) - (x < y);
    }
    double x = kva_tpl_as_number(a);
    double y = kva_tpl_as_number(b);
    if (x != x || y != y)
        return 2;
    return (x > y) - (x < y);
}

static enum kva_status equal_lists(struct kva_tpl_run *run, const struct kva_tpl_list *a,
                                   const struct kva_tpl_list *b, bool *ret)
{
    *ret = a->count == b->count;
    for (size_t i = 0; i < a->count && *ret; i++)
        KVA_TPL_TRY(kva_tpl_equal(run, &a->items[i], &b->items[i], ret));
    return KVA_OK;
}

static enum kva_status equal_dicts(struct kva_tpl_run *run, const struct kva_tpl_dict *a,
                                   const struct kva_tpl_dict *b, bool *ret)
{
    *ret = a->count == b->count;
    for (uint32_t i = 0; i < a->count && *ret; i++) {
        const struct kva_tpl_value *other;
        KVA_TPL_TRY(kva_tpl_dict_get(run, b, &a->entries[i].key, &other));
        *ret = other != NULL;
        if (other)
            KVA_TPL_TRY(kva_tpl_equal(run, &a->entries[i].value, other, ret));
    }
    return KVA_OK;
}

static bool equal_ranges(const struct kva_tpl_range *a, const struct kva_tpl_range *b)
{
    return a->count == b->count && (a->count == 0 || a->start == b->start) &&
           (a->count <= 1 || a->step == b->step);
}

static enum kva_status equal_nested(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                                    const struct kva_tpl_value *b, bool *ret)
{
    KVA_TPL_TRY(kva_tpl_enter(run));
    if (a->type == KVA_TPL_DICT)
        KVA_TPL_TRY(equal_dicts(run, a->as.dict, b->as.dict, ret));
    else
        KVA_TPL_TRY(equal_lists(run, a->as.list, b->as.list, ret));
    kva_tpl_leave(run);
    return KVA_OK;
}

enum kva_status kva_tpl_equal(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                              const struct kva_tpl_value *b, bool *ret)
{
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
    if (kva_tpl_is_number(a) && kva_tpl_is_number(b)) {
        *ret = order_numbers(a, b) == 0;
        return KVA_OK;
    }
    *ret = false;
    if (a->type != b->type)
        return KVA_OK;
    switch (a->type) {
    case KVA_TPL_UNDEFINED:
    case KVA_TPL_NONE:
        *ret = true;
        return KVA_OK;
    case KVA_TPL_STRING:
        if (a->as.string->length == b->as.string->length) {
            KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, a->as.string->length));
            *ret = order_strings(a->as.string, b->as.string) == 0;
        }
        return KVA_OK;
    case KVA_TPL_LIST:
    case KVA_TPL_TUPLE:
    case KVA_TPL_DICT:
        if (a->as.list == b->as.list) {
            *ret = true;
            return KVA_OK;
        }
        return equal_nested(run, a, b, ret);
    case KVA_TPL_RANGE:
        *ret = equal_ranges(a->as.range, b->as.range);
        return KVA_OK;
    default:
        /* Everything else is equal to itself only. */
        *ret = a->as.list == b->as.list;
        return KVA_OK;
    }
}

static enum kva_status order_lists(struct kva_tpl_run *run, const struct kva_tpl_list *a,
                                   const struct kva_tpl_list *b, const char *sign, int *ret)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;
        KVA_TPL_TRY(kva_tpl_equal(run, &a->items[i], &b->items[i], &equal));
        if (!equal)
            return kva_tpl_order(run, &a->items[i], &b->items[i], sign, ret);
    }
    *ret = (a->count > b->count) - (a->count < b->count);
    return KVA_OK;
}

enum kva_status kva_tpl_order(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                              const struct kva_tpl_value *b, const char *sign, int *ret)
{
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
    if (kva_tpl_is_number(a) && kva_tpl_is_number(b)) {
        *ret = order_numbers(a, b);
        return KVA_OK;
    }
    if (a->type == KVA_TPL_STRING && b->type == KVA_TPL_STRING) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES,
                                   kva_min_size(a->as.string->length, b->as.string->length)));
        *ret = order_strings(a->as.string, b->as.string);
        return KVA_OK;
    }
    if (a->type == b->type && kva_tpl_is_sequence(a)) {
        KVA_TPL_TRY(kva_tpl_enter(run));
        KVA_TPL_TRY(order_lists(run, a->as.list, b->as.list, sign, ret));
        kva_tpl_leave(run);
        return KVA_OK;
    }
    if (a->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, a);
    if (b->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, b);
    return kva_tpl_fail(run, "'%s' not supported between instances of '%s' and '%s'", sign,
                        kva_tpl_type_name(a), kva_tpl_type_name(b));
}

enum kva_status kva_tpl_contains(struct kva_tpl_run *run, const struct kva_tpl_value *container,
                                 const struct kva_tpl_value *item, bool *ret)
{
    if (container->type == KVA_TPL_STRING) {
        if (item->type != KVA_TPL_STRING)
            return kva_tpl_fail(run, "'in <string>' requires string as left operand, not %s",
                                kva_tpl_type_name(item));
        size_t at;
        KVA_TPL_TRY(kva_tpl_search(run, container->as.string->data, container->as.string->length,
                                   item->as.string, false, &at));
        *ret = at != SIZE_MAX;
        return KVA_OK;
    }
    if (container->type == KVA_TPL_DICT ||
        (container->type == KVA_TPL_VIEW && container->as.view->kind == KVA_TPL_VIEW_KEYS)) {
        const struct kva_tpl_value *value;
        const struct kva_tpl_dict *dict =
            container->type == KVA_TPL_DICT ? container->as.dict : container->as.view->dict;
        KVA_TPL_TRY(kva_tpl_dict_get(run, dict, item, &value));
        *ret = value != NULL;
        return KVA_OK;
    }
    if (!kva_tpl_is_iterable(container))
        return kva_tpl_fail(run, "argument of type '%s' is not iterable",
                            kva_tpl_type_name(container));
    const struct kva_tpl_list *items;
    KVA_TPL_TRY(kva_tpl_iterate(run, container, &items));
    *ret = false;
    for (size_t i = 0; i < items->count && !*ret; i++)
        KVA_TPL_TRY(kva_tpl_equal(run, &items->items[i], item, ret));
    return KVA_OK;
}

/* Whether b must come before a. */
static enum kva_status out_of_order(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                                    const struct kva_tpl_value *b, bool reverse, bool *ret)
{
    int order;
    KVA_TPL_TRY(reverse ? kva_tpl_order(run, a, b, "<", &order)
                        : kva_tpl_order(run, b, a, "<", &order));
    *ret = order == -1;
    return KVA_OK;
}

struct merge {
    struct kva_tpl_value *items, *keys;               /* from */
    struct kva_tpl_value *sorted_items, *sorted_keys; /* to */
    bool reverse;
};

/* Merge the sorted [low, middle) and [middle, high). */
static enum kva_status merge_runs(struct kva_tpl_run *run, const struct merge *merge, size_t low,
                                  size_t middle, size_t high)
{
    size_t left = low;
    size_t right = middle;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, high - low));
    for (size_t at = low; at < high; at++) {
        bool take_right = left == middle;
        if (!take_right && right < high)
            KVA_TPL_TRY(out_of_order(run, &merge->keys[left], &merge->keys[right], merge->reverse,
                                     &take_right));
        size_t from = take_right ? right++ : left++;
        merge->sorted_items[at] = merge->items[from];
        merge->sorted_keys[at] = merge->keys[from];
    }
    return KVA_OK;
}

enum kva_status kva_tpl_sort(struct kva_tpl_run *run, struct kva_tpl_value *items,
                             struct kva_tpl_value *keys, size_t count, bool reverse)
{
    struct kva_tpl_value *spare = kva_tpl_alloc(run, count, 3 * sizeof(*spare));
    if (!spare)
        return run->err->status;
    /* The keys may be the items: work on copies of both. */
    struct kva_tpl_value *key_copy = spare + 2 * count;
    if (count > 0)
        memcpy(key_copy, keys, count * sizeof(*keys));
    struct merge merge = {items, key_copy, spare, spare + count, reverse};
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t low = 0; low < count; low += 2 * width)
            KVA_TPL_TRY(merge_runs(run, &merge, low, kva_min_size(low + width, count),
                                   kva_min_size(low + 2 * width, count)));
        merge =
            (struct merge){merge.sorted_items, merge.sorted_keys, merge.items, merge.keys, reverse};
    }
    if (merge.items != items && count > 0)
        memcpy(items, merge.items, count * sizeof(*items));
    return KVA_OK;
}
