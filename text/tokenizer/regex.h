/* regex.h - the two halves of the pattern translator: structure (regex.c), characters and classes
 * (regex_class.c). */
#ifndef KVA_TEXT_TOKENIZER_REGEX_H
#define KVA_TEXT_TOKENIZER_REGEX_H

#include "text/tokenizer/internal.h"

struct kva_regex {
    const struct kva_tok_place *place;
    const char *start; /* the pattern, NUL-terminated */
    const char *at;
    struct kva_buf *out;
};

/* KVA_EUNSUPPORTED with the position. */
enum kva_status kva_regex_refuse(struct kva_regex *regex, const char *what);

/* A character that stands for itself, inside or outside a class. */
void kva_regex_literal(struct kva_buf *out, uint32_t code);

/* Called after "["; writes an expression that matches one character. */
KVA_MUST_CHECK enum kva_status kva_regex_class(struct kva_regex *regex, unsigned depth);

/* Called after "\" outside a class. */
KVA_MUST_CHECK enum kva_status kva_regex_escape(struct kva_regex *regex, bool *ret_quantifiable);

#endif
