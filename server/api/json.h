/* json.h - request bodies: a strict check of the bytes, then cJSON.
 *
 * cJSON builds the tree, but it is lenient where a server must not be: it reads numbers of any
 * length, ends strings at an escaped NUL, takes raw control characters and bytes that are not
 * UTF-8, and keeps duplicate keys. kva_json_check walks the text once, without recursion or
 * allocation, and refuses all of that before cJSON sees it, and bounds what the tree can cost.
 *
 * Decided here: duplicate keys are refused (two readers of one body must not see two requests), and
 * so is U+0000 inside a string (C strings would end there, silently).
 *
 * Thread rule: pure functions; any thread. */
#ifndef KVA_SERVER_API_JSON_H
#define KVA_SERVER_API_JSON_H

#include "base/err.h"

#include <cjson/cJSON.h>

#define KVA_JSON_DEPTH_MAX 128u

struct kva_json_limits {
    uint32_t depth_max;        /* nested arrays and objects, <= KVA_JSON_DEPTH_MAX */
    uint32_t number_bytes_max; /* characters of one number; cJSON misreads those beyond 63 */
    uint32_t values_max;       /* values in the document: a tree node costs about 80 bytes */
    uint32_t key_bytes_max;    /* of one object key */
};

/* Depth 64, numbers of 60 characters, a million values, keys of 1,024 bytes. */
void kva_json_limits_default(struct kva_json_limits *limits);

/* Whether `length` bytes are one RFC 8259 document within `limits`. Fails: KVA_EINVAL; err says
 * what is wrong, at which byte. */
KVA_MUST_CHECK enum kva_status kva_json_check(const char *text, size_t length,
                                              const struct kva_json_limits *limits,
                                              struct kva_err *err);

/* Check, parse and refuse duplicate keys. The caller frees *ret with cJSON_Delete. Fails:
 * KVA_EINVAL, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_json_parse(const char *text, size_t length,
                                              const struct kva_json_limits *limits, cJSON **ret,
                                              struct kva_err *err);

#endif
