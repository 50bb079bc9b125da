/* parse_sampling.c - stop strings, biases, bad words, the KV choice, and what must hold between
 * fields. */
#include "server/api/fields.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kva_status kva_api_parse_stop(struct kva_api_parser *p, const char *name, const cJSON *value)
{
    struct kva_api_call *call = p->call;
    size_t bytes_max = p->config->limits.stop_bytes_max;
    if (cJSON_IsString(value)) {
        call->stop_count = 1;
        return kva_api_read_text(p, name, value, bytes_max, &call->stops[0]);
    }
    if (!cJSON_IsArray(value))
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' must be a string or an array of strings, not %s.", name,
                              kva_api_type_name(value));
    for (const cJSON *item = value->child; item; item = item->next) {
        if (call->stop_count == KVA_API_STOPS_MAX)
            return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' has %d strings, limit is %u.",
                                  name, cJSON_GetArraySize(value), KVA_API_STOPS_MAX);
        char place[KVA_ERR_PARAM_MAX];
        snprintf(place, sizeof(place), "%s[%u]", name, call->stop_count);
        enum kva_status status =
            kva_api_read_text(p, place, item, bytes_max, &call->stops[call->stop_count]);
        if (status != KVA_OK)
            return status;
        call->stop_count++;
    }
    return KVA_OK;
}

static int compare_bias(const void *a, const void *b)
{
    const struct kva_logit_bias *left = a;
    const struct kva_logit_bias *right = b;
    return (left->token > right->token) - (left->token < right->token);
}

/* Decimal digits only: what strtoul also takes (signs, spaces, 0x) is no token id. */
static bool read_id(const char *text, uint32_t limit, uint32_t *ret)
{
    uint64_t id = 0;
    if (!*text || strlen(text) > 10)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        id = id * 10 + (uint64_t)(*text - '0');
    }
    if (id >= limit)
        return false;
    *ret = (uint32_t)id;
    return true;
}

enum kva_status kva_api_parse_logit_bias(struct kva_api_parser *p, const char *name,
                                         const cJSON *value)
{
    struct kva_sampling_params *sampling = &p->call->sampling;
    if (!cJSON_IsObject(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an object, not %s.", name,
                              kva_api_type_name(value));
    size_t count = 0;
    for (const cJSON *item = value->child; item; item = item->next)
        count++;
    if (count == 0)
        return KVA_OK;
    if (count > p->config->limits.logit_bias_max)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' has %zu entries, limit is %u.", name,
                              count, p->config->limits.logit_bias_max);
    struct kva_logit_bias *bias = kva_arena_calloc(&p->call->arena, count, sizeof(*bias));
    if (!bias)
        return kva_fail_param(p->err, KVA_ENOMEM, name, "'%s' does not fit the request's memory.",
                              name);
    uint32_t used = 0;
    for (const cJSON *item = value->child; item; item = item->next, used++) {
        char place[KVA_ERR_PARAM_MAX];
        snprintf(place, sizeof(place), "%s.%.40s", name, item->string);
        double number = 0;
        if (!read_id(item->string, p->config->vocab_size, &bias[used].token))
            return kva_fail_param(p->err, KVA_EINVAL, name,
                                  "'%s' has the key '%.40s', allowed are token ids 0 to %u.", name,
                                  item->string, p->config->vocab_size - 1);
        enum kva_status status = kva_api_read_number(p, place, item, -100, 100, &number);
        if (status != KVA_OK)
            return status;
        bias[used].bias = (float)number;
    }
    qsort(bias, used, sizeof(*bias), compare_bias);
    for (uint32_t i = 1; i < used; i++) {
        if (bias[i].token == bias[i - 1].token)
            return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' names token %u twice.", name,
                                  bias[i].token);
    }
    sampling->logit_bias = bias;
    sampling->logit_bias_count = used;
    return KVA_OK;
}

enum kva_status kva_api_parse_bad_words(struct kva_api_parser *p, const char *name,
                                        const cJSON *value)
{
    const struct kva_api_limits *limits = &p->config->limits;
    if (!cJSON_IsArray(value))
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' must be an array of strings, not %s.",
                              name, kva_api_type_name(value));
    size_t count = 0;
    for (const cJSON *item = value->child; item; item = item->next)
        count++;
    if (count == 0)
        return KVA_OK;
    if (count > limits->bad_words_max)
        return kva_fail_param(p->err, KVA_EINVAL, name, "'%s' has %zu entries, limit is %u.", name,
                              count, limits->bad_words_max);
    struct kva_api_text *words = kva_arena_calloc(&p->call->arena, count, sizeof(*words));
    if (!words)
        return kva_fail_param(p->err, KVA_ENOMEM, name, "'%s' does not fit the request's memory.",
                              name);
    uint32_t used = 0;
    for (const cJSON *item = value->child; item; item = item->next) {
        char place[KVA_ERR_PARAM_MAX];
        snprintf(place, sizeof(place), "%s[%u]", name, used);
        enum kva_status status =
            kva_api_read_text(p, place, item, limits->bad_word_bytes, &words[used]);
        if (status != KVA_OK)
            return status;
        used++;
    }
    p->call->bad_words = words;
    p->call->bad_word_count = used;
    return KVA_OK;
}

