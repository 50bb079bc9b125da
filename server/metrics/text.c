/* text.c - the kvahead_ metrics in Prometheus' text format. */
#include "server/metrics/metrics.h"

#include "base/log.h"

#include <stdio.h>

static void put_scheduler(struct kva_buf *out, const struct kva_scheduler_stats *stats,
                          const char *labels)
{
    static const char *const reasons[KVA_WAIT_REASON_COUNT] = {
        [KVA_WAIT_BATCH_FULL] = "batch_full", [KVA_WAIT_DEVICE_BYTES] = "device_bytes",
        [KVA_WAIT_HOST_BYTES] = "host_bytes", [KVA_WAIT_PREFILL] = "prefill",
        [KVA_WAIT_SIBLING] = "sibling",       [KVA_WAIT_TENANT] = "key",
    };
    kva_metrics_single(out, "kvahead_requests_running", "gauge", labels, stats->running,
                       "Choices that hold device memory.");
    kva_metrics_single(out, "kvahead_requests_suspended", "gauge", labels, stats->suspended,
                       "Choices that were preempted and wait to go on.");
    kva_metrics_head(out, "kvahead_requests_waiting", "gauge",
                     "Choices that wait for their first admission, by reason.");
    uint32_t named = 0;
    for (int i = 0; i < KVA_WAIT_REASON_COUNT; i++) {
        named += stats->waiting_by_reason[i];
        kva_metrics_labelled(out, "kvahead_requests_waiting", labels, "reason", reasons[i],
                             stats->waiting_by_reason[i]);
    }
    kva_metrics_labelled(out, "kvahead_requests_waiting", labels, "reason", "new",
                         stats->waiting > named ? stats->waiting - named : 0);
    kva_metrics_head(out, "kvahead_sequences", "gauge",
                     "Choices that hold device memory, by KV policy.");
    for (unsigned i = 0; i < KVA_KV_POLICY_COUNT; i++)
        kva_metrics_labelled(out, "kvahead_sequences", labels, "policy",
                             kva_kv_policy_name((enum kva_kv_policy_id)i),
                             stats->engine.sequences[i]);
    kva_metrics_single(out, "kvahead_preemptions_total", "counter", labels,
                       (double)stats->preemptions,
                       "Choices that gave their device memory to others.");
    kva_metrics_single(out, "kvahead_restarts_total", "counter", labels, (double)stats->restarts,
                       "Choices whose KV was lost at another instance, and computed again.");
    kva_metrics_single(out, "kvahead_steps_total", "counter", labels, (double)stats->steps,
                       "Engine steps.");
    kva_metrics_single(out, "kvahead_step_rows_total", "counter", labels, (double)stats->step_rows,
                       "Decode rows and prefill tokens of all steps.");
    kva_metrics_head(out, "kvahead_scheduler_prompt_tokens_total", "counter",
                     "Prompt tokens by where their keys and values came from.");
    kva_metrics_labelled(out, "kvahead_scheduler_prompt_tokens_total", labels, "source", "computed",
                         (double)stats->prompt_tokens_computed);
    kva_metrics_labelled(out, "kvahead_scheduler_prompt_tokens_total", labels, "source", "cached",
                         (double)stats->prompt_tokens_cached);
}

static double ratio(uint64_t used, uint64_t budget)
{
    return budget ? (double)used / (double)budget : 0;
}

static void put_tier(struct kva_buf *out, const char *name, const char *help, const char *labels,
                     double device, double host)
{
    kva_metrics_head(out, name, "gauge", help);
    kva_metrics_labelled(out, name, labels, "tier", "device", device);
    kva_metrics_labelled(out, name, labels, "tier", "host", host);
}

