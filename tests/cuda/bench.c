/* bench.c - what the operators of a CUDA device give, beside what the device gives at most.
 *
 *     bench_cuda --module PATH [--small]
 *
 * Each line is the best of a few batches, each long enough that the host's waiting does not count.
 * Data is random and larger than the caches. --small: shapes that a simulated device can run, to
 * try the program; its figures mean nothing. */
#include "base/clock.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 5

struct bench {
    struct kva_device *device;
    const struct kva_ops *ops;
    bool small;
    double copy_bytes_per_s; /* read and written */
    double flops_per_s;
};

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status == KVA_OK)
        return;
    printf("FAILED: %s\n", err->message);
    exit(1);
}

static void *take(struct bench *bench, enum kva_mem mem, size_t bytes)
{
    struct kva_err err;
    void *data;
    expect_ok(kva_device_alloc(bench->device, mem, bytes, &data, &err), &err);
    return data;
}

static void give(struct bench *bench, enum kva_mem mem, void *data, size_t bytes)
{
    kva_device_free(bench->device, mem, data, bytes);
}

/* Random bf16 numbers between -2 and 2 over all of it: a repeated random piece. */
static void *take_random(struct bench *bench, size_t bytes)
{
    size_t piece = kva_min_size(bytes, (size_t)16 << 20);
    uint16_t *host = take(bench, KVA_MEM_HOST, piece);
    unsigned char *to = take(bench, KVA_MEM_DEVICE, bytes);
    uint64_t state = 88172645463325252ull;
    for (size_t i = 0; i < piece / 2; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        host[i] = (uint16_t)((state & 0x807F) | (uint16_t)(120 + (state >> 20) % 8) << 7);
    }
    for (size_t at = 0; at < bytes; at += piece)
        kva_device_copy(bench->device, KVA_QUEUE_COMPUTE, to + at, host,
                        kva_min_size(piece, bytes - at));
    kva_device_sync(bench->device, KVA_QUEUE_COMPUTE);
    give(bench, KVA_MEM_HOST, host, piece);
    return to;
}

typedef void bench_fn(struct bench *bench, const void *opaque, uint32_t call);

/* Seconds of one call. */
static double seconds_of(struct bench *bench, enum kva_queue queue, bench_fn *run,
                         const void *opaque)
{
    struct kva_err err;
    double best = 1e9;
    uint32_t calls = 1;
    uint64_t budget = (bench->small ? 1 : 30) * KVA_NS_PER_MS;
    for (int batch = 0; batch < BATCHES; batch++) {
        uint64_t start = kva_time_ns();
        for (uint32_t i = 0; i < calls; i++)
            run(bench, opaque, i);
        kva_device_sync(bench->device, queue);
        uint64_t took = kva_time_ns() - start;
        if (took < budget && calls < 4096) { /* warm-up: until a batch is long enough */
            calls *= 2;
            batch = -1;
            continue;
        }
        double seconds = (double)took * 1e-9 / calls;
        best = seconds < best ? seconds : best;
    }
    expect_ok(kva_device_error(bench->device, &err), &err);
    return best;
}

/* --- roofs ------------------------------------------------------------------------------------ */

struct copy {
    enum kva_queue queue;
    void *to;
    const void *from;
    size_t bytes;
};

static void run_copy(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct copy *copy = opaque;
    kva_device_copy(bench->device, copy->queue, copy->to, copy->from, copy->bytes);
}

static void run_linear(struct bench *bench, const void *opaque, uint32_t call)
{
    /* Four weights in turn, so that none comes from the cache. */
    struct kva_linear_args args = *(const struct kva_linear_args *)opaque;
    args.weight.data = (const unsigned char *)args.weight.data +
                       (size_t)(call % 4) * args.weight.rows * args.weight.cols * 2;
    bench->ops->linear(bench->device, &args);
}

