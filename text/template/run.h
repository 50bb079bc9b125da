/* run.h - one rendering: its state, its bounds, and the operations on values that the evaluator
 * and the built-in functions share.
 *
 * Every function here that can fail leaves the reason in run->err and returns KVA_EINVAL (the
 * template is wrong for these values, or a limit), KVA_ECANCELLED, or KVA_ENOMEM. Everything that
 * recurses takes a level with kva_tpl_enter.
 *
 * Work is charged before it is done: whatever costs more than a constant calls kva_tpl_charge
 * first, with the size of its operands and, where those multiply, with the product. Storage is
 * charged by kva_tpl_alloc, so that copies need no charge of their own; reading, comparing,
 * hashing, searching and appending to buffers do. tests/text/template/test_work.c counts what every
 * builtin and operator really does against what it was charged.
 *
 * Internal to text/template. Thread rule: a run belongs to one thread. */
#ifndef KVA_TEXT_TEMPLATE_RUN_H
#define KVA_TEXT_TEMPLATE_RUN_H

#include "text/template/ast.h"

struct kva_tpl_binding {
    uint32_t name;
    struct kva_tpl_value value;
};

/* Variables of one block. The root's are indexed by name, the others searched: they are few. */
struct kva_tpl_scope {
    struct kva_tpl_scope *parent; /* NULL: the root */
    struct kva_tpl_binding *bindings;
    uint32_t count;
    uint32_t capacity;
    bool captured; /* a macro refers to it: it must not be reused */
};

enum kva_tpl_flow {
    KVA_TPL_FLOW_NORMAL,
    KVA_TPL_FLOW_BREAK,
    KVA_TPL_FLOW_CONTINUE,
};

struct kva_tpl_run {
    const struct kva_template *tmpl;
    const struct kva_template_limits *limits;
    const atomic_bool *cancelled; /* NULL: nobody can */
    struct kva_err *err;          /* never NULL */
    struct kva_arena heap;
    struct kva_buf *out;
    size_t out_start;
    struct kva_buf capture;            /* text of macros and set blocks, as a stack */
    uint32_t capture_depth;            /* 0: text goes to `out` */
    struct kva_tpl_scope *scope;       /* the current one */
    struct kva_tpl_scope *free_scopes; /* left ones, linked by parent */
    struct kva_tpl_value *globals;     /* the root's variables, by name; ABSENT if there are none */
    struct kva_tpl_value filter_input; /* what a filter without an operand starts from */
    uint64_t steps;
    uint32_t depth;
    uint32_t line;
    enum kva_tpl_flow flow;
    int64_t now_unix_s;
};

struct kva_tpl_macro {
    const struct kva_tpl_signature *signature;
    const struct kva_tpl_stmt *body;
    const struct kva_tpl_str *name; /* NULL: a call block */
    struct kva_tpl_scope *scope;    /* where it was defined */
};

/* The variable `loop`. */
struct kva_tpl_loop {
    const struct kva_tpl_stmt *stmt;
    const struct kva_tpl_list *items;  /* with an `if`: those that it has let pass so far */
    const struct kva_tpl_list *source; /* what it goes over */
    struct kva_tpl_list *passed;       /* the same as items; NULL without an `if` */
    size_t looked_at;                  /* items of the source that the `if` was asked of */
    size_t index;
    uint32_t level;              /* depth0 */
    struct kva_tpl_scope *scope; /* around the loop, for recursion */
    struct kva_tpl_value last_changed;
};

/* Evaluated arguments of a call. */
struct kva_tpl_named {
    const struct kva_tpl_str *name;
    struct kva_tpl_value value;
};

struct kva_tpl_call {
    const struct kva_tpl_value *args;
    const struct kva_tpl_named *named;
    uint32_t count;
    uint32_t named_count;
};

/* --- run.c: bounds and errors ------------------------------------------------------------------*/

/* "chat template, line N: <message>", KVA_EINVAL. */
enum kva_status kva_tpl_fail(struct kva_tpl_run *run, const char *format, ...) KVA_PRINTF(2, 3);

/* A buffer that failed: KVA_ENOMEM, or "more than LIMIT bytes of WHAT". */
enum kva_status kva_tpl_buf_fail(struct kva_tpl_run *run, const struct kva_buf *buf,
                                 size_t limit_bytes, const char *what);

/* What using an undefined value says. */
enum kva_status kva_tpl_fail_undefined(struct kva_tpl_run *run, const struct kva_tpl_value *value);

/* What one step of work buys. */
enum kva_tpl_work {
    KVA_TPL_NODES = 1,  /* expressions, statements, calls, numbers shown or read */
    KVA_TPL_ITEMS = 4,  /* items of a container visited; characters rewritten */
    KVA_TPL_CHARS = 16, /* bytes looked at character by character */
    KVA_TPL_BYTES = 64, /* bytes that the C library copies, compares or searches */
};

/* Nodes for showing or reading a number, which takes the C library some tries. */
#define KVA_TPL_NUMBER_STEPS 16

/* Take `steps` from what is left; nothing is left once that has failed. */
enum kva_status kva_tpl_charge_steps(struct kva_tpl_run *run, uint64_t steps) KVA_MUST_CHECK;

