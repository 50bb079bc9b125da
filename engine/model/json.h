/* json.h - the JSON files of a checkpoint: read with bounds, checked strictly, then looked up with
 * names, values and ranges in every message.
 *
 * cJSON builds the tree, but it recurses, accepts more than JSON, cuts strings at U+0000 and
 * reports neither place nor reason. The check here runs first, without recursion or allocation, and
 * refuses all that; after it, cJSON can only fail for want of memory.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_ENGINE_MODEL_JSON_H
#define KVA_ENGINE_MODEL_JSON_H

#include "base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Whether `text` is one JSON value in RFC 8259's grammar and valid UTF-8, within the depth, number
 * length and value count of limits.h. `file` names it in messages. Fails: KVA_EFORMAT. */
KVA_MUST_CHECK enum kva_status kva_model_json_check(const char *text, size_t length,
                                                    const char *file, struct kva_err *err);

/* Check, then parse; the value must be an object. The caller deletes *ret. Fails: KVA_EFORMAT,
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_json_parse(const char *text, size_t length,
                                                    const char *file, cJSON **ret,
                                                    struct kva_err *err);

/* The same of a file whose value must be a list. */
KVA_MUST_CHECK enum kva_status kva_model_json_parse_list(const char *text, size_t length,
                                                         const char *file, cJSON **ret,
                                                         struct kva_err *err);

/* Read and parse the file `name` in the directory `dir_fd`. Fails: KVA_ENOTFOUND, KVA_EIO,
 * KVA_EFORMAT (also over `bytes_max`), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_json_read(int dir_fd, const char *name, size_t bytes_max,
                                                   cJSON **ret, struct kva_err *err);

KVA_MUST_CHECK enum kva_status kva_model_json_read_list(int dir_fd, const char *name,
                                                        size_t bytes_max, cJSON **ret,
                                                        struct kva_err *err);

/* An object of a file, for look-ups. `prefix` ("rope_scaling.") is put before names in messages. */
struct kva_fields {
    const cJSON *object; /* NULL: every field is absent */
    const char *file;
    const char *prefix;
    struct kva_err *err;
};

/* The look-ups below leave their output as it was when the field is absent or null, so that the
 * caller's value is the default; a name of NULL is a field that is absent everywhere. A field that
 * stands twice is an error: readers would disagree about which one counts. All fail with
 * KVA_EFORMAT. */

/* *ret is the value, NULL when absent or null. */
KVA_MUST_CHECK enum kva_status kva_fields_peek(const struct kva_fields *fields, const char *name,
                                               const cJSON **ret);
KVA_MUST_CHECK enum kva_status kva_fields_u32(const struct kva_fields *fields, const char *name,
                                              uint32_t min, uint32_t max, uint32_t *ret);
KVA_MUST_CHECK enum kva_status kva_fields_double(const struct kva_fields *fields, const char *name,
                                                 double min, double max, double *ret);
KVA_MUST_CHECK enum kva_status kva_fields_bool(const struct kva_fields *fields, const char *name,
                                               bool *ret);

/* *ret is borrowed from the tree. */
KVA_MUST_CHECK enum kva_status kva_fields_string(const struct kva_fields *fields, const char *name,
                                                 const char **ret);

/* *ret describes the object `name` inside; its object is NULL when absent or null. `prefix` is what
 * *ret puts before names, a literal. */
KVA_MUST_CHECK enum kva_status kva_fields_object(const struct kva_fields *fields, const char *name,
                                                 const char *prefix, struct kva_fields *ret);

/* Whether `item` is a whole number in min..max, exactly representable; *ret is untouched if not. */
bool kva_json_whole(const cJSON *item, uint64_t min, uint64_t max, uint64_t *ret);

/* A value as messages show it: short, printable; `out` is returned. */
const char *kva_json_show(const cJSON *item, char *out, size_t size);

/* Bytes of a file as messages show them: cut to `size`, control characters replaced by '?'. */
const char *kva_text_show(const char *text, char *out, size_t size);

#endif
