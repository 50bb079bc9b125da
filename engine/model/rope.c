/* rope.c - frequencies of rotary embedding, and their scaling. */
#include "engine/model/config.h"

#include "base/log.h"
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
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim;
    bool truncate;
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

/* What only YaRN has; 0 is "not given" for all of these. */
static enum kva_status parse_yarn(const struct kva_fields *scaling, struct rope_params *params)
{
    const struct {
        const char *name;
        double min;
        double *out;
    } numbers[] = {
        {"beta_fast", 0.0, &params->beta_fast},
        {"beta_slow", 0.0, &params->beta_slow},
        {"attention_factor", 1e-3, &params->attention_factor},
        {"mscale", 0.0, &params->mscale},
        {"mscale_all_dim", 0.0, &params->mscale_all_dim},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(numbers); i++) {
        enum kva_status status =
            kva_fields_double(scaling, numbers[i].name, numbers[i].min, FACTOR_MAX, numbers[i].out);
        if (status)
            return status;
    }
    return kva_fields_bool(scaling, "truncate", &params->truncate);
}

static bool is_filled(const struct kva_fields *fields)
{
    return fields->object && fields->object->child;
}

/* rope_parameters since transformers 5, rope_scaling before; either may be absent, null or empty. Where
 * there are both, rope_scaling says how, as there, and rope_parameters what it does not say of theta. */
static enum kva_status parse_params(const struct kva_fields *fields,
                                    const struct kva_family *family, struct rope_params *ret)
{
    struct rope_params params = {
        .theta = family->default_rope_theta,
        .partial = family->default_rotary_part,
        .truncate = true,
    };
    struct kva_fields parameters, scaling;
    enum kva_status status =
        kva_fields_object(fields, "rope_parameters", "rope_parameters.", &parameters);
    if (!status)
        status = kva_fields_object(fields, "rope_scaling", "rope_scaling.", &scaling);
    if (!status && !is_filled(&scaling))
        scaling = parameters;
    if (!status)
        status = check_flat(&parameters);
    if (!status)
        status = check_flat(&scaling);
    if (status)
        return status;
    const struct kva_config_names *names = family->config_names;
    if ((status = kva_fields_double(&parameters, "rope_theta", 1.0, THETA_MAX, &params.theta)) ||
        (status =
             kva_fields_double(&parameters, "partial_rotary_factor", 0.0, 1.0, &params.partial)) ||
        (status = kva_fields_double(fields, names->rope_theta, 1.0, THETA_MAX, &params.theta)) ||
        (status = kva_fields_double(fields, names->rotary_part, 0.0, 1.0, &params.partial)) ||
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
                                 KVA_MODEL_CONTEXT_MAX, &params.original_context)) ||
        (status = parse_yarn(&scaling, &params)))
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

static double trained_context(const struct rope_params *params,
                              const struct kva_model_config *config)
{
    return params->original_context ? params->original_context : config->context_max;
}

/* So many times the positions that the model was trained with. */
static enum kva_status extend_context(const struct kva_fields *fields,
                                      const struct rope_params *params,
                                      struct kva_model_config *config)
{
    double trained = trained_context(params, config);
    double context = trained * params->factor;
    if (context > KVA_MODEL_CONTEXT_MAX)
        return kva_fail_param(fields->err, KVA_EFORMAT, "factor",
                              "%s: %.0f positions times RoPE factor %g are more than %u",
                              fields->file, trained, params->factor, KVA_MODEL_CONTEXT_MAX);
    config->context_max = (uint32_t)context;
    return KVA_OK;
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
    return extend_context(fields, params, config);
}

/* Llama 3.1: frequencies whose wavelength exceeds the trained context by low_freq_factor are
 * divided by the factor, those below it by high_freq_factor stay, and between the two the division
 * is blended in linearly. */
