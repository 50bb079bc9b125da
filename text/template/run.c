/* run.c - values, buffers and bounds of a rendering. */
#include "text/template/run.h"

#include "text/template/builtins.h"

#include <stdio.h>
#include <string.h>

enum kva_status kva_tpl_fail(struct kva_tpl_run *run, const char *format, ...)
{
    char what[KVA_ERR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return kva_fail(run->err, KVA_EINVAL, "chat template, line %u: %s", run->line, what);
}

static enum kva_status no_memory(struct kva_tpl_run *run)
{
    return kva_fail(run->err, KVA_ENOMEM, "out of memory rendering a chat template");
}

enum kva_status kva_tpl_buf_fail(struct kva_tpl_run *run, const struct kva_buf *buf,
                                 size_t limit_bytes, const char *what)
{
    if (buf->no_memory)
        return no_memory(run);
    return kva_tpl_fail(run, "more than %zu bytes of %s", limit_bytes, what);
}

enum kva_status kva_tpl_fail_undefined(struct kva_tpl_run *run, const struct kva_tpl_value *value)
{
    const struct kva_tpl_undefined *undefined = value->as.undefined;
    if (undefined->hint)
        return kva_tpl_fail(run, "%s", undefined->hint);
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    enum kva_status status = kva_tpl_put_repr(run, &buf, &undefined->name);
    const char *name = buf.data ? buf.data : "?";
    if (status)
        ;
    else if (!undefined->owner)
        status = kva_tpl_fail(run, "%s is undefined", name);
    else if (undefined->name.type == KVA_TPL_STRING)
        status = kva_tpl_fail(run, "'%s' has no attribute %s", undefined->owner, name);
    else
        status = kva_tpl_fail(run, "%s has no element %s", undefined->owner, name);
    kva_buf_finish(&buf);
    return status;
}

enum kva_status kva_tpl_charge_steps(struct kva_tpl_run *run, uint64_t steps)
{
    uint64_t left = run->limits->steps_max - run->steps;
    if (run->cancelled && atomic_load_explicit(run->cancelled, memory_order_relaxed))
        return kva_fail(run->err, KVA_ECANCELLED, "the rendering of a chat template was cancelled");
    run->steps += steps < left ? steps : left;
    if (steps > left)
        return kva_tpl_fail(run, "more than %llu steps of work (limit steps_max)",
                            (unsigned long long)run->limits->steps_max);
    return KVA_OK;
}

enum kva_status kva_tpl_enter(struct kva_tpl_run *run)
{
    if (run->depth >= run->limits->eval_depth_max)
        return kva_tpl_fail(run, "nested deeper than %u levels (limit eval_depth_max)",
                            run->limits->eval_depth_max);
    run->depth++;
    return KVA_OK;
}

void *kva_tpl_alloc(struct kva_tpl_run *run, size_t count, size_t size)
{
    size_t bytes;
    size_t limit = run->limits->heap_bytes_max;
    if (!kva_mul_size(count, size, &bytes))
        bytes = SIZE_MAX;
    if (bytes <= limit && kva_tpl_charge(run, KVA_TPL_BYTES, bytes))
        return NULL;
    void *data = kva_arena_calloc(&run->heap, count, size);
    if (data)
        return data;
    /* The arena refuses at its limit, or a little before it when blocks do not fit. */
    if (bytes > limit || run->heap.total_bytes > limit - bytes ||
        limit - bytes - run->heap.total_bytes < 4096)
        (void)kva_tpl_fail(run, "more than %zu bytes of values (limit heap_bytes_max)", limit);
    else
        (void)no_memory(run);
    return NULL;
}

enum kva_status kva_tpl_borrow(struct kva_tpl_run *run, const char *data, size_t length,
                               struct kva_tpl_value *ret)
{
    struct kva_tpl_str *string = kva_tpl_alloc(run, 1, sizeof(*string));
    if (!string)
        return run->err->status;
    string->data = data;
    string->length = length;
    *ret = (struct kva_tpl_value){.type = KVA_TPL_STRING, .as.string = string};
    return KVA_OK;
}

enum kva_status kva_tpl_copy(struct kva_tpl_run *run, const char *data, size_t length,
                             struct kva_tpl_value *ret)
{
    char *copy = kva_tpl_alloc(run, length, 1);
    if (!copy)
        return run->err->status;
    if (length > 0)
        memcpy(copy, data, length);
    return kva_tpl_borrow(run, copy, length, ret);
}

void kva_tpl_buf_init(const struct kva_tpl_run *run, struct kva_buf *buf)
{
    kva_buf_init(buf, run->limits->heap_bytes_max);
}

enum kva_status kva_tpl_buf_take(struct kva_tpl_run *run, struct kva_buf *buf,
                                 struct kva_tpl_value *ret)
{
    enum kva_status status;
    if (buf->failed)
        status = kva_tpl_buf_fail(run, buf, run->limits->heap_bytes_max,
                                  "values (limit heap_bytes_max)");
    else
        status = kva_tpl_copy(run, buf->data, buf->length, ret);
    kva_buf_finish(buf);
    return status;
}

enum kva_status kva_tpl_join(struct kva_tpl_run *run, const struct kva_tpl_str *left,
                             const struct kva_tpl_str *right, struct kva_tpl_value *ret)
{
    size_t length;
    if (!kva_add_size(left->length, right->length, &length))
        return kva_tpl_fail(run, "a string longer than memory");
    struct kva_tpl_room *room = left->room;
    const char *start = left->data;
    const char *end = left->data + left->length;
    /* Room that is not shared beyond our end may be written. */
    if (room && end == room->data + room->used && room->capacity - room->used >= right->length) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, right->length));
        memcpy(room->data + room->used, right->data, right->length);
        room->used += right->length;
    } else {
        /* A string that has grown once before will grow again. */
        size_t capacity = room ? length + length / 2 + 64 : length;
        room = kva_tpl_alloc(run, 1, sizeof(*room) + capacity);
        if (!room)
            return run->err->status;
        room->capacity = capacity;
        room->used = length;
        memcpy(room->data, left->data, left->length);
        memcpy(room->data + left->length, right->data, right->length);
        start = room->data;
    }
    struct kva_tpl_str *string = kva_tpl_alloc(run, 1, sizeof(*string));
    if (!string)
        return run->err->status;
    *string = (struct kva_tpl_str){.data = start, .length = length, .room = room};
    *ret = (struct kva_tpl_value){.type = KVA_TPL_STRING, .as.string = string};
    return KVA_OK;
}

