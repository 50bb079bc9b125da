/* parse.c - the fields of all routes that have some. */
#include "server/api/fields.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL(member) offsetof(struct kva_api_call, member)

/* Reads value as a whole number into *ret when it is in [min, max]. */
static enum kva_status read_uint(struct kva_api_parser *p, const char *name, const cJSON *value,
                                 double min, double max, uint32_t *ret)
{
    int64_t whole;
    enum kva_status status = kva_api_read_whole(p, name, value, min, max, &whole);
    if (status == KVA_OK)
        *ret = (uint32_t)whole;
    return status;
}

static enum kva_status parse_model(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    struct kva_api_text model;
    enum kva_status status = kva_api_read_text(p, name, value, 512, &model);
    if (status != KVA_OK)
        return status;
    if (!kva_api_serves_model(p->config, model.data))
        return kva_fail_param(p->err, KVA_EMODEL, name,
                              "The model '%.200s' does not exist here; served is '%.200s'.",
                              model.data, p->config->model_ids[0]);
    p->call->model = model.data;
    return KVA_OK;
}

static enum kva_status parse_max_tokens(struct kva_api_parser *p, const char *name,
                                        const cJSON *value)
{
    double min = p->call->route == KVA_API_COMPLETION ? 0 : 1;
    uint32_t count = 0;
    enum kva_status status = read_uint(p, name, value, min, 4294967295.0, &count);
    /* The new name counts, whichever comes first. */
    if (status != KVA_OK || p->call->max_is_new)
        return status;
    p->call->has_max_tokens = true;
    p->call->max_tokens = count;
    return KVA_OK;
}

static enum kva_status parse_max_completion(struct kva_api_parser *p, const char *name,
                                            const cJSON *value)
{
    p->call->max_is_new = false;
    enum kva_status status = parse_max_tokens(p, name, value);
    p->call->max_is_new = status == KVA_OK;
    return status;
}

static enum kva_status parse_n(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    return read_uint(p, name, value, 1, p->config->limits.n_max, &p->call->n);
}

static enum kva_status parse_best_of(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    p->has_best_of = true;
    return read_uint(p, name, value, 1, p->config->limits.best_of_max, &p->call->best_of);
}

static enum kva_status parse_logprobs(struct kva_api_parser *p, const char *name,
                                      const cJSON *value)
{
    if (p->call->route == KVA_API_CHAT)
        return kva_api_read_bool(p, name, value, &p->call->want_logprobs);
    p->call->want_logprobs = true;
    return read_uint(p, name, value, 0, KVA_LOGPROBS_MAX, &p->call->top_logprobs);
}

static enum kva_status parse_top_logprobs(struct kva_api_parser *p, const char *name,
                                          const cJSON *value)
{
    return read_uint(p, name, value, 0, KVA_LOGPROBS_MAX, &p->call->top_logprobs);
}

static enum kva_status parse_prompt_logprobs(struct kva_api_parser *p, const char *name,
                                             const cJSON *value)
{
    int64_t whole;
    enum kva_status status = kva_api_read_whole(p, name, value, 0, KVA_LOGPROBS_MAX, &whole);
    if (status == KVA_OK)
        p->call->prompt_logprobs_asked = (int32_t)whole;
    return status;
}

static enum kva_status parse_top_k(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    int64_t whole;
    enum kva_status status = kva_api_read_whole(p, name, value, -1, 2147483647.0, &whole);
    if (status == KVA_OK)
        p->call->sampling.top_k = whole < 0 ? 0 : (uint32_t)whole;
    return status;
}

/* -1 asks for a random one, as with vLLM and llama-server. */
static enum kva_status parse_seed(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    int64_t whole;
    enum kva_status status =
        kva_api_read_whole(p, name, value, -9223372036854775808.0, 9223372036854775808.0, &whole);
    if (status == KVA_OK) {
        p->call->sampling.seed = (uint64_t)whole;
        p->call->has_seed = whole != -1;
    }
    return status;
}

