#include "engine/template/parser.h"

#include "engine/template/builtins.h"

#include <string.h>

struct kva_tpl_expr *kva_tpl_new_expr(struct kva_tpl_parser *parser, enum kva_tpl_expr_kind kind)
{
    struct kva_tpl_expr *expr = kva_tpl_parse_alloc(parser, 1, sizeof(*expr));
    if (!expr)
        return NULL;
    expr->kind = (uint8_t)kind;
    expr->line = parser->token.line;
    return expr;
}

/* As a statement: the allocation, or the error that it left. */
static enum kva_status make(struct kva_tpl_parser *parser, enum kva_tpl_expr_kind kind,
                            struct kva_tpl_expr **ret)
{
    *ret = kva_tpl_new_expr(parser, kind);
    return *ret ? KVA_OK : parser->err->status;
}

static enum kva_status add_item(struct kva_tpl_parser *parser, struct kva_tpl_expr *expr,
                                struct kva_tpl_expr *item)
{
    void *items = expr->items;
    KVA_TPL_TRY(kva_tpl_parse_grow(parser, &items, sizeof(*expr->items), expr->count));
    expr->items = items;
    expr->items[expr->count++] = item;
    return KVA_OK;
}

static enum kva_status set_string(struct kva_tpl_parser *parser, struct kva_tpl_expr *expr,
                                  const char *text, size_t length)
{
    expr->value.type = KVA_TPL_STRING;
    return kva_tpl_parse_string(parser, text, length, &expr->value.as.string);
}

/* Adjacent strings are one. */
static enum kva_status parse_strings(struct kva_tpl_parser *parser, struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_CONST, ret));
    KVA_TPL_TRY(set_string(parser, *ret, parser->token.text, parser->token.length));
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
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_CONST, ret));
        (*ret)->value = constant;
        return kva_tpl_advance(parser);
    }
    KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_NAME, ret));
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
    KVA_TPL_TRY(set_string(parser, *ret, parser->token.text, parser->token.length));
    return kva_tpl_advance(parser);
}

/* "[a, b]" and "{a: b}"; `close` ends it. */
static enum kva_status parse_display(struct kva_tpl_parser *parser, enum kva_tpl_expr_kind kind,
                                     uint16_t close, struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(make(parser, kind, ret));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    while (!kva_tpl_at_op(parser, close)) {
        if ((*ret)->count > 0) {
            KVA_TPL_TRY(kva_tpl_expect_op(parser, ','));
            if (kva_tpl_at_op(parser, close))
                break;
        }
        struct kva_tpl_expr *item;
        KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &item));
        KVA_TPL_TRY(add_item(parser, *ret, item));
        if (kind != KVA_TPL_EXPR_DICT)
            continue;
        KVA_TPL_TRY(kva_tpl_expect_op(parser, ':'));
        KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &item));
        KVA_TPL_TRY(add_item(parser, *ret, item));
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

static enum kva_status parse_primary(struct kva_tpl_parser *parser, bool with_namespace,
                                     struct kva_tpl_expr **ret);

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
            KVA_TPL_TRY(parse_primary(parser, rules->with_namespace, &item));
        else
            KVA_TPL_TRY(kva_tpl_parse_expr(parser, rules->with_condition, &item));
        bool comma = kva_tpl_at_op(parser, ',');
        if (comma && !tuple)
            KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_TUPLE, &tuple));
        if (tuple)
            KVA_TPL_TRY(add_item(parser, tuple, item));
        if (!comma)
            break;
        KVA_TPL_TRY(kva_tpl_advance(parser));
    }
    if (!tuple && !item) {
        if (!rules->in_parentheses)
            return kva_tpl_parse_unexpected(parser, "an expression");
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_TUPLE, &tuple));
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

