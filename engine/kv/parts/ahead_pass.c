/* ahead_pass.c - rows chosen a layer ahead, within a pass. */
#include "engine/kv/parts/ahead.h"
#include "engine/kv/parts/ahead_internal.h"
#include "engine/kv/parts/pool.h"
#include "engine/kv/parts/sketch.h"

#include <math.h>

bool kva_ahead_rehearses(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer)
{
    return seq->prefilled && seq->offloaded > 0 && layer >= kva_sketch_skip_layers(kv, &seq->spec);
}

static struct kva_row_cache *buffer_of(const struct kva_kv_seq *seq, uint32_t layer)
{
    return &kva_ahead_state_of(seq)->buffers[layer % KVA_AHEAD_BUFFERS];
}

void kva_ahead_pass_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                          struct kva_kv_pass *pass KVA_UNUSED)
{
    struct kva_ahead_cache *cache = kva_kv_part_cache(kv, self);
    cache->stamp++;
}

/* --- choosing -------------------------------------------------------------------------------- */

/* Whether one call can choose for both: not where columns are a sequence's own. */
static bool alike(const struct kva_kv_seq *first, const struct kva_kv_seq *second)
{
    const struct kva_kv_spec *a = &first->spec, *b = &second->spec;
    const bool both =
        first == second || (a->columns == KVA_COLUMNS_STATIC && b->columns == KVA_COLUMNS_STATIC);
    return both && a->alpha == b->alpha && a->partial == b->partial &&
           a->partial_bits == b->partial_bits && a->skew == b->skew &&
           a->skip_layers == b->skip_layers;
}

/* Scores at least max - alpha; an exponential that is 0 in fp32 takes what there is. */
static float share_of(const struct kva_kv_spec *spec)
{
    return spec->alpha < 80 ? expf(-(float)spec->alpha) : 0.0f;
}

/* Some sequences of one call, whose partial queries, scores and weights are in scratch memory at
 * once. */
struct turn {
    const struct kva_kv_rehearsal *rehearsal;
    const struct kva_kv_seq *seq;   /* any of them */
    const struct kva_kv_spec *spec; /* its own */
    struct kva_sketch_format format;
    uint32_t count;
};

static size_t queries_bytes(const struct kva_kv *kv, const struct turn *turn, uint32_t count)
{
    return kva_align_up((size_t)count * kv->heads * turn->format.columns * sizeof(float), 64);
}

static size_t scores_bytes(const struct kva_kv *kv, uint32_t pages)
{
    return kva_align_up(kva_sketch_scratch_bytes(kv->heads, pages), 64);
}

static size_t weights_bytes(const struct kva_kv *kv, uint32_t pages)
{
    return kva_align_up((size_t)kv->shape.kv_heads * pages * KVA_PAGE_TOKENS * sizeof(float), 64);
}

/* As many of the rows as there is memory for: of one sequence there always is. */
static uint32_t count_fitting(const struct kva_kv *kv, const struct turn *turn,
                              const struct kva_kv_rows *const *rows, uint32_t count)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t pages = kva_kv_stored(rows[i]->seq);
        bytes += scores_bytes(kv, pages) + weights_bytes(kv, pages);
        if (i > 0 && bytes + queries_bytes(kv, turn, i + 1) > turn->rehearsal->scratch_bytes)
            return i;
    }
    return count;
}

/* The first position that the row behind a sliding window sees, `end` at most. */
static uint32_t first_visible(const struct kva_kv_rows *rows, uint32_t window, uint32_t end)
{
    const uint32_t position = rows->position_first + rows->row_count - 1;
    return window > 0 && position >= window ? kva_min_u32(position - window + 1, end) : 0;
}

