/* builtins.h - filters, tests, functions and methods: tables of small functions behind one
 * signature.
 *
 * Internal to text/template. Thread rule: the tables are constant. */
#ifndef KVA_TEXT_TEMPLATE_BUILTINS_H
#define KVA_TEXT_TEMPLATE_BUILTINS_H

#include "base/buf.h"
#include "text/template/run.h"

#define KVA_TPL_PARAMS_MAX 6

/* What a builtin gets: `self` is the operand of a filter or test and the object of a method. With
 * named parameters, args[i] is the i-th of them, of type ABSENT if it was not given; without
 * (params NULL) `call` is all there is. */
struct kva_tpl_invocation {
    const struct kva_tpl_value *self;
    const struct kva_tpl_value *args;
    const struct kva_tpl_call *call;
};

typedef enum kva_status kva_tpl_builtin_fn(struct kva_tpl_run *run,
                                           const struct kva_tpl_invocation *in,
                                           struct kva_tpl_value *ret);

struct kva_tpl_builtin {
    const char *name;
    kva_tpl_builtin_fn *fn; /* NULL: known, but not supported */
    const char *params;     /* "a b c"; "-": only by position; NULL: takes anything */
    uint32_t required;      /* of the params */
};

struct kva_tpl_method {
    struct kva_tpl_value self;
    const struct kva_tpl_builtin *builtin;
};

/* NULL if there is none. */
const struct kva_tpl_builtin *kva_tpl_find_filter(const char *name, size_t length);
const struct kva_tpl_builtin *kva_tpl_find_test(const char *name, size_t length);

/* Method of a string, dict, list or tuple. *ret_unsafe: it would change the object, which the
 * sandbox forbids. */
const struct kva_tpl_builtin *kva_tpl_find_method(const struct kva_tpl_value *object,
                                                  const struct kva_tpl_str *name, bool *ret_unsafe);

/* Attributes of `loop`; *ret_found. */
enum kva_status kva_tpl_loop_attribute(struct kva_tpl_run *run, struct kva_tpl_loop *loop,
                                       const struct kva_tpl_str *name, struct kva_tpl_value *ret,
                                       bool *ret_found) KVA_MUST_CHECK;

/* Global functions: fills `globals` where the template mentions them. */
void kva_tpl_set_functions(struct kva_tpl_run *run);

/* Bind the arguments and call. */
enum kva_status kva_tpl_invoke(struct kva_tpl_run *run, const struct kva_tpl_builtin *builtin,
                               const struct kva_tpl_value *self, const struct kva_tpl_call *call,
                               struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* Apply filter or test by its name; `call` holds the arguments behind the operand. */
enum kva_status kva_tpl_apply(struct kva_tpl_run *run, bool is_test,
                              const struct kva_tpl_value *name, const struct kva_tpl_value *self,
                              const struct kva_tpl_call *call,
                              struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* A table of builtins. */
struct kva_tpl_table {
    const struct kva_tpl_builtin *items;
    size_t count;
};

/* The parts of the filter table, each in its file. */
extern const struct kva_tpl_table kva_tpl_text_filters;     /* filters_text.c */
extern const struct kva_tpl_table kva_tpl_sequence_filters; /* filters_sequence.c */
extern const struct kva_tpl_table kva_tpl_select_filters;   /* filters_select.c */
extern const struct kva_tpl_table kva_tpl_number_filters;   /* filters_number.c */
extern const struct kva_tpl_table kva_tpl_json_filters;     /* json.c */
extern const struct kva_tpl_table kva_tpl_tests;            /* tests.c */
extern const struct kva_tpl_table kva_tpl_string_methods;   /* methods_string.c */
extern const struct kva_tpl_table kva_tpl_search_methods;   /* methods_search.c, of strings too */
extern const struct kva_tpl_table kva_tpl_dict_methods;     /* methods.c */
extern const struct kva_tpl_table kva_tpl_list_methods;     /* methods.c */
extern const struct kva_tpl_table kva_tpl_functions;        /* builtins.c */

/* Argument `index` as an int, a truth value or a string; `fallback` if it is absent. Fails with
 * TypeError's words if it is of another type. */
enum kva_status kva_tpl_arg_int(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                uint32_t index, int64_t fallback, int64_t *ret) KVA_MUST_CHECK;
bool kva_tpl_arg_truth(const struct kva_tpl_invocation *in, uint32_t index, bool fallback);
enum kva_status kva_tpl_arg_string(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                                   uint32_t index, const struct kva_tpl_str **ret) KVA_MUST_CHECK;
static inline bool kva_tpl_arg_given(const struct kva_tpl_invocation *in, uint32_t index)
{
    return in->args[index].type != KVA_TPL_ABSENT;
}

/* "a.b.0" looked up in `item`, as filters with an attribute do. */
enum kva_status kva_tpl_get_path(struct kva_tpl_run *run, const struct kva_tpl_value *item,
                                 const struct kva_tpl_value *path,
                                 const struct kva_tpl_value *fallback,
                                 struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* A string in lower case, anything else as it is. */
enum kva_status kva_tpl_ignore_case(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                    struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* Pay for finding all occurrences of a needle in a text that do not overlap. */
enum kva_status kva_tpl_charge_search(struct kva_tpl_run *run, size_t length,
                                      size_t needle_length) KVA_MUST_CHECK;

/* *ret = position of the first or last occurrence, SIZE_MAX: none. Linear, and charged. */
enum kva_status kva_tpl_search(struct kva_tpl_run *run, const char *text, size_t length,
                               const struct kva_tpl_str *needle, bool last,
                               size_t *ret) KVA_MUST_CHECK;

/* Occurrences from the last to the first, which do not overlap: forward in reversed copies, since
 * the C library has no linear search backwards. The needle is not empty. */
struct kva_tpl_backward {
    struct kva_buf text, needle; /* reversed */
    size_t from;
};
enum kva_status kva_tpl_backward_init(struct kva_tpl_run *run, const char *text, size_t length,
                                      const struct kva_tpl_str *needle,
                                      struct kva_tpl_backward *search) KVA_MUST_CHECK;
/* Position of the next one, SIZE_MAX: none. */
size_t kva_tpl_backward_next(struct kva_tpl_backward *search);
void kva_tpl_backward_finish(struct kva_tpl_backward *search);

/* A string in another case; keeps its mark. */
enum kva_status kva_tpl_change_case(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                                    int mode, struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* str.replace and str.strip, for the method and the filter. `count` < 0: all. The characters to
 * strip are the first argument; without it, or None: white space. */
enum kva_status kva_tpl_replace(struct kva_tpl_run *run, const struct kva_tpl_str *text,
                                const struct kva_tpl_str *old, const struct kva_tpl_str *with,
                                int64_t count, struct kva_tpl_value *ret) KVA_MUST_CHECK;
enum kva_status kva_tpl_strip(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                              const struct kva_tpl_value *string, bool left, bool right,
                              struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* Lines of a string without their ends; keep_ends: with them. */
enum kva_status kva_tpl_split_lines(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                                    bool keep_ends, struct kva_tpl_value *ret) KVA_MUST_CHECK;

/* "..." % values, and "...".format(values). */
enum kva_status kva_tpl_percent(struct kva_tpl_run *run, const struct kva_tpl_str *format,
                                const struct kva_tpl_value *values,
                                struct kva_tpl_value *ret) KVA_MUST_CHECK;
enum kva_status kva_tpl_format(struct kva_tpl_run *run, const struct kva_tpl_str *format,
                               const struct kva_tpl_call *call,
                               struct kva_tpl_value *ret) KVA_MUST_CHECK;

#endif