/* Pay for work that comes next, rounded up to steps. The one way to pay. */
static inline KVA_MUST_CHECK enum kva_status kva_tpl_charge(struct kva_tpl_run *run,
                                                            enum kva_tpl_work kind, size_t amount)
{
    size_t unit = (size_t)kind;
    return kva_tpl_charge_steps(run, amount / unit + (amount % unit != 0));
}

/* One more level of recursion; kva_tpl_leave takes it back. */
enum kva_status kva_tpl_enter(struct kva_tpl_run *run) KVA_MUST_CHECK;
static inline void kva_tpl_leave(struct kva_tpl_run *run)
{
    run->depth--;
}

/* Zeroed storage of the run, charged. NULL: the error is set, and run->err->status is what to
 * return. */
void *kva_tpl_alloc(struct kva_tpl_run *run, size_t count, size_t size);

/* --- run.c: making values ----------------------------------------------------------------------*/

/* A string that borrows `data`, which must live as long as the run. */
enum kva_status kva_tpl_borrow(struct kva_tpl_run *run, const char *data, size_t length,
                               struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* A string with its own copy. */
enum kva_status kva_tpl_copy(struct kva_tpl_run *run, const char *data, size_t length,
                             struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* A buffer to make a string in, bounded by the heap's limit. */
void kva_tpl_buf_init(const struct kva_tpl_run *run, struct kva_buf *buf);

/* The buffer's text as a string; finishes the buffer in any case. */
enum kva_status kva_tpl_buf_take(struct kva_tpl_run *run, struct kva_buf *buf,
                                 struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* left + right, extending left in place where that is possible. */
enum kva_status kva_tpl_join(struct kva_tpl_run *run, const struct kva_tpl_str *left,
                             const struct kva_tpl_str *right,
                             struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* A piece of `string`, sharing its text. */
enum kva_status kva_tpl_piece(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                              size_t from, size_t length, struct kva_tpl_value *ret) KVA_MUST_CHECK;

enum kva_status kva_tpl_list_new(struct kva_tpl_run *run, enum kva_tpl_type type, size_t capacity,
                                 struct kva_tpl_value *ret) KVA_MUST_CHECK;
enum kva_status kva_tpl_list_add(struct kva_tpl_run *run, struct kva_tpl_list *list,
                                 const struct kva_tpl_value *item) KVA_MUST_CHECK;

/* (a, b) */
enum kva_status kva_tpl_pair(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                             const struct kva_tpl_value *b,
                             struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* An iterator over a list, as Python's `type_name`. */
enum kva_status kva_tpl_iterator_new(struct kva_tpl_run *run, const struct kva_tpl_list *list,
                                     const char *type_name,
                                     struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* Undefined with a message of its own (hint), or for name `name` of `owner` (NULL: a variable). */
enum kva_status kva_tpl_undefined_new(struct kva_tpl_run *run, const char *hint,
                                      const struct kva_tpl_value *owner,
                                      const struct kva_tpl_value *name,
                                      struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* --- dict.c ------------------------------------------------------------------------------------*/

enum kva_status kva_tpl_dict_new(struct kva_tpl_run *run, enum kva_tpl_type type,
                                 struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* Insert, or replace the value of an equal key. Fails too if the key has no hash. */
enum kva_status kva_tpl_dict_set(struct kva_tpl_run *run, struct kva_tpl_dict *dict,
                                 const struct kva_tpl_value *key,
                                 const struct kva_tpl_value *value) KVA_MUST_CHECK;

/* *ret = the value of `key`, NULL if there is none. Fails if the key has no hash. */
enum kva_status kva_tpl_dict_get(struct kva_tpl_run *run, const struct kva_tpl_dict *dict,
                                 const struct kva_tpl_value *key,
                                 const struct kva_tpl_value **ret) KVA_MUST_CHECK;

/* Whether a value can be a key. */
enum kva_status kva_tpl_has_hash(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                 bool *ret) KVA_MUST_CHECK;

/* --- compare.c ---------------------------------------------------------------------------------*/

bool kva_tpl_truth(const struct kva_tpl_value *value);

/* a == b */
enum kva_status kva_tpl_equal(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                              const struct kva_tpl_value *b, bool *ret) KVA_MUST_CHECK;

/* -1, 0, 1; 2 if a NaN is not ordered. `sign` is the operator for the message ("<"). */
enum kva_status kva_tpl_order(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                              const struct kva_tpl_value *b, const char *sign,
                              int *ret) KVA_MUST_CHECK;

/* item in container */
enum kva_status kva_tpl_contains(struct kva_tpl_run *run, const struct kva_tpl_value *container,
                                 const struct kva_tpl_value *item, bool *ret) KVA_MUST_CHECK;

/* Sort items stably by keys (both `count` long; the keys may be the items). */
enum kva_status kva_tpl_sort(struct kva_tpl_run *run, struct kva_tpl_value *items,
                             struct kva_tpl_value *keys, size_t count, bool reverse) KVA_MUST_CHECK;

/* --- sequence.c --------------------------------------------------------------------------------*/

/* len(value) of anything but a string; -1 if it has none. */
int64_t kva_tpl_item_count(const struct kva_tpl_value *value);

/* len(value); -1 if it has none. */
enum kva_status kva_tpl_length(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                               int64_t *ret) KVA_MUST_CHECK;

/* Everything that iterating gives, as a list that may be the value's own: read only. An iterator
 * is used up by it. */
enum kva_status kva_tpl_iterate(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                const struct kva_tpl_list **ret) KVA_MUST_CHECK;

bool kva_tpl_is_iterable(const struct kva_tpl_value *value);

/* object.name and object[key], as the sandbox does both: undefined, not an error, if absent. */
enum kva_status kva_tpl_get_attribute(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                      const struct kva_tpl_value *name,
                                      struct kva_tpl_value *ret) KVA_MUST_CHECK;
enum kva_status kva_tpl_get_item(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                 const struct kva_tpl_value *key,
                                 struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* object[a:b:c]; each bound None if it was not given. */
enum kva_status kva_tpl_get_slice(struct kva_tpl_run *run, const struct kva_tpl_value *object,
                                  const struct kva_tpl_value bounds[3],
                                  struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* --- operators.c -------------------------------------------------------------------------------*/

enum kva_status kva_tpl_binary(struct kva_tpl_run *run, enum kva_tpl_op op,
                               const struct kva_tpl_value *a, const struct kva_tpl_value *b,
                               struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* --- repr.c ------------------------------------------------------------------------------------*/

/* Append str(value) or repr(value). A failed buffer is for the caller to notice. */
enum kva_status kva_tpl_put_str(struct kva_tpl_run *run, struct kva_buf *buf,
                                const struct kva_tpl_value *value) KVA_MUST_CHECK;
enum kva_status kva_tpl_put_repr(struct kva_tpl_run *run, struct kva_buf *buf,
                                 const struct kva_tpl_value *value) KVA_MUST_CHECK;
void kva_tpl_put_float(struct kva_buf *buf, double number);

/* str(value) as a plain string; soft: a string that is marked safe stays so. */
enum kva_status kva_tpl_to_str(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                               bool soft, struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* A safe string: HTML's special characters escaped, unless it is safe already. */
enum kva_status kva_tpl_escape(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                               struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* --- json.c ------------------------------------------------------------------------------------*/

/* Strings borrow from `json`. `what` names it in errors. */
enum kva_status kva_tpl_from_json(struct kva_tpl_run *run, const cJSON *json, const char *what,
                                  struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* --- evaluate.c, execute.c ---------------------------------------------------------------------*/

enum kva_status kva_tpl_eval(struct kva_tpl_run *run, const struct kva_tpl_expr *expr,
                             struct kva_tpl_value *ret) KVA_MUST_CHECK;
enum kva_status kva_tpl_eval_args(struct kva_tpl_run *run, const struct kva_tpl_args *args,
                                  struct kva_tpl_call *ret) KVA_MUST_CHECK;
enum kva_status kva_tpl_call(struct kva_tpl_run *run, const struct kva_tpl_value *callee,
                             const struct kva_tpl_call *call,
                             struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* A scope inside `parent` becomes the current one; pop goes back to `outer`, which was it before.
 * Names are bound in the current scope. A macro keeps its scope, and with it all around it. */
enum kva_status kva_tpl_scope_push(struct kva_tpl_run *run,
                                   struct kva_tpl_scope *parent) KVA_MUST_CHECK;
void kva_tpl_scope_pop(struct kva_tpl_run *run, struct kva_tpl_scope *outer);
void kva_tpl_scope_keep(struct kva_tpl_run *run);
enum kva_status kva_tpl_scope_bind(struct kva_tpl_run *run, uint32_t name,
                                   const struct kva_tpl_value *value) KVA_MUST_CHECK;

/* Execute `body` into a string. The capture ends also when the body leaves its loop. */
enum kva_status kva_tpl_capture(struct kva_tpl_run *run, const struct kva_tpl_stmt *body,
                                struct kva_tpl_value *ret) KVA_MUST_CHECK;

enum kva_status kva_tpl_execute(struct kva_tpl_run *run,
                                const struct kva_tpl_stmt *stmt) KVA_MUST_CHECK;
enum kva_status kva_tpl_call_macro(struct kva_tpl_run *run, const struct kva_tpl_macro *macro,
                                   const struct kva_tpl_call *call,
                                   struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* Looks for further items of a loop until it has more than `index`, or there are none. As Jinja2 does,
 * the loop's `if` is asked no sooner than its answer is needed: the body may change what it sees. */
enum kva_status kva_tpl_loop_reach(struct kva_tpl_run *run, struct kva_tpl_loop *loop,
                                   size_t index) KVA_MUST_CHECK;

/* loop(items) of a recursive loop. */
enum kva_status kva_tpl_call_loop(struct kva_tpl_run *run, const struct kva_tpl_loop *loop,
                                  const struct kva_tpl_call *call,
                                  struct kva_tpl_value *ret) KVA_MUST_CHECK;

#endif
