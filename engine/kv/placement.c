/* placement.c - the device memory of a sequence, part by part. */
#include "engine/kv/placement.h"

#include "engine/kv/part.h"
#include "engine/kv/stream.h"

/* --- how much -------------------------------------------------------------------------------- */

static uint64_t bytes_with(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                           uint32_t offloaded, uint32_t resident, bool prefilled)
{
    const struct kva_kv_extent extent = {offloaded, resident, prefilled};
    uint64_t bytes = 0;
    for (const struct kva_kv_part *const *part = kva_kv_policy_of(spec)->parts; *part; part++)
        bytes += (*part)->footprint ? (*part)->footprint(kv, spec, &extent) : 0;
    return bytes;
}

uint64_t kva_kv_footprint(const struct kva_kv *kv, const struct kva_kv_spec *spec, uint32_t prompt,
                          uint32_t tokens)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    const struct kva_kv_spec resolved = kva_kv_spec_resolve(spec, prompt, tokens);
    spec = &resolved;
    uint32_t offloaded = policy->offloaded(spec, prompt);
    uint64_t bytes = bytes_with(kv, spec, offloaded, kva_kv_pages(prompt) - offloaded, false);
    if (tokens <= prompt)
        return bytes;
    /* A page is taken before another one leaves, and a draft row may want one early. */
    offloaded = policy->offloaded(spec, tokens);
    uint32_t resident = kva_kv_pages(tokens) - offloaded + 1;
    if (offloaded > 0)
        resident = kva_max_u32(resident, kva_kv_pages(spec->window) + 2);
    resident = kva_min_u32(resident, kva_kv_pages(tokens));
    uint64_t later = bytes_with(kv, spec, offloaded, resident, true);
    bytes = later > bytes ? later : bytes;
    if (prompt >= spec->min_tokens || tokens < spec->min_tokens)
        return bytes;
    /* The step that turns a short sequence into a long one has both forms of it. */
    uint32_t pages = kva_kv_pages(kva_min_u32(spec->min_tokens + 1, tokens));
    later = bytes_with(kv, spec, policy->offloaded(spec, spec->min_tokens + 1), pages, true);
    return later > bytes ? later : bytes;
}

uint64_t kva_kv_staged_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             uint32_t prompt)
{
    return bytes_with(kv, spec, kva_kv_pages(prompt) - 1, 1, false);
}

uint32_t kva_kv_host_pages(const struct kva_kv_spec *spec, uint32_t prompt, uint32_t tokens)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    uint32_t later = kva_kv_pages(tokens) - kva_kv_pages(prompt);
    if (policy->host_pages)
        return policy->host_pages(spec, prompt, tokens);
    /* A page is taken before another one leaves. */
    if (policy->drops)
        later = kva_min_u32(later, kva_kv_pages(tokens) - policy->offloaded(spec, tokens) + 2);
    return kva_kv_pages(prompt) + later;
}

/* Items of several pages share a chunk of the tier: the mean of many pages. */
#define GROWTH_PAGES 1024u

/* Pages of a store that the prompt does not fill; 0: there is none. */
static uint32_t pages_to_fill(const struct kva_kv_spec *spec, uint32_t prompt)
{
    const struct kva_kv_policy *policy = kva_kv_policy_of(spec);
    uint32_t full = policy->stored ? policy->stored(spec, GROWTH_PAGES) : 0;
    return full > 0 && policy->stored(spec, policy->offloaded(spec, prompt)) < full ? full : 0;
}

uint64_t kva_kv_growth_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             uint32_t prompt)
{
    bool offloads = kva_kv_policy_of(spec)->offloaded(spec, UINT32_MAX) > 0;
    uint32_t fills = pages_to_fill(spec, prompt);
    uint32_t end = fills ? fills : 2 * GROWTH_PAGES, first = end / 2;
    uint64_t less = bytes_with(kv, spec, offloads ? first : 0, offloads ? 0 : first, true);
    uint64_t more = bytes_with(kv, spec, offloads ? end : 0, offloads ? 0 : end, true);
    return (more - less) / (end - first);
}

/* Whole pages are shared where none are offloaded, other forms where they are. */
uint64_t kva_kv_shared_bytes(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                             const struct kva_page *page)
{
    uint64_t bytes = 0;
    for (const struct kva_kv_part *const *part = kva_kv_policy_of(spec)->parts; *part; part++)
        bytes += (*part)->shared_bytes ? (*part)->shared_bytes(kv, spec, page) : 0;
    return bytes;
}

struct kva_shared_bytes kva_kv_seq_shared_bytes(const struct kva_kv *kv,
                                                const struct kva_kv_seq *seq)
{
    const struct kva_kv_part *const *parts = seq->policy->parts;
    struct kva_shared_bytes sum = {0};
    for (uint32_t i = 0; parts[i]; i++) {
        for (uint32_t page = 0; parts[i]->page_bytes && page < seq->page_count; page++) {
            uint32_t users = 0;
            uint64_t bytes = seq->pages[page] ? parts[i]->page_bytes(kv, seq, page, &users) : 0;
            if (bytes == 0 || users <= seq->resident)
                continue;
            sum.bytes += bytes;
            sum.portion += kva_div_up(bytes, users);
        }
    }
    return sum;
}

