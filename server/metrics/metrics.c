/* metrics.c - buckets of the histograms, counts by route and code, and the text format. */
#include "server/metrics/metrics.h"

#include <math.h>
#include <string.h>

/* vLLM's buckets, in seconds and tokens; those of requests with as many below its first, 0.3 s, as a
 * queue and a prefill of milliseconds want. */
static const double ttft_bounds[] = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                     0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                     20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
static const double token_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                      0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
static const double request_bounds[] = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,  0.025, 0.05,   0.1,   0.2,
    0.3,    0.5,     0.8,    1.0,   1.5,    2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
    30.0,   40.0,    50.0,   60.0,  120.0,  240.0, 480.0, 960.0, 1920.0, 7680.0};
static const double count_bounds[] = {1,     2,      5,      10,     20,     50,    100,
                                      200,   500,    1000,   2000,   5000,   10000, 20000,
                                      50000, 100000, 200000, 500000, 1000000};

static const double choices_bounds[] = {1, 2, 5, 10, 20};

/* Answers that are counted one by one; others share the last place. */
static const int http_codes[KVA_HTTP_CODES_MAX] = {0,   200, 204, 400, 401, 404, 405,
                                                   408, 413, 415, 417, 429, 431, 499,
                                                   500, 503, 304, 421, 501, 505};

void kva_metrics_init(struct kva_metrics *metrics)
{
    memset(metrics, 0, sizeof(*metrics));
    kva_histogram_init(&metrics->template_render, ttft_bounds, KVA_COUNT_OF(ttft_bounds));
    kva_histogram_init(&metrics->time_to_first_token, ttft_bounds, KVA_COUNT_OF(ttft_bounds));
    kva_histogram_init(&metrics->inter_token, token_bounds, KVA_COUNT_OF(token_bounds));
    kva_histogram_init(&metrics->time_per_output_token, token_bounds, KVA_COUNT_OF(token_bounds));
    kva_histogram_init(&metrics->end_to_end, request_bounds, KVA_COUNT_OF(request_bounds));
    kva_histogram_init(&metrics->queue, request_bounds, KVA_COUNT_OF(request_bounds));
    kva_histogram_init(&metrics->prefill, request_bounds, KVA_COUNT_OF(request_bounds));
    kva_histogram_init(&metrics->decode, request_bounds, KVA_COUNT_OF(request_bounds));
    kva_histogram_init(&metrics->inference, request_bounds, KVA_COUNT_OF(request_bounds));
    kva_histogram_init(&metrics->params_n, choices_bounds, KVA_COUNT_OF(choices_bounds));
    kva_histogram_init(&metrics->params_max_tokens, count_bounds, KVA_COUNT_OF(count_bounds));
    kva_histogram_init(&metrics->request_prompt_tokens, count_bounds, KVA_COUNT_OF(count_bounds));
    kva_histogram_init(&metrics->request_generation_tokens, count_bounds,
                       KVA_COUNT_OF(count_bounds));
}

void kva_metrics_count_http(struct kva_metrics *metrics, const char *route, int code)
{
    uint32_t row = 0;
    uint32_t column = 0;
    while (row < KVA_HTTP_ROUTES_MAX - 1 && metrics->http[row].route &&
           metrics->http[row].route != route)
        row++;
    while (column < KVA_HTTP_CODES_MAX - 1 && http_codes[column] != code)
        column++;
    if (!metrics->http[row].route)
        metrics->http[row].route = route;
    metrics->http[row].count[column]++;
}

void kva_metrics_head(struct kva_buf *out, const char *name, const char *type, const char *help)
{
    kva_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void kva_metrics_value(struct kva_buf *out, const char *name, const char *labels, double value)
{
    kva_buf_puts(out, name);
    if (labels[0])
        kva_buf_printf(out, "{%s}", labels);
    if (value == floor(value) && fabs(value) < 1e18)
        kva_buf_printf(out, " %.0f\n", value);
    else
        kva_buf_printf(out, " %.9g\n", value);
}

void kva_metrics_label(struct kva_buf *out, const char *key, const char *value)
{
    kva_buf_printf(out, "%s=\"", key);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            kva_buf_putc(out, '\\');
        if (*value == '\n')
            kva_buf_puts(out, "\\n");
        else
            kva_buf_putc(out, *value);
    }
    kva_buf_putc(out, '"');
}

void kva_metrics_labelled(struct kva_buf *out, const char *name, const char *labels,
                          const char *key, const char *value, double number)
{
    char all[1024];
    snprintf(all, sizeof(all), "%s,%s=\"%s\"", labels, key, value);
    kva_metrics_value(out, name, all, number);
}

void kva_metrics_single(struct kva_buf *out, const char *name, const char *type, const char *labels,
                        double value, const char *help)
{
    kva_metrics_head(out, name, type, help);
    kva_metrics_value(out, name, labels, value);
}

void kva_metrics_histogram(struct kva_buf *out, const char *name, const char *labels,
                           const char *help, const struct kva_histogram *histogram)
{
    uint64_t below = 0;
    kva_metrics_head(out, name, "histogram", help);
    for (uint32_t i = 0; i < histogram->bound_count; i++) {
        below += histogram->counts[i];
        kva_buf_printf(out, "%s_bucket{", name);
        kva_buf_puts(out, labels);
        kva_buf_printf(out, ",le=\"%.10g\"} %llu\n", histogram->bounds[i],
                       (unsigned long long)below);
    }
    kva_buf_printf(out, "%s_bucket{", name);
    kva_buf_puts(out, labels);
    kva_buf_printf(out, ",le=\"+Inf\"} %llu\n", (unsigned long long)histogram->total);
    kva_buf_printf(out, "%s_sum{", name);
    kva_buf_puts(out, labels);
    kva_buf_printf(out, "} %.9g\n", histogram->sum);
    kva_buf_printf(out, "%s_count{", name);
    kva_buf_puts(out, labels);
    kva_buf_printf(out, "} %llu\n", (unsigned long long)histogram->total);
}

int kva_metrics_http_code(uint32_t column)
{
    return column < KVA_HTTP_CODES_MAX - 1 ? http_codes[column] : -1;
}
