/* scripted_step.c - a step: rules, tokens, time. */
#include "tests/scheduler/scripted_internal.h"

#include <time.h>

/* --- what others hold ------------------------------------------------------------------------ */

uint64_t scripted_resume_bytes(void *self, const struct kva_sequence *seq)
{
    struct kva_scripted *e = self;
    struct kva_sequence *mine = (struct kva_sequence *)(uintptr_t)seq;
    check_thread(e);
    SCRIPTED_CHECK(seq->state != CREATED, "bytes of a sequence that was not admitted");
    uint32_t pages = seq->shared_count + own_pages_here(seq) + seq->wants_page +
                     (seq->broken ? seq->lent_pages : 0);
    uint32_t budget = (uint32_t)(e->params.limits.budget.device / bytes_of(e, seq, 1, 0).device);
    bool waits = seq->state == SUSPENDED && pages > budget;
    if (waits && injected(&e->asked, e->params.lent_every) &&
        pages - budget <= e->params.others_pages - e->others_used) {
        mine->lent_pages += pages - budget;
        e->others_used += pages - budget;
        e->report.lent++;
        pages = budget;
    }
    return bytes_of(e, seq, pages, 0).device;
}

void scripted_come_home(struct kva_scripted *e, struct kva_sequence *seq)
{
    e->others_used -= seq->lent_pages;
    seq->lent_pages = 0;
}

/* A prompt that is longer than the device is in. */
static void park(struct kva_scripted *e, struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    scripted_pool_give(&e->pool, bytes_of(e, seq, seq->own_device_pages, 0));
    e->on_device[seq->params.kv.policy]--;
    seq->own_device_pages = (uint32_t)kva_div_up(seq->prefill_tokens, e->params.page_tokens) + 1;
    seq->state = SUSPENDED;
    item->parked = true;
    e->report.parked++;
}

/* --- a step ---------------------------------------------------------------------------------- */

/* The prompt's closed pages become common property. */
static void publish_prompt(struct kva_scripted *e, struct kva_sequence *seq)
{
    if (!e->params.prefix_cache || seq->params.cache_disabled || seq->prompt_logprobs ||
        seq->is_long)
        return;
    const struct kva_tier_bytes page_bytes = bytes_of(e, seq, 1, 1);
    for (uint32_t i = seq->shared_count; i < seq->page_hash_count; i++) {
        struct scripted_page *page = scripted_pool_find(&e->pool, seq->page_hashes[i]);
        if (!page) {
            page = scripted_pool_publish(&e->pool, seq->page_hashes[i], page_bytes);
        } else {
            /* Another sequence was quicker: keep its page, give ours back. */
            scripted_page_host_ref(&e->pool, page);
            scripted_page_device_ref(&e->pool, page);
            struct kva_tier_bytes ours = page_bytes;
            if (!page->resident)
                ours.device = 0;
            page->resident = true;
            scripted_pool_give(&e->pool, ours);
        }
        seq->shared[seq->shared_count++] = page;
        seq->own_device_pages--;
        seq->own_host_pages--;
    }
}

static void emit(struct kva_scripted *e, struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    uint32_t token =
        e->params.next_token
            ? e->params.next_token(e->params.next_token_opaque, &seq->params, seq->outputs)
            : kva_scripted_token(seq->prompt_hash, &seq->sampling, seq->params.choice, seq->outputs,
                                 e->params.vocab);
    seq->outputs++;
    SCRIPTED_CHECK(seq->params.prompt_tokens + seq->outputs <= seq->params.tokens_max,
                   "more tokens than tokens_max %u", seq->params.tokens_max);
    item->emitted = true;
    item->token.token = token;
    item->token.top_count = 0;
    if (seq->sampling.logprobs < 0)
        return;
    item->token.chosen = (struct kva_logprob){.token = token, .logprob = -0.25f, .rank = 1};
    item->token.top_count = (uint32_t)seq->sampling.logprobs;
    for (uint32_t i = 0; i < item->token.top_count; i++)
        item->token.top[i] = (struct kva_logprob){
            .token = (token + i) % e->params.vocab, .logprob = -0.25f - (float)i, .rank = i + 1};
}

/* The prompt's hash, and how it is pooled. */
static void pool(struct kva_sequence *seq, struct kva_step_item *item)
{
    seq->outputs++;
    item->pooled = true;
    kva_scripted_vector(seq->prompt_hash, seq->params.pooling, seq->vector);
}

