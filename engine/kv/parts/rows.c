/* rows.c - 16-bit rows of offloaded pages: their memory, and what survives a suspension. */
#include "engine/kv/parts/rows.h"

#include "engine/kv/parts/lowbit.h"
#include "engine/kv/parts/rows_internal.h"
#include "engine/kv/saved.h"

#include <stdlib.h>

/* --- counters -------------------------------------------------------------------------------- */

static const struct kva_counter rows_missed = {
    .name = "fetch_rows_missed",
    .unit = "rows",
    .help = "Rows that the step wanted and that were not there.",
    .field = "prefetch_rows_missed",
};

static const struct kva_counter rows_hit = {
    .name = "fetch_rows_hit",
    .unit = "rows",
    .help = "Rows that a policy had fetched ahead and the step wanted.",
    .field = "prefetch_rows_hit",
    .share_field = "prefetch_hit_rate",
    .others = &rows_missed,
};

/* The host asks when a layer's operators are called whether its rows are there: no answer where
 * they run later. */
static const struct kva_counter fetch_late = {
    .name = "fetch_late",
    .unit = "steps",
    .help = "Steps that waited for a fetch; not counted on a GPU, whose queues wait by themselves.",
    .inline_only = true,
};

static const struct kva_counter *const counters[] = {&rows_hit, &rows_missed, &fetch_late, NULL};

/* --- layout ---------------------------------------------------------------------------------- */

/*  rows | tokens | used | order | missing | chosen | count | query
 *        `----------------- the state: saved and restored ------'
 *
 * Each begins at a multiple of 64 bytes; the offsets are from the state's beginning. */
struct layout {
    size_t tokens, used, order, missing, chosen, count, query;
    size_t rows_bytes;
    size_t state_bytes;
};

/* Slots per KV head. */
static uint32_t slots_of(const struct kva_kv_spec *spec, uint32_t layer)
{
    uint32_t k = kva_kv_spec_k(spec, layer);
    return spec->sinks + (spec->fetch == KVA_FETCH_ALL ? k : 2 * k);
}

bool kva_rows_corrects(const struct kva_kv_spec *spec)
{
    return spec->reselect_below > 0 &&
           (spec->predictor == KVA_PREDICT_PREV_QUERY || spec->predictor == KVA_PREDICT_AUTO);
}

static struct layout layout_of(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                               uint32_t layer)
{
    const struct kva_kv_shape *shape = &kv->shape;
    uint32_t k = kva_kv_spec_k(spec, layer);
    size_t slots = (size_t)slots_of(spec, layer) * shape->kv_heads;
    struct layout l = {.rows_bytes = kva_align_up(slots * 4 * shape->head_dim, 64)};
    l.tokens = kva_kv_lay_piece(&l.state_bytes, slots * sizeof(uint32_t));
    l.used = kva_kv_lay_piece(&l.state_bytes, slots * sizeof(uint32_t));
    l.order = kva_kv_lay_piece(&l.state_bytes, slots * sizeof(uint32_t));
    l.missing = kva_kv_lay_piece(&l.state_bytes, slots * sizeof(uint32_t));
    l.chosen = kva_kv_lay_piece(&l.state_bytes, (size_t)k * shape->kv_heads * sizeof(uint32_t));
    l.count = kva_kv_lay_piece(&l.state_bytes, slots > 0 ? shape->kv_heads * sizeof(uint32_t) : 0);
    l.query =
        kva_kv_lay_piece(&l.state_bytes, k > 0 && kva_rows_corrects(spec) ? kv->query_bytes : 0);
    return l;
}

void *kva_rows_query(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer)
{
    const struct kva_row_cache *cache = &kva_rows_state_of(seq)->caches[layer];
    return (unsigned char *)cache->tokens + layout_of(kv, &seq->spec, layer).query;
}

