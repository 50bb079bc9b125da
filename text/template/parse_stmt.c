/* parse_stmt.c - statements. */
#include "text/template/parser.h"

#include <string.h>

static enum kva_status new_stmt(struct kva_tpl_parser *parser, enum kva_tpl_stmt_kind kind,
                                struct kva_tpl_stmt **ret)
{
    struct kva_tpl_stmt *stmt = kva_tpl_parse_alloc(parser, 1, sizeof(*stmt));
    if (!stmt)
        return kva_tpl_alloc_status(parser);
    stmt->kind = (uint8_t)kind;
    stmt->line = parser->token.line;
    *ret = stmt;
    return KVA_OK;
}

static enum kva_status expect_block_end(struct kva_tpl_parser *parser)
{
    if (parser->token.type != KVA_TPL_TOKEN_BLOCK_END)
        return kva_tpl_parse_unexpected(parser, "the end of the statement");
    return kva_tpl_advance(parser);
}

static enum kva_status expect_name(struct kva_tpl_parser *parser, const char *name)
{
    if (!kva_tpl_at_name(parser, name))
        return kva_tpl_parse_unexpected(parser, name);
    return kva_tpl_advance(parser);
}

/* The end of a statement's tag, and the statements up to one of the `ends`, whose name is then the
 * current token. */
static enum kva_status parse_block(struct kva_tpl_parser *parser, const char *const *ends,
                                   struct kva_tpl_stmt **ret)
{
    if (kva_tpl_at_op(parser, ':'))
        KVA_TPL_TRY(kva_tpl_advance(parser));
    KVA_TPL_TRY(expect_block_end(parser));
    KVA_TPL_TRY(kva_tpl_parse_body(parser, ends, ret));
    if (parser->token.type == KVA_TPL_TOKEN_EOF)
        return kva_tpl_parse_fail(parser, "unexpected end of template, '%s' is missing", ends[0]);
    return KVA_OK;
}

/* The same for a statement with one end, which is skipped. */
static enum kva_status parse_block_to(struct kva_tpl_parser *parser, const char *end,
                                      struct kva_tpl_stmt **ret)
{
    const char *const ends[] = {end, NULL};
    KVA_TPL_TRY(parse_block(parser, ends, ret));
    return kva_tpl_advance(parser);
}

static enum kva_status parse_set(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    KVA_TPL_TRY(kva_tpl_parse_target(parser, true, NULL, &stmt->target));
    if (kva_tpl_at_op(parser, '=')) {
        KVA_TPL_TRY(kva_tpl_advance(parser));
        stmt->kind = KVA_TPL_STMT_SET;
        return kva_tpl_parse_tuple(parser, true, NULL, &stmt->expr);
    }
    stmt->kind = KVA_TPL_STMT_SET_BLOCK;
    KVA_TPL_TRY(kva_tpl_parse_filters(parser, NULL, false, &stmt->expr));
    return parse_block_to(parser, "endset", &stmt->body);
}

static enum kva_status parse_if(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    parser->soft_depth++;
    for (;;) {
        void *branches = stmt->branches;
        KVA_TPL_TRY(kva_tpl_parse_grow(parser, &branches, sizeof(*stmt->branches), stmt->count));
        stmt->branches = branches;
        struct kva_tpl_branch *branch = &stmt->branches[stmt->count];
        KVA_TPL_TRY(kva_tpl_parse_tuple(parser, false, NULL, &branch->test));
        KVA_TPL_TRY(parse_block(parser, ends, &branch->body));
        stmt->count++;
        if (!kva_tpl_at_name(parser, "elif"))
            break;
        KVA_TPL_TRY(kva_tpl_advance(parser));
    }
    bool has_else = kva_tpl_at_name(parser, "else");
    KVA_TPL_TRY(kva_tpl_advance(parser));
    if (has_else)
        KVA_TPL_TRY(parse_block_to(parser, "endif", &stmt->other));
    parser->soft_depth--;
    return KVA_OK;
}

static enum kva_status parse_for(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    parser->loop_depth++;
    KVA_TPL_TRY(kva_tpl_parse_target(parser, false, "in", &stmt->target));
    parser->loop_depth--;
    KVA_TPL_TRY(expect_name(parser, "in"));
    KVA_TPL_TRY(kva_tpl_parse_tuple(parser, false, "recursive", &stmt->expr));
    if (kva_tpl_at_name(parser, "if")) {
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &stmt->test));
    }
    if (kva_tpl_at_name(parser, "recursive")) {
        stmt->recursive = true;
        KVA_TPL_TRY(kva_tpl_advance(parser));
    }
    parser->loop_depth++;
    KVA_TPL_TRY(parse_block(parser, ends, &stmt->body));
    parser->loop_depth--;
    bool has_else = kva_tpl_at_name(parser, "else");
    KVA_TPL_TRY(kva_tpl_advance(parser));
    if (has_else)
        KVA_TPL_TRY(parse_block_to(parser, "endfor", &stmt->other));
    return KVA_OK;
}