static enum kva_status parse_priority(struct kva_api_parser *p, const char *name,
                                      const cJSON *value)
{
    const struct kva_api_limits *limits = &p->config->limits;
    int64_t whole;
    enum kva_status status =
        kva_api_read_whole(p, name, value, limits->priority_min, limits->priority_max, &whole);
    if (status == KVA_OK)
        p->call->priority = (int32_t)whole;
    return status;
}

static enum kva_status parse_truncate(struct kva_api_parser *p, const char *name,
                                      const cJSON *value)
{
    int64_t whole;
    enum kva_status status = kva_api_read_whole(p, name, value, -1, p->config->context_max, &whole);
    if (status != KVA_OK)
        return status;
    if (whole == 0)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' is 0, allowed is 1 to %u, or -1.",
                              name, p->config->context_max);
    p->call->truncate = whole < 0 ? UINT32_MAX : (uint32_t)whole;
    return KVA_OK;
}

static enum kva_status parse_stop_ids(struct kva_api_parser *p, const char *name,
                                      const cJSON *value)
{
    if (cJSON_IsArray(value) && !value->child)
        return KVA_OK;
    return kva_api_read_ids(p, name, value, p->config->limits.stop_ids_max, &p->call->stop_ids,
                            &p->call->stop_id_count);
}

static enum kva_status parse_allowed_ids(struct kva_api_parser *p, const char *name,
                                         const cJSON *value)
{
    struct kva_sampling_params *sampling = &p->call->sampling;
    return kva_api_read_ids(p, name, value, p->config->limits.allowed_ids_max,
                            &sampling->allowed_ids, &sampling->allowed_id_count);
}

static enum kva_status parse_cache_salt(struct kva_api_parser *p, const char *name,
                                        const cJSON *value)
{
    return kva_api_read_text(p, name, value, p->config->limits.cache_salt_bytes,
                             &p->call->cache_salt);
}

