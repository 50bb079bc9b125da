/* scripted_engine.c - the life of its sequences, and its answers. */
#include "tests/scheduler/scripted_engine.h"

#include "tests/scheduler/scripted_internal.h"

#include <string.h>

/* --- what is deterministic ----------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xFF51AFD7ED558CCDull;
    x ^= x >> 33;
    x *= 0xC4CEB9FE1A85EC53ull;
    x ^= x >> 33;
    return x;
}

uint64_t kva_scripted_hash(const uint32_t *prompt, uint32_t prompt_tokens)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < prompt_tokens; i++)
        hash = mix(hash ^ prompt[i]) + i;
    return hash;
}

static bool is_stop_id(const struct kva_sampling_params *sampling, uint32_t token)
{
    for (uint32_t i = 0; i < sampling->stop_id_count; i++)
        if (sampling->stop_ids[i] == token)
            return true;
    return false;
}

uint32_t kva_scripted_token(uint64_t prompt_hash, const struct kva_sampling_params *sampling,
                            uint32_t choice, uint32_t index, uint32_t vocab)
{
    uint64_t hash = mix(prompt_hash ^ mix(sampling->seed + choice)) + index;
    uint32_t token = (uint32_t)(mix(hash) % vocab);
    if (index >= sampling->min_tokens)
        return token;
    while (is_stop_id(sampling, token))
        token = (token + 1) % vocab;
    return token;
}

static uint64_t virtual_now(void *opaque)
{
    return ((struct kva_virtual_clock *)opaque)->now_ns;
}

void kva_virtual_clock_init(struct kva_virtual_clock *clock, uint64_t now_ns)
{
    clock->clock = (struct kva_clock){.now_ns = virtual_now, .opaque = clock};
    clock->now_ns = now_ns;
}

/* --- rules --------------------------------------------------------------------------------- */

static uint32_t pages_of(const struct kva_scripted *e, uint32_t tokens)
{
    return (uint32_t)kva_div_up(tokens, e->params.page_tokens);
}

/* --- operations ---------------------------------------------------------------------------- */

static enum kva_status scripted_check(void *self, const struct kva_sequence_params *params,
                                      struct kva_err *err)
{
    const struct kva_scripted *e = self;
    if ((unsigned)params->kv.policy >= KVA_KV_POLICY_COUNT)
        return kva_fail(err, KVA_EINVAL, "no such policy");
    const struct kva_tier_bytes *page = &e->params.page_bytes[params->kv.policy];
    uint64_t device = (uint64_t)page->device * (pages_of(e, params->tokens_max) + 1);
    uint64_t host = (uint64_t)page->host * pages_of(e, params->tokens_max);
    uint64_t others =
        params->kv.policy == KVA_KV_FULL ? (uint64_t)page->device * e->params.others_pages : 0;
    if (device > e->params.limits.budget.device + others)
        return kva_fail(err, KVA_ELIMIT, "the device tier has %llu bytes, the request needs %llu",
                        (unsigned long long)e->params.limits.budget.device,
                        (unsigned long long)device);
    if (host > e->params.limits.budget.host)
        return kva_fail(err, KVA_ELIMIT, "the host tier has %llu bytes, the request needs %llu",
                        (unsigned long long)e->params.limits.budget.host, (unsigned long long)host);
    return KVA_OK;
}

static void fill_prompt_logprobs(const struct kva_scripted *e, struct kva_sequence *seq)
{
    for (uint32_t i = 0; i + 1 < seq->params.prompt_tokens; i++) {
        struct kva_prompt_logprob *entry = &seq->prompt_logprobs[i];
        entry->actual = (struct kva_logprob){
            .token = seq->params.prompt[i + 1], .logprob = -1.0f - (float)(i % 7), .rank = 1};
        entry->top_count = (uint32_t)seq->sampling.prompt_logprobs;
        for (uint32_t k = 0; k < entry->top_count; k++)
            entry->top[k] =
                (struct kva_logprob){.token = (seq->params.prompt[i + 1] + k) % e->params.vocab,
                                     .logprob = -1.0f - (float)(i % 7) - (float)k,
                                     .rank = k + 1};
    }
}

static void hash_pages(const struct kva_scripted *e, struct kva_sequence *seq)
{
    const struct kva_sequence_params *p = &seq->params;
    uint64_t hash = mix(p->cache_scope[0] ^ mix(p->cache_scope[1] ^ mix((uint64_t)p->kv.policy)));
    for (uint32_t i = 0; i < seq->page_hash_count * e->params.page_tokens; i++) {
        hash = mix(hash ^ p->prompt[i]) + i;
        if ((i + 1) % e->params.page_tokens == 0)
            seq->page_hashes[i / e->params.page_tokens] = hash;
    }
}

