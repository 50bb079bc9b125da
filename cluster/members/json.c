/* json.c - numbers, bytes and keys in the answers of etcd's JSON gateway. */
#include "cluster/members/json.h"

#include <cjson/cJSON.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_DIGITS_MAX 19u
#define BLOCK             48u /* bytes that are encoded at once; a multiple of 3 */

bool kva_members_read_number(const char *text, size_t length, uint64_t *ret)
{
    uint64_t value = 0;
    if (length == 0 || length > NUMBER_DIGITS_MAX)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = 10 * value + (uint64_t)(text[i] - '0');
    }
    if (value > INT64_MAX)
        return false;
    *ret = value;
    return true;
}

bool kva_members_get_number(const struct cJSON *object, const char *name, uint64_t *ret)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!item) {
        *ret = 0;
        return true;
    }
    if (cJSON_IsString(item))
        return kva_members_read_number(item->valuestring, strlen(item->valuestring), ret);
    /* A number proper: exact as far as a double is. */
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < 0x1p53) ||
        (double)(uint64_t)item->valuedouble < item->valuedouble)
        return false;
    *ret = (uint64_t)item->valuedouble;
    return true;
}

void kva_members_clean(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7E)
            *c = '?';
}

uint64_t kva_members_get_revision(const struct cJSON *answer)
{
    uint64_t revision;
    const cJSON *header = cJSON_GetObjectItemCaseSensitive(answer, "header");
    return kva_members_get_number(header, "revision", &revision) ? revision : 0;
}

void kva_members_put_base64(struct kva_buf *out, const char *bytes, size_t length)
{
    unsigned char text[BLOCK / 3 * 4 + 1];
    kva_buf_putc(out, '"');
    for (size_t at = 0; at < length; at += BLOCK) {
        size_t size = kva_min_size(BLOCK, length - at);
        int written = EVP_EncodeBlock(text, (const unsigned char *)bytes + at, (int)size);
        kva_buf_append(out, text, (size_t)written);
    }
    kva_buf_putc(out, '"');
}

bool kva_members_read_base64(const char *text, char *ret, size_t max, size_t *ret_bytes)
{
    unsigned char bytes[KVA_MEMBERS_VALUE_MAX + 3];
    size_t length = strlen(text), padding = 0;
    /* OpenSSL's passes over white space at both ends, and over what padding hides. */
    if (length % 4 != 0 || length / 4 * 3 > sizeof(bytes) || strpbrk(text, " \t\r\n-"))
        return false;
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=')
        padding++;
    if (memchr(text, '=', length - padding))
        return false;
    int got = length == 0 ? 0 : EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)length);
    if (got < 0 || (size_t)got < padding || (size_t)got - padding > max)
        return false;
    memcpy(ret, bytes, (size_t)got - padding);
    *ret_bytes = (size_t)got - padding;
    return true;
}

/* The bytes under `name`, which etcd leaves out where there are none. */
static bool get_bytes(const cJSON *object, const char *name, char *ret, size_t size,
                      size_t *ret_bytes)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    *ret_bytes = 0;
    ret[0] = 0;
    if (!item)
        return true;
    if (!cJSON_IsString(item) ||
        !kva_members_read_base64(item->valuestring, ret, size - 1, ret_bytes)) {
        ret[0] = 0;
        return false;
    }
    ret[*ret_bytes] = 0;
    return true;
}

bool kva_members_get_kv(const struct cJSON *object, struct kva_etcd_kv *ret)
{
    bool key = get_bytes(object, "key", ret->key, sizeof(ret->key), &ret->key_bytes);
    bool value = get_bytes(object, "value", ret->value, sizeof(ret->value), &ret->value_bytes);
    ret->cut = !key || !value;
    return cJSON_IsObject(object) &&
           kva_members_get_number(object, "create_revision", &ret->created) &&
           kva_members_get_number(object, "mod_revision", &ret->modified) &&
           kva_members_get_number(object, "lease", &ret->lease) && ret->modified > 0 &&
           ret->created <= ret->modified;
}
