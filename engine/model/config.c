/* config.c - the fields of config.json. */
#include "engine/model/config.h"

#include "engine/model/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_FILE     "config.json"
#define GENERATION_FILE "generation_config.json"

static enum kva_status unsupported_family(const struct kva_fields *fields, const char *name)
{
    struct kva_buf list;
    char text[64];
    const char *lacks = kva_family_lacks(name);
    kva_buf_init(&list, KVA_ERR_MESSAGE_MAX);
    kva_family_list(&list);
    enum kva_status status =
        kva_fail_param(fields->err, KVA_EUNSUPPORTED, "architectures",
                       "%s: architecture '%s' is not supported%s%s; supported are: %s",
                       fields->file, kva_text_show(name, text, sizeof(text)), lacks ? ": " : "",
                       lacks ? lacks : "", list.data ? list.data : "");
    kva_buf_finish(&list);
    return status;
}

/* Others go by model_type: what it says of another family would change the output. */
static enum kva_status check_model_type(const struct kva_fields *fields, const char *architecture,
                                        const char *model_type, const struct kva_family *family)
{
    const struct kva_family *other = model_type ? kva_family_by_model_type(model_type) : NULL;
    if (!other || other == family)
        return KVA_OK;
    char shown[64];
    return kva_fail_param(fields->err, KVA_EUNSUPPORTED, "model_type",
                          "%s: architectures has %s, and model_type is '%s': one of them is wrong",
                          fields->file, architecture,
                          kva_text_show(model_type, shown, sizeof(shown)));
}

/* The first architecture of the list that is known; model_type where there is no list. */
static enum kva_status find_family(const struct kva_fields *fields, const char *model_type,
                                   const struct kva_family **ret, bool *ret_base)
{
    const cJSON *list;
    const cJSON *item;
    const char *first = NULL;
    enum kva_status status = kva_fields_peek(fields, "architectures", &list);
    if (status)
        return status;
    if (list && !cJSON_IsArray(list))
        return kva_fail_param(fields->err, KVA_EFORMAT, "architectures",
                              "%s: architectures is not a list", fields->file);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            return kva_fail_param(fields->err, KVA_EFORMAT, "architectures",
                                  "%s: architectures has an entry that is not a string",
                                  fields->file);
        if ((*ret = kva_family_by_architecture(item->valuestring)) != NULL) {
            *ret_base = strcmp((*ret)->base, item->valuestring) == 0;
            return check_model_type(fields, item->valuestring, model_type, *ret);
        }
        first = first ? first : item->valuestring;
    }
    if (first)
        return unsupported_family(fields, first);
    if (!model_type)
        return kva_fail_param(fields->err, KVA_EFORMAT, "architectures",
                              "%s: has neither architectures nor model_type", fields->file);
    *ret = kva_family_by_model_type(model_type);
    return *ret ? KVA_OK : unsupported_family(fields, model_type);
}

/* A number without which there is no model. */
static enum kva_status need_u32(const struct kva_fields *fields, const char *name, uint32_t max,
                                uint32_t *ret)
{
    *ret = 0;
    enum kva_status status = kva_fields_u32(fields, name, 1, max, ret);
    if (!status && *ret == 0)
        status =
            kva_fail_param(fields->err, KVA_EFORMAT, name, "%s: %s is missing", fields->file, name);
    return status;
}

