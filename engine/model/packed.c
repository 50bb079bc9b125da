/* packed.c - making, finding and checking packed matrices. */
#include "engine/model/packed.h"

#include "base/log.h"
#include "base/mapped.h"
#include "base/pool.h"
#include "engine/model/checksum.h"
#include "engine/model/decode.h"
#include "engine/model/files.h"
#include "engine/model/packed_file.h"
#include "engine/model/sums.h"
#include "kernels/packed.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Panels of one item of work: a megabyte or so. */
#define ITEM_PANELS 16u
/* Items behind which the file's pages are given back: as much of a matrix is there twice. */
#define TURN_ITEMS 16u

static const struct kva_packed_file_kind packed_kind = {
    .magic = "kvahead pack\r\n\x1a",
    .version = 1,
    .what = "packed weights",
    .instead = "They are made at each start, in memory of this process alone; --weights-cache "
               "names another folder",
};

/* A matrix to be packed, and where it goes. */
struct part {
    struct kva_tensor *tensor;
    struct kva_tensor *same;               /* the embedding that is this output matrix; or NULL */
    enum kva_dtype dtype;                  /* that it gets */
    const struct kva_model_decode *blocks; /* the file's, that are taken as they are; or NULL */
    size_t offset;                         /* from the start of the file */
    size_t bytes;
};

struct work {
    struct kva_model *model;
    const struct kva_model_pack_params *params;
    struct kva_pool *pool;
    struct part *parts;
    size_t part_count;
    size_t total_bytes; /* of the file */
    uint64_t progress_done;
    uint64_t progress_total;
};

const char *kva_model_weights_name(enum kva_model_weights weights)
{
    static const char *const names[] = {"auto", "bf16", "int8", "int4"};
    return names[weights];
}

/* --- what is packed --------------------------------------------------------------------------- */

/* What a tensor becomes if it is packed as the file has it. False: its numbers are no blocks. */
static bool is_packed_in_file(const struct work *work, const struct kva_tensor *tensor,
                              enum kva_dtype *ret)
{
    const struct kva_model_decode *plan = kva_model_decode_find(work->model, tensor->data);
    return plan && !plan->done && kva_packed_of_gguf(plan->format->id, ret);
}

static void add_part(struct work *work, struct kva_tensor *tensor, enum kva_model_weights weights)
{
    struct part part = {.tensor = tensor};
    struct kva_model *model = work->model;
    if (!tensor->data || tensor->rows < 2)
        return;
    if (weights == KVA_WEIGHTS_INT8)
        part.dtype = KVA_PACKED_INT8;
    else if (weights == KVA_WEIGHTS_INT4)
        part.dtype = KVA_PACKED_INT4;
    else if (is_packed_in_file(work, tensor, &part.dtype))
        part.blocks = kva_model_decode_find(model, tensor->data);
    else
        return;
    if (tensor == &model->lm_head && tensor->data == model->embed.data)
        part.same = &model->embed;
    part.offset = work->total_bytes;
    part.bytes = kva_packed_bytes(kva_packed_format(part.dtype), tensor->rows, tensor->cols);
    work->parts[work->part_count++] = part;
    work->total_bytes += part.bytes;
}

static enum kva_status list_parts(struct work *work, struct kva_err *err)
{
    struct kva_model *model = work->model;
    enum kva_model_weights weights = work->params->weights;
    const size_t per_layer = 7;
    work->total_bytes = KVA_PACKED_FILE_HEADER_BYTES;
    work->parts = calloc(model->config.layer_count * per_layer + 2, sizeof(*work->parts));
    if (!work->parts)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    if (weights == KVA_WEIGHTS_BF16)
        return KVA_OK;
    for (uint32_t i = 0; i < model->config.layer_count; i++) {
        struct kva_layer_tensors *t = &model->layers[i];
        struct kva_tensor *const tensors[] = {&t->q,    &t->k,  &t->v,   &t->o,
                                              &t->gate, &t->up, &t->down};
        _Static_assert(KVA_COUNT_OF(tensors) == 7, "room for all");
        for (size_t j = 0; j < KVA_COUNT_OF(tensors); j++)
            add_part(work, tensors[j], weights);
    }
    add_part(work, &model->lm_head, weights == KVA_WEIGHTS_INT4 ? KVA_WEIGHTS_INT8 : weights);
    /* Rows of it are read, not the whole: it is packed only if the file has it so. */
    if (model->embed.data != model->lm_head.data)
        add_part(work, &model->embed, KVA_WEIGHTS_AUTO);
    return KVA_OK;
}

