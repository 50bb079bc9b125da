/* The operators of a device whose memory the host cannot read, on host memory. */
#include "tests/kernels/host_ops_internal.h"

#include <stdlib.h>
#include <string.h>

/* --- dense operators -------------------------------------------------------------------------- */

static void host_embed(struct kva_device *device, const struct kva_embed_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_embed_args args = *host;
    uint32_t dim = args.table.cols;
    args.out = host_put_act(h, host->out, args.rows, dim, dim, true);
    args.table = host_put_weight(h, &host->table);
    args.positions_table = host_put_weight(h, &host->positions_table);
    host_send(h);
    h->ops->embed(device, &args);
    host_end(h);
}

static void host_norm(struct kva_device *device, const struct kva_norm_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_norm_args args = *host;
    args.out = host_put_act(h, host->out, args.rows, args.dim, args.dim, true);
    args.x = host_put_act(h, host->x, args.rows, args.dim, args.dim, false);
    args.weight = host_put_weight(h, &host->weight);
    args.bias = host_put_weight(h, &host->bias);
    host_send(h);
    h->ops->norm(device, &args);
    host_end(h);
}

static void host_linear(struct kva_device *device, const struct kva_linear_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_linear_args args = *host;
    args.out = host_put_numbers(h, host->out, args.rows, args.weight.rows, args.out_stride,
                                args.out_f32 ? KVA_F32 : h->act, true);
    args.x = host_put_act(h, host->x, args.rows, args.weight.cols, args.x_stride, false);
    args.weight = host_put_weight(h, &host->weight);
    args.bias = host_put_weight(h, &host->bias);
    host_send(h);
    h->ops->linear(device, &args);
    host_end(h);
}

static void host_rope(struct kva_device *device, const struct kva_rope_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_rope_args args = *host;
    args.x = host_put_act(h, host->x, args.rows, args.heads * args.head_dim, args.x_stride, true);
    host_send(h);
    h->ops->rope(device, &args);
    host_end(h);
}

static void host_glu(struct kva_device *device, const struct kva_glu_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_glu_args args = *host;
    args.out = host_put_act(h, host->out, args.rows, args.dim, args.dim, true);
    args.gate = host_put_act(h, host->gate, args.rows, args.dim, args.dim, false);
    args.up = host_put_act(h, host->up, args.rows, args.dim, args.dim, false);
    host_send(h);
    h->ops->glu(device, &args);
    host_end(h);
}

static void host_gather(struct kva_device *device, const struct kva_gather_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_gather_args args = *host;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < args.count; i++)
        rows = kva_max_u32(rows, args.rows[i] + 1);
    args.out = host_put_act(h, host->out, args.count, args.dim, args.dim, true);
    args.x = host_put_act(h, host->x, rows, args.dim, args.dim, false);
    host_send(h);
    h->ops->gather(device, &args);
    host_end(h);
}

static void host_sum_rows(struct kva_device *device, const struct kva_sum_rows_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_sum_rows_args args = *host;
    args.out = host_put_numbers(h, host->out, 1, args.dim, args.dim, KVA_F32, true);
    args.x = host_put_act(h, host->x, args.rows, args.dim, args.dim, false);
    host_send(h);
    h->ops->sum_rows(device, &args);
    host_end(h);
}

/* --- attention -------------------------------------------------------------------------------- */

static void **addresses_new(uint32_t count)
{
    return calloc(kva_max_u32(count, 1), sizeof(void *));
}

static void host_kv_append(struct kva_device *device, const struct kva_kv_append_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_kv_append_args args = *host;
    uint32_t dim = args.kv_heads * args.head_dim;
    void **blocks = addresses_new(args.rows);
    size_t bytes = args.block_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    args.k = host_put_act(h, host->k, args.rows, dim, dim, false);
    args.v = host_put_act(h, host->v, args.rows, dim, dim, false);
    for (uint32_t i = 0; i < args.rows; i++)
        blocks[i] = host_put_out(h, host->blocks[i], bytes);
    args.blocks = blocks;
    host_send(h);
    h->ops->kv_append(device, &args);
    host_end(h);
    free(blocks);
}

