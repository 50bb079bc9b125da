/* shapes.c - published models' shapes, as their config.json give them. */
#include "engine/model/synthetic.h"

#include <string.h>

#define LLAMA   "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
#define QWEN2   "\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\","
#define QWEN3   "\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\","
#define MISTRAL "\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\","
#define OPT     "\"architectures\":[\"OPTForCausalLM\"],\"model_type\":\"opt\","
#define NEOX    "\"architectures\":[\"GPTNeoXForCausalLM\"],\"model_type\":\"gpt_neox\","

/* Of the families that use Llama's names. */
#define SIZES(vocab, hidden, intermediate, layers, heads, kv_heads, context)                       \
    "\"vocab_size\":" #vocab ",\"hidden_size\":" #hidden ",\"intermediate_size\":" #intermediate   \
    ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads                           \
    ",\"num_key_value_heads\":" #kv_heads ",\"max_position_embeddings\":" #context                 \
    ",\"hidden_act\":\"silu\","

#define OPT_SIZES(hidden, ffn, layers, heads)                                                      \
    "\"vocab_size\":50272,\"hidden_size\":" #hidden ",\"word_embed_proj_dim\":" #hidden            \
    ",\"ffn_dim\":" #ffn ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads      \
    ",\"max_position_embeddings\":2048,\"activation_function\":\"relu\","                          \
    "\"do_layer_norm_before\":true,\"tie_word_embeddings\":true"

static const struct {
    const char *name, *config;
} shapes[] = {
    /* Not published: small enough for tests, with grouped heads. */
    {"tiny",
     "{" LLAMA SIZES(
         512, 64, 160, 2, 4, 2,
         2048) "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":false}"},
    {"tinyllama-1.1b",
     "{" LLAMA SIZES(
         32000, 2048, 5632, 22, 32, 4,
         2048) "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":false}"},
    {"llama2-7b", "{" LLAMA SIZES(32000, 4096, 11008, 32, 32, 32,
                                  4096) "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
                                        "\"tie_word_embeddings\":false}"},
    {"llama2-13b", "{" LLAMA SIZES(32000, 5120, 13824, 40, 40, 40,
                                   4096) "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
                                         "\"tie_word_embeddings\":false}"},
    {"llama3-8b", "{" LLAMA SIZES(128256, 4096, 14336, 32, 32, 8,
                                  8192) "\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,"
                                        "\"tie_word_embeddings\":false}"},
    /* Version 0.3, which has no sliding window. */
    {"mistral-7b",
     "{" MISTRAL SIZES(
         32768, 4096, 14336, 32, 32, 8,
         32768) "\"rms_norm_eps\":1e-5,\"rope_theta\":1000000.0,\"sliding_window\":null,"
                "\"tie_word_embeddings\":false}"},
    {"qwen2.5-7b",
     "{" QWEN2 SIZES(152064, 3584, 18944, 28, 28, 4,
                     131072) "\"rms_norm_eps\":1e-6,\"rope_theta\":1000000.0,"
                             "\"use_sliding_window\":false,\"tie_word_embeddings\":false}"},
    {"qwen3-8b",
     "{" QWEN3 SIZES(151936, 4096, 12288, 36, 32, 8,
                     40960) "\"head_dim\":128,\"rms_norm_eps\":1e-6,\"rope_theta\":1000000.0,"
                            "\"attention_bias\":false,\"use_sliding_window\":false,"
                            "\"tie_word_embeddings\":false}"},
    {"opt-6.7b", "{" OPT OPT_SIZES(4096, 16384, 32, 32) "}"},
    {"opt-30b", "{" OPT OPT_SIZES(7168, 28672, 48, 56) "}"},
    {"pythia-6.9b",
     "{" NEOX "\"vocab_size\":50432,\"hidden_size\":4096,\"intermediate_size\":16384,"
     "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"max_position_embeddings\":2048,"
     "\"hidden_act\":\"gelu\",\"layer_norm_eps\":1e-5,\"rotary_pct\":0.25,"
     "\"rotary_emb_base\":10000,\"use_parallel_residual\":true,"
     "\"tie_word_embeddings\":false}"},
};

const char *kva_shape_config(const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0)
            return shapes[i].config;
    return NULL;
}

void kva_shape_list(struct kva_buf *out)
{
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        kva_buf_printf(out, "%s%s", i ? ", " : "", shapes[i].name);
}
