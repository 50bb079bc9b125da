/* style.c - the styles of calls, and which of them a chat template shows. */
#include "text/reply/internal.h"

#include <string.h>

const struct kva_reply_syntax kva_reply_syntaxes[KVA_REPLY_STYLE_COUNT] = {
    [KVA_REPLY_NONE] = {.name = "none"},
    [KVA_REPLY_HERMES] = {.name = "hermes",
                          .marker = "<tool_call>",
                          .closing = "</tool_call>",
                          .arguments = "arguments",
                          .before = "<tool_call>\n",
                          .after = "\n</tool_call>",
                          .separator = "\n"},
    [KVA_REPLY_LLAMA3] = {.name = "llama3",
                          .marker = "<|python_tag|>",
                          .arguments = "parameters",
                          .before = "",
                          .after = ""},
    [KVA_REPLY_MISTRAL] = {.name = "mistral",
                           .marker = "[TOOL_CALLS]",
                           .arguments = "arguments",
                           .before = "",
                           .after = "",
                           .separator = ", ",
                           .array = true},
    [KVA_REPLY_XML] = {.name = "xml",
                       .marker = "<tool_call>",
                       .closing = "</tool_call>",
                       .before = "<tool_call>\n",
                       .after = "\n</tool_call>",
                       .separator = "\n",
                       .xml = true},
    [KVA_REPLY_JSON] = {.name = "json", .arguments = "arguments", .before = "", .after = ""},
};

const char *kva_reply_style_name(enum kva_reply_style style)
{
    return kva_reply_syntaxes[style].name;
}

static bool has(const char *source, size_t length, const char *word)
{
    return memmem(source, length, word, strlen(word)) != NULL;
}

void kva_reply_read_template(const char *source, size_t length, struct kva_reply_traits *ret)
{
    *ret = (struct kva_reply_traits){
        .style = KVA_REPLY_JSON,
        .thinks = has(source, length, "<think>") || has(source, length, "</think>"),
    };
    /* Some write XML between the same marks; one of its kinds is known here. */
    if (has(source, length, KVA_REPLY_FUNCTION) && has(source, length, KVA_REPLY_PARAMETER))
        ret->style = KVA_REPLY_XML;
    else if (has(source, length, "<tool_call>") && !has(source, length, KVA_REPLY_FUNCTION) &&
             !has(source, length, "<arg_key>"))
        ret->style = KVA_REPLY_HERMES;
    else if (has(source, length, "[TOOL_CALLS]"))
        ret->style = KVA_REPLY_MISTRAL;
    else if (has(source, length, "<|python_tag|>") ||
             (has(source, length, "<|start_header_id|>") && has(source, length, "\"parameters\"")))
        ret->style = KVA_REPLY_LLAMA3;
}

bool kva_reply_is_marker(enum kva_reply_style style, bool thinks, const char *text, size_t length)
{
    const struct kva_reply_syntax *syntax = &kva_reply_syntaxes[style];
    const char *const words[] = {
        syntax->marker,
        syntax->closing,
        syntax->array ? KVA_REPLY_ARGS : NULL,
        syntax->array ? KVA_REPLY_CALL_ID : NULL,
        thinks ? KVA_REPLY_THINK : NULL,
        thinks ? KVA_REPLY_THINK_END : NULL,
    };
    for (size_t i = 0; i < KVA_COUNT_OF(words); i++) {
        if (words[i] && strlen(words[i]) == length && memcmp(words[i], text, length) == 0)
            return true;
    }
    return false;
}

bool kva_reply_is_thinking(const char *prompt, size_t length, size_t begun)
{
    const size_t mark = strlen(KVA_REPLY_THINK), end = strlen(KVA_REPLY_THINK_END);
    for (size_t at = length; at > begun; at--) {
        const char *here = prompt + at - 1;
        size_t rest = length - (at - 1);
        if (rest >= mark && memcmp(here, KVA_REPLY_THINK, mark) == 0)
            return true;
        if (rest >= end && memcmp(here, KVA_REPLY_THINK_END, end) == 0)
            return false;
    }
    while (begun > 0 && kva_reply_is_space(prompt[begun - 1]))
        begun--;
    return begun >= mark && memcmp(prompt + begun - mark, KVA_REPLY_THINK, mark) == 0;
}