static void host_quantise(struct kva_device *device, const struct kva_quantise_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_quantise_args args = *host;
    void **from = addresses_new(args.count), **to = addresses_new(args.count);
    size_t from_bytes = args.from_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    size_t to_bytes =
        args.to_offset_bytes + kva_lowbit_block_bytes(args.format, args.kv_heads, args.head_dim);
    for (uint32_t i = 0; i < args.count; i++) {
        /* Both tiers are allowed. */
        from[i] =
            host_put(i % 2 ? &h->host_tier : &h->device_tier, host->from[i], from_bytes, false);
        to[i] = host_put_out(h, host->to[i], to_bytes);
    }
    args.from = (const void *const *)from;
    args.to = to;
    host_send(h);
    h->ops->quantise(device, &args);
    host_end(h);
    free(from);
    free(to);
}

static struct kva_partial put_partial(struct host_ops *h, const struct kva_partial *host,
                                      size_t pairs, size_t dim, bool out)
{
    struct arena *arena = &h->device_tier;
    return (struct kva_partial){.a = host_put(arena, host->a, pairs * dim * sizeof(float), out),
                                .m = host_put(arena, host->m, pairs * sizeof(float), out),
                                .e = host_put(arena, host->e, pairs * sizeof(float), out)};
}

static void host_attend(struct kva_device *device, const struct kva_attend_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_attend_args args = *host;
    size_t bytes = args.block_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    struct kva_attend_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    uint32_t rows = 0, count = 0;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_attend_seq *seq = &args.seqs[i];
        seqs[i] = *seq;
        seqs[i].scores = host_put_scores(h, seq->scores, args.heads);
        rows = kva_max_u32(rows, seq->row_first + seq->row_count);
        for (uint32_t j = 0; j < seq->range_count; j++) {
            const struct kva_attend_range *range = &args.ranges[seq->range_first + j];
            uint32_t end_block = (range->token_first + range->token_count - 1) / KVA_PAGE_TOKENS;
            count = kva_max_u32(count, range->block_first + end_block -
                                           range->token_first / KVA_PAGE_TOKENS + 1);
        }
    }
    void **blocks = addresses_new(count);
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = host_put_in(h, host->blocks[i], bytes);
    args.seqs = seqs;
    args.blocks = (const void *const *)blocks;
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    args.out = put_partial(h, &host->out, (size_t)rows * args.heads, args.head_dim, true);
    host_send(h);
    h->ops->attend(device, &args);
    host_end(h);
    free(blocks);
    free(seqs);
}

static void host_merge(struct kva_device *device, const struct kva_merge_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_merge_args args = *host;
    struct kva_partial *partials = malloc(args.partial_count * sizeof *partials);
    size_t pairs = (size_t)args.rows * args.heads;
    uint32_t dim = args.heads * args.head_dim;
    for (uint32_t i = 0; i < args.partial_count; i++)
        partials[i] = put_partial(h, &host->partials[i], pairs, args.head_dim, false);
    args.partials = partials;
    args.out = host_put_act(h, host->out, args.rows, dim, dim, true);
    host_send(h);
    h->ops->merge(device, &args);
    host_end(h);
    free(partials);
}

/* What of a row cache a call may write. */
static const uint32_t *put_gate(struct host_ops *h, const uint32_t *host)
{
    return host ? host_put_in(h, host, sizeof *host) : NULL;
}

enum cache_use { CACHE_READ, CACHE_ASSIGN, CACHE_FETCH };

