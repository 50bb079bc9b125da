/* gguf_spec.c - the metadata of a GGUF file as a configuration. */
#include "engine/model/gguf_spec.h"

#include "engine/model/gguf_family.h"
#include "engine/model/limits.h"
#include "gguf/marks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of an architecture's name and a key in it. */
#define NAME_BYTES_MAX 64

struct reader {
    const struct kva_model_files *files;
    const struct kva_gguf *gguf; /* of the first file: the metadata */
    const struct kva_family *family;
    const char *architecture;
    cJSON *config;     /* the architecture's fields by their names without it */
    cJSON *scaling;    /* rope_scaling, as config.json has it; NULL: none */
    cJSON *generation; /* what generation_config.json says elsewhere */
    struct kva_err *err;
};

static enum kva_status no_memory(const struct reader *r)
{
    return kva_fail(r->err, KVA_ENOMEM, "%s: out of memory", r->gguf->file);
}

static enum kva_status put(const struct reader *r, cJSON *object, const char *name, cJSON *value)
{
    if (value && cJSON_AddItemToObject(object, name, value))
        return KVA_OK;
    cJSON_Delete(value);
    return no_memory(r);
}

static const struct kva_gguf_tensor *find_tensor(const struct reader *r, const char *name,
                                                 const struct kva_gguf **ret_gguf)
{
    for (size_t i = 0; i < r->files->shard_count; i++) {
        const struct kva_gguf *gguf = &r->files->shards[i].gguf;
        const struct kva_gguf_tensor *tensor = kva_gguf_find_tensor(gguf, name);
        if (tensor) {
            *ret_gguf = gguf;
            return tensor;
        }
    }
    return NULL;
}

/* ---- what is done with each field of an architecture ----------------------------------------- */

enum treatment {
    READ,    /* put into `config` by its name */
    ROPE,    /* put into `scaling`, as `other` */
    RENAME,  /* put into `config`, as `other` */
    NEUTRAL, /* may only have the value `neutral`, or 0, which says nothing either */
    ONLY,    /* may only have the value `neutral`: 0 would count */
    IGNORE,
};

static const struct {
    const char *name;
    enum treatment treatment;
    const char *other;
    double neutral;
} fields_known[] = {
    {"vocab_size", READ, NULL, 0},
    {"context_length", READ, NULL, 0},
    {"embedding_length", READ, NULL, 0},
    {"block_count", READ, NULL, 0},
    {"feed_forward_length", READ, NULL, 0},
    {"attention.head_count", READ, NULL, 0},
    {"attention.head_count_kv", READ, NULL, 0},
    {"attention.key_length", READ, NULL, 0},
    {"attention.value_length", READ, NULL, 0},
    {"attention.layer_norm_rms_epsilon", READ, NULL, 0},
    {"attention.layer_norm_epsilon", READ, NULL, 0},
    {"attention.scale", READ, NULL, 0},
    {"attention.sliding_window", RENAME, "sliding_window", 0},
    {"rope.freq_base", READ, NULL, 0},
    {"rope.dimension_count", READ, NULL, 0},
    {"use_parallel_residual", READ, NULL, 0},
    {"rope.scaling.type", ROPE, "rope_type", 0},
    {"rope.scaling.factor", ROPE, "factor", 0},
    {"rope.scale_linear", ROPE, "factor", 0},
    {"rope.scaling.original_context_length", ROPE, "original_max_position_embeddings", 0},
    {"rope.scaling.yarn_beta_fast", ROPE, "beta_fast", 0},
    {"rope.scaling.yarn_beta_slow", ROPE, "beta_slow", 0},
    {"rope.scaling.attn_factor", ONLY, NULL, 1},
    {"rope.scaling.yarn_attn_factor", ONLY, NULL, 1},
    {"rope.scaling.yarn_ext_factor", ROPE, "ext_factor", 0},
    {"rope.scaling.yarn_log_multiplier", NEUTRAL, NULL, 0},
    {"rope.scaling.finetuned", IGNORE, NULL, 0},
    {"tensor_data_layout", IGNORE, NULL, 0},
    {"expert_count", NEUTRAL, NULL, 0},
    {"expert_used_count", NEUTRAL, NULL, 0},
    {"leading_dense_block_count", NEUTRAL, NULL, 0},
    {"nextn_predict_layers", NEUTRAL, NULL, 0},
    {"attention.clamp_kqv", NEUTRAL, NULL, 0},
    {"attention.max_alibi_bias", NEUTRAL, NULL, 0},
    {"attention.shared_kv_layers", NEUTRAL, NULL, 0},
    {"attn_logit_softcapping", NEUTRAL, NULL, 0},
    {"final_logit_softcapping", NEUTRAL, NULL, 0},
    {"logit_scale", NEUTRAL, NULL, 1},
    {"residual_scale", NEUTRAL, NULL, 1},
    {"embedding_scale", NEUTRAL, NULL, 1},
    {"attention.causal", ONLY, NULL, 1},
    {"pooling_type", READ, NULL, 0},
};

