/* lowbit.c - low-bit copies of offloaded pages. */
#include "engine/kv/parts/lowbit.h"

#include "engine/kv/part.h"

#include <stdlib.h>

static bool fitted(const struct kva_kv_spec *spec)
{
    if (spec->levels == KVA_KV_LEVELS_AUTO)
        return spec->bits > 1;
    return spec->levels == KVA_KV_LEVELS_MSE;
}

struct kva_lowbit_format kva_kv_lowbit_format(const struct kva_kv_spec *spec)
{
    return (struct kva_lowbit_format){
        .bits = spec->bits,
        .group = spec->group,
        .levels = fitted(spec) ? KVA_LEVELS_FIT : KVA_LEVELS_PAPER,
    };
}

uint32_t kva_kv_lowbit_skip_layers(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_min_u32(spec->skip_layers, kv->shape.layers);
}

size_t kva_kv_lowbit_offset(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    uint32_t exempt = kva_min_u32(kva_kv_lowbit_skip_layers(kv, spec), layer);
    return exempt * kv->shape.block_bytes +
           (layer - exempt) * kva_lowbit_block_bytes(kva_kv_lowbit_format(spec), kv->shape.kv_heads,
                                                     kv->shape.head_dim);
}

size_t kva_kv_lowbit_page_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_kv_lowbit_offset(kv, spec, kv->shape.layers);
}

/* What must be equal for two sequences to share a copy; 0: no copy. */
static uint32_t copy_key(const struct kva_kv_spec *spec)
{
    uint32_t exempt = kva_min_u32(spec->skip_layers, 4095);
    return exempt << 20 | spec->bits << 16 | spec->group << 8 | spec->sinks << 1 |
           (uint32_t)fitted(spec);
}

bool kva_kv_lowbit_shared(const struct kva_page *page, const struct kva_kv_spec *spec)
{
    return page->low && page->low_key == copy_key(spec);
}

/* --- memory ---------------------------------------------------------------------------------- */

static bool shared(const struct kva_kv_seq *seq, uint32_t index)
{
    return seq->pages[index]->low == seq->low[index];
}

static bool take_next(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    uint32_t index = seq->low_count;
    struct kva_page *page = seq->pages[index];
    size_t bytes = kva_kv_lowbit_page_bytes(kv, &seq->spec);
    if (kva_kv_lowbit_shared(page, &seq->spec)) {
        page->low_users++;
        seq->low[index] = page->low;
    } else {
        seq->low[index] = kva_kv_alloc_device(kv, bytes);
        if (!seq->low[index])
            return false;
    }
    seq->low_count++;
    seq->device_bytes += bytes;
    return true;
}

bool kva_kv_lowbit_alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    uint32_t before = seq->low_count;
    while (seq->low_count < count) {
        if (take_next(kv, seq))
            continue;
        kva_kv_lowbit_free(kv, seq, before);
        return false;
    }
    return true;
}

void kva_kv_lowbit_free(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    while (seq->low_count > count) {
        size_t bytes = kva_kv_lowbit_page_bytes(kv, &seq->spec);
        uint32_t index = --seq->low_count;
        struct kva_page *page = seq->pages[index];
        void *low = seq->low[index];
        bool last = true;
        if (shared(seq, index)) {
            last = --page->low_users == 0;
            if (last)
                page->low = NULL;
        }
        if (last)
            kva_kv_free_device(kv, low, bytes);
        seq->low[index] = NULL;
        seq->device_bytes -= bytes;
    }
}

void kva_kv_lowbit_publish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    for (uint32_t i = 0; i < seq->offloaded; i++) {
        struct kva_page *page = seq->pages[i];
        if (page->low)
            continue;
        page->low = seq->low[i];
        page->low_key = copy_key(&seq->spec);
        page->low_users = 1;
    }
}

/* --- coding ---------------------------------------------------------------------------------- */

enum source {
    FROM_STAGE,
    FROM_DEVICE,
    FROM_HOST,
};

static const void *source_of(const struct kva_kv_seq *seq, enum source source, uint32_t index,
                             uint32_t layer)
{
    switch (source) {
    case FROM_STAGE:
        return seq->stage[layer % 2][index];
    case FROM_DEVICE:
        return seq->pages[index]->device;
    case FROM_HOST:
        return seq->pages[index]->host;
    }
    return NULL;
}

/* Exempt layers are copied as they are. */
static void copy_listed(struct kva_kv *kv, size_t from_offset, size_t to_offset, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, (unsigned char *)kv->to_list[i] + to_offset,
                        (const unsigned char *)kv->from_list[i] + from_offset,
                        kv->shape.block_bytes);
}