static void prefill(struct kva_scripted *e, struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    uint32_t left = seq->prefill_tokens - seq->prefill_done;
    SCRIPTED_CHECK(left > 0, "prefill after its end");
    SCRIPTED_CHECK(item->prefill_tokens <= left, "%u tokens of prefill, %u are left",
                   item->prefill_tokens, left);
    e->partial_prefills -= prefill_unfinished(seq);
    item->prefill_done = item->prefill_tokens;
    seq->prefill_done += item->prefill_tokens;
    if (seq->prefill_done == seq->prefill_tokens) {
        publish_prompt(e, seq);
        if (seq->params.pooling == KVA_POOLING_NONE)
            emit(e, item);
        if (item->emitted && seq->is_long)
            park(e, item);
        if (seq->params.pooling != KVA_POOLING_NONE)
            pool(seq, item);
    }
    e->partial_prefills += prefill_unfinished(seq);
}

static void run_item(struct kva_scripted *e, struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    SCRIPTED_CHECK(seq->state == ON_DEVICE, "a sequence without device memory is in a step");
    SCRIPTED_CHECK(seq->last_step != e->report.steps, "a sequence is twice in a step");
    seq->last_step = e->report.steps;
    item->status = KVA_OK;
    item->emitted = false;
    item->pooled = false;
    item->parked = false;
    item->lost = false;
    item->prefill_done = 0;
    if (injected(&e->items, e->params.item_fails_every)) {
        /* It may have been the prefill that makes room for another, and is about to end. */
        e->failed_prefills += prefill_unfinished(seq);
        item->status = e->params.item_status ? e->params.item_status : KVA_EINTERNAL;
        return;
    }
    if (item->prefill_tokens > 0) {
        prefill(e, item);
        return;
    }
    SCRIPTED_CHECK(seq->params.pooling == KVA_POOLING_NONE, "a decode of a vector's sequence");
    SCRIPTED_CHECK(seq->prefill_done == seq->prefill_tokens,
                   "decode before the prefill is finished");
    SCRIPTED_CHECK(!seq->lost, "decode of a sequence whose KV is lost");
    SCRIPTED_CHECK(seq->grown_outputs == seq->outputs, "decode without a grow before it");
    SCRIPTED_CHECK(kv_tokens(seq) < device_capacity_tokens(e, seq),
                   "no room for token %u, capacity %u", kv_tokens(seq),
                   device_capacity_tokens(e, seq));
    item->lost = seq->lost = injected(&e->losses, e->params.lost_every);
    seq->broken = !seq->lost && seq->lent_pages > 0 && injected(&e->voids, e->params.void_every);
    if (!seq->lost && !seq->broken && !injected(&e->decodes, e->params.sits_out_every))
        emit(e, item);
}

static void pass_time(struct kva_scripted *e)
{
    uint64_t ns = e->params.step_ns + e->report.decode_rows * e->params.decode_row_ns +
                  e->report.prefill_rows * e->params.prefill_token_ns;
    if (e->params.clock)
        e->params.clock->now_ns += ns;
    if (e->params.sleep_ns != 0) {
        struct timespec pause = {.tv_sec = (time_t)(e->params.sleep_ns / KVA_NS_PER_S),
                                 .tv_nsec = (long)(e->params.sleep_ns % KVA_NS_PER_S)};
        nanosleep(&pause, NULL);
    }
}

enum kva_status scripted_step(void *self, struct kva_step_item *items, uint32_t count,
                              struct kva_err *err)
{
    struct kva_scripted *e = self;
    check_thread(e);
    uint64_t begin_ns = kva_time_ns();
    SCRIPTED_CHECK(!e->failed, "a step after the device failed");
    SCRIPTED_CHECK(count > 0, "an empty step");
    e->report.steps++;
    if (e->params.fail_step == e->report.steps) {
        e->failed = true;
        return kva_fail(err, KVA_EDEVICE, "injected device failure in step %llu",
                        (unsigned long long)e->report.steps);
    }
    e->report.decode_rows = 0;
    e->report.prefill_rows = 0;
    e->failed_prefills = 0;
    for (uint32_t i = 0; i < count; i++) {
        e->report.decode_rows += items[i].prefill_tokens == 0;
        e->report.prefill_rows += items[i].prefill_tokens;
        run_item(e, &items[i]);
    }
    uint32_t rows = e->report.decode_rows + e->report.prefill_rows;
    SCRIPTED_CHECK(rows <= e->params.limits.step_tokens_max, "%u rows", rows);
    if (rows > e->report.rows_max)
        e->report.rows_max = rows;
    SCRIPTED_CHECK(e->partial_prefills - e->failed_prefills <=
                       e->params.limits.partial_prefills_max,
                   "%u prefills are unfinished", e->partial_prefills);
    SCRIPTED_CHECK(e->pool.used.device <= e->pool.budget.device, "device budget exceeded");
    SCRIPTED_CHECK(e->pool.used.host <= e->pool.budget.host, "host budget exceeded");
    pass_time(e);
    e->report.engine_ns += kva_time_ns() - begin_ns;
    return KVA_OK;
}
