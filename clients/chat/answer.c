/* answer.c - one answer: the request, its stream, what is shown meanwhile and what remains. */
#include "base/clock.h"
#include "clients/chat/internal.h"
#include "clients/chat/signals.h"
#include "clients/chat/sse.h"

#include <string.h>

#define EVENT_BYTES_MAX    ((size_t)4 << 20)
#define DOCUMENT_BYTES_MAX ((size_t)64 << 20)
#define MODELS_BYTES_MAX   ((size_t)4 << 20)

struct answer {
    struct kva_chat *chat;
    struct kva_chat_sse sse;
    struct kva_buf text;
    enum kva_status status; /* what ended it early */
    struct kva_err err;
    bool done; /* it is complete */
    char finish_reason[32];
    char progress[160]; /* what the server does before the first token */
    uint64_t start_ns, first_ns, last_ns;
    uint64_t pieces; /* counts tokens where the server does not */
    bool has_usage;
    uint64_t prompt_tokens, cached_tokens, output_tokens;
    uint64_t status_second;
};

static void take_text(struct answer *answer, const char *text, bool thought)
{
    size_t length = text ? strlen(text) : 0;
    if (length == 0)
        return;
    answer->last_ns = kva_time_ns();
    if (answer->first_ns == 0)
        answer->first_ns = answer->last_ns;
    answer->pieces++;
    if (thought) {
        if (answer->chat->screen.terminal)
            kva_chat_screen_text(&answer->chat->screen, text, length, true);
        return;
    }
    kva_buf_append(&answer->text, text, length);
    if (answer->text.failed)
        answer->status = kva_fail(&answer->err, KVA_ETOOBIG, "the answer is over %zu bytes",
                                  answer->text.max_bytes);
    else
        kva_chat_screen_text(&answer->chat->screen, text, length, false);
}

static void take_piece(struct answer *answer, const char *data, size_t length)
{
    struct kva_chat_piece piece;
    answer->status = kva_chat_piece_read(&piece, data, length, &answer->err);
    if (answer->status)
        return;
    if (piece.error) {
        char line[320];
        kva_chat_filter_line(piece.error, strlen(piece.error), line, sizeof(line));
        answer->status = kva_fail(&answer->err, KVA_EINTERNAL, "the server gave up: %s", line);
    }
    if (piece.has_usage) {
        answer->has_usage = true;
        answer->prompt_tokens = piece.prompt_tokens;
        answer->cached_tokens = piece.cached_tokens;
        answer->output_tokens = piece.output_tokens;
    }
    take_text(answer, piece.reasoning, true);
    take_text(answer, piece.content, false);
    if (piece.finish_reason) {
        kva_chat_filter_line(piece.finish_reason, strlen(piece.finish_reason),
                             answer->finish_reason, sizeof(answer->finish_reason));
        answer->done = true;
    }
    kva_chat_piece_finish(&piece);
}

static void on_event(void *opaque, const char *name KVA_UNUSED, const char *data, size_t length)
{
    struct answer *answer = opaque;
    if (answer->status)
        return;
    if (strcmp(data, "[DONE]") == 0)
        answer->done = true;
    else
        take_piece(answer, data, length);
}

static void on_comment(void *opaque, const char *text, size_t length)
{
    struct answer *answer = opaque;
    char progress[sizeof(answer->progress)];
    kva_chat_wire_progress(text, length, progress, sizeof(progress));
    if (*progress) {
        memcpy(answer->progress, progress, sizeof(progress));
        answer->status_second = 0;
    }
}

static bool on_stream(void *opaque, const char *bytes, size_t length)
{
    struct answer *answer = opaque;
    struct kva_err err;
    enum kva_status status = kva_chat_sse_push(&answer->sse, bytes, length, &err);
    if (status && !answer->status) {
        answer->status = status;
        answer->err = err;
    }
    return !answer->status && !answer->chat->screen.failed;
}

/* Once a second before the first token: what it waits for, and how long it has. */
static void show_status(struct answer *answer)
{
    uint64_t second = (kva_time_ns() - answer->start_ns) / KVA_NS_PER_S;
    char line[sizeof(answer->progress) + 40];
    if (answer->first_ns || second == 0 || second == answer->status_second)
        return;
    answer->status_second = second;
    snprintf(line, sizeof(line), "%s, %llu s (Ctrl-C stops)",
             *answer->progress ? answer->progress : "waiting", (unsigned long long)second);
    kva_chat_screen_status(&answer->chat->screen, line);
}

static bool on_stop(void *opaque)
{
    struct answer *answer = opaque;
    show_status(answer);
    return kva_chat_signals_interrupted() || kva_chat_signals_ended();
}

