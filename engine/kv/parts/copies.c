/* copies.c - copies of offloaded pages in another form. */
#include "engine/kv/parts/copies.h"

#include "engine/kv/parts/pool.h"

#include <stdlib.h>

/* The part of a policy that has copies. */
static const struct kva_kv_part *part_of(const struct kva_kv_policy *policy)
{
    const struct kva_kv_part *const *part = policy->parts;
    while (!(*part)->copies)
        part++;
    return *part;
}

static const struct kva_copies_kind *kind_of(const struct kva_kv_spec *spec)
{
    return part_of(kva_kv_policy_of(spec))->copies;
}

struct kva_copies *kva_copies_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, part_of(seq->policy));
}

size_t kva_copies_offset(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    const struct kva_copies_kind *kind = kind_of(spec);
    uint32_t skipped = kva_min_u32(kind->skip_layers(kv, spec), layer);
    return skipped * kv->shape.block_bytes + (layer - skipped) * kind->block_bytes(kv, spec);
}

static size_t page_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_copies_offset(kv, spec, kv->shape.layers);
}

/* Whether copies are the sequence's own, not the pages'. */
static bool are_own(const struct kva_kv_spec *spec)
{
    return spec->columns == KVA_COLUMNS_PROMPT || kva_kv_pool_limits(spec);
}

static bool is_shared(const struct kva_page *page, const struct kva_kv_spec *spec)
{
    return !are_own(spec) && page->low && page->low_key == kind_of(spec)->key(spec);
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Whether sequence's copy is the page's, which others use or may. */
static bool is_of_page(const struct kva_copies *copies, const struct kva_kv_seq *seq,
                       uint32_t index)
{
    return !are_own(&seq->spec) && seq->pages[index]->low == copies->at[index];
}

static bool take_next(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_copies *copies = kva_copies_of(seq);
    uint32_t index = copies->count;
    struct kva_page *page = seq->pages[kva_kv_pool_source(seq, index)];
    size_t bytes = page_bytes(kv, &seq->spec);
    if (page && is_shared(page, &seq->spec)) {
        page->low_users++;
        copies->at[index] = page->low;
    } else {
        copies->at[index] = kva_kv_alloc_device(kv, bytes);
        if (!copies->at[index])
            return false;
    }
    copies->count++;
    seq->device_bytes += bytes;
    return true;
}

/* Give back those from `count` on. */
static void free_copies(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    struct kva_copies *copies = kva_copies_of(seq);
    while (copies->count > count) {
        size_t bytes = page_bytes(kv, &seq->spec);
        uint32_t index = --copies->count;
        struct kva_page *page = seq->pages[kva_kv_pool_source(seq, index)];
        void *copy = copies->at[index];
        bool last = true;
        if (is_of_page(copies, seq, index)) {
            last = --page->low_users == 0;
            if (last)
                page->low = NULL;
        }
        if (last)
            kva_kv_free_device(kv, copy, bytes);
        copies->at[index] = NULL;
        seq->device_bytes -= bytes;
    }
}

/* The copies of pages [0, prepared) are complete and the pages closed: others may use them. */
void kva_copies_prepared(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    for (uint32_t i = 0; i < seq->prepared && !are_own(&seq->spec); i++) {
        struct kva_page *page = seq->pages[i];
        if (page->low)
            continue;
        page->low = kva_copies_of(seq)->at[i];
        page->low_key = kind_of(&seq->spec)->key(&seq->spec);
        page->low_users = 1;
    }
}

/* --- coding ---------------------------------------------------------------------------------- */

/* Skipped layers are copied as they are. */
static void copy_listed(struct kva_kv *kv, const struct kva_copies_list *list, size_t to_offset)
{
    for (uint32_t i = 0; i < list->count; i++)
        kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, (unsigned char *)list->to[i] + to_offset,
                        list->from[i], kv->shape.block_bytes);
}

static void code_listed(struct kva_kv *kv, const struct kva_kv_seq *seq,
                        struct kva_copies_list *list, uint32_t layer)
{
    size_t to_offset = kva_copies_offset(kv, &seq->spec, layer);
    const struct kva_copies_kind *kind = kind_of(&seq->spec);
    if (layer < kind->skip_layers(kv, &seq->spec))
        copy_listed(kv, list, to_offset);
    else if (list->count > 0)
        kind->code(kv, seq, list, layer, to_offset);
    list->count = 0;
}

/* One layer of copies [first, end), those that others have coded excepted. */
static void code(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer, uint32_t first,
                 uint32_t end, bool from_host)
{
    struct kva_copies_list *list = kva_kv_part_cache(kv, part_of(seq->policy));
    const struct kva_copies *copies = kva_copies_of(seq);
    list->count = 0;
    for (uint32_t i = first; i < end; i++) {
        if (is_of_page(copies, seq, i))
            continue;
        uint32_t at = list->count++;
        list->from[at] = from_host ? kva_kv_pool_home(seq, i) + layer * kv->shape.block_bytes
                                   : kva_kv_find_block(kv, seq, layer, kva_kv_pool_source(seq, i));
        list->to[at] = copies->at[i];
        list->page[at] = i;
        if (list->count == KVA_COPIES_LIST_MAX)
            code_listed(kv, seq, list, layer);
    }
    code_listed(kv, seq, list, layer);
}

