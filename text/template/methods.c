/* methods.c - methods of dictionaries, lists and tuples, and the way to all methods. */
#include "text/template/builtins.h"

#include <string.h>

static enum kva_status dict_get(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                struct kva_tpl_value *ret)
{
    const struct kva_tpl_value *value;
    KVA_TPL_TRY(kva_tpl_dict_get(run, in->self->as.dict, &in->args[0], &value));
    if (value)
        *ret = *value;
    else
        *ret = kva_tpl_arg_given(in, 1) ? in->args[1] : kva_tpl_none();
    return KVA_OK;
}

static enum kva_status make_view(struct kva_tpl_run *run, const struct kva_tpl_value *dict,
                                 enum kva_tpl_view_kind kind, struct kva_tpl_value *ret)
{
    struct kva_tpl_view *view = kva_tpl_alloc(run, 1, sizeof(*view));
    if (!view)
        return run->err->status;
    view->dict = dict->as.dict;
    view->kind = kind;
    *ret = (struct kva_tpl_value){.type = KVA_TPL_VIEW, .as.view = view};
    return KVA_OK;
}

static enum kva_status dict_keys(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                 struct kva_tpl_value *ret)
{
    return make_view(run, in->self, KVA_TPL_VIEW_KEYS, ret);
}

static enum kva_status dict_values(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                   struct kva_tpl_value *ret)
{
    return make_view(run, in->self, KVA_TPL_VIEW_VALUES, ret);
}

static enum kva_status dict_items(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                  struct kva_tpl_value *ret)
{
    return make_view(run, in->self, KVA_TPL_VIEW_ITEMS, ret);
}

/* What cannot change needs no copy: dictionaries and lists. */
static enum kva_status copy_self(struct kva_tpl_run *run KVA_UNUSED,
                                 const struct kva_tpl_invocation *in, struct kva_tpl_value *ret)
{
    *ret = *in->self;
    return KVA_OK;
}

static enum kva_status list_count(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                  struct kva_tpl_value *ret)
{
    const struct kva_tpl_list *list = in->self->as.list;
    int64_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        bool equal;
        KVA_TPL_TRY(kva_tpl_equal(run, &list->items[i], &in->args[0], &equal));
        count += equal;
    }
    *ret = kva_tpl_int(count);
    return KVA_OK;
}

static enum kva_status list_index(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                  struct kva_tpl_value *ret)
{
    const struct kva_tpl_list *list = in->self->as.list;
    int64_t start, stop;
    int64_t count = (int64_t)list->count;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 1, 0, &start));
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 2, count, &stop));
    start = start < -count ? 0 : start < 0 ? start + count : start;
    stop = stop < -count ? 0 : stop < 0 ? stop + count : stop > count ? count : stop;
    for (int64_t i = start; i < stop; i++) {
        bool equal;
        KVA_TPL_TRY(kva_tpl_equal(run, &list->items[i], &in->args[0], &equal));
        if (equal) {
            *ret = kva_tpl_int(i);
            return KVA_OK;
        }
    }
    return kva_tpl_fail(run, "value is not in list");
}

static const struct kva_tpl_builtin dict_methods[] = {
    {"get", dict_get, "- -", 1},    {"items", dict_items, "", 0}, {"keys", dict_keys, "", 0},
    {"values", dict_values, "", 0}, {"copy", copy_self, "", 0},   {"fromkeys", NULL, NULL, 0},
};

static const struct kva_tpl_builtin list_methods[] = {
    {"count", list_count, "-", 1},
    {"index", list_index, "- - -", 1},
    {"copy", copy_self, "", 0},
};

const struct kva_tpl_table kva_tpl_dict_methods = {dict_methods, KVA_COUNT_OF(dict_methods)};
const struct kva_tpl_table kva_tpl_list_methods = {list_methods, KVA_COUNT_OF(list_methods)};

/* What would change the object. */
static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update"};
static const char *const list_unsafe[] = {"append", "clear", "pop",    "reverse",
                                          "insert", "sort",  "extend", "remove"};

static bool is_one_of(const char *const *names, size_t count, const struct kva_tpl_str *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strlen(names[i]) == name->length && memcmp(names[i], name->data, name->length) == 0)
            return true;
    }
    return false;
}

static const struct kva_tpl_builtin *find(const struct kva_tpl_table *table, size_t count,
                                          const struct kva_tpl_str *name)
{
    for (size_t i = 0; i < count; i++) {
        const char *known = table->items[i].name;
        if (strlen(known) == name->length && memcmp(known, name->data, name->length) == 0)
            return &table->items[i];
    }
    return NULL;
}

const struct kva_tpl_builtin *kva_tpl_find_method(const struct kva_tpl_value *object,
                                                  const struct kva_tpl_str *name, bool *ret_unsafe)
{
    const struct kva_tpl_builtin *found = NULL;
    *ret_unsafe = false;
    switch (object->type) {
    case KVA_TPL_STRING:
        found = find(&kva_tpl_search_methods, kva_tpl_search_methods.count, name);
        return found ? found : find(&kva_tpl_string_methods, kva_tpl_string_methods.count, name);
    case KVA_TPL_DICT:
        *ret_unsafe = is_one_of(dict_unsafe, KVA_COUNT_OF(dict_unsafe), name);
        return find(&kva_tpl_dict_methods, kva_tpl_dict_methods.count, name);
    case KVA_TPL_LIST:
        *ret_unsafe = is_one_of(list_unsafe, KVA_COUNT_OF(list_unsafe), name);
        return find(&kva_tpl_list_methods, kva_tpl_list_methods.count, name);
    case KVA_TPL_TUPLE:
        /* All but `copy`. */
        return find(&kva_tpl_list_methods, kva_tpl_list_methods.count - 1, name);
    default:
        return NULL;
    }
}
