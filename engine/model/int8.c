/* int8.c - making, finding and checking matrices in int8. */
#include "engine/model/int8.h"

#include "base/log.h"
#include "base/mapped.h"
#include "base/pool.h"
#include "engine/model/checksum.h"
#include "engine/model/decode.h"
#include "engine/model/files.h"
#include "engine/model/int8_file.h"
#include "kernels/int8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Panels of one item of work: a megabyte or so. */
#define ITEM_PANELS 16u

/* A matrix to be quantised, and where it goes. */
struct part {
    struct kva_tensor *tensor;
    size_t offset; /* from the start of the file */
    size_t bytes;
    bool tied; /* its 16 bits are needed as well, for the embedding */
};

struct work {
    struct kva_model *model;
    const struct kva_model_int8_params *params;
    struct kva_pool *pool;
    struct part *parts;
    size_t part_count;
    size_t total_bytes; /* of the file */
    uint64_t progress_done;
    uint64_t progress_total;
};

/* --- what is quantised ------------------------------------------------------------------------ */

static void add_part(struct work *work, struct kva_tensor *tensor)
{
    if (!tensor->data || tensor->rows < 2)
        return;
    size_t bytes = kva_int8_bytes(tensor->rows, tensor->cols);
    work->parts[work->part_count++] = (struct part){
        .tensor = tensor,
        .offset = work->total_bytes,
        .bytes = bytes,
        .tied = tensor->data == work->model->embed.data,
    };
    work->total_bytes += bytes;
}

static enum kva_status list_parts(struct work *work, struct kva_err *err)
{
    struct kva_model *model = work->model;
    const size_t per_layer = 7;
    work->total_bytes = KVA_INT8_FILE_HEADER_BYTES;
    work->parts = calloc(model->config.layer_count * per_layer + 1, sizeof(*work->parts));
    if (!work->parts)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < model->config.layer_count; i++) {
        struct kva_layer_tensors *t = &model->layers[i];
        struct kva_tensor *const tensors[] = {&t->q,    &t->k,  &t->v,   &t->o,
                                              &t->gate, &t->up, &t->down};
        _Static_assert(KVA_COUNT_OF(tensors) == 7, "room for all");
        for (size_t j = 0; j < KVA_COUNT_OF(tensors); j++)
            add_part(work, tensors[j]);
    }
    add_part(work, &model->lm_head);
    return KVA_OK;
}

/* What the layout of the file follows from, other than the weights. */
static uint64_t shape_sum(const struct work *work)
{
    const struct kva_model_config *c = &work->model->config;
    const uint32_t heads[] = {KVA_INT8_GROUP, KVA_INT8_PANEL, c->heads, c->kv_heads, c->head_dim};
    uint64_t sum = kva_checksum(heads, sizeof(heads));
    for (size_t i = 0; i < work->part_count; i++) {
        const struct kva_tensor *t = work->parts[i].tensor;
        const uint32_t shape[] = {t->rows, t->cols, (uint32_t)t->dtype};
        sum = kva_checksum_join(sum, kva_checksum(shape, sizeof(shape)));
    }
    return sum;
}

/* --- sums by all threads ---------------------------------------------------------------------- */

struct sum_work {
    const uint8_t *data;
    size_t bytes;
    uint64_t *pieces;
};

static void sum_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct sum_work *work = opaque;
    size_t first = index * KVA_CHECKSUM_PIECE_BYTES;
    work->pieces[index] = kva_checksum(work->data + first,
                                       kva_min_size(KVA_CHECKSUM_PIECE_BYTES, work->bytes - first));
}

/* A turn of so many pieces, then the bar moves. */
#define TURN_PIECES 64u

static void begin(struct work *work, uint64_t total)
{
    work->progress_done = 0;
    work->progress_total = total;
}

static void advance(struct work *work, uint64_t bytes)
{
    work->progress_done += bytes;
    if (work->params->progress)
        work->params->progress(work->params->progress_opaque, work->progress_done,
                               work->progress_total);
}

static bool is_cancelled(const struct work *work)
{
    return kva_model_check_cancelled(work->params->cancelled, NULL) != KVA_OK;
}

