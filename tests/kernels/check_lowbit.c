/* Cases of attend_lowbit. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQS_MAX  4
#define PAGES_MAX 40
#define HOT_MAX   600

struct shape {
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
};

/* One sequence of a case: its pages, and the positions and rows that are hot, slots aside. */
struct seq_data {
    struct check_buf pages[PAGES_MAX];
    uint32_t
        *positions;   /* [kv_heads][HOT_MAX], ascending; the first `pinned` are 0 .. pinned - 1 */
    uint32_t *counts; /* [kv_heads] */
    uint16_t *rows;   /* [kv_heads][HOT_MAX][2][head_dim] */
    uint32_t pinned;
    uint32_t slots;
    uint32_t k;
    bool hot;
};

struct lowbit_test {
    struct kva_attend_lowbit_args args; /* of the whole call, without hot rows */
    struct kva_lowbit_seq seqs[SEQS_MAX];
    struct seq_data data[SEQS_MAX];
    const void *blocks[SEQS_MAX * PAGES_MAX];
    struct kva_partial rest; /* of all rows */
    bool with_rest;
    struct check_buf q;
    uint32_t rows;
};

/* --- building --------------------------------------------------------------------------------- */

static size_t half_bytes(const struct kva_attend_lowbit_args *args)
{
    size_t params = (size_t)64 / args->format.group * args->head_dim * 2 +
                    ((size_t)args->head_dim + args->format.group - 1) / args->format.group * 128;
    return params * 2;
}

/* Pages of random codes and levels. */
static void make_pages(struct check *check, struct lowbit_test *test, uint32_t seq)
{
    const struct kva_attend_lowbit_args *args = &test->args;
    size_t head_bytes = kva_lowbit_head_bytes(args->format, args->head_dim);
    for (uint32_t page = 0; page < test->seqs[seq].page_count; page++) {
        struct check_buf *buf = &test->data[seq].pages[page];
        *buf = check_buf_new(args->block_offset_bytes + args->kv_heads * head_bytes);
        check_buf_garbage(check, buf);
        for (uint32_t head = 0; head < args->kv_heads; head++) {
            uint16_t *levels =
                (uint16_t *)buf->data + (args->block_offset_bytes + head * head_bytes) / 2;
            uint32_t k = 64 / args->format.group * args->head_dim;
            for (size_t i = 0; i < half_bytes(args) / 2; i++) {
                size_t at = i < 2 * k ? i / k : (i - 2 * k) * 2 / (half_bytes(args) / 2 - 2 * k);
                float x = check_normal(check) / (at ? 1.0f : (float)(1 << args->format.bits));
                levels[i] = check_narrow(at ? x : fabsf(x), KVA_F16);
            }
        }
        test->blocks[test->seqs[seq].block_first + page] = buf->data;
    }
}

/* Some positions of the pages, each KV head's own; all of them where there are few. */
static void make_hot(struct check *check, struct lowbit_test *test, uint32_t seq)
{
    const struct kva_attend_lowbit_args *args = &test->args;
    struct seq_data *data = &test->data[seq];
    uint32_t tokens = test->seqs[seq].page_count * 64, dim = args->head_dim;
    data->positions = calloc((size_t)args->kv_heads * HOT_MAX, sizeof *data->positions);
    data->counts = calloc(args->kv_heads, sizeof *data->counts);
    data->rows = calloc((size_t)args->kv_heads * HOT_MAX * 2 * dim, sizeof *data->rows);
    const uint32_t wanted[] = {0, 1, 5, 40, 64, 200, 300, 590};
    for (uint32_t head = 0; head < args->kv_heads; head++) {
        uint32_t want = wanted[check_below(check, KVA_COUNT_OF(wanted))], count = 0;
        for (uint32_t t = 0; t < tokens && count < HOT_MAX; t++) {
            if (t < data->pinned || check_below(check, tokens) < want)
                data->positions[head * HOT_MAX + count++] = t;
        }
        data->counts[head] = count;
        data->slots = kva_max_u32(data->slots, count);
    }
    for (size_t i = 0; i < (size_t)args->kv_heads * HOT_MAX * 2 * dim; i++)
        data->rows[i] = args->kv_dtype == KVA_F16
                            ? check_narrow(check_normal(check), KVA_F16)
                            : (uint16_t)((check_random(check) & 0x81FF) + 0x3F00);
    data->slots = kva_max_u32(data->slots, data->pinned + data->k) + check_below(check, 20);
}