static enum kva_status refuse(const struct reader *r, const char *key, const char *why)
{
    return kva_fail_param(r->err, KVA_EUNSUPPORTED, key, "%s: %s %s", r->gguf->file, key, why);
}

/* A number, truth value or string; of an array whose numbers are all the same, that number. */
static enum kva_status value_of(const struct reader *r, const struct kva_gguf_field *field,
                                cJSON **ret)
{
    double value, other;
    bool truth;
    if (field->type == KVA_GGUF_TYPE_STRING && !field->is_array) {
        const char *text = "";
        size_t length = 0;
        enum kva_status status = kva_gguf_get_string(r->gguf, field->key, &text, &length, r->err);
        char copy[NAME_BYTES_MAX];
        snprintf(copy, sizeof(copy), "%.*s", (int)kva_min_size(length, sizeof(copy) - 1), text);
        *ret = status ? NULL : cJSON_CreateString(copy);
        return status || *ret ? status : no_memory(r);
    }
    if (kva_gguf_bool(r->gguf, field, &truth)) {
        *ret = cJSON_CreateBool(truth);
        return *ret ? KVA_OK : no_memory(r);
    }
    if (!kva_gguf_number(r->gguf, field, 0, &value) || !isfinite(value))
        return kva_fail_param(r->err, KVA_EFORMAT, field->key,
                              "%s: %s is %s%s, expected a finite number", r->gguf->file, field->key,
                              field->is_array ? "an array of " : "of type ",
                              kva_gguf_type_name(field->type));
    for (uint64_t i = 1; i < field->count; i++)
        if (!kva_gguf_number(r->gguf, field, i, &other) || other != value)
            return refuse(r, field->key, "differs between layers, which is not supported");
    *ret = cJSON_CreateNumber(value);
    return *ret ? KVA_OK : no_memory(r);
}

static enum kva_status check_neutral(const struct reader *r, const char *key, const cJSON *value,
                                     enum treatment treatment, double neutral)
{
    double number = cJSON_IsBool(value) ? cJSON_IsTrue(value) : value->valuedouble;
    if (!cJSON_IsString(value) && (number == neutral || (number == 0 && treatment == NEUTRAL)))
        return KVA_OK;
    return kva_fail_param(r->err, KVA_EUNSUPPORTED, key, "%s: %s %g is not supported, only %g",
                          r->gguf->file, key, number, neutral);
}

static enum kva_status take_value(struct reader *r, size_t known, const char *name, cJSON *value)
{
    if (fields_known[known].treatment == ROPE) {
        if (!r->scaling) {
            r->scaling = cJSON_CreateObject();
            enum kva_status status = put(r, r->config, "rope_scaling", r->scaling);
            if (status) {
                r->scaling = NULL;
                cJSON_Delete(value);
                return status;
            }
        }
        return put(r, r->scaling, fields_known[known].other, value);
    }
    return put(r, r->config,
               fields_known[known].treatment == RENAME ? fields_known[known].other : name, value);
}

static enum kva_status read_field(struct reader *r, const struct kva_gguf_field *field,
                                  const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(fields_known); i++) {
        if (strcmp(fields_known[i].name, name) != 0)
            continue;
        cJSON *value = NULL;
        if (fields_known[i].treatment == IGNORE)
            return KVA_OK;
        enum kva_status status = value_of(r, field, &value);
        if (status)
            return status;
        if (fields_known[i].treatment != NEUTRAL && fields_known[i].treatment != ONLY)
            return take_value(r, i, name, value);
        status =
            check_neutral(r, field->key, value, fields_known[i].treatment, fields_known[i].neutral);
        cJSON_Delete(value);
        return status;
    }
    return refuse(r, field->key, "is not known, and may change what the model says");
}

