/* family.h - the architectures that can be opened, as data.
 *
 * One row of the table in family.c per architecture: what its config.json calls each quantity, what
 * it leaves unsaid, and what its tensors are called. A new family is a new row, unless its
 * arithmetic is new too.
 *
 * Thread rule: constant data. */
#ifndef KVA_ENGINE_MODEL_FAMILY_H
#define KVA_ENGINE_MODEL_FAMILY_H

#include "base/buf.h"
#include "engine/model/model.h"

/* The condition under which a model of a family has a tensor. */
enum kva_tensor_need {
    KVA_NEED_ALWAYS,
    KVA_NEED_QKV_BIAS,
    KVA_NEED_O_BIAS,
    KVA_NEED_MLP_BIAS,
    KVA_NEED_QK_NORM,
};

/* What a dimension of a tensor must be. */
enum kva_tensor_dim {
    KVA_DIM_ONE, /* as rows: the tensor is a vector */
    KVA_DIM_VOCAB,
    KVA_DIM_HIDDEN,
    KVA_DIM_INTERMEDIATE,
    KVA_DIM_Q,  /* heads * head_dim */
    KVA_DIM_KV, /* kv_heads * head_dim */
    KVA_DIM_HEAD,
    KVA_DIM_COUNT,
};

struct kva_tensor_spec {
    const char *name; /* of a layer's tensor: what follows the layer's prefix and number */
    size_t offset;    /* of the struct kva_tensor in kva_model or kva_layer_tensors */
    enum kva_tensor_dim rows, cols;
    enum kva_tensor_need need;
};

struct kva_tensor_names {
    const struct kva_tensor_spec *model; /* tensors there once */
    size_t model_count;
    const char *layer_prefix; /* "model.layers." */
    const struct kva_tensor_spec *layer;
    size_t layer_count;
    const char *lm_head; /* absent where embeddings are tied */
};

/* What config.json calls the quantities of kva_model_config. */
struct kva_config_names {
    const char *vocab_size, *hidden_size, *intermediate_size;
    const char *layer_count, *heads, *kv_heads, *head_dim;
    const char *context_max, *norm_eps, *activation;
};

enum kva_bias_rule {
    KVA_BIAS_NEVER,
    KVA_BIAS_ALWAYS,
    KVA_BIAS_ATTENTION, /* as attention_bias says */
    KVA_BIAS_MLP,       /* as mlp_bias says */
};

enum kva_window_rule {
    KVA_WINDOW_NONE,
    KVA_WINDOW_ALL,  /* sliding_window counts in every layer (Mistral) */
    KVA_WINDOW_SOME, /* use_sliding_window, then layer_types or max_window_layers (Qwen) */
};

struct kva_family {
    const char *architecture; /* "LlamaForCausalLM" */
    const char *model_type;   /* "llama" */
    const struct kva_config_names *config_names;
    const struct kva_tensor_names *tensor_names;
    enum kva_norm_kind norm;
    float norm_weight_offset;
    bool gated_mlp;
    bool qk_norm;
    enum kva_bias_rule qkv_bias, o_bias, mlp_bias;
    enum kva_window_rule window;
    /* What an absent field means: the defaults of the family's reference implementation. */
    uint32_t default_head_dim; /* 0: hidden_size / heads */
    uint32_t default_context;
    uint32_t default_window; /* 0: none */
    double default_rope_theta;
};

/* NULL: no such architecture. */
const struct kva_family *kva_family_by_architecture(const char *architecture);

/* For files without "architectures". */
const struct kva_family *kva_family_by_model_type(const char *model_type);

/* "LlamaForCausalLM, MistralForCausalLM, ..." */
void kva_family_list(struct kva_buf *out);

#endif
