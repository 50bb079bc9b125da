/* stream.c - `eval --stream`: a long text through each policy, and what it gives window by window. */
#include "cli/eval/eval.h"

#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>

static struct kva_stream_window *windows_of(const struct kva_cli_eval *eval, uint32_t policy)
{
    return eval->stream + policy * eval->config->eval_windows;
}

enum kva_status kva_cli_eval_run_stream(struct kva_cli_eval *eval, void (*progress)(void *opaque),
                                        void *opaque, struct kva_err *err)
{
    const struct kva_config *config = eval->config;
    enum kva_status status = KVA_OK;
    eval->stream = calloc(eval->spec_count * config->eval_windows, sizeof(*eval->stream));
    if (!eval->stream)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %llu windows",
                        (unsigned long long)config->eval_windows);
    status = kva_cli_eval_begin_sparsity(eval, err);
    for (uint32_t i = 0; i < eval->spec_count && !status; i++) {
        const struct kva_stream_params params = {
            .engine = eval->instance.engine,
            .model = eval->instance.model,
            .ids = eval->samples[0].ids,
            .window_tokens = (uint32_t)config->eval_tokens,
            .window_count = (uint32_t)config->eval_windows,
            .spec = eval->specs[i],
            .progress = progress,
            .opaque = opaque,
        };
        status = kva_eval_stream(&params, windows_of(eval, i), err);
        if (status)
            kva_err_prefix(err, status, "%s", eval->names[i]);
    }
    return status;
}

void kva_cli_eval_stream_table(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    const struct kva_config *config = eval->config;
    kva_buf_printf(out, "%s, context %u; '%s' in windows of %llu tokens\n\n", eval->instance.name,
                   eval->instance.engine->limits.context_max, eval->file_path,
                   (unsigned long long)config->eval_tokens);
    for (uint32_t i = 0; i < eval->spec_count; i++) {
        kva_buf_printf(out, "%s%s\n%12s %12s %10s %12s %12s %12s\n", i ? "\n" : "", eval->names[i],
                       "up to token", "perplexity", "ms/token", "kept tokens", "device KiB",
                       "host KiB");
        for (uint64_t j = 0; j < config->eval_windows; j++) {
            const struct kva_stream_window *w = &windows_of(eval, i)[j];
            unsigned long long end = (j + 1) * config->eval_tokens;
            if (w->tokens == 0) {
                kva_buf_printf(out, "%12llu %12s\n", end, "-");
                continue;
            }
            kva_buf_printf(out, "%12llu %12.3f %10.3f %12llu %12.1f %12.1f\n", end, exp(w->nll),
                           (double)w->step_ns / 1e6, (unsigned long long)w->kept_tokens,
                           (double)w->bytes.device / 1024, (double)w->bytes.host / 1024);
        }
    }
    kva_cli_eval_sparsity_table(eval, out);
}

static void put_window(const struct kva_stream_window *w, struct kva_buf *out)
{
    if (w->tokens == 0) {
        kva_buf_puts(out, "null");
        return;
    }
    kva_buf_printf(out,
                   "{\"perplexity\": %.6g, \"ms\": %.6g, \"kept_tokens\": %llu, "
                   "\"device_bytes\": %llu, \"host_bytes\": %llu}",
                   exp(w->nll), (double)w->step_ns / 1e6, (unsigned long long)w->kept_tokens,
                   (unsigned long long)w->bytes.device, (unsigned long long)w->bytes.host);
}

void kva_cli_eval_stream_json(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    const struct kva_config *config = eval->config;
    kva_cli_eval_json_head(eval, out);
    kva_cli_eval_sparsity_json(eval, out);
    kva_buf_puts(out, "  \"policies\": [\n");
    for (uint32_t i = 0; i < eval->spec_count; i++) {
        kva_buf_puts(out, "    ");
        kva_cli_eval_json_policy(eval, i, out);
        kva_buf_puts(out, ",\n     \"windows\": [");
        for (uint64_t j = 0; j < config->eval_windows; j++) {
            kva_buf_puts(out, j ? ",\n       " : "\n       ");
            put_window(&windows_of(eval, i)[j], out);
        }
        kva_buf_puts(out, i + 1 < eval->spec_count ? "]},\n" : "]}\n");
    }
    kva_buf_puts(out, "  ]\n}\n");
}
