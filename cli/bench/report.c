/* report.c - tables and JSON. */
#include "cli/bench/bench.h"

#include <stdio.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

/* Mean of a row's samples. Rates are such means by the median time: one slow sample says nothing of
 * the others, and the tokens of steps in which some sequences give none (pre-decoding) do. */
static double per_sample(const struct kva_bench_row *row, uint64_t total)
{
    return (double)total / row->sample_count;
}

static uint64_t fetched_bytes(const struct kva_bench_row *row)
{
    return kva_counts_named(&row->counted, "fetched_bytes");
}

/* Bytes that a sample reads: weights, KV, and what is staged from the host. */
static double read_bytes(const struct kva_bench_row *row)
{
    return per_sample(row, row->counts.weight_bytes + row->counts.kv_bytes + fetched_bytes(row));
}

/* Part of a roof that the median sample reached; 0: the device has no such roof. */
static double share(double per_second, double roof)
{
    return roof > 0 ? per_second / roof : 0;
}

/* The larger of both measurements: neighbours only take away. */
static struct kva_device_roofs best_roofs(const struct kva_bench *bench)
{
    const struct kva_device_roofs *a = &bench->roofs, *b = &bench->roofs_end;
    return (struct kva_device_roofs){
        .read_bytes_per_s =
            a->read_bytes_per_s > b->read_bytes_per_s ? a->read_bytes_per_s : b->read_bytes_per_s,
        .copy_bytes_per_s =
            a->copy_bytes_per_s > b->copy_bytes_per_s ? a->copy_bytes_per_s : b->copy_bytes_per_s,
        .f32_flops_per_s =
            a->f32_flops_per_s > b->f32_flops_per_s ? a->f32_flops_per_s : b->f32_flops_per_s,
        .bf16_flops_per_s =
            a->bf16_flops_per_s > b->bf16_flops_per_s ? a->bf16_flops_per_s : b->bf16_flops_per_s,
        .int8_ops_per_s =
            a->int8_ops_per_s > b->int8_ops_per_s ? a->int8_ops_per_s : b->int8_ops_per_s,
    };
}

/* --- samples --------------------------------------------------------------------------------- */

static double quantile(const struct kva_bench_row *row, double part)
{
    double at = part * (row->sample_count - 1);
    uint32_t low = (uint32_t)at;
    uint32_t high = kva_min_u32(low + 1, row->sample_count - 1);
    double share = at - low;
    return row->samples_s[low] * (1 - share) + row->samples_s[high] * share;
}

double kva_bench_median(const struct kva_bench_row *row)
{
    return quantile(row, 0.5);
}

double kva_bench_spread(const struct kva_bench_row *row)
{
    return (quantile(row, 0.75) - quantile(row, 0.25)) / kva_bench_median(row);
}

/* --- tables ---------------------------------------------------------------------------------- */

static void print_roofs(const char *when, const struct kva_device_roofs *roofs)
{
    printf("roofs %s: read %.1f GB/s, copy %.1f GB/s, f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, int8 "
           "%.0f GOP/s\n",
           when, roofs->read_bytes_per_s / 1e9, roofs->copy_bytes_per_s / 1e9,
           roofs->f32_flops_per_s / 1e9, roofs->bf16_flops_per_s / 1e9,
           roofs->int8_ops_per_s / 1e9);
}

static int label_width(const struct kva_bench *bench)
{
    uint32_t width = 8;
    for (uint32_t i = 0; i < bench->spec_count; i++)
        width = kva_max_u32(width, (uint32_t)strlen(bench->labels[i]));
    return (int)width;
}

void kva_bench_print_head(const struct kva_bench *bench)
{
    const struct kva_model *model = bench->instance.model;
    printf("%s: %.2f billion parameters, %.0f MiB of weights, %.1f KiB of KV a token\n",
           bench->instance.name, (double)model->parameter_count / 1e9,
           (double)model->weight_bytes / MIB,
           (double)kva_model_kv_bytes_per_token(&model->config) / 1024);
    printf("%s\n", kva_device_get_info(bench->instance.device)->name);
    printf("memory: %.0f MiB available, %.0f of the device tier and %.0f of the host tier planned "
           "with, %.0f in all\n",
           (double)bench->available_bytes / MIB, (double)bench->memory.device / MIB,
           (double)bench->memory.host / MIB, (double)bench->memory.total / MIB);
    print_roofs("before", &bench->roofs);
    printf("\n%-8s %-*s %6s %6s %5s %4s | %9s %6s %8s %9s | %8s %8s %8s | %5s %5s %5s\n", "what",
           label_width(bench), "policy", "prompt", "depth", "batch", "own", "ms", "spread",
           "decode/s", "prefill/s", "weights", "KV", "fetched", "read", "f32", "bf16");
}

