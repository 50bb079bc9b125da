/* responses.c - answers as the Responses API has them: items, and events about them.
 *
 * A reply is at most one item of reasoning and one message, and an item for each call, in the order
 * in which they began. The message stays open to the end: what follows a call is its text too. */
#include "server/stream/internal.h"

#include <string.h>

/* --- items ----------------------------------------------------------------------------------- */

static const char *suffix(const struct kva_answer *answer)
{
    return answer->id + strlen("resp_");
}

static void put_string(struct kva_buf *out, const char *name, const struct kva_buf *text)
{
    kva_buf_printf(out, "\"%s\":", name);
    kva_buf_json_string(out, text->data, text->length);
}

static void reasoning_item(struct kva_buf *out, const struct kva_answer *answer,
                           const struct kva_choice_out *choice, const char *status)
{
    bool open = strcmp(status, "in_progress") == 0;
    kva_buf_printf(out,
                   "{\"id\":\"rs_%s\",\"type\":\"reasoning\",\"status\":\"%s\",\"summary\":[],"
                   "\"content\":[",
                   suffix(answer), status);
    if (!open) {
        kva_buf_puts(out, "{\"type\":\"reasoning_text\",");
        put_string(out, "text", &choice->reasoning);
        kva_buf_putc(out, '}');
    }
    kva_buf_puts(out, "]}");
}