enum kva_status kva_tpl_piece(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                              size_t from, size_t length, struct kva_tpl_value *ret)
{
    bool safe = string->safe;
    KVA_TPL_TRY(kva_tpl_borrow(run, string->as.string->data + from, length, ret));
    ret->safe = safe;
    return KVA_OK;
}

enum kva_status kva_tpl_list_new(struct kva_tpl_run *run, enum kva_tpl_type type, size_t capacity,
                                 struct kva_tpl_value *ret)
{
    struct kva_tpl_list *list = kva_tpl_alloc(run, 1, sizeof(*list));
    if (!list)
        return run->err->status;
    if (capacity > 0) {
        list->items = kva_tpl_alloc(run, capacity, sizeof(*list->items));
        if (!list->items)
            return run->err->status;
        list->capacity = capacity;
    }
    *ret = (struct kva_tpl_value){.type = (uint8_t)type, .as.list = list};
    return KVA_OK;
}

enum kva_status kva_tpl_list_add(struct kva_tpl_run *run, struct kva_tpl_list *list,
                                 const struct kva_tpl_value *item)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 4;
        struct kva_tpl_value *items = kva_tpl_alloc(run, capacity, sizeof(*items));
        if (!items)
            return run->err->status;
        if (list->count > 0)
            memcpy(items, list->items, list->count * sizeof(*items));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = *item;
    return KVA_OK;
}

