/* internal.h - what the files of text/grammar share. Not for other modules. */
#ifndef KVA_TEXT_GRAMMAR_INTERNAL_H
#define KVA_TEXT_GRAMMAR_INTERNAL_H

#include "text/grammar/grammar.h"

#include <cjson/cJSON.h>

/* A place in a schema, as "/properties/name/items". */
#define KVA_GRAMMAR_PLACE_MAX 256u

/* schema.c: whether all that the schema says can be enforced; err names the place. A few things are
 * said otherwise in it. */
KVA_MUST_CHECK enum kva_status kva_grammar_check_tree(cJSON *root, struct kva_err *err);

#endif
