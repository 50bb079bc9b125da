/* synthetic.c - writing config.json, tokenizer and shards of noise. */
#include "engine/model/synthetic.h"

#include "base/file.h"
#include "base/noise.h"
#include "base/pool.h"
#include "engine/model/bind.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Elements that one thread makes and writes at a time, and how often progress is told. */
#define PIECE        (512u * 1024u)
#define PIECES_TOLD  256u

#define SHARD_BYTES  (4ull << 30)
#define CONTEXT      65536u
#define HEADER_BYTES (8u << 20) /* of a shard's table at most: about 100 bytes a tensor */

/* One tensor to be written: a constant, or noise around 0. */
struct plan_tensor {
    char name[112];
    uint32_t rows, cols; /* a vector has rows 1 */
    float constant;
    float deviation; /* 0: constant */
    uint32_t shard;
    uint64_t begin;       /* bytes from the start of its shard's data */
    uint64_t piece_first; /* among its shard's pieces */
};

struct plan {
    const struct kva_synthetic_params *params;
    struct kva_err *err;
    int dir_fd;
    struct kva_model_spec spec;
    uint32_t dims[KVA_DIM_COUNT];
    struct plan_tensor *tensors;
    uint32_t tensor_count;
    uint32_t shard_count;
    uint64_t bytes_done, bytes_total;
    struct kva_pool *pool;
};

/* --- what config.json says ------------------------------------------------------------------- */

static bool put_number(cJSON *config, const char *name, double value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(config, name);
    return cJSON_AddNumberToObject(config, name, value) != NULL;
}

/* The fields that the caller, the weights and the tokenizer decide. */
static enum kva_status amend_config(struct plan *plan, cJSON *config)
{
    const struct kva_synthetic_params *params = plan->params;
    const struct kva_config_names *names = plan->spec.family->config_names;
    uint32_t vocab = plan->spec.config.vocab_size;
    uint32_t context = params->context_max;
    /* Scaled positions are as many as the scaling says. */
    if (!context && plan->spec.family->rotary && !plan->spec.config.rope.scaled)
        context = kva_max_u32(plan->spec.config.context_max, CONTEXT);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "torch_dtype");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "dtype");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "quantization_config");
    bool ok = cJSON_AddStringToObject(config, "torch_dtype", "bfloat16") &&
              put_number(config, "bos_token_id", vocab - KVA_SYNTHETIC_BOS_FROM_END) &&
              put_number(config, "eos_token_id", vocab - KVA_SYNTHETIC_EOS_FROM_END);
    if (ok && params->layer_count)
        ok = put_number(config, names->layer_count, params->layer_count);
    if (ok && context)
        ok = put_number(config, names->context_max, context);
    return ok ? KVA_OK : kva_fail(plan->err, KVA_ENOMEM, "out of memory for config.json");
}

/* Parsed twice: what the amendments are called is known after the first time. */
static enum kva_status parse_config(struct plan *plan, cJSON *config)
{
    enum kva_status status = kva_model_spec_parse(config, NULL, &plan->spec, plan->err);
    if (status)
        return status;
    if (plan->spec.config.vocab_size < 256 + KVA_SYNTHETIC_BOS_FROM_END)
        return kva_fail(plan->err, KVA_EUNSUPPORTED,
                        "config.json: a vocabulary of %u has no room for the 256 bytes and %u "
                        "special tokens",
                        plan->spec.config.vocab_size, KVA_SYNTHETIC_BOS_FROM_END);
    status = amend_config(plan, config);
    kva_model_config_finish(&plan->spec.config);
    return status ? status : kva_model_spec_parse(config, NULL, &plan->spec, plan->err);
}

