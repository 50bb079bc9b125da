/* lowbit.c - low-bit copies of offloaded pages. */
#include "engine/kv/parts/lowbit.h"

#include "engine/kv/parts/copies.h"

struct state {
    struct kva_copies copies;
};

/* Descriptors of one call. */
struct cache {
    struct kva_copies_list list;
    uint32_t exempt[KVA_COPIES_LIST_MAX];
};

static struct kva_copies *copies_of(const struct kva_kv_seq *seq)
{
    return &((struct state *)kva_kv_part_state(seq, &kva_kv_part_lowbit))->copies;
}

static struct kva_copies_list *list_of(const struct kva_kv *kv)
{
    return &((struct cache *)kva_kv_part_cache(kv, &kva_kv_part_lowbit))->list;
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

/* --- copies ---------------------------------------------------------------------------------- */

static size_t block_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_lowbit_block_bytes(format_of(spec), kv->shape.kv_heads, kv->shape.head_dim);
}

static uint64_t copy_key(const struct kva_kv_spec *spec)
{
    uint32_t exempt = kva_min_u32(spec->skip_layers, 4095);
    return exempt << 20 | spec->bits << 16 | spec->group << 8 | spec->sinks << 2 |
           (uint32_t)spec->levels;
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

static const struct kva_copies_kind kind = {
    .of = copies_of,
    .list = list_of,
    .block_bytes = block_bytes,
    .skip_layers = kva_kv_lowbit_skip_layers,
    .key = copy_key,
    .code = code,
};

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
    return kva_copies_init(&kind, kv, seq, err);
}

static void finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    kva_copies_finish(&kind, seq);
}

static void reset(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    kva_copies_reset(&kind, seq);
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    return kva_copies_footprint(&kind, kv, spec, extent);
}

static uint64_t shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page)
{
    return kva_copies_shared_bytes(&kind, kv, spec, page);
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    return kva_copies_alloc(&kind, kv, seq, offloaded);
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return copies_of(seq)->count;
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save KVA_UNUSED)
{
    kva_copies_cut(&kind, kv, seq, count);
}

static void restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    kva_copies_restore(&kind, kv, seq);
}

static void prompt_layer(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer)
{
    kva_copies_prompt_layer(&kind, kv, seq, layer);
}

static void prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    kva_copies_prompt_end(&kind, kv, seq);
}

static void prepare(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    kva_copies_prepare(&kind, kv, seq, first);
}

static void prepared(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    kva_copies_prepared(&kind, seq);
}

static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    struct kva_kv_range range = {
        .kind = KVA_RANGE_LOWBIT,
        .page_end = seq->offloaded,
        .format = format_of(&seq->spec),
        .low = copies_of(seq)->at,
        .low_offset_bytes = kva_copies_offset(&kind, kv, &seq->spec, layer),
    };
    if (!seq->prefilled || seq->prepared == 0)
        return;
    if (layer < kva_kv_lowbit_skip_layers(kv, &seq->spec)) {
        kva_copies_add_blocks(&kind, kv, rows, layer, seq->offloaded);
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
    .prepared = prepared,
    .locate = locate,
};