/* "(a, b=1)". */
static enum kva_status parse_signature(struct kva_tpl_parser *parser,
                                       struct kva_tpl_signature *signature)
{
    KVA_TPL_TRY(kva_tpl_expect_op(parser, '('));
    while (!kva_tpl_at_op(parser, ')')) {
        if (signature->count > 0)
            KVA_TPL_TRY(kva_tpl_expect_op(parser, ','));
        if (parser->token.type != KVA_TPL_TOKEN_NAME)
            return kva_tpl_parse_unexpected(parser, "the name of a parameter");
        void *names = signature->names;
        KVA_TPL_TRY(kva_tpl_parse_grow(parser, &names, sizeof(uint32_t), signature->count));
        signature->names = names;
        KVA_TPL_TRY(kva_tpl_intern(parser, parser->token.text, parser->token.length,
                                   &signature->names[signature->count]));
        signature->count++;
        KVA_TPL_TRY(kva_tpl_advance(parser));
        if (kva_tpl_at_op(parser, '=')) {
            KVA_TPL_TRY(kva_tpl_advance(parser));
            void *defaults = signature->defaults;
            KVA_TPL_TRY(kva_tpl_parse_grow(parser, &defaults, sizeof(*signature->defaults),
                                           signature->default_count));
            signature->defaults = defaults;
            KVA_TPL_TRY(
                kva_tpl_parse_expr(parser, true, &signature->defaults[signature->default_count]));
            signature->default_count++;
        } else if (signature->default_count > 0) {
            return kva_tpl_parse_fail(parser, "non-default argument follows default argument");
        }
    }
    return kva_tpl_advance(parser);
}

/* The body of a macro or a call block: it has no part in the loops around it. */
static enum kva_status parse_macro_body(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt,
                                        const char *end)
{
    struct kva_tpl_signature *outer = parser->signature;
    uint32_t loops = parser->loop_depth;
    parser->signature = stmt->signature;
    parser->loop_depth = 0;
    KVA_TPL_TRY(parse_block_to(parser, end, &stmt->body));
    parser->signature = outer;
    parser->loop_depth = loops;
    return KVA_OK;
}

static enum kva_status new_signature(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    stmt->signature = kva_tpl_parse_alloc(parser, 1, sizeof(*stmt->signature));
    return stmt->signature ? KVA_OK : kva_tpl_alloc_status(parser);
}

static enum kva_status parse_macro(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    if (parser->token.type != KVA_TPL_TOKEN_NAME)
        return kva_tpl_parse_unexpected(parser, "the name of the macro");
    KVA_TPL_TRY(kva_tpl_intern(parser, parser->token.text, parser->token.length, &stmt->name));
    KVA_TPL_TRY(kva_tpl_advance(parser));
    KVA_TPL_TRY(new_signature(parser, stmt));
    KVA_TPL_TRY(parse_signature(parser, stmt->signature));
    return parse_macro_body(parser, stmt, "endmacro");
}

static enum kva_status parse_call(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    KVA_TPL_TRY(new_signature(parser, stmt));
    if (kva_tpl_at_op(parser, '('))
        KVA_TPL_TRY(parse_signature(parser, stmt->signature));
    KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &stmt->expr));
    if (stmt->expr->kind != KVA_TPL_EXPR_CALL)
        return kva_tpl_parse_fail(parser, "expected call");
    return parse_macro_body(parser, stmt, "endcall");
}

static enum kva_status parse_filter(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    KVA_TPL_TRY(kva_tpl_parse_filters(parser, NULL, true, &stmt->expr));
    return parse_block_to(parser, "endfilter", &stmt->body);
}

static enum kva_status parse_generation(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    KVA_TPL_TRY(new_signature(parser, stmt));
    return parse_macro_body(parser, stmt, "endgeneration");
}

static enum kva_status parse_with(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    while (parser->token.type != KVA_TPL_TOKEN_BLOCK_END) {
        if (stmt->count > 0)
            KVA_TPL_TRY(kva_tpl_expect_op(parser, ','));
        void *targets = stmt->targets;
        void *values = stmt->values;
        KVA_TPL_TRY(kva_tpl_parse_grow(parser, &targets, sizeof(void *), stmt->count));
        KVA_TPL_TRY(kva_tpl_parse_grow(parser, &values, sizeof(void *), stmt->count));
        stmt->targets = targets;
        stmt->values = values;
        KVA_TPL_TRY(kva_tpl_parse_target(parser, false, NULL, &stmt->targets[stmt->count]));
        KVA_TPL_TRY(kva_tpl_expect_op(parser, '='));
        KVA_TPL_TRY(kva_tpl_parse_expr(parser, true, &stmt->values[stmt->count]));
        stmt->count++;
    }
    return parse_block_to(parser, "endwith", &stmt->body);
}