/* One layer: the item that is taken from the tier; 0: the layer needs none. */
static size_t layer_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    if (layer < kva_kv_lowbit_skip_layers(kv, spec))
        return 0;
    struct layout l = layout_of(kv, spec, layer);
    return l.rows_bytes + l.state_bytes;
}

/* Whether an earlier layer has items of the same size. */
static bool size_seen(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    size_t bytes = layer_bytes(kv, spec, layer);
    for (uint32_t i = 0; i < layer; i++) {
        if (layer_bytes(kv, spec, i) == bytes)
            return true;
    }
    return false;
}

/* All layers in an empty tier. */
static uint64_t all_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        size_t bytes = layer_bytes(kv, spec, layer);
        uint32_t count = 0;
        if (bytes == 0 || size_seen(kv, spec, layer))
            continue;
        for (uint32_t i = layer; i < kv->shape.layers; i++)
            count += layer_bytes(kv, spec, i) == bytes;
        sum += kva_tier_footprint(kv->tier, bytes, count);
    }
    return sum;
}

static bool prepare(struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    bool ready = true;
    for (uint32_t layer = 0; layer < kv->shape.layers && ready; layer++) {
        size_t bytes = layer_bytes(kv, spec, layer);
        ready = bytes == 0 || kva_tier_prepare(kv->tier, bytes);
    }
    return ready;
}

/* Where a layer's state is saved; no other part of the policies saves anything. */
static size_t saved_at(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    size_t at = 0;
    for (uint32_t i = 0; i < layer; i++)
        at += layout_of(kv, spec, i).state_bytes;
    return at;
}

/* A chosen token brings the one behind it. What that makes up for is the error of low-bit scores,
 * whose square falls with that of the step between levels: so does its share. */
static float successor_of(const struct kva_kv_spec *spec)
{
    if (spec->successor == 0)
        return 0.0f;
    const float steps = (float)((1u << spec->bits) - 1);
    return (float)spec->successor / 100.0f / (steps * steps);
}

/* --- memory ---------------------------------------------------------------------------------- */

static size_t states_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    return saved_at(kv, spec, kv->shape.layers);
}

/* Sequences of which nothing is ever offloaded have no rows. */
static uint64_t saved_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                            uint32_t prompt KVA_UNUSED)
{
    bool offloads = kva_kv_policy_of(spec)->offloaded(spec, spec->tokens_max) > 0;
    return offloads ? states_bytes(kv, spec) : 0;
}

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    struct kva_rows_state *state = kva_rows_state_of(seq);
    if (!prepare(kv, &seq->spec))
        return kva_fail(err, KVA_ENOMEM, "out of memory for one more kind of device memory");
    if (states_bytes(kv, &seq->spec) == 0)
        return KVA_OK;
    state->caches = calloc(kv->shape.layers, sizeof(*state->caches));
    if (!state->caches)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the fetched rows of %u layers",
                        kv->shape.layers);
    return kva_homes_init(&state->homes, kv, seq, err);
}

static void finish(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_rows_state *state = kva_rows_state_of(seq);
    if (!state->caches)
        return;
    /* Queued fetches and copies may still use this memory. */
    kva_device_sync(kv->device, KVA_QUEUE_COPY);
    kva_homes_finish(&state->homes, kv, seq);
    free(state->caches);
}

static void reset(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    kva_rows_state_of(seq)->started = false;
    kva_rows_state_of(seq)->homes.page_count = 0;
}

