/* stage.c - pages that are offloaded, brought to the device two layers at a time, by parity of the
 * layer:
 *
 *     blocks[0]  layer 0, 2, 4, ...    the copy queue fills blocks[(l + 1) % 2]
 *     blocks[1]  layer 1, 3, 5, ...    while compute attends over blocks[l % 2]
 *
 * During a prefill the rows of a layer are written into blocks[l % 2] and sent to the host when a
 * page of it is full. Two parts: in every step (stage), and until the prompt is in (prompt_stage).
 */
#include "engine/kv/part.h"

#include <stdlib.h>

struct state {
    void **blocks[2];  /* [pages_max]: of page i, for even and odd layers */
    uint32_t count;    /* the first so many are there */
    uint32_t layer[2]; /* which layer those hold; KVA_NO_LAYER: none */
};

struct cache {
    struct kva_event *ready[2]; /* layer l of the staged pages is in, by parity of l */
    bool wanted;                /* a sequence of the pass has pages staged */
};

/* A policy has one of the two parts. */
static struct state *state_of(const struct kva_kv_seq *seq)
{
    struct state *state = kva_kv_part_state(seq, &kva_kv_part_prompt_stage);
    return state ? state : kva_kv_part_state(seq, &kva_kv_part_stage);
}

/* --- of the cache ---------------------------------------------------------------------------- */

static enum kva_status cache_init(const struct kva_kv_part *self, struct kva_kv *kv,
                                  struct kva_err *err)
{
    struct cache *cache = kva_kv_part_cache(kv, self);
    enum kva_status status = kva_event_create(kv->device, &cache->ready[0], err);
    return status ? status : kva_event_create(kv->device, &cache->ready[1], err);
}

static void cache_finish(const struct kva_kv_part *self, struct kva_kv *kv)
{
    struct cache *cache = kva_kv_part_cache(kv, self);
    kva_event_destroy(cache->ready[0]);
    kva_event_destroy(cache->ready[1]);
}

/* --- memory of a sequence -------------------------------------------------------------------- */

static enum kva_status init(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    struct state *state = state_of(seq);
    state->layer[0] = state->layer[1] = KVA_NO_LAYER;
    state->blocks[0] = calloc(seq->pages_max, sizeof(void *));
    state->blocks[1] = calloc(seq->pages_max, sizeof(void *));
    if (!state->blocks[0] || !state->blocks[1] ||
        !kva_tier_prepare(kv->tier, kv->shape.block_bytes))
        return kva_fail(err, KVA_ENOMEM, "out of memory for the page table of %u tokens",
                        seq->tokens_max);
    return KVA_OK;
}

static void finish(struct kva_kv *kv KVA_UNUSED, struct kva_kv_seq *seq)
{
    free(state_of(seq)->blocks[0]);
    free(state_of(seq)->blocks[1]);
}

static uint64_t footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec KVA_UNUSED,
                          const struct kva_kv_extent *extent)
{
    return kva_tier_footprint(kv->tier, kv->shape.block_bytes, 2ull * extent->offloaded);
}

static uint64_t prompt_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                 const struct kva_kv_extent *extent)
{
    return extent->prefilled ? 0 : footprint(kv, spec, extent);
}

/* Pages of an unfinished prefill that are not closed. A buffer beyond the pages that are offloaded
 * has been taken ahead and holds nothing. */
static void save_unfinished(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    const struct state *state = state_of(seq);
    uint32_t end = kva_min_u32(state->count, seq->offloaded);
    kva_kv_order_copies(kv);
    for (int parity = 0; parity < 2; parity++) {
        uint32_t layer = state->layer[parity];
        for (uint32_t i = seq->closed_count; layer != KVA_NO_LAYER && i < end; i++)
            kva_kv_offload(kv, seq->pages[i]->host + layer * kv->shape.block_bytes,
                           state->blocks[parity][i], kv->shape.block_bytes);
    }
}

static void cut(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count, bool save)
{
    struct state *state = state_of(seq);
    if (save)
        save_unfinished(kv, seq);
    while (state->count > count) {
        uint32_t index = --state->count;
        for (int parity = 0; parity < 2; parity++) {
            kva_kv_free_device(kv, state->blocks[parity][index], kv->shape.block_bytes);
            state->blocks[parity][index] = NULL;
            seq->device_bytes -= kv->shape.block_bytes;
        }
    }
    if (count == 0)
        state->layer[0] = state->layer[1] = KVA_NO_LAYER;
}

static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                  uint32_t end KVA_UNUSED)
{
    struct state *state = state_of(seq);
    uint32_t before = state->count;
    while (state->count < offloaded) {
        void *even = kva_kv_alloc_device(kv, kv->shape.block_bytes);
        void *odd = even ? kva_kv_alloc_device(kv, kv->shape.block_bytes) : NULL;
        if (!odd) {
            kva_kv_free_device(kv, even, kv->shape.block_bytes);
            cut(kv, seq, before, false);
            return false;
        }
        state->blocks[0][state->count] = even;
        state->blocks[1][state->count] = odd;
        state->count++;
        seq->device_bytes += 2 * kv->shape.block_bytes;
    }
    return true;
}

static bool prompt_alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded,
                         uint32_t end)
{
    return seq->prefilled || alloc(kv, seq, offloaded, end);
}

static uint32_t held(const struct kva_kv_seq *seq)
{
    return state_of(seq)->count;
}

