/* The operators of rows and how they are chosen on host memory: as host_ops_table.c. */
#include "tests/kernels/host_ops_internal.h"

#include <stdlib.h>
#include <string.h>

static void **addresses_new(uint32_t count)
{
    return calloc(kva_max_u32(count, 1), sizeof(void *));
}

struct kva_partial host_put_partial(struct host_ops *h, const struct kva_partial *host,
                                    size_t pairs, size_t dim, bool out)
{
    struct arena *arena = &h->device_tier;
    return (struct kva_partial){.a = host_put(arena, host->a, pairs * dim * sizeof(float), out),
                                .m = host_put(arena, host->m, pairs * sizeof(float), out),
                                .e = host_put(arena, host->e, pairs * sizeof(float), out)};
}

const uint32_t *host_put_gate(struct host_ops *h, const uint32_t *host)
{
    return host ? host_put_in(h, host, sizeof *host) : NULL;
}

struct kva_row_cache host_put_cache(struct host_ops *h, const struct kva_row_cache *host,
                                    uint32_t kv_heads, uint32_t head_dim, enum cache_use use)
{
    struct arena *arena = &h->device_tier;
    struct kva_row_cache cache = *host;
    size_t slots = (size_t)kv_heads * host->slots, words = slots * sizeof(uint32_t);
    bool assign = use == CACHE_ASSIGN;
    cache.rows =
        head_dim ? host_put(arena, host->rows, slots * 4 * head_dim, use == CACHE_FETCH) : NULL;
    cache.tokens = host_put(arena, host->tokens, words, assign);
    cache.used = host_put(arena, host->used, words, assign);
    cache.order = host_put(arena, host->order, words, assign);
    cache.missing = host_put(arena, host->missing, words, assign);
    cache.count = host_put(arena, host->count, kv_heads * sizeof(uint32_t), assign);
    cache.chosen =
        host_put(arena, host->chosen, (size_t)kv_heads * host->k * sizeof(uint32_t), assign);
    cache.hits = host_put(&h->host_tier, host->hits, 2 * sizeof(uint64_t), assign);
    return cache;
}

/* What of a call that weighs is not there for good. */
struct weighing {
    struct kva_weigh_seq *seqs;
    struct kva_row_cache *caches;
    struct kva_partial *partials;
};

static struct kva_weigh_args put_weighing(struct host_ops *h, const struct kva_weigh_args *host,
                                          struct weighing *to)
{
    struct kva_weigh_args args = *host;
    uint32_t rows = 0;
    to->seqs = calloc(args.seq_count + 1, sizeof *to->seqs);
    to->caches = calloc(args.seq_count + 1, sizeof *to->caches);
    to->partials = calloc(args.partial_count, sizeof *to->partials);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        struct kva_weigh_seq *seq = &to->seqs[i];
        *seq = host->seqs[i];
        size_t tokens = (size_t)seq->page_count * KVA_PAGE_TOKENS;
        rows = kva_max_u32(rows, seq->row + 1);
        seq->scores =
            host_put_in(h, seq->scores, kva_attend_scores_bytes(args.heads, seq->page_count));
        seq->weights = host_put_out(h, seq->weights, args.kv_heads * tokens * sizeof(float));
        seq->gate = host_put_gate(h, seq->gate);
        if (!seq->rows)
            continue;
        to->caches[i] = host_put_cache(h, seq->rows, args.kv_heads, args.head_dim, CACHE_READ);
        seq->rows = &to->caches[i];
    }
    for (uint32_t i = 0; i < args.partial_count; i++) {
        struct kva_partial read = {.m = host->partials[i].m, .e = host->partials[i].e};
        to->partials[i] = host_put_partial(h, &read, (size_t)rows * args.heads, 0, false);
    }
    args.seqs = to->seqs;
    args.partials = to->partials;
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    return args;
}

static void end_weighing(struct weighing *weighing)
{
    free(weighing->partials);
    free(weighing->caches);
    free(weighing->seqs);
}

