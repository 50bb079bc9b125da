/* sketch.c - partial keys of offloaded pages. */
#include "engine/kv/parts/sketch.h"

#include "engine/kv/parts/columns.h"
#include "engine/kv/parts/copies.h"

/* --- the form -------------------------------------------------------------------------------- */

uint32_t kva_sketch_skip_layers(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return kva_min_u32(kva_max_u32(spec->skip_layers, 1), kv->shape.layers);
}

struct kva_sketch_format kva_sketch_format_of(const struct kva_kv *kv,
                                              const struct kva_kv_spec *spec)
{
    if (spec->skew == KVA_SKEW_PLANES)
        return (struct kva_sketch_format){kva_kv_plane_columns(kv->shape.head_dim, spec->partial),
                                          spec->partial_bits};
    uint32_t columns = (uint32_t)kva_div_up((size_t)kv->shape.head_dim * spec->partial, 100);
    return (struct kva_sketch_format){kva_max_u32(columns, 1), spec->partial_bits};
}

struct kva_sketch_columns kva_sketch_columns_of(const struct kva_kv *kv,
                                                const struct kva_kv_seq *seq, uint32_t layer)
{
    const size_t at = (size_t)layer * kv->shape.kv_heads * kv->shape.head_dim;
    const struct kva_kv_spec *spec = &seq->spec;
    struct kva_sketch_columns columns = {.columns = kva_columns_of(kv, seq, layer)};
    if (spec->skew == KVA_SKEW_AFTER)
        columns.basis = kv->skew.basis + at * kv->shape.head_dim;
    else if (spec->skew == KVA_SKEW_PLANES)
        columns.columns = kv->skew.planes + at;
    else if (spec->skew == KVA_SKEW_NONE && kv->skew.columns && !columns.columns)
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
                                 .by = kva_sketch_columns_of(kv, seq, layer),
                                 .count = list->count,
                                 .kv_heads = kv->shape.kv_heads,
                                 .head_dim = kv->shape.head_dim,
                                 .kv_dtype = kv->shape.dtype,
                                 .format = kva_sketch_format_of(kv, &seq->spec),
                             });
}

static const struct kva_copies_kind copies = {
    .block_bytes = block_bytes,
    .skip_layers = kva_sketch_skip_layers,
    .key = copy_key,
    .code = code,
};

const void *const *kva_sketch_copies(const struct kva_kv_seq *seq)
{
    return (const void *const *)kva_copies_of(seq)->at;
}

size_t kva_sketch_offset(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    return kva_copies_offset(kv, spec, layer);
}

/* --- the part -------------------------------------------------------------------------------- */

/* The part of the query weights that was made at the start. */
static enum kva_status check_planes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                    struct kva_err *err)
{
    if (spec->columns == KVA_COLUMNS_PROMPT)
        return kva_fail_param(err, KVA_EUNSUPPORTED, "columns",
                              "skew=planes has the planes that were chosen at the start: "
                              "columns=static");
    if (kv->skew.plane_columns == kva_kv_plane_columns(kv->shape.head_dim, spec->partial))
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "skew",
                          "skew=planes with partial=%u needs the query weights of as many columns, "
                          "%u, and there are those of %u: --skew-planes PERCENT makes them",
                          spec->partial, kva_kv_plane_columns(kv->shape.head_dim, spec->partial),
                          kv->skew.plane_columns);
}

static enum kva_status check(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err)
{
    if (spec->skew == KVA_SKEW_FOLD && kv->rotary.inv_freq)
        return kva_fail_param(
            err, KVA_EUNSUPPORTED, "skew",
            "skew=fold is for checkpoints without rotary positions that have the "
            "skew in their weights; this model's positions are rotary: skew=after");
    if (spec->skew == KVA_SKEW_PLANES)
        return check_planes(kv, spec, err);
    if (spec->skew != KVA_SKEW_AFTER || kv->skew.basis)
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "skew",
                          "policy '%s' with skew=after needs the model's skew, and %s: 'kvahead "
                          "skew --model MODEL --text FILE' makes it; skew=none goes without",
                          kva_kv_spec_policy_name(spec),
                          kv->skew.unusable ? "its file is not of this model" : "it has none");
}

static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    if (seq->prefilled && layer < kva_sketch_skip_layers(kv, &seq->spec))
        kva_copies_add_blocks(kv, rows, layer);
}

const struct kva_kv_part kva_kv_part_sketch = {
    .state_bytes = sizeof(struct kva_copies),
    .cache_bytes = sizeof(struct kva_copies_list),
    .check = check,
    .copies = &copies,
    KVA_COPIES_FUNCTIONS,
    .locate = locate,
};
