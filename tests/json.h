/* json.h - JSON documents that tests read: what they expect, or what they feed. */
#ifndef KVA_TESTS_JSON_H
#define KVA_TESTS_JSON_H

#include "tests/cmocka.h"
#include "tests/data.h"

#include <cjson/cJSON.h>

/* The document in a file, which must be there; the caller deletes it. */
static inline cJSON *kva_test_json(const char *path)
{
    char *text = kva_test_read(path, NULL);
    assert_non_null(text);
    cJSON *json = cJSON_Parse(text);
    free(text);
    assert_non_null(json);
    return json;
}

/* The text of a member; NULL: it has none. */
static inline const char *kva_test_text(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

#endif
