/* document.c - the one JSON document of a call that is not streamed, and the usage that both forms
 * report. */
#include "server/api/json.h"
#include "server/stream/internal.h"

#include <stdlib.h>
#include <string.h>

void kva_counts_json(struct kva_buf *out, const struct kva_counts *counts)
{
    for (uint32_t i = 0; i < counts->count; i++) {
        const struct kva_counter *counter = counts->at[i].counter;
        uint64_t value = counts->at[i].value;
        kva_buf_printf(out, ",\"%s\":%llu", counter->field, (unsigned long long)value);
        if (!counter->share_field)
            continue;
        uint64_t all = value + kva_counts_of(counts, counter->others);
        kva_buf_printf(out, ",\"%s\":", counter->share_field);
        if (all > 0)
            kva_json_double(out, (double)value / (double)all);
        else
            kva_buf_puts(out, "null");
    }
}

void kva_extras_json(struct kva_buf *out, const struct kva_answer *answer)
{
    const struct kva_api_call *call = answer->call;
    struct kva_sequence_info total = {.policy = kva_kv_policy_name(call->kv.policy)};
    uint64_t cached = 0;
    uint32_t preemptions = 0;
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        const struct kva_sequence_info *info = &answer->prompts[i].info;
        if (info->policy)
            total.policy = info->policy;
        total.bytes.device += info->bytes.device;
        total.bytes.host += info->bytes.host;
        total.kept_tokens += info->kept_tokens;
        kva_counts_add_all(&total.counts, &info->counts);
        cached += info->cached_tokens;
        preemptions += answer->prompts[i].preemptions;
    }
    kva_buf_printf(out,
                   ",\"kvahead\":{\"policy\":\"%s\",\"device_bytes\":%llu,\"host_bytes\":%llu"
                   ",\"kept_tokens\":%llu",
                   total.policy, (unsigned long long)total.bytes.device,
                   (unsigned long long)total.bytes.host, (unsigned long long)total.kept_tokens);
    kva_counts_json(out, &total.counts);
    kva_buf_printf(out, ",\"cached_prompt_tokens\":%llu,\"preemptions\":%u",
                   (unsigned long long)cached, preemptions);
    kva_buf_puts(out, ",\"truncated_prompt_tokens\":[");
    for (uint32_t i = 0; i < call->prompt_count; i++)
        kva_buf_printf(out, "%s%u", i ? "," : "", call->truncated_tokens[i]);
    kva_buf_puts(out, "]}");
}

uint64_t kva_answer_reasoning_tokens(const struct kva_answer *answer)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < answer->call->prompt_count; i++) {
        for (uint32_t j = 0; j < answer->call->best_of; j++)
            total += answer->prompts[i].choices[j].reasoning_tokens;
    }
    return total;
}

void kva_usage_json(struct kva_buf *out, const struct kva_answer *answer)
{
    struct kva_answer_summary sum;
    kva_answer_get_summary(answer, &sum);
    kva_buf_printf(out, "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu",
                   (unsigned long long)sum.prompt_tokens, (unsigned long long)sum.output_tokens,
                   (unsigned long long)(sum.prompt_tokens + sum.output_tokens));
    kva_buf_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%llu}",
                   (unsigned long long)sum.cached_tokens);
    if (answer->call->chat_template->reply.thinks && answer->call->route != KVA_API_COMPLETION)
        kva_buf_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%llu}",
                       (unsigned long long)kva_answer_reasoning_tokens(answer));
    /* Truncation is always reported, asked for or not. */
    if (answer->call->report || kva_answer_truncated(answer) > 0)
        kva_extras_json(out, answer);
    kva_buf_putc(out, '}');
}

void kva_echo_text(const struct kva_answer *answer, uint32_t prompt_index, struct kva_buf *out)
{
    const struct kva_api_prompt *prompt = &answer->call->prompts[prompt_index];
    if (prompt->text) {
        kva_buf_append(out, prompt->text, prompt->text_bytes);
        return;
    }
    struct kva_detok detok;
    kva_detok_init(&detok, answer->config->tokenizer, answer->call->skip_special);
    for (uint32_t i = 0; i < prompt->id_count; i++)
        kva_detok_push(&detok, (int32_t)prompt->ids[i], out);
    kva_detok_flush(&detok, out);
}

