#include "engine/kv/placement.h"

#include "engine/kv/hot.h"
#include "engine/kv/lowbit.h"
#include "engine/kv/resident.h"
#include "engine/kv/stage.h"

/* Whether pages that are away are staged now. */
static bool stages(const struct kva_kv_policy *policy, bool prefilled)
{
    return !prefilled || !policy->coded;
}

/* --- how much -------------------------------------------------------------------------------- */

static uint64_t bytes_with(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t away,
                           uint32_t resident, bool prefilled)
{
    const struct kva_kv_policy *policy = kva_kv_policy_get(spec->policy);
    uint64_t bytes = kva_tier_footprint(kv->tier, kv->shape.page_bytes, resident);
    if (away > 0 && stages(policy, prefilled))
        bytes += kva_tier_footprint(kv->tier, kv->shape.block_bytes, 2ull * away);
    if (away == 0 || !policy->coded)
        return bytes;
    bytes += kva_tier_footprint(kv->tier, kva_kv_lowbit_page_bytes(kv, spec), away);
    return bytes + kva_kv_hot_footprint(kv, spec);
}

uint64_t kva_kv_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t prompt,
                          uint32_t tokens)
{
    const struct kva_kv_policy *policy = kva_kv_policy_get(spec->policy);
    uint32_t away = policy->away(spec, prompt);
    uint64_t bytes = bytes_with(kv, spec, away, kva_kv_pages(prompt) - away, false);
    if (tokens <= prompt)
        return bytes;
    /* A page is taken before another one leaves, and a speculative row may want one early. */
    away = policy->away(spec, tokens);
    uint32_t resident = kva_kv_pages(tokens) - away + 1;
    if (away > 0)
        resident = kva_max_u32(resident, kva_kv_pages(spec->window) + 2);
    resident = kva_min_u32(resident, kva_kv_pages(tokens));
    uint64_t later = bytes_with(kv, spec, away, resident, true);
    bytes = later > bytes ? later : bytes;
    if (!policy->coded || prompt >= spec->min_tokens || tokens < spec->min_tokens)
        return bytes;
    /* The step that turns a short sequence into a long one has both forms of it. */
    uint32_t pages = kva_kv_pages(kva_min_u32(spec->min_tokens + 1, tokens));
    later = bytes_with(kv, spec, policy->away(spec, spec->min_tokens + 1), pages, true);
    return later > bytes ? later : bytes;
}

uint64_t kva_kv_shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page)
{
    if (spec->policy == KVA_KV_FULL)
        return page->device_users > 0 ? kv->shape.page_bytes : 0;
    if (!kva_kv_policy_get(spec->policy)->coded)
        return 0;
    return kva_kv_lowbit_shared(page, spec) ? kva_kv_lowbit_page_bytes(kv, spec) : 0;
}

/* --- taking and giving ----------------------------------------------------------------------- */

/* Memory for `away` pages that are away and residents up to `end`. */
static bool take(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t away, uint32_t end)
{
    const struct kva_kv_policy *policy = seq->policy;
    uint32_t staged_before = seq->stage_count, low_before = seq->low_count;
    bool hot_before = seq->hot_taken;
    bool ok = !stages(policy, seq->prefilled) || kva_kv_stage_take(kv, seq, away);
    if (ok && policy->coded && away > 0)
        ok = kva_kv_lowbit_take(kv, seq, away) && kva_kv_hot_take(kv, seq);
    if (ok && kva_kv_resident_extend(kv, seq, end))
        return true;
    kva_kv_stage_give(kv, seq, staged_before, false);
    kva_kv_lowbit_give(kv, seq, low_before);
    if (!hot_before)
        kva_kv_hot_give(kv, seq, false);
    return false;
}

bool kva_kv_reserve(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t tokens)
{
    if (!seq->prefilled)
        return take(kv, seq, seq->away, kva_kv_pages(tokens));
    return take(kv, seq, seq->policy->away(&seq->spec, tokens), kva_kv_pages(tokens));
}

void kva_kv_release(struct kva_kv *kv, struct kva_kv_seq *seq, bool save)
{
    seq->low_stale = seq->low_layers;
    kva_kv_stage_give(kv, seq, 0, save);
    kva_kv_hot_give(kv, seq, save);
    kva_kv_lowbit_give(kv, seq, 0);
    kva_kv_resident_retract(kv, seq, seq->away, save);
}

bool kva_kv_restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!take(kv, seq, seq->away, seq->page_count))
        return false;
    if (!seq->prefilled || !seq->policy->coded || seq->away == 0)
        return true;
    kva_kv_lowbit_code_host(kv, seq, kv->shape.layers);
    kva_kv_lowbit_publish(kv, seq);
    kva_kv_hot_restore(kv, seq);
    return true;
}

/* --- after a step ---------------------------------------------------------------------------- */

void kva_kv_send_closed(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index)
{
    /* Staged pages went home layer by layer. */
    if (index < seq->away)
        return;
    kva_kv_order_copies(kv);
    kva_kv_offload(kv, seq->pages[index]->host, seq->pages[index]->device, kv->shape.page_bytes);
}

/* The prompt is in: its staged pages are coded now. */
static void end_prefill(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    seq->prefilled = true;
    if (!seq->policy->coded || seq->away == 0)
        return;
    kva_kv_lowbit_code_host(kv, seq, seq->low_stale);
    kva_kv_lowbit_publish(kv, seq);
    kva_kv_stage_give(kv, seq, 0, false);
    kva_kv_hot_start(kv, seq);
}

void kva_kv_settle(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->prefilled && seq->tokens >= seq->prompt_tokens)
        end_prefill(kv, seq);
    uint32_t away = seq->policy->away(&seq->spec, seq->tokens);
    if (!seq->prefilled || away <= seq->away)
        return;
    if (seq->policy->coded)
        kva_kv_lowbit_code_resident(kv, seq, seq->away, away);
    kva_kv_resident_leave(kv, seq, away);
    if (!seq->policy->coded)
        return;
    kva_kv_lowbit_publish(kv, seq);
    kva_kv_hot_start(kv, seq);
}