static double linear_seconds(struct bench *bench, uint32_t rows, uint32_t outputs, uint32_t inputs)
{
    size_t weight_bytes = (size_t)4 * outputs * inputs * 2;
    size_t x_bytes = (size_t)rows * inputs * 2, out_bytes = (size_t)rows * outputs * 2;
    void *weight = take_random(bench, weight_bytes), *x = take_random(bench, x_bytes);
    void *out = take(bench, KVA_MEM_DEVICE, out_bytes);
    const struct kva_linear_args args = {
        .out = out,
        .x = x,
        .weight = {.data = weight, .dtype = KVA_BF16, .rows = outputs, .cols = inputs},
        .rows = rows,
        .x_stride = inputs,
        .out_stride = outputs,
    };
    double seconds = seconds_of(bench, KVA_QUEUE_COMPUTE, run_linear, &args);
    give(bench, KVA_MEM_DEVICE, weight, weight_bytes);
    give(bench, KVA_MEM_DEVICE, x, x_bytes);
    give(bench, KVA_MEM_DEVICE, out, out_bytes);
    return seconds;
}

static void bench_roofs(struct bench *bench)
{
    size_t bytes = bench->small ? 1 << 20 : (size_t)4 << 30, host_bytes = bytes / 4;
    void *a = take(bench, KVA_MEM_DEVICE, bytes), *b = take(bench, KVA_MEM_DEVICE, bytes);
    void *host = take(bench, KVA_MEM_HOST, host_bytes);
    struct copy copy = {KVA_QUEUE_COMPUTE, a, b, bytes};
    bench->copy_bytes_per_s = 2 * (double)bytes / seconds_of(bench, copy.queue, run_copy, &copy);
    copy = (struct copy){KVA_QUEUE_COPY, a, host, host_bytes};
    double up = (double)host_bytes / seconds_of(bench, copy.queue, run_copy, &copy);
    copy = (struct copy){KVA_QUEUE_COPY, host, a, host_bytes};
    double down = (double)host_bytes / seconds_of(bench, copy.queue, run_copy, &copy);
    give(bench, KVA_MEM_DEVICE, a, bytes);
    give(bench, KVA_MEM_DEVICE, b, bytes);
    give(bench, KVA_MEM_HOST, host, host_bytes);
    uint32_t n = bench->small ? 64 : 8192;
    bench->flops_per_s = 2.0 * n * n * n / linear_seconds(bench, n, n, n);
    printf("roofs\n  copy on the device   %8.0f GB/s read and written\n"
           "  host to device       %8.1f GB/s\n  device to host       %8.1f GB/s\n"
           "  bf16 matrices        %8.1f TFLOP/s (%u cubed, random data)\n",
           bench->copy_bytes_per_s * 1e-9, up * 1e-9, down * 1e-9, bench->flops_per_s * 1e-12, n);
}

/* --- linear ----------------------------------------------------------------------------------- */

static void bench_linear(struct bench *bench)
{
    static const uint32_t shapes[][2] = {{4096, 4096}, {14336, 4096}, {4096, 14336}};
    static const uint32_t rows[] = {1, 8, 36, 72, 256, 2048};
    printf("linear, bf16                us      GB/s  %% roof   TFLOP/s  %% roof\n");
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(rows); j++) {
            uint32_t outputs = bench->small ? 64 : shapes[i][0];
            uint32_t inputs = bench->small ? 64 : shapes[i][1];
            uint32_t count = bench->small ? 2 : rows[j];
            double seconds = linear_seconds(bench, count, outputs, inputs);
            double bytes = 2.0 * outputs * inputs + 2.0 * count * (outputs + inputs);
            double flops = 2.0 * count * outputs * inputs;
            printf("  %4u x %5u x %5u  %9.1f %9.0f %7.0f %9.1f %7.0f\n", count, outputs, inputs,
                   seconds * 1e6, bytes / seconds * 1e-9,
                   100 * bytes / seconds / bench->copy_bytes_per_s, flops / seconds * 1e-12,
                   100 * flops / seconds / bench->flops_per_s);
        }
    }
}

/* --- attention -------------------------------------------------------------------------------- */

#define HEADS    32u
#define KV_HEADS 8u
#define DIM      128u

struct attention {
    uint32_t sequences, rows, tokens; /* rows of each, the last of its tokens */
    void *q, *pages;
    float *partial;
    struct kva_attend_seq *seqs;
    struct kva_attend_range *ranges;
    const void **blocks;
    size_t q_bytes, page_bytes, partial_floats;
};

