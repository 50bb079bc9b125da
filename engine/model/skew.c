/* skew.c - the skew in memory, and its file. */
#include "engine/model/skew.h"

#include "engine/model/checksum.h"
#include "engine/model/packed_file.h"
#include "engine/model/sums.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Another process that writes the same file is at it for no longer than it takes to read the
 * weights. */
#define LOCK_WAIT_MS 60000u

static const struct kva_packed_file_kind skew_kind = {
    .magic = "kvahead skew\r\n\x1a",
    .version = 1,
    .what = "the skew",
};

/* Behind the header; then the basis, then the energies. */
struct payload {
    uint32_t layers, kv_heads, head_dim, method;
    uint64_t tokens;
    uint64_t reserved[5];
};

_Static_assert(sizeof(struct payload) == 64, "the basis begins at a cache line");

const char *kva_skew_method_name(enum kva_skew_method method)
{
    static const char *const names[KVA_SKEW_METHOD_COUNT] = {"queries", "balanced", "sum"};
    return names[method];
}

/* --- in memory -------------------------------------------------------------------------------- */

static size_t heads_of(const struct kva_skew *skew)
{
    return (size_t)skew->layers * skew->kv_heads;
}

enum kva_status kva_skew_create(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                                struct kva_skew **ret, struct kva_err *err)
{
    struct kva_skew *skew = calloc(1, sizeof(*skew));
    if (!skew)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    *skew = (struct kva_skew){.layers = layers, .kv_heads = kv_heads, .head_dim = head_dim};
    const size_t columns = heads_of(skew) * head_dim;
    skew->basis = calloc(columns, head_dim * sizeof(*skew->basis));
    skew->energy = calloc(columns, sizeof(*skew->energy));
    skew->columns = calloc(columns, sizeof(*skew->columns));
    if (!skew->basis || !skew->energy || !skew->columns) {
        kva_skew_destroy(skew);
        return kva_fail(err, KVA_ENOMEM, "out of memory for the skew of %u layers", layers);
    }
    kva_skew_sort(skew);
    *ret = skew;
    return KVA_OK;
}

void kva_skew_destroy(struct kva_skew *skew)
{
    if (!skew)
        return;
    free(skew->basis);
    free(skew->energy);
    free(skew->columns);
    free(skew);
}

/* Insertion keeps the order of equals, and a head has few columns. */
static void sort_columns(const float *energy, uint32_t *columns, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at > 0 && energy[columns[at - 1]] < energy[i]; at--)
            columns[at] = columns[at - 1];
        columns[at] = i;
    }
}

void kva_skew_sort(struct kva_skew *skew)
{
    for (size_t i = 0; i < heads_of(skew); i++) {
        const size_t at = i * skew->head_dim;
        sort_columns(skew->energy + at, skew->columns + at, skew->head_dim);
    }
}

/* The first column of plane i. */
static uint32_t first_of(uint32_t rotary_dim, uint32_t i)
{
    return i < rotary_dim / 2 ? i : rotary_dim + 2 * (i - rotary_dim / 2);
}

static uint32_t second_of(uint32_t rotary_dim, uint32_t i)
{
    return i < rotary_dim / 2 ? i + rotary_dim / 2 : first_of(rotary_dim, i) + 1;
}

void kva_skew_planes(const struct kva_skew *skew, uint32_t rotary_dim, uint32_t layer,
                     uint32_t head, uint32_t *firsts, uint32_t count, uint32_t *seconds)
{
    const float *energy = skew->energy + kva_skew_columns_at(skew, layer, head);
    for (uint32_t i = 0; i < skew->head_dim / 2; i++) {
        const float own = energy[first_of(rotary_dim, i)] + energy[second_of(rotary_dim, i)];
        uint32_t rank = 0;
        for (uint32_t j = 0; j < skew->head_dim / 2; j++) {
            const float other = energy[first_of(rotary_dim, j)] + energy[second_of(rotary_dim, j)];
            rank += other > own || (!(own > other) && j < i);
        }
        if (rank >= count)
            continue;
        firsts[rank] = first_of(rotary_dim, i);
        seconds[rank] = second_of(rotary_dim, i);
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static size_t payload_bytes(const struct kva_skew *skew)
{
    return sizeof(struct payload) +
           heads_of(skew) * skew->head_dim * (skew->head_dim + 1ull) * sizeof(float);
}

static bool all_finite(const float *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(numbers[i]))
            return false;
    }
    return true;
}

