/* log.c - lines as text and as JSON, and the thread that writes them. */
#include "base/log.h"

#include "base/buf.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
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

/* Lines on their way to the writer. Static: whoever logs last must find it. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t writer;
    bool started;  /* there is a writer */
    bool stopping; /* the writer is to end once the ring is empty */
    bool ended;    /* it has */
    size_t first;  /* of the bytes */
    size_t count;
    uint64_t untold; /* lines dropped since the line that told of others */
    char bytes[KVA_LOG_RING_BYTES];
} ring = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static atomic_uint_fast64_t dropped;

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

static void compose(struct kva_buf *line, enum kva_log_level level, const char *text,
                    const char *json_fields)
{
    if (sink.json) {
        kva_buf_puts(line, "{\"time\":\"");
        put_time(line, 1);
        kva_buf_printf(line, "\",\"level\":\"%s\",\"message\":", level_names[level]);
        kva_buf_json_string(line, text, strlen(text));
        if (json_fields && json_fields[0])
            kva_buf_printf(line, ",%s", json_fields);
        kva_buf_puts(line, "}\n");
    } else {
        put_time(line, 0);
        kva_buf_printf(line, " %-5s %s\n", level_names[level], text);
    }
}

/* --- the ring -------------------------------------------------------------------------------- */

static void put_bytes(const char *data, size_t length)
{
    size_t at = (ring.first + ring.count) % KVA_LOG_RING_BYTES;
    size_t head = kva_min_size(length, KVA_LOG_RING_BYTES - at);
    memcpy(ring.bytes + at, data, head);
    memcpy(ring.bytes, data + head, length - head);
    ring.count += length;
}

/* Room for a line, and for the one that may have to tell of dropped ones first. */
static bool put_line(const struct kva_buf *line)
{
    struct kva_buf news;
    kva_buf_init(&news, LINE_BYTES_MAX);
    if (ring.untold > 0) {
        char text[64];
        snprintf(text, sizeof(text), "%llu log lines were dropped",
                 (unsigned long long)ring.untold);
        compose(&news, KVA_LOG_WARN, text, NULL);
    }
    bool fits = news.length + line->length <= KVA_LOG_RING_BYTES - ring.count;
    if (fits && news.length > 0) {
        put_bytes(news.data, news.length);
        ring.untold = 0;
    }
    if (fits && line->length > 0)
        put_bytes(line->data, line->length);
    kva_buf_finish(&news);
    return fits;
}

/* True: the line is the ring's, or dropped. False: the caller writes. */
static bool hand_over(const struct kva_buf *line)
{
    pthread_mutex_lock(&ring.lock);
    bool taken = ring.started;
    if (taken && (ring.stopping || !put_line(line))) {
        ring.untold++;
        atomic_fetch_add(&dropped, 1);
    } else if (taken) {
        pthread_cond_broadcast(&ring.changed);
    }
    pthread_mutex_unlock(&ring.lock);
    return taken;
}

static void write_all(const char *data, size_t length)
{
    while (length > 0) {
        ssize_t count = write(sink.fd, data, length);
        if (count < 0 && errno == EINTR)
            continue;
        /* There is nowhere left to report that the log cannot be written. */
        if (count <= 0)
            return;
        data += count;
        length -= (size_t)count;
    }
}

static void *write_lines(void *opaque)
{
    static char piece[16384]; /* of the one writer */
    const struct kva_buf nothing = {.data = NULL};
    pthread_mutex_lock(&ring.lock);
    for (;;) {
        while (ring.count == 0 && ring.untold == 0 && !ring.stopping)
            pthread_cond_wait(&ring.changed, &ring.lock);
        if (ring.count == 0 && ring.untold > 0)
            (void)put_line(&nothing);
        if (ring.count == 0)
            break;
        size_t length = kva_min_size(sizeof(piece), ring.count);
        length = kva_min_size(length, KVA_LOG_RING_BYTES - ring.first);
        memcpy(piece, ring.bytes + ring.first, length);
        /* Their room is free, their bytes are in `piece`. */
        ring.first = (ring.first + length) % KVA_LOG_RING_BYTES;
        ring.count -= length;
        pthread_mutex_unlock(&ring.lock);
        write_all(piece, length);
        pthread_mutex_lock(&ring.lock);
    }
    ring.ended = true;
    pthread_cond_broadcast(&ring.changed);
    pthread_mutex_unlock(&ring.lock);
    return opaque;
}

enum kva_status kva_log_start(struct kva_err *err)
{
    pthread_mutex_lock(&ring.lock);
    ring.stopping = ring.ended = false;
    ring.first = ring.count = 0;
    ring.untold = 0;
    ring.started = pthread_create(&ring.writer, NULL, write_lines, NULL) == 0;
    bool started = ring.started;
    pthread_mutex_unlock(&ring.lock);
    return started ? KVA_OK : kva_fail(err, KVA_ENOMEM, "the system refuses a thread for the log");
}

void kva_log_stop(uint32_t wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&ring.lock);
    bool started = ring.started, late = false;
    ring.stopping = true;
    pthread_cond_broadcast(&ring.changed);
    while (started && !ring.ended && !late)
        late = pthread_cond_timedwait(&ring.changed, &ring.lock, &until) == ETIMEDOUT;
    /* A writer that is held up stays so, and what is said from now on is dropped. */
    bool join = started && ring.ended;
    ring.started = started && !join;
    pthread_mutex_unlock(&ring.lock);
    if (join)
        pthread_join(ring.writer, NULL);
    else if (started)
        pthread_detach(ring.writer);
}

uint64_t kva_log_dropped(void)
{
    return atomic_load(&dropped);
}

/* --- lines ----------------------------------------------------------------------------------- */

void kva_log_fields(enum kva_log_level level, const char *text, const char *json_fields)
{
    if (!kva_log_enabled(level))
        return;
    struct kva_buf line;
    kva_buf_init(&line, LINE_BYTES_MAX);
    compose(&line, level, text, json_fields);
    if (line.data && !hand_over(&line))
        write_all(line.data, line.length);
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
