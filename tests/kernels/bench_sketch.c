/* Measurements of rows chosen a layer ahead: partial keys made and scored, tokens chosen, rows
 * fetched from cold pages and attended to. */
#include "tests/kernels/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CHOICES: sets of rows that are fetched in turn, so that none is still in a cache. */
enum { HEADS = 32, KV_HEADS = 8, TOKENS = 8192, PAGES = TOKENS / KVA_PAGE_TOKENS, CHOICES = 8 };

struct ahead_work {
    const struct bench *bench;
    struct kva_sketch_args sketch;
    struct kva_sketch_weigh_args weigh;
    struct kva_choose_args choose;
    struct kva_assign_slots_args assign;
    struct kva_fetch_rows_args fetch;
    struct kva_attend_rows_args attend;
    struct kva_rows_fetch fetches[CHOICES];
    size_t layer_bytes; /* of pages, from one fetch to the next: other pages, which are cold */
    uint32_t turn, layers;
    const void *const *pages; /* for copies of whole ones into `rows` */
    unsigned char *rows;
    size_t copy_bytes, page_bytes, row_bytes;
    uint64_t sum; /* of what is read, or nobody would read it */
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
    const uint32_t turn = work->turn++;
    work->fetch.page_offset_bytes = turn % work->layers * work->layer_bytes;
    work->fetch.fetches = &work->fetches[turn / work->layers % CHOICES];
    work->bench->ops->fetch_rows(work->bench->device, &work->fetch);
}

static const uint64_t *row_at(const struct ahead_work *work, size_t layer, uint32_t head,
                              uint32_t token)
{
    const size_t row = head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS;
    const unsigned char *page = work->pages[token / KVA_PAGE_TOKENS];
    return (const uint64_t *)(const void *)(page + layer + row * work->row_bytes);
}

/* What memory gives for the same rows if nothing is done with them: a word of every line is read,
 * with the rows to come on their way into the second level. */
static void run_read(void *opaque)
{
    enum { AHEAD = 16, LINE = 8 };
    struct ahead_work *work = opaque;
    const uint32_t turn = work->turn++;
    const struct kva_row_cache *cache = work->fetches[turn / work->layers % CHOICES].cache;
    const size_t layer = turn % work->layers * work->layer_bytes, words = work->row_bytes / 8;
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        const uint32_t *tokens = cache->tokens + (size_t)head * cache->k;
        for (uint32_t i = 0; i < cache->k; i++) {
            const uint32_t next = kva_min_u32(i + AHEAD, cache->k - 1);
            const uint64_t *ahead = row_at(work, layer, head, tokens[next]);
            const uint64_t *row = row_at(work, layer, head, tokens[i]);
            for (size_t word = 0; word < words; word += LINE)
                __builtin_prefetch(ahead + word, 0, 2);
            for (size_t word = 0; word < words; word += LINE)
                work->sum += row[word];
        }
    }
}

/* What a policy that fetches all does: whole pages, by the copy thread's means. */
static void run_copy(void *opaque)
{
    struct ahead_work *work = opaque;
    const uint32_t turn = work->turn++;
    const size_t layer = turn % work->layers * work->layer_bytes;
    uint32_t page = turn / work->layers % CHOICES * (PAGES / CHOICES);
    for (size_t done = 0; done < work->copy_bytes; done += work->page_bytes, page++)
        memcpy(work->rows + done, (const unsigned char *)work->pages[page % PAGES] + layer,
               kva_min_size(work->page_bytes, work->copy_bytes - done));
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

/* --- rows ------------------------------------------------------------------------------------- */

/* A device's memory of its own, as the engine has its tiers in. */
static void *alloc(const struct bench *bench, enum kva_mem mem, size_t bytes)
{
    void *memory;
    if (kva_device_alloc(bench->device, mem, bytes, &memory, NULL) != KVA_OK)
        exit(2);
    memset(memory, 0, bytes);
    return memory;
}

/* `cache` gets k random tokens a head, in slots. Times of choosing and of finding slots are
 * reported if `loud`. */
static void choose_rows(const struct bench *bench, struct ahead_work *work,
                        const struct kva_row_cache *cache, uint64_t *random, bool loud)
{
    float *weights = malloc((size_t)KV_HEADS * TOKENS * sizeof *weights);
    char name[80];
    for (uint32_t i = 0; i < KV_HEADS * TOKENS; i++) {
        *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
        weights[i] = (float)(*random >> 40) * 0x1p-24f;
    }
    const struct kva_choose_seq seq = {.weights = weights,
                                       .chosen = cache->chosen,
                                       .stride = TOKENS,
                                       .end = TOKENS,
                                       .k = cache->k};
    work->choose = (struct kva_choose_args){
        .seqs = &seq, .seq_count = 1, .kv_heads = KV_HEADS, .kind = KVA_CHOOSE_NEAR};
    work->assign = (struct kva_assign_slots_args){
        .caches = &cache, .count = 1, .kv_heads = KV_HEADS, .stamp = 1};
    run_choose(work);
    run_assign(work);
    if (loud) {
        snprintf(name, sizeof name, "choose %u of %u, %u heads", cache->k, TOKENS, KV_HEADS);
        bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_choose, work),
                     (double)KV_HEADS * TOKENS * sizeof(float), 0);
        snprintf(name, sizeof name, "assign_slots %u, %u heads, anew", cache->k, KV_HEADS);
        bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_assign, work),
                     (double)KV_HEADS * cache->k * 5 * sizeof(uint32_t), 0);
    }
    free(weights);
}

