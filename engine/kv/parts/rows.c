/* rows.c - 16-bit rows of offloaded pages. */
#include "engine/kv/parts/rows.h"

#include "engine/kv/part.h"

#include "engine/kv/parts/lowbit.h"

#include <stdlib.h>
#include <string.h>

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

static size_t piece(size_t *at, size_t bytes)
{
    size_t offset = *at;
    *at += kva_align_up(bytes, 64);
    return offset;
}

/* Slots per KV head. */
static uint32_t slots_of(const struct kva_kv_spec *spec, uint32_t layer)
{
    uint32_t k = kva_kv_spec_k(spec, layer);
    return spec->sinks + (spec->fetch == KVA_FETCH_ALL ? k : 2 * k);
}

static bool corrects(const struct kva_kv_spec *spec)
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
    l.tokens = piece(&l.state_bytes, slots * sizeof(uint32_t));
    l.used = piece(&l.state_bytes, slots * sizeof(uint32_t));
    l.order = piece(&l.state_bytes, slots * sizeof(uint32_t));
    l.missing = piece(&l.state_bytes, slots * sizeof(uint32_t));
    l.chosen = piece(&l.state_bytes, (size_t)k * shape->kv_heads * sizeof(uint32_t));
    l.count = piece(&l.state_bytes, slots > 0 ? shape->kv_heads * sizeof(uint32_t) : 0);
    l.query = piece(&l.state_bytes, k > 0 && corrects(spec) ? kv->query_bytes : 0);
    return l;
}

size_t kva_kv_rowcache_layer_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                   uint32_t layer)
{
    if (layer < kva_kv_lowbit_skip_layers(kv, spec))
        return 0;
    struct layout l = layout_of(kv, spec, layer);
    return l.rows_bytes + l.state_bytes;
}

/* Whether an earlier layer has items of the same size. */
static bool size_seen(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    size_t bytes = kva_kv_rowcache_layer_bytes(kv, spec, layer);
    for (uint32_t i = 0; i < layer; i++) {
        if (kva_kv_rowcache_layer_bytes(kv, spec, i) == bytes)
            return true;
    }
    return false;
}

uint64_t kva_kv_rowcache_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        size_t bytes = kva_kv_rowcache_layer_bytes(kv, spec, layer);
        uint32_t count = 0;
        if (bytes == 0 || size_seen(kv, spec, layer))
            continue;
        for (uint32_t i = layer; i < kv->shape.layers; i++)
            count += kva_kv_rowcache_layer_bytes(kv, spec, i) == bytes;
        sum += kva_tier_footprint(kv->tier, bytes, count);
    }
    return sum;
}

bool kva_kv_rowcache_prepare(struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    bool ready = true;
    for (uint32_t layer = 0; layer < kv->shape.layers && ready; layer++) {
        size_t bytes = kva_kv_rowcache_layer_bytes(kv, spec, layer);
        ready = bytes == 0 || kva_tier_prepare(kv->tier, bytes);
    }
    return ready;
}

/* Where a layer's state is saved. */
static size_t saved_at(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t layer)
{
    size_t at = 0;
    for (uint32_t i = 0; i < layer; i++)
        at += layout_of(kv, spec, i).state_bytes;
    return at;
}

/* --- memory ---------------------------------------------------------------------------------- */

static size_t saved_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    return saved_at(kv, &seq->spec, kv->shape.layers);
}

enum kva_status kva_kv_rowcache_init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    if (saved_bytes(kv, seq) == 0)
        return KVA_OK;
    seq->hots = calloc(kv->shape.layers, sizeof(*seq->hots));
    if (!seq->hots)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the fetched rows of %u layers",
                        kv->shape.layers);
    void *data;
    enum kva_status status =
        kva_device_alloc(kv->device, KVA_MEM_HOST, saved_bytes(kv, seq), &data, err);
    if (status)
        return status;
    seq->hot_saved = data;
    status = kva_device_alloc(kv->device, KVA_MEM_HOST, 2 * sizeof(uint64_t), &data, err);
    if (status)
        return status;
    seq->hot_hits = data;
    status =
        kva_device_alloc(kv->device, KVA_MEM_HOST, seq->pages_max * sizeof(void *), &data, err);
    if (status)
        return status;
    seq->host_blocks = data;
    return KVA_OK;
}

