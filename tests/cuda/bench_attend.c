/* bench_attend.c - attention over 16-bit pages, what tokens were given, attention over low bits, and
 * what low bits take besides. */
#include "tests/cuda/bench.h"
#include "tests/kernels/attend_apart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    a.q = bench_take_random(bench, a.q_bytes);
    a.pages = bench_take_random(bench, a.page_bytes);
    a.partial = bench_take(bench, KVA_MEM_DEVICE, a.partial_floats * sizeof(float));
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
    bench_give(bench, KVA_MEM_DEVICE, a->q, a->q_bytes);
    bench_give(bench, KVA_MEM_DEVICE, a->pages, a->page_bytes);
    bench_give(bench, KVA_MEM_DEVICE, a->partial, a->partial_floats * sizeof(float));
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

void bench_attend(struct bench *bench)
{
    static const uint32_t decode[][2] = {{1, 8192}, {1, 32768},  {1, 131072},
                                         {8, 8192}, {16, 32768}, {36, 32768}};
    static const uint32_t prefill[][2] = {{2048, 2048}, {2048, 16384}, {512, 32768}};
    printf("decode attention, 16 bit, 32/8 heads of 128     us      GB/s  %% roof\n");
    for (size_t i = 0; i < KVA_COUNT_OF(decode); i++) {
        uint32_t sequences = bench->small ? 2 : decode[i][0];
        struct attention a = attention_new(bench, sequences, 1, bench->small ? 300 : decode[i][1]);
        double seconds = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_attend, &a);
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
        double seconds = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_attend, &a);
        double pairs = (double)rows * (a.tokens - rows) + 0.5 * rows * (rows + 1.0);
        double flops = 4.0 * pairs * HEADS * DIM;
        printf("  %4u rows ending at %6u               %9.1f %9.1f %7.0f\n", rows, a.tokens,
               seconds * 1e6, flops / seconds * 1e-12, 100 * flops / seconds / bench->flops_per_s);
        attention_free(bench, &a);
    }
}

/* --- what tokens were given --------------------------------------------------------------------- */

struct mass {
    const struct attention *a;
    struct kva_mass_seq *seqs;
};

static void run_mass(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct mass *mass = opaque;
    const struct kva_partial partial = partial_of(mass->a);
    bench->ops->attend_mass(bench->device,
                            &(struct kva_attend_mass_args){.q = mass->a->q,
                                                           .partials = &partial,
                                                           .seqs = mass->seqs,
                                                           .ranges = mass->a->ranges,
                                                           .blocks = mass->a->blocks,
                                                           .partial_count = 1,
                                                           .seq_count = mass->a->sequences,
                                                           .q_stride = HEADS * DIM,
                                                           .heads = HEADS,
                                                           .kv_heads = KV_HEADS,
                                                           .head_dim = DIM,
                                                           .kv_dtype = KVA_BF16,
                                                           .scale = 0.088f});
}

/* attend_mass behind attend: keys alone are read, or multiplied. */
static double mass_seconds(struct bench *bench, const struct attention *a)
{
    const size_t bytes = (size_t)a->sequences * KV_HEADS * a->tokens * sizeof(float);
    float *data = bench_take_random(bench, bytes);
    struct mass mass = {a, calloc(a->sequences, sizeof *mass.seqs)};
    for (uint32_t s = 0; s < a->sequences; s++)
        mass.seqs[s] = (struct kva_mass_seq){.row_first = a->seqs[s].row_first,
                                             .row_count = a->rows,
                                             .position_first = a->seqs[s].position_first,
                                             .range_first = s,
                                             .range_count = 1,
                                             .mass = data + (size_t)s * KV_HEADS * a->tokens,
                                             .mass_stride = a->tokens};
    run_attend(bench, a, 0);
    const double seconds = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_mass, &mass);
    bench_give(bench, KVA_MEM_DEVICE, data, bytes);
    free(mass.seqs);
    return seconds;
}

