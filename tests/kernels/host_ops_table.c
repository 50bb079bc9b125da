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

/* Products of the same rows, which are put once. */
static void put_products(struct host_ops *h, struct kva_linear_args *to,
                         const struct kva_linear_args *host, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        to[i] = host[i];
        to[i].out = host_put_numbers(h, host[i].out, host[i].rows, host[i].weight.rows,
                                     host[i].out_stride, host[i].out_f32 ? KVA_F32 : h->act, true);
        to[i].x = i > 0 ? to[0].x
                        : host_put_act(h, host[i].x, host[i].rows, host[i].weight.cols,
                                       host[i].x_stride, false);
        to[i].weight = host_put_weight(h, &host[i].weight);
        to[i].bias = host_put_weight(h, &host[i].bias);
    }
}

static void host_linear(struct kva_device *device, const struct kva_linear_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_linear_args product;
    put_products(h, &product, host, 1);
    host_send(h);
    h->ops->linear(device, &product);
    host_end(h);
}

static void host_linear_group(struct kva_device *device, const struct kva_linear_group_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_linear_args products[KVA_LINEAR_GROUP_MAX];
    put_products(h, products, host->products, host->count);
    host_send(h);
    h->ops->linear_group(device, &(struct kva_linear_group_args){products, host->count});
    host_end(h);
}

static void host_linear_glu(struct kva_device *device, const struct kva_linear_glu_args *host)
{
    struct host_ops *h = host_begin(device);
    const struct kva_linear_args given[] = {host->gate, host->up};
    struct kva_linear_args products[KVA_COUNT_OF(given)];
    put_products(h, products, given, KVA_COUNT_OF(given));
    host_send(h);
    h->ops->linear_glu(device,
                       &(struct kva_linear_glu_args){products[0], products[1], host->activation});
    host_end(h);
}

static void host_rope(struct kva_device *device, const struct kva_rope_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_rope_args args = *host;
    args.x = host_put_act(h, host->x, args.rows, args.heads * args.head_dim, args.x_stride, true);
    if (host->second)
        args.second = host_put_act(h, host->second, args.rows, args.second_heads * args.head_dim,
                                   args.second_stride, true);
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
    args.out = host_put_partial(h, &host->out, (size_t)rows * args.heads, args.head_dim, true);
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
        partials[i] = host_put_partial(h, &host->partials[i], pairs, args.head_dim, false);
    args.partials = partials;
    args.out = host_put_act(h, host->out, args.rows, dim, dim, true);
    host_send(h);
    h->ops->merge(device, &args);
    host_end(h);
    free(partials);
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
        seqs[i].peaks = host_put_out(
            h, seq->peaks, kva_attend_peaks_bytes(args.heads, args.kv_heads, seq->page_count));
        seqs[i].mean =
            host_put_in(h, seq->mean, (size_t)args.kv_heads * args.head_dim * sizeof(float));
        seqs[i].gate = host_put_gate(h, seq->gate);
        if (!seq->rows)
            continue;
        caches[i] = host_put_cache(h, seq->rows, args.kv_heads, args.head_dim, CACHE_READ);
        seqs[i].rows = &caches[i];
    }
    args.seqs = seqs;
    args.blocks = (const void *const *)blocks;
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    args.out = host_put_partial(h, &host->out, (size_t)rows * args.heads, args.head_dim, true);
    const struct kva_partial behind =
        host->behind
            ? host_put_partial(h, host->behind, (size_t)rows * args.heads, args.head_dim, false)
            : (struct kva_partial){0};
    args.behind = host->behind ? &behind : NULL;
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
        seqs[i].gate = host_put_gate(h, seqs[i].gate);
        if (!seqs[i].rows)
            continue;
        caches[i] = host_put_cache(h, seqs[i].rows, args.kv_heads, args.head_dim, CACHE_READ);
        seqs[i].rows = &caches[i];
    }
    args.seqs = seqs;
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    args.out = host_put_partial(h, &host->out, (size_t)rows * args.heads, args.head_dim, true);
    host_send(h);
    h->ops->attend_rows(device, &args);
    host_end(h);
    free(caches);
    free(seqs);
}

/* --- logits ----------------------------------------------------------------------------------- */

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
        .linear_group = host_linear_group,
        .linear_glu = host_linear_glu,
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
        .weigh_choose = host_weigh_choose,
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