static void free_layers(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t end)
{
    const struct kva_rows_state *s = kva_rows_state_of(seq);
    for (uint32_t i = 0; i < end; i++) {
        size_t bytes = layer_bytes(kv, &seq->spec, i);
        if (bytes > 0)
            kva_kv_free_device(kv, s->caches[i].rows, bytes);
        seq->device_bytes -= bytes;
    }
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    struct kva_rows_state *s = kva_rows_state_of(seq);
    if (offloaded == 0 || s->allocated || !s->caches)
        return true;
    for (uint32_t i = 0; i < kv->shape.layers; i++) {
        if (layer_bytes(kv, &seq->spec, i) == 0)
            continue;
        struct layout l = layout_of(kv, &seq->spec, i);
        unsigned char *item = kva_kv_alloc_device(kv, l.rows_bytes + l.state_bytes);
        if (!item) {
            free_layers(kv, seq, i);
            return false;
        }
        unsigned char *state = item + l.rows_bytes;
        seq->device_bytes += l.rows_bytes + l.state_bytes;
        s->caches[i] = (struct kva_row_cache){
            .rows = item,
            .tokens = (void *)(state + l.tokens),
            .used = (void *)(state + l.used),
            .order = (void *)(state + l.order),
            .count = (void *)(state + l.count),
            .chosen = (void *)(state + l.chosen),
            .missing = (void *)(state + l.missing),
            .hits = s->homes.hits,
            .slots = slots_of(&seq->spec, i),
            .pinned = seq->spec.sinks,
            .k = kva_kv_spec_k(&seq->spec, i),
            .successor = successor_of(&seq->spec),
        };
    }
    s->allocated = true;
    return true;
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return kva_rows_state_of(seq)->allocated;
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save)
{
    struct kva_rows_state *s = kva_rows_state_of(seq);
    if (count > 0 || !s->allocated)
        return;
    if (save && s->started) {
        kva_kv_order_copies(kv);
        for (uint32_t i = 0; i < kv->shape.layers; i++) {
            if (layer_bytes(kv, &seq->spec, i) > 0)
                kva_kv_saved_put(kv, seq, saved_at(kv, &seq->spec, i), s->caches[i].tokens,
                                 layout_of(kv, &seq->spec, i).state_bytes);
        }
    }
    free_layers(kv, seq, kv->shape.layers);
    s->allocated = false;
    /* Fetches may still be on their way there. */
    kv->copies_pending = true;
}

/* --- content --------------------------------------------------------------------------------- */

void kva_rows_fetch_layer(struct kva_kv *kv, uint32_t count, uint32_t layer)
{
    kva_device_ops(kv->device)
        ->fetch_rows(kv->device, &(struct kva_fetch_rows_args){
                                     .fetches = kva_rows_cache_of(kv)->fetches,
                                     .page_offset_bytes = layer * kv->shape.block_bytes,
                                     .count = count,
                                     .kv_heads = kv->shape.kv_heads,
                                     .head_dim = kv->shape.head_dim,
                                     .queue = KVA_QUEUE_COPY,
                                 });
}

/* The saved state, with the rows of all its tokens missing, becomes the state on the device. */
static void upload(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_rows_state *s = kva_rows_state_of(seq);
    struct kva_rows_fetch *fetch = kva_rows_cache_of(kv)->fetches;
    kva_homes_list(&s->homes, seq);
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < kv->shape.layers; i++) {
        if (layer_bytes(kv, &seq->spec, i) == 0)
            continue;
        kva_kv_saved_get(kv, seq, saved_at(kv, &seq->spec, i), s->caches[i].tokens,
                         layout_of(kv, &seq->spec, i).state_bytes);
        fetch[0] = (struct kva_rows_fetch){&s->caches[i], s->homes.pages, NULL};
        kva_rows_fetch_layer(kv, 1, i);
    }
}

/* A layer's first state at byte `at` of what is saved: the sinks, which are missing. */
static void write_sinks(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer, size_t at)
{
    const struct layout l = layout_of(kv, &seq->spec, layer);
    const size_t lists[] = {at + l.tokens, at + l.order, at + l.missing};
    const uint32_t slots = slots_of(&seq->spec, layer), sinks = seq->spec.sinks;
    kva_kv_saved_fill(kv, seq, at, 0xff, l.state_bytes);
    kva_kv_saved_fill(kv, seq, at + l.used, 0, l.order - l.used);
    kva_kv_saved_fill(kv, seq, at + l.query, 0, l.state_bytes - l.query);
    for (size_t head = 0; head < kv->shape.kv_heads; head++) {
        *kva_kv_saved_word(kv, seq, at + l.count + head * sizeof(uint32_t)) = sinks;
        for (uint32_t i = 0; i < sinks; i++) {
            for (size_t list = 0; list < KVA_COUNT_OF(lists); list++)
                *kva_kv_saved_word(kv, seq, lists[list] + (head * slots + i) * sizeof(uint32_t)) =
                    i;
        }
    }
}

