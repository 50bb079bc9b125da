/* input.c - files of text and of prompts. */
#include "base/json_check.h"
#include "cli/cli.h"
#include "cli/eval/eval.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX KVA_TOKENIZER_TEXT_BYTES_MAX

/* --- the file -------------------------------------------------------------------------------- */

static enum kva_status read_file(struct kva_cli_eval *eval, struct kva_buf *text,
                                 struct kva_err *err)
{
    enum kva_status status = kva_cli_read_text(eval->file_path, text, eval->file_sha256, err);
    if (!status)
        eval->file_bytes = text->length;
    return status;
}

/* --- samples --------------------------------------------------------------------------------- */

static enum kva_status add_sample(struct kva_cli_eval *eval, const struct kva_token_list *list,
                                  size_t prompt, uint32_t continuation, struct kva_err *err)
{
    if (eval->sample_count == KVA_EVAL_SAMPLES_MAX)
        return kva_fail(err, KVA_ETOOBIG, "'%s' has more than %u prompts", eval->file_path,
                        KVA_EVAL_SAMPLES_MAX);
    struct kva_eval_sample *more =
        realloc(eval->samples, (eval->sample_count + 1) * sizeof(*eval->samples));
    if (more)
        eval->samples = more;
    uint32_t *ids = calloc(list->count + 1, sizeof(*ids));
    if (!more || !ids) {
        free(ids);
        return kva_fail(err, KVA_ENOMEM, "out of memory for '%s'", eval->file_path);
    }
    for (size_t i = 0; i < list->count; i++)
        ids[i] = (uint32_t)list->ids[i];
    eval->samples[eval->sample_count++] = (struct kva_eval_sample){
        .ids = ids,
        .count = (uint32_t)list->count,
        .prompt = (uint32_t)prompt,
        .continuation = continuation,
    };
    return KVA_OK;
}

void kva_cli_eval_drop_samples(struct kva_cli_eval *eval)
{
    for (uint32_t i = 0; i < eval->sample_count; i++)
        free((void *)(uintptr_t)eval->samples[i].ids);
    free(eval->samples);
    eval->samples = NULL;
    eval->sample_count = 0;
}

/* Appends the tokens of `text`. */
static enum kva_status encode(const struct kva_cli_eval *eval, const char *text, size_t length,
                              bool special, struct kva_token_list *list, struct kva_err *err)
{
    const struct kva_tokenizer *tokenizer = eval->instance.tokenizer;
    const struct kva_encode_params params = {
        .add_special = special && !eval->config->raw,
        .parse_special = true,
    };
    if (!tokenizer)
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "the model has no tokenizer.json: it can be given --prompts of token ids");
    return kva_tokenizer_encode(tokenizer, text, length, &params, list, err);
}

/* --- text ------------------------------------------------------------------------------------ */

/* What a text of this model begins with. */
static enum kva_status push_bos(const struct kva_cli_eval *eval, struct kva_token_list *list,
                                struct kva_err *err)
{
    if (eval->config->raw || !eval->instance.tokenizer)
        return KVA_OK;
    return kva_cli_push_bos(eval->instance.tokenizer, list, err);
}

/* Windows of equal length, one behind the other, each with the beginning of a text. */
static enum kva_status cut_windows(struct kva_cli_eval *eval, const struct kva_token_list *text,
                                   struct kva_err *err)
{
    const struct kva_config *config = eval->config;
    size_t length = (size_t)eval->from + 1 + config->eval_tokens, at = 0;
    enum kva_status status = KVA_OK;
    for (uint64_t i = 0; i < config->eval_windows && !status; i++) {
        struct kva_token_list window;
        kva_token_list_init(&window, length);
        status = push_bos(eval, &window, err);
        size_t own = status ? 0 : length - window.count;
        if (!status && text->count - at < own)
            status =
                kva_fail(err, KVA_EINVAL,
                         "'%s' has %zu tokens: too few for %llu windows of %u and %llu behind "
                         "them (--windows, --from, --tokens)",
                         eval->file_path, text->count, (unsigned long long)config->eval_windows,
                         eval->from, 1ull + (unsigned long long)config->eval_tokens);
        for (size_t j = 0; j < own && !status; j++)
            status = kva_token_list_push(&window, text->ids[at++]);
        if (!status)
            status = add_sample(eval, &window, eval->from, 0, err);
        kva_token_list_finish(&window);
    }
    return status;
}