static enum kva_status parse_documents(struct kva_api_parser *p, const char *name,
                                       const cJSON *value)
{
    if (!cJSON_IsArray(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an array, not %s.", name,
                              kva_api_type_name(value));
    p->call->documents = value;
    return KVA_OK;
}

/* What the template gets from the request itself, from the model or from the interpreter: a
 * variable of the same name would replace it. */
static bool is_reserved(const char *name)
{
    static const char *const names[] = {
        "messages",     "tools",     "documents", "add_generation_prompt",
        "bos_token",    "eos_token", "pad_token", "unk_token",
        "range",        "dict",      "namespace", "raise_exception",
        "loop",         "caller",    "kwargs",    "varargs",
        "strftime_now",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

static enum kva_status parse_template_kwargs(struct kva_api_parser *p, const char *name,
                                             const cJSON *value)
{
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object, not %s.", name,
                              kva_api_type_name(value));
    for (const cJSON *item = value->child; item; item = item->next) {
        if (!is_reserved(item->string))
            continue;
        char place[KVA_ERR_PARAM_MAX];
        snprintf(place, sizeof(place), "%s.%s", name, item->string);
        return kva_fail_param(p->err, KVA_EINVAL, place,
                              "'%s' is not allowed: the request or the model says what '%s' is.",
                              place, item->string);
    }
    p->call->template_kwargs = value;
    return KVA_OK;
}

static enum kva_status parse_modalities(struct kva_api_parser *p, const char *name,
                                        const cJSON *value)
{
    const cJSON *item = cJSON_IsArray(value) ? value->child : value;
    for (; item; item = item->next) {
        if (!cJSON_IsString(item) || strcmp(item->valuestring, "text") != 0)
            return kva_fail_param(p->err, KVA_EUNSUPPORTED, name, "'%s' may only be [\"text\"].",
                                  name);
    }
    return KVA_OK;
}

static const struct kva_api_field stream_option_fields[] = {
    {"include_usage", KVA_ROUTE_GENERATE, KVA_FIELD_BOOL, CALL(include_usage), 0, 0, NULL, NULL},
    {"continuous_usage_stats", KVA_ROUTE_GENERATE, KVA_FIELD_BOOL, CALL(continuous_usage), 0, 0,
     NULL, NULL},
    {"include_obfuscation", KVA_ROUTE_GENERATE, KVA_FIELD_REFUSE, 0, 0, 0, NULL, NULL},
    {NULL, 0, KVA_FIELD_IGNORE, 0, 0, 0, NULL, NULL},
};

static enum kva_status parse_stream_options(struct kva_api_parser *p, const char *name,
                                            const cJSON *value)
{
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object, not %s.", name,
                              kva_api_type_name(value));
    return kva_api_read_fields(p, value, stream_option_fields, NULL);
}

#define COMPUTE    (KVA_ROUTE_GENERATE | KVA_ROUTE_EMBEDDINGS)
#define ALL_ROUTES (COMPUTE | KVA_ROUTE_TOKENIZE | KVA_ROUTE_DETOKENIZE)
#define TALK       (KVA_ROUTE_CHAT | KVA_ROUTE_RESPONSES | KVA_ROUTE_MESSAGES)
#define CUSTOM(name, routes, fn)                                                                   \
    {                                                                                              \
        name, routes, KVA_FIELD_CUSTOM, 0, 0, 0, fn, NULL                                          \
    }
#define BOOL(name, routes, member)                                                                 \
    {                                                                                              \
        name, routes, KVA_FIELD_BOOL, CALL(member), 0, 0, NULL, NULL                               \
    }
#define FLOAT(name, member, min, max)                                                              \
    {                                                                                              \
        name, KVA_ROUTE_GENERATE, KVA_FIELD_FLOAT, CALL(member), min, max, NULL, NULL              \
    }
#define UINT(name, member, min, max)                                                               \
    {                                                                                              \
        name, KVA_ROUTE_GENERATE, KVA_FIELD_UINT, CALL(member), min, max, NULL, NULL               \
    }

/* What is read. What others define and this server does not have is in foreign.c. */
const struct kva_api_field kva_api_fields[] = {
    CUSTOM("model", ALL_ROUTES, parse_model),
    CUSTOM("prompt", KVA_ROUTE_COMPLETION | KVA_ROUTE_TOKENIZE, kva_api_parse_prompt),
    CUSTOM("tokens", KVA_ROUTE_DETOKENIZE, kva_api_parse_tokens),
    CUSTOM("messages", KVA_ROUTE_CHAT | KVA_ROUTE_TOKENIZE, kva_api_parse_messages),
    CUSTOM("max_tokens", KVA_ROUTE_OPENAI, parse_max_tokens),
    CUSTOM("max_completion_tokens", KVA_ROUTE_CHAT, parse_max_completion),
    BOOL("stream", KVA_ROUTE_GENERATE, stream),
    CUSTOM("stream_options", KVA_ROUTE_GENERATE, parse_stream_options),
    FLOAT("temperature", sampling.temperature, 0, 2),
    FLOAT("top_p", sampling.top_p, 0, 1),
    FLOAT("min_p", sampling.min_p, 0, 1),
    CUSTOM("top_k", KVA_ROUTE_GENERATE, parse_top_k),
    FLOAT("repetition_penalty", sampling.repetition_penalty, 0.01, 10),
    FLOAT("presence_penalty", sampling.presence_penalty, -2, 2),
    FLOAT("frequency_penalty", sampling.frequency_penalty, -2, 2),
    CUSTOM("n", KVA_ROUTE_OPENAI, parse_n),
    CUSTOM("best_of", KVA_ROUTE_COMPLETION, parse_best_of),
    CUSTOM("seed", KVA_ROUTE_GENERATE, parse_seed),
    CUSTOM("stop", KVA_ROUTE_GENERATE, kva_api_parse_stop),
    CUSTOM("stop_token_ids", KVA_ROUTE_GENERATE, parse_stop_ids),
    BOOL("include_stop_str_in_output", KVA_ROUTE_GENERATE, include_stop),
    BOOL("ignore_eos", KVA_ROUTE_GENERATE, ignore_eos),
    UINT("min_tokens", sampling.min_tokens, 0, 4294967295.0),
    BOOL("skip_special_tokens", KVA_ROUTE_GENERATE | KVA_ROUTE_DETOKENIZE, skip_special),
    CUSTOM("truncate_prompt_tokens", COMPUTE, parse_truncate),
    CUSTOM("logprobs", KVA_ROUTE_OPENAI, parse_logprobs),
    CUSTOM("top_logprobs", TALK, parse_top_logprobs),
    CUSTOM("prompt_logprobs", KVA_ROUTE_OPENAI, parse_prompt_logprobs),
    CUSTOM("logit_bias", KVA_ROUTE_GENERATE, kva_api_parse_logit_bias),
    CUSTOM("allowed_token_ids", KVA_ROUTE_GENERATE, parse_allowed_ids),
    CUSTOM("bad_words", KVA_ROUTE_GENERATE, kva_api_parse_bad_words),
    BOOL("return_token_ids", KVA_ROUTE_OPENAI, return_token_ids),
    CUSTOM("priority", COMPUTE, parse_priority),
    CUSTOM("cache_salt", COMPUTE, parse_cache_salt),
    CUSTOM("kv", COMPUTE, kva_api_parse_kv),
    BOOL("echo", KVA_ROUTE_COMPLETION, echo),
    BOOL("add_special_tokens", COMPUTE | KVA_ROUTE_TOKENIZE, add_special_tokens),
    BOOL("add_generation_prompt", KVA_ROUTE_CHAT | KVA_ROUTE_TOKENIZE, add_generation_prompt),
    BOOL("continue_final_message", KVA_ROUTE_CHAT | KVA_ROUTE_TOKENIZE, continue_final),
    BOOL("return_token_strs", KVA_ROUTE_TOKENIZE, return_token_strings),
    CUSTOM("documents", KVA_ROUTE_CHAT | KVA_ROUTE_TOKENIZE, parse_documents),
    CUSTOM("chat_template_kwargs", TALK | KVA_ROUTE_TOKENIZE, parse_template_kwargs),
    CUSTOM("response_format", KVA_ROUTE_OPENAI, kva_api_parse_response_format),
    CUSTOM("structured_outputs", KVA_ROUTE_OPENAI, kva_api_parse_structured_outputs),
    CUSTOM("guided_json", KVA_ROUTE_OPENAI, kva_api_parse_guided_json),
    CUSTOM("guided_regex", KVA_ROUTE_OPENAI, kva_api_parse_guided_regex),
    CUSTOM("guided_choice", KVA_ROUTE_OPENAI, kva_api_parse_guided_choice),
    CUSTOM("guided_grammar", KVA_ROUTE_OPENAI, kva_api_parse_guided_grammar),
    CUSTOM("regex", KVA_ROUTE_OPENAI, kva_api_parse_guided_regex),
    CUSTOM("ebnf", KVA_ROUTE_OPENAI, kva_api_parse_guided_grammar),
    CUSTOM("grammar", KVA_ROUTE_OPENAI, kva_api_parse_guided_grammar),
    CUSTOM("json_schema", KVA_ROUTE_OPENAI, kva_api_parse_guided_json),
    CUSTOM("modalities", KVA_ROUTE_CHAT, parse_modalities),
    CUSTOM("tools", TALK | KVA_ROUTE_TOKENIZE, kva_api_parse_tools),
    CUSTOM("tool_choice", TALK | KVA_ROUTE_TOKENIZE, kva_api_parse_tool_choice),
    CUSTOM("functions", KVA_ROUTE_CHAT | KVA_ROUTE_TOKENIZE, kva_api_parse_functions),
    CUSTOM("function_call", KVA_ROUTE_CHAT | KVA_ROUTE_TOKENIZE, kva_api_parse_function_call),
    BOOL("parallel_tool_calls", KVA_ROUTE_CHAT | KVA_ROUTE_RESPONSES, tools.parallel),
    CUSTOM("reasoning_effort", KVA_ROUTE_CHAT | KVA_ROUTE_TOKENIZE, kva_api_parse_effort),
    CUSTOM("messages", KVA_ROUTE_MESSAGES, kva_api_keep_messages),
    CUSTOM("max_tokens", KVA_ROUTE_MESSAGES, parse_max_tokens),
    CUSTOM("system", KVA_ROUTE_MESSAGES, kva_api_parse_system),
    CUSTOM("stop_sequences", KVA_ROUTE_MESSAGES, kva_api_parse_stop),
    CUSTOM("thinking", KVA_ROUTE_MESSAGES, kva_api_parse_thinking),
    CUSTOM("output_config", KVA_ROUTE_MESSAGES, kva_api_parse_output_config),
    CUSTOM("output_format", KVA_ROUTE_MESSAGES, kva_api_parse_text_format),
    CUSTOM("input", KVA_ROUTE_RESPONSES, kva_api_parse_input),
    CUSTOM("input", KVA_ROUTE_EMBEDDINGS, kva_api_parse_prompt),
    CUSTOM("encoding_format", KVA_ROUTE_EMBEDDINGS, kva_api_parse_encoding),
    CUSTOM("dimensions", KVA_ROUTE_EMBEDDINGS, kva_api_parse_dimensions),
    CUSTOM("pooling", KVA_ROUTE_EMBEDDINGS, kva_api_parse_pooling),
    BOOL("normalize", KVA_ROUTE_EMBEDDINGS, embedding.normalise),
    BOOL("use_activation", KVA_ROUTE_EMBEDDINGS, embedding.normalise), /* as vLLM calls it too */
    CUSTOM("instructions", KVA_ROUTE_RESPONSES, kva_api_parse_instructions),
    CUSTOM("max_output_tokens", KVA_ROUTE_RESPONSES, parse_max_tokens),
    CUSTOM("previous_response_id", KVA_ROUTE_RESPONSES, kva_api_parse_previous),
    BOOL("store", KVA_ROUTE_RESPONSES, store),
    CUSTOM("text", KVA_ROUTE_RESPONSES, kva_api_parse_text),
    CUSTOM("reasoning", KVA_ROUTE_RESPONSES, kva_api_parse_reasoning),
    CUSTOM("include", KVA_ROUTE_RESPONSES, kva_api_parse_include),
    {NULL, 0, KVA_FIELD_IGNORE, 0, 0, 0, NULL, NULL},
};

bool kva_api_serves_model(const struct kva_api_config *config, const char *id)
{
    for (uint32_t i = 0; i < config->model_id_count; i++) {
        if (strcmp(config->model_ids[i], id) == 0)
            return true;
    }
    return false;
}

static void set_defaults(struct kva_api_call *call, const struct kva_api_config *config)
{
    call->model = config->model_ids[0];
    call->chat_template = kva_api_template_of(config, false);
    call->add_generation_prompt = true;
    call->add_special_tokens = call->route != KVA_API_CHAT;
    call->skip_special = call->route != KVA_API_DETOKENIZE;
    call->n = 1;
    call->max_tokens = config->completion_tokens_default;
    call->prompt_logprobs_asked = -1;
    call->tools.parallel = true;
    call->store = call->face == KVA_FACE_RESPONSES;
    call->embedding = (struct kva_api_embedding){.pooling = config->pooling,
                                                 .dimensions = config->embedding_size,
                                                 .normalise = config->normalise};
    call->kv = config->kv_specs[config->kv_default];
    call->sampling = (struct kva_sampling_params){
        .temperature = config->temperature,
        .top_p = config->top_p,
        .min_p = config->min_p,
        .top_k = config->top_k,
        .repetition_penalty = config->repetition_penalty,
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
}

enum kva_status kva_api_parse_effort(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; cJSON_IsString(value) && i < KVA_COUNT_OF(words); i++) {
        if (strcmp(value->valuestring, words[i]) == 0) {
            p->effort = words[i];
            return KVA_OK;
        }
    }
    return kva_fail_param(p->err, KVA_EINVAL, name,
                          "'%s' must be none, minimal, low, medium, high, xhigh or max.", name);
}

/* Templates know it as reasoning_effort, or know only whether to think (enable_thinking); what the
 * request says to the template itself wins. */
static enum kva_status tell_effort(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    cJSON *kwargs = cJSON_GetObjectItemCaseSensitive(call->json, "chat_template_kwargs");
    if (!cJSON_IsObject(kwargs)) {
        cJSON_DeleteItemFromObjectCaseSensitive(call->json, "chat_template_kwargs");
        kwargs = cJSON_AddObjectToObject(call->json, "chat_template_kwargs");
    }
    bool none = strcmp(p->effort, "none") == 0;
    bool told = kwargs && (cJSON_HasObjectItem(kwargs, "reasoning_effort") ||
                           cJSON_AddStringToObject(kwargs, "reasoning_effort", p->effort));
    if (told && none && !cJSON_HasObjectItem(kwargs, "enable_thinking"))
        told = cJSON_AddFalseToObject(kwargs, "enable_thinking");
    call->template_kwargs = kwargs;
    return told ? KVA_OK : kva_fail_param(p->err, KVA_ENOMEM, "reasoning_effort", "Out of memory.");
}

/* Its logits would be noise. */
static enum kva_status check_head(const struct kva_api_parser *p)
{
    const bool text = (1u << p->route & KVA_ROUTE_GENERATE) && p->route != KVA_API_COUNT_TOKENS;
    if (!p->config->headless || !text)
        return KVA_OK;
    return kva_fail(p->err, KVA_EUNSUPPORTED,
                    "The model '%s' is a base model without an output matrix: it makes vectors of "
                    "texts (/v1/embeddings), and no text.",
                    p->config->model_ids[0]);
}

static enum kva_status read_call(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    if (!cJSON_IsObject(call->json))
        return kva_fail(p->err, KVA_EINVAL, "The body must be a JSON object, not %s.",
                        kva_api_type_name(call->json));
    enum kva_status status =
        kva_api_read_fields(p, call->json, kva_api_fields, kva_api_foreign_fields);
    if (status == KVA_OK && p->route == KVA_API_RESPONSES)
        status = kva_api_read_input(p);
    if (status == KVA_OK && p->call->face == KVA_FACE_MESSAGES)
        status = kva_api_read_messages(p);
    if (status == KVA_OK && p->effort)
        status = tell_effort(p);
    if (status == KVA_OK && p->route == KVA_API_EMBEDDINGS)
        status = kva_api_check_pooling(p);
    return status == KVA_OK ? kva_api_check_call(p) : status;
}

enum kva_status kva_api_parse(const struct kva_api_config *config, enum kva_api_route route,
                              const char *body, size_t length, struct kva_api_call **ret,
                              struct kva_err *err)
{
    struct kva_api_call *call = calloc(1, sizeof(*call));
    if (!call)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for a request.");
    kva_arena_init(&call->arena, config->limits.arena_bytes_max);
    bool responses = route == KVA_API_RESPONSES;
    bool messages = route == KVA_API_MESSAGES || route == KVA_API_COUNT_TOKENS;
    call->route = route == KVA_API_COUNT_TOKENS ? KVA_API_TOKENIZE
                  : responses || messages       ? KVA_API_CHAT
                                                : route;
    call->face = responses                     ? KVA_FACE_RESPONSES
                 : messages                    ? KVA_FACE_MESSAGES
                 : route == KVA_API_EMBEDDINGS ? KVA_FACE_EMBEDDINGS
                                               : KVA_FACE_OPENAI;
    call->prompt_field = responses || route == KVA_API_EMBEDDINGS  ? "input"
                         : messages || call->route == KVA_API_CHAT ? "messages"
                                                                   : "prompt";
    set_defaults(call, config);
    struct kva_api_parser parser = {.route = route, .call = call, .config = config, .err = err};
    enum kva_status status = check_head(&parser);
    if (status == KVA_OK)
        status = kva_json_parse(body, length, &config->limits.json, &call->json, err);
    if (status == KVA_OK)
        status = read_call(&parser);
    if (status != KVA_OK) {
        kva_api_call_destroy(call);
        return status;
    }
    *ret = call;
    return KVA_OK;
}

void kva_api_call_destroy(struct kva_api_call *call)
{
    if (!call)
        return;
    for (uint32_t i = 0; call->requests && i < call->prompt_count; i++)
        kva_request_destroy(call->requests[i]);
    cJSON_Delete(call->json);
    kva_arena_finish(&call->arena);
    free(call);
}