static struct attention attention_new(struct bench *bench, uint32_t sequences, uint32_t rows,
                                      uint32_t tokens)
{
    struct attention a = {.sequences = sequences, .rows = rows, .tokens = tokens};
    size_t block = kva_kv_block_bytes(KV_HEADS, DIM);
    uint32_t pages = (uint32_t)kva_div_up(tokens, KVA_PAGE_TOKENS);
    size_t pairs = (size_t)sequences * rows * HEADS;
    a.q_bytes = pairs * DIM * 2;
    a.page_bytes = sequences * pages * block;
    a.partial_floats = pairs * (DIM + 2);
    a.q = take_random(bench, a.q_bytes);
    a.pages = take_random(bench, a.page_bytes);
    a.partial = take(bench, KVA_MEM_DEVICE, a.partial_floats * sizeof(float));
    a.seqs = calloc(sequences, sizeof *a.seqs);
    a.ranges = calloc(sequences, sizeof *a.ranges);
    a.blocks = calloc((size_t)sequences * pages, sizeof *a.blocks);
    for (uint32_t s = 0; s < sequences; s++) {
        a.seqs[s] = (struct kva_attend_seq){.row_first = s * rows,
                                            .row_count = rows,
                                            .position_first = tokens - rows,
                                            .range_first = s,
                                            .range_count = 1};
        a.ranges[s] = (struct kva_attend_range){.token_count = tokens, .block_first = s * pages};
        for (size_t i = 0; i < pages; i++)
            a.blocks[s * pages + i] = (unsigned char *)a.pages + (s * pages + i) * block;
    }
    return a;
}

static void attention_free(struct bench *bench, struct attention *a)
{
    give(bench, KVA_MEM_DEVICE, a->q, a->q_bytes);
    give(bench, KVA_MEM_DEVICE, a->pages, a->page_bytes);
    give(bench, KVA_MEM_DEVICE, a->partial, a->partial_floats * sizeof(float));
    free(a->seqs);
    free(a->ranges);
    free(a->blocks);
}

static struct kva_partial partial_of(const struct attention *a)
{
    size_t pairs = (size_t)a->sequences * a->rows * HEADS;
    return (struct kva_partial){a->partial, a->partial + pairs * DIM,
                                a->partial + pairs * (DIM + 1)};
}

static void run_attend(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct attention *a = opaque;
    bench->ops->attend(bench->device, &(struct kva_attend_args){.q = a->q,
                                                                .out = partial_of(a),
                                                                .seqs = a->seqs,
                                                                .ranges = a->ranges,
                                                                .blocks = a->blocks,
                                                                .seq_count = a->sequences,
                                                                .q_stride = HEADS * DIM,
                                                                .heads = HEADS,
                                                                .kv_heads = KV_HEADS,
                                                                .head_dim = DIM,
                                                                .kv_dtype = KVA_BF16,
                                                                .scale = 0.088f});
}

static void bench_attend(struct bench *bench)
{
    static const uint32_t decode[][2] = {{1, 8192}, {1, 32768},  {1, 131072},
                                         {8, 8192}, {16, 32768}, {36, 32768}};
    static const uint32_t prefill[][2] = {{2048, 2048}, {2048, 16384}, {512, 32768}};
    printf("decode attention, 16 bit, 32/8 heads of 128     us      GB/s  %% roof\n");
    for (size_t i = 0; i < KVA_COUNT_OF(decode); i++) {
        uint32_t sequences = bench->small ? 2 : decode[i][0];
        struct attention a = attention_new(bench, sequences, 1, bench->small ? 300 : decode[i][1]);
        double seconds = seconds_of(bench, KVA_QUEUE_COMPUTE, run_attend, &a);
        double bytes = (double)a.page_bytes;
        printf("  %2u sequences of %6u tokens           %9.1f %9.0f %7.0f\n", sequences, a.tokens,
               seconds * 1e6, bytes / seconds * 1e-9,
               100 * bytes / seconds / bench->copy_bytes_per_s);
        attention_free(bench, &a);
    }
    printf("prefill attention                               us   TFLOP/s  %% roof\n");
    for (size_t i = 0; i < KVA_COUNT_OF(prefill); i++) {
        uint32_t rows = bench->small ? 20 : prefill[i][0];
        struct attention a = attention_new(bench, 1, rows, bench->small ? 100 : prefill[i][1]);
        double seconds = seconds_of(bench, KVA_QUEUE_COMPUTE, run_attend, &a);
        double pairs = (double)rows * (a.tokens - rows) + 0.5 * rows * (rows + 1.0);
        double flops = 4.0 * pairs * HEADS * DIM;
        printf("  %4u rows ending at %6u               %9.1f %9.1f %7.0f\n", rows, a.tokens,
               seconds * 1e6, flops / seconds * 1e-12, 100 * flops / seconds / bench->flops_per_s);
        attention_free(bench, &a);
    }
}

