/* bench.c - what the operators of a CUDA device give, beside what the device gives at most.
 *
 *     bench_cuda --module PATH [--small | --once] [--lowbit TOKENS]
 *
 * Each line is the best of a few batches, each long enough that the host's waiting does not count.
 * Data is random and larger than the caches. --small: shapes that a simulated device can run, to
 * try the program; its figures mean nothing. --once: one call of each operator, for a profiler that
 * takes the figures (tests/gpu/profile). --lowbit: of one sequence over low bits, and nothing else. */
#include "tests/cuda/bench.h"

#include "base/clock.h"
#include "kernels/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 5

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status == KVA_OK)
        return;
    printf("FAILED: %s\n", err->message);
    exit(1);
}

void *bench_take(struct bench *bench, enum kva_mem mem, size_t bytes)
{
    struct kva_err err;
    void *data;
    expect_ok(kva_device_alloc(bench->device, mem, bytes, &data, &err), &err);
    return data;
}

void bench_give(struct bench *bench, enum kva_mem mem, void *data, size_t bytes)
{
    kva_device_free(bench->device, mem, data, bytes);
}

void *bench_take_random(struct bench *bench, size_t bytes)
{
    size_t piece = kva_min_size(bytes, (size_t)16 << 20);
    uint16_t *host = bench_take(bench, KVA_MEM_HOST, piece);
    unsigned char *to = bench_take(bench, KVA_MEM_DEVICE, bytes);
    uint64_t state = 88172645463325252ull;
    for (size_t i = 0; i < piece / 2; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        host[i] = (uint16_t)((state & 0x807F) | (uint16_t)(120 + (state >> 20) % 8) << 7);
    }
    for (size_t at = 0; at < bytes; at += piece)
        kva_device_copy(bench->device, KVA_QUEUE_COMPUTE, to + at, host,
                        kva_min_size(piece, bytes - at));
    kva_device_sync(bench->device, KVA_QUEUE_COMPUTE);
    bench_give(bench, KVA_MEM_HOST, host, piece);
    return to;
}

void bench_put(struct bench *bench, void *to, const void *data, size_t bytes)
{
    void *host = bench_take(bench, KVA_MEM_HOST, bytes);
    memcpy(host, data, bytes);
    kva_device_copy(bench->device, KVA_QUEUE_COMPUTE, to, host, bytes);
    kva_device_sync(bench->device, KVA_QUEUE_COMPUTE);
    bench_give(bench, KVA_MEM_HOST, host, bytes);
}

double bench_seconds(struct bench *bench, enum kva_queue queue, bench_fn *run, const void *opaque)
{
    struct kva_err err;
    double best = 1e9;
    uint32_t calls = 1;
    uint64_t budget = (bench->small ? 1 : 30) * KVA_NS_PER_MS;
    if (bench->once) {
        run(bench, opaque, 0);
        kva_device_sync(bench->device, queue);
        expect_ok(kva_device_error(bench->device, &err), &err);
        return 1;
    }
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

/* Weights in turn, so that none comes from the cache: matrices one behind the other. */
struct turns {
    struct kva_linear_args args; /* of the first */
    uint32_t count;
};

static void run_linear(struct bench *bench, const void *opaque, uint32_t call)
{
    const struct turns *turns = opaque;
    struct kva_linear_args args = turns->args;
    args.weight.data = (const unsigned char *)args.weight.data +
                       call % turns->count * kva_weight_bytes(&args.weight);
    bench->ops->linear(bench->device, &args);
}

/* What all matrices together have, at least. */
#define TURNS_BYTES ((size_t)256 << 20)

static struct turns take_turns(struct bench *bench, enum kva_dtype dtype, uint32_t outputs,
                               uint32_t inputs)
{
    struct kva_weight weight = {bench, dtype, outputs, inputs}; /* with data, or it has no bytes */
    const size_t bytes = kva_weight_bytes(&weight);
    const uint32_t count = bench->small ? 2 : (uint32_t)kva_max_size(4, TURNS_BYTES / bytes);
    weight.data = bench_take_random(bench, count * bytes);
    return (struct turns){{.weight = weight, .x_stride = inputs, .out_stride = outputs}, count};
}

static void give_turns(struct bench *bench, const struct turns *turns)
{
    bench_give(bench, KVA_MEM_DEVICE, (void *)(uintptr_t)turns->args.weight.data,
               turns->count * kva_weight_bytes(&turns->args.weight));
}

static double linear_seconds(struct bench *bench, const struct turns *turns, uint32_t rows)
{
    struct turns own = *turns;
    const struct kva_weight *weight = &own.args.weight;
    size_t x_bytes = (size_t)rows * weight->cols * 2, out_bytes = (size_t)rows * weight->rows * 2;
    void *x = bench_take_random(bench, x_bytes);
    void *out = bench_take(bench, KVA_MEM_DEVICE, out_bytes);
    own.args.x = x;
    own.args.out = out;
    own.args.rows = rows;
    double seconds = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_linear, &own);
    bench_give(bench, KVA_MEM_DEVICE, x, x_bytes);
    bench_give(bench, KVA_MEM_DEVICE, out, out_bytes);
    return seconds;
}

