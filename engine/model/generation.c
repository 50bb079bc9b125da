/* generation.c - generation_config.json. */
#include "engine/model/config.h"

#include <math.h>

/* How some files say that there is none. */
static bool is_none(const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble == -1;
}

/* 0..max; *ret stays where there is none. */
static enum kva_status parse_if_any(const struct kva_fields *fields, const char *name, uint32_t max,
                                    uint32_t *ret)
{
    const cJSON *item = NULL;
    enum kva_status status = kva_fields_peek(fields, name, &item);
    return status || is_none(item) ? status : kva_fields_u32(fields, name, 0, max, ret);
}

/* An id or a list of ids. Absent: config->eos_count is 0. */
static enum kva_status parse_ids(const struct kva_fields *fields, const char *name,
                                 struct kva_model_config *config)
{
    const cJSON *value;
    char text[64];
    enum kva_status status = kva_fields_peek(fields, name, &value);
    if (status || !value)
        return status;
    const cJSON *item = cJSON_IsArray(value) ? value->child : value;
    uint32_t count = 0;
    for (; item; item = cJSON_IsArray(value) ? item->next : NULL) {
        uint64_t id;
        if (is_none(item))
            continue;
        if (count == KVA_MODEL_EOS_MAX)
            return kva_fail_param(fields->err, KVA_EFORMAT, name,
                                  "%s: %s%s has more than the allowed %d entries", fields->file,
                                  fields->prefix, name, KVA_MODEL_EOS_MAX);
        if (!kva_json_whole(item, 0, config->vocab_size - 1, &id))
            return kva_fail_param(fields->err, KVA_EFORMAT, name,
                                  "%s: %s%s is %s, expected a token id in 0..%u", fields->file,
                                  fields->prefix, name, kva_json_show(item, text, sizeof(text)),
                                  config->vocab_size - 1);
        config->eos_ids[count++] = (uint32_t)id;
    }
    config->eos_count = count;
    return KVA_OK;
}

static enum kva_status parse_special_ids(const struct kva_fields *config_fields,
                                         const struct kva_fields *generation_fields,
                                         struct kva_model_config *config)
{
    uint32_t bos = UINT32_MAX;
    enum kva_status status = parse_ids(generation_fields, "eos_token_id", config);
    if (!status && config->eos_count == 0)
        status = parse_ids(config_fields, "eos_token_id", config);
    if (!status)
        status = parse_if_any(generation_fields, "bos_token_id", config->vocab_size - 1, &bos);
    if (!status)
        status = parse_if_any(config_fields, "bos_token_id", config->vocab_size - 1, &bos);
    if (!status)
        config->bos_id = bos == UINT32_MAX ? -1 : (int64_t)bos;
    return status;
}

void kva_model_config_add_eos(struct kva_model_config *config, int64_t id)
{
    bool there = id < 0 || id >= config->vocab_size || config->eos_count == KVA_MODEL_EOS_MAX;
    for (uint32_t i = 0; i < config->eos_count && !there; i++)
        there = config->eos_ids[i] == id;
    if (!there)
        config->eos_ids[config->eos_count++] = (uint32_t)id;
}

enum kva_status kva_generation_parse(const struct kva_fields *config,
                                     const struct kva_fields *generation,
                                     struct kva_model_spec *spec)
{
    struct kva_generation_defaults defaults = {NAN, NAN, NAN, NAN, -1};
    const struct {
        const char *name;
        double min, max;
        double *out;
    } table[] = {
        {"temperature", 0.0, 100.0, &defaults.temperature},
        {"top_p", 0.0, 1.0, &defaults.top_p},
        {"min_p", 0.0, 1.0, &defaults.min_p},
        {"repetition_penalty", 0.01, 100.0, &defaults.repetition_penalty},
    };
    uint32_t top_k = UINT32_MAX;
    enum kva_status status = parse_special_ids(config, generation, &spec->config);
    if (status)
        return status;
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++) {
        status =
            kva_fields_double(generation, table[i].name, table[i].min, table[i].max, table[i].out);
        if (status)
            return status;
    }
    status = parse_if_any(generation, "top_k", INT32_MAX, &top_k);
    if (status)
        return status;
    defaults.top_k = top_k == UINT32_MAX ? -1 : (int32_t)top_k;
    spec->generation = defaults;
    return KVA_OK;
}