/* --- low bits --------------------------------------------------------------------------------- */

struct lowbit {
    const struct attention *a;
    struct kva_lowbit_format format;
    struct kva_lowbit_seq *seqs;
    const void **blocks;
    struct kva_hot hot;
    void *low, *scratch, *state;
    void **to; /* quantise: where each page of the first sequence goes */
    const void **from;
    const void **host_from; /* the same pages in the host tier */
    void *host;
    size_t low_bytes, scratch_bytes, state_bytes, hot_row_bytes;
    uint32_t pages, stamp;
};

#define HOT_K     64u
#define HOT_SLOTS 132u
#define HOT_SINKS 4u

static void run_lowbit(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct lowbit *l = opaque;
    bench->ops->attend_lowbit(bench->device,
                              &(struct kva_attend_lowbit_args){.q = l->a->q,
                                                               .out = partial_of(l->a),
                                                               .seqs = l->seqs,
                                                               .blocks = l->blocks,
                                                               .scratch = l->scratch,
                                                               .scratch_bytes = l->scratch_bytes,
                                                               .seq_count = l->a->sequences,
                                                               .q_stride = HEADS * DIM,
                                                               .heads = HEADS,
                                                               .kv_heads = KV_HEADS,
                                                               .head_dim = DIM,
                                                               .kv_dtype = KVA_BF16,
                                                               .format = l->format,
                                                               .scale = 0.088f});
}

static void run_quantise(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct lowbit *l = opaque;
    bench->ops->quantise(bench->device, &(struct kva_quantise_args){.from = l->from,
                                                                    .to = l->to,
                                                                    .count = l->pages,
                                                                    .kv_heads = KV_HEADS,
                                                                    .head_dim = DIM,
                                                                    .kv_dtype = KVA_BF16,
                                                                    .format = l->format});
}

static void run_resolve(struct bench *bench, const void *opaque, uint32_t call)
{
    const struct lowbit *l = opaque;
    const struct kva_hot *hot = &l->hot;
    bench->ops->resolve(bench->device,
                        &(struct kva_resolve_args){
                            .hots = &hot, .count = 1, .kv_heads = KV_HEADS, .stamp = call + 1});
}

static void run_fetch(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct lowbit *l = opaque;
    const struct kva_hot_fetch fetch = {&l->hot, l->host_from};
    kva_device_fetch_hot(bench->device, KVA_QUEUE_COPY, &fetch, 1, 0, KV_HEADS, DIM);
}