static void bench_fetch(const struct bench *bench, struct ahead_work *work,
                        const struct kva_row_cache *caches, uint32_t dim)
{
    const uint32_t k = caches[0].k;
    const size_t block = kva_kv_block_bytes(KV_HEADS, dim), stride = COLD_BYTES / PAGES;
    unsigned char *memory = alloc(bench, KVA_MEM_HOST, COLD_BYTES);
    const void *pages[PAGES];
    char name[80];
    /* As many layers as the memory has of so many pages. */
    work->layers = (uint32_t)(stride / block);
    work->layer_bytes = block;
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = memory + i * (stride / block * block);
    for (uint32_t i = 0; i < CHOICES; i++)
        work->fetches[i] = (struct kva_rows_fetch){.cache = &caches[i], .pages = pages};
    work->fetch = (struct kva_fetch_rows_args){
        .count = 1, .kv_heads = KV_HEADS, .head_dim = dim, .queue = KVA_QUEUE_COMPUTE};
    work->pages = pages;
    work->copy_bytes = (size_t)KV_HEADS * k * dim * 4;
    work->page_bytes = block;
    work->row_bytes = (size_t)dim * 4;
    work->rows = caches[0].rows;
    snprintf(name, sizeof name, "fetch_rows %u of %u, %u x %u, cold", k, TOKENS, KV_HEADS, dim);
    bench_report(bench, name, KVA_BF16, bench_seconds_of(bench->threads, run_fetch, work),
                 (double)work->copy_bytes, 0);
    if (bench->threads == 1) {
        bench_report(bench, "  these rows, read alone", KVA_BF16,
                     bench_seconds_of(bench->threads, run_read, work), (double)work->copy_bytes, 0);
        bench_report(bench, "  as many bytes, copied in whole pages", KVA_BF16,
                     bench_seconds_of(bench->threads, run_copy, work), (double)work->copy_bytes, 0);
    }
    kva_device_free(bench->device, KVA_MEM_HOST, memory, COLD_BYTES);
}

static void bench_attend_rows(const struct bench *bench, struct ahead_work *work,
                              const struct kva_row_cache *cache, uint32_t dim)
{
    float *q = calloc((size_t)HEADS * dim, sizeof *q);
    float *a = calloc((size_t)HEADS * (dim + 2), sizeof *a);
    char name[80];
    const struct kva_rows_seq rows = {.row_count = 1, .position_first = TOKENS, .rows = cache};
    work->attend = (struct kva_attend_rows_args){
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
    snprintf(name, sizeof name, "attend_rows %u/%u x %u, %u rows", HEADS, KV_HEADS, dim, cache->k);
    bench_report(bench, name, KVA_BF16, bench_seconds_of(bench->threads, run_attend, work),
                 (double)KV_HEADS * cache->k * dim * 4, 4.0 * HEADS * dim * cache->k);
    free(q);
    free(a);
}

/* `share` of the tokens are near the largest. */
static void bench_rows(const struct bench *bench, uint32_t dim, uint32_t share)
{
    const uint32_t k = TOKENS * share / 100;
    const size_t words = (size_t)KV_HEADS * k;
    uint32_t *lists = calloc(CHOICES * (6 * words + KV_HEADS), sizeof *lists);
    uint64_t hits[2] = {0}, random = 88172645463325252u;
    void *rows = alloc(bench, KVA_MEM_DEVICE, words * dim * 4);
    struct kva_row_cache caches[CHOICES];
    struct ahead_work work = {.bench = bench};
    for (uint32_t i = 0; i < CHOICES; i++) {
        uint32_t *list = lists + i * (6 * words + KV_HEADS);
        caches[i] = (struct kva_row_cache){.rows = rows,
                                           .chosen = list,
                                           .tokens = list + words,
                                           .used = list + 2 * words,
                                           .order = list + 3 * words,
                                           .missing = list + 4 * words,
                                           .count = list + 6 * words,
                                           .hits = hits,
                                           .slots = k,
                                           .k = k};
        choose_rows(bench, &work, &caches[i], &random, i == 0);
    }
    bench_fetch(bench, &work, caches, dim);
    bench_attend_rows(bench, &work, &caches[0], dim);
    kva_device_free(bench->device, KVA_MEM_DEVICE, rows, words * dim * 4);
    free(lists);
}

void bench_sketch(const struct bench *bench, unsigned char *memory, bool slow)
{
    if (!bench_wanted(bench, "sketch"))
        return;
    for (uint32_t dim = 64; dim <= (slow ? 64 : 128); dim *= 2) {
        bench_columns(bench, memory, dim, 16);
        bench_columns(bench, memory, dim, 8);
        bench_making(bench, memory, dim);
        bench_rows(bench, dim, 5);
        bench_rows(bench, dim, 20);
    }
}
