/* The field `kv`: policy and settings of one request. */
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
        policy = allowed(p, KVA_KV_OFFLOAD) ? KVA_KV_OFFLOAD : KVA_KV_FULL;
        if (!allowed(p, policy))
            return kva_fail_param(p->err, KVA_EINVAL, "kv.exact",
                                  "'kv.exact' is not possible: this server allows only policies "
                                  "that approximate.");
    }
    p->call->kv = paper ? kva_kv_choice_paper(policy) : p->config->kv_choices[policy];
    return KVA_OK;
}

static uint32_t most_rows(const struct kva_api_parser *p, const struct kva_kv_setting *setting)
{
    return kva_min_u32(p->config->kv_topk_max, setting->max);
}

/* A number, or text where layers differ. */
static enum kva_status parse_topk(struct kva_api_parser *p, const struct kva_kv_setting *setting,
                                  const char *place, const cJSON *value)
{
    struct kva_err err;
    struct kva_api_text text;
    char number[24];
    int64_t rows = 0;
    enum kva_status status;
    if (cJSON_IsString(value)) {
        status = kva_api_read_text(p, place, value, KVA_KV_K_TEXT_MAX - 1, &text);
    } else {
        status = kva_api_read_whole(p, place, value, 0, most_rows(p, setting), &rows);
        snprintf(number, sizeof(number), "%lld", (long long)rows);
        text = (struct kva_api_text){number, strlen(number)};
    }
    if (status)
        return status;
    status =
        kva_kv_choice_read_k(text.data, text.length, most_rows(p, setting), &p->call->kv, &err);
    return status ? kva_fail_param(p->err, status, place, "'kv': %s.", err.message) : KVA_OK;
}

static enum kva_status parse_setting(struct kva_api_parser *p, const struct kva_kv_setting *setting,
                                     const char *place, const cJSON *value)
{
    uint32_t *target = kva_kv_setting_value(setting, &p->call->kv);
    if (setting->by_layer)
        return parse_topk(p, setting, place, value);
    if (!setting->words) {
        int64_t number;
        enum kva_status status =
            kva_api_read_whole(p, place, value, setting->min, setting->max, &number);
        if (!status)
            *target = (uint32_t)number;
        return status;
    }
    struct kva_api_text text;
    enum kva_status status = kva_api_read_text(p, place, value, 64, &text);
    if (status)
        return status;
    char known[128] = "";
    size_t used = 0;
    for (uint32_t i = 0; setting->words[i]; i++) {
        if (strcmp(setting->words[i], text.data) == 0) {
            *target = i;
            return KVA_OK;
        }
        int wrote = snprintf(known + used, sizeof(known) - used, "%s%s", used ? ", " : "",
                             setting->words[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return kva_fail_param(p->err, KVA_EINVAL, place, "'%s' is '%.64s', expected one of: %s.", place,
                          text.data, known);
}

static const struct kva_kv_setting *find_setting(const char *name)
{
    size_t count;
    const struct kva_kv_setting *settings = kva_kv_settings(&count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    }
    return NULL;
}

/* Silence about precision or selection would change answers: no unknown keys here. */
static enum kva_status unknown_key(struct kva_api_parser *p, const char *place)
{
    char known[256] = "policy, paper, exact, report";
    size_t used = strlen(known), count;
    const struct kva_kv_setting *settings = kva_kv_settings(&count);
    for (size_t i = 0; i < count && used < sizeof(known); i++) {
        int wrote = snprintf(known + used, sizeof(known) - used, ", %s", settings[i].name);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return kva_fail_param(p->err, KVA_EUNSUPPORTED, place,
                          "'%s' is not supported by this server; 'kv' may have: %s.", place, known);
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
    const struct kva_kv_setting *setting = find_setting(item->string);
    return setting ? parse_setting(p, setting, place, item) : unknown_key(p, place);
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
    status = kva_kv_choice_check(&p->call->kv, &err);
    if (status)
        return kva_fail_param(p->err, status, name, "'kv': %s.", err.message);
    return KVA_OK;
}
