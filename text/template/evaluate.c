/* evaluate.c - expressions and calls. */
#include "text/template/builtins.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef enum kva_status eval_fn(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                struct kva_tpl_value *ret);

static enum kva_status eval_const(struct kva_tpl_run *run KVA_UNUSED,
                                  const struct kva_tpl_expr *expr, struct kva_tpl_value *ret)
{
    *ret = expr->value;
    return KVA_OK;
}

static enum kva_status eval_name(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                 struct kva_tpl_value *ret)
{
    for (const struct kva_tpl_scope *scope = run->scope; scope; scope = scope->parent) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, scope->count));
        for (uint32_t i = 0; i < scope->count; i++) {
            if (scope->bindings[i].name == expr->name) {
                *ret = scope->bindings[i].value;
                return KVA_OK;
            }
        }
    }
    *ret = run->globals[expr->name];
    if (ret->type != KVA_TPL_ABSENT)
        return KVA_OK;
    struct kva_tpl_value name = {.type = KVA_TPL_STRING, .as.string = run->tmpl->names[expr->name]};
    return kva_tpl_undefined_new(run, NULL, NULL, &name, ret);
}

static enum kva_status eval_sequence(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                     struct kva_tpl_value *ret)
{
    struct kva_tpl_value made;
    KVA_TPL_TRY(kva_tpl_list_new(
        run, expr->kind == KVA_TPL_EXPR_LIST ? KVA_TPL_LIST : KVA_TPL_TUPLE, expr->count, &made));
    for (uint32_t i = 0; i < expr->count; i++)
        KVA_TPL_TRY(kva_tpl_eval(run, expr->items[i], &made.as.list->items[i]));
    made.as.list->count = expr->count;
    *ret = made;
    return KVA_OK;
}

static enum kva_status eval_dict(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                 struct kva_tpl_value *ret)
{
    struct kva_tpl_value made;
    KVA_TPL_TRY(kva_tpl_dict_new(run, KVA_TPL_DICT, &made));
    for (uint32_t i = 0; i + 1 < expr->count; i += 2) {
        struct kva_tpl_value key, value;
        KVA_TPL_TRY(kva_tpl_eval(run, expr->items[i], &key));
        KVA_TPL_TRY(kva_tpl_eval(run, expr->items[i + 1], &value));
        KVA_TPL_TRY(kva_tpl_dict_set(run, made.as.dict, &key, &value));
    }
    *ret = made;
    return KVA_OK;
}

static enum kva_status eval_getattr(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                    struct kva_tpl_value *ret)
{
    struct kva_tpl_value object;
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, &object));
    run->line = expr->line;
    return kva_tpl_get_attribute(run, &object, &expr->value, ret);
}

static enum kva_status eval_slice(struct kva_tpl_run *run, const struct kva_tpl_expr *slice,
                                  const struct kva_tpl_value *object, struct kva_tpl_value *ret)
{
    struct kva_tpl_value bounds[3] = {kva_tpl_none(), kva_tpl_none(), kva_tpl_none()};
    const struct kva_tpl_expr *const parts[3] = {slice->a, slice->b, slice->c};
    for (int i = 0; i < 3; i++) {
        if (parts[i])
            KVA_TPL_TRY(kva_tpl_eval(run, parts[i], &bounds[i]));
    }
    run->line = slice->line;
    return kva_tpl_get_slice(run, object, bounds, ret);
}

static enum kva_status eval_getitem(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                    struct kva_tpl_value *ret)
{
    struct kva_tpl_value object, key;
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, &object));
    if (expr->b->kind == KVA_TPL_EXPR_SLICE)
        return eval_slice(run, expr->b, &object, ret);
    KVA_TPL_TRY(kva_tpl_eval(run, expr->b, &key));
    run->line = expr->line;
    return kva_tpl_get_item(run, &object, &key, ret);
}

