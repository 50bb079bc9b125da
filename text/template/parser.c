/* parser.c - statements. */
#include "text/template/parser.h"

#include "text/template/builtins.h"

#include <stdio.h>
#include <string.h>

static enum kva_status parse_body(struct kva_tpl_parser *parser, const char *const *ends,
                                  struct kva_tpl_stmt **ret);

enum kva_status kva_tpl_parse_fail(struct kva_tpl_parser *parser, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return kva_fail(parser->err, KVA_EFORMAT, "chat template, line %u: %s", parser->token.line,
                    what);
}

enum kva_status kva_tpl_parse_unexpected(struct kva_tpl_parser *parser, const char *expected)
{
    const struct kva_tpl_token *token = &parser->token;
    switch (token->type) {
    case KVA_TPL_TOKEN_EOF:
        return kva_tpl_parse_fail(parser, "unexpected end of template, expected %s", expected);
    case KVA_TPL_TOKEN_NAME:
    case KVA_TPL_TOKEN_OPERATOR:
        return kva_tpl_parse_fail(parser, "expected %s, got '%.*s'", expected,
                                  (int)kva_min_size(token->length, 40), token->text);
    case KVA_TPL_TOKEN_STRING:
        return kva_tpl_parse_fail(parser, "expected %s, got a string", expected);
    case KVA_TPL_TOKEN_INT:
    case KVA_TPL_TOKEN_FLOAT:
        return kva_tpl_parse_fail(parser, "expected %s, got a number", expected);
    case KVA_TPL_TOKEN_BLOCK_END:
    case KVA_TPL_TOKEN_VARIABLE_END:
        return kva_tpl_parse_fail(parser, "expected %s, got the end of the tag", expected);
    default:
        return kva_tpl_parse_fail(parser, "expected %s, got template text", expected);
    }
}

enum kva_status kva_tpl_advance(struct kva_tpl_parser *parser)
{
    if (parser->has_ahead) {
        parser->token = parser->ahead;
        parser->has_ahead = false;
        return KVA_OK;
    }
    return kva_tpl_lexer_next(&parser->lexer, &parser->token);
}

enum kva_status kva_tpl_peek(struct kva_tpl_parser *parser)
{
    if (parser->has_ahead)
        return KVA_OK;
    KVA_TPL_TRY(kva_tpl_lexer_next(&parser->lexer, &parser->ahead));
    parser->has_ahead = true;
    return KVA_OK;
}

bool kva_tpl_at_op(const struct kva_tpl_parser *parser, uint16_t op)
{
    return parser->token.type == KVA_TPL_TOKEN_OPERATOR && parser->token.op == op;
}

bool kva_tpl_at_name(const struct kva_tpl_parser *parser, const char *name)
{
    return parser->token.type == KVA_TPL_TOKEN_NAME && parser->token.length == strlen(name) &&
           memcmp(parser->token.text, name, parser->token.length) == 0;
}

enum kva_status kva_tpl_expect_op(struct kva_tpl_parser *parser, uint16_t op)
{
    if (!kva_tpl_at_op(parser, op)) {
        char expected[4] = {'\'', (char)op, '\'', '\0'};
        return kva_tpl_parse_unexpected(parser, expected);
    }
    return kva_tpl_advance(parser);
}

enum kva_status kva_tpl_descend(struct kva_tpl_parser *parser)
{
    if (parser->depth >= KVA_TEMPLATE_PARSE_DEPTH_MAX)
        return kva_tpl_parse_fail(parser, "nested deeper than %u levels",
                                  KVA_TEMPLATE_PARSE_DEPTH_MAX);
    parser->depth++;
    return KVA_OK;
}

void *kva_tpl_parse_alloc(struct kva_tpl_parser *parser, size_t count, size_t size)
{
    void *data = kva_arena_calloc(&parser->tmpl->arena, count, size);
    if (!data && parser->tmpl->arena.total_bytes + count * size > KVA_TEMPLATE_AST_BYTES_MAX / 2)
        (void)kva_tpl_parse_fail(parser, "compiles to more than %u bytes",
                                 KVA_TEMPLATE_AST_BYTES_MAX);
    else if (!data)
        (void)kva_fail(parser->err, KVA_ENOMEM, "out of memory compiling a chat template");
    return data;
}

/* The status of the failure that kva_tpl_parse_alloc described. */
static enum kva_status alloc_status(const struct kva_tpl_parser *parser)
{
    return parser->err ? parser->err->status : KVA_ENOMEM;
}