static void ids_json(struct kva_buf *out, const char *name, const uint32_t *ids, uint32_t count)
{
    kva_buf_printf(out, ",\"%s\":[", name);
    for (uint32_t i = 0; i < count; i++)
        kva_buf_printf(out, "%s%u", i ? "," : "", ids[i]);
    kva_buf_putc(out, ']');
}

/* In a history as JSON, if they are JSON that a request could have: no key twice in an object. */
static void arguments_json(struct kva_buf *out, const struct kva_buf *arguments, bool history)
{
    struct kva_json_limits limits;
    cJSON *parsed = NULL;
    kva_json_limits_default(&limits);
    const bool json = history && kva_json_parse(arguments->data, arguments->length, &limits,
                                                &parsed, NULL) == KVA_OK;
    cJSON_Delete(parsed);
    if (json)
        kva_buf_append(out, arguments->data, arguments->length);
    else
        kva_buf_json_string(out, arguments->data, arguments->length);
}

void kva_call_json(struct kva_buf *out, const struct kva_call_out *call, const char *arguments,
                   size_t length)
{
    kva_buf_puts(out, "\"function_call\":{");
    if (!call->opened) {
        kva_buf_puts(out, "\"name\":");
        kva_buf_json_string(out, call->name, strlen(call->name));
        kva_buf_putc(out, ',');
    }
    kva_buf_puts(out, "\"arguments\":");
    kva_buf_json_string(out, arguments, length);
    kva_buf_putc(out, '}');
}

void kva_message_json(struct kva_buf *out, const struct kva_choice_out *choice, bool history)
{
    kva_buf_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (choice->call_count > 0 && choice->text.length == 0 && !history)
        kva_buf_puts(out, "null");
    else
        kva_buf_json_string(out, choice->text.data, choice->text.length);
    if (choice->reasoning.length > 0) {
        kva_buf_puts(out, ",\"reasoning_content\":");
        kva_buf_json_string(out, choice->reasoning.data, choice->reasoning.length);
    }
    if (choice->legacy && choice->call_count > 0) {
        const struct kva_call_out *call = &choice->calls[0];
        kva_buf_putc(out, ',');
        kva_call_json(out, call, call->arguments.data, call->arguments.length);
        kva_buf_puts(out, ",\"refusal\":null}");
        return;
    }
    for (uint32_t i = 0; i < choice->call_count; i++) {
        const struct kva_call_out *call = &choice->calls[i];
        kva_buf_puts(out, i ? "," : ",\"tool_calls\":[");
        kva_buf_printf(out,
                       "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", call->id);
        kva_buf_json_string(out, call->name, strlen(call->name));
        kva_buf_puts(out, ",\"arguments\":");
        arguments_json(out, &call->arguments, history);
        kva_buf_puts(out, "}}");
    }
    kva_buf_puts(out, choice->call_count > 0 ? "],\"refusal\":null}" : ",\"refusal\":null}");
}

static void content_json(struct kva_buf *out, const struct kva_answer *answer,
                         uint32_t prompt_index, const struct kva_choice_out *choice)
{
    if (answer->call->route == KVA_API_CHAT) {
        kva_buf_puts(out, "\"message\":");
        kva_message_json(out, choice, false);
        kva_buf_putc(out, ',');
        return;
    }
    kva_buf_puts(out, "\"text\":");
    if (answer->call->echo) {
        struct kva_buf text;
        kva_buf_init(&text, answer->choice_bytes_max * 2);
        kva_echo_text(answer, prompt_index, &text);
        kva_buf_append(&text, choice->text.data, choice->text.length);
        kva_buf_fail_with(out, &text);
        kva_buf_json_string(out, text.data, text.length);
        kva_buf_finish(&text);
    } else {
        kva_buf_json_string(out, choice->text.data, choice->text.length);
    }
    kva_buf_putc(out, ',');
}

/* What was asked for of the prompt: in each choice of completions, which have several prompts, and
 * once in a chat's answer. */