/* --- which tensors, where -------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static void add_tensor(struct plan *plan, const char *prefix, const char *name,
                       enum kva_tensor_dim rows, enum kva_tensor_dim cols, float residual)
{
    struct plan_tensor *tensor = &plan->tensors[plan->tensor_count++];
    *tensor = (struct plan_tensor){.rows = plan->dims[rows], .cols = plan->dims[cols]};
    snprintf(tensor->name, sizeof(tensor->name), "%s%s", prefix, name);
    if (rows != KVA_DIM_ONE)
        tensor->deviation = residual / sqrtf((float)tensor->cols);
    else if (ends_with(name, ".bias"))
        tensor->deviation = 0.02f;
    else
        tensor->constant = 1.0f - plan->spec.config.norm_weight_offset;
}

static void add_tensors(struct plan *plan, const struct kva_tensor_spec *specs, size_t count,
                        const char *prefix)
{
    /* As GPT-2 and its successors begin: what layers add grows with their number. */
    float residual = 1.0f / sqrtf(2.0f * (float)plan->spec.config.layer_count);
    for (size_t i = 0; i < count; i++) {
        bool adds = *prefix && (specs[i].offset == offsetof(struct kva_layer_tensors, o) ||
                                specs[i].offset == offsetof(struct kva_layer_tensors, down));
        if (kva_model_needs(&plan->spec, specs[i].need))
            add_tensor(plan, prefix, specs[i].name, specs[i].rows, specs[i].cols,
                       adds ? residual : 1.0f);
    }
}

static enum kva_status list_tensors(struct plan *plan)
{
    const struct kva_tensor_names *names = plan->spec.family->tensor_names;
    uint32_t layers = plan->spec.config.layer_count;
    size_t count_max = names->model_count + 1 + layers * (names->layer_count + names->fused_count);
    plan->tensors = calloc(count_max, sizeof(*plan->tensors));
    if (!plan->tensors)
        return kva_fail(plan->err, KVA_ENOMEM, "out of memory for %zu tensors", count_max);
    kva_model_dims(&plan->spec, &plan->spec.config, plan->dims);
    add_tensors(plan, names->model, names->model_count, "");
    for (uint32_t layer = 0; layer < layers; layer++) {
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "%s%u.", names->layer_prefix, layer);
        add_tensors(plan, names->layer, names->layer_count, prefix);
        for (size_t i = 0; i < names->fused_count; i++) {
            if (kva_model_needs(&plan->spec, names->fused[i].need))
                add_tensor(plan, prefix, names->fused[i].name, names->fused[i].rows,
                           names->fused[i].cols, 1.0f);
        }
    }
    if (!plan->spec.config.tied_embeddings)
        add_tensor(plan, "", names->lm_head, KVA_DIM_VOCAB, KVA_DIM_HIDDEN, 1.0f);
    return KVA_OK;
}

static uint64_t tensor_elements(const struct plan_tensor *tensor)
{
    return (uint64_t)tensor->rows * tensor->cols;
}

static uint64_t tensor_pieces(const struct plan_tensor *tensor)
{
    return kva_div_up(tensor_elements(tensor), PIECE);
}

static void place_tensors(struct plan *plan)
{
    uint64_t shard_bytes = plan->params->shard_bytes ? plan->params->shard_bytes : SHARD_BYTES;
    uint64_t used = 0, pieces = 0;
    uint32_t shard = 0;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        struct plan_tensor *tensor = &plan->tensors[i];
        uint64_t bytes = tensor_elements(tensor) * sizeof(uint16_t);
        if (used > 0 && used + bytes > shard_bytes) {
            shard++;
            used = pieces = 0;
        }
        tensor->shard = shard;
        tensor->begin = used;
        tensor->piece_first = pieces;
        used += bytes;
        pieces += tensor_pieces(tensor);
        plan->bytes_total += bytes;
    }
    plan->shard_count = shard + 1;
}

/* --- writing --------------------------------------------------------------------------------- */

static enum kva_status file_failed(struct plan *plan, const char *name)
{
    return kva_fail(plan->err, KVA_EIO, "%s/%s: %s", plan->params->dir_path, name, strerror(errno));
}

