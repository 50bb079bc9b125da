/* lowbit.c - low-bit copies of offloaded pages. */
#include "engine/kv/parts/lowbit.h"

#include "engine/kv/parts/copies.h"

/* Descriptors of one call. */
struct cache {
    struct kva_copies_list list;
    uint32_t exempt[KVA_COPIES_LIST_MAX];
};

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
        .value_bits = spec->value_bits,
        .key_levels = levels[spec->levels][0],
        .value_levels = levels[spec->levels][1],
    };
}

uint32_t kva_kv_lowbit_skip_layers(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_min_u32(spec->skip_layers, kv->shape.layers);
}

/* --- copies ---------------------------------------------------------------------------------- */

static size_t block_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_lowbit_block_bytes(format_of(spec), kv->shape.kv_heads, kv->shape.head_dim);
}

static uint64_t copy_key(const struct kva_kv_spec *spec)
{
    uint32_t exempt = kva_min_u32(spec->skip_layers, 4095);
    return (uint64_t)spec->value_bits << 32 | exempt << 20 | spec->bits << 16 | spec->group << 8 |
           spec->sinks << 2 | (uint32_t)spec->levels;
}

static void code(struct kva_kv *kv, const struct kva_kv_seq *seq,
                 const struct kva_copies_list *list, uint32_t layer KVA_UNUSED, size_t to_offset)
{
    uint32_t *exempt = ((struct cache *)kva_kv_part_cache(kv, &kva_kv_part_lowbit))->exempt;
    for (uint32_t i = 0; i < list->count; i++)
        exempt[i] = list->page[i] == 0 ? seq->spec.sinks : 0;
    kva_device_ops(kv->device)
        ->quantise(kv->device, &(struct kva_quantise_args){
                                   .from = list->from,
                                   .to = list->to,
                                   .exempt = exempt,
                                   .to_offset_bytes = to_offset,
                                   .count = list->count,
                                   .kv_heads = kv->shape.kv_heads,
                                   .head_dim = kv->shape.head_dim,
                                   .kv_dtype = kv->shape.dtype,
                                   .format = format_of(&seq->spec),
                               });
}

static const struct kva_copies_kind copies = {
    .block_bytes = block_bytes,
    .skip_layers = kva_kv_lowbit_skip_layers,
    .key = copy_key,
    .code = code,
};

/* --- the part -------------------------------------------------------------------------------- */

static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    struct kva_kv_range range = {
        .kind = KVA_RANGE_LOWBIT,
        .page_end = seq->offloaded,
        .format = format_of(&seq->spec),
        .low = kva_copies_of(seq)->at,
        .low_offset_bytes = kva_copies_offset(kv, &seq->spec, layer),
    };
    if (!seq->prefilled || seq->prepared == 0)
        return;
    if (layer < kva_kv_lowbit_skip_layers(kv, &seq->spec)) {
        kva_copies_add_blocks(kv, rows, layer);
        return;
    }
    if (seq->offloaded > 0)
        kva_kv_add_range(rows, range);
    if (seq->prepared > seq->offloaded) {
        rows->candidates = range;
        rows->candidates.page_end = seq->prepared;
    }
}

const struct kva_kv_part kva_kv_part_lowbit = {
    .state_bytes = sizeof(struct kva_copies),
    .cache_bytes = sizeof(struct cache),
    .check = kva_kv_check_heads,
    .copies = &copies,
    KVA_COPIES_FUNCTIONS,
    .locate = locate,
};