static enum kva_status parse_primary(struct kva_tpl_parser *parser, bool with_namespace,
                                     struct kva_tpl_expr **ret)
{
    switch (parser->token.type) {
    case KVA_TPL_TOKEN_NAME:
        return parse_name(parser, with_namespace, ret);
    case KVA_TPL_TOKEN_STRING:
        return parse_strings(parser, ret);
    case KVA_TPL_TOKEN_INT:
    case KVA_TPL_TOKEN_FLOAT:
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_CONST, ret));
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

/* One index or slice between brackets. */
static enum kva_status parse_subscript(struct kva_tpl_parser *parser, struct kva_tpl_expr **ret)
{
    struct kva_tpl_expr *parts[3] = {NULL, NULL, NULL};
    uint32_t colons = 0;
    while (!kva_tpl_at_op(parser, ']') && !kva_tpl_at_op(parser, ',')) {
        if (kva_tpl_at_op(parser, ':') && colons < 2) {
            colons++;
            KVA_TPL_TRY(kva_tpl_advance(parser));
        } else if (!parts[colons]) {
            KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &parts[colons]));
        } else {
            return kva_tpl_parse_unexpected(parser, "']'");
        }
    }
    if (colons == 0) {
        *ret = parts[0];
        return *ret ? KVA_OK : kva_tpl_parse_unexpected(parser, "an expression");
    }
    KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_SLICE, ret));
    (*ret)->a = parts[0];
    (*ret)->b = parts[1];
    (*ret)->c = parts[2];
    return KVA_OK;
}

static enum kva_status parse_brackets(struct kva_tpl_parser *parser, struct kva_tpl_expr *object,
                                      struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_GETITEM, ret));
    (*ret)->a = object;
    KVA_TPL_TRY(kva_tpl_advance(parser));
    KVA_TPL_TRY(parse_subscript(parser, &(*ret)->b));
    if (kva_tpl_at_op(parser, ',')) {
        struct kva_tpl_expr *tuple;
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_TUPLE, &tuple));
        KVA_TPL_TRY(add_item(parser, tuple, (*ret)->b));
        while (kva_tpl_at_op(parser, ',')) {
            struct kva_tpl_expr *item;
            KVA_TPL_TRY(kva_tpl_advance(parser));
            KVA_TPL_TRY(parse_subscript(parser, &item));
            KVA_TPL_TRY(add_item(parser, tuple, item));
        }
        for (uint32_t i = 0; i < tuple->count; i++) {
            if (tuple->items[i]->kind == KVA_TPL_EXPR_SLICE)
                return kva_tpl_parse_fail(parser, "a slice inside a tuple is not supported");
        }
        (*ret)->b = tuple;
    }
    return kva_tpl_expect_op(parser, ']');
}

static enum kva_status parse_attribute(struct kva_tpl_parser *parser, struct kva_tpl_expr *object,
                                       struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(kva_tpl_advance(parser));
    if (parser->token.type == KVA_TPL_TOKEN_INT) {
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_GETITEM, ret));
        (*ret)->a = object;
        return parse_primary(parser, false, &(*ret)->b);
    }
    if (parser->token.type != KVA_TPL_TOKEN_NAME)
        return kva_tpl_parse_unexpected(parser, "a name or number");
    KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_GETATTR, ret));
    (*ret)->a = object;
    KVA_TPL_TRY(set_string(parser, *ret, parser->token.text, parser->token.length));
    return kva_tpl_advance(parser);
}

/* The name of a keyword argument, if the current token is one. */
static enum kva_status parse_keyword(struct kva_tpl_parser *parser, struct kva_tpl_args *args)
{
    void *keywords = args->keywords;
    KVA_TPL_TRY(
        kva_tpl_parse_grow(parser, &keywords, sizeof(*args->keywords), args->keyword_count));
    args->keywords = keywords;
    struct kva_tpl_keyword *keyword = &args->keywords[args->keyword_count++];
    KVA_TPL_TRY(
        kva_tpl_parse_string(parser, parser->token.text, parser->token.length, &keyword->name));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    return kva_tpl_parse_expr(parser, true, &keyword->value);
}

