/* lowbit.c - low-bit copies of offloaded pages. */
#include "engine/kv/parts/lowbit.h"

#include "engine/kv/part.h"

#include <stdlib.h>

/* Pages that one call codes at most. */
#define LIST_MAX 256u

struct state {
    void **copies;         /* [pages_max]: of page i in all layers */
    uint32_t count;        /* the first so many are there */
    uint32_t coded_layers; /* during the prefill: the first so many layers have been coded ... */
    uint32_t lost_layers;  /* ... of which the first so many were lost */
};

/* Descriptors of one call. */
struct cache {
    const void *from[LIST_MAX];
    void *to[LIST_MAX];
    uint32_t exempt[LIST_MAX];
};

static struct state *state_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, &kva_kv_part_lowbit);
}

static struct kva_lowbit_format format_of(const struct kva_kv_spec *spec)
{
    /* By default keys by least squares, because noise in a score is worse than a score that is a
     * little too small; and values by their range, which does not make their mean smaller. */
    static const enum kva_lowbit_levels levels[][2] = {
        [KVA_KV_LEVELS_MINMAX] = {KVA_LEVELS_PAPER, KVA_LEVELS_PAPER},
        [KVA_KV_LEVELS_MSE] = {KVA_LEVELS_FIT, KVA_LEVELS_FIT},
        [KVA_KV_LEVELS_EXTREMES] = {KVA_LEVELS_EXTREMES, KVA_LEVELS_EXTREMES},
        [KVA_KV_LEVELS_AUTO] = {KVA_LEVELS_FIT, KVA_LEVELS_PAPER},
    };
    return (struct kva_lowbit_format){
        .bits = spec->bits,
        .group = spec->group,
        .key_levels = levels[spec->levels][0],
        .value_levels = levels[spec->levels][1],
    };
}

uint32_t kva_kv_lowbit_skip_layers(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_min_u32(spec->skip_layers, kv->shape.layers);
}

/* Where a layer lies in a copy. */
static size_t offset_of(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    uint32_t exempt = kva_min_u32(kva_kv_lowbit_skip_layers(kv, spec), layer);
    return exempt * kv->shape.block_bytes +
           (layer - exempt) *
               kva_lowbit_block_bytes(format_of(spec), kv->shape.kv_heads, kv->shape.head_dim);
}

/* One page in all layers: the item that is taken from the tier. */
static size_t page_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return offset_of(kv, spec, kv->shape.layers);
}

/* What must be equal for two sequences to share a copy; 0: no copy. */
static uint32_t copy_key(const struct kva_kv_spec *spec)
{
    uint32_t exempt = kva_min_u32(spec->skip_layers, 4095);
    return exempt << 20 | spec->bits << 16 | spec->group << 8 | spec->sinks << 2 |
           (uint32_t)spec->levels;
}

static bool is_shared(const struct kva_page *page, const struct kva_kv_spec *spec)
{
    return page->low && page->low_key == copy_key(spec);
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Whether sequence's copy is the page's, which others use or may. */
static bool is_of_page(const struct kva_kv_seq *seq, uint32_t index)
{
    return seq->pages[index]->low == state_of(seq)->copies[index];
}

static bool take_next(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct state *state = state_of(seq);
    uint32_t index = state->count;
    struct kva_page *page = seq->pages[index];
    size_t bytes = page_bytes(kv, &seq->spec);
    if (is_shared(page, &seq->spec)) {
        page->low_users++;
        state->copies[index] = page->low;
    } else {
        state->copies[index] = kva_kv_alloc_device(kv, bytes);
        if (!state->copies[index])
            return false;
    }
    state->count++;
    seq->device_bytes += bytes;
    return true;
}

/* Give back those from `count` on. */
static void free_copies(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    struct state *state = state_of(seq);
    while (state->count > count) {
        size_t bytes = page_bytes(kv, &seq->spec);
        uint32_t index = --state->count;
        struct kva_page *page = seq->pages[index];
        void *copy = state->copies[index];
        bool last = true;
        if (is_of_page(seq, index)) {
            last = --page->low_users == 0;
            if (last)
                page->low = NULL;
        }
        if (last)
            kva_kv_free_device(kv, copy, bytes);
        state->copies[index] = NULL;
        seq->device_bytes -= bytes;
    }
}

/* The copies of pages [0, prepared) are complete and the pages closed: others may use them. */
static void publish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    for (uint32_t i = 0; i < seq->prepared; i++) {
        struct kva_page *page = seq->pages[i];
        if (page->low)
            continue;
        page->low = state_of(seq)->copies[i];
        page->low_key = copy_key(&seq->spec);
        page->low_users = 1;
    }
}

/* --- coding ---------------------------------------------------------------------------------- */

/* Skipped layers are copied as they are. */
static void copy_listed(struct kva_kv *kv, const struct cache *list, size_t to_offset,
                        uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, (unsigned char *)list->to[i] + to_offset,
                        list->from[i], kv->shape.block_bytes);
}

