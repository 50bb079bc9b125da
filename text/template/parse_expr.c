/* parse_expr.c - operators, by precedence. */
#include "text/template/parser.h"

#include <string.h>

static enum kva_status parse_unary(struct kva_tpl_parser *parser, bool with_filter,
                                   struct kva_tpl_expr **ret)
{
    if (kva_tpl_at_op(parser, '-') || kva_tpl_at_op(parser, '+')) {
        KVA_TPL_TRY(kva_tpl_descend(parser));
        KVA_TPL_TRY(kva_tpl_make_expr(
            parser, kva_tpl_at_op(parser, '-') ? KVA_TPL_EXPR_NEGATE : KVA_TPL_EXPR_PLUS, ret));
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(parse_unary(parser, false, &(*ret)->a));
        parser->depth--;
    } else {
        KVA_TPL_TRY(kva_tpl_parse_primary(parser, false, ret));
    }
    KVA_TPL_TRY(kva_tpl_parse_postfix(parser, ret));
    return with_filter ? kva_tpl_parse_suffix(parser, ret) : KVA_OK;
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
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_CONCAT, ret));
        KVA_TPL_TRY(kva_tpl_add_item(parser, *ret, item));
        while (kva_tpl_at_op(parser, '~')) {
            KVA_TPL_TRY(kva_tpl_advance(parser));
            KVA_TPL_TRY(parse_level(parser, level + 1, &item));
            KVA_TPL_TRY(kva_tpl_add_item(parser, *ret, item));
        }
        return KVA_OK;
    }
    for (int i = find_binary(parser, level); i >= 0; i = find_binary(parser, level)) {
        struct kva_tpl_expr *binary;
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_BINARY, &binary));
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
            KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_COMPARE, &compare));
            compare->a = *ret;
            *ret = compare;
        }
        struct kva_tpl_expr *operand;
        KVA_TPL_TRY(parse_level(parser, LEVEL_ADD, &operand));
        KVA_TPL_TRY(kva_tpl_parse_grow(parser, &ops, 1, compare->count));
        ((uint8_t *)ops)[compare->count] = (uint8_t)op;
        compare->ops = ops;
        KVA_TPL_TRY(kva_tpl_add_item(parser, compare, operand));
    }
    return KVA_OK;
}

static enum kva_status parse_not(struct kva_tpl_parser *parser, struct kva_tpl_expr **ret)
{
    if (!kva_tpl_at_name(parser, "not"))
        return parse_compare(parser, ret);
    KVA_TPL_TRY(kva_tpl_descend(parser));
    KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_NOT, ret));
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
        KVA_TPL_TRY(kva_tpl_make_expr(parser, is_or ? KVA_TPL_EXPR_OR : KVA_TPL_EXPR_AND, &logic));
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
        KVA_TPL_TRY(kva_tpl_make_expr(parser, KVA_TPL_EXPR_COND, &condition));
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
