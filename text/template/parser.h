/* parser.h - what the parts of the parser share: parse_stmt.c reads statements, parse_expr.c
 * expressions, of what parse_primary.c and parse_postfix.c read.
 *
 * Recursive descent over the lexer's tokens with one token of lookahead. Every recursion counts in
 * `depth`, so a hostile source ends with an error and not with the stack. Internal to
 * text/template. Thread rule: one thread at a time. */
#ifndef KVA_TEXT_TEMPLATE_PARSER_H
#define KVA_TEXT_TEMPLATE_PARSER_H

#include "text/template/lexer.h"

struct kva_tpl_parser {
    struct kva_template *tmpl;
    struct kva_tpl_lexer lexer;
    struct kva_tpl_token token; /* the current one */
    struct kva_tpl_token ahead; /* the one behind it, if has_ahead */
    bool has_ahead;
    uint32_t depth;
    uint32_t soft_depth; /* inside `if`: an unknown filter is an error only when it is reached */
    uint32_t loop_depth; /* loops around, within the innermost macro */
    struct kva_tpl_signature *signature; /* of the innermost macro or call block, or NULL */
    struct kva_err *err;
};

/* "chat template, line N: <what>" with KVA_EFORMAT. */
enum kva_status kva_tpl_parse_fail(struct kva_tpl_parser *parser, const char *format, ...)
    KVA_PRINTF(2, 3);

/* "expected X, got <the current token>". */
enum kva_status kva_tpl_parse_unexpected(struct kva_tpl_parser *parser, const char *expected);

enum kva_status kva_tpl_advance(struct kva_tpl_parser *parser) KVA_MUST_CHECK;
enum kva_status kva_tpl_peek(struct kva_tpl_parser *parser) KVA_MUST_CHECK; /* fills `ahead` */

bool kva_tpl_at_op(const struct kva_tpl_parser *parser, uint16_t op);
bool kva_tpl_at_name(const struct kva_tpl_parser *parser, const char *name);

/* Skip the operator; an error if it is not there. */
enum kva_status kva_tpl_expect_op(struct kva_tpl_parser *parser, uint16_t op) KVA_MUST_CHECK;

/* Count one level of nesting; the caller takes it back with parser->depth--. */
enum kva_status kva_tpl_descend(struct kva_tpl_parser *parser) KVA_MUST_CHECK;

/* Zeroed storage in the template. NULL: the error is set. */
void *kva_tpl_parse_alloc(struct kva_tpl_parser *parser, size_t count, size_t size);

/* The status of that error. */
enum kva_status kva_tpl_alloc_status(const struct kva_tpl_parser *parser);

/* Index of a variable's name, new or known. */
enum kva_status kva_tpl_intern(struct kva_tpl_parser *parser, const char *text, size_t length,
                               uint32_t *ret) KVA_MUST_CHECK;

/* A string of the template. */
enum kva_status kva_tpl_parse_string(struct kva_tpl_parser *parser, const char *text, size_t length,
                                     const struct kva_tpl_str **ret) KVA_MUST_CHECK;

/* Grow `items` (elements of `size` bytes) so that one more than `count` fit. */
enum kva_status kva_tpl_parse_grow(struct kva_tpl_parser *parser, void **items, size_t size,
                                   uint32_t count) KVA_MUST_CHECK;

/* A new expression of that kind, in the line of the current token. */
enum kva_status kva_tpl_make_expr(struct kva_tpl_parser *parser, enum kva_tpl_expr_kind kind,
                                  struct kva_tpl_expr **ret) KVA_MUST_CHECK;

/* One more of expr->items. */
enum kva_status kva_tpl_add_item(struct kva_tpl_parser *parser, struct kva_tpl_expr *expr,
                                 struct kva_tpl_expr *item) KVA_MUST_CHECK;

/* expr->value = a string of the template. */
enum kva_status kva_tpl_set_string(struct kva_tpl_parser *parser, struct kva_tpl_expr *expr,
                                   const char *text, size_t length) KVA_MUST_CHECK;

/* Statements up to one of the `ends` (its name is then the current token) or the end of the
 * template. */
enum kva_status kva_tpl_parse_body(struct kva_tpl_parser *parser, const char *const *ends,
                                   struct kva_tpl_stmt **ret) KVA_MUST_CHECK;

/* One expression; `with_condition`: "a if b else c" belongs to it. */
enum kva_status kva_tpl_parse_expr(struct kva_tpl_parser *parser, bool with_condition,
                                   struct kva_tpl_expr **ret) KVA_MUST_CHECK;

/* A name, a constant, or something in brackets; with_namespace: name.attribute is a name. */
enum kva_status kva_tpl_parse_primary(struct kva_tpl_parser *parser, bool with_namespace,
                                      struct kva_tpl_expr **ret) KVA_MUST_CHECK;

/* Attributes, subscripts and calls of *expr, which then is the whole. */
enum kva_status kva_tpl_parse_postfix(struct kva_tpl_parser *parser,
                                      struct kva_tpl_expr **expr) KVA_MUST_CHECK;

/* Filters and tests of *expr, and calls of what they give. */
enum kva_status kva_tpl_parse_suffix(struct kva_tpl_parser *parser,
                                     struct kva_tpl_expr **expr) KVA_MUST_CHECK;

/* Expressions with commas between them make a tuple; one without a comma is itself. `end_name`
 * (may be NULL) is a name that ends a tuple behind a comma. */
enum kva_status kva_tpl_parse_tuple(struct kva_tpl_parser *parser, bool with_condition,
                                    const char *end_name, struct kva_tpl_expr **ret) KVA_MUST_CHECK;

/* A name, a tuple of targets, or, with_namespace, name.attribute. */
enum kva_status kva_tpl_parse_target(struct kva_tpl_parser *parser, bool with_namespace,
                                     const char *end_name,
                                     struct kva_tpl_expr **ret) KVA_MUST_CHECK;

/* "| filter(...)" repeated, applied to `input`; at_name: the first stands without its bar. */
enum kva_status kva_tpl_parse_filters(struct kva_tpl_parser *parser, struct kva_tpl_expr *input,
                                      bool at_name, struct kva_tpl_expr **ret) KVA_MUST_CHECK;

#endif