static void describe(const struct kva_kv *kv, struct kva_ahead_cache *cache,
                     const struct turn *turn, const struct kva_kv_rows *const *rows)
{
    const struct kva_kv_rehearsal *rehearsal = turn->rehearsal;
    unsigned char *queries = rehearsal->scratch;
    unsigned char *at = queries + queries_bytes(kv, turn, turn->count);
    for (uint32_t i = 0; i < turn->count; i++) {
        const struct kva_kv_seq *seq = rows[i]->seq;
        const uint32_t pages = kva_kv_stored(seq), end = pages * KVA_PAGE_TOKENS;
        const uint32_t first = first_visible(rows[i], rehearsal->window, end);
        struct kva_row_cache *buffer = buffer_of(seq, rehearsal->layer);
        buffer->k = kva_ahead_rows(seq);
        cache->numbers[i] = rows[i]->rehearsed;
        cache->weighed[i] = (struct kva_sketch_seq){
            .q =
                (const float *)(const void *)queries + (size_t)i * kv->heads * turn->format.columns,
            .blocks = kva_sketch_copies(seq),
            .scratch = (float *)(void *)at,
            .weights = (float *)(void *)(at + scores_bytes(kv, pages)),
            .page_count = pages,
            .first = first,
            .always = seq->spec.sinks,
        };
        cache->chosen[i] = (struct kva_choose_seq){
            .weights = cache->weighed[i].weights,
            .chosen = buffer->chosen,
            .stride = end,
            .first = first,
            .end = end,
            .k = buffer->k,
        };
        at += scores_bytes(kv, pages) + weights_bytes(kv, pages);
    }
}

/* Where host memory is limited: what was chosen is worth keeping. */
static void note_uses(struct kva_kv *kv, struct kva_ahead_cache *cache, const struct turn *turn,
                      const struct kva_kv_rows *const *rows)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < turn->count; i++) {
        struct kva_use_seq *use = &cache->uses[count];
        const uint32_t position = rows[i]->position_first + rows[i]->row_count - 1;
        if (!kva_kv_pool_use(kv, rows[i]->seq, turn->rehearsal->layer, position, use))
            continue;
        use->used = cache->chosen[i].chosen;
        use->count = cache->chosen[i].k;
        count++;
    }
    const struct kva_use_rows_args args = {cache->uses, count, kv->shape.kv_heads};
    if (count > 0)
        kva_device_ops(kv->device)->use_rows(kv->device, &args);
}

/* Partial queries, weights, and what is near the largest. */
static void run_turn(struct kva_kv *kv, struct kva_ahead_cache *cache, const struct turn *turn)
{
    const struct kva_ops *ops = kva_device_ops(kv->device);
    const struct kva_kv_rehearsal *rehearsal = turn->rehearsal;
    const struct kva_kv_shape *shape = &kv->shape;
    /* Of planes the queries have no more columns than are wanted. */
    const bool planes = turn->spec->skew == KVA_SKEW_PLANES;
    const uint32_t dim = planes ? turn->format.columns : shape->head_dim;
    ops->sketch_queries(kv->device,
                        &(struct kva_sketch_queries_args){
                            .q = planes ? rehearsal->q_planes : rehearsal->q,
                            .rows = cache->numbers,
                            .out = rehearsal->scratch,
                            .by = planes ? (struct kva_sketch_columns){0}
                                         : kva_sketch_columns_of(kv, turn->seq, rehearsal->layer),
                            .count = turn->count,
                            .q_stride = kv->heads * dim,
                            .heads = kv->heads,
                            .kv_heads = shape->kv_heads,
                            .head_dim = dim,
                            .columns = turn->format.columns,
                            .scale = rehearsal->scale,
                        });
    ops->sketch_weigh(kv->device,
                      &(struct kva_sketch_weigh_args){
                          .seqs = cache->weighed,
                          .block_offset_bytes = kva_sketch_offset(kv, turn->spec, rehearsal->layer),
                          .seq_count = turn->count,
                          .heads = kv->heads,
                          .kv_heads = shape->kv_heads,
                          .head_dim = shape->head_dim,
                          .kv_dtype = shape->dtype,
                          .format = turn->format,
                      });
    ops->choose(kv->device, &(struct kva_choose_args){.seqs = cache->chosen,
                                                      .seq_count = turn->count,
                                                      .kv_heads = shape->kv_heads,
                                                      .kind = KVA_CHOOSE_NEAR,
                                                      .share = share_of(turn->spec)});
}

/* The rows that are rehearsed with the same settings as the first of `from`, in turns. Returns the
 * number of the others, which stay in `from`. */
static uint32_t choose_alike(struct kva_kv *kv, struct kva_ahead_cache *cache,
                             const struct kva_kv_rehearsal *rehearsal, uint32_t count)
{
    const struct kva_kv_seq *seq = cache->rows[0]->seq;
    struct turn turn = {.rehearsal = rehearsal, .seq = seq, .spec = &seq->spec};
    uint32_t others = 0, together = 0;
    turn.format = kva_sketch_format_of(kv, turn.spec);
    for (uint32_t i = 0; i < count; i++) {
        if (alike(cache->rows[i]->seq, seq))
            cache->turn[together++] = cache->rows[i];
        else
            cache->rows[others++] = cache->rows[i];
    }
    for (uint32_t first = 0; first < together; first += turn.count) {
        turn.count = count_fitting(kv, &turn, cache->turn + first, together - first);
        describe(kv, cache, &turn, cache->turn + first);
        run_turn(kv, cache, &turn);
        note_uses(kv, cache, &turn, cache->turn + first);
    }
    return others;
}