static void lowbit_new(struct bench *bench, struct lowbit *l, const struct attention *a,
                       uint32_t bits)
{
    *l = (struct lowbit){.a = a, .format = {bits, 64, KVA_LEVELS_FIT}};
    size_t block = kva_lowbit_block_bytes(l->format, KV_HEADS, DIM);
    l->pages = (uint32_t)kva_div_up(a->tokens, KVA_PAGE_TOKENS);
    l->low_bytes = (size_t)a->sequences * l->pages * block;
    l->low = take_random(bench, l->low_bytes);
    l->scratch_bytes = a->sequences * kva_attend_lowbit_scratch_bytes(HEADS, l->pages);
    l->scratch = take(bench, KVA_MEM_DEVICE, l->scratch_bytes);
    l->seqs = calloc(a->sequences, sizeof *l->seqs);
    l->blocks = calloc((size_t)a->sequences * l->pages, sizeof *l->blocks);
    l->to = calloc(l->pages, sizeof *l->to);
    l->from = calloc(l->pages, sizeof *l->from);
    l->host_from = take(bench, KVA_MEM_HOST, l->pages * sizeof *l->host_from);
    l->host = take(bench, KVA_MEM_HOST, l->pages * kva_kv_block_bytes(KV_HEADS, DIM));
    for (size_t i = 0; i < (size_t)a->sequences * l->pages; i++)
        l->blocks[i] = (unsigned char *)l->low + i * block;
    for (uint32_t i = 0; i < l->pages; i++) {
        l->to[i] = (unsigned char *)l->low + i * block;
        l->from[i] = a->blocks[i];
        l->host_from[i] = (unsigned char *)l->host + i * kva_kv_block_bytes(KV_HEADS, DIM);
    }
    /* One set of hot rows, for all sequences: what they are does not change the work. */
    size_t slots = (size_t)KV_HEADS * HOT_SLOTS;
    l->hot_row_bytes = slots * 2 * DIM * 2;
    l->state_bytes = (4 * slots + KV_HEADS + KV_HEADS * HOT_K) * sizeof(uint32_t) + 64;
    unsigned char *state = take(bench, KVA_MEM_DEVICE, l->state_bytes);
    uint32_t *at = (uint32_t *)(void *)(state + 64);
    l->state = state;
    l->hot = (struct kva_hot){.rows = take_random(bench, l->hot_row_bytes),
                              .tokens = at,
                              .used = at + slots,
                              .order = at + 2 * slots,
                              .missing = at + 3 * slots,
                              .count = at + 4 * slots,
                              .chosen = at + 4 * slots + KV_HEADS,
                              .hits = (uint64_t *)(void *)state,
                              .slots = HOT_SLOTS,
                              .pinned = HOT_SINKS,
                              .k = HOT_K};
    for (uint32_t s = 0; s < a->sequences; s++)
        l->seqs[s] = (struct kva_lowbit_seq){.row_first = s * a->rows,
                                             .row_count = a->rows,
                                             .position_first = a->tokens,
                                             .block_first = s * l->pages,
                                             .page_count = l->pages,
                                             .hot = s == 0 ? &l->hot : NULL,
                                             .select_row = s == 0 ? a->rows - 1 : UINT32_MAX};
}

static void lowbit_free(struct bench *bench, struct lowbit *l)
{
    give(bench, KVA_MEM_DEVICE, l->low, l->low_bytes);
    give(bench, KVA_MEM_DEVICE, l->scratch, l->scratch_bytes);
    give(bench, KVA_MEM_DEVICE, l->state, l->state_bytes);
    give(bench, KVA_MEM_DEVICE, l->hot.rows, l->hot_row_bytes);
    give(bench, KVA_MEM_HOST, (void *)l->host_from, l->pages * sizeof *l->host_from);
    give(bench, KVA_MEM_HOST, l->host, l->pages * kva_kv_block_bytes(KV_HEADS, DIM));
    free(l->from);
    free(l->seqs);
    free(l->blocks);
    free(l->to);
}

/* Two rows a sequence, as SpeCache has them; the first sequence chooses its hot rows. */
static void bench_lowbit(struct bench *bench)
{
    static const uint32_t shapes[][2] = {{1, 32768}, {16, 32768}, {36, 32768}};
    printf(
        "low bits, 2 rows a sequence                     us      GB/s  %% roof  of 16-bit bytes, "
        "GB/s\n");
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        uint32_t sequences = bench->small ? 2 : shapes[i][0];
        struct attention a = attention_new(bench, sequences, 2, bench->small ? 300 : shapes[i][1]);
        for (uint32_t bits = 1; bits <= 2; bits++) {
            struct lowbit l;
            lowbit_new(bench, &l, &a, bits);
            run_quantise(bench, &l, 0);
            double seconds = seconds_of(bench, KVA_QUEUE_COMPUTE, run_lowbit, &l);
            printf("  %u bit, %2u sequences of %6u tokens    %9.1f %9.0f %7.0f %9.0f\n", bits,
                   sequences, a.tokens, seconds * 1e6, (double)l.low_bytes / seconds * 1e-9,
                   100 * (double)l.low_bytes / seconds / bench->copy_bytes_per_s,
                   (double)a.page_bytes / seconds * 1e-9);
            if (i == 0) {
                double from = (double)l.pages * (double)kva_kv_block_bytes(KV_HEADS, DIM);
                double quantise = seconds_of(bench, KVA_QUEUE_COMPUTE, run_quantise, &l);
                double resolve = seconds_of(bench, KVA_QUEUE_COMPUTE, run_resolve, &l);
                double fetch = seconds_of(bench, KVA_QUEUE_COPY, run_fetch, &l);
                double rows = (double)KV_HEADS * HOT_K;
                printf("  quantise %.0f GB/s read, resolve %.1f us, fetch of %.0f rows %.1f us, "
                       "%.1f GB/s\n",
                       from / quantise * 1e-9, resolve * 1e6, rows, fetch * 1e6,
                       rows * 2 * DIM * 2 / fetch * 1e-9);
            }
            lowbit_free(bench, &l);
        }
        attention_free(bench, &a);
    }
}

