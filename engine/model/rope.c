#include "engine/model/config.h"

#include "engine/model/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The parameters of one rotary embedding, as the file gives them. */
struct rope_params {
    const char *type;
    double theta;
    double factor;
    double low_freq_factor, high_freq_factor;
    double partial;            /* part of head_dim that is rotated */
    uint32_t original_context; /* 0: not given */
};

#define FACTOR_MAX 65536.0
#define THETA_MAX  1e15

static enum kva_status missing(const struct kva_fields *fields, const char *type, const char *name)
{
    return kva_fail_param(fields->err, KVA_EFORMAT, name, "%s: RoPE scaling '%s' needs %s",
                          fields->file, type, name);
}

/* Gemma 3 and its like give one set of parameters per kind of layer. */
static enum kva_status check_flat(const struct kva_fields *scaling)
{
    const cJSON *item;
    char text[48];
    cJSON_ArrayForEach(item, scaling->object)
    {
        if (cJSON_IsObject(item))
            return kva_fail_param(scaling->err, KVA_EUNSUPPORTED, "rope_parameters",
                                  "%s: %s%s is an object: RoPE parameters that differ between "
                                  "layers are not supported",
                                  scaling->file, scaling->prefix,
                                  kva_text_show(item->string, text, sizeof(text)));
    }
    return KVA_OK;
}

/* rope_parameters since transformers 5, rope_scaling before; either may be absent or null. */
static enum kva_status parse_params(const struct kva_fields *fields,
                                    const struct kva_family *family, struct rope_params *ret)
{
    struct rope_params params = {.type = NULL, .factor = 0.0, .partial = 1.0};
    struct kva_fields scaling;
    enum kva_status status =
        kva_fields_object(fields, "rope_parameters", "rope_parameters.", &scaling);
    if (!status && !scaling.object)
        status = kva_fields_object(fields, "rope_scaling", "rope_scaling.", &scaling);
    if (!status)
        status = check_flat(&scaling);
    if (status)
        return status;
    params.theta = family->default_rope_theta;
    if ((status = kva_fields_double(fields, "rope_theta", 1.0, THETA_MAX, &params.theta)) ||
        (status = kva_fields_double(fields, "partial_rotary_factor", 0.0, 1.0, &params.partial)) ||
        (status = kva_fields_u32(fields, "original_max_position_embeddings", 1,
                                 KVA_MODEL_CONTEXT_MAX, &params.original_context)) ||
        (status = kva_fields_string(&scaling, "type", &params.type)) ||
        (status = kva_fields_string(&scaling, "rope_type", &params.type)) ||
        (status = kva_fields_double(&scaling, "rope_theta", 1.0, THETA_MAX, &params.theta)) ||
        (status =
             kva_fields_double(&scaling, "partial_rotary_factor", 0.0, 1.0, &params.partial)) ||
        (status = kva_fields_double(&scaling, "factor", 1.0, FACTOR_MAX, &params.factor)) ||
        (status = kva_fields_double(&scaling, "low_freq_factor", 1e-3, FACTOR_MAX,
                                    &params.low_freq_factor)) ||
        (status = kva_fields_double(&scaling, "high_freq_factor", 1e-3, FACTOR_MAX,
                                    &params.high_freq_factor)) ||
        (status = kva_fields_u32(&scaling, "original_max_position_embeddings", 1,
                                 KVA_MODEL_CONTEXT_MAX, &params.original_context)))
        return status;
    if (!params.type && params.factor != 0.0)
        return kva_fail_param(fields->err, KVA_EFORMAT, "rope_type",
                              "%s: %sfactor needs rope_type beside it", fields->file,
                              scaling.prefix);
    if (!params.type)
        params.type = "default";
    *ret = params;
    return KVA_OK;
}

/* theta^(-2i / rotary_dim), in double: the files' own sines were made of the nearest floats. */
static double base_frequency(const struct rope_params *params, uint32_t i, uint32_t rotary_dim)
{
    return pow(params->theta, -2.0 * (double)i / (double)rotary_dim);
}

