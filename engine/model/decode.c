/* decode.c - decoding tensors by all threads. */
#include "engine/model/decode.h"

#include "engine/model/files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Weights of one item of work, about. */
#define ITEM_VALUES 131072u
/* Weights that are floats in between: they stay in the first-level cache. */
#define CHUNK_VALUES (4 * KVA_GGUF_BLOCK_VALUES_MAX)

enum kva_dtype kva_model_decoded_dtype(const struct kva_gguf_format *format)
{
    return format->id == KVA_GGUF_F32 ? KVA_F32 : format->id == KVA_GGUF_F16 ? KVA_F16 : KVA_BF16;
}

/* --- plans ------------------------------------------------------------------------------------ */

enum kva_status kva_model_decode_plan(struct kva_model *model, const struct kva_model_decode *what,
                                      const void **ret_data, struct kva_err *err)
{
    struct kva_model_decodes *plans = &model->decodes;
    struct kva_model_decode plan = *what;
    if (plan.rows == 1 && plan.head_dim && plan.format->decode)
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "a bias of q or k is %s; supported are: F32, F16, "
                        "BF16",
                        plan.format->name);
    if (plans->count == plans->capacity) {
        size_t capacity = plans->capacity ? 2 * plans->capacity : 64;
        struct kva_model_decode *items = realloc(plans->items, capacity * sizeof(*items));
        if (!items)
            return kva_fail(err, KVA_ENOMEM, "out of memory for %zu tensors", capacity);
        plans->items = items;
        plans->capacity = capacity;
    }
    plan.to_bytes =
        (size_t)plan.rows * plan.cols * kva_dtype_bytes(kva_model_decoded_dtype(plan.format));
    plan.to = mmap(NULL, plan.to_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (plan.to == MAP_FAILED)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a tensor of %zu bytes", plan.to_bytes);
    (void)madvise(plan.to, plan.to_bytes, MADV_HUGEPAGE);
    plans->items[plans->count++] = plan;
    model->copied_bytes += plan.to_bytes;
    *ret_data = plan.to;
    return KVA_OK;
}

static struct kva_model_decode *find(const struct kva_model *model, const void *data)
{
    for (size_t i = 0; i < model->decodes.count; i++) {
        struct kva_model_decode *plan = &model->decodes.items[i];
        if (plan->to && (uintptr_t)data - (uintptr_t)plan->to < plan->to_bytes)
            return plan;
    }
    return NULL;
}

const struct kva_model_decode *kva_model_decode_find(const struct kva_model *model,
                                                     const void *data)
{
    return find(model, data);
}

/* Pages of a file that are not read again: they go from this process, not from the cache of files. */
static void forget_pages(const void *data, size_t bytes)
{
    const uintptr_t page = 4096;
    uintptr_t first = ((uintptr_t)data + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)data + bytes) & ~(page - 1);
    if (end > first)
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
}

static void forget_source(const struct kva_model_decode *plan)
{
    size_t values = (size_t)plan->rows * plan->cols;
    forget_pages(plan->from, values / plan->format->block_values * plan->format->block_bytes);
}

void kva_model_decode_forget_rows(const struct kva_model_decode *plan, uint32_t first, uint32_t end)
{
    size_t row_bytes = (size_t)plan->cols / plan->format->block_values * plan->format->block_bytes;
    forget_pages(plan->from + first * row_bytes, (end - first) * row_bytes);
}

static bool is_in_file(const struct kva_model *model, const void *data)
{
    for (size_t i = 0; i < model->files->shard_count; i++) {
        const struct kva_model_shard *shard = &model->files->shards[i];
        if ((uintptr_t)data - (uintptr_t)shard->map < shard->map_bytes)
            return true;
    }
    return false;
}

void kva_model_decode_release(struct kva_model *model, const void *data, size_t bytes)
{
    struct kva_model_decode *plan = find(model, data);
    if (!plan && is_in_file(model, data))
        forget_pages(data, bytes);
    if (!plan)
        return;
    plan->released_bytes += bytes;
    if (plan->released_bytes < plan->to_bytes)
        return;
    if (!plan->done)
        forget_source(plan);
    munmap(plan->to, plan->to_bytes);
    model->copied_bytes -= plan->to_bytes;
    plan->to = NULL;
    plan->done = true;
}

