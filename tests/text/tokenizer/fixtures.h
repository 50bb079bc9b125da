/* fixtures.h - tokenizers and texts for the tests of text/tokenizer.
 *
 * data/synthetic.json has small models and, in `cases`, the components around them; both and
 * data/reference.json are made by make_reference.py. */
#ifndef KVA_TESTS_TOKENIZER_FIXTURES_H
#define KVA_TESTS_TOKENIZER_FIXTURES_H

#include "tests/cmocka.h"

#include "tests/json.h"
#include "text/tokenizer/tokenizer.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline cJSON *fixture_source(const char *name)
{
    char path[1024];
    return kva_test_json(kva_test_source(name, path, sizeof(path)));
}

#define FIXTURE_SYNTHETIC "tests/text/tokenizer/data/synthetic.json"
#define FIXTURE_REFERENCE "tests/text/tokenizer/data/reference.json"

/* The tokenizer.json of a case; the caller frees. */
static inline char *fixture_case_json(const cJSON *synthetic, const cJSON *item)
{
    cJSON *whole = cJSON_Duplicate(item, true);
    const cJSON *models = cJSON_GetObjectItem(synthetic, "models");
    const char *name = cJSON_GetObjectItem(item, "model")->valuestring;
    const cJSON *model = cJSON_GetObjectItem(models, name);
    assert_non_null(model);
    cJSON_ReplaceItemInObject(whole, "model", cJSON_Duplicate(model, true));
    char *text = cJSON_PrintUnformatted(whole);
    cJSON_Delete(whole);
    assert_non_null(text);
    return text;
}

static inline struct kva_tokenizer *fixture_load(const char *json, const char *config)
{
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    enum kva_status status = kva_tokenizer_load_buffers(
        json, strlen(json), config, config ? strlen(config) : 0, &tokenizer, &err);
    if (status)
        fail_msg("%s", err.message);
    return tokenizer;
}

static inline struct kva_tokenizer *fixture_case(const char *name)
{
    cJSON *synthetic = fixture_source(FIXTURE_SYNTHETIC);
    const cJSON *item = cJSON_GetObjectItem(cJSON_GetObjectItem(synthetic, "cases"), name);
    assert_non_null(item);
    char *json = fixture_case_json(synthetic, item);
    struct kva_tokenizer *tokenizer = fixture_load(json, NULL);
    free(json);
    cJSON_Delete(synthetic);
    return tokenizer;
}

/* A published tokenizer of the test data, or NULL after saying that it is absent. */
static inline struct kva_tokenizer *fixture_published(const char *name)
{
    char relative[256], path[1024];
    snprintf(relative, sizeof(relative), "tokenizers/%s", name);
    if (!kva_test_data(relative, path, sizeof(path)))
        return NULL;
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    if (kva_tokenizer_load(path, &tokenizer, &err))
        fail_msg("%s: %s", name, err.message);
    return tokenizer;
}

static inline struct kva_token_list fixture_encode(const struct kva_tokenizer *tokenizer,
                                                   const char *text, size_t length, bool add,
                                                   bool parse)
{
    struct kva_token_list list;
    struct kva_err err = {.message = ""};
    struct kva_encode_params params = {.add_special = add, .parse_special = parse};
    kva_token_list_init(&list, (size_t)64 << 20);
    if (kva_tokenizer_encode(tokenizer, text, length, &params, &list, &err))
        fail_msg("%s", err.message);
    return list;
}

static inline uint64_t fixture_fnv(uint64_t hash, const void *data, size_t length)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ bytes[i]) * 0x100000001B3ull;
    return hash;
}

#define FIXTURE_FNV_START 0xCBF29CE484222325ull

static inline uint32_t fixture_fold(uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32);
}

/* Bytes of a hexadecimal string; the caller frees. */
static inline char *fixture_unhex(const char *hex, size_t *ret_length)
{
    size_t length = strlen(hex) / 2;
    char *bytes = malloc(length + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (char)strtoul((char[]){hex[2 * i], hex[2 * i + 1], '\0'}, NULL, 16);
    *ret_length = length;
    return bytes;
}

#endif
