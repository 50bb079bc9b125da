/* prepare.c - from parsed fields to requests: templates, tokens, limits. */
#include "server/api/bad_words.h"

#include "base/clock.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ids of one text: far above any context, so that an over-long prompt's true count can be told. */
#define PROMPT_TOKENS_MAX ((size_t)64 << 20)
/* How many contexts of tokens of a prompt that is too long are counted, to be told. */
#define COUNTED_CONTEXTS 4u
/* What a request needs besides its arrays, with room for the alignment of each. */
#define REQUEST_SLACK_BYTES 8192u
/* Other servers' words, which clients go by (LiteLLM's context_window_fallbacks). */
#define CONTEXT_IS "This model's maximum context length is %u tokens"
/* The operator may allow less (cache_salt_bytes). */
#define SALT_BYTES_MAX 4096u

static enum kva_status render_chat(const struct kva_api_config *config, struct kva_api_call *call,
                                   struct kva_buf *text, struct kva_err *err)
{
    struct kva_template_control control = {.cancelled = call->abandoned};
    struct kva_template_input input = {
        .messages = call->messages,
        .tools = call->chat_template->takes_tools ? call->tools.list : NULL,
        .documents = call->documents,
        .extra = call->template_kwargs,
        .add_generation_prompt = call->add_generation_prompt,
        .absent_is_none = true,
        .control = &control,
    };
    kva_api_tell_template(config->tokenizer, &input);
    uint64_t begin_ns = kva_time_ns();
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(call->json, "messages");
    size_t bytes_max = config->limits.arena_bytes_max;
    if (!call->chat_template->knows_developers)
        kva_reply_rename_developers(messages);
    bool told = kva_reply_shape_history(messages, &call->chat_template->history,
                                        call->chat_template->reply.style, bytes_max);
    if (call->tools.list && !call->chat_template->takes_tools)
        told = told &&
               kva_reply_tell_tools(messages, call->tools.list, call->tools.required, bytes_max);
    if (!told)
        return kva_fail_param(err, KVA_ENOMEM, "messages", "Out of memory for the messages.");
    enum kva_status status = kva_template_render(call->chat_template->compiled, &input,
                                                 config->template_limits, text, err);
    call->template_ns = kva_time_ns() - begin_ns;
    call->template_steps = control.steps;
    call->template_failed = status != KVA_OK && status != KVA_ECANCELLED;
    if (status == KVA_EINVAL && err) {
        kva_err_prefix(err, status, "The chat template refused the messages");
        snprintf(err->param, sizeof(err->param), "%s", call->prompt_field);
    }
    return status;
}

/* Stands behind the last message while the template is rendered: what was said may also stand in what
 * the template writes behind it ("<" in "<|im_end|>"). A template that strips what is said takes the
 * space away. */
#define MARK       "kvahead_goes_on_here"
#define MARK_BYTES (sizeof(MARK) - 1)
#define SPACES     " \n\r\t"

static enum kva_status mark_final(struct kva_api_call *call, size_t *ret_length,
                                  struct kva_err *err)
{
    cJSON *last = cJSON_GetObjectItemCaseSensitive(call->json, "messages")->child->prev;
    const char *content = cJSON_GetObjectItemCaseSensitive(last, "content")->valuestring;
    struct kva_buf text;
    *ret_length = strlen(content);
    kva_buf_init(&text, *ret_length + sizeof(MARK) + 1);
    kva_buf_puts(&text, content);
    kva_buf_append(&text, MARK " ", sizeof(MARK) + 1);
    cJSON *marked = text.failed ? NULL : cJSON_CreateString(text.data);
    kva_buf_finish(&text);
    if (marked && cJSON_ReplaceItemInObjectCaseSensitive(last, "content", marked))
        return KVA_OK;
    cJSON_Delete(marked);
    return kva_fail_param(err, KVA_ENOMEM, "messages", "Out of memory for the messages.");
}