/* What the layout of the file follows from, other than the weights. */
static uint64_t shape_sum(const struct work *work)
{
    const struct kva_model_config *c = &work->model->config;
    const uint32_t heads[] = {KVA_PACKED_PANEL, c->heads, c->kv_heads, c->head_dim};
    uint64_t sum = kva_checksum(heads, sizeof(heads));
    for (size_t i = 0; i < work->part_count; i++) {
        const struct part *part = &work->parts[i];
        const struct kva_tensor *t = part->tensor;
        const uint32_t shape[] = {t->rows, t->cols, (uint32_t)t->dtype, (uint32_t)part->dtype};
        sum = kva_checksum_join(sum, kva_checksum(shape, sizeof(shape)));
    }
    return sum;
}

/* --- progress --------------------------------------------------------------------------------- */

static void begin(struct work *work, uint64_t total)
{
    work->progress_done = 0;
    work->progress_total = total;
}

static void advance(void *opaque, uint64_t bytes)
{
    struct work *work = opaque;
    work->progress_done += bytes;
    if (work->params->progress)
        work->params->progress(work->params->progress_opaque, work->progress_done,
                               work->progress_total);
}

static bool is_cancelled(const struct work *work)
{
    return kva_model_check_cancelled(work->params->cancelled, NULL) != KVA_OK;
}

static struct kva_model_summing summing(struct work *work)
{
    return (struct kva_model_summing){work->pool, work->params->cancelled, advance, work};
}

static uint64_t source_sum(struct work *work)
{
    const struct kva_model_summing by = summing(work);
    return kva_model_files_sum(&by, work->model->files);
}

/* Of what is behind the header. */
static uint64_t payload_sum(struct work *work, const void *map)
{
    const size_t first = KVA_PACKED_FILE_HEADER_BYTES;
    const struct kva_model_summing by = summing(work);
    return kva_model_sum(&by, (const uint8_t *)map + first, work->total_bytes - first);
}

/* --- making it -------------------------------------------------------------------------------- */

struct part_work {
    const struct part *part;
    uint32_t row_first; /* of the file's rows */
    uint32_t *order;    /* rows of the file that the part's are; NULL: as they stand */
    uint8_t *to;
    uint32_t panels;
    uint32_t turn_first; /* item */
    _Atomic bool bad;    /* something was not finite */
};

static struct kva_packed_source source_of(const struct part_work *work)
{
    const struct kva_tensor *t = work->part->tensor;
    const struct kva_model_decode *plan = work->part->blocks;
    const size_t row_bytes =
        (size_t)plan->cols / plan->format->block_values * plan->format->block_bytes;
    return (struct kva_packed_source){
        .blocks = plan->from + (work->order ? 0 : work->row_first * row_bytes),
        .order = work->order,
        .rows = t->rows,
        .cols = t->cols,
    };
}

/* Where the part's rows are in the file: a tensor may be a part of what is there. */
static enum kva_status find_rows(struct part_work *work, struct kva_err *err)
{
    const struct kva_tensor *t = work->part->tensor;
    const struct kva_model_decode *plan = work->part->blocks;
    if (!plan)
        return KVA_OK;
    const size_t before = (uintptr_t)t->data - (uintptr_t)plan->to;
    work->row_first = (uint32_t)(before / (plan->to_bytes / plan->rows));
    if (!plan->head_dim)
        return KVA_OK;
    work->order = malloc(t->rows * sizeof(*work->order));
    if (!work->order)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the order of %u rows", t->rows);
    for (uint32_t row = 0; row < t->rows; row++)
        work->order[row] = kva_model_decode_row_of(plan, work->row_first + row);
    return KVA_OK;
}

static void pack_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    struct part_work *work = opaque;
    const struct kva_tensor *t = work->part->tensor;
    const enum kva_dtype dtype = work->part->dtype;
    uint32_t first = (work->turn_first + index) * ITEM_PANELS;
    uint32_t end = kva_min_u32(first + ITEM_PANELS, work->panels);
    uint8_t *to = work->to + first * kva_packed_panel_bytes(kva_packed_format(dtype), t->cols);
    bool good;
    if (work->part->blocks) {
        const struct kva_packed_source source = source_of(work);
        good = kva_packed_repack(dtype, &source, first, end, to);
    } else {
        good = kva_packed_quantise(dtype, t->data, t->dtype, t->rows, t->cols, first, end, to);
    }
    if (!good)
        work->bad = true;
}

