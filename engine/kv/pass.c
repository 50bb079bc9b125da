/* pass.c - a forward pass through the layers, as parts and policies see it. */
#include "engine/kv/pass.h"

#include "engine/kv/part.h"
#include "engine/kv/placement.h"

#include <assert.h>

/* --- the parts of the pass ------------------------------------------------------------------- */

static bool has_pass_hooks(const struct kva_kv_part *part)
{
    return part->pass_begin || part->layer_begin || part->selected || part->attended ||
           part->layer_end || part->rehearsed || part->queried;
}

static void add_part(struct kva_kv_pass *pass, const struct kva_kv_part *part)
{
    for (uint32_t i = 0; i < pass->part_count; i++) {
        if (pass->parts[i] == part)
            return;
    }
    pass->parts[pass->part_count++] = part;
}

/* Each part once, however many sequences have it. */
static void list_parts(struct kva_kv_pass *pass)
{
    const struct kva_kv_policy *before = NULL;
    pass->part_count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_policy *policy = pass->rows[i].seq->policy;
        if (policy == before)
            continue;
        before = policy;
        for (const struct kva_kv_part *const *part = policy->parts; *part; part++) {
            if (has_pass_hooks(*part))
                add_part(pass, *part);
        }
    }
}

void kva_kv_pass_begin(struct kva_kv *kv, struct kva_kv_pass *pass)
{
    assert(pass->rows_count <= kv->sequences_max);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        pass->rows[i].ranges = kv->ranges + (size_t)i * KVA_KV_RANGES_MAX;
        kva_kv_leave_considered(kv, pass->rows[i].seq);
    }
    list_parts(pass);
    for (uint32_t i = 0; i < pass->part_count; i++) {
        if (pass->parts[i]->pass_begin)
            pass->parts[i]->pass_begin(pass->parts[i], kv, pass);
    }
}

/* --- a layer --------------------------------------------------------------------------------- */

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
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows *rows = &pass->rows[i];
        rows->range_count = 0;
        rows->scores.data = NULL;
        rows->fused = false;
        rows->candidates.page_end = 0;
        for (const struct kva_kv_part *const *part = rows->seq->policy->parts; *part; part++) {
            if ((*part)->locate)
                (*part)->locate(kv, rows, layer);
        }
    }
    for (uint32_t i = 0; i < pass->part_count; i++) {
        if (pass->parts[i]->layer_begin)
            pass->parts[i]->layer_begin(pass->parts[i], kv, pass, layer);
    }
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

bool kva_kv_layer_rehearses(const struct kva_kv *kv, const struct kva_kv_rows *rows, uint32_t layer)
{
    const struct kva_kv_policy *policy = rows->seq->policy;
    return policy->rehearses && policy->rehearses(kv, rows->seq, layer);
}

void kva_kv_layer_rehearsed(struct kva_kv *kv, struct kva_kv_pass *pass,
                            const struct kva_kv_rehearsal *rehearsal)
{
    for (uint32_t i = 0; i < pass->part_count; i++) {
        if (pass->parts[i]->rehearsed)
            pass->parts[i]->rehearsed(pass->parts[i], kv, pass, rehearsal);
    }
}

void kva_kv_layer_query(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_policy *policy = pass->rows[i].seq->policy;
        if (policy->layer_query && is_first_of_policy(pass, i))
            policy->layer_query(kv, pass, layer, q);
    }
    for (uint32_t i = 0; i < pass->part_count; i++) {
        if (pass->parts[i]->queried)
            pass->parts[i]->queried(pass->parts[i], kv, pass, layer, q);
    }
}

void kva_kv_layer_await(struct kva_kv *kv, const struct kva_kv_rows *rows,
                        const struct kva_kv_range *range)
{
    if (range->owner->await)
        range->owner->await(kv, rows, range);
}

void kva_kv_layer_fuse(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer)
{
    for (const struct kva_kv_part *const *part = rows->seq->policy->parts; *part; part++) {
        if (!(*part)->fused)
            continue;
        rows->fused = true;
        rows->fetch = (*part)->fused(kv, rows->seq, layer);
    }
}

void kva_kv_layer_choose(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer)
{
    for (uint32_t i = 0; i < pass->part_count; i++) {
        if (pass->parts[i]->selected)
            pass->parts[i]->selected(pass->parts[i], kv, pass, layer);
    }
}

void kva_kv_layer_attended(struct kva_kv *kv, struct kva_kv_pass *pass,
                           const struct kva_kv_attention *attention)
{
    for (uint32_t i = 0; i < pass->part_count; i++) {
        if (pass->parts[i]->attended)
            pass->parts[i]->attended(pass->parts[i], kv, pass, attention);
    }
}

static void tell_prompts(struct kva_kv *kv, const struct kva_kv_pass *pass, uint32_t layer)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        struct kva_kv_seq *seq = rows->seq;
        if (seq->prefilled || rows->position_first + rows->row_count < seq->prompt_tokens)
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
    for (uint32_t i = 0; i < pass->part_count; i++) {
        if (pass->parts[i]->layer_end)
            pass->parts[i]->layer_end(pass->parts[i], kv, pass, layer);
    }
    for (uint32_t i = 0; layer + 1 == kv->shape.layers && i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        if (rows->select_next && rows->select_row < rows->row_count)
            rows->seq->considered = rows->seq->prepared;
    }
}