static enum kva_status scale_llama3(const struct kva_fields *fields,
                                    const struct rope_params *params,
                                    struct kva_model_config *config)
{
    double low = params->low_freq_factor, high = params->high_freq_factor;
    double trained = trained_context(params, config);
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

/* YaRN (arXiv:2309.00071, section 3.4) divides the attention scores by a temperature t with
 * sqrt(1 / t) = 0.1 m ln(factor) + 1: q and k are multiplied by this each, by way of cos and sin.
 */
static double yarn_magnitude(double factor, double m)
{
    return factor > 1.0 ? 0.1 * m * log(factor) + 1.0 : 1.0;
}

/* The pair that turns `turns` times within `trained` positions, as a real number: where
 * trained * theta^(-2i / dim) = 2 pi turns. */
static double yarn_pair(const struct rope_params *params, double turns, double trained,
                        uint32_t rotary_dim)
{
    return rotary_dim * log(trained / (turns * 2.0 * acos(-1.0))) / (2.0 * log(params->theta));
}

/* YaRN (section 3.2): pairs that turn more than beta_fast times in the trained context stay, those
 * that turn less than beta_slow times are divided by the factor, between the two the division is
 * blended in linearly over the pair's number. */
static enum kva_status scale_yarn(const struct kva_fields *fields, const struct rope_params *params,
                                  struct kva_model_config *config)
{
    if (params->factor == 0.0)
        return missing(fields, "yarn", "factor");
    if (params->theta <= 1.0)
        return kva_fail_param(fields->err, KVA_EFORMAT, "rope_theta",
                              "%s: RoPE scaling 'yarn' needs rope_theta above 1, it is %g",
                              fields->file, params->theta);
    uint32_t dim = config->rope.rotary_dim;
    double trained = trained_context(params, config);
    double fast = params->beta_fast != 0.0 ? params->beta_fast : 32.0;
    double slow = params->beta_slow != 0.0 ? params->beta_slow : 1.0;
    double first = yarn_pair(params, fast, trained, dim);
    double last = yarn_pair(params, slow, trained, dim);
    first = fmax(params->truncate ? floor(first) : first, 0.0);
    last = fmin(params->truncate ? ceil(last) : last, dim - 1.0);
    /* A step where the range is empty, as in the reference. */
    double width = last == first ? 0.001 : last - first;
    for (uint32_t i = 0; i < dim / 2; i++) {
        double frequency = base_frequency(params, i, dim);
        double blend = fmin(fmax((i - first) / width, 0.0), 1.0);
        config->rope.inv_freq[i] =
            (float)((1.0 - blend) * frequency + blend * frequency / params->factor);
    }
    double factor = params->attention_factor;
    if (factor == 0.0 && params->mscale != 0.0 && params->mscale_all_dim != 0.0)
        factor = yarn_magnitude(params->factor, params->mscale) /
                 yarn_magnitude(params->factor, params->mscale_all_dim);
    config->rope.factor = (float)(factor != 0.0 ? factor : yarn_magnitude(params->factor, 1.0));
    return extend_context(fields, params, config);
}

static enum kva_status unscaled(const struct kva_fields *fields KVA_UNUSED,
                                const struct rope_params *params, struct kva_model_config *config)
{
    for (uint32_t i = 0; i < config->rope.rotary_dim / 2; i++)
        config->rope.inv_freq[i] = (float)base_frequency(params, i, config->rope.rotary_dim);
    return KVA_OK;
}

/* Dynamic: unscaled up to max_position_embeddings, and config.h says why no further. */
static enum kva_status scale_dynamic(const struct kva_fields *fields,
                                     const struct rope_params *params,
                                     struct kva_model_config *config)
{
    kva_log(KVA_LOG_INFO,
            "RoPE scaling 'dynamic' changes with a sequence's length beyond %u tokens: contexts "
            "are limited to that",
            config->context_max);
    return unscaled(fields, params, config);
}

static const struct {
    const char *type;
    enum kva_status (*scale)(const struct kva_fields *fields, const struct rope_params *params,
                             struct kva_model_config *config);
} scaling_table[] = {
    {"default", unscaled}, {"linear", scale_linear},   {"llama3", scale_llama3},
    {"yarn", scale_yarn},  {"dynamic", scale_dynamic},
};

/* The part of a head that is rotated, whole and even. */
static enum kva_status parse_rotary_dim(const struct kva_fields *fields,
                                        const struct kva_family *family, double part,
                                        struct kva_model_config *config)
{
    const char *name = family->config_names->rotary_part;
    /* The Llama line's reference ignores it for some scalings and not for others, so a file that
     * sets it means something that cannot be told from here. */
    if (part != 1.0 && !family->partial_rotary)
        return kva_fail_param(fields->err, KVA_EUNSUPPORTED, name,
                              "%s: %s %g is not supported for %s, only 1", fields->file, name, part,
                              family->architecture);
    config->rope.rotary_dim = (uint32_t)(config->head_dim * part);
    if (config->rope.rotary_dim < 2 || config->rope.rotary_dim % 2)
        return kva_fail_param(fields->err, KVA_EUNSUPPORTED, name,
                              "%s: %s %g of heads of %u is %u, expected an even number from 2 on",
                              fields->file, name, part, config->head_dim, config->rope.rotary_dim);
    return KVA_OK;
}

enum kva_status kva_rope_parse(const struct kva_fields *fields, const struct kva_family *family,
                               struct kva_model_config *config)
{
    struct rope_params params;
    char text[48];
    config->rope.factor = 1.0f;
    if (!family->rotary)
        return KVA_OK;
    enum kva_status status = parse_params(fields, family, &params);
    if (!status)
        status = parse_rotary_dim(fields, family, params.partial, config);
    if (status)
        return status;
    config->rope.inv_freq = calloc(config->rope.rotary_dim / 2, sizeof(float));
    if (!config->rope.inv_freq)
        return kva_fail(fields->err, KVA_ENOMEM, "out of memory");
    for (size_t i = 0; i < KVA_COUNT_OF(scaling_table); i++)
        if (strcmp(scaling_table[i].type, params.type) == 0) {
            config->rope.scaled = scaling_table[i].scale != unscaled;
            return scaling_table[i].scale(fields, &params, config);
        }
    return kva_fail_param(fields->err, KVA_EUNSUPPORTED, "rope_type",
                          "%s: RoPE scaling '%s' is not supported; supported are: default, linear, "
                          "llama3, yarn, dynamic",
                          fields->file, kva_text_show(params.type, text, sizeof(text)));
}