/* First content; once nobody who had the pages before can be copying there any more. */
static void start(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_rows_state *s = kva_rows_state_of(seq);
    if (!s->allocated || s->started)
        return;
    kva_device_sync(kv->device, KVA_QUEUE_COPY);
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        if (slots_of(&seq->spec, layer) > 0)
            write_sinks(kv, seq, layer, saved_at(kv, &seq->spec, layer));
    }
    s->started = true;
    upload(kv, seq);
}

/* In a layer's saved state the rows of all its tokens are missing. */
static void miss_all(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer)
{
    const struct layout l = layout_of(kv, &seq->spec, layer);
    const size_t at = saved_at(kv, &seq->spec, layer), slots = slots_of(&seq->spec, layer);
    for (size_t head = 0; head < kv->shape.kv_heads; head++) {
        const size_t first = at + head * slots * sizeof(uint32_t);
        for (uint32_t i = 0, n = 0; i < slots; i++) {
            const size_t slot = first + i * sizeof(uint32_t);
            *kva_kv_saved_word(kv, seq, slot + l.missing) = KVA_NO_TOKEN;
            if (*kva_kv_saved_word(kv, seq, slot + l.tokens) != KVA_NO_TOKEN)
                *kva_kv_saved_word(kv, seq, first + l.missing + n++ * sizeof(uint32_t)) = i;
        }
    }
}

/* The content at the last cut with save. */
static void restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    const struct kva_rows_state *s = kva_rows_state_of(seq);
    if (!s->allocated || !s->started)
        return;
    kva_device_sync(kv->device, KVA_QUEUE_COPY);
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++)
        miss_all(kv, seq, layer);
    upload(kv, seq);
}

/* --- of the cache ---------------------------------------------------------------------------- */

static size_t cosine_bytes(const struct kva_kv *kv)
{
    return kva_max_size(1, kv->sequences_max) * (sizeof(float) + sizeof(uint32_t));
}

static enum kva_status cache_init(const struct kva_kv_part *self, struct kva_kv *kv,
                                  struct kva_err *err)
{
    struct kva_rows_cache *cache = kva_kv_part_cache(kv, self);
    cache->caches = calloc(kv->sequences_max, sizeof(*cache->caches));
    cache->ready = calloc(kv->shape.layers, sizeof(*cache->ready));
    cache->fetches = calloc(kv->sequences_max, sizeof(*cache->fetches));
    cache->query_rows = calloc(kv->sequences_max, sizeof(*cache->query_rows));
    cache->query_before = calloc(kv->sequences_max, sizeof(*cache->query_before));
    cache->query_percents = calloc(kv->sequences_max, sizeof(*cache->query_percents));
    cache->gates = calloc(kv->sequences_max, sizeof(*cache->gates));
    if (!cache->caches || !cache->ready || !cache->fetches || !cache->query_rows ||
        !cache->query_before || !cache->query_percents || !cache->gates)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the KV cache");
    void *cosines;
    enum kva_status status =
        kva_device_alloc(kv->device, KVA_MEM_DEVICE, cosine_bytes(kv), &cosines, err);
    if (status)
        return status;
    cache->query_cosines = cosines;
    cache->query_gates = (uint32_t *)cosines + kv->sequences_max;
    for (uint32_t i = 0; i < kv->shape.layers && !status; i++)
        status = kva_event_create(kv->device, &cache->ready[i], err);
    return status;
}