static size_t find_mark(const struct kva_buf *text)
{
    for (size_t at = text->length; at >= MARK_BYTES; at--) {
        if (memcmp(text->data + at - MARK_BYTES, MARK, MARK_BYTES) == 0)
            return at - MARK_BYTES;
    }
    return SIZE_MAX;
}

static size_t trailing_space(const char *text, size_t length)
{
    size_t rest = length;
    while (rest > 0 && strchr(SPACES, text[rest - 1]))
        rest--;
    return length - rest;
}

static bool ends_with(const char *text, size_t length, const char *end, size_t end_length)
{
    return end_length <= length && memcmp(text + length - end_length, end, end_length) == 0;
}

/* The rendering ends where the last message, which begins at *ret_begin and was of `length` bytes,
 * does: what a template writes behind it, it would write behind the whole answer. */
static enum kva_status cut_behind_final(const struct kva_api_call *call, size_t length,
                                        struct kva_buf *text, size_t *ret_begin,
                                        struct kva_err *err)
{
    const cJSON *last = call->messages->child->prev;
    const char *content = cJSON_GetObjectItemCaseSensitive(last, "content")->valuestring;
    size_t end = find_mark(text), space = strspn(content, SPACES);
    if (end != SIZE_MAX) {
        bool stripped = !ends_with(text->data, kva_min_size(end + MARK_BYTES + 1, text->length),
                                   MARK " ", MARK_BYTES + 1);
        /* Some templates strip what is said. */
        bool bare = !ends_with(text->data, end, content, length) || (stripped && space >= length);
        space = bare ? kva_min_size(space, length) : 0;
        content += space;
        length -= space;
        if (ends_with(text->data, end, content, length)) {
            *ret_begin = end - length;
            text->length = end - (stripped ? trailing_space(content, length) : 0);
            return KVA_OK;
        }
    }
    const char *param = call->face == KVA_FACE_MESSAGES ? "messages" : "continue_final_message";
    return kva_fail_param(err, KVA_EINVAL, param,
                          "The chat template does not write the last message as it is: it cannot "
                          "be continued.");
}

/* Tokens of prompt and completion together. */
static uint32_t tokens_max(const struct kva_api_config *config, const struct kva_api_call *call)
{
    return kva_kv_tokens_max(&call->kv, config->context_max);
}

/* Beyond this a prompt is refused as too long without counting its tokens to the end. */
static size_t countable_tokens(const struct kva_api_config *config, const struct kva_api_call *call)
{
    size_t contexts = (size_t)COUNTED_CONTEXTS * config->context_max;
    return kva_max_size(contexts, tokens_max(config, call));
}

/* Whether the text is too long whatever it says. Only where all of its tokens would be served:
 * truncation needs the last ones, and /tokenize is asked for all of them. */
static bool is_bounded(const struct kva_api_call *call)
{
    return call->truncate == 0 && call->route != KVA_API_TOKENIZE;
}

static enum kva_status too_long(const struct kva_api_config *config,
                                const struct kva_api_call *call, size_t length, struct kva_err *err)
{
    return kva_fail_param(
        err, KVA_ECONTEXT, call->prompt_field,
        "The prompt of %zu bytes has more than %zu tokens, limit is %u. " CONTEXT_IS
        ", for prompt and completion.",
        length, countable_tokens(config, call), tokens_max(config, call) - 1, config->context_max);
}

/* Only what a truncated prompt can keep is copied. */
static enum kva_status keep_ids(const struct kva_api_config *config, struct kva_api_call *call,
                                const struct kva_token_list *list, struct kva_api_prompt *prompt,
                                struct kva_err *err)
{
    size_t skipped = 0;
    if (call->truncate > 0 && list->count > config->context_max)
        skipped = list->count - config->context_max;
    size_t count = list->count - skipped;
    uint32_t *ids = kva_arena_calloc(&call->arena, count + 1, sizeof(*ids));
    if (!ids && call->route != KVA_API_TOKENIZE && count > tokens_max(config, call))
        return too_long(config, call, prompt->text_bytes, err);
    if (!ids)
        return kva_fail(err, KVA_ENOMEM, "%zu prompt tokens do not fit the request's memory.",
                        list->count);
    for (size_t i = 0; i < count; i++)
        ids[i] = (uint32_t)list->ids[skipped + i];
    prompt->ids = ids;
    prompt->id_count = (uint32_t)count;
    prompt->skipped = (uint32_t)skipped;
    return KVA_OK;
}

