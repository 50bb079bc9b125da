/* frames.c - server-sent events: one frame per token that has text, as OpenAI's. */
#include "server/stream/internal.h"

#include <string.h>

static void begin(struct kva_buf *out, const struct kva_answer *answer)
{
    kva_buf_append(out, "data: ", 6);
    kva_buf_append(out, answer->head.data, answer->head.length);
}

static void end(struct kva_buf *out, const struct kva_answer *answer)
{
    const struct kva_api_call *call = answer->call;
    if (call->continuous_usage) {
        kva_buf_puts(out, ",\"usage\":");
        kva_usage_json(out, answer);
    } else if (call->include_usage) {
        kva_buf_puts(out, ",\"usage\":null");
    }
    kva_buf_append(out, "}\n\n", 3);
}

static void finish_members(struct kva_buf *out, const struct kva_answer *answer,
                           const struct kva_choice_out *choice)
{
    kva_buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", choice->finish_reason);
    if (choice->stops.matched >= 0) {
        const struct kva_api_text *stop = &answer->call->stops[choice->stops.matched];
        kva_buf_json_string(out, stop->data, stop->length);
    } else if (choice->stop_token >= 0) {
        kva_buf_printf(out, "%lld", (long long)choice->stop_token);
    } else {
        kva_buf_puts(out, "null");
    }
}

static void prompt_token_ids(struct kva_buf *out, const struct kva_answer *answer,
                             uint32_t prompt_index)
{
    const struct kva_api_prompt *prompt = &answer->call->prompts[prompt_index];
    kva_buf_puts(out, ",\"prompt_token_ids\":[");
    for (uint32_t i = 0; i < prompt->id_count; i++)
        kva_buf_printf(out, "%s%u", i ? "," : "", prompt->ids[i]);
    kva_buf_putc(out, ']');
}