static void free_sequence(struct kva_sequence *seq)
{
    free(seq->page_hashes);
    free(seq->shared);
    free(seq->prompt_logprobs);
    free(seq);
}

static enum kva_status scripted_create(void *self, const struct kva_sequence_params *params,
                                       struct kva_sequence **ret, struct kva_err *err)
{
    struct kva_scripted *e = self;
    check_thread(e);
    SCRIPTED_CHECK(params->prompt_tokens > 0 && params->tokens_max > params->prompt_tokens &&
                       params->tokens_max <= e->params.limits.context_max,
                   "%u prompt tokens, %u in all", params->prompt_tokens, params->tokens_max);
    if (injected(&e->creates, e->params.create_fails_every))
        return kva_fail(err, KVA_ENOMEM, "injected");
    enum kva_status status = scripted_check(self, params, err);
    if (status != KVA_OK)
        return status;
    struct kva_sequence *seq = calloc(1, sizeof(*seq));
    if (!seq)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    seq->params = *params;
    seq->sampling = *params->sampling;
    seq->prefill_tokens = params->prompt_tokens;
    seq->is_long = bytes_of(e, seq, pages_of(e, params->tokens_max) + 1, 0).device >
                   e->params.limits.budget.device;
    seq->page_hash_count = params->prompt_tokens / e->params.page_tokens;
    seq->page_hashes = calloc(seq->page_hash_count + 1u, sizeof(uint64_t));
    seq->shared = calloc(seq->page_hash_count + 1u, sizeof(struct scripted_page *));
    bool logprobs = seq->sampling.prompt_logprobs >= 0 && params->prompt_tokens > 1;
    if (logprobs)
        seq->prompt_logprobs = calloc(params->prompt_tokens - 1, sizeof(struct kva_prompt_logprob));
    if (!seq->page_hashes || !seq->shared || (logprobs && !seq->prompt_logprobs)) {
        free_sequence(seq);
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    }
    seq->prompt_hash = kva_scripted_hash(params->prompt, params->prompt_tokens);
    hash_pages(e, seq);
    if (logprobs)
        fill_prompt_logprobs(e, seq);
    e->report.live_sequences++;
    *ret = seq;
    return KVA_OK;
}

/* Prompt pages in the cache; the last prompt token is always computed. */
static uint32_t find_cached(const struct kva_scripted *e, const struct kva_sequence *seq)
{
    uint32_t count = 0;
    if (!e->params.prefix_cache || seq->params.cache_disabled || seq->prompt_logprobs ||
        seq->is_long)
        return 0;
    uint32_t most = (seq->params.prompt_tokens - 1) / e->params.page_tokens;
    while (count < most && scripted_pool_find(&e->pool, seq->page_hashes[count]))
        count++;
    return count;
}

/* Reference the shared pages' device copies; returns the bytes to be re-made for them. */
static uint64_t ref_shared_device(struct kva_scripted *e, struct kva_sequence *seq)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < seq->shared_count; i++) {
        scripted_page_device_ref(&e->pool, seq->shared[i]);
        if (!seq->shared[i]->resident)
            bytes += seq->shared[i]->bytes.device;
    }
    return bytes;
}

static void unref_shared_device(struct kva_scripted *e, struct kva_sequence *seq)
{
    for (uint32_t i = 0; i < seq->shared_count; i++)
        scripted_page_device_unref(&e->pool, seq->shared[i]);
}

static void unref_shared_host(struct kva_scripted *e, struct kva_sequence *seq)
{
    for (uint32_t i = 0; i < seq->shared_count; i++)
        scripted_page_host_unref(&e->pool, seq->shared[i]);
    seq->shared_count = 0;
}

static void make_shared_resident(struct kva_sequence *seq)
{
    for (uint32_t i = 0; i < seq->shared_count; i++)
        seq->shared[i]->resident = true;
}

static void set_state(struct kva_scripted *e, struct kva_sequence *seq, enum sequence_state state)
{
    e->on_device[seq->params.kv.policy] +=
        (uint32_t)(state == ON_DEVICE) - (uint32_t)(seq->state == ON_DEVICE);
    seq->state = state;
}

