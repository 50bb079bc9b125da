/* columns.c - columns of partial keys that are a prompt's own. */
#include "engine/kv/parts/columns.h"

#include "engine/kv/part.h"
#include "engine/kv/parts/pool.h"
#include "engine/kv/parts/sketch.h"
#include "engine/kv/saved.h"

#include <stdlib.h>

/* Of a sequence. */
struct state {
    unsigned char *marks; /* device, as below; NULL: not there */
    const void **blocks;  /* [pages of the prompt]: of one call */
};

/* Of the cache: descriptors of one call, [kv_heads]. */
struct cache {
    struct kva_choose_seq *chosen;
};

static struct state *state_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, &kva_kv_part_columns);
}

static bool is_own(const struct kva_kv_spec *spec)
{
    return spec->columns == KVA_COLUMNS_PROMPT;
}

uint32_t kva_columns_computed(const struct kva_kv_spec *spec)
{
    return is_own(spec) ? UINT32_MAX : 1;
}

/* --- layout ---------------------------------------------------------------------------------- */

/*  columns [layers][kv_heads][head_dim] | sums [kv_heads][head_dim], of the layer at hand. */
static size_t layer_bytes(const struct kva_kv *kv)
{
    return (size_t)kv->shape.kv_heads * kv->shape.head_dim * sizeof(uint32_t);
}

static size_t saved_bytes_of(const struct kva_kv *kv)
{
    return (kv->shape.layers + 1) * layer_bytes(kv);
}

/* The same of every sequence: items of one size. */
static size_t marks_bytes(const struct kva_kv *kv)
{
    return kva_align_up(saved_bytes_of(kv), 64);
}

static uint32_t *columns_at(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer)
{
    return (uint32_t *)(void *)(state_of(seq)->marks + layer * layer_bytes(kv));
}

const uint32_t *kva_columns_of(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                               uint32_t layer)
{
    return is_own(&seq->spec) ? columns_at(kv, seq, layer) : NULL;
}

static float *sums_of(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    return (float *)(void *)columns_at(kv, seq, kv->shape.layers);
}

/* --- a prompt's ------------------------------------------------------------------------------ */

/* Whether the layer has partial keys, and columns of its own. */
static bool counts(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer)
{
    return is_own(&seq->spec) && !seq->prefilled && layer >= kva_sketch_skip_layers(kv, &seq->spec);
}

static struct kva_sketch_sums_args args_of(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                                           uint32_t layer)
{
    return (struct kva_sketch_sums_args){
        .sums = sums_of(kv, seq),
        .basis = kva_sketch_columns_of(kv, seq, layer).basis,
        .q_stride = kv->heads * kv->shape.head_dim,
        .heads = kv->heads,
        .kv_heads = kv->shape.kv_heads,
        .head_dim = kv->shape.head_dim,
        .kv_dtype = kv->shape.dtype,
    };
}

static void attended(const struct kva_kv_part *self KVA_UNUSED, struct kva_kv *kv,
                     struct kva_kv_pass *pass, const struct kva_kv_attention *attention)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (!state_of(rows->seq) || !counts(kv, rows->seq, attention->layer))
            continue;
        struct kva_sketch_sums_args args = args_of(kv, rows->seq, attention->layer);
        args.q = attention->q;
        args.row_first = rows->row_first;
        args.count = rows->row_count;
        args.anew = rows->position_first == 0;
        kva_device_ops(kv->device)->sketch_sums(kv->device, &args);
    }
}

