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
    KVA_DIM_QKV,       /* (heads + 2 * kv_heads) * head_dim */
    KVA_DIM_POSITIONS, /* context_max and the rows in front that no position uses */
    KVA_DIM_COUNT,
};

struct kva_tensor_spec {
    const char *name; /* of a layer's tensor: what follows the layer's prefix and number */
    size_t offset;    /* of the struct kva_tensor in kva_model or kva_layer_tensors */
    enum kva_tensor_dim rows, cols;
    enum kva_tensor_need need;
};

/* A tensor of a layer that holds q, k and v. Their rows (of a bias: elements) follow each other head
 * by head, q k v of head 0, q k v of head 1, ..., and as no stride leads from one head's rows of q
 * through the next one's, each of the three is copied together; or, with fused_in_blocks, all of q,
 * all of k, all of v, and they are used where they are. */
struct kva_fused_qkv_spec {
    const char *name;
    size_t q, k, v; /* offsets in kva_layer_tensors */
    enum kva_tensor_dim rows, cols;
    enum kva_tensor_need need;
};

struct kva_tensor_names {
    const struct kva_tensor_spec *model; /* tensors there once */
    size_t model_count;
    const char *layer_prefix; /* "model.layers." */
    /* What names begin with ("model.") but for lm_head, and in a checkpoint that was saved of the
     * base class, which has no output matrix, do not. NULL: there are no such files. */
    const char *base_prefix;
    const struct kva_tensor_spec *layer;
    size_t layer_count;
    const struct kva_fused_qkv_spec *fused; /* NULL: none */
    size_t fused_count;
    bool fused_in_blocks;
    const char *lm_head; /* absent where embeddings are tied */
};

/* What config.json calls the quantities of kva_model_config. NULL: the family has no such field. */
struct kva_config_names {
    const char *vocab_size, *hidden_size, *intermediate_size;
    const char *layer_count, *heads, *kv_heads, *head_dim;
    const char *context_max, *norm_eps, *activation;
    const char *embed_size; /* must equal hidden_size */
    const char *attention_bias, *mlp_bias;
    const char *parallel_residual;
    const char *rope_theta, *rotary_part; /* part of a head that is rotated */
};

/* A switch of config.json that may only stand as it is in the family's table. */
struct kva_config_switch {
    const char *name;
    bool supported;
};

enum kva_bias_rule {
    KVA_BIAS_NEVER,
    KVA_BIAS_ALWAYS,
    KVA_BIAS_ATTENTION, /* as the field for attention's biases says */
    KVA_BIAS_MLP,       /* as the field for the MLP's biases says */
};

enum kva_window_rule {
    KVA_WINDOW_NONE,
    KVA_WINDOW_ALL,  /* sliding_window counts in every layer (Mistral) */
    KVA_WINDOW_SOME, /* use_sliding_window, then layer_types or max_window_layers (Qwen) */
};

struct kva_family {
    const char *architecture; /* "LlamaForCausalLM" */
    const char *base;         /* "LlamaModel": the same without an output matrix */
    const char *model_type;   /* "llama" */
    const struct kva_config_names *config_names;
    const struct kva_tensor_names *tensor_names;
    enum kva_norm_kind norm;
    float norm_weight_offset;
    bool gated_mlp;
    bool qk_norm;
    bool scaled_embedding; /* by sqrt(hidden_size) */
    bool rotary;
    bool partial_rotary;      /* rotary_part may be less than 1 */
    bool rope_neighbours;     /* q and k have the two that RoPE rotates together side by side */
    bool gelu_is_tanh;        /* "gelu" means the tanh approximation */
    uint32_t position_offset; /* the table of positions has so many rows before position 0's */
    const struct kva_config_switch *switches;
    size_t switch_count;
    enum kva_bias_rule qkv_bias, o_bias, mlp_bias;
    enum kva_window_rule window;
    /* What an absent field means: the defaults of the family's reference implementation. */
    uint32_t default_head_dim; /* 0: hidden_size / heads */
    uint32_t default_context;
    uint32_t default_window; /* 0: none */
    double default_rope_theta;
    double default_rotary_part;
    double default_norm_eps;
    const char *default_activation;
    bool default_bias; /* of attention_bias and mlp_bias */
    bool default_parallel_residual;
};

/* By either of its names. NULL: no such architecture. */
const struct kva_family *kva_family_by_architecture(const char *architecture);

/* For files without "architectures". */
const struct kva_family *kva_family_by_model_type(const char *model_type);

/* What an architecture or model type that is known by name needs beyond what is implemented; NULL:
 * nothing is known of it. */
const char *kva_family_lacks(const char *name);

/* "LlamaForCausalLM, MistralForCausalLM, ..." */
void kva_family_list(struct kva_buf *out);

#endif