static enum kva_status parse_argument(struct kva_tpl_parser *parser, struct kva_tpl_args *args)
{
    static const char bad[] = "invalid syntax for function call expression";
    if (kva_tpl_at_op(parser, '*')) {
        if (args->star || args->star_star)
            return kva_tpl_parse_fail(parser, bad);
        KVA_TPL_TRY(kva_tpl_advance(parser));
        return kva_tpl_parse_expr(parser, true, &args->star);
    }
    if (kva_tpl_at_op(parser, KVA_TPL_PAIR('*', '*'))) {
        if (args->star_star)
            return kva_tpl_parse_fail(parser, bad);
        KVA_TPL_TRY(kva_tpl_advance(parser));
        return kva_tpl_parse_expr(parser, true, &args->star_star);
    }
    if (parser->token.type == KVA_TPL_TOKEN_NAME) {
        KVA_TPL_TRY(kva_tpl_peek(parser));
        if (parser->ahead.type == KVA_TPL_TOKEN_OPERATOR && parser->ahead.op == '=')
            return args->star_star ? kva_tpl_parse_fail(parser, bad) : parse_keyword(parser, args);
    }
    if (args->star || args->star_star || args->keyword_count > 0)
        return kva_tpl_parse_fail(parser, bad);
    void *items = args->items;
    KVA_TPL_TRY(kva_tpl_parse_grow(parser, &items, sizeof(*args->items), args->count));
    args->items = items;
    KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &args->items[args->count]));
    args->count++;
    return KVA_OK;
}

/* "(...)". */
static enum kva_status parse_args(struct kva_tpl_parser *parser, const struct kva_tpl_args **ret)
{
    struct kva_tpl_args *args = kva_tpl_parse_alloc(parser, 1, sizeof(*args));
    if (!args)
        return parser->err->status;
    *ret = args;
    KVA_TPL_TRY(kva_tpl_expect_op(parser, '('));
    bool first = true;
    while (!kva_tpl_at_op(parser, ')')) {
        if (!first) {
            KVA_TPL_TRY(kva_tpl_expect_op(parser, ','));
            if (kva_tpl_at_op(parser, ')'))
                break;
        }
        first = false;
        KVA_TPL_TRY(parse_argument(parser, args));
    }
    return kva_tpl_advance(parser);
}

static enum kva_status parse_call(struct kva_tpl_parser *parser, struct kva_tpl_expr *callee,
                                  struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_CALL, ret));
    (*ret)->a = callee;
    return parse_args(parser, &(*ret)->args);
}

static enum kva_status parse_postfix(struct kva_tpl_parser *parser, struct kva_tpl_expr **expr)
{
    for (;;) {
        struct kva_tpl_expr *inner = *expr;
        if (kva_tpl_at_op(parser, '.'))
            KVA_TPL_TRY(parse_attribute(parser, inner, expr));
        else if (kva_tpl_at_op(parser, '['))
            KVA_TPL_TRY(parse_brackets(parser, inner, expr));
        else if (kva_tpl_at_op(parser, '('))
            KVA_TPL_TRY(parse_call(parser, inner, expr));
        else
            return KVA_OK;
    }
}

enum kva_status kva_tpl_parse_filters(struct kva_tpl_parser *parser, struct kva_tpl_expr *input,
                                      bool at_name, struct kva_tpl_expr **ret)
{
    *ret = input;
    while (at_name || kva_tpl_at_op(parser, '|')) {
        if (!at_name)
            KVA_TPL_TRY(kva_tpl_advance(parser));
        at_name = false;
        if (parser->token.type != KVA_TPL_TOKEN_NAME)
            return kva_tpl_parse_unexpected(parser, "the name of a filter");
        struct kva_tpl_expr *filter;
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_FILTER, &filter));
        filter->a = *ret;
        filter->builtin = kva_tpl_find_filter(parser->token.text, parser->token.length);
        if (!filter->builtin && parser->soft_depth == 0)
            return kva_tpl_parse_fail(parser, "No filter named '%.*s'.",
                                      (int)kva_min_size(parser->token.length, 40),
                                      parser->token.text);
        KVA_TPL_TRY(set_string(parser, filter, parser->token.text, parser->token.length));
        KVA_TPL_TRY(kva_tpl_advance(parser));
        if (kva_tpl_at_op(parser, '('))
            KVA_TPL_TRY(parse_args(parser, &filter->args));
        *ret = filter;
    }
    return KVA_OK;
}

