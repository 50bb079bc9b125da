/* sequence.c - length, iteration, attributes, indices and slices. */
#include "text/template/run.h"

#include "text/template/builtins.h"
#include "text/template/text.h"

#include <stdio.h>
#include <string.h>

int64_t kva_tpl_item_count(const struct kva_tpl_value *value)
{
    switch (value->type) {
    case KVA_TPL_UNDEFINED:
        return 0;
    case KVA_TPL_LIST:
    case KVA_TPL_TUPLE:
        return (int64_t)value->as.list->count;
    case KVA_TPL_DICT:
        return value->as.dict->count;
    case KVA_TPL_RANGE:
        return value->as.range->count;
    case KVA_TPL_VIEW:
        return value->as.view->dict->count;
    case KVA_TPL_LOOP:
        return (int64_t)value->as.loop->items->count;
    default:
        return -1;
    }
}

enum kva_status kva_tpl_length(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                               int64_t *ret)
{
    if (value->type == KVA_TPL_LOOP)
        KVA_TPL_TRY(kva_tpl_loop_reach(run, value->as.loop, SIZE_MAX));
    if (value->type != KVA_TPL_STRING) {
        *ret = kva_tpl_item_count(value);
        return KVA_OK;
    }
    const struct kva_tpl_str *string = value->as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, string->length));
    *ret = (int64_t)kva_tpl_char_count(string->data, string->length);
    return KVA_OK;
}

bool kva_tpl_is_iterable(const struct kva_tpl_value *value)
{
    switch (value->type) {
    case KVA_TPL_UNDEFINED:
    case KVA_TPL_STRING:
    case KVA_TPL_LIST:
    case KVA_TPL_TUPLE:
    case KVA_TPL_DICT:
    case KVA_TPL_RANGE:
    case KVA_TPL_ITERATOR:
    case KVA_TPL_VIEW:
        return true;
    default:
        return false;
    }
}

static enum kva_status string_items(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                    struct kva_tpl_list *list)
{
    const struct kva_tpl_str *string = value->as.string;
    for (size_t at = 0; at < string->length;) {
        size_t bytes = (size_t)kva_tpl_char_bytes(string->data + at);
        /* Iterating takes the mark of a safe string away, unlike an index. */
        KVA_TPL_TRY(kva_tpl_borrow(run, string->data + at, bytes, &list->items[list->count++]));
        at += bytes;
    }
    return KVA_OK;
}

static enum kva_status dict_items(struct kva_tpl_run *run, const struct kva_tpl_dict *dict,
                                  enum kva_tpl_view_kind kind, struct kva_tpl_list *list)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        const struct kva_tpl_entry *entry = &dict->entries[i];
        struct kva_tpl_value *item = &list->items[list->count++];
        if (kind == KVA_TPL_VIEW_ITEMS)
            KVA_TPL_TRY(kva_tpl_pair(run, &entry->key, &entry->value, item));
        else
            *item = kind == KVA_TPL_VIEW_KEYS ? entry->key : entry->value;
    }
    return KVA_OK;
}

enum kva_status kva_tpl_iterate(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                const struct kva_tpl_list **ret)
{
    if (kva_tpl_is_sequence(value)) {
        *ret = value->as.list;
        return kva_tpl_charge(run, KVA_TPL_ITEMS, value->as.list->count);
    }
    if (!kva_tpl_is_iterable(value))
        return kva_tpl_fail(run, "'%s' object is not iterable", kva_tpl_type_name(value));
    int64_t length = 0;
    if (value->type == KVA_TPL_ITERATOR)
        length = (int64_t)(value->as.iterator->list->count - value->as.iterator->position);
    else
        KVA_TPL_TRY(kva_tpl_length(run, value, &length));
    size_t count = (size_t)length;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, count));
    struct kva_tpl_value made;
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, count, &made));
    struct kva_tpl_list *list = made.as.list;
    *ret = list;
    switch (value->type) {
    case KVA_TPL_STRING:
        return string_items(run, value, list);
    case KVA_TPL_DICT:
        return dict_items(run, value->as.dict, KVA_TPL_VIEW_KEYS, list);
    case KVA_TPL_VIEW:
        return dict_items(run, value->as.view->dict, value->as.view->kind, list);
    case KVA_TPL_ITERATOR:
        if (count > 0)
            memcpy(list->items, value->as.iterator->list->items + value->as.iterator->position,
                   count * sizeof(*list->items));
        value->as.iterator->position += count;
        break;
    case KVA_TPL_RANGE:
        for (size_t i = 0; i < count; i++)
            list->items[i] =
                kva_tpl_int(value->as.range->start + (int64_t)i * value->as.range->step);
        break;
    default:
        break;
    }
    list->count = count;
    return KVA_OK;
}