/* --- small operators -------------------------------------------------------------------------- */

struct small {
    void *x, *y;
    struct kva_weight weight;
    uint32_t *positions;
    float *inv_freq;
    uint32_t rows;
};

static void run_norm(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct small *s = opaque;
    bench->ops->norm(bench->device, &(struct kva_norm_args){.out = s->y,
                                                            .x = s->x,
                                                            .weight = s->weight,
                                                            .rows = s->rows,
                                                            .dim = 4096,
                                                            .eps = 1e-5f});
}

static void run_rope(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct small *s = opaque;
    bench->ops->rope(bench->device, &(struct kva_rope_args){.x = s->x,
                                                            .positions = s->positions,
                                                            .inv_freq = s->inv_freq,
                                                            .rows = s->rows,
                                                            .heads = 32,
                                                            .head_dim = 128,
                                                            .rotary_dim = 128,
                                                            .x_stride = 4096,
                                                            .factor = 1});
}

static void run_glu(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct small *s = opaque;
    bench->ops->glu(bench->device, &(struct kva_glu_args){.out = s->y,
                                                          .gate = s->x,
                                                          .up = s->y,
                                                          .rows = s->rows,
                                                          .dim = 14336,
                                                          .activation = KVA_ACT_SILU});
}

/* Logits of a large vocabulary, and lists of them. */
struct lists {
    struct kva_shortlist_args args;
    struct kva_shortlist_want wants[64];
};

static void run_lists(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct lists *l = opaque;
    bench->ops->shortlist(bench->device, &l->args);
}

/* Lists of the best alone, of what sampling wants, and, beside them, all logits brought home. */
static void bench_lists(struct bench *bench)
{
    static const uint32_t rows[] = {1, 36, 64};
    const uint32_t vocab = bench->small ? 3000 : 128256;
    printf("logits of %u tokens, us    the best  1024 and sums  all to the host\n", vocab);
    for (size_t i = 0; i < KVA_COUNT_OF(rows); i++) {
        uint32_t count = bench->small ? 1 : rows[i];
        size_t bytes = (size_t)count * vocab * sizeof(float);
        size_t out_bytes = count * sizeof(struct kva_shortlist);
        size_t listed_bytes = count * KVA_SHORTLIST_MAX * sizeof(struct kva_candidate);
        /* Pairs of random bf16 numbers are as good as random fp32. */
        void *logits = take_random(bench, bytes), *host = take(bench, KVA_MEM_HOST, bytes);
        struct lists l = {.args = {.out = take(bench, KVA_MEM_HOST, out_bytes),
                                   .listed = take(bench, KVA_MEM_HOST, listed_bytes),
                                   .logits = logits,
                                   .wants = NULL,
                                   .count = count,
                                   .vocab = vocab}};
        l.args.wants = l.wants;
        for (uint32_t j = 0; j < count; j++)
            l.wants[j] = (struct kva_shortlist_want){.row = j, .best = 1};
        double best = seconds_of(bench, KVA_QUEUE_COMPUTE, run_lists, &l);
        for (uint32_t j = 0; j < count; j++)
            l.wants[j] = (struct kva_shortlist_want){
                .row = j, .best = KVA_SHORTLIST_MAX, .temperature = 1, .log_sum = true};
        double listed = seconds_of(bench, KVA_QUEUE_COMPUTE, run_lists, &l);
        const struct copy copy = {KVA_QUEUE_COMPUTE, host, logits, bytes};
        double all = seconds_of(bench, KVA_QUEUE_COMPUTE, run_copy, &copy);
        printf("  %4u rows               %9.1f      %9.1f        %9.1f\n", count, best * 1e6,
               listed * 1e6, all * 1e6);
        give(bench, KVA_MEM_HOST, l.args.out, out_bytes);
        give(bench, KVA_MEM_HOST, l.args.listed, listed_bytes);
        give(bench, KVA_MEM_HOST, host, bytes);
        give(bench, KVA_MEM_DEVICE, logits, bytes);
    }
}