/* Append what `*sequence` gives to the positional arguments. */
static enum kva_status spread_sequence(struct kva_tpl_run *run, const struct kva_tpl_expr *star,
                                       struct kva_tpl_call *call)
{
    struct kva_tpl_value value;
    const struct kva_tpl_list *more;
    KVA_TPL_TRY(kva_tpl_eval(run, star, &value));
    KVA_TPL_TRY(kva_tpl_iterate(run, &value, &more));
    if (more->count > UINT32_MAX / 2)
        return kva_tpl_fail(run, "too many arguments");
    struct kva_tpl_value *args = kva_tpl_alloc(run, call->count + more->count, sizeof(*args));
    if (!args)
        return run->err->status;
    if (call->count > 0)
        memcpy(args, call->args, call->count * sizeof(*args));
    if (more->count > 0)
        memcpy(args + call->count, more->items, more->count * sizeof(*args));
    call->args = args;
    call->count += (uint32_t)more->count;
    return KVA_OK;
}

/* Append the entries of `**mapping` to the named arguments. */
static enum kva_status spread_mapping(struct kva_tpl_run *run, const struct kva_tpl_expr *star_star,
                                      struct kva_tpl_call *call)
{
    struct kva_tpl_value value;
    KVA_TPL_TRY(kva_tpl_eval(run, star_star, &value));
    if (value.type != KVA_TPL_DICT)
        return kva_tpl_fail(run, "argument after ** must be a mapping, not %s",
                            kva_tpl_type_name(&value));
    const struct kva_tpl_dict *dict = value.as.dict;
    struct kva_tpl_named *named =
        kva_tpl_alloc(run, (size_t)call->named_count + dict->count, sizeof(*named));
    if (!named)
        return run->err->status;
    if (call->named_count > 0)
        memcpy(named, call->named, call->named_count * sizeof(*named));
    for (uint32_t i = 0; i < dict->count; i++) {
        if (dict->entries[i].key.type != KVA_TPL_STRING)
            return kva_tpl_fail(run, "keywords must be strings");
        named[call->named_count + i].name = dict->entries[i].key.as.string;
        named[call->named_count + i].value = dict->entries[i].value;
    }
    call->named = named;
    call->named_count += dict->count;
    return KVA_OK;
}

enum kva_status kva_tpl_eval_args(struct kva_tpl_run *run, const struct kva_tpl_args *args,
                                  struct kva_tpl_call *ret)
{
    *ret = (struct kva_tpl_call){.count = 0};
    if (!args)
        return KVA_OK;
    if (args->count > 0) {
        struct kva_tpl_value *values = kva_tpl_alloc(run, args->count, sizeof(*values));
        if (!values)
            return run->err->status;
        for (uint32_t i = 0; i < args->count; i++)
            KVA_TPL_TRY(kva_tpl_eval(run, args->items[i], &values[i]));
        ret->args = values;
        ret->count = args->count;
    }
    if (args->star)
        KVA_TPL_TRY(spread_sequence(run, args->star, ret));
    if (args->keyword_count > 0) {
        struct kva_tpl_named *named = kva_tpl_alloc(run, args->keyword_count, sizeof(*named));
        if (!named)
            return run->err->status;
        for (uint32_t i = 0; i < args->keyword_count; i++) {
            named[i].name = args->keywords[i].name;
            KVA_TPL_TRY(kva_tpl_eval(run, args->keywords[i].value, &named[i].value));
        }
        ret->named = named;
        ret->named_count = args->keyword_count;
    }
    return args->star_star ? spread_mapping(run, args->star_star, ret) : KVA_OK;
}

