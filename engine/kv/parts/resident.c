/* resident.c - whole pages on the device. */
#include "engine/kv/parts/resident.h"

#include "engine/kv/part.h"

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
        page->device = kva_kv_alloc_device(kv, kv->shape.page_bytes);
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
    while (seq->offloaded < first)
        unuse_page(kv, seq, seq->pages[seq->offloaded++]);
}

/* --- the part -------------------------------------------------------------------------------- */

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec KVA_UNUSED,
                          const struct kva_kv_extent *extent)
{
    return kva_tier_footprint(kv->tier, kv->shape.page_bytes, extent->resident);
}

/* Where nothing is offloaded, a page of the beginning is used by all. */
static uint64_t shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page)
{
    if (kva_kv_policy_get(spec->policy)->offloaded(spec, UINT32_MAX) > 0)
        return 0;
    return !page || page->device_users > 0 ? kv->shape.page_bytes : 0;
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded KVA_UNUSED,
                  uint32_t end)
{
    return kva_kv_resident_extend(kv, seq, end);
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return seq->resident_end;
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t end, bool save)
{
    kva_kv_resident_retract(kv, seq, kva_max_u32(end, seq->offloaded), save);
}

static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    uint32_t end = kva_kv_pages(rows->position_first + rows->row_count);
    if (end <= seq->offloaded)
        return;
    for (uint32_t i = seq->offloaded; i < end; i++)
        rows->blocks[i] = (unsigned char *)seq->pages[i]->device + layer * kv->shape.block_bytes;
    kva_kv_add_range(rows, (struct kva_kv_range){.kind = KVA_RANGE_BLOCKS,
                                                 .page_first = seq->offloaded,
                                                 .page_end = end});
}

const struct kva_kv_part kva_kv_part_resident = {
    .footprint = footprint,
    .shared_bytes = shared_bytes,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .locate = locate,
};
