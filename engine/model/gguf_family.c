/* gguf_family.c - the table of families in GGUF files. */
#include "engine/model/gguf_family.h"

#include <string.h>

#define MODEL(member) offsetof(struct kva_model, member)
#define LAYER(member) offsetof(struct kva_layer_tensors, member)

/* One set of names serves all architectures; what an architecture does not have, its files leave
 * out. Those that no file has as such are put there by gguf_spec.c. */
static const struct kva_config_names llama_names = {
    .vocab_size = "vocab_size",
    .hidden_size = "embedding_length",
    .intermediate_size = "feed_forward_length",
    .layer_count = "block_count",
    .heads = "attention.head_count",
    .kv_heads = "attention.head_count_kv",
    .head_dim = "attention.key_length",
    .context_max = "context_length",
    .norm_eps = "attention.layer_norm_rms_epsilon",
    .attention_bias = KVA_GGUF_ATTENTION_BIAS,
    .mlp_bias = KVA_GGUF_MLP_BIAS,
    .rope_theta = "rope.freq_base",
    .rotary_part = KVA_GGUF_ROTARY_PART,
};

static const struct kva_config_names neox_names = {
    .vocab_size = "vocab_size",
    .hidden_size = "embedding_length",
    .intermediate_size = "feed_forward_length",
    .layer_count = "block_count",
    .heads = "attention.head_count",
    .context_max = "context_length",
    .norm_eps = "attention.layer_norm_epsilon",
    .attention_bias = KVA_GGUF_ATTENTION_BIAS,
    .mlp_bias = KVA_GGUF_MLP_BIAS,
    .parallel_residual = "use_parallel_residual",
    .rope_theta = "rope.freq_base",
    .rotary_part = KVA_GGUF_ROTARY_PART,
};