/* The caller frees its sequences. */
static struct kva_choose_args put_choosing(struct host_ops *h, const struct kva_choose_args *host,
                                           struct kva_choose_seq **ret_seqs)
{
    struct kva_choose_args args = *host;
    struct kva_choose_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_choose_seq *seq = &host->seqs[i];
        seqs[i] = *seq;
        seqs[i].weights =
            host_put_in(h, seq->weights, (size_t)args.kv_heads * seq->stride * sizeof(float));
        seqs[i].chosen =
            host_put_out(h, seq->chosen, (size_t)args.kv_heads * seq->k * sizeof(uint32_t));
        seqs[i].gate = host_put_gate(h, seq->gate);
    }
    args.seqs = *ret_seqs = seqs;
    return args;
}

void host_weigh(struct kva_device *device, const struct kva_weigh_args *host)
{
    struct host_ops *h = host_begin(device);
    struct weighing weighing;
    struct kva_weigh_args args = put_weighing(h, host, &weighing);
    host_send(h);
    args.queue = host_queue(h);
    h->ops->weigh(device, &args);
    host_end(h);
    end_weighing(&weighing);
}

void host_choose(struct kva_device *device, const struct kva_choose_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_choose_seq *seqs;
    struct kva_choose_args args = put_choosing(h, host, &seqs);
    host_send(h);
    args.queue = host_queue(h);
    h->ops->choose(device, &args);
    host_end(h);
    free(seqs);
}

void host_weigh_choose(struct kva_device *device, const struct kva_weigh_choose_args *host)
{
    struct host_ops *h = host_begin(device);
    struct weighing weighing;
    struct kva_choose_seq *seqs;
    struct kva_weigh_choose_args args = *host;
    struct kva_lowbit_seq *low = calloc(host->weigh.seq_count + 1, sizeof *low);
    const size_t block_bytes =
        args.block_offset_bytes +
        kva_lowbit_block_bytes(args.format, host->weigh.kv_heads, host->weigh.head_dim);
    uint32_t count = 0;
    for (uint32_t i = 0; i < host->weigh.seq_count; i++)
        count = kva_max_u32(count, host->low[i].block_first + host->low[i].page_count);
    void **blocks = addresses_new(count);
    args.weigh = put_weighing(h, &host->weigh, &weighing);
    args.choose = put_choosing(h, &host->choose, &seqs);
    for (uint32_t i = 0; i < host->weigh.seq_count; i++) {
        low[i] = host->low[i];
        low[i].rows = weighing.seqs[i].rows;
        low[i].gate = NULL; /* theirs are weighing's */
        low[i].peaks = host_put(
            &h->device_tier, low[i].peaks,
            kva_attend_peaks_bytes(args.weigh.heads, args.weigh.kv_heads, low[i].page_count), true);
        low[i].mean = host_put_in(
            h, low[i].mean, (size_t)args.weigh.kv_heads * args.weigh.head_dim * sizeof(float));
        for (uint32_t j = low[i].block_first; j < low[i].block_first + low[i].page_count; j++)
            blocks[j] = host_put_in(h, host->blocks[j], block_bytes);
    }
    args.low = low;
    args.blocks = (const void *const *)blocks;
    host_send(h);
    args.weigh.queue = args.choose.queue = host_queue(h);
    h->ops->weigh_choose(device, &args);
    host_end(h);
    end_weighing(&weighing);
    free(blocks);
    free(low);
    free(seqs);
}

void host_accumulate(struct kva_device *device, const struct kva_accumulate_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_accumulate_args args = *host;
    struct kva_accumulate_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    const size_t bytes = args.kv_heads * sizeof(float);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        seqs[i] = host->seqs[i];
        seqs[i].mass = host_put_out(h, seqs[i].mass, bytes * seqs[i].mass_stride);
        seqs[i].weights = host_put_in(h, seqs[i].weights, bytes * seqs[i].weights_stride);
    }
    args.seqs = seqs;
    host_send(h);
    h->ops->accumulate(device, &args);
    host_end(h);
    free(seqs);
}