/* The queries are in; the keys, and then the largest, ascending. */
static void prompt_layer(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer)
{
    const struct kva_ops *ops = kva_device_ops(kv->device);
    const struct cache *cache = kva_kv_part_cache(kv, &kva_kv_part_columns);
    const uint32_t dim = kv->shape.head_dim, heads = kv->shape.kv_heads;
    struct state *s = state_of(seq);
    if (!counts(kv, seq, layer))
        return;
    struct kva_sketch_sums_args args = args_of(kv, seq, layer);
    for (uint32_t i = 0; i < kva_kv_pages(seq->prompt_tokens); i++)
        s->blocks[i] = kva_kv_find_block(kv, seq, layer, i);
    args.blocks = s->blocks;
    args.count = seq->prompt_tokens;
    ops->sketch_sums(kv->device, &args);
    for (uint32_t head = 0; head < heads; head++)
        cache->chosen[head] = (struct kva_choose_seq){
            .weights = sums_of(kv, seq) + (size_t)head * dim,
            .chosen = columns_at(kv, seq, layer) + (size_t)head * dim,
            .stride = dim,
            .end = dim,
            .k = kva_sketch_format_of(kv, &seq->spec).columns,
        };
    ops->choose(kv->device, &(struct kva_choose_args){.seqs = cache->chosen,
                                                      .seq_count = heads,
                                                      .kv_heads = 1,
                                                      .kind = KVA_CHOOSE_MOST});
}

/* --- memory ---------------------------------------------------------------------------------- */

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    if (!is_own(&seq->spec))
        return KVA_OK;
    struct state *s = state_of(seq);
    s->blocks = calloc(kva_kv_pages(seq->prompt_tokens), sizeof(void *));
    if (!s->blocks || !kva_tier_prepare(kv->tier, marks_bytes(kv)))
        return kva_fail(err, KVA_ENOMEM, "out of memory for a prompt's columns");
    return KVA_OK;
}

static void finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    free((void *)state_of(seq)->blocks);
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    const bool any = extent->offloaded + extent->resident > 0;
    return is_own(spec) && any ? kva_tier_footprint(kv->tier, marks_bytes(kv), 1) : 0;
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded KVA_UNUSED,
                  uint32_t end KVA_UNUSED)
{
    struct state *s = state_of(seq);
    if (s->marks || !is_own(&seq->spec))
        return true;
    s->marks = kva_kv_alloc_device(kv, marks_bytes(kv));
    seq->device_bytes += s->marks ? marks_bytes(kv) : 0;
    return s->marks != NULL;
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return state_of(seq)->marks != NULL;
}

static uint64_t saved_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                            uint32_t prompt KVA_UNUSED)
{
    return is_own(spec) ? saved_bytes_of(kv) : 0;
}

/* Behind what the pool saves. */
static size_t saved_at(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    return kva_kv_part_pool.saved_bytes(kv, &seq->spec, seq->prompt_tokens);
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save)
{
    struct state *s = state_of(seq);
    if (count > 0 || !s->marks)
        return;
    if (save) {
        kva_kv_order_copies(kv);
        kva_kv_saved_put(kv, seq, saved_at(kv, seq), s->marks, saved_bytes_of(kv));
    }
    kva_kv_free_device(kv, s->marks, marks_bytes(kv));
    seq->device_bytes -= marks_bytes(kv);
    s->marks = NULL;
}

/* Before copies are made again, which it says the columns of. */
static void restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct state *s = state_of(seq);
    if (!s->marks)
        return;
    kva_kv_order_copies(kv);
    kva_kv_saved_get(kv, seq, saved_at(kv, seq), s->marks, saved_bytes_of(kv));
}

static enum kva_status cache_init(const struct kva_kv_part *self, struct kva_kv *kv,
                                  struct kva_err *err)
{
    struct cache *cache = kva_kv_part_cache(kv, self);
    cache->chosen = calloc(kv->shape.kv_heads, sizeof(*cache->chosen));
    return cache->chosen ? KVA_OK : kva_fail(err, KVA_ENOMEM, "out of memory for the KV cache");
}

static void cache_finish(const struct kva_kv_part *self, struct kva_kv *kv)
{
    free(((struct cache *)kva_kv_part_cache(kv, self))->chosen);
}

const struct kva_kv_part kva_kv_part_columns = {
    .state_bytes = sizeof(struct state),
    .cache_bytes = sizeof(struct cache),
    .cache_init = cache_init,
    .cache_finish = cache_finish,
    .init = init,
    .finish = finish,
    .footprint = footprint,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .saved_bytes = saved_bytes,
    .restore = restore,
    .prompt_layer = prompt_layer,
    .attended = attended,
};
