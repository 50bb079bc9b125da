/* logprobs.c - log-probabilities in the two forms that OpenAI publishes, and vLLM's for prompts. */
#include "server/stream/internal.h"

#include "base/utf8.h"

#include <math.h>
#include <string.h>

/* OpenAI reports this where a token's probability is zero. */
#define LOGPROB_FLOOR -9999.0

void kva_logprob_lists_init(struct kva_logprob_lists *lists, size_t max_bytes)
{
    lists->count = 0;
    kva_buf_init(&lists->tokens, max_bytes);
    kva_buf_init(&lists->logprobs, max_bytes);
    kva_buf_init(&lists->top, max_bytes);
    kva_buf_init(&lists->offsets, max_bytes);
}

void kva_logprob_lists_finish(struct kva_logprob_lists *lists)
{
    kva_buf_finish(&lists->tokens);
    kva_buf_finish(&lists->logprobs);
    kva_buf_finish(&lists->top);
    kva_buf_finish(&lists->offsets);
}

void kva_logprob_lists_clear(struct kva_logprob_lists *lists)
{
    lists->count = 0;
    kva_buf_clear(&lists->tokens);
    kva_buf_clear(&lists->logprobs);
    kva_buf_clear(&lists->top);
    kva_buf_clear(&lists->offsets);
}

void kva_json_double(struct kva_buf *out, double value)
{
    if (!isfinite(value))
        value = LOGPROB_FLOOR;
    kva_buf_printf(out, "%.9g", value);
}

static const char *token_bytes(const struct kva_answer *answer, uint32_t token, size_t *ret_length)
{
    const char *bytes =
        kva_tokenizer_token_bytes(answer->config->tokenizer, (int32_t)token, ret_length);
    if (!bytes)
        *ret_length = 0;
    return bytes ? bytes : "";
}

/* A token's text as completions name it: what is not UTF-8 by itself is spelled "bytes:\xe2\x80",
 * so that different tokens have different names. */
static void completion_token(struct kva_buf *out, const char *bytes, size_t length)
{
    if (kva_utf8_valid(bytes, length)) {
        kva_buf_json_string(out, bytes, length);
        return;
    }
    kva_buf_puts(out, "\"bytes:");
    for (size_t i = 0; i < length; i++)
        kva_buf_printf(out, "\\\\x%02x", (unsigned char)bytes[i]);
    kva_buf_putc(out, '"');
}

static void completion_entry(struct kva_logprob_lists *lists, const struct kva_answer *answer,
                             uint32_t token, const struct kva_logprob *chosen,
                             const struct kva_logprob *top, uint32_t top_count, uint64_t offset)
{
    const char *comma = lists->count ? "," : "";
    size_t length;
    const char *bytes = token_bytes(answer, token, &length);
    kva_buf_puts(&lists->tokens, comma);
    completion_token(&lists->tokens, bytes, length);
    kva_buf_printf(&lists->offsets, "%s%llu", comma, (unsigned long long)offset);
    kva_buf_puts(&lists->logprobs, comma);
    kva_buf_puts(&lists->top, comma);
    if (!chosen) {
        kva_buf_puts(&lists->logprobs, "null");
        kva_buf_puts(&lists->top, "null");
        return;
    }
    kva_json_double(&lists->logprobs, chosen->logprob);
    kva_buf_putc(&lists->top, '{');
    bool has_chosen = false;
    for (uint32_t i = 0; i < top_count; i++) {
        const char *name = token_bytes(answer, top[i].token, &length);
        has_chosen = has_chosen || top[i].token == token;
        kva_buf_puts(&lists->top, i ? "," : "");
        completion_token(&lists->top, name, length);
        kva_buf_putc(&lists->top, ':');
        kva_json_double(&lists->top, top[i].logprob);
    }
    if (!has_chosen) {
        /* "There may be up to logprobs + 1 elements": the sampled one is always there. */
        kva_buf_puts(&lists->top, top_count ? "," : "");
        bytes = token_bytes(answer, token, &length);
        completion_token(&lists->top, bytes, length);
        kva_buf_putc(&lists->top, ':');
        kva_json_double(&lists->top, chosen->logprob);
    }
    kva_buf_putc(&lists->top, '}');
}

/* {"token":...,"logprob":...,"bytes":[...] of one token, without the closing brace. */
static void chat_token(struct kva_buf *out, const struct kva_answer *answer,
                       const struct kva_logprob *logprob)
{
    size_t length;
    const char *bytes = token_bytes(answer, logprob->token, &length);
    kva_buf_puts(out, "{\"token\":");
    kva_buf_json_string(out, bytes, length);
    kva_buf_puts(out, ",\"logprob\":");
    kva_json_double(out, logprob->logprob);
    kva_buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < length; i++)
        kva_buf_printf(out, "%s%u", i ? "," : "", (unsigned char)bytes[i]);
    kva_buf_putc(out, ']');
}

static void chat_entry(struct kva_logprob_lists *lists, const struct kva_answer *answer,
                       const struct kva_logprob *chosen, const struct kva_logprob *top,
                       uint32_t top_count)
{
    struct kva_buf *out = &lists->tokens;
    kva_buf_puts(out, lists->count ? "," : "");
    chat_token(out, answer, chosen);
    kva_buf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < top_count; i++) {
        kva_buf_puts(out, i ? "," : "");
        chat_token(out, answer, &top[i]);
        kva_buf_putc(out, '}');
    }
    kva_buf_puts(out, "]}");
}