void bench_mass(struct bench *bench)
{
    static const struct {
        uint32_t sequences, rows, tokens;
    } cases[] = {{1, 1, 6592}, {36, 1, 6592}, {1, 64, 16384}, {1, 2048, 16384}};
    printf(
        "attend_mass                                     us      GB/s  %% roof   TFLOP/s  %% roof\n");
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        const uint32_t rows = bench->small ? kva_min_u32(cases[i].rows, 20) : cases[i].rows;
        struct attention a = attention_new(bench, bench->small ? 2 : cases[i].sequences, rows,
                                           bench->small ? 300 : cases[i].tokens);
        const double seconds = mass_seconds(bench, &a), bytes = (double)a.page_bytes / 2;
        const double pairs = rows * (a.tokens - (rows - 1) / 2.0) * a.sequences;
        const double flops = 2.0 * pairs * HEADS * DIM;
        printf("  %2u x %4u rows ending at %6u         %9.1f %9.0f %7.0f %9.1f %7.0f\n",
               a.sequences, rows, a.tokens, seconds * 1e6, bytes / seconds * 1e-9,
               100 * bytes / seconds / bench->copy_bytes_per_s, flops / seconds * 1e-12,
               100 * flops / seconds / bench->flops_per_s);
        attention_free(bench, &a);
    }
}

/* --- low bits --------------------------------------------------------------------------------- */

struct lowbit {
    const struct attention *a;
    struct kva_lowbit_format format;
    struct kva_select_seq *seqs;
    const void **blocks;
    struct kva_row_cache *hot; /* [caches]: one for each sequence, FETCHES_MAX at least */
    void *low, *scratch, *hot_rows;
    unsigned char *state; /* [caches]: all but the rows */
    void **to;            /* quantise: where each page of the first sequence goes */
    const void **from;
    const void **host_from; /* the same pages in the host tier, and again the first FETCHES_MAX */
    void *host;
    size_t low_bytes, scratch_bytes, state_bytes, hot_row_bytes; /* the latter two of a cache */
    uint32_t pages, caches;
};

#define HOT_K       64u
#define HOT_SLOTS   132u
#define HOT_SINKS   4u

#define FETCHES_MAX 32u

