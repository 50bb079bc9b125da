/* kv_seq.c - the life of a sequence in the cache. */
#include "engine/kv/kv.h"
#include "engine/kv/part.h"
#include "engine/kv/parts/lent.h"
#include "engine/kv/placement.h"
#include "engine/kv/saved.h"
#include "engine/kv/stream.h"

#include <stdlib.h>

/* What the policy's parts ask of the model's shape, and of amounts that are tokens by now. */
static enum kva_status check_shape(const struct kva_kv *kv, const struct kva_kv_plan *plan,
                                   struct kva_err *err)
{
    const struct kva_kv_spec spec =
        kva_kv_spec_resolve(plan->spec, plan->prompt_tokens, plan->tokens_max);
    enum kva_status status = KVA_OK;
    for (const struct kva_kv_part *const *part = kva_kv_policy_of(&spec)->parts; *part && !status;
         part++)
        status = (*part)->check ? (*part)->check(kv, &spec, err) : KVA_OK;
    return status;
}

/* Pages of the host tier: of the sequence, and for what its parts save. */
static uint64_t host_pages(const struct kva_kv *kv, const struct kva_kv_plan *plan)
{
    const struct kva_kv_spec spec =
        kva_kv_spec_resolve(plan->spec, plan->prompt_tokens, plan->tokens_max);
    return (uint64_t)kva_kv_host_pages(&spec, plan->prompt_tokens, plan->tokens_max) +
           kva_kv_saved_pages(kv, &spec, plan->prompt_tokens);
}

/* Whether pages may be at other instances while the sequence decodes. */
static bool may_spread(const struct kva_kv *kv, const struct kva_kv_spec *spec)
{
    const struct kva_kv_part *const *part = kva_kv_policy_of(spec)->parts;
    while (*part && *part != &kva_kv_part_lent)
        part++;
    return kv->remote && *part && spec->spread == KVA_SPREAD_AUTO;
}

/* Of the prompt with its residual stream, or of what follows without it. */
static uint64_t largest_device_bytes(const struct kva_kv *kv, const struct kva_kv_plan *plan)
{
    const struct kva_kv_spec spec =
        kva_kv_spec_resolve(plan->spec, plan->prompt_tokens, plan->tokens_max);
    uint64_t bytes = kva_kv_footprint(kv, &spec, plan->prompt_tokens, plan->tokens_max);
    uint64_t prompt = kva_kv_footprint(kv, &spec, plan->prompt_tokens, plan->prompt_tokens) +
                      kva_kv_stream_bytes(kv, plan->prompt_tokens);
    return prompt > bytes ? prompt : bytes;
}

static bool is_long(const struct kva_kv *kv, const struct kva_kv_plan *plan)
{
    return may_spread(kv, plan->spec) &&
           largest_device_bytes(kv, plan) > kva_tier_budget_bytes(kv->tier);
}

/* What the device tier has to hold of a sequence that is longer than it is the prompt's stage; the
 * rest may be anywhere. */
static enum kva_status check_spread(const struct kva_kv *kv, const struct kva_kv_plan *plan,
                                    struct kva_err *err)
{
    uint64_t budget = kva_tier_budget_bytes(kv->tier), others = atomic_load(&kv->others_bytes);
    uint64_t stage = kva_kv_staged_bytes(kv, plan->spec, plan->prompt_tokens) +
                     kva_kv_stream_bytes(kv, plan->prompt_tokens);
    uint64_t all = kva_kv_footprint(kv, plan->spec, plan->prompt_tokens, plan->tokens_max);
    if (stage > budget)
        return kva_fail_param(err, KVA_ELIMIT, "device",
                              "a prompt of %u tokens is computed in %llu bytes of the device tier "
                              "where it does not fit whole, its budget is %llu bytes",
                              plan->prompt_tokens, (unsigned long long)stage,
                              (unsigned long long)budget);
    if (!plan->again && all > budget && all - budget > others)
        return kva_fail_param(err, KVA_ELIMIT, "device",
                              "%u tokens need %llu bytes of device memory under policy '%s', the "
                              "budget is %llu bytes, and other instances can lend %llu",
                              plan->tokens_max, (unsigned long long)all,
                              kva_kv_spec_policy_name(plan->spec), (unsigned long long)budget,
                              (unsigned long long)others);
    return KVA_OK;
}