/* Linear: positions are divided by the factor, and so many more of them fit. */
static enum kva_status scale_linear(const struct kva_fields *fields,
                                    const struct rope_params *params,
                                    struct kva_model_config *config)
{
    if (params->factor == 0.0)
        return missing(fields, "linear", "factor");
    uint32_t half = config->rope.rotary_dim / 2;
    for (uint32_t i = 0; i < half; i++)
        config->rope.inv_freq[i] =
            (float)(base_frequency(params, i, config->rope.rotary_dim) / params->factor);
    double trained = params->original_context ? params->original_context : config->context_max;
    double context = trained * params->factor;
    if (context > KVA_MODEL_CONTEXT_MAX)
        return kva_fail_param(fields->err, KVA_EFORMAT, "factor",
                              "%s: %.0f positions times RoPE factor %g are more than %u",
                              fields->file, trained, params->factor, KVA_MODEL_CONTEXT_MAX);
    config->context_max = (uint32_t)context;
    return KVA_OK;
}

/* Llama 3.1: frequencies whose wavelength exceeds the trained context by low_freq_factor are
 * divided by the factor, those below it by high_freq_factor stay, and between the two the division
 * is blended in linearly. */
static enum kva_status scale_llama3(const struct kva_fields *fields,
                                    const struct rope_params *params,
                                    struct kva_model_config *config)
{
    double low = params->low_freq_factor, high = params->high_freq_factor;
    double trained = params->original_context ? params->original_context : config->context_max;
    if (params->factor == 0.0)
        return missing(fields, "llama3", "factor");
    if (low == 0.0)
        return missing(fields, "llama3", "low_freq_factor");
    if (high == 0.0)
        return missing(fields, "llama3", "high_freq_factor");
    if (high <= low)
        return kva_fail_param(fields->err, KVA_EFORMAT, "high_freq_factor",
                              "%s: high_freq_factor %g is not above low_freq_factor %g",
                              fields->file, high, low);
    uint32_t half = config->rope.rotary_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double frequency = base_frequency(params, i, config->rope.rotary_dim);
        double turns = trained * frequency / (2.0 * acos(-1.0)); /* in the trained context */
        double blend = (turns - low) / (high - low);
        blend = blend < 0.0 ? 0.0 : blend > 1.0 ? 1.0 : blend;
        config->rope.inv_freq[i] =
            (float)((1.0 - blend) * frequency / params->factor + blend * frequency);
    }
    return KVA_OK;
}

static enum kva_status unscaled(const struct kva_fields *fields KVA_UNUSED,
                                const struct rope_params *params, struct kva_model_config *config)
{
    for (uint32_t i = 0; i < config->rope.rotary_dim / 2; i++)
        config->rope.inv_freq[i] = (float)base_frequency(params, i, config->rope.rotary_dim);
    return KVA_OK;
}

static const struct {
    const char *type;
    enum kva_status (*scale)(const struct kva_fields *fields, const struct rope_params *params,
                             struct kva_model_config *config);
} scaling_table[] = {
    {"default", unscaled},
    {"linear", scale_linear},
    {"llama3", scale_llama3},
};

enum kva_status kva_rope_parse(const struct kva_fields *fields, const struct kva_family *family,
                               struct kva_model_config *config)
{
    struct rope_params params;
    char text[48];
    enum kva_status status = parse_params(fields, family, &params);
    if (status)
        return status;
    /* The Llama line's reference ignores it for some scalings and not for others, so a file that
     * sets it means something that cannot be told from here. */
    if (params.partial != 1.0)
        return kva_fail_param(fields->err, KVA_EUNSUPPORTED, "partial_rotary_factor",
                              "%s: partial_rotary_factor %g is not supported for %s, only 1",
                              fields->file, params.partial, family->architecture);
    config->rope.rotary_dim = config->head_dim;
    config->rope.factor = 1.0f;
    config->rope.inv_freq = calloc(config->rope.rotary_dim / 2, sizeof(float));
    if (!config->rope.inv_freq)
        return kva_fail(fields->err, KVA_ENOMEM, "out of memory");
    for (size_t i = 0; i < KVA_COUNT_OF(scaling_table); i++)
        if (strcmp(scaling_table[i].type, params.type) == 0)
            return scaling_table[i].scale(fields, &params, config);
    return kva_fail_param(fields->err, KVA_EUNSUPPORTED, "rope_type",
                          "%s: RoPE scaling '%s' is not supported; supported are: default, linear, "
                          "llama3",
                          fields->file, kva_text_show(params.type, text, sizeof(text)));
}
