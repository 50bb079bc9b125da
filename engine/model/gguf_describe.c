/* gguf_describe.c - what a GGUF file says of itself, for kva_model_describe. */
#include "engine/model/files.h"
#include "engine/model/gguf_files.h"

#include <stdio.h>
#include <string.h>

#define FORMATS_MAX 48

struct share {
    const struct kva_gguf_format *format;
    uint64_t bytes;
    size_t tensors;
};

/* The largest first. */
static size_t count_shares(const struct kva_model_files *files, struct share *shares)
{
    size_t count = 0;
    for (size_t i = 0; i < files->shard_count; i++) {
        const struct kva_gguf *gguf = &files->shards[i].gguf;
        for (size_t j = 0; j < gguf->tensor_count; j++) {
            const struct kva_gguf_tensor *tensor = &gguf->tensors[j];
            size_t at = 0;
            while (at < count && shares[at].format != tensor->format)
                at++;
            if (at == FORMATS_MAX)
                continue;
            if (at == count)
                shares[count++] = (struct share){.format = tensor->format};
            shares[at].bytes += tensor->end - tensor->begin;
            shares[at].tensors++;
        }
    }
    for (size_t i = 1; i < count; i++)
        for (size_t j = i; j > 0 && shares[j].bytes > shares[j - 1].bytes; j--) {
            struct share before = shares[j - 1];
            shares[j - 1] = shares[j];
            shares[j] = before;
        }
    return count;
}

static void put_formats(const struct kva_model_files *files, struct kva_buf *out)
{
    struct share shares[FORMATS_MAX];
    size_t count = count_shares(files, shares);
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += shares[i].bytes;
    kva_buf_printf(out, "%-20s ", "tensors in the file");
    for (size_t i = 0; i < count; i++)
        kva_buf_printf(out, "%s%s %.1f%% (%zu)", i ? ", " : "",
                       shares[i].format ? shares[i].format->name : "?",
                       100.0 * (double)shares[i].bytes / (double)(total ? total : 1),
                       shares[i].tensors);
    kva_buf_putc(out, '\n');
}

/* A string of the metadata, printable and not too long; NULL: there is none. */
static const char *text_of(const struct kva_gguf *gguf, const char *key, char *out, size_t size)
{
    const char *text = NULL;
    size_t length = 0;
    if (kva_gguf_get_string(gguf, key, &text, &length, NULL) || !text || length == 0)
        return NULL;
    length = kva_min_size(length, size - 1);
    for (size_t i = 0; i < length; i++)
        out[i] = text[i] >= 0x20 && text[i] < 0x7F ? text[i] : '?';
    out[length] = '\0';
    return out;
}

static void put_texts(const struct kva_gguf *gguf, struct kva_buf *out)
{
    static const struct {
        const char *label, *key;
    } table[] = {
        {"name in the file", "general.name"},     {"made by", "general.author"},
        {"organization", "general.organization"}, {"quantised by", "general.quantized_by"},
        {"licence", "general.license"},           {"source", "general.source.url"},
    };
    char text[96];
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++)
        if (text_of(gguf, table[i].key, text, sizeof(text)))
            kva_buf_printf(out, "%-20s %s\n", table[i].label, text);
}

static void put_tokenizer(const struct kva_gguf *gguf, struct kva_buf *out)
{
    char model[48], pre[48];
    const struct kva_gguf_field *tokens = kva_gguf_find(gguf, "tokenizer.ggml.tokens");
    if (!text_of(gguf, "tokenizer.ggml.model", model, sizeof(model)))
        snprintf(model, sizeof(model), "none");
    kva_buf_printf(out, "%-20s %s", "tokenizer", model);
    if (text_of(gguf, "tokenizer.ggml.pre", pre, sizeof(pre)))
        kva_buf_printf(out, ", pre-tokenizer %s", pre);
    if (tokens)
        kva_buf_printf(out, ", %llu tokens", (unsigned long long)tokens->count);
    kva_buf_putc(out, '\n');
}

void kva_gguf_files_describe(const struct kva_model_files *files, struct kva_buf *out)
{
    const struct kva_gguf *gguf = &files->shards[0].gguf;
    int64_t version = -1;
    char architecture[48];
    kva_buf_printf(out, "%-20s GGUF version %u", "file", gguf->version);
    if (text_of(gguf, "general.architecture", architecture, sizeof(architecture)))
        kva_buf_printf(out, ", architecture %s", architecture);
    if (!kva_gguf_get_whole(gguf, "general.quantization_version", 0, INT32_MAX, &version, NULL) &&
        version >= 0)
        kva_buf_printf(out, ", quantisation version %lld", (long long)version);
    if (files->shard_count > 1)
        kva_buf_printf(out, ", %zu parts", files->shard_count);
    kva_buf_putc(out, '\n');
    put_formats(files, out);
    put_tokenizer(gguf, out);
    put_texts(gguf, out);
}