/* What the sandbox answers for an attribute that exists and must not be used. */
static enum kva_status unsafe_attribute(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                        const struct kva_tpl_str *name, struct kva_tpl_value *ret)
{
    char hint[160];
    snprintf(hint, sizeof(hint), "access to attribute '%.*s' of '%s' object is unsafe.",
             (int)kva_min_size(name->length, 60), name->data, kva_tpl_type_name(object));
    char *kept = kva_tpl_alloc(run, strlen(hint) + 1, 1);
    if (!kept)
        return run->err->status;
    memcpy(kept, hint, strlen(hint) + 1);
    return kva_tpl_undefined_new(run, kept, NULL, NULL, ret);
}

/* getattr(object, name) as far as the sandbox allows; *ret_found. */
static enum kva_status own_attribute(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                     const struct kva_tpl_str *name, struct kva_tpl_value *ret,
                                     bool *ret_found)
{
    *ret_found = false;
    if (name->length > 4 && memcmp(name->data, "__", 2) == 0 &&
        memcmp(name->data + name->length - 2, "__", 2) == 0) {
        *ret_found = true;
        return unsafe_attribute(run, object, name, ret);
    }
    if (object->type == KVA_TPL_NAMESPACE) {
        struct kva_tpl_value key = {.type = KVA_TPL_STRING, .as.string = name};
        const struct kva_tpl_value *value;
        KVA_TPL_TRY(kva_tpl_dict_get(run, object->as.dict, &key, &value));
        *ret_found = value != NULL;
        if (value)
            *ret = *value;
        return KVA_OK;
    }
    if (object->type == KVA_TPL_LOOP)
        return kva_tpl_loop_attribute(run, object->as.loop, name, ret, ret_found);
    bool unsafe;
    const struct kva_tpl_builtin *builtin = kva_tpl_find_method(object, name, &unsafe);
    if (!builtin && !unsafe)
        return KVA_OK;
    *ret_found = true;
    if (unsafe)
        return unsafe_attribute(run, object, name, ret);
    struct kva_tpl_method *method = kva_tpl_alloc(run, 1, sizeof(*method));
    if (!method)
        return run->err->status;
    method->self = *object;
    method->builtin = builtin;
    *ret = (struct kva_tpl_value){.type = KVA_TPL_METHOD, .as.method = method};
    return KVA_OK;
}

/* An index from the end counts backwards; -1 if it is outside. */
static int64_t real_index(int64_t index, int64_t count)
{
    if (index < 0)
        index += count;
    return index >= 0 && index < count ? index : -1;
}

static enum kva_status string_at(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                                 int64_t index, struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = string->as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, text->length));
    size_t at = kva_tpl_char_offset(text->data, text->length, (size_t)index);
    return kva_tpl_piece(run, string, at, (size_t)kva_tpl_char_bytes(text->data + at), ret);
}