static enum kva_status write_text(struct plan *plan, const char *name, const char *text)
{
    int fd = openat(plan->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return file_failed(plan, name);
    bool ok = kva_file_write_at(fd, text, strlen(text), 0) &&
              kva_file_write_at(fd, "\n", 1, strlen(text));
    enum kva_status status = ok ? KVA_OK : file_failed(plan, name);
    if (close(fd) != 0 && !status)
        status = file_failed(plan, name);
    return status;
}

static void shard_name(const struct plan *plan, uint32_t shard, char name[64])
{
    if (plan->shard_count == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05u-of-%05u.safetensors", shard + 1, plan->shard_count);
}

/* A part of a shard, shared between the threads. */
struct shard_work {
    const struct plan *plan;
    const struct plan_tensor *tensors; /* of this shard */
    uint32_t tensor_count;
    int fd;
    uint64_t data_begin; /* bytes of the table before the tensors */
    uint64_t piece_first;
    uint16_t *buffers; /* [threads][PIECE] */
    _Atomic int failed_errno;
};

static const struct plan_tensor *find_tensor(const struct shard_work *work, uint64_t piece)
{
    uint32_t low = 0, high = work->tensor_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (work->tensors[middle].piece_first <= piece)
            low = middle;
        else
            high = middle;
    }
    return &work->tensors[low];
}

static void write_piece(void *opaque, uint32_t index, uint32_t worker)
{
    struct shard_work *work = opaque;
    uint64_t piece = work->piece_first + index;
    const struct plan_tensor *tensor = find_tensor(work, piece);
    uint64_t number = piece - tensor->piece_first;
    uint64_t first = number * PIECE;
    size_t count = kva_min_size(PIECE, (size_t)(tensor_elements(tensor) - first));
    uint16_t *out = work->buffers + (size_t)worker * PIECE;
    if (tensor->deviation > 0) {
        uint64_t tensor_index = (uint64_t)(tensor - work->plan->tensors);
        uint64_t seed = kva_noise_seed(work->plan->params->seed, tensor_index);
        kva_noise_bf16(out, count, tensor->deviation, kva_noise_seed(seed, number));
    } else {
        uint32_t bits;
        memcpy(&bits, &tensor->constant, sizeof(bits));
        for (size_t i = 0; i < count; i++)
            out[i] = (uint16_t)(bits >> 16);
    }
    if (!kva_file_write_at(work->fd, out, count * sizeof(*out),
                           work->data_begin + tensor->begin + first * sizeof(*out)))
        work->failed_errno = errno ? errno : EIO;
}

static void put_header(const struct plan *plan, const struct shard_work *work, struct kva_buf *out)
{
    kva_buf_puts(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < work->tensor_count; i++) {
        const struct plan_tensor *tensor = &work->tensors[i];
        uint64_t end = tensor->begin + tensor_elements(tensor) * sizeof(uint16_t);
        kva_buf_printf(out, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", tensor->name);
        if (tensor->rows != plan->dims[KVA_DIM_ONE])
            kva_buf_printf(out, "%u,", tensor->rows);
        kva_buf_printf(out, "%u],\"data_offsets\":[%llu,%llu]}", tensor->cols,
                       (unsigned long long)tensor->begin, (unsigned long long)end);
    }
    kva_buf_putc(out, '}');
    /* Tensors begin aligned, as safetensors libraries write them. */
    while (out->length % 8 && !out->failed)
        kva_buf_putc(out, ' ');
}

static enum kva_status write_data(struct plan *plan, struct shard_work *work, uint64_t pieces)
{
    for (uint64_t at = 0; at < pieces; at += PIECES_TOLD) {
        uint32_t count = (uint32_t)kva_min_size(PIECES_TOLD, (size_t)(pieces - at));
        work->piece_first = at;
        kva_pool_run(plan->pool, count, write_piece, work);
        errno = work->failed_errno;
        if (errno)
            return KVA_EIO;
        /* Pieces at the end of a tensor are shorter: near enough for a progress bar. */
        plan->bytes_done += count * (uint64_t)PIECE * sizeof(uint16_t);
        if (plan->params->progress)
            plan->params->progress(plan->params->progress_opaque,
                                   kva_min_size(plan->bytes_done, plan->bytes_total - 1),
                                   plan->bytes_total);
    }
    return KVA_OK;
}

static enum kva_status write_shard(struct plan *plan, uint32_t first, uint32_t count,
                                   uint16_t *buffers)
{
    const struct plan_tensor *last = &plan->tensors[first + count - 1];
    struct shard_work work = {
        .plan = plan,
        .tensors = plan->tensors + first,
        .tensor_count = count,
        .buffers = buffers,
    };
    char name[64];
    shard_name(plan, plan->tensors[first].shard, name);
    struct kva_buf header;
    kva_buf_init(&header, HEADER_BYTES);
    put_header(plan, &work, &header);
    if (header.failed) {
        kva_buf_finish(&header);
        return kva_fail(plan->err, KVA_ENOMEM, "out of memory for the table of %s", name);
    }
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header.length >> 8 * i);
    work.data_begin = sizeof(length) + header.length;
    work.fd = openat(plan->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok = work.fd >= 0 && kva_file_write_at(work.fd, length, sizeof(length), 0) &&
              kva_file_write_at(work.fd, header.data, header.length, sizeof(length)) &&
              write_data(plan, &work, last->piece_first + tensor_pieces(last)) == KVA_OK;
    enum kva_status status = ok ? KVA_OK : file_failed(plan, name);
    if (work.fd >= 0 && close(work.fd) != 0 && !status)
        status = file_failed(plan, name);
    kva_buf_finish(&header);
    return status;
}

static enum kva_status write_index(struct plan *plan)
{
    struct kva_buf text;
    char name[64];
    if (plan->shard_count == 1)
        return KVA_OK;
    kva_buf_init(&text, HEADER_BYTES);
    kva_buf_printf(&text, "{\"metadata\":{\"total_size\":%llu},\"weight_map\":{",
                   (unsigned long long)plan->bytes_total);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        shard_name(plan, plan->tensors[i].shard, name);
        kva_buf_printf(&text, "%s\n\"%s\":\"%s\"", i ? "," : "", plan->tensors[i].name, name);
    }
    kva_buf_puts(&text, "\n}}");
    enum kva_status status =
        text.failed ? kva_fail(plan->err, KVA_ENOMEM, "out of memory for the index of tensors")
                    : write_text(plan, "model.safetensors.index.json", text.data);
    kva_buf_finish(&text);
    return status;
}

static enum kva_status write_weights(struct plan *plan)
{
    uint32_t threads = plan->params->threads ? plan->params->threads : kva_pool_usable_cores();
    enum kva_status status = kva_pool_create(threads, &plan->pool, plan->err);
    if (status)
        return status;
    uint16_t *buffers = malloc((size_t)threads * PIECE * sizeof(*buffers));
    if (!buffers)
        status = kva_fail(plan->err, KVA_ENOMEM, "out of memory for %u threads", threads);
    for (uint32_t first = 0; !status && first < plan->tensor_count;) {
        uint32_t count = 1;
        while (first + count < plan->tensor_count &&
               plan->tensors[first + count].shard == plan->tensors[first].shard)
            count++;
        status = write_shard(plan, first, count, buffers);
        first += count;
    }
    free(buffers);
    return status ? status : write_index(plan);
}

static enum kva_status open_folder(struct plan *plan)
{
    const char *path = plan->params->dir_path;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return kva_fail(plan->err, KVA_EIO, "%s: cannot make the folder: %s", path,
                        strerror(errno));
    plan->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (plan->dir_fd < 0)
        return kva_fail(plan->err, KVA_EIO, "%s: cannot open the folder: %s", path,
                        strerror(errno));
    if (faccessat(plan->dir_fd, "config.json", F_OK, 0) == 0)
        return kva_fail(plan->err, KVA_EINVAL, "%s has a model already (config.json)", path);
    return KVA_OK;
}

static enum kva_status write_all(struct plan *plan, cJSON *config)
{
    enum kva_status status = parse_config(plan, config);
    if (!status)
        status = open_folder(plan);
    if (!status)
        status = list_tensors(plan);
    if (status)
        return status;
    place_tensors(plan);
    status = write_weights(plan);
    if (status)
        return status;
    char *text = cJSON_Print(config);
    status = text ? write_text(plan, "config.json", text)
                  : kva_fail(plan->err, KVA_ENOMEM, "out of memory for config.json");
    cJSON_free(text);
    if (!status && plan->params->progress)
        plan->params->progress(plan->params->progress_opaque, plan->bytes_total, plan->bytes_total);
    return status;
}

enum kva_status kva_synthetic_write(const struct kva_synthetic_params *params,
                                    struct kva_synthetic_info *ret, struct kva_err *err)
{
    struct plan plan = {.params = params, .err = err, .dir_fd = -1};
    cJSON *config = NULL;
    enum kva_status status = kva_model_json_parse(params->config_json, strlen(params->config_json),
                                                  "config.json", &config, err);
    if (status)
        return status;
    status = write_all(&plan, config);
    if (!status)
        *ret = (struct kva_synthetic_info){
            .vocab_size = plan.spec.config.vocab_size,
            .shard_count = plan.shard_count,
            .weight_bytes = plan.bytes_total,
            .parameter_count = plan.bytes_total / sizeof(uint16_t),
        };
    kva_model_config_finish(&plan.spec.config);
    kva_pool_destroy(plan.pool);
    free(plan.tensors);
    cJSON_Delete(config);
    if (plan.dir_fd >= 0)
        close(plan.dir_fd);
    return status;
}