static enum kva_status parse_head_shape(const struct kva_fields *fields,
                                        const struct kva_family *family,
                                        struct kva_model_config *config)
{
    const struct kva_config_names *names = family->config_names;
    enum kva_status status = need_u32(fields, names->heads, KVA_MODEL_HEADS_MAX, &config->heads);
    if (status)
        return status;
    config->kv_heads = config->heads;
    status = kva_fields_u32(fields, names->kv_heads, 1, KVA_MODEL_HEADS_MAX, &config->kv_heads);
    if (status)
        return status;
    if (config->heads % config->kv_heads)
        return kva_fail_param(fields->err, KVA_EFORMAT, names->kv_heads,
                              "%s: %s is %u, which does not divide %s %u", fields->file,
                              names->kv_heads, config->kv_heads, names->heads, config->heads);
    config->head_dim = family->default_head_dim;
    status = kva_fields_u32(fields, names->head_dim, 2, KVA_MODEL_HEAD_DIM_MAX, &config->head_dim);
    if (status)
        return status;
    if (config->head_dim == 0) {
        if (config->hidden_size % config->heads)
            return kva_fail_param(fields->err, KVA_EFORMAT, names->heads,
                                  "%s: %s %u is no multiple of %s %u, and there is no "
                                  "head_dim",
                                  fields->file, names->hidden_size, config->hidden_size,
                                  names->heads, config->heads);
        config->head_dim = config->hidden_size / config->heads;
    }
    if (config->head_dim % 2 || config->head_dim > KVA_MODEL_HEAD_DIM_MAX)
        return kva_fail_param(fields->err, KVA_EFORMAT, "head_dim",
                              "%s: head_dim is %u, expected an even number in 2..%u", fields->file,
                              config->head_dim, KVA_MODEL_HEAD_DIM_MAX);
    config->attend_scale = (float)(1.0 / sqrt((double)config->head_dim));
    return KVA_OK;
}

static enum kva_status parse_shape(const struct kva_fields *fields, const struct kva_family *family,
                                   struct kva_model_config *config)
{
    const struct kva_config_names *names = family->config_names;
    const struct {
        const char *name;
        uint32_t max;
        uint32_t *out;
    } needed[] = {
        {names->vocab_size, KVA_MODEL_VOCAB_MAX, &config->vocab_size},
        {names->hidden_size, KVA_MODEL_HIDDEN_MAX, &config->hidden_size},
        {names->intermediate_size, KVA_MODEL_INTERMEDIATE_MAX, &config->intermediate_size},
        {names->layer_count, KVA_MODEL_LAYERS_MAX, &config->layer_count},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(needed); i++) {
        enum kva_status status = need_u32(fields, needed[i].name, needed[i].max, needed[i].out);
        if (status)
            return status;
    }
    uint32_t embed_size = config->hidden_size;
    config->context_max = family->default_context;
    enum kva_status status =
        kva_fields_u32(fields, names->context_max, 1, KVA_MODEL_CONTEXT_MAX, &config->context_max);
    if (!status)
        status = kva_fields_u32(fields, names->embed_size, 1, KVA_MODEL_HIDDEN_MAX, &embed_size);
    if (!status && embed_size != config->hidden_size)
        status = kva_fail_param(fields->err, KVA_EUNSUPPORTED, names->embed_size,
                                "%s: %s %u differs from %s %u: projections of the "
                                "embedding are not supported",
                                fields->file, names->embed_size, embed_size, names->hidden_size,
                                config->hidden_size);
    return status ? status : parse_head_shape(fields, family, config);
}

static enum kva_status parse_activation(const struct kva_fields *fields,
                                        const struct kva_family *family, enum kva_activation *ret)
{
    static const struct {
        const char *name;
        enum kva_activation activation;
    } table[] = {
        {"silu", KVA_ACT_SILU},           {"swish", KVA_ACT_SILU},
        {"gelu", KVA_ACT_GELU},           {"gelu_new", KVA_ACT_GELU_TANH},
        {"gelu_fast", KVA_ACT_GELU_TANH}, {"gelu_pytorch_tanh", KVA_ACT_GELU_TANH},
        {"relu", KVA_ACT_RELU},
    };
    const char *name = family->config_names->activation;
    const char *value = family->default_activation;
    char text[48];
    enum kva_status status = kva_fields_string(fields, name, &value);
    if (status)
        return status;
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++) {
        if (strcmp(table[i].name, value) == 0) {
            *ret = table[i].activation;
            if (*ret == KVA_ACT_GELU && family->gelu_is_tanh)
                *ret = KVA_ACT_GELU_TANH;
            return KVA_OK;
        }
    }
    return kva_fail_param(fields->err, KVA_EUNSUPPORTED, name,
                          "%s: %s '%s' is not supported; supported are: silu, swish, "
                          "gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu",
                          fields->file, name, kva_text_show(value, text, sizeof(text)));
}

