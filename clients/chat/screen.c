/* screen.c - what is written to the terminal, and when the status line goes. */
#include "clients/chat/screen.h"

#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096
#define DIM            "\x1b[2m"
#define RED            "\x1b[31m"
#define PLAIN          "\x1b[0m"

void kva_chat_screen_init(struct kva_chat_screen *screen, FILE *out, FILE *notes, bool color)
{
    *screen = (struct kva_chat_screen){.out = out, .notes = notes};
    screen->terminal = isatty(fileno(out)) == 1;
    screen->color = color && screen->terminal;
    kva_buf_init(&screen->text, (size_t)64 << 20);
}

void kva_chat_screen_finish(struct kva_chat_screen *screen)
{
    kva_chat_screen_text_end(screen);
    kva_buf_finish(&screen->text);
}

static void put(struct kva_chat_screen *screen, const char *text, size_t length)
{
    if (length == 0 || screen->failed)
        return;
    if (fwrite(text, 1, length, screen->out) != length)
        screen->failed = true;
    screen->line_open = text[length - 1] != '\n';
}

static void flush(struct kva_chat_screen *screen)
{
    if (fflush(screen->out) != 0)
        screen->failed = true;
}

static void set_dim(struct kva_chat_screen *screen, bool dim)
{
    if (dim != screen->dim && screen->color)
        fputs(dim ? DIM : PLAIN, screen->out);
    screen->dim = dim;
}

static void show_filtered(struct kva_chat_screen *screen)
{
    if (screen->text.length > 0)
        put(screen, screen->text.data, screen->text.length);
    flush(screen);
    kva_buf_clear(&screen->text);
}

void kva_chat_screen_text(struct kva_chat_screen *screen, const char *text, size_t length, bool dim)
{
    kva_chat_screen_status(screen, "");
    if (dim != screen->dim && screen->line_open) {
        kva_chat_filter_end(&screen->filter, &screen->text);
        kva_buf_putc(&screen->text, '\n');
        show_filtered(screen);
    }
    set_dim(screen, dim);
    kva_chat_filter_push(&screen->filter, text, length, &screen->text);
    show_filtered(screen);
}

void kva_chat_screen_text_end(struct kva_chat_screen *screen)
{
    kva_chat_screen_status(screen, "");
    kva_chat_filter_end(&screen->filter, &screen->text);
    show_filtered(screen);
    set_dim(screen, false);
    if (screen->line_open)
        put(screen, "\n", 1);
    flush(screen);
}

static size_t columns(const struct kva_chat_screen *screen)
{
    struct winsize size;
    if (ioctl(fileno(screen->out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
        return size.ws_col;
    return 80;
}

/* Overwrites with spaces instead of an escape sequence, so that any terminal will do. */
static void erase_status(struct kva_chat_screen *screen)
{
    if (screen->status_length > 0)
        fprintf(screen->out, "\r%*s\r", (int)screen->status_length, "");
    screen->status_length = 0;
}

void kva_chat_screen_status(struct kva_chat_screen *screen, const char *line)
{
    if (!screen->terminal || screen->line_open || (!*line && screen->status_length == 0))
        return;
    size_t length = kva_min_size(strlen(line), columns(screen) - 1);
    erase_status(screen);
    if (length > 0)
        fprintf(screen->out, "%s%.*s%s", screen->color ? DIM : "", (int)length, line,
                screen->color ? PLAIN : "");
    screen->status_length = length;
    flush(screen);
}

static void put_line(struct kva_chat_screen *screen, FILE *to, const char *color,
                     const char *format, va_list args)
{
    char raw[LINE_MAX_BYTES];
    kva_chat_screen_text_end(screen);
    int length = vsnprintf(raw, sizeof(raw), format, args);
    size_t used = length < 0 ? 0 : kva_min_size((size_t)length, sizeof(raw) - 1);
    kva_chat_filter_push(&screen->filter, raw, used, &screen->text);
    kva_chat_filter_end(&screen->filter, &screen->text);
    fprintf(to, "%s%s%s\n", screen->color ? color : "", screen->text.data ? screen->text.data : "",
            screen->color ? PLAIN : "");
    fflush(to);
    kva_buf_clear(&screen->text);
}

void kva_chat_screen_note(struct kva_chat_screen *screen, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put_line(screen, screen->terminal ? screen->out : screen->notes, DIM, format, args);
    va_end(args);
}

void kva_chat_screen_hint(struct kva_chat_screen *screen, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (screen->terminal)
        put_line(screen, screen->out, DIM, format, args);
    va_end(args);
}

void kva_chat_screen_error(struct kva_chat_screen *screen, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put_line(screen, screen->terminal ? screen->out : screen->notes, RED, format, args);
    va_end(args);
}