static enum kva_status read_text(struct kva_cli_eval *eval, const struct kva_buf *text,
                                 struct kva_err *err)
{
    const struct kva_config *config = eval->config;
    uint32_t context = eval->instance.engine->limits.context_max;
    struct kva_token_list list;
    eval->from = config->eval_from ? (uint32_t)config->eval_from : context / 2;
    if (eval->from + 1 + config->eval_tokens > context)
        return kva_fail(err, KVA_ECONTEXT,
                        "--from %u and %llu tokens behind it exceed the context of %u", eval->from,
                        1ull + (unsigned long long)config->eval_tokens, context);
    kva_token_list_init(&list, FILE_BYTES_MAX);
    enum kva_status status = encode(eval, text->data, text->length, false, &list, err);
    if (!status)
        status = cut_windows(eval, &list, err);
    kva_token_list_finish(&list);
    return status;
}

/* --- a stream --------------------------------------------------------------------------------- */

/* One sample: a BOS token, or the text's first one, and the windows behind it. */
static enum kva_status read_stream(struct kva_cli_eval *eval, const struct kva_buf *text,
                                   struct kva_err *err)
{
    const struct kva_config *config = eval->config;
    uint64_t tokens = 1 + config->eval_windows * config->eval_tokens;
    struct kva_token_list list;
    kva_token_list_init(&list, FILE_BYTES_MAX);
    enum kva_status status = push_bos(eval, &list, err);
    if (!status)
        status = encode(eval, text->data, text->length, false, &list, err);
    if (!status && list.count < tokens)
        status = kva_fail(err, KVA_EINVAL,
                          "'%s' has %zu tokens: too few for %llu windows of %llu and one before "
                          "them (--windows, --tokens)",
                          eval->file_path, list.count, (unsigned long long)config->eval_windows,
                          (unsigned long long)config->eval_tokens);
    if (!status && tokens > KVA_KV_TOKENS_MAX)
        status = kva_fail(err, KVA_ECONTEXT, "%llu tokens are over the limit of %u",
                          (unsigned long long)tokens, KVA_KV_TOKENS_MAX);
    if (!status)
        status = add_sample(eval, &list, 1, 0, err);
    kva_token_list_finish(&list);
    return status;
}

/* --- prompts --------------------------------------------------------------------------------- */

/* A string, or a list of token ids. */
static enum kva_status push_value(const struct kva_cli_eval *eval, const cJSON *value,
                                  const char *key, bool special, struct kva_token_list *list,
                                  struct kva_err *err)
{
    const cJSON *item;
    uint32_t vocab = eval->instance.model->config.vocab_size;
    if (cJSON_IsString(value))
        return encode(eval, value->valuestring, strlen(value->valuestring), special, list, err);
    if (!cJSON_IsArray(value))
        return kva_fail(err, KVA_EFORMAT, "'%s' must be a string or a list of token ids", key);
    cJSON_ArrayForEach(item, value)
    {
        double id = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(id >= 0 && id < vocab) || id != (double)(uint32_t)id)
            return kva_fail(err, KVA_EFORMAT, "'%s' may have token ids from 0 to %u", key,
                            vocab - 1);
        if (kva_token_list_push(list, (int32_t)id))
            return kva_fail(err, KVA_ETOOBIG, "'%s' is too long", key);
    }
    return KVA_OK;
}