static void prompt_end(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    cut(kv, seq, 0, false);
}

static const void *block(const struct kva_kv *kv KVA_UNUSED, const struct kva_kv_seq *seq,
                         uint32_t layer, uint32_t page)
{
    const struct state *state = state_of(seq);
    bool there = page < state->count && state->layer[layer % 2] == layer;
    return there ? state->blocks[layer % 2][page] : NULL;
}

/* --- in a pass ------------------------------------------------------------------------------- */

/* The sequence's state, if it has pages staged by this part. */
static struct state *staged(const struct kva_kv_part *self, const struct kva_kv_rows *rows)
{
    struct state *state = kva_kv_part_state(rows->seq, self);
    return state && state->count > 0 ? state : NULL;
}

/* Fetch what a layer had before the rows, unless it is there. */
static void stage_seq(struct kva_kv *kv, const struct kva_kv_rows *rows, struct state *state,
                      uint32_t layer)
{
    struct kva_kv_seq *seq = rows->seq;
    uint32_t parity = layer % 2;
    if (state->layer[parity] == layer)
        return;
    uint32_t pages = kva_min_u32(kva_kv_pages(rows->position_first), seq->offloaded);
    for (uint32_t i = 0; i < pages; i++)
        kva_kv_fetch(kv, seq, state->blocks[parity][i],
                     seq->pages[i]->host + layer * kv->shape.block_bytes, kv->shape.block_bytes);
    state->layer[parity] = layer;
}

/* One layer of all sequences with staged pages; nothing if the pass does not reach it. */
static void stage_layer(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                        uint32_t layer)
{
    struct cache *cache = kva_kv_part_cache(kv, self);
    if (layer >= pass->layer_first + pass->layer_count)
        return;
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct state *state = staged(self, &pass->rows[i]);
        if (state)
            stage_seq(kv, &pass->rows[i], state, layer);
    }
    kva_event_record(cache->ready[layer % 2], KVA_QUEUE_COPY);
}

static void pass_begin(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass)
{
    struct cache *cache = kva_kv_part_cache(kv, self);
    cache->wanted = false;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct state *state = staged(self, &pass->rows[i]);
        cache->wanted |= state != NULL;
        if (state && pass->restart)
            state->layer[0] = state->layer[1] = KVA_NO_LAYER;
    }
    if (!cache->wanted)
        return;
    stage_layer(self, kv, pass, pass->layer_first);
    stage_layer(self, kv, pass, pass->layer_first + 1);
}

static void locate(const struct kva_kv *kv KVA_UNUSED, struct kva_kv_rows *rows, uint32_t layer)
{
    const struct state *state = state_of(rows->seq);
    uint32_t end =
        kva_min_u32(kva_kv_pages(rows->position_first + rows->row_count), rows->seq->offloaded);
    if (state->count == 0 || end == 0)
        return;
    for (uint32_t i = 0; i < end; i++)
        *kva_kv_block_at(rows, i) = state->blocks[layer % 2][i];
    kva_kv_add_range(rows, (struct kva_kv_range){.kind = KVA_RANGE_BLOCKS, .page_end = end});
}

static void layer_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                        struct kva_kv_pass *pass KVA_UNUSED, uint32_t layer)
{
    struct cache *cache = kva_kv_part_cache(kv, self);
    if (cache->wanted)
        kva_event_wait(cache->ready[layer % 2], KVA_QUEUE_COMPUTE);
}

/* Pages that the pass's rows completed in this layer go to the host. */
static void send(struct kva_kv *kv, const struct kva_kv_rows *rows, const struct state *state,
                 uint32_t layer)
{
    struct kva_kv_seq *seq = rows->seq;
    uint32_t full_pages = (rows->position_first + rows->row_count) / KVA_PAGE_TOKENS;
    uint32_t end = kva_min_u32(full_pages, seq->offloaded);
    for (uint32_t i = rows->position_first / KVA_PAGE_TOKENS; i < end; i++)
        kva_kv_offload(kv, seq->pages[i]->host + layer * kv->shape.block_bytes,
                       state->blocks[layer % 2][i], kv->shape.block_bytes);
}

static void layer_end(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                      uint32_t layer)
{
    const struct cache *cache = kva_kv_part_cache(kv, self);
    if (!cache->wanted)
        return;
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct state *state = staged(self, &pass->rows[i]);
        if (state)
            send(kv, &pass->rows[i], state, layer);
    }
    stage_layer(self, kv, pass, layer + 2);
}

/* --- the parts ------------------------------------------------------------------------------- */

const struct kva_kv_part kva_kv_part_stage = {
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
    .block = block,
    .pass_begin = pass_begin,
    .locate = locate,
    .layer_begin = layer_begin,
    .layer_end = layer_end,
};

const struct kva_kv_part kva_kv_part_prompt_stage = {
    .state_bytes = sizeof(struct state),
    .cache_bytes = sizeof(struct cache),
    .cache_init = cache_init,
    .cache_finish = cache_finish,
    .init = init,
    .finish = finish,
    .footprint = prompt_footprint,
    .alloc = prompt_alloc,
    .held = held,
    .cut = cut,
    .prompt_end = prompt_end,
    .block = block,
    .pass_begin = pass_begin,
    .locate = locate,
    .layer_begin = layer_begin,
    .layer_end = layer_end,
};