void kva_kv_rowcache_finish(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->hots)
        return;
    /* Queued fetches and copies may still use this memory. */
    kva_device_sync(kv->device, KVA_QUEUE_COPY);
    kva_device_free(kv->device, KVA_MEM_HOST, seq->hot_saved, saved_bytes(kv, seq));
    kva_device_free(kv->device, KVA_MEM_HOST, seq->hot_hits, 2 * sizeof(uint64_t));
    kva_device_free(kv->device, KVA_MEM_HOST, (void *)seq->host_blocks,
                    seq->pages_max * sizeof(void *));
    free(seq->hots);
}

static void give_layers(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t end)
{
    for (uint32_t i = 0; i < end; i++) {
        size_t bytes = kva_kv_rowcache_layer_bytes(kv, &seq->spec, i);
        if (bytes > 0)
            kva_kv_free_device(kv, seq->hots[i].rows, bytes);
        seq->device_bytes -= bytes;
    }
}

bool kva_kv_rowcache_alloc(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (seq->hot_allocated || !seq->hots)
        return true;
    for (uint32_t i = 0; i < kv->shape.layers; i++) {
        if (kva_kv_rowcache_layer_bytes(kv, &seq->spec, i) == 0)
            continue;
        struct layout l = layout_of(kv, &seq->spec, i);
        unsigned char *item = kva_kv_alloc_device(kv, l.rows_bytes + l.state_bytes);
        if (!item) {
            give_layers(kv, seq, i);
            return false;
        }
        unsigned char *state = item + l.rows_bytes;
        seq->device_bytes += l.rows_bytes + l.state_bytes;
        seq->hots[i] = (struct kva_row_cache){
            .rows = item,
            .tokens = (void *)(state + l.tokens),
            .used = (void *)(state + l.used),
            .order = (void *)(state + l.order),
            .count = (void *)(state + l.count),
            .chosen = (void *)(state + l.chosen),
            .missing = (void *)(state + l.missing),
            .hits = seq->hot_hits,
            .slots = slots_of(&seq->spec, i),
            .pinned = seq->spec.sinks,
            .k = kva_kv_spec_k(&seq->spec, i),
        };
    }
    seq->hot_allocated = true;
    return true;
}

void kva_kv_rowcache_free(struct kva_kv *kv, struct kva_kv_seq *seq, bool save)
{
    if (!seq->hot_allocated)
        return;
    if (save && seq->hot_started) {
        kva_kv_order_copies(kv);
        for (uint32_t i = 0; i < kv->shape.layers; i++) {
            if (kva_kv_rowcache_layer_bytes(kv, &seq->spec, i) > 0)
                kva_kv_offload(kv, seq->hot_saved + saved_at(kv, &seq->spec, i),
                               seq->hots[i].tokens, layout_of(kv, &seq->spec, i).state_bytes);
        }
    }
    give_layers(kv, seq, kv->shape.layers);
    seq->hot_allocated = false;
    /* Fetches may still be on their way there. */
    kv->copies_pending = true;
}

/* --- content --------------------------------------------------------------------------------- */

static void list_host_blocks(struct kva_kv_seq *seq)
{
    for (; seq->host_block_count < seq->offloaded; seq->host_block_count++)
        seq->host_blocks[seq->host_block_count] = seq->pages[seq->host_block_count]->host;
}