/* Of its own: what the prompt is computed in. */
static uint32_t admit_pages(const struct kva_scripted *e, const struct kva_sequence *seq,
                            uint32_t hits)
{
    uint32_t pages = pages_of(e, seq->prefill_tokens);
    return (seq->is_long ? pages / 8 : pages - hits) + 1;
}

static enum kva_status scripted_admit(void *self, struct kva_sequence *seq,
                                      uint32_t *ret_cached_tokens, enum kva_tier_id *short_of,
                                      struct kva_err *err)
{
    struct kva_scripted *e = self;
    check_thread(e);
    SCRIPTED_CHECK(seq->state == CREATED, "admitted twice");
    SCRIPTED_CHECK(e->admitted < e->params.limits.sequences_max, "over sequences_max");
    if (injected(&e->admits, e->params.admit_refused_every)) {
        e->report.refusals++;
        *short_of = KVA_TIER_DEVICE;
        return kva_fail(err, KVA_ELIMIT, "injected");
    }
    uint32_t hits = find_cached(e, seq);
    for (uint32_t i = 0; i < hits; i++) {
        seq->shared[i] = scripted_pool_find(&e->pool, seq->page_hashes[i]);
        scripted_page_host_ref(&e->pool, seq->shared[i]);
    }
    seq->shared_count = hits;
    uint32_t device_pages = admit_pages(e, seq, hits);
    uint32_t host_pages = pages_of(e, seq->params.tokens_max) - hits;
    struct kva_tier_bytes want = bytes_of(e, seq, device_pages, host_pages);
    want.device += ref_shared_device(e, seq);
    enum kva_status status = scripted_pool_take(&e->pool, want, short_of, err);
    if (status != KVA_OK) {
        e->report.refusals++;
        unref_shared_device(e, seq);
        unref_shared_host(e, seq);
        return status;
    }
    make_shared_resident(seq);
    seq->own_device_pages = device_pages;
    seq->own_host_pages = host_pages;
    seq->cached_tokens = hits * e->params.page_tokens;
    seq->prefill_done = seq->cached_tokens;
    seq->first_cached_tokens = seq->was_admitted ? seq->first_cached_tokens : seq->cached_tokens;
    seq->was_admitted = true;
    set_state(e, seq, ON_DEVICE);
    e->admitted++;
    e->prefix_lookup_tokens += seq->params.prompt_tokens;
    e->prefix_hit_tokens += seq->cached_tokens;
    *ret_cached_tokens = seq->cached_tokens;
    return KVA_OK;
}

static void scripted_admit_bytes(void *self, const struct kva_sequence *seq,
                                 struct kva_tier_bytes *ret, uint32_t *ret_cached_tokens)
{
    struct kva_scripted *e = self;
    check_thread(e);
    uint32_t hits = find_cached(e, seq);
    *ret_cached_tokens = hits * e->params.page_tokens;
    *ret = bytes_of(e, seq, admit_pages(e, seq, hits), pages_of(e, seq->params.tokens_max) - hits);
    for (uint32_t i = 0; i < hits; i++) {
        const struct scripted_page *page = scripted_pool_find(&e->pool, seq->page_hashes[i]);
        if (page->device_refs == 0)
            ret->device += page->bytes.device;
        if (page->host_refs == 0)
            ret->host += page->bytes.host;
    }
}

static void scripted_shared_bytes(void *self, const struct kva_sequence *seq,
                                  struct kva_shared_bytes *ret)
{
    check_thread(self);
    SCRIPTED_CHECK(seq->state != CREATED, "bytes of a sequence that was not admitted");
    *ret = (struct kva_shared_bytes){0};
    for (uint32_t i = 0; i < seq->shared_count; i++) {
        const struct scripted_page *page = seq->shared[i];
        if (page->device_refs <= (uint32_t)(seq->state == ON_DEVICE))
            continue;
        ret->bytes += page->bytes.device;
        ret->portion += kva_div_up(page->bytes.device, page->device_refs);
    }
}

static uint64_t scripted_growth_bytes(void *self, const struct kva_sequence *seq)
{
    check_thread(self);
    return bytes_of(self, seq, 1, 0).device;
}