static void prompt_json(struct kva_buf *out, const struct kva_answer *answer, uint32_t prompt_index)
{
    const struct kva_api_call *call = answer->call;
    const struct kva_prompt_out *prompt = &answer->prompts[prompt_index];
    const struct kva_api_prompt *asked = &call->prompts[prompt_index];
    if (call->prompt_logprobs_asked >= 0 && prompt->prompt_logprobs.length > 0) {
        kva_buf_puts(out, ",\"prompt_logprobs\":");
        kva_buf_append(out, prompt->prompt_logprobs.data, prompt->prompt_logprobs.length);
    }
    if (call->return_token_ids)
        ids_json(out, "prompt_token_ids", asked->ids, asked->id_count);
}

static void choice_json(struct kva_buf *out, const struct kva_answer *answer, uint32_t prompt_index,
                        const struct kva_choice_out *choice, uint32_t index)
{
    const struct kva_api_call *call = answer->call;
    const struct kva_prompt_out *prompt = &answer->prompts[prompt_index];
    kva_buf_printf(out, "%s{\"index\":%u,", index ? "," : "", index);
    content_json(out, answer, prompt_index, choice);
    kva_logprob_lists_json(out, answer, &prompt->logprobs, &choice->logprobs);
    kva_buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", choice->finish_reason);
    if (choice->stops.matched >= 0) {
        const struct kva_api_text *stop = &call->stops[choice->stops.matched];
        kva_buf_json_string(out, stop->data, stop->length);
    } else if (choice->stop_token >= 0) {
        kva_buf_printf(out, "%lld", (long long)choice->stop_token);
    } else {
        kva_buf_puts(out, "null");
    }
    if (call->return_token_ids) {
        kva_buf_puts(out, ",\"token_ids\":[");
        kva_buf_append(out, choice->token_ids.data, choice->token_ids.length);
        kva_buf_putc(out, ']');
    }
    if (call->route != KVA_API_CHAT)
        prompt_json(out, answer, prompt_index);
    kva_buf_putc(out, '}');
}

static double mean_logprob(const struct kva_choice_out *choice)
{
    return choice->tokens ? choice->logprob_sum / choice->tokens : 0;
}

/* best_of: the highest mean log-probability first; equal ones in the order they were run. */
static int compare_choices(const void *a, const void *b)
{
    const struct kva_choice_out *left = *(const struct kva_choice_out *const *)a;
    const struct kva_choice_out *right = *(const struct kva_choice_out *const *)b;
    double x = mean_logprob(left);
    double y = mean_logprob(right);
    if (x != y)
        return x > y ? -1 : 1;
    return left->index < right->index ? -1 : 1;
}

static void prompt_choices_json(struct kva_buf *out, const struct kva_answer *answer,
                                uint32_t prompt_index)
{
    const struct kva_api_call *call = answer->call;
    const struct kva_prompt_out *prompt = &answer->prompts[prompt_index];
    const struct kva_choice_out **order = calloc(call->best_of, sizeof(*order));
    if (!order) {
        kva_buf_fail(out);
        return;
    }
    for (uint32_t i = 0; i < call->best_of; i++)
        order[i] = &prompt->choices[i];
    if (call->best_of > call->n)
        qsort(order, call->best_of, sizeof(*order), compare_choices);
    for (uint32_t i = 0; i < call->n; i++)
        choice_json(out, answer, prompt_index, order[i], prompt_index * call->n + i);
    free(order);
}

void kva_document_json(struct kva_buf *out, struct kva_answer *answer)
{
    if (answer->call->face == KVA_FACE_RESPONSES) {
        kva_response_json(out, answer);
        return;
    }
    if (answer->call->face == KVA_FACE_MESSAGES) {
        kva_anthropic_json(out, answer);
        return;
    }
    if (answer->call->face == KVA_FACE_EMBEDDINGS) {
        kva_embeddings_json(out, answer);
        return;
    }
    kva_buf_append(out, answer->head.data, answer->head.length);
    kva_buf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < answer->call->prompt_count; i++)
        prompt_choices_json(out, answer, i);
    kva_buf_putc(out, ']');
    if (answer->call->route == KVA_API_CHAT)
        prompt_json(out, answer, 0);
    kva_buf_puts(out, ",\"usage\":");
    kva_usage_json(out, answer);
    kva_buf_putc(out, '}');
}