static uint64_t sum_of(struct work *work, const void *data, size_t bytes)
{
    uint64_t pieces[TURN_PIECES], sum = 0;
    const size_t turn = TURN_PIECES * KVA_CHECKSUM_PIECE_BYTES;
    /* Whoever uses the sum asks first whether it was made whole. */
    for (size_t at = 0; at < bytes && !is_cancelled(work); at += turn) {
        struct sum_work sums = {(const uint8_t *)data + at, kva_min_size(turn, bytes - at), pieces};
        uint32_t count = (uint32_t)kva_div_up(sums.bytes, KVA_CHECKSUM_PIECE_BYTES);
        (void)madvise((void *)(uintptr_t)sums.data, sums.bytes, MADV_WILLNEED);
        kva_pool_run(work->pool, count, sum_piece, &sums);
        for (uint32_t i = 0; i < count; i++)
            sum = kva_checksum_join(sum, pieces[i]);
        advance(work, sums.bytes);
    }
    return sum;
}

static uint64_t source_sum(struct work *work)
{
    const struct kva_model_files *files = work->model->files;
    uint64_t sum = 0;
    for (size_t i = 0; i < files->shard_count; i++)
        sum =
            kva_checksum_join(sum, sum_of(work, files->shards[i].map, files->shards[i].map_bytes));
    return sum;
}

/* Of what is behind the header. */
static uint64_t payload_sum(struct work *work, const void *map)
{
    const size_t first = KVA_INT8_FILE_HEADER_BYTES;
    return sum_of(work, (const uint8_t *)map + first, work->total_bytes - first);
}

static uint64_t stamp_sum(const struct kva_model_files *files)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < files->shard_count; i++)
        sum = kva_checksum_join(sum, files->shards[i].stamp);
    return sum;
}

/* --- making it -------------------------------------------------------------------------------- */

struct part_work {
    const struct part *part;
    uint8_t *to;
    uint32_t panels;
    _Atomic bool bad; /* something was not finite */
};

static void quantise_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    struct part_work *work = opaque;
    const struct kva_tensor *t = work->part->tensor;
    uint32_t first = index * ITEM_PANELS, end = kva_min_u32(first + ITEM_PANELS, work->panels);
    if (!kva_int8_quantise(t->data, t->dtype, t->rows, t->cols, first, end,
                           work->to + first * kva_int8_panel_bytes(t->cols)))
        work->bad = true;
}

static size_t part_source_bytes(const struct part *part)
{
    const struct kva_tensor *t = part->tensor;
    return (size_t)t->rows * t->cols * kva_dtype_bytes(t->dtype);
}

/* What it was made of, if that was decoded for it. */
static void release(struct kva_model *model, const struct part *part)
{
    if (!part->tied)
        kva_model_decode_release(model, part->tensor->data, part_source_bytes(part));
}

static enum kva_status quantise_all(struct work *work, uint8_t *map, struct kva_err *err)
{
    for (size_t i = 0; i < work->part_count; i++) {
        enum kva_status status = kva_model_check_cancelled(work->params->cancelled, err);
        if (status)
            return status;
        const struct part *part = &work->parts[i];
        struct part_work item = {.part = part, .to = map + part->offset};
        item.panels = (uint32_t)kva_div_up(part->tensor->rows, KVA_INT8_PANEL);
        kva_model_decode_one(work->model, part->tensor->data, work->pool);
        kva_pool_run(work->pool, (uint32_t)kva_div_up(item.panels, ITEM_PANELS), quantise_item,
                     &item);
        if (item.bad)
            return kva_fail(err, KVA_EFORMAT,
                            "matrix %zu of %zu, [%u, %u], has weights that are not finite: it "
                            "cannot be put into int8",
                            i + 1, work->part_count, part->tensor->rows, part->tensor->cols);
        release(work->model, part);
        advance(work, part->bytes);
    }
    return KVA_OK;
}

/* The file, or memory in its place, made and summed. */
static enum kva_status make(struct work *work, struct kva_int8_file *file,
                            struct kva_int8_file_header *header, struct kva_err *err)
{
    begin(work, kva_model_files_bytes(work->model->files) +
                    2 * (work->total_bytes - KVA_INT8_FILE_HEADER_BYTES));
    header->source_sum = source_sum(work);
    enum kva_status status = kva_int8_file_begin(file, work->total_bytes, err);
    if (!status)
        status = quantise_all(work, file->map, err);
    if (status)
        return status;
    header->payload_sum = payload_sum(work, file->map);
    status = kva_model_check_cancelled(work->params->cancelled, err);
    if (!status)
        kva_int8_file_publish(file, header);
    return status;
}

/* --- using one that is there ------------------------------------------------------------------ */

