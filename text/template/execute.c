/* execute.c - statements, scopes, macros and loops. */
#include "text/template/builtins.h"

#include <stdio.h>
#include <string.h>

typedef enum kva_status exec_fn(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt);

/* --- scopes ------------------------------------------------------------------------------------*/

static enum kva_status push_scope(struct kva_tpl_run *run, struct kva_tpl_scope *parent)
{
    struct kva_tpl_scope *scope = run->free_scopes;
    if (scope) {
        run->free_scopes = scope->parent;
        scope->count = 0;
    } else {
        scope = kva_tpl_alloc(run, 1, sizeof(*scope));
        if (!scope)
            return run->err->status;
    }
    scope->parent = parent;
    run->scope = scope;
    return KVA_OK;
}

/* Back to `outer`, which was current before. */
static void pop_scope(struct kva_tpl_run *run, struct kva_tpl_scope *outer)
{
    struct kva_tpl_scope *scope = run->scope;
    run->scope = outer;
    if (scope->captured)
        return;
    scope->parent = run->free_scopes;
    run->free_scopes = scope;
}

/* A macro keeps its scope, and with it all around it. */
static void capture_scopes(struct kva_tpl_run *run)
{
    for (struct kva_tpl_scope *scope = run->scope; scope && !scope->captured; scope = scope->parent)
        scope->captured = true;
}

/* Assign in the current scope. */
static enum kva_status bind(struct kva_tpl_run *run, uint32_t name,
                            const struct kva_tpl_value *value)
{
    struct kva_tpl_scope *scope = run->scope;
    if (!scope) {
        run->globals[name] = *value;
        return KVA_OK;
    }
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, scope->count));
    for (uint32_t i = 0; i < scope->count; i++) {
        if (scope->bindings[i].name == name) {
            scope->bindings[i].value = *value;
            return KVA_OK;
        }
    }
    if (scope->count == scope->capacity) {
        uint32_t capacity = scope->capacity ? scope->capacity * 2 : 4;
        struct kva_tpl_binding *bindings = kva_tpl_alloc(run, capacity, sizeof(*bindings));
        if (!bindings)
            return run->err->status;
        if (scope->count > 0)
            memcpy(bindings, scope->bindings, scope->count * sizeof(*bindings));
        scope->bindings = bindings;
        scope->capacity = capacity;
    }
    scope->bindings[scope->count++] = (struct kva_tpl_binding){name, *value};
    return KVA_OK;
}

static enum kva_status assign(struct kva_tpl_run *run, const struct kva_tpl_expr *target,
                              const struct kva_tpl_value *value);

static enum kva_status assign_tuple(struct kva_tpl_run *run, const struct kva_tpl_expr *target,
                                    const struct kva_tpl_value *value)
{
    const struct kva_tpl_list *items;
    if (!kva_tpl_is_iterable(value))
        return kva_tpl_fail(run, "cannot unpack non-iterable %s object", kva_tpl_type_name(value));
    KVA_TPL_TRY(kva_tpl_iterate(run, value, &items));
    if (items->count > target->count)
        return kva_tpl_fail(run, "too many values to unpack (expected %u)", target->count);
    if (items->count < target->count)
        return kva_tpl_fail(run, "not enough values to unpack (expected %u, got %zu)",
                            target->count, items->count);
    for (uint32_t i = 0; i < target->count; i++)
        KVA_TPL_TRY(assign(run, target->items[i], &items->items[i]));
    return KVA_OK;
}

static enum kva_status assign_attribute(struct kva_tpl_run *run, const struct kva_tpl_expr *target,
                                        const struct kva_tpl_value *value)
{
    struct kva_tpl_expr name = {
        .kind = KVA_TPL_EXPR_NAME, .name = target->name, .line = target->line};
    struct kva_tpl_value object;
    KVA_TPL_TRY(kva_tpl_eval(run, &name, &object));
    if (object.type != KVA_TPL_NAMESPACE)
        return kva_tpl_fail(run, "cannot assign attribute on non-namespace object");
    return kva_tpl_dict_set(run, object.as.dict, &target->value, value);
}

