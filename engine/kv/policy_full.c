/* policy_full.c - every page of a running sequence is on the device in 16 bits, in all layers.
 *
 * Closed pages are also written to their host slots, so that a suspended sequence loses nothing and
 * the prefix cache lives in the larger tier. Device copies of pages are shared by all running
 * sequences that hold the page. */
#include "engine/kv/policy.h"

static uint64_t full_footprint(const struct kva_kv *kv, uint32_t tokens)
{
    return kva_tier_footprint(kv->tier, kv->shape.page_bytes, kva_kv_pages(tokens));
}

static uint64_t full_shared(const struct kva_kv *kv, const struct kva_page *page)
{
    return page->device_users > 0 ? kv->shape.page_bytes : 0;
}

/* Stop using the last of the sequence's device pages. */
static void leave_last_page(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_page *page = seq->pages[--seq->device_page_count];
    seq->device_bytes -= kv->shape.page_bytes;
    kva_kv_page_unuse(kv, page);
    if (!page->closed)
        kva_kv_page_drop(kv, page);
}

static bool use_next_page(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_page *page = seq->pages[seq->device_page_count];
    kva_kv_page_use(kv, page);
    if (!page->device) {
        page->device = kva_kv_take_device(kv, kv->shape.page_bytes);
        if (!page->device) {
            kva_kv_page_unuse(kv, page);
            return false;
        }
        if (page->on_host)
            kva_kv_fetch(kv, seq, page->device, page->host, kv->shape.page_bytes);
    }
    seq->device_page_count++;
    seq->device_bytes += kv->shape.page_bytes;
    return true;
}

static bool full_reserve(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t tokens)
{
    uint32_t before = seq->device_page_count;
    uint32_t want = kva_kv_pages(tokens);
    if (before < want)
        kva_kv_order_copies(kv);
    while (seq->device_page_count < want) {
        if (use_next_page(kv, seq))
            continue;
        while (seq->device_page_count > before)
            leave_last_page(kv, seq);
        return false;
    }
    return true;
}

static void full_release(struct kva_kv *kv, struct kva_kv_seq *seq, bool save)
{
    if (save)
        kva_kv_order_copies(kv);
    while (seq->device_page_count > 0) {
        struct kva_page *page = seq->pages[seq->device_page_count - 1];
        if (save && !page->closed) {
            kva_kv_offload(kv, page->host, page->device, kv->shape.page_bytes);
            page->on_host = true;
        }
        leave_last_page(kv, seq);
    }
}

static bool full_restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    return full_reserve(kv, seq, seq->page_count * KVA_PAGE_TOKENS);
}

static void full_close_page(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index)
{
    struct kva_page *page = seq->pages[index];
    kva_kv_order_copies(kv);
    kva_kv_offload(kv, page->host, page->device, kv->shape.page_bytes);
}

static void full_layer_begin(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    size_t offset = layer * kv->shape.block_bytes;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        if (rows->seq->policy != &kva_kv_policy_full)
            continue;
        uint32_t pages = kva_kv_pages(rows->position_first + rows->row_count);
        for (uint32_t j = 0; j < pages; j++)
            rows->blocks[j] = (unsigned char *)rows->seq->pages[j]->device + offset;
    }
}

const struct kva_kv_policy kva_kv_policy_full = {
    .id = KVA_KV_FULL,
    .name = "full",
    .footprint = full_footprint,
    .shared = full_shared,
    .reserve = full_reserve,
    .release = full_release,
    .restore = full_restore,
    .close_page = full_close_page,
    .layer_begin = full_layer_begin,
};