/* The ids of one text, in the call's arena. */
static enum kva_status encode_text(const struct kva_api_config *config, struct kva_api_call *call,
                                   const char *text, size_t length, struct kva_api_prompt *prompt,
                                   struct kva_err *err)
{
    struct kva_token_list list;
    struct kva_encode_params params = {.add_special = call->add_special_tokens,
                                       .parse_special = true,
                                       .cancelled = call->abandoned};
    if (is_bounded(call)) {
        params.stop_tokens = countable_tokens(config, call);
        if (config->token_bytes_max > 0 &&
            length / config->token_bytes_max > countable_tokens(config, call))
            return too_long(config, call, length, err);
    }
    kva_token_list_init(&list, PROMPT_TOKENS_MAX);
    enum kva_status status =
        kva_tokenizer_encode(config->tokenizer, text, length, &params, &list, err);
    if (status == KVA_OK)
        status = keep_ids(config, call, &list, prompt, err);
    else if (status == KVA_ETOOBIG && is_bounded(call))
        status = too_long(config, call, length, err);
    kva_token_list_finish(&list);
    return status;
}

static enum kva_status encode_chat(const struct kva_api_config *config, struct kva_api_call *call,
                                   struct kva_err *err)
{
    struct kva_buf text;
    kva_buf_init(&text, KVA_TEMPLATE_OUTPUT_BYTES_MAX);
    call->prompts = kva_arena_calloc(&call->arena, 1, sizeof(*call->prompts));
    enum kva_status status = call->prompts ? KVA_OK : kva_fail(err, KVA_ENOMEM, "Out of memory.");
    size_t final_length = 0;
    if (status == KVA_OK && call->continue_final)
        status = mark_final(call, &final_length, err);
    if (status == KVA_OK)
        status = render_chat(config, call, &text, err);
    size_t begun = text.length;
    if (status == KVA_OK && call->continue_final)
        status = cut_behind_final(call, final_length, &text, &begun, err);
    if (status == KVA_OK) {
        call->thinking = call->chat_template->reply.thinks && text.length > 0 &&
                         kva_reply_is_thinking(text.data, text.length, begun);
        call->prompt_count = 1;
        status =
            encode_text(config, call, text.data ? text.data : "", text.length, call->prompts, err);
    }
    kva_buf_finish(&text);
    return status;
}

enum kva_status kva_api_tokenize(const struct kva_api_config *config, struct kva_api_call *call,
                                 struct kva_err *err)
{
    if (call->messages)
        return encode_chat(config, call, err);
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        struct kva_api_prompt *prompt = &call->prompts[i];
        if (!prompt->text)
            continue;
        enum kva_status status =
            encode_text(config, call, prompt->text, prompt->text_bytes, prompt, err);
        if (status != KVA_OK) {
            if (err && !err->param[0])
                snprintf(err->param, sizeof(err->param), "%s", call->prompt_field);
            return status;
        }
    }
    return KVA_OK;
}

enum kva_status kva_api_detokenize(const struct kva_api_config *config,
                                   const struct kva_api_call *call, struct kva_buf *out,
                                   struct kva_err *err)
{
    struct kva_detok detok;
    kva_detok_init(&detok, config->tokenizer, call->skip_special);
    for (uint32_t i = 0; i < call->prompts[0].id_count; i++)
        kva_detok_push(&detok, (int32_t)call->prompts[0].ids[i], out);
    kva_detok_flush(&detok, out);
    if (out->no_memory)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for a text.");
    if (out->failed)
        return kva_fail_param(err, KVA_ETOOBIG, "tokens",
                              "The text of %u tokens is larger than the limit of %zu bytes.",
                              call->prompts[0].id_count, out->max_bytes);
    return KVA_OK;
}