/* The role, or the echoed prompt. */
static void opening_frame(struct kva_buf *out, struct kva_answer *answer, uint32_t prompt_index,
                          struct kva_choice_out *choice)
{
    const struct kva_api_call *call = answer->call;
    bool chat = call->route == KVA_API_CHAT;
    choice->begun = true;
    if (!chat && !call->echo && !call->return_token_ids)
        return;
    begin(out, answer);
    kva_buf_printf(out, ",\"choices\":[{\"index\":%u,", choice->index);
    if (chat) {
        kva_buf_puts(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
    } else {
        struct kva_logprob_lists none;
        kva_logprob_lists_init(&none, 0);
        struct kva_buf text;
        kva_buf_init(&text, answer->choice_bytes_max);
        if (call->echo)
            kva_echo_text(answer, prompt_index, &text);
        kva_buf_fail_with(out, &text);
        kva_buf_puts(out, "\"text\":");
        kva_buf_json_string(out, text.data, text.length);
        kva_buf_putc(out, ',');
        kva_logprob_lists_json(out, answer, &answer->prompts[prompt_index].logprobs, &none);
        kva_buf_finish(&text);
    }
    kva_buf_puts(out, ",\"finish_reason\":null");
    if (call->return_token_ids && !chat)
        prompt_token_ids(out, answer, prompt_index);
    kva_buf_puts(out, "}]");
    if (call->return_token_ids && chat && choice->index == 0)
        prompt_token_ids(out, answer, prompt_index);
    end(out, answer);
}

/* The members of a chat's delta: content and reasoning. */
static void put_delta(struct kva_buf *out, const struct kva_choice_out *choice)
{
    kva_buf_puts(out, "\"delta\":{");
    if (choice->reasoning.length > 0) {
        kva_buf_puts(out, "\"reasoning_content\":");
        kva_buf_json_string(out, choice->reasoning.data, choice->reasoning.length);
    }
    if (choice->text.length > 0) {
        kva_buf_puts(out, choice->reasoning.length > 0 ? ",\"content\":" : "\"content\":");
        kva_buf_json_string(out, choice->text.data, choice->text.length);
    }
    kva_buf_puts(out, "},");
}

/* What else is buffered of the choice since its last frame; all is empty afterwards. */
static void put_lists(struct kva_buf *out, const struct kva_answer *answer,
                      struct kva_choice_out *choice)
{
    if (choice->logprobs.count > 0)
        kva_logprob_lists_json(out, answer, NULL, &choice->logprobs);
    else
        kva_buf_puts(out, "\"logprobs\":null");
    if (answer->call->return_token_ids) {
        kva_buf_puts(out, ",\"token_ids\":[");
        kva_buf_append(out, choice->token_ids.data, choice->token_ids.length);
        kva_buf_putc(out, ']');
    }
    kva_buf_clear(&choice->text);
    kva_buf_clear(&choice->reasoning);
    kva_buf_clear(&choice->token_ids);
    kva_logprob_lists_clear(&choice->logprobs);
}

static void put_buffered(struct kva_buf *out, const struct kva_answer *answer,
                         struct kva_choice_out *choice)
{
    kva_buf_printf(out, ",\"choices\":[{\"index\":%u,", choice->index);
    if (answer->call->route == KVA_API_CHAT) {
        put_delta(out, choice);
    } else {
        kva_buf_puts(out, "\"text\":");
        kva_buf_json_string(out, choice->text.data, choice->text.length);
        kva_buf_putc(out, ',');
    }
    put_lists(out, answer, choice);
}

/* A call's delta: first who is called, then the arguments, piece by piece. */
static void tool_call_json(struct kva_buf *out, const struct kva_call_out *call, uint32_t index,
                           const char *arguments, size_t length)
{
    kva_buf_printf(out, "\"tool_calls\":[{\"index\":%u,", index);
    if (!call->opened) {
        kva_buf_printf(out,
                       "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", call->id);
        kva_buf_json_string(out, call->name, strlen(call->name));
        kva_buf_putc(out, ',');
    } else {
        kva_buf_puts(out, "\"function\":{");
    }
    kva_buf_puts(out, "\"arguments\":");
    kva_buf_json_string(out, arguments, length);
    kva_buf_puts(out, "}}]");
}

static void call_frame(struct kva_buf *out, const struct kva_answer *answer,
                       struct kva_choice_out *choice, uint32_t index)
{
    struct kva_call_out *call = &choice->calls[index];
    size_t length = call->opened ? call->arguments.length - call->told : 0;
    const char *arguments = length > 0 ? call->arguments.data + call->told : "";
    begin(out, answer);
    kva_buf_printf(out, ",\"choices\":[{\"index\":%u,\"delta\":{", choice->index);
    if (choice->legacy)
        kva_call_json(out, call, arguments, length);
    else
        tool_call_json(out, call, index, arguments, length);
    kva_buf_puts(out, "},");
    call->opened = true;
    call->told += length;
    put_lists(out, answer, choice);
    kva_buf_puts(out, ",\"finish_reason\":null}]");
    end(out, answer);
}

void kva_frame_json(struct kva_buf *out, struct kva_answer *answer, uint32_t prompt_index,
                    struct kva_choice_out *choice, bool final)
{
    if (answer->call->face == KVA_FACE_RESPONSES) {
        kva_response_events(out, answer, choice, final);
        return;
    }
    if (answer->call->face == KVA_FACE_MESSAGES) {
        kva_anthropic_events(out, answer, choice, final);
        return;
    }
    if (!choice->begun)
        opening_frame(out, answer, prompt_index, choice);
    if (choice->text.length > 0 || choice->reasoning.length > 0) {
        begin(out, answer);
        put_buffered(out, answer, choice);
        kva_buf_puts(out, ",\"finish_reason\":null}]");
        end(out, answer);
    }
    for (uint32_t i = 0; i < choice->call_count; i++) {
        while (!choice->calls[i].opened ||
               choice->calls[i].told < choice->calls[i].arguments.length)
            call_frame(out, answer, choice, i);
    }
    if (!final)
        return;
    choice->final_sent = true;
    begin(out, answer);
    put_buffered(out, answer, choice);
    finish_members(out, answer, choice);
    kva_buf_puts(out, "}]");
    end(out, answer);
}

void kva_last_frames(struct kva_buf *out, struct kva_answer *answer)
{
    if (answer->call->face == KVA_FACE_RESPONSES) {
        kva_response_last_event(out, answer);
        return;
    }
    if (answer->call->face == KVA_FACE_MESSAGES) {
        kva_anthropic_last_events(out, answer);
        return;
    }
    if (answer->call->include_usage) {
        begin(out, answer);
        kva_buf_puts(out, ",\"choices\":[],\"usage\":");
        kva_usage_json(out, answer);
        kva_buf_puts(out, "}\n\n");
    }
    kva_buf_puts(out, "data: [DONE]\n\n");
}
