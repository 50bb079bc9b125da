/* views.c - what is answered at once: liveness, readiness, models, metrics, the live view. */
#include "server/internal.h"

#include "base/clock.h"
#include "server/api/policies.h"

#include <assert.h>
#include <event2/http.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reply_json(struct kva_exchange *exchange, int code, struct kva_buf *body)
{
    kva_exchange_reply_buf(exchange, code, "application/json", body);
    kva_buf_finish(body);
}

void kva_view_health(struct kva_server *server, struct kva_exchange *exchange)
{
    (void)server;
    static const char body[] = "{\"status\":\"ok\"}";
    kva_exchange_reply(exchange, 200, "application/json", body, sizeof(body) - 1);
}

void kva_view_ready(struct kva_server *server, struct kva_exchange *exchange)
{
    static const char body[] = "{\"status\":\"ready\"}";
    struct kva_err err;
    enum kva_status status = kva_server_check_open(server, &err);
    if (status == KVA_OK) {
        kva_exchange_reply(exchange, 200, "application/json", body, sizeof(body) - 1);
        return;
    }
    /* A probe is not a rejected request. */
    struct kva_buf text;
    char seconds[16];
    snprintf(seconds, sizeof(seconds), "%u", server->params.retry_after_s);
    kva_exchange_add_header(exchange, "Retry-After", seconds);
    kva_buf_init(&text, 8192);
    kva_error_json(&text, status, &err);
    reply_json(exchange, 503, &text);
}

void kva_view_version(struct kva_server *server, struct kva_exchange *exchange)
{
    struct kva_buf body;
    kva_buf_init(&body, 4096);
    kva_buf_puts(&body, "{\"version\":");
    kva_buf_json_string(&body, server->params.version, strlen(server->params.version));
    kva_buf_puts(&body, ",\"name\":\"kvahead\"}");
    reply_json(exchange, 200, &body);
}

static void model_json(struct kva_buf *out, const struct kva_server *server, const char *id)
{
    const struct kva_api_config *api = &server->backend.api;
    kva_buf_puts(out, "{\"id\":");
    kva_buf_json_string(out, id, strlen(id));
    kva_buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"kvahead\"",
                   (long long)server->start_unix_s);
    kva_buf_printf(out, ",\"max_model_len\":%u,\"kv_policies\":[", api->context_max);
    bool first = true;
    for (unsigned i = 0; i < KVA_KV_POLICY_COUNT; i++) {
        if (api->kv_allowed_mask & (1u << i)) {
            kva_buf_printf(out, "%s\"%s\"", first ? "" : ",",
                           kva_kv_policy_name((enum kva_kv_policy_id)i));
            first = false;
        }
    }
    kva_buf_printf(out, "],\"kv_policy\":\"%s\"}", kva_kv_policy_name(api->kv_default));
}

void kva_view_models(struct kva_server *server, struct kva_exchange *exchange)
{
    struct kva_buf body;
    kva_buf_init(&body, (size_t)1 << 20);
    kva_buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; server->has_backend && i < server->backend.api.model_id_count; i++) {
        kva_buf_puts(&body, i ? "," : "");
        model_json(&body, server, server->backend.api.model_ids[i]);
    }
    kva_buf_puts(&body, "]}");
    reply_json(exchange, 200, &body);
}

void kva_view_model(struct kva_server *server, struct kva_exchange *exchange)
{
    const char *raw = kva_exchange_info(exchange)->path + strlen("/v1/models/");
    struct kva_err err;
    /* Before the model is there nobody knows whether it is this one. */
    enum kva_status status = server->has_backend ? KVA_OK : kva_server_check_open(server, &err);
    if (status) {
        kva_server_reply_error(server, exchange, status, &err);
        return;
    }
    char *id = evhttp_uridecode(raw, 0, NULL);
    if (id && kva_api_serves_model(&server->backend.api, id)) {
        struct kva_buf body;
        kva_buf_init(&body, 65536);
        model_json(&body, server, id);
        reply_json(exchange, 200, &body);
    } else {
        kva_fail_param(&err, KVA_EMODEL, "model",
                       "The model '%.200s' does not exist here; served is '%.200s'.", id ? id : raw,
                       server->backend.api.model_ids[0]);
        kva_server_reply_error(server, exchange, KVA_EMODEL, &err);
    }
    free(id);
}

