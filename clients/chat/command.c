/* command.c - the commands that begin with a slash. */
#include "clients/chat/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODELS_BYTES_MAX ((size_t)1 << 20)

typedef enum kva_status (*command_fn)(struct kva_chat *chat, const char *arguments,
                                      struct kva_err *err);

static enum kva_status run_help(struct kva_chat *chat, const char *arguments, struct kva_err *err);

static enum kva_status run_clear(struct kva_chat *chat, const char *arguments KVA_UNUSED,
                                 struct kva_err *err KVA_UNUSED)
{
    size_t count = chat->history.count;
    kva_chat_history_clear(&chat->history);
    kva_chat_screen_note(&chat->screen, "[%zu turn%s forgotten]", count, count == 1 ? "" : "s");
    return KVA_OK;
}

static enum kva_status run_system(struct kva_chat *chat, const char *arguments, struct kva_err *err)
{
    size_t dropped = 0;
    enum kva_status status =
        kva_chat_history_system(&chat->history, arguments, strlen(arguments), &dropped, err);
    if (status)
        return status;
    kva_chat_say_dropped(chat, dropped);
    kva_chat_screen_note(&chat->screen,
                         *arguments ? "[system message set]" : "[no system message]");
    return KVA_OK;
}

static enum kva_status run_model(struct kva_chat *chat, const char *arguments, struct kva_err *err)
{
    if (*arguments) {
        enum kva_status status = kva_chat_use_model(chat, arguments, err);
        if (!status)
            kva_chat_screen_note(&chat->screen, "[model %s]", chat->model);
        return status;
    }
    struct kva_buf ids;
    kva_buf_init(&ids, MODELS_BYTES_MAX);
    enum kva_status status = kva_chat_models(chat, &ids, err);
    for (size_t at = 0; !status && at < ids.length; at += strlen(ids.data + at) + 1)
        kva_chat_screen_note(&chat->screen, "%s %s",
                             strcmp(ids.data + at, chat->model) == 0 ? "*" : " ", ids.data + at);
    kva_buf_finish(&ids);
    return status;
}

static bool write_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t written = write(fd, data, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        data += written;
        length -= (size_t)written;
    }
    return true;
}

/* A new file only, that others cannot read: a conversation is private, and nothing is lost by a
 * name typed twice. */
static enum kva_status save(const char *path, const struct kva_buf *text, struct kva_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return kva_fail(err, KVA_EINVAL, "'%s' exists already: choose another name", path);
    if (fd < 0)
        return kva_fail(err, KVA_EIO, "cannot create '%s': %s", path, strerror(errno));
    bool ok = write_all(fd, text->data, text->length);
    int error = errno;
    if (close(fd) != 0 && ok) {
        error = errno;
        ok = false;
    }
    if (ok)
        return KVA_OK;
    unlink(path);
    return kva_fail(err, KVA_EIO, "cannot write '%s': %s", path, strerror(error));
}

static enum kva_status run_save(struct kva_chat *chat, const char *arguments, struct kva_err *err)
{
    if (!*arguments)
        return kva_fail(err, KVA_EINVAL, "/save wants the name of a new file");
    struct kva_buf text;
    kva_buf_init(&text, 8 * chat->history.max_bytes + ((size_t)1 << 20));
    kva_buf_puts(&text, "{\"model\":");
    kva_buf_json_string(&text, chat->model, strlen(chat->model));
    kva_buf_puts(&text, ",\"messages\":");
    kva_chat_history_json(&chat->history, &text);
    kva_buf_puts(&text, "}\n");
    enum kva_status status = text.failed
                                 ? kva_fail(err, KVA_ENOMEM, "out of memory for the conversation")
                                 : save(arguments, &text, err);
    if (!status)
        kva_chat_screen_note(&chat->screen, "[%zu turn%s saved to %s]", chat->history.count,
                             chat->history.count == 1 ? "" : "s", arguments);
    kva_buf_finish(&text);
    return status;
}

/* The old answer stays until a new one has come. */
static enum kva_status run_retry(struct kva_chat *chat, const char *arguments KVA_UNUSED,
                                 struct kva_err *err)
{
    struct kva_chat_text old;
    if (!kva_chat_history_retry(&chat->history, &old))
        return kva_fail(err, KVA_EINVAL, "there is nothing to ask again");
    enum kva_status status = kva_chat_answer(chat, err);
    kva_chat_history_retry_end(&chat->history, &old);
    return status;
}

static enum kva_status run_quit(struct kva_chat *chat, const char *arguments KVA_UNUSED,
                                struct kva_err *err KVA_UNUSED)
{
    chat->quit = true;
    return KVA_OK;
}

static const struct {
    const char *name;
    const char *arguments;
    const char *help;
    command_fn run;
} commands[] = {
    {"/help", "", "this list", run_help},
    {"/clear", "", "forget the conversation, keep the system message", run_clear},
    {"/system", "[TEXT]", "set the system message; without text: remove it", run_system},
    {"/model", "[NAME]", "ask another model; without a name: list them", run_model},
    {"/save", "FILE", "write the conversation as JSON to a new file", run_save},
    {"/retry", "", "ask the last message again", run_retry},
    {"/quit", "", "leave, as does Ctrl-D", run_quit},
};

static enum kva_status run_help(struct kva_chat *chat, const char *arguments KVA_UNUSED,
                                struct kva_err *err KVA_UNUSED)
{
    for (size_t i = 0; i < KVA_COUNT_OF(commands); i++)
        kva_chat_screen_note(&chat->screen, "%-8s %-7s %s", commands[i].name, commands[i].arguments,
                             commands[i].help);
    kva_chat_screen_note(&chat->screen, "A backslash at the end of a line goes on to the next; "
                                        "\"\"\" begins and ends a text of several lines.");
    kva_chat_screen_note(&chat->screen, "Ctrl-C stops an answer, or leaves at an empty prompt.");
    return KVA_OK;
}

enum kva_status kva_chat_command(struct kva_chat *chat, const char *line, struct kva_err *err)
{
    size_t length = strcspn(line, " \t\n");
    const char *arguments = line + length + strspn(line + length, " \t\n");
    for (size_t i = 0; i < KVA_COUNT_OF(commands); i++) {
        if (strlen(commands[i].name) != length || strncmp(commands[i].name, line, length) != 0)
            continue;
        if (*arguments && !*commands[i].arguments)
            return kva_fail(err, KVA_EINVAL, "%s takes nothing after it", commands[i].name);
        return commands[i].run(chat, arguments, err);
    }
    return kva_fail(err, KVA_EINVAL,
                    "no command '%.*s'; /help lists them, and \"\"\" quotes a message that begins "
                    "with a slash",
                    (int)kva_min_size(length, 40), line);
}