static enum kva_status scripted_grow(void *self, struct kva_sequence *seq, struct kva_err *err)
{
    struct kva_scripted *e = self;
    check_thread(e);
    SCRIPTED_CHECK(seq->state == ON_DEVICE, "grow without device memory");
    bool prefills = seq->prefill_done < seq->prefill_tokens;
    if (prefills && injected(&e->prefill_grows, e->params.prefill_grow_refused_every)) {
        e->report.refusals++;
        return kva_fail(err, KVA_ELIMIT, "injected");
    }
    if (prefills)
        return KVA_OK;
    if (seq->broken)
        return kva_fail(err, KVA_ELIMIT, "what comes home has no room");
    if (kv_tokens(seq) < device_capacity_tokens(e, seq)) {
        seq->grown_outputs = seq->outputs;
        return KVA_OK;
    }
    if (injected(&e->grows, e->params.grow_refused_every)) {
        e->report.refusals++;
        return kva_fail(err, KVA_ELIMIT, "injected");
    }
    enum kva_status status = scripted_pool_take(&e->pool, bytes_of(e, seq, 1, 0), NULL, err);
    if (status != KVA_OK) {
        e->report.refusals++;
        seq->wants_page = seq->is_long;
        return status;
    }
    seq->own_device_pages++;
    seq->grown_outputs = seq->outputs;
    return KVA_OK;
}

static void scripted_suspend(void *self, struct kva_sequence *seq)
{
    struct kva_scripted *e = self;
    check_thread(e);
    SCRIPTED_CHECK(seq->state == ON_DEVICE, "suspended without device memory");
    unref_shared_device(e, seq);
    scripted_pool_give(&e->pool, bytes_of(e, seq, own_pages_here(seq), 0));
    if (seq->broken)
        scripted_come_home(e, seq);
    seq->broken = false;
    set_state(e, seq, SUSPENDED);
    e->report.suspends++;
}

static enum kva_status scripted_resume(void *self, struct kva_sequence *seq, struct kva_err *err)
{
    struct kva_scripted *e = self;
    check_thread(e);
    SCRIPTED_CHECK(seq->state == SUSPENDED, "resumed but not suspended");
    if (injected(&e->resumes, e->params.resume_refused_every)) {
        e->report.refusals++;
        return kva_fail(err, KVA_ELIMIT, "injected");
    }
    if (seq->lent_pages > 0 && injected(&e->homes, e->params.home_every))
        scripted_come_home(e, seq);
    struct kva_tier_bytes want = bytes_of(e, seq, own_pages_here(seq) + seq->wants_page, 0);
    want.device += ref_shared_device(e, seq);
    enum kva_status status = scripted_pool_take(&e->pool, want, NULL, err);
    if (status != KVA_OK) {
        e->report.refusals++;
        unref_shared_device(e, seq);
        return status;
    }
    make_shared_resident(seq);
    set_state(e, seq, ON_DEVICE);
    seq->own_device_pages += seq->wants_page;
    seq->wants_page = false;
    return KVA_OK;
}

static void give_all(struct kva_scripted *e, struct kva_sequence *seq)
{
    if (seq->state == ON_DEVICE) {
        unref_shared_device(e, seq);
        scripted_pool_give(&e->pool, bytes_of(e, seq, own_pages_here(seq), 0));
        e->on_device[seq->params.kv.policy]--;
    }
    if (seq->state != CREATED) {
        unref_shared_host(e, seq);
        scripted_pool_give(&e->pool, bytes_of(e, seq, 0, seq->own_host_pages));
        e->admitted--;
        e->partial_prefills -= prefill_unfinished(seq);
    }
    scripted_come_home(e, seq);
    seq->wants_page = false;
}

static enum kva_status scripted_restart(void *self, struct kva_sequence *seq,
                                        struct kva_err *err KVA_UNUSED)
{
    struct kva_scripted *e = self;
    check_thread(e);
    SCRIPTED_CHECK(seq->lost, "restarted without a loss");
    give_all(e, seq);
    seq->state = CREATED;
    seq->lost = false;
    seq->own_device_pages = seq->own_host_pages = 0;
    seq->cached_tokens = seq->prefill_done = 0;
    seq->prefill_tokens = seq->params.prompt_tokens + seq->outputs;
    return KVA_OK;
}

static void scripted_destroy(void *self, struct kva_sequence *seq)
{
    struct kva_scripted *e = self;
    if (!seq)
        return;
    check_thread(e);
    give_all(e, seq);
    e->report.live_sequences--;
    free_sequence(seq);
}

/* --- questions ----------------------------------------------------------------------------- */

static void scripted_info(void *self, const struct kva_sequence *seq, struct kva_sequence_info *ret)
{
    struct kva_scripted *e = self;
    check_thread(e);
    bool admitted = seq->state != CREATED;
    uint32_t device_pages = seq->state == ON_DEVICE ? seq->shared_count + own_pages_here(seq) : 0;
    *ret = (struct kva_sequence_info){
        .policy = seq->params.kv.policy == KVA_KV_FULL ? "full" : "offload",
        .bytes =
            bytes_of(e, seq, device_pages, admitted ? seq->shared_count + seq->own_host_pages : 0),
        .cached_tokens = seq->first_cached_tokens,
    };
}