struct plan {
    struct shape shape;
    struct kva_lowbit_format format;
    uint32_t rows[SEQS_MAX]; /* 0: no more sequences */
    uint32_t pages[SEQS_MAX];
    uint32_t window;
    uint32_t k;
    enum kva_dtype dtype;
    enum check_fill fill;
    bool bare; /* no hot rows */
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

static struct lowbit_test *lowbit_build(struct check *check, const struct plan *plan)
{
    struct lowbit_test *test = calloc(1, sizeof *test);
    struct kva_attend_lowbit_args *args = &test->args;
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
    for (uint32_t i = 0; i < SEQS_MAX && plan->rows[i] > 0; i++) {
        struct kva_lowbit_seq *seq = &test->seqs[args->seq_count++];
        *seq = (struct kva_lowbit_seq){
            .row_first = test->rows, .row_count = plan->rows[i], .page_count = plan->pages[i]};
        seq->position_first = seq->page_count * 64 + check_below(check, 70);
        seq->block_first = i * PAGES_MAX;
        test->rows += seq->row_count;
        test->data[i].hot = check_below(check, 4) > 0 && !plan->bare;
        test->data[i].k = plan->k;
        test->data[i].pinned = seq->page_count ? check_below(check, 3) * 4 : 0;
        make_pages(check, test, i);
        if (test->data[i].hot)
            make_hot(check, test, i);
    }
    size_t count = (size_t)(test->rows - 1) * args->q_stride + (size_t)args->heads * dim;
    test->q = check_buf_new(count * sizeof(float));
    check_fill(check, plan->fill == FILL_LARGE ? FILL_NORMAL : plan->fill, test->q.data, count);
    for (size_t i = 0; plan->fill == FILL_LARGE && i < count; i++)
        ((float *)test->q.data)[i] *= 30.0f;
    args->q = test->q.data;
    args->seqs = test->seqs;
    args->blocks = test->blocks;
    make_rest(check, test);
    return test;
}

static void lowbit_free(struct lowbit_test *test)
{
    for (uint32_t i = 0; i < SEQS_MAX; i++) {
        for (uint32_t j = 0; j < PAGES_MAX; j++)
            check_buf_free(&test->data[i].pages[j]);
        free(test->data[i].positions);
        free(test->data[i].counts);
        free(test->data[i].rows);
    }
    check_buf_free(&test->q);
    free(test->rest.m);
    free(test->rest.e);
    free(test);
}

/* --- running ---------------------------------------------------------------------------------- */

/* A sequence's hot rows, in slots of a random order. */
struct hot_bufs {
    struct kva_hot hot;
    struct check_buf rows, tokens, order, count, chosen;
};

static void hot_place(struct check *check, const struct seq_data *data, uint32_t kv_head,
                      uint32_t dim, struct kva_hot *hot)
{
    uint32_t *tokens = hot->tokens + (size_t)kv_head * hot->slots;
    uint32_t *order = hot->order + (size_t)kv_head * hot->slots;
    uint16_t *rows = (uint16_t *)hot->rows + (size_t)kv_head * hot->slots * 2 * dim;
    for (uint32_t i = 0; i < hot->slots; i++)
        tokens[i] = KVA_NO_TOKEN;
    for (uint32_t i = 0; i < data->counts[kv_head]; i++) {
        uint32_t slot = i;
        while (i >= data->pinned && tokens[slot] != KVA_NO_TOKEN)
            slot = check_between(check, data->pinned, hot->slots - 1);
        if (i == data->pinned) /* the first is put anywhere, too */
            slot = check_between(check, data->pinned, hot->slots - 1);
        while (tokens[slot] != KVA_NO_TOKEN)
            slot = slot + 1 < hot->slots ? slot + 1 : data->pinned;
        tokens[slot] = data->positions[kv_head * HOT_MAX + i];
        order[i] = slot;
        memcpy(rows + (size_t)slot * 2 * dim,
               data->rows + ((size_t)kv_head * HOT_MAX + i) * 2 * dim, 2 * dim * sizeof *rows);
    }
    hot->count[kv_head] = data->counts[kv_head];
}

static void hot_new(struct check *check, const struct lowbit_test *test, uint32_t seq,
                    struct hot_bufs *bufs)
{
    const struct seq_data *data = &test->data[seq];
    size_t heads = test->args.kv_heads, dim = test->args.head_dim, slots = data->slots;
    bufs->rows = check_buf_new(heads * slots * 2 * dim * 2);
    bufs->tokens = check_buf_new(heads * slots * 4);
    bufs->order = check_buf_new(heads * slots * 4);
    bufs->count = check_buf_new(heads * 4);
    bufs->chosen = check_buf_new(heads * data->k * 4);
    check_buf_garbage(check, &bufs->rows);
    check_buf_garbage(check, &bufs->order);
    check_buf_garbage(check, &bufs->chosen);
    bufs->hot = (struct kva_hot){.rows = bufs->rows.data,
                                 .tokens = bufs->tokens.data,
                                 .order = bufs->order.data,
                                 .count = bufs->count.data,
                                 .chosen = bufs->chosen.data,
                                 .slots = data->slots,
                                 .pinned = data->pinned,
                                 .k = data->k};
    for (uint32_t head = 0; head < heads; head++)
        hot_place(check, data, head, (uint32_t)dim, &bufs->hot);
}

static bool hot_free(struct hot_bufs *bufs)
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

/* Rows [first, first + rows) of the case as one call. Sequence s selects with row select[s] of its
 * own, if that is among them, and chosen[s] gets what it chose; select NULL: none does. */
static bool run_rows(struct check *check, const struct check_variant *variant,
                     struct kva_device *device, const struct lowbit_test *test, uint32_t first,
                     uint32_t rows, const uint32_t *select, uint32_t *const *chosen,
                     struct kva_partial out)
{
    struct kva_attend_lowbit_args args = test->args;
    struct kva_lowbit_seq seqs[SEQS_MAX];
    struct hot_bufs hots[SEQS_MAX] = {0};
    uint32_t of[SEQS_MAX];
    size_t shortest = 0, all = 0;
    args.seq_count = 0;
    for (uint32_t i = 0; i < test->args.seq_count; i++) {
        struct kva_lowbit_seq seq = test->seqs[i];
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
        if (test->data[i].hot) {
            hot_new(check, test, i, &hots[args.seq_count]);
            seq.hot = &hots[args.seq_count].hot;
        }
        size_t bytes = kva_attend_lowbit_scratch_bytes(args.heads, seq.page_count);
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
    variant->ops.attend_lowbit(device, &args);
    bool good = check_buf_intact(&scratch) && kva_device_error(device, NULL) == KVA_OK;
    check_buf_free(&scratch);
    for (uint32_t i = 0; i < args.seq_count; i++) {
        if (seqs[i].hot && chosen && seqs[i].select_row != UINT32_MAX)
            memcpy(chosen[of[i]], hots[i].hot.chosen, hots[i].chosen.bytes);
        good &= hot_free(&hots[i]);
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
    struct kva_partial partial = {.a = buf.data};
    partial.m = partial.a + pairs * dim;
    partial.e = partial.m + pairs;
    bool good = run_rows(check, variant, device, lowbit, first, rows, NULL, NULL, partial);
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

/* --- truth ------------------------------------------------------------------------------------ */

/* The low-bit number of a token's channel, read as ops.h draws the block. */
static double decode(const struct lowbit_test *test, const unsigned char *head, bool value,
                     uint32_t token, uint32_t c)
{
    uint32_t dim = test->args.head_dim, group = test->args.format.group;
    uint32_t bits = test->args.format.bits;
    size_t k = (size_t)64 / group * dim, v = ((size_t)dim + group - 1) / group * 64;
    size_t at = value ? c / group * 64 + token : token / group * dim + c;
    const uint16_t *levels = (const uint16_t *)(const void *)head + (value ? 2 * k : 0);
    double scale = check_widen(levels[at], KVA_F16);
    double zero = check_widen(levels[at + (value ? v : k)], KVA_F16);
    const unsigned char *codes = head + (k + v) * 4;
    size_t nibble = value ? (size_t)bits * dim / 4 * 64 + (size_t)(token / 4) * dim + c
                          : (size_t)(c / 4) * 64 + token;
    uint32_t bit = value ? token % 4 : c % 4, code = 0;
    for (uint32_t plane = 0; plane < bits; plane++, nibble += (size_t)dim / 4 * 64)
        code |= ((uint32_t)codes[nibble / 2] >> (nibble % 2 * 4 + bit) & 1u) << plane;
    return zero + scale * code;
}

/* Keys and values of one sequence and KV head as doubles [positions, 2, head_dim], hot rows in
 * their places. */
static double *widen(const struct lowbit_test *test, uint32_t seq, uint32_t kv_head)
{
    const struct kva_attend_lowbit_args *args = &test->args;
    const struct seq_data *data = &test->data[seq];
    size_t dim = args->head_dim, tokens = (size_t)test->seqs[seq].page_count * 64;
    size_t head_bytes = kva_lowbit_head_bytes(args->format, args->head_dim);
    double *wide = malloc(kva_max_size(tokens, 1) * 2 * dim * sizeof *wide);
    for (uint32_t t = 0; t < tokens; t++) {
        const unsigned char *head = (const unsigned char *)data->pages[t / 64].data +
                                    args->block_offset_bytes + kv_head * head_bytes;
        for (uint32_t i = 0; i < 2 * dim; i++)
            wide[t * 2 * dim + i] = decode(test, head, i >= dim, t % 64, i % (uint32_t)dim);
    }
    for (uint32_t i = 0; data->hot && i < data->counts[kv_head]; i++) {
        size_t t = data->positions[kv_head * HOT_MAX + i];
        const uint16_t *row = data->rows + ((size_t)kv_head * HOT_MAX + i) * 2 * dim;
        for (size_t j = 0; j < 2 * dim; j++)
            wide[t * 2 * dim + j] = check_widen(row[j], args->kv_dtype);
    }
    return wide;
}

/* The scales of keys [positions, head_dim], then of values. */
static double *widen_scales(const struct lowbit_test *test, uint32_t seq, uint32_t kv_head)
{
    const struct kva_attend_lowbit_args *args = &test->args;
    size_t dim = args->head_dim, tokens = (size_t)test->seqs[seq].page_count * 64;
    size_t k = (size_t)64 / args->format.group * dim;
    double *wide = malloc(kva_max_size(tokens * 2 * dim, 1) * sizeof *wide);
    for (size_t t = 0; t < tokens; t++) {
        const unsigned char *head = (const unsigned char *)test->data[seq].pages[t / 64].data +
                                    args->block_offset_bytes +
                                    kv_head * kva_lowbit_head_bytes(args->format, args->head_dim);
        const uint16_t *levels = (const uint16_t *)(const void *)head;
        for (size_t c = 0; c < dim; c++) {
            wide[t * dim + c] = check_widen(levels[t % 64 / args->format.group * dim + c], KVA_F16);
            wide[(tokens + t) * dim + c] =
                check_widen(levels[2 * k + c / args->format.group * 64 + t % 64], KVA_F16);
        }
    }
    return wide;
}

static uint32_t first_seen(const struct lowbit_test *test, uint32_t position)
{
    uint32_t window = test->args.window;
    return window && position >= window ? position - window + 1 : 0;
}

/* What a pair should be, and how far it may be off. */
struct truth {
    double *a, *a_bound;
    double m, e, m_bound, e_bound;
};

/* Levels that round queries and weights. */
static uint32_t rounding_levels(enum kva_dtype kv_dtype)
{
    return KVA_CPU_AVX512VNNI | KVA_CPU_AMX | (kv_dtype == KVA_BF16 ? KVA_CPU_AVX512BF16 : 0);
}

/* What rounding to 8 bits may add, where codes meet integers (avx512vnni, amx): a factor is off by
 * half a step (a query's) or by one (a weight's, see the kernel), a step being the 127th part of
 * the largest factor, and counts once per unit of code. With 4 bits the steps are 128 times finer.
 * Where bf16 rows meet bf16 products (avx512bf16, amx), a hot row's query and weight are off by
 * 2^-8. One bound serves the levels of either kind and of both. */
struct rounding {
    const double *k_scale; /* [positions, head_dim]; 0 for hot rows */
    const double *v_scale;
    bool on;
};

static double steps_of(const struct lowbit_test *test)
{
    return test->args.format.bits == 4 ? 127.0 * 128 : 127.0;
}

/* Largest error of a score of `token`. */
static double score_rounding(const struct lowbit_test *test, const struct rounding *rounding,
                             const float *q, uint32_t token)
{
    size_t dim = test->args.head_dim;
    double top = 0, code_max = (1 << test->args.format.bits) - 1;
    for (size_t i = 0; rounding->on && i < dim; i++)
        top = fmax(top, fabs((double)q[i] * (double)test->args.scale *
                             rounding->k_scale[token * dim + i]));
    return (top / steps_of(test) * 0.5 + 0x1p-100) * code_max * (double)dim;
}

static void pair_truth(const struct lowbit_test *test, uint32_t first, uint32_t tokens,
                       const float *q, const double *kv, const struct rounding *rounding,
                       double *scores, struct truth *truth)
{
    size_t dim = test->args.head_dim;
    double lowest = INFINITY, largest = 0, rounded = 0, v_step = 0;
    truth->m = -INFINITY;
    truth->e = 0;
    for (uint32_t t = first; t < tokens; t++) {
        double sum = 0, size = 0;
        for (size_t i = 0; i < dim; i++) {
            double product = (double)q[i] * (double)test->args.scale * kv[t * 2 * dim + i];
            sum += product;
            size += fabs(product);
        }
        scores[t] = sum;
        truth->m = fmax(truth->m, sum);
        lowest = fmin(lowest, sum);
        largest = fmax(largest, size);
        rounded = fmax(rounded, score_rounding(test, rounding, q, t));
        for (size_t i = 0; rounding->on && i < dim; i++)
            v_step = fmax(v_step, rounding->v_scale[t * dim + i] / steps_of(test));
    }
    bool halves = rounding->on && test->args.kv_dtype == KVA_BF16;
    rounded += halves ? 0x1p-8 * largest : 0;
    /* As in check_attend.c, with a rounding for the product of code and scale and one for the sum
     * with zero, which may be larger than the sum. */
    double score_error = ((double)dim + 8) * UNIT * 3 * largest + (double)dim * 0x1p-145 + rounded;
    double folds = tokens / KVA_ATTEND_SPLIT_TOKENS + 4.0;
    double range = fmin(truth->m > -INFINITY ? truth->m - lowest : 0, 110);
    double relative = 2 * score_error + UNIT * (16 + range + 8 * folds);
    if (rounding->on) /* exponentials are off by 7e-6 as well, and errors are no longer small */
        relative = exp(relative + 1e-5 + (halves ? 0x1p-8 : 0)) - 1;
    memset(truth->a, 0, dim * sizeof(double));
    memset(truth->a_bound, 0, dim * sizeof(double));
    for (uint32_t t = first; t < tokens; t++) {
        double p = exp(scores[t] - truth->m);
        truth->e += p;
        for (size_t i = 0; i < dim; i++) {
            double v = kv[t * 2 * dim + dim + i];
            truth->a[i] += p * v;
            truth->a_bound[i] +=
                (fabs(v) + 1) * (p * (relative + UNIT * KVA_ATTEND_SPLIT_TOKENS) + 0x1p-125);
        }
    }
    /* A weight's step is that of the largest of its split, which is 1 at most. */
    double code_max = (1 << test->args.format.bits) - 1;
    for (uint32_t split = first / KVA_ATTEND_SPLIT_TOKENS;
         rounding->on && split * KVA_ATTEND_SPLIT_TOKENS < tokens; split++) {
        uint32_t low = kva_max_u32(first, split * KVA_ATTEND_SPLIT_TOKENS);
        uint32_t high = kva_min_u32(tokens, (split + 1) * KVA_ATTEND_SPLIT_TOKENS);
        double most = 0;
        for (uint32_t t = low; t < high; t++)
            most = fmax(most, exp(scores[t] - truth->m));
        for (size_t i = 0; i < dim; i++)
            truth->a_bound[i] += (high - low) * most * (1 + relative) * v_step * code_max;
    }
    truth->m_bound = score_error + UNIT * fabs(truth->m > -INFINITY ? truth->m : 0);
    truth->e_bound = truth->e * (relative + UNIT * 64) + 0x1p-115;
}

static void lowbit_truth(const struct lowbit_test *test, bool rounds, double *expect, double *bound)
{
    const struct kva_attend_lowbit_args *args = &test->args;
    size_t dim = args->head_dim, heads = args->heads, cols = heads * (dim + 2);
    uint32_t group = args->heads / args->kv_heads;
    double *scores = malloc((PAGES_MAX * 64 + 1) * sizeof *scores);
    for (uint32_t s = 0; s < args->seq_count; s++) {
        const struct kva_lowbit_seq *seq = &test->seqs[s];
        for (uint32_t kv_head = 0; kv_head < args->kv_heads; kv_head++) {
            double *kv = widen(test, s, kv_head), *scales = widen_scales(test, s, kv_head);
            struct rounding rounding = {.k_scale = scales, .on = rounds};
            rounding.v_scale = scales + (size_t)seq->page_count * 64 * dim;
            for (uint32_t i = 0; i < seq->row_count * group; i++) {
                size_t row = seq->row_first + i / group, head = kv_head * group + i % group;
                double *e = expect + row * cols, *b = bound + row * cols;
                struct truth truth = {.a = e + head * dim, .a_bound = b + head * dim};
                pair_truth(test, first_seen(test, seq->position_first + i / group),
                           seq->page_count * 64,
                           (const float *)args->q + row * args->q_stride + head * dim, kv,
                           &rounding, scores, &truth);
                e[heads * dim + head] = truth.m;
                e[heads * (dim + 1) + head] = truth.e;
                b[heads * dim + head] = truth.m_bound;
                b[heads * (dim + 1) + head] = truth.e_bound;
            }
            free(scales);
            free(kv);
        }
    }
    free(scores);
}

/* `a` and `e` are relative to the m that was found. */
static void adjust_lowbit(const struct check_case *test, const float *out, double *expect,
                          double *bound)
{
    const struct lowbit_test *lowbit = test->opaque;
    size_t dim = lowbit->args.head_dim, heads = lowbit->args.heads, cols = test->cols;
    for (size_t i = 0; i < test->rows * heads; i++) {
        size_t at = i / heads * cols, head = i % heads, m_at = at + heads * dim + head;
        if (!(expect[m_at] > -INFINITY) || !(fabs(out[m_at] - expect[m_at]) <= bound[m_at]))
            continue;
        double factor = exp(expect[m_at] - out[m_at]);
        for (size_t j = 0; j < dim; j++) {
            expect[at + head * dim + j] *= factor;
            bound[at + head * dim + j] *= factor;
        }
        expect[m_at + heads] *= factor;
        bound[m_at + heads] *= factor;
    }
}

/* --- selection -------------------------------------------------------------------------------- */

/* means[t] = the mean probability of position t for the row; -1 where it is no candidate. */
static void mean_truth(const struct lowbit_test *test, uint32_t seq, uint32_t select,
                       uint32_t kv_head, double *means)
{
    const struct kva_attend_lowbit_args *args = &test->args;
    uint32_t dim = args->head_dim, tokens = test->seqs[seq].page_count * 64;
    uint32_t group = args->heads / args->kv_heads, row = test->seqs[seq].row_first + select;
    uint32_t first = first_seen(test, test->seqs[seq].position_first + select);
    double *kv = widen(test, seq, kv_head), *scores = malloc((tokens + 1) * sizeof *scores);
    for (uint32_t t = 0; t < tokens; t++)
        means[t] = t < first || t < test->data[seq].pinned ? -1 : 0;
    for (uint32_t h = 0; h < group; h++) {
        size_t pair = (size_t)row * args->heads + kv_head * group + h;
        const float *q = (const float *)args->q + (size_t)row * args->q_stride +
                         ((size_t)kv_head * group + h) * dim;
        double m = test->with_rest ? test->rest.m[pair] : -INFINITY, e = 0;
        for (uint32_t t = first; t < tokens; t++) {
            scores[t] = 0;
            for (uint32_t i = 0; i < dim; i++)
                scores[t] += (double)q[i] * (double)args->scale * kv[(size_t)t * 2 * dim + i];
            m = fmax(m, scores[t]);
        }
        for (uint32_t t = first; t < tokens; t++)
            e += exp(scores[t] - m);
        if (test->with_rest && test->rest.m[pair] > -INFINITY)
            e += test->rest.e[pair] * exp(test->rest.m[pair] - m);
        for (uint32_t t = first; t < tokens; t++)
            means[t] += means[t] >= 0 ? exp(scores[t] - m) / e / group : 0;
    }
    free(kv);
    free(scores);
}

/* What is left out may not weigh more than what was chosen, but for `slack` of the weight. */
static const char *check_chosen(const double *means, uint32_t tokens, const uint32_t *chosen,
                                uint32_t k, double slack)
{
    uint32_t candidates = 0, count = 0;
    double least = INFINITY, most = 0;
    for (uint32_t t = 0; t < tokens; t++)
        candidates += means[t] >= 0;
    while (count < k && chosen[count] != KVA_NO_TOKEN)
        count++;
    if (count != kva_min_u32(k, candidates))
        return "a wrong number of positions was chosen";
    for (uint32_t i = 0; i < k; i++) {
        if (i >= count ? chosen[i] != KVA_NO_TOKEN
                       : chosen[i] >= tokens || (i > 0 && chosen[i] <= chosen[i - 1]))
            return "what was chosen is not in order";
    }
    for (uint32_t t = 0, i = 0; t < tokens; t++) {
        if (i < count && chosen[i] == t) {
            if (means[t] < 0)
                return "a position was chosen that is no candidate";
            least = fmin(least, means[t]);
            i++;
        } else {
            most = fmax(most, means[t]);
        }
    }
    return count > 0 && most > least * (1 + slack) + 1e-30
               ? "a position was left out that weighs more than one that was chosen"
               : NULL;
}

struct selection {
    uint32_t select[SEQS_MAX];
    uint32_t *chosen[2][SEQS_MAX];
    float *out[2];
};

/* The selecting call twice, in other slots and on other threads; the second without the sequences
 * after the first, every other time. */
static const char *select_variant(struct check *check, const struct check_variant *variant,
                                  const struct lowbit_test *test, const struct selection *run)
{
    const struct kva_attend_lowbit_args *args = &test->args;
    size_t pairs = (size_t)test->rows * args->heads, floats = pairs * (args->head_dim + 2);
    for (int i = 0; i < 2; i++) {
        struct kva_partial out = {.a = run->out[i]};
        out.m = out.a + pairs * args->head_dim;
        out.e = out.m + pairs;
        for (size_t j = 0; j < floats; j++)
            run->out[i][j] = -77.0f;
        if (!run_rows(check, variant, i ? variant->many : variant->one, test, 0, test->rows,
                      run->select, run->chosen[i], out))
            return "touched what is not its own, or failed";
    }
    if (memcmp(run->out[0], run->out[1], floats * sizeof(float)) != 0)
        return "slots or threads change the result";
    for (uint32_t s = 0; s < args->seq_count; s++) {
        size_t bytes = (size_t)args->kv_heads * test->data[s].k * sizeof(uint32_t);
        if (!test->data[s].hot)
            continue;
        if (memcmp(run->chosen[0][s], run->chosen[1][s], bytes) != 0)
            return "slots or threads change what is chosen";
        /* Alone, the row by itself. */
        struct kva_partial out = {.a = run->out[1], .m = run->out[1], .e = run->out[1]};
        uint32_t row = test->seqs[s].row_first + run->select[s];
        out.m = out.a + (size_t)args->heads * args->head_dim;
        out.e = out.m + args->heads;
        memset(run->chosen[1][s], 0, bytes);
        run_rows(check, variant, variant->one, test, row, 1, run->select, run->chosen[1], out);
        if (memcmp(run->chosen[0][s], run->chosen[1][s], bytes) != 0)
            return "other rows change what is chosen";
    }
    return NULL;
}

static void check_selection(struct check *check, const struct lowbit_test *test, const char *name,
                            double slack, double slack_rounded)
{
    const struct kva_attend_lowbit_args *args = &test->args;
    struct selection run;
    size_t floats = (size_t)test->rows * args->heads * (args->head_dim + 2);
    double *means = malloc((size_t)PAGES_MAX * 64 * sizeof *means);
    for (uint32_t s = 0; s < args->seq_count; s++)
        run.select[s] = check_below(check, test->seqs[s].row_count);
    for (int i = 0; i < 2; i++) {
        run.out[i] = malloc(floats * sizeof(float));
        for (uint32_t s = 0; s < args->seq_count; s++)
            run.chosen[i][s] = malloc(((size_t)args->kv_heads * test->data[s].k + 1) * 4);
    }
    for (uint32_t v = 0; v < check->variant_count; v++) {
        struct check_variant *variant = &check->variants[v];
        const char *reason = select_variant(check, variant, test, &run);
        for (uint32_t i = 0; i < args->seq_count * args->kv_heads && !reason; i++) {
            uint32_t s = i / args->kv_heads, head = i % args->kv_heads, k = test->data[s].k;
            if (!test->data[s].hot)
                continue;
            mean_truth(test, s, run.select[s], head, means);
            bool rounds = variant->levels & rounding_levels(args->kv_dtype);
            reason = check_chosen(means, test->seqs[s].page_count * 64,
                                  run.chosen[0][s] + (size_t)head * k, k,
                                  rounds ? slack_rounded : slack);
        }
        check_count(check, variant, OP_ATTEND_LOWBIT, name, !reason, reason);
    }
    for (int i = 0; i < 2; i++) {
        free(run.out[i]);
        for (uint32_t s = 0; s < args->seq_count; s++)
            free(run.chosen[i][s]);
    }
    free(means);
}

/* --- cases ------------------------------------------------------------------------------------ */

static void lowbit_case(struct check *check, const struct plan *plan)
{
    if (check_enough(check, OP_ATTEND_LOWBIT))
        return;
    struct lowbit_test *lowbit = lowbit_build(check, plan);
    uint32_t cols = plan->shape.heads * (plan->shape.head_dim + 2);
    size_t count = (size_t)lowbit->rows * cols;
    double *expect = malloc(4 * count * sizeof(double));
    struct check_case test = {.op = OP_ATTEND_LOWBIT,
                              .run = run_lowbit,
                              .opaque = lowbit,
                              .rows = lowbit->rows,
                              .cols = cols,
                              .stride = cols,
                              .adjust = adjust_lowbit,
                              .expect = expect,
                              .bound = expect + count,
                              .norm_share = 0.5,
                              /* Bounds take every rounding for the worst: together they are far
                               * from it. */
                              .rounding_levels = rounding_levels(plan->dtype),
                              .expect_rounded = expect + 2 * count,
                              .bound_rounded = expect + 3 * count,
                              .norm_share_rounded = 0.1,
                              /* Products of bytes are exact, however they are made. */
                              .same_levels = plan->bare ? KVA_CPU_AVX512VNNI | KVA_CPU_AMX : 0};
    snprintf(test.name, sizeof test.name,
             "heads %u/%u head_dim %u %u bits group %u seqs %u rows %u pages %u window %u k %u %s "
             "%s",
             plan->shape.heads, plan->shape.kv_heads, plan->shape.head_dim, plan->format.bits,
             plan->format.group, lowbit->args.seq_count, plan->rows[0], plan->pages[0],
             plan->window, plan->k, kva_dtype_name(plan->dtype), check_fill_name(plan->fill));
    lowbit_truth(lowbit, false, expect, expect + count);
    lowbit_truth(lowbit, true, expect + 2 * count, expect + 3 * count);
    check_case(check, &test);
    if (plan->fill == FILL_NORMAL || plan->fill == FILL_LARGE)
        check_selection(check, lowbit, test.name, plan->fill == FILL_LARGE ? 0.01 : 1e-4,
                        plan->fill == FILL_LARGE ? 10 : 0.2);
    free(expect);
    lowbit_free(lowbit);
}

void check_attend_lowbit(struct check *check)
{
    /* stories260K, the bundled model's kind, TinyLlama, Llama 8B, Phi, MHA of 96, MQA. */
    const struct shape shapes[] = {{8, 4, 8},  {8, 1, 64}, {32, 4, 64}, {8, 2, 128},
                                   {4, 4, 80}, {3, 3, 96}, {71, 1, 64}, {6, 2, 20}};
    const uint32_t rows[] = {1, 2, 2, 3, 5, 17}, bits[] = {1, 2, 4};
    const uint32_t pages[] = {0, 1, 2, 3, 4, 5, 8, 9, 17};
    uint32_t rounds = check->quick ? 3 : 12;
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        bool big = shapes[i].heads * shapes[i].head_dim > 512;
        for (uint32_t j = 0; j < rounds; j++) {
            struct plan plan = {.shape = shapes[i], .dtype = j % 2 ? KVA_F16 : KVA_BF16};
            plan.format.bits = bits[j % 3];
            plan.format.group = check_below(check, 3) ? 64 : 32;
            plan.fill = j < 6 ? FILL_NORMAL : (enum check_fill)check_below(check, FILL_COUNT);
            plan.window = check_below(check, 3) ? 0 : check_between(check, 1, 700);
            plan.k = check_below(check, 3) ? check_between(check, 1, 64) : 700;
            uint32_t seqs = check_between(check, 1, big ? 2 : SEQS_MAX);
            for (uint32_t s = 0; s < seqs; s++) {
                plan.rows[s] = rows[check_below(check, big ? 4 : KVA_COUNT_OF(rows))];
                plan.pages[s] = pages[check_below(check, KVA_COUNT_OF(pages))];
            }
            lowbit_case(check, &plan);
        }
        for (uint32_t j = 0; j < KVA_COUNT_OF(bits); j++) {
            struct plan plan = {.shape = shapes[i], .k = 1, .dtype = KVA_BF16, .bare = true};
            plan.format = (struct kva_lowbit_format){.bits = bits[j], .group = j % 2 ? 32 : 64};
            plan.rows[0] = i % 2 ? 1 : 3;
            plan.pages[0] = 5 + j;
            lowbit_case(check, &plan);
        }
    }
    /* Few tasks and many splits: the way with partial results. */
    struct plan wide = {.shape = {8, 1, 64}, .rows = {2}, .pages = {PAGES_MAX}, .k = 64};
    wide.format = (struct kva_lowbit_format){.bits = 1, .group = 64};
    wide.dtype = KVA_BF16;
    lowbit_case(check, &wide);
    wide.window = 1700;
    wide.format.bits = 2;
    lowbit_case(check, &wide);
}
