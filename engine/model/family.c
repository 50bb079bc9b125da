/* family.c - the table of families. */
#include "engine/model/family.h"

#include <string.h>

#define MODEL(member) offsetof(struct kva_model, member)
#define LAYER(member) offsetof(struct kva_layer_tensors, member)

static const struct kva_config_names llama_config_names = {
    .vocab_size = "vocab_size",
    .hidden_size = "hidden_size",
    .intermediate_size = "intermediate_size",
    .layer_count = "num_hidden_layers",
    .heads = "num_attention_heads",
    .kv_heads = "num_key_value_heads",
    .head_dim = "head_dim",
    .context_max = "max_position_embeddings",
    .norm_eps = "rms_norm_eps",
    .activation = "hidden_act",
    .attention_bias = "attention_bias",
    .mlp_bias = "mlp_bias",
    .rope_theta = "rope_theta",
    .rotary_part = "partial_rotary_factor",
};

static const struct kva_tensor_spec llama_model_tensors[] = {
    {"model.embed_tokens.weight", MODEL(embed), KVA_DIM_VOCAB, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"model.norm.weight", MODEL(final_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
};

/* One table serves the whole Llama line: what a family does not have, its conditions leave out. */
static const struct kva_tensor_spec llama_layer_tensors[] = {
    {"input_layernorm.weight", LAYER(attn_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"self_attn.q_proj.weight", LAYER(q), KVA_DIM_Q, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"self_attn.q_proj.bias", LAYER(q_bias), KVA_DIM_ONE, KVA_DIM_Q, KVA_NEED_QKV_BIAS},
    {"self_attn.k_proj.weight", LAYER(k), KVA_DIM_KV, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"self_attn.k_proj.bias", LAYER(k_bias), KVA_DIM_ONE, KVA_DIM_KV, KVA_NEED_QKV_BIAS},
    {"self_attn.v_proj.weight", LAYER(v), KVA_DIM_KV, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"self_attn.v_proj.bias", LAYER(v_bias), KVA_DIM_ONE, KVA_DIM_KV, KVA_NEED_QKV_BIAS},
    {"self_attn.q_norm.weight", LAYER(q_norm), KVA_DIM_ONE, KVA_DIM_HEAD, KVA_NEED_QK_NORM},
    {"self_attn.k_norm.weight", LAYER(k_norm), KVA_DIM_ONE, KVA_DIM_HEAD, KVA_NEED_QK_NORM},
    {"self_attn.o_proj.weight", LAYER(o), KVA_DIM_HIDDEN, KVA_DIM_Q, KVA_NEED_ALWAYS},
    {"self_attn.o_proj.bias", LAYER(o_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_O_BIAS},
    {"post_attention_layernorm.weight", LAYER(mlp_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"mlp.gate_proj.weight", LAYER(gate), KVA_DIM_INTERMEDIATE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"mlp.gate_proj.bias", LAYER(gate_bias), KVA_DIM_ONE, KVA_DIM_INTERMEDIATE, KVA_NEED_MLP_BIAS},
    {"mlp.up_proj.weight", LAYER(up), KVA_DIM_INTERMEDIATE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"mlp.up_proj.bias", LAYER(up_bias), KVA_DIM_ONE, KVA_DIM_INTERMEDIATE, KVA_NEED_MLP_BIAS},
    {"mlp.down_proj.weight", LAYER(down), KVA_DIM_HIDDEN, KVA_DIM_INTERMEDIATE, KVA_NEED_ALWAYS},
    {"mlp.down_proj.bias", LAYER(down_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_MLP_BIAS},
};

static const struct kva_tensor_names llama_tensor_names = {
    .model = llama_model_tensors,
    .model_count = KVA_COUNT_OF(llama_model_tensors),
    .layer_prefix = "model.layers.",
    .base_prefix = "model.",
    .layer = llama_layer_tensors,
    .layer_count = KVA_COUNT_OF(llama_layer_tensors),
    .lm_head = "lm_head.weight",
};

static const struct kva_config_names opt_config_names = {
    .vocab_size = "vocab_size",
    .hidden_size = "hidden_size",
    .intermediate_size = "ffn_dim",
    .layer_count = "num_hidden_layers",
    .heads = "num_attention_heads",
    .context_max = "max_position_embeddings",
    .activation = "activation_function",
    .embed_size = "word_embed_proj_dim",
    .attention_bias = "enable_bias",
    .mlp_bias = "enable_bias",
};

static const struct kva_tensor_spec opt_model_tensors[] = {
    {"model.decoder.embed_tokens.weight", MODEL(embed), KVA_DIM_VOCAB, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"model.decoder.embed_positions.weight", MODEL(positions), KVA_DIM_POSITIONS, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"model.decoder.final_layer_norm.weight", MODEL(final_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"model.decoder.final_layer_norm.bias", MODEL(final_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
};

static const struct kva_tensor_spec opt_layer_tensors[] = {
    {"self_attn_layer_norm.weight", LAYER(attn_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"self_attn_layer_norm.bias", LAYER(attn_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"self_attn.q_proj.weight", LAYER(q), KVA_DIM_Q, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"self_attn.q_proj.bias", LAYER(q_bias), KVA_DIM_ONE, KVA_DIM_Q, KVA_NEED_QKV_BIAS},
    {"self_attn.k_proj.weight", LAYER(k), KVA_DIM_KV, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"self_attn.k_proj.bias", LAYER(k_bias), KVA_DIM_ONE, KVA_DIM_KV, KVA_NEED_QKV_BIAS},
    {"self_attn.v_proj.weight", LAYER(v), KVA_DIM_KV, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"self_attn.v_proj.bias", LAYER(v_bias), KVA_DIM_ONE, KVA_DIM_KV, KVA_NEED_QKV_BIAS},
    {"self_attn.out_proj.weight", LAYER(o), KVA_DIM_HIDDEN, KVA_DIM_Q, KVA_NEED_ALWAYS},
    {"self_attn.out_proj.bias", LAYER(o_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_O_BIAS},
    {"final_layer_norm.weight", LAYER(mlp_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"final_layer_norm.bias", LAYER(mlp_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"fc1.weight", LAYER(up), KVA_DIM_INTERMEDIATE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"fc1.bias", LAYER(up_bias), KVA_DIM_ONE, KVA_DIM_INTERMEDIATE, KVA_NEED_MLP_BIAS},
    {"fc2.weight", LAYER(down), KVA_DIM_HIDDEN, KVA_DIM_INTERMEDIATE, KVA_NEED_ALWAYS},
    {"fc2.bias", LAYER(down_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_MLP_BIAS},
};

static const struct kva_tensor_names opt_tensor_names = {
    .model = opt_model_tensors,
    .model_count = KVA_COUNT_OF(opt_model_tensors),
    .layer_prefix = "model.decoder.layers.",
    .base_prefix = "model.",
    .layer = opt_layer_tensors,
    .layer_count = KVA_COUNT_OF(opt_layer_tensors),
    .lm_head = "lm_head.weight",
};

static const struct kva_config_switch opt_switches[] = {
    {"do_layer_norm_before", true},
    {"layer_norm_elementwise_affine", true},
    {"_remove_final_layer_norm", false},
};

static const struct kva_config_names neox_config_names = {
    .vocab_size = "vocab_size",
    .hidden_size = "hidden_size",
    .intermediate_size = "intermediate_size",
    .layer_count = "num_hidden_layers",
    .heads = "num_attention_heads",
    .context_max = "max_position_embeddings",
    .norm_eps = "layer_norm_eps",
    .activation = "hidden_act",
    .attention_bias = "attention_bias",
    .parallel_residual = "use_parallel_residual",
    .rope_theta = "rotary_emb_base",
    .rotary_part = "rotary_pct",
};

static const struct kva_tensor_spec neox_model_tensors[] = {
    {"gpt_neox.embed_in.weight", MODEL(embed), KVA_DIM_VOCAB, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"gpt_neox.final_layer_norm.weight", MODEL(final_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"gpt_neox.final_layer_norm.bias", MODEL(final_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
};

/* Every head has keys and values of its own. */
static const struct kva_fused_qkv_spec neox_fused_tensors[] = {
    {"attention.query_key_value.weight", LAYER(q), LAYER(k), LAYER(v), KVA_DIM_QKV, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"attention.query_key_value.bias", LAYER(q_bias), LAYER(k_bias), LAYER(v_bias), KVA_DIM_ONE,
     KVA_DIM_QKV, KVA_NEED_QKV_BIAS},
};

static const struct kva_tensor_spec neox_layer_tensors[] = {
    {"input_layernorm.weight", LAYER(attn_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"input_layernorm.bias", LAYER(attn_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"attention.dense.weight", LAYER(o), KVA_DIM_HIDDEN, KVA_DIM_Q, KVA_NEED_ALWAYS},
    {"attention.dense.bias", LAYER(o_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_O_BIAS},
    {"post_attention_layernorm.weight", LAYER(mlp_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"post_attention_layernorm.bias", LAYER(mlp_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN,
     KVA_NEED_ALWAYS},
    {"mlp.dense_h_to_4h.weight", LAYER(up), KVA_DIM_INTERMEDIATE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"mlp.dense_h_to_4h.bias", LAYER(up_bias), KVA_DIM_ONE, KVA_DIM_INTERMEDIATE,
     KVA_NEED_MLP_BIAS},
    {"mlp.dense_4h_to_h.weight", LAYER(down), KVA_DIM_HIDDEN, KVA_DIM_INTERMEDIATE,
     KVA_NEED_ALWAYS},
    {"mlp.dense_4h_to_h.bias", LAYER(down_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_MLP_BIAS},
};

static const struct kva_tensor_names neox_tensor_names = {
    .model = neox_model_tensors,
    .model_count = KVA_COUNT_OF(neox_model_tensors),
    .layer_prefix = "gpt_neox.layers.",
    .base_prefix = "gpt_neox.",
    .layer = neox_layer_tensors,
    .layer_count = KVA_COUNT_OF(neox_layer_tensors),
    .fused = neox_fused_tensors,
    .fused_count = KVA_COUNT_OF(neox_fused_tensors),
    .lm_head = "embed_out.weight",
};

static const struct kva_config_switch gemma_switches[] = {
    {"use_bidirectional_attention", false},
};

/* What Llama's descendants have in common with it. */
#define LLAMA_LINE                                                                                 \
    .config_names = &llama_config_names, .tensor_names = &llama_tensor_names,                      \
    .norm = KVA_NORM_RMS, .gated_mlp = true, .rotary = true, .default_rotary_part = 1.0,           \
    .default_norm_eps = 1e-6

static const struct kva_family family_table[] = {
    {
        .architecture = "LlamaForCausalLM",
        .base = "LlamaModel",
        .model_type = "llama",
        .qkv_bias = KVA_BIAS_ATTENTION,
        .o_bias = KVA_BIAS_ATTENTION,
        .mlp_bias = KVA_BIAS_MLP,
        .window = KVA_WINDOW_NONE,
        .default_context = 2048,
        .default_rope_theta = 10000.0,
        .default_activation = "silu",
        LLAMA_LINE,
    },
    {
        .architecture = "MistralForCausalLM",
        .base = "MistralModel",
        .model_type = "mistral",
        .window = KVA_WINDOW_ALL,
        .default_context = 131072,
        .default_window = 4096,
        .default_rope_theta = 10000.0,
        .default_activation = "silu",
        LLAMA_LINE,
    },
    {
        .architecture = "Qwen2ForCausalLM",
        .base = "Qwen2Model",
        .model_type = "qwen2",
        .qkv_bias = KVA_BIAS_ALWAYS,
        .window = KVA_WINDOW_SOME,
        .default_context = 32768,
        .default_window = 4096,
        .default_rope_theta = 10000.0,
        .default_activation = "silu",
        LLAMA_LINE,
    },
    {
        .architecture = "Qwen3ForCausalLM",
        .base = "Qwen3Model",
        .model_type = "qwen3",
        .qk_norm = true,
        .qkv_bias = KVA_BIAS_ATTENTION,
        .o_bias = KVA_BIAS_ATTENTION,
        .window = KVA_WINDOW_SOME,
        .default_head_dim = 128,
        .default_context = 32768,
        .default_window = 4096,
        .default_rope_theta = 10000.0,
        .default_activation = "silu",
        LLAMA_LINE,
    },
    {
        .architecture = "GemmaForCausalLM",
        .base = "GemmaModel",
        .model_type = "gemma",
        .norm_weight_offset = 1.0f,
        .scaled_embedding = true,
        .gelu_is_tanh = true,
        .qkv_bias = KVA_BIAS_ATTENTION,
        .o_bias = KVA_BIAS_ATTENTION,
        .switches = gemma_switches,
        .switch_count = KVA_COUNT_OF(gemma_switches),
        .default_head_dim = 256,
        .default_context = 8192,
        .default_rope_theta = 10000.0,
        .default_activation = "gelu_pytorch_tanh",
        LLAMA_LINE,
    },
    {
        .architecture = "OPTForCausalLM",
        .base = "OPTModel",
        .model_type = "opt",
        .config_names = &opt_config_names,
        .tensor_names = &opt_tensor_names,
        .norm = KVA_NORM_LAYER,
        .qkv_bias = KVA_BIAS_ATTENTION,
        .o_bias = KVA_BIAS_ATTENTION,
        .mlp_bias = KVA_BIAS_MLP,
        .position_offset = 2,
        .switches = opt_switches,
        .switch_count = KVA_COUNT_OF(opt_switches),
        .default_context = 2048,
        .default_norm_eps = 1e-5,
        .default_activation = "relu",
        .default_bias = true,
    },
    {
        .architecture = "GPTNeoXForCausalLM",
        .base = "GPTNeoXModel",
        .model_type = "gpt_neox",
        .config_names = &neox_config_names,
        .tensor_names = &neox_tensor_names,
        .norm = KVA_NORM_LAYER,
        .rotary = true,
        .partial_rotary = true,
        .qkv_bias = KVA_BIAS_ATTENTION,
        .o_bias = KVA_BIAS_ATTENTION,
        .mlp_bias = KVA_BIAS_ALWAYS,
        .default_context = 2048,
        .default_rope_theta = 10000.0,
        .default_rotary_part = 0.25,
        .default_norm_eps = 1e-5,
        .default_activation = "gelu",
        .default_bias = true,
        .default_parallel_residual = true,
    },
};

/* Near enough to a family above that someone may expect it to be served as one. */
static const struct {
    const char *architecture, *model_type, *lacks;
} near_table[] = {
    {"Gemma2ForCausalLM", "gemma2",
     "it caps logits and attention scores softly and has norms after attention and MLP"},
    {"Gemma3ForCausalLM", "gemma3_text",
     "it has norms after attention and MLP and RoPE parameters that differ between layers"},
    {"Gemma3ForConditionalGeneration", "gemma3",
     "it has norms after attention and MLP and RoPE parameters that differ between layers"},
};

const struct kva_family *kva_family_by_architecture(const char *architecture)
{
    for (size_t i = 0; i < KVA_COUNT_OF(family_table); i++)
        if (strcmp(family_table[i].architecture, architecture) == 0 ||
            strcmp(family_table[i].base, architecture) == 0)
            return &family_table[i];
    return NULL;
}

const struct kva_family *kva_family_by_model_type(const char *model_type)
{
    for (size_t i = 0; i < KVA_COUNT_OF(family_table); i++)
        if (strcmp(family_table[i].model_type, model_type) == 0)
            return &family_table[i];
    return NULL;
}

const char *kva_family_lacks(const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(near_table); i++)
        if (strcmp(near_table[i].architecture, name) == 0 ||
            strcmp(near_table[i].model_type, name) == 0)
            return near_table[i].lacks;
    return NULL;
}

void kva_family_list(struct kva_buf *out)
{
    for (size_t i = 0; i < KVA_COUNT_OF(family_table); i++)
        kva_buf_printf(out, "%s%s", i ? ", " : "", family_table[i].architecture);
}
