/* describe.c - what an opened model is, for people. */
#include "engine/model/gguf_files.h"
#include "engine/model/packed.h"
#include "engine/model/skew.h"
#include "kernels/packed.h"

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

static void add_format(const struct kva_tensor *tensor, uint64_t bytes[KVA_DTYPE_END])
{
    const struct kva_weight weight = {tensor->data, tensor->dtype, tensor->rows, tensor->cols};
    bytes[tensor->dtype] += kva_weight_bytes(&weight);
}

/* Of the matrices, those of most bytes first. */
static void put_formats(const struct kva_model *model, struct kva_buf *out)
{
    uint64_t bytes[KVA_DTYPE_END] = {0}, total = 0;
    for (uint32_t i = 0; i < model->config.layer_count; i++) {
        const struct kva_layer_tensors *t = &model->layers[i];
        const struct kva_tensor *const tensors[] = {&t->q,    &t->k,  &t->v,   &t->o,
                                                    &t->gate, &t->up, &t->down};
        for (size_t j = 0; j < KVA_COUNT_OF(tensors); j++)
            add_format(tensors[j], bytes);
    }
    add_format(&model->lm_head, bytes);
    if (model->embed.data != model->lm_head.data)
        add_format(&model->embed, bytes);
    for (size_t i = 0; i < KVA_DTYPE_END; i++)
        total += bytes[i];
    kva_buf_printf(out, "%-20s ", "weights' format");
    for (bool first = true;; first = false) {
        size_t most = 0;
        for (size_t i = 1; i < KVA_DTYPE_END; i++)
            most = bytes[i] > bytes[most] ? i : most;
        if (bytes[most] == 0)
            break;
        kva_buf_printf(out, "%s%s", first ? "" : ", ", kva_dtype_name((enum kva_dtype)most));
        if (bytes[most] < total)
            kva_buf_printf(out, " %.1f%%", 100.0 * (double)bytes[most] / (double)total);
        bytes[most] = 0;
    }
    kva_buf_putc(out, '\n');
}

static void put_packed(const struct kva_model_packed *packed, struct kva_buf *out)
{
    if (!packed)
        return;
    kva_buf_printf(out, "%-20s %s%s\n", "packed matrices",
                   packed->shared  ? "mapped from "
                   : *packed->path ? "in memory; cannot be kept in "
                                   : "in memory",
                   packed->path);
}

/* Nothing of a model of which nobody has made one. */
static void put_skew(const struct kva_model *model, struct kva_buf *out)
{
    const struct kva_skew *skew = model->skew;
    if (skew)
        kva_buf_printf(out, "%-20s of %llu tokens, directions: %s\n", "skew",
                       (unsigned long long)skew->tokens, kva_skew_method_name(skew->method));
    else if (model->skew_err.status == KVA_EFORMAT)
        kva_buf_printf(out, "%-20s %s\n", "skew", model->skew_err.message);
}

/* Nothing of a model whose files say nothing. */
static void put_embedding(const struct kva_embedding_defaults *embedding, struct kva_buf *out)
{
    static const char *const names[] = {NULL, "mean of all tokens", "last token", NULL};
    if (names[embedding->pooling])
        kva_buf_printf(out, "%-20s %s%s\n", "vectors", names[embedding->pooling],
                       embedding->raw ? "" : ", of length 1");
    else if (embedding->pooling == KVA_MODEL_POOLING_OTHER)
        kva_buf_printf(out, "%-20s not as the files say: %s is not implemented\n", "vectors",
                       embedding->lacks);
}

void kva_model_describe(const struct kva_model *model, struct kva_buf *out)
{
    const struct kva_model_config *config = &model->config;
    if (model->files->shards[0].gguf.data)
        kva_gguf_files_describe(model->files, out);
    kva_buf_printf(out, "%-20s %s\n", "family", config->model_type);
    put_count(out, "parameters", model->parameter_count,
              model->headless           ? " (no output matrix: it makes vectors, and no text)"
              : config->tied_embeddings ? " (embeddings tied)"
                                        : "");
    put_formats(model, out);
    put_bytes(out, "weights", model->weight_bytes);
    put_packed(model->packed, out);
    put_skew(model, out);
    put_embedding(&model->embedding, out);
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