/* head_dim 0: rows are not looked at. */
static struct kva_row_cache put_cache(struct host_ops *h, const struct kva_row_cache *host,
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

static void host_attend_lowbit(struct kva_device *device, const struct kva_attend_lowbit_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_attend_lowbit_args args = *host;
    struct kva_lowbit_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    struct kva_row_cache *caches = calloc(args.seq_count + 1, sizeof *caches);
    size_t bytes =
        args.block_offset_bytes + kva_lowbit_block_bytes(args.format, args.kv_heads, args.head_dim);
    uint32_t rows = 0, count = 0;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_lowbit_seq *seq = &host->seqs[i];
        rows = kva_max_u32(rows, seq->row_first + seq->row_count);
        count = kva_max_u32(count, seq->block_first + seq->page_count);
    }
    void **blocks = addresses_new(count);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_lowbit_seq *seq = &host->seqs[i];
        seqs[i] = *seq;
        for (uint32_t j = seq->block_first; j < seq->block_first + seq->page_count; j++)
            blocks[j] = host_put_in(h, host->blocks[j], bytes);
        seqs[i].scores =
            host_put_out(h, seq->scores, kva_attend_scores_bytes(args.heads, seq->page_count));
        seqs[i].mean =
            host_put_in(h, seq->mean, (size_t)args.kv_heads * args.head_dim * sizeof(float));
        seqs[i].gate = put_gate(h, seq->gate);
        if (!seq->rows)
            continue;
        caches[i] = put_cache(h, seq->rows, args.kv_heads, args.head_dim, CACHE_READ);
        seqs[i].rows = &caches[i];
    }
    args.seqs = seqs;
    args.blocks = (const void *const *)blocks;
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    args.out = put_partial(h, &host->out, (size_t)rows * args.heads, args.head_dim, true);
    host_send(h);
    h->ops->attend_lowbit(device, &args);
    host_end(h);
    free(blocks);
    free(caches);
    free(seqs);
}

static void host_attend_rows(struct kva_device *device, const struct kva_attend_rows_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_attend_rows_args args = *host;
    struct kva_rows_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    struct kva_row_cache *caches = calloc(args.seq_count + 1, sizeof *caches);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        seqs[i] = host->seqs[i];
        rows = kva_max_u32(rows, seqs[i].row_first + seqs[i].row_count);
        seqs[i].gate = put_gate(h, seqs[i].gate);
        if (!seqs[i].rows)
            continue;
        caches[i] = put_cache(h, seqs[i].rows, args.kv_heads, args.head_dim, CACHE_READ);
        seqs[i].rows = &caches[i];
    }
    args.seqs = seqs;
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    args.out = put_partial(h, &host->out, (size_t)rows * args.heads, args.head_dim, true);
    host_send(h);
    h->ops->attend_rows(device, &args);
    host_end(h);
    free(caches);
    free(seqs);
}

/* --- rows ------------------------------------------------------------------------------------- */

static void host_weigh(struct kva_device *device, const struct kva_weigh_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_weigh_args args = *host;
    struct kva_weigh_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    struct kva_row_cache *caches = calloc(args.seq_count + 1, sizeof *caches);
    struct kva_partial *partials = calloc(args.partial_count, sizeof *partials);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_weigh_seq *seq = &host->seqs[i];
        size_t tokens = (size_t)seq->page_count * KVA_PAGE_TOKENS;
        seqs[i] = *seq;
        rows = kva_max_u32(rows, seq->row + 1);
        seqs[i].scores =
            host_put_in(h, seq->scores, kva_attend_scores_bytes(args.heads, seq->page_count));
        seqs[i].weights = host_put_out(h, seq->weights, args.kv_heads * tokens * sizeof(float));
        seqs[i].gate = put_gate(h, seq->gate);
        if (!seq->rows)
            continue;
        caches[i] = put_cache(h, seq->rows, args.kv_heads, args.head_dim, CACHE_READ);
        seqs[i].rows = &caches[i];
    }
    for (uint32_t i = 0; i < args.partial_count; i++) {
        struct kva_partial read = {.m = host->partials[i].m, .e = host->partials[i].e};
        partials[i] = put_partial(h, &read, (size_t)rows * args.heads, 0, false);
    }
    args.seqs = seqs;
    args.partials = partials;
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    host_send(h);
    args.queue = host_queue(h);
    h->ops->weigh(device, &args);
    host_end(h);
    free(partials);
    free(caches);
    free(seqs);
}

