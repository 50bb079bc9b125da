/* access_log.c - one line per request, when its answer has left or its connection has. */
#include "server/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

/* Text of a client that was cut at some byte and may have anything in it: ASCII without spaces
 * cannot forge a word of a line. */
static void put_word(struct kva_buf *out, const char *text)
{
    for (; *text; text++)
        kva_buf_putc(out, *text > ' ' && *text <= '~' && !strchr("\"\\=", *text) ? *text : '?');
}

static void put_json_word(struct kva_buf *out, const char *name, const char *text)
{
    kva_buf_printf(out, ",\"%s\":\"", name);
    put_word(out, text);
    kva_buf_putc(out, '"');
}

static void write_json(struct kva_buf *out, const struct kva_exchange_info *info,
                       const char *key_name, double ms)
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
    if (*key_name)
        put_json_word(out, "key_name", key_name);
    if (info->error)
        put_json_word(out, "error", info->error);
    if (info->error && *info->param)
        put_json_word(out, "param", info->param);
    if (info->unknown_fields > 0) {
        kva_buf_printf(out, ",\"unknown_fields\":%u", info->unknown_fields);
        put_json_word(out, "unknown_field", info->unknown_field);
    }
    if (info->summary_json[0])
        kva_buf_printf(out, ",%s", info->summary_json);
}

/* Control characters of a hostile path would forge lines. */
static void put_clean(struct kva_buf *out, const char *text, size_t max)
{
    for (size_t i = 0; text[i] && i < max; i++)
        kva_buf_putc(out, (unsigned char)text[i] < 0x20 || text[i] == 0x7F ? '?' : text[i]);
}

/* Who asked, why it was refused, and what of it nobody has understood. */
static void write_reasons(struct kva_buf *out, const struct kva_exchange_info *info,
                          const char *key_name)
{
    const struct {
        const char *name, *value;
    } words[] = {
        {"key_name", key_name},
        {"error", info->error ? info->error : ""},
        {"param", info->error ? info->param : ""},
        {"unknown", info->unknown_field},
    };
    if (info->key_index >= 0)
        kva_buf_printf(out, " key=%d", info->key_index);
    for (size_t i = 0; i < KVA_COUNT_OF(words); i++) {
        if (*words[i].value) {
            kva_buf_printf(out, " %s=", words[i].name);
            put_word(out, words[i].value);
        }
    }
    if (info->unknown_fields > 1)
        kva_buf_printf(out, "+%u", info->unknown_fields - 1);
}

static void write_line(const struct kva_exchange_info *info, const char *key_name,
                       enum kva_log_level level)
{
    double ms = (double)(kva_time_ns() - info->received_ns) / (double)KVA_NS_PER_MS;
    struct kva_buf text, json;
    kva_buf_init(&text, 4096);
    kva_buf_init(&json, 4096);
    kva_buf_printf(&text, "%s ", info->method);
    put_clean(&text, info->path, 256);
    kva_buf_printf(&text, " %d %.1fms id=", info->aborted ? 499 : info->status, ms);
    put_clean(&text, info->request_id, KVA_REQUEST_ID_MAX);
    write_reasons(&text, info, key_name);
    if (info->summary[0])
        kva_buf_printf(&text, " %s", info->summary);
    if (info->stalled)
        kva_buf_puts(&text, " slow-reader");
    write_json(&json, info, key_name, ms);
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
        write_line(info, info->key_index >= 0 ? kva_auth_name(server->auth, info->key_index) : "",
                   level);
}