static enum kva_status check_device(const struct kva_kv *kv, const struct kva_kv_plan *plan,
                                    struct kva_err *err)
{
    uint64_t device = largest_device_bytes(kv, plan);
    uint64_t budget = kva_tier_budget_bytes(kv->tier);
    if (is_long(kv, plan))
        return check_spread(kv, plan, err);
    if (device <= budget)
        return KVA_OK;
    return kva_fail_param(err, KVA_ELIMIT, "device",
                          "%u tokens need %llu bytes of the device tier under policy '%s', its "
                          "budget is %llu bytes",
                          plan->tokens_max, (unsigned long long)device,
                          kva_kv_spec_policy_name(plan->spec), (unsigned long long)budget);
}

enum kva_status kva_kv_check_fits(const struct kva_kv *kv, const struct kva_kv_plan *plan,
                                  struct kva_err *err)
{
    enum kva_status status = kva_kv_spec_check(plan->spec, err);
    if (!status)
        status = check_shape(kv, plan, err);
    if (!status)
        status = check_device(kv, plan, err);
    if (status)
        return status;
    uint64_t host =
        host_pages(kv, plan) * kv->shape.page_bytes + kva_kv_stream_bytes(kv, plan->prompt_tokens);
    uint64_t host_budget = kva_page_pool_total(kv->pages) * (uint64_t)kv->shape.page_bytes;
    if (host > host_budget)
        return kva_fail_param(
            err, KVA_ELIMIT, "host",
            "%u tokens need %llu bytes of the host tier, its budget is %llu bytes",
            plan->tokens_max, (unsigned long long)host, (unsigned long long)host_budget);
    return KVA_OK;
}

static enum kva_status init_tables(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    size_t state_bytes = seq->policy->state_bytes;
    seq->pages = calloc(seq->pages_max, sizeof(struct kva_page *));
    seq->policy_state = calloc(1, state_bytes);
    if (!seq->pages || (state_bytes > 0 && !seq->policy_state))
        return kva_fail(err, KVA_ENOMEM, "out of memory for the page table of %u tokens",
                        seq->tokens_max);
    enum kva_status status = kva_kv_stream_init(kv, seq, err);
    if (!status)
        status = kva_kv_saved_init(kv, seq, err);
    return status ? status : kva_kv_parts_init_seq(kv, seq, err);
}

enum kva_status kva_kv_seq_init(struct kva_kv *kv, struct kva_kv_seq *seq,
                                const struct kva_kv_plan *plan, struct kva_err *err)
{
    enum kva_status status = kva_kv_check_fits(kv, plan, err);
    if (status)
        return status;
    *seq = (struct kva_kv_seq){
        .policy = kva_kv_policy_of(plan->spec),
        .spec = kva_kv_spec_resolve(plan->spec, plan->prompt_tokens, plan->tokens_max),
        .pages_max = kva_kv_pages(plan->tokens_max),
        .tokens_max = plan->tokens_max,
        .prompt_tokens = plan->prompt_tokens,
        .spreads = is_long(kv, plan),
    };
    status = init_tables(kv, seq, err);
    if (status) {
        kva_kv_stream_finish(seq);
        kva_kv_saved_finish(seq);
        free(seq->pages);
        free(seq->policy_state);
        *seq = (struct kva_kv_seq){0};
    }
    return status;
}

/* Let all pages go, the last one first, so that the cache evicts ends before beginnings. */
static void release_pages(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    while (seq->page_count > 0) {
        struct kva_page *page = seq->pages[--seq->page_count];
        if (page)
            kva_page_pool_release(kv->pages, page);
    }
    kva_page_pool_unpromise(kv->pages, seq->promised_pages);
    seq->promised_pages = 0;
    kva_kv_stream_end(kv, seq);
    kva_kv_saved_end(kv, seq);
    seq->closed_count = 0;
    seq->dropped = 0;
    seq->tokens = 0;
    seq->prefilled = seq->rounded = false;
    seq->offloaded = seq->prepared = seq->considered = 0;
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->reset)
            (*part)->reset(kv, seq);
    }
}

/* It holds device memory from now on, or does not any more. */
static void set_resident(struct kva_kv *kv, struct kva_kv_seq *seq, bool resident)
{
    if ((unsigned)seq->spec.policy < KVA_KV_POLICY_COUNT)
        kv->counters.sequences[seq->spec.policy] += (uint32_t)resident - (uint32_t)seq->resident;
    seq->resident = resident;
}