static void run_lowbit(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct lowbit *l = opaque;
    attend_apart_once(bench->device, kva_device_ops(bench->device),
                      &(struct kva_attend_select_fetch_args){.q = l->a->q,
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

/* What SpeCache does for a layer, for so many sequences. They read other rows: those that come twice
 * would come from the L2 cache. */
struct rows_bench {
    const struct kva_row_cache *caches[FETCHES_MAX];
    struct kva_rows_fetch fetches[FETCHES_MAX];
    uint32_t count;
};

static void run_resolve(struct bench *bench, const void *opaque, uint32_t call)
{
    const struct rows_bench *rows = opaque;
    bench->ops->assign_slots(bench->device, &(struct kva_assign_slots_args){.caches = rows->caches,
                                                                            .count = rows->count,
                                                                            .kv_heads = KV_HEADS,
                                                                            .stamp = call + 1});
}

static void run_fetch(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    const struct rows_bench *rows = opaque;
    bench->ops->fetch_rows(bench->device, &(struct kva_fetch_rows_args){.fetches = rows->fetches,
                                                                        .count = rows->count,
                                                                        .kv_heads = KV_HEADS,
                                                                        .head_dim = DIM,
                                                                        .queue = KVA_QUEUE_COPY});
}

/* A cache's state in host memory. */
static void fill_cache(unsigned char *host, uint32_t token_count)
{
    const size_t slots = (size_t)KV_HEADS * HOT_SLOTS;
    uint32_t *tokens = (uint32_t *)(void *)(host + 64), *used = tokens + slots;
    uint32_t *order = used + slots, *missing = order + slots, *count = missing + slots;
    uint32_t *chosen = count + KV_HEADS, apart = (token_count - HOT_SINKS) / HOT_K;
    for (uint32_t i = 0; i < slots; i++) {
        uint32_t slot = i % HOT_SLOTS;
        bool pinned = slot < HOT_SINKS, has = slot < HOT_SINKS + HOT_K;
        uint32_t token = pinned ? slot : HOT_SINKS + (slot - HOT_SINKS) * apart;
        tokens[i] = has ? token : KVA_NO_TOKEN;
        order[i] = slot;
        missing[i] = slot < HOT_K ? slot + HOT_SINKS : KVA_NO_TOKEN;
        if (has && !pinned)
            chosen[i / HOT_SLOTS * HOT_K + slot - HOT_SINKS] = token;
    }
    for (uint32_t h = 0; h < KV_HEADS; h++)
        count[h] = HOT_SINKS + HOT_K;
}

/* Each head's slots hold the pinned tokens and, behind them, k that lie far from each other, all of
 * which are to be fetched. */
static void fill_rows(struct bench *bench, struct lowbit *l)
{
    const size_t bytes = l->caches * l->state_bytes;
    unsigned char *host = bench_take(bench, KVA_MEM_HOST, bytes);
    memset(host, 0, bytes);
    for (uint32_t i = 0; i < l->caches; i++)
        fill_cache(host + i * l->state_bytes, l->a->tokens);
    kva_device_copy(bench->device, KVA_QUEUE_COMPUTE, l->state, host, bytes);
    kva_device_sync(bench->device, KVA_QUEUE_COMPUTE);
    bench_give(bench, KVA_MEM_HOST, host, bytes);
}

/* A row cache for every sequence. */
static void hot_new(struct bench *bench, struct lowbit *l)
{
    const size_t slots = (size_t)KV_HEADS * HOT_SLOTS;
    l->caches = kva_max_u32(l->a->sequences, FETCHES_MAX);
    l->hot_row_bytes = slots * 2 * DIM * 2;
    l->state_bytes =
        kva_align_up(64 + (4 * slots + KV_HEADS + (size_t)KV_HEADS * HOT_K) * sizeof(uint32_t), 64);
    l->hot_rows = bench_take_random(bench, l->caches * l->hot_row_bytes);
    l->state = bench_take(bench, KVA_MEM_DEVICE, l->caches * l->state_bytes);
    l->hot = calloc(l->caches, sizeof *l->hot);
    for (uint32_t i = 0; i < l->caches; i++) {
        unsigned char *state = l->state + i * l->state_bytes;
        uint32_t *at = (uint32_t *)(void *)(state + 64);
        l->hot[i] =
            (struct kva_row_cache){.rows = (unsigned char *)l->hot_rows + i * l->hot_row_bytes,
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
    }
    fill_rows(bench, l);
}

static void lowbit_new(struct bench *bench, struct lowbit *l, const struct attention *a,
                       uint32_t bits)
{
    *l = (struct lowbit){.a = a,
                         .format = {.bits = bits, .group = 64, .key_levels = KVA_LEVELS_FIT}};
    size_t block = kva_lowbit_block_bytes(l->format, KV_HEADS, DIM);
    l->pages = (uint32_t)kva_div_up(a->tokens, KVA_PAGE_TOKENS);
    l->low_bytes = (size_t)a->sequences * l->pages * block;
    l->low = bench_take_random(bench, l->low_bytes);
    l->scratch_bytes = a->sequences * kva_attend_select_bytes(HEADS, KV_HEADS, l->pages);
    l->scratch = bench_take(bench, KVA_MEM_DEVICE, l->scratch_bytes);
    l->seqs = calloc(a->sequences, sizeof *l->seqs);
    l->blocks = calloc((size_t)a->sequences * l->pages, sizeof *l->blocks);
    l->to = calloc(l->pages, sizeof *l->to);
    l->from = calloc(l->pages, sizeof *l->from);
    l->host_from = bench_take(bench, KVA_MEM_HOST, (l->pages + FETCHES_MAX) * sizeof *l->host_from);
    l->host = bench_take(bench, KVA_MEM_HOST, l->pages * kva_kv_block_bytes(KV_HEADS, DIM));
    for (size_t i = 0; i < (size_t)a->sequences * l->pages; i++)
        l->blocks[i] = (unsigned char *)l->low + i * block;
    for (uint32_t i = 0; i < l->pages; i++) {
        l->to[i] = (unsigned char *)l->low + i * block;
        l->from[i] = a->blocks[i];
    }
    for (uint32_t i = 0; i < l->pages + FETCHES_MAX; i++)
        l->host_from[i] =
            (unsigned char *)l->host + i % l->pages * kva_kv_block_bytes(KV_HEADS, DIM);
    hot_new(bench, l);
    for (uint32_t s = 0; s < a->sequences; s++)
        l->seqs[s] = (struct kva_select_seq){.row_first = s * a->rows,
                                             .row_count = a->rows,
                                             .position_first = a->tokens,
                                             .block_first = s * l->pages,
                                             .page_count = l->pages,
                                             .rows = &l->hot[s],
                                             .select_row = a->rows - 1};
}

static void lowbit_free(struct bench *bench, struct lowbit *l)
{
    bench_give(bench, KVA_MEM_DEVICE, l->low, l->low_bytes);
    bench_give(bench, KVA_MEM_DEVICE, l->scratch, l->scratch_bytes);
    bench_give(bench, KVA_MEM_DEVICE, l->state, l->caches * l->state_bytes);
    bench_give(bench, KVA_MEM_DEVICE, l->hot_rows, l->caches * l->hot_row_bytes);
    bench_give(bench, KVA_MEM_HOST, (void *)l->host_from,
               (l->pages + FETCHES_MAX) * sizeof *l->host_from);
    bench_give(bench, KVA_MEM_HOST, l->host, l->pages * kva_kv_block_bytes(KV_HEADS, DIM));
    free(l->hot);
    free(l->from);
    free(l->seqs);
    free(l->blocks);
    free(l->to);
}

/* Closing pages, and what is done about chosen rows, for one sequence and for many. */
static void bench_rows(struct bench *bench, struct lowbit *l)
{
    double from = (double)l->pages * (double)kva_kv_block_bytes(KV_HEADS, DIM);
    double quantise = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_quantise, l);
    printf("  quantise %.1f us, %.0f GB/s read\n", quantise * 1e6, from / quantise * 1e-9);
    struct rows_bench rows;
    for (uint32_t i = 0; i < FETCHES_MAX; i++) {
        rows.caches[i] = &l->hot[i];
        rows.fetches[i] = (struct kva_rows_fetch){&l->hot[i], l->host_from + i, NULL};
    }
    for (rows.count = 1; rows.count <= FETCHES_MAX; rows.count *= FETCHES_MAX) {
        double count = (double)rows.count * KV_HEADS * HOT_K;
        double resolve = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_resolve, &rows);
        fill_rows(bench, l); /* all are missing again */
        double fetch = bench_seconds(bench, KVA_QUEUE_COPY, run_fetch, &rows);
        printf("  %2u sequences: resolve %.1f us, fetch of %.0f rows %.1f us, %.1f GB/s\n",
               rows.count, resolve * 1e6, count, fetch * 1e6, count * 2 * DIM * 2 / fetch * 1e-9);
    }
}

/* Attention over low bits, with rows chosen by each sequence's last row or without. */
static void bench_lowbit_case(struct bench *bench, struct lowbit *l, bool choose)
{
    const struct attention *a = l->a;
    for (uint32_t s = 0; s < a->sequences; s++)
        l->seqs[s].select_row = choose ? a->rows - 1 : UINT32_MAX;
    double seconds = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_lowbit, l);
    printf("  %u bit, %2u x %6u tokens%-16s %9.1f %9.0f %7.0f %9.0f\n", l->format.bits,
           a->sequences, a->tokens, choose ? ", rows chosen" : "", seconds * 1e6,
           (double)l->low_bytes / seconds * 1e-9,
           100 * (double)l->low_bytes / seconds / bench->copy_bytes_per_s,
           (double)a->page_bytes / seconds * 1e-9);
}

/* Two rows a sequence, as SpeCache has them. */
void bench_lowbit(struct bench *bench)
{
    static const uint32_t shapes[][2] = {{1, 32768}, {16, 32768}, {36, 32768}};
    printf(
        "low bits, 2 rows a sequence                     us      GB/s  %% roof  of 16-bit bytes, "
        "GB/s\n");
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        uint32_t sequences = bench->small ? 2 : shapes[i][0];
        uint32_t tokens = bench->small ? 300 : shapes[i][1];
        if (bench->lowbit_tokens > 0 && i > 0)
            break;
        struct attention a = attention_new(bench, sequences, 2,
                                           bench->lowbit_tokens ? bench->lowbit_tokens : tokens);
        for (uint32_t bits = 1; bits <= 2; bits++) {
            struct lowbit l;
            lowbit_new(bench, &l, &a, bits);
            run_quantise(bench, &l, 0);
            bench_lowbit_case(bench, &l, false);
            bench_lowbit_case(bench, &l, true);
            if (i == 0)
                bench_rows(bench, &l);
            lowbit_free(bench, &l);
        }
        attention_free(bench, &a);
    }
}