static void code_listed(struct kva_kv *kv, const struct kva_kv_seq *seq, enum source source,
                        uint32_t layer, uint32_t count)
{
    size_t from_offset = source == FROM_STAGE ? 0 : layer * kv->shape.block_bytes;
    size_t to_offset = kva_kv_lowbit_offset(kv, &seq->spec, layer);
    if (layer < kva_kv_lowbit_skip_layers(kv, &seq->spec)) {
        copy_listed(kv, from_offset, to_offset, count);
        return;
    }
    if (count == 0)
        return;
    kva_device_ops(kv->device)
        ->quantise(kv->device, &(struct kva_quantise_args){
                                   .from = kv->from_list,
                                   .to = kv->to_list,
                                   .exempt = kv->exempt_list,
                                   .from_offset_bytes = from_offset,
                                   .to_offset_bytes = to_offset,
                                   .count = count,
                                   .kv_heads = kv->shape.kv_heads,
                                   .head_dim = kv->shape.head_dim,
                                   .kv_dtype = kv->shape.dtype,
                                   .format = kva_kv_lowbit_format(&seq->spec),
                               });
}

/* One layer of pages [first, end), those that others have coded excepted. */
static void code(struct kva_kv *kv, struct kva_kv_seq *seq, enum source source, uint32_t layer,
                 uint32_t first, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t i = first; i < end; i++) {
        if (shared(seq, i))
            continue;
        kv->from_list[count] = source_of(seq, source, i, layer);
        kv->to_list[count] = seq->low[i];
        kv->exempt_list[count] = i == 0 ? seq->spec.sinks : 0;
        if (++count == KVA_KV_LIST_MAX) {
            code_listed(kv, seq, source, layer, count);
            count = 0;
        }
    }
    code_listed(kv, seq, source, layer, count);
}

void kva_kv_lowbit_code_staged(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer)
{
    code(kv, seq, FROM_STAGE, layer, 0, seq->offloaded);
}

void kva_kv_lowbit_code_resident(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first,
                                 uint32_t end)
{
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++)
        code(kv, seq, FROM_DEVICE, layer, first, end);
}

void kva_kv_lowbit_code_host(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer_end)
{
    if (layer_end == 0)
        return;
    kva_kv_order_compute(kv);
    for (uint32_t layer = 0; layer < layer_end; layer++)
        code(kv, seq, FROM_HOST, layer, 0, seq->offloaded);
}

/* --- the part -------------------------------------------------------------------------------- */

static enum kva_status check(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err)
{
    if (kv->shape.head_dim % 4 == 0)
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "policy",
                          "policy '%s' needs heads of a multiple of 4, the model's are of %u",
                          kva_kv_policy_name(spec->policy), kv->shape.head_dim);
}

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    seq->low = calloc(seq->pages_max, sizeof(void *));
    if (!seq->low || !kva_tier_prepare(kv->tier, kva_kv_lowbit_page_bytes(kv, &seq->spec)))
        return kva_fail(err, KVA_ENOMEM, "out of memory for the page table of %u tokens",
                        seq->tokens_max);
    return KVA_OK;
}

static void finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    free(seq->low);
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    return kva_tier_footprint(kv->tier, kva_kv_lowbit_page_bytes(kv, spec), extent->offloaded);
}

static uint64_t shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page)
{
    return !page || kva_kv_lowbit_shared(page, spec) ? kva_kv_lowbit_page_bytes(kv, spec) : 0;
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    return kva_kv_lowbit_alloc(kv, seq, offloaded);
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return seq->low_count;
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save KVA_UNUSED)
{
    if (count == 0)
        seq->low_stale = seq->low_layers;
    kva_kv_lowbit_free(kv, seq, count);
}

/* Copies are made again from the pages' host copies. */
static void restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    kva_kv_lowbit_code_host(kv, seq, kv->shape.layers);
    kva_kv_lowbit_publish(kv, seq);
}

static void prompt_layer(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer)
{
    kva_kv_lowbit_code_staged(kv, seq, layer);
    seq->low_layers = layer + 1;
}

static void prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    kva_kv_lowbit_code_host(kv, seq, seq->low_stale);
    kva_kv_lowbit_publish(kv, seq);
}

static void leave(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    kva_kv_lowbit_code_resident(kv, seq, seq->offloaded, first);
}

static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    struct kva_kv_range range = {
        .kind = KVA_RANGE_LOWBIT,
        .page_end = seq->offloaded,
        .format = kva_kv_lowbit_format(&seq->spec),
        .low = seq->low,
        .low_offset_bytes = kva_kv_lowbit_offset(kv, &seq->spec, layer),
    };
    if (!seq->prefilled || seq->offloaded == 0)
        return;
    if (layer < kva_kv_lowbit_skip_layers(kv, &seq->spec)) {
        /* Its blocks come first in the copy. */
        range = (struct kva_kv_range){.kind = KVA_RANGE_BLOCKS, .page_end = seq->offloaded};
        for (uint32_t i = 0; i < seq->offloaded; i++)
            rows->blocks[i] = (unsigned char *)seq->low[i] + layer * kv->shape.block_bytes;
    }
    kva_kv_add_range(rows, range);
}

const struct kva_kv_part kva_kv_part_lowbit = {
    .check = check,
    .init = init,
    .finish = finish,
    .footprint = footprint,
    .shared_bytes = shared_bytes,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .restore = restore,
    .prompt_layer = prompt_layer,
    .prompt_end = prompt_end,
    .leave = leave,
    .left = kva_kv_lowbit_publish,
    .locate = locate,
};
