/* Measurements of kept rows: the mass of tokens beside the attention that it goes with, low-bit
 * pages with keys per token, and what is done once per 64 tokens. */
#include "tests/kernels/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADS    32u
#define KV_HEADS 4u
#define DIM      64u

struct keep_work {
    const struct bench *bench;
    struct kva_attend_mass_args mass;
    struct kva_attend_lowbit_args lowbit;
    struct kva_keep_args keep;
    struct kva_store_rows_args store;
    struct kva_row_error_args error;
    struct kva_mean_keys_args mean;
};

static void run_mass(void *opaque)
{
    struct keep_work *work = opaque;
    work->bench->ops->attend_mass(work->bench->device, &work->mass);
}

static void run_lowbit(void *opaque)
{
    struct keep_work *work = opaque;
    work->bench->ops->attend_lowbit(work->bench->device, &work->lowbit);
}

static void run_keep(void *opaque)
{
    struct keep_work *work = opaque;
    work->bench->ops->keep(work->bench->device, &work->keep);
}

static void run_store(void *opaque)
{
    struct keep_work *work = opaque;
    work->bench->ops->store_rows(work->bench->device, &work->store);
}

static void run_error(void *opaque)
{
    struct keep_work *work = opaque;
    work->bench->ops->row_error(work->bench->device, &work->error);
}

static void run_mean(void *opaque)
{
    struct keep_work *work = opaque;
    work->bench->ops->mean_keys(work->bench->device, &work->mean);
}

static float *numbers_new(size_t count, float value)
{
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = value + (float)(i % 13) * 0.1f;
    return x;
}

/* The last `rows` rows of a sequence of `tokens`; products are those of scores. */
static void bench_mass(const struct bench *bench, const unsigned char *memory, enum kva_dtype dtype,
                       uint32_t tokens, uint32_t rows)
{
    const size_t block_bytes = kva_kv_block_bytes(KV_HEADS, DIM), pairs = (size_t)rows * HEADS;
    const uint32_t pages = (uint32_t)kva_div_up(tokens, KVA_PAGE_TOKENS);
    const void **blocks = malloc(pages * sizeof *blocks);
    float *q = numbers_new(pairs * DIM, -0.6f), *mass = numbers_new((size_t)KV_HEADS * tokens, 0);
    float *m = numbers_new(pairs, 20), *e = numbers_new(pairs, 9);
    const struct kva_partial partial = {.m = m, .e = e};
    const struct kva_attend_range range = {.token_count = tokens};
    const struct kva_mass_seq seq = {.row_count = rows,
                                     .position_first = tokens - rows,
                                     .range_count = 1,
                                     .mass = mass,
                                     .mass_stride = tokens};
    struct keep_work work = {.bench = bench};
    char name[80];
    for (uint32_t i = 0; i < pages; i++)
        blocks[i] = memory + i * block_bytes % (COLD_BYTES - block_bytes);
    work.mass = (struct kva_attend_mass_args){.q = q,
                                              .partials = &partial,
                                              .seqs = &seq,
                                              .ranges = &range,
                                              .blocks = blocks,
                                              .partial_count = 1,
                                              .seq_count = 1,
                                              .q_stride = HEADS * DIM,
                                              .heads = HEADS,
                                              .kv_heads = KV_HEADS,
                                              .head_dim = DIM,
                                              .kv_dtype = dtype,
                                              .scale = 0.1f};
    snprintf(name, sizeof name, "attend_mass %s %u/%u x %u at %u rows %u", kva_dtype_name(dtype),
             HEADS, KV_HEADS, DIM, tokens, rows);
    const double seen = (double)rows * (tokens - (rows - 1) / 2.0);
    bench_report(bench, name, dtype, bench_seconds_of(bench->threads, run_mass, &work),
                 rows == 1 ? (double)tokens * KV_HEADS * DIM * 2 : 0, 2.0 * seen * HEADS * DIM);
    free(blocks);
    free(q);
    free(mass);
    free(m);
    free(e);
}

