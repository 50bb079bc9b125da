/* builtins.c - finding and calling builtins, the global functions, and `loop`. */
#include "text/template/builtins.h"

#include <string.h>
#include <time.h>

/* strftime's result must fit: a format is bounded by this too. */
#define DATE_BYTES_MAX 1024

static bool is_name(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

static const struct kva_tpl_builtin *find(const struct kva_tpl_table *table, const char *name,
                                          size_t length)
{
    for (size_t i = 0; i < table->count; i++) {
        if (is_name(table->items[i].name, name, length))
            return &table->items[i];
    }
    return NULL;
}

const struct kva_tpl_builtin *kva_tpl_find_filter(const char *name, size_t length)
{
    static const struct kva_tpl_table *const tables[] = {
        &kva_tpl_text_filters,   &kva_tpl_sequence_filters, &kva_tpl_select_filters,
        &kva_tpl_number_filters, &kva_tpl_json_filters,
    };
    for (size_t i = 0; i < KVA_COUNT_OF(tables); i++) {
        const struct kva_tpl_builtin *found = find(tables[i], name, length);
        if (found)
            return found;
    }
    return NULL;
}

const struct kva_tpl_builtin *kva_tpl_find_test(const char *name, size_t length)
{
    return find(&kva_tpl_tests, name, length);
}

/* Index of `name` in "a b c"; *ret_count how many there are. -1 if it is not there. */
static int find_param(const char *params, const struct kva_tpl_str *name, uint32_t *ret_count)
{
    int found = -1;
    uint32_t count = 0;
    while (*params) {
        size_t length = strcspn(params, " ");
        if (name && length == name->length && memcmp(params, name->data, length) == 0)
            found = (int)count;
        count++;
        params += length + (params[length] == ' ');
    }
    *ret_count = count;
    return found;
}

static enum kva_status bind_args(struct kva_tpl_run *run, const struct kva_tpl_builtin *builtin,
                                 const struct kva_tpl_call *call,
                                 struct kva_tpl_value slots[KVA_TPL_PARAMS_MAX])
{
    uint32_t param_count;
    (void)find_param(builtin->params, NULL, &param_count);
    for (uint32_t i = 0; i < KVA_TPL_PARAMS_MAX; i++)
        slots[i].type = KVA_TPL_ABSENT;
    if (call->count > param_count)
        return kva_tpl_fail(run, "%s() takes at most %u argument(s) (%u given)", builtin->name,
                            param_count, call->count);
    for (uint32_t i = 0; i < call->count; i++)
        slots[i] = call->args[i];
    for (uint32_t i = 0; i < call->named_count; i++) {
        const struct kva_tpl_str *name = call->named[i].name;
        int index = find_param(builtin->params, name, &param_count);
        int name_length = (int)kva_min_size(name->length, 60);
        if (index < 0)
            return kva_tpl_fail(run, "%s() got an unexpected keyword argument '%.*s'",
                                builtin->name, name_length, name->data);
        if (slots[index].type != KVA_TPL_ABSENT)
            return kva_tpl_fail(run, "%s() got multiple values for argument '%.*s'", builtin->name,
                                name_length, name->data);
        slots[index] = call->named[i].value;
    }
    for (uint32_t i = 0; i < builtin->required; i++) {
        if (slots[i].type == KVA_TPL_ABSENT)
            return kva_tpl_fail(run, "%s() takes at least %u argument(s) (%u given)", builtin->name,
                                builtin->required, call->count + call->named_count);
    }
    return KVA_OK;
}

enum kva_status kva_tpl_invoke(struct kva_tpl_run *run, const struct kva_tpl_builtin *builtin,
                               const struct kva_tpl_value *self, const struct kva_tpl_call *call,
                               struct kva_tpl_value *ret)
{
    if (!builtin->fn)
        return kva_tpl_fail(run, "'%s' is not supported in chat templates here", builtin->name);
    struct kva_tpl_value slots[KVA_TPL_PARAMS_MAX];
    struct kva_tpl_invocation in = {.self = self, .call = call};
    if (builtin->params) {
        KVA_TPL_TRY(bind_args(run, builtin, call, slots));
        in.args = slots;
    }
    /* The result may be stored over the operand: compute it aside. */
    struct kva_tpl_value result = kva_tpl_none();
    KVA_TPL_TRY(builtin->fn(run, &in, &result));
    *ret = result;
    return KVA_OK;
}

enum kva_status kva_tpl_apply(struct kva_tpl_run *run, bool is_test,
                              const struct kva_tpl_value *name, const struct kva_tpl_value *self,
                              const struct kva_tpl_call *call, struct kva_tpl_value *ret)
{
    const struct kva_tpl_builtin *builtin = NULL;
    if (name->type == KVA_TPL_STRING) {
        const struct kva_tpl_str *text = name->as.string;
        builtin = is_test ? kva_tpl_find_test(text->data, text->length)
                          : kva_tpl_find_filter(text->data, text->length);
        if (!builtin)
            return kva_tpl_fail(run, "No %s named '%.*s'.", is_test ? "test" : "filter",
                                (int)kva_min_size(text->length, 60), text->data);
    } else {
        return kva_tpl_fail(run, "the name of a %s must be a string, not %s",
                            is_test ? "test" : "filter", kva_tpl_type_name(name));
    }
    /* Filters can call filters: map('map', 'map', ...). */
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 4));
    KVA_TPL_TRY(kva_tpl_enter(run));
    KVA_TPL_TRY(kva_tpl_invoke(run, builtin, self, call, ret));
    kva_tpl_leave(run);
    return KVA_OK;
}