/* Whether the argument of a test without parentheses starts here. */
static bool at_test_argument(const struct kva_tpl_parser *parser)
{
    switch (parser->token.type) {
    case KVA_TPL_TOKEN_NAME:
        return !kva_tpl_at_name(parser, "else") && !kva_tpl_at_name(parser, "or") &&
               !kva_tpl_at_name(parser, "and");
    case KVA_TPL_TOKEN_STRING:
    case KVA_TPL_TOKEN_INT:
    case KVA_TPL_TOKEN_FLOAT:
        return true;
    default:
        return kva_tpl_at_op(parser, '[') || kva_tpl_at_op(parser, '{');
    }
}

static enum kva_status parse_test_argument(struct kva_tpl_parser *parser, struct kva_tpl_expr *test)
{
    struct kva_tpl_args *args = kva_tpl_parse_alloc(parser, 1, sizeof(*args));
    if (!args)
        return parser->err->status;
    args->items = kva_tpl_parse_alloc(parser, 1, sizeof(*args->items));
    if (!args->items)
        return parser->err->status;
    if (kva_tpl_at_name(parser, "is"))
        return kva_tpl_parse_fail(parser, "You cannot chain multiple tests with is");
    KVA_TPL_TRY(parse_primary(parser, false, &args->items[0]));
    KVA_TPL_TRY(parse_postfix(parser, &args->items[0]));
    args->count = 1;
    test->args = args;
    return KVA_OK;
}

/* "is [not] name [argument]"; the current token is `is`. */
static enum kva_status parse_test(struct kva_tpl_parser *parser, struct kva_tpl_expr **expr)
{
    KVA_TPL_TRY(kva_tpl_advance(parser));
    bool negated = kva_tpl_at_name(parser, "not");
    if (negated)
        KVA_TPL_TRY(kva_tpl_advance(parser));
    if (parser->token.type != KVA_TPL_TOKEN_NAME)
        return kva_tpl_parse_unexpected(parser, "the name of a test");
    struct kva_tpl_expr *test;
    KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_TEST, &test));
    test->a = *expr;
    test->builtin = kva_tpl_find_test(parser->token.text, parser->token.length);
    if (!test->builtin && parser->soft_depth == 0)
        return kva_tpl_parse_fail(parser, "No test named '%.*s'.",
                                  (int)kva_min_size(parser->token.length, 40), parser->token.text);
    KVA_TPL_TRY(set_string(parser, test, parser->token.text, parser->token.length));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    if (kva_tpl_at_op(parser, '('))
        KVA_TPL_TRY(parse_args(parser, &test->args));
    else if (at_test_argument(parser))
        KVA_TPL_TRY(parse_test_argument(parser, test));
    *expr = test;
    if (negated) {
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_NOT, expr));
        (*expr)->a = test;
    }
    return KVA_OK;
}

