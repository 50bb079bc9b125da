/* Cases of attend_lowbit, attend_rows and weigh, each alone and one after the other, and of
 * attend_select_fetch, whose bits are theirs and those of choose. */
#include "tests/kernels/attend_apart.h"
#include "tests/kernels/lowbit_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
};

/* --- building --------------------------------------------------------------------------------- */

static size_t half_bytes(const struct kva_attend_select_fetch_args *args)
{
    const bool tokens = args->format.keys == KVA_KEYS_PER_TOKEN;
    size_t params = (tokens ? 64 : (size_t)64 / args->format.group * args->head_dim) * 2 +
                    ((size_t)args->head_dim + args->format.group - 1) / args->format.group * 128;
    return params * 2;
}

/* Pages of random codes and levels. */
static void make_pages(struct check *check, struct lowbit_test *test, uint32_t seq)
{
    const struct kva_attend_select_fetch_args *args = &test->args;
    size_t head_bytes = kva_lowbit_head_bytes(args->format, args->head_dim);
    for (uint32_t page = 0; page < test->seqs[seq].page_count; page++) {
        struct check_buf *buf = &test->data[seq].pages[page];
        *buf = check_buf_new(args->block_offset_bytes + args->kv_heads * head_bytes);
        check_buf_garbage(check, buf);
        for (uint32_t head = 0; head < args->kv_heads; head++) {
            uint16_t *levels =
                (uint16_t *)buf->data + (args->block_offset_bytes + head * head_bytes) / 2;
            uint32_t k = args->format.keys == KVA_KEYS_PER_TOKEN
                             ? 64
                             : 64 / args->format.group * args->head_dim;
            for (size_t i = 0; i < half_bytes(args) / 2; i++) {
                size_t at = i < 2 * k ? i / k : (i - 2 * k) * 2 / (half_bytes(args) / 2 - 2 * k);
                float x = check_normal(check) / (at ? 1.0f : (float)(1 << args->format.bits));
                levels[i] = check_narrow(at ? x : fabsf(x), KVA_F16);
            }
        }
        test->blocks[test->seqs[seq].block_first + page] = buf->data;
    }
}

/* Some positions of the pages, each KV head's own, about `cached` of them, or, if that is 0, any
 * number; all of them where there are few. */
static void make_cache(struct check *check, struct lowbit_test *test, uint32_t seq, uint32_t cached)
{
    const struct kva_attend_select_fetch_args *args = &test->args;
    struct lowbit_seq_data *data = &test->data[seq];
    uint32_t tokens = test->seqs[seq].page_count * 64, dim = args->head_dim;
    data->positions = calloc((size_t)args->kv_heads * LOWBIT_CACHED_MAX, sizeof *data->positions);
    data->counts = calloc(args->kv_heads, sizeof *data->counts);
    data->rows = calloc((size_t)args->kv_heads * LOWBIT_CACHED_MAX * 2 * dim, sizeof *data->rows);
    const uint32_t wanted[] = {0, 1, 5, 40, 64, 200, 300, 590};
    for (uint32_t head = 0; head < args->kv_heads; head++) {
        uint32_t want = cached ? cached : wanted[check_below(check, KVA_COUNT_OF(wanted))];
        uint32_t count = 0;
        for (uint32_t t = 0; t < tokens && count < LOWBIT_CACHED_MAX; t++) {
            if (t < data->pinned || check_below(check, tokens) < want)
                data->positions[head * LOWBIT_CACHED_MAX + count++] = t;
        }
        data->counts[head] = count;
        data->slots = kva_max_u32(data->slots, count);
    }
    for (size_t i = 0; i < (size_t)args->kv_heads * LOWBIT_CACHED_MAX * 2 * dim; i++)
        data->rows[i] = args->kv_dtype == KVA_F16
                            ? check_narrow(check_normal(check), KVA_F16)
                            : (uint16_t)((check_random(check) & 0x81FF) + 0x3F00);
    data->slots = kva_max_u32(data->slots, data->pinned + data->k) + check_below(check, 20);
}