void kva_view_policies(struct kva_server *server, struct kva_exchange *exchange)
{
    struct kva_buf body;
    const struct kva_api_config *api = &server->backend.api;
    const char *comma = "";
    kva_buf_init(&body, (size_t)1 << 20);
    kva_buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    for (unsigned i = 0; server->has_backend && i < KVA_KV_POLICY_COUNT; i++) {
        if (!(api->kv_allowed_mask & (1u << i)))
            continue;
        kva_buf_puts(&body, comma);
        kva_policy_json(&body, &api->kv_specs[i]);
        comma = ",";
    }
    kva_buf_puts(&body, "]}");
    reply_json(exchange, 200, &body);
}

/* What the keys have used, by the names that they had. */
static void put_keys(struct kva_buf *out, const struct kva_auth *auth)
{
    static const struct {
        const char *name, *type, *help;
    } families[] = {
        {"kvahead_key_requests_total", "counter", "POST requests of a key."},
        {"kvahead_key_tokens_total", "counter", "Tokens of prompts and answers of a key."},
        {"kvahead_key_waiting", "gauge", "Choices of a key that have not begun."},
    };
    struct kva_key_row rows[KVA_KEY_ROWS_MAX + 1];
    uint32_t count = kva_auth_get_rows(auth, rows);
    for (size_t family = 0; family < KVA_COUNT_OF(families); family++) {
        kva_metrics_head(out, families[family].name, families[family].type, families[family].help);
        for (uint32_t i = 0; i < count; i++) {
            const struct kva_key_row *row = &rows[i];
            const uint64_t values[] = {row->requests, row->tokens, row->waiting};
            char label[KVA_KEY_NAME_MAX + 16];
            snprintf(label, sizeof(label), "key=\"%s\"", row->name);
            kva_metrics_value(out, families[family].name, label, (double)values[family]);
        }
    }
}

