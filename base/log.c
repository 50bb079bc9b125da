#include "base/log.h"

#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX 8192

/* Written once at start, read by every thread afterwards. */
static struct {
    int fd;
    enum kva_log_level level;
    int json;
} sink = {.fd = STDERR_FILENO, .level = KVA_LOG_INFO, .json = 0};

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};

void kva_log_setup(int fd, enum kva_log_level level, enum kva_log_format format)
{
    sink.fd = fd;
    sink.level = level;
    sink.json = format == KVA_LOG_JSON || (format == KVA_LOG_AUTO && !isatty(fd));
}

int kva_log_enabled(enum kva_log_level level)
{
    return level >= sink.level;
}

static void put_time(struct kva_buf *line, int json)
{
    struct timespec now;
    struct tm parts;
    char text[40];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t length = strftime(text, sizeof(text), json ? "%Y-%m-%dT%H:%M:%S" : "%H:%M:%S", &parts);
    kva_buf_append(line, text, length);
    kva_buf_printf(line, ".%03ld%s", now.tv_nsec / 1000000, json ? "Z" : "");
}

void kva_log_fields(enum kva_log_level level, const char *text, const char *json_fields)
{
    if (!kva_log_enabled(level))
        return;
    struct kva_buf line;
    kva_buf_init(&line, LINE_BYTES_MAX);
    if (sink.json) {
        kva_buf_puts(&line, "{\"time\":\"");
        put_time(&line, 1);
        kva_buf_printf(&line, "\",\"level\":\"%s\",\"message\":", level_names[level]);
        kva_buf_json_string(&line, text, strlen(text));
        if (json_fields && json_fields[0])
            kva_buf_printf(&line, ",%s", json_fields);
        kva_buf_puts(&line, "}\n");
    } else {
        put_time(&line, 0);
        kva_buf_printf(&line, " %-5s %s\n", level_names[level], text);
    }
    if (line.data && write(sink.fd, line.data, line.length) < 0) {
        /* There is nowhere left to report that the log cannot be written. */
    }
    kva_buf_finish(&line);
}

void kva_log(enum kva_log_level level, const char *format, ...)
{
    if (!kva_log_enabled(level))
        return;
    char text[LINE_BYTES_MAX / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    kva_log_fields(level, text, NULL);
}