enum kva_status kva_tpl_call(struct kva_tpl_run *run, const struct kva_tpl_value *callee,
                             const struct kva_tpl_call *call, struct kva_tpl_value *ret)
{
    switch (callee->type) {
    case KVA_TPL_MACRO:
        return kva_tpl_call_macro(run, callee->as.macro, call, ret);
    case KVA_TPL_BUILTIN:
        return kva_tpl_invoke(run, callee->as.builtin, NULL, call, ret);
    case KVA_TPL_METHOD:
        return kva_tpl_invoke(run, callee->as.method->builtin, &callee->as.method->self, call, ret);
    case KVA_TPL_LOOP:
        return kva_tpl_call_loop(run, callee->as.loop, call, ret);
    case KVA_TPL_UNDEFINED:
        return kva_tpl_fail_undefined(run, callee);
    default:
        return kva_tpl_fail(run, "'%s' object is not callable", kva_tpl_type_name(callee));
    }
}

static enum kva_status eval_call(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                 struct kva_tpl_value *ret)
{
    struct kva_tpl_value callee;
    struct kva_tpl_call call;
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, &callee));
    KVA_TPL_TRY(kva_tpl_eval_args(run, expr->args, &call));
    run->line = expr->line;
    return kva_tpl_call(run, &callee, &call, ret);
}

/* A filter or a test. */
static enum kva_status eval_applied(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                    struct kva_tpl_value *ret)
{
    struct kva_tpl_value self = run->filter_input;
    struct kva_tpl_call call;
    if (!expr->builtin) {
        const struct kva_tpl_str *name = expr->value.as.string;
        return kva_tpl_fail(run, "No %s named '%.*s' found.",
                            expr->kind == KVA_TPL_EXPR_TEST ? "test" : "filter",
                            (int)kva_min_size(name->length, 60), name->data);
    }
    if (expr->a)
        KVA_TPL_TRY(kva_tpl_eval(run, expr->a, &self));
    KVA_TPL_TRY(kva_tpl_eval_args(run, expr->args, &call));
    run->line = expr->line;
    return kva_tpl_invoke(run, expr->builtin, &self, &call, ret);
}

static enum kva_status eval_not(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                struct kva_tpl_value *ret)
{
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, ret));
    *ret = kva_tpl_bool(!kva_tpl_truth(ret));
    return KVA_OK;
}

static enum kva_status eval_sign(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                 struct kva_tpl_value *ret)
{
    bool negate = expr->kind == KVA_TPL_EXPR_NEGATE;
    struct kva_tpl_value value;
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, &value));
    if (value.type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, &value);
    if (!kva_tpl_is_number(&value))
        return kva_tpl_fail(run, "bad operand type for unary %s: '%s'", negate ? "-" : "+",
                            kva_tpl_type_name(&value));
    if (value.type == KVA_TPL_FLOAT) {
        *ret = kva_tpl_float(negate ? -value.as.number : value.as.number);
        return KVA_OK;
    }
    int64_t integer = kva_tpl_as_integer(&value);
    if (negate && integer == INT64_MIN)
        return kva_tpl_fail(run, "integer overflow: -(%" PRId64 ") does not fit into 64 bits",
                            integer);
    *ret = kva_tpl_int(negate ? -integer : integer);
    return KVA_OK;
}

static enum kva_status eval_binary(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                   struct kva_tpl_value *ret)
{
    struct kva_tpl_value a, b;
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, &a));
    KVA_TPL_TRY(kva_tpl_eval(run, expr->b, &b));
    run->line = expr->line;
    return kva_tpl_binary(run, (enum kva_tpl_op)expr->op, &a, &b, ret);
}

static enum kva_status eval_concat(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                   struct kva_tpl_value *ret)
{
    struct kva_tpl_value joined, item;
    KVA_TPL_TRY(kva_tpl_eval(run, expr->items[0], &item));
    KVA_TPL_TRY(kva_tpl_to_str(run, &item, false, &joined));
    for (uint32_t i = 1; i < expr->count; i++) {
        struct kva_tpl_value text;
        KVA_TPL_TRY(kva_tpl_eval(run, expr->items[i], &item));
        KVA_TPL_TRY(kva_tpl_to_str(run, &item, false, &text));
        KVA_TPL_TRY(kva_tpl_join(run, joined.as.string, text.as.string, &joined));
    }
    *ret = joined;
    return KVA_OK;
}