static enum kva_status assign(struct kva_tpl_run *run, const struct kva_tpl_expr *target,
                              const struct kva_tpl_value *value)
{
    if (target->kind == KVA_TPL_EXPR_NAME)
        return bind(run, target->name, value);
    if (target->kind == KVA_TPL_EXPR_NSREF)
        return assign_attribute(run, target, value);
    KVA_TPL_TRY(kva_tpl_enter(run));
    KVA_TPL_TRY(assign_tuple(run, target, value));
    kva_tpl_leave(run);
    return KVA_OK;
}

/* --- text --------------------------------------------------------------------------------------*/

static enum kva_status check_output(struct kva_tpl_run *run)
{
    if (run->capture_depth > 0) {
        if (run->capture.failed)
            return kva_tpl_buf_fail(run, &run->capture, run->limits->heap_bytes_max,
                                    "captured text (limit heap_bytes_max)");
        return KVA_OK;
    }
    if (run->out->failed || run->out->length - run->out_start > run->limits->output_bytes_max)
        return kva_tpl_buf_fail(run, run->out,
                                kva_min_size(run->limits->output_bytes_max, run->out->max_bytes),
                                "output (limit output_bytes_max)");
    return KVA_OK;
}

static struct kva_buf *output(struct kva_tpl_run *run)
{
    return run->capture_depth > 0 ? &run->capture : run->out;
}

/* Execute `body` into a string. The capture ends also when the body leaves its loop. */
static enum kva_status capture(struct kva_tpl_run *run, const struct kva_tpl_stmt *body,
                               struct kva_tpl_value *ret)
{
    size_t start = run->capture.length;
    run->capture_depth++;
    KVA_TPL_TRY(kva_tpl_execute(run, body));
    run->capture_depth--;
    size_t length = run->capture.length - start;
    KVA_TPL_TRY(kva_tpl_copy(run, run->capture.data ? run->capture.data + start : "", length, ret));
    run->capture.length = start;
    return KVA_OK;
}

static enum kva_status exec_text(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, stmt->text->length));
    kva_buf_append(output(run), stmt->text->data, stmt->text->length);
    return check_output(run);
}

static enum kva_status exec_output(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_value value;
    KVA_TPL_TRY(kva_tpl_eval(run, stmt->expr, &value));
    KVA_TPL_TRY(kva_tpl_put_str(run, output(run), &value));
    return check_output(run);
}

/* --- simple statements -------------------------------------------------------------------------*/

static enum kva_status exec_set(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_value value;
    KVA_TPL_TRY(kva_tpl_eval(run, stmt->expr, &value));
    return assign(run, stmt->target, &value);
}

/* The body's text, in a scope of its own, through the statement's filters. */
static enum kva_status filtered_body(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt,
                                     struct kva_tpl_value *ret)
{
    struct kva_tpl_scope *outer = run->scope;
    KVA_TPL_TRY(push_scope(run, outer));
    KVA_TPL_TRY(capture(run, stmt->body, ret));
    pop_scope(run, outer);
    if (!stmt->expr || run->flow != KVA_TPL_FLOW_NORMAL)
        return KVA_OK;
    struct kva_tpl_value before = run->filter_input;
    run->filter_input = *ret;
    KVA_TPL_TRY(kva_tpl_eval(run, stmt->expr, ret));
    run->filter_input = before;
    return KVA_OK;
}

static enum kva_status exec_set_block(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_value value;
    KVA_TPL_TRY(filtered_body(run, stmt, &value));
    return run->flow == KVA_TPL_FLOW_NORMAL ? assign(run, stmt->target, &value) : KVA_OK;
}

