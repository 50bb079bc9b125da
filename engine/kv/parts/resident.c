/* resident.c - whole pages on the device: pages [offloaded, end) of a sequence, in all layers, less
 * those that are lent (lent.h).
 *
 * Device copies of pages belong to the page and are shared by all running sequences that hold it.
 * Closed pages are also in their host slots, so that a copy which nobody uses may be dropped at any
 * time. */
#include "engine/kv/part.h"
#include "engine/kv/parts/lent.h"

struct state {
    uint32_t end; /* pages [offloaded, end) are in use; 0: none */
};

static struct state *state_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, &kva_kv_part_resident);
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return kva_max_u32(state_of(seq)->end, seq->offloaded);
}

static bool is_absent(const struct kva_kv_seq *seq, uint32_t index)
{
    return kva_kv_find_absent(seq, index, index + 1).first == index;
}

/* Stop using pages from `count` on. */
static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save)
{
    struct state *state = state_of(seq);
    uint32_t end = kva_max_u32(count, seq->offloaded);
    if (save)
        kva_kv_order_copies(kv);
    while (state->end > end) {
        struct kva_page *page = seq->pages[--state->end];
        if (is_absent(seq, state->end))
            continue;
        if (save && !page->closed) {
            kva_kv_offload(kv, page->host, page->device, kv->shape.page_bytes);
            page->on_host = true;
        }
        kva_kv_end_use(kv, seq, page);
    }
    if (count == 0)
        state->end = 0;
}

/* Use pages up to `end`, fetching what the host has. */
static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded KVA_UNUSED,
                  uint32_t end)
{
    struct state *state = state_of(seq);
    uint32_t before = held(seq);
    if (before < end)
        kva_kv_order_copies(kv);
    for (state->end = before; state->end < end; state->end++) {
        if (is_absent(seq, state->end) || kva_kv_begin_use(kv, seq, seq->pages[state->end]))
            continue;
        cut(kv, seq, before, false);
        return false;
    }
    return true;
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec KVA_UNUSED,
                          const struct kva_kv_extent *extent)
{
    return kva_tier_footprint(kv->tier, kv->shape.page_bytes, extent->resident);
}

/* Where nothing is offloaded, a page of the beginning is used by all. */
static uint64_t shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page)
{
    if (kva_kv_policy_of(spec)->offloaded(spec, UINT32_MAX) > 0)
        return 0;
    return !page || page->device_users > 0 ? kv->shape.page_bytes : 0;
}

static uint64_t page_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t index,
                           uint32_t *ret_users)
{
    if (index < seq->offloaded || is_absent(seq, index))
        return 0;
    *ret_users = seq->pages[index]->device_users;
    return kv->shape.page_bytes;
}

static void reset(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    state_of(seq)->end = 0;
}

static void page_full(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index)
{
    if (index < seq->offloaded)
        return;
    kva_kv_order_copies(kv);
    kva_kv_offload(kv, seq->pages[index]->host, seq->pages[index]->device, kv->shape.page_bytes);
}

static void leave(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    for (uint32_t i = seq->offloaded; i < first; i++)
        kva_kv_end_use(kv, seq, seq->pages[i]);
}

static const void *block(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                         uint32_t page)
{
    bool there = page >= seq->offloaded && page < state_of(seq)->end && !is_absent(seq, page);
    return there ? (unsigned char *)seq->pages[page]->device + layer * kv->shape.block_bytes : NULL;
}

static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    uint32_t end = kva_kv_pages(rows->position_first + rows->row_count);
    for (uint32_t first = seq->offloaded; first < end;) {
        const struct kva_kv_absent absent = kva_kv_find_absent(seq, first, end);
        for (uint32_t i = first; i < absent.first; i++)
            *kva_kv_block_at(rows, i) =
                (unsigned char *)seq->pages[i]->device + layer * kv->shape.block_bytes;
        if (first < absent.first)
            kva_kv_add_range(rows, (struct kva_kv_range){.kind = KVA_RANGE_BLOCKS,
                                                         .page_first = first,
                                                         .page_end = absent.first});
        first = absent.end;
    }
}

const struct kva_kv_part kva_kv_part_resident = {
    .state_bytes = sizeof(struct state),
    .footprint = footprint,
    .shared_bytes = shared_bytes,
    .page_bytes = page_bytes,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .reset = reset,
    .page_full = page_full,
    .leave = leave,
    .block = block,
    .locate = locate,
};
