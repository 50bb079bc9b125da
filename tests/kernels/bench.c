/* Measurements: each kernel in each level beside the roofs that this machine shows in the same run.
 * Every figure, roofs included, is the best of many short runs, as neighbours only take away. With
 * one thread, time is that thread's processor time, so that others on a busy machine count only by
 * the bandwidth and the cache that they use; with several it is the clock's. */
#include "tests/kernels/bench.h"
#include "base/clock.h"
#include "kernels/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUN_NS   (250 * KVA_NS_PER_MS)
#define BATCH_NS (100 * KVA_NS_PER_US)

static uint64_t now_ns(uint32_t threads)
{
    struct timespec time;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * KVA_NS_PER_S + (uint64_t)time.tv_nsec;
}

/* Seconds of one call: the best of the batches that fit in RUN_NS. */
double bench_seconds_of(uint32_t threads, bench_fn *run, void *opaque)
{
    double best = INFINITY;
    uint64_t begin = now_ns(threads), start, now;
    run(opaque);
    do {
        uint32_t calls = 0;
        start = now_ns(threads);
        do {
            run(opaque);
            calls++;
            now = now_ns(threads);
        } while (now - start < BATCH_NS);
        best = fmin(best, (double)(now - start) * 1e-9 / calls);
    } while (now - begin < RUN_NS);
    return best;
}

/* --- the kernels ------------------------------------------------------------------------------ */

/* `dtype`: of the weights or the KV. */
void bench_report(const struct bench *bench, const char *name, enum kva_dtype dtype, double seconds,
                  double bytes, double flops)
{
    double roof = dtype == KVA_BF16            ? bench->half_gflops
                  : kva_dtype_is_packed(dtype) ? bench->byte_gops
                                               : bench->gflops;
    printf("%-44s %-7s %2u %9.1f us", name, bench->level, bench->threads, seconds * 1e6);
    if (bytes > 0)
        printf("  %6.1f GB/s %3.0f%%", bytes / seconds * 1e-9,
               100 * bytes / seconds * 1e-9 / bench->memory_gbs);
    else
        printf("  %16s", "");
    if (flops > 0)
        printf("  %7.1f GFLOP/s %3.0f%%", flops / seconds * 1e-9,
               100 * flops / seconds * 1e-9 / roof);
    printf("\n");
}

/* Whether something of this kind is wanted. */
bool bench_wanted(const struct bench *bench, const char *op)
{
    return !bench->only || strcmp(bench->only, op) == 0;
}

struct linear_work {
    const struct bench *bench;
    struct kva_linear_args args;
    uint32_t copies; /* of the weights, used in turn so that they come from memory */
    uint32_t turn;
    size_t copy_bytes;
    unsigned char *weights;
};

static void run_linear(void *opaque)
{
    struct linear_work *work = opaque;
    work->args.weight.data = work->weights + work->turn++ % work->copies * work->copy_bytes;
    work->bench->ops->linear(work->bench->device, &work->args);
}

static void bench_linear(const struct bench *bench, unsigned char *memory, enum kva_dtype dtype,
                         uint32_t rows, uint32_t outputs, uint32_t inputs)
{
    if (!bench_wanted(bench, "linear"))
        return;
    float *x = malloc((size_t)rows * inputs * sizeof *x);
    float *out = malloc((size_t)rows * outputs * sizeof *out);
    for (size_t i = 0; i < (size_t)rows * inputs; i++)
        x[i] = (float)(i % 17) * 0.1f;
    struct linear_work work = {.bench = bench, .weights = memory};
    work.args =
        (struct kva_linear_args){.out = out,
                                 .x = x,
                                 .weight = {.dtype = dtype, .rows = outputs, .cols = inputs},
                                 .rows = rows,
                                 .x_stride = inputs,
                                 .out_stride = outputs};
    work.args.weight.data = memory;
    work.copy_bytes = kva_weight_bytes(&work.args.weight);
    work.copies = (uint32_t)kva_max_size(1, COLD_BYTES / work.copy_bytes);
    char name[80];
    snprintf(name, sizeof name, "linear %s rows %u outputs %u inputs %u", kva_dtype_name(dtype),
             rows, outputs, inputs);
    bench_report(bench, name, dtype, bench_seconds_of(bench->threads, run_linear, &work),
                 (double)work.copy_bytes, 2.0 * rows * outputs * inputs);
    free(x);
    free(out);
}