enum kva_status kva_tpl_arg_int(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                uint32_t index, int64_t fallback, int64_t *ret)
{
    const struct kva_tpl_value *value = &in->args[index];
    *ret = fallback;
    if (value->type == KVA_TPL_ABSENT)
        return KVA_OK;
    if (value->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, value);
    if (!kva_tpl_is_integer(value))
        return kva_tpl_fail(run, "'%s' object cannot be interpreted as an integer",
                            kva_tpl_type_name(value));
    *ret = kva_tpl_as_integer(value);
    return KVA_OK;
}

bool kva_tpl_arg_truth(const struct kva_tpl_invocation *in, uint32_t index, bool fallback)
{
    return kva_tpl_arg_given(in, index) ? kva_tpl_truth(&in->args[index]) : fallback;
}

enum kva_status kva_tpl_arg_string(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                   uint32_t index, const struct kva_tpl_str **ret)
{
    const struct kva_tpl_value *value = &in->args[index];
    *ret = NULL;
    if (value->type != KVA_TPL_STRING)
        return kva_tpl_fail(run, "argument %u must be str, not %s", index + 1,
                            kva_tpl_type_name(value));
    *ret = value->as.string;
    return KVA_OK;
}

/* --- global functions --------------------------------------------------------------------------*/

static enum kva_status function_range(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                      struct kva_tpl_value *ret)
{
    int64_t start = 0, stop, step;
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 0, 0, &stop));
    if (kva_tpl_arg_given(in, 1)) {
        start = stop;
        KVA_TPL_TRY(kva_tpl_arg_int(run, in, 1, 0, &stop));
    }
    KVA_TPL_TRY(kva_tpl_arg_int(run, in, 2, 1, &step));
    if (step == 0)
        return kva_tpl_fail(run, "range() arg 3 must not be zero");
    uint64_t count = 0;
    /* Unsigned differences cannot overflow. */
    if (step > 0 && start < stop)
        count = ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1;
    else if (step < 0 && start > stop)
        count = ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step) + 1;
    if (count > run->limits->range_max)
        return kva_tpl_fail(run,
                            "Range too big. The sandbox blocks ranges larger than %u (limit "
                            "range_max).",
                            run->limits->range_max);
    struct kva_tpl_range *range = kva_tpl_alloc(run, 1, sizeof(*range));
    if (!range)
        return run->err->status;
    *range = (struct kva_tpl_range){start, stop, step, (int64_t)count};
    *ret = (struct kva_tpl_value){.type = KVA_TPL_RANGE, .as.range = range};
    return KVA_OK;
}

