/* pass.c - a forward pass through the layers, as parts and policies see it. */
#include "engine/kv/pass.h"

#include "engine/kv/part.h"
#include "engine/kv/parts/rows.h"
#include "engine/kv/parts/stage.h"

#include <assert.h>

void kva_kv_pass_begin(struct kva_kv *kv, struct kva_kv_pass *pass)
{
    kv->resolve_stamp++;
    for (uint32_t i = 0; pass->restart && i < pass->rows_count; i++) {
        struct kva_kv_seq *seq = pass->rows[i].seq;
        seq->staged_layer[0] = seq->staged_layer[1] = KVA_NO_LAYER;
    }
    if (!kva_kv_stage_wanted(pass))
        return;
    kva_kv_stage_layer(kv, pass, pass->layer_first);
    kva_kv_stage_layer(kv, pass, pass->layer_first + 1);
}

void kva_kv_add_range(struct kva_kv_rows *rows, struct kva_kv_range range)
{
    struct kva_kv_range *last = rows->range_count ? &rows->ranges[rows->range_count - 1] : NULL;
    if (last && last->kind == KVA_RANGE_BLOCKS && range.kind == KVA_RANGE_BLOCKS &&
        last->page_end == range.page_first)
        last->page_end = range.page_end;
    else {
        assert(rows->range_count < KVA_KV_RANGES_MAX);
        rows->ranges[rows->range_count++] = range;
    }
}

void kva_kv_layer_begin(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    bool any_rows = false;
    if (kva_kv_stage_wanted(pass))
        kva_event_wait(kv->staged_event[layer % 2], KVA_QUEUE_COMPUTE);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        rows->range_count = 0;
        rows->fused = false;
        for (const struct kva_kv_part *const *part = rows->seq->policy->parts; *part; part++)
            (*part)->locate(kv, rows, layer);
        any_rows |= kva_kv_find_rows(rows) != NULL;
    }
    if (any_rows)
        kva_kv_rowcache_await(kv, layer);
}

/* A policy is asked once for all its rows. */
static bool is_first_of_policy(const struct kva_kv_pass *pass, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (pass->rows[i].seq->policy == pass->rows[index].seq->policy)
            return false;
    }
    return true;
}

void kva_kv_layer_input(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer,
                        const void *hidden)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_policy *policy = pass->rows[i].seq->policy;
        if (policy->layer_input && is_first_of_policy(pass, i))
            policy->layer_input(kv, pass, layer, hidden);
    }
}

void kva_kv_layer_query(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_policy *policy = pass->rows[i].seq->policy;
        if (policy->layer_query && is_first_of_policy(pass, i))
            policy->layer_query(kv, pass, layer, q);
    }
}

void kva_kv_layer_fuse(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    rows->fused = true;
    rows->fetch = kva_kv_rowcache_now(kv, rows->seq, layer);
}

void kva_kv_layer_choose(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    if (!kva_kv_rowcache_chosen(pass, true))
        return;
    kva_kv_rowcache_resolve(kv, pass, layer, true);
    kva_event_wait(kv->hot_events[layer], KVA_QUEUE_COMPUTE);
}

static void tell_prompts(struct kva_kv *kv, const struct kva_kv_pass *pass, uint32_t layer)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        struct kva_kv_seq *seq = rows->seq;
        if (seq->prefilled || seq->offloaded == 0 ||
            rows->position_first + rows->row_count < seq->prompt_tokens)
            continue;
        for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
            if ((*part)->prompt_layer)
                (*part)->prompt_layer(kv, seq, layer);
        }
    }
}

void kva_kv_layer_end(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    tell_prompts(kv, pass, layer);
    if (kva_kv_stage_wanted(pass)) {
        kva_kv_stage_send(kv, pass, layer);
        kva_kv_stage_layer(kv, pass, layer + 2);
    }
    if (kva_kv_rowcache_chosen(pass, false))
        kva_kv_rowcache_resolve(kv, pass, layer, false);
}