/* Why the mapped file does not count; NULL: it does. */
static const char *look(struct work *work, const struct kva_int8_file *file,
                        const struct kva_int8_file_header *wanted)
{
    struct kva_int8_file_header header;
    const char *reason = kva_int8_file_header_read(file, &header);
    if (reason)
        return reason;
    if (header.shape_sum != wanted->shape_sum || file->map_bytes != work->total_bytes)
        return "it is of another model or layout";
    bool same_files = header.stamp == wanted->stamp;
    begin(work, work->total_bytes - KVA_INT8_FILE_HEADER_BYTES +
                    (same_files ? 0 : kva_model_files_bytes(work->model->files)));
    if (!same_files && header.source_sum != source_sum(work))
        return "the model's weights have changed";
    if (payload_sum(work, file->map) != header.payload_sum)
        return "it is damaged";
    return NULL;
}

static bool use_existing(struct work *work, struct kva_int8_file *file,
                         const struct kva_int8_file_header *wanted)
{
    if (!kva_int8_file_open(file))
        return false;
    const char *reason = look(work, file, wanted);
    if (is_cancelled(work))
        reason = "loading was stopped";
    if (!reason)
        return true;
    kva_log(KVA_LOG_INFO, "%s is not used: %s", file->path, reason);
    kva_int8_file_unmap(file);
    return false;
}

/* --- the whole -------------------------------------------------------------------------------- */

static enum kva_status provide(struct work *work, struct kva_int8_file *file, struct kva_err *err)
{
    struct kva_int8_file_header header = {
        .shape_sum = shape_sum(work),
        .stamp = stamp_sum(work->model->files),
    };
    const struct kva_int8_file_wait wait = {work->params->lock_wait_ms, work->params->cancelled};
    /* With the lock on what is to become the file, nobody else makes it; but somebody may have just
     * before, and then that is the one to use. */
    do {
        if (use_existing(work, file, &header))
            return KVA_OK;
        enum kva_status status = kva_model_check_cancelled(work->params->cancelled, err);
        if (status)
            return status;
    } while (!kva_int8_file_lock(file, &wait));
    return make(work, file, &header, err);
}

static void take_over(struct work *work, const struct kva_model_int8 *int8)
{
    struct kva_model *model = work->model;
    for (size_t i = 0; i < work->part_count; i++) {
        const struct part *part = &work->parts[i];
        struct kva_tensor *t = part->tensor;
        if (!part->tied)
            model->weight_bytes -= part_source_bytes(part);
        if (!int8->made)
            release(model, part);
        model->weight_bytes += part->bytes;
        t->data = (const uint8_t *)int8->map + part->offset;
        t->dtype = KVA_INT8;
    }
}

/* What is not in int8 and was left undecoded. */
static enum kva_status decode_rest(struct work *work, struct kva_err *err)
{
    const struct kva_model_open_params params = {.cancelled = work->params->cancelled};
    return kva_model_decode_all(work->model, &params, work->pool, err);
}

enum kva_status kva_model_quantise(struct kva_model *model,
                                   const struct kva_model_int8_params *params, struct kva_err *err)
{
    struct work work = {.model = model, .params = params};
    struct kva_int8_file file;
    struct kva_model_int8 *int8 = calloc(1, sizeof(*int8));
    enum kva_status status =
        int8 ? list_parts(&work, err) : kva_fail(err, KVA_ENOMEM, "out of memory");
    if (!status)
        status = kva_pool_create(params->threads ? params->threads : kva_pool_usable_cores(),
                                 &work.pool, err);
    if (!status) {
        kva_int8_file_init(&file, params->path, params->cache_path);
        status = provide(&work, &file, err);
        kva_int8_file_finish(&file, status != KVA_OK);
    }
    if (!status) {
        *int8 = (struct kva_model_int8){
            .map = file.map,
            .map_bytes = file.map_bytes,
            .watch = file.watch,
            .made = file.made,
            .shared = file.shared,
        };
        memcpy(int8->path, file.path, sizeof(int8->path));
        take_over(&work, int8);
        model->int8 = int8;
        int8 = NULL;
        status = decode_rest(&work, err);
        if (!status)
            status = kva_model_check(model, err);
    }
    free(int8);
    free(work.parts);
    kva_pool_destroy(work.pool);
    return status;
}

void kva_model_int8_close(struct kva_model_int8 *int8)
{
    if (!int8)
        return;
    kva_mapped_unwatch(int8->watch);
    munmap(int8->map, int8->map_bytes);
    free(int8);
}