/* dict(mapping or pairs, **named). */
static enum kva_status fill_dict(struct kva_tpl_run *run, const struct kva_tpl_call *call,
                                 struct kva_tpl_dict *dict)
{
    if (call->count > 1)
        return kva_tpl_fail(run, "dict expected at most 1 argument, got %u", call->count);
    if (call->count == 1 && call->args[0].type == KVA_TPL_DICT) {
        const struct kva_tpl_dict *from = call->args[0].as.dict;
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, from->count));
        for (uint32_t i = 0; i < from->count; i++)
            KVA_TPL_TRY(
                kva_tpl_dict_set(run, dict, &from->entries[i].key, &from->entries[i].value));
    } else if (call->count == 1) {
        const struct kva_tpl_list *pairs, *pair;
        KVA_TPL_TRY(kva_tpl_iterate(run, &call->args[0], &pairs));
        for (size_t i = 0; i < pairs->count; i++) {
            KVA_TPL_TRY(kva_tpl_iterate(run, &pairs->items[i], &pair));
            if (pair->count != 2)
                return kva_tpl_fail(run,
                                    "dictionary update sequence element #%zu has length %zu; "
                                    "2 is required",
                                    i, pair->count);
            KVA_TPL_TRY(kva_tpl_dict_set(run, dict, &pair->items[0], &pair->items[1]));
        }
    }
    for (uint32_t i = 0; i < call->named_count; i++) {
        struct kva_tpl_value key = {.type = KVA_TPL_STRING, .as.string = call->named[i].name};
        KVA_TPL_TRY(kva_tpl_dict_set(run, dict, &key, &call->named[i].value));
    }
    return KVA_OK;
}

static enum kva_status function_dict(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                     struct kva_tpl_value *ret)
{
    KVA_TPL_TRY(kva_tpl_dict_new(run, KVA_TPL_DICT, ret));
    return fill_dict(run, in->call, ret->as.dict);
}

static enum kva_status function_namespace(struct kva_tpl_run *run,
                                          const struct kva_tpl_invocation *in,
                                          struct kva_tpl_value *ret)
{
    KVA_TPL_TRY(kva_tpl_dict_new(run, KVA_TPL_NAMESPACE, ret));
    return fill_dict(run, in->call, ret->as.dict);
}

static enum kva_status function_raise(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                      struct kva_tpl_value *ret)
{
    KVA_TPL_TRY(kva_tpl_to_str(run, &in->args[0], false, ret));
    const struct kva_tpl_str *text = ret->as.string;
    return kva_fail(run->err, KVA_EINVAL, "%.*s",
                    (int)kva_min_size(text->length, KVA_ERR_MESSAGE_MAX), text->data);
}

static enum kva_status function_strftime(struct kva_tpl_run *run,
                                         const struct kva_tpl_invocation *in,
                                         struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *format;
    KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &format));
    char text[DATE_BYTES_MAX];
    char date[DATE_BYTES_MAX];
    if (format->length + 2 > sizeof(text))
        return kva_tpl_fail(run, "strftime_now: a format of more than %zu bytes", sizeof(text) - 2);
    /* A last character tells an empty result from one that does not fit. */
    memcpy(text, format->data, format->length);
    memcpy(text + format->length, ".", 2);
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, sizeof(text)));
    time_t now = (time_t)run->now_unix_s;
    struct tm fields;
    if (strlen(text) != format->length + 1 || !localtime_r(&now, &fields))
        return kva_tpl_fail(run, "strftime_now: a date or format that cannot be shown");
    size_t length = strftime(date, sizeof(date), text, &fields);
    if (length == 0)
        return kva_tpl_fail(run, "strftime_now: a result of more than %zu bytes", sizeof(date) - 2);
    return kva_tpl_copy(run, date, length - 1, ret);
}

static const struct kva_tpl_builtin functions[] = {
    {"range", function_range, "start stop step", 1},
    {"dict", function_dict, NULL, 0},
    {"namespace", function_namespace, NULL, 0},
    {"raise_exception", function_raise, "message", 1},
    {"strftime_now", function_strftime, "format", 1},
};

const struct kva_tpl_table kva_tpl_functions = {functions, KVA_COUNT_OF(functions)};

void kva_tpl_set_functions(struct kva_tpl_run *run)
{
    for (size_t i = 0; i < KVA_COUNT_OF(functions); i++) {
        const char *name = functions[i].name;
        uint32_t index = kva_tpl_find_name(run->tmpl, name, strlen(name));
        if (index == UINT32_MAX)
            continue;
        run->globals[index] =
            (struct kva_tpl_value){.type = KVA_TPL_BUILTIN, .as.builtin = &functions[i]};
    }
}

/* --- loop --------------------------------------------------------------------------------------*/

static enum kva_status loop_cycle(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                  struct kva_tpl_value *ret)
{
    if (in->call->count == 0)
        return kva_tpl_fail(run, "no items for cycling given");
    *ret = in->call->args[in->self->as.loop->index % in->call->count];
    return KVA_OK;
}

