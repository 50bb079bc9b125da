/* json.h - request bodies: a strict check of the bytes, then cJSON.
 *
 * cJSON builds the tree, but it is lenient where a server must not be: it reads numbers of any
 * length, ends strings at an escaped NUL, takes raw control characters and bytes that are not
 * UTF-8, and keeps duplicate keys. kva_json_check walks the text once, without recursion or
 * allocation, and refuses all of that before cJSON sees it, and bounds what the tree can cost.
 *
 * Decided here: duplicate keys are refused (two readers of one body must not see two requests), and
 * so is U+0000 inside a string (C strings would end there, silently). The text of a number that a
 * double may not tell from another one, as 1.0 from 1, stays as its valuestring, for templates.
 *
 * Thread rule: pure functions; any thread. */
#ifndef KVA_SERVER_API_JSON_H
#define KVA_SERVER_API_JSON_H

#include "base/json_check.h"

#include <cjson/cJSON.h>

/* Check, parse and refuse duplicate keys. The caller frees *ret with cJSON_Delete. Fails:
 * KVA_EINVAL, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_json_parse(const char *text, size_t length,
                                              const struct kva_json_limits *limits, cJSON **ret,
                                              struct kva_err *err);

#endif