static enum kva_status exec_filter(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_value value;
    KVA_TPL_TRY(filtered_body(run, stmt, &value));
    if (run->flow != KVA_TPL_FLOW_NORMAL)
        return KVA_OK;
    KVA_TPL_TRY(kva_tpl_put_str(run, output(run), &value));
    return check_output(run);
}

static enum kva_status exec_if(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    for (uint32_t i = 0; i < stmt->count; i++) {
        struct kva_tpl_value test;
        KVA_TPL_TRY(kva_tpl_eval(run, stmt->branches[i].test, &test));
        if (kva_tpl_truth(&test))
            return kva_tpl_execute(run, stmt->branches[i].body);
    }
    return kva_tpl_execute(run, stmt->other);
}

static enum kva_status exec_with(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_scope *outer = run->scope;
    struct kva_tpl_value values;
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_TUPLE, stmt->count, &values));
    /* All values are computed outside of the block. */
    for (uint32_t i = 0; i < stmt->count; i++)
        KVA_TPL_TRY(kva_tpl_eval(run, stmt->values[i], &values.as.list->items[i]));
    KVA_TPL_TRY(push_scope(run, outer));
    for (uint32_t i = 0; i < stmt->count; i++)
        KVA_TPL_TRY(assign(run, stmt->targets[i], &values.as.list->items[i]));
    KVA_TPL_TRY(kva_tpl_execute(run, stmt->body));
    pop_scope(run, outer);
    return KVA_OK;
}

/* Hugging Face's `generation` marks what the assistant says; its text is its own scope. */
static enum kva_status exec_generation(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_scope *outer = run->scope;
    KVA_TPL_TRY(push_scope(run, outer));
    KVA_TPL_TRY(kva_tpl_execute(run, stmt->body));
    pop_scope(run, outer);
    return KVA_OK;
}

static enum kva_status exec_flow(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    run->flow = stmt->kind == KVA_TPL_STMT_BREAK ? KVA_TPL_FLOW_BREAK : KVA_TPL_FLOW_CONTINUE;
    return KVA_OK;
}

/* --- loops -------------------------------------------------------------------------------------*/

/* The items that pass the loop's `if`. They are chosen before the first one is used. */
static enum kva_status filter_items(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt,
                                    const struct kva_tpl_list **items)
{
    struct kva_tpl_scope *outer = run->scope;
    struct kva_tpl_value kept;
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &kept));
    KVA_TPL_TRY(push_scope(run, outer));
    for (size_t i = 0; i < (*items)->count; i++) {
        struct kva_tpl_value test;
        run->scope->count = 0;
        KVA_TPL_TRY(assign(run, stmt->target, &(*items)->items[i]));
        KVA_TPL_TRY(kva_tpl_eval(run, stmt->test, &test));
        if (kva_tpl_truth(&test))
            KVA_TPL_TRY(kva_tpl_list_add(run, kept.as.list, &(*items)->items[i]));
    }
    pop_scope(run, outer);
    *items = kept.as.list;
    return KVA_OK;
}

/* Run the loop's body over its items; a fresh scope holds the variables of each round. */
static enum kva_status run_loop(struct kva_tpl_run *run, struct kva_tpl_loop *loop)
{
    const struct kva_tpl_stmt *stmt = loop->stmt;
    struct kva_tpl_scope *outer = run->scope;
    struct kva_tpl_value variable = {.type = KVA_TPL_LOOP, .as.loop = loop};
    bool completed = false; /* a round that reached the end of the body */
    KVA_TPL_TRY(push_scope(run, outer));
    for (loop->index = 0; loop->index < loop->items->count; loop->index++) {
        if (run->scope->captured) {
            run->scope = outer;
            KVA_TPL_TRY(push_scope(run, outer));
        }
        run->scope->count = 0;
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
        KVA_TPL_TRY(bind(run, KVA_TPL_NAME_LOOP, &variable));
        KVA_TPL_TRY(assign(run, stmt->target, &loop->items->items[loop->index]));
        KVA_TPL_TRY(kva_tpl_execute(run, stmt->body));
        enum kva_tpl_flow flow = run->flow;
        run->flow = KVA_TPL_FLOW_NORMAL;
        completed |= flow == KVA_TPL_FLOW_NORMAL;
        if (flow == KVA_TPL_FLOW_BREAK)
            break;
    }
    pop_scope(run, outer);
    /* Jinja2's else means that no round was completed: break and continue do not count. */
    if (completed || !stmt->other)
        return KVA_OK;
    KVA_TPL_TRY(push_scope(run, outer));
    KVA_TPL_TRY(kva_tpl_execute(run, stmt->other));
    pop_scope(run, outer);
    return KVA_OK;
}

