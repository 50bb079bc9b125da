/* parse_primary.c - what expressions begin with: names, constants, tuples, lists and dicts; and the
 * targets of assignments, which are some of these. */
#include "text/template/parser.h"

#include <string.h>

enum kva_status kva_tpl_make_expr(struct kva_tpl_parser *parser, enum kva_tpl_expr_kind kind,
                                  struct kva_tpl_expr **ret)
{
    struct kva_tpl_expr *expr = kva_tpl_parse_alloc(parser, 1, sizeof(*expr));
    if (!expr)
        return parser->err->status;
    expr->kind = (uint8_t)kind;
    expr->line = parser->token.line;
    *ret = expr;
    return KVA_OK;
}

enum kva_status kva_tpl_set_string(struct kva_tpl_parser *parser, struct kva_tpl_expr *expr,
                                   const char *text, size_t length)
{
    expr->value.type = KVA_TPL_STRING;
    return kva_tpl_parse_string(parser, text, length, &expr->value.as.string);
}

enum kva_status kva_tpl_add_item(struct kva_tpl_parser *parser, struct kva_tpl_expr *expr,
                                 struct kva_tpl_expr *item)
{
    void *items = expr->items;
    KVA_TPL_TRY(kva_tpl_parse_grow(parser, &items, sizeof(*expr->items), expr->count));
    expr->items = items;
    expr->items[expr->count++] = item;
    return KVA_OK;
}

/* Adjacent strings are one. */
static enum kva_status parse_strings(struct kva_tpl_parser *parser, struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_CONST, ret));
    KVA_TPL_TRY(kva_tpl_set_string(parser, *ret, parser->token.text, parser->token.length));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    while (parser->token.type == KVA_TPL_TOKEN_STRING) {
        const struct kva_tpl_str *head = (*ret)->value.as.string;
        size_t length = head->length + parser->token.length;
        char *joined = kva_tpl_parse_alloc(parser, length + 1, 1);
        struct kva_tpl_str *string = kva_tpl_parse_alloc(parser, 1, sizeof(*string));
        if (!joined || !string)
            return parser->err->status;
        memcpy(joined, head->data, head->length);
        memcpy(joined + head->length, parser->token.text, parser->token.length);
        *string = (struct kva_tpl_str){.data = joined, .length = length};
        (*ret)->value.as.string = string;
        KVA_TPL_TRY(kva_tpl_advance(parser));
    }
    return KVA_OK;
}

/* The constants that are spelled as names; false if the current name is none of them. */
static bool constant_name(const struct kva_tpl_parser *parser, struct kva_tpl_value *ret)
{
    if (kva_tpl_at_name(parser, "true") || kva_tpl_at_name(parser, "True"))
        *ret = kva_tpl_bool(true);
    else if (kva_tpl_at_name(parser, "false") || kva_tpl_at_name(parser, "False"))
        *ret = kva_tpl_bool(false);
    else if (kva_tpl_at_name(parser, "none") || kva_tpl_at_name(parser, "None"))
        *ret = kva_tpl_none();
    else
        return false;
    return true;
}

static enum kva_status parse_name(struct kva_tpl_parser *parser, bool with_namespace,
                                  struct kva_tpl_expr **ret)
{
    struct kva_tpl_value constant;
    if (constant_name(parser, &constant)) {
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_CONST, ret));
        (*ret)->value = constant;
        return kva_tpl_advance(parser);
    }
    KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_NAME, ret));
    KVA_TPL_TRY(kva_tpl_intern(parser, parser->token.text, parser->token.length, &(*ret)->name));
    struct kva_tpl_signature *signature = parser->signature;
    if (signature) {
        signature->wants_caller |= (*ret)->name == KVA_TPL_NAME_CALLER;
        signature->wants_varargs |= (*ret)->name == KVA_TPL_NAME_VARARGS;
        signature->wants_kwargs |= (*ret)->name == KVA_TPL_NAME_KWARGS;
    }
    KVA_TPL_TRY(kva_tpl_advance(parser));
    if (!with_namespace || !kva_tpl_at_op(parser, '.'))
        return KVA_OK;
    KVA_TPL_TRY(kva_tpl_advance(parser));
    if (parser->token.type != KVA_TPL_TOKEN_NAME)
        return kva_tpl_parse_unexpected(parser, "the name of an attribute");
    (*ret)->kind = KVA_TPL_EXPR_NSREF;
    KVA_TPL_TRY(kva_tpl_set_string(parser, *ret, parser->token.text, parser->token.length));
    return kva_tpl_advance(parser);
}

/* "[a, b]" and "{a: b}"; `close` ends it. */
static enum kva_status parse_display(struct kva_tpl_parser *parser, enum kva_tpl_expr_kind kind,
                                     uint16_t close, struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(kva_tpl_make_expr(parser, kind, ret));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    while (!kva_tpl_at_op(parser, close)) {
        if ((*ret)->count > 0) {
            KVA_TPL_TRY(kva_tpl_expect_op(parser, ','));
            if (kva_tpl_at_op(parser, close))
                break;
        }
        struct kva_tpl_expr *item;
        KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &item));
        KVA_TPL_TRY(kva_tpl_add_item(parser, *ret, item));
        if (kind != KVA_TPL_EXPR_DICT)
            continue;
        KVA_TPL_TRY(kva_tpl_expect_op(parser, ':'));
        KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &item));
        KVA_TPL_TRY(kva_tpl_add_item(parser, *ret, item));
    }
    return kva_tpl_advance(parser);
}