static enum kva_status over_context(const struct kva_api_call *call, uint32_t count,
                                    uint32_t wanted, uint32_t context_max, struct kva_err *err)
{
    const char *name = call->face == KVA_FACE_RESPONSES ? "max_output_tokens"
                       : call->max_is_new               ? "max_completion_tokens"
                                                        : "max_tokens";
    return kva_fail_param(err, KVA_ECONTEXT, name,
                          "The prompt has %u tokens and '%s' is %u: %llu tokens, limit is "
                          "%u. " CONTEXT_IS ".",
                          count, name, wanted, (unsigned long long)count + wanted, context_max,
                          context_max);
}

/* Keep the last tokens if the request asks for it, then hold the prompt against the context. */
static enum kva_status fit_prompt(const struct kva_api_config *config, struct kva_api_call *call,
                                  uint32_t index, uint32_t *ret_output_max, struct kva_err *err)
{
    struct kva_api_prompt *prompt = &call->prompts[index];
    const char *param = call->prompt_field;
    uint32_t context_max = config->context_max;
    uint32_t wanted = call->has_max_tokens || call->route == KVA_API_COMPLETION
                          ? kva_max_u32(call->max_tokens, 1)
                          : 1;
    if (call->truncate > 0) {
        uint32_t keep = call->truncate;
        if (keep == UINT32_MAX)
            keep = context_max > wanted ? context_max - wanted : 1;
        call->truncated_tokens[index] = prompt->skipped;
        if (prompt->id_count > keep) {
            call->truncated_tokens[index] += prompt->id_count - keep;
            prompt->ids += prompt->id_count - keep;
            prompt->id_count = keep;
        }
    }
    uint32_t count = prompt->id_count, limit = tokens_max(config, call);
    if (count == 0)
        return kva_fail_param(err, KVA_EINVAL, param, "'%s' has no tokens.", param);
    if (count >= limit)
        return kva_fail_param(err, KVA_ECONTEXT, param,
                              "The prompt has %u tokens, limit is %u. " CONTEXT_IS
                              ", for prompt and completion.",
                              count, limit - 1, context_max);
    uint32_t room = limit - count;
    if (call->has_max_tokens && wanted > room)
        return over_context(call, count, wanted, limit, err);
    if (call->route == KVA_API_CHAT && !call->has_max_tokens)
        wanted = context_max;
    *ret_output_max = kva_min_u32(wanted, room);
    if (call->sampling.min_tokens > *ret_output_max)
        return kva_fail_param(err, KVA_EINVAL, "min_tokens",
                              "'min_tokens' is %u, but only %u tokens can be generated.",
                              call->sampling.min_tokens, *ret_output_max);
    return KVA_OK;
}

/* A tokenizer may have ids for which the model has no embeddings (a <pad> that was added later):
 * they are never generated, and mean nothing in a prompt. */
static enum kva_status check_ids(const struct kva_api_config *config,
                                 const struct kva_api_prompt *prompt, const char *param,
                                 struct kva_err *err)
{
    if (kva_tokenizer_vocab_size(config->tokenizer) <= config->vocab_size)
        return KVA_OK;
    for (uint32_t i = 0; i < prompt->id_count; i++) {
        uint32_t id = prompt->ids[i];
        const char *text = kva_tokenizer_token_string(config->tokenizer, (int32_t)id, NULL);
        if (id >= config->vocab_size)
            return kva_fail_param(err, KVA_EINVAL, param,
                                  "The prompt has token %u ('%.60s'), for which the model has no "
                                  "embedding: its ids end at %u.",
                                  id, text ? text : "", config->vocab_size - 1);
    }
    return KVA_OK;
}

static void *copy_array(struct kva_arena *arena, const void *data, size_t count, size_t size)
{
    void *copy = kva_arena_calloc(arena, count, size);
    if (copy)
        memcpy(copy, data, count * size);
    return copy;
}

