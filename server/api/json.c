/* json.c - parsing a checked body, and words for what is wrong. */
#include "server/api/json.h"

#include <stdlib.h>
#include <string.h>

/* Objects up to this many keys are compared pairwise, without an allocation. */
#define PAIRWISE_KEYS_MAX 24u

static enum kva_status duplicate(struct kva_err *err, const char *key)
{
    return kva_fail_param(err, KVA_EINVAL, key, "The key '%.40s' occurs twice in one object.", key);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum kva_status check_many_keys(const cJSON *object, size_t count, struct kva_err *err)
{
    const char **keys = malloc(count * sizeof(*keys));
    if (!keys)
        return kva_fail(err, KVA_ENOMEM, "Out of memory while reading the body.");
    size_t used = 0;
    for (const cJSON *item = object->child; item && used < count; item = item->next)
        keys[used++] = item->string;
    qsort(keys, used, sizeof(*keys), compare_keys);
    enum kva_status status = KVA_OK;
    for (size_t i = 1; i < used && status == KVA_OK; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0)
            status = duplicate(err, keys[i]);
    }
    free(keys);
    return status;
}

static enum kva_status check_keys(const cJSON *object, struct kva_err *err)
{
    size_t count = 0;
    for (const cJSON *item = object->child; item; item = item->next)
        count++;
    if (count > PAIRWISE_KEYS_MAX)
        return check_many_keys(object, count, err);
    for (const cJSON *a = object->child; a; a = a->next) {
        for (const cJSON *b = a->next; b; b = b->next) {
            if (strcmp(a->string, b->string) == 0)
                return duplicate(err, a->string);
        }
    }
    return KVA_OK;
}

/* Recursion is bounded by the depth that kva_json_check allowed. */
static enum kva_status check_tree(const cJSON *value, struct kva_err *err)
{
    enum kva_status status = cJSON_IsObject(value) ? check_keys(value, err) : KVA_OK;
    for (const cJSON *item = value->child; item && status == KVA_OK; item = item->next) {
        if (item->child)
            status = check_tree(item, err);
    }
    return status;
}

enum kva_status kva_json_parse(const char *text, size_t length,
                               const struct kva_json_limits *limits, cJSON **ret,
                               struct kva_err *err)
{
    enum kva_status status = kva_json_check(text, length, limits, err);
    if (status != KVA_OK)
        return status;
    cJSON *root = cJSON_ParseWithLength(text, length);
    if (!root)
        return kva_fail(err, KVA_ENOMEM, "Out of memory while reading a body of %zu bytes.",
                        length);
    status = check_tree(root, err);
    if (status != KVA_OK) {
        cJSON_Delete(root);
        return status;
    }
    *ret = root;
    return KVA_OK;
}
