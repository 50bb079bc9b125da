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
    .layer = llama_layer_tensors,
    .layer_count = KVA_COUNT_OF(llama_layer_tensors),
    .lm_head = "lm_head.weight",
};

static const struct kva_family family_table[] = {
    {
        .architecture = "LlamaForCausalLM",
        .model_type = "llama",
        .config_names = &llama_config_names,
        .tensor_names = &llama_tensor_names,
        .norm = KVA_NORM_RMS,
        .gated_mlp = true,
        .qkv_bias = KVA_BIAS_ATTENTION,
        .o_bias = KVA_BIAS_ATTENTION,
        .mlp_bias = KVA_BIAS_MLP,
        .window = KVA_WINDOW_NONE,
        .default_context = 2048,
        .default_rope_theta = 10000.0,
    },
    {
        .architecture = "MistralForCausalLM",
        .model_type = "mistral",
        .config_names = &llama_config_names,
        .tensor_names = &llama_tensor_names,
        .norm = KVA_NORM_RMS,
        .gated_mlp = true,
        .window = KVA_WINDOW_ALL,
        .default_context = 131072,
        .default_window = 4096,
        .default_rope_theta = 10000.0,
    },
    {
        .architecture = "Qwen2ForCausalLM",
        .model_type = "qwen2",
        .config_names = &llama_config_names,
        .tensor_names = &llama_tensor_names,
        .norm = KVA_NORM_RMS,
        .gated_mlp = true,
        .qkv_bias = KVA_BIAS_ALWAYS,
        .window = KVA_WINDOW_SOME,
        .default_context = 32768,
        .default_window = 4096,
        .default_rope_theta = 10000.0,
    },
    {
        .architecture = "Qwen3ForCausalLM",
        .model_type = "qwen3",
        .config_names = &llama_config_names,
        .tensor_names = &llama_tensor_names,
        .norm = KVA_NORM_RMS,
        .gated_mlp = true,
        .qk_norm = true,
        .qkv_bias = KVA_BIAS_ATTENTION,
        .o_bias = KVA_BIAS_ATTENTION,
        .window = KVA_WINDOW_SOME,
        .default_head_dim = 128,
        .default_context = 32768,
        .default_window = 4096,
        .default_rope_theta = 10000.0,
    },
};

const struct kva_family *kva_family_by_architecture(const char *architecture)
{
    for (size_t i = 0; i < KVA_COUNT_OF(family_table); i++)
        if (strcmp(family_table[i].architecture, architecture) == 0)
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

void kva_family_list(struct kva_buf *out)
{
    for (size_t i = 0; i < KVA_COUNT_OF(family_table); i++)
        kva_buf_printf(out, "%s%s", i ? ", " : "", family_table[i].architecture);
}
