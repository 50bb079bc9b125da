/* Measurements of rows chosen a layer ahead: partial keys made and scored, tokens chosen, rows
 * fetched from cold pages and attended to. */
#include "tests/kernels/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 32, KV_HEADS = 8, TOKENS = 8192, PAGES = TOKENS / KVA_PAGE_TOKENS };

struct ahead_work {
    const struct bench *bench;
    struct kva_sketch_args sketch;
    struct kva_sketch_weigh_args weigh;
    struct kva_choose_args choose;
    struct kva_assign_slots_args assign;
    struct kva_fetch_rows_args fetch;
    struct kva_attend_rows_args attend;
    size_t layer_bytes; /* of pages, from one fetch to the next: other pages, which are cold */
    uint32_t layer, layers;
};

static void run_sketch(void *opaque)
{
    struct ahead_work *work = opaque;
    work->bench->ops->sketch(work->bench->device, &work->sketch);
}

static void run_weigh(void *opaque)
{
    struct ahead_work *work = opaque;
    work->bench->ops->sketch_weigh(work->bench->device, &work->weigh);
}

static void run_choose(void *opaque)
{
    struct ahead_work *work = opaque;
    work->bench->ops->choose(work->bench->device, &work->choose);
}

static void run_assign(void *opaque)
{
    struct ahead_work *work = opaque;
    work->bench->ops->assign_slots(work->bench->device, &work->assign);
}

static void run_fetch(void *opaque)
{
    struct ahead_work *work = opaque;
    work->layer = (work->layer + 1) % work->layers;
    work->fetch.page_offset_bytes = work->layer * work->layer_bytes;
    work->bench->ops->fetch_rows(work->bench->device, &work->fetch);
}

static void run_attend(void *opaque)
{
    struct ahead_work *work = opaque;
    work->bench->ops->attend_rows(work->bench->device, &work->attend);
}

/* Partial keys by 30% of the columns. */
static void bench_columns(const struct bench *bench, unsigned char *memory, uint32_t dim,
                          uint32_t bits)
{
    const struct kva_sketch_format format = {(dim * 3 + 9) / 10, bits};
    const size_t bytes = kva_sketch_block_bytes(format, KV_HEADS);
    const void *blocks[PAGES];
    float *q = calloc((size_t)HEADS * format.columns, sizeof *q);
    float *scratch = malloc(kva_sketch_scratch_bytes(HEADS, PAGES));
    float *weights = malloc((size_t)KV_HEADS * TOKENS * sizeof *weights);
    char name[80];
    memset(memory, 0, COLD_BYTES); /* numbers */
    for (uint32_t i = 0; i < PAGES; i++)
        blocks[i] = memory + i * bytes;
    const struct kva_sketch_seq seq = {
        .q = q, .blocks = blocks, .scratch = scratch, .weights = weights, .page_count = PAGES};
    struct ahead_work work = {.bench = bench};
    work.weigh = (struct kva_sketch_weigh_args){.seqs = &seq,
                                                .seq_count = 1,
                                                .heads = HEADS,
                                                .kv_heads = KV_HEADS,
                                                .head_dim = dim,
                                                .kv_dtype = KVA_BF16,
                                                .format = format};
    snprintf(name, sizeof name, "sketch_weigh %u/%u x %u of %u, %u bits, at %u", HEADS, KV_HEADS,
             format.columns, dim, bits, TOKENS);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_weigh, &work),
                 (double)PAGES * (double)bytes, 2.0 * HEADS * format.columns * TOKENS);
    free(q);
    free(scratch);
    free(weights);
}

static void bench_making(const struct bench *bench, unsigned char *memory, uint32_t dim)
{
    enum { COUNT = 8 };
    const struct kva_sketch_format format = {(dim * 3 + 9) / 10, 8};
    const size_t from = kva_kv_block_bytes(KV_HEADS, dim);
    float *basis = calloc((size_t)KV_HEADS * dim * dim, sizeof *basis);
    const void *blocks[COUNT];
    void *to[COUNT];
    char name[80];
    for (uint32_t i = 0; i < COUNT; i++) {
        blocks[i] = memory + i * from;
        to[i] = memory + COUNT * from + i * from;
    }
    struct ahead_work work = {.bench = bench};
    work.sketch = (struct kva_sketch_args){.from = blocks,
                                           .to = to,
                                           .by = {.basis = basis},
                                           .count = COUNT,
                                           .kv_heads = KV_HEADS,
                                           .head_dim = dim,
                                           .kv_dtype = KVA_BF16,
                                           .format = format};
    snprintf(name, sizeof name, "sketch %u pages, %u x %u of %u, 8 bits", COUNT, KV_HEADS,
             format.columns, dim);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_sketch, &work),
                 (double)COUNT * (double)from / 2,
                 2.0 * COUNT * KVA_PAGE_TOKENS * KV_HEADS * dim * format.columns);
    free(basis);
}

