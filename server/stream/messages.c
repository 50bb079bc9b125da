/* messages.c - answers as Anthropic's Messages API has them: blocks, and events about them.
 *
 * A reply is at most one block of thinking, one of text before each call and behind the last, and one
 * of tool_use for each call, in the order of the reply. A block ends before the next one begins. */
#include "server/stream/internal.h"

#include <string.h>

static const char *stop_reason(const struct kva_choice_out *choice)
{
    if (choice->stops.matched >= 0)
        return "stop_sequence";
    if (strcmp(choice->finish_reason, "length") == 0)
        return "max_tokens";
    return strcmp(choice->finish_reason, "tool_calls") == 0 ? "tool_use" : "end_turn";
}

/* "stop_reason":...,"stop_sequence":... */
static void put_stop(struct kva_buf *out, const struct kva_answer *answer,
                     const struct kva_choice_out *choice)
{
    kva_buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(choice));
    if (choice->stops.matched >= 0) {
        const struct kva_api_text *stop = &answer->call->stops[choice->stops.matched];
        kva_buf_json_string(out, stop->data, stop->length);
    } else {
        kva_buf_puts(out, "null");
    }
}

/* What was cached is not among the input tokens there. */
static void put_usage(struct kva_buf *out, const struct kva_answer *answer)
{
    struct kva_answer_summary sum;
    kva_answer_get_summary(answer, &sum);
    kva_buf_printf(out,
                   "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,"
                   "\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu",
                   (unsigned long long)(sum.prompt_tokens - sum.cached_tokens),
                   (unsigned long long)sum.cached_tokens, (unsigned long long)sum.output_tokens);
    if (answer->call->report || kva_answer_truncated(answer) > 0)
        kva_extras_json(out, answer);
    kva_buf_putc(out, '}');
}

/* --- the document ---------------------------------------------------------------------------- */