struct plan {
    struct shape shape;
    struct kva_lowbit_format format;
    uint32_t rows[LOWBIT_SEQS_MAX]; /* 0: no more sequences */
    uint32_t pages[LOWBIT_SEQS_MAX];
    uint32_t window;
    uint32_t k;
    enum kva_dtype dtype;
    enum check_fill fill;
    bool bare;       /* no cached rows */
    uint32_t cached; /* about so many of them; 0: drawn, perhaps none */
    bool mean;       /* keys are without one */
};

static void make_rest(struct check *check, struct lowbit_test *test)
{
    size_t pairs = (size_t)test->rows * test->args.heads;
    test->rest.m = malloc(pairs * sizeof(float));
    test->rest.e = malloc(pairs * sizeof(float));
    for (size_t i = 0; i < pairs; i++) {
        bool none = check_below(check, 5) == 0;
        test->rest.m[i] = none ? -INFINITY : check_normal(check) * 3;
        test->rest.e[i] = none ? 0 : 1 + (float)check_below(check, 50);
    }
    test->with_rest = check_below(check, 4) > 0;
}

static void make_mean(struct check *check, struct lowbit_test *test)
{
    const uint32_t count = test->args.kv_heads * test->args.head_dim;
    test->mean = check_buf_new(count * sizeof(float));
    float *mean = test->mean.data;
    for (uint32_t i = 0; i < count; i++)
        mean[i] = check_normal(check) * (i % 7 ? 1.0f : 20.0f);
    for (uint32_t i = 0; i < test->args.seq_count; i++)
        test->seqs[i].mean = mean;
}

static struct lowbit_test *lowbit_build(struct check *check, const struct plan *plan)
{
    struct lowbit_test *test = calloc(1, sizeof *test);
    struct kva_attend_select_fetch_args *args = &test->args;
    uint32_t dim = plan->shape.head_dim;
    args->heads = plan->shape.heads;
    args->kv_heads = plan->shape.kv_heads;
    args->head_dim = dim;
    args->window = plan->window;
    args->kv_dtype = plan->dtype;
    args->format = plan->format;
    args->scale = 1.0f / sqrtf((float)dim);
    args->block_offset_bytes = check_below(check, 2) ? 64 : 0;
    args->q_stride = (args->heads + check_below(check, 2)) * dim;
    for (uint32_t i = 0; i < LOWBIT_SEQS_MAX && plan->rows[i] > 0; i++) {
        struct kva_select_seq *seq = &test->seqs[args->seq_count++];
        *seq = (struct kva_select_seq){
            .row_first = test->rows, .row_count = plan->rows[i], .page_count = plan->pages[i]};
        seq->position_first = seq->page_count * 64 + check_below(check, 70);
        seq->block_first = i * LOWBIT_PAGES_MAX;
        test->rows += seq->row_count;
        test->data[i].cache = (plan->cached > 0 || check_below(check, 4) > 0) && !plan->bare;
        test->data[i].k = plan->k;
        test->data[i].successor = check_below(check, 2) ? 0.1f : 0.0f;
        test->data[i].pinned = seq->page_count ? check_below(check, 3) * 4 : 0;
        make_pages(check, test, i);
        if (test->data[i].cache)
            make_cache(check, test, i, plan->cached);
    }
    size_t count = (size_t)(test->rows - 1) * args->q_stride + (size_t)args->heads * dim;
    test->q = check_buf_new(count * sizeof(float));
    check_fill(check, plan->fill == FILL_LARGE ? FILL_NORMAL : plan->fill, test->q.data, count);
    for (size_t i = 0; plan->fill == FILL_LARGE && i < count; i++)
        ((float *)test->q.data)[i] *= 30.0f;
    check_round_acts(check, test->q.data, count);
    args->q = test->q.data;
    args->seqs = test->seqs;
    args->blocks = test->blocks;
    make_rest(check, test);
    if (plan->mean)
        make_mean(check, test);
    return test;
}

static void lowbit_free(struct lowbit_test *test)
{
    for (uint32_t i = 0; i < LOWBIT_SEQS_MAX; i++) {
        for (uint32_t j = 0; j < LOWBIT_PAGES_MAX; j++)
            check_buf_free(&test->data[i].pages[j]);
        free(test->data[i].positions);
        free(test->data[i].counts);
        free(test->data[i].rows);
    }
    check_buf_free(&test->q);
    if (test->mean.data)
        check_buf_free(&test->mean);
    free(test->rest.m);
    free(test->rest.e);
    free(test);
}