enum kva_status kva_skew_parse(const void *data, size_t bytes,
                               const struct kva_model_config *config, struct kva_skew **ret,
                               struct kva_err *err)
{
    struct payload head;
    struct kva_skew *skew;
    if (bytes < sizeof(head))
        return kva_fail(err, KVA_EFORMAT, "it is too short");
    memcpy(&head, data, sizeof(head));
    if (head.layers != config->layer_count || head.kv_heads != config->kv_heads ||
        head.head_dim != config->head_dim)
        return kva_fail(err, KVA_EFORMAT,
                        "it is of %u layers with %u KV heads of %u, the model has %u with %u of %u",
                        head.layers, head.kv_heads, head.head_dim, config->layer_count,
                        config->kv_heads, config->head_dim);
    const struct kva_skew shape = {
        .layers = head.layers, .kv_heads = head.kv_heads, .head_dim = head.head_dim};
    if (bytes != payload_bytes(&shape))
        return kva_fail(err, KVA_EFORMAT, "it has %zu bytes of matrices, %zu are needed", bytes,
                        payload_bytes(&shape));
    if (head.method >= KVA_SKEW_METHOD_COUNT)
        return kva_fail(err, KVA_EFORMAT, "its method %u is not known", head.method);
    enum kva_status status = kva_skew_create(head.layers, head.kv_heads, head.head_dim, &skew, err);
    if (status)
        return status;
    const size_t columns = heads_of(skew) * head.head_dim, numbers = columns * head.head_dim;
    const unsigned char *at = (const unsigned char *)data + sizeof(head);
    memcpy(skew->basis, at, numbers * sizeof(float));
    memcpy(skew->energy, at + numbers * sizeof(float), columns * sizeof(float));
    skew->method = (enum kva_skew_method)head.method;
    skew->tokens = head.tokens;
    if (!all_finite(skew->basis, numbers) || !all_finite(skew->energy, columns)) {
        kva_skew_destroy(skew);
        return kva_fail(err, KVA_EFORMAT, "it has numbers that are not finite");
    }
    kva_skew_sort(skew);
    *ret = skew;
    return KVA_OK;
}

/* --- what it was made of ---------------------------------------------------------------------- */

/* What queries and keys follow from, other than the weights. */
static uint64_t shape_sum(const struct kva_model_config *c)
{
    const uint32_t numbers[] = {c->layer_count, c->hidden_size, c->heads,
                                c->kv_heads,    c->head_dim,    c->rope.rotary_dim};
    const float scales[] = {c->norm_eps, c->norm_weight_offset, c->embed_scale, c->rope.factor};
    uint64_t sum = kva_checksum(numbers, sizeof(numbers));
    sum = kva_checksum_join(sum, kva_checksum(scales, sizeof(scales)));
    if (c->rope.rotary_dim > 0)
        sum = kva_checksum_join(
            sum, kva_checksum(c->rope.inv_freq, c->rope.rotary_dim / 2 * sizeof(float)));
    return sum;
}

struct reading {
    const struct kva_skew_file_params *params;
    uint64_t done, total;
};

static void advance(void *opaque, uint64_t bytes)
{
    struct reading *reading = opaque;
    reading->done += bytes;
    if (reading->params->progress)
        reading->params->progress(reading->params->progress_opaque, reading->done, reading->total);
}

/* Reads all weights. */
static enum kva_status sum_weights(const struct kva_model *model,
                                   const struct kva_skew_file_params *params, uint64_t *ret,
                                   struct kva_err *err)
{
    struct reading reading = {params, 0, kva_model_files_bytes(model->files)};
    struct kva_model_summing by = {
        .cancelled = params->cancelled, .advance = advance, .opaque = &reading};
    enum kva_status status =
        kva_pool_create(params->threads ? params->threads : kva_pool_usable_cores(), &by.pool, err);
    if (status)
        return status;
    uint64_t sum = kva_model_files_sum(&by, model->files);
    kva_pool_destroy(by.pool);
    status = kva_model_check_cancelled(params->cancelled, err);
    if (!status)
        *ret = sum;
    return status;
}

static uint64_t payload_sum(const struct kva_packed_file *file)
{
    return kva_checksum((const unsigned char *)file->map + KVA_PACKED_FILE_HEADER_BYTES,
                        file->map_bytes - KVA_PACKED_FILE_HEADER_BYTES);
}

/* --- finding it ------------------------------------------------------------------------------- */

static void init_file(struct kva_packed_file *file, const struct kva_skew_file_params *params)
{
    if (params->file)
        kva_packed_file_init_at(file, &skew_kind, params->file);
    else
        kva_packed_file_init(file, &skew_kind, params->path, NULL, "skew");
}

void kva_skew_path(const struct kva_skew_file_params *params, char *out, size_t size)
{
    struct kva_packed_file file;
    init_file(&file, params);
    snprintf(out, size, "%s", file.path);
}