static enum kva_status parse_unary(struct kva_tpl_parser *parser, bool with_filter,
                                   struct kva_tpl_expr **ret)
{
    if (kva_tpl_at_op(parser, '-') || kva_tpl_at_op(parser, '+')) {
        KVA_TPL_TRY(kva_tpl_descend(parser));
        KVA_TPL_TRY(make(
            parser, kva_tpl_at_op(parser, '-') ? KVA_TPL_EXPR_NEGATE : KVA_TPL_EXPR_PLUS, ret));
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(parse_unary(parser, false, &(*ret)->a));
        parser->depth--;
    } else {
        KVA_TPL_TRY(parse_primary(parser, false, ret));
    }
    KVA_TPL_TRY(parse_postfix(parser, ret));
    while (with_filter) {
        struct kva_tpl_expr *inner = *ret;
        if (kva_tpl_at_op(parser, '|'))
            KVA_TPL_TRY(kva_tpl_parse_filters(parser, inner, false, ret));
        else if (kva_tpl_at_name(parser, "is"))
            KVA_TPL_TRY(parse_test(parser, ret));
        else if (kva_tpl_at_op(parser, '('))
            KVA_TPL_TRY(parse_call(parser, inner, ret));
        else
            break;
    }
    return KVA_OK;
}

/* The binary operators by precedence, loosest first; `~` stands between + and *. */
enum level {
    LEVEL_ADD,
    LEVEL_CONCAT,
    LEVEL_MUL,
    LEVEL_POW,
    LEVEL_UNARY,
};

static const struct {
    enum level level;
    uint16_t op;
    enum kva_tpl_op code;
} binary_operators[] = {
    {LEVEL_ADD, '+', KVA_TPL_OP_ADD},
    {LEVEL_ADD, '-', KVA_TPL_OP_SUB},
    {LEVEL_MUL, '*', KVA_TPL_OP_MUL},
    {LEVEL_MUL, '/', KVA_TPL_OP_DIV},
    {LEVEL_MUL, KVA_TPL_PAIR('/', '/'), KVA_TPL_OP_FLOORDIV},
    {LEVEL_MUL, '%', KVA_TPL_OP_MOD},
    {LEVEL_POW, KVA_TPL_PAIR('*', '*'), KVA_TPL_OP_POW},
};

static int find_binary(const struct kva_tpl_parser *parser, enum level level)
{
    if (parser->token.type != KVA_TPL_TOKEN_OPERATOR)
        return -1;
    for (size_t i = 0; i < KVA_COUNT_OF(binary_operators); i++) {
        if (binary_operators[i].level == level && binary_operators[i].op == parser->token.op)
            return (int)i;
    }
    return -1;
}

static enum kva_status parse_level(struct kva_tpl_parser *parser, enum level level,
                                   struct kva_tpl_expr **ret)
{
    if (level == LEVEL_UNARY)
        return parse_unary(parser, true, ret);
    KVA_TPL_TRY(parse_level(parser, level + 1, ret));
    if (level == LEVEL_CONCAT) {
        if (!kva_tpl_at_op(parser, '~'))
            return KVA_OK;
        struct kva_tpl_expr *item = *ret;
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_CONCAT, ret));
        KVA_TPL_TRY(add_item(parser, *ret, item));
        while (kva_tpl_at_op(parser, '~')) {
            KVA_TPL_TRY(kva_tpl_advance(parser));
            KVA_TPL_TRY(parse_level(parser, level + 1, &item));
            KVA_TPL_TRY(add_item(parser, *ret, item));
        }
        return KVA_OK;
    }
    for (int i = find_binary(parser, level); i >= 0; i = find_binary(parser, level)) {
        struct kva_tpl_expr *binary;
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_BINARY, &binary));
        binary->op = (uint8_t)binary_operators[i].code;
        binary->a = *ret;
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(parse_level(parser, level + 1, &binary->b));
        *ret = binary;
    }
    return KVA_OK;
}

