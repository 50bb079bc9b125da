/* line.c - lines through libedit, or read plainly. */
#include "clients/chat/line.h"

#include "base/utf8.h"
#include "clients/chat/signals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES   65536u
#define HISTORY_LINES 1000

/* ---- a terminal ---------------------------------------------------------------------------- */

static struct kva_chat_line_source *source_of(EditLine *edit)
{
    void *source = NULL;
    el_get(edit, EL_CLIENTDATA, &source);
    return source;
}

static char *get_prompt(EditLine *edit)
{
    return source_of(edit)->prompt;
}

/* Waits for a byte; what signals say meanwhile is seen to. 1: read; 0: end; -1: stop. */
static int next_byte(struct kva_chat_line_source *source, char *byte)
{
    for (;;) {
        bool readable = kva_chat_signals_wait(source->fd);
        if (kva_chat_signals_ended())
            return 0;
        if (kva_chat_signals_take_interrupt()) {
            const LineInfo *info = el_line(source->edit);
            source->stopped = true;
            source->written = info->lastchar != info->buffer;
            return -1;
        }
        if (kva_chat_signals_take_continued()) {
            /* The shell had the terminal: take it again. */
            el_set(source->edit, EL_PREP_TERM, 0);
            el_set(source->edit, EL_PREP_TERM, 1);
            el_set(source->edit, EL_REFRESH);
        }
        if (kva_chat_signals_take_resized())
            el_resize(source->edit);
        if (!readable)
            continue;
        ssize_t length = read(source->fd, byte, 1);
        if (length >= 0)
            return length > 0;
        if (errno != EINTR && errno != EAGAIN)
            return 0;
    }
}

/* libedit's reader of one character. */
static int get_character(EditLine *edit, wchar_t *ret)
{
    struct kva_chat_line_source *source = source_of(edit);
    char bytes[4];
    size_t length = 0;
    for (;;) {
        int got = next_byte(source, &bytes[length]);
        if (got <= 0)
            return got;
        length++;
        int size = kva_utf8_sequence(bytes, length, NULL);
        if (size > 0) {
            *ret = (wchar_t)kva_utf8_decode(bytes, size);
            return 1;
        }
        if (size == 0)
            length = 0; /* Not UTF-8: such a key means nothing here. */
    }
}