static void cache_finish(const struct kva_kv_part *self, struct kva_kv *kv)
{
    struct kva_rows_cache *cache = kva_kv_part_cache(kv, self);
    for (uint32_t i = 0; cache->ready && i < kv->shape.layers; i++)
        kva_event_destroy(cache->ready[i]);
    if (cache->query_cosines)
        kva_device_free(kv->device, KVA_MEM_DEVICE, cache->query_cosines, cosine_bytes(kv));
    free(cache->ready);
    free(cache->caches);
    free(cache->fetches);
    free(cache->query_rows);
    free(cache->query_before);
    free(cache->query_percents);
    free(cache->gates);
}

/* --- the part -------------------------------------------------------------------------------- */

static enum kva_status check(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             struct kva_err *err)
{
    for (uint32_t i = 0; i < spec->k_range_count; i++) {
        if (spec->k_ranges[i].end > kv->shape.layers)
            return kva_fail_param(err, KVA_EINVAL, "topk",
                                  "topk names layer %u, the model's last one is %u",
                                  spec->k_ranges[i].end - 1, kv->shape.layers - 1);
    }
    return kva_kv_check_heads(kv, spec, err);
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    return extent->offloaded > 0 ? all_bytes(kv, spec) : 0;
}

static void count(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_rows_state *s = kva_rows_state_of(seq);
    if (!s->homes.hits)
        return;
    uint64_t hits = s->homes.hits[0] - s->counted[0], misses = s->homes.hits[1] - s->counted[1];
    s->counted[0] = s->homes.hits[0];
    s->counted[1] = s->homes.hits[1];
    kva_kv_count(kv, seq, &rows_hit, hits);
    kva_kv_count(kv, seq, &rows_missed, misses);
    kva_kv_count(kv, seq, &kva_kv_counter_fetched_bytes,
                 misses * 2 * kv->shape.head_dim * sizeof(uint16_t));
}

static void step_begin(const struct kva_kv_part *self, struct kva_kv *kv)
{
    struct kva_rows_cache *cache = kva_kv_part_cache(kv, self);
    kva_counts_add(&kv->counters.counts, &fetch_late, cache->late);
    cache->late = false;
}

bool kva_kv_rows_started(const struct kva_kv_seq *seq)
{
    const struct kva_rows_state *s = kva_rows_state_of(seq);
    return s && s->started;
}

/* In place of low-bit ones, if the layer has such a range. */
static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_seq *seq = rows->seq;
    const struct kva_rows_state *s = kva_rows_state_of(seq);
    if (!seq->prefilled || seq->prepared == 0 || !s->caches || s->caches[layer].slots == 0 ||
        layer < kva_kv_lowbit_skip_layers(kv, &seq->spec))
        return;
    if (rows->candidates.page_end > 0)
        rows->candidates.rows = &s->caches[layer];
    if (seq->offloaded == 0)
        return;
    struct kva_kv_range *last = rows->range_count ? &rows->ranges[rows->range_count - 1] : NULL;
    if (last && last->kind == KVA_RANGE_LOWBIT)
        last->rows = &s->caches[layer];
    else
        kva_kv_add_range(rows,
                         (struct kva_kv_range){.kind = KVA_RANGE_ROWS, .rows = &s->caches[layer]});
}

const struct kva_kv_part kva_kv_part_rows = {
    .counters = counters,
    .state_bytes = sizeof(struct kva_rows_state),
    .cache_bytes = sizeof(struct kva_rows_cache),
    .cache_init = cache_init,
    .cache_finish = cache_finish,
    .check = check,
    .init = init,
    .finish = finish,
    .reset = reset,
    .footprint = footprint,
    .saved_bytes = saved_bytes,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .restore = restore,
    .prompt_end = start,
    .prepared = start,
    .count = count,
    .pass_begin = kva_rows_pass_begin,
    .locate = locate,
    .layer_begin = kva_rows_layer_begin,
    .selected = kva_rows_selected,
    .fused = kva_rows_fused,
    .layer_end = kva_rows_layer_end,
    .step_begin = step_begin,
};