static enum kva_status read_fields(struct reader *r)
{
    size_t length = strlen(r->architecture);
    for (size_t i = 0; i < r->gguf->field_count; i++) {
        const struct kva_gguf_field *field = &r->gguf->fields[i];
        if (strncmp(field->key, r->architecture, length) != 0 || field->key[length] != '.')
            continue;
        enum kva_status status = read_field(r, field, field->key + length + 1);
        if (status)
            return status;
    }
    return KVA_OK;
}

/* ---- what follows from them ------------------------------------------------------------------ */

static double number_in(const struct reader *r, const char *name, double missing)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->config, name);
    return cJSON_IsNumber(item) ? item->valuedouble : missing;
}

static enum kva_status needs(const struct reader *r, const char *name)
{
    if (cJSON_GetObjectItemCaseSensitive(r->config, name))
        return KVA_OK;
    return kva_fail_param(r->err, KVA_EFORMAT, name, "%s: %s.%s is missing", r->gguf->file,
                          r->architecture, name);
}

/* Ids are as many as rows of the embedding where no field says it. */
static enum kva_status settle_vocab(struct reader *r)
{
    const struct kva_gguf *gguf;
    const struct kva_gguf_tensor *embed = find_tensor(r, "token_embd.weight", &gguf);
    if (!embed || embed->rank != 2 ||
        cJSON_GetObjectItemCaseSensitive(r->config, r->family->config_names->vocab_size))
        return KVA_OK;
    return put(r, r->config, r->family->config_names->vocab_size,
               cJSON_CreateNumber((double)embed->dims[1]));
}

/* Which biases there are, the tensors say. */
static enum kva_status settle_biases(struct reader *r, struct kva_model_spec *spec)
{
    const struct kva_gguf *gguf;
    spec->qkv_bias =
        find_tensor(r, "blk.0.attn_q.bias", &gguf) || find_tensor(r, "blk.0.attn_qkv.bias", &gguf);
    spec->o_bias = find_tensor(r, "blk.0.attn_output.bias", &gguf) != NULL;
    spec->mlp_bias = find_tensor(r, "blk.0.ffn_up.bias", &gguf) != NULL;
    return KVA_OK;
}

/* The heads' size, before the fields are parsed; 0: they will be found wrong. */
static double head_dim_of(const struct reader *r)
{
    double heads = number_in(r, "attention.head_count", 0);
    double hidden = number_in(r, "embedding_length", 0);
    return number_in(r, "attention.key_length", heads > 0 ? floor(hidden / heads) : 0);
}

static enum kva_status settle_heads(struct reader *r)
{
    double head_dim = head_dim_of(r);
    double rotary = number_in(r, "rope.dimension_count", head_dim);
    double values = number_in(r, "attention.value_length", head_dim);
    if (values != head_dim)
        return kva_fail_param(r->err, KVA_EUNSUPPORTED, "attention.value_length",
                              "%s: %s.attention.value_length %g differs from the keys' %g, which "
                              "is not supported",
                              r->gguf->file, r->architecture, values, head_dim);
    if (rotary == head_dim)
        return KVA_OK;
    if (!r->family->partial_rotary || !(rotary >= 2 && rotary <= head_dim))
        return kva_fail_param(r->err, KVA_EUNSUPPORTED, "rope.dimension_count",
                              "%s: %s.rope.dimension_count %g is not supported for heads of %g%s",
                              r->gguf->file, r->architecture, rotary, head_dim,
                              r->family->partial_rotary ? "" : ": all of a head must be rotated");
    /* Half an element more, so that rounding down gives the number again. */
    return put(r, r->config, KVA_GGUF_ROTARY_PART, cJSON_CreateNumber((rotary + 0.5) / head_dim));
}

/* How much of YaRN's blend of frequencies there is: all with the type yarn, none without it. Where
 * nothing is scaled the two that are blended are the same. */
