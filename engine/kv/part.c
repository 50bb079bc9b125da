/* part.c - the parts' memory: of the cache, and of sequences. */
#include "engine/kv/part.h"

#include <stdlib.h>

/* --- of the cache ---------------------------------------------------------------------------- */

static bool has_met(const struct kva_kv *kv, const struct kva_kv_part *part)
{
    for (uint32_t i = 0; i < kv->part_count; i++) {
        if (kv->parts[i] == part)
            return true;
    }
    return false;
}

static enum kva_status meet_counters(struct kva_kv *kv, const struct kva_counter *const *counters,
                                     struct kva_err *err)
{
    bool runs_inline = kva_device_get_info(kv->device)->runs_inline;
    for (; counters && *counters; counters++) {
        if ((*counters)->inline_only && !runs_inline)
            continue;
        if (!kva_counts_have(&kv->counters.counts, *counters))
            return kva_fail(err, KVA_EINVAL, "policies count more than %u things",
                            KVA_COUNTERS_MAX);
    }
    return KVA_OK;
}

static enum kva_status meet_part(struct kva_kv *kv, const struct kva_kv_part *part,
                                 struct kva_err *err)
{
    enum kva_status status = meet_counters(kv, part->counters, err);
    if (status)
        return status;
    if (kv->part_count == KVA_KV_PART_KINDS_MAX)
        return kva_fail(err, KVA_EINVAL, "policies have more than %u kinds of parts",
                        KVA_KV_PART_KINDS_MAX);
    void *cache = calloc(1, kva_max_size(1, part->cache_bytes));
    if (!cache)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the KV cache");
    kv->parts[kv->part_count] = part;
    kv->part_caches[kv->part_count++] = cache;
    status = part->cache_init ? part->cache_init(part, kv, err) : KVA_OK;
    if (!status)
        return KVA_OK;
    if (part->cache_finish)
        part->cache_finish(part, kv);
    free(kv->part_caches[--kv->part_count]);
    return status;
}

enum kva_status kva_kv_meet_policy(struct kva_kv *kv, const struct kva_kv_policy *policy,
                                   struct kva_err *err)
{
    enum kva_status status = meet_counters(kv, policy->counters, err);
    uint32_t count = 0;
    for (const struct kva_kv_part *const *part = policy->parts; *part && !status; part++) {
        if (++count > KVA_KV_PARTS_MAX)
            return kva_fail(err, KVA_EINVAL, "policy '%s' has more than %u parts", policy->name,
                            KVA_KV_PARTS_MAX);
        if (!has_met(kv, *part))
            status = meet_part(kv, *part, err);
    }
    return status;
}

void kva_kv_parts_finish(struct kva_kv *kv)
{
    while (kv->part_count > 0) {
        const struct kva_kv_part *part = kv->parts[kv->part_count - 1];
        if (part->cache_finish)
            part->cache_finish(part, kv);
        free(kv->part_caches[--kv->part_count]);
    }
}

/* --- of sequences ---------------------------------------------------------------------------- */

static void free_states(struct kva_kv_seq *seq)
{
    for (uint32_t i = 0; i < KVA_KV_PARTS_MAX; i++) {
        free(seq->part_states[i]);
        seq->part_states[i] = NULL;
    }
}

enum kva_status kva_kv_parts_init_seq(struct kva_kv *kv, struct kva_kv_seq *seq,
                                      struct kva_err *err)
{
    const struct kva_kv_part *const *parts = seq->policy->parts;
    enum kva_status status = kva_kv_meet_policy(kv, seq->policy, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < kv->counters.counts.count; i++) {
        const struct kva_counter *counter = kv->counters.counts.at[i].counter;
        if (counter->field)
            (void)kva_counts_have(&seq->counts, counter);
    }
    for (uint32_t i = 0; parts[i]; i++) {
        seq->part_states[i] = calloc(1, kva_max_size(1, parts[i]->state_bytes));
        if (seq->part_states[i])
            continue;
        free_states(seq);
        return kva_fail(err, KVA_ENOMEM, "out of memory for a sequence");
    }
    for (uint32_t i = 0; parts[i] && !status; i++)
        status = parts[i]->init ? parts[i]->init(kv, seq, err) : KVA_OK;
    if (status)
        kva_kv_parts_finish_seq(kv, seq);
    return status;
}

void kva_kv_parts_finish_seq(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    const struct kva_kv_part *const *parts = seq->policy->parts;
    for (uint32_t i = 0; parts[i]; i++) {
        if (parts[i]->finish)
            parts[i]->finish(kv, seq);
    }
    free_states(seq);
}

enum kva_status kva_kv_check_heads(const struct kva_kv *kv, const struct kva_kv_spec *spec,
                                   struct kva_err *err)
{
    if (kv->shape.head_dim % 4 == 0)
        return KVA_OK;
    return kva_fail_param(err, KVA_EUNSUPPORTED, "policy",
                          "policy '%s' needs heads of a multiple of 4, the model's are of %u",
                          kva_kv_spec_policy_name(spec), kv->shape.head_dim);
}

bool kva_kv_begin_use(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_page *page)
{
    kva_kv_page_use(kv, page);
    if (!page->device) {
        page->device = kva_kv_alloc_device(kv, kv->shape.page_bytes);
        if (!page->device) {
            kva_kv_page_unuse(kv, page);
            return false;
        }
        if (page->on_host)
            kva_kv_fetch(kv, seq, page->device, page->host, kv->shape.page_bytes);
    }
    seq->device_bytes += kv->shape.page_bytes;
    return true;
}

void kva_kv_end_use(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_page *page)
{
    seq->device_bytes -= kv->shape.page_bytes;
    kva_kv_page_unuse(kv, page);
    if (!page->closed)
        kva_kv_page_drop(kv, page);
}

const void *kva_kv_find_block(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t layer,
                              uint32_t page)
{
    const void *block = NULL;
    for (const struct kva_kv_part *const *part = seq->policy->parts; *part && !block; part++)
        block = (*part)->block ? (*part)->block(kv, seq, layer, page) : NULL;
    return block ? block : seq->pages[page]->host + layer * kv->shape.block_bytes;
}
