/* chat.c - the command `chat`: the loop of messages and answers. */
#include "clients/chat/chat.h"

#include "clients/chat/internal.h"
#include "clients/chat/signals.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODELS_BYTES_MAX ((size_t)1 << 20)

enum kva_status kva_chat_use_model(struct kva_chat *chat, const char *name, struct kva_err *err)
{
    char *copy = strdup(name);
    if (!copy)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a model's name");
    free(chat->model);
    chat->model = copy;
    return KVA_OK;
}

static enum kva_status choose_model(struct kva_chat *chat, struct kva_err *err)
{
    struct kva_buf ids;
    if (chat->params->model)
        return kva_chat_use_model(chat, chat->params->model, err);
    kva_buf_init(&ids, MODELS_BYTES_MAX);
    enum kva_status status = kva_chat_models(chat, &ids, err);
    if (!status && ids.length == 0)
        status = kva_fail(err, KVA_ENOTFOUND,
                          "the server lists no model: if it is still loading its own, ask again "
                          "in a while; else name one with --model-name");
    if (!status)
        status = kva_chat_use_model(chat, ids.data, err);
    kva_buf_finish(&ids);
    return status;
}

static enum kva_status open_chat(struct kva_chat *chat, const struct kva_chat_params *params,
                                 struct kva_err *err)
{
    size_t max_bytes =
        params->history_bytes_max ? params->history_bytes_max : KVA_CHAT_HISTORY_BYTES;
    FILE *in = params->in ? params->in : stdin;
    FILE *out = params->out ? params->out : stdout;
    size_t dropped;
    *chat = (struct kva_chat){.params = params};
    chat->sampling = (struct kva_chat_sampling){params->max_tokens, params->temperature,
                                                params->top_p, params->seed};
    kva_chat_history_init(&chat->history, max_bytes);
    kva_chat_screen_init(&chat->screen, out, params->notes ? params->notes : stderr,
                         !params->no_color);
    chat->interactive = chat->screen.terminal && isatty(fileno(in)) == 1;
    const struct kva_chat_http_params http = {params->url, params->api_key, params->ca_file};
    const struct kva_chat_input_params input = {in, out, chat->interactive, chat->screen.color,
                                                max_bytes};
    enum kva_status status = kva_chat_http_create(&http, &chat->http, err);
    if (!status && params->system)
        status = kva_chat_history_system(&chat->history, params->system, strlen(params->system),
                                         &dropped, err);
    if (!status)
        status = choose_model(chat, err);
    if (!status)
        status = kva_chat_input_create(&input, &chat->input, err);
    return status;
}

static void close_chat(struct kva_chat *chat)
{
    kva_chat_input_destroy(chat->input);
    kva_chat_screen_finish(&chat->screen);
    kva_chat_history_finish(&chat->history);
    kva_chat_http_destroy(chat->http);
    free(chat->model);
}

static bool is_blank(const struct kva_buf *text)
{
    for (size_t i = 0; i < text->length; i++) {
        if (!strchr(" \t\r\n", text->data[i]) || text->data[i] == '\0')
            return false;
    }
    return true;
}

static enum kva_status ask(struct kva_chat *chat, const struct kva_buf *message,
                           struct kva_err *err)
{
    size_t dropped = 0;
    enum kva_status status =
        kva_chat_history_ask(&chat->history, message->data, message->length, &dropped, err);
    if (status)
        return status;
    kva_chat_say_dropped(chat, dropped);
    return kva_chat_answer(chat, err);
}

/* One message or command. */
static enum kva_status handle(struct kva_chat *chat, enum kva_chat_input_event event,
                              const struct kva_buf *message, struct kva_err *err)
{
    if (is_blank(message))
        return KVA_OK;
    if (event == KVA_CHAT_INPUT_MESSAGE && message->data[0] == '/')
        return kva_chat_command(chat, message->data, err);
    return ask(chat, message, err);
}

/* A failure that is shown and that a person may go on from; without a terminal it is the end. */
static enum kva_status settle(struct kva_chat *chat, enum kva_status status, struct kva_err *err)
{
    if (!chat->interactive || !status)
        return status;
    if (status == KVA_ECANCELLED)
        kva_chat_signals_take_interrupt();
    else
        kva_chat_screen_error(&chat->screen, "%s", err->message);
    return KVA_OK;
}

static enum kva_status loop(struct kva_chat *chat, struct kva_err *err)
{
    struct kva_buf message;
    enum kva_status status = KVA_OK;
    kva_buf_init(&message, chat->history.max_bytes);
    while (!status && !chat->quit && !chat->screen.failed && !kva_chat_signals_ended()) {
        enum kva_chat_input_event event;
        status = kva_chat_input_read(chat->input, &event, &message, err);
        if (status == KVA_EIO)
            break;
        if (!status && event == KVA_CHAT_INPUT_END)
            break;
        if (!status && event != KVA_CHAT_INPUT_DROPPED)
            status = handle(chat, event, &message, err);
        status = settle(chat, status, err);
    }
    if (!status && !chat->interactive && kva_chat_signals_interrupted())
        status = kva_fail(err, KVA_ECANCELLED, "stopped");
    if (!status && chat->screen.failed)
        status = kva_fail(err, KVA_EIO, "the output cannot be written");
    kva_buf_finish(&message);
    return status;
}

enum kva_status kva_chat_run(const struct kva_chat_params *params, struct kva_err *err)
{
    struct kva_chat_signals signals;
    struct kva_chat chat;
    struct kva_err own_err;
    err = err ? err : &own_err;
    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        return kva_fail(err, KVA_ENOMEM, "libcurl cannot be initialised");
    kva_chat_signals_install(&signals);
    enum kva_status status = open_chat(&chat, params, err);
    if (!status) {
        kva_chat_screen_hint(&chat.screen, "%s at %s - /help for commands, Ctrl-D to leave",
                             chat.model, params->url);
        status = loop(&chat, err);
    }
    close_chat(&chat);
    kva_chat_signals_restore(&signals);
    curl_global_cleanup();
    return status;
}
