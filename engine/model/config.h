/* config.h - config.json and generation_config.json, read into kva_model_config.
 *
 * Every number is checked against the range that limits.h allows and against the others that it
 * depends on; a message names the field, the value and what is allowed. What is understood but not
 * implemented (an architecture, a kind of RoPE scaling) is KVA_EUNSUPPORTED and lists what is.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_ENGINE_MODEL_CONFIG_H
#define KVA_ENGINE_MODEL_CONFIG_H

#include "engine/model/family.h"
#include "engine/model/json.h"

/* What the files say beyond the shape that the forward pass needs. */
struct kva_model_spec {
    struct kva_model_config config; /* owns rope.inv_freq and layer_window */
    struct kva_generation_defaults generation;
    struct kva_embedding_defaults embedding; /* a GGUF file's */
    const struct kva_family *family;
    bool qkv_bias, o_bias, mlp_bias;
    bool untied;           /* said so: the output matrix is not the embedding */
    bool base;             /* said so: the architecture is a family's without an output matrix */
    bool has_dtype;        /* config.dtype was in the file; else the embedding decides */
    char quant_method[32]; /* quantization_config's, for people, or "" */
};

/* `generation` may be NULL. On failure *ret is untouched and nothing is left allocated; on success
 * kva_model_config_finish(&ret->config) frees. Fails: KVA_EFORMAT, KVA_EUNSUPPORTED, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_spec_parse(const cJSON *config, const cJSON *generation,
                                                    struct kva_model_spec *ret,
                                                    struct kva_err *err);

/* The same of an object that calls things as `family` does, whichever file it came from; NULL: the
 * family that its "architectures" or "model_type" names. */
KVA_MUST_CHECK enum kva_status kva_model_spec_parse_as(const struct kva_fields *config,
                                                       const struct kva_fields *generation,
                                                       const struct kva_family *family,
                                                       struct kva_model_spec *ret);

void kva_model_config_finish(struct kva_model_config *config);

/* Fills config->rope from rope_parameters, rope_scaling and the family's fields, and scales
 * config->context_max where the scaling says so. Without rotary embedding rotary_dim
 * stays 0.
 * rope.inv_freq is the caller's to free, on failure too.
 *
 * Frequencies are a property of the model, never of a request: the keys of a sequence are rotated
 * once and shared with others that begin alike. Scaling `dynamic` makes them a function of the
 * length that a sequence has at the moment, beyond max_position_embeddings and not before; so
 * such a model is served up to there, exactly, and no further. */
KVA_MUST_CHECK enum kva_status kva_rope_parse(const struct kva_fields *fields,
                                              const struct kva_family *family,
                                              struct kva_model_config *config);

/* generation_config.json's sampling defaults, and its eos ids before those of config.json. */
KVA_MUST_CHECK enum kva_status kva_generation_parse(const struct kva_fields *config,
                                                    const struct kva_fields *generation,
                                                    struct kva_model_spec *spec);

#endif