/* --- fetching -------------------------------------------------------------------------------- */

/* Those that were chosen get slots, and come. */
static void fetch(struct kva_kv *kv, struct kva_ahead_cache *cache, uint32_t count, uint32_t layer)
{
    const struct kva_ops *ops = kva_device_ops(kv->device);
    ops->assign_slots(kv->device, &(struct kva_assign_slots_args){
                                      .caches = cache->buffers,
                                      .count = count,
                                      .kv_heads = kv->shape.kv_heads,
                                      .stamp = cache->stamp,
                                      .mode = KVA_ROWS_CHOSEN,
                                  });
    kva_kv_order_copies(kv);
    ops->fetch_rows(kv->device, &(struct kva_fetch_rows_args){
                                    .fetches = cache->fetches,
                                    .page_offset_bytes = layer * kv->shape.block_bytes,
                                    .count = count,
                                    .kv_heads = kv->shape.kv_heads,
                                    .head_dim = kv->shape.head_dim,
                                    .queue = KVA_QUEUE_COPY,
                                });
    kva_event_record(cache->ready[layer % KVA_AHEAD_BUFFERS], KVA_QUEUE_COPY);
}

/* Where the rows are in host memory; once others have taken places there, in pages of the
 * sequence's own. */
static void list_homes(struct kva_ahead_state *s, const struct kva_kv_seq *seq)
{
    struct kva_homes *homes = &s->homes;
    if (!kva_kv_pool_limits(&seq->spec)) {
        kva_homes_list(homes, seq);
        return;
    }
    if (kva_kv_pool_is_full(seq) && !s->pool_listed)
        homes->page_count = 0;
    s->pool_listed = kva_kv_pool_is_full(seq);
    for (; homes->page_count < kva_kv_stored(seq); homes->page_count++)
        homes->pages[homes->page_count] = kva_kv_pool_home(seq, homes->page_count);
}

void kva_ahead_rehearsed(const struct kva_kv_part *self, struct kva_kv *kv,
                         struct kva_kv_pass *pass, const struct kva_kv_rehearsal *rehearsal)
{
    struct kva_ahead_cache *cache = kva_kv_part_cache(kv, self);
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        struct kva_ahead_state *s = kva_ahead_state_of(rows->seq);
        if (rows->rehearsed == KVA_NO_ROW || !s)
            continue;
        list_homes(s, rows->seq);
        s->choices += kv->shape.kv_heads;
        s->candidates += (uint64_t)kv->shape.kv_heads * kva_kv_stored(rows->seq) * KVA_PAGE_TOKENS;
        const struct kva_row_cache *buffer = buffer_of(rows->seq, rehearsal->layer);
        cache->fetches[count] = (struct kva_rows_fetch){buffer, s->homes.pages, NULL};
        cache->buffers[count] = buffer;
        cache->rows[count++] = rows;
    }
    if (count == 0)
        return;
    for (uint32_t left = count; left > 0;)
        left = choose_alike(kv, cache, rehearsal, left);
    fetch(kv, cache, count, rehearsal->layer);
}

/* --- attending ------------------------------------------------------------------------------- */

void kva_ahead_locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    if (kva_ahead_rehearses(kv, rows->seq, layer))
        kva_kv_add_range(rows, (struct kva_kv_range){.kind = KVA_RANGE_ROWS,
                                                     .rows = buffer_of(rows->seq, layer)});
}

void kva_ahead_layer_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                           struct kva_kv_pass *pass, uint32_t layer)
{
    struct kva_ahead_cache *cache = kva_kv_part_cache(kv, self);
    const struct kva_event *ready = cache->ready[layer % KVA_AHEAD_BUFFERS];
    bool any = false;
    for (uint32_t i = 0; i < pass->rows_count && !any; i++)
        any = kva_ahead_state_of(pass->rows[i].seq) &&
              kva_ahead_rehearses(kv, pass->rows[i].seq, layer);
    if (!any)
        return;
    cache->late += !kva_event_done(ready);
    kva_event_wait(cache->ready[layer % KVA_AHEAD_BUFFERS], KVA_QUEUE_COMPUTE);
}
