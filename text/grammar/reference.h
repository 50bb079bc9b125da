/* reference.h - where a local `$ref` of a JSON Schema points. */
#ifndef KVA_TEXT_GRAMMAR_REFERENCE_H
#define KVA_TEXT_GRAMMAR_REFERENCE_H

#include <cjson/cJSON.h>

/* The schema in `root` that a reference names: "#", or "#/$defs/a" without escapes. NULL: none. */
cJSON *kva_schema_find_reference(const cJSON *root, const char *reference);

#endif