static void summarise(struct answer *answer, bool stopped)
{
    struct kva_chat_screen *screen = &answer->chat->screen;
    char prompt[80] = "", rate[64] = "", first[64] = "";
    char line[320];
    uint64_t tokens = answer->has_usage ? answer->output_tokens : answer->pieces;
    /* Of the whole time: an answer that comes in one read has no other. */
    double seconds = (double)(answer->last_ns - answer->start_ns) / 1e9;
    if (strcmp(answer->finish_reason, "length") == 0)
        kva_chat_screen_note(screen, "[cut off at the limit of tokens, see --max-tokens]");
    if (answer->has_usage && answer->cached_tokens)
        snprintf(prompt, sizeof(prompt), "%llu prompt tokens (%llu from the cache), ",
                 (unsigned long long)answer->prompt_tokens,
                 (unsigned long long)answer->cached_tokens);
    else if (answer->has_usage)
        snprintf(prompt, sizeof(prompt), "%llu prompt tokens, ",
                 (unsigned long long)answer->prompt_tokens);
    if (answer->first_ns)
        snprintf(first, sizeof(first), ", first after %.2f s",
                 (double)(answer->first_ns - answer->start_ns) / 1e9);
    if (tokens > 1 && answer->last_ns > answer->start_ns)
        snprintf(rate, sizeof(rate), ", %.1f tokens/s in all", (double)tokens / seconds);
    snprintf(line, sizeof(line), "[%s%s%llu tokens%s%s%s]", prompt, answer->has_usage ? "" : "~",
             (unsigned long long)tokens, first, rate, stopped ? ", stopped" : "");
    kva_chat_screen_hint(screen, "%s", line);
}

void kva_chat_say_dropped(struct kva_chat *chat, size_t dropped)
{
    if (dropped)
        kva_chat_screen_note(&chat->screen,
                             "[the %zu oldest turn%s left out from here on: the conversation is "
                             "over %zu bytes]",
                             dropped, dropped == 1 ? " is" : "s are", chat->history.max_bytes);
}

/* Keeps what came; an answer that failed before its first word leaves the turn open. */
static enum kva_status keep(struct answer *answer, bool complete, struct kva_err *err)
{
    size_t dropped = 0;
    if (!complete && answer->text.length == 0)
        return KVA_OK;
    const char *text = answer->text.data ? answer->text.data : "";
    enum kva_status status =
        kva_chat_history_answer(&answer->chat->history, text, answer->text.length, &dropped, err);
    kva_chat_say_dropped(answer->chat, dropped);
    return status;
}

/* Asks; the answer's text is then in `answer` and on the screen. */
static enum kva_status exchange(struct answer *answer, struct kva_err *err)
{
    struct kva_chat *chat = answer->chat;
    struct kva_buf body, document;
    kva_buf_init(&body, 8 * chat->history.max_bytes + ((size_t)1 << 20));
    kva_buf_init(&document, DOCUMENT_BYTES_MAX);
    kva_chat_wire_body(&chat->history, chat->model, &chat->sampling, &body);
    const struct kva_chat_call call = {
        .path = "/chat/completions",
        .body = &body,
        .stream = on_stream,
        .stop = on_stop,
        .opaque = answer,
        .document = &document,
    };
    answer->start_ns = kva_time_ns();
    enum kva_status status = body.failed
                                 ? kva_fail(err, KVA_ENOMEM, "out of memory for the request")
                                 : kva_chat_http_run(chat->http, &call, err);
    /* A server that does not stream answers with one document. */
    if (!status && document.length > 0)
        take_piece(answer, document.data, document.length);
    if (!status && answer->status) {
        status = answer->status;
        *err = answer->err;
    } else if (!status && !answer->done && !chat->screen.failed) {
        status = kva_fail(err, KVA_EIO, "the connection ended before the answer did");
    }
    kva_buf_finish(&body);
    kva_buf_finish(&document);
    return status;
}

enum kva_status kva_chat_answer(struct kva_chat *chat, struct kva_err *err)
{
    struct answer answer = {.chat = chat};
    struct kva_err own_err, keep_err;
    const struct kva_chat_sse_handler handler = {on_event, on_comment, &answer};
    kva_chat_sse_init(&answer.sse, &handler, EVENT_BYTES_MAX);
    kva_buf_init(&answer.text, chat->history.max_bytes);
    enum kva_status status = exchange(&answer, err ? err : &own_err);
    kva_chat_screen_text_end(&chat->screen);
    bool stopped = status == KVA_ECANCELLED;
    if (!status || stopped)
        summarise(&answer, stopped);
    enum kva_status kept = keep(&answer, !status, &keep_err);
    if (kept && (!status || stopped)) {
        status = kept;
        if (err)
            *err = keep_err;
    }
    kva_chat_sse_finish(&answer.sse);
    kva_buf_finish(&answer.text);
    return status;
}

static bool models_stop(void *opaque KVA_UNUSED)
{
    return kva_chat_signals_interrupted() || kva_chat_signals_ended();
}

enum kva_status kva_chat_models(struct kva_chat *chat, struct kva_buf *ret_ids, struct kva_err *err)
{
    struct kva_buf document;
    kva_buf_init(&document, MODELS_BYTES_MAX);
    const struct kva_chat_call call = {
        .path = "/models", .stop = models_stop, .document = &document};
    enum kva_status status = kva_chat_http_run(chat->http, &call, err);
    if (!status)
        status =
            kva_chat_wire_models(document.data ? document.data : "", document.length, ret_ids, err);
    kva_buf_finish(&document);
    return status;
}