/* Heads of a model. */
struct heads {
    uint32_t all, kv, dim;
};

/* One row before low-bit pages with keys per token; bits 1: KIVI's with 4, to be compared. */
static void bench_tokens(const struct bench *bench, const unsigned char *memory,
                         const struct heads *heads, uint32_t bits)
{
    enum { TOKENS = 65536 };
    const struct kva_lowbit_format format =
        bits == 1 ? (struct kva_lowbit_format){.bits = 4, .group = 64}
                  : kva_lowbit_per_token(bits, heads->dim, KVA_CODING_TURNED);
    const size_t block_bytes = kva_lowbit_block_bytes(format, heads->kv, heads->dim);
    const uint32_t pages = TOKENS / KVA_PAGE_TOKENS, width = heads->all * heads->dim;
    const void **blocks = malloc(pages * sizeof *blocks);
    float *q = numbers_new(width, -0.6f), *a = numbers_new(width + 2 * heads->all, 0);
    const struct kva_lowbit_seq seq = {
        .row_count = 1, .position_first = TOKENS, .page_count = pages};
    struct keep_work work = {.bench = bench};
    char name[80];
    for (uint32_t i = 0; i < pages; i++)
        blocks[i] = memory + i * block_bytes % (COLD_BYTES - block_bytes) / 64 * 64;
    work.lowbit = (struct kva_attend_lowbit_args){.q = q,
                                                  .out = {a, a + width, a + width + heads->all},
                                                  .seqs = &seq,
                                                  .blocks = blocks,
                                                  .seq_count = 1,
                                                  .q_stride = width,
                                                  .heads = heads->all,
                                                  .kv_heads = heads->kv,
                                                  .head_dim = heads->dim,
                                                  .format = format,
                                                  .scale = 0.1f};
    snprintf(name, sizeof name, "attend_lowbit %u bit per %s %u/%u x %u at %u", format.bits,
             bits == 1 ? "channel" : "token", heads->all, heads->kv, heads->dim, TOKENS);
    bench_report(bench, name, KVA_INT8, bench_seconds_of(bench->threads, run_lowbit, &work),
                 (double)block_bytes * pages, 4.0 * TOKENS * width);
    free(blocks);
    free(q);
    free(a);
}

/* Once per layer of a prompt. */
static void bench_mean(const struct bench *bench, const unsigned char *memory)
{
    float *mean = numbers_new(KV_HEADS * DIM, 0);
    struct keep_work work = {.bench = bench,
                             .mean = {.block = memory,
                                      .mean = mean,
                                      .first = 4,
                                      .end = KVA_PAGE_TOKENS,
                                      .kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .kv_dtype = KVA_BF16}};
    char name[80];
    snprintf(name, sizeof name, "mean_keys %u tokens kv_heads %u x %u", KVA_PAGE_TOKENS - 4,
             KV_HEADS, DIM);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_mean, &work), 0, 0);
    free(mean);
}