static void put_engine(struct kva_buf *out, const struct kva_engine_usage *use, const char *labels)
{
    put_tier(out, "kvahead_kv_bytes", "Bytes of the KV cache in use, prefix cache included.",
             labels, (double)use->used.device, (double)use->used.host);
    put_tier(out, "kvahead_kv_cached_bytes", "Of these: prefix cache, given up on demand.", labels,
             (double)use->cached.device, (double)use->cached.host);
    put_tier(out, "kvahead_kv_budget_bytes", "Byte budgets of the KV cache.", labels,
             (double)use->budget.device, (double)use->budget.host);
    put_tier(out, "kvahead_kv_usage_ratio", "Used bytes, prefix cache excluded, over the budget.",
             labels, ratio(use->used.device - use->cached.device, use->budget.device),
             ratio(use->used.host - use->cached.host, use->budget.host));
    const struct {
        const char *name;
        uint64_t value;
        const char *help;
    } counters[] = {
        {"kvahead_prefix_lookup_tokens_total", use->prefix_lookup_tokens,
         "Prompt tokens that were looked up in the prefix cache."},
        {"kvahead_prefix_hit_tokens_total", use->prefix_hit_tokens,
         "Prompt tokens that were found there."},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(counters); i++)
        kva_metrics_single(out, counters[i].name, "counter", labels, (double)counters[i].value,
                           counters[i].help);
    for (uint32_t i = 0; i < use->counts.count; i++) {
        const struct kva_counter *counter = use->counts.at[i].counter;
        char name[128];
        snprintf(name, sizeof(name), "kvahead_%s_total", counter->name);
        kva_metrics_single(out, name, "counter", labels, (double)use->counts.at[i].value,
                           counter->help);
    }
}

static void put_ends(struct kva_buf *out, const struct kva_metrics_view *view, const char *labels)
{
    const struct kva_metrics *metrics = view->metrics;
    static const char *const ends[KVA_END_REASON_COUNT] = {"stop", "length", "abort", "error"};
    static const char *const rejects[KVA_REJECT_REASON_COUNT] = {
        [KVA_REJECT_QUEUE_FULL] = "queue_full",
        [KVA_REJECT_QUEUE_TIME] = "waiting_time",
        [KVA_REJECT_CONNECTIONS] = "connections",
        [KVA_REJECT_BUDGET] = "budget",
        [KVA_REJECT_LOADING] = "loading",
        [KVA_REJECT_DRAINING] = "draining",
        [KVA_REJECT_KEY] = "key",
        [KVA_REJECT_INVALID] = "invalid",
        [KVA_REJECT_CONTEXT] = "context",
        [KVA_REJECT_DEVICE] = "device",
    };
    static const char *const limits[KVA_METRICS_KEY_LIMITS] = {"key_guesses", "key_requests",
                                                               "key_tokens", "key_waiting"};
    kva_metrics_head(out, "kvahead_requests_finished_total", "counter",
                     "Choices that ended, by reason.");
    for (int i = 0; i < KVA_END_REASON_COUNT; i++)
        kva_metrics_labelled(out, "kvahead_requests_finished_total", labels, "reason", ends[i],
                             (double)metrics->choices_ended[i]);
    kva_metrics_head(out, "kvahead_requests_rejected_total", "counter",
                     "Requests that were not taken, by reason.");
    for (int i = 0; i < KVA_REJECT_REASON_COUNT; i++)
        if (rejects[i])
            kva_metrics_labelled(out, "kvahead_requests_rejected_total", labels, "reason",
                                 rejects[i], (double)metrics->rejected[i]);
    for (uint32_t i = 0; i < KVA_METRICS_KEY_LIMITS && view->key_refused; i++)
        kva_metrics_labelled(out, "kvahead_requests_rejected_total", labels, "reason", limits[i],
                             (double)view->key_refused[i]);
}

static void put_http(struct kva_buf *out, const struct kva_metrics *metrics, const char *labels)
{
    kva_metrics_head(out, "kvahead_http_requests_total", "counter",
                     "Answers by route and status code; code 0: none was sent.");
    for (uint32_t i = 0; i < KVA_HTTP_ROUTES_MAX && metrics->http[i].route; i++) {
        for (uint32_t j = 0; j < KVA_HTTP_CODES_MAX; j++) {
            char all[1024];
            int code = kva_metrics_http_code(j);
            if (metrics->http[i].count[j] == 0)
                continue;
            snprintf(all, sizeof(all), "%s,route=\"%s\",code=\"%d\"", labels,
                     metrics->http[i].route, code);
            kva_metrics_value(out, "kvahead_http_requests_total", all,
                              (double)metrics->http[i].count[j]);
        }
    }
}

