#include "engine/kv/hot.h"

#include "engine/kv/lowbit.h"

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

/* Rows that a selection consists of. */
static uint32_t rows_chosen(const struct kva_kv_spec *spec, uint32_t layer)
{
    return kva_kv_policy_get(spec->policy)->fetched ? kva_kv_spec_k(spec, layer) : 0;
}

/* Slots per KV head. */
static uint32_t slots_of(const struct kva_kv_spec *spec, uint32_t layer)
{
    uint32_t k = rows_chosen(spec, layer);
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
    uint32_t k = rows_chosen(spec, layer);
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

size_t kva_kv_hot_layer_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
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
    size_t bytes = kva_kv_hot_layer_bytes(kv, spec, layer);
    for (uint32_t i = 0; i < layer; i++) {
        if (kva_kv_hot_layer_bytes(kv, spec, i) == bytes)
            return true;
    }
    return false;
}

uint64_t kva_kv_hot_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        size_t bytes = kva_kv_hot_layer_bytes(kv, spec, layer);
        uint32_t count = 0;
        if (bytes == 0 || size_seen(kv, spec, layer))
            continue;
        for (uint32_t i = layer; i < kv->shape.layers; i++)
            count += kva_kv_hot_layer_bytes(kv, spec, i) == bytes;
        sum += kva_tier_footprint(kv->tier, bytes, count);
    }
    return sum;
}

bool kva_kv_hot_prepare(struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    bool ready = true;
    for (uint32_t layer = 0; layer < kv->shape.layers && ready; layer++) {
        size_t bytes = kva_kv_hot_layer_bytes(kv, spec, layer);
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

enum kva_status kva_kv_hot_init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
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

void kva_kv_hot_finish(struct kva_kv *kv, struct kva_kv_seq *seq)
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
        size_t bytes = kva_kv_hot_layer_bytes(kv, &seq->spec, i);
        if (bytes > 0)
            kva_kv_give_device(kv, seq->hots[i].rows, bytes);
        seq->device_bytes -= bytes;
    }
}

bool kva_kv_hot_take(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (seq->hot_taken || !seq->hots)
        return true;
    for (uint32_t i = 0; i < kv->shape.layers; i++) {
        if (kva_kv_hot_layer_bytes(kv, &seq->spec, i) == 0)
            continue;
        struct layout l = layout_of(kv, &seq->spec, i);
        unsigned char *item = kva_kv_take_device(kv, l.rows_bytes + l.state_bytes);
        if (!item) {
            give_layers(kv, seq, i);
            return false;
        }
        unsigned char *state = item + l.rows_bytes;
        seq->device_bytes += l.rows_bytes + l.state_bytes;
        seq->hots[i] = (struct kva_hot){
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
            .k = rows_chosen(&seq->spec, i),
        };
    }
    seq->hot_taken = true;
    return true;
}

void kva_kv_hot_give(struct kva_kv *kv, struct kva_kv_seq *seq, bool save)
{
    if (!seq->hot_taken)
        return;
    if (save && seq->hot_started) {
        kva_kv_order_copies(kv);
        for (uint32_t i = 0; i < kv->shape.layers; i++) {
            if (kva_kv_hot_layer_bytes(kv, &seq->spec, i) > 0)
                kva_kv_offload(kv, seq->hot_saved + saved_at(kv, &seq->spec, i),
                               seq->hots[i].tokens, layout_of(kv, &seq->spec, i).state_bytes);
        }
    }
    give_layers(kv, seq, kv->shape.layers);
    seq->hot_taken = false;
    /* Fetches may still be on their way there. */
    kv->copies_pending = true;
}

/* --- content --------------------------------------------------------------------------------- */

static void list_homes(struct kva_kv_seq *seq)
{
    for (; seq->host_block_count < seq->away; seq->host_block_count++)
        seq->host_blocks[seq->host_block_count] = seq->pages[seq->host_block_count]->host;
}

/* The first `count` of fetch_list. */
static void fetch_layer(struct kva_kv *kv, uint32_t count, uint32_t layer)
{
    kva_device_fetch_hot(kv->device, KVA_QUEUE_COPY, kv->fetch_list, count,
                         layer * kv->shape.block_bytes, kv->shape.kv_heads, kv->shape.head_dim);
}