static enum kva_status parse_dtype(const struct kva_fields *fields, struct kva_model_spec *spec)
{
    static const char *const names[KVA_DTYPE_COUNT] = {
        [KVA_F32] = "float32", [KVA_F16] = "float16", [KVA_BF16] = "bfloat16"};
    const char *value = NULL;
    char text[48];
    /* transformers wrote torch_dtype up to version 4 and writes dtype since. */
    enum kva_status status = kva_fields_string(fields, "torch_dtype", &value);
    if (!status)
        status = kva_fields_string(fields, "dtype", &value);
    if (status || !value || strcmp(value, "auto") == 0)
        return status;
    for (size_t i = 0; i < KVA_DTYPE_COUNT; i++) {
        if (strcmp(names[i], value) == 0) {
            spec->config.dtype = (enum kva_dtype)i;
            spec->has_dtype = true;
            return KVA_OK;
        }
    }
    return kva_fail_param(fields->err, KVA_EUNSUPPORTED, "torch_dtype",
                          "%s: dtype '%s' is not supported; supported are: float32, "
                          "float16, bfloat16",
                          fields->file, kva_text_show(value, text, sizeof(text)));
}

static enum kva_status parse_layer_types(const struct kva_fields *fields, const cJSON *types,
                                         uint32_t window, struct kva_model_config *config)
{
    const cJSON *item;
    uint32_t layer = 0;
    char text[64];
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != (int)config->layer_count)
        return kva_fail_param(fields->err, KVA_EFORMAT, "layer_types",
                              "%s: layer_types is not a list of %u entries", fields->file,
                              config->layer_count);
    cJSON_ArrayForEach(item, types)
    {
        bool sliding = cJSON_IsString(item) && strcmp(item->valuestring, "sliding_attention") == 0;
        if (!sliding && !(cJSON_IsString(item) && strcmp(item->valuestring, "full_attention") == 0))
            return kva_fail_param(fields->err, KVA_EUNSUPPORTED, "layer_types",
                                  "%s: layer_types[%u] is %s; supported are: "
                                  "full_attention, sliding_attention",
                                  fields->file, layer, kva_json_show(item, text, sizeof(text)));
        if (sliding && window == 0)
            return kva_fail_param(fields->err, KVA_EFORMAT, "layer_types",
                                  "%s: layer_types[%u] is sliding_attention, but "
                                  "sliding_window is off",
                                  fields->file, layer);
        config->layer_window[layer++] = sliding ? window : 0;
    }
    return KVA_OK;
}

static enum kva_status parse_windows(const struct kva_fields *fields,
                                     const struct kva_family *family,
                                     struct kva_model_config *config)
{
    config->layer_window = calloc(config->layer_count, sizeof(*config->layer_window));
    if (!config->layer_window)
        return kva_fail(fields->err, KVA_ENOMEM, "out of memory for %u layers",
                        config->layer_count);
    uint32_t window = family->default_window;
    uint32_t first = 0;
    bool use = family->window == KVA_WINDOW_ALL;
    const cJSON *types = NULL;
    enum kva_status status = kva_fields_peek(fields, "layer_types", &types);
    /* Without windows every layer must be of full attention. */
    if (!status && family->window == KVA_WINDOW_NONE)
        return types ? parse_layer_types(fields, types, 0, config) : KVA_OK;
    if (!status)
        status = kva_fields_u32(fields, "sliding_window", 1, KVA_MODEL_CONTEXT_MAX, &window);
    if (status)
        return status;
    /* Here null is not "absent": it switches the window off. */
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(fields->object, "sliding_window")))
        window = 0;
    if (family->window == KVA_WINDOW_SOME) {
        first = 28;
        if ((status = kva_fields_bool(fields, "use_sliding_window", &use)) != KVA_OK ||
            (status = kva_fields_u32(fields, "max_window_layers", 0, UINT32_MAX, &first)) != KVA_OK)
            return status;
    }
    if (!use)
        window = 0;
    if (types)
        return parse_layer_types(fields, types, window, config);
    for (uint32_t layer = first; layer < config->layer_count; layer++)
        config->layer_window[layer] = window;
    return KVA_OK;
}