void host_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_assign_slots_args args = *host;
    struct kva_row_cache *caches = calloc(args.count + 1, sizeof *caches);
    const struct kva_row_cache **pointers = calloc(args.count + 1, sizeof *pointers);
    const uint32_t **gates = calloc(args.count + 1, sizeof *gates);
    for (uint32_t i = 0; i < args.count; i++) {
        gates[i] = host->gates ? host_put_gate(h, host->gates[i]) : NULL;
        caches[i] = host_put_cache(h, host->caches[i], args.kv_heads, 0, CACHE_ASSIGN);
        pointers[i] = &caches[i];
    }
    args.caches = pointers;
    args.gates = host->gates ? gates : NULL;
    host_send(h);
    args.queue = host_queue(h);
    h->ops->assign_slots(device, &args);
    host_end(h);
    free(gates);
    free(pointers);
    free(caches);
}

/* The pages of the host tier that hold what a cache misses. */
static const void *const *put_pages(struct host_ops *h, const struct kva_fetch_rows_args *args,
                                    const struct kva_rows_fetch *fetch)
{
    size_t bytes = args->page_offset_bytes + kva_kv_block_bytes(args->kv_heads, args->head_dim);
    uint32_t pages = 0, slots = fetch->cache->slots;
    for (size_t i = 0; i < (size_t)args->kv_heads * slots; i++) {
        uint32_t slot = fetch->cache->missing[i];
        if (slot != KVA_NO_TOKEN)
            pages = kva_max_u32(
                pages, fetch->cache->tokens[i / slots * slots + slot] / KVA_PAGE_TOKENS + 1);
    }
    void **addresses = addresses_new(pages);
    for (uint32_t i = 0; i < pages; i++)
        addresses[i] = host_put(&h->host_tier, fetch->pages[i], bytes, false);
    /* An array of its own for each fetch: the heap may hand out the same address twice. */
    struct arena *arena = &h->host_tier;
    bool there;
    struct piece *piece = host_place(arena, (void *)(uintptr_t)(arena->count + 1),
                                     kva_max_u32(pages, 1) * sizeof(void *), &there);
    memcpy(arena->image + piece->at, addresses, pages * sizeof(void *));
    free(addresses);
    return (const void *const *)(void *)(arena->memory + piece->at);
}

/* On the copy queue it comes after what was sent, and before what is read. */
static void order_queues(struct kva_device *device, enum kva_queue first, enum kva_queue then)
{
    struct kva_event *event;
    if (first == then || kva_event_create(device, &event, NULL) != KVA_OK)
        return;
    kva_event_record(event, first);
    kva_event_wait(event, then);
    kva_event_destroy(event);
}

void host_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_fetch_rows_args args = *host;
    struct kva_row_cache *caches = calloc(args.count + 1, sizeof *caches);
    struct kva_rows_fetch *fetches = calloc(args.count + 1, sizeof *fetches);
    for (uint32_t i = 0; i < args.count; i++) {
        const struct kva_rows_fetch *fetch = &host->fetches[i];
        caches[i] = host_put_cache(h, fetch->cache, args.kv_heads, args.head_dim, CACHE_FETCH);
        fetches[i].cache = &caches[i];
        fetches[i].pages = put_pages(h, host, fetch);
        fetches[i].gate = host_put_gate(h, fetch->gate);
    }
    args.fetches = fetches;
    host_send(h);
    order_queues(device, KVA_QUEUE_COMPUTE, args.queue);
    h->ops->fetch_rows(device, &args);
    order_queues(device, args.queue, KVA_QUEUE_COMPUTE);
    host_end(h);
    free(fetches);
    free(caches);
}

void host_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_query_cosine_args args = *host;
    uint32_t dim = args.heads * args.head_dim, rows = 0;
    void **before = addresses_new(args.count);
    for (uint32_t i = 0; i < args.count; i++) {
        rows = kva_max_u32(rows, args.rows[i] + 1);
        before[i] = host_put_act(h, host->before[i], 1, dim, dim, true);
    }
    args.before = before;
    args.q = host_put_act(h, host->q, rows, dim, args.q_stride, false);
    args.cosine = host_put_out(h, host->cosine, args.count * sizeof(float));
    args.gates = host_put_out(h, host->gates, args.count * sizeof(uint32_t));
    host_send(h);
    h->ops->query_cosine(device, &args);
    host_end(h);
    free(before);
}
