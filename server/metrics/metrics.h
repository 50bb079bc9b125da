/* metrics.h - counters and histograms of the server, and the text that Prometheus reads.
 *
 * What the scheduler and the engine count comes from their statistics at the time of the scrape;
 * what only the server sees (requests, latencies as the client has them, rejections) is counted
 * here. Histograms have vLLM's buckets, so that dashboards and alerts carry over.
 *
 * Thread rule: the event loop's thread. */
#ifndef KVA_SERVER_METRICS_METRICS_H
#define KVA_SERVER_METRICS_METRICS_H

#include "base/buf.h"
#include "base/histogram.h"
#include "cluster/view.h"
#include "scheduler/scheduler.h"
#include "server/grammar/grammars.h"
#include "server/http/http.h"

/* Why a request was not taken. */
enum kva_reject_reason {
    KVA_REJECT_QUEUE_FULL,
    KVA_REJECT_QUEUE_TIME,
    KVA_REJECT_CONNECTIONS, /* it came on a connection beyond those that are served */
    KVA_REJECT_BUDGET,
    KVA_REJECT_LOADING,
    KVA_REJECT_DRAINING,
    KVA_REJECT_RATE, /* exposed by limit, see struct kva_metrics_view */
    KVA_REJECT_KEY,
    KVA_REJECT_INVALID,
    KVA_REJECT_CONTEXT,
    KVA_REJECT_DEVICE,
    KVA_REJECT_REASON_COUNT,
};

enum kva_end_reason {
    KVA_END_STOP,
    KVA_END_LENGTH,
    KVA_END_ABORT, /* the client left */
    KVA_END_ERROR,
    KVA_END_REASON_COUNT,
};

#define KVA_HTTP_ROUTES_MAX 24u
#define KVA_HTTP_CODES_MAX  24u

struct kva_metrics {
    uint64_t prompt_tokens; /* of requests that were taken */
    uint64_t generation_tokens;
    uint64_t embeddings;
    uint64_t choices_ended[KVA_END_REASON_COUNT];
    uint64_t rejected[KVA_REJECT_REASON_COUNT];
    uint64_t unknown_fields;
    uint64_t template_steps; /* of chats, whether they were taken or not */
    uint64_t template_failures;
    uint64_t keep_alives;
    uint64_t streams_paused;
    uint64_t slow_readers_aborted;
    struct kva_histogram template_render;
    struct kva_histogram time_to_first_token;
    struct kva_histogram inter_token;
    struct kva_histogram time_per_output_token;
    struct kva_histogram end_to_end;
    struct kva_histogram queue;
    struct kva_histogram prefill;
    struct kva_histogram decode;
    struct kva_histogram inference; /* prefill and decode */
    struct kva_histogram params_n;
    struct kva_histogram params_max_tokens; /* where it is said */
    struct kva_histogram request_prompt_tokens;
    struct kva_histogram request_generation_tokens;
    struct {
        const char *route;
        uint64_t count[KVA_HTTP_CODES_MAX];
    } http[KVA_HTTP_ROUTES_MAX];
};

void kva_metrics_init(struct kva_metrics *metrics);

/* `route` is a constant string; it identifies itself by its address. code 0: no answer was sent. */
void kva_metrics_count_http(struct kva_metrics *metrics, const char *route, int code);

/* The code that a column of kva_metrics.http counts; -1: all others. */
int kva_metrics_http_code(uint32_t column);

/* Limits of keys, in the order of enum kva_auth_limit. */
#define KVA_METRICS_KEY_LIMITS 4u

/* Everything that is exposed, at one moment. */
struct kva_metrics_view {
    const struct kva_metrics *metrics;
    const struct kva_scheduler_stats *stats;
    const uint64_t *key_refused; /* [KVA_METRICS_KEY_LIMITS], what KVA_REJECT_RATE is made of */
    uint64_t jobs_run;           /* by workers */
    uint64_t jobs_abandoned;
    uint32_t jobs_waiting;
    const char *model;
    const char *version;
    const struct kva_http_counts *http;
    const struct kva_grammars_stats *grammars;
    const struct kva_cluster_view *cluster; /* NULL: it is in none */
    bool ready;
    bool draining;
    bool vllm_names; /* also expose the common names under vllm: */
    int64_t start_unix_s;
};

void kva_metrics_text(struct kva_buf *out, const struct kva_metrics_view *view);

/* What a cluster's node counts (cluster.c). */
void kva_metrics_cluster_text(struct kva_buf *out, const struct kva_cluster_view *view,
                              const char *labels);

/* The names under vllm: (metrics_vllm.c). */
void kva_metrics_vllm_text(struct kva_buf *out, const struct kva_metrics_view *view);

/* Pieces that both use. `labels` is the inside of the braces. */
void kva_metrics_head(struct kva_buf *out, const char *name, const char *type, const char *help);
void kva_metrics_value(struct kva_buf *out, const char *name, const char *labels, double value);
void kva_metrics_histogram(struct kva_buf *out, const char *name, const char *labels,
                           const char *help, const struct kva_histogram *histogram);
/* The same with a further label, `key`="`value`"; and a metric of one value with its head. */
void kva_metrics_labelled(struct kva_buf *out, const char *name, const char *labels,
                          const char *key, const char *value, double number);
void kva_metrics_single(struct kva_buf *out, const char *name, const char *type, const char *labels,
                        double value, const char *help);
/* model="..." with the escapes that the format wants. */
void kva_metrics_label(struct kva_buf *out, const char *key, const char *value);

#endif