void kva_kv_seq_finish(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (!seq->policy)
        return;
    if (seq->resident)
        kva_kv_release(kv, seq, false);
    set_resident(kv, seq, false);
    release_pages(kv, seq);
    kva_kv_stream_finish(seq);
    kva_kv_saved_finish(seq);
    free(seq->pages);
    free(seq->policy_state);
    kva_kv_parts_finish_seq(kv, seq);
    *seq = (struct kva_kv_seq){0};
}

/* Hold the cached pages that the prompt begins with. */
static void find_prefix(struct kva_kv *kv, struct kva_kv_seq *seq, const uint32_t *prompt,
                        uint32_t prompt_tokens)
{
    uint32_t pages_max = kva_kv_cacheable_pages(&seq->spec, prompt_tokens);
    struct kva_page *parent = NULL;
    while (seq->page_count < pages_max) {
        struct kva_page *page = kva_page_pool_find(kv->pages, parent, seq->scope,
                                                   prompt + seq->page_count * KVA_PAGE_TOKENS);
        if (!page || !kva_page_pool_hold(kv->pages, page))
            break;
        seq->pages[seq->page_count++] = page;
        parent = page;
    }
    seq->closed_count = seq->page_count;
    seq->tokens = seq->page_count * KVA_PAGE_TOKENS;
}

uint64_t kva_kv_seq_prompt_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    return seq->spreads ? kva_kv_staged_bytes(kv, &seq->spec, seq->prompt_tokens)
                        : kva_kv_footprint(kv, &seq->spec, seq->prompt_tokens, seq->prompt_tokens);
}

struct kva_tier_bytes kva_kv_seq_admit_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                                             const uint32_t *prompt, uint32_t *ret_cached_tokens)
{
    uint32_t prompt_tokens = seq->prompt_tokens;
    const struct kva_kv_plan plan = {&seq->spec, prompt_tokens, seq->tokens_max, true};
    struct kva_tier_bytes bytes = {
        .device = kva_kv_seq_prompt_bytes(kv, seq),
        .host = host_pages(kv, &plan) * kv->shape.page_bytes,
    };
    const struct kva_page *page = NULL;
    uint32_t cached = 0; /* pages, in use by others or not */
    uint32_t cacheable = kva_kv_cacheable_pages(&seq->spec, prompt_tokens);
    for (; seq->share && !seq->anew && cached < cacheable; cached++) {
        page = kva_page_pool_find(kv->pages, page, seq->scope, prompt + cached * KVA_PAGE_TOKENS);
        if (!page)
            break;
        if (page->refs == 0)
            continue;
        bytes.host -= kv->shape.page_bytes;
        if (!seq->spreads)
            bytes.device -= kva_kv_shared_bytes(kv, &seq->spec, page);
    }
    uint64_t stream = kva_kv_stream_bytes(kv, prompt_tokens - cached * KVA_PAGE_TOKENS);
    bytes.host += stream;
    bytes.device += stream;
    *ret_cached_tokens = cached * KVA_PAGE_TOKENS;
    return bytes;
}

/* Take promised pages until `count` exist. */
static void take_pages(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t count)
{
    while (seq->page_count < count) {
        seq->pages[seq->page_count++] = kva_page_pool_take(kv->pages);
        seq->promised_pages--;
    }
}

static enum kva_status refuse(enum kva_tier_id tier, enum kva_tier_id *short_of)
{
    if (short_of)
        *short_of = tier;
    return KVA_ELIMIT;
}