enum kva_status kva_tpl_parse_string(struct kva_tpl_parser *parser, const char *text, size_t length,
                                     const struct kva_tpl_str **ret)
{
    struct kva_tpl_str *string = kva_tpl_parse_alloc(parser, 1, sizeof(*string));
    char *data = string ? kva_tpl_parse_alloc(parser, length + 1, 1) : NULL;
    if (!data)
        return alloc_status(parser);
    memcpy(data, text, length);
    string->data = data;
    string->length = length;
    *ret = string;
    return KVA_OK;
}

enum kva_status kva_tpl_parse_grow(struct kva_tpl_parser *parser, void **items, size_t size,
                                   uint32_t count)
{
    /* Capacities are the powers of two from four: full exactly at those counts. */
    if (count != 0 && (count < 4 || (count & (count - 1)) != 0))
        return KVA_OK;
    void *grown = kva_tpl_parse_alloc(parser, count ? (size_t)count * 2 : 4, size);
    if (!grown)
        return alloc_status(parser);
    if (count)
        memcpy(grown, *items, count * size);
    *items = grown;
    return KVA_OK;
}

uint32_t kva_tpl_find_name(const struct kva_template *tmpl, const char *name, size_t length)
{
    for (uint32_t i = 0; i < tmpl->name_count; i++) {
        const struct kva_tpl_str *known = tmpl->names[i];
        if (known->length == length && memcmp(known->data, name, length) == 0)
            return i;
    }
    return UINT32_MAX;
}

enum kva_status kva_tpl_intern(struct kva_tpl_parser *parser, const char *text, size_t length,
                               uint32_t *ret)
{
    struct kva_template *tmpl = parser->tmpl;
    uint32_t index = kva_tpl_find_name(tmpl, text, length);
    if (index == UINT32_MAX) {
        /* Names are looked up linearly: published templates have fewer than 100. */
        if (tmpl->name_count >= KVA_TEMPLATE_NAMES_MAX)
            return kva_tpl_parse_fail(parser, "more than %u different variables",
                                      KVA_TEMPLATE_NAMES_MAX);
        void *names = tmpl->names;
        KVA_TPL_TRY(kva_tpl_parse_grow(parser, &names, sizeof(*tmpl->names), tmpl->name_count));
        tmpl->names = names;
        index = tmpl->name_count;
        KVA_TPL_TRY(kva_tpl_parse_string(parser, text, length, &tmpl->names[index]));
        tmpl->name_count++;
    }
    *ret = index;
    return KVA_OK;
}

static enum kva_status new_stmt(struct kva_tpl_parser *parser, enum kva_tpl_stmt_kind kind,
                                struct kva_tpl_stmt **ret)
{
    struct kva_tpl_stmt *stmt = kva_tpl_parse_alloc(parser, 1, sizeof(*stmt));
    if (!stmt)
        return alloc_status(parser);
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
    KVA_TPL_TRY(parse_body(parser, ends, ret));
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
    return stmt->signature ? KVA_OK : alloc_status(parser);
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

/* Statements up to one of the `ends` (its name is then the current token) or the end of the
 * template. */
static enum kva_status parse_body(struct kva_tpl_parser *parser, const char *const *ends,
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

/* Jinja2 sees '\n' line ends only, and drops one at the end of the source. */
static size_t normalize_newlines(const char *source, size_t length, char *out)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        if (source[i] == '\r' && i + 1 < length && source[i + 1] == '\n')
            continue;
        out[count++] = source[i] == '\r' ? '\n' : source[i];
    }
    return count > 0 && out[count - 1] == '\n' ? count - 1 : count;
}

enum kva_status kva_tpl_parse(struct kva_template *tmpl, const char *source, size_t length,
                              struct kva_err *err)
{
    struct kva_err local;
    struct kva_tpl_parser parser = {.tmpl = tmpl, .err = err ? err : &local};
    char *text = kva_arena_alloc(&tmpl->arena, length + 1);
    if (!text)
        return kva_fail(err, KVA_ENOMEM, "out of memory compiling a chat template");
    size_t text_length = normalize_newlines(source, length, text);
    kva_tpl_lexer_init(&parser.lexer, text, text_length, &tmpl->arena, parser.err);
    static const char *const known[KVA_TPL_NAME_KNOWN_COUNT] = {"loop", "caller", "varargs",
                                                                "kwargs"};
    for (uint32_t i = 0; i < KVA_TPL_NAME_KNOWN_COUNT; i++) {
        uint32_t index;
        KVA_TPL_TRY(kva_tpl_intern(&parser, known[i], strlen(known[i]), &index));
    }
    KVA_TPL_TRY(kva_tpl_advance(&parser));
    return parse_body(&parser, NULL, &tmpl->body);
}