static enum kva_status check_ext_factor(const struct reader *r, const cJSON *type, bool scaled)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->scaling, "ext_factor");
    const char *name = cJSON_IsString(type) ? type->valuestring : scaled ? "linear" : "none";
    bool yarn = strcmp(name, "yarn") == 0;
    double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!item || value == (yarn ? 1 : 0) || (value == 1 && strcmp(name, "none") == 0))
        return KVA_OK;
    char shown[NAME_BYTES_MAX], type_shown[NAME_BYTES_MAX];
    return kva_fail_param(r->err, KVA_EUNSUPPORTED, "rope.scaling.yarn_ext_factor",
                          "%s: %s.rope.scaling.yarn_ext_factor %s is not supported with RoPE "
                          "scaling '%s', only %d",
                          r->gguf->file, r->architecture, kva_json_show(item, shown, sizeof(shown)),
                          kva_text_show(name, type_shown, sizeof(type_shown)), yarn);
}

static enum kva_status settle_scaling(struct reader *r)
{
    cJSON *type = cJSON_GetObjectItemCaseSensitive(r->scaling, "rope_type");
    cJSON *factor = cJSON_GetObjectItemCaseSensitive(r->scaling, "factor");
    if (cJSON_IsNumber(factor) &&
        factor->valuedouble == 0.0) /* so it is said that nothing is scaled */
        (void)cJSON_SetNumberValue(factor, 1.0);
    bool scaled = cJSON_IsNumber(factor) && factor->valuedouble != 1.0;
    enum kva_status status = r->scaling ? check_ext_factor(r, type, scaled) : KVA_OK;
    if (status || !r->scaling)
        return status;
    if (!type) {
        /* Files before there were types mean linear. */
        return put(r, r->scaling, "rope_type", cJSON_CreateString(scaled ? "linear" : "default"));
    }
    if (cJSON_IsString(type) && strcmp(type->valuestring, "none") == 0) {
        cJSON_DeleteItemFromObjectCaseSensitive(r->scaling, "rope_type");
        cJSON_DeleteItemFromObjectCaseSensitive(r->scaling, "factor");
        return put(r, r->scaling, "rope_type", cJSON_CreateString("default"));
    }
    return KVA_OK;
}

static enum kva_status settle(struct reader *r)
{
    enum kva_status status = needs(r, r->family->config_names->context_max);
    if (!status)
        status = needs(r, r->family->config_names->norm_eps);
    /* Nobody's window but Llama's: in which layers it counts is not said. */
    if (!status && r->family->window == KVA_WINDOW_NONE && number_in(r, "sliding_window", 0) != 0)
        status = refuse(r, "attention.sliding_window", "is not supported for this architecture");
    /* 0 switches it off. */
    if (!status && number_in(r, "sliding_window", 1) == 0)
        cJSON_DeleteItemFromObjectCaseSensitive(r->config, "sliding_window");
    if (!status)
        status = settle_vocab(r);
    if (!status)
        status = settle_heads(r);
    return status ? status : settle_scaling(r);
}

/* ---- tokens that end a text, and sampling defaults ------------------------------------------- */

static enum kva_status add_end(const struct reader *r, cJSON *ends, int64_t id)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, ends)
    {
        if (item->valuedouble == (double)id)
            return KVA_OK;
    }
    cJSON *number = cJSON_CreateNumber((double)id);
    if (number && cJSON_AddItemToArray(ends, number))
        return KVA_OK;
    cJSON_Delete(number);
    return no_memory(r);
}

static enum kva_status add_marks(const struct reader *r, cJSON *ends)
{
    const struct kva_gguf_field *tokens = kva_gguf_find(r->gguf, "tokenizer.ggml.tokens");
    const char *text;
    size_t length;
    enum kva_status status = KVA_OK;
    if (!tokens)
        return KVA_OK;
    struct kva_gguf_strings strings = kva_gguf_strings(r->gguf, tokens);
    for (uint64_t id = 0; !status && kva_gguf_strings_next(&strings, &text, &length); id++) {
        if (kva_gguf_mark_ends_text(text, length) && cJSON_GetArraySize(ends) < KVA_MODEL_EOS_MAX)
            status = add_end(r, ends, (int64_t)id);
    }
    return status;
}

/* Several, as other programs' converters have them (Ollama). */
static enum kva_status add_listed(const struct reader *r, cJSON *ends)
{
    static const char key[] = "tokenizer.ggml.eos_token_ids";
    const struct kva_gguf_field *field = kva_gguf_find(r->gguf, key);
    enum kva_status status = KVA_OK;
    for (uint64_t i = 0; field && i < field->count && !status; i++) {
        int64_t id;
        if (!kva_gguf_whole(r->gguf, field, i, &id) || i == KVA_MODEL_EOS_MAX)
            return kva_fail_param(r->err, KVA_EFORMAT, key,
                                  "%s: %s is not an array of up to %d whole numbers", r->gguf->file,
                                  key, KVA_MODEL_EOS_MAX);
        if (id >= 0 && id != UINT32_MAX)
            status = add_end(r, ends, id);
    }
    return status;
}