/* A tuple from the current token on. simple: of targets only; with_parentheses: "()" is one. */
struct tuple_rules {
    const char *end_name;
    bool with_condition;
    bool simple;
    bool with_namespace;
    bool in_parentheses;
};

static bool at_tuple_end(const struct kva_tpl_parser *parser, const struct tuple_rules *rules)
{
    return parser->token.type == KVA_TPL_TOKEN_VARIABLE_END ||
           parser->token.type == KVA_TPL_TOKEN_BLOCK_END || kva_tpl_at_op(parser, ')') ||
           (rules->end_name && kva_tpl_at_name(parser, rules->end_name));
}

static enum kva_status parse_tuple(struct kva_tpl_parser *parser, const struct tuple_rules *rules,
                                   struct kva_tpl_expr **ret)
{
    struct kva_tpl_expr *tuple = NULL;
    struct kva_tpl_expr *item = NULL;
    while (!at_tuple_end(parser, rules)) {
        if (rules->simple)
            KVA_TPL_TRY(kva_tpl_parse_primary(parser, rules->with_namespace, &item));
        else
            KVA_TPL_TRY(kva_tpl_parse_expr(parser, rules->with_condition, &item));
        bool comma = kva_tpl_at_op(parser, ',');
        if (comma && !tuple)
            KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_TUPLE, &tuple));
        if (tuple)
            KVA_TPL_TRY(kva_tpl_add_item(parser, tuple, item));
        if (!comma)
            break;
        KVA_TPL_TRY(kva_tpl_advance(parser));
    }
    if (!tuple && !item) {
        if (!rules->in_parentheses)
            return kva_tpl_parse_unexpected(parser, "an expression");
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_TUPLE, &tuple));
    }
    *ret = tuple ? tuple : item;
    return KVA_OK;
}

enum kva_status kva_tpl_parse_tuple(struct kva_tpl_parser *parser, bool with_condition,
                                    const char *end_name, struct kva_tpl_expr **ret)
{
    struct tuple_rules rules = {.with_condition = with_condition, .end_name = end_name};
    return parse_tuple(parser, &rules, ret);
}

static enum kva_status check_target(struct kva_tpl_parser *parser,
                                    const struct kva_tpl_expr *target)
{
    switch (target->kind) {
    case KVA_TPL_EXPR_NAME:
        if (target->name == KVA_TPL_NAME_LOOP && parser->loop_depth > 0)
            return kva_tpl_parse_fail(parser, "Can't assign to special loop variable in for-loop");
        return KVA_OK;
    case KVA_TPL_EXPR_NSREF:
        return KVA_OK;
    case KVA_TPL_EXPR_TUPLE:
        for (uint32_t i = 0; i < target->count; i++)
            KVA_TPL_TRY(check_target(parser, target->items[i]));
        return KVA_OK;
    default:
        return kva_tpl_parse_fail(parser, "this expression can not be assigned to");
    }
}

enum kva_status kva_tpl_parse_target(struct kva_tpl_parser *parser, bool with_namespace,
                                     const char *end_name, struct kva_tpl_expr **ret)
{
    struct tuple_rules rules = {
        .simple = true, .with_namespace = with_namespace, .end_name = end_name};
    KVA_TPL_TRY(parse_tuple(parser, &rules, ret));
    return check_target(parser, *ret);
}

enum kva_status kva_tpl_parse_primary(struct kva_tpl_parser *parser, bool with_namespace,
                                      struct kva_tpl_expr **ret)
{
    switch (parser->token.type) {
    case KVA_TPL_TOKEN_NAME:
        return parse_name(parser, with_namespace, ret);
    case KVA_TPL_TOKEN_STRING:
        return parse_strings(parser, ret);
    case KVA_TPL_TOKEN_INT:
    case KVA_TPL_TOKEN_FLOAT:
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_CONST, ret));
        (*ret)->value = parser->token.type == KVA_TPL_TOKEN_INT
                            ? kva_tpl_int(parser->token.integer)
                            : kva_tpl_float(parser->token.number);
        return kva_tpl_advance(parser);
    default:
        break;
    }
    KVA_TPL_TRY(kva_tpl_descend(parser));
    if (kva_tpl_at_op(parser, '[')) {
        KVA_TPL_TRY(parse_display(parser, KVA_TPL_EXPR_LIST, ']', ret));
    } else if (kva_tpl_at_op(parser, '{')) {
        KVA_TPL_TRY(parse_display(parser, KVA_TPL_EXPR_DICT, '}', ret));
    } else if (kva_tpl_at_op(parser, '(')) {
        struct tuple_rules rules = {.with_condition = true, .in_parentheses = true};
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(parse_tuple(parser, &rules, ret));
        KVA_TPL_TRY(kva_tpl_expect_op(parser, ')'));
    } else {
        return kva_tpl_parse_unexpected(parser, "an expression");
    }
    parser->depth--;
    return KVA_OK;
}