/* The first `count` of fetch_list. */
static void fetch_layer(struct kva_kv *kv, uint32_t count, uint32_t layer)
{
    kva_device_ops(kv->device)
        ->fetch_rows(kv->device, &(struct kva_fetch_rows_args){
                                     .fetches = kv->fetch_list,
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
    list_host_blocks(seq);
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < kv->shape.layers; i++) {
        if (kva_kv_rowcache_layer_bytes(kv, &seq->spec, i) == 0)
            continue;
        kva_kv_fetch(kv, seq, seq->hots[i].tokens, seq->hot_saved + saved_at(kv, &seq->spec, i),
                     layout_of(kv, &seq->spec, i).state_bytes);
        kv->fetch_list[0] = (struct kva_rows_fetch){&seq->hots[i], seq->host_blocks};
        fetch_layer(kv, 1, i);
    }
}

void kva_kv_rowcache_start(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->hot_allocated || seq->hot_started)
        return;
    uint32_t sinks = seq->spec.sinks;
    memset(seq->hot_saved, 0xff, saved_bytes(kv, seq));
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        struct layout l = layout_of(kv, &seq->spec, layer);
        uint32_t slots = slots_of(&seq->spec, layer);
        unsigned char *state = seq->hot_saved + saved_at(kv, &seq->spec, layer);
        if (slots == 0)
            continue;
        memset(state + l.used, 0, l.order - l.used);
        memset(state + l.query, 0, l.state_bytes - l.query);
        for (uint32_t head = 0; head < kv->shape.kv_heads; head++) {
            for (uint32_t i = 0; i < sinks; i++) {
                size_t at = (size_t)head * slots + i;
                ((uint32_t *)(void *)(state + l.tokens))[at] = i;
                ((uint32_t *)(void *)(state + l.order))[at] = i;
                ((uint32_t *)(void *)(state + l.missing))[at] = i;
            }
            ((uint32_t *)(void *)(state + l.count))[head] = sinks;
        }
    }
    seq->hot_started = true;
    upload(kv, seq);
}

void kva_kv_rowcache_restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->hot_allocated || !seq->hot_started)
        return;
    kva_device_sync(kv->device, KVA_QUEUE_COPY);
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        struct layout l = layout_of(kv, &seq->spec, layer);
        size_t slots = slots_of(&seq->spec, layer);
        unsigned char *state = seq->hot_saved + saved_at(kv, &seq->spec, layer);
        const uint32_t *tokens = (const void *)(state + l.tokens);
        uint32_t *missing = (void *)(state + l.missing);
        for (size_t head = 0; head < kv->shape.kv_heads; head++) {
            for (uint32_t i = 0, n = 0; i < slots; i++) {
                missing[head * slots + i] = KVA_NO_TOKEN;
                if (tokens[head * slots + i] != KVA_NO_TOKEN)
                    missing[head * slots + n++] = i;
            }
        }
    }
    upload(kv, seq);
}

/* --- within a pass --------------------------------------------------------------------------- */

static bool selected(const struct kva_kv_rows *rows, bool now)
{
    return now ? kva_kv_selects_now(rows) : kva_kv_selects_next(rows);
}

static enum kva_rows_mode mode_of(enum kva_kv_fetch fetch)
{
    return fetch == KVA_FETCH_RESIDENT ? KVA_ROWS_RESIDENT : KVA_ROWS_CHOSEN;
}

bool kva_kv_rowcache_chosen(const struct kva_kv_pass *pass, bool now)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (selected(&pass->rows[i], now))
            return true;
    }
    return false;
}

static void resolve(struct kva_kv *kv, const struct kva_kv_pass *pass, uint32_t layer, bool now,
                    enum kva_kv_fetch fetch)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (selected(rows, now) && rows->seq->spec.fetch == fetch)
            kv->hot_list[count++] = &rows->seq->hots[layer];
    }
    if (count == 0)
        return;
    kva_device_ops(kv->device)
        ->assign_slots(kv->device, &(struct kva_assign_slots_args){
                                       .caches = kv->hot_list,
                                       .count = count,
                                       .kv_heads = kv->shape.kv_heads,
                                       .stamp = kv->resolve_stamp,
                                       .mode = mode_of(fetch),
                                       .keep = fetch != KVA_FETCH_ALL,
                                   });
}

void kva_kv_rowcache_resolve(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, bool now)
{
    for (uint32_t fetch = 0; fetch < KVA_FETCH_COUNT; fetch++)
        resolve(kv, pass, layer, now, (enum kva_kv_fetch)fetch);
    kva_kv_order_copies(kv);
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_seq *seq = pass->rows[i].seq;
        if (!selected(&pass->rows[i], now))
            continue;
        list_host_blocks(seq);
        kv->fetch_list[count++] = (struct kva_rows_fetch){&seq->hots[layer], seq->host_blocks};
    }
    fetch_layer(kv, count, layer);
    kva_event_record(kv->hot_events[layer], KVA_QUEUE_COPY);
}

struct kva_fused_fetch kva_kv_rowcache_now(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                           uint32_t layer)
{
    list_host_blocks(seq);
    return (struct kva_fused_fetch){
        .pages = seq->host_blocks,
        .page_offset_bytes = layer * kv->shape.block_bytes,
        .stamp = kv->resolve_stamp,
        .mode = mode_of(seq->spec.fetch),
        .keep = seq->spec.fetch != KVA_FETCH_ALL,
    };
}

