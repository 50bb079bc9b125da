/* sketch.c - partial keys of offloaded pages. */
#include "engine/kv/parts/sketch.h"

#include "engine/kv/parts/copies.h"

struct state {
    struct kva_copies copies;
};

/* Descriptors of one call. */
struct cache {
    struct kva_copies_list list;
};

static struct kva_copies *copies_of(const struct kva_kv_seq *seq)
{
    return &((struct state *)kva_kv_part_state(seq, &kva_kv_part_sketch))->copies;
}

static struct kva_copies_list *list_of(const struct kva_kv *kv)
{
    return &((struct cache *)kva_kv_part_cache(kv, &kva_kv_part_sketch))->list;
}

/* --- the form -------------------------------------------------------------------------------- */

uint32_t kva_sketch_skip_layers(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_min_u32(kva_max_u32(spec->skip_layers, 1), kv->shape.layers);
}

struct kva_sketch_format kva_sketch_format_of(const struct kva_kv *kv,
                                              const struct kva_kv_spec *spec)
{
    uint32_t columns = (uint32_t)kva_div_up((size_t)kv->shape.head_dim * spec->partial, 100);
    return (struct kva_sketch_format){kva_max_u32(columns, 1), spec->partial_bits};
}

struct kva_sketch_columns kva_sketch_columns_of(const struct kva_kv *kv,
                                                const struct kva_kv_spec *spec, uint32_t layer)
{
    const size_t at = (size_t)layer * kv->shape.kv_heads * kv->shape.head_dim;
    struct kva_sketch_columns columns = {0};
    if (spec->skew == KVA_SKEW_AFTER)
        columns.basis = kv->skew.basis + at * kv->shape.head_dim;
    else if (spec->skew == KVA_SKEW_NONE && kv->skew.columns)
        columns.columns = kv->skew.columns + at;
    return columns;
}

static size_t block_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_sketch_block_bytes(kva_sketch_format_of(kv, spec), kv->shape.kv_heads);
}

/* Low-bit copies have less than 15 bits. */
static uint64_t copy_key(const struct kva_kv_spec *spec)
{
    uint32_t skipped = kva_min_u32(spec->skip_layers, 4095);
    return skipped << 20 | 15u << 16 | spec->partial << 8 | spec->partial_bits << 2 |
           (uint32_t)spec->skew;
}

static void code(struct kva_kv *kv, const struct kva_kv_seq *seq,
                 const struct kva_copies_list *list, uint32_t layer, size_t to_offset)
{
    kva_device_ops(kv->device)
        ->sketch(kv->device, &(struct kva_sketch_args){
                                 .from = list->from,
                                 .to = list->to,
                                 .to_offset_bytes = to_offset,
                                 .by = kva_sketch_columns_of(kv, &seq->spec, layer),
                                 .count = list->count,
                                 .kv_heads = kv->shape.kv_heads,
                                 .head_dim = kv->shape.head_dim,
                                 .kv_dtype = kv->shape.dtype,
                                 .format = kva_sketch_format_of(kv, &seq->spec),
                             });
}

static const struct kva_copies_kind kind = {
    .of = copies_of,
    .list = list_of,
    .block_bytes = block_bytes,
    .skip_layers = kva_sketch_skip_layers,
    .key = copy_key,
    .code = code,
};

const void *const *kva_sketch_copies(const struct kva_kv_seq *seq)
{
    return (const void *const *)copies_of(seq)->at;
}

size_t kva_sketch_offset(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    return kva_copies_offset(&kind, kv, spec, layer);
}

/* --- the part -------------------------------------------------------------------------------- */

static enum kva_status check(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err)
{
    if (spec->skew == KVA_SKEW_FOLD && kv->rotary.inv_freq)
        return kva_fail_param(
            err, KVA_EUNSUPPORTED, "skew",
            "skew=fold is for checkpoints without rotary positions that have the "
            "skew in their weights; this model's positions are rotary: skew=after");
    if (spec->skew != KVA_SKEW_AFTER || kv->skew.basis)
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "skew",
                          "policy '%s' with skew=after needs the model's skew, and %s: 'kvahead "
                          "skew --model MODEL --text FILE' makes it; skew=none goes without",
                          kva_kv_spec_policy_name(spec),
                          kv->skew.unusable ? "its file is not of this model" : "it has none");
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
    if (seq->prefilled && layer < kva_sketch_skip_layers(kv, &seq->spec))
        kva_copies_add_blocks(&kind, kv, rows, layer, seq->offloaded);
}

const struct kva_kv_part kva_kv_part_sketch = {
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