void kva_view_metrics(struct kva_server *server, struct kva_exchange *exchange)
{
    struct kva_scheduler_stats stats = {.running = 0};
    if (server->has_backend)
        kva_service_get_stats(server->backend.service, &stats);
    struct kva_workers_counts jobs;
    kva_workers_get_counts(server->workers, &jobs);
    struct kva_http_counts http;
    kva_http_get_counts(server->http, &http);
    struct kva_grammars *grammars = server->has_backend ? server->backend.api.grammars : NULL;
    struct kva_grammars_stats grammar_stats;
    kva_grammars_get_stats(grammars, &grammar_stats);
    struct kva_cluster_view cluster;
    const struct kva_server_cluster *in = &server->backend.cluster;
    bool clustered = server->has_backend && in->get_view;
    if (clustered)
        in->get_view(in->opaque, &cluster);
    struct kva_metrics_view view = {
        .metrics = &server->metrics,
        .stats = &stats,
        .key_refused = kva_auth_refused(server->auth),
        .jobs_run = jobs.run,
        .jobs_abandoned = jobs.abandoned,
        .jobs_waiting = jobs.waiting,
        .model = server->has_backend ? server->backend.api.model_ids[0] : "",
        .version = server->params.version,
        .http = &http,
        .grammars = &grammar_stats,
        .cluster = clustered ? &cluster : NULL,
        .ready = server->phase == KVA_PHASE_READY,
        .draining = server->phase == KVA_PHASE_DRAINING,
        .vllm_names = server->params.metrics_vllm,
        .start_unix_s = server->start_unix_s,
    };
    struct kva_buf body;
    kva_buf_init(&body, (size_t)4 << 20);
    kva_metrics_text(&body, &view);
    if (server->params.metrics_keys)
        put_keys(&body, server->auth);
    kva_exchange_reply_buf(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
    kva_buf_finish(&body);
}

static_assert(KVA_METRICS_KEY_LIMITS == KVA_AUTH_LIMIT_COUNT, "metrics.h, auth.h");

/* Those of a sequence, at 0: what a choice that waits has. */
static struct kva_counts no_counts(struct kva_server *server)
{
    struct kva_scheduler_stats stats = {.running = 0};
    struct kva_counts counts = {.count = 0};
    kva_service_get_stats(server->backend.service, &stats);
    for (uint32_t i = 0; i < stats.engine.counts.count; i++) {
        if (stats.engine.counts.at[i].counter->field)
            (void)kva_counts_have(&counts, stats.engine.counts.at[i].counter);
    }
    return counts;
}

static void choice_json(struct kva_buf *out, struct kva_server *server,
                        const struct kva_choice_view *view, struct kva_counts counts)
{
    const struct kva_sequence_info *info = &view->info;
    struct kva_ticket *ticket = kva_tickets_find(&server->tickets, view->request_id);
    const char *id = ticket ? kva_answer_id(ticket->call->answer) : "";
    const char *name = ticket && ticket->call->exchange
                           ? kva_exchange_info(ticket->call->exchange)->request_id
                           : "";
    kva_buf_puts(out, "{\"id\":");
    kva_buf_json_string(out, id, strlen(id));
    kva_buf_puts(out, ",\"request_id\":");
    kva_buf_json_string(out, name, strlen(name));
    kva_buf_printf(out, ",\"prompt_index\":%u,\"choice\":%u,\"state\":\"%s\",\"priority\":%d",
                   ticket ? ticket->prompt_index : 0, view->choice, view->state, view->priority);
    kva_buf_printf(out, ",\"prompt_tokens\":%u,\"prefilled_tokens\":%u,\"output_tokens\":%u",
                   view->prompt_tokens, view->prefilled_tokens, view->output_tokens);
    kva_buf_printf(out, ",\"preemptions\":%u,\"age_s\":%.3f,\"policy\":\"%s\"", view->preemptions,
                   (double)view->age_ns / (double)KVA_NS_PER_S, info->policy ? info->policy : "");
    kva_buf_printf(out, ",\"device_bytes\":%llu,\"host_bytes\":%llu,\"cached_tokens\":%u",
                   (unsigned long long)info->bytes.device, (unsigned long long)info->bytes.host,
                   info->cached_tokens);
    kva_counts_add_all(&counts, &info->counts);
    kva_counts_json(out, &counts);
    kva_buf_putc(out, '}');
}

void kva_view_requests(struct kva_server *server, struct kva_exchange *exchange)
{
    struct kva_buf body;
    struct kva_err err;
    if (!server->params.debug_view) {
        kva_fail(&err, KVA_ENOTFOUND, "The live view is switched off.");
        kva_server_reply_error(server, exchange, KVA_ENOTFOUND, &err);
        return;
    }
    struct kva_choice_view *views = calloc(KVA_SERVICE_VIEWS_MAX, sizeof(*views));
    if (!views) {
        kva_fail(&err, KVA_ENOMEM, "Out of memory for the live view.");
        kva_server_reply_error(server, exchange, KVA_ENOMEM, &err);
        return;
    }
    uint32_t count = 0;
    struct kva_counts counts = {.count = 0};
    if (server->has_backend) {
        counts = no_counts(server);
        count = kva_service_get_view(server->backend.service, views, KVA_SERVICE_VIEWS_MAX);
    }
    kva_buf_init(&body, (size_t)4 << 20);
    kva_buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    int key = kva_exchange_info(exchange)->key_index;
    bool all = kva_auth_limits(server->auth, key).admin;
    for (uint32_t i = 0, shown = 0; i < count; i++) {
        const struct kva_ticket *ticket = kva_tickets_find(&server->tickets, views[i].request_id);
        if (!all && (!ticket || ticket->call->key_index != key))
            continue;
        kva_buf_puts(&body, shown++ ? "," : "");
        choice_json(&body, server, &views[i], counts);
    }
    kva_buf_puts(&body, "]}");
    free(views);
    reply_json(exchange, 200, &body);
}