static enum kva_status read_ends(struct reader *r)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    cJSON *ends = cJSON_CreateArray();
    enum kva_status status = put(r, r->generation, "eos_token_id", ends);
    for (size_t i = 0; !status && i < KVA_COUNT_OF(keys); i++) {
        int64_t id = -1;
        status = kva_gguf_get_whole(r->gguf, keys[i], -1, UINT32_MAX, &id, r->err);
        /* -1, or all ones: none. */
        if (!status && id >= 0 && id != UINT32_MAX)
            status = add_end(r, ends, id);
    }
    if (!status)
        status = add_listed(r, ends);
    return status ? status : add_marks(r, ends);
}

static enum kva_status read_generation(struct reader *r)
{
    static const struct {
        const char *key, *name;
    } numbers[] = {
        {"tokenizer.ggml.bos_token_id", "bos_token_id"},
        {"general.sampling.temp", "temperature"},
        {"general.sampling.top_k", "top_k"},
        {"general.sampling.top_p", "top_p"},
        {"general.sampling.min_p", "min_p"},
        {"general.sampling.penalty_repeat", "repetition_penalty"},
    };
    enum kva_status status = read_ends(r);
    for (size_t i = 0; !status && i < KVA_COUNT_OF(numbers); i++) {
        const struct kva_gguf_field *field = kva_gguf_find(r->gguf, numbers[i].key);
        cJSON *value = NULL;
        if (!field)
            continue;
        status = value_of(r, field, &value);
        if (!status && i == 0 && cJSON_IsNumber(value) && value->valuedouble == UINT32_MAX)
            cJSON_Delete(value);
        else if (!status)
            status = put(r, r->generation, numbers[i].name, value);
    }
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static enum kva_status find_architecture(struct reader *r, char *text, size_t size)
{
    const char *name = NULL;
    size_t length = 0;
    struct kva_buf list;
    enum kva_status status =
        kva_gguf_get_string(r->gguf, "general.architecture", &name, &length, r->err);
    if (status)
        return status;
    if (!name)
        return kva_fail_param(r->err, KVA_EFORMAT, "general.architecture",
                              "%s: general.architecture is missing: it has no model%s",
                              r->gguf->file,
                              kva_gguf_find(r->gguf, "split.no") ? " (give the first part)" : "");
    snprintf(text, size, "%.*s", (int)kva_min_size(length, size - 1), name);
    r->family = kva_gguf_family_find(text);
    r->architecture = text;
    if (r->family)
        return KVA_OK;
    char shown[NAME_BYTES_MAX];
    const char *lacks = kva_family_lacks(text);
    kva_buf_init(&list, KVA_ERR_MESSAGE_MAX);
    kva_gguf_family_list(&list);
    status = kva_fail_param(r->err, KVA_EUNSUPPORTED, "general.architecture",
                            "%s: GGUF architecture '%s' is not supported%s%s; supported are: %s",
                            r->gguf->file, kva_text_show(text, shown, sizeof(shown)),
                            lacks ? ": " : "", lacks ? lacks : "", list.data ? list.data : "");
    kva_buf_finish(&list);
    return status;
}

/* Llama 3's scaling comes as a divisor for each frequency. */
static enum kva_status apply_rope_factors(const struct reader *r, struct kva_model_config *config)
{
    static const char name[] = "rope_freqs.weight";
    const struct kva_gguf *gguf;
    const struct kva_gguf_tensor *tensor = find_tensor(r, name, &gguf);
    uint32_t half = config->rope.rotary_dim / 2;
    if (!tensor)
        return KVA_OK;
    if (strcmp(r->architecture, "llama") != 0)
        return kva_fail(r->err, KVA_EUNSUPPORTED, "%s: tensor %s is not supported for %s",
                        gguf->file, name, r->architecture);
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(r->scaling, "rope_type");
    if (cJSON_IsString(type) && strcmp(type->valuestring, "default") != 0)
        return kva_fail(r->err, KVA_EUNSUPPORTED,
                        "%s: tensor %s together with rope.scaling.type '%s' is not supported",
                        gguf->file, name, type->valuestring);
    if (tensor->format_id != KVA_GGUF_F32 || tensor->rank != 1 || tensor->dims[0] != half)
        return kva_fail(r->err, KVA_EFORMAT, "%s: tensor %s is not a vector of %u numbers in F32",
                        gguf->file, name, half);
    for (uint32_t i = 0; i < half; i++) {
        float divisor;
        memcpy(&divisor, gguf->data + tensor->begin + i * sizeof(divisor), sizeof(divisor));
        if (!(divisor > 0.0f) || !isfinite(divisor))
            return kva_fail(r->err, KVA_EFORMAT,
                            "%s: tensor %s has the divisor %g, expected a "
                            "positive number",
                            gguf->file, name, (double)divisor);
        config->rope.inv_freq[i] /= divisor;
    }
    return KVA_OK;
}

/* How vectors of texts are pooled; 0 is no way. */
static enum kva_status read_pooling(const struct reader *r, struct kva_embedding_defaults *ret)
{
    enum { NONE, MEAN, CLS, LAST, RANK };
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->config, "pooling_type");
    double type = !item ? NONE : cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (type == RANK)
        return kva_fail_param(r->err, KVA_EUNSUPPORTED, "pooling_type",
                              "%s: %s.pooling_type 4 (rank) is not supported: the model makes "
                              "neither text nor vectors, but scores texts",
                              r->gguf->file, r->architecture);
    if (type != NONE && type != MEAN && type != CLS && type != LAST)
        return kva_fail_param(r->err, KVA_EUNSUPPORTED, "pooling_type",
                              "%s: %s.pooling_type is not 0 (none), 1 (mean), 2 (cls) or 3 (last)",
                              r->gguf->file, r->architecture);
    ret->pooling = type == MEAN   ? KVA_MODEL_POOLING_MEAN
                   : type == LAST ? KVA_MODEL_POOLING_LAST
                   : type == CLS  ? KVA_MODEL_POOLING_OTHER
                                  : KVA_MODEL_POOLING_UNSAID;
    if (type == CLS)
        snprintf(ret->lacks, sizeof(ret->lacks), "the pooling 'cls' (%s.pooling_type)",
                 r->architecture);
    return KVA_OK;
}