struct attend_work {
    const struct bench *bench;
    struct kva_attend_args args;
};

static void run_attend(void *opaque)
{
    struct attend_work *work = opaque;
    work->bench->ops->attend(work->bench->device, &work->args);
}

/* Sequences of `tokens` tokens whose last `rows` rows are asked for. */
static void bench_attend(const struct bench *bench, unsigned char *memory, enum kva_dtype dtype,
                         const uint32_t shape[3], uint32_t seq_count, uint32_t tokens,
                         uint32_t rows)
{
    if (!bench_wanted(bench, "attend"))
        return;
    uint32_t heads = shape[0], kv_heads = shape[1], dim = shape[2];
    size_t block_bytes = kva_kv_block_bytes(kv_heads, dim);
    uint32_t pages = (uint32_t)kva_div_up(tokens, KVA_PAGE_TOKENS);
    size_t pairs = (size_t)seq_count * rows * heads;
    const void **blocks = malloc(seq_count * pages * sizeof *blocks);
    struct kva_attend_seq *seqs = calloc(seq_count, sizeof *seqs);
    struct kva_attend_range *ranges = calloc(seq_count, sizeof *ranges);
    float *q = malloc(pairs * dim * sizeof *q), *a = malloc(pairs * dim * sizeof *a);
    float *m = malloc(pairs * sizeof *m), *e = malloc(pairs * sizeof *e);
    for (size_t i = 0; i < pairs * dim; i++)
        q[i] = (float)(i % 13) * 0.1f - 0.6f;
    for (uint32_t i = 0; i < seq_count; i++) {
        for (uint32_t j = 0; j < pages; j++)
            blocks[i * pages + j] =
                memory + (i * pages + j) * block_bytes % (COLD_BYTES - block_bytes);
        ranges[i] = (struct kva_attend_range){.token_count = tokens, .block_first = i * pages};
        seqs[i] = (struct kva_attend_seq){.row_first = i * rows,
                                          .row_count = rows,
                                          .position_first = tokens - rows,
                                          .range_first = i,
                                          .range_count = 1};
    }
    struct attend_work work = {.bench = bench};
    work.args = (struct kva_attend_args){.q = q,
                                         .out = {a, m, e},
                                         .seqs = seqs,
                                         .ranges = ranges,
                                         .blocks = blocks,
                                         .seq_count = seq_count,
                                         .q_stride = heads * dim,
                                         .heads = heads,
                                         .kv_heads = kv_heads,
                                         .head_dim = dim,
                                         .kv_dtype = dtype,
                                         .scale = 0.1f};
    char name[80];
    snprintf(name, sizeof name, "attend %s %u/%u x %u seqs %u at %u rows %u", kva_dtype_name(dtype),
             heads, kv_heads, dim, seq_count, tokens, rows);
    double seen = (double)rows * (tokens - (rows - 1) / 2.0);
    bench_report(bench, name, dtype, bench_seconds_of(bench->threads, run_attend, &work),
                 rows == 1 ? (double)seq_count * tokens * kv_heads * dim * 4 : 0,
                 4.0 * seq_count * seen * heads * dim);
    free(blocks);
    free(seqs);
    free(ranges);
    free(q);
    free(a);
    free(m);
    free(e);
}

struct row_work {
    const struct bench *bench;
    struct kva_norm_args norm;
    struct kva_glu_args glu;
    struct kva_rope_args rope;
};

static void run_norm(void *opaque)
{
    struct row_work *work = opaque;
    work->bench->ops->norm(work->bench->device, &work->norm);
}

static void run_glu(void *opaque)
{
    struct row_work *work = opaque;
    work->bench->ops->glu(work->bench->device, &work->glu);
}

static void run_rope(void *opaque)
{
    struct row_work *work = opaque;
    work->bench->ops->rope(work->bench->device, &work->rope);
}