static void put_head(struct kva_buf *out, const struct kva_answer *answer)
{
    const char *model = answer->call->model;
    kva_buf_printf(
        out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", answer->id);
    kva_buf_json_string(out, model, strlen(model));
    kva_buf_puts(out, ",\"content\":[");
}

/* A call that was cut has no input that JSON could hold. */
static void tool_block(struct kva_buf *out, const struct kva_call_out *call, bool with_input)
{
    struct kva_json_limits limits;
    kva_json_limits_default(&limits);
    bool valid = with_input && kva_json_check(call->arguments.data, call->arguments.length, &limits,
                                              NULL) == KVA_OK;
    kva_buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", call->id);
    kva_buf_json_string(out, call->name, strlen(call->name));
    kva_buf_puts(out, ",\"input\":");
    kva_buf_append(out, valid ? call->arguments.data : "{}", valid ? call->arguments.length : 2);
    kva_buf_putc(out, '}');
}

/* Where the text before a call ends, or behind all of them. */
static size_t text_end(const struct kva_choice_out *choice, uint32_t call)
{
    return call < choice->call_count ? choice->calls[call].text_before : choice->text.length;
}

void kva_anthropic_json(struct kva_buf *out, const struct kva_answer *answer)
{
    const struct kva_choice_out *choice = &answer->prompts[0].choices[0];
    const char *comma = "";
    put_head(out, answer);
    if (choice->reasoning.length > 0) {
        kva_buf_puts(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        kva_buf_json_string(out, choice->reasoning.data, choice->reasoning.length);
        kva_buf_putc(out, '}');
        comma = ",";
    }
    for (uint32_t i = 0; i <= choice->call_count; i++) {
        size_t from = i > 0 ? choice->calls[i - 1].text_before : 0, to = text_end(choice, i);
        if (to > from) {
            kva_buf_printf(out, "%s{\"type\":\"text\",\"text\":", comma);
            kva_buf_json_string(out, choice->text.data + from, to - from);
            kva_buf_putc(out, '}');
            comma = ",";
        }
        if (i == choice->call_count)
            break;
        kva_buf_puts(out, comma);
        tool_block(out, &choice->calls[i], true);
        comma = ",";
    }
    kva_buf_puts(out, "],");
    put_stop(out, answer, choice);
    kva_buf_putc(out, ',');
    put_usage(out, answer);
    kva_buf_putc(out, '}');
}

/* --- events ---------------------------------------------------------------------------------- */

static void begin(struct kva_buf *out, const char *type)
{
    kva_buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end(struct kva_buf *out)
{
    kva_buf_puts(out, "}\n\n");
}

static void stop_block(struct kva_buf *out, struct kva_choice_out *choice)
{
    if (choice->open_block < 0)
        return;
    begin(out, "content_block_stop");
    kva_buf_printf(out, ",\"index\":%d", choice->open_block);
    end(out);
    choice->open_block = choice->message_item = -1;
}

static int32_t begin_block(struct kva_buf *out, struct kva_choice_out *choice)
{
    stop_block(out, choice);
    begin(out, "content_block_start");
    kva_buf_printf(out, ",\"index\":%u,\"content_block\":", choice->items);
    choice->open_block = (int32_t)choice->items++;
    return choice->open_block;
}

/* Bytes [*told, to) of the text, in the block that is open. */
static void put_delta(struct kva_buf *out, const struct kva_choice_out *choice, const char *type,
                      const char *member, const struct kva_buf *text, size_t *told, size_t to)
{
    begin(out, "content_block_delta");
    kva_buf_printf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", choice->open_block,
                   type, member);
    kva_buf_json_string(out, text->data + *told, to - *told);
    kva_buf_putc(out, '}');
    end(out);
    *told = to;
}

static void tell_thinking(struct kva_buf *out, struct kva_choice_out *choice)
{
    if (choice->reasoning.length == choice->reasoning_told)
        return;
    if (choice->reasoning_item < 0 || choice->reasoning_item != choice->open_block) {
        choice->reasoning_item = begin_block(out, choice);
        kva_buf_puts(out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
        end(out);
    }
    put_delta(out, choice, "thinking_delta", "thinking", &choice->reasoning,
              &choice->reasoning_told, choice->reasoning.length);
}

/* What comes before a call, or behind all of them. */
static void tell_text(struct kva_buf *out, struct kva_choice_out *choice, uint32_t call)
{
    size_t to = text_end(choice, call);
    if (choice->text_told >= to)
        return;
    if (choice->message_item < 0) {
        choice->message_item = begin_block(out, choice);
        kva_buf_puts(out, "{\"type\":\"text\",\"text\":\"\"}");
        end(out);
    }
    put_delta(out, choice, "text_delta", "text", &choice->text, &choice->text_told, to);
}

static void tell_call(struct kva_buf *out, struct kva_choice_out *choice, uint32_t index)
{
    struct kva_call_out *call = &choice->calls[index];
    if (!call->opened) {
        call->opened = true;
        call->item = begin_block(out, choice);
        tool_block(out, call, false);
        end(out);
    }
    if (call->told < call->arguments.length)
        put_delta(out, choice, "input_json_delta", "partial_json", &call->arguments, &call->told,
                  call->arguments.length);
}

static void open_message(struct kva_buf *out, const struct kva_answer *answer,
                         struct kva_choice_out *choice)
{
    choice->begun = true;
    choice->reasoning_item = choice->message_item = choice->open_block = -1;
    begin(out, "message_start");
    kva_buf_puts(out, ",\"message\":");
    put_head(out, answer);
    kva_buf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(out, answer);
    kva_buf_putc(out, '}');
    end(out);
}

void kva_anthropic_events(struct kva_buf *out, struct kva_answer *answer,
                          struct kva_choice_out *choice, bool final)
{
    if (!choice->begun)
        open_message(out, answer, choice);
    tell_thinking(out, choice);
    for (uint32_t i = 0; i <= choice->call_count; i++) {
        tell_text(out, choice, i);
        if (i < choice->call_count)
            tell_call(out, choice, i);
    }
    kva_logprob_lists_clear(&choice->logprobs);
    if (!final)
        return;
    choice->final_sent = true;
    stop_block(out, choice);
}

void kva_anthropic_last_events(struct kva_buf *out, const struct kva_answer *answer)
{
    begin(out, "message_delta");
    kva_buf_puts(out, ",\"delta\":{");
    put_stop(out, answer, &answer->prompts[0].choices[0]);
    kva_buf_puts(out, "},");
    put_usage(out, answer);
    end(out);
    begin(out, "message_stop");
    end(out);
}