static size_t part_source_bytes(const struct part *part)
{
    const struct kva_tensor *t = part->tensor;
    return (size_t)t->rows * t->cols * kva_dtype_bytes(t->dtype);
}

static void release(struct kva_model *model, const struct part *part)
{
    kva_model_decode_release(model, part->tensor->data, part_source_bytes(part));
}

static void pack_items(struct work *work, struct part_work *item)
{
    const uint32_t items = (uint32_t)kva_div_up(item->panels, ITEM_PANELS);
    const uint32_t item_rows = ITEM_PANELS * KVA_PACKED_PANEL;
    for (uint32_t first = 0; first < items; first += TURN_ITEMS) {
        const uint32_t end = kva_min_u32(first + TURN_ITEMS, items);
        item->turn_first = first;
        kva_pool_run(work->pool, end - first, pack_item, item);
        if (item->part->blocks && !item->order)
            kva_model_decode_forget_rows(
                item->part->blocks, item->row_first + first * item_rows,
                item->row_first + kva_min_u32(end * item_rows, item->part->tensor->rows));
    }
}

static enum kva_status pack_part(struct work *work, const struct part *part, uint8_t *map,
                                 struct kva_err *err)
{
    struct part_work item = {
        .part = part,
        .to = map + part->offset,
        .panels = (uint32_t)kva_packed_panels(part->tensor->rows),
    };
    enum kva_status status = find_rows(&item, err);
    if (status)
        return status;
    if (!part->blocks)
        kva_model_decode_one(work->model, part->tensor->data, work->pool);
    pack_items(work, &item);
    free(item.order);
    if (item.bad)
        return kva_fail(err, KVA_EFORMAT,
                        "matrix %zu of %zu, [%u, %u], has weights that are not finite: it cannot "
                        "be put into %s",
                        (size_t)(part - work->parts) + 1, work->part_count, part->tensor->rows,
                        part->tensor->cols, kva_dtype_name(part->dtype));
    release(work->model, part);
    return KVA_OK;
}

static enum kva_status pack_all(struct work *work, uint8_t *map, struct kva_err *err)
{
    for (size_t i = 0; i < work->part_count; i++) {
        enum kva_status status = kva_model_check_cancelled(work->params->cancelled, err);
        if (!status)
            status = pack_part(work, &work->parts[i], map, err);
        if (status)
            return status;
        advance(work, work->parts[i].bytes);
    }
    return KVA_OK;
}

/* The file, made and summed; or memory in its place, where no sums are looked at. */
static enum kva_status make(struct work *work, struct kva_packed_file *file,
                            struct kva_packed_file_header *header, struct kva_err *err)
{
    const uint64_t bytes = work->total_bytes - KVA_PACKED_FILE_HEADER_BYTES;
    const bool kept = *file->path != '\0';
    begin(work, kept ? kva_model_files_bytes(work->model->files) + 2 * bytes : bytes);
    if (kept)
        header->source_sum = source_sum(work);
    enum kva_status status = kva_packed_file_begin(file, work->total_bytes, err);
    if (!status)
        status = pack_all(work, file->map, err);
    if (status)
        return status;
    if (kept)
        header->payload_sum = payload_sum(work, file->map);
    status = kva_model_check_cancelled(work->params->cancelled, err);
    if (!status)
        kva_packed_file_publish(file, header);
    return status;
}

/* --- using one that is there ------------------------------------------------------------------ */

/* Why the mapped file does not count; NULL: it does. */
static const char *look(struct work *work, const struct kva_packed_file *file,
                        const struct kva_packed_file_header *wanted)
{
    struct kva_packed_file_header header;
    const char *reason = kva_packed_file_header_read(file, &header);
    if (reason)
        return reason;
    if (header.shape_sum != wanted->shape_sum || file->map_bytes != work->total_bytes)
        return "it is of another model or layout";
    bool same_files = header.stamp == wanted->stamp;
    begin(work, work->total_bytes - KVA_PACKED_FILE_HEADER_BYTES +
                    (same_files ? 0 : kva_model_files_bytes(work->model->files)));
    if (!same_files && header.source_sum != source_sum(work))
        return "the model's weights have changed";
    if (payload_sum(work, file->map) != header.payload_sum)
        return "it is damaged";
    return NULL;
}