/* object[key] without the fallback to attributes; *ret_found. */
static enum kva_status own_item(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                const struct kva_tpl_value *key, struct kva_tpl_value *ret,
                                bool *ret_found)
{
    *ret_found = false;
    if (object->type == KVA_TPL_DICT) {
        const struct kva_tpl_value *value = NULL;
        bool has_hash;
        KVA_TPL_TRY(kva_tpl_has_hash(run, key, &has_hash));
        if (has_hash)
            KVA_TPL_TRY(kva_tpl_dict_get(run, object->as.dict, key, &value));
        *ret_found = value != NULL;
        if (value)
            *ret = *value;
        return KVA_OK;
    }
    if (!kva_tpl_is_integer(key))
        return KVA_OK;
    if (object->type != KVA_TPL_STRING && !kva_tpl_is_sequence(object) &&
        object->type != KVA_TPL_RANGE)
        return KVA_OK;
    int64_t length;
    KVA_TPL_TRY(kva_tpl_length(run, object, &length));
    int64_t index = real_index(kva_tpl_as_integer(key), length);
    if (index < 0)
        return KVA_OK;
    *ret_found = true;
    if (object->type == KVA_TPL_STRING)
        return string_at(run, object, index, ret);
    *ret = object->type == KVA_TPL_RANGE
               ? kva_tpl_int(object->as.range->start + index * object->as.range->step)
               : object->as.list->items[index];
    return KVA_OK;
}

enum kva_status kva_tpl_get_attribute(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                      const struct kva_tpl_value *name, struct kva_tpl_value *ret)
{
    if (object->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, object);
    bool found;
    struct kva_tpl_value owner = *object; /* `ret` may be where the object is */
    KVA_TPL_TRY(own_attribute(run, &owner, name->as.string, ret, &found));
    if (!found)
        KVA_TPL_TRY(own_item(run, &owner, name, ret, &found));
    return found ? KVA_OK : kva_tpl_undefined_new(run, NULL, &owner, name, ret);
}

enum kva_status kva_tpl_get_item(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                 const struct kva_tpl_value *key, struct kva_tpl_value *ret)
{
    if (object->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, object);
    bool found;
    struct kva_tpl_value owner = *object;
    struct kva_tpl_value name = *key;
    KVA_TPL_TRY(own_item(run, &owner, &name, ret, &found));
    if (!found && name.type == KVA_TPL_STRING)
        KVA_TPL_TRY(own_attribute(run, &owner, name.as.string, ret, &found));
    return found ? KVA_OK : kva_tpl_undefined_new(run, NULL, &owner, &name, ret);
}

/* Python's slice.indices: first index, step and how many, for a sequence of `count`. */
struct slice {
    int64_t start, step, count;
};

static int64_t clamp_bound(int64_t bound, int64_t count, bool backwards)
{
    if (bound < 0)
        bound = bound < -count ? (backwards ? -1 : 0) : bound + count;
    else if (bound >= count)
        bound = backwards ? count - 1 : count;
    return bound;
}

static enum kva_status slice_bounds(struct kva_tpl_run *run, const struct kva_tpl_value bounds[3],
                                    int64_t count, struct slice *ret)
{
    for (int i = 0; i < 3; i++) {
        if (bounds[i].type == KVA_TPL_UNDEFINED ||
            (bounds[i].type != KVA_TPL_NONE && !kva_tpl_is_integer(&bounds[i])))
            return kva_tpl_fail(run, "slice indices must be integers or None or have an __index__ "
                                     "method");
    }
    int64_t step = bounds[2].type == KVA_TPL_NONE ? 1 : kva_tpl_as_integer(&bounds[2]);
    if (step == 0)
        return kva_tpl_fail(run, "slice step cannot be zero");
    bool backwards = step < 0;
    int64_t start = backwards ? count - 1 : 0;
    int64_t stop = backwards ? -1 : count;
    if (bounds[0].type != KVA_TPL_NONE)
        start = clamp_bound(kva_tpl_as_integer(&bounds[0]), count, backwards);
    if (bounds[1].type != KVA_TPL_NONE)
        stop = clamp_bound(kva_tpl_as_integer(&bounds[1]), count, backwards);
    ret->start = start;
    ret->step = step;
    ret->count = 0;
    /* Steps longer than the sequence take one item; so nothing here can overflow. */
    if (backwards && start > stop)
        ret->count = step < -count ? 1 : (start - stop - 1) / -step + 1;
    else if (!backwards && start < stop)
        ret->count = step > count ? 1 : (stop - start - 1) / step + 1;
    return KVA_OK;
}

