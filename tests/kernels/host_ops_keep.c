/* The operators of kept rows on host memory: as host_ops_table.c. */
#include "tests/kernels/host_ops_internal.h"

#include <stdlib.h>

static void **addresses_new(size_t count)
{
    return calloc(kva_max_size(count, 1), sizeof(void *));
}

static uint32_t pages_of(uint32_t tokens)
{
    return (uint32_t)kva_div_up(tokens, KVA_PAGE_TOKENS);
}

/* `tier`s in turns where blocks may be in either. */
static void put_blocks(struct host_ops *h, const void *const *host, uint32_t count, size_t bytes,
                       bool either, bool out, void **to)
{
    for (uint32_t i = 0; i < count; i++)
        to[i] = host_put(either && i % 2 ? &h->host_tier : &h->device_tier, host[i], bytes, out);
}

void host_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_attend_mass_args args = *host;
    struct kva_mass_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    struct kva_partial *partials = calloc(args.partial_count, sizeof *partials);
    const size_t bytes = args.block_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    uint32_t rows = 0, count = 0;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        seqs[i] = host->seqs[i];
        rows = kva_max_u32(rows, seqs[i].row_first + seqs[i].row_count);
        seqs[i].scores = host_put_scores(h, seqs[i].scores, args.heads);
        seqs[i].mass = host_put_out(h, seqs[i].mass,
                                    (size_t)args.kv_heads * seqs[i].mass_stride * sizeof(float));
        for (uint32_t j = 0; j < seqs[i].range_count; j++) {
            const struct kva_attend_range *range = &args.ranges[seqs[i].range_first + j];
            uint32_t end_block = (range->token_first + range->token_count - 1) / KVA_PAGE_TOKENS;
            count = kva_max_u32(count, range->block_first + end_block -
                                           range->token_first / KVA_PAGE_TOKENS + 1);
        }
    }
    void **blocks = addresses_new(count);
    put_blocks(h, host->blocks, count, bytes, false, false, blocks);
    const size_t pairs = (size_t)rows * args.heads;
    for (uint32_t i = 0; i < args.partial_count; i++) {
        partials[i].m = (float *)host_put_in(h, host->partials[i].m, pairs * sizeof(float));
        partials[i].e = (float *)host_put_in(h, host->partials[i].e, pairs * sizeof(float));
    }
    args.seqs = seqs;
    args.partials = partials;
    args.blocks = (const void *const *)blocks;
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    host_send(h);
    h->ops->attend_mass(device, &args);
    host_end(h);
    free(blocks);
    free(partials);
    free(seqs);
}

static const float *put_mean(struct host_ops *h, const float *mean, uint32_t kv_heads,
                             uint32_t head_dim)
{
    return host_put_in(h, mean, (size_t)kv_heads * head_dim * sizeof *mean);
}

void host_mean_keys(struct kva_device *device, const struct kva_mean_keys_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_mean_keys_args args = *host;
    const size_t bytes = args.block_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    void *block;
    put_blocks(h, &host->block, 1, bytes, true, false, &block);
    args.block = block;
    args.mean =
        host_put_out(h, host->mean, (size_t)args.kv_heads * args.head_dim * sizeof *args.mean);
    host_send(h);
    h->ops->mean_keys(device, &args);
    host_end(h);
}

void host_row_error(struct kva_device *device, const struct kva_row_error_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_row_error_args args = *host;
    struct kva_row_error_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    const size_t bytes = args.block_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    size_t pages = 0;
    for (uint32_t i = 0; i < args.seq_count; i++)
        pages += pages_of(host->seqs[i].count);
    void **blocks = addresses_new(pages), **at = blocks;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_row_error_seq *seq = &host->seqs[i];
        seqs[i] = *seq;
        put_blocks(h, seq->blocks, pages_of(seq->count), bytes, true, false, at);
        seqs[i].blocks = (const void *const *)at;
        seqs[i].error =
            host_put_out(h, seq->error, (size_t)args.kv_heads * seq->stride * sizeof(float));
        seqs[i].mean = put_mean(h, seq->mean, args.kv_heads, args.head_dim);
        at += pages_of(seq->count);
    }
    args.seqs = seqs;
    host_send(h);
    h->ops->row_error(device, &args);
    host_end(h);
    free(blocks);
    free(seqs);
}

