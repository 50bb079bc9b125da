/* vllm.c - the names that dashboards and autoscalers for vLLM look for. */
#include "server/metrics/metrics.h"

#include <stdio.h>

static void put_finished(struct kva_buf *out, const struct kva_metrics *metrics, const char *labels)
{
    static const char *const reasons[KVA_END_REASON_COUNT] = {"stop", "length", "abort", "error"};
    kva_metrics_head(out, "vllm:request_success_total", "counter", "Finished requests, by reason.");
    for (int i = 0; i < KVA_END_REASON_COUNT; i++) {
        char all[1024];
        snprintf(all, sizeof(all), "%s,finished_reason=\"%s\"", labels, reasons[i]);
        kva_metrics_value(out, "vllm:request_success_total", all,
                          (double)metrics->choices_ended[i]);
    }
}

void kva_metrics_vllm_text(struct kva_buf *out, const struct kva_metrics_view *view)
{
    const struct kva_metrics *metrics = view->metrics;
    const struct kva_scheduler_stats *stats = view->stats;
    const struct kva_engine_usage *use = &stats->engine;
    struct kva_buf label;
    kva_buf_init(&label, 600);
    kva_metrics_label(&label, "model_name", view->model);
    kva_buf_puts(&label, ",engine=\"0\"");
    const char *labels = label.failed || !label.data ? "model_name=\"\"" : label.data;
    double budget = (double)use->budget.device;
    double in_use = (double)(use->used.device - use->cached.device);
    kva_metrics_single(out, "vllm:num_requests_running", "gauge", labels, stats->running,
                       "Running requests.");
    kva_metrics_single(out, "vllm:num_requests_waiting", "gauge", labels,
                       (double)stats->waiting + stats->suspended, "Waiting requests.");
    kva_metrics_single(out, "vllm:kv_cache_usage_perc", "gauge", labels,
                       budget > 0 ? in_use / budget : 0, "KV cache usage, 1: full.");
    /* The older name, which vLLM's own dashboard still asks for. */
    kva_metrics_single(out, "vllm:gpu_cache_usage_perc", "gauge", labels,
                       budget > 0 ? in_use / budget : 0, "KV cache usage, 1: full.");
    kva_metrics_single(out, "vllm:num_preemptions_total", "counter", labels,
                       (double)stats->preemptions, "Preemptions.");
    kva_metrics_single(out, "vllm:prompt_tokens_total", "counter", labels,
                       (double)metrics->prompt_tokens, "Prompt tokens.");
    kva_metrics_single(out, "vllm:generation_tokens_total", "counter", labels,
                       (double)metrics->generation_tokens, "Generated tokens.");
    kva_metrics_single(out, "vllm:prefix_cache_queries_total", "counter", labels,
                       (double)use->prefix_lookup_tokens,
                       "Prompt tokens looked up in the prefix cache.");
    kva_metrics_single(out, "vllm:prefix_cache_hits_total", "counter", labels,
                       (double)use->prefix_hit_tokens, "Prompt tokens found in the prefix cache.");
    put_finished(out, metrics, labels);
    const struct {
        const char *name;
        const struct kva_histogram *histogram;
        const char *help;
    } histograms[] = {
        {"vllm:time_to_first_token_seconds", &metrics->time_to_first_token, "Time to first token."},
        {"vllm:inter_token_latency_seconds", &metrics->inter_token, "Inter-token latency."},
        {"vllm:time_per_output_token_seconds", &metrics->time_per_output_token,
         "Time per output token."},
        {"vllm:e2e_request_latency_seconds", &metrics->end_to_end, "End-to-end latency."},
        {"vllm:request_queue_time_seconds", &metrics->queue, "Time in the queue."},
        {"vllm:request_prefill_time_seconds", &metrics->prefill, "Time in prefill."},
        {"vllm:request_decode_time_seconds", &metrics->decode, "Time in decode."},
        {"vllm:request_inference_time_seconds", &metrics->inference, "Time in prefill and decode."},
        {"vllm:iteration_tokens_total", &stats->rows_per_step, "Tokens of a step."},
        {"vllm:request_params_n", &metrics->params_n, "The parameter n."},
        {"vllm:request_params_max_tokens", &metrics->params_max_tokens,
         "The parameter max_tokens."},
        {"vllm:request_prompt_tokens", &metrics->request_prompt_tokens, "Prompt tokens."},
        {"vllm:request_generation_tokens", &metrics->request_generation_tokens,
         "Generated tokens."},
        {"vllm:request_max_num_generation_tokens", &metrics->request_generation_tokens,
         "Generated tokens of one choice."},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(histograms); i++)
        kva_metrics_histogram(out, histograms[i].name, labels, histograms[i].help,
                              histograms[i].histogram);
    kva_buf_finish(&label);
}