void kva_logprob_lists_add(struct kva_logprob_lists *lists, const struct kva_answer *answer,
                           uint32_t token, const struct kva_logprob *chosen,
                           const struct kva_logprob *top, uint32_t top_count, uint64_t offset)
{
    top_count = kva_min_u32(top_count, answer->call->top_logprobs);
    if (answer->call->route == KVA_API_CHAT)
        chat_entry(lists, answer, chosen, top, top_count);
    else
        completion_entry(lists, answer, token, chosen, top, top_count, offset);
    lists->count++;
}

/* The entries of `prefix`, then those of `lists`. */
static void joined(struct kva_buf *out, const struct kva_logprob_lists *prefix,
                   const struct kva_logprob_lists *lists, size_t member)
{
    const struct kva_buf *first =
        prefix ? (const struct kva_buf *)(const void *)((const char *)prefix + member) : NULL;
    const struct kva_buf *second =
        (const struct kva_buf *)(const void *)((const char *)lists + member);
    if (first)
        kva_buf_append(out, first->data, first->length);
    if (first && first->length && second->length)
        kva_buf_putc(out, ',');
    kva_buf_append(out, second->data, second->length);
}

void kva_logprob_lists_json(struct kva_buf *out, const struct kva_answer *answer,
                            const struct kva_logprob_lists *prefix,
                            const struct kva_logprob_lists *lists)
{
    if (!answer->call->want_logprobs) {
        kva_buf_puts(out, "\"logprobs\":null");
        return;
    }
    if (answer->call->route == KVA_API_CHAT) {
        kva_buf_puts(out, "\"logprobs\":{\"content\":[");
        joined(out, NULL, lists, offsetof(struct kva_logprob_lists, tokens));
        kva_buf_puts(out, "],\"refusal\":null}");
        return;
    }
    kva_buf_puts(out, "\"logprobs\":{\"tokens\":[");
    joined(out, prefix, lists, offsetof(struct kva_logprob_lists, tokens));
    kva_buf_puts(out, "],\"token_logprobs\":[");
    joined(out, prefix, lists, offsetof(struct kva_logprob_lists, logprobs));
    kva_buf_puts(out, "],\"top_logprobs\":[");
    joined(out, prefix, lists, offsetof(struct kva_logprob_lists, top));
    kva_buf_puts(out, "],\"text_offset\":[");
    joined(out, prefix, lists, offsetof(struct kva_logprob_lists, offsets));
    kva_buf_puts(out, "]}");
}

static void vllm_logprob(struct kva_buf *out, const struct kva_answer *answer,
                         const struct kva_logprob *logprob, bool first)
{
    size_t length;
    const char *bytes = token_bytes(answer, logprob->token, &length);
    kva_buf_printf(out, "%s\"%u\":{\"logprob\":", first ? "" : ",", logprob->token);
    kva_json_double(out, logprob->logprob);
    kva_buf_printf(out, ",\"rank\":%u,\"decoded_token\":", logprob->rank);
    kva_buf_json_string(out, bytes, length);
    kva_buf_putc(out, '}');
}

void kva_prompt_logprobs_json(struct kva_buf *out, const struct kva_answer *answer,
                              uint32_t prompt_index, const struct kva_prompt_logprob *entries,
                              uint32_t count)
{
    (void)prompt_index;
    uint32_t wanted = (uint32_t)answer->call->prompt_logprobs_asked;
    kva_buf_puts(out, "[null");
    for (uint32_t i = 0; i < count; i++) {
        kva_buf_puts(out, ",{");
        vllm_logprob(out, answer, &entries[i].actual, true);
        for (uint32_t j = 0; j < kva_min_u32(entries[i].top_count, wanted); j++) {
            if (entries[i].top[j].token != entries[i].actual.token)
                vllm_logprob(out, answer, &entries[i].top[j], false);
        }
        kva_buf_putc(out, '}');
    }
    kva_buf_putc(out, ']');
}

void kva_echo_logprobs(struct kva_answer *answer, uint32_t prompt_index,
                       const struct kva_prompt_logprob *entries, uint32_t count)
{
    const struct kva_api_prompt *prompt = &answer->call->prompts[prompt_index];
    struct kva_logprob_lists *lists = &answer->prompts[prompt_index].logprobs;
    struct kva_detok detok;
    struct kva_buf text;
    uint64_t characters = 0;
    kva_buf_init(&text, (size_t)1 << 20);
    kva_detok_init(&detok, answer->config->tokenizer, answer->call->skip_special);
    for (uint32_t i = 0; i < prompt->id_count; i++) {
        const struct kva_prompt_logprob *entry = i > 0 && i <= count ? &entries[i - 1] : NULL;
        kva_logprob_lists_add(lists, answer, prompt->ids[i], entry ? &entry->actual : NULL,
                              entry ? entry->top : NULL, entry ? entry->top_count : 0, characters);
        kva_buf_clear(&text);
        kva_detok_push(&detok, (int32_t)prompt->ids[i], &text);
        characters += kva_count_characters(text.data, text.length);
    }
    kva_buf_finish(&text);
}