static const struct kva_prompt_logprob *scripted_prompt_logprobs(void *self,
                                                                 const struct kva_sequence *seq)
{
    check_thread(self);
    return seq->outputs > 0 ? seq->prompt_logprobs : NULL;
}

void kva_scripted_vector(uint64_t prompt_hash, enum kva_pooling pooling, float *ret)
{
    for (uint32_t i = 0; i < KVA_SCRIPTED_WIDTH; i++)
        ret[i] = (float)((prompt_hash >> (8 * i)) & 0xFF) + (float)pooling;
}

static const float *scripted_pooled(void *self, struct kva_sequence *seq, uint32_t *ret_count)
{
    check_thread(self);
    *ret_count = KVA_SCRIPTED_WIDTH;
    return seq->vector;
}

static void scripted_usage(void *self, struct kva_engine_usage *ret)
{
    const struct kva_scripted *e = self;
    *ret = (struct kva_engine_usage){
        .used = e->pool.used,
        .cached = e->pool.cached,
        .budget = e->pool.budget,
        .guests = e->params.guests,
        .prefix_lookup_tokens = e->prefix_lookup_tokens,
        .prefix_hit_tokens = e->prefix_hit_tokens,
        .steps = e->report.steps,
    };
    memcpy(ret->sequences, e->on_device, sizeof(ret->sequences));
}

/* --- life ---------------------------------------------------------------------------------- */

struct kva_scripted_params kva_scripted_defaults(void)
{
    const struct kva_tier_bytes page = {.device = 1 << 16, .host = 1 << 16};
    return (struct kva_scripted_params){
        .limits = {.context_max = 8192,
                   .sequences_max = 64,
                   .step_tokens_max = 512,
                   .partial_prefills_max = 2,
                   .prefill_tokens_min = 64,
                   .budget = {.device = 1024ull << 16, .host = 4096ull << 16}},
        .page_tokens = 64,
        .page_bytes =
            {[KVA_KV_FULL] = page, [KVA_KV_OFFLOAD] = {.device = 1 << 13, .host = 1 << 16}},
        .vocab = 1000,
        .prefix_cache = true,
    };
}

struct kva_scripted *kva_scripted_create(const struct kva_scripted_params *params)
{
    struct kva_scripted *e = calloc(1, sizeof(*e));
    SCRIPTED_CHECK(e != NULL, "out of memory");
    e->params = *params;
    scripted_pool_init(&e->pool, params->limits.budget);
    e->ops = (struct kva_engine_ops){
        .create = scripted_create,
        .admit = scripted_admit,
        .admit_bytes = scripted_admit_bytes,
        .growth_bytes = scripted_growth_bytes,
        .grow = scripted_grow,
        .suspend = scripted_suspend,
        .resume = scripted_resume,
        .resume_bytes = params->others_pages > 0 ? scripted_resume_bytes : NULL,
        .shared_bytes = scripted_shared_bytes,
        .restart = scripted_restart,
        .step = scripted_step,
        .destroy = scripted_destroy,
        .sequence_info = scripted_info,
        .prompt_logprobs = scripted_prompt_logprobs,
        .pooled = scripted_pooled,
        .usage = scripted_usage,
        .check = params->without_check ? NULL : scripted_check,
    };
    e->engine = (struct kva_engine){.ops = &e->ops, .self = e, .limits = params->limits};
    return e;
}

void kva_scripted_destroy(struct kva_scripted *e)
{
    if (!e)
        return;
    SCRIPTED_CHECK(e->report.live_sequences == 0, "%u sequences are left",
                   e->report.live_sequences);
    SCRIPTED_CHECK(e->partial_prefills == 0, "prefills are miscounted");
    SCRIPTED_CHECK(e->others_used == 0, "%u pages are lent", e->others_used);
    scripted_pool_finish(&e->pool);
    free(e);
}

struct kva_engine *kva_scripted_engine(struct kva_scripted *e)
{
    return &e->engine;
}

struct kva_scripted_params *kva_scripted_params(struct kva_scripted *e)
{
    return &e->params;
}

void kva_scripted_get_report(const struct kva_scripted *e, struct kva_scripted_report *ret)
{
    *ret = e->report;
    ret->peak = e->pool.peak;
}