void kva_model_decodes_finish(struct kva_model *model)
{
    for (size_t i = 0; i < model->decodes.count; i++)
        if (model->decodes.items[i].to)
            munmap(model->decodes.items[i].to, model->decodes.items[i].to_bytes);
    free(model->decodes.items);
    model->decodes = (struct kva_model_decodes){0};
}

/* --- work ------------------------------------------------------------------------------------- */

/* Round to nearest, ties to even; what is not a number stays none. */
static void store_bf16(const float *values, size_t count, uint16_t *to)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        to[i] = (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? bits >> 16 | 0x40 : rounded);
    }
}

static void decode_row(const struct kva_gguf_format *format, const uint8_t *from, uint32_t cols,
                       uint16_t *to)
{
    float values[CHUNK_VALUES];
    for (uint32_t at = 0; at < cols;) {
        uint32_t count = kva_min_u32(CHUNK_VALUES, cols - at);
        format->decode(from + (size_t)at / format->block_values * format->block_bytes,
                       count / format->block_values, values);
        store_bf16(values, count, to + at);
        at += count;
    }
}

static uint32_t place_of(uint32_t row, uint32_t head_dim)
{
    uint32_t in_head = head_dim ? row % head_dim : 0;
    return head_dim ? row - in_head + in_head % 2 * (head_dim / 2) + in_head / 2 : row;
}

/* The inverse of place_of. */
uint32_t kva_model_decode_row_of(const struct kva_model_decode *plan, uint32_t row)
{
    uint32_t dim = plan->head_dim, in_head = dim ? row % dim : 0;
    return dim ? row - in_head + in_head % (dim / 2) * 2 + in_head / (dim / 2) : row;
}

struct work {
    const struct kva_model_decode *plan;
    uint32_t rows_each;
};

static void decode_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct work *work = opaque;
    const struct kva_model_decode *plan = work->plan;
    const struct kva_gguf_format *format = plan->format;
    /* A vector's elements are the rows of a matrix of one column. */
    bool reordered_vector = plan->rows == 1 && plan->head_dim;
    uint32_t rows = reordered_vector ? plan->cols : plan->rows;
    uint32_t cols = reordered_vector ? 1 : plan->cols;
    size_t from_bytes = (size_t)cols / format->block_values * format->block_bytes;
    size_t to_bytes = cols * kva_dtype_bytes(kva_model_decoded_dtype(format));
    uint32_t first = index * work->rows_each, end = kva_min_u32(first + work->rows_each, rows);
    for (uint32_t row = first; row < end; row++) {
        const uint8_t *from = plan->from + row * from_bytes;
        uint8_t *to = (uint8_t *)plan->to + place_of(row, plan->head_dim) * to_bytes;
        if (format->decode)
            decode_row(format, from, cols, (uint16_t *)(void *)to);
        else
            memcpy(to, from, to_bytes);
    }
}

static void decode(struct kva_model_decode *plan, struct kva_pool *pool)
{
    bool reordered_vector = plan->rows == 1 && plan->head_dim;
    uint32_t rows = reordered_vector ? plan->cols : plan->rows;
    struct work work = {plan, reordered_vector ? rows : kva_max_u32(ITEM_VALUES / plan->cols, 1)};
    kva_pool_run(pool, (uint32_t)kva_div_up(rows, work.rows_each), decode_item, &work);
    plan->done = true;
    forget_source(plan);
}

void kva_model_decode_one(struct kva_model *model, const void *data, struct kva_pool *pool)
{
    struct kva_model_decode *plan = find(model, data);
    if (plan && !plan->done)
        decode(plan, pool);
}

enum kva_status kva_model_decode_all(struct kva_model *model,
                                     const struct kva_model_open_params *params,
                                     struct kva_pool *pool, struct kva_err *err)
{
    uint64_t total = 0, done = 0;
    for (size_t i = 0; i < model->decodes.count; i++)
        total += model->decodes.items[i].done ? 0 : model->decodes.items[i].to_bytes;
    for (size_t i = 0; i < model->decodes.count; i++) {
        struct kva_model_decode *plan = &model->decodes.items[i];
        enum kva_status status = kva_model_check_cancelled(params->cancelled, err);
        if (status)
            return status;
        if (plan->done)
            continue;
        decode(plan, pool);
        done += plan->to_bytes;
        if (params->progress)
            params->progress(params->progress_opaque, done, total);
    }
    return KVA_OK;
}