enum kva_status kva_tpl_pair(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                             const struct kva_tpl_value *b, struct kva_tpl_value *ret)
{
    struct kva_tpl_value pair;
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_TUPLE, 2, &pair));
    pair.as.list->items[0] = *a;
    pair.as.list->items[1] = *b;
    pair.as.list->count = 2;
    *ret = pair;
    return KVA_OK;
}

enum kva_status kva_tpl_iterator_new(struct kva_tpl_run *run, const struct kva_tpl_list *list,
                                     const char *type_name, struct kva_tpl_value *ret)
{
    struct kva_tpl_iterator *iterator = kva_tpl_alloc(run, 1, sizeof(*iterator));
    if (!iterator)
        return run->err->status;
    iterator->list = list;
    iterator->type_name = type_name;
    *ret = (struct kva_tpl_value){.type = KVA_TPL_ITERATOR, .as.iterator = iterator};
    return KVA_OK;
}

/* How Jinja2 names an object whose attribute is missing. */
static const char *owner_name(struct kva_tpl_run *run, const struct kva_tpl_value *owner)
{
    if (owner->type == KVA_TPL_NONE)
        return "None";
    if (owner->type == KVA_TPL_NAMESPACE)
        return "jinja2.utils.Namespace object";
    if (owner->type == KVA_TPL_STRING && owner->safe)
        return "markupsafe.Markup object";
    if (owner->type == KVA_TPL_LOOP)
        return "jinja2.runtime.LoopContext object";
    if (owner->type == KVA_TPL_MACRO)
        return "jinja2.runtime.Macro object";
    const char *type = kva_tpl_type_name(owner);
    size_t size = strlen(type) + sizeof(" object");
    char *name = kva_tpl_alloc(run, size, 1);
    if (name)
        snprintf(name, size, "%s object", type);
    return name;
}

enum kva_status kva_tpl_undefined_new(struct kva_tpl_run *run, const char *hint,
                                      const struct kva_tpl_value *owner,
                                      const struct kva_tpl_value *name, struct kva_tpl_value *ret)
{
    struct kva_tpl_undefined *undefined = kva_tpl_alloc(run, 1, sizeof(*undefined));
    if (!undefined)
        return run->err->status;
    undefined->hint = hint;
    undefined->name = name ? *name : kva_tpl_none();
    if (owner) {
        undefined->owner = owner_name(run, owner);
        if (!undefined->owner)
            return run->err->status;
    }
    *ret = (struct kva_tpl_value){.type = KVA_TPL_UNDEFINED, .as.undefined = undefined};
    return KVA_OK;
}

const char *kva_tpl_type_name(const struct kva_tpl_value *value)
{
    static const char *const names[] = {
        [KVA_TPL_UNDEFINED] = "Undefined",
        [KVA_TPL_NONE] = "NoneType",
        [KVA_TPL_BOOL] = "bool",
        [KVA_TPL_INT] = "int",
        [KVA_TPL_FLOAT] = "float",
        [KVA_TPL_STRING] = "str",
        [KVA_TPL_LIST] = "list",
        [KVA_TPL_TUPLE] = "tuple",
        [KVA_TPL_DICT] = "dict",
        [KVA_TPL_NAMESPACE] = "Namespace",
        [KVA_TPL_RANGE] = "range",
        [KVA_TPL_ITERATOR] = "generator",
        [KVA_TPL_VIEW] = "dict_keys",
        [KVA_TPL_LOOP] = "LoopContext",
        [KVA_TPL_MACRO] = "Macro",
        [KVA_TPL_BUILTIN] = "function",
        [KVA_TPL_METHOD] = "builtin_function_or_method",
        [KVA_TPL_ABSENT] = "absent",
    };
    if (value->type == KVA_TPL_ITERATOR)
        return value->as.iterator->type_name;
    if (value->type == KVA_TPL_STRING && value->safe)
        return "Markup";
    if (value->type == KVA_TPL_VIEW) {
        enum kva_tpl_view_kind kind = value->as.view->kind;
        return kind == KVA_TPL_VIEW_KEYS     ? "dict_keys"
               : kind == KVA_TPL_VIEW_VALUES ? "dict_values"
                                             : "dict_items";
    }
    return names[value->type];
}