/* Whether the rows' query is held against the one that selected for this layer. */
static bool is_corrected(const struct kva_kv_rows *rows)
{
    return kva_kv_selects_next(rows) && corrects(&rows->seq->spec);
}

void kva_kv_rowcache_reselect(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                              const void *q)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (!is_corrected(rows))
            continue;
        kv->drift_rows[count] = rows->row_first + rows->select_row;
        kv->drift_before[count++] = (unsigned char *)rows->seq->hots[layer].tokens +
                                    layout_of(kv, &rows->seq->spec, layer).query;
    }
    if (count == 0)
        return;
    kva_device_ops(kv->device)
        ->query_cosine(kv->device, &(struct kva_query_cosine_args){
                                       .q = q,
                                       .rows = kv->drift_rows,
                                       .before = kv->drift_before,
                                       .cosine = kv->drift_cosine,
                                       .count = count,
                                       .q_stride = kv->heads * kv->shape.head_dim,
                                       .heads = kv->heads,
                                       .head_dim = kv->shape.head_dim,
                                   });
    kva_device_sync(kv->device, KVA_QUEUE_COMPUTE);
    count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        if (is_corrected(rows))
            rows->select_now =
                kv->drift_cosine[count++] * 100 < (float)rows->seq->spec.reselect_below;
    }
}

void kva_kv_rowcache_count(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->hot_hits)
        return;
    struct kva_kv_policy_counters *own = &seq->counters, *all = &kv->counters.policies;
    uint64_t hits = seq->hot_hits[0] - own->fetch_rows_hit;
    uint64_t misses = seq->hot_hits[1] - own->fetch_rows_missed;
    uint64_t bytes = misses * 2 * kv->shape.head_dim * sizeof(uint16_t);
    own->fetch_rows_hit += hits;
    own->fetch_rows_missed += misses;
    own->fetched_bytes += bytes;
    all->fetch_rows_hit += hits;
    all->fetch_rows_missed += misses;
    all->fetched_bytes += bytes;
}

void kva_kv_rowcache_await(struct kva_kv *kv, uint32_t layer)
{
    if (!kva_event_done(kv->hot_events[layer]))
        kv->late = true;
    kva_event_wait(kv->hot_events[layer], KVA_QUEUE_COMPUTE);
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
    return KVA_OK;
}

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    if (!kva_kv_rowcache_prepare(kv, &seq->spec))
        return kva_fail(err, KVA_ENOMEM, "out of memory for one more kind of device memory");
    return kva_kv_rowcache_init(kv, seq, err);
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                          const struct kva_kv_extent *extent)
{
    return extent->offloaded > 0 ? kva_kv_rowcache_footprint(kv, spec) : 0;
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    return offloaded == 0 || kva_kv_rowcache_alloc(kv, seq);
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return seq->hot_allocated;
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save)
{
    if (count == 0)
        kva_kv_rowcache_free(kv, seq, save);
}

/* In place of low-bit ones, if the layer has such a range. */
static void locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    struct kva_kv_seq *seq = rows->seq;
    if (!seq->prefilled || seq->offloaded == 0 || !seq->hots || seq->hots[layer].slots == 0 ||
        layer < kva_kv_lowbit_skip_layers(kv, &seq->spec))
        return;
    struct kva_kv_range *last = rows->range_count ? &rows->ranges[rows->range_count - 1] : NULL;
    if (last && last->kind == KVA_RANGE_LOWBIT)
        last->rows = &seq->hots[layer];
    else
        kva_kv_add_range(rows,
                         (struct kva_kv_range){.kind = KVA_RANGE_ROWS, .rows = &seq->hots[layer]});
}

const struct kva_kv_part kva_kv_part_rows = {
    .check = check,
    .init = init,
    .finish = kva_kv_rowcache_finish,
    .footprint = footprint,
    .alloc = alloc,
    .held = held,
    .cut = cut,
    .restore = kva_kv_rowcache_restore,
    .prompt_end = kva_kv_rowcache_start,
    .left = kva_kv_rowcache_start,
    .locate = locate,
};
