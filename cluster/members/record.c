/* record.c - members' records. */
#include "cluster/members/record.h"

#include "base/json_check.h"
#include "base/utf8.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#define VALUES_MAX     64u
#define LEND_PAGES_MAX (1u << 26) /* 2^32 tokens */

void kva_record_put(struct kva_buf *out, const struct kva_member *self, uint64_t life)
{
    kva_buf_printf(out, "{\"node\":%u,\"life\":\"%llu\",\"host\":", self->node,
                   (unsigned long long)life);
    kva_buf_json_string(out, self->host, strlen(self->host));
    kva_buf_printf(out, ",\"port\":%u,\"guest_port\":%u,\"lend_pages\":%u,\"model\":", self->port,
                   self->guest_port, self->lend_pages);
    kva_buf_json_string(out, self->model, strlen(self->model));
    kva_buf_putc(out, '}');
}

/* --- checks ----------------------------------------------------------------------------------- */

/* A name or an address: letters, digits, dots, colons, and what names of hosts and of interfaces
 * have besides. */
static bool is_host(const char *text)
{
    static const char fit[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_%";
    size_t length = strlen(text);
    return length > 0 && length < KVA_MEMBERS_HOST_MAX && strspn(text, fit) == length;
}

static bool is_model(const char *text)
{
    size_t length = strlen(text);
    if (length == 0 || length >= KVA_MEMBERS_MODEL_MAX || !kva_utf8_valid(text, length))
        return false;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            return false;
    return true;
}

enum kva_status kva_record_check(const struct kva_member *self, struct kva_err *err)
{
    if (!memchr(self->host, 0, sizeof(self->host)) || !is_host(self->host))
        return kva_fail(err, KVA_EINVAL,
                        "host: 1 to %u letters, digits, dots, colons, hyphens are a host",
                        KVA_MEMBERS_HOST_MAX - 1);
    if (!memchr(self->model, 0, sizeof(self->model)) || !is_model(self->model))
        return kva_fail(err, KVA_EINVAL, "model: 1 to %u bytes of printable UTF-8 are a model",
                        KVA_MEMBERS_MODEL_MAX - 1);
    if (self->port == 0 || self->guest_port == 0)
        return kva_fail(err, KVA_EINVAL, "%s: 0 is no port",
                        self->port == 0 ? "port" : "guest_port");
    return KVA_OK;
}

uint32_t kva_record_node(const char *key, const char *prefix)
{
    size_t length = strlen(prefix);
    uint64_t node;
    if (strncmp(key, prefix, length) != 0 || key[length] == '0' ||
        !kva_members_read_number(key + length, strlen(key + length), &node) ||
        node > KVA_MEMBERS_NODES_MAX)
        return 0;
    return (uint32_t)node;
}

/* --- reading ---------------------------------------------------------------------------------- */

static bool read_port(const cJSON *object, const char *name, uint16_t *ret)
{
    uint64_t port;
    if (!kva_members_get_number(object, name, &port) || port == 0 || port > UINT16_MAX)
        return false;
    *ret = (uint16_t)port;
    return true;
}

static bool read_text(const cJSON *object, const char *name, bool (*fit)(const char *text),
                      char *ret, size_t size)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsString(item) || !fit(item->valuestring))
        return false;
    snprintf(ret, size, "%s", item->valuestring);
    return true;
}

static const char *read_members(const struct kva_etcd_kv *kv, const cJSON *object, uint32_t node,
                                struct kva_member *ret)
{
    uint64_t number, life, lend_pages;
    if (!kva_members_get_number(object, "node", &number) || number != node)
        return "its node is not the number in its key";
    if (!kva_members_get_number(object, "life", &life) || life > kv->created || kv->created == 0)
        return "its life is not a revision up to that of its key";
    if (!read_text(object, "host", is_host, ret->host, sizeof(ret->host)))
        return "its host is none";
    if (!read_port(object, "port", &ret->port))
        return "its port is none";
    if (!read_port(object, "guest_port", &ret->guest_port))
        return "its guest_port is none";
    if (!kva_members_get_number(object, "lend_pages", &lend_pages) || lend_pages > LEND_PAGES_MAX)
        return "its lend_pages are none";
    if (!read_text(object, "model", is_model, ret->model, sizeof(ret->model)))
        return "its model is none";
    ret->node = node;
    ret->lend_pages = (uint32_t)lend_pages;
    ret->life = life ? life : kv->created;
    return NULL;
}

enum kva_status kva_record_read(const struct kva_etcd_kv *kv, uint32_t node, struct kva_member *ret,
                                struct kva_err *err)
{
    struct kva_json_limits limits;
    struct kva_member member = {0};
    kva_json_limits_default(&limits);
    limits.values_max = VALUES_MAX;
    if (kv->cut)
        return kva_fail(err, KVA_EFORMAT, "it is no base64 of at most %u bytes",
                        KVA_MEMBERS_VALUE_MAX - 1);
    if (kva_json_check(kv->value, kv->value_bytes, &limits, err))
        return kva_err_prefix(err, KVA_EFORMAT, "it is no JSON");
    cJSON *object = cJSON_ParseWithLength(kv->value, kv->value_bytes);
    if (!object)
        return kva_fail(err, KVA_EFORMAT, "there is no memory to read it");
    const char *wrong = read_members(kv, object, node, &member);
    cJSON_Delete(object);
    if (wrong)
        return kva_fail(err, KVA_EFORMAT, "%s", wrong);
    *ret = member;
    return KVA_OK;
}
