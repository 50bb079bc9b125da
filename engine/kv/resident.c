#include "engine/kv/resident.h"

static void unuse_page(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_page *page)
{
    seq->device_bytes -= kv->shape.page_bytes;
    kva_kv_page_unuse(kv, page);
    if (!page->closed)
        kva_kv_page_drop(kv, page);
}

static bool use_next_page(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_page *page = seq->pages[seq->resident_end];
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
    seq->resident_end++;
    seq->device_bytes += kv->shape.page_bytes;
    return true;
}

bool kva_kv_resident_extend(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t end)
{
    uint32_t before = seq->resident_end;
    if (before < end)
        kva_kv_order_copies(kv);
    while (seq->resident_end < end) {
        if (use_next_page(kv, seq))
            continue;
        kva_kv_resident_retract(kv, seq, before, false);
        return false;
    }
    return true;
}

void kva_kv_resident_retract(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t end, bool save)
{
    if (save)
        kva_kv_order_copies(kv);
    while (seq->resident_end > end) {
        struct kva_page *page = seq->pages[--seq->resident_end];
        if (save && !page->closed) {
            kva_kv_offload(kv, page->host, page->device, kv->shape.page_bytes);
            page->on_host = true;
        }
        unuse_page(kv, seq, page);
    }
}

void kva_kv_resident_leave(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    while (seq->away < first)
        unuse_page(kv, seq, seq->pages[seq->away++]);
}
