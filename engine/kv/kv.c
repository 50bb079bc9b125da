/* kv.c - the cache of a model instance: its two tiers, and copies between them. */
#include "engine/kv/kv.h"

#include "engine/kv/part.h"
#include "engine/kv/parts/lent.h"
#include "engine/kv/range.h"

#include <stdlib.h>

const struct kva_counter kva_kv_counter_fetched_bytes = {
    .name = "fetched_bytes",
    .unit = "bytes",
    .help = "Bytes copied from host to device.",
    .field = "fetched_bytes",
};

const struct kva_counter kva_kv_counter_evicted_tokens = {
    .name = "evicted_tokens",
    .unit = "tokens",
    .help = "Tokens whose K and V were dropped for good.",
    .field = "evicted_tokens",
};

static const struct kva_counter counter_offloaded_bytes = {
    .name = "offloaded_bytes",
    .unit = "bytes",
    .help = "Bytes copied from device to host.",
};

static void drop_page_device(void *opaque, struct kva_page *page);

/* What the parts of the policies that can be named need. */
static enum kva_status meet_policies(struct kva_kv *kv, struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT && !status; id++)
        status = kva_kv_meet_policy(kv, kva_kv_policy_get((enum kva_kv_policy_id)id), err);
    return status;
}

enum kva_status kva_kv_create(const struct kva_kv_params *params, struct kva_kv **ret,
                              struct kva_err *err)
{
    struct kva_kv *kv = calloc(1, sizeof(*kv));
    if (!kv)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the KV cache");
    kv->device = params->device;
    (void)kva_counts_have(&kv->counters.counts, &kva_kv_counter_fetched_bytes);
    (void)kva_counts_have(&kv->counters.counts, &counter_offloaded_bytes);
    (void)kva_counts_have(&kv->counters.counts, &kva_kv_counter_evicted_tokens);
    kv->heads = params->heads;
    kv->windowed = params->windowed;
    kv->rotary = params->rotary;
    kv->skew = params->skew;
    kv->sequences_max = params->sequences_max;
    kv->stream_row_bytes = params->stream_row_bytes;
    kv->remote = params->remote;
    kv->query_bytes = (size_t)params->heads * params->head_dim *
                      kva_dtype_bytes(kva_device_get_info(params->device)->act);
    kv->shape = (struct kva_kv_shape){
        .layers = params->layers,
        .kv_heads = params->kv_heads,
        .head_dim = params->head_dim,
        .dtype = params->dtype,
        .block_bytes = kva_kv_block_bytes(params->kv_heads, params->head_dim),
    };
    kv->shape.page_bytes = kv->shape.block_bytes * params->layers;
    if (params->stream_row_bytes > kv->shape.page_bytes) {
        kva_fail(err, KVA_EUNSUPPORTED,
                 "a row of activations has %zu bytes, a page of KV only %zu: it must hold one",
                 params->stream_row_bytes, kv->shape.page_bytes);
        free(kv);
        return KVA_EUNSUPPORTED;
    }
    const struct kva_page_pool_params pool = {
        .device = params->device,
        .page_bytes = kv->shape.page_bytes,
        .budget_bytes = params->budget.host,
        .prefix_cache = params->prefix_cache,
        .drop_device = drop_page_device,
        .opaque = kv,
    };
    kv->ranges = calloc((size_t)kva_max_u32(1, params->sequences_max) * KVA_KV_RANGES_MAX,
                        sizeof(*kv->ranges));
    enum kva_status status =
        kv->ranges ? kva_page_pool_create(&pool, &kv->pages, err)
                   : kva_fail(err, KVA_ENOMEM, "out of memory for the ranges of %u sequences",
                              params->sequences_max);
    if (!status)
        status = kva_tier_create(params->device, params->budget.device, kv->shape.page_bytes,
                                 &kv->tier, err);
    if (!status)
        status = kva_event_create(params->device, &kv->compute_event, err);
    if (!status)
        status = kva_event_create(params->device, &kv->copy_event, err);
    if (!status)
        status = kva_event_create(params->device, &kv->aside_event, err);
    if (!status)
        status = meet_policies(kv, err);
    if (status) {
        kva_kv_destroy(kv);
        return status;
    }
    *ret = kv;
    return KVA_OK;
}

void kva_kv_destroy(struct kva_kv *kv)
{
    if (!kv)
        return;
    kva_device_sync(kv->device, KVA_QUEUE_COPY);
    kva_event_destroy(kv->compute_event);
    kva_event_destroy(kv->copy_event);
    kva_event_destroy(kv->aside_event);
    kva_kv_parts_finish(kv);
    kva_page_pool_destroy(kv->pages);
    kva_tier_destroy(kv->tier);
    free(kv->ranges);
    free(kv);
}

/* --- device copies of whole pages ------------------------------------------------------------ */

static void droppable_remove(struct kva_kv *kv, struct kva_page *page)
{
    kv->droppable_count--;
    if (page->device_prev)
        page->device_prev->device_next = page->device_next;
    else
        kv->droppable_head = page->device_next;
    if (page->device_next)
        page->device_next->device_prev = page->device_prev;
    else
        kv->droppable_tail = page->device_prev;
}

