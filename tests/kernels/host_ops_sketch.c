/* The operators of partial keys on host memory: as host_ops_table.c. */
#include "tests/kernels/host_ops_internal.h"

#include <stdlib.h>

static struct kva_sketch_columns put_columns(struct host_ops *h,
                                             const struct kva_sketch_columns *by, uint32_t kv_heads,
                                             uint32_t dim)
{
    struct kva_sketch_columns put = {0};
    const size_t count = (size_t)kv_heads * dim;
    if (by->basis)
        put.basis = host_put_in(h, by->basis, count * dim * sizeof(float));
    if (by->columns)
        put.columns = host_put_in(h, by->columns, count * sizeof(uint32_t));
    return put;
}

void host_sketch(struct kva_device *device, const struct kva_sketch_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_sketch_args args = *host;
    const size_t from = args.from_offset_bytes + kva_kv_block_bytes(args.kv_heads, args.head_dim);
    const size_t to = args.to_offset_bytes + kva_sketch_block_bytes(args.format, args.kv_heads);
    void **blocks = calloc(2 * (size_t)args.count + 1, sizeof(void *));
    for (uint32_t i = 0; i < args.count; i++) {
        blocks[i] = host_put(i % 2 ? &h->host_tier : &h->device_tier, host->from[i], from, false);
        blocks[args.count + i] = host_put_out(h, host->to[i], to);
    }
    args.from = (const void *const *)blocks;
    args.to = blocks + args.count;
    args.by = put_columns(h, &host->by, args.kv_heads, args.head_dim);
    host_send(h);
    h->ops->sketch(device, &args);
    host_end(h);
    free(blocks);
}

void host_sketch_queries(struct kva_device *device, const struct kva_sketch_queries_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_sketch_queries_args args = *host;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < args.count; i++)
        rows = kva_max_u32(rows, args.rows[i] + 1);
    args.q = host_put_act(h, host->q, rows, args.heads * args.head_dim, args.q_stride, false);
    args.out =
        host_put_out(h, host->out, (size_t)args.count * args.heads * args.columns * sizeof(float));
    args.by = put_columns(h, &host->by, args.kv_heads, args.head_dim);
    host_send(h);
    h->ops->sketch_queries(device, &args);
    host_end(h);
}

void host_sketch_sums(struct kva_device *device, const struct kva_sketch_sums_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_sketch_sums_args args = *host;
    const uint32_t pages = host->q ? 0 : (uint32_t)kva_div_up(host->count, KVA_PAGE_TOKENS);
    const size_t columns = (size_t)args.kv_heads * args.head_dim * sizeof(float);
    void **blocks = calloc(pages + 1, sizeof(void *));
    for (uint32_t i = 0; i < pages; i++)
        blocks[i] = host_put(i % 2 ? &h->host_tier : &h->device_tier, host->blocks[i],
                             kva_kv_block_bytes(args.kv_heads, args.head_dim), false);
    args.blocks = (const void *const *)blocks;
    if (host->q)
        args.q = host_put_act(h, host->q, args.row_first + args.count, args.heads * args.head_dim,
                              args.q_stride, false);
    args.sums = host_put_out(h, host->sums, columns);
    args.basis = host_put_in(h, host->basis, columns * args.head_dim);
    host_send(h);
    h->ops->sketch_sums(device, &args);
    host_end(h);
    free(blocks);
}

void host_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *host)
{
    struct host_ops *h = host_begin(device);
    struct kva_sketch_weigh_args args = *host;
    struct kva_sketch_seq *seqs = calloc(args.seq_count + 1, sizeof *seqs);
    const size_t bytes =
        args.block_offset_bytes + kva_sketch_block_bytes(args.format, args.kv_heads);
    size_t pages = 0;
    for (uint32_t i = 0; i < args.seq_count; i++)
        pages += host->seqs[i].page_count;
    void **blocks = calloc(pages + 1, sizeof(void *)), **at = blocks;
    for (uint32_t i = 0; i < args.seq_count; i++) {
        const struct kva_sketch_seq *seq = &host->seqs[i];
        seqs[i] = *seq;
        for (uint32_t page = 0; page < seq->page_count; page++)
            at[page] = host_put_in(h, seq->blocks[page], bytes);
        seqs[i].blocks = (const void *const *)at;
        at += seq->page_count;
        seqs[i].q =
            host_put_in(h, seq->q, (size_t)args.heads * args.format.columns * sizeof(float));
        seqs[i].scratch =
            host_put_out(h, seq->scratch, kva_sketch_scratch_bytes(args.heads, seq->page_count));
        seqs[i].weights =
            host_put_out(h, seq->weights,
                         (size_t)args.kv_heads * seq->page_count * KVA_PAGE_TOKENS * sizeof(float));
    }
    args.seqs = seqs;
    host_send(h);
    h->ops->sketch_weigh(device, &args);
    host_end(h);
    free(blocks);
    free(seqs);
}