static void code_listed(struct kva_kv *kv, const struct kva_kv_seq *seq, const struct cache *list,
                        uint32_t layer, uint32_t count)
{
    size_t to_offset = offset_of(kv, &seq->spec, layer);
    if (layer < kva_kv_lowbit_skip_layers(kv, &seq->spec)) {
        copy_listed(kv, list, to_offset, count);
        return;
    }
    if (count == 0)
        return;
    kva_device_ops(kv->device)
        ->quantise(kv->device, &(struct kva_quantise_args){
                                   .from = list->from,
                                   .to = list->to,
                                   .exempt = list->exempt,
                                   .to_offset_bytes = to_offset,
                                   .count = count,
                                   .kv_heads = kv->shape.kv_heads,
                                   .head_dim = kv->shape.head_dim,
                                   .kv_dtype = kv->shape.dtype,
                                   .format = format_of(&seq->spec),
                               });
}

/* One layer of pages [first, end), those that others have coded excepted. */
static void code(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer, uint32_t first,
                 uint32_t end, bool from_host)
{
    struct cache *list = kva_kv_part_cache(kv, &kva_kv_part_lowbit);
    uint32_t count = 0;
    for (uint32_t i = first; i < end; i++) {
        if (is_of_page(seq, i))
            continue;
        list->from[count] = from_host ? seq->pages[i]->host + layer * kv->shape.block_bytes
                                      : kva_kv_find_block(kv, seq, layer, i);
        list->to[count] = state_of(seq)->copies[i];
        list->exempt[count] = i == 0 ? seq->spec.sinks : 0;
        if (++count == LIST_MAX) {
            code_listed(kv, seq, list, layer, count);
            count = 0;
        }
    }
    code_listed(kv, seq, list, layer, count);
}

/* Layers [0, layer_end) of the pages that are prepared, from the host. */
static void code_host(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer_end)
{
    if (layer_end == 0)
        return;
    kva_kv_order_compute(kv);
    for (uint32_t layer = 0; layer < layer_end; layer++)
        code(kv, seq, layer, 0, seq->prepared, true);
}

/* --- the part -------------------------------------------------------------------------------- */

static enum kva_status check(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err)
{
    if (kv->shape.head_dim % 4 == 0)
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "policy",
                          "policy '%s' needs heads of a multiple of 4, the model's are of %u",
                          kva_kv_spec_policy_name(spec), kv->shape.head_dim);
}

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    struct state *state = state_of(seq);
    state->copies = calloc(seq->pages_max, sizeof(void *));
    if (!state->copies || !kva_tier_prepare(kv->tier, page_bytes(kv, &seq->spec)))
        return kva_fail(err, KVA_ENOMEM, "out of memory for the page table of %u tokens",
                        seq->tokens_max);
    return KVA_OK;
}

static void finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    free(state_of(seq)->copies);
}

static void reset(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    state_of(seq)->coded_layers = state_of(seq)->lost_layers = 0;
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    return kva_tier_footprint(kv->tier, page_bytes(kv, spec), extent->offloaded);
}

static uint64_t shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page)
{
    return !page || is_shared(page, spec) ? page_bytes(kv, spec) : 0;
}

/* Using what others have made. */
static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    uint32_t before = state_of(seq)->count;
    while (state_of(seq)->count < offloaded) {
        if (take_next(kv, seq))
            continue;
        free_copies(kv, seq, before);
        return false;
    }
    return true;
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return state_of(seq)->count;
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save KVA_UNUSED)
{
    if (count == 0)
        state_of(seq)->lost_layers = state_of(seq)->coded_layers;
    free_copies(kv, seq, count);
}

/* Copies are made again from the pages' host copies, once the prompt is in. */
static void restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->prefilled || seq->prepared == 0)
        return;
    code_host(kv, seq, kv->shape.layers);
    publish(kv, seq);
}

static void prompt_layer(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer)
{
    code(kv, seq, layer, 0, seq->offloaded, false);
    state_of(seq)->coded_layers = layer + 1;
}

static void prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    code_host(kv, seq, state_of(seq)->lost_layers);
    publish(kv, seq);
}

static void prepare(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++)
        code(kv, seq, layer, seq->prepared, first, false);
}

static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    struct kva_kv_range range = {
        .kind = KVA_RANGE_LOWBIT,
        .page_end = seq->offloaded,
        .format = format_of(&seq->spec),
        .low = state_of(seq)->copies,
        .low_offset_bytes = offset_of(kv, &seq->spec, layer),
    };
    if (!seq->prefilled || seq->prepared == 0)
        return;
    if (layer < kva_kv_lowbit_skip_layers(kv, &seq->spec)) {
        /* Its blocks come first in the copy. */
        range = (struct kva_kv_range){.kind = KVA_RANGE_BLOCKS, .page_end = seq->offloaded};
        for (uint32_t i = 0; i < seq->offloaded; i++)
            rows->blocks[i] =
                (unsigned char *)state_of(seq)->copies[i] + layer * kv->shape.block_bytes;
    }
    if (seq->offloaded > 0)
        kva_kv_add_range(rows, range);
    if (range.kind == KVA_RANGE_LOWBIT && seq->prepared > seq->offloaded) {
        rows->candidates = range;
        rows->candidates.page_end = seq->prepared;
    }
}

const struct kva_kv_part kva_kv_part_lowbit = {
    .state_bytes = sizeof(struct state),
    .cache_bytes = sizeof(struct cache),
    .check = check,
    .init = init,
    .finish = finish,
    .reset = reset,
    .footprint = footprint,
    .shared_bytes = shared_bytes,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .restore = restore,
    .prompt_layer = prompt_layer,
    .prompt_end = prompt_end,
    .prepare = prepare,
    .prepared = publish,
    .locate = locate,
};