static void print_profile(const struct kva_bench_row *row)
{
    double rest = row->seconds;
    printf("%9s", "");
    for (uint32_t i = 0; i < KVA_PROFILE_COUNT; i++) {
        double seconds = (double)row->counts.ns[i] / 1e9;
        rest -= seconds;
        printf("%s %.2f ms (%.0f%%)  ", kva_profile_kind_name((enum kva_profile_kind)i),
               seconds * 1e3 / row->sample_count, 100 * seconds / row->seconds);
    }
    printf("other %.2f ms (%.0f%%)\n", rest * 1e3 / row->sample_count, 100 * rest / row->seconds);
}

static const char *kind_name(enum kva_bench_kind kind)
{
    static const char *const names[] = {
        [KVA_BENCH_PREFILL] = "prefill",
        [KVA_BENCH_DECODE] = "decode",
        [KVA_BENCH_MIXED] = "mixed",
    };
    return names[kind];
}

static void print_number(uint32_t value, int width, bool there)
{
    if (there)
        printf(" %*u", width, value);
    else
        printf(" %*s", width, "");
}

void kva_bench_print_row(const struct kva_bench *bench, const struct kva_bench_row *row)
{
    bool decodes = row->kind != KVA_BENCH_PREFILL;
    printf("%-8s %-*s", kind_name(row->kind), label_width(bench), row->policy);
    print_number(row->prompt_tokens, 6, row->kind != KVA_BENCH_DECODE);
    print_number(row->depth, 6, decodes);
    print_number(row->batch, 5, decodes);
    print_number(row->distinct, 4, decodes);
    if (*row->skipped || row->sample_count == 0) {
        printf(" | not measured: %s\n", row->skipped);
        fflush(stdout);
        return;
    }
    double seconds = kva_bench_median(row);
    double flops = per_sample(row, row->counts.flops) / seconds;
    printf(" | %9.2f %5.1f%% %8.1f %9.1f | %8.1f %8.1f %8.1f | %4.0f%% %4.0f%% %4.0f%%\n",
           seconds * 1e3, 100 * kva_bench_spread(row),
           per_sample(row, row->decoded_tokens) / seconds,
           per_sample(row, row->prefilled_tokens) / seconds,
           per_sample(row, row->counts.weight_bytes) / MIB,
           per_sample(row, row->counts.kv_bytes) / MIB, per_sample(row, fetched_bytes(row)) / MIB,
           100 * share(read_bytes(row) / seconds, bench->roofs.read_bytes_per_s),
           100 * share(flops, bench->roofs.f32_flops_per_s),
           100 * share(flops, bench->roofs.bf16_flops_per_s));
    if (bench->config->bench_profile)
        print_profile(row);
    fflush(stdout);
}

void kva_bench_print_end(const struct kva_bench *bench)
{
    print_roofs("after", &bench->roofs_end);
    if (bench->config->bench_cpu_time)
        printf("times are processor time, of compute and copies together\n");
    printf("ms: median of a step (of prefill: of the whole prompt); spread: distance of the "
           "quartiles; own: sequences\nwith KV of their own, the others share it; decode/s, "
           "prefill/s: tokens of the mean step or prompt, by the\nmedian time; weights, KV, "
           "fetched: MiB that the mean one reads; read, f32, bf16: what the mean one reads and\n"
           "computes, by the median time, as parts of the roofs before\n");
}

/* --- JSON ------------------------------------------------------------------------------------ */

static void put_roofs(struct kva_buf *out, const char *name, const struct kva_device_roofs *roofs)
{
    kva_buf_printf(out,
                   "\"%s\":{\"read_bytes_per_s\":%.6g,\"copy_bytes_per_s\":%.6g,"
                   "\"f32_flops_per_s\":%.6g,\"bf16_flops_per_s\":%.6g,"
                   "\"int8_ops_per_s\":%.6g}",
                   name, roofs->read_bytes_per_s, roofs->copy_bytes_per_s, roofs->f32_flops_per_s,
                   roofs->bf16_flops_per_s, roofs->int8_ops_per_s);
}

static void put_model(const struct kva_bench *bench, struct kva_buf *out)
{
    const struct kva_model *model = bench->instance.model;
    const struct kva_model_config *config = &model->config;
    kva_buf_puts(out, "\"model\":{\"name\":");
    kva_buf_json_string(out, bench->instance.name, strlen(bench->instance.name));
    kva_buf_printf(out,
                   ",\"parameters\":%llu,\"weight_bytes\":%llu,\"kv_bytes_per_token\":%zu,"
                   "\"layers\":%u,\"hidden\":%u,\"heads\":%u,\"kv_heads\":%u,\"head_dim\":%u}",
                   (unsigned long long)model->parameter_count,
                   (unsigned long long)model->weight_bytes, kva_model_kv_bytes_per_token(config),
                   config->layer_count, config->hidden_size, config->heads, config->kv_heads,
                   config->head_dim);
}

