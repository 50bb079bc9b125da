/* describe.c - what an opened model is, for people. */
#include "engine/model/gguf_files.h"
#include "engine/model/int8.h"

size_t kva_model_kv_bytes_per_token(const struct kva_model_config *config)
{
    return (size_t)config->layer_count * config->kv_heads * config->head_dim * 2 * sizeof(uint16_t);
}

/* Powers of 1024 with one decimal: what people compare with a memory's size. */
static void put_bytes(struct kva_buf *out, const char *name, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < KVA_COUNT_OF(units)) {
        value /= 1024.0;
        unit++;
    }
    kva_buf_printf(out, "%-20s %.*f %s\n", name, unit ? 1 : 0, value, units[unit]);
}

/* Powers of 1000, as models are named by. */
static void put_count(struct kva_buf *out, const char *name, uint64_t count, const char *note)
{
    static const char *const units[] = {"", " thousand", " million", " billion", " trillion"};
    double value = (double)count;
    size_t unit = 0;
    while (value >= 1000.0 && unit + 1 < KVA_COUNT_OF(units)) {
        value /= 1000.0;
        unit++;
    }
    kva_buf_printf(out, "%-20s %.*f%s%s\n", name, unit ? 2 : 0, value, units[unit], note);
}

static void put_windows(struct kva_buf *out, const struct kva_model_config *config)
{
    uint32_t count = 0, window = 0;
    for (uint32_t layer = 0; layer < config->layer_count; layer++) {
        if (config->layer_window[layer]) {
            window = config->layer_window[layer];
            count++;
        }
    }
    if (count)
        kva_buf_printf(out, "%-20s %u tokens in %u of %u layers\n", "sliding window", window, count,
                       config->layer_count);
}

void kva_model_describe(const struct kva_model *model, struct kva_buf *out)
{
    const struct kva_model_config *config = &model->config;
    if (model->files->shards[0].gguf.data)
        kva_gguf_files_describe(model->files, out);
    kva_buf_printf(out, "%-20s %s\n", "family", config->model_type);
    put_count(out, "parameters", model->parameter_count,
              config->tied_embeddings ? " (embeddings tied)" : "");
    kva_buf_printf(out, "%-20s %s\n", "weights' format", kva_dtype_name(model->layers[0].q.dtype));
    put_bytes(out, "weights", model->weight_bytes);
    if (model->int8)
        kva_buf_printf(out, "%-20s %s%s\n", "int8 matrices",
                       model->int8->shared ? "mapped from " : "in memory; cannot be kept in ",
                       model->int8->path);
    if (model->copied_bytes)
        put_bytes(out, "of these copied", model->copied_bytes);
    kva_buf_printf(out, "%-20s %u\n", "layers", config->layer_count);
    kva_buf_printf(out, "%-20s %u, intermediate %u\n", "hidden size", config->hidden_size,
                   config->intermediate_size);
    kva_buf_printf(out, "%-20s %u query, %u key-value, of %u\n", "heads", config->heads,
                   config->kv_heads, config->head_dim);
    kva_buf_printf(out, "%-20s %u\n", "vocabulary", config->vocab_size);
    kva_buf_printf(out, "%-20s %u tokens\n", "context", config->context_max);
    put_windows(out, config);
    put_bytes(out, "KV per token", kva_model_kv_bytes_per_token(config));
    put_bytes(out, "KV of full context",
              (uint64_t)kva_model_kv_bytes_per_token(config) * config->context_max);
}