/* --- running ---------------------------------------------------------------------------------- */

/* A sequence's cached rows, in slots of a random order. */
struct cache_bufs {
    struct kva_row_cache cache;
    struct check_buf rows, tokens, order, count, chosen;
};

static void cache_place(struct check *check, const struct lowbit_seq_data *data, uint32_t kv_head,
                        uint32_t dim, struct kva_row_cache *cache)
{
    uint32_t *tokens = cache->tokens + (size_t)kv_head * cache->slots;
    uint32_t *order = cache->order + (size_t)kv_head * cache->slots;
    uint16_t *rows = (uint16_t *)cache->rows + (size_t)kv_head * cache->slots * 2 * dim;
    for (uint32_t i = 0; i < cache->slots; i++)
        tokens[i] = KVA_NO_TOKEN;
    for (uint32_t i = 0; i < data->counts[kv_head]; i++) {
        uint32_t slot = i;
        while (i >= data->pinned && tokens[slot] != KVA_NO_TOKEN)
            slot = check_between(check, data->pinned, cache->slots - 1);
        if (i == data->pinned) /* the first is put anywhere, too */
            slot = check_between(check, data->pinned, cache->slots - 1);
        while (tokens[slot] != KVA_NO_TOKEN)
            slot = slot + 1 < cache->slots ? slot + 1 : data->pinned;
        tokens[slot] = data->positions[kv_head * LOWBIT_CACHED_MAX + i];
        order[i] = slot;
        memcpy(rows + (size_t)slot * 2 * dim,
               data->rows + ((size_t)kv_head * LOWBIT_CACHED_MAX + i) * 2 * dim,
               2 * dim * sizeof *rows);
    }
    cache->count[kv_head] = data->counts[kv_head];
}

static void cache_new(struct check *check, const struct lowbit_test *test, uint32_t seq,
                      struct cache_bufs *bufs)
{
    const struct lowbit_seq_data *data = &test->data[seq];
    size_t heads = test->args.kv_heads, dim = test->args.head_dim, slots = data->slots;
    bufs->rows = check_buf_new(heads * slots * 2 * dim * 2);
    bufs->tokens = check_buf_new(heads * slots * 4);
    bufs->order = check_buf_new(heads * slots * 4);
    bufs->count = check_buf_new(heads * 4);
    bufs->chosen = check_buf_new(heads * data->k * 4);
    check_buf_garbage(check, &bufs->rows);
    check_buf_garbage(check, &bufs->order);
    check_buf_garbage(check, &bufs->chosen);
    bufs->cache = (struct kva_row_cache){.rows = bufs->rows.data,
                                         .tokens = bufs->tokens.data,
                                         .order = bufs->order.data,
                                         .count = bufs->count.data,
                                         .chosen = bufs->chosen.data,
                                         .slots = data->slots,
                                         .pinned = data->pinned,
                                         .successor = data->successor,
                                         .k = data->k};
    for (uint32_t head = 0; head < heads; head++)
        cache_place(check, data, head, (uint32_t)dim, &bufs->cache);
}

static bool cache_free(struct cache_bufs *bufs)
{
    bool good = check_buf_intact(&bufs->rows) && check_buf_intact(&bufs->tokens) &&
                check_buf_intact(&bufs->order) && check_buf_intact(&bufs->count) &&
                check_buf_intact(&bufs->chosen);
    check_buf_free(&bufs->rows);
    check_buf_free(&bufs->tokens);
    check_buf_free(&bufs->order);
    check_buf_free(&bufs->count);
    check_buf_free(&bufs->chosen);
    return good;
}

static struct kva_partial partial_in(struct check_buf *buf, size_t pairs, size_t dim)
{
    struct kva_partial partial = {.a = buf->data};
    partial.m = partial.a + pairs * dim;
    partial.e = partial.m + pairs;
    return partial;
}