static enum kva_status read_prompt(struct kva_cli_eval *eval, const cJSON *object,
                                   struct kva_err *err)
{
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(object, "prompt");
    const cJSON *completion = cJSON_GetObjectItemCaseSensitive(object, "completion");
    uint32_t context = eval->instance.engine->limits.context_max;
    struct kva_token_list list;
    if (!cJSON_IsObject(object) || !prompt)
        return kva_fail(err, KVA_EFORMAT, "expected an object with 'prompt'");
    kva_token_list_init(&list, FILE_BYTES_MAX);
    enum kva_status status = push_value(eval, prompt, "prompt", true, &list, err);
    size_t count = list.count;
    if (!status && completion && !cJSON_IsNull(completion))
        status = push_value(eval, completion, "completion", false, &list, err);
    uint32_t tokens = (uint32_t)eval->config->eval_tokens;
    size_t behind = list.count > count ? list.count - count : (size_t)tokens + 1;
    if (!status && count == 0)
        status = kva_fail(err, KVA_EINVAL, "the prompt has no tokens");
    if (!status && behind < 2)
        status = kva_fail(err, KVA_EINVAL,
                          "'completion' has one token: it takes two, because the first comes from "
                          "the prefill, which is exact");
    if (!status && count + behind > context)
        status = kva_fail(err, KVA_ECONTEXT,
                          "the prompt has %zu tokens; with %zu behind them they exceed the context "
                          "of %u",
                          count, behind, context);
    if (!status)
        status = add_sample(eval, &list, count, tokens, err);
    kva_token_list_finish(&list);
    return status;
}

static enum kva_status read_line(struct kva_cli_eval *eval, const char *line, size_t length,
                                 struct kva_err *err)
{
    struct kva_json_limits limits;
    kva_json_limits_default(&limits);
    limits.values_max = UINT32_MAX;
    /* cJSON ends a string where it has a NUL. */
    enum kva_status status = kva_json_check(line, length, &limits, err);
    if (status)
        return kva_err_prefix(err, KVA_EFORMAT, "no JSON that a prompt could be");
    cJSON *object = cJSON_ParseWithLength(line, length);
    status = object ? read_prompt(eval, object, err) : kva_fail(err, KVA_ENOMEM, "out of memory");
    cJSON_Delete(object);
    return status;
}

static enum kva_status read_prompts(struct kva_cli_eval *eval, const struct kva_buf *text,
                                    struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    const char *line = text->data;
    for (uint32_t number = 1; *line && !status; number++) {
        size_t length = strcspn(line, "\n");
        if (strspn(line, " \t\r") < length)
            status = read_line(eval, line, length, err);
        if (status)
            return kva_err_prefix(err, status, "'%s' line %u", eval->file_path, number);
        line += length + (line[length] == '\n');
    }
    if (eval->sample_count == 0)
        return kva_fail(err, KVA_EINVAL, "'%s' has no prompts", eval->file_path);
    return KVA_OK;
}

enum kva_status kva_cli_eval_read(struct kva_cli_eval *eval, struct kva_err *err)
{
    const struct kva_config *config = eval->config;
    int given = !!config->eval_text + !!config->eval_prompts + !!config->eval_stream;
    if (given != 1)
        return kva_fail(err, KVA_EINVAL,
                        "give one of --text FILE, --prompts FILE and --stream FILE");
    eval->file_path = config->eval_text      ? config->eval_text
                      : config->eval_prompts ? config->eval_prompts
                                             : config->eval_stream;
    struct kva_buf text;
    kva_buf_init(&text, FILE_BYTES_MAX);
    enum kva_status status = read_file(eval, &text, err);
    if (!status)
        status = config->eval_text      ? read_text(eval, &text, err)
                 : config->eval_prompts ? read_prompts(eval, &text, err)
                                        : read_stream(eval, &text, err);
    kva_buf_finish(&text);
    return status;
}
