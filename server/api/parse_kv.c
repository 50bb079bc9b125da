/* parse_kv.c - the field `kv`: policy and settings of one request. */
#include "server/api/fields.h"

#include <stdio.h>
#include <string.h>

static enum kva_status unknown_policy(struct kva_api_parser *p, const char *name)
{
    char allowed[256] = "";
    size_t used = 0;
    for (unsigned i = 0; i < KVA_KV_POLICY_COUNT; i++) {
        if (p->config->kv_allowed_mask & (1u << i) && used < sizeof(allowed)) {
            int wrote = snprintf(allowed + used, sizeof(allowed) - used, "%s%s", used ? ", " : "",
                                 kva_kv_policy_name((enum kva_kv_policy_id)i));
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    return kva_fail_param(p->err, KVA_EINVAL, "kv.policy", "'kv.policy' is '%.64s', allowed: %s.",
                          name, allowed);
}

static bool allowed(const struct kva_api_parser *p, enum kva_kv_policy_id policy)
{
    return policy < KVA_KV_POLICY_COUNT && (p->config->kv_allowed_mask & (1u << policy));
}

static enum kva_status read_flag(struct kva_api_parser *p, const cJSON *object, const char *key,
                                 const char *place, bool *ret)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    *ret = false;
    return value && !cJSON_IsNull(value) ? kva_api_read_bool(p, place, value, ret) : KVA_OK;
}

/* The last exact policy is the one that takes the least of the device. */
static enum kva_kv_policy_id find_exact(const struct kva_api_parser *p)
{
    for (uint32_t id = KVA_KV_POLICY_COUNT; id-- > 0;) {
        enum kva_kv_policy_id policy = (enum kva_kv_policy_id)id;
        if (allowed(p, policy) && kva_kv_policy_exact(policy))
            return policy;
    }
    return KVA_KV_POLICY_COUNT;
}

/* policy, exact and paper say what the settings start from. */
static enum kva_status parse_base(struct kva_api_parser *p, const cJSON *object)
{
    bool exact, paper;
    enum kva_status status = read_flag(p, object, "exact", "kv.exact", &exact);
    if (!status)
        status = read_flag(p, object, "paper", "kv.paper", &paper);
    if (status)
        return status;
    enum kva_kv_policy_id policy = p->config->kv_default;
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, "policy");
    bool named = value && !cJSON_IsNull(value);
    if (named) {
        struct kva_api_text text;
        status = kva_api_read_text(p, "kv.policy", value, 64, &text);
        if (status)
            return status;
        policy = kva_kv_policy_find(text.data);
        if (!allowed(p, policy))
            return unknown_policy(p, text.data);
    }
    if (exact && !kva_kv_policy_exact(policy)) {
        if (named)
            return kva_fail_param(p->err, KVA_EINVAL, "kv.exact",
                                  "'kv.exact' contradicts 'kv.policy' '%s', which approximates.",
                                  kva_kv_policy_name(policy));
        policy = find_exact(p);
        if (policy == KVA_KV_POLICY_COUNT)
            return kva_fail_param(p->err, KVA_EINVAL, "kv.exact",
                                  "'kv.exact' is not possible: this server allows only policies "
                                  "that approximate.");
    }
    p->call->kv = paper ? kva_kv_spec_paper(policy) : p->config->kv_specs[policy];
    return KVA_OK;
}

/* A number, a word, or as text topk by layer or an amount in percent, as specs have it. */
static enum kva_status read_value(struct kva_api_parser *p, const struct kva_kv_setting *setting,
                                  const char *place, const cJSON *value, char *text, size_t size)
{
    bool is_text = setting->kind == KVA_SETTING_WORD ||
                   ((setting->kind == KVA_SETTING_BY_LAYER || kva_kv_setting_is_amount(setting)) &&
                    cJSON_IsString(value));
    if (is_text) {
        struct kva_api_text read;
        enum kva_status status = kva_api_read_text(p, place, value, (uint32_t)size - 1, &read);
        if (!status)
            snprintf(text, size, "%.*s", (int)read.length, read.data);
        return status;
    }
    int64_t number;
    enum kva_status status = kva_api_read_whole(p, place, value, 0, UINT32_MAX, &number);
    if (!status)
        snprintf(text, size, "%lld", (long long)number);
    return status;
}

/* What the operator's own settings fetch is not the request's doing. */
static enum kva_status check_rows(const struct kva_api_parser *p, const char *place)
{
    uint32_t most = kva_kv_spec_k_max(&p->call->kv);
    if (most <= p->config->kv_topk_max)
        return KVA_OK;
    return kva_fail_param(p->err, KVA_EINVAL, place,
                          "'%s' asks for %u rows, this server fetches at most %u.", place, most,
                          p->config->kv_topk_max);
}

/* Silence about precision or selection would change answers: no unknown keys here. */
static enum kva_status parse_setting(struct kva_api_parser *p, const char *name, const char *place,
                                     const cJSON *value)
{
    char text[KVA_KV_K_TEXT_MAX] = "";
    const struct kva_kv_setting *setting = kva_kv_setting_find(name);
    enum kva_status status = KVA_OK;
    if (setting)
        status = read_value(p, setting, place, value, text, sizeof(text));
    if (status)
        return status;
    struct kva_err why;
    status = kva_kv_spec_set(&p->call->kv, name, text, &why);
    if (status)
        return kva_fail_param(p->err, setting ? status : KVA_EUNSUPPORTED, place, "'%s': %s.",
                              place, why.message);
    return setting->kind == KVA_SETTING_BY_LAYER ? check_rows(p, place) : KVA_OK;
}

static bool is_base(const char *name)
{
    return strcmp(name, "policy") == 0 || strcmp(name, "exact") == 0 || strcmp(name, "paper") == 0;
}

static enum kva_status parse_item(struct kva_api_parser *p, const cJSON *item)
{
    char place[KVA_ERR_PARAM_MAX];
    snprintf(place, sizeof(place), "kv.%.40s", item->string);
    if (cJSON_IsNull(item) || is_base(item->string))
        return KVA_OK;
    if (strcmp(item->string, "report") == 0)
        return kva_api_read_bool(p, place, item, &p->call->report);
    return parse_setting(p, item->string, place, item);
}

/* What is gone is gone for good, so requests may choose it only where the operator has. */
static enum kva_status check_limit(const struct kva_api_parser *p)
{
    const struct kva_kv_spec *spec = &p->call->kv, *own = &p->config->kv_specs[spec->policy];
    if (!kva_kv_spec_drops(spec) || kva_kv_spec_drops(own))
        return KVA_OK;
    return kva_fail_param(p->err, KVA_EINVAL, "kv.pool",
                          "'kv.pool' drops tokens for good, and this server's own settings of '%s' "
                          "do not.",
                          kva_kv_policy_name(spec->policy));
}

enum kva_status kva_api_parse_kv(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object, not %s.", name,
                              kva_api_type_name(value));
    enum kva_status status = parse_base(p, value);
    for (const cJSON *item = value->child; item && !status; item = item->next)
        status = parse_item(p, item);
    if (status)
        return status;
    struct kva_err err;
    status = kva_kv_spec_check(&p->call->kv, &err);
    if (status)
        return kva_fail_param(p->err, status, name, "'kv': %s.", err.message);
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(value, "paper")))
        status = check_rows(p, "kv.paper");
    return status ? status : check_limit(p);
}