/* Fails with KVA_EFORMAT: the mapped file does not count; or as kva_skew_load. */
static enum kva_status look(const struct kva_packed_file *file, const struct kva_model *model,
                            const struct kva_skew_file_params *params, struct kva_skew **ret,
                            struct kva_err *err)
{
    struct kva_packed_file_header header;
    struct kva_skew *skew;
    uint64_t source_sum;
    const char *reason = kva_packed_file_header_read(file, &header);
    if (reason)
        return kva_fail(err, KVA_EFORMAT, "%s", reason);
    enum kva_status status =
        kva_skew_parse((const unsigned char *)file->map + KVA_PACKED_FILE_HEADER_BYTES,
                       file->map_bytes - KVA_PACKED_FILE_HEADER_BYTES, &model->config, &skew, err);
    if (status)
        return status;
    source_sum = header.source_sum;
    if (header.payload_sum != payload_sum(file))
        status = kva_fail(err, KVA_EFORMAT, "it is damaged");
    else if (header.shape_sum != shape_sum(&model->config))
        status = kva_fail(err, KVA_EFORMAT, "it was made with another configuration of the model");
    else if (header.stamp != kva_model_files_stamp(model->files))
        status = sum_weights(model, params, &source_sum, err);
    if (!status && source_sum != header.source_sum)
        status = kva_fail(err, KVA_EFORMAT, "it was made of other weights");
    if (status)
        kva_skew_destroy(skew);
    else
        *ret = skew;
    return status;
}

static enum kva_status find(const struct kva_model *model,
                            const struct kva_skew_file_params *params, struct kva_skew **ret,
                            struct kva_err *err)
{
    struct kva_packed_file file;
    init_file(&file, params);
    if (!kva_packed_file_open(&file))
        return kva_fail(err, KVA_ENOTFOUND,
                        "the model has no skew: %s is not there. `kvahead skew --model %s --text "
                        "FILE` makes it, once",
                        file.path, params->path);
    enum kva_status status = look(&file, model, params, ret, err);
    kva_packed_file_unmap(&file);
    if (status == KVA_EFORMAT) {
        const struct kva_err why = *err;
        kva_fail(err, status,
                 "%s cannot be used: %s. `kvahead skew --model %s --text FILE` makes it anew",
                 file.path, why.message, params->path);
    }
    return status;
}

enum kva_status kva_skew_load(struct kva_model *model, const struct kva_skew_file_params *params,
                              struct kva_err *err)
{
    struct kva_err why = {0};
    struct kva_skew *skew = NULL;
    enum kva_status status = find(model, params, &skew, &why);
    const bool missing = status == KVA_ENOTFOUND || status == KVA_EFORMAT;
    if (status && (params->file || !missing))
        return kva_fail(err, status, "%s", why.message);
    kva_skew_destroy(model->skew);
    model->skew = skew;
    model->skew_err = why;
    return KVA_OK;
}

/* --- writing it ------------------------------------------------------------------------------- */

static void put_payload(const struct kva_skew *skew, unsigned char *to)
{
    const struct payload head = {.layers = skew->layers,
                                 .kv_heads = skew->kv_heads,
                                 .head_dim = skew->head_dim,
                                 .method = (uint32_t)skew->method,
                                 .tokens = skew->tokens};
    const size_t columns = heads_of(skew) * skew->head_dim, numbers = columns * skew->head_dim;
    memcpy(to, &head, sizeof(head));
    memcpy(to + sizeof(head), skew->basis, numbers * sizeof(float));
    memcpy(to + sizeof(head) + numbers * sizeof(float), skew->energy, columns * sizeof(float));
}

/* The lock, whoever else has written the file meanwhile. */
static void lock(struct kva_packed_file *file, const struct kva_skew_file_params *params)
{
    const struct kva_packed_file_wait wait = {LOCK_WAIT_MS, params->cancelled};
    do {
        if (kva_packed_file_open(file))
            kva_packed_file_unmap(file);
    } while (!kva_packed_file_lock(file, &wait));
}

enum kva_status kva_skew_write(const struct kva_skew *skew, const struct kva_model *model,
                               const struct kva_skew_file_params *params, struct kva_err *err)
{
    struct kva_packed_file file;
    struct kva_packed_file_header header = {.shape_sum = shape_sum(&model->config),
                                            .stamp = kva_model_files_stamp(model->files)};
    enum kva_status status = sum_weights(model, params, &header.source_sum, err);
    if (status)
        return status;
    init_file(&file, params);
    lock(&file, params);
    if (file.fd >= 0)
        status =
            kva_packed_file_begin(&file, KVA_PACKED_FILE_HEADER_BYTES + payload_bytes(skew), err);
    if (!status && file.map) {
        put_payload(skew, (unsigned char *)file.map + KVA_PACKED_FILE_HEADER_BYTES);
        header.payload_sum = payload_sum(&file);
        kva_packed_file_publish(&file, &header);
    }
    const bool kept = file.shared;
    kva_packed_file_finish(&file, status != KVA_OK);
    kva_packed_file_unmap(&file);
    if (!status && !kept)
        status = kva_model_check_cancelled(params->cancelled, err);
    if (!status && !kept)
        return kva_fail(err, KVA_EIO, "%s cannot be written: %s. --out names another place",
                        file.path, file.why);
    return status;
}