void host_keep(struct kva_device *device, const struct kva_keep_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_keep_args args = *host;
    struct kva_keep_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_keep_seq *seq = &host->seqs[i];
        const size_t slots = (size_t)args.kv_heads * seq->store.slots * sizeof(float);
        const size_t come = (size_t)args.kv_heads * seq->stride * sizeof(float);
        seqs[i] = *seq;
        seqs[i].store.positions = host_put_out(h, seq->store.positions, slots);
        seqs[i].store.mass = host_put_out(h, seq->store.mass, slots);
        seqs[i].store.error = host_put_out(h, seq->store.error, slots);
        seqs[i].mass = host_put_in(h, seq->mass, come);
        seqs[i].error = host_put_in(h, seq->error, come);
        seqs[i].to = host_put_out(h, seq->to, (size_t)args.kv_heads * seq->count * 4);
    }
    args.seqs = seqs;
    args.scratch = host_put_out(h, host->scratch, host->scratch_bytes);
    host_send(h);
    h->ops->keep(device, &args);
    host_end(h);
    free(seqs);
}

void host_use_rows(struct kva_device *device, const struct kva_use_rows_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_use_rows_args args = *host;
    struct kva_use_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_use_seq *seq = &host->seqs[i];
        seqs[i] = *seq;
        seqs[i].used = host_put_in(h, seq->used, (size_t)args.kv_heads * seq->count * 4);
        seqs[i].mass = host_put_out(h, seq->mass, (size_t)args.kv_heads * seq->slots * 4);
    }
    args.seqs = seqs;
    host_send(h);
    h->ops->use_rows(device, &args);
    host_end(h);
    free(seqs);
}

static size_t store_bytes(struct kva_lowbit_format format, uint32_t kv_heads, uint32_t head_dim)
{
    return format.bits ? kva_lowbit_block_bytes(format, kv_heads, head_dim)
                       : kva_kv_block_bytes(kv_heads, head_dim);
}

void host_store_rows(struct kva_device *device, const struct kva_store_rows_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_store_rows_args args = *host;
    struct kva_store_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    const size_t from = args.from_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    const size_t to = args.to_offset_bytes + store_bytes(args.format, args.kv_heads, args.head_dim);
    size_t pages = 0;
    for (uint32_t i = 0; i < args.seq_count; i++)
        pages += pages_of(host->seqs[i].count) + pages_of(host->seqs[i].slot_count);
    void **blocks = addresses_new(pages), **at = blocks;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_store_seq *seq = &host->seqs[i];
        seqs[i] = *seq;
        put_blocks(h, seq->from, pages_of(seq->count), from, true, false, at);
        seqs[i].from = (const void *const *)at;
        at += pages_of(seq->count);
        put_blocks(h, (const void *const *)seq->to, pages_of(seq->slot_count), to, false, true, at);
        seqs[i].to = at;
        at += pages_of(seq->slot_count);
        seqs[i].slots = host_put_in(h, seq->slots, (size_t)args.kv_heads * seq->count * 4);
        seqs[i].mean = put_mean(h, seq->mean, args.kv_heads, args.head_dim);
    }
    args.seqs = seqs;
    host_send(h);
    h->ops->store_rows(device, &args);
    host_end(h);
    free(blocks);
    free(seqs);
}

void host_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_roll_rows_args args = *host;
    struct kva_roll_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    const size_t from =
        args.from_offset_bytes + store_bytes(args.format, args.kv_heads, args.head_dim);
    const size_t to = args.to_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    size_t pages = 0;
    for (uint32_t i = 0; i < args.seq_count; i++)
        pages += 2 * (size_t)pages_of(host->seqs[i].filled);
    void **blocks = addresses_new(pages), **at = blocks;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_roll_seq *seq = &host->seqs[i];
        const uint32_t count = pages_of(seq->filled);
        const size_t words = (size_t)args.kv_heads * seq->slots * sizeof(uint32_t);
        seqs[i] = *seq;
        put_blocks(h, seq->from, count, from, false, false, at);
        seqs[i].from = (const void *const *)at;
        at += count;
        put_blocks(h, (const void *const *)seq->to, count, to, false, true, at);
        seqs[i].to = at;
        at += count;
        seqs[i].positions = host_put_in(h, seq->positions, words);
        seqs[i].mean = put_mean(h, seq->mean, args.kv_heads, args.head_dim);
        seqs[i].index = host_put_out(h, seq->index, words);
        seqs[i].places = host_put_out(
            h, seq->places, (size_t)args.kv_heads * seq->slots * sizeof(struct kva_roll_place));
    }
    args.seqs = seqs;
    host_send(h);
    h->ops->roll_rows(device, &args);
    host_end(h);
    free(blocks);
    free(seqs);
}
