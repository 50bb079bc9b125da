/* template.c - what a chat template knows: read from its source, and by rendering a conversation. */
#include "server/api/fields.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

static const char *special_token(const struct kva_tokenizer *tokenizer, int32_t id)
{
    return id < 0 ? NULL : kva_tokenizer_token_string(tokenizer, id, NULL);
}

void kva_api_tell_template(const struct kva_tokenizer *tokenizer, struct kva_template_input *input)
{
    input->absent_is_none = true;
    input->bos_token = special_token(tokenizer, kva_tokenizer_bos(tokenizer));
    input->eos_token = special_token(tokenizer, kva_tokenizer_eos(tokenizer));
    input->pad_token = special_token(tokenizer, kva_tokenizer_pad(tokenizer));
    input->unk_token = special_token(tokenizer, kva_tokenizer_unk(tokenizer));
    input->now_unix_s = kva_time_unix_s();
}

/* --- calls of earlier turns ------------------------------------------------------------------ */

/* Words that no template says by itself. The id is one that Mistral's take. */
#define NAME  "kvahead_asks"
#define VALUE "kvahead_answers"

/* Whether the name and an argument of a call are in what the template makes of it, in that form. */
static bool tells_call(const struct kva_api_config *config, const struct kva_template *compiled,
                       const struct kva_reply_history *form, bool *failed)
{
    char text[512];
    snprintf(text, sizeof(text),
             "[{\"role\":\"user\",\"content\":\"a\"},"
             "{\"role\":\"assistant\",\"content\":%s,\"tool_calls\":[{\"id\":\"abcdefgh1\","
             "\"type\":\"function\",\"function\":{\"name\":\"" NAME "\",\"arguments\":%s}}]},"
             "{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh1\",\"name\":\"" NAME
             "\",\"content\":\"b\"}]",
             form->none_beside_calls ? "null" : "\"\"",
             form->arguments_as_text ? "\"{\\\"c\\\": \\\"" VALUE "\\\"}\""
                                     : "{\"c\":\"" VALUE "\"}");
    cJSON *messages = cJSON_Parse(text);
    struct kva_template_input input = {.messages = messages, .add_generation_prompt = true};
    struct kva_buf out;
    kva_api_tell_template(config->tokenizer, &input);
    kva_buf_init(&out, KVA_TEMPLATE_OUTPUT_BYTES_MAX);
    *failed = !messages ||
              kva_template_render(compiled, &input, config->template_limits, &out, NULL) != KVA_OK;
    bool told = !*failed && out.length > 0 && memmem(out.data, out.length, NAME, strlen(NAME)) &&
                memmem(out.data, out.length, VALUE, strlen(VALUE));
    kva_buf_finish(&out);
    cJSON_Delete(messages);
    return told;
}

/* The first form in which the template writes calls. One that writes none in any form, as DeepSeek's
 * where content is not none, would leave them out without a word; of one that refuses the
 * conversation whatever its form nothing is known. */
static struct kva_reply_history ask_history(const struct kva_api_config *config,
                                            const struct kva_template *compiled)
{
    bool refused = true;
    for (unsigned form = 0; form < 4; form++) {
        struct kva_reply_history history = {
            .known = true, .none_beside_calls = form & 1, .arguments_as_text = form & 2};
        bool failed;
        if (tells_call(config, compiled, &history, &failed))
            return history;
        refused = refused && failed;
    }
    return (struct kva_reply_history){.known = refused};
}

/* --- the source ------------------------------------------------------------------------------ */

/* As a string of its own: the word may be in a default text. */
static bool names_developers(const char *source, size_t length)
{
    static const char *const strings[] = {"'developer'", "\"developer\""};
    return memmem(source, length, strings[0], strlen(strings[0])) != NULL ||
           memmem(source, length, strings[1], strlen(strings[1])) != NULL;
}

static int32_t marker_of(const struct kva_api_config *config, enum kva_reply_style style)
{
    static const char *const markers[KVA_REPLY_STYLE_COUNT] = {
        [KVA_REPLY_HERMES] = "<tool_call>",
        [KVA_REPLY_LLAMA3] = "<|python_tag|>",
        [KVA_REPLY_MISTRAL] = "[TOOL_CALLS]",
        [KVA_REPLY_XML] = "<tool_call>",
    };
    const char *marker = markers[style];
    int32_t id = marker ? kva_tokenizer_lookup(config->tokenizer, marker, strlen(marker)) : -1;
    bool special = id >= 0 && (uint32_t)id < config->vocab_size &&
                   kva_tokenizer_is_special(config->tokenizer, id);
    return special ? id : -1;
}

static struct kva_api_template read_template(const struct kva_api_config *config,
                                             const struct kva_template *compiled,
                                             const enum kva_reply_style *style, const bool *thinks)
{
    struct kva_api_template t = {.compiled = compiled, .reply = {.style = KVA_REPLY_NONE}};
    size_t length = 0;
    if (compiled) {
        const char *source = kva_template_source(compiled, &length);
        kva_reply_read_template(source, length, &t.reply);
        t.takes_tools = kva_template_mentions(compiled, "tools");
        if (memmem(source, length, "tool", 4))
            t.history = ask_history(config, compiled);
        t.knows_developers = names_developers(source, length);
    }
    if (style)
        t.reply.style = *style;
    if (thinks)
        t.reply.thinks = *thinks;
    t.reply_marker = marker_of(config, t.reply.style);
    return t;
}

void kva_api_read_templates(struct kva_api_config *config, const enum kva_reply_style *style,
                            const bool *thinks)
{
    config->chat = read_template(config, config->chat.compiled, style, thinks);
    config->tool_use = read_template(config, config->tool_use.compiled, style, thinks);
}
