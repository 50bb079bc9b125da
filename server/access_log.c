/* access_log.c - one line per request, when its answer has left or its connection has. */
#include "server/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static void write_json(struct kva_buf *out, const struct kva_exchange_info *info, double ms)
{
    kva_buf_puts(out, "\"request_id\":");
    kva_buf_json_string(out, info->request_id, strlen(info->request_id));
    kva_buf_printf(out, ",\"method\":\"%s\",\"path\":", info->method);
    kva_buf_json_string(out, info->path, kva_min_size(strlen(info->path), 512));
    kva_buf_printf(out, ",\"status\":%d,\"ms\":%.3f,\"peer\":", info->aborted ? 499 : info->status,
                   ms);
    kva_buf_json_string(out, info->peer, strlen(info->peer));
    kva_buf_printf(out, ",\"bytes_in\":%llu,\"bytes_out\":%llu",
                   (unsigned long long)info->body_bytes, (unsigned long long)info->sent_bytes);
    if (info->key_index >= 0)
        kva_buf_printf(out, ",\"key\":%d", info->key_index);
    if (info->summary_json[0])
        kva_buf_printf(out, ",%s", info->summary_json);
}

/* Control characters of a hostile path would forge lines. */
static void put_clean(struct kva_buf *out, const char *text, size_t max)
{
    for (size_t i = 0; text[i] && i < max; i++)
        kva_buf_putc(out, (unsigned char)text[i] < 0x20 || text[i] == 0x7F ? '?' : text[i]);
}

static void write_line(const struct kva_exchange_info *info, enum kva_log_level level)
{
    double ms = (double)(kva_time_ns() - info->received_ns) / (double)KVA_NS_PER_MS;
    struct kva_buf text, json;
    kva_buf_init(&text, 4096);
    kva_buf_init(&json, 4096);
    kva_buf_printf(&text, "%s ", info->method);
    put_clean(&text, info->path, 256);
    kva_buf_printf(&text, " %d %.1fms id=", info->aborted ? 499 : info->status, ms);
    put_clean(&text, info->request_id, KVA_REQUEST_ID_MAX);
    if (info->key_index >= 0)
        kva_buf_printf(&text, " key=%d", info->key_index);
    if (info->summary[0])
        kva_buf_printf(&text, " %s", info->summary);
    if (info->stalled)
        kva_buf_puts(&text, " slow-reader");
    write_json(&json, info, ms);
    kva_log_fields(level, text.data ? text.data : "", json.data ? json.data : "");
    kva_buf_finish(&text);
    kva_buf_finish(&json);
}

void kva_server_done(void *opaque, struct kva_exchange *exchange)
{
    struct kva_server *server = opaque;
    const struct kva_exchange_info *info = kva_exchange_info(exchange);
    const char *route = info->route ? info->route : "other";
    kva_metrics_count_http(&server->metrics, route, info->aborted ? 499 : info->status);
    if (info->stalled)
        server->metrics.slow_readers_aborted++;
    /* Probes and scrapes would fill the log. */
    bool probe = !info->route || route[1] != 'v' || strcmp(route, "/version") == 0 ||
                 strcmp(route, "/v1/kvahead/requests") == 0;
    enum kva_log_level level = probe && info->status < 400 ? KVA_LOG_DEBUG : KVA_LOG_INFO;
    /* Guesses at keys beyond the brake's bound: one line tells of all of them (auth.h). */
    bool braked = info->status == 429 && info->key_index < 0;
    if (server->params.log_requests && !braked && kva_log_enabled(level))
        write_line(info, level);
}