static bool init_terminal(struct kva_chat_line_source *source,
                          const struct kva_chat_input_params *params)
{
    HistEvent event;
    source->edit = el_init("kvahead", params->in, params->out, params->out);
    source->history = history_init();
    if (!source->edit || !source->history)
        return false;
    history(source->history, &event, H_SETSIZE, HISTORY_LINES);
    history(source->history, &event, H_SETUNIQUE, 1);
    el_set(source->edit, EL_CLIENTDATA, source);
    el_set(source->edit, EL_EDITOR, "emacs");
    el_set(source->edit, EL_SIGNAL, 0);
    el_set(source->edit, EL_PROMPT_ESC, get_prompt, '\1');
    el_set(source->edit, EL_HIST, history, source->history);
    el_set(source->edit, EL_GETCFN, get_character);
    el_set(source->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(source->edit, EL_BIND, "^W", "ed-delete-prev-word", NULL);
    return true;
}

static enum kva_chat_line read_terminal(struct kva_chat_line_source *source, const char *prompt,
                                        struct kva_buf *line)
{
    HistEvent event;
    int count = 0;
    /* \1 encloses what takes no column; libedit drops such a part at the very end, so the prompt's
     * space comes last. */
    if (source->color)
        snprintf(source->prompt, sizeof(source->prompt), "\1\x1b[1m\1%c\1\x1b[0m\1 ", *prompt);
    else
        snprintf(source->prompt, sizeof(source->prompt), "%c ", *prompt);
    source->stopped = source->written = false;
    const char *text = el_gets(source->edit, &count);
    if (!text || count <= 0) {
        fputs(source->stopped ? "^C\n" : "\n", source->out);
        fflush(source->out);
        if (source->stopped)
            return source->written ? KVA_CHAT_LINE_CLEARED : KVA_CHAT_LINE_STOPPED;
        return KVA_CHAT_LINE_END;
    }
    size_t length = (size_t)count;
    if (text[length - 1] == '\n')
        length--;
    kva_buf_append(line, text, length);
    if (line->failed)
        return KVA_CHAT_LINE_TOO_LONG;
    if (strspn(line->data ? line->data : "", " \t") < length)
        history(source->history, &event, H_ENTER, line->data);
    return KVA_CHAT_LINE_TEXT;
}

/* ---- anything else ------------------------------------------------------------------------- */

/* False: at the end; *ret_status tells a failure and *ret_stopped a signal. */
static bool fill(struct kva_chat_line_source *source, bool *ret_stopped, int *ret_errno)
{
    for (;;) {
        bool readable = kva_chat_signals_wait(source->fd);
        *ret_stopped = kva_chat_signals_ended() || kva_chat_signals_interrupted();
        kva_chat_signals_take_resized();
        kva_chat_signals_take_continued();
        if (*ret_stopped)
            return false;
        if (!readable)
            continue;
        ssize_t length = read(source->fd, source->block, BLOCK_BYTES);
        if (length > 0) {
            source->block_length = (size_t)length;
            source->block_at = 0;
            return true;
        }
        if (length == 0)
            return false;
        if (errno != EINTR && errno != EAGAIN) {
            *ret_errno = errno;
            return false;
        }
    }
}

static enum kva_status read_plain(struct kva_chat_line_source *source, enum kva_chat_line *ret_kind,
                                  struct kva_buf *line, struct kva_err *err)
{
    bool any = false;
    for (;;) {
        bool stopped = false;
        int error = 0;
        if (source->block_at == source->block_length && !fill(source, &stopped, &error)) {
            if (error)
                return kva_fail(err, KVA_EIO, "cannot read the input: %s", strerror(error));
            if (stopped)
                *ret_kind = KVA_CHAT_LINE_STOPPED;
            else
                *ret_kind = any ? KVA_CHAT_LINE_TEXT : KVA_CHAT_LINE_END;
            break;
        }
        any = true;
        const char *start = source->block + source->block_at;
        size_t left = source->block_length - source->block_at;
        const char *end = memchr(start, '\n', left);
        size_t length = end ? (size_t)(end - start) : left;
        kva_buf_append(line, start, length);
        source->block_at += length + (end != NULL);
        if (end) {
            *ret_kind = KVA_CHAT_LINE_TEXT;
            break;
        }
    }
    if (*ret_kind == KVA_CHAT_LINE_TEXT && line->failed)
        *ret_kind = KVA_CHAT_LINE_TOO_LONG;
    else if (line->length > 0 && line->data[line->length - 1] == '\r')
        line->data[--line->length] = '\0';
    return KVA_OK;
}

enum kva_status kva_chat_line_read(struct kva_chat_line_source *source, const char *prompt,
                                   enum kva_chat_line *ret_kind, struct kva_buf *line,
                                   struct kva_err *err)
{
    if (!source->edit)
        return read_plain(source, ret_kind, line, err);
    *ret_kind = read_terminal(source, prompt, line);
    return KVA_OK;
}

enum kva_status kva_chat_line_source_init(struct kva_chat_line_source *source,
                                          const struct kva_chat_input_params *params,
                                          struct kva_err *err)
{
    *source = (struct kva_chat_line_source){
        .fd = fileno(params->in), .out = params->out, .color = params->color};
    if (params->terminal ? !init_terminal(source, params)
                         : !(source->block = malloc(BLOCK_BYTES))) {
        kva_chat_line_source_finish(source);
        return kva_fail(err, KVA_ENOMEM, "out of memory for the input");
    }
    return KVA_OK;
}

void kva_chat_line_source_finish(struct kva_chat_line_source *source)
{
    HistEvent event;
    if (source->history)
        history(source->history, &event, H_CLEAR);
    if (source->edit)
        el_end(source->edit);
    if (source->history)
        history_end(source->history);
    free(source->block);
    *source = (struct kva_chat_line_source){0};
}