static bool same_partial(const struct kva_partial *a, const struct kva_partial *b, size_t pairs,
                         size_t dim)
{
    return memcmp(a->a, b->a, pairs * dim * sizeof(float)) == 0 &&
           memcmp(a->m, b->m, pairs * sizeof(float)) == 0 &&
           memcmp(a->e, b->e, pairs * sizeof(float)) == 0;
}

/* Whether the fused call gives the bits of the calls that it stands for, which have been made: their
 * results are in args.out, and what they chose in bufs. True where a device has no such call. */
static bool same_fused(struct check *check, const struct check_variant *variant,
                       struct kva_device *device, struct kva_attend_select_fetch_args args,
                       uint32_t rows, const struct cache_bufs *bufs)
{
    const struct kva_partial want = args.out;
    size_t pairs = (size_t)rows * args.heads, dim = args.head_dim;
    if (!variant->ops.attend_select_fetch)
        return true;
    struct check_buf out = check_buf_new(pairs * (dim + 2) * sizeof(float));
    void *chosen[LOWBIT_SEQS_MAX] = {0};
    check_buf_garbage(check, &out);
    args.out = partial_in(&out, pairs, dim);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        if (!args.seqs[i].rows)
            continue;
        chosen[i] = malloc(bufs[i].chosen.bytes);
        memcpy(chosen[i], bufs[i].chosen.data, bufs[i].chosen.bytes);
    }
    variant->ops.attend_select_fetch(device, &args);
    bool same = check_buf_intact(&out) && same_partial(&want, &args.out, pairs, dim);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        same &= !chosen[i] || memcmp(chosen[i], bufs[i].chosen.data, bufs[i].chosen.bytes) == 0;
        free(chosen[i]);
    }
    check_buf_free(&out);
    return same;
}

/* attend_lowbit or attend_rows by itself; `behind`: attend_lowbit's. */
static void run_part(const struct check_variant *variant, struct kva_device *device,
                     const struct kva_attend_select_fetch_args *args, enum lowbit_part part,
                     const struct kva_partial *behind)
{
    struct kva_lowbit_seq low[LOWBIT_SEQS_MAX];
    struct kva_rows_seq rows[LOWBIT_SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_select_seq *seq = &args->seqs[i];
        low[i] = (struct kva_lowbit_seq){.row_first = seq->row_first,
                                         .row_count = seq->row_count,
                                         .position_first = seq->position_first,
                                         .block_first = seq->block_first,
                                         .page_count = seq->page_count,
                                         .rows = seq->rows,
                                         .mean = seq->mean};
        rows[i] = (struct kva_rows_seq){.row_first = seq->row_first,
                                        .row_count = seq->row_count,
                                        .position_first = seq->position_first,
                                        .rows = seq->rows};
    }
    if (part == LOWBIT_PAGES)
        variant->ops.attend_lowbit(
            device, &(struct kva_attend_lowbit_args){.q = args->q,
                                                     .out = args->out,
                                                     .seqs = low,
                                                     .blocks = args->blocks,
                                                     .block_offset_bytes = args->block_offset_bytes,
                                                     .seq_count = args->seq_count,
                                                     .q_stride = args->q_stride,
                                                     .heads = args->heads,
                                                     .kv_heads = args->kv_heads,
                                                     .head_dim = args->head_dim,
                                                     .window = args->window,
                                                     .format = args->format,
                                                     .scale = args->scale,
                                                     .behind = behind});
    else
        variant->ops.attend_rows(device,
                                 &(struct kva_attend_rows_args){.q = args->q,
                                                                .out = args->out,
                                                                .seqs = rows,
                                                                .seq_count = args->seq_count,
                                                                .q_stride = args->q_stride,
                                                                .heads = args->heads,
                                                                .kv_heads = args->kv_heads,
                                                                .head_dim = args->head_dim,
                                                                .window = args->window,
                                                                .kv_dtype = args->kv_dtype,
                                                                .scale = args->scale});
}

static bool has_one_split(const struct kva_attend_select_fetch_args *args)
{
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_row_cache *rows = args->seqs[i].rows;
        for (uint32_t head = 0; rows && head < args->kv_heads; head++) {
            if (rows->count[head] > KVA_ATTEND_SPLIT_TOKENS)
                return false;
        }
    }
    return true;
}

