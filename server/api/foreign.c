/* foreign.c - fields that OpenAI and its imitators define and this server does not have. Those that
 * change an answer are refused unless their value asks for nothing; the others are ignored. */
#include "server/api/fields.h"

#define ALL_ROUTES                                                                                 \
    (KVA_ROUTE_GENERATE | KVA_ROUTE_TOKENIZE | KVA_ROUTE_DETOKENIZE | KVA_ROUTE_EMBEDDINGS)
#define TEMPLATED (KVA_ROUTE_CHAT | KVA_ROUTE_TOKENIZE)

#define IGNORE(name, routes)                                                                       \
    {                                                                                              \
        name, routes, KVA_FIELD_IGNORE, 0, 0, 0, NULL, NULL                                        \
    }
/* `off`: words that ask for nothing, separated by spaces. */
#define REFUSE(name, routes, off)                                                                  \
    {                                                                                              \
        name, routes, KVA_FIELD_REFUSE, 0, 0, 0, NULL, off                                         \
    }
/* `off`: the number that asks for nothing. */
#define REFUSE_BUT(name, routes, off)                                                              \
    {                                                                                              \
        name, routes, KVA_FIELD_REFUSE, 0, off, 0, NULL, NULL                                      \
    }

const struct kva_api_field kva_api_foreign_fields[] = {
    /* Of no effect on an answer here. */
    IGNORE("user", ALL_ROUTES),
    IGNORE("metadata", KVA_ROUTE_GENERATE),
    IGNORE("safety_identifier", KVA_ROUTE_GENERATE),
    IGNORE("prompt_cache_key", KVA_ROUTE_GENERATE),
    IGNORE("prompt_cache_retention", KVA_ROUTE_GENERATE),
    IGNORE("prompt_cache_options", KVA_ROUTE_GENERATE),
    IGNORE("cache_prompt", KVA_ROUTE_GENERATE),
    IGNORE("spaces_between_special_tokens", KVA_ROUTE_GENERATE),

    /* OpenAI. */
    REFUSE("audio", KVA_ROUTE_CHAT, NULL),
    REFUSE("prediction", KVA_ROUTE_CHAT, NULL),
    REFUSE("moderation", KVA_ROUTE_GENERATE, NULL),
    REFUSE("web_search_options", KVA_ROUTE_CHAT, NULL),
    REFUSE("verbosity", KVA_ROUTE_CHAT, "medium"),
    REFUSE("store", KVA_ROUTE_CHAT, NULL),
    REFUSE("service_tier", KVA_ROUTE_GENERATE, "auto default standard_only"),
    REFUSE("suffix", KVA_ROUTE_COMPLETION, NULL),
    REFUSE("max_completion_tokens", KVA_ROUTE_COMPLETION, NULL),
    REFUSE("echo", KVA_ROUTE_CHAT, NULL),
    REFUSE_BUT("best_of", KVA_ROUTE_CHAT, 1),

    /* OpenAI's Responses. */
    REFUSE("background", KVA_ROUTE_RESPONSES, NULL),
    REFUSE("conversation", KVA_ROUTE_RESPONSES, NULL),
    REFUSE("context_management", KVA_ROUTE_RESPONSES, NULL),
    REFUSE("max_tool_calls", KVA_ROUTE_RESPONSES, NULL),
    REFUSE("messages", KVA_ROUTE_RESPONSES, NULL),
    REFUSE("prompt", KVA_ROUTE_RESPONSES, NULL),
    REFUSE("truncation", KVA_ROUTE_RESPONSES, "disabled"),

    /* Anthropic's. */
    REFUSE("container", KVA_ROUTE_MESSAGES, NULL),
    REFUSE("mcp_servers", KVA_ROUTE_MESSAGES, NULL),
    REFUSE("context_management", KVA_ROUTE_MESSAGES, NULL),

    /* vLLM. */
    REFUSE("chat_template", TEMPLATED, NULL),
    REFUSE("use_beam_search", KVA_ROUTE_GENERATE, NULL),
    REFUSE_BUT("length_penalty", KVA_ROUTE_GENERATE, 1),
    REFUSE("early_stopping", KVA_ROUTE_GENERATE, NULL),
    REFUSE("structural_tag", KVA_ROUTE_GENERATE, NULL),
    REFUSE("logits_processors", KVA_ROUTE_GENERATE, NULL),
    REFUSE("prompt_embeds", KVA_ROUTE_COMPLETION, NULL),
    REFUSE("truncation_side", KVA_ROUTE_GENERATE | KVA_ROUTE_EMBEDDINGS, "left"),
    REFUSE("return_tokens_as_token_ids", KVA_ROUTE_GENERATE, NULL),
    REFUSE("logprob_token_ids", KVA_ROUTE_GENERATE, NULL),
    REFUSE("repetition_detection", KVA_ROUTE_GENERATE, NULL),
    REFUSE("thinking_token_budget", KVA_ROUTE_GENERATE, NULL),
    REFUSE_BUT("stream_interval", KVA_ROUTE_GENERATE, 1),
    REFUSE("return_prompt_text", KVA_ROUTE_GENERATE, NULL),
    REFUSE("request_id", KVA_ROUTE_GENERATE, NULL),
    REFUSE("detokenize", KVA_ROUTE_GENERATE, "true"),
    REFUSE("kv_transfer_params", KVA_ROUTE_GENERATE, NULL),
    REFUSE("vllm_xargs", KVA_ROUTE_GENERATE, NULL),
    REFUSE("mm_processor_kwargs", KVA_ROUTE_GENERATE, NULL),

    /* vLLM's embeddings: in the order of this machine's numbers, of one text. */
    REFUSE("messages", KVA_ROUTE_EMBEDDINGS, NULL),
    REFUSE("embed_dtype", KVA_ROUTE_EMBEDDINGS, "float32"),
    REFUSE("endianness", KVA_ROUTE_EMBEDDINGS, "native little"),
    REFUSE("additional_data", KVA_ROUTE_EMBEDDINGS, NULL),

    /* SGLang, llama-server, text-generation-inference. */
    REFUSE_BUT("n_predict", KVA_ROUTE_GENERATE, -1),
    REFUSE_BUT("id_slot", KVA_ROUTE_GENERATE, -1),
    REFUSE("n_probs", KVA_ROUTE_GENERATE, NULL),
    REFUSE("samplers", KVA_ROUTE_GENERATE, NULL),
    REFUSE_BUT("typical_p", KVA_ROUTE_GENERATE, 1),
    REFUSE_BUT("tfs_z", KVA_ROUTE_GENERATE, 1),
    REFUSE("top_a", KVA_ROUTE_GENERATE, NULL),
    REFUSE_BUT("repeat_penalty", KVA_ROUTE_GENERATE, 1),
    REFUSE("mirostat", KVA_ROUTE_GENERATE, NULL),
    REFUSE("dry_multiplier", KVA_ROUTE_GENERATE, NULL),
    REFUSE("xtc_probability", KVA_ROUTE_GENERATE, NULL),
    REFUSE("lora", KVA_ROUTE_GENERATE, NULL),
    REFUSE("adapter_id", KVA_ROUTE_GENERATE, NULL),
    {NULL, 0, KVA_FIELD_IGNORE, 0, 0, 0, NULL, NULL},
};