static enum kva_status slice_string(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                                    const struct slice *slice, struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = string->as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, text->length));
    if (slice->count == 0)
        return kva_tpl_piece(run, string, 0, 0, ret);
    if (slice->step == 1) {
        size_t from = kva_tpl_char_offset(text->data, text->length, (size_t)slice->start);
        size_t bytes =
            kva_tpl_char_offset(text->data + from, text->length - from, (size_t)slice->count);
        return kva_tpl_piece(run, string, from, bytes, ret);
    }
    const struct kva_tpl_list *characters;
    KVA_TPL_TRY(kva_tpl_iterate(run, string, &characters));
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, (size_t)slice->count));
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    for (int64_t i = 0; i < slice->count; i++) {
        const struct kva_tpl_str *one = characters->items[slice->start + i * slice->step].as.string;
        kva_buf_append(&buf, one->data, one->length);
    }
    bool safe = string->safe;
    KVA_TPL_TRY(kva_tpl_buf_take(run, &buf, ret));
    ret->safe = safe;
    return KVA_OK;
}

static enum kva_status slice_list(struct kva_tpl_run *run, const struct kva_tpl_value *list,
                                  const struct slice *slice, struct kva_tpl_value *ret)
{
    const struct kva_tpl_value *items = list->as.list->items;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, (size_t)slice->count));
    KVA_TPL_TRY(kva_tpl_list_new(run, list->type, (size_t)slice->count, ret));
    for (int64_t i = 0; i < slice->count; i++)
        ret->as.list->items[i] = items[slice->start + i * slice->step];
    ret->as.list->count = (size_t)slice->count;
    return KVA_OK;
}

/* Saturating: only bounds that no item of the slice reaches can be out of range. */
static int64_t multiply(int64_t a, int64_t b)
{
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
    return product;
}

static int64_t add(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return a < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}

static enum kva_status slice_range(struct kva_tpl_run *run, const struct kva_tpl_range *range,
                                   const struct slice *slice, struct kva_tpl_value *ret)
{
    struct kva_tpl_range *made = kva_tpl_alloc(run, 1, sizeof(*made));
    if (!made)
        return run->err->status;
    made->count = slice->count;
    made->step = multiply(range->step, slice->step);
    made->start = add(range->start, multiply(range->step, slice->start));
    made->stop = add(made->start, multiply(made->step, made->count));
    *ret = (struct kva_tpl_value){.type = KVA_TPL_RANGE, .as.range = made};
    return KVA_OK;
}

enum kva_status kva_tpl_get_slice(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                  const struct kva_tpl_value bounds[3], struct kva_tpl_value *ret)
{
    struct kva_tpl_value owner = *object;
    if (owner.type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, &owner);
    if (owner.type == KVA_TPL_DICT)
        return kva_tpl_fail(run, "unhashable type: 'slice'");
    if (owner.type != KVA_TPL_STRING && !kva_tpl_is_sequence(&owner) && owner.type != KVA_TPL_RANGE)
        return kva_tpl_fail(run, "'%s' object is not subscriptable", kva_tpl_type_name(&owner));
    struct slice slice = {0, 1, 0};
    int64_t length;
    KVA_TPL_TRY(kva_tpl_length(run, &owner, &length));
    KVA_TPL_TRY(slice_bounds(run, bounds, length, &slice));
    if (owner.type == KVA_TPL_STRING)
        return slice_string(run, &owner, &slice, ret);
    if (owner.type == KVA_TPL_RANGE)
        return slice_range(run, owner.as.range, &slice, ret);
    return slice_list(run, &owner, &slice, ret);
}
