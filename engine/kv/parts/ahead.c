/* ahead.c - rows chosen a layer ahead: their memory. */
#include "engine/kv/parts/ahead.h"

#include "engine/kv/parts/ahead_internal.h"
#include "engine/kv/parts/sketch.h"

#include <stdlib.h>

/* --- how many -------------------------------------------------------------------------------- */

/* Of so many tokens; besides the sinks. */
static uint32_t rows_of(const struct kva_kv_spec *spec, uint32_t tokens)
{
    uint64_t percent = spec->cap & ~KVA_KV_PERCENT;
    uint64_t rows = spec->cap & KVA_KV_PERCENT ? kva_div_up(percent * tokens, 100) : percent;
    return kva_max_u32(1, kva_min_u32((uint32_t)rows, KVA_AHEAD_ROWS_MAX));
}

uint32_t kva_ahead_rows(const struct kva_kv_seq *seq)
{
    const uint32_t tokens = kva_kv_stored(seq) * KVA_PAGE_TOKENS;
    return kva_min_u32(rows_of(&seq->spec, tokens) + seq->spec.sinks, tokens);
}

/* Slots per KV head, in few different numbers: memory comes in items of few sizes (tier.h). */
static uint32_t slots_of(const struct kva_kv_spec *spec)
{
    uint32_t rows = kva_min_u32(rows_of(spec, spec->tokens_max), spec->tokens_max) + spec->sinks;
    uint32_t step = 64;
    while (step * 8 < rows)
        step *= 2;
    return (uint32_t)kva_align_up(rows, step);
}

/* --- layout ---------------------------------------------------------------------------------- */

/*  rows | tokens | used | order | missing | chosen | count, each at a multiple of 64 bytes. */
struct layout {
    size_t tokens, used, order, missing, chosen, count;
    size_t bytes;
};

static struct layout layout_of(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    const size_t slots = (size_t)slots_of(spec) * kv->shape.kv_heads;
    struct layout l = {0};
    (void)kva_kv_lay_piece(&l.bytes, slots * 2 * kv->shape.head_dim * sizeof(uint16_t));
    l.tokens = kva_kv_lay_piece(&l.bytes, slots * sizeof(uint32_t));
    l.used = kva_kv_lay_piece(&l.bytes, slots * sizeof(uint32_t));
    l.order = kva_kv_lay_piece(&l.bytes, slots * sizeof(uint32_t));
    l.missing = kva_kv_lay_piece(&l.bytes, slots * sizeof(uint32_t));
    l.chosen = kva_kv_lay_piece(&l.bytes, slots * sizeof(uint32_t));
    l.count = kva_kv_lay_piece(&l.bytes, kv->shape.kv_heads * sizeof(uint32_t));
    return l;
}

/* --- memory ---------------------------------------------------------------------------------- */

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    struct kva_ahead_state *s = kva_ahead_state_of(seq);
    if (!kva_tier_prepare(kv->tier, layout_of(kv, &seq->spec).bytes))
        return kva_fail(err, KVA_ENOMEM, "out of memory for one more kind of device memory");
    return kva_homes_init(&s->homes, kv, seq, err);
}

static void finish(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_ahead_state *s = kva_ahead_state_of(seq);
    /* Queued fetches may still use this memory. */
    kva_device_sync(kv->device, KVA_QUEUE_COPY);
    kva_homes_finish(&s->homes, kv, seq);
}

static void reset(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    kva_ahead_state_of(seq)->homes.page_count = 0;
    kva_ahead_state_of(seq)->pool_listed = false;
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    if (extent->offloaded == 0)
        return 0;
    return kva_tier_footprint(kv->tier, layout_of(kv, spec).bytes, KVA_AHEAD_BUFFERS);
}

static void give(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    const struct kva_ahead_state *s = kva_ahead_state_of(seq);
    const size_t bytes = layout_of(kv, &seq->spec).bytes;
    for (uint32_t i = 0; i < count; i++)
        kva_kv_free_device(kv, s->buffers[i].rows, bytes);
    seq->device_bytes -= count * bytes;
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    struct kva_ahead_state *s = kva_ahead_state_of(seq);
    const struct layout l = layout_of(kv, &seq->spec);
    if (offloaded == 0 || s->allocated)
        return true;
    for (uint32_t i = 0; i < KVA_AHEAD_BUFFERS; i++) {
        unsigned char *item = kva_kv_alloc_device(kv, l.bytes);
        if (!item) {
            give(kv, seq, i);
            return false;
        }
        seq->device_bytes += l.bytes;
        s->buffers[i] = (struct kva_row_cache){
            .rows = item,
            .tokens = (void *)(item + l.tokens),
            .used = (void *)(item + l.used),
            .order = (void *)(item + l.order),
            .count = (void *)(item + l.count),
            .chosen = (void *)(item + l.chosen),
            .missing = (void *)(item + l.missing),
            .hits = s->homes.hits,
            .slots = slots_of(&seq->spec),
        };
    }
    s->allocated = true;
    return true;
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return kva_ahead_state_of(seq)->allocated;
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save KVA_UNUSED)
{
    struct kva_ahead_state *s = kva_ahead_state_of(seq);
    if (count > 0 || !s->allocated)
        return;
    give(kv, seq, KVA_AHEAD_BUFFERS);
    s->allocated = false;
    /* Fetches may still be on their way there. */
    kv->copies_pending = true;
}