static enum kva_status start_loop(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt,
                                  const struct kva_tpl_value *iterable, uint32_t level)
{
    struct kva_tpl_loop *loop = kva_tpl_alloc(run, 1, sizeof(*loop));
    if (!loop)
        return run->err->status;
    loop->stmt = stmt;
    loop->level = level;
    loop->scope = run->scope;
    if (stmt->recursive)
        capture_scopes(run);
    loop->last_changed.type = KVA_TPL_ABSENT;
    KVA_TPL_TRY(kva_tpl_iterate(run, iterable, &loop->items));
    if (stmt->test)
        KVA_TPL_TRY(filter_items(run, stmt, &loop->items));
    return run_loop(run, loop);
}

static enum kva_status exec_for(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_value iterable;
    KVA_TPL_TRY(kva_tpl_eval(run, stmt->expr, &iterable));
    return start_loop(run, stmt, &iterable, 0);
}

enum kva_status kva_tpl_call_loop(struct kva_tpl_run *run, const struct kva_tpl_loop *loop,
                                  const struct kva_tpl_call *call, struct kva_tpl_value *ret)
{
    if (!loop->stmt->recursive)
        return kva_tpl_fail(run, "The loop must have the 'recursive' marker to be called "
                                 "recursively.");
    if (call->count != 1 || call->named_count != 0)
        return kva_tpl_fail(run, "loop() takes exactly one argument");
    struct kva_tpl_scope *scope = run->scope;
    size_t start = run->capture.length;
    run->scope = loop->scope;
    run->capture_depth++;
    KVA_TPL_TRY(start_loop(run, loop->stmt, &call->args[0], loop->level + 1));
    run->capture_depth--;
    run->scope = scope;
    KVA_TPL_TRY(kva_tpl_copy(run, run->capture.data ? run->capture.data + start : "",
                             run->capture.length - start, ret));
    run->capture.length = start;
    return KVA_OK;
}

/* --- macros ------------------------------------------------------------------------------------*/

static enum kva_status new_macro(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt,
                                 const struct kva_tpl_str *name, struct kva_tpl_value *ret)
{
    struct kva_tpl_macro *macro = kva_tpl_alloc(run, 1, sizeof(*macro));
    if (!macro)
        return run->err->status;
    macro->signature = stmt->signature;
    macro->body = stmt->body;
    macro->name = name;
    macro->scope = run->scope;
    capture_scopes(run);
    *ret = (struct kva_tpl_value){.type = KVA_TPL_MACRO, .as.macro = macro};
    return KVA_OK;
}

static enum kva_status exec_macro(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_value macro;
    KVA_TPL_TRY(new_macro(run, stmt, run->tmpl->names[stmt->name], &macro));
    return bind(run, stmt->name, &macro);
}