static bool has_bias(enum kva_bias_rule rule, bool attention, bool mlp)
{
    return rule == KVA_BIAS_ALWAYS || (rule == KVA_BIAS_ATTENTION && attention) ||
           (rule == KVA_BIAS_MLP && mlp);
}

static enum kva_status check_switches(const struct kva_fields *fields,
                                      const struct kva_family *family)
{
    for (size_t i = 0; i < family->switch_count; i++) {
        const struct kva_config_switch *fixed = &family->switches[i];
        bool value = fixed->supported;
        enum kva_status status = kva_fields_bool(fields, fixed->name, &value);
        if (status)
            return status;
        if (value != fixed->supported)
            return kva_fail_param(fields->err, KVA_EUNSUPPORTED, fixed->name,
                                  "%s: %s %s is not supported for %s, only %s", fields->file,
                                  fixed->name, value ? "true" : "false", family->architecture,
                                  fixed->supported ? "true" : "false");
    }
    return KVA_OK;
}

/* Fields that change what a model says, of architectures near those that are known or of files that
 * were changed by hand: each may only have the value that says nothing. */
static enum kva_status check_neutral(const struct kva_fields *fields)
{
    static const struct {
        const char *name;
        double neutral; /* of a truth value: 0 or 1 */
    } table[] = {
        {"is_causal", 1},
        {"use_bidirectional_attention", 0},
        {"alibi", 0},
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
        {"logit_scale", 1},
        {"logits_scaling", 1},
        {"embedding_multiplier", 1},
        {"residual_multiplier", 1},
        {"scale_emb", 1},
        {"clip_qkv", 0},
        {"num_experts", 0},
        {"num_local_experts", 0},
        {"n_routed_experts", 0},
        {"kv_lora_rank", 0},
        {"attention_chunk_size", 0},
        {"attn_temperature_tuning", 0},
    };
    char text[64];
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++) {
        const cJSON *item = NULL;
        enum kva_status status = kva_fields_peek(fields, table[i].name, &item);
        if (status)
            return status;
        double value = cJSON_IsBool(item)     ? cJSON_IsTrue(item)
                       : cJSON_IsNumber(item) ? item->valuedouble
                                              : NAN;
        if (item && value != table[i].neutral)
            return kva_fail_param(fields->err, KVA_EUNSUPPORTED, table[i].name,
                                  "%s: %s %s is not supported: it would change what the model says",
                                  fields->file, table[i].name,
                                  kva_json_show(item, text, sizeof(text)));
    }
    return KVA_OK;
}

/* As people write it. */
static const char *quant_name(const char *method)
{
    static const char *const names[][2] = {{"gptq", "GPTQ"}, {"awq", "AWQ"},
                                           {"fp8", "FP8"},   {"fbgemm_fp8", "FP8"},
                                           {"hqq", "HQQ"},   {"", "a method without a name"}};
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++)
        if (strcmp(names[i][0], method) == 0)
            return names[i][1];
    return method;
}

