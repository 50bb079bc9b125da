/* parse_postfix.c - what may follow: subscripts, attributes, calls, filters and tests. */
#include "text/template/parser.h"

#include "text/template/builtins.h"

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
    KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_SLICE, ret));
    (*ret)->a = parts[0];
    (*ret)->b = parts[1];
    (*ret)->c = parts[2];
    return KVA_OK;
}

static enum kva_status parse_brackets(struct kva_tpl_parser *parser, struct kva_tpl_expr *object,
                                      struct kva_tpl_expr **ret)
{
    KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_GETITEM, ret));
    (*ret)->a = object;
    KVA_TPL_TRY(kva_tpl_advance(parser));
    KVA_TPL_TRY(parse_subscript(parser, &(*ret)->b));
    if (kva_tpl_at_op(parser, ',')) {
        struct kva_tpl_expr *tuple;
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_TUPLE, &tuple));
        KVA_TPL_TRY(kva_tpl_add_item(parser, tuple, (*ret)->b));
        while (kva_tpl_at_op(parser, ',')) {
            struct kva_tpl_expr *item;
            KVA_TPL_TRY(kva_tpl_advance(parser));
            KVA_TPL_TRY(parse_subscript(parser, &item));
            KVA_TPL_TRY(kva_tpl_add_item(parser, tuple, item));
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
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_GETITEM, ret));
        (*ret)->a = object;
        return kva_tpl_parse_primary(parser, false, &(*ret)->b);
    }
    if (parser->token.type != KVA_TPL_TOKEN_NAME)
        return kva_tpl_parse_unexpected(parser, "a name or number");
    KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_GETATTR, ret));
    (*ret)->a = object;
    KVA_TPL_TRY(kva_tpl_set_string(parser, *ret, parser->token.text, parser->token.length));
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
    KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_CALL, ret));
    (*ret)->a = callee;
    return parse_args(parser, &(*ret)->args);
}

enum kva_status kva_tpl_parse_postfix(struct kva_tpl_parser *parser, struct kva_tpl_expr **expr)
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
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_FILTER, &filter));
        filter->a = *ret;
        filter->builtin = kva_tpl_find_filter(parser->token.text, parser->token.length);
        if (!filter->builtin && parser->soft_depth == 0)
            return kva_tpl_parse_fail(parser, "No filter named '%.*s'.",
                                      (int)kva_min_size(parser->token.length, 40),
                                      parser->token.text);
        KVA_TPL_TRY(kva_tpl_set_string(parser, filter, parser->token.text, parser->token.length));
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
    KVA_TPL_TRY(kva_tpl_parse_primary(parser, false, &args->items[0]));
    KVA_TPL_TRY(kva_tpl_parse_postfix(parser, &args->items[0]));
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
    KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_TEST, &test));
    test->a = *expr;
    test->builtin = kva_tpl_find_test(parser->token.text, parser->token.length);
    if (!test->builtin && parser->soft_depth == 0)
        return kva_tpl_parse_fail(parser, "No test named '%.*s'.",
                                  (int)kva_min_size(parser->token.length, 40), parser->token.text);
    KVA_TPL_TRY(kva_tpl_set_string(parser, test, parser->token.text, parser->token.length));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    if (kva_tpl_at_op(parser, '('))
        KVA_TPL_TRY(parse_args(parser, &test->args));
    else if (at_test_argument(parser))
        KVA_TPL_TRY(parse_test_argument(parser, test));
    *expr = test;
    if (negated) {
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_NOT, expr));
        (*expr)->a = test;
    }
    return KVA_OK;
}

enum kva_status kva_tpl_parse_suffix(struct kva_tpl_parser *parser, struct kva_tpl_expr **expr)
{
    for (;;) {
        struct kva_tpl_expr *inner = *expr;
        if (kva_tpl_at_op(parser, '|'))
            KVA_TPL_TRY(kva_tpl_parse_filters(parser, inner, false, expr));
        else if (kva_tpl_at_name(parser, "is"))
            KVA_TPL_TRY(parse_test(parser, expr));
        else if (kva_tpl_at_op(parser, '('))
            KVA_TPL_TRY(parse_call(parser, inner, expr));
        else
            return KVA_OK;
    }
}