static enum kva_status parse_print(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    return kva_tpl_parse_expr(parser, true, &stmt->expr);
}

static enum kva_status parse_loop_control(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt)
{
    if (parser->loop_depth == 0)
        return kva_tpl_parse_fail(parser, "'%s' outside of a loop",
                                  stmt->kind == KVA_TPL_STMT_BREAK ? "break" : "continue");
    return KVA_OK;
}

static const struct {
    const char *name;
    enum kva_tpl_stmt_kind kind;
    enum kva_status (*parse)(struct kva_tpl_parser *parser, struct kva_tpl_stmt *stmt);
} statements[] = {
    {"if", KVA_TPL_STMT_IF, parse_if},
    {"set", KVA_TPL_STMT_SET, parse_set},
    {"for", KVA_TPL_STMT_FOR, parse_for},
    {"macro", KVA_TPL_STMT_MACRO, parse_macro},
    {"call", KVA_TPL_STMT_CALL, parse_call},
    {"filter", KVA_TPL_STMT_FILTER, parse_filter},
    {"with", KVA_TPL_STMT_WITH, parse_with},
    {"print", KVA_TPL_STMT_OUTPUT, parse_print},
    {"generation", KVA_TPL_STMT_GENERATION, parse_generation},
    {"break", KVA_TPL_STMT_BREAK, parse_loop_control},
    {"continue", KVA_TPL_STMT_CONTINUE, parse_loop_control},
};

static enum kva_status parse_statement(struct kva_tpl_parser *parser, struct kva_tpl_stmt **ret)
{
    if (parser->token.type != KVA_TPL_TOKEN_NAME)
        return kva_tpl_parse_unexpected(parser, "the name of a tag");
    for (size_t i = 0; i < KVA_COUNT_OF(statements); i++) {
        if (!kva_tpl_at_name(parser, statements[i].name))
            continue;
        KVA_TPL_TRY(kva_tpl_descend(parser));
        KVA_TPL_TRY(new_stmt(parser, statements[i].kind, ret));
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(statements[i].parse(parser, *ret));
        parser->depth--;
        return expect_block_end(parser);
    }
    static const char *const left_out[] = {"include", "import", "from",      "extends",
                                           "block",   "do",     "autoescape"};
    int length = (int)kva_min_size(parser->token.length, 40);
    for (size_t i = 0; i < KVA_COUNT_OF(left_out); i++) {
        if (kva_tpl_at_name(parser, left_out[i]))
            return kva_tpl_parse_fail(parser, "the tag '%s' has no place in a chat template",
                                      left_out[i]);
    }
    return kva_tpl_parse_fail(parser, "Encountered unknown tag '%.*s'", length, parser->token.text);
}

static bool at_one_of(const struct kva_tpl_parser *parser, const char *const *ends)
{
    for (size_t i = 0; ends && ends[i]; i++) {
        if (kva_tpl_at_name(parser, ends[i]))
            return true;
    }
    return false;
}

/* One statement, text or output. *ret stays NULL at the end of the block. */
static enum kva_status parse_one(struct kva_tpl_parser *parser, const char *const *ends,
                                 struct kva_tpl_stmt **ret)
{
    *ret = NULL;
    switch (parser->token.type) {
    case KVA_TPL_TOKEN_DATA:
        KVA_TPL_TRY(new_stmt(parser, KVA_TPL_STMT_TEXT, ret));
        KVA_TPL_TRY(
            kva_tpl_parse_string(parser, parser->token.text, parser->token.length, &(*ret)->text));
        return kva_tpl_advance(parser);
    case KVA_TPL_TOKEN_VARIABLE_BEGIN:
        KVA_TPL_TRY(new_stmt(parser, KVA_TPL_STMT_OUTPUT, ret));
        KVA_TPL_TRY(kva_tpl_advance(parser));
        KVA_TPL_TRY(kva_tpl_parse_tuple(parser, true, NULL, &(*ret)->expr));
        if (parser->token.type != KVA_TPL_TOKEN_VARIABLE_END)
            return kva_tpl_parse_unexpected(parser, "the end of the print statement");
        return kva_tpl_advance(parser);
    case KVA_TPL_TOKEN_BLOCK_BEGIN:
        KVA_TPL_TRY(kva_tpl_advance(parser));
        if (at_one_of(parser, ends))
            return KVA_OK;
        return parse_statement(parser, ret);
    default:
        return KVA_OK;
    }
}

enum kva_status kva_tpl_parse_body(struct kva_tpl_parser *parser, const char *const *ends,
                                   struct kva_tpl_stmt **ret)
{
    struct kva_tpl_stmt **tail = ret;
    *tail = NULL;
    for (;;) {
        struct kva_tpl_stmt *stmt;
        KVA_TPL_TRY(parse_one(parser, ends, &stmt));
        if (!stmt)
            return KVA_OK;
        *tail = stmt;
        tail = &stmt->next;
    }
}