static void bench_roofs(struct bench *bench)
{
    size_t bytes = bench->small ? 1 << 20 : (size_t)4 << 30, host_bytes = bytes / 4;
    void *a = bench_take(bench, KVA_MEM_DEVICE, bytes),
         *b = bench_take(bench, KVA_MEM_DEVICE, bytes);
    void *host = bench_take(bench, KVA_MEM_HOST, host_bytes);
    struct copy copy = {KVA_QUEUE_COMPUTE, a, b, bytes};
    bench->copy_bytes_per_s = 2 * (double)bytes / bench_seconds(bench, copy.queue, run_copy, &copy);
    copy = (struct copy){KVA_QUEUE_COPY, a, host, host_bytes};
    double up = (double)host_bytes / bench_seconds(bench, copy.queue, run_copy, &copy);
    copy = (struct copy){KVA_QUEUE_COPY, host, a, host_bytes};
    double down = (double)host_bytes / bench_seconds(bench, copy.queue, run_copy, &copy);
    bench_give(bench, KVA_MEM_DEVICE, a, bytes);
    bench_give(bench, KVA_MEM_DEVICE, b, bytes);
    bench_give(bench, KVA_MEM_HOST, host, host_bytes);
    uint32_t n = bench->small ? 64 : 8192;
    const struct turns turns = take_turns(bench, KVA_BF16, n, n);
    bench->flops_per_s = 2.0 * n * n * n / linear_seconds(bench, &turns, n);
    give_turns(bench, &turns);
    printf("roofs\n  copy on the device   %8.0f GB/s read and written\n"
           "  host to device       %8.1f GB/s\n  device to host       %8.1f GB/s\n"
           "  bf16 matrices        %8.1f TFLOP/s (%u cubed, random data)\n",
           bench->copy_bytes_per_s * 1e-9, up * 1e-9, down * 1e-9, bench->flops_per_s * 1e-12, n);
}

/* --- linear ----------------------------------------------------------------------------------- */

static void bench_format(struct bench *bench, enum kva_dtype dtype, const uint32_t *rows,
                         size_t rows_count)
{
    static const uint32_t shapes[][2] = {{4096, 4096}, {14336, 4096}, {4096, 14336}};
    printf("linear, %-8s           us      GB/s  %% roof   TFLOP/s  %% roof\n",
           kva_dtype_name(dtype));
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        const uint32_t outputs = bench->small ? 64 : shapes[i][0];
        const uint32_t inputs = bench->small ? 256 : shapes[i][1];
        const struct turns turns = take_turns(bench, dtype, outputs, inputs);
        for (size_t j = 0; j < rows_count; j++) {
            const uint32_t count = bench->small ? 2 : rows[j];
            double seconds = linear_seconds(bench, &turns, count);
            double bytes =
                (double)kva_weight_bytes(&turns.args.weight) + 2.0 * count * (outputs + inputs);
            double flops = 2.0 * count * outputs * inputs;
            printf("  %4u x %5u x %5u  %9.1f %9.0f %7.0f %9.1f %7.0f\n", count, outputs, inputs,
                   seconds * 1e6, bytes / seconds * 1e-9,
                   100 * bytes / seconds / bench->copy_bytes_per_s, flops / seconds * 1e-12,
                   100 * flops / seconds / bench->flops_per_s);
        }
        give_turns(bench, &turns);
    }
}

/* cuBLAS has rows from 17 on, and from 65 on if weights are packed. */
static void bench_linear(struct bench *bench)
{
    static const uint32_t rows[] = {1, 8, 16, 17, 36, 72, 256, 2048}, packed[] = {1, 16, 64, 65};
    bench_format(bench, KVA_BF16, rows, KVA_COUNT_OF(rows));
    bench_format(bench, KVA_Q4_K, packed, KVA_COUNT_OF(packed));
    bench_format(bench, KVA_Q8_0, packed, KVA_COUNT_OF(packed));
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
    struct kva_shortlist_request requests[64];
};

static void run_lists(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct lists *l = opaque;
    bench->ops->shortlist(bench->device, &l->args);
}