/* Whether rows that attend first, and are folded behind the pages, give the bits of args->out, where
 * they attended behind the pages. True where they are too many for that. */
static bool same_behind(struct check *check, const struct check_variant *variant,
                        struct kva_device *device, const struct kva_attend_select_fetch_args *args,
                        uint32_t rows)
{
    const size_t pairs = (size_t)rows * args->heads, dim = args->head_dim;
    if (!has_one_split(args))
        return true;
    struct check_buf of_rows = check_buf_new(pairs * (dim + 2) * sizeof(float));
    struct check_buf out = check_buf_new(pairs * (dim + 2) * sizeof(float));
    check_buf_garbage(check, &of_rows);
    check_buf_garbage(check, &out);
    struct kva_attend_select_fetch_args again = *args;
    const struct kva_partial behind = partial_in(&of_rows, pairs, dim);
    again.out = behind;
    run_part(variant, device, &again, LOWBIT_ROWS, NULL);
    again.out = partial_in(&out, pairs, dim);
    run_part(variant, device, &again, LOWBIT_PAGES, &behind);
    const bool same = check_buf_intact(&of_rows) && check_buf_intact(&out) &&
                      same_partial(&args->out, &again.out, pairs, dim);
    check_buf_free(&of_rows);
    check_buf_free(&out);
    return same;
}

bool lowbit_run(struct check *check, const struct check_variant *variant, struct kva_device *device,
                const struct lowbit_test *test, uint32_t first, uint32_t rows,
                const uint32_t *select, uint32_t *const *chosen, struct kva_partial out)
{
    struct kva_attend_select_fetch_args args = test->args;
    struct kva_select_seq seqs[LOWBIT_SEQS_MAX];
    struct cache_bufs caches[LOWBIT_SEQS_MAX] = {0};
    uint32_t of[LOWBIT_SEQS_MAX];
    size_t shortest = 0, all = 0;
    args.seq_count = 0;
    for (uint32_t i = 0; i < test->args.seq_count; i++) {
        struct kva_select_seq seq = test->seqs[i];
        uint32_t low = kva_max_u32(seq.row_first, first);
        uint32_t high = kva_min_u32(seq.row_first + seq.row_count, first + rows);
        if (low >= high)
            continue;
        seq.select_row = UINT32_MAX;
        if (select && seq.row_first + select[i] >= low && seq.row_first + select[i] < high)
            seq.select_row = seq.row_first + select[i] - low;
        seq.position_first += low - seq.row_first;
        seq.row_first = low - first;
        seq.row_count = high - low;
        if (test->data[i].cache) {
            cache_new(check, test, i, &caches[args.seq_count]);
            seq.rows = &caches[args.seq_count].cache;
        }
        size_t bytes = kva_attend_select_bytes(args.heads, args.kv_heads, seq.page_count);
        shortest = kva_max_size(shortest, bytes);
        all += bytes;
        of[args.seq_count] = i;
        seqs[args.seq_count++] = seq;
    }
    args.seqs = seqs;
    args.q = (const float *)args.q + (size_t)first * args.q_stride;
    args.out = out;
    struct kva_partial rest = {.m = test->rest.m + (size_t)first * args.heads,
                               .e = test->rest.e + (size_t)first * args.heads};
    args.rest = test->with_rest ? &rest : NULL;
    args.scratch_bytes = check_below(check, 2) ? shortest : all;
    struct check_buf scratch = check_buf_new(args.scratch_bytes);
    check_buf_garbage(check, &scratch);
    args.scratch = scratch.data;
    bool good = true;
    if (test->part == LOWBIT_BOTH) {
        good = attend_apart(device, &variant->ops, &args);
        good = good && !check_fault(variant, device) && check_buf_intact(&scratch) &&
               same_fused(check, variant, device, args, rows, caches) &&
               same_behind(check, variant, device, &args, rows);
    } else {
        run_part(variant, device, &args, test->part, NULL);
    }
    good = good && check_buf_intact(&scratch) && !check_fault(variant, device);
    check_buf_free(&scratch);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        if (seqs[i].rows && chosen && seqs[i].select_row != UINT32_MAX)
            memcpy(chosen[of[i]], caches[i].cache.chosen, caches[i].chosen.bytes);
        good &= cache_free(&caches[i]);
    }
    return good;
}

