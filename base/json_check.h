/* json_check.h - whether a text is one JSON document, to the letter, without building it.
 *
 * The text is walked once, without recursion or allocation: UTF-8, RFC 8259, and bounds of what a
 * tree of it would cost. Escaped NULs are refused: C strings would end there, silently.
 *
 * Thread rule: pure functions; any thread. */
#ifndef KVA_BASE_JSON_CHECK_H
#define KVA_BASE_JSON_CHECK_H

#include "base/err.h"

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

#endif