/* The saved state, with the rows of all its tokens missing, becomes the state on the device. */
static void upload(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    list_homes(seq);
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < kv->shape.layers; i++) {
        if (kva_kv_hot_layer_bytes(kv, &seq->spec, i) == 0)
            continue;
        kva_kv_fetch(kv, seq, seq->hots[i].tokens, seq->hot_saved + saved_at(kv, &seq->spec, i),
                     layout_of(kv, &seq->spec, i).state_bytes);
        kv->fetch_list[0] = (struct kva_hot_fetch){&seq->hots[i], seq->host_blocks};
        fetch_layer(kv, 1, i);
    }
}

void kva_kv_hot_start(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->hot_taken || seq->hot_started)
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

void kva_kv_hot_restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->hot_taken || !seq->hot_started)
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

static bool chose(const struct kva_kv_rows *rows, bool now)
{
    return rows->hot && rows->hot->k > 0 && rows->select_row < rows->row_count &&
           (now ? rows->choose_now && !rows->at_once : rows->choose_next);
}

static enum kva_hot_mode mode_of(enum kva_kv_fetch fetch)
{
    return fetch == KVA_FETCH_RESIDENT ? KVA_HOT_RESIDENT : KVA_HOT_PAPER;
}

bool kva_kv_hot_chosen(const struct kva_kv_pass *pass, bool now)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (chose(&pass->rows[i], now))
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
        if (chose(rows, now) && rows->seq->spec.fetch == fetch)
            kv->hot_list[count++] = &rows->seq->hots[layer];
    }
    if (count == 0)
        return;
    kva_device_ops(kv->device)
        ->resolve(kv->device, &(struct kva_resolve_args){
                                  .hots = kv->hot_list,
                                  .count = count,
                                  .kv_heads = kv->shape.kv_heads,
                                  .stamp = kv->resolve_stamp,
                                  .mode = mode_of(fetch),
                                  .keep = fetch != KVA_FETCH_ALL,
                              });
}

void kva_kv_hot_resolve(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, bool now)
{
    for (uint32_t fetch = 0; fetch < KVA_FETCH_COUNT; fetch++)
        resolve(kv, pass, layer, now, (enum kva_kv_fetch)fetch);
    kva_kv_order_copies(kv);
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_seq *seq = pass->rows[i].seq;
        if (!chose(&pass->rows[i], now))
            continue;
        list_homes(seq);
        kv->fetch_list[count++] = (struct kva_hot_fetch){&seq->hots[layer], seq->host_blocks};
    }
    fetch_layer(kv, count, layer);
    kva_event_record(kv->hot_events[layer], KVA_QUEUE_COPY);
}

struct kva_hot_now kva_kv_hot_now(const struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t layer)
{
    list_homes(seq);
    return (struct kva_hot_now){
        .pages = seq->host_blocks,
        .page_offset_bytes = layer * kv->shape.block_bytes,
        .stamp = kv->resolve_stamp,
        .mode = mode_of(seq->spec.fetch),
        .keep = seq->spec.fetch != KVA_FETCH_ALL,
    };
}

/* Whether the rows' query is held against the one that chose for this layer. */
static bool is_corrected(const struct kva_kv_rows *rows)
{
    return rows->hot && rows->hot->k > 0 && rows->choose_next && corrects(&rows->seq->spec);
}

void kva_kv_hot_correct(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q)
{
    uint32_t count = 0, row = 0;
    for (uint32_t i = 0; i < pass->rows_count; row += pass->rows[i++].row_count) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (!is_corrected(rows))
            continue;
        kv->drift_rows[count] = row + rows->select_row;
        kv->drift_before[count++] =
            (unsigned char *)rows->hot->tokens + layout_of(kv, &rows->seq->spec, layer).query;
    }
    if (count == 0)
        return;
    kva_device_ops(kv->device)
        ->drift(kv->device, &(struct kva_drift_args){
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
            rows->choose_now =
                kv->drift_cosine[count++] * 100 < (float)rows->seq->spec.reselect_below;
    }
}

void kva_kv_hot_count(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->hot_hits)
        return;
    uint64_t hits = seq->hot_hits[0] - seq->hot_counted[0];
    uint64_t misses = seq->hot_hits[1] - seq->hot_counted[1];
    uint64_t bytes = misses * 2 * kv->shape.head_dim * sizeof(uint16_t);
    seq->hot_counted[0] += hits;
    seq->hot_counted[1] += misses;
    seq->fetched_bytes += bytes;
    kv->counters.hot_hits += hits;
    kv->counters.hot_misses += misses;
    kv->counters.fetched_bytes += bytes;
}

void kva_kv_hot_await(struct kva_kv *kv, uint32_t layer)
{
    if (!kva_event_done(kv->hot_events[layer]))
        kv->late = true;
    kva_event_wait(kv->hot_events[layer], KVA_QUEUE_COMPUTE);
}