static const struct kva_tensor_spec llama_model_tensors[] = {
    {"token_embd.weight", MODEL(embed), KVA_DIM_VOCAB, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"output_norm.weight", MODEL(final_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
};

static const struct kva_tensor_spec llama_layer_tensors[] = {
    {"attn_norm.weight", LAYER(attn_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"attn_q.weight", LAYER(q), KVA_DIM_Q, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"attn_q.bias", LAYER(q_bias), KVA_DIM_ONE, KVA_DIM_Q, KVA_NEED_QKV_BIAS},
    {"attn_k.weight", LAYER(k), KVA_DIM_KV, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"attn_k.bias", LAYER(k_bias), KVA_DIM_ONE, KVA_DIM_KV, KVA_NEED_QKV_BIAS},
    {"attn_v.weight", LAYER(v), KVA_DIM_KV, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"attn_v.bias", LAYER(v_bias), KVA_DIM_ONE, KVA_DIM_KV, KVA_NEED_QKV_BIAS},
    {"attn_q_norm.weight", LAYER(q_norm), KVA_DIM_ONE, KVA_DIM_HEAD, KVA_NEED_QK_NORM},
    {"attn_k_norm.weight", LAYER(k_norm), KVA_DIM_ONE, KVA_DIM_HEAD, KVA_NEED_QK_NORM},
    {"attn_output.weight", LAYER(o), KVA_DIM_HIDDEN, KVA_DIM_Q, KVA_NEED_ALWAYS},
    {"attn_output.bias", LAYER(o_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_O_BIAS},
    {"ffn_norm.weight", LAYER(mlp_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"ffn_gate.weight", LAYER(gate), KVA_DIM_INTERMEDIATE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"ffn_gate.bias", LAYER(gate_bias), KVA_DIM_ONE, KVA_DIM_INTERMEDIATE, KVA_NEED_MLP_BIAS},
    {"ffn_up.weight", LAYER(up), KVA_DIM_INTERMEDIATE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"ffn_up.bias", LAYER(up_bias), KVA_DIM_ONE, KVA_DIM_INTERMEDIATE, KVA_NEED_MLP_BIAS},
    {"ffn_down.weight", LAYER(down), KVA_DIM_HIDDEN, KVA_DIM_INTERMEDIATE, KVA_NEED_ALWAYS},
    {"ffn_down.bias", LAYER(down_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_MLP_BIAS},
};

static const struct kva_tensor_names llama_tensors = {
    .model = llama_model_tensors,
    .model_count = KVA_COUNT_OF(llama_model_tensors),
    .layer_prefix = "blk.",
    .layer = llama_layer_tensors,
    .layer_count = KVA_COUNT_OF(llama_layer_tensors),
    .lm_head = "output.weight",
};

static const struct kva_tensor_spec neox_model_tensors[] = {
    {"token_embd.weight", MODEL(embed), KVA_DIM_VOCAB, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"output_norm.weight", MODEL(final_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"output_norm.bias", MODEL(final_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
};

static const struct kva_tensor_spec neox_layer_tensors[] = {
    {"attn_norm.weight", LAYER(attn_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"attn_norm.bias", LAYER(attn_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"attn_output.weight", LAYER(o), KVA_DIM_HIDDEN, KVA_DIM_Q, KVA_NEED_ALWAYS},
    {"attn_output.bias", LAYER(o_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_O_BIAS},
    {"ffn_norm.weight", LAYER(mlp_norm), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"ffn_norm.bias", LAYER(mlp_norm_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"ffn_up.weight", LAYER(up), KVA_DIM_INTERMEDIATE, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"ffn_up.bias", LAYER(up_bias), KVA_DIM_ONE, KVA_DIM_INTERMEDIATE, KVA_NEED_MLP_BIAS},
    {"ffn_down.weight", LAYER(down), KVA_DIM_HIDDEN, KVA_DIM_INTERMEDIATE, KVA_NEED_ALWAYS},
    {"ffn_down.bias", LAYER(down_bias), KVA_DIM_ONE, KVA_DIM_HIDDEN, KVA_NEED_MLP_BIAS},
};

static const struct kva_fused_qkv_spec neox_fused_tensors[] = {
    {"attn_qkv.weight", LAYER(q), LAYER(k), LAYER(v), KVA_DIM_QKV, KVA_DIM_HIDDEN, KVA_NEED_ALWAYS},
    {"attn_qkv.bias", LAYER(q_bias), LAYER(k_bias), LAYER(v_bias), KVA_DIM_ONE, KVA_DIM_QKV,
     KVA_NEED_QKV_BIAS},
};

/* The rows of q, then those of k, then those of v. */
static const struct kva_tensor_names neox_tensors = {
    .model = neox_model_tensors,
    .model_count = KVA_COUNT_OF(neox_model_tensors),
    .layer_prefix = "blk.",
    .layer = neox_layer_tensors,
    .layer_count = KVA_COUNT_OF(neox_layer_tensors),
    .fused = neox_fused_tensors,
    .fused_count = KVA_COUNT_OF(neox_fused_tensors),
    .fused_in_blocks = true,
    .lm_head = "output.weight",
};

#define LLAMA_LINE                                                                                 \
    .config_names = &llama_names, .norm = KVA_NORM_RMS, .gated_mlp = true, .rotary = true,         \
    .qkv_bias = KVA_BIAS_ATTENTION, .o_bias = KVA_BIAS_ATTENTION, .mlp_bias = KVA_BIAS_MLP,        \
    .default_rotary_part = 1.0, .default_rope_theta = 10000.0

static const struct kva_family table[] = {
    /* Also Mistral, whose window is a field, and whatever else has Llama's tensors. Its files have
     * the rows of q and k in the order of Meta's own code, where RoPE rotates neighbours; those of
     * all others have them as Hugging Face does. */
    {
        .architecture = "llama",
        .model_type = "llama",
        .tensor_names = &llama_tensors,
        .rope_neighbours = true,
        .window = KVA_WINDOW_ALL,
        .default_activation = "silu",
        LLAMA_LINE,
    },
    {
        .architecture = "qwen2",
        .model_type = "qwen2",
        .tensor_names = &llama_tensors,
        .default_activation = "silu",
        LLAMA_LINE,
    },
    {
        .architecture = "qwen3",
        .model_type = "qwen3",
        .tensor_names = &llama_tensors,
        .qk_norm = true,
        .default_activation = "silu",
        LLAMA_LINE,
    },
    /* The weights of its norms have the 1 that the checkpoint leaves out. */
    {
        .architecture = "gemma",
        .model_type = "gemma",
        .tensor_names = &llama_tensors,
        .scaled_embedding = true,
        .default_activation = "gelu_pytorch_tanh",
        LLAMA_LINE,
    },
    {
        .architecture = "gptneox",
        .model_type = "gpt_neox",
        .config_names = &neox_names,
        .tensor_names = &neox_tensors,
        .norm = KVA_NORM_LAYER,
        .rotary = true,
        .partial_rotary = true,
        .qkv_bias = KVA_BIAS_ATTENTION,
        .o_bias = KVA_BIAS_ATTENTION,
        .mlp_bias = KVA_BIAS_MLP,
        .default_rope_theta = 10000.0,
        .default_rotary_part = 1.0,
        .default_activation = "gelu",
        .default_parallel_residual = true,
    },
};

const struct kva_family *kva_gguf_family_find(const char *architecture)
{
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++)
        if (strcmp(table[i].architecture, architecture) == 0)
            return &table[i];
    return NULL;
}

void kva_gguf_family_list(struct kva_buf *out)
{
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++)
        kva_buf_printf(out, "%s%s", i ? ", " : "", table[i].architecture);
}
