/* stream.c - residual streams of unfinished prompts. */
#include "engine/kv/stream.h"

#include <stdlib.h>

static uint32_t rows_per_page(const struct kva_kv *kv)
{
    return (uint32_t)(kv->shape.page_bytes / kv->stream_row_bytes);
}

uint32_t kva_kv_stream_pages(const struct kva_kv *kv, uint32_t rows)
{
    return kv->stream_row_bytes ? (uint32_t)kva_div_up(rows, rows_per_page(kv)) : 0;
}

uint64_t kva_kv_stream_bytes(const struct kva_kv *kv, uint32_t rows)
{
    return kva_kv_stream_pages(kv, rows) * (uint64_t)kv->shape.page_bytes;
}

enum kva_status kva_kv_stream_init(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                   struct kva_err *err)
{
    uint32_t pages = kva_kv_stream_pages(kv, seq->prompt_tokens);
    if (pages == 0)
        return KVA_OK;
    seq->stream.device = calloc(pages, sizeof(*seq->stream.device));
    seq->stream.saved = calloc(pages, sizeof(struct kva_page *));
    if (!seq->stream.device || !seq->stream.saved)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a prompt of %u tokens",
                        seq->prompt_tokens);
    return KVA_OK;
}

void kva_kv_stream_finish(struct kva_kv_seq *seq)
{
    free(seq->stream.device);
    free(seq->stream.saved);
    seq->stream = (struct kva_kv_stream){0};
}

void kva_kv_stream_begin(const struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t rows)
{
    seq->stream.page_count = kva_kv_stream_pages(kv, rows);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void free_device(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        kva_kv_free_device(kv, seq->stream.device[i], kv->shape.page_bytes);
    seq->device_bytes -= count * (uint64_t)kv->shape.page_bytes;
}

bool kva_kv_stream_alloc(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_kv_stream *s = &seq->stream;
    if (s->resident)
        return true;
    for (uint32_t i = 0; i < s->page_count; i++) {
        s->device[i] = kva_kv_alloc_device(kv, kv->shape.page_bytes);
        if (!s->device[i]) {
            free_device(kv, seq, i);
            return false;
        }
        seq->device_bytes += kv->shape.page_bytes;
    }
    s->resident = s->page_count > 0;
    return true;
}

/* The promised pages of the host tier are taken, once. */
static void take_saved(struct kva_kv *kv, struct kva_kv_stream *s)
{
    for (uint32_t i = 0; i < s->page_count && !s->has_saved; i++)
        s->saved[i] = kva_page_pool_take(kv->pages);
    s->has_saved = true;
}

void kva_kv_stream_cut(struct kva_kv *kv, struct kva_kv_seq *seq, bool save)
{
    struct kva_kv_stream *s = &seq->stream;
    if (!s->resident)
        return;
    if (save) {
        take_saved(kv, s);
        kva_kv_order_copies(kv);
        for (uint32_t i = 0; i < s->page_count; i++)
            kva_kv_offload(kv, s->saved[i]->host, s->device[i], kv->shape.page_bytes);
    }
    free_device(kv, seq, s->page_count);
    s->resident = false;
}

void kva_kv_stream_restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    const struct kva_kv_stream *s = &seq->stream;
    if (!s->has_saved)
        return;
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < s->page_count; i++)
        kva_kv_fetch(kv, seq, s->device[i], s->saved[i]->host, kv->shape.page_bytes);
}

void kva_kv_stream_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_kv_stream *s = &seq->stream;
    kva_kv_stream_cut(kv, seq, false);
    for (uint32_t i = 0; i < s->page_count && s->has_saved; i++)
        kva_page_pool_release(kv->pages, s->saved[i]);
    if (!s->has_saved)
        kva_page_pool_unpromise(kv->pages, s->page_count);
    s->has_saved = false;
    s->page_count = 0;
}

/* --- content --------------------------------------------------------------------------------- */

/* Rows from `row` on that lie in one page, and where. */
static uint32_t rows_at(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t row,
                        uint32_t rows, void **ret)
{
    uint32_t per_page = rows_per_page(kv), within = row % per_page;
    *ret = (unsigned char *)seq->stream.device[row / per_page] + within * kv->stream_row_bytes;
    return kva_min_u32(rows, per_page - within);
}

void kva_kv_stream_read(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t row_first,
                        uint32_t rows, void *to)
{
    for (uint32_t row = 0, count; row < rows; row += count) {
        void *page;
        count = rows_at(kv, seq, row_first + row, rows - row, &page);
        kva_device_copy(kv->device, KVA_QUEUE_COMPUTE,
                        (unsigned char *)to + row * kv->stream_row_bytes, page,
                        count * kv->stream_row_bytes);
    }
}

void kva_kv_stream_write(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t row_first,
                         uint32_t rows, const void *from)
{
    for (uint32_t row = 0, count; row < rows; row += count) {
        void *page;
        count = rows_at(kv, seq, row_first + row, rows - row, &page);
        kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, page,
                        (const unsigned char *)from + row * kv->stream_row_bytes,
                        count * kv->stream_row_bytes);
    }
}
