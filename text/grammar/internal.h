/* internal.h - what the files of text/grammar share. Not for other modules. */
#ifndef KVA_TEXT_GRAMMAR_INTERNAL_H
#define KVA_TEXT_GRAMMAR_INTERNAL_H

#include "text/grammar/grammar.h"
#include "text/grammar/reference.h"
#include "text/grammar/xgrammar.h"

#include <cjson/cJSON.h>

/* A place in a schema, as "/properties/name/items". */
#define KVA_GRAMMAR_PLACE_MAX 256u

/* --- schema_words.c -------------------------------------------------------------------------- */

enum kva_schema_value {
    KVA_SCHEMA_VALUE_NUMBER,
    KVA_SCHEMA_VALUE_COUNT, /* whole, not negative */
    KVA_SCHEMA_VALUE_STRING,
    KVA_SCHEMA_VALUE_BOOL,
    KVA_SCHEMA_VALUE_ARRAY,
    KVA_SCHEMA_VALUE_OBJECT,
    KVA_SCHEMA_VALUE_SCHEMA,
    KVA_SCHEMA_VALUE_ANY,
};

enum kva_schema_use {
    KVA_SCHEMA_USE_STRONG,  /* decides alone what a value is */
    KVA_SCHEMA_USE_ASSERTS, /* of a type */
    KVA_SCHEMA_USE_REFUSED, /* is not enforced */
};

struct kva_schema_word {
    const char *name;
    enum kva_schema_use use;
    enum kva_schema_value value;
    const char *type; /* whose values it is about; NULL: of all */
};

/* NULL: it says nothing about a value. */
const struct kva_schema_word *kva_schema_word_find(const char *name);

/* What the value of a word must be and is not; NULL: it is. */
const char *kva_schema_value_lacks(enum kva_schema_value value, const cJSON *item);

/* --- schema_apart.c -------------------------------------------------------------------------- */

/* Whether they are objects that all require a property which is one of other strings in each. */
bool kva_schema_are_apart(cJSON *root, const cJSON *alternatives);

/* --- schema_pattern.c ------------------------------------------------------------------------ */

/* An expression for strings in JSON, without what has escapes there; the caller frees *ret, which is
 * NULL without memory. False: it asks for what has escapes, or is no UTF-8. */
bool kva_schema_write_pattern(const char *pattern, char **ret);

/* --- schema_numbers.c ------------------------------------------------------------------------ */

/* Whether a decimal of six places is in the range: of one that has none the library makes nothing,
 * not even a digit. */
bool kva_schema_has_decimals(const cJSON *schema);
/* Decimals among the values of `const` and `enum` (0.3) become ranges, as the library writes values with
 * all their digits (0.29999999999999999). False: out of memory. */
bool kva_schema_mend_decimals(cJSON *schema);

/* --- schema.c -------------------------------------------------------------------------------- */

/* Whether all that the schema says can be enforced; err names the place. A few things are
 * said otherwise in it. xml: its strings are no JSON. */
KVA_MUST_CHECK enum kva_status kva_grammar_check_tree(cJSON *root, bool xml, struct kva_err *err);

/* --- grammar.c: what making a grammar may take -------------------------------------------------- */

/* All calls of the library for one grammar together. */
struct kva_grammar_effort {
    const struct kva_grammar_limits *limits;
    uint64_t begun_ns;
};
/* What is left of it for the next call. */
struct kva_xg_limits kva_grammar_left(const struct kva_grammar_effort *effort);

/* --- grammar.c: what the library says, as errors ------------------------------------------------ */

/* KVA_EINVAL: err names the place in the schema that the library refuses. */
enum kva_status kva_grammar_refuse_schema(const cJSON *root, bool strict,
                                          const struct kva_grammar_effort *effort,
                                          const struct kva_xg_why *why, struct kva_err *err);
enum kva_status kva_grammar_over_limit(enum kva_xg_status status,
                                       const struct kva_grammar_limits *limits,
                                       struct kva_err *err);

/* --- tags.c ---------------------------------------------------------------------------------- */

/* Every KVA_GRAMMAR_TAGS_SCHEMA in the structural tag becomes a format of the library. */
KVA_MUST_CHECK enum kva_status
kva_grammar_fill_tags(cJSON *root, const struct kva_grammar_effort *effort, struct kva_err *err);

#endif