/* --- counters -------------------------------------------------------------------------------- */

static const struct kva_counter rows_left = {
    .name = "rehearsed_rows_left",
    .unit = "rows",
    .help = "Rows among which these were, and that were left on the host.",
    .field = "rehearsed_rows_left",
};

static const struct kva_counter rows_rehearsed = {
    .name = "rehearsed_rows",
    .unit = "rows",
    .help = "Rows that were chosen a layer ahead and fetched.",
    .field = "rehearsed_rows",
    .share_field = "rehearsed_share",
    .others = &rows_left,
};

static const struct kva_counter layers_rehearsed = {
    .name = "rehearsed_layers",
    .unit = "layers",
    .help = "Choices of rows, one per step, layer and KV head.",
    .field = "rehearsed_layers",
};

static const struct kva_counter rehearsed_late = {
    .name = "rehearsed_late",
    .unit = "layers",
    .help =
        "Layers that waited for their rows; not counted on a GPU, whose queues wait by themselves.",
    .inline_only = true,
};

static const struct kva_counter *const counters[] = {&rows_rehearsed, &rows_left, &layers_rehearsed,
                                                     &rehearsed_late, NULL};

static void count(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_ahead_state *s = kva_ahead_state_of(seq);
    const uint64_t rows = s->homes.hits[1] - s->counted;
    s->counted = s->homes.hits[1];
    kva_kv_count(kv, seq, &rows_rehearsed, rows);
    kva_kv_count(kv, seq, &layers_rehearsed, s->choices);
    kva_kv_count(kv, seq, &rows_left, s->candidates - rows);
    kva_kv_count(kv, seq, &kva_kv_counter_fetched_bytes,
                 rows * 2 * kv->shape.head_dim * sizeof(uint16_t));
    s->choices = s->candidates = 0;
}

static void step_begin(const struct kva_kv_part *self, struct kva_kv *kv)
{
    struct kva_ahead_cache *cache = kva_kv_part_cache(kv, self);
    kva_counts_add(&kv->counters.counts, &rehearsed_late, cache->late);
    cache->late = 0;
}

/* --- of the cache ---------------------------------------------------------------------------- */

static enum kva_status cache_init(const struct kva_kv_part *self, struct kva_kv *kv,
                                  struct kva_err *err)
{
    struct kva_ahead_cache *cache = kva_kv_part_cache(kv, self);
    const uint32_t count = kv->sequences_max;
    cache->buffers = calloc(count, sizeof(*cache->buffers));
    cache->fetches = calloc(count, sizeof(*cache->fetches));
    cache->rows = calloc(count, sizeof(*cache->rows));
    cache->turn = calloc(count, sizeof(*cache->turn));
    cache->numbers = calloc(count, sizeof(*cache->numbers));
    cache->uses = calloc(count, sizeof(*cache->uses));
    cache->weighed = calloc(count, sizeof(*cache->weighed));
    cache->chosen = calloc(count, sizeof(*cache->chosen));
    if (!cache->buffers || !cache->fetches || !cache->rows || !cache->turn || !cache->numbers ||
        !cache->uses || !cache->weighed || !cache->chosen)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the KV cache");
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; i < KVA_AHEAD_BUFFERS && !status; i++)
        status = kva_event_create(kv->device, &cache->ready[i], err);
    return status;
}

static void cache_finish(const struct kva_kv_part *self, struct kva_kv *kv)
{
    struct kva_ahead_cache *cache = kva_kv_part_cache(kv, self);
    for (uint32_t i = 0; i < KVA_AHEAD_BUFFERS; i++)
        kva_event_destroy(cache->ready[i]);
    free(cache->buffers);
    free(cache->fetches);
    free(cache->rows);
    free(cache->turn);
    free(cache->numbers);
    free(cache->uses);
    free(cache->weighed);
    free(cache->chosen);
}

const struct kva_kv_part kva_kv_part_ahead = {
    .counters = counters,
    .state_bytes = sizeof(struct kva_ahead_state),
    .cache_bytes = sizeof(struct kva_ahead_cache),
    .cache_init = cache_init,
    .cache_finish = cache_finish,
    .check = kva_kv_check_heads,
    .init = init,
    .finish = finish,
    .reset = reset,
    .footprint = footprint,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .count = count,
    .pass_begin = kva_ahead_pass_begin,
    .rehearsed = kva_ahead_rehearsed,
    .locate = kva_ahead_locate,
    .layer_begin = kva_ahead_layer_begin,
    .step_begin = step_begin,
};