/* Lists of the best alone, of what sampling asks for, and of all logits copied to the host. */
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
        void *logits = bench_take_random(bench, bytes),
             *host = bench_take(bench, KVA_MEM_HOST, bytes);
        struct lists l = {.args = {.out = bench_take(bench, KVA_MEM_HOST, out_bytes),
                                   .listed = bench_take(bench, KVA_MEM_HOST, listed_bytes),
                                   .logits = logits,
                                   .requests = NULL,
                                   .count = count,
                                   .vocab = vocab}};
        l.args.requests = l.requests;
        for (uint32_t j = 0; j < count; j++)
            l.requests[j] = (struct kva_shortlist_request){.row = j, .k = 1};
        double best = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_lists, &l);
        for (uint32_t j = 0; j < count; j++)
            l.requests[j] = (struct kva_shortlist_request){
                .row = j, .k = KVA_SHORTLIST_MAX, .temperature = 1, .log_sum = true};
        double listed = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_lists, &l);
        const struct copy copy = {KVA_QUEUE_COMPUTE, host, logits, bytes};
        double all = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_copy, &copy);
        printf("  %4u rows               %9.1f      %9.1f        %9.1f\n", count, best * 1e6,
               listed * 1e6, all * 1e6);
        bench_give(bench, KVA_MEM_HOST, l.args.out, out_bytes);
        bench_give(bench, KVA_MEM_HOST, l.args.listed, listed_bytes);
        bench_give(bench, KVA_MEM_HOST, host, bytes);
        bench_give(bench, KVA_MEM_DEVICE, logits, bytes);
    }
}

static void bench_small(struct bench *bench)
{
    static const uint32_t rows[] = {1, 36, 2048};
    printf("small operators, us     norm 4096  rope 32 x 128  glu 14336\n");
    for (size_t i = 0; i < KVA_COUNT_OF(rows); i++) {
        struct small s = {.rows = bench->small ? 1 : rows[i]};
        size_t bytes = (size_t)s.rows * 14336 * 2;
        s.x = bench_take_random(bench, bytes);
        s.y = bench_take_random(bench, bytes);
        s.weight = (struct kva_weight){s.x, KVA_BF16, 1, 4096};
        s.positions = calloc(s.rows, sizeof *s.positions);
        s.inv_freq = calloc(64, sizeof *s.inv_freq);
        double norm = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_norm, &s);
        double rope = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_rope, &s);
        double glu = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_glu, &s);
        printf("  %4u rows            %9.1f      %9.1f  %9.1f\n", s.rows, norm * 1e6, rope * 1e6,
               glu * 1e6);
        bench_give(bench, KVA_MEM_DEVICE, s.x, bytes);
        bench_give(bench, KVA_MEM_DEVICE, s.y, bytes);
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
    s.x = bench_take_random(bench, bytes);
    s.positions = calloc(1, sizeof *s.positions);
    s.inv_freq = calloc(64, sizeof *s.inv_freq);
    double direct = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_step, &s);
    double held = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_held_step, &s);
    kva_device_get_steps(bench->device, &steps);
    printf(
        "a step of %u small operators, us: one by one %.1f, as a graph %.1f (%llu graphs made)\n",
        STEP_OPERATORS, direct * 1e6, held * 1e6, (unsigned long long)steps.captured);
    bench_give(bench, KVA_MEM_DEVICE, s.x, bytes);
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
        else if (strcmp(argv[i], "--once") == 0)
            bench.once = true;
        else if (strcmp(argv[i], "--lowbit") == 0 && i + 1 < argc)
            bench.lowbit_tokens = (uint32_t)strtoul(argv[++i], NULL, 10);
    }
    if (!module) {
        fprintf(stderr, "usage: %s --module PATH [--small | --once] [--lowbit TOKENS]\n", argv[0]);
        return 2;
    }
    expect_ok(kva_device_open_cuda(module, &params, &bench.device, &err), &err);
    bench.ops = kva_device_ops(bench.device);
    printf("%s\n", kva_device_get_info(bench.device)->name);
    if (bench.lowbit_tokens > 0) {
        bench_lowbit(&bench);
        kva_device_close(bench.device);
        return 0;
    }
    if (!bench.once) {
        bench_roofs(&bench);
        bench_linear(&bench);
    }
    bench_attend(&bench);
    bench_mass(&bench);
    bench_kept(&bench);
    bench_lowbit(&bench);
    bench_small(&bench);
    bench_lists(&bench);
    if (!bench.once)
        bench_steps(&bench);
    kva_device_close(bench.device);
    return 0;
}
