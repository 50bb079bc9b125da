/* make_model.c - write a model with random weights: files as a download would have them. */
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "engine/model/limits.h"
#include "engine/model/synthetic.h"
#include "text/tokenizer/synthetic.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER_BYTES_MAX ((size_t)128 << 20)

_Static_assert(KVA_SYNTHETIC_BOS_FROM_END == KVA_SYNTHETIC_BOS &&
                   KVA_SYNTHETIC_EOS_FROM_END == KVA_SYNTHETIC_EOS,
               "config.json and tokenizer.json must name the same special tokens");

static enum kva_status write_file(const char *dir, const char *name, const struct kva_buf *text,
                                  struct kva_err *err)
{
    char path[4096];
    if (text->failed)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %s", name);
    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
        return kva_fail(err, KVA_EINVAL, "the path of '%.100s...' is too long", dir);
    FILE *file = fopen(path, "we");
    bool ok = file && fwrite(text->data, 1, text->length, file) == text->length;
    if (file && fclose(file) != 0)
        ok = false;
    return ok ? KVA_OK : kva_fail(err, KVA_EIO, "%s: %s", path, strerror(errno));
}

static enum kva_status write_tokenizer(const char *dir, uint32_t vocab_size, struct kva_err *err)
{
    struct kva_buf text;
    kva_buf_init(&text, TOKENIZER_BYTES_MAX);
    kva_tokenizer_put_synthetic(&text, vocab_size);
    enum kva_status status = write_file(dir, "tokenizer.json", &text, err);
    kva_buf_clear(&text);
    kva_tokenizer_put_synthetic_config(&text);
    if (!status)
        status = write_file(dir, "tokenizer_config.json", &text, err);
    kva_buf_finish(&text);
    return status;
}

/* The shape of that name, else the file of that name; the caller frees. */
static enum kva_status read_shape(const char *name, char **ret, struct kva_err *err)
{
    const char *known = kva_shape_config(name);
    FILE *file = known ? NULL : fopen(name, "re");
    if (!known && !file) {
        struct kva_buf list;
        kva_buf_init(&list, 1024);
        kva_shape_list(&list);
        enum kva_status status =
            kva_fail_param(err, KVA_EINVAL, "shape",
                           "--shape is '%.100s', expected one of %s, or the path of a config.json",
                           name, list.data ? list.data : "the shapes");
        kva_buf_finish(&list);
        return status;
    }
    char *text = known ? strdup(known) : calloc(1, KVA_MODEL_CONFIG_BYTES_MAX + 1);
    size_t length = file && text ? fread(text, 1, KVA_MODEL_CONFIG_BYTES_MAX + 1, file) : 0;
    bool failed = file && ferror(file);
    if (file)
        fclose(file);
    if (text && !failed && length <= KVA_MODEL_CONFIG_BYTES_MAX) {
        *ret = text;
        return KVA_OK;
    }
    free(text);
    return kva_fail(err, KVA_EIO, "%.100s cannot be read, or is over %u bytes", name,
                    KVA_MODEL_CONFIG_BYTES_MAX);
}

static enum kva_status make(const struct kva_config *config, const char *dir, struct kva_err *err)
{
    char *shape = NULL;
    uint64_t started_ns = kva_time_ns();
    enum kva_status status = read_shape(config->shape, &shape, err);
    if (status)
        return status;
    struct kva_cli_progress progress = {.what = "writing", .last_ns = started_ns};
    const struct kva_synthetic_params params = {
        .dir_path = dir,
        .config_json = shape,
        .seed = config->model_seed,
        .layer_count = (uint32_t)config->layers,
        .context_max = (uint32_t)config->context,
        .shard_bytes = config->shard_bytes,
        .threads = (uint32_t)config->threads,
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
    };
    struct kva_synthetic_info info;
    status = kva_synthetic_write(&params, &info, err);
    free(shape);
    if (!status)
        status = write_tokenizer(dir, info.vocab_size, err);
    if (!status)
        printf("%s: %.2f billion parameters, %.1f MiB in %u file%s, %.1f s\n", dir,
               (double)info.parameter_count / 1e9, (double)info.weight_bytes / (1 << 20),
               info.shard_count, info.shard_count == 1 ? "" : "s",
               (double)(kva_time_ns() - started_ns) / 1e9);
    return status;
}

int kva_cli_make_model(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_err err;
    if (!config->shape || rest->count != 1) {
        fprintf(stderr, "kvahead: make-model wants --shape NAME and one directory; --help says "
                        "more\n");
        return KVA_EXIT_USAGE;
    }
    return make(config, rest->items[0], &err) ? kva_cli_fail(&err) : KVA_EXIT_OK;
}