void kva_kv_page_drop(struct kva_kv *kv, struct kva_page *page)
{
    droppable_remove(kv, page);
    kva_kv_free_device(kv, page->device, kv->shape.page_bytes);
    page->device = NULL;
}

static void drop_page_device(void *opaque, struct kva_page *page)
{
    kva_kv_page_drop(opaque, page);
}

void kva_kv_page_use(struct kva_kv *kv, struct kva_page *page)
{
    if (page->device_users++ == 0 && page->device)
        droppable_remove(kv, page);
}

void kva_kv_page_unuse(struct kva_kv *kv, struct kva_page *page)
{
    if (--page->device_users > 0 || !page->device)
        return;
    kv->droppable_count++;
    page->device_prev = kv->droppable_tail;
    page->device_next = NULL;
    if (kv->droppable_tail)
        kv->droppable_tail->device_next = page;
    else
        kv->droppable_head = page;
    kv->droppable_tail = page;
}

void *kva_kv_alloc_device(struct kva_kv *kv, size_t bytes)
{
    for (;;) {
        void *data = kva_tier_alloc(kv->tier, bytes);
        if (data || !kv->droppable_head)
            return data;
        kva_kv_page_drop(kv, kv->droppable_head);
    }
}

void kva_kv_free_device(struct kva_kv *kv, void *data, size_t bytes)
{
    kva_tier_free(kv->tier, data, bytes);
}

/* --- copies ---------------------------------------------------------------------------------- */

void kva_kv_order_copies(struct kva_kv *kv)
{
    kva_event_record(kv->compute_event, KVA_QUEUE_COMPUTE);
    kva_event_wait(kv->compute_event, KVA_QUEUE_COPY);
}

void kva_kv_order_compute(struct kva_kv *kv)
{
    kva_event_record(kv->copy_event, KVA_QUEUE_COPY);
    kva_event_wait(kv->copy_event, KVA_QUEUE_COMPUTE);
}

void kva_kv_order_aside(struct kva_kv *kv)
{
    kva_event_record(kv->compute_event, KVA_QUEUE_COMPUTE);
    kva_event_wait(kv->compute_event, KVA_QUEUE_ASIDE);
    kv->works_aside = true;
}

void kva_kv_order_copies_behind_aside(struct kva_kv *kv)
{
    kva_event_record(kv->aside_event, KVA_QUEUE_ASIDE);
    kva_event_wait(kv->aside_event, KVA_QUEUE_COPY);
}

void kva_kv_join_aside(struct kva_kv *kv)
{
    if (!kv->works_aside)
        return;
    kva_event_record(kv->aside_event, KVA_QUEUE_ASIDE);
    kva_event_wait(kv->aside_event, KVA_QUEUE_COMPUTE);
    kv->works_aside = false;
}

void kva_kv_fetch(struct kva_kv *kv, struct kva_kv_seq *seq, void *to, const void *from,
                  size_t bytes)
{
    kva_device_copy(kv->device, KVA_QUEUE_COPY, to, from, bytes);
    kva_kv_count(kv, seq, &kva_kv_counter_fetched_bytes, bytes);
    kv->copies_pending = true;
}

void kva_kv_offload(struct kva_kv *kv, void *to, const void *from, size_t bytes)
{
    kva_device_copy(kv->device, KVA_QUEUE_COPY, to, from, bytes);
    kva_counts_add(&kv->counters.counts, &counter_offloaded_bytes, bytes);
    kv->copies_pending = true;
}

void kva_kv_count(struct kva_kv *kv, struct kva_kv_seq *seq, const struct kva_counter *counter,
                  uint64_t n)
{
    kva_counts_add(&kv->counters.counts, counter, n);
    kva_counts_add(&seq->counts, counter, n);
}

void kva_kv_step_begin(struct kva_kv *kv)
{
    for (uint32_t i = 0; i < kv->part_count; i++) {
        if (kv->parts[i]->step_begin)
            kv->parts[i]->step_begin(kv->parts[i], kv);
    }
    if (kv->copies_pending)
        kva_kv_order_compute(kv);
    kv->copies_pending = false;
}

/* --- accounting ------------------------------------------------------------------------------ */

struct kva_tier_bytes kva_kv_seq_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    return (struct kva_tier_bytes){
        .device = seq->device_bytes,
        .host = (uint64_t)(seq->page_count - seq->dropped - kva_kv_pages_away(seq) +
                           seq->promised_pages + seq->pool_pages + seq->stream.page_count +
                           seq->saved.page_count) *
                kv->shape.page_bytes,
    };
}

void kva_kv_usage(const struct kva_kv *kv, struct kva_kv_usage *ret)
{
    uint64_t page_bytes = kv->shape.page_bytes;
    *ret = kv->counters;
    ret->budget.host = kva_page_pool_total(kv->pages) * page_bytes;
    ret->used.host = kva_page_pool_used(kv->pages) * page_bytes;
    ret->cached.host = kva_page_pool_evictable(kv->pages) * page_bytes;
    ret->budget.device = kva_tier_budget_bytes(kv->tier);
    ret->used.device = kva_tier_used_bytes(kv->tier);
    ret->cached.device = kv->droppable_count * page_bytes;
}