static void host_choose(struct kva_device *device, const struct kva_choose_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_choose_args args = *host;
    struct kva_choose_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_choose_seq *seq = &host->seqs[i];
        seqs[i] = *seq;
        seqs[i].weights =
            host_put_in(h, seq->weights, (size_t)args.kv_heads * seq->stride * sizeof(float));
        seqs[i].chosen =
            host_put_out(h, seq->chosen, (size_t)args.kv_heads * seq->k * sizeof(uint32_t));
        seqs[i].gate = put_gate(h, seq->gate);
    }
    args.seqs = seqs;
    host_send(h);
    args.queue = host_queue(h);
    h->ops->choose(device, &args);
    host_end(h);
    free(seqs);
}

static void host_accumulate(struct kva_device *device, const struct kva_accumulate_args *host)
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

static void host_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_assign_slots_args args = *host;
    struct kva_row_cache *caches = calloc(args.count + 1, sizeof *caches);
    const struct kva_row_cache **pointers = calloc(args.count + 1, sizeof *pointers);
    const uint32_t **gates = calloc(args.count + 1, sizeof *gates);
    for (uint32_t i = 0; i < args.count; i++) {
        gates[i] = host->gates ? put_gate(h, host->gates[i]) : NULL;
        caches[i] = put_cache(h, host->caches[i], args.kv_heads, 0, CACHE_ASSIGN);
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

static void host_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_fetch_rows_args args = *host;
    struct kva_row_cache *caches = calloc(args.count + 1, sizeof *caches);
    struct kva_rows_fetch *fetches = calloc(args.count + 1, sizeof *fetches);
    for (uint32_t i = 0; i < args.count; i++) {
        const struct kva_rows_fetch *fetch = &host->fetches[i];
        caches[i] = put_cache(h, fetch->cache, args.kv_heads, args.head_dim, CACHE_FETCH);
        fetches[i].cache = &caches[i];
        fetches[i].pages = put_pages(h, host, fetch);
        fetches[i].gate = put_gate(h, fetch->gate);
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

static void host_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *host)
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

static void host_shortlist(struct kva_device *device, const struct kva_shortlist_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_shortlist_args args = *host;
    struct arena *results = &h->host_tier;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < args.count; i++)
        rows = kva_max_u32(rows, args.requests[i].row + 1);
    args.out = host_put(results, host->out, args.count * sizeof *args.out, true);
    args.listed = host_put(results, host->listed,
                           (size_t)args.count * KVA_SHORTLIST_MAX * sizeof *args.listed, true);
    args.tracked_logits =
        host_put(results, host->tracked_logits, args.tracked_count * sizeof(float), true);
    args.logits = host_put_in(h, host->logits, (size_t)rows * args.vocab * sizeof(float));
    host_send(h);
    h->ops->shortlist(device, &args);
    host_end(h);
}

const struct kva_ops *host_ops_table(void)
{
    static const struct kva_ops table = {
        .embed = host_embed,
        .norm = host_norm,
        .linear = host_linear,
        .rope = host_rope,
        .glu = host_glu,
        .gather = host_gather,
        .sum_rows = host_sum_rows,
        .kv_append = host_kv_append,
        .quantise = host_quantise,
        .attend = host_attend,
        .attend_lowbit = host_attend_lowbit,
        .attend_rows = host_attend_rows,
        .merge = host_merge,
        .weigh = host_weigh,
        .choose = host_choose,
        .accumulate = host_accumulate,
        .assign_slots = host_assign_slots,
        .fetch_rows = host_fetch_rows,
        .query_cosine = host_query_cosine,
        .shortlist = host_shortlist,
        .attend_mass = host_attend_mass,
        .mean_keys = host_mean_keys,
        .row_error = host_row_error,
        .keep = host_keep,
        .use_rows = host_use_rows,
        .store_rows = host_store_rows,
        .roll_rows = host_roll_rows,
        .sketch = host_sketch,
        .sketch_queries = host_sketch_queries,
        .sketch_sums = host_sketch_sums,
        .sketch_weigh = host_sketch_weigh,
    };
    return &table;
}
