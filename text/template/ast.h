/* ast.h - the compiled form of a template: a tree in one arena.
 *
 * Internal to text/template. Thread rule: written by the parser, immutable afterwards. */
#ifndef KVA_TEXT_TEMPLATE_AST_H
#define KVA_TEXT_TEMPLATE_AST_H

#include "text/template/template.h"
#include "text/template/value.h"

/* Leave the function with the error of `call`. */
#define KVA_TPL_TRY(call)                                                                          \
    do {                                                                                           \
        enum kva_status try_status = (call);                                                       \
        if (try_status)                                                                            \
            return try_status;                                                                     \
    } while (0)

enum kva_tpl_expr_kind {
    KVA_TPL_EXPR_CONST,
    KVA_TPL_EXPR_NAME,
    KVA_TPL_EXPR_NSREF, /* name.attribute as a target of `set` */
    KVA_TPL_EXPR_TUPLE,
    KVA_TPL_EXPR_LIST,
    KVA_TPL_EXPR_DICT, /* items: key, value, key, value, ... */
    KVA_TPL_EXPR_GETATTR,
    KVA_TPL_EXPR_GETITEM,
    KVA_TPL_EXPR_SLICE, /* only as `b` of GETITEM; a, b, c: start, stop, step, each or NULL */
    KVA_TPL_EXPR_CALL,
    KVA_TPL_EXPR_FILTER, /* a NULL: what a block or a chain starts from */
    KVA_TPL_EXPR_TEST,
    KVA_TPL_EXPR_NOT,
    KVA_TPL_EXPR_NEGATE,
    KVA_TPL_EXPR_PLUS,
    KVA_TPL_EXPR_BINARY,
    KVA_TPL_EXPR_CONCAT,
    KVA_TPL_EXPR_COMPARE, /* a, then items[i] compared by ops[i] */
    KVA_TPL_EXPR_AND,
    KVA_TPL_EXPR_OR,
    KVA_TPL_EXPR_COND, /* b if a else c; c may be NULL */
    KVA_TPL_EXPR_KIND_COUNT,
};

enum kva_tpl_op {
    KVA_TPL_OP_ADD,
    KVA_TPL_OP_SUB,
    KVA_TPL_OP_MUL,
    KVA_TPL_OP_DIV,
    KVA_TPL_OP_FLOORDIV,
    KVA_TPL_OP_MOD,
    KVA_TPL_OP_POW,
    KVA_TPL_OP_EQ,
    KVA_TPL_OP_NE,
    KVA_TPL_OP_LT,
    KVA_TPL_OP_LE,
    KVA_TPL_OP_GT,
    KVA_TPL_OP_GE,
    KVA_TPL_OP_IN,
    KVA_TPL_OP_NOT_IN,
};

struct kva_tpl_keyword {
    const struct kva_tpl_str *name;
    struct kva_tpl_expr *value;
};

struct kva_tpl_args {
    struct kva_tpl_expr **items;
    struct kva_tpl_keyword *keywords;
    struct kva_tpl_expr *star;      /* *sequence, or NULL */
    struct kva_tpl_expr *star_star; /* **mapping, or NULL */
    uint32_t count;
    uint32_t keyword_count;
};

struct kva_tpl_expr {
    uint8_t kind;
    uint8_t op;
    uint32_t line;
    uint32_t name;  /* NAME, NSREF: index of the variable */
    uint32_t count; /* of items */
    struct kva_tpl_expr *a, *b, *c;
    struct kva_tpl_expr **items;
    const uint8_t *ops;
    const struct kva_tpl_args *args;
    const struct kva_tpl_builtin *builtin; /* FILTER, TEST; NULL: there is none of this name */
    struct kva_tpl_value value;            /* CONST; the name of GETATTR, NSREF, FILTER, TEST */
};

enum kva_tpl_stmt_kind {
    KVA_TPL_STMT_TEXT,
    KVA_TPL_STMT_OUTPUT,
    KVA_TPL_STMT_SET,
    KVA_TPL_STMT_SET_BLOCK,
    KVA_TPL_STMT_IF,
    KVA_TPL_STMT_FOR,
    KVA_TPL_STMT_MACRO,
    KVA_TPL_STMT_CALL,
    KVA_TPL_STMT_FILTER,
    KVA_TPL_STMT_WITH,
    KVA_TPL_STMT_GENERATION,
    KVA_TPL_STMT_BREAK,
    KVA_TPL_STMT_CONTINUE,
    KVA_TPL_STMT_KIND_COUNT,
};

/* Parameters of a macro or of a call block. The last `default_count` have defaults. */
struct kva_tpl_signature {
    uint32_t *names; /* variables */
    struct kva_tpl_expr **defaults;
    uint32_t count;
    uint32_t default_count;
    bool wants_caller; /* the body mentions `caller`, `varargs`, `kwargs` */
    bool wants_varargs;
    bool wants_kwargs;
};

/* One `if`/`elif` and what it guards. */
struct kva_tpl_branch {
    struct kva_tpl_expr *test;
    struct kva_tpl_stmt *body;
};

struct kva_tpl_stmt {
    uint8_t kind;
    bool recursive; /* FOR */
    uint32_t line;
    uint32_t name;  /* MACRO: variable */
    uint32_t count; /* of branches, or of targets of WITH */
    struct kva_tpl_stmt *next;
    const struct kva_tpl_str *text; /* TEXT */
    struct kva_tpl_expr *target;    /* SET, SET_BLOCK, FOR */
    struct kva_tpl_expr *expr; /* OUTPUT, SET; FOR: what to iterate; CALL: the call; SET_BLOCK and
                                * FILTER: the filters */
    struct kva_tpl_expr *test; /* FOR */
    struct kva_tpl_expr **targets;
    struct kva_tpl_expr **values;
    struct kva_tpl_branch *branches;
    struct kva_tpl_signature *signature;
    struct kva_tpl_stmt *body;
    struct kva_tpl_stmt *other; /* else */
};

/* Variables that every template has; their index is fixed. */
enum kva_tpl_known_name {
    KVA_TPL_NAME_LOOP,
    KVA_TPL_NAME_CALLER,
    KVA_TPL_NAME_VARARGS,
    KVA_TPL_NAME_KWARGS,
    KVA_TPL_NAME_KNOWN_COUNT,
};

struct kva_template {
    struct kva_arena arena;
    const char *source;
    size_t source_length;
    struct kva_tpl_stmt *body;
    const struct kva_tpl_str **names; /* of variables */
    uint32_t name_count;
    uint32_t name_capacity;
};

/* Parse `source` (valid UTF-8) into tmpl, whose arena is ready. Fails: KVA_EFORMAT, KVA_ENOMEM. */
enum kva_status kva_tpl_parse(struct kva_template *tmpl, const char *source, size_t length,
                              struct kva_err *err) KVA_MUST_CHECK;

/* Index of the variable `name`; UINT32_MAX if the template does not mention it. */
uint32_t kva_tpl_find_name(const struct kva_template *tmpl, const char *name, size_t length);

#endif
