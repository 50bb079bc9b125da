/* macro.c - calling a macro: its arguments become variables, its text the value. */
#include "text/template/builtins.h"

#include <stdio.h>
#include <string.h>

static enum kva_status same_name(struct kva_tpl_run *run, const struct kva_tpl_str *a,
                                 const struct kva_tpl_str *b, bool *ret)
{
    *ret = a->length == b->length;
    if (*ret)
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, a->length));
    *ret = *ret && memcmp(a->data, b->data, a->length) == 0;
    return KVA_OK;
}

static bool is_parameter(const struct kva_tpl_signature *signature, uint32_t name)
{
    for (uint32_t i = 0; i < signature->count; i++) {
        if (signature->names[i] == name)
            return true;
    }
    return false;
}

/* Named arguments that are no parameters: `caller` and `kwargs`, if the body wants them. */
static enum kva_status bind_rest(struct kva_tpl_run *run, const struct kva_tpl_macro *macro,
                                 const struct kva_tpl_call *call, const bool *used)
{
    const struct kva_tpl_signature *signature = macro->signature;
    int name_length = macro->name ? (int)kva_min_size(macro->name->length, 60) : 6;
    const char *name = macro->name ? macro->name->data : "caller";
    bool wants_caller = signature->wants_caller && !is_parameter(signature, KVA_TPL_NAME_CALLER);
    struct kva_tpl_value rest, caller;
    KVA_TPL_TRY(kva_tpl_undefined_new(run, "No caller defined", NULL, NULL, &caller));
    KVA_TPL_TRY(kva_tpl_dict_new(run, KVA_TPL_DICT, &rest));
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, call->named_count));
    for (uint32_t i = 0; i < call->named_count; i++) {
        const struct kva_tpl_named *named = &call->named[i];
        bool is_caller = false;
        if (used[i])
            continue;
        struct kva_tpl_value key = {.type = KVA_TPL_STRING, .as.string = named->name};
        if (wants_caller)
            KVA_TPL_TRY(
                same_name(run, named->name, run->tmpl->names[KVA_TPL_NAME_CALLER], &is_caller));
        if (is_caller)
            caller = named->value;
        else if (signature->wants_kwargs)
            KVA_TPL_TRY(kva_tpl_dict_set(run, rest.as.dict, &key, &named->value));
        else
            return kva_tpl_fail(run, "macro '%.*s' takes no keyword argument '%.*s'", name_length,
                                name, (int)kva_min_size(named->name->length, 60),
                                named->name->data);
    }
    if (wants_caller)
        KVA_TPL_TRY(kva_tpl_scope_bind(run, KVA_TPL_NAME_CALLER, &caller));
    if (signature->wants_kwargs)
        KVA_TPL_TRY(kva_tpl_scope_bind(run, KVA_TPL_NAME_KWARGS, &rest));
    if (signature->wants_varargs) {
        size_t extra = call->count > signature->count ? call->count - signature->count : 0;
        KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_TUPLE, extra, &rest));
        for (size_t i = 0; i < extra; i++)
            KVA_TPL_TRY(kva_tpl_list_add(run, rest.as.list, &call->args[signature->count + i]));
        KVA_TPL_TRY(kva_tpl_scope_bind(run, KVA_TPL_NAME_VARARGS, &rest));
    } else if (call->count > signature->count) {
        return kva_tpl_fail(run, "macro '%.*s' takes not more than %u argument(s)", name_length,
                            name, signature->count);
    }
    return KVA_OK;
}

/* One parameter: by position, by name, by default, or undefined. */
static enum kva_status bind_parameter(struct kva_tpl_run *run, const struct kva_tpl_macro *macro,
                                      const struct kva_tpl_call *call, uint32_t index, bool *used)
{
    const struct kva_tpl_signature *signature = macro->signature;
    const struct kva_tpl_str *name = run->tmpl->names[signature->names[index]];
    struct kva_tpl_value value;
    if (index < call->count)
        return kva_tpl_scope_bind(run, signature->names[index], &call->args[index]);
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, call->named_count));
    for (uint32_t i = 0; i < call->named_count; i++) {
        bool same = false;
        if (!used[i])
            KVA_TPL_TRY(same_name(run, call->named[i].name, name, &same));
        if (same) {
            used[i] = true;
            return kva_tpl_scope_bind(run, signature->names[index], &call->named[i].value);
        }
    }
    uint32_t first_default = signature->count - signature->default_count;
    if (index >= first_default) {
        KVA_TPL_TRY(kva_tpl_eval(run, signature->defaults[index - first_default], &value));
    } else {
        char *hint = kva_tpl_alloc(run, name->length + 32, 1);
        if (!hint)
            return run->err->status;
        snprintf(hint, name->length + 32, "parameter '%.*s' was not provided", (int)name->length,
                 name->data);
        KVA_TPL_TRY(kva_tpl_undefined_new(run, hint, NULL, NULL, &value));
    }
    return kva_tpl_scope_bind(run, signature->names[index], &value);
}

enum kva_status kva_tpl_call_macro(struct kva_tpl_run *run, const struct kva_tpl_macro *macro,
                                   const struct kva_tpl_call *call, struct kva_tpl_value *ret)
{
    struct kva_tpl_scope *outer = run->scope;
    bool *used = NULL;
    if (call->named_count > 0) {
        used = kva_tpl_alloc(run, call->named_count, sizeof(*used));
        if (!used)
            return run->err->status;
    }
    KVA_TPL_TRY(kva_tpl_enter(run));
    KVA_TPL_TRY(kva_tpl_scope_push(run, macro->scope));
    for (uint32_t i = 0; i < macro->signature->count; i++)
        KVA_TPL_TRY(bind_parameter(run, macro, call, i, used));
    if (call->named_count > 0 || call->count > macro->signature->count ||
        macro->signature->wants_caller || macro->signature->wants_kwargs ||
        macro->signature->wants_varargs)
        KVA_TPL_TRY(bind_rest(run, macro, call, used));
    KVA_TPL_TRY(kva_tpl_capture(run, macro->body, ret));
    kva_tpl_scope_pop(run, outer);
    kva_tpl_leave(run);
    return KVA_OK;
}