/* A page leaves: 64 tokens for a full store. */
static void bench_insertion(const struct bench *bench, const unsigned char *memory, uint32_t slots)
{
    const struct kva_lowbit_format format = kva_lowbit_per_token(4, DIM, KVA_CODING_TURNED);
    const uint32_t count = KVA_PAGE_TOKENS, pages = slots / KVA_PAGE_TOKENS;
    const size_t store_bytes = kva_lowbit_block_bytes(format, KV_HEADS, DIM);
    uint32_t *positions = malloc((size_t)KV_HEADS * slots * 4), *to = malloc(KV_HEADS * count * 4);
    float *mass = numbers_new((size_t)KV_HEADS * slots, 1),
          *error = numbers_new(KV_HEADS * slots, 0);
    float *new_mass = numbers_new(KV_HEADS * count, 1),
          *new_error = numbers_new(KV_HEADS * count, 0);
    unsigned char *store = calloc(pages, store_bytes);
    void **blocks = malloc(pages * sizeof *blocks);
    const void *from = memory;
    struct keep_work work = {.bench = bench};
    char name[80];
    for (uint32_t i = 0; i < KV_HEADS * slots; i++)
        positions[i] = i % slots;
    for (uint32_t i = 0; i < KV_HEADS * count; i++)
        to[i] = i % count * 7 % slots;
    for (uint32_t i = 0; i < pages; i++)
        blocks[i] = store + i * store_bytes;
    const struct kva_keep_seq seq = {.store = {positions, mass, error, slots},
                                     .mass = new_mass,
                                     .error = new_error,
                                     .to = malloc(KV_HEADS * count * 4),
                                     .filled = slots,
                                     .count = count,
                                     .stride = count,
                                     .position_first = slots,
                                     .sinks = 4,
                                     .recent = slots / 4,
                                     .pure = slots / 8};
    work.keep = (struct kva_keep_args){.seqs = &seq, .seq_count = 1, .kv_heads = KV_HEADS};
    work.keep.scratch_bytes = kva_keep_scratch_bytes(KV_HEADS, slots, count);
    work.keep.scratch = malloc(work.keep.scratch_bytes);
    work.keep.lambda = 0.5f;
    for (int score = 0; score <= KVA_KEEP_RANK; score++) {
        static const char *const names[] = {"mass", "minmax", "rank"};
        work.keep.score = (enum kva_keep_score)score;
        snprintf(name, sizeof name, "keep %s %u of %u slots kv_heads %u", names[score], count,
                 slots, KV_HEADS);
        bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_keep, &work), 0, 0);
    }
    const struct kva_store_seq rows = {
        .from = &from, .to = blocks, .slots = to, .slot_count = slots, .count = count};
    work.store = (struct kva_store_rows_args){.seqs = &rows,
                                              .seq_count = 1,
                                              .kv_heads = KV_HEADS,
                                              .head_dim = DIM,
                                              .kv_dtype = KVA_BF16,
                                              .format = format};
    snprintf(name, sizeof name, "store_rows 4 bit %u kv_heads %u x %u", count, KV_HEADS, DIM);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_store, &work), 0, 0);
    const struct kva_row_error_seq errors = {
        .blocks = &from, .error = new_error, .count = count, .stride = count};
    work.error = (struct kva_row_error_args){.seqs = &errors,
                                             .seq_count = 1,
                                             .kv_heads = KV_HEADS,
                                             .head_dim = DIM,
                                             .kv_dtype = KVA_BF16,
                                             .format = format};
    snprintf(name, sizeof name, "row_error 4 bit %u kv_heads %u x %u", count, KV_HEADS, DIM);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_error, &work), 0, 0);
    free(seq.to);
    free(work.keep.scratch);
    free(positions);
    free(to);
    free(mass);
    free(error);
    free(new_mass);
    free(new_error);
    free(store);
    free(blocks);
}

void bench_keep(const struct bench *bench, unsigned char *memory, bool slow)
{
    const uint32_t bits[] = {1, 2, 3, 4, 8};
    /* TinyLlama's, and those of SmolLM2 and Qwen2.5 Coder 1.5B. */
    const struct heads heads[] = {{HEADS, KV_HEADS, DIM}, {9, 3, 64}, {12, 2, 128}};
    if (!bench_wanted(bench, "keep") || slow)
        return;
    bench_mass(bench, memory, KVA_BF16, 2048, 512);
    bench_mass(bench, memory, KVA_F16, 2048, 512);
    bench_mass(bench, memory, KVA_BF16, 512, 1);
    bench_mass(bench, memory, KVA_BF16, 32768, 1);
    for (size_t i = 0; i < KVA_COUNT_OF(bits); i++)
        bench_tokens(bench, memory, &heads[0], bits[i]);
    bench_tokens(bench, memory, &heads[1], 4);
    bench_tokens(bench, memory, &heads[2], 4);
    bench_mean(bench, memory);
    bench_insertion(bench, memory, 512);
    bench_insertion(bench, memory, 4096);
}