static enum kva_status loop_changed(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                    struct kva_tpl_value *ret)
{
    struct kva_tpl_loop *loop = in->self->as.loop;
    struct kva_tpl_value now;
    bool same = false;
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_TUPLE, in->call->count, &now));
    for (uint32_t i = 0; i < in->call->count; i++)
        KVA_TPL_TRY(kva_tpl_list_add(run, now.as.list, &in->call->args[i]));
    if (loop->last_changed.type != KVA_TPL_ABSENT)
        KVA_TPL_TRY(kva_tpl_equal(run, &loop->last_changed, &now, &same));
    loop->last_changed = now;
    *ret = kva_tpl_bool(!same);
    return KVA_OK;
}

static const struct kva_tpl_builtin loop_methods[] = {
    {"cycle", loop_cycle, NULL, 0},
    {"changed", loop_changed, NULL, 0},
};

static enum kva_status loop_neighbour(struct kva_tpl_run *run, struct kva_tpl_loop *loop, bool next,
                                      struct kva_tpl_value *ret)
{
    size_t index = next ? loop->index + 1 : loop->index - 1;
    if (next)
        KVA_TPL_TRY(kva_tpl_loop_reach(run, loop, index));
    /* Before the first item the index wraps around, which is outside as well. */
    if (index >= loop->items->count)
        return kva_tpl_undefined_new(
            run, next ? "there is no next item" : "there is no previous item", NULL, NULL, ret);
    *ret = loop->items->items[index];
    return KVA_OK;
}

static enum kva_status loop_method(struct kva_tpl_run *run, struct kva_tpl_loop *loop,
                                   const struct kva_tpl_builtin *builtin, struct kva_tpl_value *ret)
{
    struct kva_tpl_method *method = kva_tpl_alloc(run, 1, sizeof(*method));
    if (!method)
        return run->err->status;
    method->self = (struct kva_tpl_value){.type = KVA_TPL_LOOP, .as.loop = loop};
    method->builtin = builtin;
    *ret = (struct kva_tpl_value){.type = KVA_TPL_METHOD, .as.method = method};
    return KVA_OK;
}

/* Looks for the further items that an attribute tells of: the next one, or all. */
static enum kva_status reach_for(struct kva_tpl_run *run, struct kva_tpl_loop *loop,
                                 const struct kva_tpl_str *name)
{
    static const char *const of_all[] = {"length", "revindex", "revindex0"};
    if (is_name("last", name->data, name->length))
        return kva_tpl_loop_reach(run, loop, loop->index + 1);
    for (size_t i = 0; i < KVA_COUNT_OF(of_all); i++) {
        if (is_name(of_all[i], name->data, name->length))
            return kva_tpl_loop_reach(run, loop, SIZE_MAX);
    }
    return KVA_OK;
}

enum kva_status kva_tpl_loop_attribute(struct kva_tpl_run *run, struct kva_tpl_loop *loop,
                                       const struct kva_tpl_str *name, struct kva_tpl_value *ret,
                                       bool *ret_found)
{
    KVA_TPL_TRY(reach_for(run, loop, name));
    int64_t index = (int64_t)loop->index;
    int64_t count = (int64_t)loop->items->count;
    const struct {
        const char *name;
        struct kva_tpl_value value;
    } fields[] = {
        {"index", kva_tpl_int(index + 1)},
        {"index0", kva_tpl_int(index)},
        {"first", kva_tpl_bool(index == 0)},
        {"last", kva_tpl_bool(index + 1 >= count)},
        {"length", kva_tpl_int(count)},
        {"revindex", kva_tpl_int(count - index)},
        {"revindex0", kva_tpl_int(count - index - 1)},
        {"depth", kva_tpl_int((int64_t)loop->level + 1)},
        {"depth0", kva_tpl_int(loop->level)},
    };
    *ret_found = true;
    for (size_t i = 0; i < KVA_COUNT_OF(fields); i++) {
        if (is_name(fields[i].name, name->data, name->length)) {
            *ret = fields[i].value;
            return KVA_OK;
        }
    }
    if (is_name("previtem", name->data, name->length))
        return loop_neighbour(run, loop, false, ret);
    if (is_name("nextitem", name->data, name->length))
        return loop_neighbour(run, loop, true, ret);
    for (size_t i = 0; i < KVA_COUNT_OF(loop_methods); i++) {
        if (is_name(loop_methods[i].name, name->data, name->length))
            return loop_method(run, loop, &loop_methods[i], ret);
    }
    *ret_found = false;
    return KVA_OK;
}