/* `share` of the tokens are near the largest. */
static void bench_rows(const struct bench *bench, unsigned char *memory, uint32_t dim,
                       uint32_t share)
{
    const uint32_t k = TOKENS * share / 100;
    const size_t block = kva_kv_block_bytes(KV_HEADS, dim), words = (size_t)KV_HEADS * k;
    float *weights = malloc((size_t)KV_HEADS * TOKENS * sizeof *weights);
    uint32_t *chosen = calloc(6 * words + KV_HEADS, sizeof *chosen);
    uint64_t hits[2] = {0}, random = 88172645463325252u;
    const void *pages[PAGES];
    char name[80];
    for (uint32_t i = 0; i < KV_HEADS * TOKENS; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        weights[i] = (float)(random >> 40) * 0x1p-24f;
    }
    struct ahead_work work = {.bench = bench, .layer_bytes = block};
    const struct kva_choose_seq seq = {
        .weights = weights, .chosen = chosen, .stride = TOKENS, .end = TOKENS, .k = k};
    work.choose = (struct kva_choose_args){
        .seqs = &seq, .seq_count = 1, .kv_heads = KV_HEADS, .kind = KVA_CHOOSE_NEAR};
    snprintf(name, sizeof name, "choose %u of %u, %u heads", k, TOKENS, KV_HEADS);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_choose, &work),
                 (double)KV_HEADS * TOKENS * sizeof(float), 0);
    const struct kva_row_cache cache = {.rows = malloc(words * dim * 4),
                                        .chosen = chosen,
                                        .tokens = chosen + words,
                                        .used = chosen + 2 * words,
                                        .order = chosen + 3 * words,
                                        .missing = chosen + 4 * words,
                                        .count = chosen + 6 * words,
                                        .hits = hits,
                                        .slots = k,
                                        .k = k};
    const struct kva_row_cache *caches[] = {&cache};
    work.assign = (struct kva_assign_slots_args){
        .caches = caches, .count = 1, .kv_heads = KV_HEADS, .stamp = 1};
    snprintf(name, sizeof name, "assign_slots %u, %u heads, anew", k, KV_HEADS);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_assign, &work),
                 (double)words * 5 * sizeof(uint32_t), 0);
    /* As many layers as the memory has of so many pages. */
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = memory + i * (COLD_BYTES / PAGES / block * block);
    work.layers = (uint32_t)(COLD_BYTES / PAGES / block);
    const struct kva_rows_fetch fetch = {.cache = &cache, .pages = pages};
    work.fetch = (struct kva_fetch_rows_args){.fetches = &fetch,
                                              .count = 1,
                                              .kv_heads = KV_HEADS,
                                              .head_dim = dim,
                                              .queue = KVA_QUEUE_COMPUTE};
    snprintf(name, sizeof name, "fetch_rows %u of %u, %u x %u, cold", k, TOKENS, KV_HEADS, dim);
    bench_report(bench, name, KVA_BF16, bench_seconds_of(bench->threads, run_fetch, &work),
                 (double)words * dim * 4 * 2, 0);
    float *q = calloc((size_t)HEADS * dim, sizeof *q);
    float *a = calloc((size_t)HEADS * (dim + 2), sizeof *a);
    const struct kva_rows_seq rows = {.row_count = 1, .position_first = TOKENS, .rows = &cache};
    work.attend = (struct kva_attend_rows_args){
        .q = q,
        .out = {a, a + (size_t)HEADS * dim, a + (size_t)HEADS * (dim + 1)},
        .seqs = &rows,
        .seq_count = 1,
        .q_stride = HEADS * dim,
        .heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = dim,
        .kv_dtype = KVA_BF16,
        .scale = 0.1f};
    snprintf(name, sizeof name, "attend_rows %u/%u x %u, %u rows", HEADS, KV_HEADS, dim, k);
    bench_report(bench, name, KVA_BF16, bench_seconds_of(bench->threads, run_attend, &work),
                 (double)words * dim * 4, 4.0 * HEADS * dim * k);
    free(cache.rows);
    free(weights);
    free(chosen);
    free(q);
    free(a);
}

void bench_sketch(const struct bench *bench, unsigned char *memory, bool slow)
{
    if (!bench_wanted(bench, "sketch"))
        return;
    for (uint32_t dim = 64; dim <= (slow ? 64 : 128); dim *= 2) {
        bench_columns(bench, memory, dim, 16);
        bench_columns(bench, memory, dim, 8);
        bench_making(bench, memory, dim);
        bench_rows(bench, memory, dim, 5);
        bench_rows(bench, memory, dim, 20);
    }
}
