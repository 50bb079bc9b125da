/* execute.c - statements and loops. */
#include "text/template/builtins.h"

#include <string.h>

typedef enum kva_status exec_fn(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt);

/* --- assignment --------------------------------------------------------------------------------*/

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
        return kva_tpl_scope_bind(run, target->name, value);
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

enum kva_status kva_tpl_capture(struct kva_tpl_run *run, const struct kva_tpl_stmt *body,
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
    KVA_TPL_TRY(kva_tpl_scope_push(run, outer));
    KVA_TPL_TRY(kva_tpl_capture(run, stmt->body, ret));
    kva_tpl_scope_pop(run, outer);
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
    KVA_TPL_TRY(kva_tpl_scope_push(run, outer));
    for (uint32_t i = 0; i < stmt->count; i++)
        KVA_TPL_TRY(assign(run, stmt->targets[i], &values.as.list->items[i]));
    KVA_TPL_TRY(kva_tpl_execute(run, stmt->body));
    kva_tpl_scope_pop(run, outer);
    return KVA_OK;
}

/* Hugging Face's `generation` marks what the assistant says; its text is its own scope. */
static enum kva_status exec_generation(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_scope *outer = run->scope;
    KVA_TPL_TRY(kva_tpl_scope_push(run, outer));
    KVA_TPL_TRY(kva_tpl_execute(run, stmt->body));
    kva_tpl_scope_pop(run, outer);
    return KVA_OK;
}

static enum kva_status exec_flow(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    run->flow = stmt->kind == KVA_TPL_STMT_BREAK ? KVA_TPL_FLOW_BREAK : KVA_TPL_FLOW_CONTINUE;
    return KVA_OK;
}

/* --- loops -------------------------------------------------------------------------------------*/

/* Ask the loop's `if` of the next item, which it sees where the loop stands. */
static enum kva_status ask_next(struct kva_tpl_run *run, struct kva_tpl_loop *loop)
{
    const struct kva_tpl_value item = loop->source->items[loop->looked_at++];
    struct kva_tpl_scope *inner = run->scope;
    struct kva_tpl_value test;
    uint32_t line = run->line;
    KVA_TPL_TRY(kva_tpl_scope_push(run, loop->scope));
    KVA_TPL_TRY(assign(run, loop->stmt->target, &item));
    KVA_TPL_TRY(kva_tpl_eval(run, loop->stmt->test, &test));
    kva_tpl_scope_pop(run, inner);
    run->line = line;
    return kva_tpl_truth(&test) ? kva_tpl_list_add(run, loop->passed, &item) : KVA_OK;
}

enum kva_status kva_tpl_loop_reach(struct kva_tpl_run *run, struct kva_tpl_loop *loop, size_t index)
{
    while (loop->passed && loop->passed->count <= index && loop->looked_at < loop->source->count)
        KVA_TPL_TRY(ask_next(run, loop));
    return KVA_OK;
}

/* Run the loop's body over its items; a fresh scope holds the variables of each round. */
static enum kva_status run_loop(struct kva_tpl_run *run, struct kva_tpl_loop *loop)
{
    const struct kva_tpl_stmt *stmt = loop->stmt;
    struct kva_tpl_scope *outer = run->scope;
    struct kva_tpl_value variable = {.type = KVA_TPL_LOOP, .as.loop = loop};
    bool completed = false; /* a round that reached the end of the body */
    KVA_TPL_TRY(kva_tpl_scope_push(run, outer));
    KVA_TPL_TRY(kva_tpl_loop_reach(run, loop, 0));
    bool more = loop->items->count > 0;
    while (more) {
        if (run->scope->captured) {
            run->scope = outer;
            KVA_TPL_TRY(kva_tpl_scope_push(run, outer));
        }
        run->scope->count = 0;
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
        KVA_TPL_TRY(kva_tpl_scope_bind(run, KVA_TPL_NAME_LOOP, &variable));
        KVA_TPL_TRY(assign(run, stmt->target, &loop->items->items[loop->index]));
        KVA_TPL_TRY(kva_tpl_execute(run, stmt->body));
        enum kva_tpl_flow flow = run->flow;
        run->flow = KVA_TPL_FLOW_NORMAL;
        completed |= flow == KVA_TPL_FLOW_NORMAL;
        if (flow == KVA_TPL_FLOW_BREAK)
            break;
        KVA_TPL_TRY(kva_tpl_loop_reach(run, loop, loop->index + 1));
        more = loop->items->count > loop->index + 1;
        loop->index += more;
    }
    loop->looked_at = loop->source->count; /* the scope that the `if` sees may go */
    kva_tpl_scope_pop(run, outer);
    /* Jinja2's else means that no round was completed: break and continue do not count. */
    if (completed || !stmt->other)
        return KVA_OK;
    KVA_TPL_TRY(kva_tpl_scope_push(run, outer));
    KVA_TPL_TRY(kva_tpl_execute(run, stmt->other));
    kva_tpl_scope_pop(run, outer);
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
        kva_tpl_scope_keep(run);
    loop->last_changed.type = KVA_TPL_ABSENT;
    KVA_TPL_TRY(kva_tpl_iterate(run, iterable, &loop->source));
    loop->items = loop->source;
    if (stmt->test) {
        struct kva_tpl_value passed;
        KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, &passed));
        loop->items = loop->passed = passed.as.list;
    }
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

/* --- macros: made here, called in macro.c ------------------------------------------------------*/

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
    kva_tpl_scope_keep(run);
    *ret = (struct kva_tpl_value){.type = KVA_TPL_MACRO, .as.macro = macro};
    return KVA_OK;
}

static enum kva_status exec_macro(struct kva_tpl_run *run, const struct kva_tpl_stmt *stmt)
{
    struct kva_tpl_value macro;
    KVA_TPL_TRY(new_macro(run, stmt, run->tmpl->names[stmt->name], &macro));
    return kva_tpl_scope_bind(run, stmt->name, &macro);
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
