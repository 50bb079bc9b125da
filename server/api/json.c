/* json.c - parsing a checked body, and words for what is wrong. */
#include "server/api/json.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Objects up to this many keys are compared pairwise, without an allocation. */
#define PAIRWISE_KEYS_MAX 24u

/* So many are exact in a double. */
#define EXACT_DIGITS 15u

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

/* --- numbers as they are written -------------------------------------------------------------- */

struct source {
    const char *at, *end;
};

/* The next number outside of strings; `at` is behind it then. The text is checked. */
static const char *next_number(struct source *source)
{
    for (; source->at < source->end; source->at++) {
        char c = *source->at;
        if (c == '-' || (c >= '0' && c <= '9')) {
            const char *begin = source->at;
            while (source->at < source->end && strchr("+-.0123456789Ee", *source->at))
                source->at++;
            return begin;
        }
        if (c != '"')
            continue;
        for (source->at++; source->at < source->end && *source->at != '"'; source->at++)
            source->at += *source->at == '\\';
    }
    return source->end;
}

/* A double does not tell 1.0 from 1, nor all integers of 64 bits from each other: where it might not,
 * the number's text stays beside it, as its valuestring. */
static bool keep_numbers(cJSON *value, struct source *source)
{
    if (cJSON_IsNumber(value)) {
        const char *begin = next_number(source);
        size_t length = (size_t)(source->at - begin);
        bool exact = length <= EXACT_DIGITS && !memchr(begin, '.', length) &&
                     !memchr(begin, 'e', length) && !memchr(begin, 'E', length);
        if (exact)
            return true;
        value->valuestring = cJSON_malloc(length + 1);
        if (!value->valuestring)
            return false;
        memcpy(value->valuestring, begin, length);
        value->valuestring[length] = '\0';
    }
    for (cJSON *item = value->child; item; item = item->next) {
        if (!keep_numbers(item, source))
            return false;
    }
    return true;
}

enum kva_status kva_json_parse(const char *text, size_t length,
                               const struct kva_json_limits *limits, cJSON **ret,
                               struct kva_err *err)
{
    enum kva_status status = kva_json_check(text, length, limits, err);
    if (status != KVA_OK)
        return status;
    cJSON *root = cJSON_ParseWithLength(text, length);
    struct source source = {text, text + length};
    if (!root || !keep_numbers(root, &source))
        status =
            kva_fail(err, KVA_ENOMEM, "Out of memory while reading a body of %zu bytes.", length);
    else
        status = check_tree(root, err);
    if (status != KVA_OK) {
        cJSON_Delete(root);
        return status;
    }
    *ret = root;
    return KVA_OK;
}