static bool use_existing(struct work *work, struct kva_packed_file *file,
                         const struct kva_packed_file_header *wanted)
{
    if (!kva_packed_file_open(file))
        return false;
    const char *reason = look(work, file, wanted);
    if (is_cancelled(work))
        reason = "loading was stopped";
    if (!reason)
        return true;
    kva_log(KVA_LOG_INFO, "%s is not used: %s", file->path, reason);
    kva_packed_file_unmap(file);
    return false;
}

/* --- the whole -------------------------------------------------------------------------------- */

static enum kva_status provide(struct work *work, struct kva_packed_file *file, struct kva_err *err)
{
    struct kva_packed_file_header header = {
        .shape_sum = shape_sum(work),
        .stamp = kva_model_files_stamp(work->model->files),
    };
    const struct kva_packed_file_wait wait = {work->params->lock_wait_ms, work->params->cancelled};
    /* With the lock on what is to become the file, nobody else makes it; but somebody may have just
     * before, and then that is the one to use. */
    do {
        if (use_existing(work, file, &header))
            return KVA_OK;
        enum kva_status status = kva_model_check_cancelled(work->params->cancelled, err);
        if (status)
            return status;
    } while (!kva_packed_file_lock(file, &wait));
    return make(work, file, &header, err);
}

static void take_over(struct work *work, const struct kva_model_packed *packed)
{
    struct kva_model *model = work->model;
    for (size_t i = 0; i < work->part_count; i++) {
        const struct part *part = &work->parts[i];
        struct kva_tensor *t = part->tensor;
        model->weight_bytes -= part_source_bytes(part);
        if (!packed->made)
            release(model, part);
        model->weight_bytes += part->bytes;
        t->data = (const uint8_t *)packed->map + part->offset;
        t->dtype = part->dtype;
        if (part->same)
            *part->same = *t;
    }
}

/* What is not packed and was left undecoded. */
static enum kva_status decode_rest(struct work *work, struct kva_err *err)
{
    const struct kva_model_open_params params = {.cancelled = work->params->cancelled};
    return kva_model_decode_all(work->model, &params, work->pool, err);
}

/* Blocks that are only put into order have no file unless a folder for it is named. */
static void init_file(const struct kva_model_pack_params *params, struct kva_packed_file *file)
{
    const bool as_file_has = params->weights == KVA_WEIGHTS_AUTO;
    if (as_file_has && !params->cache_path)
        kva_packed_file_init_none(file, &packed_kind);
    else
        kva_packed_file_init(file, &packed_kind, params->path, params->cache_path,
                             as_file_has ? "packed" : kva_model_weights_name(params->weights));
}

static enum kva_status pack(struct work *work, struct kva_model_packed *packed, struct kva_err *err)
{
    struct kva_packed_file file;
    init_file(work->params, &file);
    enum kva_status status = provide(work, &file, err);
    kva_packed_file_finish(&file, status != KVA_OK);
    if (status)
        return status;
    *packed = (struct kva_model_packed){
        .weights = work->params->weights,
        .map = file.map,
        .map_bytes = file.map_bytes,
        .watch = file.watch,
        .made = file.made,
        .shared = file.shared,
    };
    memcpy(packed->path, file.path, sizeof(packed->path));
    take_over(work, packed);
    work->model->packed = packed;
    return KVA_OK;
}

enum kva_status kva_model_pack(struct kva_model *model, const struct kva_model_pack_params *params,
                               struct kva_err *err)
{
    struct work work = {.model = model, .params = params};
    struct kva_model_packed *packed = NULL;
    enum kva_status status = list_parts(&work, err);
    if (!status)
        status = kva_pool_create(params->threads ? params->threads : kva_pool_usable_cores(),
                                 &work.pool, err);
    if (!status && work.part_count > 0) {
        packed = calloc(1, sizeof(*packed));
        status = packed ? pack(&work, packed, err) : kva_fail(err, KVA_ENOMEM, "out of memory");
    }
    if (!status)
        status = decode_rest(&work, err);
    if (!status)
        status = kva_model_check(model, err);
    if (model->packed != packed)
        free(packed);
    free(work.parts);
    kva_pool_destroy(work.pool);
    return status;
}

void kva_model_packed_close(struct kva_model_packed *packed)
{
    if (!packed)
        return;
    kva_mapped_unwatch(packed->watch);
    munmap(packed->map, packed->map_bytes);
    free(packed);
}
