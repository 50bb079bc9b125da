/* Measurements of low-bit KV. Bytes are those of the low-bit blocks alone (quantise: of the 16-bit
 * ones that it reads); products are those of scores and values. */
#include "tests/kernels/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQS     16u
#define TOKENS   32768u
#define HEADS    32u
#define KV_HEADS 4u
#define DIM      64u
#define ROWS     2u
#define K        64u
#define SLOTS    (2 * K)

/* Low-bit blocks: more than caches hold. Codes are random, or scores would be equal. */
#define BLOCK_BYTES (96u << 20)

struct lowbit_work {
    const struct bench *bench;
    struct kva_attend_select_fetch_args attend;
    struct kva_quantise_args quantise;
    struct kva_assign_slots_args resolve;
};

static void run_attend(void *opaque)
{
    struct lowbit_work *work = opaque;
    work->bench->ops->attend_select_fetch(work->bench->device, &work->attend);
}

static void run_quantise(void *opaque)
{
    struct lowbit_work *work = opaque;
    work->bench->ops->quantise(work->bench->device, &work->quantise);
}

static void run_resolve(void *opaque)
{
    struct lowbit_work *work = opaque;
    work->resolve.stamp++;
    work->bench->ops->assign_slots(work->bench->device, &work->resolve);
}

/* Every 512th position is cache, as if it had been chosen. */
static void make_cache(struct kva_row_cache *cache, uint64_t *hits)
{
    *cache = (struct kva_row_cache){.slots = SLOTS, .k = K, .hits = hits};
    cache->rows = calloc((size_t)KV_HEADS * SLOTS * 2 * DIM, 2);
    cache->tokens = calloc(KV_HEADS * SLOTS, 4);
    cache->used = calloc(KV_HEADS * SLOTS, 4);
    cache->order = calloc(KV_HEADS * SLOTS, 4);
    cache->missing = calloc(KV_HEADS * SLOTS, 4);
    cache->count = calloc(KV_HEADS, 4);
    cache->chosen = calloc(KV_HEADS * K, 4);
    for (uint32_t i = 0; i < KV_HEADS * SLOTS; i++)
        cache->tokens[i] = KVA_NO_TOKEN;
    for (uint32_t i = 0; i < KV_HEADS * K; i++)
        cache->chosen[i] = i % K * (TOKENS / K) + 7;
}

/* Blocks of random codes whose levels are ordinary numbers. */
static void fill_blocks(unsigned char *blocks, struct kva_lowbit_format format)
{
    size_t head_bytes = kva_lowbit_head_bytes(format, DIM);
    size_t level_bytes = head_bytes - (size_t)format.bits * 2 * KVA_PAGE_TOKENS * DIM / 8;
    uint64_t state = 1;
    for (size_t i = 0; i + 8 <= BLOCK_BYTES; i += 8) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t bits = state ^ state >> 29;
        if (i % head_bytes < level_bytes) /* f16 from 1/16 to 1/8 */
            bits = (bits & 0x03FF03FF03FF03FFull) | 0x2C002C002C002C00ull;
        memcpy(blocks + i, &bits, sizeof bits);
    }
}

static void free_cache(struct kva_row_cache *cache)
{
    free(cache->rows);
    free(cache->tokens);
    free(cache->used);
    free(cache->order);
    free(cache->missing);
    free(cache->count);
    free(cache->chosen);
}

