/* reply.c - content, reasoning and calls of a choice, from its text. */
#include "server/stream/internal.h"

#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_reasoning(void *opaque, const char *text, size_t length)
{
    struct kva_choice_out *choice = opaque;
    kva_buf_append(&choice->reasoning, text, length);
}

static void on_content(void *opaque, const char *text, size_t length)
{
    struct kva_choice_out *choice = opaque;
    if (choice->text.length == 0)
        choice->message_at = choice->call_count;
    kva_buf_append(&choice->text, text, length);
}

/* Mistral's templates refuse any id but one of nine letters and digits; those of others take it. */
static bool make_id(char *id, size_t size)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    unsigned char random[9];
    if (RAND_bytes(random, sizeof(random)) != 1 || size <= sizeof(random))
        return false;
    for (size_t i = 0; i < sizeof(random); i++)
        id[i] = digits[random[i] % (sizeof(digits) - 1)];
    id[sizeof(random)] = '\0';
    return true;
}

static void on_call(void *opaque, const char *name, size_t length)
{
    struct kva_choice_out *choice = opaque;
    struct kva_call_out *calls =
        realloc(choice->calls, ((size_t)choice->call_count + 1) * sizeof(*calls));
    if (!calls) {
        choice->reply_failed = true;
        return;
    }
    choice->calls = calls;
    struct kva_call_out *call = &calls[choice->call_count];
    *call = (struct kva_call_out){.text_before = choice->text.length};
    for (uint32_t i = 0; i < choice->name_count; i++) {
        if (strlen(choice->names[i]) == length && memcmp(choice->names[i], name, length) == 0)
            call->name = choice->names[i];
    }
    kva_buf_init(&call->arguments, choice->text.max_bytes);
    choice->call_count++;
    if (!make_id(call->id, sizeof(call->id)) || !call->name)
        choice->reply_failed = true;
}

static void on_arguments(void *opaque, const char *text, size_t length)
{
    struct kva_choice_out *choice = opaque;
    if (choice->call_count > 0)
        kva_buf_append(&choice->calls[choice->call_count - 1].arguments, text, length);
}

/* A grammar that binds the answer from its first token on has no room for a thought, though the
 * prompt may end in one. */
static bool may_think(const struct kva_answer *answer)
{
    const struct kva_api_call *call = answer->call;
    bool bare = call->format.field && call->tools.bound == KVA_REPLY_FREE;
    return call->chat_template->reply.thinks && !bare && !call->tools.thoughtless;
}

bool kva_choice_reply_init(const struct kva_answer *answer, struct kva_choice_out *choice)
{
    const struct kva_api_call *call = answer->call;
    const struct kva_reply_traits *traits = &answer->call->chat_template->reply;
    bool calls = call->tools.count > 0 && traits->style != KVA_REPLY_NONE;
    bool thinks = may_think(answer);
    if (call->route == KVA_API_COMPLETION || (!calls && !thinks))
        return true;
    choice->legacy = call->tools.legacy;
    choice->names = call->tools.names;
    choice->name_count = call->tools.count;
    const struct kva_reply_params params = {
        .style = calls ? traits->style : KVA_REPLY_NONE,
        .bound = call->tools.bound,
        .thinks = thinks,
        .thinking = thinks && call->thinking,
        .single = !call->tools.parallel,
        .names = choice->names,
        .schemas = call->tools.schemas,
        .name_count = choice->name_count,
        .bytes_max = answer->choice_bytes_max,
        .sink = {choice, on_reasoning, on_content, on_call, on_arguments},
    };
    return kva_reply_create(&params, &choice->reply) == KVA_OK;
}

void kva_choice_reply_finish(struct kva_choice_out *choice)
{
    kva_reply_destroy(choice->reply);
    kva_buf_finish(&choice->reasoning);
    for (uint32_t i = 0; i < choice->call_count; i++)
        kva_buf_finish(&choice->calls[i].arguments);
    free(choice->calls);
}

bool kva_choice_reply_needs(const struct kva_answer *answer, const struct kva_choice_out *choice,
                            uint32_t token)
{
    const struct kva_tokenizer *tokenizer = answer->config->tokenizer;
    size_t length = 0;
    if (!choice->reply || !kva_tokenizer_is_special(tokenizer, (int32_t)token))
        return false;
    const char *text = kva_tokenizer_token_string(tokenizer, (int32_t)token, &length);
    const struct kva_reply_traits *traits = &answer->call->chat_template->reply;
    enum kva_reply_style style = choice->name_count > 0 ? traits->style : KVA_REPLY_NONE;
    return text && kva_reply_is_marker(style, may_think(answer), text, length);
}

void kva_choice_reply_push(struct kva_answer *answer, struct kva_choice_out *choice)
{
    const struct kva_buf *text = &answer->certain;
    kva_buf_fail_with(&choice->text, text);
    if (!choice->reply) {
        kva_buf_append(&choice->text, text->data, text->length);
        return;
    }
    kva_reply_push(choice->reply, text->data, text->length);
}

void kva_choice_reply_end(struct kva_choice_out *choice)
{
    if (choice->reply)
        kva_reply_finish(choice->reply);
}

bool kva_choice_call_is_cut(const struct kva_choice_out *choice)
{
    return choice->reply && kva_reply_is_cut(choice->reply);
}

bool kva_choice_reply_failed(const struct kva_choice_out *choice)
{
    bool failed = choice->reasoning.failed || choice->reply_failed ||
                  (choice->reply && kva_reply_failed(choice->reply));
    for (uint32_t i = 0; i < choice->call_count; i++)
        failed = failed || choice->calls[i].arguments.failed;
    return failed;
}

bool kva_choice_reply_has_no_memory(const struct kva_choice_out *choice)
{
    bool none = choice->reasoning.no_memory || choice->reply_failed ||
                (choice->reply && kva_reply_has_no_memory(choice->reply));
    for (uint32_t i = 0; i < choice->call_count; i++)
        none = none || choice->calls[i].arguments.no_memory;
    return none;
}

size_t kva_choice_untold(const struct kva_choice_out *choice)
{
    size_t bytes = choice->text.length - choice->text_told;
    bytes += choice->reasoning.length - choice->reasoning_told;
    for (uint32_t i = 0; i < choice->call_count; i++) {
        const struct kva_call_out *call = &choice->calls[i];
        bytes += call->arguments.length - call->told + !call->opened;
    }
    return bytes;
}