/* Takes a comparison operator if there is one. */
static enum kva_status take_comparison(struct kva_tpl_parser *parser, int *ret_op)
{
    static const struct {
        uint16_t op;
        enum kva_tpl_op code;
    } table[] = {
        {KVA_TPL_PAIR('=', '='), KVA_TPL_OP_EQ},
        {KVA_TPL_PAIR('!', '='), KVA_TPL_OP_NE},
        {'<', KVA_TPL_OP_LT},
        {KVA_TPL_PAIR('<', '='), KVA_TPL_OP_LE},
        {'>', KVA_TPL_OP_GT},
        {KVA_TPL_PAIR('>', '='), KVA_TPL_OP_GE},
    };
    *ret_op = -1;
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++) {
        if (kva_tpl_at_op(parser, table[i].op))
            *ret_op = (int)table[i].code;
    }
    if (kva_tpl_at_name(parser, "in"))
        *ret_op = KVA_TPL_OP_IN;
    if (kva_tpl_at_name(parser, "not")) {
        KVA_TPL_TRY(kva_tpl_peek(parser));
        if (parser->ahead.type == KVA_TPL_TOKEN_NAME && parser->ahead.length == 2 &&
            memcmp(parser->ahead.text, "in", 2) == 0) {
            KVA_TPL_TRY(kva_tpl_advance(parser));
            *ret_op = KVA_TPL_OP_NOT_IN;
        }
    }
    return *ret_op >= 0 ? kva_tpl_advance(parser) : KVA_OK;
}

static enum kva_status parse_compare(struct kva_tpl_parser *parser, struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(parse_level(parser, LEVEL_ADD, ret));
    struct kva_tpl_expr *compare = NULL;
    void *ops = NULL;
    for (;;) {
        int op;
        KVA_TPL_TRY(take_comparison(parser, &op));
        if (op < 0)
            break;
        if (!compare) {
            KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_COMPARE, &compare));
            compare->a = *ret;
            *ret = compare;
        }
        struct kva_tpl_expr *operand;
        KVA_TPL_TRY(parse_level(parser, LEVEL_ADD, &operand));
        KVA_TPL_TRY(kva_tpl_parse_grow(parser, &ops, 1, compare->count));
        ((uint8_t *)ops)[compare->count] = (uint8_t)op;
        compare->ops = ops;
        KVA_TPL_TRY(add_item(parser, compare, operand));
    }
    return KVA_OK;
}

static enum kva_status parse_not(struct kva_tpl_parser *parser, struct kva_tpl_expr **ret)
{
    if (!kva_tpl_at_name(parser, "not"))
        return parse_compare(parser, ret);
    KVA_TPL_TRY(kva_tpl_descend(parser));
    KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_NOT, ret));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    KVA_TPL_TRY(parse_not(parser, &(*ret)->a));
    parser->depth--;
    return KVA_OK;
}

/* a and b and ...: one level of `and`, or of `or` above it. */
static enum kva_status parse_logic(struct kva_tpl_parser *parser, bool is_or,
                                   struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(is_or ? parse_logic(parser, false, ret) : parse_not(parser, ret));
    while (kva_tpl_at_name(parser, is_or ? "or" : "and")) {
        struct kva_tpl_expr *logic;
        KVA_TPL_TRY(make(parser, is_or ? KVA_TPL_EXPR_OR : KVA_TPL_EXPR_AND, &logic));
        logic->a = *ret;
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(is_or ? parse_logic(parser, false, &logic->b) : parse_not(parser, &logic->b));
        *ret = logic;
    }
    return KVA_OK;
}

enum kva_status kva_tpl_parse_expr(struct kva_tpl_parser *parser, bool with_condition,
                                   struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(kva_tpl_descend(parser));
    KVA_TPL_TRY(parse_logic(parser, true, ret));
    while (with_condition && kva_tpl_at_name(parser, "if")) {
        struct kva_tpl_expr *condition;
        KVA_TPL_TRY(make(parser, KVA_TPL_EXPR_COND, &condition));
        condition->b = *ret;
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(parse_logic(parser, true, &condition->a));
        if (kva_tpl_at_name(parser, "else")) {
            KVA_TPL_TRY(kva_tpl_advance(parser));
            KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &condition->c));
        }
        *ret = condition;
    }
    parser->depth--;
    return KVA_OK;
}