static void bench_rows(const struct bench *bench, uint32_t rows)
{
    if (!bench_wanted(bench, "rows"))
        return;
    const uint32_t dim = 5632;
    float *x = calloc((size_t)rows * dim, sizeof *x), *y = calloc((size_t)rows * dim, sizeof *y);
    uint32_t *positions = calloc(rows, sizeof *positions);
    float inv_freq[64];
    for (size_t i = 0; i < (size_t)rows * dim; i++)
        x[i] = (float)(i % 11) - 5.0f;
    for (int i = 0; i < 64; i++)
        inv_freq[i] = 1.0f / (float)(i + 1);
    struct row_work work = {.bench = bench};
    work.norm = (struct kva_norm_args){.out = y,
                                       .x = x,
                                       .rows = rows,
                                       .dim = 2048,
                                       .eps = 1e-5f,
                                       .weight = {.data = x, .rows = 1, .cols = 2048}};
    work.glu = (struct kva_glu_args){.out = y, .gate = x, .up = x, .rows = rows, .dim = dim};
    work.rope = (struct kva_rope_args){.x = y,
                                       .positions = positions,
                                       .inv_freq = inv_freq,
                                       .rows = rows,
                                       .heads = 32,
                                       .head_dim = 128,
                                       .rotary_dim = 128,
                                       .x_stride = 4096,
                                       .factor = 1};
    char name[80];
    snprintf(name, sizeof name, "norm rms rows %u dim 2048", rows);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_norm, &work),
                 2048.0 * rows * 8, 0);
    snprintf(name, sizeof name, "glu silu rows %u dim 5632", rows);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_glu, &work),
                 5632.0 * rows * 12, 0);
    snprintf(name, sizeof name, "rope rows %u heads 32 x 128", rows);
    bench_report(bench, name, KVA_F32, bench_seconds_of(bench->threads, run_rope, &work),
                 4096.0 * rows * 8, 0);
    free(x);
    free(y);
    free(positions);
}

/* Tensors of a file begin at multiples of 8 bytes: few at a cache line. */
#define WEIGHT_OFFSET_BYTES 24

static void bench_kernels(const struct bench *bench, unsigned char *memory, bool slow)
{
    unsigned char *weights = memory + WEIGHT_OFFSET_BYTES;
    unsigned char *lines = memory; /* packed: in a file they begin at cache lines */
    const uint32_t tiny_llama[3] = {32, 4, 64}, llama[3] = {32, 8, 128}, mha[3] = {16, 16, 128};
    const uint32_t qwen[3] = {12, 2, 128};
    const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 256, 512};
    for (size_t i = 0; i < KVA_COUNT_OF(rows) - (slow ? 3 : 0); i++)
        bench_linear(bench, weights, KVA_BF16, rows[i], 5632, 2048);
    for (size_t i = 0; i < KVA_COUNT_OF(rows) - (slow ? 3 : 0); i++)
        bench_linear(bench, lines, KVA_INT8, rows[i], 5632, 2048);
    /* A format of each way to expand, and the others by one row. */
    const enum kva_dtype packed[] = {KVA_Q4_0, KVA_Q4_1, KVA_Q8_0, KVA_Q4_K, KVA_Q6_K,
                                     KVA_Q5_0, KVA_Q5_1, KVA_Q5_K, KVA_Q2_K, KVA_Q3_K};
    const uint32_t packed_rows[] = {1, 2, 4, 8, 16, 32, 512};
    for (size_t f = 0; f < KVA_COUNT_OF(packed); f++)
        for (size_t i = 0; i < KVA_COUNT_OF(packed_rows) - (slow ? 1 : 0); i += f < 5 ? 1 : 6)
            bench_linear(bench, lines, packed[f], packed_rows[i], 5632, 2048);
    bench_linear(bench, weights, KVA_F16, 1, 5632, 2048);
    bench_linear(bench, weights, KVA_F32, 1, 5632, 2048);
    bench_linear(bench, weights, KVA_BF16, 1, 2048, 5632);
    bench_linear(bench, weights, KVA_BF16, 1, 256, 2048);
    bench_linear(bench, weights, KVA_BF16, 1, 4096, 14336);
    bench_linear(bench, weights, KVA_BF16, 16, 2048, 5632);
    if (!slow) {
        bench_linear(bench, weights, KVA_BF16, 512, 2048, 5632);
        bench_linear(bench, weights, KVA_BF16, 128, 1024, 14336);
        bench_linear(bench, lines, KVA_INT8, 512, 2048, 5632);
        bench_linear(bench, lines, KVA_INT8, 128, 1024, 14336);
    }
    bench_linear(bench, lines, KVA_INT8, 1, 2048, 5632);
    bench_linear(bench, lines, KVA_INT8, 1, 4096, 14336);
    bench_attend(bench, memory, KVA_BF16, tiny_llama, 1, 32768, 1);
    bench_attend(bench, memory, KVA_F16, tiny_llama, 1, 32768, 1);
    bench_attend(bench, memory, KVA_BF16, tiny_llama, 8, 32768, 1);
    bench_attend(bench, memory, KVA_BF16, tiny_llama, 16, 4096, 1);
    bench_attend(bench, memory, KVA_BF16, qwen, 16, 4096, 1);
    bench_attend(bench, memory, KVA_BF16, llama, 1, 16384, 1);
    bench_attend(bench, memory, KVA_F16, llama, 1, 16384, 1);
    bench_attend(bench, memory, KVA_BF16, mha, 1, 16384, 1);
    bench_attend(bench, memory, KVA_F16, mha, 1, 16384, 1);
    if (!slow) {
        bench_attend(bench, memory, KVA_BF16, tiny_llama, 1, 512, 512);
        bench_attend(bench, memory, KVA_BF16, tiny_llama, 1, 2048, 2048);
        bench_attend(bench, memory, KVA_BF16, tiny_llama, 1, 4096, 256);
        bench_attend(bench, memory, KVA_BF16, llama, 1, 4096, 256);
    }
    bench_lowbit(bench, memory, slow);
    bench_keep(bench, memory, slow);
    bench_sketch(bench, memory, slow);
    bench_rows(bench, 1);
    bench_rows(bench, 256);
}