static enum kva_status eval_compare(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                    struct kva_tpl_value *ret)
{
    struct kva_tpl_value left, right;
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, &left));
    for (uint32_t i = 0; i < expr->count; i++) {
        KVA_TPL_TRY(kva_tpl_eval(run, expr->items[i], &right));
        run->line = expr->line;
        KVA_TPL_TRY(kva_tpl_binary(run, (enum kva_tpl_op)expr->ops[i], &left, &right, ret));
        if (!kva_tpl_truth(ret))
            return KVA_OK;
        left = right;
    }
    return KVA_OK;
}

/* `and` and `or` give one of their operands. */
static enum kva_status eval_logic(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                  struct kva_tpl_value *ret)
{
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, ret));
    if (kva_tpl_truth(ret) == (expr->kind == KVA_TPL_EXPR_OR))
        return KVA_OK;
    return kva_tpl_eval(run, expr->b, ret);
}

static enum kva_status eval_cond(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                                 struct kva_tpl_value *ret)
{
    struct kva_tpl_value test;
    KVA_TPL_TRY(kva_tpl_eval(run, expr->a, &test));
    if (kva_tpl_truth(&test))
        return kva_tpl_eval(run, expr->b, ret);
    if (expr->c)
        return kva_tpl_eval(run, expr->c, ret);
    char hint[128];
    int length = snprintf(hint, sizeof(hint),
                          "the inline if-expression on line %u evaluated to false and no else "
                          "section was defined.",
                          expr->line);
    char *kept = kva_tpl_alloc(run, (size_t)length + 1, 1);
    if (!kept)
        return run->err->status;
    memcpy(kept, hint, (size_t)length);
    return kva_tpl_undefined_new(run, kept, NULL, NULL, ret);
}

static enum kva_status eval_unexpected(struct kva_tpl_run *run,
                                       const struct kva_tpl_expr *expr KVA_UNUSED,
                                       struct kva_tpl_value *ret KVA_UNUSED)
{
    return kva_fail(run->err, KVA_EINTERNAL, "chat template: an expression that has no value");
}

static eval_fn *const evaluators[KVA_TPL_EXPR_KIND_COUNT] = {
    [KVA_TPL_EXPR_CONST] = eval_const,      [KVA_TPL_EXPR_NAME] = eval_name,
    [KVA_TPL_EXPR_NSREF] = eval_unexpected, [KVA_TPL_EXPR_TUPLE] = eval_sequence,
    [KVA_TPL_EXPR_LIST] = eval_sequence,    [KVA_TPL_EXPR_DICT] = eval_dict,
    [KVA_TPL_EXPR_GETATTR] = eval_getattr,  [KVA_TPL_EXPR_GETITEM] = eval_getitem,
    [KVA_TPL_EXPR_SLICE] = eval_unexpected, [KVA_TPL_EXPR_CALL] = eval_call,
    [KVA_TPL_EXPR_FILTER] = eval_applied,   [KVA_TPL_EXPR_TEST] = eval_applied,
    [KVA_TPL_EXPR_NOT] = eval_not,          [KVA_TPL_EXPR_NEGATE] = eval_sign,
    [KVA_TPL_EXPR_PLUS] = eval_sign,        [KVA_TPL_EXPR_BINARY] = eval_binary,
    [KVA_TPL_EXPR_CONCAT] = eval_concat,    [KVA_TPL_EXPR_COMPARE] = eval_compare,
    [KVA_TPL_EXPR_AND] = eval_logic,        [KVA_TPL_EXPR_OR] = eval_logic,
    [KVA_TPL_EXPR_COND] = eval_cond,
};

enum kva_status kva_tpl_eval(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                             struct kva_tpl_value *ret)
{
    run->line = expr->line;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
    KVA_TPL_TRY(kva_tpl_enter(run));
    KVA_TPL_TRY(evaluators[expr->kind](run, expr, ret));
    kva_tpl_leave(run);
    return KVA_OK;
}