static enum kva_status parse_flags(const struct kva_fields *fields, struct kva_model_spec *spec)
{
    const struct kva_config_names *names = spec->family->config_names;
    bool attention = spec->family->default_bias, mlp = attention, tied = true;
    struct kva_fields quant;
    const char *method = "";
    enum kva_status status;
    /* Tied or not when the field is absent: binding the tensors decides, by whether there is an
     * output matrix. */
    spec->config.parallel_residual = spec->family->default_parallel_residual;
    if ((status = check_switches(fields, spec->family)) != KVA_OK ||
        (status = check_neutral(fields)) != KVA_OK ||
        (status = kva_fields_bool(fields, names->attention_bias, &attention)) != KVA_OK ||
        (status = kva_fields_bool(fields, names->mlp_bias, &mlp)) != KVA_OK ||
        (status = kva_fields_bool(fields, names->parallel_residual,
                                  &spec->config.parallel_residual)) != KVA_OK ||
        (status = kva_fields_bool(fields, "tie_word_embeddings", &spec->config.tied_embeddings)) !=
            KVA_OK ||
        (status = kva_fields_bool(fields, "tie_word_embeddings", &tied)) != KVA_OK ||
        (status = kva_fields_object(fields, "quantization_config", "quantization_config.",
                                    &quant)) != KVA_OK ||
        (status = kva_fields_string(&quant, "quant_method", &method)) != KVA_OK)
        return status;
    spec->untied = !tied;
    spec->qkv_bias = has_bias(spec->family->qkv_bias, attention, mlp);
    spec->o_bias = has_bias(spec->family->o_bias, attention, mlp);
    spec->mlp_bias = has_bias(spec->family->mlp_bias, attention, mlp);
    kva_text_show(quant.object ? quant_name(method) : "", spec->quant_method,
                  sizeof(spec->quant_method));
    return KVA_OK;
}

static enum kva_status parse_config(const struct kva_fields *fields, struct kva_model_spec *spec)
{
    struct kva_model_config *config = &spec->config;
    const char *model_type = NULL;
    enum kva_status status;
    status = kva_fields_string(fields, "model_type", &model_type);
    if (!status && !spec->family)
        status = find_family(fields, model_type, &spec->family, &spec->base);
    if (status)
        return status;
    const struct kva_family *family = spec->family;
    kva_text_show(model_type ? model_type : family->model_type, config->model_type,
                  sizeof(config->model_type));
    config->norm = family->norm;
    config->norm_weight_offset = family->norm_weight_offset;
    config->gated_mlp = family->gated_mlp;
    config->qk_norm = family->qk_norm;
    double norm_eps = family->default_norm_eps;
    if ((status = parse_shape(fields, family, config)) != KVA_OK ||
        (status = kva_fields_double(fields, family->config_names->norm_eps, 0.0, 1.0, &norm_eps)) !=
            KVA_OK ||
        (status = parse_activation(fields, family, &config->activation)) != KVA_OK ||
        (status = parse_dtype(fields, spec)) != KVA_OK ||
        (status = parse_flags(fields, spec)) != KVA_OK ||
        (status = parse_windows(fields, family, config)) != KVA_OK)
        return status;
    config->norm_eps = (float)norm_eps;
    config->embed_scale = family->scaled_embedding ? sqrtf((float)config->hidden_size) : 1.0f;
    return kva_rope_parse(fields, family, config);
}

enum kva_status kva_model_spec_parse_as(const struct kva_fields *config,
                                        const struct kva_fields *generation,
                                        const struct kva_family *family, struct kva_model_spec *ret)
{
    struct kva_model_spec spec = {.family = family};
    enum kva_status status = parse_config(config, &spec);
    if (!status)
        status = kva_generation_parse(config, generation, &spec);
    if (status) {
        kva_model_config_finish(&spec.config);
        return status;
    }
    *ret = spec;
    return KVA_OK;
}

enum kva_status kva_model_spec_parse(const cJSON *config, const cJSON *generation,
                                     struct kva_model_spec *ret, struct kva_err *err)
{
    const struct kva_fields config_fields = {config, CONFIG_FILE, "", err};
    const struct kva_fields generation_fields = {generation, GENERATION_FILE, "", err};
    return kva_model_spec_parse_as(&config_fields, &generation_fields, NULL, ret);
}

void kva_model_config_finish(struct kva_model_config *config)
{
    free(config->rope.inv_freq);
    free(config->layer_window);
    config->rope.inv_freq = NULL;
    config->layer_window = NULL;
}