static void text_part(struct kva_buf *out, const struct kva_choice_out *choice, bool with_text)
{
    static const struct kva_buf none;
    kva_buf_puts(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
    if (with_text)
        kva_buf_append(out, choice->logprobs.tokens.data, choice->logprobs.tokens.length);
    kva_buf_puts(out, "],");
    put_string(out, "text", with_text ? &choice->text : &none);
    kva_buf_putc(out, '}');
}

static void message_item(struct kva_buf *out, const struct kva_answer *answer,
                         const struct kva_choice_out *choice, const char *status)
{
    kva_buf_printf(out,
                   "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\","
                   "\"status\":\"%s\",\"content\":[",
                   suffix(answer), status);
    if (strcmp(status, "in_progress") != 0)
        text_part(out, choice, true);
    kva_buf_puts(out, "]}");
}

static void call_item(struct kva_buf *out, const struct kva_call_out *call, const char *status)
{
    static const struct kva_buf none;
    bool open = strcmp(status, "in_progress") == 0;
    kva_buf_printf(out,
                   "{\"id\":\"fc_%s\",\"type\":\"function_call\",\"status\":\"%s\","
                   "\"call_id\":\"%s\",\"name\":",
                   call->id, status, call->id);
    kva_buf_json_string(out, call->name, strlen(call->name));
    kva_buf_putc(out, ',');
    put_string(out, "arguments", open ? &none : &call->arguments);
    kva_buf_putc(out, '}');
}

static const char *end_status(const struct kva_choice_out *choice)
{
    bool cut = choice->finish_reason && strcmp(choice->finish_reason, "length") == 0;
    return cut ? "incomplete" : "completed";
}

/* Of the last call, which a stop string may have cut in an answer that is whole. */
static const char *call_status(const struct kva_choice_out *choice)
{
    return kva_choice_call_is_cut(choice) ? "incomplete" : end_status(choice);
}

static void items(struct kva_buf *out, const struct kva_answer *answer,
                  const struct kva_choice_out *choice)
{
    const char *comma = "";
    bool message =
        choice->text.length > 0 || (choice->call_count == 0 && choice->reasoning.length == 0);
    if (choice->reasoning.length > 0) {
        reasoning_item(out, answer, choice, "completed");
        comma = ",";
    }
    for (uint32_t i = 0; i <= choice->call_count; i++) {
        if (message && choice->message_at == i) {
            kva_buf_puts(out, comma);
            message_item(out, answer, choice, end_status(choice));
            comma = ",";
        }
        if (i == choice->call_count)
            break;
        kva_buf_puts(out, comma);
        call_item(out, &choice->calls[i],
                  i + 1 == choice->call_count ? call_status(choice) : "completed");
        comma = ",";
    }
}

/* --- the response ---------------------------------------------------------------------------- */

static void usage(struct kva_buf *out, const struct kva_answer *answer)
{
    struct kva_answer_summary sum;
    kva_answer_get_summary(answer, &sum);
    kva_buf_printf(out,
                   "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu,"
                   "\"cache_write_tokens\":0},\"output_tokens\":%llu,\"output_tokens_details\":"
                   "{\"reasoning_tokens\":%llu},\"total_tokens\":%llu",
                   (unsigned long long)sum.prompt_tokens, (unsigned long long)sum.cached_tokens,
                   (unsigned long long)sum.output_tokens,
                   (unsigned long long)kva_answer_reasoning_tokens(answer),
                   (unsigned long long)(sum.prompt_tokens + sum.output_tokens));
    if (answer->call->report || kva_answer_truncated(answer) > 0)
        kva_extras_json(out, answer);
    kva_buf_putc(out, '}');
}

static void response(struct kva_buf *out, const struct kva_answer *answer, bool over)
{
    const struct kva_api_call *call = answer->call;
    const struct kva_choice_out *choice = &answer->prompts[0].choices[0];
    const char *status = over ? end_status(choice) : "in_progress";
    bool cut = strcmp(status, "incomplete") == 0;
    kva_buf_printf(out,
                   "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\","
                   "\"background\":false,\"error\":null,\"incomplete_details\":%s,\"model\":",
                   answer->id, (long long)answer->created_unix_s, status,
                   cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    kva_buf_json_string(out, call->model, strlen(call->model));
    kva_buf_puts(out, call->echoed);
    kva_buf_puts(out, ",\"output\":[");
    if (over)
        items(out, answer, choice);
    kva_buf_puts(out, "],\"usage\":");
    if (over)
        usage(out, answer);
    else
        kva_buf_puts(out, "null");
    kva_buf_putc(out, '}');
}

void kva_response_json(struct kva_buf *out, const struct kva_answer *answer)
{
    response(out, answer, true);
}

/* --- events ---------------------------------------------------------------------------------- */

static void begin(struct kva_buf *out, struct kva_choice_out *choice, const char *type)
{
    kva_buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", type, type,
                   choice->sequence++);
}

static void end(struct kva_buf *out)
{
    kva_buf_puts(out, "}\n\n");
}

static void response_event(struct kva_buf *out, const struct kva_answer *answer,
                           struct kva_choice_out *choice, const char *type, bool over)
{
    begin(out, choice, type);
    kva_buf_puts(out, ",\"response\":");
    response(out, answer, over);
    end(out);
}

/* An event about an item, up to what is particular to it. */
static void begin_about(struct kva_buf *out, struct kva_choice_out *choice, const char *type,
                        const char *kind, const char *id, int32_t index)
{
    begin(out, choice, type);
    kva_buf_printf(out, ",\"item_id\":\"%s_%s\",\"output_index\":%d", kind, id, index);
}

static void begin_item(struct kva_buf *out, struct kva_choice_out *choice, const char *type,
                       int32_t index)
{
    begin(out, choice, type);
    kva_buf_printf(out, ",\"output_index\":%d,\"item\":", index);
}

static void open_reasoning(struct kva_buf *out, const struct kva_answer *answer,
                           struct kva_choice_out *choice)
{
    choice->reasoning_item = (int32_t)choice->items++;
    begin_item(out, choice, "response.output_item.added", choice->reasoning_item);
    reasoning_item(out, answer, choice, "in_progress");
    end(out);
    begin_about(out, choice, "response.content_part.added", "rs", suffix(answer),
                choice->reasoning_item);
    kva_buf_puts(out, ",\"content_index\":0,\"part\":{\"type\":\"reasoning_text\",\"text\":\"\"}");
    end(out);
}

static void close_reasoning(struct kva_buf *out, const struct kva_answer *answer,
                            struct kva_choice_out *choice)
{
    if (choice->reasoning_item < 0 || choice->reasoning_closed)
        return;
    choice->reasoning_closed = true;
    begin_about(out, choice, "response.reasoning_text.done", "rs", suffix(answer),
                choice->reasoning_item);
    kva_buf_puts(out, ",\"content_index\":0,");
    put_string(out, "text", &choice->reasoning);
    end(out);
    begin_about(out, choice, "response.content_part.done", "rs", suffix(answer),
                choice->reasoning_item);
    kva_buf_puts(out, ",\"content_index\":0,\"part\":{\"type\":\"reasoning_text\",");
    put_string(out, "text", &choice->reasoning);
    kva_buf_putc(out, '}');
    end(out);
    begin_item(out, choice, "response.output_item.done", choice->reasoning_item);
    reasoning_item(out, answer, choice, "completed");
    end(out);
}

static void open_message(struct kva_buf *out, const struct kva_answer *answer,
                         struct kva_choice_out *choice)
{
    close_reasoning(out, answer, choice);
    choice->message_item = (int32_t)choice->items++;
    begin_item(out, choice, "response.output_item.added", choice->message_item);
    message_item(out, answer, choice, "in_progress");
    end(out);
    begin_about(out, choice, "response.content_part.added", "msg", suffix(answer),
                choice->message_item);
    kva_buf_puts(out, ",\"content_index\":0,\"part\":");
    text_part(out, choice, false);
    end(out);
}

static void close_message(struct kva_buf *out, const struct kva_answer *answer,
                          struct kva_choice_out *choice)
{
    if (choice->message_item < 0)
        return;
    begin_about(out, choice, "response.output_text.done", "msg", suffix(answer),
                choice->message_item);
    kva_buf_puts(out, ",\"content_index\":0,\"logprobs\":[");
    kva_buf_append(out, choice->logprobs.tokens.data, choice->logprobs.tokens.length);
    kva_buf_puts(out, "],");
    put_string(out, "text", &choice->text);
    end(out);
    begin_about(out, choice, "response.content_part.done", "msg", suffix(answer),
                choice->message_item);
    kva_buf_puts(out, ",\"content_index\":0,\"part\":");
    text_part(out, choice, true);
    end(out);
    begin_item(out, choice, "response.output_item.done", choice->message_item);
    message_item(out, answer, choice, end_status(choice));
    end(out);
}

static void close_call(struct kva_buf *out, struct kva_choice_out *choice, uint32_t index,
                       const char *status)
{
    struct kva_call_out *call = &choice->calls[index];
    begin_about(out, choice, "response.function_call_arguments.done", "fc", call->id, call->item);
    kva_buf_puts(out, ",\"name\":");
    kva_buf_json_string(out, call->name, strlen(call->name));
    kva_buf_putc(out, ',');
    put_string(out, "arguments", &call->arguments);
    end(out);
    begin_item(out, choice, "response.output_item.done", call->item);
    call_item(out, call, status);
    end(out);
}

/* Entries of tokens that no delta has had. */
static void tell_logprobs(struct kva_buf *out, struct kva_choice_out *choice)
{
    const struct kva_buf *all = &choice->logprobs.tokens;
    if (choice->logprobs_told == all->length)
        return;
    const size_t from = choice->logprobs_told + (choice->logprobs_told > 0); /* a comma */
    kva_buf_append(out, all->data + from, all->length - from);
    choice->logprobs_told = all->length;
}

static void tell_text(struct kva_buf *out, const struct kva_answer *answer,
                      struct kva_choice_out *choice)
{
    begin_about(out, choice, "response.output_text.delta", "msg", suffix(answer),
                choice->message_item);
    kva_buf_puts(out, ",\"content_index\":0,\"logprobs\":[");
    tell_logprobs(out, choice);
    kva_buf_puts(out, "],\"delta\":");
    kva_buf_json_string(out, choice->text.data + choice->text_told,
                        choice->text.length - choice->text_told);
    end(out);
    choice->text_told = choice->text.length;
}

static void tell_call(struct kva_buf *out, const struct kva_answer *answer,
                      struct kva_choice_out *choice, uint32_t index)
{
    struct kva_call_out *call = &choice->calls[index];
    if (!call->opened) {
        close_reasoning(out, answer, choice);
        if (index > 0)
            close_call(out, choice, index - 1, "completed");
        call->opened = true;
        call->item = (int32_t)choice->items++;
        begin_item(out, choice, "response.output_item.added", call->item);
        call_item(out, call, "in_progress");
        end(out);
    }
    if (call->told == call->arguments.length)
        return;
    begin_about(out, choice, "response.function_call_arguments.delta", "fc", call->id, call->item);
    kva_buf_puts(out, ",\"delta\":");
    kva_buf_json_string(out, call->arguments.data + call->told,
                        call->arguments.length - call->told);
    end(out);
    call->told = call->arguments.length;
}

void kva_response_events(struct kva_buf *out, struct kva_answer *answer,
                         struct kva_choice_out *choice, bool final)
{
    if (!choice->begun) {
        choice->begun = true;
        choice->reasoning_item = choice->message_item = -1;
        response_event(out, answer, choice, "response.created", false);
        response_event(out, answer, choice, "response.in_progress", false);
    }
    if (choice->reasoning.length > choice->reasoning_told) {
        if (choice->reasoning_item < 0)
            open_reasoning(out, answer, choice);
        begin_about(out, choice, "response.reasoning_text.delta", "rs", suffix(answer),
                    choice->reasoning_item);
        kva_buf_puts(out, ",\"content_index\":0,\"delta\":");
        kva_buf_json_string(out, choice->reasoning.data + choice->reasoning_told,
                            choice->reasoning.length - choice->reasoning_told);
        end(out);
        choice->reasoning_told = choice->reasoning.length;
    }
    bool empty = final && choice->call_count == 0 && choice->reasoning.length == 0;
    for (uint32_t i = 0; i <= choice->call_count; i++) {
        if (choice->message_at == i && choice->message_item < 0 &&
            (choice->text.length > 0 || empty))
            open_message(out, answer, choice);
        if (i == choice->message_at && choice->text.length > choice->text_told)
            tell_text(out, answer, choice);
        if (i < choice->call_count)
            tell_call(out, answer, choice, i);
    }
    if (!final)
        return;
    choice->final_sent = true;
    close_reasoning(out, answer, choice);
    if (choice->call_count > 0)
        close_call(out, choice, choice->call_count - 1, call_status(choice));
    close_message(out, answer, choice);
}

void kva_response_last_event(struct kva_buf *out, struct kva_answer *answer)
{
    struct kva_choice_out *choice = &answer->prompts[0].choices[0];
    bool cut = strcmp(end_status(choice), "incomplete") == 0;
    response_event(out, answer, choice, cut ? "response.incomplete" : "response.completed", true);
}
