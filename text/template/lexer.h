/* lexer.h - cuts a template into tokens, on demand, with Jinja2's white space rules: trim_blocks,
 * lstrip_blocks, no trailing newline, and the signs of {%- -%} {%+ +%}.
 *
 * Internal to text/template. Thread rule: one thread at a time. */
#ifndef KVA_TEXT_TEMPLATE_LEXER_H
#define KVA_TEXT_TEMPLATE_LEXER_H

#include "text/template/ast.h"

enum kva_tpl_token_type {
    KVA_TPL_TOKEN_EOF,
    KVA_TPL_TOKEN_DATA,
    KVA_TPL_TOKEN_VARIABLE_BEGIN,
    KVA_TPL_TOKEN_VARIABLE_END,
    KVA_TPL_TOKEN_BLOCK_BEGIN,
    KVA_TPL_TOKEN_BLOCK_END,
    KVA_TPL_TOKEN_NAME,
    KVA_TPL_TOKEN_STRING,
    KVA_TPL_TOKEN_INT,
    KVA_TPL_TOKEN_FLOAT,
    KVA_TPL_TOKEN_OPERATOR, /* `op` is its characters: '+', or KVA_TPL_PAIR('*', '*') */
};

#define KVA_TPL_PAIR(a, b) ((uint16_t)((a) << 8 | (b)))

struct kva_tpl_token {
    enum kva_tpl_token_type type;
    uint16_t op;
    uint32_t line;
    const char *text; /* NAME, OPERATOR: in the source; DATA, STRING: in the template's arena */
    size_t length;
    int64_t integer;
    double number;
};

struct kva_tpl_lexer {
    const char *source;
    size_t length;
    size_t at;
    uint32_t line;
    bool line_starting; /* the last token ended its line */
    enum {
        KVA_TPL_LEX_ROOT,
        KVA_TPL_LEX_VARIABLE,
        KVA_TPL_LEX_BLOCK,
    } state;
    bool begin_pending; /* the text before a tag was returned, its begin was not */
    uint32_t bracket_count;
    char brackets[KVA_TEMPLATE_PARSE_DEPTH_MAX]; /* what closes the open ones */
    struct kva_arena *arena;
    struct kva_err *err;
};

/* `source` must outlive the lexer; it has '\n' line ends only. */
void kva_tpl_lexer_init(struct kva_tpl_lexer *lexer, const char *source, size_t length,
                        struct kva_arena *arena, struct kva_err *err);

/* Fails: KVA_EFORMAT, KVA_ENOMEM. At the end: TOKEN_EOF, for ever. */
enum kva_status kva_tpl_lexer_next(struct kva_tpl_lexer *lexer,
                                   struct kva_tpl_token *ret) KVA_MUST_CHECK;

/* ---- between lexer.c and literals.c ---------------------------------------------------------- */

/* The character `offset` bytes ahead, or at `position`; '\0' behind the end. */
char kva_tpl_lexer_peek(const struct kva_tpl_lexer *lexer, size_t offset);
char kva_tpl_lexer_at(const struct kva_tpl_lexer *lexer, size_t position);

/* Consume up to `end`, keeping the line number and what lstrip_blocks needs to know. */
void kva_tpl_lexer_advance(struct kva_tpl_lexer *lexer, size_t end);

enum kva_status kva_tpl_lexer_fail(struct kva_tpl_lexer *lexer, const char *what);

/* The token that begins at lexer->at, at a digit, or at a quote. */
enum kva_status kva_tpl_lex_number(struct kva_tpl_lexer *lexer,
                                   struct kva_tpl_token *ret) KVA_MUST_CHECK;
enum kva_status kva_tpl_lex_string(struct kva_tpl_lexer *lexer,
                                   struct kva_tpl_token *ret) KVA_MUST_CHECK;

#endif
