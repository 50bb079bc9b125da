/* rows_pass.c - 16-bit rows within a pass: what was selected is assigned to slots and fetched; for
 * the next step, beside the rest of the layer. */
#include "engine/kv/parts/rows.h"
#include "engine/kv/parts/rows_internal.h"

static bool selects(const struct kva_kv_rows *rows, bool now)
{
    bool does = now ? kva_kv_selects_now(rows) : kva_kv_selects_next(rows);
    return does && kva_rows_state_of(rows->seq);
}

static bool any_selects(const struct kva_kv_pass *pass, bool now)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (selects(&pass->rows[i], now))
            return true;
    }
    return false;
}

static enum kva_rows_mode mode_of(enum kva_kv_fetch fetch)
{
    return fetch == KVA_FETCH_RESIDENT ? KVA_ROWS_RESIDENT : KVA_ROWS_CHOSEN;
}

/* Slots for what was selected, of the sequences with this setting. */
static void assign(struct kva_kv *kv, const struct kva_kv_pass *pass, uint32_t layer, bool now,
                   enum kva_kv_fetch fetch)
{
    struct kva_rows_cache *cache = kva_rows_cache_of(kv);
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (!selects(rows, now) || rows->seq->spec.fetch != fetch)
            continue;
        cache->gates[count] = now ? rows->gate : NULL;
        cache->caches[count++] = &kva_rows_state_of(rows->seq)->caches[layer];
    }
    if (count == 0)
        return;
    kva_device_ops(kv->device)
        ->assign_slots(kv->device, &(struct kva_assign_slots_args){
                                       .caches = cache->caches,
                                       .gates = cache->gates,
                                       .count = count,
                                       .kv_heads = kv->shape.kv_heads,
                                       .stamp = cache->stamp - now,
                                       .mode = mode_of(fetch),
                                       .queue = now ? KVA_QUEUE_COMPUTE : KVA_QUEUE_ASIDE,
                                       .keep = fetch != KVA_FETCH_ALL,
                                   });
}

/* Rows of the layer were selected by the sequences that do so before they attend (`now`), or that
 * do not: queue their fetch. */
static void resolve(struct kva_kv *kv, const struct kva_kv_pass *pass, uint32_t layer, bool now)
{
    struct kva_rows_cache *cache = kva_rows_cache_of(kv);
    if (!now)
        kva_kv_order_aside(kv);
    for (uint32_t fetch = 0; fetch < KVA_FETCH_COUNT; fetch++)
        assign(kv, pass, layer, now, (enum kva_kv_fetch)fetch);
    if (now)
        kva_kv_order_copies(kv);
    else
        kva_kv_order_copies_behind_aside(kv);
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (!selects(rows, now))
            continue;
        struct kva_rows_state *state = kva_rows_state_of(rows->seq);
        kva_homes_list(&state->homes, rows->seq);
        cache->fetches[count++] = (struct kva_rows_fetch){&state->caches[layer], state->homes.pages,
                                                          now ? rows->gate : NULL};
    }
    kva_rows_fetch_layer(kv, count, layer);
    kva_event_record(cache->ready[layer], KVA_QUEUE_COPY);
}

void kva_rows_pass_begin(const struct kva_kv_part *self KVA_UNUSED, struct kva_kv *kv,
                         struct kva_kv_pass *pass KVA_UNUSED)
{
    kva_rows_cache_of(kv)->stamp += 2;
}

void kva_rows_layer_begin(const struct kva_kv_part *self KVA_UNUSED, struct kva_kv *kv,
                          struct kva_kv_pass *pass, uint32_t layer)
{
    struct kva_rows_cache *cache = kva_rows_cache_of(kv);
    bool any = false;
    for (uint32_t i = 0; i < pass->rows_count && !any; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        any =
            (kva_kv_find_rows(rows) || kva_kv_selects_apart(rows)) && kva_rows_state_of(rows->seq);
    }
    if (!any)
        return;
    cache->late |= !kva_event_done(cache->ready[layer]);
    kva_event_wait(cache->ready[layer], KVA_QUEUE_COMPUTE);
}

void kva_rows_selected(const struct kva_kv_part *self KVA_UNUSED, struct kva_kv *kv,
                       struct kva_kv_pass *pass, uint32_t layer)
{
    if (!any_selects(pass, true))
        return;
    resolve(kv, pass, layer, true);
    kva_event_wait(kva_rows_cache_of(kv)->ready[layer], KVA_QUEUE_COMPUTE);
}

struct kva_fused_fetch kva_rows_fused(const struct kva_kv *kv, struct kva_kv_seq *seq,
                                      uint32_t layer)
{
    struct kva_homes *homes = &kva_rows_state_of(seq)->homes;
    kva_homes_list(homes, seq);
    return (struct kva_fused_fetch){
        .pages = homes->pages,
        .page_offset_bytes = layer * kv->shape.block_bytes,
        .stamp = kva_rows_cache_of(kv)->stamp,
        .mode = mode_of(seq->spec.fetch),
        .keep = seq->spec.fetch != KVA_FETCH_ALL,
    };
}

void kva_rows_layer_end(const struct kva_kv_part *self KVA_UNUSED, struct kva_kv *kv,
                        struct kva_kv_pass *pass, uint32_t layer)
{
    if (any_selects(pass, false))
        resolve(kv, pass, layer, false);
}

/* --- the policy's ---------------------------------------------------------------------------- */

/* Whether the rows' query is held against the one that selected for this layer. */
static bool is_corrected(const struct kva_kv_rows *rows)
{
    return selects(rows, false) && kva_rows_corrects(&rows->seq->spec);
}

void kva_kv_rows_reselect(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                          const void *q)
{
    struct kva_rows_cache *cache = kva_rows_cache_of(kv);
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (!is_corrected(rows))
            continue;
        cache->query_rows[count] = rows->row_first + rows->select_row;
        cache->query_percents[count] = (float)rows->seq->spec.reselect_below;
        cache->query_before[count++] = kva_rows_query(kv, rows->seq, layer);
    }
    if (count == 0)
        return;
    kva_device_ops(kv->device)
        ->query_cosine(kv->device, &(struct kva_query_cosine_args){
                                       .q = q,
                                       .rows = cache->query_rows,
                                       .before = cache->query_before,
                                       .percents = cache->query_percents,
                                       .cosine = cache->query_cosines,
                                       .gates = cache->query_gates,
                                       .count = count,
                                       .q_stride = kv->heads * kv->shape.head_dim,
                                       .heads = kv->heads,
                                       .head_dim = kv->shape.head_dim,
                                   });
    count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        if (!is_corrected(rows))
            continue;
        rows->select_now = true;
        rows->gate = &cache->query_gates[count++];
    }
}