static struct kva_partial split_row(float *row, size_t heads, size_t dim)
{
    return (struct kva_partial){.a = row, .m = row + heads * dim, .e = row + heads * (dim + 1)};
}

/* Row of `out`: a [heads, head_dim], m [heads], e [heads]. */
static bool run_lowbit(struct check *check, const struct check_variant *variant,
                       struct kva_device *device, const struct check_case *test, uint32_t first,
                       uint32_t rows, float *out)
{
    const struct lowbit_test *lowbit = test->opaque;
    size_t dim = lowbit->args.head_dim, heads = lowbit->args.heads, pairs = rows * heads;
    struct check_buf buf = check_buf_new(pairs * (dim + 2) * sizeof(float));
    check_buf_garbage(check, &buf);
    struct kva_partial partial = partial_in(&buf, pairs, dim);
    bool good = lowbit_run(check, variant, device, lowbit, first, rows, NULL, NULL, partial);
    for (size_t row = 0; row < rows; row++) {
        struct kva_partial to = split_row(out + row * test->stride, heads, dim);
        memcpy(to.a, partial.a + row * heads * dim, heads * dim * sizeof(float));
        memcpy(to.m, partial.m + row * heads, heads * sizeof(float));
        memcpy(to.e, partial.e + row * heads, heads * sizeof(float));
    }
    good &= check_buf_intact(&buf);
    check_buf_free(&buf);
    return good;
}

/* --- cases ------------------------------------------------------------------------------------ */

/* Products of the call. */
static double plan_work(const struct plan *plan)
{
    double work = 0;
    for (uint32_t i = 0; i < LOWBIT_SEQS_MAX && plan->rows[i] > 0; i++)
        work += (double)plan->rows[i] * plan->pages[i] * 64 * plan->shape.heads *
                plan->shape.head_dim * 2;
    return work;
}

/* One operator, or all of them, on what has been built; expect: [4][rows, cols]. */
static void lowbit_part_case(struct check *check, struct lowbit_test *lowbit,
                             const struct plan *plan, enum check_op op, enum lowbit_part part,
                             double *expect)
{
    uint32_t cols = plan->shape.heads * (plan->shape.head_dim + 2);
    size_t count = (size_t)lowbit->rows * cols;
    struct check_case test = {.op = op,
                              .run = run_lowbit,
                              .opaque = lowbit,
                              .rows = lowbit->rows,
                              .cols = cols,
                              .stride = cols,
                              .adjust = lowbit_adjust,
                              .expect = expect,
                              .bound = expect + count,
                              .norm_share = 0.5,
                              .out_f32 = true,
                              .work = plan_work(plan),
                              .needs = {.head_dim_max = plan->shape.head_dim},
                              /* Bounds take every rounding for the worst: together they are far
                               * from it. */
                              .rounding_levels = lowbit_rounding_levels(),
                              .expect_rounded = expect + 2 * count,
                              .bound_rounded = expect + 3 * count,
                              .norm_share_rounded = check->gpu ? 0.5 : 0.1,
                              /* Products of bytes are exact, however they are made. */
                              .same_levels = plan->bare ? KVA_CPU_AVX512VNNI | KVA_CPU_AMX : 0};
    lowbit->part = part;
    snprintf(
        test.name, sizeof test.name,
        "heads %u/%u head_dim %u %u/%u bits%s%s group %u seqs %u rows %u pages %u window %u k %u "
        "%s %s",
        plan->shape.heads, plan->shape.kv_heads, plan->shape.head_dim, plan->format.bits,
        kva_lowbit_value_bits(plan->format),
        plan->format.coding == KVA_CODING_TURNED ? " turned" : "", plan->mean ? " mean" : "",
        plan->format.group, lowbit->args.seq_count, plan->rows[0], plan->pages[0], plan->window,
        plan->k, kva_dtype_name(plan->dtype), check_fill_name(plan->fill));
    lowbit_truth(lowbit, LOWBIT_PRECISE, expect, expect + count);
    lowbit_truth(lowbit, check->gpu ? LOWBIT_GPU : LOWBIT_BYTES, expect + 2 * count,
                 expect + 3 * count);
    check_case(check, &test);
    if (part == LOWBIT_BOTH && (plan->fill == FILL_NORMAL || plan->fill == FILL_LARGE))
        lowbit_check_selection(check, lowbit, test.name, plan->fill == FILL_LARGE ? 0.01 : 1e-4,
                               plan->fill == FILL_LARGE ? 10 : 0.2);
}