void check_bench(struct check *check, const char *only)
{
    unsigned char *memory = aligned_alloc(4096, COLD_BYTES + 4096);
    if (!memory)
        exit(2);
    /* Ordinary numbers in every format. */
    for (size_t i = 0; i < COLD_BYTES / 2; i++)
        ((uint16_t *)(void *)memory)[i] = (uint16_t)(0x3C00 + i % 251);
    uint32_t cores = 0;
    struct kva_device *probe = NULL;
    if (kva_device_open_cpu(&(struct kva_device_params){0}, &probe, NULL) == KVA_OK)
        cores = kva_device_get_info(probe)->threads;
    printf("%s\n", probe ? kva_device_get_info(probe)->name : "?");
    kva_device_close(probe);
    for (uint32_t threads = cores; threads > 0; threads = threads > 1 ? 1 : 0) {
        struct bench bench = {.threads = threads, .only = only};
        for (uint32_t i = 0; i < check->variant_count; i++) {
            const struct check_variant *variant = &check->variants[i];
            bench.level = variant->name;
            uint32_t levels = kva_device_get_info(variant->one)->cpu_levels;
            struct kva_device_params params = {.threads = threads, .cpu_level_mask = levels};
            struct kva_device_roofs roofs;
            if (kva_device_open_cpu(&params, &bench.device, NULL) != KVA_OK)
                continue;
            if (kva_device_measure(bench.device, &roofs, NULL) != KVA_OK)
                exit(2);
            bench.memory_gbs = roofs.read_bytes_per_s * 1e-9;
            bench.gflops = bench.half_gflops = bench.byte_gops = roofs.f32_flops_per_s * 1e-9;
            if (roofs.bf16_flops_per_s > 0)
                bench.half_gflops = roofs.bf16_flops_per_s * 1e-9;
            if (roofs.int8_ops_per_s > 0)
                bench.byte_gops = roofs.int8_ops_per_s * 1e-9;
            printf("roofs, %s, %u threads: %.1f GB/s, %.1f GFLOP/s (bf16: %.1f, int8: %.1f)\n",
                   bench.level, threads, bench.memory_gbs, bench.gflops,
                   roofs.bf16_flops_per_s * 1e-9, roofs.int8_ops_per_s * 1e-9);
            bench.ops = &variant->ops;
            bench_kernels(&bench, memory, levels == KVA_CPU_REF);
            kva_device_close(bench.device);
        }
    }
    free(memory);
}