/* --- taking and giving ----------------------------------------------------------------------- */

/* Memory for `offloaded` pages, for whole ones up to `end`, and for the residual stream. */
static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded, uint32_t end)
{
    const struct kva_kv_part *const *parts = seq->policy->parts;
    uint32_t held[KVA_KV_PARTS_MAX] = {0};
    if (!kva_kv_stream_alloc(kv, seq))
        return false;
    for (uint32_t i = 0; parts[i]; i++) {
        if (!parts[i]->alloc)
            continue;
        held[i] = parts[i]->held(seq);
        if (parts[i]->alloc(kv, seq, offloaded, end))
            continue;
        while (i-- > 0) {
            if (parts[i]->cut)
                parts[i]->cut(kv, seq, held[i], false);
        }
        kva_kv_stream_cut(kv, seq, false);
        return false;
    }
    seq->reserved_pages = end;
    return true;
}

bool kva_kv_reserve(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t tokens)
{
    uint32_t offloaded =
        seq->prefilled ? seq->policy->offloaded(&seq->spec, tokens) : seq->prepared;
    return alloc(kv, seq, offloaded, kva_kv_pages(tokens));
}

void kva_kv_release(struct kva_kv *kv, struct kva_kv_seq *seq, bool save)
{
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->cut)
            (*part)->cut(kv, seq, 0, save);
    }
    kva_kv_stream_cut(kv, seq, save);
    seq->reserved_pages = 0;
}

bool kva_kv_restore(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!alloc(kv, seq, seq->prepared, seq->page_count))
        return false;
    kva_kv_stream_restore(kv, seq);
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->restore)
            (*part)->restore(kv, seq);
    }
    return true;
}

/* --- after a step ---------------------------------------------------------------------------- */

void kva_kv_send_closed(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index)
{
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->page_full)
            (*part)->page_full(kv, seq, index);
    }
}

/* A page goes for good. One that came after the prompt, and that no part has taken over, was nobody
 * else's: its memory is promised to the next one. */
static void drop_page(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t index)
{
    const bool freed = seq->pages[index]->refs == 1;
    kva_page_pool_release(kv->pages, seq->pages[index]);
    seq->pages[index] = NULL;
    seq->dropped++;
    if (freed && index >= kva_kv_pages(seq->prompt_tokens) &&
        seq->promised_pages < seq->pages_max - seq->page_count &&
        kva_page_pool_promise(kv->pages, 1))
        seq->promised_pages++;
}

/* Pages up to `offloaded` have left the device: of the host too, those that nobody will want. */
static void drop_offloaded(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    uint32_t before = seq->dropped;
    if (!kva_kv_drops(&seq->spec) || seq->offloaded == 0)
        return;
    const uint32_t gone = seq->policy->gone ? seq->policy->gone(seq) : seq->offloaded;
    /* Of those that the prefix cache has, its ends go before their beginnings. */
    for (uint32_t i = gone; i-- > 1 + before;)
        drop_page(kv, seq, i);
    uint32_t stored = kva_kv_stored(seq) * KVA_PAGE_TOKENS;
    uint64_t kept = seq->policy->stored ? stored : seq->spec.sinks;
    uint64_t evicted = (uint64_t)seq->offloaded * KVA_PAGE_TOKENS - kept;
    kva_kv_count(kv, seq, &kva_kv_counter_evicted_tokens,
                 evicted - kva_counts_of(&seq->counts, &kva_kv_counter_evicted_tokens));
}

static void end_prefill(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    seq->prefilled = true;
    kva_kv_stream_end(kv, seq);
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->prompt_end)
            (*part)->prompt_end(kv, seq);
    }
    drop_offloaded(kv, seq);
}

/* Pages [offloaded, first), which are prepared. */
static void leave(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->leave)
            (*part)->leave(kv, seq, first);
    }
    seq->offloaded = first;
    drop_offloaded(kv, seq);
}

void kva_kv_leave_considered(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (seq->considered > seq->offloaded)
        leave(kv, seq, seq->considered);
}

static void prepare(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t first)
{
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->prepare)
            (*part)->prepare(kv, seq, first);
    }
    seq->prepared = first;
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->prepared)
            (*part)->prepared(kv, seq);
    }
}

void kva_kv_apply_policy(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->prefilled && seq->tokens >= seq->prompt_tokens)
        end_prefill(kv, seq);
    if (!seq->prefilled)
        return;
    kva_kv_leave_considered(kv, seq);
    uint32_t first = seq->policy->offloaded(&seq->spec, seq->tokens);
    bool stays = seq->policy->selects_ahead && seq->policy->selects_ahead(&seq->spec);
    if (first > seq->prepared)
        prepare(kv, seq, first);
    if (!stays && seq->prepared > seq->offloaded)
        leave(kv, seq, seq->prepared);
}
