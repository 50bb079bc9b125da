/* format_spec.h - one field of formatted text: what both "..." % values (percent.c) and
 * "...".format(values) (format.c) put.
 *
 * Internal to text/template. Thread rule: one thread at a time. */
#ifndef KVA_TEXT_TEMPLATE_FORMAT_SPEC_H
#define KVA_TEXT_TEMPLATE_FORMAT_SPEC_H

#include "text/template/builtins.h"

/* Widths and precisions beyond this are an error: printf gets them. */
#define KVA_TPL_WIDTH_MAX 1000

/* What stands between the mark and the type of a field. */
struct kva_tpl_spec {
    char fill[5]; /* one character */
    char align;   /* '<', '>', '^', '='; '\0': the type's own */
    char sign;    /* '+', ' ' or '\0' */
    bool alternate;
    bool comma;
    int width;
    int precision; /* -1: none */
    char type;     /* '\0': none */
};

/* Digits at *at; false if the number is over the maximum. */
bool kva_tpl_take_width(const char **at, const char *end, int *ret);

/* Pay for a number's digits, and for what fills it up; then put it. */
enum kva_status kva_tpl_charge_number(struct kva_tpl_run *run,
                                      const struct kva_tpl_spec *spec) KVA_MUST_CHECK;
void kva_tpl_put_integer(struct kva_buf *buf, const struct kva_tpl_spec *spec, int64_t integer);
void kva_tpl_put_real(struct kva_buf *buf, const struct kva_tpl_spec *spec, double number);

/* The value's text, or its repr; `align` is the type's own. */
enum kva_status kva_tpl_put_string(struct kva_tpl_run *run, struct kva_buf *buf,
                                   const struct kva_tpl_spec *spec,
                                   const struct kva_tpl_value *value, bool as_repr,
                                   char align) KVA_MUST_CHECK;

#endif