enum kva_status kva_kv_seq_admit(struct kva_kv *kv, struct kva_kv_seq *seq, const uint32_t *prompt,
                                 uint32_t *ret_cached_tokens, enum kva_tier_id *short_of,
                                 struct kva_err *err)
{
    uint32_t prompt_tokens = seq->prompt_tokens;
    if (seq->share && !seq->anew)
        find_prefix(kv, seq, prompt, prompt_tokens);
    uint32_t cached = seq->tokens;
    uint32_t missing =
        kva_kv_host_pages(&seq->spec, prompt_tokens, seq->tokens_max) - seq->page_count;
    uint32_t stream = kva_kv_stream_pages(kv, prompt_tokens - cached);
    uint32_t saved = kva_kv_saved_pages(kv, &seq->spec, prompt_tokens);
    uint32_t all = missing + stream + saved;
    if (!kva_page_pool_promise(kv->pages, all)) {
        release_pages(kv, seq);
        return kva_fail(err, refuse(KVA_TIER_HOST, short_of),
                        "the host tier has no room for %u more pages now", all);
    }
    seq->promised_pages = missing;
    kva_kv_saved_begin(kv, seq);
    kva_kv_stream_begin(kv, seq, prompt_tokens - cached);
    take_pages(kv, seq, kva_kv_pages(prompt_tokens));
    seq->offloaded = seq->spreads ? kva_kv_pages(prompt_tokens) - 1
                                  : seq->policy->offloaded(&seq->spec, prompt_tokens);
    seq->prepared = seq->considered = seq->offloaded;
    if (!kva_kv_reserve(kv, seq, prompt_tokens)) {
        release_pages(kv, seq);
        return kva_fail(err, refuse(KVA_TIER_DEVICE, short_of),
                        "the device tier has no room for %u more tokens now",
                        prompt_tokens - cached);
    }
    set_resident(kv, seq, true);
    if (seq->share && !seq->anew) {
        kv->counters.prefix_lookup_tokens += prompt_tokens;
        kv->counters.prefix_hit_tokens += cached;
    }
    *ret_cached_tokens = cached;
    return KVA_OK;
}

enum kva_status kva_kv_seq_grow(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t tokens,
                                struct kva_err *err)
{
    uint32_t pages = kva_kv_pages(tokens);
    if (kva_kv_is_lost(seq))
        return KVA_OK; /* nothing of it is attended to any more */
    if (pages <= seq->reserved_pages && seq->policy->offloaded(&seq->spec, tokens) <= seq->prepared)
        return KVA_OK;
    take_pages(kv, seq, pages);
    if (kva_kv_reserve(kv, seq, tokens))
        return KVA_OK;
    return kva_fail(err, KVA_ELIMIT, "the device tier has no room for one more page now");
}

void kva_kv_seq_suspend(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    if (seq->resident)
        seq->suspended_bytes = seq->device_bytes;
    kva_kv_release(kv, seq, true);
    set_resident(kv, seq, false);
    kva_kv_settle_home(kv, seq);
}

enum kva_status kva_kv_seq_resume(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_err *err)
{
    if (!kva_kv_is_lost(seq) && !kva_kv_restore(kv, seq))
        return kva_fail(err, KVA_ELIMIT, "the device tier has no room for %u tokens now",
                        seq->tokens);
    set_resident(kv, seq, true);
    return KVA_OK;
}

uint64_t kva_kv_seq_resume_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    if (kva_kv_is_lost(seq))
        return 0;
    if (seq->prefilled && may_spread(kv, &seq->spec))
        return (seq->page_count - kva_kv_pages_lent(seq)) * (uint64_t)kv->shape.page_bytes;
    return seq->resident ? seq->device_bytes : seq->suspended_bytes;
}

/* The prompt of a sequence that is longer than the device tier is in: it is as if it were suspended,
 * with homes for all of its pages. */
static void park(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    kva_kv_release(kv, seq, true);
    seq->offloaded = seq->prepared = seq->considered = 0;
    set_resident(kv, seq, false);
}

void kva_kv_seq_commit(struct kva_kv *kv, struct kva_kv_seq *seq, const uint32_t *ids,
                       uint32_t tokens)
{
    const bool was_prefilled = seq->prefilled;
    seq->tokens = tokens;
    while ((seq->closed_count + 1) * KVA_PAGE_TOKENS <= tokens) {
        uint32_t index = seq->closed_count++;
        struct kva_page *page = seq->pages[index];
        /* What an approximating policy computes after the prompt is for nobody else, nor is what
         * might have other bits there. */
        enum kva_kv_exactness exactness = seq->policy->exactness;
        bool exact = (exactness == KVA_KV_EXACT && !seq->rounded) ||
                     (exactness == KVA_KV_EXACT_PROMPT &&
                      seq->closed_count * KVA_PAGE_TOKENS <= seq->prompt_tokens);
        kva_kv_send_closed(kv, seq, index);
        page->on_host = true;
        kva_page_pool_close(kv->pages, page, index ? seq->pages[index - 1] : NULL, seq->scope,
                            ids + index * KVA_PAGE_TOKENS, seq->share && exact);
    }
    kva_kv_apply_policy(kv, seq);
    if (seq->spreads && seq->prefilled && !was_prefilled)
        park(kv, seq);
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part; part++) {
        if ((*part)->count)
            (*part)->count(kv, seq);
    }
}