static enum kva_status build(struct reader *r, struct kva_model_spec *ret)
{
    struct kva_model_spec spec;
    char prefix[NAME_BYTES_MAX + 2];
    snprintf(prefix, sizeof(prefix), "%s.", r->architecture);
    const struct kva_fields config = {r->config, r->gguf->file, prefix, r->err};
    const struct kva_fields generation = {r->generation, r->gguf->file, "tokenizer.ggml.", r->err};
    double scale = number_in(r, "attention.scale", 0);
    enum kva_status status = kva_model_spec_parse_as(&config, &generation, r->family, &spec);
    if (status)
        return status;
    if (scale > 0)
        spec.config.attend_scale = (float)scale;
    else if (scale < 0)
        status = refuse(r, "attention.scale", "is below 0");
    if (!status)
        status = read_pooling(r, &spec.embedding);
    if (!status)
        status = settle_biases(r, &spec);
    if (!status)
        status = apply_rope_factors(r, &spec.config);
    if (status) {
        kva_model_config_finish(&spec.config);
        return status;
    }
    *ret = spec;
    return KVA_OK;
}

enum kva_status kva_gguf_spec_read(const struct kva_model_files *files, struct kva_model_spec *ret,
                                   struct kva_err *err)
{
    struct kva_err ignored;
    char architecture[NAME_BYTES_MAX];
    struct reader r = {.files = files, .gguf = &files->shards[0].gguf, .err = err ? err : &ignored};
    enum kva_status status = find_architecture(&r, architecture, sizeof(architecture));
    if (status)
        return status;
    r.config = cJSON_CreateObject();
    r.generation = cJSON_CreateObject();
    status = r.config && r.generation ? read_fields(&r) : no_memory(&r);
    if (!status)
        status = settle(&r);
    if (!status)
        status = read_generation(&r);
    if (!status)
        status = build(&r, ret);
    cJSON_Delete(r.config);
    cJSON_Delete(r.generation);
    return status;
}