static enum kva_status check_choices(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    if (!p->has_best_of)
        call->best_of = call->n;
    if (call->best_of < call->n)
        return kva_fail_param(p->err, KVA_EINVAL, "best_of", "'best_of' is %u, less than 'n' (%u).",
                              call->best_of, call->n);
    if (call->best_of > call->n && call->stream)
        return kva_fail_param(p->err, KVA_EINVAL, "best_of",
                              "'best_of' (%u) greater than 'n' (%u) cannot be streamed.",
                              call->best_of, call->n);
    uint64_t prompts = call->route == KVA_API_CHAT ? 1 : call->prompt_count;
    if (call->route != KVA_API_EMBEDDINGS &&
        prompts * call->best_of > p->config->limits.choices_max)
        return kva_fail_param(p->err, KVA_EINVAL, p->has_best_of ? "best_of" : "n",
                              "The request has %llu choices (prompts * n), limit is %u.",
                              (unsigned long long)(prompts * call->best_of),
                              p->config->limits.choices_max);
    return KVA_OK;
}

static enum kva_status check_logprobs(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    struct kva_sampling_params *sampling = &call->sampling;
    if (call->route == KVA_API_CHAT && call->face == KVA_FACE_OPENAI && call->top_logprobs > 0 &&
        !call->want_logprobs)
        return kva_fail_param(p->err, KVA_EINVAL, "top_logprobs",
                              "'top_logprobs' needs 'logprobs' to be true.");
    if (call->prompt_logprobs_asked >= 0 && call->stream)
        return kva_fail_param(p->err, KVA_EINVAL, "prompt_logprobs",
                              "'prompt_logprobs' cannot be streamed.");
    sampling->prompt_logprobs = call->prompt_logprobs_asked;
    if (call->want_logprobs) {
        sampling->logprobs = (int32_t)call->top_logprobs;
        if (call->echo && sampling->logprobs > sampling->prompt_logprobs)
            sampling->prompt_logprobs = sampling->logprobs;
    } else if (call->best_of > call->n) {
        /* Choosing the best needs the chosen tokens' own. */
        sampling->logprobs = 0;
    }
    return KVA_OK;
}

static enum kva_status check_prompts(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    if (call->route != KVA_API_CHAT && call->messages && call->prompts)
        return kva_fail_param(p->err, KVA_EINVAL, "messages",
                              "Either 'prompt' or 'messages', not both.");
    if (call->route == KVA_API_COMPLETION && !call->prompts)
        return kva_fail_param(p->err, KVA_EINVAL, "prompt", "'prompt' is missing.");
    if (call->route == KVA_API_EMBEDDINGS && !call->prompts)
        return kva_fail_param(p->err, KVA_EINVAL, "input", "'input' is missing.");
    if (call->route == KVA_API_CHAT && !call->messages)
        return kva_fail_param(p->err, KVA_EINVAL, "messages", "'messages' is missing.");
    if (call->route == KVA_API_TOKENIZE && !call->messages && !call->prompts)
        return kva_fail_param(p->err, KVA_EINVAL, "prompt", "'prompt' or 'messages' is missing.");
    if (call->route == KVA_API_DETOKENIZE && !call->prompts)
        return kva_fail_param(p->err, KVA_EINVAL, "tokens", "'tokens' is missing.");
    if (call->messages && !p->config->chat.compiled)
        return kva_fail_param(p->err, KVA_EUNSUPPORTED, "messages",
                              "The model '%.200s' has no chat template; use /v1/completions.",
                              p->config->model_ids[0]);
    return kva_api_check_tools(p);
}

/* What the assistant has begun to say, to be gone on with. */
static enum kva_status check_final(struct kva_api_parser *p)
{
    static const char name[] = "continue_final_message";
    struct kva_api_call *call = p->call;
    const cJSON *asked = cJSON_GetObjectItemCaseSensitive(call->json, "add_generation_prompt");
    const cJSON *last = NULL;
    uint32_t index = 0;
    if (!call->continue_final)
        return KVA_OK;
    cJSON_ArrayForEach(last, call->messages)
    {
        if (!last->next)
            break;
        index++;
    }
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(last, "role");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(last, "content");
    bool begun = cJSON_IsString(role) && strcmp(role->valuestring, "assistant") == 0 &&
                 cJSON_IsString(content) && content->valuestring[0] != '\0' &&
                 !cJSON_HasObjectItem(last, "tool_calls");
    if (!begun && call->face == KVA_FACE_MESSAGES) {
        char place[KVA_ERR_PARAM_MAX];
        snprintf(place, sizeof(place), "messages[%u].content", p->origins[index]);
        return kva_fail_param(p->err, KVA_EINVAL, place,
                              "'%s' must have text: a last message of the assistant is what the "
                              "answer goes on with.",
                              place);
    }
    if (!begun)
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' needs a last message of the assistant that has text and no "
                              "'tool_calls'.",
                              name);
    if (cJSON_IsTrue(asked))
        return kva_fail_param(p->err, KVA_EINVAL, name,
                              "'%s' and 'add_generation_prompt' cannot both be true.", name);
    call->add_generation_prompt = false;
    return KVA_OK;
}

enum kva_status kva_api_check_call(struct kva_api_parser *p)
{
    struct kva_api_call *call = p->call;
    enum kva_status status = check_prompts(p);
    if (status == KVA_OK)
        status = check_choices(p);
    if (status == KVA_OK)
        status = check_final(p);
    if (status == KVA_OK)
        status = check_logprobs(p);
    if (status != KVA_OK)
        return status;
    if ((call->include_usage || call->continuous_usage) && !call->stream)
        return kva_fail_param(p->err, KVA_EINVAL, "stream_options",
                              "'stream_options' is only allowed when 'stream' is true.");
    if (call->has_max_tokens && call->sampling.min_tokens > call->max_tokens)
        return kva_fail_param(p->err, KVA_EINVAL, "min_tokens",
                              "'min_tokens' is %u, more than 'max_tokens' (%u).",
                              call->sampling.min_tokens, call->max_tokens);
    /* The sampler's top_p is above 0; this one leaves only the most probable token. */
    if (call->sampling.top_p <= 0)
        call->sampling.top_p = FLT_MIN;
    return KVA_OK;
}