/* Layers [0, layer_end) of the first `count` copies, from the host. */
static void code_host(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer_end,
                      uint32_t count)
{
    if (layer_end == 0)
        return;
    kva_kv_order_compute(kv);
    for (uint32_t layer = 0; layer < layer_end; layer++)
        code(kv, seq, layer, 0, count, true);
}

static uint32_t prepared_copies(const struct kva_kv_seq *seq)
{
    return kva_kv_pool_stored(&seq->spec, seq->prepared);
}

void kva_copies_anew(struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    code_host(kv, seq, kv->shape.layers, kva_copies_of(seq)->count);
}

/* --- as part.h has them ----------------------------------------------------------------------- */

enum kva_status kva_copies_init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    struct kva_copies *copies = kva_copies_of(seq);
    copies->at = calloc(seq->pages_max, sizeof(void *));
    if (!copies->at || !kva_tier_prepare(kv->tier, page_bytes(kv, &seq->spec)))
        return kva_fail(err, KVA_ENOMEM, "out of memory for the page table of %u tokens",
                        seq->tokens_max);
    return KVA_OK;
}

void kva_copies_finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    free(kva_copies_of(seq)->at);
}

void kva_copies_reset(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    kva_copies_of(seq)->coded_layers = kva_copies_of(seq)->lost_layers = 0;
}

uint64_t kva_copies_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                              const struct kva_kv_extent *extent)
{
    return kva_tier_footprint(kv->tier, page_bytes(kv, spec),
                              kva_kv_pool_stored(spec, extent->offloaded));
}

uint64_t kva_copies_shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                 const struct kva_page *page)
{
    const bool nobody = !page && !are_own(spec);
    return nobody || (page && is_shared(page, spec)) ? page_bytes(kv, spec) : 0;
}

uint64_t kva_copies_page_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                               uint32_t index, uint32_t *ret_users)
{
    const struct kva_page *page = seq->pages[index];
    const struct kva_copies *copies = kva_copies_of(seq);
    if (index >= seq->prepared || !is_shared(page, &seq->spec))
        return 0;
    if (index < copies->count && !is_of_page(copies, seq, index))
        return 0; /* it has made one too */
    *ret_users = page->low_users;
    return page_bytes(kv, &seq->spec);
}

/* Using what others have made. */
bool kva_copies_alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                      uint32_t end KVA_UNUSED)
{
    uint32_t before = kva_copies_of(seq)->count, wanted = kva_kv_pool_stored(&seq->spec, offloaded);
    while (kva_copies_of(seq)->count < wanted) {
        if (take_next(kv, seq))
            continue;
        free_copies(kv, seq, before);
        return false;
    }
    return true;
}

uint32_t kva_copies_held(const struct kva_kv_seq *seq)
{
    return kva_copies_of(seq)->count;
}

void kva_copies_cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save KVA_UNUSED)
{
    if (count == 0)
        kva_copies_of(seq)->lost_layers = kva_copies_of(seq)->coded_layers;
    free_copies(kv, seq, count);
}

/* Once the prompt is in. */
void kva_copies_restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->prefilled || seq->prepared == 0)
        return;
    code_host(kv, seq, kv->shape.layers, prepared_copies(seq));
    kva_copies_prepared(kv, seq);
}

void kva_copies_prompt_layer(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer)
{
    code(kv, seq, layer, 0, kva_kv_pool_stored(&seq->spec, seq->offloaded), false);
    kva_copies_of(seq)->coded_layers = layer + 1;
}

void kva_copies_prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    code_host(kv, seq, kva_copies_of(seq)->lost_layers, prepared_copies(seq));
    kva_copies_prepared(kv, seq);
}

void kva_copies_prepare(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++)
        code(kv, seq, layer, kva_kv_pool_stored(&seq->spec, seq->prepared),
             kva_kv_pool_stored(&seq->spec, first), false);
}

void kva_copies_add_blocks(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_copies *copies = kva_copies_of(rows->seq);
    const uint32_t end = rows->seq->offloaded;
    const uint32_t count = kva_kv_pool_stored(&rows->seq->spec, end), first = end - count;
    for (uint32_t i = 0; i < count; i++)
        *kva_kv_block_at(rows, first + i) =
            (unsigned char *)copies->at[i] + layer * kv->shape.block_bytes;
    if (count > 0)
        kva_kv_add_range(rows, (struct kva_kv_range){
                                   .kind = KVA_RANGE_BLOCKS, .page_first = first, .page_end = end});
}