static enum kva_status exec_call(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    static const struct kva_tpl_str caller_name = {.data = "caller", .length = 6};
    struct kva_tpl_value callee, result;
    struct kva_tpl_call call;
    KVA_TPL_TRY(kva_tpl_eval(run, stmt->expr->a, &callee));
    KVA_TPL_TRY(kva_tpl_eval_args(run, stmt->expr->args, &call));
    struct kva_tpl_named *named = kva_tpl_alloc(run, (size_t)call.named_count + 1, sizeof(*named));
    if (!named)
        return run->err->status;
    if (call.named_count > 0)
        memcpy(named, call.named, call.named_count * sizeof(*named));
    named[call.named_count].name = &caller_name;
    KVA_TPL_TRY(new_macro(run, stmt, NULL, &named[call.named_count].value));
    call.named = named;
    call.named_count++;
    run->line = stmt->line;
    KVA_TPL_TRY(kva_tpl_call(run, &callee, &call, &result));
    KVA_TPL_TRY(kva_tpl_put_str(run, output(run), &result));
    return check_output(run);
}

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
        KVA_TPL_TRY(bind(run, KVA_TPL_NAME_CALLER, &caller));
    if (signature->wants_kwargs)
        KVA_TPL_TRY(bind(run, KVA_TPL_NAME_KWARGS, &rest));
    if (signature->wants_varargs) {
        size_t extra = call->count > signature->count ? call->count - signature->count : 0;
        KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_TUPLE, extra, &rest));
        for (size_t i = 0; i < extra; i++)
            KVA_TPL_TRY(kva_tpl_list_add(run, rest.as.list, &call->args[signature->count + i]));
        KVA_TPL_TRY(bind(run, KVA_TPL_NAME_VARARGS, &rest));
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
        return bind(run, signature->names[index], &call->args[index]);
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, call->named_count));
    for (uint32_t i = 0; i < call->named_count; i++) {
        bool same = false;
        if (!used[i])
            KVA_TPL_TRY(same_name(run, call->named[i].name, name, &same));
        if (same) {
            used[i] = true;
            return bind(run, signature->names[index], &call->named[i].value);
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
    return bind(run, signature->names[index], &value);
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
    KVA_TPL_TRY(push_scope(run, macro->scope));
    for (uint32_t i = 0; i < macro->signature->count; i++)
        KVA_TPL_TRY(bind_parameter(run, macro, call, i, used));
    if (call->named_count > 0 || call->count > macro->signature->count ||
        macro->signature->wants_caller || macro->signature->wants_kwargs ||
        macro->signature->wants_varargs)
        KVA_TPL_TRY(bind_rest(run, macro, call, used));
    KVA_TPL_TRY(capture(run, macro->body, ret));
    pop_scope(run, outer);
    kva_tpl_leave(run);
    return KVA_OK;
}

/* --- dispatch ----------------------------------------------------------------------------------*/

static exec_fn *const executors[KVA_TPL_STMT_KIND_COUNT] = {
    [KVA_TPL_STMT_TEXT] = exec_text,
    [KVA_TPL_STMT_OUTPUT] = exec_output,
    [KVA_TPL_STMT_SET] = exec_set,
    [KVA_TPL_STMT_SET_BLOCK] = exec_set_block,
    [KVA_TPL_STMT_IF] = exec_if,
    [KVA_TPL_STMT_FOR] = exec_for,
    [KVA_TPL_STMT_MACRO] = exec_macro,
    [KVA_TPL_STMT_CALL] = exec_call,
    [KVA_TPL_STMT_FILTER] = exec_filter,
    [KVA_TPL_STMT_WITH] = exec_with,
    [KVA_TPL_STMT_GENERATION] = exec_generation,
    [KVA_TPL_STMT_BREAK] = exec_flow,
    [KVA_TPL_STMT_CONTINUE] = exec_flow,
};

enum kva_status kva_tpl_execute(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    KVA_TPL_TRY(kva_tpl_enter(run));
    for (; stmt && run->flow == KVA_TPL_FLOW_NORMAL; stmt = stmt->next) {
        run->line = stmt->line;
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
        KVA_TPL_TRY(executors[stmt->kind](run, stmt));
    }
    kva_tpl_leave(run);
    return KVA_OK;
}