/* The model's EOS and the request's own stop ids. */
static bool copy_stop_ids(const struct kva_api_config *config, const struct kva_api_call *call,
                          struct kva_request *request)
{
    /* A text that a grammar ends has no other end. */
    bool ignored = call->ignore_eos && !call->format.field;
    uint32_t eos_count = ignored ? 0 : config->eos_count;
    uint32_t count = eos_count + call->stop_id_count;
    if (count == 0)
        return true;
    uint32_t *ids = kva_arena_calloc(&request->arena, count, sizeof(*ids));
    if (!ids)
        return false;
    for (uint32_t i = 0; i < eos_count; i++)
        ids[i] = config->eos_ids[i];
    for (uint32_t i = 0; i < call->stop_id_count; i++)
        ids[eos_count + i] = call->stop_ids[i];
    request->sampling.stop_ids = ids;
    request->sampling.stop_id_count = count;
    return true;
}

/* A request owns all it points to: it outlives the call's arena in the scheduler. */
static bool fill_arrays(const struct kva_api_config *config, const struct kva_api_call *call,
                        const struct kva_api_prompt *prompt, const struct kva_bad_words *bad_words,
                        struct kva_request *request)
{
    struct kva_sampling_params *sampling = &request->sampling;
    request->prompt =
        copy_array(&request->arena, prompt->ids, prompt->id_count, sizeof(*prompt->ids));
    request->prompt_tokens = prompt->id_count;
    if (!request->prompt || !copy_stop_ids(config, call, request))
        return false;
    if (sampling->logit_bias_count > 0) {
        sampling->logit_bias =
            copy_array(&request->arena, sampling->logit_bias, sampling->logit_bias_count,
                       sizeof(*sampling->logit_bias));
        if (!sampling->logit_bias)
            return false;
    }
    if (sampling->allowed_id_count > 0) {
        sampling->allowed_ids =
            copy_array(&request->arena, sampling->allowed_ids, sampling->allowed_id_count,
                       sizeof(*sampling->allowed_ids));
        if (!sampling->allowed_ids)
            return false;
    }
    return bad_words->count == 0 || kva_bad_words_copy(request, bad_words);
}

/* The scope of the key, mixed with the request's salt: neither can be turned into the other. */
static enum kva_status mix_salt(const struct kva_api_text *salt, uint64_t scope[2],
                                struct kva_err *err)
{
    unsigned char text[16 + SALT_BYTES_MAX];
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int digest_bytes = 0;
    if (salt->length == 0)
        return KVA_OK;
    size_t length = kva_min_size(salt->length, SALT_BYTES_MAX);
    memcpy(text, scope, 16);
    memcpy(text + 16, salt->data, length);
    if (EVP_Digest(text, 16 + length, digest, &digest_bytes, EVP_sha256(), NULL) != 1)
        return kva_fail_param(err, KVA_EINTERNAL, "cache_salt", "The salt could not be hashed.");
    memcpy(scope, digest, 16);
    return KVA_OK;
}

