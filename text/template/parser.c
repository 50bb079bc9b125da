/* parser.c - the parser: its tokens, its memory, and where it begins. */
#include "text/template/parser.h"

#include <stdio.h>
#include <string.h>

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

enum kva_status kva_tpl_alloc_status(const struct kva_tpl_parser *parser)
{
    return parser->err ? parser->err->status : KVA_ENOMEM;
}

enum kva_status kva_tpl_parse_string(struct kva_tpl_parser *parser, const char *text, size_t length,
                                     const struct kva_tpl_str **ret)
{
    struct kva_tpl_str *string = kva_tpl_parse_alloc(parser, 1, sizeof(*string));
    char *data = string ? kva_tpl_parse_alloc(parser, length + 1, 1) : NULL;
    if (!data)
        return kva_tpl_alloc_status(parser);
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
        return kva_tpl_alloc_status(parser);
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
    return kva_tpl_parse_body(&parser, NULL, &tmpl->body);
}