static void put_grammars(struct kva_buf *out, const struct kva_grammars_stats *stats,
                         const char *labels)
{
    kva_metrics_head(out, "kvahead_grammar_requests_total", "counter",
                     "Requests with a grammar, by whether it was there or had to be made.");
    kva_metrics_labelled(out, "kvahead_grammar_requests_total", labels, "grammar", "kept",
                         (double)stats->hits);
    kva_metrics_labelled(out, "kvahead_grammar_requests_total", labels, "grammar", "new",
                         (double)stats->misses);
    kva_metrics_single(out, "kvahead_grammar_failures_total", "counter", labels,
                       (double)stats->failures, "Grammars that could not be made.");
    kva_metrics_single(out, "kvahead_grammars", "gauge", labels, stats->kept,
                       "Grammars that are kept.");
    kva_metrics_single(out, "kvahead_grammar_bytes", "gauge", labels, (double)stats->kept_bytes,
                       "Memory of the grammars that are kept.");
    kva_metrics_histogram(out, "kvahead_grammar_seconds", labels, "Time of making a grammar.",
                          &stats->make_seconds);
    kva_metrics_histogram(out, "kvahead_grammar_mask_seconds", labels,
                          "Time of taking a token and making the mask of the next.",
                          &stats->mask_seconds);
    kva_metrics_single(out, "kvahead_grammar_late_total", "counter", labels, (double)stats->late,
                       "Steps that a sequence sat out because its mask was not there.");
}

static void put_server(struct kva_buf *out, const struct kva_metrics_view *view, const char *labels)
{
    const struct kva_metrics *metrics = view->metrics;
    kva_metrics_single(out, "kvahead_ready", "gauge", labels, view->ready,
                       "1: requests are taken.");
    kva_metrics_single(out, "kvahead_draining", "gauge", labels, view->draining,
                       "1: shutting down.");
    kva_metrics_single(out, "kvahead_connections", "gauge", labels, view->http->connections,
                       "Open connections.");
    kva_metrics_single(out, "kvahead_connections_waiting", "gauge", labels, view->http->waiting,
                       "Open connections without a request.");
    kva_metrics_single(out, "kvahead_connections_evicted_total", "counter", labels,
                       (double)view->http->evicted,
                       "Waiting connections closed to make room for others.");
    kva_metrics_single(out, "kvahead_accept_errors_total", "counter", labels,
                       (double)view->http->accept_errors,
                       "Connections that could not be accepted.");
    kva_metrics_single(out, "kvahead_request_body_bytes", "gauge", labels,
                       (double)view->http->body_bytes,
                       "Bodies of requests that arrive or are being prepared.");
    kva_metrics_single(out, "kvahead_start_time_seconds", "gauge", labels,
                       (double)view->start_unix_s, "Start of the server, Unix time.");
    kva_metrics_single(out, "kvahead_prompt_tokens_total", "counter", labels,
                       (double)metrics->prompt_tokens,
                       "Prompt tokens of the requests that were taken.");
    kva_metrics_single(out, "kvahead_generation_tokens_total", "counter", labels,
                       (double)metrics->generation_tokens, "Tokens that were generated.");
    kva_metrics_single(out, "kvahead_embeddings_total", "counter", labels,
                       (double)metrics->embeddings, "Vectors of prompts that were made.");
    kva_metrics_single(out, "kvahead_log_lines_dropped_total", "counter", labels,
                       (double)kva_log_dropped(),
                       "Log lines that were dropped because nobody read the log.");
    kva_metrics_single(
        out, "kvahead_template_steps_total", "counter", labels, (double)metrics->template_steps,
        "Work of chat templates, in steps of which one rendering has a limited number.");
    kva_metrics_single(out, "kvahead_template_failures_total", "counter", labels,
                       (double)metrics->template_failures,
                       "Renderings that ended with an error of the template or at a limit.");
    kva_metrics_histogram(out, "kvahead_template_seconds", labels,
                          "Time of rendering a chat's template.", &metrics->template_render);
    put_grammars(out, view->grammars, labels);
    kva_metrics_single(out, "kvahead_unknown_fields_total", "counter", labels,
                       (double)metrics->unknown_fields, "Fields of requests that nobody knows.");
    kva_metrics_single(out, "kvahead_keep_alives_total", "counter", labels,
                       (double)metrics->keep_alives, "Keep-alive comments that were sent.");
    kva_metrics_single(out, "kvahead_worker_jobs_waiting", "gauge", labels, view->jobs_waiting,
                       "Requests that wait for a worker to tokenise them.");
    kva_metrics_head(out, "kvahead_worker_jobs_total", "counter",
                     "Requests that a worker has begun, or whose client left before.");
    kva_metrics_labelled(out, "kvahead_worker_jobs_total", labels, "result", "run",
                         (double)view->jobs_run);
    kva_metrics_labelled(out, "kvahead_worker_jobs_total", labels, "result", "abandoned",
                         (double)view->jobs_abandoned);
    kva_metrics_single(out, "kvahead_streams_paused_total", "counter", labels,
                       (double)metrics->streams_paused,
                       "Times that a slow reader paused its stream.");
    kva_metrics_single(out, "kvahead_slow_readers_cut_total", "counter", labels,
                       (double)metrics->slow_readers_aborted,
                       "Connections cut because their peer did not read.");
    kva_metrics_single(out, "kvahead_http_malformed_total", "counter", labels,
                       (double)view->http->malformed,
                       "Connections that did not speak HTTP, or too much or too slowly.");
}