static enum kva_status build_request(const struct kva_api_config *config, struct kva_api_call *call,
                                     const struct kva_api_identity *identity, uint32_t index,
                                     const struct kva_bad_words *bad_words,
                                     struct kva_constraint *constraint, struct kva_err *err)
{
    const struct kva_api_prompt *prompt = &call->prompts[index];
    uint32_t output_max = 0;
    enum kva_status status = fit_prompt(config, call, index, &output_max, err);
    if (status == KVA_OK)
        status = check_ids(config, prompt, call->prompt_field, err);
    if (status != KVA_OK)
        return status;
    size_t bytes =
        REQUEST_SLACK_BYTES + sizeof(uint32_t) * ((size_t)prompt->id_count) +
        call->sampling.logit_bias_count * sizeof(struct kva_logit_bias) +
        sizeof(uint32_t) *
            ((size_t)call->sampling.allowed_id_count + call->stop_id_count + config->eos_count) +
        bad_words->count * sizeof(struct kva_bad_word) + bad_words->ids.count * sizeof(uint32_t);
    /* The arena takes whole blocks from the system. */
    struct kva_request *request = kva_request_create(bytes * 2 + 65536);
    if (!request)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for a prompt of %u tokens.",
                        prompt->id_count);
    call->requests[index] = request;
    request->output_tokens_max = output_max;
    request->choices = call->best_of;
    request->priority = call->priority;
    request->cache_scope[0] = identity->cache_scope[0];
    request->cache_scope[1] = identity->cache_scope[1];
    request->sampling = call->sampling;
    kva_constraint_hold(constraint);
    request->sampling.constraint = constraint;
    if (!call->has_seed)
        request->sampling.seed = identity->seed + (uint64_t)index * call->best_of;
    request->kv = call->kv;
    if (call->route == KVA_API_EMBEDDINGS)
        request->pooling = call->embedding.pooling;
    if (!fill_arrays(config, call, prompt, bad_words, request))
        return kva_fail(err, KVA_ENOMEM, "A prompt of %u tokens does not fit its memory.",
                        prompt->id_count);
    call->prompt_tokens += prompt->id_count;
    return mix_salt(&call->cache_salt, request->cache_scope, err);
}

static bool keep_text(struct kva_arena *arena, const char **text, size_t length)
{
    const char *copy = kva_arena_strndup(arena, *text, length);
    if (copy)
        *text = copy;
    return copy != NULL;
}

/* The JSON tree is several times the size of the body: keep what answering needs, free the rest. */
static enum kva_status drop_json(struct kva_api_call *call, struct kva_err *err)
{
    bool ok = keep_text(&call->arena, &call->model, strlen(call->model));
    for (uint32_t i = 0; i < call->stop_count && ok; i++)
        ok = keep_text(&call->arena, &call->stops[i].data, call->stops[i].length);
    for (uint32_t i = 0; i < call->prompt_count && ok; i++) {
        struct kva_api_prompt *prompt = &call->prompts[i];
        if (call->echo && prompt->text && call->truncated_tokens[i] == 0)
            ok = keep_text(&call->arena, &prompt->text, prompt->text_bytes);
        else
            prompt->text = NULL;
    }
    if (!ok)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for a request.");
    cJSON_Delete(call->json);
    call->json = NULL;
    call->messages = NULL;
    call->instructions = NULL;
    call->tools.list = NULL;
    call->documents = NULL;
    call->template_kwargs = NULL;
    call->bad_words = NULL;
    call->cache_salt = (struct kva_api_text){NULL, 0};
    return KVA_OK;
}

enum kva_status kva_api_prepare(const struct kva_api_config *config, struct kva_api_call *call,
                                const struct kva_api_identity *identity, struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    if (call->face == KVA_FACE_RESPONSES)
        status = kva_api_open_conversation(config, call, err);
    if (status == KVA_OK)
        status = kva_api_tokenize(config, call, err);
    if (status != KVA_OK)
        return status;
    call->requests =
        kva_arena_calloc(&call->arena, call->prompt_count, sizeof(struct kva_request *));
    call->truncated_tokens =
        kva_arena_calloc(&call->arena, call->prompt_count, sizeof(*call->truncated_tokens));
    if (!call->requests || !call->truncated_tokens)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for %u prompts.", call->prompt_count);
    struct kva_bad_words bad_words = {.lengths = NULL};
    struct kva_constraint *constraint = NULL;
    status = kva_api_bind_tools(config, call, err);
    if (status == KVA_OK)
        status = kva_api_get_constraint(config, call, &constraint, err);
    if (status != KVA_OK)
        return status;
    if (call->bad_word_count > 0)
        status = kva_bad_words_read(config, call, &bad_words, err);
    for (uint32_t i = 0; i < call->prompt_count && status == KVA_OK; i++)
        status = build_request(config, call, identity, i, &bad_words, constraint, err);
    kva_constraint_release(constraint);
    if (call->bad_word_count > 0)
        kva_bad_words_finish(&bad_words);
    return status == KVA_OK ? drop_json(call, err) : status;
}