/* `alone`: attend_lowbit and attend_rows by themselves, too. */
static void lowbit_case(struct check *check, const struct plan *plan, bool alone)
{
    if (!check_wanted(check, OP_ATTEND_LOWBIT, plan_work(plan)))
        return;
    struct lowbit_test *lowbit = lowbit_build(check, plan);
    uint32_t cols = plan->shape.heads * (plan->shape.head_dim + 2);
    double *expect = malloc(4 * (size_t)lowbit->rows * cols * sizeof(double));
    bool fused = check->variants[check->variant_count - 1].ops.attend_select_fetch;
    if (plan->format.coding == KVA_CODING_PLAIN)
        lowbit_part_case(check, lowbit, plan, fused ? OP_ATTEND_SELECT_FETCH : OP_ATTEND_ROWS,
                         LOWBIT_BOTH, expect);
    if (alone && !plan->bare)
        lowbit_part_case(check, lowbit, plan, OP_ATTEND_ROWS, LOWBIT_ROWS, expect);
    if (alone || plan->bare)
        lowbit_part_case(check, lowbit, plan, OP_ATTEND_LOWBIT, LOWBIT_PAGES, expect);
    free(expect);
    lowbit_free(lowbit);
}

void check_attend_lowbit(struct check *check)
{
    /* stories260K, the bundled model's kind, TinyLlama, Llama 8B, Phi, MHA of 96, MQA. */
    const struct shape shapes[] = {{8, 4, 8},  {8, 1, 64}, {32, 4, 64}, {8, 2, 128},
                                   {4, 4, 80}, {3, 3, 96}, {71, 1, 64}, {6, 2, 20}};
    const uint32_t rows[] = {1, 2, 2, 3, 5, 17};
    const uint32_t bits[][2] = {{1, 0}, {2, 0}, {4, 0}, {1, 2}}; /* of keys, of values */
    const uint32_t pages[] = {0, 1, 2, 3, 4, 5, 8, 9, 17};
    uint32_t rounds = check->quick ? 4 : 12;
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        bool big = shapes[i].heads * shapes[i].head_dim > 512;
        for (uint32_t j = 0; j < rounds; j++) {
            struct plan plan = {.shape = shapes[i],
                                .dtype = (i + j + j / 4) % 2 ? KVA_F16 : KVA_BF16};
            plan.format.bits = bits[j % 4][0];
            plan.format.value_bits = bits[j % 4][1];
            plan.format.group = check_below(check, 3) ? 64 : 32;
            plan.fill = j < 6 ? FILL_NORMAL : (enum check_fill)check_below(check, FILL_COUNT);
            plan.window = check_below(check, 3) ? 0 : check_between(check, 1, 700);
            plan.k = check_below(check, 3) ? check_between(check, 1, 64) : 700;
            uint32_t seqs = check_between(check, 1, big ? 2 : LOWBIT_SEQS_MAX);
            for (uint32_t s = 0; s < seqs; s++) {
                plan.rows[s] = rows[check_below(check, big ? 4 : KVA_COUNT_OF(rows))];
                plan.pages[s] = pages[check_below(check, KVA_COUNT_OF(pages))];
            }
            lowbit_case(check, &plan, j % 3 == 0);
        }
        for (uint32_t j = 0; j < KVA_COUNT_OF(bits); j++) {
            struct plan plan = {.shape = shapes[i], .k = 1, .dtype = KVA_BF16, .bare = true};
            plan.format = (struct kva_lowbit_format){
                .bits = bits[j][0], .value_bits = bits[j][1], .group = (i + j) % 2 ? 32 : 64};
            plan.rows[0] = i % 2 ? 1 : 3;
            plan.pages[0] = 5 + j;
            lowbit_case(check, &plan, false);
        }
    }
    /* Levels per token, turned, with rows and without. */
    const uint32_t token_bits[] = {2, 3, 4, 8};
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        bool big = shapes[i].heads * shapes[i].head_dim > 512;
        for (uint32_t j = 0; j < KVA_COUNT_OF(token_bits) * (check->quick ? 2 : 3); j++) {
            struct plan plan = {.shape = shapes[i], .dtype = j % 2 ? KVA_F16 : KVA_BF16};
            plan.format = kva_lowbit_per_token(token_bits[j % 4], shapes[i].head_dim,
                                               j < 4 ? KVA_CODING_TURNED : KVA_CODING_PLAIN);
            plan.bare = j < 8;
            plan.mean = plan.bare && j % 4 > 0;
            plan.k = plan.bare ? 1 : check_between(check, 1, 64);
            plan.window = check_below(check, 3) ? 0 : check_between(check, 1, 700);
            plan.rows[0] = rows[check_below(check, big ? 4 : KVA_COUNT_OF(rows))];
            plan.pages[0] = pages[check_between(check, 1, big ? 5 : 8)];
            lowbit_case(check, &plan, false);
        }
    }
    /* Few tasks and many splits: the way with partial results. */
    struct plan wide = {.shape = {8, 1, 64}, .rows = {2}, .pages = {LOWBIT_PAGES_MAX}, .k = 64};
    wide.format = (struct kva_lowbit_format){.bits = 1, .group = 64};
    wide.dtype = KVA_BF16;
    lowbit_case(check, &wide, true);
    wide.window = 1700;
    wide.format.bits = 2;
    lowbit_case(check, &wide, true);
    wide.format = kva_lowbit_per_token(3, 64, KVA_CODING_TURNED);
    wide.bare = wide.mean = true;
    lowbit_case(check, &wide, false);
    /* Rows are chosen by groups of any size, however small a case has to be. */
    for (uint32_t heads = 5; heads <= 9; heads += 2) {
        struct plan group = {.shape = {heads, 1, 8}, .rows = {1}, .pages = {2}, .k = 9};
        group.format = (struct kva_lowbit_format){.bits = 2, .group = 64};
        group.dtype = KVA_BF16;
        lowbit_case(check, &group, false);
    }
    /* The same of so many cached rows that some warps of a GPU have more of them than others. */
    for (uint32_t heads = 6; heads <= 8; heads++) {
        struct plan group = {.shape = {heads, 1, 64}, .rows = {1}, .pages = {4}, .k = 60};
        group.format = (struct kva_lowbit_format){.bits = 2, .group = 64};
        group.dtype = heads == 7 ? KVA_F16 : KVA_BF16;
        group.cached = 40;
        lowbit_case(check, &group, false);
    }
    /* Heads of 256. */
    struct plan large = {.shape = {2, 1, 256}, .rows = {1}, .pages = {2}, .k = 8};
    for (uint32_t width = 1; width <= 4; width *= 2) {
        large.dtype = KVA_BF16;
        large.format = (struct kva_lowbit_format){.bits = width, .group = width == 2 ? 32 : 64};
        lowbit_case(check, &large, true);
        large.format.value_bits = width == 1 ? 2 : 0;
        if (width == 1)
            lowbit_case(check, &large, false);
    }
    /* So many tasks, and such large pages, that splits come one after the other, all or some. */
    struct plan many = {.shape = {32, 32, 4}, .rows = {1}, .pages = {17}, .k = 8};
    many.format = (struct kva_lowbit_format){.bits = 2, .group = 64};
    many.dtype = KVA_BF16;
    lowbit_case(check, &many, true);
    many.format = kva_lowbit_per_token(8, 4, KVA_CODING_PLAIN);
    many.bare = true;
    many.shape.heads = many.shape.kv_heads = 24;
    lowbit_case(check, &many, false);
    many.shape.heads = many.shape.kv_heads = 16;
    many.pages[0] = 33;
    lowbit_case(check, &many, false);
}