static void bench_attend(const struct bench *bench, unsigned char *memory, uint32_t bits,
                         uint32_t seq_count, bool select)
{
    struct kva_lowbit_format format = {.bits = bits, .group = 64};
    size_t block_bytes = kva_lowbit_block_bytes(format, KV_HEADS, DIM);
    uint32_t pages = TOKENS / KVA_PAGE_TOKENS;
    size_t pairs = (size_t)seq_count * ROWS * HEADS;
    const void **blocks = malloc(seq_count * pages * sizeof *blocks);
    float *q = malloc(pairs * DIM * sizeof *q), *a = malloc(pairs * (DIM + 2) * sizeof *a);
    size_t scratch_bytes =
        kva_attend_select_bytes(HEADS, KV_HEADS, pages) * (bench->threads > 4 ? 4 : 1);
    void *scratch = malloc(scratch_bytes);
    struct kva_row_cache caches[SEQS];
    const struct kva_row_cache *cache_list[SEQS];
    struct kva_select_seq seqs[SEQS];
    uint64_t hits[2] = {0};
    for (size_t i = 0; i < pairs * DIM; i++)
        q[i] = (float)(i % 13) * 0.1f - 0.6f;
    for (uint32_t i = 0; i < seq_count * pages; i++)
        blocks[i] = memory + i % (BLOCK_BYTES / block_bytes) * block_bytes;
    for (uint32_t i = 0; i < seq_count; i++) {
        make_cache(&caches[i], hits);
        cache_list[i] = &caches[i];
        seqs[i] = (struct kva_select_seq){.row_first = i * ROWS,
                                          .row_count = ROWS,
                                          .position_first = TOKENS,
                                          .block_first = i * pages,
                                          .page_count = pages,
                                          .rows = &caches[i],
                                          .select_row = select ? ROWS - 1 : UINT32_MAX};
    }
    struct lowbit_work work = {.bench = bench};
    work.resolve = (struct kva_assign_slots_args){
        .caches = cache_list, .count = seq_count, .kv_heads = KV_HEADS, .keep = true};
    run_resolve(&work);
    work.attend =
        (struct kva_attend_select_fetch_args){.q = q,
                                              .out = {a, a + pairs * DIM, a + pairs * (DIM + 1)},
                                              .seqs = seqs,
                                              .blocks = blocks,
                                              .scratch = scratch,
                                              .scratch_bytes = scratch_bytes,
                                              .seq_count = seq_count,
                                              .q_stride = HEADS * DIM,
                                              .heads = HEADS,
                                              .kv_heads = KV_HEADS,
                                              .head_dim = DIM,
                                              .kv_dtype = KVA_BF16,
                                              .format = format,
                                              .scale = 0.1f};
    char name[80];
    snprintf(name, sizeof name, "attend_select_fetch %u bit %u/%u x %u seqs %u rows %u%s", bits,
             HEADS, KV_HEADS, DIM, seq_count, ROWS, select ? " select" : "");
    bench_report(bench, name, KVA_INT8, bench_seconds_of(bench->threads, run_attend, &work),
                 (double)block_bytes * pages * seq_count, 4.0 * (double)pairs * TOKENS * DIM);
    if (select && bits == 1 && seq_count > 1) {
        snprintf(name, sizeof name, "assign_slots %u of %u slots, seqs %u kv_heads %u", K, SLOTS,
                 seq_count, KV_HEADS);
        bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_resolve, &work), 0,
                     0);
    }
    for (uint32_t i = 0; i < seq_count; i++)
        free_cache(&caches[i]);
    free(blocks);
    free(q);
    free(a);
    free(scratch);
}

static void bench_quantise(const struct bench *bench, unsigned char *memory, uint32_t bits,
                           enum kva_lowbit_levels levels)
{
    struct kva_lowbit_format format = {
        .bits = bits, .group = 64, .key_levels = levels, .value_levels = levels};
    size_t from_bytes = kva_kv_block_bytes(KV_HEADS, DIM);
    size_t to_bytes = kva_lowbit_block_bytes(format, KV_HEADS, DIM);
    uint32_t count = (uint32_t)(COLD_BYTES / from_bytes);
    unsigned char *out = malloc(count * to_bytes);
    const void **from = malloc(count * sizeof *from);
    void **to = malloc(count * sizeof *to);
    for (uint32_t i = 0; i < count; i++) {
        from[i] = memory + i * from_bytes;
        to[i] = out + i * to_bytes;
    }
    struct lowbit_work work = {.bench = bench};
    work.quantise = (struct kva_quantise_args){.from = from,
                                               .to = to,
                                               .count = count,
                                               .kv_heads = KV_HEADS,
                                               .head_dim = DIM,
                                               .kv_dtype = KVA_BF16,
                                               .format = format};
    char name[80];
    snprintf(name, sizeof name, "quantise %u bit %s kv_heads %u x %u", bits,
             levels == KVA_LEVELS_PAPER ? "paper" : "fit", KV_HEADS, DIM);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_quantise, &work),
                 (double)count * (double)from_bytes, 0);
    free(out);
    free(from);
    free(to);
}

void bench_lowbit(const struct bench *bench, unsigned char *memory, bool slow)
{
    if (!bench_wanted(bench, "lowbit") || slow)
        return;
    unsigned char *blocks = malloc(BLOCK_BYTES);
    for (uint32_t bits = 1; bits <= 4; bits *= 2) {
        fill_blocks(blocks, (struct kva_lowbit_format){.bits = bits, .group = 64});
        bench_attend(bench, blocks, bits, 1, false);
        bench_attend(bench, blocks, bits, 1, true);
        bench_attend(bench, blocks, bits, SEQS, false);
        bench_attend(bench, blocks, bits, SEQS, true);
    }
    free(blocks);
    bench_quantise(bench, memory, 1, KVA_LEVELS_PAPER);
    bench_quantise(bench, memory, 1, KVA_LEVELS_FIT);
    bench_quantise(bench, memory, 2, KVA_LEVELS_PAPER);
    bench_quantise(bench, memory, 2, KVA_LEVELS_FIT);
}