static void bench_small(struct bench *bench)
{
    static const uint32_t rows[] = {1, 36, 2048};
    printf("small operators, us     norm 4096  rope 32 x 128  glu 14336\n");
    for (size_t i = 0; i < KVA_COUNT_OF(rows); i++) {
        struct small s = {.rows = bench->small ? 1 : rows[i]};
        size_t bytes = (size_t)s.rows * 14336 * 2;
        s.x = take_random(bench, bytes);
        s.y = take_random(bench, bytes);
        s.weight = (struct kva_weight){s.x, KVA_BF16, 1, 4096};
        s.positions = calloc(s.rows, sizeof *s.positions);
        s.inv_freq = calloc(64, sizeof *s.inv_freq);
        double norm = seconds_of(bench, KVA_QUEUE_COMPUTE, run_norm, &s);
        double rope = seconds_of(bench, KVA_QUEUE_COMPUTE, run_rope, &s);
        double glu = seconds_of(bench, KVA_QUEUE_COMPUTE, run_glu, &s);
        printf("  %4u rows            %9.1f      %9.1f  %9.1f\n", s.rows, norm * 1e6, rope * 1e6,
               glu * 1e6);
        give(bench, KVA_MEM_DEVICE, s.x, bytes);
        give(bench, KVA_MEM_DEVICE, s.y, bytes);
        free(s.positions);
        free(s.inv_freq);
    }
}

/* --- steps ------------------------------------------------------------------------------------ */

#define STEP_OPERATORS 512u

/* A step of small operators, each with positions of its own. */
static void run_step(struct bench *bench, const void *opaque, uint32_t call)
{
    struct small s = *(const struct small *)opaque;
    for (uint32_t i = 0; i < (bench->small ? 20 : STEP_OPERATORS); i++) {
        s.positions[0] = call + i;
        run_rope(bench, &s, call);
    }
}

static void run_held_step(struct bench *bench, const void *opaque, uint32_t call)
{
    kva_device_step_begin(bench->device);
    run_step(bench, opaque, call);
    kva_device_step_end(bench->device);
}

static void bench_steps(struct bench *bench)
{
    struct small s = {.rows = 1};
    struct kva_device_steps steps;
    size_t bytes = 4096 * 2;
    s.x = take_random(bench, bytes);
    s.positions = calloc(1, sizeof *s.positions);
    s.inv_freq = calloc(64, sizeof *s.inv_freq);
    double direct = seconds_of(bench, KVA_QUEUE_COMPUTE, run_step, &s);
    double held = seconds_of(bench, KVA_QUEUE_COMPUTE, run_held_step, &s);
    kva_device_get_steps(bench->device, &steps);
    printf(
        "a step of %u small operators, us: one by one %.1f, as a graph %.1f (%llu graphs made)\n",
        STEP_OPERATORS, direct * 1e6, held * 1e6, (unsigned long long)steps.captured);
    give(bench, KVA_MEM_DEVICE, s.x, bytes);
    free(s.positions);
    free(s.inv_freq);
}

int main(int argc, char **argv)
{
    struct bench bench = {0};
    struct kva_err err;
    const char *module = NULL;
    const struct kva_device_params params = {.act = KVA_BF16};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--module") == 0 && i + 1 < argc)
            module = argv[++i];
        else if (strcmp(argv[i], "--small") == 0)
            bench.small = true;
    }
    if (!module) {
        fprintf(stderr, "usage: %s --module PATH [--small]\n", argv[0]);
        return 2;
    }
    expect_ok(kva_device_open_cuda(module, &params, &bench.device, &err), &err);
    bench.ops = kva_device_ops(bench.device);
    printf("%s\n", kva_device_get_info(bench.device)->name);
    bench_roofs(&bench);
    bench_linear(&bench);
    bench_attend(&bench);
    bench_lowbit(&bench);
    bench_small(&bench);
    bench_lists(&bench);
    bench_steps(&bench);
    kva_device_close(bench.device);
    return 0;
}