void kva_metrics_text(struct kva_buf *out, const struct kva_metrics_view *view)
{
    const struct kva_metrics *metrics = view->metrics;
    struct kva_buf label;
    kva_buf_init(&label, 600);
    kva_metrics_label(&label, "model", view->model);
    const char *labels = label.failed || !label.data ? "model=\"\"" : label.data;
    kva_metrics_head(out, "kvahead_build_info", "gauge", "1, with the version.");
    kva_metrics_labelled(out, "kvahead_build_info", labels, "version", view->version, 1);
    put_server(out, view, labels);
    put_scheduler(out, view->stats, labels);
    put_engine(out, &view->stats->engine, labels);
    put_ends(out, view, labels);
    put_http(out, metrics, labels);
    const struct {
        const char *name;
        const struct kva_histogram *histogram;
        const char *help;
    } histograms[] = {
        {"kvahead_time_to_first_token_seconds", &metrics->time_to_first_token,
         "From the complete request to its first token."},
        {"kvahead_inter_token_latency_seconds", &metrics->inter_token,
         "Between two tokens of one choice."},
        {"kvahead_time_per_output_token_seconds", &metrics->time_per_output_token,
         "Mean time between the tokens of one choice."},
        {"kvahead_e2e_request_latency_seconds", &metrics->end_to_end,
         "From the complete request to its last token."},
        {"kvahead_request_queue_time_seconds", &metrics->queue, "Waiting for admission."},
        {"kvahead_request_prefill_time_seconds", &metrics->prefill,
         "From admission to the first token."},
        {"kvahead_request_decode_time_seconds", &metrics->decode,
         "From the first token to the last."},
        {"kvahead_step_seconds", &view->stats->step_seconds, "Time of a step."},
        {"kvahead_rows_per_step", &view->stats->rows_per_step,
         "Decode rows and prompt tokens of a step."},
        {"kvahead_request_prompt_tokens", &metrics->request_prompt_tokens,
         "Prompt tokens of one prompt."},
        {"kvahead_request_generation_tokens", &metrics->request_generation_tokens,
         "Generated tokens of one choice."},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(histograms); i++)
        kva_metrics_histogram(out, histograms[i].name, labels, histograms[i].help,
                              histograms[i].histogram);
    if (view->cluster)
        kva_metrics_cluster_text(out, view->cluster, labels);
    kva_buf_finish(&label);
    if (view->vllm_names)
        kva_metrics_vllm_text(out, view);
}