static void put_profile(const struct kva_bench_row *row, struct kva_buf *out)
{
    double rest = row->seconds;
    kva_buf_puts(out, ",\"seconds_by_kind\":{");
    for (uint32_t i = 0; i < KVA_PROFILE_COUNT; i++) {
        double seconds = (double)row->counts.ns[i] / 1e9;
        rest -= seconds;
        kva_buf_printf(out, "\"%s\":%.6g,", kva_profile_kind_name((enum kva_profile_kind)i),
                       seconds / row->sample_count);
    }
    kva_buf_printf(out, "\"other\":%.6g}", rest / row->sample_count);
}

static void put_figures(const struct kva_bench_row *row, const struct kva_device_roofs *roofs,
                        struct kva_buf *out)
{
    double seconds = kva_bench_median(row);
    double flops = per_sample(row, row->counts.flops);
    kva_buf_puts(out, ",\"samples_s\":[");
    for (uint32_t i = 0; i < row->sample_count; i++)
        kva_buf_printf(out, "%s%.6g", i ? "," : "", row->samples_s[i]);
    kva_buf_printf(out,
                   "],\"median_s\":%.6g,\"spread\":%.4g,\"decode_tokens_per_s\":%.6g,"
                   "\"prefill_tokens_per_s\":%.6g,\"weight_bytes\":%.0f,\"kv_bytes\":%.0f,"
                   "\"flops\":%.0f",
                   seconds, kva_bench_spread(row), per_sample(row, row->decoded_tokens) / seconds,
                   per_sample(row, row->prefilled_tokens) / seconds,
                   per_sample(row, row->counts.weight_bytes), per_sample(row, row->counts.kv_bytes),
                   flops);
    for (uint32_t i = 0; i < row->counted.count; i++)
        kva_buf_printf(out, ",\"%s\":%.12g", row->counted.at[i].counter->name,
                       per_sample(row, row->counted.at[i].value));
    kva_buf_printf(out,
                   ",\"of_roof\":{\"read\":%.4g,\"f32\":%.4g,\"bf16\":%.4g,\"int8\":%.4g},"
                   "\"used_bytes\":{\"device\":%llu,\"host\":%llu}",
                   share(read_bytes(row) / seconds, roofs->read_bytes_per_s),
                   share(flops / seconds, roofs->f32_flops_per_s),
                   share(flops / seconds, roofs->bf16_flops_per_s),
                   share(flops / seconds, roofs->int8_ops_per_s),
                   (unsigned long long)row->used.device, (unsigned long long)row->used.host);
    put_profile(row, out);
}

static void put_row(const struct kva_bench_row *row, const struct kva_device_roofs *roofs,
                    struct kva_buf *out)
{
    kva_buf_printf(out, "{\"what\":\"%s\",\"policy\":", kind_name(row->kind));
    kva_buf_json_string(out, row->policy, strlen(row->policy));
    if (row->kind != KVA_BENCH_DECODE)
        kva_buf_printf(out, ",\"prompt_tokens\":%u", row->prompt_tokens);
    if (row->kind != KVA_BENCH_PREFILL)
        kva_buf_printf(out, ",\"batch\":%u,\"depth\":%u,\"distinct\":%u", row->batch, row->depth,
                       row->distinct);
    if (*row->skipped || row->sample_count == 0) {
        kva_buf_puts(out, ",\"skipped\":");
        kva_buf_json_string(out, row->skipped, strlen(row->skipped));
    } else {
        put_figures(row, roofs, out);
    }
    kva_buf_putc(out, '}');
}

void kva_bench_json(const struct kva_bench *bench, const char *error, struct kva_buf *out)
{
    const struct kva_device_info *info = kva_device_get_info(bench->instance.device);
    const struct kva_device_roofs roofs = best_roofs(bench);
    kva_buf_puts(out, "{\"version\":\"" KVA_VERSION "\",\"device\":");
    kva_buf_json_string(out, info->name, strlen(info->name));
    kva_buf_printf(out, ",\"threads\":%u,\"step_tokens\":%u,\"cpu_time\":%s,\n", info->threads,
                   bench->instance.engine->limits.step_tokens_max,
                   bench->config->bench_cpu_time ? "true" : "false");
    put_model(bench, out);
    if (error) {
        kva_buf_puts(out, ",\n\"error\":");
        kva_buf_json_string(out, error, strlen(error));
    }
    kva_buf_printf(out,
                   ",\n\"memory\":{\"available_bytes\":%llu,\"device_bytes\":%llu,"
                   "\"host_bytes\":%llu,\"total_bytes\":%llu},\n",
                   (unsigned long long)bench->available_bytes,
                   (unsigned long long)bench->memory.device, (unsigned long long)bench->memory.host,
                   (unsigned long long)bench->memory.total);
    put_roofs(out, "roofs_before", &bench->roofs);
    kva_buf_puts(out, ",\n");
    put_roofs(out, "roofs_after", &bench->roofs_end);
    kva_buf_puts(out, ",\n\"rows\":[");
    for (uint32_t i = 0; i < bench->row_count; i++) {
        kva_buf_puts(out, i ? ",\n" : "\n");
        put_row(&bench->rows[i], &roofs, out);
    }
    kva_buf_puts(out, "\n]}\n");
}
